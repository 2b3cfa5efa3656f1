//! How the agent comes up: once per executed image, before anything of the program runs.

use core::arch::naked_asm;
use core::ffi::CStr;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use farpage_abi::{Control, TASKS_MAX, TaskSlot, fds};
use farpage_sys::file::Fd;
use farpage_sys::{process, seccomp};

use crate::{memory, signals, trap};

/// Found and filled in by the launcher in the library's bytes.
#[repr(C)]
struct Config {
    magic: [u8; 16],
    fd_base: u32,
}

#[used]
static CONFIG: Config = Config {
    magic: *b"farpage-config\0\0",
    fd_base: 0,
};

static CONTROL: AtomicPtr<Control> = AtomicPtr::new(core::ptr::null_mut());
/// Slot number plus one; 0 when there is none.
static SLOT: AtomicUsize = AtomicUsize::new(0);
/// A slot that a fork has claimed and whose process has no number yet.
const UNNAMED: u32 = u32::MAX;

/// One of the descriptors that are ours.
pub(crate) fn descriptor(offset: u32) -> Fd {
    // Read as volatile: the launcher has changed the bytes.
    // SAFETY: a plain static.
    let base = unsafe { (&raw const CONFIG.fd_base).read_volatile() };
    Fd((base + offset) as i32)
}

/// What LD_PRELOAD must name.
pub(crate) fn library_path() -> &'static CStr {
    static PATH: [core::sync::atomic::AtomicU8; 32] =
        [const { core::sync::atomic::AtomicU8::new(0) }; 32];
    let number = descriptor(fds::AGENT).0 as u32;
    let mut at = 0;
    let mut put = |byte: u8| {
        PATH[at].store(byte, Ordering::Relaxed);
        at += 1;
    };
    b"/proc/self/fd/".iter().for_each(|byte| put(*byte));
    let digits = number.checked_ilog10().unwrap_or(0);
    (0..=digits)
        .rev()
        .for_each(|place| put(b'0' + (number / 10u32.pow(place) % 10) as u8));
    put(0);
    // SAFETY: the bytes were written just now, always the same, ended by a null.
    unsafe { CStr::from_ptr(PATH.as_ptr().cast()) }
}

/// The control block, once the agent is up.
pub(crate) fn control() -> Option<&'static Control> {
    // SAFETY: null, or the mapping that `farpage_agent_init` made for the life of the process.
    unsafe { CONTROL.load(Ordering::Acquire).as_ref() }
}

/// This task's slot number.
pub(crate) fn slot() -> Option<usize> {
    SLOT.load(Ordering::Acquire).checked_sub(1)
}

/// This task's slot.
pub(crate) fn task() -> Option<&'static TaskSlot> {
    Some(&control()?.tasks[slot()?])
}

fn claim(control: &Control, pid: u32) -> Option<usize> {
    (0..TASKS_MAX).find(|&slot| {
        let free = &control.tasks[slot].pid;
        free.load(Ordering::Relaxed) == 0
            && free
                .compare_exchange(0, pid, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
    })
}

/// Claims a slot for a process that is about to be forked.
pub(crate) fn claim_for_child() -> Option<usize> {
    let slot = claim(control()?, UNNAMED)?;
    let parent = SLOT.load(Ordering::Relaxed) as u32;
    control()?.tasks[slot]
        .parent
        .store(parent, Ordering::Relaxed);
    Some(slot)
}

/// In a forked child: the task in `slot` is this process.
pub(crate) fn become_task(slot: usize) {
    SLOT.store(slot + 1, Ordering::Release);
    name_child(slot, process::id() as usize);
}

/// Gives a forked child's slot its process number, if it has none.
pub(crate) fn name_child(slot: usize, pid: usize) {
    if let Some(control) = control() {
        let named = &control.tasks[slot].pid;
        let _ = named.compare_exchange(UNNAMED, pid as u32, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// The fork failed.
pub(crate) fn release_child(slot: usize) {
    if let Some(control) = control() {
        control.tasks[slot].pid.store(0, Ordering::Release);
    }
}

/// Brings the agent up. Runs before anything of the program: called by the dynamic linker, or by
/// [`farpage_agent_entry`] in static programs. On failure the program runs without management,
/// as far as it gets.
#[unsafe(no_mangle)]
pub extern "C" fn farpage_agent_init() {
    if seccomp::map_gate().is_err() {
        return;
    }
    let Ok(control) = farpage_sys::control::map(descriptor(fds::CONTROL)) else {
        return;
    };
    CONTROL.store(core::ptr::from_ref(control).cast_mut(), Ordering::Release);
    let pid = process::id();
    let before = control
        .tasks
        .iter()
        .position(|task| task.pid.load(Ordering::Relaxed) == pid);
    if let Some(before) = before {
        // The image that was replaced: what it held is free, its slot is taken anew.
        control.reap(before);
    }
    if let Some(slot) = claim(control, pid) {
        SLOT.store(slot + 1, Ordering::Release);
    }
    memory::init();
    if signals::install(trap::on_sigsys).is_err() {
        process::die();
    }
}

/// Where a static program is made to start: brings the agent up, then returns to the program's own
/// entry, whose address the supervisor has pushed. Keeps every register.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn farpage_agent_entry() {
    naked_asm!(
        "push rax", "push rbx", "push rcx", "push rdx", "push rsi", "push rdi", "push rbp",
        "push r8", "push r9", "push r10", "push r11", "push r12", "push r13", "push r14",
        "push r15", "pushfq",
        "mov rbp, rsp",
        "and rsp, -16",
        "call {init}",
        "mov rsp, rbp",
        "popfq",
        "pop r15", "pop r14", "pop r13", "pop r12", "pop r11", "pop r10", "pop r9", "pop r8",
        "pop rbp", "pop rdi", "pop rsi", "pop rdx", "pop rcx", "pop rbx", "pop rax",
        "ret",
        init = sym farpage_agent_init,
    )
}
