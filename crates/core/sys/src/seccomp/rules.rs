//! What is trapped when. The table is in `docs/ARCHITECTURE.md`.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use farpage_object::fds;
use linux_raw_sys::general as g;
use linux_raw_sys::ptrace as p;

use super::assembler::{Assembler, Instruction, Label, Test, data};
use super::{GATE_ADDRESS, LEAST_ADDRESS, Params, TRAP_MARK, pinning, pointers};
use crate::file::CLOSE_RANGE_UNSHARE;
use crate::process::PR_SET_MEMORY_MERGE;
use crate::raw::Errno;

pub(super) const ARCH_X86_64: u32 = 0xC000_003E;
const ENOSYS: u32 = 38;

// Upper halves of the addresses that tell managed from unmanaged memory: the window is
// 1 .. HEAP and HEAP_END .. TOP, programs and their heaps are 0 and HEAP .. HEAP_END.
const WINDOW: u32 = 1;
const HEAP: u32 = 0x5500;
const HEAP_END: u32 = 0x5700;
const TOP: u32 = 0x7000;
/// Where Linux places memory that is wanted in the low 2 GiB, from the bottom up. Above, up to 2 GiB, lies Wine.
const LOW_MAPPINGS: core::ops::Range<u32> = 0x4000_0000..0x7b00_0000;
/// The same of the lowest place of the first thread's stack.
const FIRST_STACK: u32 = 0x7ffb;
/// Below lie small numbers and null: Linux maps nothing there.
const LOWEST_POINTER: u32 = 0x1_0000;

const MAP_TYPE: u32 = 0x0f;
pub(super) const MAP_FIXED: u32 = g::MAP_FIXED | g::MAP_FIXED_NOREPLACE;
const NO_MEMORY_OF_OURS: u32 = g::MAP_STACK | g::MAP_GROWSDOWN | g::MAP_HUGETLB;
const PR_SET_SECCOMP: u32 = 22;
/// Commands of `fcntl` that matter where a descriptor is of shared memory: they make another number for
/// it, seal it, or lock parts of its file.
pub(super) const OF_SHARED: [u32; 9] = [
    g::F_DUPFD,
    g::F_DUPFD_CLOEXEC,
    g::F_ADD_SEALS,
    g::F_GETLK,
    g::F_SETLK,
    g::F_SETLKW,
    g::F_OFD_GETLK,
    g::F_OFD_SETLK,
    g::F_OFD_SETLKW,
];
const FIOCLEX: u32 = 0x5451;
/// What a request of `ioctl` says of its structure: how large it is, and whose.
const IOC_SIZE: u32 = 0x3fff_0000;
const IOC_TYPE: u32 = 0xff00;
/// A pointer and how much is there.
const STRUCTURE_BYTES: u32 = 16;
/// Old requests, of sockets and of SCSI, do not say how large it is.
const WITHOUT_SIZES: [u32; 2] = [0x89, 0x22];
const SOL_SOCKET: u32 = 1;
/// `SO_ATTACH_FILTER` and `SO_ATTACH_REUSEPORT_CBPF`, which name a filter by a pointer.
const FILTERS: [u32; 2] = [26, 51];
/// Of `shmat`: the segment replaces what is mapped there.
const SHM_REMAP: u32 = 0o40000;
/// The operation of a futex, without what it says besides.
const FUTEX_OPERATION: u32 = !(g::FUTEX_PRIVATE_FLAG | g::FUTEX_CLOCK_REALTIME);

/// Where rules end.
#[derive(Clone, Copy)]
struct Ends {
    allow: Label,
    trap: Label,
    bad_descriptor: Label,
    done: Label,
    no_call: Label,
}

