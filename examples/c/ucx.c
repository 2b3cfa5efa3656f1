/* Memory registered with UCX, for its puts over whatever network there is, and found again by Farpage's cache: also
 * by two libraries of one program at a time, of which none has to know that the other unmaps it.
 *
 *     cc examples/c/ucx.c $(pkg-config --cflags --libs farpage ucx) -o ucx && ./ucx
 *
 * Puts memory of one worker into memory of another one, some thousand times, and says how often that was registered. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <farpage.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucp/api/ucp.h>

enum { PIECE = 64 << 10, PIECES = 64, TURNS = 4000 };

static void ends(const char *what, const char *why)
{
    fprintf(stderr, "ucx: cannot %s: %s\n", what, why);
    exit(1);
}

static void check(const char *what, ucs_status_t status)
{
    if (status != UCS_OK)
        ends(what, ucs_status_string(status));
}

/* What Farpage's cache registers with. */
struct domain {
    ucp_context_h context;
    long added, removed;
};

static int add(void *context, void *address, size_t bytes, uint64_t *token)
{
    struct domain *domain = (struct domain *)context;
    ucp_mem_map_params_t what;
    ucp_mem_h memory;
    memset(&what, 0, sizeof what);
    what.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
    what.address = address;
    what.length = bytes;
    ucs_status_t status = ucp_mem_map(domain->context, &what, &memory);
    if (status == UCS_ERR_NO_MEMORY)
        return ENOMEM;
    if (status != UCS_OK)
        return EIO;
    domain->added++;
    *token = (uint64_t)(uintptr_t)memory;
    return 0;
}

static void remove_one(void *context, void *address, size_t bytes, uint64_t token)
{
    struct domain *domain = (struct domain *)context;
    (void)address, (void)bytes;
    domain->removed++;
    ucp_mem_unmap(domain->context, (ucp_mem_h)(uintptr_t)token);
}

static char *mapped(void)
{
    void *at = mmap(NULL, (size_t)PIECE * PIECES, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        ends("map memory", strerror(errno));
    return (char *)at;
}

static ucp_worker_h worker_of(ucp_context_h context)
{
    ucp_worker_params_t how;
    ucp_worker_h worker;
    memset(&how, 0, sizeof how);
    check("make a worker", ucp_worker_create(context, &how, &worker));
    return worker;
}

static ucp_ep_h to_worker(ucp_worker_h from, ucp_worker_h to)
{
    ucp_ep_params_t how;
    ucp_address_t *address;
    size_t length;
    ucp_ep_h endpoint;
    check("tell an address", ucp_worker_get_address(to, &address, &length));
    memset(&how, 0, sizeof how);
    how.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    how.address = address;
    check("make an endpoint", ucp_ep_create(from, &how, &endpoint));
    ucp_worker_release_address(to, address);
    return endpoint;
}

/* Until it is over, at both ends. */
static void wait_for(void *request, ucp_worker_h one, ucp_worker_h other)
{
    if (request == NULL)
        return;
    if (UCS_PTR_IS_ERR(request))
        ends("transfer", ucs_status_string(UCS_PTR_STATUS(request)));
    while (ucp_request_check_status(request) == UCS_INPROGRESS) {
        ucp_worker_progress(one);
        ucp_worker_progress(other);
    }
    check("transfer", ucp_request_check_status(request));
    ucp_request_free(request);
}

int main(void)
{
    ucp_params_t wanted;
    struct domain domain = {NULL, 0, 0};
    fp_reg with = {sizeof with, &domain, add, remove_one};
    ucp_request_param_t no, with_memory;
    fp_registered mine, its;
    fp_error error;

    memset(&wanted, 0, sizeof wanted);
    wanted.field_mask = UCP_PARAM_FIELD_FEATURES;
    wanted.features = UCP_FEATURE_RMA;
    check("start", ucp_init(&wanted, NULL, &domain.context));
    ucp_worker_h worker = worker_of(domain.context), peer = worker_of(domain.context);
    ucp_ep_h endpoint = to_worker(worker, peer);

    fp_regs *cache = fp_reg_cache(&with, 0, 0, &error);
    if (cache == NULL)
        ends("have a cache", error.message);
    char *from = mapped(), *to = mapped();
    /* The other side tells a key of all of its memory. */
    if (fp_reg_get(cache, to, (size_t)PIECE * PIECES, &its, &error) != FP_OK)
        ends("register", error.message);
    void *packed;
    size_t length;
    ucp_rkey_h key;
    check("pack a key", ucp_rkey_pack(domain.context, (ucp_mem_h)(uintptr_t)its.token, &packed, &length));
    check("unpack a key", ucp_ep_rkey_unpack(endpoint, packed, &key));
    ucp_rkey_buffer_release(packed);

    memset(&no, 0, sizeof no);
    memset(&with_memory, 0, sizeof with_memory);
    with_memory.op_attr_mask = UCP_OP_ATTR_FIELD_MEMH;
    for (long turn = 0; turn < TURNS; turn++) {
        if (turn == TURNS / 2) {
            /* The memory goes, and other memory comes to where it was: the cache sees it. */
            munmap(from, (size_t)PIECE * PIECES);
            from = (char *)mmap(from, (size_t)PIECE * PIECES, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
            if (from == (char *)MAP_FAILED)
                ends("map memory again", strerror(errno));
        }
        size_t at = (size_t)(turn * 7 % PIECES) * PIECE;
        memset(from + at, (int)(turn % 251), PIECE);
        if (fp_reg_get(cache, from + at, PIECE, &mine, &error) != FP_OK)
            ends("register", error.message);
        with_memory.memh = (ucp_mem_h)(uintptr_t)mine.token;
        void *put = ucp_put_nbx(endpoint, from + at, PIECE, (uint64_t)(uintptr_t)(to + at), key, &with_memory);
        wait_for(put, worker, peer);
        wait_for(ucp_ep_flush_nbx(endpoint, &no), worker, peer);
        fp_reg_put(cache, &mine);
        if (memcmp(from + at, to + at, PIECE) != 0)
            ends("compare", "what arrived is not what was put");
    }
    printf("%d puts of %d KiB, registered %ld times\n", TURNS, PIECE >> 10, domain.added - 1);
    ucp_rkey_destroy(key);
    fp_reg_put(cache, &its);
    wait_for(ucp_ep_close_nbx(endpoint, &no), worker, peer);
    fp_reg_cache_free(cache);
    if (domain.added != domain.removed)
        ends("end", "something is still registered");
    ucp_worker_destroy(worker);
    ucp_worker_destroy(peer);
    ucp_cleanup(domain.context);
    return 0;
}
