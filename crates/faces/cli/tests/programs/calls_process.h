/* Processes and their limits. */
static void end_child(struct call *c)
{
    pid_t child = vfork();
    if (!child)
        _exit(3);
    c->kept[0] = child;
}
ROW(wait4)
{
    long s = out(c, "status", 4);
    c->masks_result = 1;
    CALL(c, SYS_wait4, -1, s, 0, hide(c, out(c, "usage", 144), 0, 144));
    c->before = end_child;
}
ROW(waitid)
{
    long i = hide(c, out(c, "information", 128), 12, 8);
    CALL(c, SYS_waitid, P_ALL, 0, i, WEXITED, hide(c, out(c, "usage", 144), 0, 144));
    c->before = end_child;
}
ROW(uname) { CALL(c, SYS_uname, out(c, "name", sizeof(struct utsname))); }
ROW(getrlimit) { CALL(c, SYS_getrlimit, RLIMIT_CORE, out(c, "limit", 16)); }
ROW(setrlimit)
{
    struct rlimit of = {0, 0};
    CALL(c, SYS_setrlimit, RLIMIT_CORE, PUT(c, "limit", of));
}
ROW(prlimit64)
{
    struct rlimit of = {0, 0};
    long n = PUT(c, "new", of);
    CALL(c, SYS_prlimit64, 0, RLIMIT_CORE, n, hide(c, out(c, "old", 16), 0, 16));
}
ROW(getrusage) { CALL(c, SYS_getrusage, RUSAGE_SELF, hide(c, out(c, "usage", 144), 0, 144)); }
ROW(sysinfo) { CALL(c, SYS_sysinfo, hide(c, out(c, "information", 112), 0, 104)); }
ROW(getgroups)
{
    long groups = out(c, "groups", 400);
    CALL(c, SYS_getgroups, 100, groups);
}
ROW_ALONE(setgroups)
{
    int of[1] = {65534};
    CALL(c, SYS_setgroups, 1, PUT(c, "groups", of));
}
static void ids(struct call *c, long number)
{
    long a = out(c, "real", 4), b = out(c, "effective", 4), d = out(c, "saved", 4);
    CALL(c, number, a, b, d);
}
ROW(getresuid) { ids(c, SYS_getresuid); }
ROW(getresgid) { ids(c, SYS_getresgid); }
ROW(capget)
{
    struct __user_cap_header_struct h = {_LINUX_CAPABILITY_VERSION_3, 0};
    long a = PUT(c, "header", h);
    CALL(c, SYS_capget, a, out(c, "data", 24));
}
ROW_ALONE(capset)
{
    struct __user_cap_header_struct h = {_LINUX_CAPABILITY_VERSION_3, 0};
    unsigned char data[24];
    CHECK(!syscall(SYS_capget, &h, data));
    long a = PUT(c, "header", h);
    CALL(c, SYS_capset, a, in(c, "data", data, 24));
}
ROW(sched_setparam)
{
    int of = 0;
    CALL(c, SYS_sched_setparam, 0, PUT(c, "parameter", of));
}
ROW(sched_getparam) { CALL(c, SYS_sched_getparam, 0, out(c, "parameter", 4)); }
ROW(sched_setscheduler)
{
    int of = 0;
    CALL(c, SYS_sched_setscheduler, 0, SCHED_BATCH, PUT(c, "parameter", of));
}
ROW(sched_rr_get_interval) { CALL(c, SYS_sched_rr_get_interval, 0, hide(c, out(c, "interval", 16), 0, 16)); }
ROW(sched_setaffinity)
{
    unsigned long of[16] = {-1ul};
    CALL(c, SYS_sched_setaffinity, 0, 128, PUT(c, "set", of));
}
ROW(sched_getaffinity) { CALL(c, SYS_sched_getaffinity, 0, 128, out(c, "set", 128)); }
ROW(sched_setattr)
{
    unsigned char of[48] = {48};
    CALL(c, SYS_sched_setattr, 0, PUT(c, "attributes", of), 0);
}
ROW(sched_getattr) { CALL(c, SYS_sched_getattr, 0, hide(c, out(c, "attributes", 48), 24, 24), 48, 0); }
ROW(getcpu)
{
    long a = hide(c, out(c, "processor", 4), 0, 4);
    CALL(c, SYS_getcpu, a, out(c, "node", 4));
}
ROW(prctl_set_name) { CALL(c, SYS_prctl, PR_SET_NAME, text(c, "name", "a name")); }
ROW(prctl_get_name) { CALL(c, SYS_prctl, PR_GET_NAME, out(c, "name", 16)); }
ROW(prctl_death_signal) { CALL(c, SYS_prctl, PR_GET_PDEATHSIG, out(c, "signal", 4)); }
ROW(prctl_subreaper) { CALL(c, SYS_prctl, PR_GET_CHILD_SUBREAPER, out(c, "flag", 4)); }
ROW(prctl_tid_address) { CALL(c, SYS_prctl, PR_GET_TID_ADDRESS, hide(c, out(c, "address", 8), 0, 8)); }
ROW(prctl_name_mapping)
{
    unsigned char *at = mmap(0, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CALL(c, SYS_prctl, 0x53564d41, 0, (long)at, PAGE, text(c, "name", "what it is"));
}
ROW(prctl_auxv)
{
    c->masks_result = 1;
    CALL(c, SYS_prctl, 0x41555856, hide(c, out(c, "vector", 512), 0, 512), 512, 0, 0);
}
ROW(prctl_timing) { CALL(c, SYS_prctl, PR_GET_TSC, out(c, "value", 4)); }
ROW(prctl_endian) { CALL(c, SYS_prctl, PR_GET_UNALIGN, out(c, "value", 4)); }
ROW_ALONE(prctl_core_cookie) { CALL(c, SYS_prctl, PR_SCHED_CORE, 0, 0, 0, out(c, "cookie", 8)); }
ROW(prctl_mm_map_size) { CALL(c, SYS_prctl, PR_SET_MM, PR_SET_MM_MAP_SIZE, out(c, "size", 4), 0, 0); }
ROW(arch_prctl) { CALL(c, SYS_arch_prctl, 0x1003, hide(c, out(c, "base", 8), 0, 8)); }
ROW(arch_prctl_features) { CALL(c, SYS_arch_prctl, 0x1021, out(c, "features", 8)); }
ROW(modify_ldt) { CALL(c, SYS_modify_ldt, 0, out(c, "table", 64), 64); }
ROW(modify_ldt_write)
{
    unsigned of[4] = {0, 0, 0, 0x28};
    CALL(c, SYS_modify_ldt, 1, PUT(c, "entry", of), 16);
}
ROW(get_robust_list)
{
    long h = hide(c, out(c, "head", 8), 0, 8);
    CALL(c, SYS_get_robust_list, 0, h, out(c, "length", 8));
}
ROW(syslog)
{
    c->masks_result = 1;
    CALL(c, SYS_syslog, 3, hide(c, out(c, "buffer", 9000), 0, 9000), 9000);
}
ROW_ALONE(sethostname)
{
    char n[] = "a-host";
    CALL(c, SYS_sethostname, in(c, "name", n, 6), 6);
    c->before = unshare_names;
}
ROW_ALONE(setdomainname)
{
    char n[] = "a-domain";
    CALL(c, SYS_setdomainname, in(c, "name", n, 8), 8);
    c->before = unshare_names;
}
ROW(delete_module) { CALL(c, SYS_delete_module, text(c, "name", "no_such_module"), O_NONBLOCK); }
ROW(init_module)
{
    long o = text(c, "options", "a=1"), i = in(c, "image", content, 3000);
    CALL(c, SYS_init_module, i, 3000, o);
}
ROW(finit_module)
{
    int f = file(c);
    CALL(c, SYS_finit_module, f, text(c, "options", "a=1"), 0);
}
ROW(kexec_load)
{
    long s[4] = {0};
    CALL(c, SYS_kexec_load, 0, 17, PUT(c, "segments", s), 0);
}
ROW(kexec_file_load) { CALL(c, SYS_kexec_file_load, -1, -1, 8, text(c, "line", "a line!"), 4); }
ROW(getrandom) { CALL(c, SYS_getrandom, hide(c, out(c, "buffer", 256), 0, 256), 256, 0); }
ROW(getrandom_much) { CALL(c, SYS_getrandom, hide(c, out(c, "buffer", 100000), 0, 100000), 100000, 0); }
ROW(perf_event_open)
{
    unsigned long of[16] = {128ul << 32 | 1, 0};
    c->is_fd = 1;
    CALL(c, SYS_perf_event_open, PUT(c, "attributes", of), 0, -1, -1, 0);
}
ROW(seccomp_available)
{
    unsigned action = 0x50000;
    CALL(c, SYS_seccomp, 2, 0, PUT(c, "action", action));
}
ROW(seccomp_sizes) { CALL(c, SYS_seccomp, 3, 0, out(c, "sizes", 6)); }