/// How a call is judged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rule {
    Always,
    Missing,
    Map,
    /// As [`Rule::Map`], of private memory of any size that may lie anywhere.
    MapSmall,
    /// The first argument lies in the window or where heaps are.
    Area,
    Protect,
    Remap,
    Break,
    Clone,
    Action,
    Mask,
    Prctl,
    Close,
    Duplicate,
    CloseRange,
    Fcntl,
    Ioctl,
    SocketOption,
    /// This argument, a signal mask, is given.
    Given(u32),
    /// This argument is a descriptor that may be of a mapped file, or of shared memory.
    Opened(u32),
    /// As [`Rule::Opened`], for either of two arguments.
    Either(u32, u32),
    /// As [`Rule::Opened`], for `lseek` to data or holes.
    Seek,
    /// A path, unless it is empty and the descriptor meant.
    Named,
    /// Operations that change a word of the program, and where there is a cluster also those that are
    /// not private.
    Futex,
    /// A thread is to be traced.
    Trace,
    /// Bytes are written from several pieces of memory, but by the dynamic linker, which has something to say before the
    /// agent is there: to standard output or standard error, from three pieces or more whose list lies on
    /// the first thread's stack.
    /// Programs hardly write so.
    Pieces,
    /// A segment of System V is to be attached over what is mapped.
    Attach,
    /// This argument is a resource without which no memory can be managed, and the next one, its limit, is
    /// given.
    Limit(u32),
    /// Nothing but what the user-mode-only tier looks at.
    Plain,
}

const RULES: &[(u32, Rule)] = &[
    (g::__NR_mmap, Rule::Map),
    (g::__NR_mprotect, Rule::Protect),
    (g::__NR_pkey_mprotect, Rule::Protect),
    (g::__NR_munmap, Rule::Area),
    (g::__NR_madvise, Rule::Area),
    (g::__NR_process_madvise, Rule::Always),
    (g::__NR_shmat, Rule::Attach),
    (g::__NR_mlock, Rule::Area),
    (g::__NR_mlock2, Rule::Area),
    (g::__NR_munlock, Rule::Area),
    (g::__NR_mlockall, Rule::Always),
    (g::__NR_munlockall, Rule::Always),
    (g::__NR_mremap, Rule::Remap),
    (g::__NR_brk, Rule::Break),
    (g::__NR_fork, Rule::Always),
    (g::__NR_clone, Rule::Clone),
    (g::__NR_clone3, Rule::Missing),
    (g::__NR_execve, Rule::Always),
    (g::__NR_execveat, Rule::Always),
    (g::__NR_rt_sigaction, Rule::Action),
    (g::__NR_rt_sigprocmask, Rule::Mask),
    (g::__NR_rt_sigsuspend, Rule::Always),
    (g::__NR_ppoll, Rule::Given(3)),
    (g::__NR_pselect6, Rule::Given(5)),
    (g::__NR_epoll_pwait, Rule::Given(4)),
    (g::__NR_epoll_pwait2, Rule::Given(4)),
    (g::__NR_seccomp, Rule::Always),
    (g::__NR_prctl, Rule::Prctl),
    (g::__NR_close, Rule::Close),
    (g::__NR_dup2, Rule::Duplicate),
    (g::__NR_dup3, Rule::Duplicate),
    (g::__NR_close_range, Rule::CloseRange),
    (g::__NR_fcntl, Rule::Fcntl),
    (g::__NR_ioctl, Rule::Ioctl),
    (g::__NR_setsockopt, Rule::SocketOption),
    (g::__NR_futex, Rule::Futex),
    (g::__NR_set_robust_list, Rule::Area),
    (g::__NR_ptrace, Rule::Trace),
    (g::__NR_chroot, Rule::Always),
    (g::__NR_pivot_root, Rule::Always),
    (g::__NR_landlock_restrict_self, Rule::Always),
    (g::__NR_unshare, Rule::Always),
    (g::__NR_setns, Rule::Always),
    (g::__NR_setrlimit, Rule::Limit(0)),
    (g::__NR_prlimit64, Rule::Limit(1)),
    (g::__NR_exit, Rule::Always),
];

