/* Farpage: memory whose contents come from anywhere.
 *
 * Written by cbindgen from crates/faces/capi; `cargo xtask install-c --prefix DIR` installs it.
 * Text is UTF-8 and ends with NUL. Handles may be used by any number of threads at a time, but
 * closed once and by one. What takes a handle or text fails with FP_ARGUMENT when it is NULL.
 * A child of fork has the same memory at the same addresses, with what its parent wrote before;
 * there files are for reading only, and a private copy is one of its own. */

#ifndef FARPAGE_H
#define FARPAGE_H

#include <stddef.h>
#include <stdint.h>

// No error.
#define FP_OK 0

// An argument that makes no sense.
#define FP_ARGUMENT 1

// Nothing is there.
#define FP_NOT_FOUND 2

// Access is not allowed.
#define FP_DENIED 3

// It is not the version that was opened.
#define FP_CHANGED 4

// It ends before it should.
#define FP_SHORT 5

// A server answered with other bytes than those asked for.
#define FP_WRONG_RANGE 6

// It could not be reached. From a callback: worth another try.
#define FP_UNREACHABLE 7

// It was tried again until the deadline.
#define FP_TIMED_OUT 8

// Reading or writing failed.
#define FP_IO 9

// The bytes are not what they must be.
#define FP_CORRUPT 10

// It is of a kind that cannot be opened.
#define FP_UNSUPPORTED 11

// It cannot be written to.
#define FP_READ_ONLY 12

// A value has no exact counterpart in the type that the source holds.
#define FP_NOT_EXACT 13

// A callback of the program's failed.
#define FP_CALLBACK 14

// It is of no format of arrays that is known, or breaks its rules.
#define FP_FORMAT 15

// The machine does not allow it: userfaultfd, memory, the budget.
#define FP_KERNEL 16

// Pages could not be written back; they stay in memory.
#define FP_NOT_WRITTEN 17

// A failure inside Farpage: please report it.
#define FP_PANIC 18

// A failure that this version of the library has no code for.
#define FP_OTHER 19

// The caller has the lock, and a process died that had it.
#define FP_HOLDER_DIED 20

// Not all parties of a barrier will come.
#define FP_BROKEN 21

// Shared memory was lost with the host that had it.
#define FP_LOST 22

// Memory is not what was locked any more.
#define FP_STALE 23

// Reading.
#define FP_READ 0

// Reading and writing, of a local file or an object in a store, which fp_flush replaces.
#define FP_WRITE 1

// As FP_WRITE, of something new; what a file of that name held is lost, an object must not exist.
#define FP_CREATE 2

// Reading, and writing to a private copy that vanishes with it.
#define FP_COPY 3

// An access to bytes that cannot be had fails: SIGBUS, or an error of fp_read.
#define FP_FAIL 0

// It waits as long as the failure may pass.
#define FP_WAIT 1

// It reads zeros.
#define FP_ZEROS 2

// Compressed when the name ends in .gz, .zst or .zstd.
#define FP_BY_NAME 0

// It is compressed, whatever its name is.
#define FP_DECOMPRESS 1

// Its bytes as they are.
#define FP_AS_IT_IS 2

// The frames stay, too, and not only the pages in memory: for what reads memory by its physical
// address.
#define FP_PINNED 1

// In this machine: read in the thread that asks.
#define FP_NEAR 0

// Behind a network: several reads at a time, ahead of need, and again after FP_UNREACHABLE.
#define FP_FAR 1

// Bytes that a callback may write to `text`.
#define FP_TEXT_BYTES 512

// The host that wrote to a page last decides of it.
#define FP_DISTRIBUTED 0

// The host on which the memory was made decides of all of it, and takes it with it.
#define FP_SIMPLE 1

// What a host writes others see at once.
#define FP_STRICT 0

// Several hosts may write to different parts of a page, and see what others wrote when those have
// released it and they have acquired it (fp_shared_release, fp_shared_acquire, locks and barriers).
#define FP_RELEASE 1

// The arrays of a file, mapped.
typedef struct fp_arrays fp_arrays;

// So many threads come to it before any of them goes on.
typedef struct fp_barrier fp_barrier;

// A program as a host of a cluster.
typedef struct fp_cluster fp_cluster;

// One process's way to a heap, for all its threads. A forked child opens the heap again.
typedef struct fp_heap fp_heap;

// The bytes of a file, of an address or of a pager, in memory. Any number of threads use one.
typedef struct fp_memory fp_memory;

// A lock that one thread at a time has, of all processes of all hosts, and its condition.
typedef struct fp_mutex fp_mutex;

// A cache of registrations.
typedef struct fp_regs fp_regs;

// So many places; a place is the process's that took it.
typedef struct fp_semaphore fp_semaphore;

// What this process answers for. One thread at a time uses it.
typedef struct fp_served fp_served;

// Memory that hosts have in common.
typedef struct fp_shared fp_shared;

// What a call came to. Every function that takes one fills it in, also with FP_OK; it takes NULL
// as well. What is in it before is not looked at. New codes are added at the end.
typedef struct fp_error {
    // FP_OK, or why not.
    int32_t code;
    // What, why, and what to do about it; NULL with FP_OK. Give it back with fp_error_free.
    char *message;
} fp_error;

