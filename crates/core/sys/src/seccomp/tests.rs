//! The filter, run by an interpreter of classic BPF.

extern crate std;

use std::vec::Vec;

use farpage_object::fds;
use linux_raw_sys::general as g;

use super::assembler::{AND, Instruction, JEQ, JGE, JGT, JSET, JUMP, LOAD, RETURN};
use super::later::{self, BY_SUPERVISOR, Unseen};
use super::{GATE_ADDRESS, LEAST_ADDRESS, Params, TRAP_MARK, filter};
use crate::mem;

const ALLOW: u32 = 0x7fff_0000;
const TRAP: u32 = 0x0003_0000 | TRAP_MARK as u32;
const ERRNO: u32 = 0x0005_0000;
const X86_64: u32 = 0xC000_003E;
const FD_BASE: usize = 4064;
const THRESHOLD: usize = 128 << 10;
const PRIVATE: usize = (g::MAP_PRIVATE | g::MAP_ANONYMOUS) as usize;

struct Call {
    nr: u32,
    arch: u32,
    ip: usize,
    args: [usize; 6],
}

impl Call {
    fn word(&self, offset: u32) -> u32 {
        match offset {
            0 => self.nr,
            4 => self.arch,
            8 => self.ip as u32,
            12 => (self.ip >> 32) as u32,
            _ => {
                let value = self.args[(offset as usize - 16) / 8];
                if offset.is_multiple_of(8) {
                    value as u32
                } else {
                    (value >> 32) as u32
                }
            }
        }
    }
}

/// The filter's answer, and how many instructions it took.
fn run(code: &[Instruction], call: &Call) -> (u32, usize) {
    let (mut at, mut value, mut steps) = (0, 0u32, 0);
    loop {
        let i = code[at];
        steps += 1;
        at += 1;
        let jump = |holds: bool| at + if holds { i.jt } else { i.jf } as usize;
        match i.code {
            LOAD => value = call.word(i.k),
            AND => value &= i.k,
            JUMP => at += i.k as usize,
            JEQ => at = jump(value == i.k),
            JGT => at = jump(value > i.k),
            JGE => at = jump(value >= i.k),
            JSET => at = jump(value & i.k != 0),
            RETURN => return (i.k, steps),
            other => panic!("instruction {other:#x}"),
        }
    }
}

/// True when the answer depends on number and architecture alone, as Linux finds out once for all.
fn constant(code: &[Instruction], nr: u32) -> bool {
    let call = Call {
        nr,
        arch: X86_64,
        ip: 0,
        args: [0; 6],
    };
    let (mut at, mut value) = (0, 0u32);
    loop {
        let i = code[at];
        at += 1;
        let jump = |holds: bool| at + if holds { i.jt } else { i.jf } as usize;
        match i.code {
            LOAD if i.k > 4 => return false,
            LOAD => value = call.word(i.k),
            AND => value &= i.k,
            JUMP => at += i.k as usize,
            JEQ => at = jump(value == i.k),
            JGT => at = jump(value > i.k),
            JGE => at = jump(value >= i.k),
            JSET => at = jump(value & i.k != 0),
            _ => return i.k == ALLOW,
        }
    }
}

const PARAMS: Params = Params {
    fd_base: FD_BASE as u32,
    threshold_bytes: THRESHOLD as u64,
    user_mode_tier: false,
    maps: false,
    shm: false,
    cluster: false,
    machine: false,
};

fn code(user_mode_tier: bool) -> Vec<Instruction> {
    filter(&Params {
        user_mode_tier,
        ..PARAMS
    })
}

/// What a filter answers to a call of the program's.
fn answer_of(params: &Params, nr: u32, args: &[usize]) -> u32 {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    let call = Call {
        nr,
        arch: X86_64,
        ip: 0x7f00_0000_0000,
        args: all,
    };
    run(&filter(params), &call).0
}

fn answer_with_maps(nr: u32, args: &[usize]) -> u32 {
    let maps = true;
    answer_of(&Params { maps, ..PARAMS }, nr, args)
}

fn answer_with_shm(nr: u32, args: &[usize]) -> u32 {
    answer_with_shm_of(false, nr, args)
}

fn answer_with_shm_of(cluster: bool, nr: u32, args: &[usize]) -> u32 {
    let shared = Params {
        shm: true,
        cluster,
        ..PARAMS
    };
    answer_of(&shared, nr, args)
}