/// Where there are mapped files. A descriptor of one that is sent to another process, or used by a
/// ring, could not be recognised there.
const MAPS_RULES: &[(u32, Rule)] = &[
    (g::__NR_open, Rule::Always),
    (g::__NR_openat, Rule::Always),
    (g::__NR_openat2, Rule::Always),
    (g::__NR_creat, Rule::Always),
    (g::__NR_stat, Rule::Always),
    (g::__NR_lstat, Rule::Always),
    (g::__NR_newfstatat, Rule::Named),
    (g::__NR_statx, Rule::Always),
    (g::__NR_access, Rule::Always),
    (g::__NR_faccessat, Rule::Always),
    (g::__NR_faccessat2, Rule::Always),
    (g::__NR_readlink, Rule::Always),
    (g::__NR_readlinkat, Rule::Always),
    (g::__NR_truncate, Rule::Always),
    (g::__NR_unlink, Rule::Always),
    (g::__NR_unlinkat, Rule::Always),
    (g::__NR_rename, Rule::Always),
    (g::__NR_renameat, Rule::Always),
    (g::__NR_renameat2, Rule::Always),
    (g::__NR_link, Rule::Always),
    (g::__NR_linkat, Rule::Always),
    (g::__NR_chmod, Rule::Always),
    (g::__NR_fchmodat, Rule::Always),
    (g::__NR_fchmodat2, Rule::Always),
    (g::__NR_getxattr, Rule::Always),
    (g::__NR_lgetxattr, Rule::Always),
    (g::__NR_listxattr, Rule::Always),
    (g::__NR_llistxattr, Rule::Always),
    (g::__NR_sendmsg, Rule::Always),
    (g::__NR_sendmmsg, Rule::Always),
    (g::__NR_pidfd_getfd, Rule::Missing),
    (g::__NR_io_uring_setup, Rule::Missing),
    (g::__NR_io_setup, Rule::Missing),
    (g::__NR_read, Rule::Opened(0)),
    (g::__NR_pread64, Rule::Opened(0)),
    (g::__NR_readv, Rule::Opened(0)),
    (g::__NR_preadv, Rule::Opened(0)),
    (g::__NR_preadv2, Rule::Opened(0)),
    (g::__NR_splice, Rule::Opened(0)),
    (g::__NR_copy_file_range, Rule::Opened(0)),
    (g::__NR_sendfile, Rule::Opened(1)),
    (g::__NR_dup, Rule::Opened(0)),
    (g::__NR_lseek, Rule::Seek),
];

/// Where shared memory is kept. Its files are opened and mapped, and their sizes set, anywhere; they
/// are read and written by descriptors that are known by their numbers.
pub(super) const SHM_RULES: &[(u32, Rule)] = &[
    (g::__NR_open, Rule::Always),
    (g::__NR_openat, Rule::Always),
    (g::__NR_openat2, Rule::Always),
    (g::__NR_creat, Rule::Always),
    (g::__NR_truncate, Rule::Always),
    (g::__NR_ftruncate, Rule::Always),
    (g::__NR_fallocate, Rule::Always),
    (g::__NR_shmget, Rule::Always),
    (g::__NR_shmat, Rule::Always),
    (g::__NR_shmdt, Rule::Always),
    (g::__NR_semget, Rule::Always),
    (g::__NR_msgget, Rule::Always),
    (g::__NR_mq_open, Rule::Always),
    (g::__NR_statfs, Rule::Always),
    (g::__NR_fstatfs, Rule::Always),
    (g::__NR_memfd_create, Rule::Always),
    (g::__NR_exit_group, Rule::Always),
    (g::__NR_recvmsg, Rule::Always),
    (g::__NR_recvmmsg, Rule::Always),
    (g::__NR_sendmsg, Rule::Always),
    (g::__NR_sendmmsg, Rule::Always),
    (g::__NR_pidfd_getfd, Rule::Missing),
    (g::__NR_io_uring_setup, Rule::Missing),
    (g::__NR_io_setup, Rule::Missing),
    (g::__NR_read, Rule::Opened(0)),
    (g::__NR_pread64, Rule::Opened(0)),
    (g::__NR_readv, Rule::Opened(0)),
    (g::__NR_preadv, Rule::Opened(0)),
    (g::__NR_preadv2, Rule::Opened(0)),
    (g::__NR_write, Rule::Opened(0)),
    (g::__NR_pwrite64, Rule::Opened(0)),
    (g::__NR_writev, Rule::Opened(0)),
    (g::__NR_pwritev, Rule::Opened(0)),
    (g::__NR_pwritev2, Rule::Opened(0)),
    (g::__NR_splice, Rule::Either(0, 2)),
    (g::__NR_copy_file_range, Rule::Either(0, 2)),
    (g::__NR_sendfile, Rule::Either(0, 1)),
    (g::__NR_dup, Rule::Opened(0)),
    (g::__NR_lseek, Rule::Seek),
];