// How something is opened. Set all to 0, then `size`; 0 and NULL mean the default everywhere.
typedef struct fp_options {
    // sizeof(fp_options): later versions of the library know more fields, and do not look for
    // them here.
    size_t size;
    // FP_READ, FP_WRITE, FP_CREATE or FP_COPY.
    uint32_t mode;
    // FP_FAIL, FP_WAIT or FP_ZEROS.
    uint32_t on_failure;
    // FP_BY_NAME, FP_DECOMPRESS or FP_AS_IT_IS.
    uint32_t decompress;
    // Not 0: numbers of another byte order are not translated.
    uint32_t as_stored;
    // Not 0: bf16 is presented as f32.
    uint32_t bf16_as_f32;
    // Not 0: f16 is presented as f32.
    uint32_t f16_as_f32;
    // Bytes that are in memory at most, 4 MiB or more; 0: a share of what the machine has.
    uint64_t ram_bytes;
    // Bytes of what is made (FP_CREATE) or of a file that grows (FP_WRITE).
    uint64_t file_bytes;
    // How long a far source is tried again, in milliseconds; 0: a minute, and 20 s to open it.
    uint64_t deadline_ms;
    // Folder in which what comes from far away is kept; NULL: nothing is kept.
    const char *cache;
    // Bytes that the folder takes at most; 0: 16 GiB.
    uint64_t cache_bytes;
    // Headers of requests to HTTP servers, as "Name: value".
    const char *const *headers;
    // Number of them.
    size_t header_count;
} fp_options;

// Bytes at an address: all of them, or some.
typedef struct fp_part {
    // A path or an URL.
    const char *address;
    // The first byte.
    uint64_t offset;
    // Number of bytes; 0: all from there on.
    uint64_t bytes;
} fp_part;

// Told how many bytes have come. It must not end by longjmp or an exception.
typedef void (*fp_progress)(void *context, uint64_t bytes);

// What it takes, and what it has cost so far. Set `size` before the call.
typedef struct fp_stats {
    // sizeof(fp_stats).
    size_t size;
    // Bytes of the source.
    uint64_t bytes;
    // Bytes that are in memory.
    uint64_t resident_bytes;
    // Reads of the source.
    uint64_t reads;
    // Bytes that they brought.
    uint64_t read_bytes;
    // Bytes written back.
    uint64_t written_bytes;
    // Reads and writes that failed for good.
    uint64_t failures;
} fp_stats;

// Bytes from `start` up to `end`, which is not one of them.
typedef struct fp_range {
    // The first.
    uint64_t start;
    // The one after the last.
    uint64_t end;
} fp_range;

// One array. It lives as long as what it was got from. Later versions may have more fields at the
// end.
typedef struct fp_array {
    // Its name; empty where the format has none.
    const char *name;
    // The type of its elements: "f32", "i64", "bf16" and so on; for what is no number the words of
    // the file.
    const char *dtype;
    // 1 when the elements are numbers of a known type, in the order of bytes that `big_endian`
    // says.
    int32_t is_number;
    // 1 when the most significant byte is first: only with fp_options.as_stored.
    int32_t big_endian;
    // Number of dimensions; 0: a single element.
    size_t dimensions;
    // Elements in each dimension.
    const uint64_t *shape;
    // Bytes from one element to the next, in each dimension.
    const int64_t *strides;
    // The first element. Not aligned in every file.
    void *data;
    // Where it is in fp_arrays_memory, in bytes.
    uint64_t offset;
    // Its length in bytes.
    uint64_t bytes;
    // Bytes of one element.
    uint64_t element_bytes;
} fp_array;

// Frames one behind the other, of 4096 bytes each.
typedef struct fp_block {
    // The number of the first: its physical address divided by 4096.
    uint64_t first;
    // So many.
    uint64_t frames;
} fp_block;

// What a program registers memory with: a driver's functions. They are called by one thread at a
// time, perhaps one of the library's, and must not use the cache.
typedef struct fp_reg {
    // sizeof(fp_reg).
    size_t size;
    // Given to the functions.
    void *context;
    // Registers whole pages and writes what they are known by. Returns 0, or an errno: after ENOMEM and
    // ENOSPC it is asked again when others were given up.
    int (*add)(void *context, void *address, size_t bytes, uint64_t *token);
    // Gives them up. The memory may be gone.
    void (*remove)(void *context, void *address, size_t bytes, uint64_t token);
} fp_reg;

// Memory that is registered until it is put back.
typedef struct fp_registered {
    // What it is known by: of fp_reg's function, or the index of a ring's buffer.
    uint64_t token;
    // The first address that is registered.
    void *address;
    // So many bytes, all that was asked for and perhaps more.
    size_t bytes;
    // The cache's number of it.
    uint32_t number;
} fp_registered;

// Some memory; as struct iovec.
typedef struct fp_area {
    // The first address.
    const void *address;
    // So many bytes.
    size_t bytes;
} fp_area;

