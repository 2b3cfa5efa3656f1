//! Open files that one call of this process has for a while, and by which it holds locks. A child that another
//! thread makes meanwhile has them as well: it closes them, for else the locks outlive their holder.

use core::sync::atomic::{AtomicI32, Ordering};

use farpage_sys::file::{self, Fd};

use crate::start;

const MANY: usize = 256;
const FREE: i32 = -1;

static OPEN: [AtomicI32; MANY] = [const { AtomicI32::new(FREE) }; MANY];

/// Notes an open file, which [`close`] closes.
pub(super) fn note(fd: Fd) -> Fd {
    // A child of `vfork` has the memory of its parent, and descriptors of its own.
    if !start::is_known_visitor() {
        // Where there is no room a child keeps it.
        replace(FREE, fd.0);
    }
    fd
}

/// Closes a file that was noted.
pub(super) fn close(fd: Fd) {
    if !start::is_known_visitor() {
        replace(fd.0, FREE);
    }
    file::close(fd);
}

fn replace(from: i32, to: i32) {
    for place in &OPEN {
        let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        if place.compare_exchange(from, to, order, failed).is_ok() {
            return;
        }
    }
}

/// In the child of a fork, whose only thread is in no such call.
pub(super) fn after_fork() {
    for place in &OPEN {
        let fd = place.swap(FREE, Ordering::AcqRel);
        if fd != FREE {
            file::close(Fd(fd));
        }
    }
}
