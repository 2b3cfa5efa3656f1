//! Stacks for trapped calls: the program's own may be tiny.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use farpage_sys::linux::general as g;
use farpage_sys::{mem, syscall};

const STACK_BYTES: usize = 128 << 10;
const GUARD_BYTES: usize = 4096;
/// Lists of stacks, so that threads seldom meet.
const LISTS: usize = 32;

/// A stack; this lies at its top. Stacks are made when needed, used again and never unmapped, so
/// lists only grow and can be walked at any time.
#[repr(C, align(64))]
pub(crate) struct Stack {
    /// 0: nobody's. Linux clears it when a `vfork` child that is on it executes or dies, see
    /// [`Stack::release_at_exec`].
    owner: AtomicU32,
    /// Memory that was needed until the owner executed a program.
    left: AtomicPtr<u8>,
    next: AtomicPtr<Stack>,
}

static STACKS: [AtomicPtr<Stack>; LISTS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; LISTS];

/// A stack that is the caller's until [`Stack::release`]. `None` when there is no memory. `hint`
/// is any address on the caller's own stack.
pub(crate) fn take(hint: usize) -> Option<&'static Stack> {
    let list = &STACKS[(hint >> 16) % LISTS];
    let mut at = list.load(Ordering::Acquire);
    // SAFETY: the list holds stacks, which live as long as the process.
    while let Some(stack) = unsafe { at.as_ref() } {
        let free = stack.owner.load(Ordering::Relaxed) == 0;
        let (order, failed) = (Ordering::Acquire, Ordering::Relaxed);
        if free && stack.owner.compare_exchange(0, 1, order, failed).is_ok() {
            return Some(stack);
        }
        at = stack.next.load(Ordering::Acquire);
    }
    let stack = make()?;
    let mut head = list.load(Ordering::Acquire);
    loop {
        stack.next.store(head, Ordering::Relaxed);
        let own = core::ptr::from_ref(stack).cast_mut();
        match list.compare_exchange(head, own, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Some(stack),
            Err(now) => head = now,
        }
    }
}

fn make() -> Option<&'static Stack> {
    let bottom = mem::map_anonymous(GUARD_BYTES + STACK_BYTES).ok()?;
    // SAFETY: the page was mapped just now and nobody knows it.
    let _ = unsafe { mem::protect(bottom, GUARD_BYTES, mem::PROT_NONE) };
    let top = bottom + GUARD_BYTES + STACK_BYTES - size_of::<Stack>();
    let stack = core::ptr::with_exposed_provenance_mut::<Stack>(top);
    let made = Stack {
        owner: AtomicU32::new(1),
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

    /// Gives the stack back. The caller must not be on it any more.
    pub(crate) fn release(&self) {
        self.owner.store(0, Ordering::Release);
    }

    /// A `vfork` child is about to execute a program: it leaves the memory it shares with its
    /// parent without coming back here. Linux then gives the stack back.
    pub(crate) fn release_at_exec(&self) {
        // SAFETY: the address stays valid for as long as somebody has this memory.
        let _ = unsafe { syscall!(g::__NR_set_tid_address, self.owner.as_ptr()) };
    }

    /// The execution failed after [`Stack::release_at_exec`]. Children of `vfork` have no address
    /// of their own there.
    pub(crate) fn keep(&self) {
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
    for list in &STACKS {
        let mut at = list.load(Ordering::Acquire);
        // SAFETY: the list holds stacks, which live as long as the process.
        while let Some(stack) = unsafe { at.as_ref() } {
            if own.is_none_or(|own| !core::ptr::eq(own, stack)) {
                stack.release();
            }
            at = stack.next.load(Ordering::Acquire);
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
