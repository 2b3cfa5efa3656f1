//! Stacks for trapped calls: the program's own may be tiny.
//!
//! In the user-mode-only tier a thread keeps one for as long as it lives, as its stack for signals: the
//! program's own may be managed memory that is away, where Linux can put nothing.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use farpage_sys::linux::general as g;
use farpage_sys::{mem, process, syscall, thread};

use crate::frame::{Frame, SignalStack};
use crate::{memory, sandbox, start, threads};

const STACK_BYTES: usize = 128 << 10;
const GUARD_BYTES: usize = 4096;
/// What is left of a stack below what is noted of it.
const USABLE_BYTES: usize = STACK_BYTES - size_of::<Stack>();
/// Lists of stacks, so that threads seldom meet.
const LISTS: usize = 32;

/// Owners of a stack: nobody, a trapped call while it lasts, a thread while it lives, a process that shares this memory
/// while it does. Else it is the id, with [`OF_ID`], of one that may be on it until it is gone: a thread that ends, or a
/// process that shares this memory and wants another word cleared when it does no more.
const NOBODY: u32 = 0;
const CALL: u32 = 1;
const THREAD: u32 = 2;
const SHARER: u32 = 3;
const OF_ID: u32 = 1 << 31;

/// A stack; this lies at its top. Stacks are made when needed, used again and never unmapped, so
/// lists only grow and can be walked at any time.
#[repr(C, align(64))]
pub(crate) struct Stack {
    /// See [`NOBODY`]. Linux clears it when a `vfork` child that is on it executes or dies, see
    /// [`Stack::release_with_memory`].
    owner: AtomicU32,
    /// What the thread whose this is gave as its stack for signals: where it is, flags, bytes.
    given: [AtomicUsize; 3],
    /// Memory that was needed until the owner executed a program.
    left: AtomicPtr<u8>,
    next: AtomicPtr<Stack>,
}

static STACKS: [AtomicPtr<Stack>; LISTS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; LISTS];

/// A stack that is the caller's until [`Stack::release`]. `None` when there is no memory. `hint`
/// is any address on the caller's own stack.
pub(crate) fn take(hint: usize) -> Option<&'static Stack> {
    let all = &STACKS[(hint >> 16) % LISTS];
    let free = list(all).find(|stack| {
        let owner = stack.owner.load(Ordering::Relaxed);
        (owner == NOBODY || is_gone(owner)) && stack.change_owner(owner, CALL)
    });
    if free.is_some() {
        return free;
    }
    let stack = make()?;
    let mut head = all.load(Ordering::Acquire);
    loop {
        stack.next.store(head, Ordering::Relaxed);
        let own = core::ptr::from_ref(stack).cast_mut();
        match all.compare_exchange(head, own, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Some(stack),
            Err(now) => head = now,
        }
    }
}

/// Whether the owner was one that has ended. Who asks may be another process that shares this memory.
fn is_gone(owner: u32) -> bool {
    owner & OF_ID != 0 && !sandbox::is_on() && thread::has_ended(owner & !OF_ID)
}

/// The stack that the interrupted thread keeps, if it does.
pub(crate) fn kept(frame: &Frame) -> Option<&'static Stack> {
    let is_one = frame.stack.bytes == USABLE_BYTES && memory::is_user_tier();
    let top = core::ptr::with_exposed_provenance::<Stack>(frame.stack.at + USABLE_BYTES);
    // SAFETY: in this tier only the agent tells Linux of stacks, and these live as long as the process.
    is_one.then(|| unsafe { &*top })
}

/// Has the interrupted thread keep `stack`, on which the handler runs, from when that returns.
pub(crate) fn keep(frame: &mut Frame, stack: &Stack) {
    // A handler that runs on one of these already has what it needs. A child of `vfork` has its parent's.
    if !memory::is_user_tier() || is_ours(frame.rsp) {
        return;
    }
    let owner = if !start::is_known_visitor() {
        THREAD
    } else if threads::word_at_end() == Some(0) {
        stack.release_with_memory();
        SHARER
    } else {
        OF_ID | process::thread_id()
    };
    if stack.change_owner(CALL, owner) {
        stack.give(SignalStack::NONE);
        frame.stack = stack.signals();
    }
}

/// The first thread keeps one from the start.
pub(crate) fn keep_at_start() {
    let Some(stack) = memory::is_user_tier().then(|| take(0)).flatten() else {
        return;
    };
    let signals = stack.signals();
    // SAFETY: it lives as long as the process.
    let told = unsafe { syscall!(g::__NR_sigaltstack, &raw const signals, 0) };
    if told.is_ok() {
        stack.change_owner(CALL, THREAD);
    } else {
        stack.release();
    }
}

/// The interrupted thread ends when the handler has returned, and gives back the stack that it keeps.
pub(crate) fn end(frame: &mut Frame) {
    if let Some(stack) = kept(frame)
        && stack.change_owner(THREAD, OF_ID | process::thread_id())
    {
        frame.stack = SignalStack::NONE;
    }
}

