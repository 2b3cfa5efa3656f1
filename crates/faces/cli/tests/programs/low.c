/* Memory that the program wants in the low 2 GiB lies there, and leaves when there is too little room. */
#include "away.h"

#define LOW (8 << 20)

int main(void)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT;
    unsigned char *low = mmap(0, LOW, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(low != MAP_FAILED);
    CHECK((size_t)low + LOW <= 1ul << 31);
    for (size_t i = 0; i < LOW; i += 4096)
        low[i] = i >> 12 ^ i >> 20;
    send_away(low, LOW, LOW / 4096 / 8);
    for (size_t i = 0; i < LOW; i += 4096)
        CHECK(low[i] == (unsigned char)(i >> 12 ^ i >> 20));
    CHECK(!mprotect(low, LOW / 2, PROT_READ));
    send_away(low, LOW, LOW / 4096 / 8);
    for (size_t i = 0; i < LOW; i += 4096)
        CHECK(low[i] == (unsigned char)(i >> 12 ^ i >> 20));
    /* What is read-only is locked, moved and paged like that. */
    unsigned char *read_only = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(read_only != MAP_FAILED);
    memset(read_only, 7, 1 << 20);
    CHECK(!mprotect(read_only, 1 << 20, PROT_READ));
    CHECK(!mlock(read_only, 64 << 10));
    CHECK(!munlock(read_only, 64 << 10));
    read_only = mremap(read_only, 1 << 20, 2 << 20, MREMAP_MAYMOVE);
    CHECK(read_only != MAP_FAILED && read_only[(1 << 20) - 1] == 7);
    pid_t child = fork();
    if (!child) {
        read_only[5] = 8;
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    /* Something is moved over memory there. */
    unsigned char *one = map(1 << 20);
    memset(one, 3, 1 << 20);
    CHECK(mremap(one, 1 << 20, 1 << 20, MREMAP_MAYMOVE | MREMAP_FIXED, low) == low);
    for (size_t i = 0; i < LOW; i += 4096)
        CHECK(low[i] == (unsigned char)(i < 1 << 20 ? 3 : i >> 12 ^ i >> 20));
    /* Its addresses are free again. */
    CHECK(!munmap(low, LOW));
    flags |= MAP_FIXED_NOREPLACE;
    CHECK(mmap(low, LOW, PROT_READ | PROT_WRITE, flags, -1, 0) == low);
    for (size_t i = 0; i < LOW; i += 4096)
        CHECK(!low[i]);
    return 0;
}
