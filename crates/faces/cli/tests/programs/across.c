/* Programs of several hosts that share memory as programs of one do.
 * across WHAT HOST HOSTS TIMES */
#include "check.h"
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/stat.h>

static void fail(const char *what) { perror(what); exit(1); }

struct common {
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	atomic_int ready, done;
	long count, turn;
};

/* Whether it is there by now. */
static int opens(int *fd)
{
	*fd = shm_open("/across", O_RDWR, 0);
	if (*fd < 0 && errno != ENOENT) fail("shm_open");
	return *fd >= 0;
}

static int has_size(int fd)
{
	struct stat about;
	if (fstat(fd, &about)) fail("fstat");
	return about.st_size != 0;
}

static struct common *common(int first)
{
	int fd;
	if (first) {
		fd = shm_open("/across", O_CREAT | O_EXCL | O_RDWR, 0600);
		if (fd < 0) fail("shm_open, to make it");
		if (ftruncate(fd, sizeof(struct common))) fail("ftruncate");
	} else {
		wait_until(opens(&fd), "the first has made it");
		wait_until(has_size(fd), "it has a size");
	}
	struct common *all = mmap(0, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (all == MAP_FAILED) fail("mmap");
	if (first) {
		pthread_mutexattr_t mutex; pthread_condattr_t cond;
		pthread_mutexattr_init(&mutex); pthread_condattr_init(&cond);
		pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
		pthread_condattr_setpshared(&cond, PTHREAD_PROCESS_SHARED);
		pthread_mutex_init(&all->mutex, &mutex);
		pthread_cond_init(&all->changed, &cond);
		atomic_store(&all->ready, 1);
	}
	wait_until(atomic_load(&all->ready), "it is ready");
	return all;
}

/* Each adds under the mutex; then they take turns by the condition. */
static void locks(int host, int hosts, int times)
{
	struct common *all = common(host == 0);
	for (int i = 0; i < times; i++) {
		pthread_mutex_lock(&all->mutex);
		long count = all->count;
		/* Others come meanwhile. */
		if (i % 16 == 0) pass_us(100);
		all->count = count + 1;
		pthread_mutex_unlock(&all->mutex);
	}
	for (int i = 0; i < times; i++) {
		pthread_mutex_lock(&all->mutex);
		while (all->turn % hosts != host) pthread_cond_wait(&all->changed, &all->mutex);
		all->turn++;
		pthread_cond_broadcast(&all->changed);
		pthread_mutex_unlock(&all->mutex);
	}
	atomic_fetch_add(&all->done, 1);
	wait_until(atomic_load(&all->done) >= hosts, "all are done");
	printf("%ld %ld\n", all->count, all->turn);
	if (host == 0) shm_unlink("/across");
}

/* A ball goes round by one semaphore for each host. */
static void semaphores(int host, int hosts, int times)
{
	char name[20];
	sem_t *all[16];
	for (int i = 0; i < hosts; i++) {
		sprintf(name, "/ball%d", i);
		all[i] = sem_open(name, O_CREAT, 0600, i == 0);
		if (all[i] == SEM_FAILED) fail("sem_open");
	}
	for (int i = 0; i < times; i++) {
		if (sem_wait(all[host])) fail("sem_wait");
		if (sem_post(all[(host + 1) % hosts])) fail("sem_post");
	}
	printf("%d\n", times);
	sprintf(name, "/ball%d", host);
	sem_unlink(name);
}

/* Whether it is there by now. */
static int gets(int host, int *id)
{
	*id = shmget(0xACCE55, 1 << 20, host ? 0600 : IPC_CREAT | IPC_EXCL | 0600);
	if (*id < 0 && (host == 0 || errno != ENOENT)) fail("shmget");
	return *id >= 0;
}

static void segment(int host, int hosts, int times)
{
	int id = -1;
	wait_until(gets(host, &id), "the first has made it");
	struct shmid_ds about;
	if (shmctl(id, IPC_STAT, &about)) fail("shmctl");
	atomic_long *words = shmat(id, 0, 0);
	if (words == (void *)-1) fail("shmat");
	for (int i = 0; i < times; i++) atomic_fetch_add(&words[512 * (i % 8)], 1);
	atomic_fetch_add(&words[5000], 1);
	wait_until(atomic_load(&words[5000]) >= hosts, "all have added");
	long sum = 0;
	for (int i = 0; i < 8; i++) sum += words[512 * i];
	printf("%ld of %ld\n", sum, (long)about.shm_segsz);
	atomic_fetch_add(&words[5001], 1);
	wait_until(atomic_load(&words[5001]) >= hosts, "all have seen it");
	if (host == 0 && shmctl(id, IPC_RMID, 0)) fail("shmctl, to remove it");
	if (host != 0) wait_until(shmget(0xACCE55, 0, 0) < 0, "it is removed");
	printf("gone\n");
}

static void step(struct common *all, long to)
{
	wait_until(*(volatile long *)&all->turn >= to, "the other has done its part");
}

static void must(int holds, const char *what)
{
	if (!holds) {
		fprintf(stderr, "%s (errno: %s)\n", what, strerror(errno));
		exit(1);
	}
}

static long size_of(int fd)
{
	struct stat about;
	return fstat(fd, &about) ? -1 : about.st_size;
}

/* What one does to a name the other sees, at once. */
static void names(int host)
{
	struct common *all = common(host == 0);
	char got[8] = {0};
	int fd;
	if (host == 0) {
		fd = shm_open("/name", O_CREAT | O_EXCL | O_RDWR, 0600);
		must(fd >= 0 && !ftruncate(fd, 4096), "it is made");
		must(pwrite(fd, "abc", 4, 4000) == 4, "it is written to");
		all->turn = 1;
		step(all, 2);
		must(size_of(fd) == 8192, "it has grown");
		must(pread(fd, got, 4, 8000) == 4 && !strcmp(got, "def"), "the other wrote there");
		must(!shm_unlink("/name"), "it is removed");
		all->turn = 3;
		step(all, 4);
		must(pread(fd, got, 4, 4000) == 4 && !strcmp(got, "abc"), "who has it has it still");
		fd = shm_open("/name", O_RDWR, 0);
		must(fd >= 0 && size_of(fd) == 10000, "there is a new one");
		must(pread(fd, got, 4, 4000) == 4 && !strcmp(got, "new"), "with other contents");
		close(fd);
		fd = shm_open("/name", O_RDWR | O_TRUNC, 0);
		must(fd >= 0 && size_of(fd) == 0, "it is cut");
		must(!ftruncate(fd, 4096), "it grows again");
		all->turn = 5;
		step(all, 6);
		must(!ftruncate(fd, 0) && !shm_unlink("/across"), "all is removed");
	} else {
		step(all, 1);
		fd = shm_open("/name", O_RDWR, 0);
		must(fd >= 0 && size_of(fd) == 4096, "it is there, and as large");
		must(pread(fd, got, 4, 4000) == 4 && !strcmp(got, "abc"), "it has its contents");
		must(shm_open("/name", O_CREAT | O_EXCL | O_RDWR, 0600) < 0 && errno == EEXIST,
		     "it cannot be made again");
		must(shm_open("/name", O_CREAT | O_RDWR, 0600) >= 0, "it can be opened so");
		must(!ftruncate(fd, 8192) && pwrite(fd, "def", 4, 8000) == 4, "it grows");
		all->turn = 2;
		step(all, 3);
		must(shm_open("/name", O_RDWR, 0) < 0 && errno == ENOENT, "it is gone");
		must(pread(fd, got, 4, 8000) == 4 && !strcmp(got, "def"), "who has it has it");
		fd = shm_open("/name", O_CREAT | O_EXCL | O_RDWR, 0600);
		must(fd >= 0 && pwrite(fd, "new", 4, 4000) == 4 && !ftruncate(fd, 10000), "it is made anew");
		all->turn = 4;
		step(all, 5);
		must(size_of(fd) == 4096 && pread(fd, got, 4, 4000) == 4 && !got[0], "zeros are there");
		must(!shm_unlink("/name"), "it is removed by who opened it");
		all->turn = 6;
	}
	printf("as one\n");
}

/* One makes something and is killed; the other goes on with it. */
static void dies(int host)
{
	struct common *all = common(host == 0);
	if (host) step(all, 1);
	int fd = shm_open("/pages", host ? O_RDWR : O_CREAT | O_EXCL | O_RDWR, 0600);
	must(fd >= 0 && !ftruncate(fd, 8 * 4096), "there are pages");
	long *words = mmap(0, 8 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	must(words != MAP_FAILED, "they are mapped");
	if (host == 0) {
		for (int i = 0; i < 8; i++) words[512 * i] = 100 + i;
		all->turn = 1;
		pause();
	}
	long sum = 0;
	for (int i = 0; i < 8; i++) sum += words[512 * i];
	printf("%ld\n", sum);
	fflush(stdout);
	must(getchar() == '\n', "the other is dead");
	for (int i = 0; i < 8; i++) words[512 * i]++;
	for (int i = 0; i < 8; i++) must(words[512 * i] == 101 + i, "nothing is lost");
	must(!shm_unlink("/pages") && !shm_unlink("/across"), "names are removed");
	must(shm_open("/across", O_CREAT | O_EXCL | O_RDWR, 0600) >= 0, "the name is free");
	must(!shm_unlink("/across"), "it is removed, too");
	printf("goes on\n");
}

/* Makes a name and removes it, again and again; it may be there from one that was killed. */
static void makes(int times)
{
	for (int i = 0; i < times; i++) {
		int fd = shm_open("/often", O_CREAT | O_EXCL | O_RDWR, 0600);
		must(fd >= 0 || errno == EEXIST, "it is made, or is there");
		if (fd >= 0) {
			must(!ftruncate(fd, 8192), "it has a size");
			char *at = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
			must(at != MAP_FAILED && at[5000] == 0, "it is new");
			at[5000] = 1;
			munmap(at, 8192);
			close(fd);
		}
		must(!shm_unlink("/often") || errno == ENOENT, "it is removed");
	}
	printf("made\n");
}

int main(int argc, char **argv)
{
	int host = atoi(argv[2]), hosts = atoi(argv[3]), times = atoi(argv[4]);
	if (!strcmp(argv[1], "locks")) locks(host, hosts, times);
	else if (!strcmp(argv[1], "semaphores")) semaphores(host, hosts, times);
	else if (!strcmp(argv[1], "names")) names(host);
	else if (!strcmp(argv[1], "dies")) dies(host);
	else if (!strcmp(argv[1], "makes")) makes(times);
	else segment(host, hosts, times);
	return 0;
}
