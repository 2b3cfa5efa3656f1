//! How the agent starts in a program, and what it knows about the task that it is in.

use core::arch::naked_asm;
use core::mem::offset_of;
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use farpage_object::{Control, TaskSlot, fds};
use farpage_sys::file::{self, Fd};
use farpage_sys::join::AgentConfig;
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, Result, control, join, layout, process, seccomp, syscall};

use crate::frame::without_sigsys;
use crate::{maps, memory, sandbox, signals, stacks};

/// Filled in by the launcher and, for static programs, by the supervisor.
static CONFIG: AgentConfig = AgentConfig::new();

static CONTROL: AtomicPtr<Control> = AtomicPtr::new(core::ptr::null_mut());
static SLOT: AtomicU32 = AtomicU32::new(NO_SLOT);
static PROCESS: AtomicU32 = AtomicU32::new(0);

const NO_SLOT: u32 = u32::MAX;
/// In `TaskSlot::pid`: the id belongs to another namespace of process ids, so that the supervisor
/// cannot watch the process. What it holds is taken back when the tree ends.
const FOREIGN: u32 = 1 << 31;
/// In `TaskSlot::pid`: a process that is being forked. Nobody watches it, as with [`FOREIGN`].
const UNNAMED: u32 = u32::MAX;
/// Farpage's numbers that no descriptor may take meanwhile: some were closed by exec.
const PLACES: Range<u32> = fds::UFFD..fds::COUNT;

/// Runs before anything else of the program: called by the dynamic linker, or by
/// [`farpage_agent_entry`]. Does nothing where the agent has started already, or where there is no
/// `farpage run`.
#[unsafe(no_mangle)]
pub extern "C" fn farpage_agent_init() {
    if seccomp::map_gate().is_err() {
        return;
    }
    let control = match control::map(descriptor(fds::CONTROL)) {
        Ok(control) => control,
        Err(Errno::ENOMEM) => fail(
            "needs 1 GiB of addresses in each process, and the limit on them (ulimit -v) leaves less: raise it",
        ),
        Err(_) => return,
    };
    layout::settle();
    CONTROL.store(core::ptr::from_ref(control).cast_mut(), Ordering::Release);
    PROCESS.store(process::id(), Ordering::Relaxed);
    if signals::install().is_err() {
        fail("cannot install its signal handler");
    }
    stacks::keep_at_start();
    unblock_sigsys();
    keep_places();
    if in_supervisors_namespace(control) {
        let slot = control.claim(process::id());
        SLOT.store(slot.map_or(NO_SLOT, |slot| slot as u32), Ordering::Release);
        if let Some(slot) = slot {
            enter(control, slot);
        }
    }
    if CONFIG.leaves_memory.load(Ordering::Relaxed) == 0 {
        memory::init();
    }
    maps::adopt();
}

/// Where a static program is started: brings the agent up and goes to the program's own entry with
/// all registers as Linux set them.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn farpage_agent_entry() {
    naked_asm!(
        "push rax", "push rcx", "push rdx", "push rbx", "push rbp", "push rsi", "push rdi",
        "push r8", "push r9", "push r10", "push r11",
        "mov rbx, rsp",
        "sub rsp, 512",
        "and rsp, -16",
        "fxsave64 [rsp]",
        "call {init}",
        "fxrstor64 [rsp]",
        "mov rsp, rbx",
        "pop r11", "pop r10", "pop r9", "pop r8",
        "pop rdi", "pop rsi", "pop rbp", "pop rbx", "pop rdx", "pop rcx", "pop rax",
        "jmp qword ptr [rip + {config} + {entry}]",
        init = sym farpage_agent_init,
        config = sym CONFIG,
        entry = const offset_of!(AgentConfig, entry),
    )
}

/// Where Farpage's descriptor number `offset` is.
pub(crate) fn descriptor(offset: u32) -> Fd {
    join::fd(fd_base(), offset)
}

/// First of Farpage's descriptor numbers.
pub(crate) fn fd_base() -> u32 {
    CONFIG.fd_base.load(Ordering::Relaxed)
}