#[test]
fn shared_memory_is_trapped_where_it_is_made_mapped_or_used_by_a_known_descriptor() {
    let shared = (g::MAP_SHARED | g::MAP_ANONYMOUS) as usize;
    let map = |bytes: usize, flags: usize| answer_with_shm(g::__NR_mmap, &[0, bytes, 3, flags, 5]);
    assert_eq!(map(1, g::MAP_SHARED as usize), TRAP);
    assert_eq!(map(1, g::MAP_PRIVATE as usize), TRAP);
    assert_eq!(map(THRESHOLD, shared), TRAP);
    assert_eq!(map(THRESHOLD - 1, shared), ALLOW);
    for nr in [
        g::__NR_openat,
        g::__NR_ftruncate,
        g::__NR_shmat,
        g::__NR_semget,
        g::__NR_memfd_create,
        g::__NR_recvmsg,
        g::__NR_sendmsg,
    ] {
        assert_eq!(answer_with_shm(nr, &[5]), TRAP, "call {nr}");
    }
    for nr in [
        g::__NR_semop,
        g::__NR_shmctl,
        g::__NR_unlink,
        g::__NR_sendto,
    ] {
        assert_eq!(answer_with_shm(nr, &[5]), ALLOW, "call {nr}");
    }
    let kept = FD_BASE + fds::OPENED as usize;
    for (fd, expected) in [(0, ALLOW), (7, ALLOW), (kept - 1, ALLOW), (kept, TRAP)] {
        for nr in [g::__NR_read, g::__NR_write, g::__NR_pwritev2, g::__NR_dup] {
            assert_eq!(answer_with_shm(nr, &[fd]), expected, "call {nr} of {fd}");
        }
        assert_eq!(
            answer_with_shm(g::__NR_copy_file_range, &[5, 0, fd]),
            expected
        );
        assert_eq!(answer_with_shm(g::__NR_sendfile, &[fd, 5]), expected);
    }
}

#[test]
fn names_and_words_of_a_cluster_are_trapped_where_there_is_one() {
    let wait = |cluster: bool, more: u32| {
        let operation = (g::FUTEX_WAIT_BITSET | more) as usize;
        answer_with_shm_of(cluster, g::__NR_futex, &[0, operation])
    };
    assert_eq!(wait(true, 0), TRAP);
    assert_eq!(wait(true, g::FUTEX_CLOCK_REALTIME), TRAP);
    assert_eq!(wait(true, g::FUTEX_PRIVATE_FLAG), ALLOW);
    assert_eq!(wait(false, 0), ALLOW);
    for nr in [g::__NR_unlink, g::__NR_linkat, g::__NR_shmctl] {
        assert_eq!(answer_with_shm_of(true, nr, &[5]), TRAP, "call {nr}");
        assert_eq!(answer_with_shm(nr, &[5]), ALLOW, "call {nr}");
    }
    assert_eq!(
        answer_with_shm_of(true, g::__NR_futex_waitv, &[5]),
        ERRNO | 38
    );
    assert_eq!(
        answer_with_shm_of(true, g::__NR_mmap, &[0, 1, 3, 1, 5]),
        TRAP
    );
}

#[test]
fn descriptors_of_mapped_files_are_known_by_their_numbers() {
    let (first, end) = (
        FD_BASE + fds::OPENED as usize,
        FD_BASE + fds::OPENED_END as usize,
    );
    for (fd, expected) in [
        (0, TRAP),
        (2, TRAP),
        (3, ALLOW),
        (FD_BASE - 1, ALLOW),
        (first - 1, ALLOW),
        (first, TRAP),
        (end - 1, TRAP),
        (end, ALLOW),
    ] {
        for nr in [g::__NR_read, g::__NR_preadv2, g::__NR_dup, g::__NR_splice] {
            assert_eq!(answer_with_maps(nr, &[fd]), expected, "call {nr} of {fd}");
        }
        let map = |flags: u32| answer_with_maps(g::__NR_mmap, &[0, 1, 1, flags as usize, fd]);
        assert_eq!(map(g::MAP_SHARED), expected);
        assert_eq!(map(g::MAP_SHARED | g::MAP_ANONYMOUS), ALLOW);
        assert_eq!(answer_with_maps(g::__NR_sendfile, &[9, fd]), expected);
        let seek = |whence: u32| answer_with_maps(g::__NR_lseek, &[fd, 0, whence as usize]);
        assert_eq!(seek(g::SEEK_HOLE), expected);
        assert_eq!(seek(g::SEEK_END), ALLOW);
        let fcntl = |command: u32| answer_with_maps(g::__NR_fcntl, &[fd, command as usize]);
        assert_eq!(fcntl(g::F_DUPFD_CLOEXEC), expected);
        assert_eq!(fcntl(g::F_GETFL), ALLOW);
    }
    assert_eq!(answer_with_maps(g::__NR_dup2, &[first, 5]), TRAP);
    assert_eq!(
        answer_with_maps(g::__NR_dup2, &[5, first - 1]),
        ERRNO | 9,
        "mapped files themselves are ours"
    );
}

#[test]
fn paths_are_looked_at_where_files_are_mapped() {
    assert_eq!(answer_with_maps(g::__NR_openat, &[0, 0]), TRAP);
    let empty = g::AT_EMPTY_PATH as usize;
    assert_eq!(answer_with_maps(g::__NR_newfstatat, &[5, 0, 0, 0]), TRAP);
    assert_eq!(
        answer_with_maps(g::__NR_newfstatat, &[5, 0, 0, empty]),
        ALLOW
    );
    assert_eq!(answer_with_maps(g::__NR_io_uring_setup, &[8]), ERRNO | 38);
    assert_eq!(answer(g::__NR_openat, &[0, 0]), ALLOW);
    assert_eq!(answer(g::__NR_read, &[0]), ALLOW);
}

