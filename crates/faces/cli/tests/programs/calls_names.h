/* Calls that name files. */
#include <sys/mount.h>
#include <sys/quota.h>
ROW(sendfile)
{
    long place = 1000;
    int from = file(c);
    c->kept[0] = file_of(own(c, "to"), 0);
    CALL(c, SYS_sendfile, c->kept[0], from, PUT(c, "offset", place), 2000);
    c->after = tell_file;
}
static struct flock lock_of(short kind, short whence, long start, long bytes, int owner)
{
    static struct flock of;
    of.l_type = kind;
    of.l_whence = whence;
    of.l_start = start;
    of.l_len = bytes;
    of.l_pid = owner;
    return of;
}
ROW(fcntl_lock)
{
    struct flock lock = lock_of(F_WRLCK, SEEK_SET, 10, 20, 0);
    CALL(c, SYS_fcntl, file(c), F_SETLK, hide(c, PUT(c, "lock", lock), 4, 4));
}
ROW(fcntl_get_lock)
{
    struct flock lock = lock_of(F_WRLCK, SEEK_SET, 10, 20, 9);
    CALL(c, SYS_fcntl, file(c), F_GETLK, hide(c, PUT(c, "lock", lock), 4, 4));
}
ROW(fcntl_own_lock)
{
    struct flock lock = lock_of(F_WRLCK, SEEK_SET, 10, 20, 0);
    CALL(c, SYS_fcntl, file(c), F_OFD_SETLK, hide(c, PUT(c, "lock", lock), 4, 4));
}
ROW(fcntl_owner)
{
    struct f_owner_ex owner = {F_OWNER_PID, getpid()};
    CALL(c, SYS_fcntl, pipe_with(c, 0), F_SETOWN_EX, PUT(c, "owner", owner));
    mask(c, 4, 4);
}
ROW(fcntl_get_owner) { CALL(c, SYS_fcntl, pipe_with(c, 0), F_GETOWN_EX, out(c, "owner", 8)); }
ROW(fcntl_hint)
{
    long hint = 3;
    CALL(c, SYS_fcntl, file(c), 1036, PUT(c, "hint", hint));
}
ROW(truncate)
{
    char *n = made_file(c);
    CALL(c, SYS_truncate, text(c, "path", n), 33);
    named(c, n, 0);
}
static int full_folder(struct call *c)
{
    char *folder = own(c, "full"), name[64];
    mkdir(folder, 0777);
    for (int i = 0; i < 40; i++) {
        snprintf(name, sizeof name, "%s/a-name-that-is-not-so-short-%d", folder, i);
        close(open(name, O_CREAT | O_WRONLY, 0666));
    }
    return open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}
