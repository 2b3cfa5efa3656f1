//! Shared memory that processes lock through the host kernel.

use std::ffi::c_char;
use std::ops::Range;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use farpage_client::locks::{LockRefusal, SegmentLock};
use farpage_client::{Error, Host, default_socket};

use crate::error::{
    FP_ARGUMENT, FP_DENIED, FP_KERNEL, FP_NOT_FOUND, FP_STALE, Failure, FpError, coded, text,
};
use crate::locks::{self, Held};

/// The host kernel, once it was needed.
static HOST: Mutex<Option<Host>> = Mutex::new(None);

fn with_host<T>(act: impl FnOnce(&Host) -> Result<T, Error>) -> Result<T, Failure> {
    let mut host = HOST.lock().unwrap_or_else(PoisonError::into_inner);
    let host = match &mut *host {
        Some(host) => host,
        none => none.insert(Host::connect(&default_socket())?),
    };
    Ok(act(host)?)
}

fn range(offset: u64, bytes: u64) -> Result<Range<u64>, Failure> {
    let end = offset.checked_add(bytes);
    let end = end.ok_or_else(|| Failure::argument("bytes: they end beyond all memory; give less"));
    Ok(offset..end?)
}

fn borrowed<'a>(fd: RawFd) -> Result<BorrowedFd<'a>, Failure> {
    if fd < 0 {
        return Err(Failure::argument(format!(
            "fd: {fd} is no descriptor; give one that is open"
        )));
    }
    // SAFETY: the caller keeps it open during the call.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// The code of a refusal.
pub(crate) fn code(refusal: &LockRefusal) -> i32 {
    match refusal {
        LockRefusal::Empty
        | LockRefusal::Beyond { .. }
        | LockRefusal::NoMemory
        | LockRefusal::Own(_)
        | LockRefusal::ReadOnly(_)
        | LockRefusal::NoSegment(_)
        | LockRefusal::Name(_) => FP_ARGUMENT,
        LockRefusal::Denied { .. }
        | LockRefusal::FramesDenied { .. }
        | LockRefusal::FramesUnknown
        | LockRefusal::Lent(_)
        | LockRefusal::LentAs(_) => FP_DENIED,
        LockRefusal::NotLent(_) => FP_NOT_FOUND,
        LockRefusal::Gone { .. } => FP_STALE,
        _ => FP_KERNEL,
    }
}

/// Has bytes of shared memory stay in memory, or, with FP_PINNED in `flags`, in their frames, too, for all
/// processes that have it, through the host kernel (`farpage up`): of the file `fd`, which is of
/// memfd_create, shm_open or in a tmpfs, and to be pinned is open for writing. What several processes lock is
/// locked and charged once, page by page, until the last of them has given it back or has ended.
///
/// Writes a handle to `*handle`, for fp_unlock_area, fp_lock_check, fp_get_pages, fp_get_blocks and
/// fp_lend_lock. The host
/// kernel tells frames, to whom it may. When it fails nothing is locked: FP_NOT_FOUND without a host kernel,
/// FP_ARGUMENT for what is no shared memory or not so large, FP_KERNEL says which limit, its value and how to
/// raise it. Returns the error's code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_lock_shared(
    fd: i32,
    offset: u64,
    bytes: u64,
    flags: u32,
    handle: *mut u64,
    error: *mut FpError,
) -> i32 {
    let lock = || {
        let hold = locks::hold(flags)?;
        let range = range(offset, bytes)?;
        let fd = borrowed(fd)?;
        let lock = with_host(|host| host.lock_file(fd, range, hold))?;
        // SAFETY: NULL or the caller's own.
        unsafe { locks::keep(Held::Shared(lock), handle) }
    };
    // SAFETY: NULL or the caller's own.
    unsafe { coded(error, lock) }
}

/// As fp_lock_shared, of the System V segment with the number `segment` (shmget). Its mode has to allow this
/// user to read it, and to write to it when it is to be pinned; else it is FP_DENIED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_lock_segment(
    segment: i32,
    offset: u64,
    bytes: u64,
    flags: u32,
    handle: *mut u64,
    error: *mut FpError,
) -> i32 {
    let lock = || {
        let hold = locks::hold(flags)?;
        let range = range(offset, bytes)?;
        let number = u32::try_from(segment);
        let number = number.map_err(|_| {
            Failure::argument(format!(
                "segment: {segment} is no number of a segment; give what shmget returned"
            ))
        })?;
        let lock = with_host(|host| host.lock_segment(number, range, hold))?;
        // SAFETY: NULL or the caller's own.
        unsafe { locks::keep(Held::Shared(lock), handle) }
    };
    // SAFETY: NULL or the caller's own.
    unsafe { coded(error, lock) }
}

/// Lets other processes of this user borrow a lock of shared memory by a name, also when this one has given it
/// back, as long as another has it. FP_DENIED when the name is in use. Returns the error's code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_lend_lock(
    handle: u64,
    name: *const c_char,
    error: *mut FpError,
) -> i32 {
    let lend = || {
        // SAFETY: NULL or text, as the header asks.
        let name = unsafe { text(name, "name") }?;
        match &*locks::held(handle)? {
            Held::Shared(lock) => Ok(lock.lend(name)?),
            Held::Own(_) | Held::AtHost(_) => Err(Failure::argument(
                "handle: what it locks is not lent; give one of fp_lock_shared or fp_lock_segment",
            )),
        }
    };
    // SAFETY: NULL or the caller's own.
    unsafe { coded(error, lend) }
}

/// Has a share of the lock that is lent by a name, and writes a handle to `*handle`: locked and charged once,
/// until the last process that has a share has given it back or has ended. FP_NOT_FOUND when there is none.
/// Returns the error's code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_borrow_lock(
    name: *const c_char,
    handle: *mut u64,
    error: *mut FpError,
) -> i32 {
    let borrow = || {
        // SAFETY: NULL or text, as the header asks.
        let name = unsafe { text(name, "name") }?;
        let lock: SegmentLock = with_host(|host| host.borrow_lock(name))?;
        // SAFETY: NULL or the caller's own.
        unsafe { locks::keep(Held::Shared(lock), handle) }
    };
    // SAFETY: NULL or the caller's own.
    unsafe { coded(error, borrow) }
}
