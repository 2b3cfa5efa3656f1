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

static const struct kind {
    int (*work)(void *), flags, end;
} kinds[] = {
    {all_the_way, 0, W_EXITCODE(7, 0)},
    {all_the_way, CLONE_VFORK, W_EXITCODE(7, 0)},
    {all_the_way, CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID, W_EXITCODE(7, 0)},
    {by_a_signal, CLONE_UNTRACED, W_EXITCODE(0, SIGKILL)},
    {by_execution, 0, W_EXITCODE(0, 0)},
};

static int end_of(struct kind kind, int is_used)
{
    int id_word, status;
    unsigned char *stack = map(STACK);
    if (is_used) {
        memset(stack, 1, STACK);
        send_away(stack, STACK, 4);
    }
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | SIGCHLD | kind.flags;
    int id = clone(kind.work, stack + STACK, flags, 0, &id_word, 0, &id_word);
    CHECK(id > 0);
    CHECK(waitpid(id, &status, 0) == id);
    CHECK(!munmap(stack, STACK));
    return status;
}

/* Mappings that nobody may touch: each of the agent's stacks begins with one, as do those of its threads. */
static int guards(void)
{
    return mappings_with(" ---p ");
}

int main(void)
{
    int before = 0;
    struct sigaction action = {.sa_handler = on_inherited, .sa_flags = SA_ONSTACK};
    CHECK(!sigaction(SIGUSR2, &action, 0));
    press();
    for (int round = 0; round < 25; round++) {
        if (round == 5)
            before = guards();
        for (size_t i = 0; i < LENGTH(kinds); i++)
            CHECK(end_of(kinds[i], round % 4 == 0) == kinds[i].end);
    }
    CHECK(deepest == 75 && arrived == 75 * (DEPTH + 1) && inherited == arrived);
    /* Stacks are used again: one kind that keeps its own would have 20 more. The agent may have more threads. */
    CHECK(guards() - before < 10);
    puts("all ended as they should");
    return 0;
}
