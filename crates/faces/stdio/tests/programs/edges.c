/* A full disk, a large file, a terminal, /proc: everything that is seen is printed. edges FULL FILE */
#define _GNU_SOURCE
#ifdef WITH_HEADER
#include <farpage/stdio.h>
#else
#include <stdio.h>
#endif
#include <errno.h>
#include <pty.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#define CALL(that) do { errno = 0; long long got_ = (long long)(that); \
	printf("%d: %lld errno %d\n", __LINE__, got_, errno); } while (0)

#define MIB (1 << 20)

static long long size_of(const char *path)
{
	struct stat status;
	return stat(path, &status) ? -1 : (long long)status.st_size;
}

/* In a file system of a MiB. */
static void full(const char *path)
{
	static char block[100000];
	FILE *f = fopen(path, "w+");
	int at;

	for (at = 0; at < 12; at++) {
		memset(block, 'a' + at, sizeof block);
		CALL(fwrite(block, 1, sizeof block, f));
	}
	CALL(ferror(f) != 0);
	CALL(fflush(f));
	clearerr(f);
	CALL(fseek(f, 99999, SEEK_SET));
	CALL(getc(f));
	CALL(getc(f));
	CALL(fclose(f));
	CALL(size_of(path));
	f = fopen(path, "a");
	for (at = 0; at < 5000; at++)
		if (putc('x', f) == EOF)
			break;
	CALL(at);
	CALL(fclose(f));
	CALL(size_of(path));
#ifdef WITH_HEADER
	/* Not in what is compared. */
	truncate(path, 10);
	f = fopen(path, "r+");
	fprintf(stderr, "%d", fmap(f, 2 * MIB) == NULL && errno == ENOSPC && size_of(path) == 10);
	fclose(f);
#endif
}

/* More than 4 GiB, most of it a hole. */
static void large(const char *path)
{
	off_t edges[] = { (1LL << 31) - 3, (1LL << 32) - 3, (5LL << 30) };
	FILE *f = fopen(path, "w+");
	char line[20];
	long long sum = 0, count = 0;
	size_t i;
	int byte;

	for (i = 0; i < sizeof edges / sizeof *edges; i++) {
		CALL(fseeko(f, edges[i], SEEK_SET));
		CALL(fputs("across\nit\n", f));
	}
	for (i = 0; i < sizeof edges / sizeof *edges; i++) {
		CALL(fseeko(f, edges[i], SEEK_SET));
		CALL(fgets(line, sizeof line, f) != NULL);
		CALL(strcmp(line, "across\n"));
		CALL(ftello(f));
	}
	/* Far enough to be mapped, over both edges. */
	for (i = 0; i < 2; i++) {
		CALL(fseeko(f, edges[i] - 6 * MIB, SEEK_SET));
		for (count = 0; count < 8 * MIB && (byte = getc(f)) != EOF; count++)
			sum = sum * 31 + byte;
		CALL(count);
		CALL(sum);
		CALL(ftello(f));
	}
	CALL(fseeko(f, -3, SEEK_END));
	CALL(getc(f));
	CALL(fclose(f));
	CALL(size_of(path));
}

static void terminal(void)
{
	int ours, theirs;
	char line[20], seen[100];
	struct termios plain;
	ssize_t got, more, wanted = strlen("|to the terminal\n|and");
	FILE *in, *out;

	CALL(openpty(&ours, &theirs, NULL, NULL, NULL));
	tcgetattr(theirs, &plain);
	cfmakeraw(&plain);
	plain.c_lflag |= ICANON;
	tcsetattr(theirs, TCSANOW, &plain);
	in = fdopen(dup(theirs), "r");
	out = fdopen(theirs, "w");
	CALL(write(ours, "one\ntwo\nthree", 13));
	CALL(fgets(line, sizeof line, in) != NULL && !strcmp(line, "one\n"));
	CALL(getc(in));
	CALL(ungetc('T', in));
	CALL(fgets(line, sizeof line, in) != NULL && !strcmp(line, "Two\n"));
	/* By lines: nothing comes before the end of one. */
	fputs("to the ", out);
	CALL(write(theirs, "|", 1));
	fputs("terminal\nand", out);
	CALL(write(theirs, "|", 1));
	CALL(fclose(out));
	memset(seen, 0, sizeof seen);
	/* It comes in as many parts as Linux likes. */
	for (got = 0; got < wanted; got += more)
		if ((more = read(ours, seen + got, sizeof seen - 1 - got)) <= 0)
			break;
	CALL(got);
	puts(seen);
	CALL(fclose(in));
	close(ours);
}

static void kernels(void)
{
	FILE *f = fopen("/proc/self/status", "r");
	char line[200];

	CALL(fgets(line, sizeof line, f) != NULL && !strncmp(line, "Name:", 5));
	CALL(fseek(f, 0, SEEK_SET));
	CALL(getc(f));
	CALL(fclose(f));
	f = fopen("/dev/full", "w");
	CALL(fputs("some", f));
	CALL(fclose(f));
}

int main(int count, char **word)
{
	if (count != 3)
		return 2;
	full(word[1]);
	large(word[2]);
	terminal();
	kernels();
	return 0;
}
