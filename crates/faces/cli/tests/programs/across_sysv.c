/* Semaphores and message queues of System V, by programs of one host or of several.
 * across_sysv WHAT HOST HOSTS TIMES */
#include "check.h"
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/time.h>

#define SETS 0x5E75
#define QUEUES 0x0E5E
#define SEGMENT 0x5E65

static void fail(const char *what) { perror(what); exit(1); }
static void must(int is, const char *what) { if (!is) fail(what); }

union arg { int value; struct semid_ds *about; unsigned short *all; };

/* What a call returned; errors by name. */
static void tell(const char *what, long result)
{
	if (result < 0) printf("%s: %s\n", what, strerrorname_np(errno));
	else printf("%s: %ld\n", what, result);
	fflush(stdout);
}

static int operate(int set, int number, int change, int flags)
{
	struct sembuf one = {number, change, flags};
	return semop(set, &one, 1);
}

static int operate_for(int set, int number, int change, long ms)
{
	struct sembuf one = {number, change, 0};
	struct timespec time = {ms / 1000, ms % 1000 * 1000000};
	return semtimedop(set, &one, 1, &time);
}

static int get(int set, int number, int command) { return semctl(set, number, command); }

static int put(int set, int number, int value)
{
	union arg arg = {.value = value};
	return semctl(set, number, SETVAL, arg);
}

/* Until so many threads wait at a semaphore. */
static void until_waiting(int set, int number, int command, int count)
{
	wait_until(get(set, number, command) == count, "so many wait at it");
}

static pid_t forked(void)
{
	fflush(stdout);
	pid_t child = fork();
	if (child < 0) fail("fork");
	return child;
}

static void ended(pid_t child)
{
	int status;
	if (waitpid(child, &status, 0) != child) fail("waitpid");
	if (WIFSIGNALED(status)) printf("killed by %d\n", WTERMSIG(status));
	else if (WEXITSTATUS(status)) printf("ended with %d\n", WEXITSTATUS(status));
	fflush(stdout);
}

static void nothing(int number) { (void)number; }

