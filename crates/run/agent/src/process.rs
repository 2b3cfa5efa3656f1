//! fork, and calls about the program's own descriptors that must spare Farpage's.

use core::sync::atomic::{AtomicBool, Ordering};

use farpage_kernel::{Holder, Kernel};
use farpage_object::fds;
use farpage_sys::file::{self, Fd};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, Result, syscall};

use crate::frame::Frame;
use crate::stacks::{self, Stack};
use crate::{maps, memory, namespaces, own_threads, sandbox, start};

/// The process has a parent that waits until it executes a program or ends.
static AWAITED: AtomicBool = AtomicBool::new(false);

/// How a parent waits for a child made with `CLONE_VFORK`: for the end of a pipe of which the child
/// holds the other end until it executes a program or ends. To wait in the call itself would hold
/// everything still meanwhile.
struct Wait {
    read: Fd,
    write: Fd,
}

impl Wait {
    fn new() -> Result<Self> {
        let [read, write] = file::pipe()?;
        Ok(Self { read, write })
    }

    /// In the child.
    fn begin(&self) {
        file::close(self.read);
        file::keep_at(self.write, start::descriptor(fds::FREE));
        AWAITED.store(true, Ordering::Relaxed);
    }

    /// In the parent, while no other child can be made.
    fn part(&self) {
        file::close(self.write);
    }

    /// In the parent, last. As in Linux no signal arrives meanwhile but SIGKILL.
    fn end(self, made: bool) {
        while made && file::read(self.read, &mut [0]) == Err(Errno::EINTR) {}
        file::close(self.read);
    }
}

/// `fork`, or `clone` of a process with a memory of its own. The child always gets a copy of the
/// descriptors, `CLONE_FILES` or not: Farpage's have the same numbers, and are not the same, in
/// both.
///
/// # Safety
/// As the call that the program made.
pub(crate) unsafe fn fork(
    frame: &mut Frame,
    own: Option<&Stack>,
    args: [usize; 6],
) -> Result<usize> {
    let [flags, stack, parent_id, child_id, storage, _] = args;
    let child = start::claim_for_child()?;
    let held = hold_words([parent_id, child_id]);
    let mut flags = flags & !(g::CLONE_FILES as usize);
    let mut wait = None;
    if let Some(slot) = child {
        memory::before_fork(slot);
        if flags & g::CLONE_VFORK as usize != 0 {
            flags &= !(g::CLONE_VFORK as usize);
            // SAFETY: this thread called `before_fork`.
            let made = Wait::new().inspect_err(|_| unsafe { no_child(slot) });
            wait = Some(made?);
        }
    }
    // SAFETY: the program's own call. The child goes on here, on a copy of this stack.
    let made = unsafe { syscall!(g::__NR_clone, flags, 0, parent_id, child_id, storage) };
    if made == Ok(0) {
        if AWAITED.swap(false, Ordering::Relaxed) {
            // Its parent is awaited, not this one.
            start::put_back(fds::FREE);
        }
        wait.as_ref().map(Wait::begin);
        stacks::after_fork(own);
        own_threads::after_fork();
        start::become_child(child);
        if let Some(slot) = child {
            // SAFETY: this thread's twin called `before_fork`.
            unsafe { memory::after_fork_in_child(slot) };
        }
        if stack != 0 {
            frame.rsp = stack;
        }
        return made;
    }
    wait.as_ref().map(Wait::part);
    if let Some(slot) = child {
        // SAFETY: this thread called `before_fork`.
        unsafe {
            match made {
                Ok(_) => memory::after_fork_in_parent(true, slot),
                Err(_) => no_child(slot),
            }
        }
    }
    if let Some((kernel, holder)) = held {
        kernel.release(holder);
    }
    if let Some(wait) = wait {
        wait.end(made.is_ok());
    }
    made
}

/// Brings in the words that Linux writes while everything stands still, and nobody can, and keeps them.
fn hold_words(words: [usize; 2]) -> Option<(&'static Kernel, Holder)> {
    // The program may have forbidden itself to ask for the thread's number.
    let kernel = memory::kernel().filter(|_| !sandbox::is_on())?;
    let holder = Holder::Call(farpage_sys::process::thread_id());
    for word in words {
        // SAFETY: a trapped call's thread holds no lock.
        unsafe { kernel.hold(holder, word, word.saturating_add(size_of::<u32>()), true) };
    }
    Some((kernel, holder))
}

/// The fork failed.
///
/// # Safety
/// Only after [`memory::before_fork`] on this thread.
unsafe fn no_child(slot: usize) {
    // SAFETY: forwarded.
    unsafe { memory::after_fork_in_parent(false, slot) };
    start::release_child(slot);
}

/// `close_range` over a range in which Farpage's descriptors lie: around them.
///
/// # Safety
/// As the call that the program made.
pub(crate) unsafe fn close_range(first: usize, last: usize, flags: usize) -> Result<usize> {
    let (first, last) = (first as u32, last as u32);
    let (base, own) = (start::fd_base(), maps::own_fds());
    let flags = namespaces::of_close_range(flags);
    // SAFETY: the program's own call, less our descriptors.
    let close = |from: u32, to: u32| unsafe { syscall!(g::__NR_close_range, from, to, flags) };
    if first > last {
        return close(first, last);
    }
    let mut result = Ok(0);
    if first < base {
        result = close(first, last.min(base - 1));
    }
    if result.is_ok() && last >= base + own {
        result = close(first.max(base + own), last);
    }
    result
}
