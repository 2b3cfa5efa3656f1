/* Records which pages a program touches: LD_PRELOAD=./recorder.so TRACE_OUT=file program ...
 *
 * All of the program's heap and anonymous mappings lie in one arena under userfaultfd. Only the
 * last TRACE_WINDOW pages (512 without it) are mapped; the others are moved aside, so that each
 * return to a page is a fault, and is recorded. Reads come back write-protected, so that the first
 * write shows as well.
 * What is written at exit is described in tools/sim/src/policy/trace.rs. Needs Linux 6.8 and the
 * privilege to use userfaultfd for faults of the kernel. One process, no fork. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096ul
#define ARENA (8ul << 30)
#define PAGES (ARENA / PAGE)
#define WINDOW 512
#define WINDOW_MAX 65536
#define ENTRIES (64u << 20)
#ifndef UFFDIO_MOVE
struct uffdio_move {
	uint64_t dst, src, len, mode;
	int64_t move;
};
#define UFFDIO_MOVE _IOWR(UFFDIO, 5, struct uffdio_move)
#define UFFD_FEATURE_MOVE (1 << 16)
#endif
#define WRITTEN 0x80000000u

static char *arena, *shadow;
static uint32_t *entries, count, *last_entry;
static uint8_t *aside;
static uint32_t window[WINDOW_MAX];
static unsigned turn, window_pages = WINDOW;
static int uffd = -1;
/* Read when recording begins: programs that change their title take their environment with them. */
static char out_path[4096];

static void *raw_map(size_t bytes)
{
	void *at = (void *)syscall(SYS_mmap, 0, bytes, PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		_exit(96);
	return at;
}

static void fail(const char *what)
{
	dprintf(2, "recorder: %s: %s\n", what, strerror(errno));
	_exit(97);
}

static int move(char *to, char *from)
{
	struct uffdio_move m = { (uintptr_t)to, (uintptr_t)from, PAGE, 0, 0 };
	while (ioctl(uffd, UFFDIO_MOVE, &m)) {
		if (errno == ENOENT)
			return 0;
		if (errno != EAGAIN && errno != EBUSY)
			fail("UFFDIO_MOVE");
	}
	return 1;
}

static void protect(char *at, int on)
{
	struct uffdio_writeprotect wp = { { (uintptr_t)at, PAGE }, on ? UFFDIO_WRITEPROTECT_MODE_WP : 0 };
	if (ioctl(uffd, UFFDIO_WRITEPROTECT, &wp) && errno != ENOENT)
		fail("UFFDIO_WRITEPROTECT");
}

static void bring(uint32_t page, int write)
{
	char *at = arena + page * PAGE;
	uint32_t old = window[turn];
	if (old)
		aside[old] = move(shadow + old * PAGE, arena + old * PAGE);
	window[turn] = page;
	turn = (turn + 1) % window_pages;
	if (count < ENTRIES) {
		last_entry[page] = count;
		entries[count++] = page | (write ? WRITTEN : 0);
	}
	if (aside[page] && move(at, shadow + page * PAGE)) {
		aside[page] = 0;
	} else {
		static char zeros[PAGE];
		struct uffdio_copy c = { (uintptr_t)at, (uintptr_t)zeros, PAGE,
					 UFFDIO_COPY_MODE_DONTWAKE, 0 };
		if (ioctl(uffd, UFFDIO_COPY, &c) && errno != EEXIST)
			fail("UFFDIO_COPY");
	}
	if (!write)
		protect(at, 1);
	struct uffdio_range woken = { (uintptr_t)at, PAGE };
	ioctl(uffd, UFFDIO_WAKE, &woken);
}

static void *handle(void *none)
{
	struct uffd_msg m;
	while (read(uffd, &m, sizeof m) == sizeof m) {
		uint64_t flags = m.arg.pagefault.flags;
		uint32_t page = (m.arg.pagefault.address - (uintptr_t)arena) / PAGE;
		if (flags & UFFD_PAGEFAULT_FLAG_WP) {
			if (last_entry[page] < count)
				entries[last_entry[page]] |= WRITTEN;
			protect(arena + page * PAGE, 0);
		} else {
			bring(page, flags & UFFD_PAGEFAULT_FLAG_WRITE);
		}
	}
	return none;
}

/* The arena: size classes in quarters of powers of two, freed blocks are used again. */
static char *top;
static volatile int mutex;
static void *freed[256];
struct head {
	size_t bytes, at;
};

static void lock(void)
{
	while (__sync_lock_test_and_set(&mutex, 1))
		;
}

static void unlock(void)
{
	__sync_lock_release(&mutex);
}

static unsigned class_of(size_t bytes, size_t *rounded)
{
	if (bytes < 64)
		bytes = 64;
	unsigned log = 63 - __builtin_clzl(bytes - 1);
	size_t step = 1ul << (log - 2);
	*rounded = (bytes + step - 1) / step * step;
	return log * 4 + (*rounded - (1ul << log)) / step;
}

static void begin(void)
{
	const char *path = getenv("TRACE_OUT");
	if (path)
		strncpy(out_path, path, sizeof out_path - 1);
	const char *pages = getenv("TRACE_WINDOW");
	char *end = "";
	if (pages)
		window_pages = strtoul(pages, &end, 10);
	if (*end || window_pages < 1 || window_pages > WINDOW_MAX) {
		dprintf(2, "recorder: TRACE_WINDOW is \"%s\": give a number from 1 to %u\n", pages, WINDOW_MAX);
		_exit(97);
	}
	arena = raw_map(ARENA);
	shadow = raw_map(ARENA);
	entries = raw_map(ENTRIES * 4ul);
	last_entry = raw_map(PAGES * 4);
	aside = raw_map(PAGES);
	top = arena + PAGE;
	uffd = syscall(SYS_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = { UFFD_API, UFFD_FEATURE_MOVE | UFFD_FEATURE_PAGEFAULT_FLAG_WP, 0 };
	if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api))
		fail("userfaultfd");
	madvise(arena, ARENA, MADV_NOHUGEPAGE);
	madvise(shadow, ARENA, MADV_NOHUGEPAGE);
	struct uffdio_register reg = { { (uintptr_t)arena, ARENA },
				       UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP, 0 };
	struct uffdio_register out = { { (uintptr_t)shadow, ARENA }, UFFDIO_REGISTER_MODE_WP, 0 };
	if (ioctl(uffd, UFFDIO_REGISTER, &reg) || ioctl(uffd, UFFDIO_REGISTER, &out))
		fail("UFFDIO_REGISTER");
	static char stack[1 << 16] __attribute__((aligned(4096)));
	pthread_t thread;
	pthread_attr_t attr;
	pthread_attr_init(&attr);
	pthread_attr_setstack(&attr, stack, sizeof stack);
	if (pthread_create(&thread, &attr, handle, 0))
		fail("pthread_create");
}

