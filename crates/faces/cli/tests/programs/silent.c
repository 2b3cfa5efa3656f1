/* While threads wait for a page that does not come, others map, use and unmap memory.
   Argument: a file that is mapped, and ends in such pages. Each line of input is answered by one. */
#include "check.h"
#include <sys/stat.h>

static unsigned char *mapped;
static size_t size;
static int fd;

static void *touches(void *nothing)
{
    (void)nothing;
    fprintf(stderr, "%d came\n", *(volatile unsigned char *)(mapped + size - 1));
    _exit(1);
}

static void *reads(void *nothing)
{
    char byte;
    (void)nothing;
    fprintf(stderr, "%zd came\n", pread(fd, &byte, 1, size - 1));
    _exit(1);
}

int main(int argc, char **argv)
{
    struct stat status;
    pthread_t threads[2];
    char line[100];
    CHECK(argc == 2);
    fd = open(argv[1], O_RDONLY);
    CHECK(fd >= 0 && !fstat(fd, &status));
    size = status.st_size;
    mapped = mmap(0, size, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(mapped != MAP_FAILED && *mapped == 0);
    printf("%d\n", getpid());
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin));
    CHECK(!pthread_create(&threads[0], 0, touches, 0) && !pthread_create(&threads[1], 0, reads, 0));
    do {
        for (int i = 0; i < 5; i++)
            use_memory();
        puts("mapped");
        fflush(stdout);
    } while (fgets(line, sizeof line, stdin));
    return 0;
}