/* All that sets do, said so that it can be compared with what Linux says. */
static void sets(void)
{
	time_t begun = time(0);
	tell("none", semget(SETS, 1, 0));
	tell("too few", semget(SETS, 0, IPC_CREAT | 0600));
	int set = semget(SETS, 3, IPC_CREAT | IPC_EXCL | 0640);
	must(set >= 0, "semget");
	tell("again", semget(SETS, 3, IPC_CREAT | IPC_EXCL | 0600));
	tell("larger", semget(SETS, 4, 0));
	tell("same", semget(SETS, 0, 0) == set);
	unsigned short values[3] = {1, 2, 3};
	union arg arg = {.all = values};
	tell("all are set", semctl(set, 0, SETALL, arg));
	struct sembuf two[] = {{0, -1, 0}, {1, -3, IPC_NOWAIT}};
	tell("all or nothing", semop(set, two, 2));
	tell("nothing", get(set, 0, GETVAL));
	struct sembuf on[] = {{0, -1, 0}, {0, 0, 0}, {1, -2, 0}, {2, 5, 0}, {0, 4, 0}};
	tell("all", semop(set, on, 5));
	memset(values, 0, sizeof values);
	tell("all are told", semctl(set, 0, GETALL, arg));
	printf("%d %d %d\n", values[0], values[1], values[2]);
	tell("by whom", get(set, 1, GETPID) == getpid());
	tell("not now", operate(set, 1, -1, IPC_NOWAIT));
	tell("not zero", operate(set, 0, 0, IPC_NOWAIT));
	tell("no such", operate(set, 3, 1, 0));
	tell("no such value", get(set, 3, GETVAL));
	tell("too much", put(set, 0, 32768));
	tell("below", put(set, 0, -1));
	tell("much", put(set, 0, 32767));
	tell("too much at once", operate(set, 0, 1, 0));
	static struct sembuf many[501];
	tell("too many", semop(set, many, 501));
	tell("none at all", semop(set, many, 0));
	tell("nowhere", semop(set, (void *)8, 1));
	tell("in time", operate_for(set, 1, -1, 20));
	struct sembuf one = {1, -1, 0};
	tell("no time", semtimedop(set, &one, 1, &(struct timespec){0, -1}));
	struct semid_ds about;
	arg.about = &about;
	tell("about", semctl(set, 0, IPC_STAT, arg));
	/* Clocks of seconds may differ by one. */
	int in_time = begun - 1 <= about.sem_otime && about.sem_otime <= time(0) + 1;
	printf("%o %lu %d %d\n", about.sem_perm.mode, about.sem_nsems,
	       about.sem_perm.uid == getuid(), in_time);
	about.sem_perm.mode = 0600;
	tell("mode", semctl(set, 0, IPC_SET, arg));
	tell("about", semctl(set, 0, IPC_STAT, arg));
	printf("%o\n", about.sem_perm.mode);
	tell("no command", get(set, 0, 99));
	struct seminfo limits;
	tell("limits", semctl(set, 0, IPC_INFO, &limits) >= 0);

	/* Who waits goes on when all can be done, and is counted meanwhile. */
	must(!put(set, 0, 0) && !put(set, 1, 0) && !put(set, 2, 1), "SETVAL");
	pid_t child = forked();
	if (!child) {
		struct sembuf both[] = {{0, -2, 0}, {1, -1, 0}};
		tell("both", semop(set, both, 2));
		exit(0);
	}
	until_waiting(set, 0, GETNCNT, 1);
	must(!operate(set, 0, 3, 0), "semop");
	until_waiting(set, 1, GETNCNT, 1);
	tell("nothing is taken yet", get(set, 0, GETVAL));
	must(!operate(set, 1, 1, 0), "semop");
	ended(child);
	tell("taken", get(set, 0, GETVAL));
	child = forked();
	if (!child) {
		tell("zero", operate(set, 2, 0, 0));
		exit(0);
	}
	until_waiting(set, 2, GETZCNT, 1);
	must(!operate(set, 2, -1, 0), "semop");
	ended(child);
	tell("nobody waits", get(set, 2, GETZCNT) + get(set, 0, GETNCNT));

	/* A signal ends the wait, whatever its handler says; and changes nothing. */
	child = forked();
	if (!child) {
		signal(SIGUSR1, nothing);
		tell("signal", operate(set, 1, -1, 0));
		signal(SIGUSR1, SIG_IGN);
		tell("time after a signal", operate_for(set, 1, -1, 20));
		exit(0);
	}
	until_waiting(set, 1, GETNCNT, 1);
	/* One may come just before it sleeps. */
	int status = 0;
	wait_until(waitpid(child, &status, WNOHANG) || kill(child, SIGUSR1), "the signal ends its wait");
	must(!status, "it ends");
	tell("nobody waits", get(set, 1, GETNCNT));
	must(!operate(set, 1, 1, 0), "semop");
	tell("nothing is lost", get(set, 1, GETVAL));

	/* What a process did is undone when it ends, by itself or not; not what was set since. */
	must(!put(set, 0, 5) && !put(set, 1, 0), "SETVAL");
	child = forked();
	if (!child) {
		struct sembuf undone[] = {{0, -3, SEM_UNDO}, {1, 2, SEM_UNDO}, {2, 7, 0}};
		must(!semop(set, undone, 3), "semop");
		must(!operate(set, 0, 1, SEM_UNDO), "semop");
		raise(SIGKILL);
	}
	ended(child);
	printf("%d %d %d\n", get(set, 0, GETVAL), get(set, 1, GETVAL), get(set, 2, GETVAL));
	child = forked();
	if (!child) {
		must(!operate(set, 0, -4, SEM_UNDO) && !put(set, 0, 9), "semop");
		exit(0);
	}
	ended(child);
	tell("set", get(set, 0, GETVAL));

	/* Removed while somebody waits. */
	child = forked();
	if (!child) {
		must(!put(set, 1, 0), "SETVAL");
		tell("removed", operate(set, 1, -1, 0));
		exit(0);
	}
	until_waiting(set, 1, GETNCNT, 1);
	must(!get(set, 0, IPC_RMID), "IPC_RMID");
	ended(child);
	tell("gone", operate(set, 0, 1, 0));
	tell("none", semget(SETS, 1, 0));
	int own = semget(IPC_PRIVATE, 1, 0600);
	must(own >= 0 && !operate(own, 0, 1, 0), "a set without a key");
	tell("without a key", operate(own, 0, -2, IPC_NOWAIT));
	must(!get(own, 0, IPC_RMID), "IPC_RMID");
}

