/* Shortest paths in a planar graph, from one corner of it to all points.
 *
 *     paths --part I --of N [--name /NAME] [--side 256] [--batch 64]
 *
 * Points form a grid with roads of chance lengths between neighbours. Points from which paths can go on
 * wait in a queue that all parts share, the most promising first. Each part takes some, goes one road
 * further in all directions, and queues the points to which it has found a shorter way than was
 * known. Who finds no points waits for those who are under way, until nobody is. */
#define _GNU_SOURCE
#include "parallel.h"

enum {
    ROADS = 4,
    LENGTH_MAX = 255,
    BATCH_MAX = 1024,
    /* Lengths that are as promising as each other. */
    STEP = 64,
    NOWHERE = -1,
};

static const uint32_t UNKNOWN = UINT32_MAX;

struct point {
    /* The least so far. */
    _Atomic uint32_t distance;
    /* Its neighbours in the queue, by number; NOWHERE is none. */
    int32_t before, after;
    /* Where it is queued, or NOWHERE. */
    int32_t step;
    /* Lengths of roads. */
    uint8_t east, south;
};

struct queue {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    /* No step before it has points. */
    int32_t least;
    int under_way, waiting;
};

/* All of it is shared. */
struct graph {
    long side, steps;
    struct queue *queue;
    /* Of each step. */
    int32_t *first;
    struct point *points;
};

/* To the neighbour of a point; UNKNOWN if there is no road that way. */
static uint32_t road(const struct graph *graph, long point, int way, long *to)
{
    long side = graph->side, row = point / side, column = point % side;
    switch (way) {
    case 0:
        *to = point + 1;
        return column + 1 < side ? graph->points[point].east : UNKNOWN;
    case 1:
        *to = point + side;
        return row + 1 < side ? graph->points[point].south : UNKNOWN;
    case 2:
        *to = point - 1;
        return column > 0 ? graph->points[point - 1].east : UNKNOWN;
    default:
        *to = point - side;
        return row > 0 ? graph->points[point - side].south : UNKNOWN;
    }
}

static void unqueue(struct graph *graph, int32_t point)
{
    struct point *place = &graph->points[point];
    if (place->before == NOWHERE)
        graph->first[place->step] = place->after;
    else
        graph->points[place->before].after = place->after;
    if (place->after != NOWHERE)
        graph->points[place->after].before = place->before;
    place->step = NOWHERE;
}

static void enqueue(struct graph *graph, int32_t point, uint32_t distance)
{
    struct point *place = &graph->points[point];
    int32_t step = (int32_t)(distance / STEP);
    if (place->step != NOWHERE) {
        if (place->step <= step)
            return;
        unqueue(graph, point);
    }
    place->before = NOWHERE;
    place->after = graph->first[step];
    place->step = step;
    if (place->after != NOWHERE)
        graph->points[place->after].before = point;
    graph->first[step] = point;
    if (step < graph->queue->least)
        graph->queue->least = step;
}

static int is_empty(struct graph *graph)
{
    int32_t *least = &graph->queue->least;
    while (*least < graph->steps && graph->first[*least] == NOWHERE)
        ++*least;
    return *least == graph->steps;
}

/* Goes one road further from a point. Returns to how many points that is the shortest way so far. */
static int extend(struct graph *graph, int32_t from, int32_t *found, uint32_t *distances)
{
    int count = 0;
    uint32_t distance = atomic_load(&graph->points[from].distance);
    for (int way = 0; way < ROADS; way++) {
        long to;
        uint32_t length = road(graph, from, way, &to);
        if (length == UNKNOWN)
            continue;
        _Atomic uint32_t *least = &graph->points[to].distance;
        uint32_t new = distance + length, known = atomic_load(least);
        while (new < known)
            if (atomic_compare_exchange_weak(least, &known, new)) {
                found[count] = (int32_t)to;
                distances[count++] = new;
                break;
            }
    }
    return count;
}

