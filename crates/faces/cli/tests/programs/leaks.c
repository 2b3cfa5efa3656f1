/* Threads that use more memory than there is to be, for the sanitizers of compilers. With an argument one block is
   left behind, of which nobody knows any more. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define THREADS 4
#define BYTES (12l << 20)

static long sums[THREADS];

static void *work(void *argument)
{
    long own = (long)argument, sum = 0;
    unsigned char *bytes = malloc(BYTES);
    for (long i = 0; i < BYTES; i += 64)
        bytes[i] = i / 64 + own;
    for (int round = 0; round < 2; round++)
        for (long i = 0; i < BYTES; i += 64)
            sum += bytes[i];
    free(bytes);
    sums[own] = sum;
    return 0;
}

static void *volatile kept;

/* Blocks that point to one another, and are on the disk when somebody looks for what is lost: nothing compresses
   them. */
static void list(void)
{
    void **first = 0;
    unsigned random = 1;
    for (int i = 0; i < 20000; i++) {
        void **block = malloc(2000);
        for (int word = 0; word < 500; word++)
            ((unsigned *)block)[word] = random = random * 1664525 + 1013904223;
        *block = first;
        first = block;
    }
    kept = first;
}

int main(int count, char **)
{
    pthread_t threads[THREADS];
    list();
    if (count > 1)
        *(void *volatile *)malloc(77) = 0;
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], 0, work, (void *)i);
    for (long i = 0; i < THREADS; i++)
        pthread_join(threads[i], 0);
    printf("%ld %ld %ld %ld\n", sums[0], sums[1], sums[2], sums[3]);
    return 0;
}