struct message { long type; char text[8200]; };

static int sends(int queue, long type, const char *text, size_t bytes, int flags)
{
	struct message message = {.type = type};
	strcpy(message.text, text);
	return msgsnd(queue, &message, bytes, flags);
}

static void receives(int queue, long type, size_t bytes, int flags)
{
	struct message message = {0};
	ssize_t got = msgrcv(queue, &message, bytes, type, flags);
	if (got < 0) printf("type %ld: %s\n", type, strerrorname_np(errno));
	else printf("type %ld: %ld %.*s\n", type, message.type, (int)got, message.text);
	fflush(stdout);
}

static unsigned long messages(int queue)
{
	struct msqid_ds about;
	must(!msgctl(queue, IPC_STAT, &about), "IPC_STAT");
	return about.msg_qnum;
}

static void queues(void)
{
	tell("none", msgget(QUEUES, 0));
	int queue = msgget(QUEUES, IPC_CREAT | IPC_EXCL | 0600);
	must(queue >= 0, "msgget");
	tell("again", msgget(QUEUES, IPC_CREAT | IPC_EXCL | 0600));
	tell("same", msgget(QUEUES, 0) == queue);
	receives(queue, 0, 10, IPC_NOWAIT);
	long types[] = {3, 1, 2, 1, 4};
	const char *texts[] = {"three", "one", "two", "eins", "four"};
	for (int i = 0; i < 5; i++) must(!sends(queue, types[i], texts[i], strlen(texts[i]), 0), "msgsnd");
	receives(queue, -2, 10, 0);
	receives(queue, 3, 2, 0);
	receives(queue, 3, 2, MSG_NOERROR);
	receives(queue, 1, 10, MSG_EXCEPT);
	receives(queue, -9, 10, 0);
	receives(queue, 7, 10, IPC_NOWAIT);
	receives(queue, -3, 10, IPC_NOWAIT);
	tell("no type", sends(queue, 0, "", 0, 0));
	tell("too long", sends(queue, 1, "", 8193, 0));
	tell("nowhere", msgsnd(queue, (void *)8, 1, 0));
	receives(queue, 0, -1, 0);
	receives(queue, 0, 10, 0);
	tell("empty", sends(queue, 5, "", 0, 0));
	receives(queue, 5, 0, 0);
	must(!sends(queue, 1, "long", 8192, 0) && !sends(queue, 2, "long", 8192, 0), "msgsnd");
	tell("full", sends(queue, 3, "x", 1, IPC_NOWAIT));
	struct msqid_ds about;
	tell("about", msgctl(queue, IPC_STAT, &about));
	printf("%o %lu %lu %lu %d\n", about.msg_perm.mode, about.msg_qnum, about.__msg_cbytes,
	       about.msg_qbytes, about.msg_lspid == getpid());
	about.msg_qbytes = 100;
	tell("smaller", msgctl(queue, IPC_SET, &about));

	/* Who sends waits for room, who receives for its type, until a signal comes or it is removed. */
	pid_t child = forked();
	if (!child) {
		signal(SIGALRM, nothing);
		ualarm(20000, 20000);
		tell("no room", sends(queue, 3, "x", 1, 0));
		receives(queue, 7, 1, 0);
		exit(0);
	}
	ended(child);
	child = forked();
	if (!child) {
		tell("room", sends(queue, 3, "last", 4, 0));
		exit(0);
	}
	struct message message;
	must(msgrcv(queue, &message, 8192, 0, 0) == 8192, "msgrcv");
	must(msgrcv(queue, &message, 8192, 0, 0) == 8192, "msgrcv");
	ended(child);
	receives(queue, 0, 10, 0);
	child = forked();
	if (!child) {
		receives(queue, 9, 10, 0);
		/* It may be gone before. */
		must(msgrcv(queue, &message, 10, 9, 0) < 0, "msgrcv");
		tell("removed", errno == EIDRM || errno == EINVAL);
		exit(0);
	}
	must(!sends(queue, 8, "not it", 6, 0) && !sends(queue, 9, "it", 2, 0), "msgsnd");
	wait_until(messages(queue) == 1, "the other has received");
	must(!msgctl(queue, IPC_RMID, 0), "IPC_RMID");
	ended(child);
	tell("gone", sends(queue, 1, "", 0, 0));
}

