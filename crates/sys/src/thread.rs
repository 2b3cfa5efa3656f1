//! Threads without libc: the agent's own, and the processor they run on.

use core::arch::asm;

use linux_raw_sys::general as g;

use crate::mem;
use crate::raw::{Errno, Result};
use crate::syscall;

/// Bytes of stack of a thread made by [`spawn`], below which lies an inaccessible page.
pub const STACK_BYTES: usize = 128 << 10;

/// What a thread made by [`spawn`] runs. It must not return.
pub type Main = extern "C" fn(usize) -> !;

/// Starts a thread of this process that shares everything with it, has no thread-local storage,
/// and inherits the signal mask: block all signals before. Returns its id.
///
/// # Safety
/// `main` must be sound on a thread without libc: no thread-local storage, no unwinding.
///
/// # Errors
/// As `mmap(2)` for the stack and `clone(2)`.
pub unsafe fn spawn(main: Main, argument: usize) -> Result<u32> {
    const PAGE: usize = 4096;
    let stack = mem::map_anonymous(STACK_BYTES + PAGE)?;
    // SAFETY: the page was mapped just now and nobody knows it.
    unsafe { mem::protect(stack, PAGE, mem::PROT_NONE) }?;
    let top = stack + STACK_BYTES + PAGE;
    let flags = g::CLONE_VM
        | g::CLONE_FS
        | g::CLONE_FILES
        | g::CLONE_SIGHAND
        | g::CLONE_THREAD
        | g::CLONE_SYSVSEM;
    let value: isize;
    // SAFETY: the child runs on its own fresh stack and never comes back here: it calls `main`.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") g::__NR_clone as isize => value,
            in("rdi") flags as usize,
            in("rsi") top,
            in("rdx") 0usize,
            in("r10") 0usize,
            in("r8") 0usize,
            in("r12") main,
            in("r13") argument,
            lateout("rcx") _, lateout("r11") _,
        );
    }
    if value < 0 {
        // SAFETY: the thread does not exist, so nobody uses its stack.
        let _ = unsafe { mem::unmap(stack, STACK_BYTES + PAGE) };
        return Err(Errno(-value as i32));
    }
    Ok(value as u32)
}

/// Moves the calling thread to processor `cpu`.
///
/// # Errors
/// As `sched_setaffinity(2)`, `EINVAL` when the thread may not run there.
pub fn run_on(cpu: u32) -> Result<()> {
    let mut mask = [0u64; 16];
    mask[(cpu / 64) as usize % 16] = 1 << (cpu % 64);
    // SAFETY: `mask` is valid for reads of its size.
    unsafe {
        syscall!(
            g::__NR_sched_setaffinity,
            0,
            size_of_val(&mask),
            mask.as_ptr()
        )
    }
    .map(drop)
}

/// The processor that the calling thread runs on.
pub fn current_cpu() -> u32 {
    let mut cpu = 0u32;
    // SAFETY: `cpu` is valid for a write; the other pointers may be null.
    let _ = unsafe { syscall!(g::__NR_getcpu, &raw mut cpu, 0, 0) };
    cpu
}

/// Ends the calling thread only.
pub fn exit() -> ! {
    loop {
        // SAFETY: does not return.
        let _ = unsafe { syscall!(g::__NR_exit, 0) };
    }
}