// Answers for the contents of memory. Set all to 0, then `size`. Several threads of the library
// call it at a time, each with 200 KiB of stack; it must not touch memory that it answers for, nor
// end by longjmp or an exception. A function returns FP_OK, or why not: FP_UNREACHABLE (the
// same may succeed later), FP_CORRUPT or FP_CALLBACK; and may say why in `text`, `text_bytes` bytes
// that the NUL ends. In a child of fork the functions are called as well, in the child.
typedef struct fp_pager {
    // sizeof(fp_pager).
    size_t size;
    // Given to the functions.
    void *context;
    // What messages call it; copied.
    const char *name;
    // What tells this version from others of the same name; copied; NULL: nothing does.
    const char *version;
    // How many bytes there are.
    uint64_t bytes;
    // FP_NEAR or FP_FAR.
    uint32_t reach;
    // Fills `buffer` with `bytes` bytes from `offset` on, all of it. They lie inside.
    int32_t (*read_at)(void *context,
                       uint64_t offset,
                       void *buffer,
                       size_t bytes,
                       char *text,
                       size_t text_bytes);
    // Replaces the bytes from `offset` on; NULL: nobody writes.
    int32_t (*write_at)(void *context,
                        uint64_t offset,
                        const void *buffer,
                        size_t bytes,
                        char *text,
                        size_t text_bytes);
    // Returns when all that was written is durable; NULL: it always is.
    int32_t (*sync)(void *context, char *text, size_t text_bytes);
    // Called once, when nothing will be called any more: after fp_close, a moment later at times
    // and by another thread; or before fp_open_pager returns NULL because it could not be mapped
    // (not when an argument is wrong). What the functions use must stay until then. NULL: nobody
    // wants to know. Not called in a child of fork.
    void (*closed)(void *context);
} fp_pager;

// What a heap holds.
typedef struct fp_heap_usage {
    // All that blocks can have.
    uint64_t bytes;
    // What allocated blocks have.
    uint64_t allocated_bytes;
    // How many they are.
    uint64_t blocks;
    // What is not kept for blocks of one size and kind.
    uint64_t free_bytes;
    // Processes that have the heap open.
    uint32_t processes;
} fp_heap_usage;

// How a program joins a cluster. Set all to 0, then `size`; 0 and NULL mean the default.
typedef struct fp_join {
    // sizeof(fp_join).
    size_t size;
    // Where other hosts reach this one, "10.0.0.7" or "10.0.0.7:7661"; NULL: the address from which
    // the store is reached, at any free port.
    const char *address;
    // What this host is called in lists; NULL: its host name.
    const char *name;
    // Bytes of memory for what this program has of shared memory, 4 MiB or more, half of it for
    // compressed pages; 0: 64 MiB.
    uint64_t ram_bytes;
} fp_join;

// Which shared memory is made. Set all to 0, then `size`; 0 and NULL mean the default.
typedef struct fp_shared_options {
    // sizeof(fp_shared_options).
    size_t size;
    // Type of its elements, as NumPy calls it: "f8", "i4", "u1"; or a whole `descr` of records as
    // JSON: [["id", "<i4"], ["", "|V4"], ["at", "<f8", [3]]]. On each host numbers are in the byte
    // order of that host. NULL: bytes.
    const char *dtype;
    // How many elements it has in each dimension.
    const uint64_t *shape;
    // How many dimensions.
    size_t dimensions;
    // Bytes that go from host to host together: a power of two, 4096 to 2 MiB; 0: 4096.
    uint64_t page_bytes;
    // FP_DISTRIBUTED or FP_SIMPLE.
    uint32_t scheduler;
    // On how many hosts is what others have seen: 1 or 2; 0: 1.
    uint32_t replicas;
    // Not 0: it stays until its name is taken away.
    uint32_t stays;
    // Not 0: it is for a heap (fp_heap_open_shared) whose blocks are elements of this type, so that
    // hosts of the other byte order read and write them as theirs. A dtype of 1, 2, 4, 8 or 16 bytes.
    uint32_t heap;
    // Where what fp_shared_flush flushes is kept, beside a journal: a file of this host, from which it
    // has its contents, and which is made when there is none. NULL: nowhere. Only without a cluster that
    // this program has joined.
    const char *file;
    // FP_STRICT or FP_RELEASE.
    uint32_t consistency;
} fp_shared_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Gives the message of an error back.
void fp_error_free(struct fp_error *error);

// The version of the library, as "0.1.0".
const char *fp_version(void);

// Maps what is at `address`, a path or an URL. Nothing is read but what it takes to open it.
// `options` may be NULL. Returns NULL when it fails.
struct fp_memory *fp_open(const char *address,
                          const struct fp_options *options,
                          struct fp_error *error);

// Maps `count` parts, one after another, as one memory. `options` may be NULL; with FP_WRITE,
// which takes parts of local files, none of them grows. Returns NULL when it fails.
struct fp_memory *fp_open_parts(const struct fp_part *parts,
                                size_t count,
                                const struct fp_options *options,
                                struct fp_error *error);

// Unmaps it, after writing back what was written; what cannot be written then is lost with a
// message on standard error: call fp_flush before. Pointers into it are not valid any more. Takes
// NULL.
void fp_close(struct fp_memory *memory);

// The first byte; NULL of NULL. A page that cannot be had raises SIGBUS where it is touched, after a
// message on standard error; fp_read returns an error instead. Writing to what was opened for
// reading raises SIGSEGV.
void *fp_data(const struct fp_memory *memory);

// Its size in bytes; 0 of NULL.
uint64_t fp_size(const struct fp_memory *memory);

