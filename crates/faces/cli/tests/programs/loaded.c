// A program that is loaded page by page: text, constants and data of which it touches what it is told.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef WITH_LIBRARY
int library_answer(void);
extern int library_data;
#endif

// 8 MiB of constants, none of them zero.
__asm__(".section .rodata\n.balign 4096\nconstants: .fill 1048576, 8, 0x0102030405060708\n.text");
extern const volatile unsigned long constants[] __attribute__((visibility("hidden")));
enum { CONSTANTS = 1048576 };

// Functions of a page each.
#define FUNCTION(n) \
    __attribute__((noinline, aligned(4096))) static int function_##n(int x) { return x * n + n; }
FUNCTION(1) FUNCTION(2) FUNCTION(3) FUNCTION(4) FUNCTION(5) FUNCTION(6) FUNCTION(7) FUNCTION(8)
static int (*const functions[])(int) = {function_1, function_2, function_3, function_4,
                                        function_5, function_6, function_7, function_8};

static int data[200000] = {7, 8, 9, [199999] = 10};
static int zeros[200000];
static __thread int own = 5;
static int begun;

__attribute__((constructor)) static void begin(void) { begun = 11; }

static int text(void) {
    int sum = 0;
    for (int i = 0; i < 8; i++) sum += functions[i](i);
    return sum;
}

static void *thread(void *of) {
    own += *(int *)of;
    return (void *)(long)(own + text());
}

static int waited(pid_t child) {
    int status;
    return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void all(void) {
    char exe[4096] = {0};
    if (readlink("/proc/self/exe", exe, sizeof exe - 1) < 0) strcpy(exe, strerror(errno));
    printf("exe %s\n", exe);
    printf("data %d %d zeros %d begun %d own %d text %d\n", data[0], data[199999], zeros[199999],
           begun, own, text());
#ifdef WITH_LIBRARY
    int answer = library_answer();
    printf("library %d %d\n", answer, library_data);
#endif
    pthread_t threads[4];
    int numbers[4] = {1, 2, 3, 4};
    long sum = 0;
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, thread, &numbers[i]);
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        sum += (long)result;
    }
    printf("threads %ld own %d\n", sum, own);
    fflush(stdout);
    // Data are private, in pages that were there and in others.
    pid_t child = fork();
    if (!child) {
        data[0] = 40;
        data[100000] = 2;
        _exit(data[0] + data[100000] + zeros[5]);
    }
    int status = waited(child);
    printf("child %d parent %d %d\n", status, data[0], data[100000]);
    data[150000] = 1;
    child = fork();
    if (!child) _exit(data[150000] + (int)(constants[CONSTANTS - 1] & 0xff));
    printf("second child %d\n", waited(child));
    mprotect((void *)((unsigned long)&data[100000] & ~4095ul), 4096, PROT_READ);
    printf("protected %d\n", data[100000]);
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "all";
    if (!strcmp(what, "all")) {
        all();
        fflush(stdout);
    } else if (!strcmp(what, "exit")) {
        return atoi(words[2]);
    } else if (!strcmp(what, "die")) {
        raise(15);
    } else if (!strcmp(what, "again")) {
        // So many processes that execute this program again, one after the other.
        for (int i = atoi(words[2]); i > 0; i--) {
            pid_t child = fork();
            if (!child) {
                execl(words[3], words[3], "exit", "9", (char *)0);
                perror("execl");
                _exit(1);
            }
            printf("%d\n", waited(child));
        }
    } else if (!strcmp(what, "execute")) {
        execv(words[2], words + 2);
        printf("%s\n", strerror(errno));
    } else if (!strcmp(what, "late")) {
        // Says that it is ready, and then, when it is told, uses a page that it has not used yet.
        puts("ready");
        fflush(stdout);
        if (getchar() == EOF) return 1;
        printf("%lx\n", constants[CONSTANTS / 4 * 3]);
    } else if (!strcmp(what, "sum")) {
        unsigned long sum = 0;
        for (int i = 0; i < CONSTANTS; i++) sum += constants[i];
        printf("%lx\n", sum);
    } else if (!strcmp(what, "smaps")) {
        // A child has what its parent has: proportional shares of text, not copies.
        int sum = text();
        unsigned long all = 0;
        for (int i = 0; i < CONSTANTS; i += 512) all += constants[i];
        pid_t child = fork();
        if (!child) {
            sum += text();
            for (int i = 0; i < CONSTANTS; i += 512) all += constants[i];
            FILE *maps = fopen("/proc/self/smaps", "r");
            char line[4096], may[8] = "";
            unsigned long inside = 0, from, to, rss = 0, pss = 0, kib;
            while (fgets(line, sizeof line, maps)) {
                if (sscanf(line, "%lx-%lx %7s", &from, &to, may) == 3)
                    inside = from <= (unsigned long)constants && (unsigned long)constants < to;
                if (inside && sscanf(line, "Rss: %lu kB", &kib) == 1) rss = kib;
                if (inside && sscanf(line, "Pss: %lu kB", &kib) == 1) pss = kib;
            }
            printf("rss %lu pss %lu sum %d %lx\n", rss, pss, sum, all);
            exit(0);
        }
        return waited(child);
    }
    return 0;
}