/* Whether it is there by now, which the first has to make. */
static int is_there(int id, int first)
{
	if (id < 0 && (first || errno != ENOENT)) fail("what the first makes");
	return id >= 0;
}

static int found(int first, int count)
{
	int set, flags = first ? IPC_CREAT | IPC_EXCL | 0600 : 0;
	wait_until(is_there(set = semget(SETS, count, flags), first), "the first has made the set");
	return set;
}

/* Each adds to what the semaphore guards; a queue says who is done. */
static void together(int host, int hosts, int times)
{
	int segment, flags = host ? 0 : IPC_CREAT | IPC_EXCL | 0600;
	wait_until(is_there(segment = shmget(SEGMENT, 4096, flags), !host), "the first has made it");
	volatile long *count = shmat(segment, 0, 0);
	int set = found(!host, 2);
	int queue = msgget(QUEUES, IPC_CREAT | 0600);
	must(count != (void *)-1 && queue >= 0, "all is there");
	if (!host) must(!put(set, 0, 1) && !operate(set, 1, hosts, 0), "it begins");
	for (int i = 0; i < times; i++) {
		must(!operate(set, 0, -1, SEM_UNDO), "semop");
		long before = *count;
		/* Others come meanwhile. */
		if (i % 16 == 0) pass_us(100);
		*count = before + 1;
		must(!operate(set, 0, 1, SEM_UNDO), "semop");
	}
	must(!operate(set, 1, -1, 0) && !operate(set, 1, 0, 0), "all are done");
	printf("%ld\n", *count);
	/* Round and round: each waits for its type. */
	if (!host) must(!sends(queue, 1, "go", 2, 0), "msgsnd");
	for (int i = 0; i < times; i++) {
		struct message message;
		must(msgrcv(queue, &message, 100, host + 1, 0) == 2, "msgrcv");
		message.type = (host + 1) % hosts + 1;
		must(!msgsnd(queue, &message, 2, 0), "msgsnd");
	}
	must(!operate(set, 1, 1, 0), "semop");
	if (host) {
		must(operate(set, 1, -1000, 0) < 0 && errno == EIDRM, "it is removed");
	} else {
		must(!operate(set, 1, -hosts, 0), "all are done");
		until_waiting(set, 1, GETNCNT, hosts - 1);
		must(!get(set, 0, IPC_RMID) && !msgctl(queue, IPC_RMID, 0), "all is removed");
		must(!shmctl(segment, IPC_RMID, 0), "all is removed");
	}
	puts("around");
}

/* One has the semaphore and is killed, and then another, with its host. */
static void dies(int host)
{
	int set = found(!host, 2);
	if (!host) {
		must(!put(set, 0, 1), "SETVAL");
		pid_t child = forked();
		if (!child) {
			must(!operate(set, 0, -1, SEM_UNDO) && !operate(set, 1, 1, 0), "semop");
			pause();
		}
		until_waiting(set, 0, GETNCNT, 1);
		kill(child, SIGKILL);
		ended(child);
		must(!operate(set, 1, -2, 0), "the other has it");
		must(!operate(set, 0, -1, SEM_UNDO) && !operate(set, 1, 1, 0), "semop");
		pause();
	}
	must(!operate(set, 1, -1, 0) && !operate(set, 0, -1, 0), "it is undone");
	puts("one");
	must(!operate(set, 0, 1, 0) && !operate(set, 1, 2, 0), "semop");
	/* Not before the other has it. */
	wait_until(!get(set, 0, GETVAL) && get(set, 1, GETVAL) == 1, "the other has it");
	puts("kill");
	fflush(stdout);
	must(!operate(set, 0, -1, 0), "it is undone again");
	puts("two");
	must(!get(set, 0, IPC_RMID), "IPC_RMID");
}

int main(int count, char **words)
{
	if (count != 5) return 2;
	int host = atoi(words[2]), hosts = atoi(words[3]), times = atoi(words[4]);
	if (!strcmp(words[1], "sets")) sets();
	else if (!strcmp(words[1], "queues")) queues();
	else if (!strcmp(words[1], "together")) together(host, hosts, times);
	else if (!strcmp(words[1], "dies")) dies(host);
	else return 2;
	return 0;
}
