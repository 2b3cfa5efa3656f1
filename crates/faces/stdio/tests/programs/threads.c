/* Bytes of one stream, taken by four threads; then by a child of fork and its parent; threads FILE. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef WITH_HEADER
#include <farpage/stdio.h>
#endif

#define THREADS 4

static FILE *file;

struct seen {
	unsigned long bytes, sum;
};

static void *takes(void *to)
{
	struct seen *seen = to;
	int c;

	while ((c = getc(file)) != EOF) {
		seen->bytes++;
		seen->sum += c;
	}
	return NULL;
}

int main(int count, char **words)
{
	struct seen first = {0}, seen[THREADS] = {{0}}, all = {0};
	pthread_t threads[THREADS];

	if (count < 2 || !(file = fopen(words[1], "r")))
		return 1;
	/* Mapped by then. */
	for (int i = 0; i < 2000000; i++) {
		first.sum += getc(file);
		first.bytes++;
	}
	/* A child has what its parent had, and moves the same descriptor. */
	fflush(stdout);
	pid_t child = fork();
	if (!child) {
		printf("%d\n", getc(file));
		fflush(stdout);
		_exit(0);
	}
	waitpid(child, NULL, 0);
	for (int i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, takes, &seen[i]))
			return 1;
	all = first;
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		all.bytes += seen[i].bytes;
		all.sum += seen[i].sum;
	}
	printf("%lu %lu\n", all.bytes, all.sum);
	return fclose(file) != 0;
}