/// Where programs are told how much memory the machine has.
const MACHINE_RULES: &[(u32, Rule)] = &[
    (g::__NR_open, Rule::Always),
    (g::__NR_openat, Rule::Always),
    (g::__NR_openat2, Rule::Always),
    (g::__NR_sysinfo, Rule::Always),
];

/// Where other hosts have the same shared memory.
const CLUSTER_RULES: &[(u32, Rule)] = &[
    (g::__NR_unlink, Rule::Always),
    (g::__NR_unlinkat, Rule::Always),
    (g::__NR_link, Rule::Always),
    (g::__NR_linkat, Rule::Always),
    (g::__NR_rename, Rule::Always),
    (g::__NR_renameat, Rule::Always),
    (g::__NR_renameat2, Rule::Always),
    (g::__NR_shmctl, Rule::Always),
    (g::__NR_semop, Rule::Always),
    (g::__NR_semtimedop, Rule::Always),
    (g::__NR_semctl, Rule::Always),
    (g::__NR_msgsnd, Rule::Always),
    (g::__NR_msgrcv, Rule::Always),
    (g::__NR_msgctl, Rule::Always),
    (g::__NR_futex_waitv, Rule::Missing),
];

/// Calls that go to a place in a file, and the argument that says which. Where that can be an address of
/// managed memory, the file is the memory of a process: no other is so long.
const PLACES: &[(u32, u32)] = &[
    (g::__NR_pread64, 3),
    (g::__NR_preadv, 3),
    (g::__NR_preadv2, 3),
    (g::__NR_pwrite64, 3),
    (g::__NR_pwritev, 3),
    (g::__NR_pwritev2, 3),
    (g::__NR_lseek, 1),
];

/// What is done for one call: its rule, which arguments may not point to managed memory, and which is a
/// place in a file.
type Judgement = (Rule, u8, Option<u32>);

pub(super) fn build(params: &Params) -> Vec<Instruction> {
    let mut judged: BTreeMap<u32, Judgement> = RULES.iter().map(plain).collect();
    if params.maps {
        judged.extend(MAPS_RULES.iter().map(plain));
    }
    if params.shm {
        judged.extend(SHM_RULES.iter().map(plain));
    }
    if params.cluster {
        judged.extend(CLUSTER_RULES.iter().map(plain));
    }
    if params.machine {
        judged.extend(MACHINE_RULES.iter().map(plain));
    }
    if params.user_mode_tier {
        for &(nr, mask) in pointers::DIRECT {
            judged.entry(nr).or_insert((Rule::Plain, 0, None)).1 = mask;
        }
        for &nr in pointers::HIDDEN.iter().chain(pointers::SIGNALS) {
            judged.insert(nr, (Rule::Always, 0, None));
        }
        judged.insert(g::__NR_writev, (Rule::Pieces, 0, None));
        for &nr in pointers::REFUSED {
            judged.insert(nr, (Rule::Missing, 0, None));
        }
    }
    for &(nr, place) in PLACES {
        judged.entry(nr).or_insert((Rule::Plain, 0, None)).2 = Some(place);
    }
    let mut a = Assembler::default();
    let ends = Ends {
        allow: a.label(),
        trap: a.label(),
        bad_descriptor: a.label(),
        done: a.label(),
        no_call: a.label(),
    };
    let labels: BTreeMap<Judgement, Label> = judged
        .values()
        .map(|&judgement| (judgement, a.label()))
        .collect();
    let entries: Vec<(u32, Label)> = judged
        .iter()
        .map(|(&nr, judgement)| (nr, labels[judgement]))
        .collect();

    a.load(data::ARCH);
    a.unless(Test::Equal(ARCH_X86_64), ends.allow);
    a.load(data::NR);
    search(&mut a, &entries, ends.allow);
    for (&(rule, pointers, place), &label) in &labels {
        a.place(label);
        exempt_gate(&mut a, ends.allow);
        if let Some(argument) = place {
            when_address(&mut a, argument, ends.trap);
        }
        emit(&mut a, rule, params, ends, pointers);
    }
    let answers = [
        (ends.allow, p::SECCOMP_RET_ALLOW),
        (ends.trap, p::SECCOMP_RET_TRAP | TRAP_MARK as u32),
        (
            ends.bad_descriptor,
            p::SECCOMP_RET_ERRNO | Errno::EBADF.0 as u32,
        ),
        (ends.done, p::SECCOMP_RET_ERRNO),
        (ends.no_call, p::SECCOMP_RET_ERRNO | ENOSYS),
    ];
    for (label, answer) in answers {
        a.place(label);
        a.ret(answer);
    }
    a.finish()
}