fn answer(nr: u32, args: &[usize]) -> u32 {
    answer_in(false, nr, args)
}

fn answer_in(user_mode_tier: bool, nr: u32, args: &[usize]) -> u32 {
    let params = Params {
        user_mode_tier,
        ..PARAMS
    };
    answer_of(&params, nr, args)
}

#[test]
fn large_private_memory_is_trapped_and_nothing_else() {
    let map = |at: usize, bytes: usize, flags: usize| answer(g::__NR_mmap, &[at, bytes, 3, flags]);
    assert_eq!(map(0, THRESHOLD, PRIVATE), TRAP);
    assert_eq!(map(0, THRESHOLD - 1, PRIVATE), ALLOW);
    assert_eq!(map(0, 1 << 32, PRIVATE), TRAP);
    assert_eq!(map(0, 1 << 30, g::MAP_PRIVATE as usize), ALLOW, "a file");
    assert_eq!(
        map(0, 1 << 30, (g::MAP_SHARED | g::MAP_ANONYMOUS) as usize),
        ALLOW
    );
    for special in [g::MAP_STACK, g::MAP_GROWSDOWN, g::MAP_HUGETLB] {
        assert_eq!(map(0, 1 << 30, PRIVATE | special as usize), ALLOW);
    }
    let low = mem::MAP_32BIT as usize;
    assert_eq!(map(0, THRESHOLD, PRIVATE | low), TRAP, "in the low 2 GiB");
    assert_eq!(map(0, THRESHOLD - 1, PRIVATE | low), ALLOW);
    let fixed = g::MAP_FIXED as usize;
    assert_eq!(
        map(0x7f12_0000_0000, 1 << 30, PRIVATE | fixed),
        ALLOW,
        "a library's zeros"
    );
    assert_eq!(map(0x1000_0000_0000, 4096, PRIVATE | fixed), TRAP);
    assert_eq!(
        map(0x1000_0000_0000, 4096, g::MAP_PRIVATE as usize | fixed),
        TRAP
    );
    assert_eq!(map(0x8000_0000, 4096, PRIVATE | fixed), TRAP);
    assert_eq!(map(0x8000_0000, 4096, PRIVATE), ALLOW, "a hint");
    assert_eq!(
        map(0xc0_0000_0000, 4096, PRIVATE),
        TRAP,
        "a hint into the window"
    );
}

#[test]
fn addresses_decide_about_memory_calls() {
    for nr in [
        g::__NR_munmap,
        g::__NR_madvise,
        g::__NR_mlock,
        g::__NR_mlock2,
        g::__NR_munlock,
    ] {
        for at in [0x40_0000, 0x1_0000_0000, 0x5555_5555_0000, 0x6fff_ffff_f000] {
            assert_eq!(answer(nr, &[at, 4096]), TRAP);
        }
        for at in [0x7000_0000_0000, 0x7fff_ffff_f000] {
            assert_eq!(answer(nr, &[at, 4096]), ALLOW);
        }
    }
}

#[test]
fn the_dynamic_linker_may_protect_the_program() {
    let read = g::PROT_READ as usize;
    for at in [0x4000_0000, 0x7aff_f000] {
        assert_eq!(
            answer(g::__NR_mprotect, &[at, 4096, read]),
            TRAP,
            "no program"
        );
    }
    for at in [0x40_3000, 0x7d00_3000, 0x5555_5555_0000] {
        assert_eq!(answer(g::__NR_mprotect, &[at, 4096, read]), ALLOW);
        assert_eq!(answer(g::__NR_mprotect, &[at, 4096, 3]), TRAP);
    }
    assert_eq!(
        answer(g::__NR_mprotect, &[0x1000_0000_0000, 4096, read]),
        TRAP
    );
    assert_eq!(
        answer(g::__NR_mprotect, &[0x7f00_0000_0000, 4096, 3]),
        ALLOW
    );
}

#[test]
fn a_move_is_trapped_for_its_source_or_its_target() {
    let away = 0x7f00_0000_0000;
    let inside = 0x1000_0000_0000;
    let fixed = (g::MREMAP_FIXED | g::MREMAP_MAYMOVE) as usize;
    assert_eq!(answer(g::__NR_mremap, &[inside, 1, 2, 1, 0]), TRAP);
    assert_eq!(
        answer(g::__NR_mremap, &[away, 1, 2, 1, inside]),
        ALLOW,
        "the target is not given"
    );
    assert_eq!(answer(g::__NR_mremap, &[away, 1, 2, fixed, inside]), TRAP);
    assert_eq!(answer(g::__NR_mremap, &[away, 1, 2, fixed, away]), ALLOW);
}

