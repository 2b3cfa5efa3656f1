//! Stacks for trapped calls: the program's own may be tiny.

use core::sync::atomic::{AtomicUsize, Ordering};

use farpage_sys::mem;

const STACK_BYTES: usize = 64 << 10;
const KEPT: usize = 64;

/// Stacks that nobody is on.
static FREE: [AtomicUsize; KEPT] = [const { AtomicUsize::new(0) }; KEPT];

/// The top of a stack that is the caller's until [`put`]. `None` when there is no memory.
pub(crate) fn take() -> Option<usize> {
    for slot in &FREE {
        let top = slot.swap(0, Ordering::AcqRel);
        if top != 0 {
            return Some(top);
        }
    }
    mem::map_anonymous(STACK_BYTES)
        .ok()
        .map(|bottom| bottom + STACK_BYTES)
}

/// Gives a stack back.
pub(crate) fn put(top: usize) {
    for slot in &FREE {
        if slot
            .compare_exchange(0, top, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            return;
        }
    }
    // SAFETY: nobody else knows the stack, and the caller is not on it any more.
    let _ = unsafe { mem::unmap(top - STACK_BYTES, STACK_BYTES) };
}
