/* Every system call with each of its pointers on a page in each state: what places the pointers, brings their pages
   to the state, makes the call, and tells what came of it.

   A row is a function that makes a small world (files, sockets, processes) and says which call is made in it, with
   `in`, `out` and `text` for what the call's pointers point to. It is asked once for each case: a pointer that is the
   subject, the state of its page, and its place in the page. The subject lies in managed memory, all else does not.
 */
#define MUCH (24 << 20)
#include "away.h"
#include <ftw.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/time.h>

#define PAGE 4096
/* Pages between which nothing is brought in together. */
#define APART (32 * PAGE)
#define HALF (16 * PAGE)
/* How often the pages of a case are brought to their state before that is given up. */
#define ROUNDS 16
/* What is larger is not all in a state that does not last. */
#define LARGE (4 * PAGE)
#define CASES_MAX 1500
#define TEXT_MAX 300
#define AREAS_MAX 16
/* Seconds that one call may take. */
#define CALL_SECONDS 120
/* After so many of its cases the others of a row are not tried. */
#define HANGS_MAX 3
/* Seconds without a step after which a process is ended that no signal ends. */
#define STUCK_SECONDS 150

/* The last two are away, and the program itself has made them read-only or taken all access. */
enum state { RESIDENT, OUT, ASIDE, PROTECTED, ZERO, READ_ONLY, FORBIDDEN, STATES };
static const char *const state_names[] = {"resident", "out", "aside", "protected", "zero", "read-only", "forbidden"};

/* Where the subject lies: inside of a page; across two of which only the second or only the first is in the state;
   and at the end of its mapping. */
enum place { MIDDLE, SECOND, FIRST, END, PLACES };
static const char *const place_names[] = {"middle", "second", "first", "end"};

struct area {
    const char *name;
    unsigned char *at;
    size_t size;
    int masks;
    struct {
        size_t from, bytes;
    } mask[6];
};

/* One call, with its world. */
struct call {
    const struct row *row;
    int number, subject, state, place, align, count, is_fd, has_no_middle, masks_result, interrupts, is_whole;
    /* Where a page border goes through the subject, if not in its middle. */
    size_t split;
    long call, arguments[6];
    struct area areas[AREAS_MAX];
    /* Pages of the subject that are brought to the state, and those that are in memory. */
    unsigned char *from, *to, *other, *other_to, *slot, *slot_end;
    void (*before)(struct call *), (*after)(struct call *);
    long (*make)(struct call *);
    /* What the row keeps from one step to the next. */
    long kept[8];
    char said[160];
};

struct row {
    const char *name;
    void (*make)(struct call *);
    /* It changes its process: each case has one of its own. */
    int alone;
};

struct result {
    int is_done;
    char text[TEXT_MAX];
};

/* What a child tells its parent. */
struct told {
    int at, count;
    /* Counts up while something goes on. */
    unsigned steps;
    char names[AREAS_MAX][24];
    struct result results[CASES_MAX];
    /* Objects of System V, which nobody else removes. */
    struct object {
        enum { SHM, SEM, QUEUE } kind;
        int id;
    } objects[3 * CASES_MAX];
    int object_count;
};