#[test]
fn who_asks_for_the_memory_of_the_machine_is_answered_by_the_agent_where_it_is_said() {
    for nr in [
        g::__NR_open,
        g::__NR_openat,
        g::__NR_openat2,
        g::__NR_sysinfo,
    ] {
        assert_eq!(answer(nr, &[]), ALLOW);
        for user_mode_tier in [false, true] {
            let code = filter(&Params {
                user_mode_tier,
                machine: true,
                ..PARAMS
            });
            let call = |ip| Call {
                nr,
                arch: X86_64,
                ip,
                args: [0; 6],
            };
            assert_eq!(run(&code, &call(0x7f00_0000_0000)).0, TRAP);
            assert_eq!(run(&code, &call(GATE_ADDRESS)).0, ALLOW);
        }
    }
}

#[test]
fn processes_and_signals() {
    let vm = g::CLONE_VM as usize;
    assert_eq!(answer(g::__NR_clone, &[17]), TRAP);
    assert_eq!(answer(g::__NR_clone, &[vm | 17]), ALLOW);
    assert_eq!(answer(g::__NR_vfork, &[]), ALLOW);
    assert_eq!(answer(g::__NR_clone3, &[]), ERRNO | 38);
    for nr in [
        g::__NR_fork,
        g::__NR_execve,
        g::__NR_execveat,
        g::__NR_seccomp,
        g::__NR_chroot,
        g::__NR_pivot_root,
        g::__NR_landlock_restrict_self,
        g::__NR_unshare,
        g::__NR_setns,
    ] {
        assert_eq!(answer(nr, &[]), TRAP);
    }
    assert_eq!(
        answer(g::__NR_rt_sigaction, &[11, 0, 0x7fff_0000_0000]),
        ALLOW
    );
    assert_eq!(
        answer(g::__NR_rt_sigaction, &[11, 0x7fff_0000_0000, 0]),
        TRAP
    );
    let sigsys = g::SIGSYS as usize;
    assert_eq!(
        answer(g::__NR_rt_sigaction, &[sigsys, 0, 0x7fff_0000_0000]),
        TRAP
    );
    let set = 0x7fff_0000_0000;
    assert_eq!(
        answer(g::__NR_rt_sigprocmask, &[g::SIG_BLOCK as usize, set]),
        TRAP
    );
    assert_eq!(
        answer(g::__NR_rt_sigprocmask, &[g::SIG_UNBLOCK as usize, set]),
        ALLOW
    );
    assert_eq!(
        answer(g::__NR_rt_sigprocmask, &[g::SIG_SETMASK as usize, 0, set]),
        ALLOW
    );
    assert_eq!(answer(g::__NR_ppoll, &[set, 1, 0, set]), TRAP);
    assert_eq!(answer(g::__NR_ppoll, &[set, 1, set, 0]), ALLOW);
    assert_eq!(answer(g::__NR_prctl, &[22, 2]), TRAP);
    assert_eq!(answer(g::__NR_prctl, &[67, 1]), TRAP);
    assert_eq!(answer(g::__NR_prctl, &[15, 2]), ALLOW);
    assert_eq!(answer(g::__NR_brk, &[0]), ALLOW);
    assert_eq!(answer(g::__NR_brk, &[0x5555_0000_0000]), TRAP);
}

#[test]
fn descriptors_of_farpage_stay() {
    let last = FD_BASE + fds::COUNT as usize - 1;
    let ebadf = ERRNO | 9;
    for (fd, expected) in [
        (3, ALLOW),
        (FD_BASE - 1, ALLOW),
        (last + 1, ALLOW),
        (last, ebadf),
    ] {
        assert_eq!(answer(g::__NR_close, &[fd]), expected & !9, "0, not EBADF");
        assert_eq!(answer(g::__NR_dup2, &[0, fd]), expected);
        assert_eq!(answer(g::__NR_dup3, &[0, fd, 0]), expected);
    }
    assert_eq!(answer(g::__NR_close_range, &[3, u32::MAX as usize]), TRAP);
    assert_eq!(answer(g::__NR_close_range, &[3, FD_BASE - 1]), ALLOW);
    assert_eq!(answer(g::__NR_close_range, &[3, 4, 4]), ALLOW);
    assert_eq!(answer(g::__NR_close_range, &[3, 4, 6]), TRAP);
    assert_eq!(
        answer(g::__NR_close_range, &[last + 1, u32::MAX as usize]),
        ALLOW
    );
    let close_on_exec = g::F_SETFD as usize;
    assert_eq!(answer(g::__NR_fcntl, &[FD_BASE, close_on_exec, 1]), ERRNO);
    assert_eq!(answer(g::__NR_fcntl, &[5, close_on_exec, 1]), ALLOW);
    assert_eq!(answer(g::__NR_fcntl, &[FD_BASE, 1]), ALLOW);
    assert_eq!(answer(g::__NR_ioctl, &[FD_BASE, 0x5451]), ERRNO);
}

