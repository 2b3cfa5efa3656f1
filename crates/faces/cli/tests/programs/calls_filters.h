/* What programs load into Linux, and its keys. */

static long of_filter(struct call *c)
{
    struct sock_filter filter[40];
    for (int i = 0; i < 40; i++)
        filter[i] = (struct sock_filter){BPF_RET, 0, 0, 0x7fff0000};
    long program[2] = {40, PUT(c, "filter", filter)};
    return PUT(c, "program", program);
}
static void no_new_privileges(struct call *c)
{
    (void)c;
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}
ROW_ALONE(seccomp_filter)
{
    CALL(c, SYS_seccomp, 1, 0, of_filter(c));
    c->before = no_new_privileges;
}
ROW_ALONE(prctl_filter)
{
    CALL(c, SYS_prctl, PR_SET_SECCOMP, 2, of_filter(c));
    c->before = no_new_privileges;
}
ROW(bpf_map_create)
{
    unsigned of[32] = {2, 4, 8, 3};
    c->is_fd = 1;
    CALL(c, SYS_bpf, 0, PUT(c, "attributes", of), 72);
}
static int bpf_map(void)
{
    unsigned of[32] = {2, 4, 64, 3};
    return syscall(SYS_bpf, 0, of, 72);
}
ROW(bpf_map_update)
{
    int key = 1;
    struct {
        long fd, key, value, flags;
    } of = {bpf_map(), PUT(c, "key", key), in(c, "value", content, 64), 0};
    CALL(c, SYS_bpf, 2, hide(c, PUT(c, "attributes", of), 0, 4), sizeof of);
}
ROW(bpf_map_lookup)
{
    int key = 1;
    struct {
        long fd, key, value, flags;
    } of = {bpf_map(), PUT(c, "key", key), out(c, "value", 64), 0};
    CALL(c, SYS_bpf, 1, hide(c, PUT(c, "attributes", of), 0, 4), sizeof of);
}
ROW(bpf_program)
{
    unsigned long code[2] = {0xb7, 0x95};
    struct {
        unsigned kind, count;
        long code, license;
        unsigned level, bytes;
        long log;
        long rest[6];
    } of = {1,  2, PUT(c, "code", code), text(c, "license", "GPL"), 1, 4000, hide(c, out(c, "log", 4000), 0, 4000),
            {0}};
    c->is_fd = 1;
    CALL(c, SYS_bpf, 5, PUT(c, "attributes", of), sizeof of);
}
ROW(bpf_pin)
{
    struct {
        long path;
        int fd, flags;
    } of = {text(c, "path", "no/such/path"), bpf_map(), 0};
    CALL(c, SYS_bpf, 6, hide(c, PUT(c, "attributes", of), 8, 4), sizeof of);
}
ROW(landlock_create_ruleset)
{
    unsigned long of[3] = {1 << 2, 0, 0};
    c->is_fd = 1;
    CALL(c, SYS_landlock_create_ruleset, PUT(c, "attributes", of), 24, 0);
}
ROW(landlock_add_rule)
{
    unsigned long of[3] = {1 << 2, 0, 0};
    struct {
        unsigned long allowed;
        int fd;
    } __attribute__((packed)) rule = {1 << 2, open(".", O_PATH | O_CLOEXEC)};
    CALL(c, SYS_landlock_add_rule, syscall(SYS_landlock_create_ruleset, of, 8, 0), 1,
         hide(c, PUT(c, "rule", rule), 8, 4), 0);
}
ROW(lsm_list_modules)
{
    unsigned bytes = 80;
    long i = out(c, "ids", 80);
    CALL(c, 461, i, PUT(c, "size", bytes), 0);
}
ROW(lsm_get_self_attr)
{
    unsigned bytes = 400;
    long i = out(c, "context", 400);
    CALL(c, 459, 100, i, PUT(c, "size", bytes), 0);
}
ROW(lsm_set_self_attr)
{
    unsigned long of[5] = {0, 0, 40, 8, 0};
    CALL(c, 460, 100, PUT(c, "context", of), 40, 0);
}

/* Keys. */
#define KEYS -2
ROW(add_key)
{
    long t = text(c, "type", "user"), d = text(c, "description", "calls:one");
    c->masks_result = 1;
    CALL(c, SYS_add_key, t, d, in(c, "payload", content, 300), 300, KEYS);
}
ROW(add_key_long)
{
    long t = text(c, "type", "user"), d = text(c, "description", "calls:one");
    c->masks_result = 1;
    CALL(c, SYS_add_key, t, d, in(c, "payload", content, 6000), 6000, KEYS);
}
static long key(size_t bytes) { return syscall(SYS_add_key, "user", "calls:kept", content, bytes, KEYS); }
ROW(request_key)
{
    long t = text(c, "type", "user"), d = text(c, "description", "calls:kept"), i = text(c, "information", "x");
    key(300);
    c->masks_result = 1;
    CALL(c, SYS_request_key, t, d, i, KEYS);
}
ROW(keyctl_read)
{
    long k = key(300);
    CALL(c, SYS_keyctl, 11, k, out(c, "buffer", 400), 400);
}
ROW(keyctl_read_long)
{
    long k = key(6000);
    CALL(c, SYS_keyctl, 11, k, out(c, "buffer", 6000), 6000);
}
ROW(keyctl_describe)
{
    long k = key(300);
    CALL(c, SYS_keyctl, 6, k, out(c, "buffer", 400), 400);
}
ROW(keyctl_update)
{
    long k = key(300);
    CALL(c, SYS_keyctl, 2, k, in(c, "payload", content, 200), 200);
}
ROW(keyctl_search)
{
    long t = text(c, "type", "user"), d = text(c, "description", "calls:kept");
    key(300);
    c->masks_result = 1;
    CALL(c, SYS_keyctl, 10, KEYS, t, d, 0);
}
ROW_ALONE(keyctl_join)
{
    c->masks_result = 1;
    CALL(c, SYS_keyctl, 1, text(c, "name", "calls-ring"));
}
ROW(keyctl_instantiate_iov)
{
    struct iovec of = {(void *)in(c, "payload", content, 200), 200};
    CALL(c, SYS_keyctl, 20, key(300), PUT(c, "vector", of), 1, 0);
}
ROW(keyctl_dh)
{
    int kdf[3] = {(int)key(300), (int)key(300), (int)key(300)};
    CALL(c, SYS_keyctl, 23, PUT(c, "keys", kdf), out(c, "buffer", 400), 400, 0);
    c->areas[0].masks = 1;
    c->areas[0].mask[0].from = 0;
    c->areas[0].mask[0].bytes = 12;
}
ROW(keyctl_capabilities) { CALL(c, SYS_keyctl, 31, out(c, "buffer", 8), 8); }