static void *allocate(size_t bytes, size_t align)
{
	static __thread int beginning __attribute__((tls_model("initial-exec")));
	static char early[1 << 16];
	static size_t early_used;
	if (beginning) {
		early_used = (early_used + bytes + 63) / 64 * 64;
		if (early_used > sizeof early)
			_exit(98);
		return early + early_used - (bytes + 63) / 64 * 64;
	}
	lock();
	if (!arena) {
		beginning = 1;
		begin();
		beginning = 0;
	}
	size_t rounded;
	unsigned class = class_of(bytes + sizeof(struct head) + (align > 16 ? align : 0), &rounded);
	char *block = freed[class];
	if (block) {
		freed[class] = *(void **)block;
	} else {
		if (rounded >= 32 * PAGE)
			top = (char *)(((uintptr_t)top + PAGE - 1) / PAGE * PAGE);
		block = top;
		top += (rounded + 15) / 16 * 16;
		if (top > arena + ARENA)
			_exit(99);
	}
	unlock();
	uintptr_t at = ((uintptr_t)block + sizeof(struct head) + align - 1) / align * align;
	((struct head *)at)[-1] = (struct head){ bytes, (uintptr_t)block };
	return (void *)at;
}

static int mine(void *at)
{
	return arena && (char *)at >= arena && (char *)at < arena + ARENA;
}

void *malloc(size_t bytes)
{
	return allocate(bytes, 16);
}