#[test]
fn what_pins_memory_or_changes_a_word_with_the_address_space_locked_is_trapped() {
    let xdp = |option| answer(g::__NR_setsockopt, &[3, 283, option, 0x1000_0000_0000, 32]);
    assert_eq!(xdp(4), TRAP);
    assert_eq!(xdp(5), ALLOW);
    assert_eq!(answer(g::__NR_setsockopt, &[3, 1, 4]), ALLOW);
    for request in [0xc038_4627, 0x3b71, 0x3b85] {
        assert_eq!(answer(g::__NR_ioctl, &[3, request]), TRAP, "{request:#x}");
    }
    assert_eq!(answer(g::__NR_ioctl, &[3, 0xc038_4628]), ALLOW);
    let at = 0x1000_0000_0000;
    let futex =
        |operation: u32, one, other| answer(g::__NR_futex, &[one, operation as usize, 0, 0, other]);
    for operation in [
        g::FUTEX_LOCK_PI,
        g::FUTEX_LOCK_PI2,
        g::FUTEX_UNLOCK_PI,
        g::FUTEX_TRYLOCK_PI,
        g::FUTEX_WAIT_REQUEUE_PI,
        g::FUTEX_CMP_REQUEUE_PI,
        g::FUTEX_WAKE_OP,
    ] {
        for how in [0, g::FUTEX_PRIVATE_FLAG, g::FUTEX_CLOCK_REALTIME] {
            assert_eq!(futex(operation | how, at, 0), TRAP, "{operation}");
        }
        assert_eq!(futex(operation, 0x7ffd_0000_0000, at), TRAP);
        assert_eq!(futex(operation, 0x7ffd_0000_0000, 0x7ffd_0000_0000), ALLOW);
    }
    for operation in [
        g::FUTEX_WAIT,
        g::FUTEX_WAKE,
        g::FUTEX_CMP_REQUEUE,
        g::FUTEX_WAIT_BITSET,
        g::FUTEX_WAKE_BITSET,
    ] {
        assert_eq!(futex(operation | g::FUTEX_PRIVATE_FLAG, at, at), ALLOW);
    }
}

#[test]
fn the_gate_and_other_machines_pass() {
    let call = |ip, arch| {
        let args = [0; 6];
        run(
            &code(true),
            &Call {
                nr: g::__NR_execve,
                arch,
                ip,
                args,
            },
        )
        .0
    };
    assert_eq!(call(GATE_ADDRESS + 25, X86_64), ALLOW);
    assert_eq!(call(GATE_ADDRESS + 4096, X86_64), TRAP);
    assert_eq!(call(GATE_ADDRESS - 1, X86_64), TRAP);
    assert_eq!(call(GATE_ADDRESS + (1 << 32), X86_64), TRAP);
    assert_eq!(call(0, 0x4000_0003), ALLOW, "32-bit programs run unmanaged");
}

#[test]
fn the_agent_may_make_its_gate() {
    let fixed = (g::MAP_PRIVATE | g::MAP_ANONYMOUS | g::MAP_FIXED_NOREPLACE) as usize;
    assert_eq!(answer(g::__NR_mmap, &[GATE_ADDRESS, 4096, 3, fixed]), ALLOW);
    assert_eq!(answer(g::__NR_mprotect, &[GATE_ADDRESS, 4096, 5]), ALLOW);
    assert_eq!(answer(g::__NR_munmap, &[GATE_ADDRESS, 4096]), TRAP);
}

#[test]
fn the_user_mode_tier_looks_at_pointers() {
    let read = |at| answer_in(true, g::__NR_read, &[0, at, 100]);
    assert_eq!(read(0x1000_0000_0000), TRAP);
    assert_eq!(read(0x5555_5555_0000), TRAP);
    assert_eq!(read(0x40_0000), TRAP);
    assert_eq!(read(0), ALLOW);
    assert_eq!(read(0x7ffd_0000_0000), ALLOW);
    assert_eq!(answer_in(true, g::__NR_readv, &[0, 0x7ffd_0000_0000]), TRAP);
    assert_eq!(answer_in(true, g::__NR_io_uring_setup, &[8]), ERRNO | 38);
    assert_eq!(
        answer_in(true, g::__NR_ioctl, &[0, 0x5401, 0x1000_0000_0000]),
        TRAP
    );
    assert_eq!(
        answer_in(true, g::__NR_fcntl, &[0, 4, 0x800]),
        ALLOW,
        "a number, no pointer"
    );
    assert_eq!(answer(g::__NR_read, &[0, 0x1000_0000_0000]), ALLOW);
    assert_eq!(answer(g::__NR_io_uring_setup, &[8]), ALLOW);
}

#[test]
fn the_user_mode_tier_looks_at_what_decides_where_signals_arrive() {
    let on_stack = 0x7ffd_0000_0000;
    let thread = (g::CLONE_VM | g::CLONE_SIGHAND | g::CLONE_THREAD) as usize;
    let sharer = (g::CLONE_VM | g::SIGCHLD) as usize;
    let calls: [(u32, &[usize]); 5] = [
        (g::__NR_clone, &[sharer, on_stack]),
        (g::__NR_rt_sigaction, &[10, 0, on_stack, 8]),
        (g::__NR_rt_sigreturn, &[]),
        (g::__NR_sigaltstack, &[on_stack, 0]),
        (g::__NR_clone, &[thread, on_stack]),
    ];
    for (nr, args) in calls {
        assert_eq!(answer_in(true, nr, args), TRAP, "call {nr}");
        assert_eq!(answer(nr, args), ALLOW, "call {nr}");
    }
    let spawned = (g::CLONE_VM | g::CLONE_VFORK) as usize;
    assert_eq!(answer_in(true, g::__NR_clone, &[spawned, on_stack]), ALLOW);
    assert_eq!(answer_in(true, g::__NR_clone, &[sharer, 0]), ALLOW);
}