/// Whether `rsp` is on any of them.
fn is_ours(rsp: usize) -> bool {
    let mut all = STACKS.iter().flat_map(list);
    all.any(|stack| stack.signals().holds(rsp))
}

/// The stacks of one list.
fn list(list: &AtomicPtr<Stack>) -> impl Iterator<Item = &'static Stack> {
    let mut next = list.load(Ordering::Acquire);
    core::iter::from_fn(move || {
        // SAFETY: the list holds stacks, which live as long as the process.
        let stack = unsafe { next.as_ref() }?;
        next = stack.next.load(Ordering::Acquire);
        Some(stack)
    })
}

fn make() -> Option<&'static Stack> {
    let bottom = mem::map_anonymous(GUARD_BYTES + STACK_BYTES).ok()?;
    // SAFETY: the page was mapped just now and nobody knows it.
    let _ = unsafe { mem::protect(bottom, GUARD_BYTES, mem::PROT_NONE) };
    let top = bottom + GUARD_BYTES + USABLE_BYTES;
    let stack = core::ptr::with_exposed_provenance_mut::<Stack>(top);
    let made = Stack {
        owner: AtomicU32::new(CALL),
        given: [const { AtomicUsize::new(0) }; 3],
        left: AtomicPtr::new(core::ptr::null_mut()),
        next: AtomicPtr::new(core::ptr::null_mut()),
    };
    // SAFETY: the mapping is fresh, writable, aligned and large enough.
    unsafe { stack.write(made) };
    // SAFETY: it was written just now and stays.
    Some(unsafe { &*stack })
}

impl Stack {
    /// Where the stack pointer starts.
    #[cfg(test)]
    pub(crate) fn top(&self) -> usize {
        core::ptr::from_ref(self).addr()
    }

    /// Gives the stack back, unless a thread keeps it. The caller must not be on it any more.
    pub(crate) fn release(&self) {
        self.change_owner(CALL, NOBODY);
    }

    fn change_owner(&self, from: u32, to: u32) -> bool {
        let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        self.owner.compare_exchange(from, to, order, failed).is_ok()
    }

    /// As Linux is told of it.
    pub(crate) fn signals(&self) -> SignalStack {
        let top = core::ptr::from_ref(self).expose_provenance();
        SignalStack {
            at: top - USABLE_BYTES,
            flags: 0,
            padding: 0,
            bytes: USABLE_BYTES,
        }
    }

    /// What the thread that keeps this, if one does, gave as its stack for signals.
    pub(crate) fn given(&self) -> SignalStack {
        if !self.is_kept() {
            return SignalStack::NONE;
        }
        let [at, flags, bytes] = [0, 1, 2].map(|i: usize| self.given[i].load(Ordering::Relaxed));
        SignalStack {
            at,
            flags: flags as u32,
            padding: 0,
            bytes,
        }
    }

    /// Notes another. Only the thread itself does.
    pub(crate) fn give(&self, stack: SignalStack) {
        let words = [stack.at, stack.flags as usize, stack.bytes];
        for (to, word) in self.given.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
    }

    /// Whether a thread keeps it, or a process that shares this memory.
    pub(crate) fn is_kept(&self) -> bool {
        ![NOBODY, CALL].contains(&self.owner.load(Ordering::Relaxed))
    }

    /// A process that shares this memory leaves it without coming back here, when it executes a program or
    /// ends. Linux then gives the stack back.
    pub(crate) fn release_with_memory(&self) {
        // SAFETY: the address stays valid for as long as somebody has this memory.
        let _ = unsafe { syscall!(g::__NR_set_tid_address, self.owner.as_ptr()) };
    }

    /// The execution failed after [`Stack::release_with_memory`]. Children of `vfork` have no address
    /// of their own there.
    pub(crate) fn release_as_ever(&self) {
        // SAFETY: null means none.
        let _ = unsafe { syscall!(g::__NR_set_tid_address, 0) };
    }

    /// Leaves a block for the next owner of the stack to free; returns what the last one left.
    pub(crate) fn leave(&self, block: *mut u8) -> *mut u8 {
        if block.is_null() && self.left.load(Ordering::Relaxed).is_null() {
            return block;
        }
        self.left.swap(block, Ordering::AcqRel)
    }
}

/// In the child of a fork, which has one thread: all stacks but `own` are nobody's.
pub(crate) fn after_fork(own: Option<&Stack>) {
    for stack in STACKS.iter().flat_map(list) {
        if own.is_none_or(|own| !core::ptr::eq(own, stack)) {
            stack.owner.store(NOBODY, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_one_owners_and_used_again() {
        let one = take(0).unwrap();
        let two = take(0).unwrap();
        assert_ne!(one.top(), two.top());
        assert_eq!(one.top() % 64, 0);
        one.release();
        assert_eq!(take(0).unwrap().top(), one.top());
        after_fork(Some(one));
        assert_eq!(take(0).unwrap().top(), two.top());
    }
}
