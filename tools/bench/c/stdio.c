/* Adds up the bytes of a file, read in one of many ways; stdio WAY FILE [ROUNDS].
 *
 * Prints: bytes, sum, processor ms, ms, blocks read from the disk, KiB that are in memory because of
 * it at the end (a share of what others have, too). With ROUNDS, one round opens, reads and closes. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "must.h"
#ifdef WITH_HEADER
#include <farpage/stdio.h>
#endif

static uint64_t bytes, sum;
static long pss;

static double now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static void looks(void)
{
	char line[256];
	FILE *file = fopen("/proc/self/smaps_rollup", "r");

	MUST(file);
	while (fgets(line, sizeof line, file))
		sscanf(line, "Pss: %ld", &pss);
	fclose(file);
}

/* One after the other, as programs do that look at each: the compiler is not to add many at once. */
static void add(const unsigned char *at, size_t count)
{
	uint64_t all = sum;

	for (size_t i = 0; i < count; i++) {
		all += at[i];
		__asm__ volatile("" : "+r"(all));
	}
	sum = all;
	bytes += count;
}

static FILE *opened(const char *path, const char *mode)
{
	FILE *file = fopen(path, mode);

	MUST(file);
	return file;
}

static void by_getc(const char *path)
{
	FILE *file = opened(path, "r");
	uint64_t all = 0, count = 0;
	int c;

	while ((c = getc(file)) != EOF) {
		all += c;
		count++;
	}
	sum += all;
	bytes += count;
	if (!pss)
		looks();
	fclose(file);
}

static void by_getc_unlocked(const char *path, const char *mode)
{
	FILE *file = opened(path, mode);
	uint64_t all = 0, count = 0;
	int c;

	while ((c = getc_unlocked(file)) != EOF) {
		all += c;
		count++;
	}
	sum += all;
	bytes += count;
	if (!pss)
		looks();
	fclose(file);
}

static void by_fread(const char *path, size_t at_a_time)
{
	static unsigned char buffer[1 << 16];
	FILE *file = opened(path, "r");
	size_t count;

	while ((count = fread(buffer, 1, at_a_time, file)) > 0)
		add(buffer, count);
	if (!pss)
		looks();
	fclose(file);
}

static void by_read(const char *path)
{
	static unsigned char buffer[1 << 16];
	int fd = open(path, O_RDONLY);
	ssize_t count;

	MUST(fd >= 0);
	while ((count = read(fd, buffer, sizeof buffer)) > 0)
		add(buffer, count);
	if (!pss)
		looks();
	close(fd);
}

static size_t size_of(int fd)
{
	struct stat status;

	MUST(fd >= 0 && !fstat(fd, &status));
	return status.st_size;
}

/* The paper's old_read of table 6-3. */
static void by_whole(const char *path)
{
	int fd = open(path, O_RDONLY);
	size_t size = size_of(fd), done = 0;
	unsigned char *all = malloc(size + 1);

	MUST(all);
	while (done < size) {
		ssize_t count = read(fd, all + done, size - done);

		MUST(count > 0);
		done += count;
	}
	add(all, size);
	if (!pss)
		looks();
	free(all);
	close(fd);
}

static void by_mmap(const char *path)
{
	int fd = open(path, O_RDONLY);
	size_t size = size_of(fd);
	unsigned char *all = size ? mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0) : NULL;

	MUST(all != MAP_FAILED);
	add(all, size);
	if (!pss)
		looks();
	munmap(all, size);
	close(fd);
}

#ifdef WITH_HEADER
/* The paper's map_read. */
static void by_fmap(const char *path)
{
	FILE *file = opened(path, "r");
	unsigned char *all = fmap(file, 0);

	MUST(all);
	add(all, fbufsize(file));
	if (!pss)
		looks();
	fclose(file);
}
#endif

static void drop(const char *path)
{
	int fd = open(path, O_RDONLY);

	MUST(fd >= 0 && !fsync(fd) && !posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
	close(fd);
}

static void once(const char *way, const char *path)
{
	if (!strcmp(way, "getc"))
		by_getc(path);
	else if (!strcmp(way, "getc_unlocked"))
		by_getc_unlocked(path, "r");
	else if (!strcmp(way, "getc_unlocked-rm"))
		by_getc_unlocked(path, "rm");
	else if (!strcmp(way, "fread-4K"))
		by_fread(path, 4096);
	else if (!strcmp(way, "fread-64K"))
		by_fread(path, 65536);
	else if (!strcmp(way, "read-64K"))
		by_read(path);
	else if (!strcmp(way, "whole"))
		by_whole(path);
	else if (!strcmp(way, "mmap"))
		by_mmap(path);
#ifdef WITH_HEADER
	else if (!strcmp(way, "fmap"))
		by_fmap(path);
#endif
	else if (!strcmp(way, "drop"))
		drop(path);
	else
		MUST(!"a way that there is");
}

int main(int count, char **words)
{
	MUST(count >= 3);
	int rounds = count > 3 ? atoi(words[3]) : 1;
	double processor = now(CLOCK_PROCESS_CPUTIME_ID), wall = now(CLOCK_MONOTONIC);
	struct rusage used;

	for (int round = 0; round < rounds; round++)
		once(words[1], words[2]);
	processor = now(CLOCK_PROCESS_CPUTIME_ID) - processor;
	wall = now(CLOCK_MONOTONIC) - wall;
	MUST(!getrusage(RUSAGE_SELF, &used));
	printf("%lu %lu %.4f %.4f %ld %ld\n", bytes, sum, processor, wall, used.ru_inblock, pss);
	return 0;
}
