/* Particles of a thin gas in a wind tunnel, past a plate that stands in the wind.
 *
 *     particles --part I --of N [--name /NAME] [--particles 65536] [--steps 20]
 *
 * Each part moves particles of its own through a space of cells that all share. What moves through a
 * cell is added up there; then the particles of a cell collide: their speeds relative to the mean of
 * the cell are turned, all of them by the same rotation, so that together they go on as before
 * (stochastic rotation dynamics). Numbers are whole and chance depends only on step and particle or
 * cell, so that the result is the same for any number of parts. */
#define _GNU_SOURCE
#include "parallel.h"

enum {
    LONG = 64,
    HIGH = 16,
    WIDE = 8,
    CELLS = LONG * HIGH * WIDE,
    /* Lengths in a cell's side. */
    UNIT = 1024,
    /* Of the wind, and of the heat beside it, for a step. */
    WIND = UNIT / 4,
    HEAT = UNIT / 8,
    /* Where the plate is. */
    PLATE_AT = LONG / 4,
    PLATE_LOW = HIGH / 4,
    PLATE_HIGH = HIGH / 2,
};

static const int32_t SIZE[3] = {LONG * UNIT, HIGH * UNIT, WIDE * UNIT};

struct particle {
    int32_t at[3], speed[3];
};

/* What is in it, in this step. */
struct cell {
    atomic_long count, speed[3];
};

/* Two spaces: one is filled while the other is emptied. */
struct tunnel {
    struct cell *spaces[2];
    struct particle *particles;
};

static long cell_of(const struct particle *of)
{
    return ((long)(of->at[0] / UNIT) * HIGH + of->at[1] / UNIT) * WIDE + of->at[2] / UNIT;
}

static int is_in_plate(const struct particle *of)
{
    int32_t high = of->at[1] / UNIT;
    return of->at[0] / UNIT == PLATE_AT && high >= PLATE_LOW && high < PLATE_HIGH;
}

/* From -most to most. */
static int32_t any(uint64_t *seed, int32_t most)
{
    *seed = chance(*seed);
    return (int32_t)(*seed % (2 * (uint64_t)most + 1)) - most;
}

/* As it comes with the wind. */
static void blow(struct particle *new, uint64_t seed)
{
    for (int axis = 0; axis < 3; axis++)
        new->speed[axis] = (axis == 0 ? WIND : 0) + any(&seed, HEAT);
    for (int axis = 1; axis < 3; axis++) {
        seed = chance(seed);
        new->at[axis] = (int32_t)(seed % (uint64_t)SIZE[axis]);
    }
}

/* Cell by cell, as many everywhere. */
static void set(struct tunnel *tunnel, long particles)
{
    for (long at = 0; at < particles; at++) {
        struct particle *new = &tunnel->particles[at];
        blow(new, (uint64_t)at);
        new->at[0] = (int32_t)(at * (int64_t)SIZE[0] / particles);
        if (is_in_plate(new))
            new->at[0] -= UNIT;
    }
}

/* One step; who leaves the tunnel comes in anew, with the wind. */
static void move(struct particle *of, uint64_t seed)
{
    struct particle before = *of;
    for (int axis = 0; axis < 3; axis++)
        of->at[axis] += of->speed[axis];
    if (of->at[0] < 0 || of->at[0] >= SIZE[0]) {
        of->at[0] -= of->at[0] < 0 ? of->at[0] : SIZE[0];
        blow(of, seed);
    }
    for (int axis = 1; axis < 3; axis++)
        if (of->at[axis] < 0 || of->at[axis] >= SIZE[axis]) {
            int32_t wall = of->at[axis] < 0 ? -1 : 2 * SIZE[axis] - 1;
            of->at[axis] = wall - of->at[axis];
            of->speed[axis] = -of->speed[axis];
        }
    if (is_in_plate(of)) {
        *of = before;
        for (int axis = 0; axis < 3; axis++)
            of->speed[axis] = -of->speed[axis];
    }
}

