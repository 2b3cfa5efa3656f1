//! Threads without libc: the agent's own, and the processor they run on.

#[cfg(target_arch = "x86_64")]
use core::arch::naked_asm;

use linux_raw_sys::general as g;

use crate::raw::Result;
use crate::{file, syscall};
#[cfg(target_arch = "x86_64")]
use crate::{mem, seccomp};

#[cfg(target_arch = "x86_64")]
/// Bytes of stack of a thread made by [`spawn`], below which lies an inaccessible page.
pub const STACK_BYTES: usize = 128 << 10;

#[cfg(target_arch = "x86_64")]
/// What a thread made by [`spawn`] runs. It must not return.
pub type Main = extern "C" fn(usize) -> !;

#[cfg(target_arch = "x86_64")]
/// Starts a thread of this process that shares everything with it, has no thread-local storage,
/// and inherits the signal mask: block all signals before. Who traces the calling thread traces this one as well
/// if it follows threads, unless it is `hidden`. Returns its id.
///
/// # Safety
/// `main` must be sound on a thread without libc: no thread-local storage, no unwinding.
///
/// # Errors
/// As `mmap(2)` for the stack and `clone(2)`.
pub unsafe fn spawn(main: Main, argument: usize, hidden: bool) -> Result<u32> {
    const PAGE: usize = 4096;
    let stack = mem::map_anonymous(STACK_BYTES + PAGE)?;
    // SAFETY: the page was mapped just now and nobody knows it.
    unsafe { mem::protect(stack, PAGE, mem::PROT_NONE) }?;
    let top = stack + STACK_BYTES + PAGE;
    let untraced = if hidden { g::CLONE_UNTRACED } else { 0 };
    let flags = untraced
        | g::CLONE_VM
        | g::CLONE_FS
        | g::CLONE_FILES
        | g::CLONE_SIGHAND
        | g::CLONE_THREAD
        | g::CLONE_SYSVSEM;
    let words = [begin as *const () as usize, main as usize, argument];
    let at = top - size_of_val(&words);
    // SAFETY: the stack is nobody's yet, and has room for them.
    unsafe { core::ptr::with_exposed_provenance_mut::<[usize; 3]>(at).write(words) };
    // SAFETY: the child runs on its own fresh stack and does not come back here: it returns to what lies there.
    let made = unsafe { seccomp::call(g::__NR_clone, [flags as usize, at, 0, 0, 0, 0]) };
    made.map(|id| id as u32).inspect_err(|_| {
        // SAFETY: the thread does not exist, so nobody uses its stack.
        let _ = unsafe { mem::unmap(stack, STACK_BYTES + PAGE) };
    })
}

/// Where a thread begins: above the stack pointer lie what it runs and its argument.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C" fn begin() {
    naked_asm!("xor ebp, ebp", "pop rdi", "pop rsi", "call {run}", "ud2", run = sym run)
}

#[cfg(target_arch = "x86_64")]
extern "C" fn run(main: Main, argument: usize) -> ! {
    open_keys();
    main(argument)
}

/// Lets the calling thread read and write memory of all protection keys. Linux takes that right from a signal's handler,
/// and a thread that is made in one inherits what its maker may do.
#[cfg(target_arch = "x86_64")]
fn open_keys() {
    if has_keys() {
        // SAFETY: this processor has the instruction, and Linux uses it.
        unsafe {
            core::arch::asm!("wrpkru", in("eax") 0, in("ecx") 0, in("edx") 0, options(nostack));
        }
    }
}

