//! Messages that leave together: what a thread sends while it has a batch open is written when it
//! is closed, at most one write for each connection.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::lane::Lane;

#[derive(Default)]
struct Open {
    depth: usize,
    lanes: Vec<Arc<Lane>>,
}

thread_local! {
    static OPEN: RefCell<Open> = RefCell::default();
}

/// While it lives, what this thread sends waits; see [`crate::Network::batch`].
#[must_use = "messages wait only while it lives"]
pub struct Batch {
    /// It belongs to the thread.
    not_send: PhantomData<*const ()>,
}

impl Batch {
    pub(crate) fn open() -> Self {
        OPEN.with_borrow_mut(|open| open.depth += 1);
        Self {
            not_send: PhantomData,
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let lanes = OPEN.with_borrow_mut(|open| {
            open.depth -= 1;
            match open.depth {
                0 => std::mem::take(&mut open.lanes),
                _ => Vec::new(),
            }
        });
        lanes.iter().for_each(|lane| lane.flush());
    }
}

/// Has the lane flushed when the batch of this thread is closed. False when it has none open.
pub(crate) fn add(lane: &Arc<Lane>) -> bool {
    OPEN.with_borrow_mut(|open| {
        let is_open = open.depth > 0;
        if is_open && !open.lanes.iter().any(|other| Arc::ptr_eq(other, lane)) {
            open.lanes.push(Arc::clone(lane));
        }
        is_open
    })
}