// 1 when it can be written to, 0 otherwise. In a child of fork only private copies can.
int32_t fp_is_writable(const struct fp_memory *memory);

// Copies bytes to `buffer`. Bytes that cannot be had are an error and no signal; what `buffer`
// holds then is unspecified. Returns the error's code.
int32_t fp_read(const struct fp_memory *memory,
                uint64_t offset,
                void *buffer,
                size_t bytes,
                struct fp_error *error);

// Copies bytes from `buffer`. What cannot be had or written to is an error and no signal. It is
// durable after fp_flush. Returns the error's code.
int32_t fp_write(const struct fp_memory *memory,
                 uint64_t offset,
                 const void *buffer,
                 size_t bytes,
                 struct fp_error *error);

// Brings bytes in before they are touched, and waits until they are there. At most half of the
// budget is filled. `progress` may be NULL; `context` is given to it. Returns how many bytes of
// the range are in memory afterwards.
uint64_t fp_prefetch(const struct fp_memory *memory,
                     uint64_t offset,
                     uint64_t bytes,
                     fp_progress progress,
                     void *context,
                     struct fp_error *error);

// Lets bytes go from memory; what was written is written back before. Returns the error's code.
int32_t fp_discard(const struct fp_memory *memory,
                   uint64_t offset,
                   uint64_t bytes,
                   struct fp_error *error);

// Brings bytes in and keeps them there until fp_unpin: half of the budget at most. Returns the
// error's code.
int32_t fp_pin(const struct fp_memory *memory,
               uint64_t offset,
               uint64_t bytes,
               struct fp_error *error);

// Lets what is pinned of the range leave again. Returns the error's code.
int32_t fp_unpin(const struct fp_memory *memory,
                 uint64_t offset,
                 uint64_t bytes,
                 struct fp_error *error);

// Writes back what was written, and returns when it is durable. Returns the error's code.
int32_t fp_flush(const struct fp_memory *memory, struct fp_error *error);

// What it takes, and has cost. Returns the error's code.
int32_t fp_stat(const struct fp_memory *memory, struct fp_stats *stats, struct fp_error *error);

// Writes the ranges of bytes that are in memory to `ranges`, in order, `count` of them at most.
// Returns how many there are, which may be more.
size_t fp_residency(const struct fp_memory *memory,
                    struct fp_range *ranges,
                    size_t count,
                    struct fp_error *error);

// Maps the arrays of the file at `address`, a path or an URL: npy, npz, safetensors, Arrow.
// `options` may be NULL. Returns NULL when it fails.
struct fp_arrays *fp_load(const char *address,
                          const struct fp_options *options,
                          struct fp_error *error);

// Maps a file of nothing but numbers as one array: `dtype` as fp_array has it, or as NumPy's descr
// (">f4"), and `shape`, where one dimension may be -1: as many as there are. With FP_CREATE the
// file is made, with FP_WRITE it grows if it must. Returns NULL when it fails.
struct fp_arrays *fp_load_raw(const char *address,
                              const char *dtype,
                              const int64_t *shape,
                              size_t dimensions,
                              const struct fp_options *options,
                              struct fp_error *error);

// The memory that all the arrays lie in, for the functions of memory; NULL of NULL. It is not
// closed: fp_arrays_close does that.
const struct fp_memory *fp_arrays_memory(const struct fp_arrays *arrays);

// The format: "npy", "npz", "safetensors", "Arrow" or "raw"; NULL of NULL.
const char *fp_arrays_kind(const struct fp_arrays *arrays);

// Number of arrays; 0 of NULL.
size_t fp_array_count(const struct fp_arrays *arrays);

// The array number `index`, in the file's order; NULL when there are not so many.
const struct fp_array *fp_array_at(const struct fp_arrays *arrays, size_t index);

// The array called `name`; NULL when there is none.
const struct fp_array *fp_array_named(const struct fp_arrays *arrays, const char *name);

// Unmaps all of it, as fp_close. Takes NULL.
void fp_arrays_close(struct fp_arrays *arrays);

// Maps a private copy of `bytes` bytes of the file of `fd` from byte `offset` on, as they are now:
// what others write to the file later is not seen, and what is written to the copy stays in this
// process. Neither number has to be a multiple of anything. `fd` may be closed afterwards.
//
// With `find_space` the address of the first byte is written to `*address`; it may lie inside a
// page. Without, the first byte comes to lie at `*address`, which must begin a page where nothing
// lies; then all is copied at once. With it more than a MiB of a file that nobody has open for
// writing comes when it is touched, and whoever opens it for writing waits until the rest is
// copied. A page that cannot be had raises SIGBUS where it is touched, after a message on standard
// error. Returns the error's code.
int32_t fp_map_fd(int32_t fd,
                  uint64_t offset,
                  void **address,
                  int32_t find_space,
                  size_t bytes,
                  struct fp_error *error);

// As fp_map_fd, of the bytes themselves: what is written is in the file, and what others write is
// seen. They can be written to when `fd` can. Without `find_space` `offset` must be a multiple of
// 4096. Returns the error's code.
int32_t fp_map_fd_shared(int32_t fd,
                         uint64_t offset,
                         void **address,
                         int32_t find_space,
                         size_t bytes,
                         struct fp_error *error);

