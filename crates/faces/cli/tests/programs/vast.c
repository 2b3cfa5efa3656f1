/* More memory than the machine has, with swap: one mapping, one that becomes writable, one that grows, a heap. Of each a few
   pages are used, and a child of fork finds them. */
#include "check.h"

#define PAGE 4096
#define GIB (1UL << 30)
#define USED 64

static size_t of_machine(void)
{
    char name[64];
    size_t kib, bytes = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    CHECK(file);
    while (fscanf(file, "%63s %zu%*[^\n]", name, &kib) == 2)
        if (!strcmp(name, "MemTotal:") || !strcmp(name, "SwapTotal:"))
            bytes += kib << 10;
    CHECK(bytes > 0 && !fclose(file));
    return bytes;
}

static void put(char *at, size_t bytes)
{
    for (int i = 0; i < USED; i++)
        at[bytes / USED * i] = i + 1;
}

static void is_there(char *at, size_t bytes)
{
    for (int i = 0; i < USED; i++)
        CHECK(at[bytes / USED * i] == i + 1 && !at[bytes / USED * i + PAGE]);
}

static char *mapped(size_t bytes, int protection, int more)
{
    char *at = mmap(0, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | more, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

int main(void)
{
    size_t bytes = (of_machine() + GIB) & ~(GIB - 1);
    char *at[4] = {
        mapped(bytes, PROT_READ | PROT_WRITE, 0),
        mapped(bytes, PROT_NONE, MAP_NORESERVE),
        mapped(GIB, PROT_READ | PROT_WRITE, 0),
        sbrk(0),
    };
    CHECK(!mprotect(at[1], bytes, PROT_READ | PROT_WRITE));
    at[2] = mremap(at[2], GIB, bytes, MREMAP_MAYMOVE);
    CHECK(at[2] != MAP_FAILED);
    /* A heap grows in steps. */
    for (size_t done = 0; done < bytes; done += GIB)
        CHECK(sbrk(GIB) == at[3] + done);
    for (int i = 0; i < 4; i++)
        put(at[i], bytes);
    use_memory();
    for (int child = 0; child < 2; child++) {
        for (int i = 0; i < 4; i++)
            is_there(at[i], bytes);
        if (child)
            _exit(0);
        pid_t made = fork();
        CHECK(made >= 0);
        if (made) {
            wait_for(made, 0);
            break;
        }
    }
    puts("as it should be");
    return 0;
}
