//! What is done at each fork of a process that has libc.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::view::places;
use crate::{process, time};

/// Time between two looks whether another thread has registered them: it takes less.
const LOOK_NS: u64 = 10_000;

/// Functions that are called at each fork, from when somebody first needs that.
///
/// Any thread may fork while another one registers them, and that one is not in the child. So it is no
/// `std::sync::Once`, for whose end such a child would wait for ever: libc calls `child` where they were
/// registered, which says so by [`AtFork::in_child`], and else the child registers them itself.
pub struct AtFork {
    prepare: extern "C" fn(),
    parent: extern "C" fn(),
    child: extern "C" fn(),
    /// The process whose thread registers them, or has; 0: none has begun.
    by: AtomicU32,
    is_done: AtomicBool,
}

impl AtFork {
    /// `prepare` before each fork, `parent` and `child` after it.
    pub const fn new(
        prepare: extern "C" fn(),
        parent: extern "C" fn(),
        child: extern "C" fn(),
    ) -> Self {
        Self {
            prepare,
            parent,
            child,
            by: AtomicU32::new(0),
            is_done: AtomicBool::new(false),
        }
    }

    /// Has them called from now on.
    ///
    /// A child keeps the places of views first, which the handlers of others could else take.
    ///
    /// # Panics
    /// When libc has no memory to note it: a child would go on with what it cannot use.
    pub fn begin(&self) {
        places::watch();
        self.register();
    }

    /// As [`AtFork::begin`]. Those of children are called in the order of their registration.
    pub(crate) fn register(&self) {
        while !self.is_done.load(Ordering::Acquire) {
            let (own, by) = (process::id(), self.by.load(Ordering::Relaxed));
            if by == own {
                // Another thread is at it.
                time::sleep_ns(LOOK_NS);
                continue;
            }
            let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
            if self.by.compare_exchange(by, own, order, failed).is_err() {
                continue;
            }
            let (prepare, parent, child) = (self.prepare, self.parent, self.child);
            // SAFETY: the functions take nothing and live as long as the process.
            let failed = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
            assert_eq!(failed, 0, "no memory for fork handlers");
            self.is_done.store(true, Ordering::Release);
        }
    }

    /// To be called first in `child`: they are registered here, too.
    pub fn in_child(&self) {
        self.is_done.store(true, Ordering::Release);
    }
}
