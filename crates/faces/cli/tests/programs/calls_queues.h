/* System V, and the queues of POSIX. */

/* Of System V, private ones that go with their row. */
static int shared[CASES_MAX], semaphores[CASES_MAX], queues[CASES_MAX];
static int noted(int kind, int id)
{
    CHECK(told->object_count < 3 * CASES_MAX);
    if (id >= 0)
        told->objects[told->object_count++] = (struct object){kind, id};
    return id;
}
static int shm_of(struct call *c) { return shared[c->number + 1] = noted(SHM, shmget(IPC_PRIVATE, PAGE, 0600)); }
static void remove_shm(struct call *c) { shmctl(shared[c->number + 1], IPC_RMID, 0); }
static int sem_of(struct call *c, int count)
{
    return semaphores[c->number + 1] = noted(SEM, semget(IPC_PRIVATE, count, 0600));
}
static void remove_sem(struct call *c)
{
    int set = semaphores[c->number + 1];
    say(c, " semaphores %d %d", semctl(set, 0, GETVAL), semctl(set, 1, GETVAL));
    semctl(set, 0, IPC_RMID);
}
static int queue_of(struct call *c) { return queues[c->number + 1] = noted(QUEUE, msgget(IPC_PRIVATE, 0600)); }
static void remove_queue(struct call *c)
{
    struct {
        long kind;
        unsigned char text[6000];
    } got;
    ssize_t bytes = msgrcv(queues[c->number + 1], &got, sizeof got.text, 0, IPC_NOWAIT);
    say(c, " queue %zd:%08x", bytes, digest(2166136261, got.text, bytes > 0 ? bytes : 0));
    msgctl(queues[c->number + 1], IPC_RMID, 0);
}
ROW(shmctl_stat)
{
    CALL(c, SYS_shmctl, shm_of(c), IPC_STAT,
         hide(c, out(c, "status", sizeof(struct shmid_ds)), 0, sizeof(struct shmid_ds)));
    c->after = remove_shm;
}
ROW(shmctl_set)
{
    struct shmid_ds of;
    int id = shm_of(c);
    CHECK(!shmctl(id, IPC_STAT, &of));
    of.shm_perm.mode = 0640;
    CALL(c, SYS_shmctl, id, IPC_SET, hide(c, PUT(c, "status", of), 0, sizeof of));
    c->after = remove_shm;
}
ROW(shmctl_info)
{
    c->masks_result = 1;
    CALL(c, SYS_shmctl, 0, SHM_INFO, hide(c, out(c, "information", 64), 0, 64));
}
ROW(semop)
{
    struct sembuf of[2] = {{0, 3, 0}, {1, 2, 0}};
    CALL(c, SYS_semop, sem_of(c, 2), PUT(c, "operations", of), 2);
    c->after = remove_sem;
}
ROW(semtimedop)
{
    struct sembuf of[2] = {{0, 3, 0}, {1, -2, 0}};
    struct timespec t = {0, 3000000};
    int s = sem_of(c, 2);
    long o = PUT(c, "operations", of);
    CALL(c, SYS_semtimedop, s, o, 2, PUT(c, "time", t));
    c->after = remove_sem;
}
ROW(semtimedop_one)
{
    struct sembuf of = {1, -2, 0};
    struct timespec t = {0, 3000000};
    int s = sem_of(c, 2);
    long o = PUT(c, "operation", of);
    CALL(c, SYS_semtimedop, s, o, 1, PUT(c, "time", t));
    c->after = remove_sem;
}
ROW(semctl_all)
{
    int s = sem_of(c, 2);
    CALL(c, SYS_semctl, s, 0, GETALL, out(c, "values", 4));
    c->after = remove_sem;
}
ROW(semctl_set_all)
{
    unsigned short v[2] = {4, 5};
    int s = sem_of(c, 2);
    CALL(c, SYS_semctl, s, 0, SETALL, PUT(c, "values", v));
    c->after = remove_sem;
}
ROW(semctl_all_of_many)
{
    int s = sem_of(c, 8000);
    CALL(c, SYS_semctl, s, 0, GETALL, out(c, "values", 16000));
    c->after = remove_sem;
}
ROW(semctl_stat)
{
    int s = sem_of(c, 2);
    CALL(c, SYS_semctl, s, 0, IPC_STAT,
         hide(c, out(c, "status", sizeof(struct semid_ds)), 0, sizeof(struct semid_ds)));
    c->after = remove_sem;
}
struct letter {
    long kind;
    unsigned char text[5000];
};
static struct letter letter(void)
{
    struct letter of = {.kind = 5};
    memcpy(of.text, content, sizeof of.text);
    return of;
}
ROW(msgsnd)
{
    struct letter of = letter();
    int q = queue_of(c);
    CALL(c, SYS_msgsnd, q, PUT(c, "message", of), 5000, IPC_NOWAIT);
    c->after = remove_queue;
}
ROW(msgsnd_short)
{
    struct letter of = letter();
    int q = queue_of(c);
    CALL(c, SYS_msgsnd, q, in(c, "message", &of, 16), 8, IPC_NOWAIT);
    c->after = remove_queue;
}
ROW(msgrcv)
{
    struct letter of = letter();
    int q = queue_of(c);
    CHECK(!msgsnd(q, &of, 5000, 0));
    CALL(c, SYS_msgrcv, q, out(c, "message", 5008), 5000, 0, IPC_NOWAIT);
    c->after = remove_queue;
}
ROW(msgrcv_page)
{
    struct letter of = letter();
    int q = queue_of(c);
    CHECK(!msgsnd(q, &of, 4096, 0));
    CALL(c, SYS_msgrcv, q, out(c, "message", 4104), 4096, 0, IPC_NOWAIT);
    c->after = remove_queue;
}
/* Only the end of the text, less than the kind's eight bytes of it, is on another page. */
ROW(msgsnd_end)
{
    struct letter of = letter();
    int q = queue_of(c);
    c->split = 4096;
    CALL(c, SYS_msgsnd, q, in(c, "message", &of, 4104), 4096, IPC_NOWAIT);
    c->after = remove_queue;
}
ROW(msgrcv_end)
{
    struct letter of = letter();
    int q = queue_of(c);
    CHECK(!msgsnd(q, &of, 4096, 0));
    c->split = 4096;
    CALL(c, SYS_msgrcv, q, out(c, "message", 4104), 4096, 0, IPC_NOWAIT);
    c->after = remove_queue;
}
ROW(msgctl_stat)
{
    int q = queue_of(c);
    CALL(c, SYS_msgctl, q, IPC_STAT, hide(c, out(c, "status", sizeof(struct msqid_ds)), 0, sizeof(struct msqid_ds)));
    c->after = remove_queue;
}
ROW(msgctl_set)
{
    struct msqid_ds of;
    int q = queue_of(c);
    CHECK(!msgctl(q, IPC_STAT, &of));
    of.msg_qbytes = 8000;
    CALL(c, SYS_msgctl, q, IPC_SET, hide(c, PUT(c, "status", of), 0, sizeof of));
    c->after = remove_queue;
}

