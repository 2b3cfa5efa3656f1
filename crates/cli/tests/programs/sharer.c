/* Processes that share the program's memory, with stacks in it that leave: each makes calls and has signals at any
   depth. Many of them come and go: by ending, by a signal, by executing another program. */
#include "away.h"

#define STACK (1 << 20)
#define DEPTH 200

static char for_signals[1 << 16];
static volatile int arrived, inherited, deepest;

static void on_signal(int)
{
    arrived++;
}

/* Set before the process was made: the agent delivers its signal, and Linux that of the other. */
static void on_inherited(int)
{
    inherited++;
}

/* 4000 bytes each, so that frames of signals begin at any place of a page. */
static void descend(int depth)
{
    volatile char here[4000 - 64];
    char path[256];
    struct sigaction action = {.sa_handler = on_signal}, old;
    here[0] = depth;
    CHECK(getcwd(path, sizeof path));
    CHECK(!sigaction(SIGUSR1, &action, &old));
    CHECK(!raise(SIGUSR1));
    CHECK(!raise(SIGUSR2));
    if (depth < DEPTH)
        descend(depth + 1);
    else
        deepest++;
    CHECK(here[0] == (char)depth);
}

static int all_the_way(void *)
{
    stack_t own = {.ss_sp = for_signals, .ss_size = sizeof for_signals};
    CHECK(!sigaltstack(&own, 0));
    descend(0);
    return 7;
}

static int by_a_signal(void *)
{
    char path[256];
    CHECK(getcwd(path, sizeof path));
    raise(SIGKILL);
    return 1;
}

static int by_execution(void *)
{
    char *words[] = {"true", 0};
    execv("/nowhere", words);
    execv("/bin/true", words);
    return 1;
}

static int end_of(int (*work)(void *), int flags, int is_used)
{
    int id_word, status;
    unsigned char *stack = map(STACK);
    if (is_used) {
        memset(stack, 1, STACK);
        send_away(stack, STACK, 4);
    }
    int id = clone(work, stack + STACK, CLONE_VM | CLONE_FS | CLONE_FILES | SIGCHLD | flags, 0, &id_word, 0, &id_word);
    CHECK(id > 0);
    CHECK(waitpid(id, &status, 0) == id);
    CHECK(!munmap(stack, STACK));
    return status;
}

static long address_space(void)
{
    long pages;
    FILE *statm = fopen("/proc/self/statm", "r");
    CHECK(statm && fscanf(statm, "%ld", &pages) == 1);
    fclose(statm);
    return pages << 12;
}

int main(void)
{
    long before = 0;
    struct sigaction action = {.sa_handler = on_inherited, .sa_flags = SA_ONSTACK};
    CHECK(!sigaction(SIGUSR2, &action, 0));
    press();
    for (int round = 0; round < 20; round++) {
        int status = end_of(all_the_way, 0, round % 4 == 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
        status = end_of(all_the_way, CLONE_VFORK, round % 4 == 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
        status = end_of(all_the_way, CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID, round % 4 == 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
        status = end_of(by_a_signal, CLONE_UNTRACED, round % 4 == 0);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        status = end_of(by_execution, 0, round % 4 == 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        if (round == 4)
            before = address_space();
    }
    CHECK(deepest == 60 && arrived == 60 * (DEPTH + 1) && inherited == arrived);
    /* What each had of the process's own is used again: 15 rounds of five would take 9 MiB otherwise. */
    CHECK(address_space() - before < 4 << 20);
    puts("all ended as they should");
    return 0;
}
