/* Calls that name files from a folder on, and those that Linux got later. */
ROW(openat)
{
    c->is_fd = 1;
    CALL(c, SYS_openat, AT_FDCWD, text(c, "path", made_file(c)), O_RDONLY);
}
ROW(mkdirat)
{
    char *n = own(c, "made");
    CALL(c, SYS_mkdirat, AT_FDCWD, text(c, "path", n), 0750);
    named(c, n, 0);
}
ROW(fchownat) { CALL(c, SYS_fchownat, AT_FDCWD, text(c, "path", made_file(c)), -1, getgid(), 0); }
ROW(newfstatat) { CALL(c, SYS_newfstatat, AT_FDCWD, text(c, "path", made_file(c)), status_area(c), 0); }
ROW(newfstatat_empty) { CALL(c, SYS_newfstatat, file(c), text(c, "path", ""), status_area(c), AT_EMPTY_PATH); }
ROW(unlinkat)
{
    char *n = made_file(c);
    CALL(c, SYS_unlinkat, AT_FDCWD, text(c, "path", n), 0);
    named(c, n, 0);
}
ROW(renameat)
{
    char *f = made_file(c), *t = own(c, "to");
    CALL(c, SYS_renameat, AT_FDCWD, text(c, "old", f), AT_FDCWD, text(c, "new", t));
    named(c, f, t);
}
ROW(renameat2)
{
    char *f = made_file(c), *t = own(c, "to");
    CALL(c, SYS_renameat2, AT_FDCWD, text(c, "old", f), AT_FDCWD, text(c, "new", t), 1);
    named(c, f, t);
}
ROW(linkat)
{
    char *f = made_file(c), *t = own(c, "to");
    CALL(c, SYS_linkat, AT_FDCWD, text(c, "old", f), AT_FDCWD, text(c, "new", t), 0);
    named(c, f, t);
}
ROW(symlinkat)
{
    char *t = own(c, "link");
    CALL(c, SYS_symlinkat, text(c, "target", "somewhere/else"), AT_FDCWD, text(c, "path", t));
    named(c, t, 0);
}
ROW(readlinkat) { CALL(c, SYS_readlinkat, AT_FDCWD, text(c, "path", made_link(c)), out(c, "target", 100), 100); }
ROW(fchmodat)
{
    char *n = made_file(c);
    CALL(c, SYS_fchmodat, AT_FDCWD, text(c, "path", n), 0604);
    named(c, n, 0);
}
ROW(fchmodat2)
{
    char *n = made_file(c);
    CALL(c, 452, AT_FDCWD, text(c, "path", n), 0604, 0);
    named(c, n, 0);
}
ROW(faccessat) { CALL(c, SYS_faccessat, AT_FDCWD, text(c, "path", made_file(c)), R_OK); }
ROW(faccessat2) { CALL(c, SYS_faccessat2, AT_FDCWD, text(c, "path", made_file(c)), R_OK, AT_EACCESS); }
ROW(splice)
{
    long from = 500;
    int fd = file(c);
    pipe_with(c, 0);
    CALL(c, SYS_splice, fd, PUT(c, "offset", from), c->kept[1], 0, 2000, 0);
    c->after = tell_pipe;
}
ROW(splice_out)
{
    long to = 500;
    int fd = file(c);
    pipe_with(c, 700);
    int from = c->kept[0];
    c->kept[0] = fd;
    CALL(c, SYS_splice, from, 0, fd, PUT(c, "offset", to), 700, 0);
    c->after = tell_file;
}
ROW(vmsplice)
{
    pipe_with(c, 0);
    CALL(c, SYS_vmsplice, c->kept[1], pieces(c, 1), 3, 0);
    c->after = tell_pipe;
}
ROW(vmsplice_read)
{
    CALL(c, SYS_vmsplice, pipe_with(c, 1500), pieces(c, 0), 3, 0);
    c->after = tell_pipe;
}
ROW(preadv) { CALL(c, SYS_preadv, file(c), pieces(c, 0), 3, 100, 0); }
ROW(pwritev)
{
    CALL(c, SYS_pwritev, file(c), pieces(c, 1), 3, 100, 0);
    c->after = tell_file;
}
ROW(preadv2) { CALL(c, SYS_preadv2, file(c), pieces(c, 0), 3, 100, 0, 0); }
ROW(preadv2_at_once) { CALL(c, SYS_preadv2, file(c), pieces(c, 0), 3, 100, 0, RWF_HIPRI); }
ROW(pwritev2)
{
    CALL(c, SYS_pwritev2, file(c), pieces(c, 1), 3, -1, 0, 0);
    c->after = tell_file;
}
ROW(pwritev2_append)
{
    CALL(c, SYS_pwritev2, file(c), pieces(c, 1), 3, 0, 0, RWF_APPEND);
    c->after = tell_file;
}
static int direct(struct call *c)
{
    char *n = own(c, "direct");
    close(file_of(n, 16384));
    return c->kept[0] = open(n, O_RDWR | O_DIRECT | O_CLOEXEC);
}
/* To and from the device itself. What is not whole pages it refuses, and that has to be the same, too. */
ROW(read_direct)
{
    c->align = 4096;
    CALL(c, SYS_read, direct(c), out(c, "buffer", 8192), 8192);
}
ROW(write_direct)
{
    c->align = 4096;
    CALL(c, SYS_pwrite64, direct(c), in(c, "buffer", content + 5, 8192), 8192, 4096);
    c->after = tell_file;
}
ROW(copy_file_range)
{
    long from = 100, to = 50;
    int fd = file(c);
    c->kept[0] = file_of(own(c, "to"), 0);
    CALL(c, SYS_copy_file_range, fd, PUT(c, "from", from), c->kept[0], PUT(c, "to", to), 1000, 0);
    c->after = tell_file;
}
ROW(name_to_handle_at)
{
    struct {
        unsigned bytes;
        int kind;
        unsigned char handle[128];
    } of = {.bytes = 128};
    char *n = made_file(c);
    long h = PUT(c, "handle", of);
    mask(c, 8, 128);
    CALL(c, SYS_name_to_handle_at, AT_FDCWD, text(c, "path", n), h, hide(c, out(c, "mount", 4), 0, 4), 0);
}
ROW(open_by_handle_at)
{
    struct {
        struct file_handle head;
        unsigned char handle[128];
    } of = {.head = {.handle_bytes = 128}};
    int mount;
    char *n = made_file(c);
    CHECK(!name_to_handle_at(AT_FDCWD, n, &of.head, &mount, 0));
    c->is_fd = 1;
    CALL(c, SYS_open_by_handle_at, open(".", O_RDONLY | O_CLOEXEC), hide(c, PUT(c, "handle", of), 0, sizeof of),
         O_RDONLY);
}
ROW(statx)
{
    char *n = made_file(c);
    CALL(c, SYS_statx, AT_FDCWD, text(c, "path", n), 0, STATX_BASIC_STATS, hide(c, out(c, "status", 256), 32, 224));
}
ROW(statx_empty)
{
    CALL(c, SYS_statx, file(c), text(c, "path", ""), AT_EMPTY_PATH, STATX_SIZE,
         hide(c, out(c, "status", 256), 32, 224));
}
ROW(openat2)
{
    struct open_how how = {O_RDONLY, 0, RESOLVE_BENEATH};
    char *n = made_file(c);
    c->is_fd = 1;
    CALL(c, SYS_openat2, AT_FDCWD, text(c, "path", n), PUT(c, "how", how), sizeof how);
}
ROW(open_tree)
{
    c->is_fd = 1;
    CALL(c, SYS_open_tree, AT_FDCWD, text(c, "path", "."), 0);
}
ROW(open_tree_attr)
{
    uint64_t attr[4] = {0};
    c->is_fd = 1;
    CALL(c, 467, AT_FDCWD, text(c, "path", "."), 0, PUT(c, "attributes", attr), 32);
}
ROW(move_mount)
{
    CALL(c, SYS_move_mount, AT_FDCWD, text(c, "from", "no/such"), AT_FDCWD, text(c, "to", "no/other"), 0);
}
ROW(fsopen)
{
    c->is_fd = 1;
    CALL(c, SYS_fsopen, text(c, "type", "tmpfs"), 1);
}
ROW(fsconfig)
{
    CALL(c, SYS_fsconfig, syscall(SYS_fsopen, "tmpfs", 1), 1, text(c, "key", "size"), text(c, "value", "8192"), 0);
}
ROW(fspick)
{
    c->is_fd = 1;
    CALL(c, SYS_fspick, AT_FDCWD, text(c, "path", "/"), 0);
}
ROW(mount_setattr)
{
    uint64_t attr[4] = {1};
    CALL(c, SYS_mount_setattr, AT_FDCWD, text(c, "path", "no/such"), 0, PUT(c, "attributes", attr), 32);
}
ROW(statmount)
{
    struct {
        uint32_t size, spare;
        uint64_t id, param, more;
    } of = {32, 0, 0, 2 | 1, 0};
    unsigned char status[256];
    CHECK(!syscall(SYS_statx, AT_FDCWD, "/", 0, 0x4000, status));
    memcpy(&of.id, status + 144, 8);
    long r = hide(c, PUT(c, "request", of), 8, 8);
    CALL(c, 457, r, hide(c, out(c, "buffer", 6000), 16, 300), 6000, 0);
}
ROW(listmount)
{
    struct {
        uint32_t size, spare;
        uint64_t id, param, more;
    } of = {32, 0, -1ul, 0, 0};
    long r = PUT(c, "request", of);
    CALL(c, 458, r, hide(c, out(c, "ids", 800), 0, 800), 3, 0);
}
ROW(cachestat)
{
    uint64_t range[2] = {0, 4096};
    int f = file(c);
    long r = PUT(c, "range", range);
    CALL(c, 451, f, r, out(c, "counts", 40), 0);
}
ROW(file_getattr)
{
    char *n = made_file(c);
    CALL(c, 468, AT_FDCWD, text(c, "path", n), out(c, "attributes", 24), 24, 0);
}
ROW(file_setattr)
{
    uint64_t attr[3] = {0};
    char *n = made_file(c);
    CALL(c, 469, AT_FDCWD, text(c, "path", n), PUT(c, "attributes", attr), 24, 0);
}
ROW(memfd_create)
{
    c->is_fd = 1;
    CALL(c, SYS_memfd_create, text(c, "name", "a name"), 1);
}