// As fp_map_fd, of what is at `url`, a path or an URL: `*bytes` of it, or, when that is 0, all
// from `offset` on, and `*bytes` says how many then. `options` may be NULL. Returns the error's
// code.
int32_t fp_map_url(const char *url,
                   uint64_t offset,
                   void **address,
                   int32_t find_space,
                   size_t *bytes,
                   const struct fp_options *options,
                   struct fp_error *error);

// Unmaps what fp_map_fd, fp_map_fd_shared or fp_map_url mapped: `address` is the one that it gave.
// Pointers into it are not valid any more. Takes NULL. Returns the error's code.
int32_t fp_unmap(void *address, struct fp_error *error);

// Locks the pages that have some of the `bytes` bytes at `address`: they are in memory when this
// returns, and stay there. `flags` is 0 or FP_PINNED. Areas may overlap and nest; each page stays
// locked until the last of them is given back, in any order. The memory has to stay mapped
// meanwhile. A child of fork has nothing locked.
//
// Writes a handle to `*handle`, never 0. When it fails nothing is locked: FP_ARGUMENT says which
// address cannot be locked and why, FP_KERNEL which limit, its value and how to raise it,
// FP_UNSUPPORTED that there is no io_uring to pin with. Returns the error's code.
int32_t fp_lock_area(const void *address,
                     size_t bytes,
                     uint32_t flags,
                     uint64_t *handle,
                     struct fp_error *error);

// Gives a lock back. Returns the error's code.
int32_t fp_unlock_area(uint64_t handle, struct fp_error *error);

// Looks whether what was locked still is: mapped, locked, in memory, and, if it is pinned, in the frames that
// were pinned. Linux tells nobody when memory is unmapped, discarded or cut off by who shares it. It is
// FP_STALE when something is not, and says where and what; FP_DENIED when all is well of pinned memory but
// for the frames, which this process could not read when it was locked (CAP_SYS_ADMIN). Nothing is given
// back. Returns the error's code.
int32_t fp_lock_check(uint64_t handle,
                      struct fp_error *error);

// Writes the frames of the locked pages to `frames`, in order: physical addresses divided by 4096.
// `*count` is how many there is room for, and says how many there are; with too little room nothing
// is written, and it is FP_ARGUMENT. Needs CAP_SYS_ADMIN, without which it is FP_DENIED. Unless the
// area is pinned they may be others the next moment. Returns the error's code.
int32_t fp_get_pages(uint64_t handle, uint64_t *frames, size_t *count, struct fp_error *error);

// As fp_get_pages, with consecutive frames merged to blocks of `most` frames at most: for lists of
// scatter and gather. Returns the error's code.
int32_t fp_get_blocks(uint64_t handle,
                      uint64_t most,
                      struct fp_block *blocks,
                      size_t *count,
                      struct fp_error *error);

// Gives all locks back.
void fp_lock_cleanup(void);

// A cache of registrations with a device of the program's, or, when `with` is NULL, of memory whose
// frames stay (with an io_uring of the library's, on which nothing is sent). `most_bytes` are
// registered at most, 0: as many as can be, and `most_regions` regions, 0: 16384; what was not used
// for longest goes first. Returns NULL when it fails.
struct fp_regs *fp_reg_cache(const struct fp_reg *with,
                             uint64_t most_bytes,
                             uint32_t most_regions,
                             struct fp_error *error);

// A cache of registered buffers of an io_uring of the program's: tokens are the indexes of its buffers,
// for reads and writes of fixed buffers. `ring` is its descriptor; its table of buffers was registered
// sparse, and the first `buffers` places of it are the cache's: what is there is replaced. A ring has one
// cache at a time. Returns NULL when it fails.
struct fp_regs *fp_reg_cache_of_ring(int ring,
                                     uint32_t buffers,
                                     uint64_t most_bytes,
                                     struct fp_error *error);

// The pages that have some of the `bytes` bytes at `address`, registered: as before, without a lock or
// a call of the system, or from now on. Put it back with fp_reg_put, in any thread. Memory that is
// unmapped, mapped over, moved or discarded by this process is not found again; a shared memory file
// that is cut off or punched is: call fp_reg_forget then. Returns the error's code.
int32_t fp_reg_get(const struct fp_regs *cache,
                   const void *address,
                   size_t bytes,
                   struct fp_registered *registered,
                   struct fp_error *error);

// As fp_reg_get for `count` areas at once, a list of scatter or gather: all of them, or none. What
// overlaps, or follows each other, is registered as one. `registered` has `count` places, in the order
// of the areas; each is put back by itself. Returns the error's code.
int32_t fp_reg_get_all(const struct fp_regs *cache,
                       const struct fp_area *areas,
                       size_t count,
                       struct fp_registered *registered,
                       struct fp_error *error);

// Gives back what was got, once.
void fp_reg_put(const struct fp_regs *cache, const struct fp_registered *registered);

// 1 when memory of it went away since it was got, or more was registered together with it: what it was
// registered with has what was there, and it is to be got again; and in a child of fork. Else 0.
int32_t fp_reg_is_gone(const struct fp_regs *cache,
                       const struct fp_registered *registered);

