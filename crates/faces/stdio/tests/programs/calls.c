/* Random calls on streams, by seed. What each returns, its errno and what the files hold are printed
 * (or, without -v, only a sum of it), to be compared with another library's.
 *
 * calls FOLDER FIRST COUNT [-v] */
#define _GNU_SOURCE
#ifdef WITH_HEADER
#include <farpage/stdio.h>
#else
#include <stdio.h>
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

static uint64_t state, sum;
static int verbose;
/* A byte was pushed back: glibc's fflush then loses its place, buffer by buffer. */
static int is_pushed;
static char path[4096];
static char memory[1 << 21];

static uint32_t any(uint32_t below)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(state >> 33) % below;
}

static void add(const void *bytes, size_t count)
{
	const unsigned char *at = bytes;

	while (count--)
		sum = (sum ^ *at++) * 1099511628211u;
}

static void say(const char *format, ...)
{
	char line[600];
	va_list list;
	int count;

	va_start(list, format);
	count = vsnprintf(line, sizeof line, format, list);
	va_end(list);
	add(line, (size_t)count);
	if (verbose)
		printf("  %s\n", line);
}

/* A short name of bytes. */
static unsigned digest(const void *bytes, size_t count)
{
	uint64_t before = sum, made;

	sum = 1;
	add(bytes, count);
	made = sum;
	sum = before;
	return (unsigned)(made >> 20);
}

static void fill(size_t bytes)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	for (size_t at = 0; at < bytes; at++)
		switch (at >> 12 & 15) {
		case 3: memory[at] = 0; break;
		case 5: memory[at] = "12 -7 word\n"[at % 11]; break;
		default: memory[at] = (char)((at * 7 + (at >> 9)) & 0x7f);
		}
	if (write(fd, memory, bytes) != (ssize_t)bytes)
		abort();
	close(fd);
}

static size_t size_of_some(void)
{
	switch (any(8)) {
	case 0: return any(3);
	case 1: return 4090 + any(12);
	case 2: case 3: return any(20000);
	case 4: return 600000 + any(400000);
	default: return any(200000);
	}
}

static void read_bytes(FILE *f, unsigned how, size_t count)
{
	size_t done = 0;
	int c = 0;

	while (done < count) {
		switch (how) {
		case 0: c = getc(f); break;
		case 1: c = fgetc(f); break;
		case 2: c = getc_unlocked(f); break;
		default: c = fgetc_unlocked(f);
		}
		if (c == EOF)
			break;
		memory[done++ % sizeof memory] = (char)c;
	}
	say("getc %u: %zu of %zu, %08x, last %d", how, done, count,
	    digest(memory, done < sizeof memory ? done : sizeof memory), c);
}

static size_t block(void)
{
	switch (any(6)) {
	case 0: return any(40);
	case 1: return any(300000);
	case 2: return 4096 * any(20);
	default: return any(9000);
	}
}

static void read_call(FILE *f)
{
	static char *line;
	static size_t room;
	size_t wanted, got;
	ssize_t length;
	char word[100] = "", *back;
	int number = 0, done;

	switch (any(11)) {
	case 0: case 1:
		read_bytes(f, any(4), any(5000));
		break;
	case 2:
		read_bytes(f, any(4), 300000 + any(700000));
		break;
	case 3: case 4:
		wanted = block();
		memset(memory, 1, wanted);
		got = any(2) ? fread(memory, 1, wanted, f) : fread_unlocked(memory, 1, wanted, f);
		say("fread %zu: %zu %08x", wanted, got, digest(memory, got));
		break;
	case 5:
		got = fread(memory, 1 + any(50), 1 + any(100), f);
		say("fread items: %zu", got);
		break;
	case 6:
		wanted = any(3) ? 1 + any(300) : 1 + any(9000);
		memset(memory, 1, wanted);
		back = any(2) ? fgets(memory, (int)wanted, f) : fgets_unlocked(memory, (int)wanted, f);
		say("fgets %zu: %d %08x", wanted, back != NULL, digest(memory, back ? wanted : 0));
		break;
	case 7: case 8:
		for (unsigned i = any(400); i-- > 0;) {
			length = any(4) ? getline(&line, &room, f) : getdelim(&line, &room, 'a', f);
			if (length < 0)
				break;
			add(line, (size_t)length + 1);
		}
		say("getline");
		break;
	case 9:
		done = any(2) ? fscanf(f, "%d", &number) : fscanf(f, " %99s", word);
		say("fscanf: %d %d %s", done, number, word);
		break;
	default:
		number = getc(f);
		wanted = any(3) ? (size_t)number : any(256);
		done = number == EOF ? 0 : ungetc((int)wanted, f);
		is_pushed = 1;
		say("ungetc %zu: %d", wanted, done);
		if (any(3) == 0)
			say("and again: %d", ungetc('x', f) == 'x' ? getc(f) : -2);
	}
}

static void write_call(FILE *f)
{
	size_t wanted, done;

	switch (any(5)) {
	case 0:
		say("fputc: %d", any(2) ? fputc('p', f) : putc_unlocked('q', f));
		break;
	case 1:
		say("fputs: %d", fputs("a line\n", f) >= 0);
		break;
	case 2:
		say("fprintf: %d", fprintf(f, "%d %s %.3f\n", (int)any(1000), "word", 1.5));
		break;
	default:
		wanted = block() / 4;
		memset(memory, 'w', wanted);
		done = any(2) ? fwrite(memory, 1, wanted, f) : fwrite_unlocked(memory, 1, wanted, f);
		say("fwrite %zu: %zu", wanted, done);
	}
}