static void enter(struct cell *cell, const struct particle *of)
{
    atomic_fetch_add_explicit(&cell->count, 1, memory_order_relaxed);
    for (int axis = 0; axis < 3; axis++)
        atomic_fetch_add_explicit(&cell->speed[axis], of->speed[axis], memory_order_relaxed);
}

/* Turns it about an axis of chance by a quarter, relative to what its cell does. */
static void collide(struct particle *of, const struct cell *cell, uint64_t turn)
{
    long count = cell->count;
    int axis = (int)(turn % 3), next = (axis + 1) % 3, last = (axis + 2) % 3;
    int32_t mean[3];
    for (int each = 0; each < 3; each++)
        mean[each] = (int32_t)(cell->speed[each] / count);
    int32_t from_next = of->speed[next] - mean[next], from_last = of->speed[last] - mean[last];
    int32_t sign = turn >> 32 & 1 ? 1 : -1;
    of->speed[next] = mean[next] - sign * from_last;
    of->speed[last] = mean[last] + sign * from_next;
}

static void run(struct part *part, struct tunnel *tunnel, long particles, long steps)
{
    long first = first_of(particles, part->number, part->of);
    long end_of = first_of(particles, part->number + 1, part->of);
    long first_cell = first_of(CELLS, part->number, part->of);
    long end_cell = first_of(CELLS, part->number + 1, part->of);
    for (long step = 0; step < steps; step++) {
        struct cell *space = tunnel->spaces[step % 2], *other = tunnel->spaces[1 - step % 2];
        for (long at = first; at < end_of; at++) {
            struct particle *of = &tunnel->particles[at];
            move(of, chance((uint64_t)step) + (uint64_t)at);
            enter(&space[cell_of(of)], of);
        }
        meet(part);
        for (long at = first; at < end_of; at++) {
            struct particle *of = &tunnel->particles[at];
            long cell = cell_of(of);
            collide(of, &space[cell], chance((uint64_t)(step * CELLS + cell)));
        }
        memset(other + first_cell, 0, (size_t)(end_cell - first_cell) * sizeof *other);
        meet(part);
    }
}

/* Whether all are in the tunnel, and in the cells that have counted them. */
static int is_whole(struct tunnel *tunnel, long particles, long steps, uint64_t *sum)
{
    struct cell *space = tunnel->spaces[(steps - 1) % 2];
    int is_right = 1;
    *sum = 0;
    for (long at = 0; at < particles; at++) {
        const struct particle *of = &tunnel->particles[at];
        for (int axis = 0; axis < 3; axis++) {
            is_right &= of->at[axis] >= 0 && of->at[axis] < SIZE[axis];
            *sum = chance(*sum + (uint32_t)of->at[axis] + ((uint64_t)(uint32_t)of->speed[axis] << 32));
        }
        is_right &= !is_in_plate(of);
        if (is_right)
            space[cell_of(of)].count--;
    }
    for (long cell = 0; cell < CELLS; cell++)
        is_right &= space[cell].count == 0;
    return is_right;
}

int main(int argc, char **argv)
{
    struct part part = part_of(argc, argv, "particles");
    long particles = number(argc, argv, "--particles", 65536, 1, 1 << 24);
    long steps = number(argc, argv, "--steps", 20, 1, 1 << 20);
    no_more(&part);
    size_t space = pages(CELLS * sizeof(struct cell));
    char *memory = share(&part, 2 * space + (size_t)particles * sizeof(struct particle));
    struct tunnel tunnel = {
        .spaces = {(struct cell *)memory, (struct cell *)(memory + space)},
        .particles = (struct particle *)(memory + 2 * space),
    };
    if (part.number == 0)
        set(&tunnel, particles);
    begin(&part);
    run(&part, &tunnel, particles, steps);
    end(&part);
    if (part.number == 0) {
        uint64_t sum;
        int is_right = is_whole(&tunnel, particles, steps, &sum);
        judge(&part, sum, is_right);
    }
    return report(&part, "");
}
