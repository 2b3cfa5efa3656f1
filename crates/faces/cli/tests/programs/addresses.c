/* Takes the addresses that MemorySanitizer takes, when it does, and has the name by which it is known. */
#include "check.h"

static const struct {
    unsigned long start, end;
} taken[] = {
    {0x010000000000, 0x100000000000}, {0x110000000000, 0x200000000000}, {0x200000000000, 0x300000000000},
    {0x300000000000, 0x400000000000}, {0x500000000000, 0x510000000000}, {0x600000000000, 0x610000000000},
};

__attribute__((constructor)) void __msan_init(void)
{
    for (size_t i = 0; i < LENGTH(taken); i++) {
        void *at = (void *)taken[i].start;
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
        CHECK(mmap(at, taken[i].end - taken[i].start, PROT_READ | PROT_WRITE, flags, -1, 0) == at);
    }
}

int main(void)
{
    use_memory();
    puts("used");
    return 0;
}
