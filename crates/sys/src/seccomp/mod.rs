//! The seccomp filter of `farpage run`: which system calls the agent gets to see.
//!
//! It is built here as plain instructions and installed once, before the program starts; whatever
//! the program forks and executes inherits it. It knows three answers: allow, trap (SIGSYS, the
//! agent's handler carries the call out), and a fixed error.
//!
//! The number of the call is looked at first and alone: for calls that are allowed whatever their
//! arguments are, Linux finds that out once and then skips the filter altogether.

mod assembler;
mod pointers;
mod rules;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use farpage_abi::fds;
use linux_raw_sys::general as g;
use linux_raw_sys::ptrace as p;

use crate::mem;
use crate::raw::{GATE_CODE, Result, set_gate};
use crate::syscall;

pub use assembler::Instruction;

/// Where the gate is mapped in every task: inside the window, away from where memory is managed.
pub const GATE_ADDRESS: usize = 0x6fff_f000_0000;
/// Bytes of the gate's page.
pub const GATE_BYTES: usize = 4096;
/// Offset in the gate of the stub from which a program repeats a call by itself, see
/// [`REISSUE_CODE`].
pub const GATE_REISSUE: usize = 64;
/// Bytes below the program's stack pointer that the stub skips over: the red zone, and what the
/// agent puts there for the call to read.
pub const REISSUE_SKIP: u16 = 128 + 64;
/// Machine code of the stub: `syscall; ret 192`.
///
/// A call that may block must not block inside the agent's handler, where no signal arrives. The
/// handler points the program at this stub instead: the program makes the call itself, exempt from
/// the filter, and returns to where it made the call first.
pub const REISSUE_CODE: [u8; 5] = [
    0x0f,
    0x05,
    0xc2,
    REISSUE_SKIP as u8,
    (REISSUE_SKIP >> 8) as u8,
];

/// Offset in the gate of the stub in which a program waits before it makes a trapped call again, see
/// [`WAIT_CODE`].
pub const GATE_WAIT: usize = 128;
/// Machine code of that stub: makes the call that waits. Afterwards the arguments are those of the
/// trapped call again. When the wait has failed, that is what the trapped call returns, unless a
/// part of it was done, whose count it then returns; otherwise the program goes back to where it
/// made it, and is trapped again.
///
/// Above the address to return to lie the number, and what `rsi`, `rdx`, `r10`, `r8`, `r9` were:
/// [`WAIT_WORDS`], and one more, whose lower half the call that waits may use, and whose upper half is
/// the count. With that the upper half of `r10` is the agent's own.
pub const WAIT_CODE: [u8; 62] = [
    0x0f,
    0x05, // syscall
    0x48,
    0x8b,
    0x74,
    0x24,
    0x10, // mov rsi, [rsp + 16]
    0x48,
    0x8b,
    0x54,
    0x24,
    0x18, // mov rdx, [rsp + 24]
    0x4c,
    0x8b,
    0x54,
    0x24,
    0x20, // mov r10, [rsp + 32]
    0x4c,
    0x8b,
    0x44,
    0x24,
    0x28, // mov r8, [rsp + 40]
    0x4c,
    0x8b,
    0x4c,
    0x24,
    0x30, // mov r9, [rsp + 48]
    0x48,
    0x85,
    0xc0, // test rax, rax
    0x78,
    0x0d, // js to what follows the first return
    0x48,
    0x8b,
    0x44,
    0x24,
    0x08, // mov rax, [rsp + 8]
    0x48,
    0x83,
    0x2c,
    0x24,
    0x02, // sub qword ptr [rsp], 2: the length of the call
    0xc2, // ret 192
    REISSUE_SKIP as u8,
    (REISSUE_SKIP >> 8) as u8,
    0x8b,
    0x4c,
    0x24,
    0x3c, // mov ecx, [rsp + 60]
    0x85,
    0xc9, // test ecx, ecx
    0x74,
    0x06, // jz to the end
    0x48,
    0x89,
    0xc8, // mov rax, rcx
    0x45,
    0x89,
    0xd2, // mov r10d, r10d
    0xc2, // ret 192
    REISSUE_SKIP as u8,
    (REISSUE_SKIP >> 8) as u8,
];
/// See [`WAIT_CODE`].
pub const WAIT_WORDS: usize = 6;

/// Offset in the gate of the stub from which a program repeats a call until Linux finds the memory, see
/// [`AGAIN_CODE`].
pub const GATE_AGAIN: usize = 192;
/// Machine code of that stub: makes the call. When Linux says `EFAULT`, the program goes back to where it
/// made it, and is trapped again; above the address to return to lies the number for that.
pub const AGAIN_CODE: [u8; 24] = [
    0x0f,
    0x05, // syscall
    0x48,
    0x83,
    0xf8,
    0xf2, // cmp rax, -14
    0x74,
    0x03, // je to what follows the first return
    0xc2, // ret 192
    REISSUE_SKIP as u8,
    (REISSUE_SKIP >> 8) as u8,
    0x48,
    0x8b,
    0x44,
    0x24,
    0x08, // mov rax, [rsp + 8]
    0x48,
    0x83,
    0x2c,
    0x24,
    0x02, // sub qword ptr [rsp], 2: the length of the call
    0xc2, // ret 192
    REISSUE_SKIP as u8,
    (REISSUE_SKIP >> 8) as u8,
];

