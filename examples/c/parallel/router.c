/* Routes the wires of a chip of standard cells.
 *
 *     router --part I --of N [--name /NAME] [--wires 2000] [--columns 1024] [--rounds 2]
 *
 * Wires run in the channels between rows of cells. An array that all parts share has for each place
 * how many wires run there. Each part takes wires from a shared queue, looks at all routes with two bends
 * at most, takes the one that runs where the fewest wires are, and adds it to the array. In later
 * rounds each wire is taken out and routed again. Parts look at the array while others change it, so
 * that which route is found depends on chance; how long it is does not. */
#define _GNU_SOURCE
#include "parallel.h"

enum {
    CHANNELS = 16,
    /* Wires that a part takes at a time. */
    BATCH = 8,
};

/* A pin of a wire. */
struct pin {
    int32_t column, channel;
};

/* Where it changes its channel or, if it starts across the channels, in which it goes along. */
enum kind { UNROUTED, BY_COLUMN, BY_CHANNEL };

struct wire {
    struct pin from, to;
    enum kind kind;
    int32_t at;
};

struct queue {
    pthread_mutex_t mutex;
    long next, routed;
};

/* All of it is shared. */
struct chip {
    long columns, wires;
    struct queue *queue;
    struct wire *all;
    atomic_int *costs;
};

/* From one place to another in a row or column, without the last: what they cost together, after
 * adding a number to each. */
static long line(struct chip *chip, struct pin from, struct pin to, int add)
{
    long cost = 0;
    int32_t right = (to.column > from.column) - (to.column < from.column);
    int32_t down = (to.channel > from.channel) - (to.channel < from.channel);
    for (; from.column != to.column || from.channel != to.channel;
         from.column += right, from.channel += down) {
        atomic_int *place = &chip->costs[from.channel * chip->columns + from.column];
        if (add)
            atomic_fetch_add_explicit(place, add, memory_order_relaxed);
        cost += atomic_load_explicit(place, memory_order_relaxed);
    }
    return cost;
}

/* What the route of a wire costs, after adding a number to each of its places. */
static long route(struct chip *chip, const struct wire *wire, int add)
{
    struct pin one = wire->from, two = wire->to;
    if (wire->kind == BY_COLUMN)
        one.column = two.column = wire->at;
    else
        one.channel = two.channel = wire->at;
    /* Its last place is part of it. */
    struct pin past = wire->to;
    int32_t *end_of = wire->kind == BY_COLUMN ? &past.column : &past.channel;
    *end_of += *end_of >= wire->at ? 1 : -1;
    return line(chip, wire->from, one, add) + line(chip, one, two, add) +
           line(chip, two, past, add);
}

/* The cheapest route. */
static void find(struct chip *chip, struct wire *wire)
{
    struct wire best = *wire;
    long least = -1;
    for (int kind = BY_COLUMN; kind <= BY_CHANNEL; kind++) {
        int32_t one = kind == BY_COLUMN ? wire->from.column : wire->from.channel;
        int32_t two = kind == BY_COLUMN ? wire->to.column : wire->to.channel;
        int32_t low = one < two ? one : two, high = one < two ? two : one;
        for (int32_t at = low; at <= high; at++) {
            struct wire tried = {wire->from, wire->to, (enum kind)kind, at};
            long cost = route(chip, &tried, 0);
            if (least < 0 || cost < least) {
                least = cost;
                best = tried;
            }
        }
    }
    *wire = best;
}

/* Routes wires until none is left in this round; how many. */
static long work(struct chip *chip)
{
    long routed = 0;
    for (;;) {
        pthread_mutex_lock(&chip->queue->mutex);
        long first = chip->queue->next;
        long end_of = first + BATCH < chip->wires ? first + BATCH : chip->wires;
        chip->queue->next = end_of;
        pthread_mutex_unlock(&chip->queue->mutex);
        if (first == end_of)
            return routed;
        for (long at = first; at < end_of; at++, routed++) {
            struct wire *wire = &chip->all[at];
            if (wire->kind != UNROUTED)
                route(chip, wire, -1);
            find(chip, wire);
            route(chip, wire, 1);
        }
    }
}

static int32_t any(uint64_t *seed, long count)
{
    *seed = chance(*seed);
    return (int32_t)(*seed % (uint64_t)count);
}

/* Most wires are short, some long. */
static void set(struct chip *chip)
{
    pthread_mutexattr_t mutex;
    pthread_mutexattr_init(&mutex);
    pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&chip->queue->mutex, &mutex);
    for (long at = 0; at < chip->wires; at++) {
        uint64_t seed = (uint64_t)at;
        struct wire *wire = &chip->all[at];
        wire->from = (struct pin){any(&seed, chip->columns), any(&seed, CHANNELS)};
        long span = any(&seed, 4) ? chip->columns / 16 : chip->columns / 3;
        long column = wire->from.column + any(&seed, 2 * span + 1) - span;
        column = column < 0 ? 0 : column < chip->columns ? column : chip->columns - 1;
        wire->to = (struct pin){(int32_t)column, any(&seed, CHANNELS)};
    }
}

/* Whether the array has each wire's route and nothing else; how long the routes are, and how many
 * wires run side by side in the channels at most, added up. */
static int is_routed(struct chip *chip, uint64_t *length, long *tracks)
{
    int is_right = 1;
    *length = 0;
    *tracks = 0;
    for (long at = 0; at < CHANNELS * chip->columns; at++)
        *length += (uint64_t)chip->costs[at];
    for (long channel = 0; channel < CHANNELS; channel++) {
        int most = 0;
        for (long column = 0; column < chip->columns; column++) {
            int here = chip->costs[channel * chip->columns + column];
            most = here > most ? here : most;
        }
        *tracks += most;
    }
    for (long at = 0; at < chip->wires; at++) {
        is_right &= chip->all[at].kind != UNROUTED;
        route(chip, &chip->all[at], -1);
    }
    for (long at = 0; at < CHANNELS * chip->columns; at++)
        is_right &= chip->costs[at] == 0;
    return is_right;
}

int main(int argc, char **argv)
{
    struct part part = part_of(argc, argv, "router");
    struct chip chip = {
        .wires = number(argc, argv, "--wires", 2000, 1, 1 << 24),
        .columns = number(argc, argv, "--columns", 1024, 16, 1 << 20),
    };
    long rounds = number(argc, argv, "--rounds", 2, 1, 1000), routed = 0, tracks = 0;
    no_more(&part);
    size_t wires = pages((size_t)chip.wires * sizeof *chip.all);
    char *memory = share(&part, PAGE + wires + CHANNELS * (size_t)chip.columns * sizeof *chip.costs);
    chip.queue = (struct queue *)memory;
    chip.all = (struct wire *)(memory + PAGE);
    chip.costs = (atomic_int *)(memory + PAGE + wires);
    if (part.number == 0)
        set(&chip);
    begin(&part);
    for (long round = 0; round < rounds; round++) {
        routed += work(&chip);
        meet(&part);
        if (part.number == 0)
            chip.queue->next = 0;
        meet(&part);
    }
    end(&part);
    if (part.number == 0) {
        uint64_t length;
        int is_right = is_routed(&chip, &length, &tracks);
        judge(&part, length, is_right);
    }
    char more[60];
    snprintf(more, sizeof more, " wires=%ld tracks=%ld", routed, tracks);
    return report(&part, more);
}