/// The control block. `None` before the agent has started.
pub(crate) fn control() -> Option<&'static Control> {
    // SAFETY: the pointer is null or comes from a mapping that is never undone.
    unsafe { CONTROL.load(Ordering::Acquire).as_ref() }
}

/// This task's slot in the control block. `None`: memory is not managed here.
pub(crate) fn slot() -> Option<usize> {
    match SLOT.load(Ordering::Acquire) {
        NO_SLOT => None,
        slot => Some(slot as usize),
    }
}

/// This task's process id, without asking Linux.
pub(crate) fn process_id() -> u32 {
    PROCESS.load(Ordering::Relaxed)
}

/// True in a process that shares its memory with the task (a `vfork` child before it executes).
pub(crate) fn is_visitor() -> bool {
    process_id() != process::id()
}

/// As [`is_visitor`], but never true where the program may have forbidden the question.
pub(crate) fn is_known_visitor() -> bool {
    !sandbox::is_on() && is_visitor()
}

/// This task's slot.
pub(crate) fn task() -> Option<&'static TaskSlot> {
    Some(&control()?.tasks[slot()?])
}

/// Claims a slot for a process that is about to be forked. `None` where nothing is managed.
///
/// # Errors
/// `EAGAIN` when there are as many processes as can have accounts.
pub(crate) fn claim_for_child() -> Result<Option<usize>> {
    let (Some(control), Some(parent)) = (control(), slot()) else {
        return Ok(None);
    };
    let slot = control.claim_another(UNNAMED).ok_or(Errno::EAGAIN)?;
    control.tasks[slot]
        .parent
        .store(parent as u32 + 1, Ordering::Relaxed);
    Ok(Some(slot))
}

/// The fork failed.
pub(crate) fn release_child(slot: usize) {
    if let Some(control) = control() {
        control.reap(slot);
    }
}

/// In the child of a fork: becomes the task in `slot`.
pub(crate) fn become_child(slot: Option<usize>) {
    let id = process::id();
    PROCESS.store(id, Ordering::Relaxed);
    let (Some(control), Some(slot)) = (control(), slot) else {
        return;
    };
    let mark = if in_supervisors_namespace(control) {
        0
    } else {
        FOREIGN
    };
    control.tasks[slot].pid.store(id | mark, Ordering::Release);
    SLOT.store(slot as u32, Ordering::Release);
}

/// Makes the slot ready for a program that starts with nothing.
fn enter(control: &Control, slot: usize) {
    let task = &control.tasks[slot];
    let mut held = 0;
    let mut gauges = 0;
    task.counters.each(|_, counter| {
        gauges += 1;
        if gauges <= farpage_object::Counters::GAUGES {
            held |= counter.load(Ordering::Relaxed);
        }
    });
    if held != 0 {
        control.reset(slot);
    }
    control.maps.leave(slot);
    let parent = control.slot_of(process::parent_id());
    task.parent.store(
        parent.map_or(0, |parent| parent as u32 + 1),
        Ordering::Relaxed,
    );
    task.inject.store(0, Ordering::Release);
}

fn in_supervisors_namespace(control: &Control) -> bool {
    let own = control.pid_namespace.load(Ordering::Relaxed);
    own == 0 || file::inode(c"/proc/self/ns/pid") == Ok(own)
}

fn keep_places() {
    for place in PLACES {
        if !file::is_open(descriptor(place)) {
            put_back(place);
        }
    }
}

/// Makes Farpage's number `place` one that is only kept from others.
pub(crate) fn put_back(place: u32) {
    let (control, to) = (descriptor(fds::CONTROL), descriptor(place));
    // SAFETY: takes no pointer; the number is ours.
    let _ = unsafe { syscall!(g::__NR_dup3, control.0, to.0, 0) };
}

fn unblock_sigsys() {
    let before = process::set_signal_mask(!0);
    process::set_signal_mask(without_sigsys(before));
}

/// Ends a process that cannot go on, saying why.
fn fail(what: &str) -> ! {
    let line = alloc::format!(
        "farpage: process {} is killed: farpage {what}\n",
        process::id()
    );
    file::write_message(descriptor(fds::MESSAGES), line.as_bytes());
    process::die()
}