/// Offset in the gate of the stub in which a program sleeps before it makes a trapped call again, see
/// [`SLEEP_CODE`].
pub const GATE_SLEEP: usize = 256;
/// Machine code of that stub: makes the call that sleeps, and then the trapped call again, with its own
/// arguments, however the sleep ended. That is told by the upper half of `rax`, of which Linux looks at
/// the lower: what the sleep returned, with the bits of [`SLEPT`] turned over.
///
/// Above the address to return to lie the number, whose upper half is [`SLEPT`], and what `rdi`, `rsi`,
/// `rdx`, `r10` were: [`SLEEP_WORDS`]. Three more are for what the call that sleeps reads.
pub const SLEEP_CODE: [u8; 39] = [
    0x0f,
    0x05, // syscall
    0x48,
    0x8b,
    0x7c,
    0x24,
    0x10, // mov rdi, [rsp + 16]
    0x48,
    0x8b,
    0x74,
    0x24,
    0x18, // mov rsi, [rsp + 24]
    0x48,
    0x8b,
    0x54,
    0x24,
    0x20, // mov rdx, [rsp + 32]
    0x4c,
    0x8b,
    0x54,
    0x24,
    0x28, // mov r10, [rsp + 40]
    0x48,
    0xc1,
    0xe0,
    0x20, // shl rax, 32
    0x48,
    0x33,
    0x44,
    0x24,
    0x08, // xor rax, [rsp + 8]
    0x48,
    0x83,
    0x2c,
    0x24,
    0x02, // sub qword ptr [rsp], 2: the length of the call
    0xc2, // ret 192
    REISSUE_SKIP as u8,
    (REISSUE_SKIP >> 8) as u8,
];
/// See [`SLEEP_CODE`].
pub const SLEEP_WORDS: usize = 5;
/// No call returns this.
pub const SLEPT: u32 = 0x4641_5245;

/// `si_errno` of the SIGSYS that this filter raises: tells it from the program's own filters.
pub const TRAP_MARK: u16 = 0xFA6E;

/// What the filter depends on.
#[derive(Clone, Copy, Debug)]
pub struct Params {
    /// First of the descriptor numbers that belong to Farpage.
    pub fd_base: u32,
    /// Anonymous private mappings below this size are not looked at, bytes.
    pub threshold_bytes: u64,
    /// Also trap calls that give the kernel pointers to managed memory: userfaultfd does not serve
    /// the kernel's own accesses.
    pub user_mode_tier: bool,
    /// There are mapped files: also trap calls that name files by path, and those that use
    /// descriptors of such files.
    pub maps: bool,
    /// Shared memory is kept by the supervisor: also trap calls that make or map it, and those that
    /// use descriptors of its files. Not together with `maps`.
    pub shm: bool,
    /// Other hosts have the same shared memory: also trap calls that remove its names, and those that
    /// wait at its words. Only with `shm`.
    pub cluster: bool,
}

impl Params {
    /// How many descriptor numbers, from [`Params::fd_base`], belong to Farpage.
    pub(crate) fn own_fds(&self) -> u32 {
        if self.maps || self.shm {
            fds::OPENED
        } else {
            fds::COUNT
        }
    }
}

/// The filter for `params`.
pub fn filter(params: &Params) -> Vec<Instruction> {
    rules::build(params)
}

/// Maps the gate at its place and sends all later calls of this crate through it. Harmless when
/// the calling process has done so before.
///
/// # Errors
/// As `mmap(2)`; `EEXIST` when something else lies there.
pub fn map_gate() -> Result<()> {
    let flags = mem::MAP_PRIVATE | mem::MAP_ANONYMOUS | mem::MAP_FIXED_NOREPLACE;
    let prot = mem::PROT_READ | mem::PROT_WRITE;
    // SAFETY: MAP_FIXED_NOREPLACE touches nothing that exists.
    unsafe {
        mem::map(
            GATE_ADDRESS,
            GATE_BYTES,
            prot,
            flags,
            crate::file::Fd(-1),
            0,
        )
    }?;
    let gate = core::ptr::with_exposed_provenance_mut::<u8>(GATE_ADDRESS);
    // SAFETY: the page was mapped just now, writable, and is larger than the code.
    unsafe { core::ptr::copy_nonoverlapping(GATE_CODE.as_ptr(), gate, GATE_CODE.len()) };
    let stubs: [(usize, &[u8]); 4] = [
        (GATE_REISSUE, &REISSUE_CODE),
        (GATE_WAIT, &WAIT_CODE),
        (GATE_AGAIN, &AGAIN_CODE),
        (GATE_SLEEP, &SLEEP_CODE),
    ];
    for (at, code) in stubs {
        // SAFETY: as above; the stubs lie behind the gate's code and each other, inside the page.
        unsafe { core::ptr::copy_nonoverlapping(code.as_ptr(), gate.add(at), code.len()) };
    }
    // SAFETY: only this function knows the page yet.
    unsafe { mem::protect(GATE_ADDRESS, GATE_BYTES, mem::PROT_READ | mem::PROT_EXEC) }?;
    // SAFETY: the gate's code lies there and is never unmapped.
    unsafe { set_gate(GATE_ADDRESS) };
    Ok(())
}

/// Gives up new privileges and installs `filter` for the calling thread and what it makes.
///
/// # Errors
/// As `prctl(2)` and `seccomp(2)`.
pub fn install(filter: &[Instruction]) -> Result<()> {
    #[repr(C)]
    struct Program {
        length: u16,
        code: *const Instruction,
    }
    const PR_SET_NO_NEW_PRIVS: usize = 38;
    let program = Program {
        length: filter.len() as u16,
        code: filter.as_ptr(),
    };
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }?;
    let set = p::SECCOMP_SET_MODE_FILTER;
    // SAFETY: `program` and the instructions it names are valid for reads; the kernel copies them.
    unsafe { syscall!(g::__NR_seccomp, set, 0, core::ptr::from_ref(&program)) }.map(drop)
}
