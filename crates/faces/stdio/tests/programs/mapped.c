/* fmap: what is written there is in the file, and what goes beyond it fails. mapped FILE */
#include <farpage/stdio.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MUST(that) do { if (!(that)) { \
	printf("line %d: %s (errno %d)\n", __LINE__, #that, errno); exit(1); } } while (0)

int main(int count, char **word)
{
	char line[100];
	char *data;
	FILE *f;
	int pipes[2];

	MUST(count == 2);
	MUST((f = fopen(word[1], "w")) != NULL);
	MUST((data = fmap(f, 10000)) != NULL && fbufsize(f) == 10000 && data[9999] == 0);
	MUST(fprintf(f, "head\n") == 5 && !memcmp(data, "head\n", 5));
	memcpy(data + 9995, "tail\n", 5);
	MUST(fseek(f, 10000, SEEK_SET) == 0);
	MUST(fwrite("x", 1, 1, f) == 0 && errno == EFBIG && ferror(f));
	clearerr(f);
	MUST(fseek(f, 10001, SEEK_SET) == -1 && errno == EINVAL && ftell(f) == 10000);
	MUST((data = fmap(f, 200000)) != NULL && fbufsize(f) == 200000);
	MUST(fwrite("x", 1, 1, f) == 1 && data[10000] == 'x' && data[9995] == 't');
	MUST(fflush(f) == 0 && fclose(f) == 0);

	MUST((f = fopen(word[1], "r")) != NULL);
	MUST(fgets(line, sizeof line, f) && !strcmp(line, "head\n"));
	MUST((data = fmap(f, 0)) != NULL && fbufsize(f) == 200000 && data[10000] == 'x');
	MUST(fseek(f, 9995, SEEK_SET) == 0 && fgets(line, sizeof line, f) && !strcmp(line, "tail\n"));
	MUST(truncate(word[1], 4096) == 0 && data[0] == 'h' && !ferror(f));
	MUST(data[10000] == 0 && ferror(f) && fclose(f) == 0);

	MUST((f = fopen(word[1], "a+")) != NULL && (data = fmap(f, 0)) != NULL);
	MUST(fbufsize(f) == 4096 && data[0] == 'h');
	MUST(fwrite("x", 1, 1, f) == 0 && errno == EFBIG && fclose(f) == 0);
	MUST((f = fopen(word[1], "r")) != NULL && fmap(f, 100) != NULL && fbufsize(f) == 100);
	MUST(fmap(f, 50) != NULL && fbufsize(f) == 100 && fclose(f) == 0);
	MUST((f = fmemopen(line, sizeof line, "r")) != NULL && !fmap(f, 1) && errno == EBADF);
	MUST(fclose(f) == 0);
	MUST((f = fopen("/dev/null", "r+")) != NULL && !fmap(f, 1) && errno == EINVAL);
	MUST(fclose(f) == 0 && truncate(word[1], 0) == 0);
	MUST((f = fopen(word[1], "r")) != NULL && !fmap(f, 1) && errno == ENODATA);
	MUST(fclose(f) == 0 && pipe(pipes) == 0 && (f = fdopen(pipes[0], "r")) != NULL);
	MUST(write(pipes[1], "ab", 2) == 2 && getc(f) == 'a' && !fmap(f, 0) && errno == EINVAL);
	MUST(getc(f) == 'b');
	puts("done");
	return 0;
}
