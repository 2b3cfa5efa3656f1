/* Reads a file in one of several ways while it is cut off, and says how many bytes came.
 *
 * cut FILE WAY BEFORE CUT: reads BEFORE bytes, cuts the file off at CUT, reads on. */
#include <farpage/stdio.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static unsigned char byte_at(long at)
{
	/* Page 5 of each 16 is zeros, and so is every 1000th byte. */
	if ((at >> 12 & 15) == 5 || at % 1000 == 0)
		return 0;
	return (unsigned char)(1 + (at * 7 + (at >> 9)) % 255);
}

static long read_some(FILE *f, const char *way, long at, long most)
{
	static unsigned char block[70000];
	long end = at + most;

	while (at < end) {
		size_t wanted = 1, got;

		if (!strcmp(way, "getc")) {
			int c = getc(f);

			if (c == EOF)
				break;
			block[0] = (unsigned char)c;
			got = 1;
		} else if (!strcmp(way, "function")) {
			int c = (getc)(f);

			if (c == EOF)
				break;
			block[0] = (unsigned char)c;
			got = 1;
		} else {
			wanted = (size_t)atol(way);
			if ((long)wanted > end - at)
				wanted = (size_t)(end - at);
			got = fread(block, 1, wanted, f);
		}
		for (size_t i = 0; i < got; i++)
			if (block[i] != byte_at(at + (long)i)) {
				printf("byte %ld is wrong\n", at + (long)i);
				exit(1);
			}
		at += (long)got;
		if (got < wanted)
			break;
	}
	return at;
}

int main(int count, char **word)
{
	long before, cut, at, bytes = 9L << 20;
	FILE *f;

	if (count != 5)
		return 2;
	f = fopen(word[1], "w");
	for (at = 0; at < bytes; at++)
		putc(byte_at(at), f);
	fclose(f);
	before = atol(word[3]);
	cut = atol(word[4]);
	f = fopen(word[1], "r");
	/* One by one, so that it is mapped. */
	at = read_some(f, "getc", 0, before);
	if (at != before || truncate(word[1], cut) != 0)
		return 1;
	errno = 0;
	at = read_some(f, word[2], at, bytes);
	printf("%ld %d %d\n", at, ferror(f) != 0, errno == EIO);
	clearerr(f);
	return getc(f) != EOF || !feof(f) || ferror(f) || fclose(f) != 0;
}
