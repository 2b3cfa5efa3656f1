/* What Linux itself writes or reads when a thread begins and ends. The threads have nothing of the C library's: they
   make raw calls, on small stacks that are never managed. */
#define OF_THREADS (CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM)
struct thread {
    unsigned may_go, id;
    /* Which call it makes when it may go on, before it ends. */
    long call, one, two, three, four;
};

static int run_thread(void *of)
{
    struct thread *thread = of;
    while (!__atomic_load_n(&thread->may_go, __ATOMIC_ACQUIRE))
        syscall(SYS_futex, &thread->may_go, FUTEX_WAIT, 0, 0l);
    if (thread->call)
        syscall(thread->call, thread->one, thread->two, thread->three, thread->four);
    return 0;
}

static struct thread *begin(struct call *c, long flags, void *parent, void *child)
{
    struct thread *thread = plain(sizeof *thread);
    unsigned char *stack = plain(8192);
    c->kept[0] = (long)thread;
    int id = clone(run_thread, stack + 8160, OF_THREADS | flags, thread, parent, 0, child);
    if (id < 0)
        return 0;
    thread->id = id;
    return thread;
}

/* Lets the thread go on, and waits until there is nothing of it any more. */
static long finish(struct call *c)
{
    struct thread *thread = (struct thread *)c->kept[0];
    char name[64];
    time_t began = seconds();
    __atomic_store_n(&thread->may_go, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &thread->may_go, FUTEX_WAKE, 1);
    snprintf(name, sizeof name, "/proc/self/task/%u", thread->id);
    while (!access(name, F_OK))
        CHECK(seconds() - began < 2 * CALL_SECONDS);
    return 0;
}

static unsigned *word_of(struct call *c) { return (unsigned *)c->areas[0].at; }