// Nothing of the `bytes` bytes at `address` is found again. What is held stays registered until it is put
// back.
void fp_reg_forget(const struct fp_regs *cache,
                   const void *address,
                   size_t bytes);

// Gives up all that is registered, and the cache. Nothing of it may be held.
void fp_reg_cache_free(struct fp_regs *cache);

// Has bytes of shared memory stay in memory, or, with FP_PINNED in `flags`, in their frames, too, for all
// processes that have it, through the host kernel (`farpage up`): of the file `fd`, which is of
// memfd_create, shm_open or in a tmpfs, and to be pinned is open for writing. What several processes lock is
// locked and charged once, page by page, until the last of them has given it back or has ended.
//
// Writes a handle to `*handle`, for fp_unlock_area, fp_lock_check, fp_get_pages, fp_get_blocks and
// fp_lend_lock. The host
// kernel tells frames, to whom it may. When it fails nothing is locked: FP_NOT_FOUND without a host kernel,
// FP_ARGUMENT for what is no shared memory or not so large, FP_KERNEL says which limit, its value and how to
// raise it. Returns the error's code.
int32_t fp_lock_shared(int32_t fd,
                       uint64_t offset,
                       uint64_t bytes,
                       uint32_t flags,
                       uint64_t *handle,
                       struct fp_error *error);

// As fp_lock_shared, of the System V segment with the number `segment` (shmget). Its mode has to allow this
// user to read it, and to write to it when it is to be pinned; else it is FP_DENIED.
int32_t fp_lock_segment(int32_t segment,
                        uint64_t offset,
                        uint64_t bytes,
                        uint32_t flags,
                        uint64_t *handle,
                        struct fp_error *error);

// Lets other processes of this user borrow a lock of shared memory by a name, also when this one has given it
// back, as long as another has it. FP_DENIED when the name is in use. Returns the error's code.
int32_t fp_lend_lock(uint64_t handle,
                     const char *name,
                     struct fp_error *error);

// Has a share of the lock that is lent by a name, and writes a handle to `*handle`: locked and charged once,
// until the last process that has a share has given it back or has ended. FP_NOT_FOUND when there is none.
// Returns the error's code.
int32_t fp_borrow_lock(const char *name,
                       uint64_t *handle,
                       struct fp_error *error);

// Maps `pager->bytes` bytes that the functions of `pager` answer for. The table is copied. Of
// `options`, which may be NULL, those count that say how it is mapped and read; it can be written
// to with FP_WRITE and a function `write_at`, or with FP_COPY. Returns NULL when it fails.
struct fp_memory *fp_open_pager(const struct fp_pager *pager,
                                const struct fp_options *options,
                                struct fp_error *error);

// Offers `pager->bytes` bytes, which the functions of `pager` answer for, to the host kernel
// (`farpage up`): other processes of this user find them by `pager->name`. The table is copied.
// They are read and written in pages, and with `write_at` modified pages come back; `sync` is
// called when the host kernel lets go of them. This process must not map them itself. Who waits
// for a page waits `patience_ms`, also for a program that died to be started again, then gets
// SIGBUS; 0: until it comes. Run the program by `farpage pager serve`, which starts it again when
// it dies. Returns NULL when it fails: FP_NOT_FOUND without a host kernel, FP_DENIED when another
// program has the name.
struct fp_served *fp_serve_pager(const struct fp_pager *pager,
                                 uint64_t patience_ms,
                                 struct fp_error *error);

// Waits for the end of the host kernel, for `timeout_ms` at most; UINT64_MAX: as long as it takes.
// Returns 1 when it has ended, 0 when it lives, -1 when it fails.
int32_t fp_served_wait(const struct fp_served *served, uint64_t timeout_ms, struct fp_error *error);

// Answers no more. What the host kernel has not handed over it keeps for a program that offers the
// same again. NULL does nothing.
void fp_served_free(struct fp_served *served);

// Opens the heap in `bytes` bytes at `memory`, and makes one there if all of it is zero. The memory
// is a shared mapping, at a multiple of 4096, that stays until fp_heap_close. Processes may have it
// at different addresses. What processes that were killed had in hand is found again. NULL with
// FP_UNSUPPORTED when something else lies there.
struct fp_heap *fp_heap_open(void *memory, size_t bytes, struct fp_error *error);

// Opens the heap in shared memory (fp_shared_open) as fp_heap_open does: its blocks are allocated and
// freed by processes of all hosts that map the memory, which lies at fp_shared_data. It stays mapped
// until fp_heap_close, also when it is closed before. What processes had in hand when they, or their
// hosts, died is found again; replicas = 2 keeps a heap whole when a host dies.
struct fp_heap *fp_heap_open_shared(const struct fp_shared *shared,
                                    struct fp_error *error);

// Closes it; blocks stay allocated. NULL is allowed.
void fp_heap_close(struct fp_heap *heap);

// Allocates `bytes` bytes, with any contents, at a multiple of 16. `kind` says what they are, in
// numbers of the program's: blocks of different kinds never share 64 KiB. 0: nothing in particular.
// NULL with FP_KERNEL when the heap is full.
void *fp_heap_alloc(struct fp_heap *heap, uint16_t kind, size_t bytes, struct fp_error *error);

