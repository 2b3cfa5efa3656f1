//! Which arguments of which system calls the kernel follows as pointers, for the tier in which it
//! cannot fault managed pages in by itself.

use linux_raw_sys::general as g;

/// Calls and their pointer arguments (bit n: argument n). Arguments that are pointers only for some
/// requests are listed: a trap too many is only slow. Left out are calls that get no pointer, and
/// those that only take addresses (`shmat`).
#[rustfmt::skip]
pub(super) const DIRECT: &[(u32, u8)] = &[
    (g::__NR_read, 0b10), (g::__NR_write, 0b10), (g::__NR_open, 0b1), (g::__NR_stat, 0b11),
    (g::__NR_fstat, 0b10), (g::__NR_lstat, 0b11), (g::__NR_poll, 0b1),
    (g::__NR_rt_sigprocmask, 0b110), (g::__NR_ioctl, 0b100),
    (g::__NR_pread64, 0b10), (g::__NR_pwrite64, 0b10), (g::__NR_access, 0b1), (g::__NR_pipe, 0b1),
    (g::__NR_select, 0b11110), (g::__NR_mincore, 0b100), (g::__NR_shmctl, 0b100),
    (g::__NR_nanosleep, 0b11), (g::__NR_getitimer, 0b10), (g::__NR_setitimer, 0b110),
    (g::__NR_sendfile, 0b100), (g::__NR_connect, 0b10), (g::__NR_accept, 0b110),
    (g::__NR_sendto, 0b10010), (g::__NR_recvfrom, 0b110010), (g::__NR_bind, 0b10),
    (g::__NR_getsockname, 0b110), (g::__NR_getpeername, 0b110), (g::__NR_socketpair, 0b1000),
    (g::__NR_setsockopt, 0b1000), (g::__NR_getsockopt, 0b11000), (g::__NR_wait4, 0b1010),
    (g::__NR_uname, 0b1), (g::__NR_semop, 0b10), (g::__NR_semctl, 0b1000), (g::__NR_msgsnd, 0b10),
    (g::__NR_msgrcv, 0b10), (g::__NR_msgctl, 0b100), (g::__NR_fcntl, 0b100),
    (g::__NR_truncate, 0b1), (g::__NR_getdents, 0b10), (g::__NR_getcwd, 0b1), (g::__NR_chdir, 0b1),
    (g::__NR_rename, 0b11), (g::__NR_mkdir, 0b1), (g::__NR_rmdir, 0b1), (g::__NR_creat, 0b1),
    (g::__NR_link, 0b11), (g::__NR_unlink, 0b1), (g::__NR_symlink, 0b11), (g::__NR_readlink, 0b11),
    (g::__NR_chmod, 0b1), (g::__NR_chown, 0b1), (g::__NR_lchown, 0b1), (g::__NR_gettimeofday, 0b11),
    (g::__NR_getrlimit, 0b10), (g::__NR_getrusage, 0b10), (g::__NR_sysinfo, 0b1),
    (g::__NR_times, 0b1), (g::__NR_syslog, 0b10), (g::__NR_getgroups, 0b10),
    (g::__NR_setgroups, 0b10), (g::__NR_getresuid, 0b111), (g::__NR_getresgid, 0b111),
    (g::__NR_capget, 0b11), (g::__NR_capset, 0b11), (g::__NR_rt_sigpending, 0b1),
    (g::__NR_rt_sigtimedwait, 0b111), (g::__NR_rt_sigqueueinfo, 0b100),
    (g::__NR_utime, 0b11), (g::__NR_mknod, 0b1), (g::__NR_ustat, 0b10), (g::__NR_statfs, 0b11),
    (g::__NR_fstatfs, 0b10), (g::__NR_sched_setparam, 0b10), (g::__NR_sched_getparam, 0b10),
    (g::__NR_sched_setscheduler, 0b100), (g::__NR_sched_rr_get_interval, 0b10),
    (g::__NR_pivot_root, 0b11), (g::__NR_prctl, 0b10110), (g::__NR_arch_prctl, 0b10),
    (g::__NR_adjtimex, 0b1), (g::__NR_setrlimit, 0b10), (g::__NR_chroot, 0b1), (g::__NR_acct, 0b1),
    (g::__NR_settimeofday, 0b11), (g::__NR_mount, 0b10111), (g::__NR_umount2, 0b1),
    (g::__NR_swapon, 0b1), (g::__NR_swapoff, 0b1), (g::__NR_sethostname, 0b1),
    (g::__NR_setdomainname, 0b1), (g::__NR_init_module, 0b101), (g::__NR_quotactl, 0b1010),
    (g::__NR_setxattr, 0b111), (g::__NR_lsetxattr, 0b111), (g::__NR_fsetxattr, 0b110),
    (g::__NR_getxattr, 0b111), (g::__NR_lgetxattr, 0b111), (g::__NR_fgetxattr, 0b110),
    (g::__NR_listxattr, 0b11), (g::__NR_llistxattr, 0b11), (g::__NR_flistxattr, 0b10),
    (g::__NR_removexattr, 0b11), (g::__NR_lremovexattr, 0b11), (g::__NR_fremovexattr, 0b10),
    (g::__NR_time, 0b1), (g::__NR_futex, 0b11001), (g::__NR_sched_setaffinity, 0b100),
    (g::__NR_sched_getaffinity, 0b100), (g::__NR_getdents64, 0b10), (g::__NR_semtimedop, 0b1010),
    (g::__NR_timer_create, 0b110), (g::__NR_timer_settime, 0b1100), (g::__NR_timer_gettime, 0b10),
    (g::__NR_clock_settime, 0b10), (g::__NR_clock_gettime, 0b10), (g::__NR_clock_getres, 0b10),
    (g::__NR_clock_nanosleep, 0b1100), (g::__NR_epoll_wait, 0b10), (g::__NR_epoll_ctl, 0b1000),
    (g::__NR_utimes, 0b11), (g::__NR_mbind, 0b1000), (g::__NR_set_mempolicy, 0b10),
    (g::__NR_get_mempolicy, 0b1011), (g::__NR_mq_open, 0b1001), (g::__NR_mq_unlink, 0b1),
    (g::__NR_mq_timedsend, 0b10010), (g::__NR_mq_timedreceive, 0b11010),
    (g::__NR_mq_getsetattr, 0b110), (g::__NR_waitid, 0b10100), (g::__NR_add_key, 0b111),
    (g::__NR_request_key, 0b111), (g::__NR_inotify_add_watch, 0b10),
    (g::__NR_migrate_pages, 0b1100), (g::__NR_openat, 0b10), (g::__NR_mkdirat, 0b10),
    (g::__NR_mknodat, 0b10), (g::__NR_fchownat, 0b10), (g::__NR_futimesat, 0b110),
    (g::__NR_newfstatat, 0b110), (g::__NR_unlinkat, 0b10), (g::__NR_renameat, 0b1010),
    (g::__NR_linkat, 0b1010), (g::__NR_symlinkat, 0b101), (g::__NR_readlinkat, 0b110),
    (g::__NR_fchmodat, 0b10), (g::__NR_faccessat, 0b10), (g::__NR_pselect6, 0b111110),
    (g::__NR_ppoll, 0b1101), (g::__NR_get_robust_list, 0b110), (g::__NR_splice, 0b1010),
    (g::__NR_move_pages, 0b11100), (g::__NR_utimensat, 0b110), (g::__NR_epoll_pwait, 0b10010),
    (g::__NR_signalfd, 0b10), (g::__NR_timerfd_settime, 0b1100), (g::__NR_timerfd_gettime, 0b10),
    (g::__NR_accept4, 0b110), (g::__NR_signalfd4, 0b10), (g::__NR_pipe2, 0b1),
    (g::__NR_rt_tgsigqueueinfo, 0b1000), (g::__NR_perf_event_open, 0b1),
    (g::__NR_prlimit64, 0b1100), (g::__NR_name_to_handle_at, 0b1110),
    (g::__NR_open_by_handle_at, 0b10), (g::__NR_clock_adjtime, 0b10), (g::__NR_getcpu, 0b11),
    (g::__NR_finit_module, 0b10), (g::__NR_sched_setattr, 0b10), (g::__NR_sched_getattr, 0b10),
    (g::__NR_renameat2, 0b1010), (g::__NR_getrandom, 0b1), (g::__NR_memfd_create, 0b1),
    (g::__NR_rseq, 0b1), (g::__NR_set_robust_list, 0b1), (g::__NR_set_tid_address, 0b1),
    (g::__NR_copy_file_range, 0b1010), (g::__NR_statx, 0b10010),
    (g::__NR_pidfd_send_signal, 0b100), (g::__NR_open_tree, 0b10), (g::__NR_move_mount, 0b1010),
    (g::__NR_fsopen, 0b1), (g::__NR_fsconfig, 0b1100), (g::__NR_fspick, 0b10),
    (g::__NR_openat2, 0b110), (g::__NR_faccessat2, 0b10), (g::__NR_epoll_pwait2, 0b11010),
    (g::__NR_mount_setattr, 0b1010), (g::__NR_landlock_create_ruleset, 0b1),
    (g::__NR_landlock_add_rule, 0b100), (g::__NR_cachestat, 0b110), (g::__NR_fchmodat2, 0b10),
    (g::__NR_modify_ldt, 0b10), (g::__NR_sysfs, 0b110), (g::__NR_delete_module, 0b1),
    (g::__NR_fanotify_mark, 0b10000), (g::__NR_kexec_load, 0b100), (g::__NR_kexec_file_load, 0b1000),
    (g::__NR_quotactl_fd, 0b1000), (g::__NR_statmount, 0b11), (g::__NR_listmount, 0b11),
    (g::__NR_lsm_get_self_attr, 0b110), (g::__NR_lsm_set_self_attr, 0b10),
    (g::__NR_lsm_list_modules, 0b11), (g::__NR_listxattrat, 0b1010),
    (g::__NR_removexattrat, 0b1010), (g::__NR_open_tree_attr, 0b1010),
    (g::__NR_file_getattr, 0b110), (g::__NR_file_setattr, 0b110), (g::__NR_futex_wait, 0b10001),
    (g::__NR_futex_wake, 0b1), (g::__NR_ptrace, 0b1000),
];