void free(void *at)
{
	if (!mine(at))
		return;
	struct head head = ((struct head *)at)[-1];
	size_t rounded, align = 16;
	unsigned class = class_of(head.bytes + sizeof head, &rounded);
	if ((uintptr_t)at - head.at > sizeof head + align)
		return;
	lock();
	*(void **)head.at = freed[class];
	freed[class] = (void *)head.at;
	unlock();
}

void *calloc(size_t n, size_t bytes)
{
	char *before = top, *at = malloc(n * bytes);
	if (!mine(at) || !before || at < before)
		memset(at, 0, n * bytes);
	return at;
}

void *realloc(void *old, size_t bytes)
{
	if (!old)
		return malloc(bytes);
	size_t had = mine(old) ? ((struct head *)old)[-1].bytes : bytes, rounded, same;
	if (mine(old) && class_of(had + 16, &rounded) == class_of(bytes + 16, &same)) {
		((struct head *)old)[-1].bytes = bytes;
		return old;
	}
	void *at = malloc(bytes);
	memcpy(at, old, had < bytes ? had : bytes);
	free(old);
	return at;
}

void *memalign(size_t align, size_t bytes)
{
	return allocate(bytes, align < 16 ? 16 : align);
}

void *aligned_alloc(size_t align, size_t bytes)
{
	return memalign(align, bytes);
}

int posix_memalign(void **at, size_t align, size_t bytes)
{
	*at = memalign(align, bytes);
	return 0;
}

size_t malloc_usable_size(void *at)
{
	return mine(at) ? ((struct head *)at)[-1].bytes : 0;
}

void *mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset)
{
	int plain = (flags & MAP_ANONYMOUS) && (flags & MAP_PRIVATE) && !(flags & MAP_FIXED);
	if (!plain || prot != (PROT_READ | PROT_WRITE))
		return (void *)syscall(SYS_mmap, at, bytes, prot, flags, fd, offset);
	lock();
	if (!arena) {
		unlock();
		free(malloc(1));
		lock();
	}
	size_t align = bytes >= 1 << 18 ? 1 << 18 : PAGE;
	char *got = (char *)(((uintptr_t)top + align - 1) / align * align);
	top = got + (bytes + PAGE - 1) / PAGE * PAGE;
	unlock();
	return got;
}

int munmap(void *at, size_t bytes)
{
	return mine(at) ? 0 : syscall(SYS_munmap, at, bytes);
}

int madvise(void *at, size_t bytes, int advice)
{
	int idle = mine(at) && arena != at;
	return idle ? 0 : syscall(SYS_madvise, at, bytes, advice);
}

/* A library that binds deeply would free what is allocated here with glibc's own free(). */
void *dlopen(const char *name, int flags)
{
	static void *(*real)(const char *, int);
	if (!real)
		real = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
	return real(name, flags & ~RTLD_DEEPBIND);
}

static void put(FILE *out, uint64_t value)
{
	for (; value >= 128; value >>= 7)
		putc(value | 128, out);
	putc(value, out);
}

static void __attribute__((destructor)) finish(void)
{
	if (!out_path[0])
		return;
	static char buffer[1 << 16];
	uint32_t n = count, previous = 0;
	FILE *out = fopen(out_path, "w");
	if (!out)
		return;
	setvbuf(out, buffer, _IOFBF, sizeof buffer);
	for (uint32_t i = 0, run; i < n; i += run) {
		uint32_t first = entries[i];
		for (run = 1; i + run < n && entries[i + run] == first + run; run++)
			;
		int64_t delta = (int64_t)(first & ~WRITTEN) - previous;
		uint64_t folded = delta < 0 ? -2 * delta - 1 : 2 * delta;
		put(out, folded << 2 | (first & WRITTEN ? 2 : 0) | (run > 1));
		if (run > 1)
			put(out, run);
		previous = (first & ~WRITTEN) + run - 1;
	}
	fclose(out);
	dprintf(2, "recorder: %u accesses, %lu pages\n", n, (unsigned long)(top - arena) / PAGE);
}

/* For programs that take long to start: forgets what was recorded so far. */
void recorder_begin(void)
{
	count = 0;
}

/* Some programs end without destructors. */
void _exit(int status)
{
	finish();
	syscall(SYS_exit_group, status);
	__builtin_unreachable();
}