// Frees a block, whichever process has allocated it. NULL is allowed. FP_ARGUMENT when it is none.
int32_t fp_heap_free(struct fp_heap *heap, void *block, struct fp_error *error);

// The bytes that a block has: as many as were asked for, or some more. 0 when it is none.
size_t fp_heap_size(const struct fp_heap *heap, const void *block, struct fp_error *error);

// One of 16 words, 0 at first, by which processes find what is allocated: they keep offsets from
// the beginning of the memory there. Read and write it by atomic operations.
uint64_t *fp_heap_root(const struct fp_heap *heap, uint32_t number, struct fp_error *error);

// Fills in what the heap holds; while others allocate, about.
int32_t fp_heap_usage_of(const struct fp_heap *heap,
                         struct fp_heap_usage *usage,
                         struct fp_error *error);

// The lock of a name: of the cluster that the host kernel (`farpage up`) belongs to, else of the host.
// It is there as long as some process has it open. `replicas`: 1, or 2 so that it outlives any host
// that dies. Returns NULL when it fails.
struct fp_mutex *fp_mutex_open(const char *name,
                               uint32_t replicas,
                               struct fp_error *error);

// The lock that lies at byte `offset` of shared memory that is mapped (fp_shared_open), or is to lie there,
// where 64 bytes are 0: a multiple of 64. Who takes it has what lies beside it in its page with it. The memory stays
// mapped until fp_mutex_close. Returns NULL when it fails: FP_ARGUMENT when it cannot lie there,
// FP_CHANGED when something else does.
struct fp_mutex *fp_mutex_at(const struct fp_shared *shared,
                             uint64_t offset,
                             struct fp_error *error);

// Closes it; it is not given back by that. Takes NULL.
void fp_mutex_close(struct fp_mutex *mutex);

// Takes it for the calling thread, and waits for it, `timeout_ms` at most: 0 not at all, UINT64_MAX as
// long as it takes. Returns FP_OK; FP_HOLDER_DIED when the caller has it and a process died that had it,
// so that what it guards may be half changed; FP_TIMED_OUT; FP_DENIED when the thread has it already;
// FP_LOST when its memory was lost with a host.
int32_t fp_mutex_lock(const struct fp_mutex *mutex,
                      uint64_t timeout_ms,
                      struct fp_error *error);

// Gives it back. FP_DENIED when the calling thread does not have it.
int32_t fp_mutex_unlock(const struct fp_mutex *mutex, struct fp_error *error);

// What a process that died left half done is put right: nobody is told FP_HOLDER_DIED of it any more.
// FP_DENIED when the calling thread does not have the lock.
int32_t fp_mutex_consistent(const struct fp_mutex *mutex,
                            struct fp_error *error);

// Gives the lock back, waits until somebody says that something has changed, `timeout_ms` at most, and
// takes the lock again. Returns as fp_mutex_lock; with FP_OK, FP_TIMED_OUT and FP_HOLDER_DIED the caller
// has the lock. Look whether it is what was waited for: others are woken, too.
int32_t fp_condition_wait(const struct fp_mutex *mutex,
                          uint64_t timeout_ms,
                          struct fp_error *error);

// Lets all go on that wait by fp_condition_wait. FP_DENIED when the calling thread does not have the
// lock.
int32_t fp_condition_notify(const struct fp_mutex *mutex,
                            struct fp_error *error);

// The semaphore of a name with 1 to 4096 places; else as fp_mutex_open. FP_CHANGED when it is there with
// another number of them.
struct fp_semaphore *fp_semaphore_open(const char *name,
                                       uint32_t places,
                                       uint32_t replicas,
                                       struct fp_error *error);

// The semaphore that lies at byte `offset`, as fp_mutex_at has it, in 64 bytes and 64 for every
// eight places.
struct fp_semaphore *fp_semaphore_at(const struct fp_shared *shared,
                                     uint64_t offset,
                                     uint32_t places,
                                     struct fp_error *error);

// Closes it. Takes NULL.
void fp_semaphore_close(struct fp_semaphore *semaphore);

// Takes a place, and waits for one as fp_mutex_lock does. What a process had that died is free again.
int32_t fp_semaphore_take(const struct fp_semaphore *semaphore,
                          uint64_t timeout_ms,
                          struct fp_error *error);

// Gives a place back. FP_DENIED when the calling process has none.
int32_t fp_semaphore_give(const struct fp_semaphore *semaphore, struct fp_error *error);

// The barrier of a name for 1 to 4096 parties; else as fp_semaphore_open.
struct fp_barrier *fp_barrier_open(const char *name,
                                   uint32_t parties,
                                   uint32_t replicas,
                                   struct fp_error *error);

// The barrier that lies at byte `offset`, as fp_semaphore_at has it.
struct fp_barrier *fp_barrier_at(const struct fp_shared *shared,
                                 uint64_t offset,
                                 uint32_t parties,
                                 struct fp_error *error);

// Closes it. Takes NULL.
void fp_barrier_close(struct fp_barrier *barrier);

// Waits until all are there. FP_BROKEN when they will not be: a party that was there before has died,
// somebody did not wait any longer (`timeout_ms`; UINT64_MAX waits as long as it takes), or broke it.
int32_t fp_barrier_wait(const struct fp_barrier *barrier,
                        uint64_t timeout_ms,
                        struct fp_error *error);