/// Before the agent is there a trapped call would end the program, and its linker would not be heard.
#[test]
fn what_the_dynamic_linker_has_to_say_passes_in_the_user_mode_tier() {
    let on_stack = 0x7ffd_0000_0000;
    let writes = |args: [usize; 3]| answer_in(true, g::__NR_writev, &args);
    assert_eq!(writes([2, on_stack, 7]), ALLOW);
    assert_eq!(writes([1, on_stack, 3]), ALLOW);
    for args in [
        [2, on_stack, 2],
        [0, on_stack, 7],
        [3, on_stack, 7],
        [2, 0x1100_0000_0000, 7],
        [2, 0x7f00_0000_0000, 7],
        [2, 0x5555_5555_0000, 7],
    ] {
        assert_eq!(writes(args), TRAP, "{args:x?}");
    }
    assert_eq!(answer(g::__NR_writev, &[2, 0x1100_0000_0000, 7]), ALLOW);
}

/// Linux reads the list when the process ends, and can have nothing brought in any more.
#[test]
fn a_list_of_robust_locks_is_seen_where_it_can_be_away() {
    let set = |at| answer(g::__NR_set_robust_list, &[at, 24]);
    assert_eq!(set(0x1100_0000_0000), TRAP);
    assert_eq!(set(0x7f00_0000_0000), ALLOW);
}

#[test]
fn what_leaves_a_process_few_descriptors_or_threads_is_trapped() {
    let on_stack = 0x7ffd_0000_0000;
    for resource in [6, 7] {
        assert_eq!(answer(g::__NR_setrlimit, &[resource, on_stack]), TRAP);
        let asks = [0, resource, 0, on_stack];
        assert_eq!(answer(g::__NR_prlimit64, &asks), ALLOW);
        let sets = [0, resource, on_stack, 0];
        assert_eq!(answer(g::__NR_prlimit64, &sets), TRAP);
    }
    assert_eq!(answer(g::__NR_setrlimit, &[3, on_stack]), ALLOW);
    assert_eq!(answer(g::__NR_prlimit64, &[0, 3, on_stack, 0]), ALLOW);
}

#[test]
fn what_replaces_or_gives_up_memory_by_other_calls_is_trapped() {
    let at = 0x1100_0000_0000;
    assert_eq!(answer(g::__NR_process_madvise, &[3, at, 1, 4, 0]), TRAP);
    assert_eq!(answer(g::__NR_shmat, &[3, at, 0o40000]), TRAP);
    assert_eq!(answer(g::__NR_shmat, &[3, at, 0o10000]), ALLOW);
}

#[test]
fn what_a_thread_leaves_behind_is_looked_at_in_both_tiers() {
    assert_eq!(answer_in(true, g::__NR_exit, &[0]), TRAP);
    assert_eq!(answer(g::__NR_exit, &[0]), TRAP);
}

#[test]
fn the_user_mode_tier_looks_at_structures_that_may_have_pointers() {
    let on_stack = 0x7ffd_0000_0000;
    let ioctl = |request| (g::__NR_ioctl, [3, request, on_stack, 0, 0]);
    let option = |level, name| (g::__NR_setsockopt, [3, level, name, on_stack, 16]);
    let waits = (g::__NR_futex_waitv, [on_stack, 1, 0, 0, 0]);
    let looked_at = [
        ioctl(0xc018_6401),
        ioctl(0x8912),
        ioctl(0x2285),
        option(1, 26),
        option(1, 51),
        waits,
    ];
    for (nr, args) in looked_at {
        assert_eq!(answer_in(true, nr, &args), TRAP, "call {nr} {args:x?}");
        assert_eq!(answer(nr, &args), ALLOW, "call {nr} {args:x?}");
    }
    // A terminal's settings, how much there is to be read, and an option that is a number.
    for (nr, args) in [ioctl(0x5401), ioctl(0x541b), option(1, 2), option(6, 26)] {
        assert_eq!(answer_in(true, nr, &args), ALLOW, "call {nr} {args:x?}");
    }
}

#[test]
fn common_calls_are_known_without_running_the_filter() {
    let code = code(false);
    let common = [
        g::__NR_read,
        g::__NR_write,
        g::__NR_poll,
        g::__NR_epoll_wait,
        g::__NR_getpid,
        g::__NR_sendmsg,
        g::__NR_openat,
    ];
    for nr in common {
        assert!(constant(&code, nr), "call {nr}");
    }
    assert!(!constant(&code, g::__NR_mmap));
    let call = Call {
        nr: g::__NR_mmap,
        arch: X86_64,
        ip: 0,
        args: [0, 4096, 3, PRIVATE, 0, 0],
    };
    assert!(run(&code, &call).1 < 50);
    assert!(code.len() < 700, "{}", code.len());
}