/* Inodes differ, and the order of names on some file systems. */
ROW(getdents) { CALL(c, SYS_getdents, full_folder(c), hide(c, out(c, "entries", 8000), 0, 8000), 8000); }
ROW(getdents64) { CALL(c, SYS_getdents64, full_folder(c), hide(c, out(c, "entries", 8000), 0, 8000), 8000); }
ROW(getcwd) { CALL(c, SYS_getcwd, hide(c, out(c, "path", 4096), 11, 6), 4096); }
ROW(chdir) { CALL(c, SYS_chdir, text(c, "path", ".")); }
ROW_ALONE(chdir_down)
{
    char *n = own(c, "down");
    mkdir(n, 0777);
    CALL(c, SYS_chdir, text(c, "path", n));
}
ROW(rename)
{
    char *f = made_file(c), *t = own(c, "to");
    CALL(c, SYS_rename, text(c, "old", f), text(c, "new", t));
    named(c, f, t);
}
ROW(mkdir)
{
    char *n = own(c, "made");
    CALL(c, SYS_mkdir, text(c, "path", n), 0750);
    named(c, n, 0);
}
ROW(rmdir)
{
    char *n = own(c, "made");
    mkdir(n, 0777);
    CALL(c, SYS_rmdir, text(c, "path", n));
    named(c, n, 0);
}
ROW(creat)
{
    char *n = own(c, "made");
    c->is_fd = 1;
    CALL(c, SYS_creat, text(c, "path", n), 0640);
    named(c, n, 0);
}
ROW(link)
{
    char *f = made_file(c), *t = own(c, "to");
    CALL(c, SYS_link, text(c, "old", f), text(c, "new", t));
    named(c, f, t);
}
ROW(unlink)
{
    char *n = made_file(c);
    CALL(c, SYS_unlink, text(c, "path", n));
    named(c, n, 0);
}
ROW(symlink)
{
    char *t = own(c, "link");
    CALL(c, SYS_symlink, text(c, "target", "somewhere/else"), text(c, "path", t));
    named(c, t, 0);
}
static char *made_link(struct call *c)
{
    char *name = own(c, "link");
    CHECK(!symlink("somewhere/else/far/away", name) || errno == EEXIST);
    return name;
}
ROW(readlink) { CALL(c, SYS_readlink, text(c, "path", made_link(c)), out(c, "target", 100), 100); }
ROW(chmod)
{
    char *n = made_file(c);
    CALL(c, SYS_chmod, text(c, "path", n), 0604);
    named(c, n, 0);
}
ROW(chown) { CALL(c, SYS_chown, text(c, "path", made_file(c)), -1, getgid()); }
ROW(lchown) { CALL(c, SYS_lchown, text(c, "path", made_link(c)), -1, getgid()); }
static void tell_times(struct call *c)
{
    struct stat status;
    CHECK(!lstat((char *)c->kept[0], &status));
    if (c->kept[7] == 0)
        say(c, " times %ld.%ld %ld.%ld", status.st_atim.tv_sec, status.st_atim.tv_nsec, status.st_mtim.tv_sec,
            status.st_mtim.tv_nsec);
}
ROW(utime)
{
    struct utimbuf times = {1000, 2000};
    char *n = made_file(c);
    c->kept[0] = (long)n;
    CALL(c, SYS_utime, text(c, "path", n), PUT(c, "times", times));
    c->after = tell_times;
}
ROW(utimes)
{
    struct timeval times[2] = {{1000, 5}, {2000, 6}};
    char *n = made_file(c);
    c->kept[0] = (long)n;
    CALL(c, SYS_utimes, text(c, "path", n), PUT(c, "times", times));
    c->after = tell_times;
}
ROW(futimesat)
{
    struct timeval times[2] = {{1000, 5}, {2000, 6}};
    char *n = made_file(c);
    c->kept[0] = (long)n;
    CALL(c, SYS_futimesat, AT_FDCWD, text(c, "path", n), PUT(c, "times", times));
    c->after = tell_times;
}
ROW(utimensat)
{
    struct timespec times[2] = {{1000, 5}, {2000, 6}};
    char *n = made_file(c);
    c->kept[0] = (long)n;
    CALL(c, SYS_utimensat, AT_FDCWD, text(c, "path", n), PUT(c, "times", times), 0);
    c->after = tell_times;
}
ROW(mknod)
{
    char *n = own(c, "fifo");
    CALL(c, SYS_mknod, text(c, "path", n), S_IFIFO | 0640, 0);
    named(c, n, 0);
}
ROW(mknodat)
{
    char *n = own(c, "fifo");
    CALL(c, SYS_mknodat, AT_FDCWD, text(c, "path", n), S_IFIFO | 0640, 0);
    named(c, n, 0);
}
ROW(ustat)
{
    struct stat s;
    CHECK(!stat(".", &s));
    CALL(c, SYS_ustat, s.st_dev, hide(c, out(c, "status", 32), 0, 16));
}
/* What is free changes meanwhile. */
ROW(statfs) { CALL(c, SYS_statfs, text(c, "path", "."), hide(c, out(c, "status", sizeof(struct statfs)), 24, 32)); }
ROW(fstatfs) { CALL(c, SYS_fstatfs, file(c), hide(c, out(c, "status", sizeof(struct statfs)), 24, 32)); }
ROW(sysfs_index) { CALL(c, SYS_sysfs, 1, text(c, "name", "proc")); }
ROW(sysfs_name) { CALL(c, SYS_sysfs, 2, 3, out(c, "name", 64)); }
ROW_ALONE(chroot) { CALL(c, SYS_chroot, text(c, "path", ".")); }
ROW(acct) { CALL(c, SYS_acct, text(c, "path", "no/such/file")); }
ROW(mount)
{
    CALL(c, SYS_mount, text(c, "source", "nothing"), text(c, "target", "no/such/place"), text(c, "type", "tmpfs"), 0,
         text(c, "options", "size=4096"));
}
static void unshare_mounts(struct call *c)
{
    (void)c;
    if (geteuid() == 0)
        CHECK(!unshare(CLONE_NEWNS) && !mount(0, "/", 0, MS_REC | MS_PRIVATE, 0));
}
ROW_ALONE(mount_made)
{
    char *n = own(c, "place");
    mkdir(n, 0777);
    CALL(c, SYS_mount, text(c, "source", "nothing"), text(c, "target", n), text(c, "type", "tmpfs"), 0,
         text(c, "options", "size=4096,mode=711"));
    c->before = unshare_mounts;
    named(c, n, 0);
}
ROW(umount2) { CALL(c, SYS_umount2, text(c, "target", "no/such/place"), 0); }
ROW(pivot_root) { CALL(c, SYS_pivot_root, text(c, "new", "no/such/place"), text(c, "old", "no/such/other")); }
ROW(swapon) { CALL(c, SYS_swapon, text(c, "path", "no/such/file"), 0); }
ROW(swapoff) { CALL(c, SYS_swapoff, text(c, "path", "no/such/file")); }
ROW(quotactl)
{
    CALL(c, SYS_quotactl, QCMD(0x800004, 0), text(c, "device", "no/such/device"), 0, out(c, "format", 4));
}
ROW(quotactl_fd) { CALL(c, SYS_quotactl_fd, file(c), QCMD(0x800007, 0), 0, out(c, "quota", 72)); }
