//! What System V has by numbers: segments of shared memory, semaphores, message queues.

use linux_raw_sys::general as g;

use crate::raw::{Errno, Result};
use crate::syscall;

const IPC_RMID: usize = 0;
const IPC_STAT: usize = 2;

/// What Linux says about a segment of shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its size.
    pub bytes: u64,
    /// Mappings of it.
    pub attached: u64,
}

/// Looks at a segment.
///
/// # Errors
/// As `shmctl(2)`: `EINVAL` and `EIDRM` when there is none (any more).
pub fn segment(number: u32) -> Result<Segment> {
    // `struct shmid64_ds`: what all have in common (48 bytes), size, three times, the creator's and
    // the last user's process, the count of mappings, two reserved.
    let mut raw = [0u64; 14];
    // SAFETY: the kernel's structure has 112 bytes.
    unsafe { syscall!(g::__NR_shmctl, number, IPC_STAT, raw.as_mut_ptr()) }?;
    Ok(Segment {
        bytes: raw[6],
        attached: raw[11],
    })
}

/// Removes a segment; it is gone when nobody maps it.
///
/// # Errors
/// As `shmctl(2)`.
pub fn remove_segment(number: u32) -> Result<()> {
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_shmctl, number, IPC_RMID, 0) }.map(drop)
}

/// Removes a set of semaphores.
///
/// # Errors
/// As `semctl(2)`.
pub fn remove_semaphores(number: u32) -> Result<()> {
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_semctl, number, 0, IPC_RMID, 0) }.map(drop)
}

/// Removes a message queue.
///
/// # Errors
/// As `msgctl(2)`.
pub fn remove_messages(number: u32) -> Result<()> {
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_msgctl, number, IPC_RMID, 0) }.map(drop)
}

/// The set of semaphores with a key.
///
/// # Errors
/// As `semget(2)`.
pub fn semaphores_of(key: u32) -> Result<u32> {
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_semget, key, 0, 0) }.map(|number| number as u32)
}

/// The message queue with a key.
///
/// # Errors
/// As `msgget(2)`.
pub fn messages_of(key: u32) -> Result<u32> {
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_msgget, key, 0) }.map(|number| number as u32)
}

/// Removes a message queue of POSIX, named without the slash.
///
/// # Errors
/// As `mq_unlink(3)`.
pub fn remove_queue(name: &str) -> Result<()> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.push(0);
    // SAFETY: a string of ours.
    unsafe { syscall!(g::__NR_mq_unlink, bytes.as_ptr()) }.map(drop)
}

/// True when there is no such segment any more.
pub fn is_gone(number: u32) -> bool {
    matches!(segment(number), Err(Errno::EINVAL | Errno(43)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_there_until_it_is_removed_and_unmapped() {
        const IPC_PRIVATE: usize = 0;
        // SAFETY: takes no pointer.
        let made = unsafe { syscall!(g::__NR_shmget, IPC_PRIVATE, 12345, 0o600) };
        let number = made.unwrap() as u32;
        // SAFETY: it is mapped where nothing is.
        let at = unsafe { syscall!(g::__NR_shmat, number, 0, 0) }.unwrap();
        let segment = segment(number).unwrap();
        assert_eq!((segment.bytes, segment.attached), (12345, 1));
        remove_segment(number).unwrap();
        assert!(!is_gone(number));
        // SAFETY: nobody else knows the mapping.
        unsafe { syscall!(g::__NR_shmdt, at) }.unwrap();
        assert!(is_gone(number));
        assert!(remove_segment(number).is_err());
    }
}