static void place_call(FILE *f, int is_seek_only)
{
	fpos_t pos;
	long by;
	int whence, done;

	switch (any(is_seek_only ? 5 : 9)) {
	case 0: case 1: case 2:
		whence = (int)any(3);
		by = any(2) ? (long)any(6000) - 3000 : (long)any(900000);
		if (whence == SEEK_END)
			by = -by / 4;
		done = any(2) ? fseek(f, by, whence) : fseeko(f, by, whence);
		is_pushed &= done != 0;
		say("fseek %ld %d: %d", by, whence, done);
		break;
	case 3:
		say("ftell: %ld", ftell(f));
		break;
	case 4:
		rewind(f);
		is_pushed = 0;
		break;
	case 5:
		done = fgetpos(f, &pos);
		by = ftell(f);
		fseek(f, (long)any(100), SEEK_CUR);
		say("fsetpos: %d %d %d", done, fsetpos(f, &pos), ftell(f) == by);
		break;
	case 6:
		if (is_pushed)
			break;
		done = fflush(f);
		say("fflush: %d, at %ld", done, (long)lseek(fileno(f), 0, SEEK_CUR));
		break;
	case 7:
		say("flags: %d %d", feof(f) != 0, ferror(f) != 0);
		break;
	default:
		clearerr(f);
	}
}

static void show_file(void)
{
	FILE *f = fopen(path, "r");
	size_t got;

	if (!f) {
		say("no file");
		return;
	}
	while ((got = fread(memory, 1, sizeof memory, f)) > 0)
		add(memory, got);
	fclose(f);
	say("contents");
}

static const char *const modes[] = {"r", "r+", "w", "w+", "a", "a+", "r", "r+"};

static void one(uint64_t seed)
{
	unsigned calls = 5 + any(30), mode = any(8);
	FILE *f;

	is_pushed = 0;
	fill(size_of_some());
	f = any(8) ? fopen(path, modes[mode]) : fdopen(open(path, O_RDWR), modes[mode]);
	say("seed %llu mode %s", (unsigned long long)seed, modes[mode]);
	if (any(10) == 0)
		say("setvbuf: %d", setvbuf(f, NULL, (int[]){_IOFBF, _IOLBF, _IONBF}[any(3)],
					   1 + any(9000)));
	while (calls-- > 0) {
		errno = 0;
		switch (any(mode == 0 || mode == 6 ? 12 : 14)) {
		case 0: case 1: case 2:
			place_call(f, 0);
			break;
		case 3: case 4: case 5: case 6: case 7: case 8: case 9: case 10:
			if (ftell(f) < 0)
				say("no place");
			read_call(f);
			break;
		case 11:
			if (any(12) == 0) {
				mode = any(8);
				f = freopen(path, modes[mode], f);
				say("freopen %s", modes[mode]);
			} else if (any(8) == 0) {
				/* A stream of wide characters is none of bytes any more. */
				say("wide: %ld", (long)fgetwc(f));
				if (fwide(f, 0) > 0)
					calls = 0;
			}
			break;
		default:
			/* Between reading and writing C wants a move, between writing and reading
			 * that or a flush. */
			if (fseek(f, 0, SEEK_CUR) != 0)
				break;
			is_pushed = 0;
			for (unsigned i = any(4); i-- > 0;)
				write_call(f);
			if (any(2))
				fflush(f);
			else
				fseek(f, 0, SEEK_CUR);
		}
		say("errno %d eof %d err %d", errno, feof(f) != 0, ferror(f) != 0);
	}
	errno = 0;
	say("fclose: %d %d", fclose(f), errno);
	show_file();
}

/* Two streams that write to one file. */
static void two(void)
{
	FILE *f[2];

	fill(size_of_some());
	f[0] = fopen(path, any(2) ? "r+" : "a");
	f[1] = fopen(path, any(2) ? "r+" : "a+");
	for (unsigned calls = 5 + any(40); calls-- > 0;) {
		FILE *one = f[any(2)];

		errno = 0;
		if (any(3))
			write_call(one);
		else if (any(2))
			place_call(one, 1);
		else
			say("fflush: %d", fflush(any(5) ? one : NULL));
		say("errno %d", errno);
	}
	say("fclose: %d %d", fclose(f[0]), fclose(f[1]));
	show_file();
}

int main(int count, char **word)
{
	uint64_t first, end;

	if (count < 4)
		return 2;
	first = strtoull(word[2], NULL, 10);
	end = first + strtoull(word[3], NULL, 10);
	verbose = count > 4;
	snprintf(path, sizeof path, "%s/file", word[1]);
	for (uint64_t seed = first; seed < end; seed++) {
		state = seed * 0x9e3779b97f4a7c15u + 1;
		sum = 14695981039346656037u;
		any(2);
		if (any(8))
			one(seed);
		else
			two();
		printf("%llu %016llx\n", (unsigned long long)seed, (unsigned long long)sum);
	}
	return 0;
}
