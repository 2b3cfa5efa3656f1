/* See calls.h. Words on the command line are the rows to try; without any, all. `-v` shows the memory afterwards,
   `-out` and its like try one state only, and `-table` tells which calls no row makes, and why. */
#include "calls.h"
#include "calls_states.h"
#include "calls_run.h"
#include "calls_descriptors.h"
#include "calls_names.h"
#include "calls_attributes.h"
#include "calls_newer.h"
#include "calls_sockets.h"
#include "calls_queues.h"
#include "calls_signals.h"
#include "calls_process.h"
#include "calls_filters.h"
#include "calls_memory.h"
#include "calls_threads.h"
#include "calls_programs.h"
#include "calls_others.h"

#define DESCRIPTORS 4000
/* The newest call that is known here. */
#define LAST 469

static void note_call(const struct row *row, unsigned char *made)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        struct call first = {.row = row, .subject = -1};
        char folder[] = "/tmp/calls-XXXXXX";
        CHECK(mkdtemp(folder) && !chdir(folder));
        row->make(&first);
        made[first.call] = first.call != 0 || first.count;
        nftw(folder, forget_one, 16, FTW_DEPTH | FTW_PHYS);
        _exit(0);
    }
    CHECK(waitpid(child, 0, 0) == child);
    remove_objects();
}

/* Each call has a row or a reason. */
static int tell_table(void)
{
    unsigned char *made = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int forgotten = 0, count = 0;
    told = mmap(0, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(made != MAP_FAILED && told != MAP_FAILED);
    for (const struct row *row = __start_rows; row < __stop_rows; row++)
        note_call(row, made);
    for (int i = 0; i <= LAST; i++)
        count += made[i];
    printf("%d calls are made by %zu rows\n", count, (size_t)(__stop_rows - __start_rows));
    for (size_t i = 0; i < LENGTH(others); i++) {
        if (others[i].reason)
            printf("%d %s: %s\n", others[i].number, others[i].name, others[i].reason);
        made[others[i].number] = 1;
    }
    for (int i = 0; i <= LAST; i++)
        if (!made[i] && (i <= 334 || i >= 424)) {
            printf("%d is forgotten\n", i);
            forgotten = 1;
        }
    return forgotten;
}

static int is_named(const char *name, char **names)
{
    int any = 0;
    for (; *names; names++)
        if (**names != '-') {
            any = 1;
            if (!strcmp(*names, name))
                return 1;
        }
    return !any;
}

int main(int number, char **words)
{
    is_bare = !agent_active();
    for (char **word = words + 1; *word; word++)
        is_verbose |= !strcmp(*word, "-v");
    for (char **word = words + 1; *word; word++)
        for (int i = 0; i < STATES; i++)
            if (**word == '-' && !strcmp(*word + 1, state_names[i]))
                wanted_states = (wanted_states == ALL_STATES ? 0 : wanted_states) | 1 << i;
    if (number > 1 && !strcmp(words[1], "-table"))
        return tell_table();
    for (size_t i = 0; i < sizeof content; i++)
        content[i] = i * 31 + (i >> 8) * 17 + 1;
    signal(SIGPIPE, SIG_IGN);
    /* The worlds of a row's cases are there at the same time. */
    struct rlimit files;
    CHECK(!getrlimit(RLIMIT_NOFILE, &files));
    files.rlim_cur = files.rlim_max < DESCRIPTORS ? files.rlim_max : DESCRIPTORS;
    CHECK(!setrlimit(RLIMIT_NOFILE, &files));
    umask(022);
    for (const struct row *row = __start_rows; row < __stop_rows; row++) {
        if (!is_named(row->name, words + 1))
            continue;
        told = mmap(0, sizeof *told, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        CHECK(told != MAP_FAILED);
        if (row->alone) {
            run(row, 0);
            for (int only = 1; only < told->count; only++)
                run(row, only);
        } else {
            run(row, -1);
        }
        print_row(row);
        CHECK(!munmap(told, sizeof *told));
    }
    return 0;
}
