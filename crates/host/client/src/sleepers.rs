//! The words at which threads of this host sleep that wait for one another, or for other hosts.
//!
//! A thread that waits sleeps at a word of its own host's, and never at one in the memory that
//! hosts share: so waking it moves no page, and cannot fail when one is lost. The words are in one
//! file that all processes of the host map. Which of them a thread sleeps at follows from what it
//! waits for; two that share one wake each other now and then, and look again.

use std::sync::atomic::{AtomicU32, Ordering};

use farpage_sys::futex;

/// Bytes of the file.
pub const BYTES: usize = 16 << 10;
/// Which word threads sleep at that wait for something at a byte of an object, by its memory file.
pub fn word(inode: u64, offset: u64) -> usize {
    let mixed = (inode ^ offset.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed as usize >> 32 & (BYTES / 4 - 1)
}

/// Wakes all who sleep there.
pub fn wake(word: &AtomicU32) {
    word.fetch_add(1, Ordering::SeqCst);
    futex::wake(word, i32::MAX as u32);
}