/// Goes through the stub that makes a call again when Linux does not find the memory, as a program does:
/// what it returns, and whether it goes back to the call.
fn through_again(number: u32, first: usize) -> (isize, bool) {
    let at = mem::map_anonymous(4096).unwrap();
    // SAFETY: the page was mapped just now, writable, and is larger than the code.
    unsafe {
        super::gate::copy_code(at);
        mem::protect(at, 4096, mem::PROT_READ | mem::PROT_EXEC).unwrap();
    }
    let (returned, back): (isize, u32);
    // SAFETY: the stub takes what it leaves on the stack; the call has no other effect.
    unsafe {
        core::arch::asm!(
            "sub rsp, {skip}",
            "mov [rsp], rax",
            "lea rcx, [rip + 3f]",
            "push rcx",
            "jmp r8",
            // Where the program made the call: two bytes.
            ".byte 0xeb, 0x04",
            "3:",
            "xor ecx, ecx",
            "jmp 5f",
            "mov ecx, 1",
            "5:",
            skip = const super::REISSUE_SKIP,
            inlateout("rax") number as isize => returned,
            in("rdi") first,
            in("rsi") 0usize,
            in("rdx") 0usize,
            in("r10") 0usize,
            in("r8") at + super::GATE_AGAIN,
            lateout("rcx") back,
            out("r11") _,
        );
        mem::unmap(at, 4096).unwrap();
    }
    (returned, back == 1)
}

#[test]
fn a_call_whose_memory_linux_does_not_find_is_made_again() {
    let wait = g::__NR_futex;
    assert_eq!(through_again(wait, 8), (wait as isize, true), "EFAULT");
    assert!(!through_again(g::__NR_getppid, 0).1);
    let close = through_again(g::__NR_close, usize::MAX);
    assert_eq!(close, (-9, false), "EBADF is told");
}

#[test]
fn places_in_files_that_are_addresses_are_seen() {
    const PLACED: [(u32, usize); 7] = [
        (g::__NR_pread64, 3),
        (g::__NR_preadv, 3),
        (g::__NR_preadv2, 3),
        (g::__NR_pwrite64, 3),
        (g::__NR_pwritev, 3),
        (g::__NR_pwritev2, 3),
        (g::__NR_lseek, 1),
    ];
    for (nr, argument) in PLACED {
        let answer = |place| {
            let mut args = [5, 0, 0, 0, 0, 0];
            args[argument] = place;
            [
                answer(nr, &args),
                answer_with_shm(nr, &args),
                answer_with_maps(nr, &args),
            ]
        };
        assert_eq!(answer(1 << 40), [ALLOW; 3], "{nr}");
        assert_eq!(answer(LEAST_ADDRESS - 1), [ALLOW; 3], "{nr}");
        assert_eq!(answer(LEAST_ADDRESS), [TRAP; 3], "{nr}");
        assert_eq!(answer(0x5555_5555_0000), [TRAP; 3], "{nr}");
        assert_eq!(answer(0x7fff_0000_0000), [ALLOW; 3], "{nr}");
        assert_eq!(answer(usize::MAX), [ALLOW; 3], "{nr}");
    }
}

#[test]
fn whoever_begins_to_trace_a_thread_is_seen() {
    const PEEK: usize = 2;
    for (request, expected) in [(0, TRAP), (16, TRAP), (0x4206, TRAP), (PEEK, ALLOW)] {
        assert_eq!(answer(g::__NR_ptrace, &[request, 77]), expected);
    }
}

fn answer_later(what: Unseen, nr: u32, args: &[usize]) -> u32 {
    let mut all = [0; 6];
    all[..args.len()].copy_from_slice(args);
    let call = |ip, arch| Call {
        nr,
        arch,
        ip,
        args: all,
    };
    let code = later::filter(what);
    assert_eq!(run(&code, &call(0x7f00_0000_0000, 3)).0, ALLOW);
    let own = run(&code, &call(GATE_ADDRESS + 25, X86_64)).0;
    assert!(own == ALLOW || own == ERRNO);
    run(&code, &call(0x7f00_0000_0000, X86_64)).0
}

#[test]
fn a_number_that_is_seen_later_is_seen_in_all_that_moves_bytes() {
    let seven = |nr, args: &[usize]| answer_later(Unseen::Descriptor(7), nr, args);
    for nr in [
        g::__NR_read,
        g::__NR_write,
        g::__NR_preadv2,
        g::__NR_pwritev,
        g::__NR_dup,
    ] {
        assert_eq!(seven(nr, &[7, 1, 1]), TRAP, "{nr}");
        assert_eq!(seven(nr, &[8, 7, 7]), ALLOW, "{nr}");
    }
    for (nr, args, expected) in [
        (g::__NR_sendfile, [7, 9, 0], TRAP),
        (g::__NR_sendfile, [9, 7, 0], TRAP),
        (g::__NR_sendfile, [9, 8, 7], ALLOW),
        (g::__NR_splice, [9, 0, 7], TRAP),
        (g::__NR_lseek, [7, 0, g::SEEK_HOLE as usize], TRAP),
        (g::__NR_lseek, [7, 0, g::SEEK_END as usize], ALLOW),
        (g::__NR_lseek, [8, 0, g::SEEK_DATA as usize], ALLOW),
        (g::__NR_dup2, [7, 1, 0], TRAP),
        (g::__NR_dup3, [1, 7, 0], ALLOW),
        (g::__NR_fcntl, [7, g::F_DUPFD as usize, 0], TRAP),
        (g::__NR_fcntl, [7, g::F_OFD_SETLKW as usize, 0], TRAP),
        (g::__NR_fcntl, [7, g::F_GETFD as usize, 0], ALLOW),
        (g::__NR_fcntl, [8, g::F_DUPFD as usize, 0], ALLOW),
        (g::__NR_munmap, [7, 7, 7], ALLOW),
    ] {
        assert_eq!(seven(nr, &args), expected, "{nr} {args:?}");
    }
}