/// Which arguments of call `number` are pointers (bit n: argument n): all may be, where it is not known.
pub fn of_call(number: u32) -> u8 {
    const NUMBERS: usize = 512;
    const ALL: u8 = 0b11_1111;
    const MASKS: [u8; NUMBERS] = {
        let mut masks = [ALL; NUMBERS];
        let mut at = 0;
        while at < DIRECT.len() {
            masks[DIRECT[at].0 as usize] = DIRECT[at].1;
            at += 1;
        }
        masks
    };
    MASKS.get(number as usize).copied().unwrap_or(ALL)
}

/// Calls whose arguments lead to further pointers: always looked at.
#[rustfmt::skip]
pub(super) const HIDDEN: &[u32] = &[
    g::__NR_readv, g::__NR_writev, g::__NR_sendmsg, g::__NR_recvmsg, g::__NR_preadv,
    g::__NR_pwritev, g::__NR_preadv2, g::__NR_pwritev2, g::__NR_recvmmsg, g::__NR_sendmmsg,
    g::__NR_process_vm_readv, g::__NR_process_vm_writev, g::__NR_vmsplice, g::__NR_process_madvise,
    g::__NR_futex_waitv, g::__NR_futex_requeue, g::__NR_mq_notify, g::__NR_bpf, g::__NR_keyctl,
    g::__NR_setxattrat, g::__NR_getxattrat,
];

/// Calls by which Linux learns where it may put what a signal interrupts, or takes it back: always looked at.
pub(super) const SIGNALS: &[u32] = &[
    g::__NR_rt_sigaction,
    g::__NR_rt_sigreturn,
    g::__NR_sigaltstack,
];

/// Calls that let the kernel use memory later, when nobody can help any more: they do not exist.
#[rustfmt::skip]
pub(super) const REFUSED: &[u32] = &[
    g::__NR_io_uring_setup, g::__NR_io_setup,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_is_listed_twice() {
        let mut all: alloc::vec::Vec<u32> = DIRECT.iter().map(|entry| entry.0).collect();
        all.extend(HIDDEN.iter().chain(SIGNALS).chain(REFUSED));
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