/// True where memory has protection keys. The processor is asked by the first thread alone: asking is slow on a
/// virtual machine.
#[cfg(target_arch = "x86_64")]
fn has_keys() -> bool {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    use core::sync::atomic::{AtomicU8, Ordering};
    const FEATURES: u32 = 7;
    const OSPKE: u32 = 1 << 4;
    const UNKNOWN: u8 = 2;
    static KEYS: AtomicU8 = AtomicU8::new(UNKNOWN);
    let known = KEYS.load(Ordering::Relaxed);
    if known != UNKNOWN {
        return known != 0;
    }
    let found = __cpuid(0).eax >= FEATURES && __cpuid_count(FEATURES, 0).ecx & OSPKE != 0;
    KEYS.store(found.into(), Ordering::Relaxed);
    found
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

/// Whether there is no thread of this number in the process's namespace any more.
pub fn has_ended(thread: u32) -> bool {
    // SAFETY: takes no pointer, and signal 0 is none.
    let asked = unsafe { syscall!(g::__NR_tkill, thread, 0) };
    asked == Err(crate::Errno::ESRCH)
}

/// Whether a process has a thread of this number.
pub fn is_of(process: u32, thread: u32) -> bool {
    // SAFETY: takes no pointer, and signal 0 is none.
    unsafe { syscall!(g::__NR_tgkill, process, thread, 0) }.is_ok()
}

/// Where thread `thread` of this process keeps its list of robust mutexes; 0 for the calling one.
///
/// # Errors
/// As `get_robust_list(2)`.
pub fn robust_list(thread: u32) -> Result<usize> {
    let (mut head, mut bytes) = (0usize, 0usize);
    let (at, size) = (&raw mut head, &raw mut bytes);
    // SAFETY: both are valid for a write.
    unsafe { syscall!(g::__NR_get_robust_list, thread, at, size) }?;
    Ok(head)
}

#[cfg(target_arch = "x86_64")]
/// The calling thread's pointer (register `fs`): where its thread-local storage lies.
///
/// # Errors
/// As `arch_prctl(2)`.
pub fn pointer() -> Result<usize> {
    const ARCH_GET_FS: usize = 0x1003;
    let mut at = 0usize;
    // SAFETY: `at` is valid for a write.
    unsafe { syscall!(g::__NR_arch_prctl, ARCH_GET_FS, &raw mut at) }?;
    Ok(at)
}

/// Not known on this processor.
///
/// # Errors
/// `ENOSYS`.
#[cfg(not(target_arch = "x86_64"))]
pub fn pointer() -> Result<usize> {
    Err(crate::Errno::ENOSYS)
}

/// How far a thread's restartable-sequences area, in which Linux keeps the number of the processor
/// that it runs on, lies from its robust list. Of the calling thread, and so of all that glibc
/// made; `offset` is glibc's `__rseq_offset`.
///
/// # Errors
/// As [`robust_list`] and [`pointer`].
pub fn rseq_from_list(offset: isize) -> Result<isize> {
    let list = robust_list(0)?;
    Ok(pointer()?.wrapping_add_signed(offset).wrapping_sub(list) as isize)
}

/// The processor of thread `thread`, which must not run just now, by its area (see
/// [`rseq_from_list`]). `None` when there is none, or it does not lie `within` these addresses.
pub fn cpu_by_rseq(thread: u32, from_list: isize, within: core::ops::Range<usize>) -> Option<u32> {
    const CPU_ID: usize = 4;
    let list = robust_list(thread).ok().filter(|list| *list != 0)?;
    let at = list.wrapping_add_signed(from_list).wrapping_add(CPU_ID);
    if !within.contains(&at) {
        return None;
    }
    let mut cpu = -1i32;
    let into = [&raw mut cpu as usize, size_of::<i32>()];
    let from = [at, size_of::<i32>()];
    let own = crate::process::id();
    let (to, from) = (into.as_ptr(), from.as_ptr());
    // SAFETY: both vectors name four bytes; where `at` is no memory the call fails.
    let read = unsafe { syscall!(g::__NR_process_vm_readv, own, to, 1, from, 1, 0) };
    read.ok()?;
    u32::try_from(cpu).ok()
}

/// The processor that a thread runs on, or ran on last, of whichever process in this one's
/// namespace.
pub fn cpu_of(thread: u32) -> Option<u32> {
    /// Longer than `/proc/4294967295/task/4294967295/stat` and its end.
    const PATH: usize = 48;
    let mut path = [0u8; PATH];
    let mut at = 0;
    let mut put = |text: &[u8]| {
        path[at..at + text.len()].copy_from_slice(text);
        at += text.len();
    };
    let (mut digits, mut rest, mut first) = ([0; 10], thread, 10);
    while rest > 0 || first == 10 {
        first -= 1;
        digits[first] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    // That of the thread alone takes less time than that of its process.
    let number = &digits[first..];
    let parts: [&[u8]; 5] = [b"/proc/", number, b"/task/", number, b"/stat"];
    parts.into_iter().for_each(&mut put);
    let path = core::ffi::CStr::from_bytes_until_nul(&path).ok()?;
    let fd = file::open(path, g::O_CLOEXEC, 0).ok()?;
    let mut text = [0; 512];
    let got = file::read(fd, &mut text);
    file::close(fd);
    field_39(&text[..got.ok()?])
}

/// Field 39 of `/proc/PID/stat`; the second is in parentheses and may hold anything.
fn field_39(stat: &[u8]) -> Option<u32> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let mut fields = stat[name_end + 1..]
        .split(|&byte| byte == b' ')
        .filter(|f| !f.is_empty());
    core::str::from_utf8(fields.nth(36)?).ok()?.parse().ok()
}

/// Lets another thread have the processor, if one wants it.
pub fn let_others_run() {
    // SAFETY: takes no pointer.
    let _ = unsafe { syscall!(g::__NR_sched_yield) };
}

/// Ends the calling thread only.
pub fn exit() -> ! {
    loop {
        // SAFETY: does not return.
        let _ = unsafe { syscall!(g::__NR_exit, 0) };
    }
}

/// Prepares [`all_pass_a_barrier`] for this process.
///
/// # Errors
/// `ENOSYS` before Linux 4.14.
pub fn prepare_barriers() -> Result<()> {
    const REGISTER_PRIVATE_EXPEDITED: u32 = 1 << 4;
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_membarrier, REGISTER_PRIVATE_EXPEDITED, 0, 0) }.map(drop)
}

/// Has every thread of this process pass a full memory barrier: those that run at once, others before
/// they do.
///
/// # Errors
/// `EPERM` without [`prepare_barriers`].
pub fn all_pass_a_barrier() -> Result<()> {
    const PRIVATE_EXPEDITED: u32 = 1 << 3;
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_membarrier, PRIVATE_EXPEDITED, 0, 0) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_processor_of_this_thread() {
        let cpu = cpu_of(crate::process::thread_id());
        assert!(cpu.is_some_and(|cpu| cpu < 4096), "{cpu:?}");
    }

    #[test]
    fn field_39_skips_a_strange_name() {
        let mut stat = alloc::string::String::from("1 (a) b c) S");
        for field in 4..=52 {
            stat.push_str(&alloc::format!(" {field}"));
        }
        assert_eq!(field_39(stat.as_bytes()), Some(39));
    }
}