static char *posix_name(struct call *c)
{
    char *name = plain(64);
    snprintf(name, 64, "calls-%010d-%06d", getpid(), c->number + 1);
    return name;
}
/* A queue with a message in it, if there are any to send. */
static int posix_queue(struct call *c, int messages)
{
    struct mq_attr attr = {.mq_maxmsg = 1, .mq_msgsize = 5000};
    char *name = posix_name(c);
    int fd = syscall(SYS_mq_open, name, O_RDWR | O_CREAT | O_NONBLOCK, 0600, &attr);
    CHECK(fd >= 0);
    syscall(SYS_mq_unlink, name);
    while (messages--)
        CHECK(!syscall(SYS_mq_timedsend, fd, content, 3000, 3, 0l));
    return c->kept[0] = fd;
}
static void tell_queue(struct call *c)
{
    unsigned char got[5000];
    unsigned priority = 0;
    long bytes = syscall(SYS_mq_timedreceive, c->kept[0], got, sizeof got, &priority, 0l);
    say(c, " queue %ld:%u:%08x", bytes, priority, digest(2166136261, got, bytes > 0 ? bytes : 0));
    close(c->kept[0]);
}
static void unlink_queue(struct call *c) { say(c, " unlink %ld", syscall(SYS_mq_unlink, c->kept[0])); }
ROW(mq_open)
{
    struct mq_attr attr = {.mq_maxmsg = 2, .mq_msgsize = 500};
    char *n = posix_name(c);
    c->kept[0] = (long)n;
    c->is_fd = 1;
    long name = in(c, "name", n, strlen(n) + 1);
    mask(c, 0, strlen(n));
    CALL(c, SYS_mq_open, name, O_RDWR | O_CREAT, 0600, PUT(c, "attributes", attr));
    c->after = unlink_queue;
}
ROW(mq_unlink) { CALL(c, SYS_mq_unlink, text(c, "name", "calls-that-is-not-there")); }
ROW(mq_timedsend)
{
    struct timespec t = {9999999999, 0};
    int q = posix_queue(c, 0);
    long m = in(c, "message", content + 3, 4000);
    CALL(c, SYS_mq_timedsend, q, m, 4000, 7, PUT(c, "time", t));
    c->after = tell_queue;
}
ROW(mq_timedreceive)
{
    struct timespec t = {9999999999, 0};
    int q = posix_queue(c, 1);
    long m = out(c, "message", 5000), p = out(c, "priority", 4);
    CALL(c, SYS_mq_timedreceive, q, m, 5000, p, PUT(c, "time", t));
    c->after = tell_queue;
}
static void close_first(struct call *c) { close(c->kept[0]); }
ROW(mq_notify)
{
    struct sigevent of = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGWINCH};
    CALL(c, SYS_mq_notify, posix_queue(c, 0), PUT(c, "event", of));
    c->after = close_first;
}
/* The C library's own thread is told by a socket, with 32 bytes that come with it. */
ROW(mq_notify_thread)
{
    int fd = socket(AF_NETLINK, SOCK_RAW, 0);
    struct sigevent of = {.sigev_notify = SIGEV_THREAD,
                          .sigev_signo = fd,
                          .sigev_value = {.sival_ptr = (void *)in(c, "cookie", content, 32)}};
    CALL(c, SYS_mq_notify, posix_queue(c, 0), PUT(c, "event", of));
    mask(c, 8, 4);
    c->after = close_first;
}
ROW(mq_getsetattr)
{
    struct mq_attr attr = {.mq_flags = O_NONBLOCK};
    int q = posix_queue(c, 1);
    long a = PUT(c, "new", attr);
    CALL(c, SYS_mq_getsetattr, q, a, out(c, "old", sizeof attr));
    c->after = tell_queue;
}