/* Linux writes the word before the call returns, or before the thread runs; nowhere where it may not be written to. */
static long clone_with(struct call *c, long flags)
{
    int sets = flags & (CLONE_PARENT_SETTID | CLONE_CHILD_SETTID), clears = flags & CLONE_CHILD_CLEARTID;
    struct thread *thread = begin(c, flags, word_of(c), word_of(c));
    if (!thread)
        return -1;
    finish(c);
    if (sets)
        say(c, " set %d", *word_of(c) == thread->id);
    say(c, " %s %d", clears ? "cleared" : "kept", clears ? *word_of(c) == 0 : 1);
    return 0;
}
static long clone_parent(struct call *c) { return clone_with(c, CLONE_PARENT_SETTID); }
static long clone_child(struct call *c) { return clone_with(c, CLONE_CHILD_SETTID); }
static long clone_clear(struct call *c) { return clone_with(c, CLONE_CHILD_CLEARTID); }
ROW(clone_parent_word)
{
    hide(c, WORD("word", 5), 0, 4);
    c->call = SYS_clone;
    c->make = clone_parent;
}
ROW(clone_child_word)
{
    hide(c, WORD("word", 5), 0, 4);
    c->call = SYS_clone;
    c->make = clone_child;
}
ROW(clone_clears_word)
{
    hide(c, WORD("word", 5), 0, 4);
    c->call = SYS_clone;
    c->make = clone_clear;
}
/* What is away when the thread ends. */
ROW(thread_end_clears_word)
{
    long word = WORD("word", 5);
    CHECK(begin(c, CLONE_CHILD_CLEARTID, 0, (void *)word));
    c->make = finish;
}
ROW(set_tid_address)
{
    long word = WORD("word", 5);
    struct thread *thread = begin(c, 0, 0, 0);
    c->call = thread->call = SYS_set_tid_address;
    thread->one = word;
    c->make = finish;
}
struct robust {
    long next, offset, pending;
};
struct mutex {
    long next;
    unsigned word, spare;
};
/* A list of one mutex, which the thread has when it ends: Linux says so in its word. */
ROW(set_robust_list)
{
    struct thread *thread = begin(c, 0, 0, 0);
    struct mutex mutex = {0, thread->id | 0x80000000, 0};
    struct robust head = {0, offsetof(struct mutex, word), 0};
    c->align = 8;
    long at = hide(c, PUT(c, "mutex", mutex), 0, 8);
    mask(c, 8, 3);
    head.next = at;
    thread->one = hide(c, PUT(c, "head", head), 0, 8);
    /* The list ends where it began. */
    memcpy((void *)at, &thread->one, 8);
    thread->two = sizeof head;
    c->call = thread->call = SYS_set_robust_list;
    c->make = finish;
}
/* The same, where the list is known before its memory is away. */
static int list_first(void *of)
{
    struct thread *thread = of;
    syscall(SYS_set_robust_list, thread->one, thread->two);
    thread->call = 0;
    return run_thread(of);
}
ROW(thread_end_robust_list)
{
    struct thread *thread = plain(sizeof *thread);
    unsigned char *stack = plain(8192);
    struct robust head = {0, offsetof(struct mutex, word), 0};
    struct mutex mutex = {0, 0, 0};
    c->kept[0] = (long)thread;
    c->align = 8;
    long at = hide(c, PUT(c, "mutex", mutex), 0, 8);
    mask(c, 8, 3);
    head.next = at;
    thread->one = hide(c, PUT(c, "head", head), 0, 8);
    thread->two = sizeof head;
    int id = clone(list_first, stack + 8160, OF_THREADS, thread);
    CHECK(id > 0);
    thread->id = id;
    mutex = (struct mutex){thread->one, thread->id | 0x80000000, 0};
    if (c->state != ZERO)
        memcpy((void *)at, &mutex, sizeof mutex);
    c->make = finish;
}
/* Linux writes there whenever the thread goes on. */
static long finish_and_look(struct call *c)
{
    finish(c);
    say(c, " ran %d", word_of(c)[1] < 1000);
    return 0;
}
ROW(rseq)
{
    unsigned of[8] __attribute__((aligned(32))) = {0, -1};
    struct thread *thread = begin(c, 0, 0, 0);
    c->align = 32;
    c->call = thread->call = SYS_rseq;
    thread->one = hide(c, PUT(c, "area", of), 0, 32);
    thread->two = 32;
    thread->four = 0x12345678;
    c->make = finish_and_look;
}
/* A byte that Linux looks at in each call of the thread. */
static long dispatched(struct call *c)
{
    long got = syscall(SYS_prctl, PR_SET_SYSCALL_USER_DISPATCH, 1, 0l, 0l, c->areas[0].at);
    for (int i = 0; i < 3 && !got; i++)
        got = syscall(SYS_getppid) < 0;
    int why = errno;
    syscall(SYS_prctl, PR_SET_SYSCALL_USER_DISPATCH, 0, 0l, 0l, 0l);
    errno = why;
    return got;
}
ROW(prctl_dispatch)
{
    unsigned char allow = 0;
    PUT(c, "selector", allow);
    c->make = dispatched;
}
/* A signal that comes on such a stack. */
static uintptr_t stack_seen;
static void on_stack(int number)
{
    (void)number;
    stack_seen = (uintptr_t)__builtin_frame_address(0);
}
static long signal_on_stack(struct call *c)
{
    struct sigaction action = {.sa_handler = on_stack, .sa_flags = SA_ONSTACK};
    stack_t of = {.ss_sp = c->areas[0].at, .ss_size = c->areas[0].size}, none = {.ss_flags = SS_DISABLE};
    CHECK(!sigaction(SIGUSR2, &action, 0) && !sigaltstack(&of, 0));
    raise(SIGUSR2);
    say(c, " there %d", stack_seen - (uintptr_t)c->areas[0].at < c->areas[0].size);
    return sigaltstack(&none, 0);
}
ROW(signal_stack)
{
    c->align = 16;
    hide(c, out(c, "stack", 16384), 0, 16384);
    c->make = signal_on_stack;
}
/* A child that shares memory, as of vfork. */
static int nothing(void *of)
{
    (void)of;
    return 0;
}
static long clone_sharing(struct call *c)
{
    unsigned char *stack = plain(8192);
    int id =
            clone(nothing, stack + 8160, CLONE_VM | CLONE_VFORK | CLONE_PARENT_SETTID | SIGCHLD, 0, word_of(c), 0, 0),
        status;
    if (id < 0)
        return -1;
    CHECK(waitpid(id, &status, 0) == id);
    say(c, " set %d", *word_of(c) == (unsigned)id);
    return status;
}
ROW(clone_sharing_memory)
{
    hide(c, WORD("word", 5), 0, 4);
    c->call = SYS_clone;
    c->make = clone_sharing;
}
static long clone_copying(struct call *c)
{
    int id = syscall(SYS_clone, CLONE_PARENT_SETTID | CLONE_CHILD_SETTID | SIGCHLD, 0l, word_of(c), c->areas[1].at,
                     0l),
        status;
    if (id < 0)
        return -1;
    if (!id)
        _exit(*(unsigned *)c->areas[1].at == (unsigned)getpid() ? 7 : 8);
    CHECK(waitpid(id, &status, 0) == id);
    say(c, " set %d", *word_of(c) == (unsigned)id);
    return status;
}
ROW(clone_copying_memory)
{
    hide(c, WORD("parent", 5), 0, 4);
    WORD("child", 6);
    c->call = SYS_clone;
    c->make = clone_copying;
}
static long clone_descriptor(struct call *c)
{
    int id = syscall(SYS_clone, CLONE_PIDFD | SIGCHLD, 0l, word_of(c), 0l, 0l), status;
    if (id < 0)
        return -1;
    if (!id)
        _exit(7);
    CHECK(waitpid(id, &status, 0) == id);
    say(c, " closed %d", close(*word_of(c)));
    return status;
}
ROW(clone_process_descriptor)
{
    hide(c, WORD("descriptor", -1), 0, 4);
    c->call = SYS_clone;
    c->make = clone_descriptor;
}