#define ROW_OF(row_name, is_alone) \
    static void row_##row_name(struct call *c); \
    static const struct row of_##row_name \
        __attribute__((used, section("rows"), aligned(8))) = {#row_name, row_##row_name, is_alone}; \
    static void row_##row_name(struct call *c)
/* What follows is the row's function, of the call `c`. */
#define ROW(name) ROW_OF(name, 0)
/* It changes its process: each case has one of its own. */
#define ROW_ALONE(name) ROW_OF(name, 1)
/* All rows: the linker knows where they lie. */
extern const struct row __start_rows[], __stop_rows[];

static struct told *told;
#define ALL_STATES ((1u << STATES) - 1)
static unsigned wanted_states = ALL_STATES;
static int is_bare, is_verbose, pagemap = -1;
static unsigned char spare[64 << 20] __attribute__((aligned(PAGE)));
static size_t spare_used;
/* What calls read that only needs contents. */
static unsigned char content[1 << 20];
static unsigned char *arena, *arena_at, *arena_end;
static struct call *calls;

/* Memory that is never managed. */
static void *plain(size_t bytes)
{
    unsigned char *at = spare + spare_used;
    spare_used += (bytes + 79) / 16 * 16;
    CHECK(spare_used <= sizeof spare);
    return at;
}

static void lay(struct call *call, struct area *area)
{
    size_t size = area->size, split = size >= 16 ? size / 2 & ~7ul : size / 2;
    if (call->split)
        split = call->split;
    size_t before = split / HALF * HALF, slot = APART + before + (size + 2 * HALF - 1) / HALF * HALF;
    unsigned char *base = arena_at + before;
    call->slot = arena_at;
    arena_at += slot;
    CHECK(arena_at <= arena_end);
    call->slot_end = arena_at;
    switch (call->place) {
    case MIDDLE:
        area->at = base + HALF + (call->align > 512 ? 0 : 512);
        break;
    case END:
        area->at = base + HALF + (size + PAGE - 1) / PAGE * PAGE - size;
        CHECK(!munmap(area->at + size, arena_at - (area->at + size)));
        call->slot_end = area->at + size;
        break;
    default:
        area->at = base + HALF - split;
    }
    call->from = (unsigned char *)((uintptr_t)area->at & ~(PAGE - 1ul));
    call->to = (unsigned char *)(((uintptr_t)area->at + size + PAGE - 1) & ~(PAGE - 1ul));
    if (call->place == SECOND) {
        call->other = call->from;
        call->other_to = call->from = base + HALF;
    } else if (call->place == FIRST) {
        call->other = base + HALF;
        call->other_to = call->to;
        call->to = base + HALF;
    }
}

/* A pattern around the subject, to see what else is written. */
static void fill(struct call *call, unsigned char *from, unsigned char *to)
{
    for (unsigned char *at = from; at < to; at++)
        *at = (at - call->slot) * 7 + 3;
}

/* What a pointer points to: `bytes` bytes, and their contents before the call. */
static long in(struct call *call, const char *name, const void *contents, size_t size)
{
    CHECK(call->count < AREAS_MAX);
    struct area *area = &call->areas[call->count++];
    area->name = name;
    area->size = size;
    if (call->count - 1 != call->subject) {
        area->at = plain(size + (call->align > 512 ? PAGE : 0));
        if (call->align > 512)
            area->at = (unsigned char *)(((uintptr_t)area->at + PAGE - 1) & ~(PAGE - 1ul));
        memcpy(area->at, contents, size);
        return (long)area->at;
    }
    lay(call, area);
    int is_zero = call->state == ZERO;
    if (!is_zero)
        fill(call, call->from, call->to);
    if (call->other)
        fill(call, call->other, call->other_to);
    /* To bring it in later could bring in its neighbours as well. */
    if (call->other && !is_bare)
        CHECK(!mlock(call->other, call->other_to - call->other));
    for (size_t i = 0; i < size; i++) {
        unsigned char *at = area->at + i, byte = ((const unsigned char *)contents)[i];
        if (is_zero && at >= call->from && at < call->to) {
            if (byte)
                call->has_no_middle = 1;
        } else {
            *at = byte;
        }
    }
    return (long)area->at;
}

static long out(struct call *call, const char *name, size_t size)
{
    static unsigned char nothing[1 << 20];
    CHECK(size <= sizeof nothing);
    return in(call, name, nothing, size);
}

static long text(struct call *call, const char *name, const char *string)
{
    return in(call, name, string, strlen(string) + 1);
}

#define PUT(call, name, value) in(call, name, &(value), sizeof(value))

/* These bytes of the last area differ from run to run. */
static void mask(struct call *call, size_t from, size_t bytes)
{
    struct area *area = &call->areas[call->count - 1];
    area->mask[area->masks].from = from;
    area->mask[area->masks++].bytes = bytes;
}

static long hide(struct call *call, long at, size_t from, size_t bytes)
{
    mask(call, from, bytes);
    return at;
}

#define CALL(to, number, ...) \
    do { \
        long given_[6] = {__VA_ARGS__}; \
        (to)->call = (number); \
        memcpy((to)->arguments, given_, sizeof given_); \
    } while (0)

static void say(struct call *call, const char *form, ...)
{
    va_list rest;
    size_t length = strlen(call->said);
    va_start(rest, form);
    vsnprintf(call->said + length, sizeof call->said - length, form, rest);
    va_end(rest);
}
