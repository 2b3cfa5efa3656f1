//! The gate: one page at a fixed address, whose calls pass the filter.
//!
//! The agent's own calls are made there, and some of the program's: a call that may wait must not do so in
//! the agent's handler, where no signal arrives. The handler points the program at a stub here instead. The
//! program makes the call itself and returns to where it made the call first.

use core::arch::naked_asm;

use linux_raw_sys::general as g;

use crate::file::Fd;
use crate::mem;
use crate::raw::{self, Errno, Result, set_gate};

/// Where the gate is mapped in every task: below where Linux puts position-independent programs. The sanitizers
/// of compilers, which lay the address space out by themselves, take what lies there for the program.
pub const GATE_ADDRESS: usize = 0x5500_0000_0000;
/// Bytes of the gate's page.
pub const GATE_BYTES: usize = 4096;
/// Bytes below the program's stack pointer that the stubs skip over: the red zone, and what the agent puts
/// there for the call to read.
pub const REISSUE_SKIP: u16 = 128 + 64;

/// Offset of the stub that makes a call.
pub const GATE_REISSUE: usize = 64;
/// Offset of the stub that makes a call that waits, and then the trapped call again.
///
/// Afterwards the arguments are those of the trapped call again. When the wait has failed, that is what the
/// trapped call returns, unless a part of it was done, whose count it then returns; otherwise the program goes
/// back to where it made it, and is trapped again.
///
/// Above the address to return to lie the number, and what `rsi`, `rdx`, `r10`, `r8`, `r9` were:
/// [`WAIT_WORDS`], and one more, whose lower half the call that waits may use, and whose upper half is
/// the count. With that the upper half of `r10` is the agent's own.
pub const GATE_WAIT: usize = 128;
/// See [`GATE_WAIT`].
pub const WAIT_WORDS: usize = 6;
/// Offset of the stub that makes a call until Linux finds the memory: when Linux says `EFAULT`, the program
/// goes back to where it made the call, and is trapped again. Above the address to return to lies the number
/// for that.
pub const GATE_AGAIN: usize = 192;
/// Offset of the stub that makes a call that sleeps, and then the trapped call again, with its own
/// arguments, however the sleep ended. That is told by the upper half of `rax`, of which Linux looks at the
/// lower: what the sleep returned, with the bits of [`SLEPT`] turned over.
///
/// Above the address to return to lie the number, whose upper half is [`SLEPT`], and what `rdi`, `rsi`,
/// `rdx`, `r10` were: [`SLEEP_WORDS`]. Three more are for what the call that sleeps reads.
pub const GATE_SLEEP: usize = 256;
/// See [`GATE_SLEEP`].
pub const SLEEP_WORDS: usize = 5;
/// No call returns this.
pub const SLEPT: u32 = 0x4641_5245;
/// Offset of the stub that makes a thread. The new thread returns by its own stack, on which the same lies for
/// it. So the second argument names a place below where the stack begins; it is put right again for both.
pub const GATE_THREAD: usize = 320;
/// Offset of the code that ends the agent's handler: what it interrupted goes on. It is written as in the C
/// library, by which debuggers know it.
pub const GATE_RETURN: usize = 384;
const CODE_BYTES: usize = 448;

/// Maps the gate at its place and sends all later calls of this crate through it. Harmless when
/// the calling process has done so before.
///
/// # Errors
/// As `mmap(2)`; `EEXIST` when something else lies there.
pub fn map_gate() -> Result<()> {
    let flags = mem::MAP_PRIVATE | mem::MAP_ANONYMOUS | mem::MAP_FIXED_NOREPLACE;
    let prot = mem::PROT_READ | mem::PROT_WRITE;
    // SAFETY: MAP_FIXED_NOREPLACE touches nothing that exists.
    let at = unsafe { mem::map(GATE_ADDRESS, GATE_BYTES, prot, flags, Fd(-1), 0) }?;
    if at != GATE_ADDRESS {
        // An emulator of Linux can map it elsewhere when something lies there.
        // SAFETY: nobody knows it yet.
        unsafe { mem::unmap(at, GATE_BYTES) }?;
        return Err(Errno::EEXIST);
    }
    // SAFETY: the page was mapped just now, writable, and is larger than the code.
    unsafe { copy_code(GATE_ADDRESS) };
    // SAFETY: only this function knows the page yet.
    unsafe { mem::protect(GATE_ADDRESS, GATE_BYTES, mem::PROT_READ | mem::PROT_EXEC) }?;
    // SAFETY: the gate's code lies there and is never unmapped.
    unsafe { set_gate(GATE_ADDRESS) };
    Ok(())
}