/// Binary search of the accumulator among `entries`, ordered by number.
pub(super) fn search(a: &mut Assembler, entries: &[(u32, Label)], other: Label) {
    if entries.len() <= 3 {
        for &(nr, label) in entries {
            a.when(Test::Equal(nr), label);
        }
        a.goto(other);
        return;
    }
    let (low, high) = entries.split_at(entries.len() / 2);
    let upper = a.label();
    a.when(Test::AtLeast(high[0].0), upper);
    search(a, low, other);
    a.place(upper);
    search(a, high, other);
}

pub(super) fn exempt_gate(a: &mut Assembler, allow: Label) {
    let elsewhere = a.label();
    a.load(data::IP_HIGH);
    a.unless(Test::Equal((GATE_ADDRESS >> 32) as u32), elsewhere);
    a.load(data::IP_LOW);
    a.and(!0xfff);
    a.when(Test::Equal(GATE_ADDRESS as u32), allow);
    a.place(elsewhere);
}

fn emit(a: &mut Assembler, rule: Rule, params: &Params, ends: Ends, pointers: u8) {
    match rule {
        Rule::Always => return a.goto(ends.trap),
        Rule::Missing => return a.goto(ends.no_call),
        Rule::Map => map(a, params, ends),
        Rule::Area => {
            a.load(data::high(0));
            a.unless(Test::AtLeast(TOP), ends.trap);
        }
        Rule::Protect => protect(a, ends),
        Rule::Remap => remap(a, ends),
        Rule::Break => when_given(a, 0, ends.trap),
        Rule::Clone => {
            a.load(data::low(0));
            a.unless(Test::AnyBit(g::CLONE_VM), ends.trap);
            if params.user_mode_tier {
                let pass = a.label();
                a.when(Test::AnyBit(g::CLONE_THREAD), ends.trap);
                // What begins while its maker waits has the maker's stack for signals.
                a.when(Test::AnyBit(g::CLONE_VFORK), pass);
                when_given(a, 1, ends.trap);
                a.place(pass);
            }
        }
        Rule::Action => {
            when_given(a, 1, ends.trap);
            a.load(data::low(0));
            a.when(Test::Equal(g::SIGSYS), ends.trap);
        }
        Rule::Mask => {
            let harmless = a.label();
            a.load(data::low(0));
            a.when(Test::Equal(g::SIG_UNBLOCK), harmless);
            when_given(a, 1, ends.trap);
            a.place(harmless);
        }
        Rule::Prctl => {
            a.load(data::low(0));
            a.when(Test::Equal(PR_SET_SECCOMP), ends.trap);
            a.when(Test::Equal(PR_SET_MEMORY_MERGE), ends.trap);
        }
        Rule::Close => when_ours(a, 0, params, ends.done),
        Rule::Duplicate => {
            when_ours(a, 1, params, ends.bad_descriptor);
            when_opened(a, 0, params, ends.trap);
        }
        Rule::CloseRange => close_range(a, params, ends),
        Rule::Fcntl => {
            on_ours(a, g::F_SETFD, params, ends.done);
            when_duplicated(a, params, ends.trap);
        }
        Rule::Ioctl => {
            on_ours(a, FIOCLEX, params, ends.done);
            a.load(data::low(1));
            a.and(pinning::REQUEST_MASK);
            for request in pinning::REQUESTS {
                a.when(Test::Equal(request), ends.trap);
            }
            if params.user_mode_tier {
                when_structure(a, ends.trap);
            }
        }
        Rule::SocketOption => {
            when_option(a, pinning::SOL_XDP, &[pinning::XDP_UMEM_REG], ends.trap);
            if params.user_mode_tier {
                when_option(a, SOL_SOCKET, &FILTERS, ends.trap);
            }
        }
        Rule::Opened(argument) => when_opened(a, argument, params, ends.trap),
        Rule::Either(one, other) => {
            when_opened(a, one, params, ends.trap);
            when_opened(a, other, params, ends.trap);
        }
        Rule::Seek => {
            let plain = a.label();
            a.load(data::low(2));
            a.unless(Test::AtLeast(g::SEEK_DATA), plain);
            when_opened(a, 0, params, ends.trap);
            a.place(plain);
        }
        Rule::Named => {
            a.load(data::low(3));
            a.unless(Test::AnyBit(g::AT_EMPTY_PATH), ends.trap);
        }
        Rule::Futex => futex(a, params, ends),
        Rule::Trace => {
            a.load(data::low(0));
            for request in [p::PTRACE_TRACEME, p::PTRACE_ATTACH, p::PTRACE_SEIZE] {
                a.when(Test::Equal(request), ends.trap);
            }
        }
        Rule::Pieces => {
            a.load(data::low(0));
            a.unless(Test::AtLeast(1), ends.trap);
            a.when(Test::AtLeast(3), ends.trap);
            a.load(data::high(1));
            a.unless(Test::AtLeast(FIRST_STACK), ends.trap);
            a.load(data::low(2));
            a.unless(Test::AtLeast(3), ends.trap);
        }
        Rule::Attach => {
            a.load(data::low(2));
            a.when(Test::AnyBit(SHM_REMAP), ends.trap);
        }
        Rule::Limit(resource) => {
            let (needed, other) = (a.label(), a.label());
            a.load(data::low(resource));
            a.when(Test::Equal(g::RLIMIT_NOFILE), needed);
            a.unless(Test::Equal(g::RLIMIT_NPROC), other);
            a.place(needed);
            when_given(a, resource + 1, ends.trap);
            a.place(other);
        }
        Rule::Given(argument) => when_given(a, argument, ends.trap),
        // Only what is seen later has it.
        Rule::MapSmall | Rule::Plain => {}
    }
    for argument in (0..6).filter(|argument| pointers & 1 << argument != 0) {
        when_managed(a, argument, ends.trap);
    }
    a.goto(ends.allow);
}

