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
    let raw = stat(number)?;
    Ok(Segment {
        bytes: raw[6],
        attached: raw[11],
    })
}

/// Who may do what with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// Its owner and who made it.
    pub users: [u32; 2],
    /// Their groups.
    pub groups: [u32; 2],
    /// As of a file.
    pub mode: u32,
}

impl Permissions {
    /// Whether `user`, who is in the groups for which `is_in`, may read it, or also write to it: as Linux
    /// decides it for users without privileges.
    pub fn allow(&self, user: u32, is_in: impl Fn(u32) -> bool, writing: bool) -> bool {
        let wanted = if writing { 0o6 } else { 0o4 };
        let mode = match () {
            () if self.users.contains(&user) => self.mode >> 6,
            () if self.groups.iter().any(|group| is_in(*group)) => self.mode >> 3,
            () => self.mode,
        };
        mode & wanted == wanted
    }
}

/// Who may do what with a segment.
///
/// # Errors
/// As [`segment`]; `EACCES` when this process may not read it.
pub fn permissions(number: u32) -> Result<Permissions> {
    let raw = stat(number)?;
    // The key, the owner's user and group, the maker's, the mode: 32 bits each.
    let half = |at: usize| (raw[at / 2] >> (at % 2 * 32)) as u32;
    Ok(Permissions {
        users: [half(1), half(3)],
        groups: [half(2), half(4)],
        mode: half(5) & 0o777,
    })
}

fn stat(number: u32) -> Result<[u64; 14]> {
    // `struct shmid64_ds`: what all have in common (48 bytes), size, three times, the creator's and
    // the last user's process, the count of mappings, two reserved.
    let mut raw = [0u64; 14];
    // SAFETY: the kernel's structure has 112 bytes.
    unsafe { syscall!(g::__NR_shmctl, number, IPC_STAT, raw.as_mut_ptr()) }?;
    Ok(raw)
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

/// Makes a set of semaphores without a key, each 0, for this user.
///
/// # Errors
/// As `semget(2)`.
pub fn make_semaphores(count: u32) -> Result<u32> {
    const IPC_PRIVATE: usize = 0;
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_semget, IPC_PRIVATE, count, 0o600) }.map(|number| number as u32)
}

/// Sets a semaphore.
///
/// # Errors
/// As `semctl(2)`.
pub fn set_semaphore(number: u32, which: u32, value: u32) -> Result<()> {
    const SETVAL: usize = 16;
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_semctl, number, which, SETVAL, value) }.map(drop)
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

/// The key of a segment.
///
/// # Errors
/// As `shmctl(2)`.
pub fn key_of(number: u32) -> Result<u32> {
    Ok(stat(number)?[0] as u32)
}

/// Makes a segment of shared memory with a key, for this user.
///
/// # Errors
/// As `shmget(2)`: `EEXIST` when there is one.
pub fn make_segment(key: u32, bytes: u64) -> Result<u32> {
    const NEW: usize = 0o1000 | 0o2000;
    const NO_RESERVE: usize = 0o10000;
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_shmget, key, bytes, NEW | NO_RESERVE | 0o600) }
        .map(|number| number as u32)
}

/// True when a segment was removed, though it may still be mapped.
pub fn is_removed(number: u32) -> bool {
    const REMOVED: u32 = 0o1000;
    match stat(number) {
        // Its mode is the sixth word.
        Ok(raw) => (raw[2] >> 32) as u32 & REMOVED != 0,
        Err(_) => true,
    }
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
        assert!(!is_removed(number));
        remove_segment(number).unwrap();
        assert!(!is_gone(number) && is_removed(number));
        // SAFETY: nobody else knows the mapping.
        unsafe { syscall!(g::__NR_shmdt, at) }.unwrap();
        assert!(is_gone(number));
        assert!(remove_segment(number).is_err() && is_removed(number));
        // SAFETY: takes no pointer.
        let other = unsafe { syscall!(g::__NR_shmget, IPC_PRIVATE, 12345, 0o640) };
        let other = other.unwrap() as u32;
        let allowed = permissions(other).unwrap();
        remove_segment(other).unwrap();
        // SAFETY: takes no pointer.
        let user = unsafe { syscall!(g::__NR_geteuid) }.unwrap();
        let (owner, none) = (user as u32, |_: u32| false);
        assert_eq!((allowed.users, allowed.mode), ([owner; 2], 0o640));
        assert!(allowed.allow(owner, none, true) && !allowed.allow(owner + 1, none, false));
        let in_group = |group| group == allowed.groups[0];
        assert!(allowed.allow(owner + 1, in_group, false));
        assert!(!allowed.allow(owner + 1, in_group, true));
        let key = 0x4000_0000 | std::process::id();
        let keyed = make_segment(key, 4097).unwrap();
        assert_eq!(super::segment(keyed).unwrap().bytes, 4097);
        assert_eq!(key_of(keyed), Ok(key));
        assert_eq!(make_segment(key, 4097), Err(Errno::EEXIST));
        remove_segment(keyed).unwrap();
    }
}