/// # Safety
/// As many bytes as the code has can be written at `at`.
pub(super) unsafe fn copy_code(at: usize) {
    let (from, to) = (
        code as *const u8,
        core::ptr::with_exposed_provenance_mut(at),
    );
    // SAFETY: forwarded; the code has so many bytes.
    unsafe { core::ptr::copy_nonoverlapping(from, to, CODE_BYTES) };
}

/// Issues system call `nr` in a function of its own, from the gate where there is one. A child with another stack
/// returns to what lies there.
///
/// # Safety
/// As for [`raw::syscall`](crate::raw::syscall).
pub(crate) unsafe fn call(nr: u32, [a, b, c, d, e, f]: [usize; 6]) -> Result<usize> {
    type Call = extern "C" fn(usize, usize, usize, usize, usize, usize, usize) -> isize;
    let at = raw::gate().unwrap_or(code as *const () as usize);
    // SAFETY: both are functions of this type.
    let call = unsafe { core::mem::transmute::<usize, Call>(at) };
    raw::result(call(nr as usize, a, b, c, d, e, f))
}

/// The code, of which the gate has a copy. It begins with a function that makes a call:
/// `extern "C" fn(nr, a, b, c, d, e, f) -> isize`.
#[unsafe(naked)]
extern "C" fn code() {
    naked_asm!(
        "20:",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "ret",
        ".org 20b + {reissue}",
        "syscall",
        "ret {skip}",
        ".org 20b + {wait}",
        "syscall",
        "mov rsi, [rsp + 16]",
        "mov rdx, [rsp + 24]",
        "mov r10, [rsp + 32]",
        "mov r8, [rsp + 40]",
        "mov r9, [rsp + 48]",
        "test rax, rax",
        "jns 22f",
        "mov ecx, [rsp + 60]",
        "test ecx, ecx",
        "jz 21f",
        "mov rax, rcx",
        "mov r10d, r10d",
        "21:",
        "ret {skip}",
        // Back to the call: its number, and the address before its two bytes.
        "22:",
        "mov rax, [rsp + 8]",
        "sub qword ptr [rsp], 2",
        "ret {skip}",
        ".org 20b + {again}",
        "syscall",
        "cmp rax, -{efault}",
        "je 22b",
        "ret {skip}",
        ".org 20b + {sleep}",
        "syscall",
        "mov rdi, [rsp + 16]",
        "mov rsi, [rsp + 24]",
        "mov rdx, [rsp + 32]",
        "mov r10, [rsp + 40]",
        "shl rax, 32",
        "xor rax, [rsp + 8]",
        "sub qword ptr [rsp], 2",
        "ret {skip}",
        ".org 20b + {thread}",
        "syscall",
        "add rsi, {skip} + 8",
        "ret {skip}",
        ".org 20b + {sigreturn}",
        ".byte 0x48, 0xc7, 0xc0, {sigreturn_number}, 0, 0, 0", // mov rax, the number
        "syscall",
        "ud2",
        ".org 20b + {end}",
        reissue = const GATE_REISSUE,
        wait = const GATE_WAIT,
        again = const GATE_AGAIN,
        sleep = const GATE_SLEEP,
        thread = const GATE_THREAD,
        sigreturn = const GATE_RETURN,
        sigreturn_number = const g::__NR_rt_sigreturn,
        efault = const Errno::EFAULT.0,
        skip = const REISSUE_SKIP,
        end = const CODE_BYTES,
    )
}