fn plain(&(nr, rule): &(u32, Rule)) -> (u32, Judgement) {
    (nr, (rule, 0, None))
}

/// The argument, a place in a file, can be an address of managed memory but of a program at a fixed place.
fn when_address(a: &mut Assembler, argument: u32, label: Label) {
    let other = a.label();
    a.load(data::high(argument));
    a.when(Test::AtLeast(TOP), other);
    a.when(Test::AtLeast((LEAST_ADDRESS >> 32) as u32), label);
    a.place(other);
}

/// The argument points to where managed memory can be: the window or a heap.
fn when_managed(a: &mut Assembler, argument: u32, label: Label) {
    let outside = a.label();
    a.load(data::high(argument));
    a.when(Test::AtLeast(TOP), outside);
    a.when(Test::AtLeast(1), label);
    a.load(data::low(argument));
    a.when(Test::AtLeast(LOWEST_POINTER), label);
    a.place(outside);
}

fn when_in_window(a: &mut Assembler, argument: u32, label: Label) {
    let outside = a.label();
    let low = a.label();
    a.load(data::high(argument));
    a.when(Test::AtLeast(TOP), outside);
    a.when(Test::AtLeast(HEAP_END), label);
    a.unless(Test::AtLeast(HEAP), low);
    a.goto(outside);
    a.place(low);
    a.when(Test::AtLeast(WINDOW), label);
    a.place(outside);
}

pub(super) fn when_given(a: &mut Assembler, argument: u32, label: Label) {
    a.load(data::low(argument));
    a.unless(Test::Equal(0), label);
    a.load(data::high(argument));
    a.unless(Test::Equal(0), label);
}

