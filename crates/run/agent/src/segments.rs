//! Segments of System V that are attached over memory.

use farpage_object::PAGE_BYTES;
use farpage_sys::linux::general as g;
use farpage_sys::{Result, syscall};

use crate::memory::kernel;
use crate::trap;

/// `shmat`, where the segment replaces what is mapped there.
///
/// # Safety
/// As the call that the program made.
pub(crate) unsafe fn shmat(args: [usize; 6]) -> Result<usize> {
    /// Of `struct shmid64_ds`: eight bytes each, the seventh is the segment's size.
    const WORDS: usize = 14;
    const SIZE: usize = 6;
    const IPC_STAT: usize = 2;
    let (id, at) = (args[0], args[1] & !(PAGE_BYTES - 1));
    let mut about = [0usize; WORDS];
    // SAFETY: the structure has so many bytes.
    let asked = unsafe { syscall!(g::__NR_shmctl, id, IPC_STAT, about.as_mut_ptr()) };
    let end = at.checked_add(about[SIZE].next_multiple_of(PAGE_BYTES));
    // SAFETY: forwarded.
    let attach = || unsafe { trap::pass(g::__NR_shmat, args) };
    match (kernel(), asked, end) {
        (Some(kernel), Ok(_), Some(end)) if at < end => kernel.replace(at, end, attach),
        // It fails.
        _ => attach(),
    }
}