#[test]
fn memory_that_is_seen_later_is_seen_anywhere() {
    let answer = |nr, args: &[usize]| answer_later(Unseen::Memory, nr, args);
    let (fixed, noreplace) = (g::MAP_FIXED as usize, g::MAP_FIXED_NOREPLACE as usize);
    let stack = 0x7ffd_0000_0000;
    for nr in [
        g::__NR_munmap,
        g::__NR_mprotect,
        g::__NR_mremap,
        g::__NR_madvise,
    ] {
        assert_eq!(answer(nr, &[stack, 4096, 1]), TRAP, "{nr}");
    }
    let map = |at, flags, fd: i32| answer(g::__NR_mmap, &[at, 4096, 3, flags, fd as usize]);
    assert_eq!(map(stack, PRIVATE | fixed, -1), TRAP);
    assert_eq!(map(stack, PRIVATE | noreplace, 5), TRAP);
    assert_eq!(map(stack, PRIVATE, -1), ALLOW);
    assert_eq!(map(stack, PRIVATE | fixed, BY_SUPERVISOR), ALLOW);
    assert_eq!(map(GATE_ADDRESS, PRIVATE | fixed, -1), ALLOW);
    assert_eq!(answer(g::__NR_mprotect, &[GATE_ADDRESS, 4096, 5]), ALLOW);
    assert_eq!(answer(g::__NR_lseek, &[usize::MAX, 0, 0]), ALLOW);
    assert_eq!(answer(g::__NR_read, &[0, 0, 0]), ALLOW);
}

#[test]
fn small_memory_that_is_seen_later_is_private_and_where_linux_places_it() {
    let map = |flags, prot| {
        let args = [0, 4096, prot, flags, usize::MAX];
        answer_later(Unseen::SmallMemory, g::__NR_mmap, &args)
    };
    assert_eq!(map(PRIVATE, 3), TRAP);
    assert_eq!(
        map(PRIVATE | mem::MAP_32BIT as usize, 3),
        TRAP,
        "in the low 2 GiB"
    );
    assert_eq!(map(PRIVATE | g::MAP_NORESERVE as usize, 0), TRAP);
    assert_eq!(map(PRIVATE, 0), ALLOW, "the dynamic linker's");
    for other in [g::MAP_STACK, g::MAP_GROWSDOWN, g::MAP_HUGETLB, g::MAP_FIXED] {
        assert_eq!(map(PRIVATE | other as usize, 3), ALLOW, "{other:#x}");
    }
    assert_eq!(map(g::MAP_PRIVATE as usize, 3), ALLOW, "a file");
    let shared = g::MAP_SHARED | g::MAP_ANONYMOUS;
    assert_eq!(map(shared as usize, 3), ALLOW);
    let hinted = [0x7f12_0000_0000, 4096, 3, PRIVATE, usize::MAX];
    let answer = answer_later(Unseen::SmallMemory, g::__NR_mmap, &hinted);
    assert_eq!(answer, ALLOW, "the program says where");
    let answer = |nr| answer_later(Unseen::SmallMemory, nr, &[0x1100_0000_0000, 4096, 3]);
    for nr in [g::__NR_munmap, g::__NR_mprotect, g::__NR_brk] {
        assert_eq!(answer(nr), ALLOW, "the first filter sees it");
    }
}

#[test]
fn what_is_seen_later_says_so_when_it_is_asked() {
    const QUESTION: usize = 0x4641_5245;
    const NOBODY: usize = u32::MAX as usize;
    const ANY: usize = NOBODY - 1;
    for (what, name) in [
        (Unseen::Descriptor(7), 7),
        (Unseen::Memory, NOBODY),
        (Unseen::SmallMemory, NOBODY - 2),
    ] {
        let asked = |name| answer_later(what, g::__NR_lseek, &[NOBODY, name, QUESTION]);
        assert_eq!(asked(name), ERRNO);
        assert_eq!(asked(ANY), ERRNO);
        assert_eq!(asked(8), ALLOW);
        // Without: Linux knows no such descriptor.
        assert_eq!(answer(g::__NR_lseek, &[NOBODY, name, QUESTION]), ALLOW);
    }
}