/// The agent maps its gate before it can be asked.
pub(super) fn allow_making_the_gate(a: &mut Assembler, allow: Label) {
    let other = a.label();
    a.load(data::high(0));
    a.unless(Test::Equal((GATE_ADDRESS >> 32) as u32), other);
    a.load(data::low(0));
    a.when(Test::Equal(GATE_ADDRESS as u32), allow);
    a.place(other);
}

fn map(a: &mut Assembler, params: &Params, ends: Ends) {
    let threshold = params.threshold_bytes;
    allow_making_the_gate(a, ends.allow);
    let anonymous = a.label();
    a.load(data::low(3));
    a.when(Test::AnyBit(g::MAP_ANONYMOUS), anonymous);
    if params.shm {
        // The agent's library comes into programs by such a call.
        when_ours(a, 4, params, ends.allow);
        a.goto(ends.trap);
    }
    when_opened(a, 4, params, ends.trap);
    a.place(anonymous);
    when_in_window(a, 0, ends.trap);
    let pass = a.label();
    let anywhere = a.label();
    a.load(data::low(3));
    a.unless(Test::AnyBit(MAP_FIXED), anywhere);
    when_managed(a, 0, ends.trap);
    a.goto(pass);
    a.place(anywhere);
    let large = a.label();
    if params.shm {
        when_shared(a, large);
    }
    unless_private(a, pass);
    a.place(large);
    a.load(data::high(1));
    let (high, low) = ((threshold >> 32) as u32, threshold as u32);
    a.when(Test::Above(high), ends.trap);
    a.unless(Test::AtLeast(high), pass);
    a.load(data::low(1));
    a.when(Test::AtLeast(low), ends.trap);
    a.place(pass);
}

/// The call maps memory that is shared, of a kind that can be kept.
fn when_shared(a: &mut Assembler, label: Label) {
    let other = a.label();
    a.load(data::low(3));
    a.when(Test::AnyBit(NO_MEMORY_OF_OURS), other);
    a.unless(Test::AnyBit(g::MAP_ANONYMOUS), other);
    a.and(MAP_TYPE);
    a.when(Test::Equal(g::MAP_SHARED), label);
    a.place(other);
}

/// Goes to `pass` unless the call maps private memory that can be managed, at a place that Linux chooses.
pub(super) fn unless_private(a: &mut Assembler, pass: Label) {
    a.load(data::low(3));
    a.when(Test::AnyBit(MAP_FIXED | NO_MEMORY_OF_OURS), pass);
    a.unless(Test::AnyBit(g::MAP_ANONYMOUS), pass);
    a.and(MAP_TYPE);
    a.unless(Test::Equal(g::MAP_PRIVATE), pass);
    unless_linker(a, pass);
}

/// The dynamic linker, before the agent is there, reserves the room of a library whose segments are
/// aligned to more than a page: nowhere in particular, without access, with just these flags. Those
/// who reserve room for a heap say MAP_NORESERVE, or where they want it.
fn unless_linker(a: &mut Assembler, pass: Label) {
    let other = a.label();
    a.load(data::low(3));
    a.unless(Test::Equal(g::MAP_PRIVATE | g::MAP_ANONYMOUS), other);
    a.load(data::low(2));
    a.unless(Test::Equal(g::PROT_NONE), other);
    when_given(a, 0, other);
    a.goto(pass);
    a.place(other);
}

/// The dynamic linker makes what it relocated in the program read-only before the agent is there. Programs do not lie where
/// `MAP_32BIT` maps memory.
fn protect(a: &mut Assembler, ends: Ends) {
    allow_making_the_gate(a, ends.allow);
    when_in_window(a, 0, ends.trap);
    let (pass, not_low) = (a.label(), a.label());
    a.load(data::high(0));
    a.unless(Test::Equal(0), not_low);
    a.load(data::low(0));
    a.unless(Test::AtLeast(LOW_MAPPINGS.start), not_low);
    a.unless(Test::AtLeast(LOW_MAPPINGS.end), ends.trap);
    a.place(not_low);
    a.load(data::low(2));
    a.when(Test::Equal(g::PROT_READ), pass);
    when_managed(a, 0, ends.trap);
    a.place(pass);
}

