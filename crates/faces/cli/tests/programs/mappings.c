/* 20,000 mappings that Linux does not merge: they are used, most of them are paged out, and half of them go.
   Argument: into how many mappings of Linux's they may have become. Without one it says how many. */
#include "check.h"

#define COUNT 20000
#define BYTES (128 << 10)
#define PAGE 4096

static char *at[COUNT];

static long of_linux(void)
{
    static char text[1 << 16];
    int fd = open("/proc/self/maps", O_RDONLY);
    long lines = 0;
    ssize_t got;
    CHECK(fd >= 0);
    while ((got = read(fd, text, sizeof text)) > 0)
        for (ssize_t i = 0; i < got; i++)
            lines += text[i] == '\n';
    CHECK(!got && !close(fd));
    return lines;
}

static void is_right(int i)
{
    for (int page = 0; page < 2; page++) {
        char *from = at[i] + page * PAGE;
        CHECK(from[0] == (char)(2 * i + page + 1) && from[PAGE - 1] == from[0]);
    }
}

int main(int argc, char **argv)
{
    long before = of_linux();
    for (int i = 0; i < COUNT; i++) {
        at[i] = mmap(0, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(at[i] != MAP_FAILED && !mprotect(at[i] + BYTES - PAGE, PAGE, PROT_READ));
        for (int page = 0; page < 2; page++)
            memset(at[i] + page * PAGE, 2 * i + page + 1, PAGE);
    }
    for (int i = 0; i < COUNT; i++)
        is_right(i);
    long made = of_linux() - before;
    for (int i = 0; i < COUNT; i += 2)
        CHECK(!munmap(at[i], BYTES));
    for (int i = 1; i < COUNT; i += 2)
        is_right(i);
    if (argc > 1 && made > atol(argv[1])) {
        fprintf(stderr, "%ld mappings\n", made);
        return 1;
    }
    printf("%ld\n", made);
    return 0;
}
