//! The user-mode-only tier: userfaultfd does not serve the kernel's own accesses, so what a system
//! call reads or writes must be in memory before it is made.

use crate::frame::Frame;
use crate::trap::Outcome;

/// A call with pointers to managed memory.
///
/// # Safety
/// As the call that the program made.
pub(crate) unsafe fn call(number: u32, frame: &mut Frame) -> Outcome {
    let _ = (number, frame);
    Outcome::Reissue
}

/// Brings in what a call reads and writes that the program is going to make again.
///
/// # Safety
/// As the call that the program made.
pub(crate) unsafe fn prepare_reissue(frame: &mut Frame) {
    let _ = frame;
}

/// Makes `bytes` bytes at `at` present if they are managed memory that is not. True when they were.
pub(crate) fn bring_in(at: usize, bytes: usize) -> bool {
    let _ = (at, bytes);
    false
}