/// Those that wait for a word or wake whoever waits only read it.
fn futex(a: &mut Assembler, params: &Params, ends: Ends) {
    let pass = a.label();
    a.load(data::low(1));
    if params.cluster {
        a.unless(Test::AnyBit(g::FUTEX_PRIVATE_FLAG), ends.trap);
    }
    a.and(FUTEX_OPERATION);
    a.unless(Test::AtLeast(g::FUTEX_WAKE_OP), pass);
    a.when(Test::Equal(g::FUTEX_WAIT_BITSET), pass);
    a.when(Test::Equal(g::FUTEX_WAKE_BITSET), pass);
    when_managed(a, 0, ends.trap);
    when_managed(a, 4, ends.trap);
    a.place(pass);
}

fn remap(a: &mut Assembler, ends: Ends) {
    a.load(data::high(0));
    a.unless(Test::AtLeast(TOP), ends.trap);
    let anywhere = a.label();
    a.load(data::low(3));
    a.unless(Test::AnyBit(g::MREMAP_FIXED), anywhere);
    when_managed(a, 4, ends.trap);
    a.place(anywhere);
}

fn when_ours(a: &mut Assembler, argument: u32, params: &Params, label: Label) {
    let other = a.label();
    a.load(data::low(argument));
    a.unless(Test::AtLeast(params.fd_base), other);
    a.unless(Test::AtLeast(params.fd_base + params.own_fds()), label);
    a.place(other);
}

/// The request of `ioctl` is one whose structure may have pointers in it.
fn when_structure(a: &mut Assembler, label: Label) {
    a.load(data::low(1));
    a.and(IOC_SIZE);
    a.when(Test::AtLeast(STRUCTURE_BYTES << 16), label);
    a.load(data::low(1));
    a.and(IOC_TYPE);
    for kind in WITHOUT_SIZES {
        a.when(Test::Equal(kind << 8), label);
    }
}

/// An option of a socket is set, one of these of `level`.
fn when_option(a: &mut Assembler, level: u32, names: &[u32], label: Label) {
    let other = a.label();
    a.load(data::low(1));
    a.unless(Test::Equal(level), other);
    a.load(data::low(2));
    for name in names {
        a.when(Test::Equal(*name), label);
    }
    a.place(other);
}

/// The second argument is `request` and the first one of ours.
fn on_ours(a: &mut Assembler, request: u32, params: &Params, label: Label) {
    let other = a.label();
    a.load(data::low(1));
    a.unless(Test::Equal(request), other);
    when_ours(a, 0, params, label);
    a.place(other);
}

/// The argument is a number under which a mapped file or one of shared memory can be open: one of
/// those kept for them, or, for mapped files, a standard one.
fn when_opened(a: &mut Assembler, argument: u32, params: &Params, label: Label) {
    if !params.maps && !params.shm {
        return;
    }
    let other = a.label();
    a.load(data::low(argument));
    if params.maps {
        a.unless(Test::AtLeast(3), label);
    }
    a.unless(Test::AtLeast(params.fd_base + fds::OPENED), other);
    a.unless(Test::AtLeast(params.fd_base + fds::OPENED_END), label);
    a.place(other);
}

/// `fcntl` with a command that matters for such a descriptor.
fn when_duplicated(a: &mut Assembler, params: &Params, label: Label) {
    let (other, matters) = (a.label(), a.label());
    let commands = match params.shm {
        true => &OF_SHARED[..],
        false => &OF_SHARED[..2],
    };
    a.load(data::low(1));
    for command in commands {
        a.when(Test::Equal(*command), matters);
    }
    a.goto(other);
    a.place(matters);
    when_opened(a, 0, params, label);
    a.place(other);
}

fn close_range(a: &mut Assembler, params: &Params, ends: Ends) {
    let apart = a.label();
    a.load(data::low(2));
    a.when(Test::AnyBit(CLOSE_RANGE_UNSHARE), ends.trap);
    a.load(data::low(0));
    a.when(Test::AtLeast(params.fd_base + params.own_fds()), apart);
    a.load(data::low(1));
    a.when(Test::AtLeast(params.fd_base), ends.trap);
    a.place(apart);
}