// Breaks it for who waits, and makes it as new.
int32_t fp_barrier_reset(const struct fp_barrier *barrier, struct fp_error *error);

// Makes this program a host of a cluster by itself, which needs neither `farpage up` nor userfaultfd:
// for machines that have none, and processors that `farpage` does not run on. `store` is
// etcd://HOST:PORT/NAME, `key` the cluster's key or the folder that it is in. What this program has
// of shared memory is in `ram_bytes`, and what does not fit is refused. `options` may be NULL. NULL
// when it fails. A child of fork is no host.
struct fp_cluster *fp_cluster_join(const char *store,
                                   const char *key,
                                   const struct fp_join *options,
                                   struct fp_error *error);

// Hands over to the other hosts what only this one has, for `seconds` at most, and leaves. Memory
// that was opened must be closed before. What could not be handed over is said on standard error, and
// is the error FP_KERNEL; the program has left all the same. Takes NULL.
int32_t fp_cluster_leave(struct fp_cluster *cluster,
                         uint32_t seconds,
                         struct fp_error *error);

// Opens the memory of that name, which all hosts of the cluster have in common: of the cluster that
// this program has joined, or with NULL that of the host kernel (`farpage up --cluster`). Where there
// is none it is made as `wanted` says; with NULL that is FP_NOT_FOUND, and one that differs is
// FP_ARGUMENT. It is the array of farpage.shared in Python. A child of fork opens it anew, and does not use what its
// parent has open. NULL when it fails.
struct fp_shared *fp_shared_open(const struct fp_cluster *cluster,
                                 const char *name,
                                 const struct fp_shared_options *wanted,
                                 struct fp_error *error);

// Where it is mapped. NULL of NULL, and of memory of a cluster that this program has joined, which is
// used by fp_shared_read and fp_shared_write. A page that cannot be had raises SIGBUS, after a message
// on standard error.
void *fp_shared_data(const struct fp_shared *shared);

// Its size in bytes; 0 of NULL.
uint64_t fp_shared_size(const struct fp_shared *shared);

// All that any host wrote to memory with a file before this is there when it returns, and stays when
// the machine stops. Returns the error's code: FP_KERNEL for memory without a file, or of which a page
// cannot be had, and nothing was flushed then.
int32_t fp_shared_flush(const struct fp_shared *shared,
                        struct fp_error *error);

// Copies bytes to `buffer`, and waits for those that other hosts have. Each page is as it was at one
// moment. What cannot be had is the error FP_KERNEL and no signal; what `buffer` holds then is
// unspecified. Returns the error's code.
int32_t fp_shared_read(const struct fp_shared *shared,
                       uint64_t offset,
                       void *buffer,
                       size_t bytes,
                       struct fp_error *error);

// Copies bytes from `buffer`, as one who has the memory mapped would write them. What cannot be
// written to is the error FP_KERNEL and no signal; what was written before that stays. Returns the
// error's code.
int32_t fp_shared_write(const struct fp_shared *shared,
                        uint64_t offset,
                        const void *buffer,
                        size_t bytes,
                        struct fp_error *error);

// What was written to memory with FP_RELEASE at this host until now is seen by whoever acquires it from
// now on, at any host. Giving back a lock and coming to a barrier do it by themselves, for all such memory
// that this program has mapped; for other memory nothing is done. Returns the error's code: FP_KERNEL when
// some of it is lost with a host that died, or this host is out of the cluster.
int32_t fp_shared_release(const struct fp_shared *shared,
                          struct fp_error *error);

// What is read of memory with FP_RELEASE at this host from now on has all that was released before, by any
// host. Taking a lock and passing a barrier do it by themselves, as for fp_shared_release. Returns the
// error's code.
int32_t fp_shared_acquire(const struct fp_shared *shared,
                          struct fp_error *error);

// Keeps the pages that have some of the `bytes` bytes at `offset` of mapped shared memory at this host and in its
// memory. Other hosts read them on and do not write to them, or with `to_write` not 0 do neither: they wait. When
// this returns the pages are here; it waits as long as another host has some of them locked in a way that does
// not allow it, `timeout_ms` at most: 0 for pages that are here already, UINT64_MAX as long as it takes.
//
// What is to be written meanwhile, or locked for a device (fp_lock_area with FP_PINNED), is locked with `to_write`.
// Several parts are one call, or locked in the order of their bytes on all hosts: hosts wait in a circle
// otherwise. Writes a handle to `*handle`, for fp_unlock_area and fp_lock_check (FP_STALE when this host was cut off).
// When it fails nothing is locked: FP_TIMED_OUT; FP_ARGUMENT for FP_RELEASE, FP_SIMPLE, what is sealed and is to be
// written, and what any program of this host has locked to read and is to be written; FP_KERNEL for more than may be
// kept in memory. Returns the error's code.
int32_t fp_shared_lock(const struct fp_shared *shared,
                       uint64_t offset,
                       uint64_t bytes,
                       uint32_t to_write,
                       uint64_t timeout_ms,
                       uint64_t *handle,
                       struct fp_error *error);

// Unmaps it; pointers into it are not valid any more. It is gone when no program of any host has it,
// unless it stays. Takes NULL.
void fp_shared_close(struct fp_shared *shared);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FARPAGE_H */
