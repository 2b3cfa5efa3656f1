/* A Windows program: VirtualAlloc, a heap, threads, events, structured exceptions by a guard page. usage: job MIB */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <windows.h>

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

static uint64_t digest(const uint64_t *words, size_t n)
{
    uint64_t h = 1;
    for (size_t i = 0; i < n; i++)
        h = mix(h ^ words[i]);
    return h;
}

static uint64_t *memory;
static size_t part;
static volatile LONG faults;
static char *guarded;

static LONG CALLBACK on_fault(EXCEPTION_POINTERS *what)
{
    DWORD old;
    char *at = (char *)what->ExceptionRecord->ExceptionInformation[1];
    if (what->ExceptionRecord->ExceptionCode != EXCEPTION_ACCESS_VIOLATION || at < guarded ||
        at >= guarded + (64 << 12))
        return EXCEPTION_CONTINUE_SEARCH;
    InterlockedIncrement(&faults);
    VirtualProtect(at, 1, PAGE_READWRITE, &old);
    return EXCEPTION_CONTINUE_EXECUTION;
}

static DWORD WINAPI work(void *of)
{
    size_t k = (size_t)of;
    uint64_t *own = memory + k * part;
    for (size_t i = 0; i < part; i++)
        own[i] = mix(k * part + i);
    return (DWORD)digest(own, part);
}

int main(int argc, char **argv)
{
    size_t mib = argc > 1 ? (size_t)atoi(argv[1]) : 64, words = mib << 17;
    part = words / 4;
    memory = VirtualAlloc(NULL, words * 8, MEM_RESERVE, PAGE_NOACCESS);
    if (!memory || !VirtualAlloc(memory, words * 8, MEM_COMMIT, PAGE_READWRITE))
        return 2;
    HANDLE threads[4];
    for (size_t k = 0; k < 4; k++)
        threads[k] = CreateThread(NULL, 0, work, (void *)k, 0, NULL);
    WaitForMultipleObjects(4, threads, TRUE, INFINITE);
    for (size_t k = 0; k < 4; k++) {
        DWORD code;
        GetExitCodeThread(threads[k], &code);
        printf("thread %u %08lx\n", (unsigned)k, (unsigned long)code);
    }
    AddVectoredExceptionHandler(1, on_fault);
    guarded = VirtualAlloc(NULL, 64 << 12, MEM_COMMIT | MEM_RESERVE, PAGE_READONLY);
    for (int i = 0; i < 64; i++)
        ((volatile char *)guarded)[i << 12] = (char)i;
    printf("faults %ld\n", (long)faults);
    HANDLE heap = HeapCreate(0, 0, 0);
    uint64_t sum = 0;
    void **blocks = calloc(mib * 100, sizeof *blocks);
    for (size_t i = 0; i < mib * 100; i++) {
        blocks[i] = HeapAlloc(heap, HEAP_ZERO_MEMORY, 16 + i % 3000);
        *(uint64_t *)blocks[i] = mix(i);
    }
    for (size_t i = 0; i < mib * 100; i++) {
        sum += *(uint64_t *)blocks[i];
        HeapFree(heap, 0, blocks[i]);
    }
    printf("heap %08x%08x\n", (unsigned)(sum >> 32), (unsigned)sum);
    uint64_t h = digest(memory, words);
    printf("again %08x%08x\n", (unsigned)(h >> 32), (unsigned)h);
    VirtualFree(memory, 0, MEM_RELEASE);
    fflush(stdout);
    return 0;
}