/* Takes the most promising points, up to `batch` of one step; 0 when all is done. Has the mutex. */
static int take(struct graph *graph, int32_t *points, int batch)
{
    struct queue *queue = graph->queue;
    while (is_empty(graph)) {
        if (queue->under_way == 0) {
            pthread_cond_broadcast(&queue->changed);
            return 0;
        }
        queue->waiting++;
        pthread_cond_wait(&queue->changed, &queue->mutex);
        queue->waiting--;
    }
    int count = 0;
    int32_t *first = &graph->first[queue->least];
    for (; count < batch && *first != NOWHERE; count++) {
        points[count] = *first;
        unqueue(graph, *first);
    }
    queue->under_way++;
    if (queue->waiting > 0 && !is_empty(graph))
        pthread_cond_signal(&queue->changed);
    return count;
}

/* Returns how many points this part has gone on from. */
static long search(struct graph *graph, int batch)
{
    static int32_t points[BATCH_MAX], found[BATCH_MAX * ROADS];
    static uint32_t distances[BATCH_MAX * ROADS];
    struct queue *queue = graph->queue;
    long done = 0;
    int count;
    pthread_mutex_lock(&queue->mutex);
    while ((count = take(graph, points, batch)) > 0) {
        pthread_mutex_unlock(&queue->mutex);
        int news = 0;
        for (int at = 0; at < count; at++)
            news += extend(graph, points[at], found + news, distances + news);
        done += count;
        pthread_mutex_lock(&queue->mutex);
        for (int at = 0; at < news; at++)
            enqueue(graph, found[at], distances[at]);
        queue->under_way--;
    }
    pthread_mutex_unlock(&queue->mutex);
    return done;
}

static void set(struct graph *graph)
{
    long points = graph->side * graph->side;
    pthread_mutexattr_t mutex;
    pthread_mutexattr_init(&mutex);
    pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&graph->queue->mutex, &mutex);
    pthread_condattr_t changed;
    pthread_condattr_init(&changed);
    pthread_condattr_setpshared(&changed, PTHREAD_PROCESS_SHARED);
    pthread_cond_init(&graph->queue->changed, &changed);
    for (long step = 0; step < graph->steps; step++)
        graph->first[step] = NOWHERE;
    for (long at = 0; at < points; at++) {
        struct point *point = &graph->points[at];
        point->step = NOWHERE;
        point->distance = UNKNOWN;
        point->east = (uint8_t)(1 + chance((uint64_t)at) % LENGTH_MAX);
        point->south = (uint8_t)(1 + chance((uint64_t)(at + points)) % LENGTH_MAX);
    }
    graph->points[0].distance = 0;
    enqueue(graph, 0, 0);
}

/* No road makes a way shorter, and each point is reached by one: so its distance is the least. */
static int is_shortest(const struct graph *graph, uint64_t *sum)
{
    int is_right = graph->points[0].distance == 0;
    *sum = 0;
    for (long point = 0; point < graph->side * graph->side; point++) {
        uint64_t distance = graph->points[point].distance;
        int is_reached = point == 0;
        for (int way = 0; way < ROADS; way++) {
            long from;
            uint32_t length = road(graph, point, way, &from);
            if (length == UNKNOWN)
                continue;
            uint64_t by = (uint64_t)graph->points[from].distance + length;
            is_right &= by >= distance;
            is_reached |= by == distance;
        }
        is_right &= is_reached;
        *sum += distance;
    }
    return is_right;
}

int main(int argc, char **argv)
{
    struct part part = part_of(argc, argv, "paths");
    struct graph graph = {.side = number(argc, argv, "--side", 256, 2, 8192)};
    int batch = (int)number(argc, argv, "--batch", 64, 1, BATCH_MAX);
    no_more(&part);
    graph.steps = 2 * graph.side * LENGTH_MAX / STEP + 1;
    size_t steps = pages((size_t)graph.steps * sizeof *graph.first);
    size_t points = (size_t)(graph.side * graph.side) * sizeof *graph.points;
    char *memory = share(&part, PAGE + steps + points);
    graph.queue = (struct queue *)memory;
    graph.first = (int32_t *)(memory + PAGE);
    graph.points = (struct point *)(memory + PAGE + steps);
    if (part.number == 0)
        set(&graph);
    begin(&part);
    long done = search(&graph, batch);
    end(&part);
    if (part.number == 0) {
        uint64_t sum;
        int is_right = is_shortest(&graph, &sum);
        judge(&part, sum, is_right);
    }
    char more[40];
    snprintf(more, sizeof more, " points=%ld", done);
    return report(&part, more);
}
