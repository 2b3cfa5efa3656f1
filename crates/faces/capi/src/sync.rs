//! Locks, semaphores, barriers and conditions between processes of a host, and of all hosts of a
//! cluster.

use std::ffi::c_char;
use std::time::Duration;

use farpage_client::sync::{Acquired, Barrier, Condition, Mutex, Semaphore, SyncError};
use farpage_client::{Host, Shared, default_socket};

use crate::error::{
    FP_BROKEN, FP_CHANGED, FP_DENIED, FP_HOLDER_DIED, FP_LOST, FP_OTHER, FP_TIMED_OUT, Failure,
    FpError, call, coded, handle, text,
};
use crate::shared::FpShared;

/// A lock that one thread at a time has, of all processes of all hosts, and its condition.
pub struct FpMutex(Mutex);

/// So many places; a place is the process's that took it.
pub struct FpSemaphore(Semaphore);

/// So many threads come to it before any of them goes on.
pub struct FpBarrier(Barrier);

impl From<SyncError> for Failure {
    fn from(error: SyncError) -> Self {
        let message = error.to_string();
        match error {
            SyncError::Place { .. } | SyncError::Count(_) | SyncError::Apart(_) => {
                Self::argument(message)
            }
            SyncError::ReadOnly(_) | SyncError::NotHeld(_) | SyncError::Deadlock => {
                Self::new(FP_DENIED, message)
            }
            SyncError::Differs { .. } => Self::new(FP_CHANGED, message),
            SyncError::Lost { .. } => Self::new(FP_LOST, message),
            SyncError::Broken => Self::new(FP_BROKEN, message),
            SyncError::Host(error) => error.into(),
            _ => Self::new(FP_OTHER, message),
        }
    }
}

pub(crate) fn limit(timeout_ms: u64) -> Option<Duration> {
    (timeout_ms < u64::MAX).then(|| Duration::from_millis(timeout_ms))
}

fn timed_out() -> Failure {
    let message = "it was not to be had in time; wait longer, or do something else".into();
    Failure::new(FP_TIMED_OUT, message)
}

fn holder_died() -> Failure {
    let message = "a process died that had the lock, and what it guards may be half changed; the caller \
                   has it: put that right, then call fp_mutex_consistent";
    Failure::new(FP_HOLDER_DIED, message.into())
}

fn replicas(replicas: u32) -> Result<u8, Failure> {
    match replicas {
        1 | 2 => Ok(replicas as u8),
        other => Err(Failure::argument(format!("replicas: {other}; give 1 or 2"))),
    }
}

/// What `open` opens by a name.
///
/// # Safety
/// `name` is NULL or text, `error` NULL or the caller's own.
unsafe fn opened<T>(
    name: *const c_char,
    of: u32,
    error: *mut FpError,
    open: impl FnOnce(&Host, &str, u8) -> Result<T, SyncError>,
) -> *mut T {
    let body = || {
        // SAFETY: forwarded.
        let name = unsafe { text(name, "name") }?;
        let of = replicas(of)?;
        let host = Host::connect(&default_socket())?;
        Ok(Box::into_raw(Box::new(open(&host, name, of)?)))
    };
    // SAFETY: forwarded.
    unsafe { call(error, std::ptr::null_mut(), body) }
}

/// What `open` opens in shared memory that this program maps.
///
/// # Safety
/// `shared` is NULL or was opened, `error` NULL or the caller's own.
unsafe fn lies<T>(
    shared: *const FpShared,
    error: *mut FpError,
    open: impl FnOnce(&Shared) -> Result<T, SyncError>,
) -> *mut T {
    let body = || {
        // SAFETY: forwarded.
        let mapped = unsafe { handle(shared, "shared") }?.mapped()?;
        Ok(Box::into_raw(Box::new(open(mapped)?)))
    };
    // SAFETY: forwarded.
    unsafe { call(error, std::ptr::null_mut(), body) }
}

/// Gives back what was opened.
///
/// # Safety
/// `opened` is NULL, or was opened and is given back once.
unsafe fn closed<T>(opened: *mut T) {
    if !opened.is_null() {
        // SAFETY: the caller says so.
        drop(unsafe { Box::from_raw(opened) });
    }
}

/// What functions of one thing have in common.
///
/// # Safety
/// `opened` is NULL or was opened, `error` NULL or the caller's own.
unsafe fn does<T>(
    opened: *const T,
    what: &str,
    error: *mut FpError,
    act: impl FnOnce(&T) -> Result<(), Failure>,
) -> i32 {
    let body = || {
        // SAFETY: forwarded.
        act(unsafe { handle(opened, what) }?)
    };
    // SAFETY: forwarded.
    unsafe { coded(error, body) }
}

/// The lock of a name: of the cluster that the host kernel (`farpage up`) belongs to, else of the host.
/// It is there as long as some process has it open. `replicas`: 1, or 2 so that it outlives any host
/// that dies. Returns NULL when it fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_mutex_open(
    name: *const c_char,
    replicas: u32,
    error: *mut FpError,
) -> *mut FpMutex {
    // SAFETY: as the header says.
    unsafe {
        opened(name, replicas, error, |host, name, replicas| {
            Mutex::named(host, name, replicas).map(FpMutex)
        })
    }
}

/// The lock that lies at byte `offset` of shared memory that is mapped (fp_shared_open), or is to lie there,
/// where 64 bytes are 0: a multiple of 64. Who takes it has what lies beside it in its page with it. The memory stays
/// mapped until fp_mutex_close. Returns NULL when it fails: FP_ARGUMENT when it cannot lie there,
/// FP_CHANGED when something else does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_mutex_at(
    shared: *const FpShared,
    offset: u64,
    error: *mut FpError,
) -> *mut FpMutex {
    // SAFETY: as the header says.
    unsafe {
        lies(shared, error, |shared| {
            Mutex::at(shared, offset).map(FpMutex)
        })
    }
}

/// Closes it; it is not given back by that. Takes NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_mutex_close(mutex: *mut FpMutex) {
    // SAFETY: as the header says.
    unsafe { closed(mutex) }
}

/// Takes it for the calling thread, and waits for it, `timeout_ms` at most: 0 not at all, UINT64_MAX as
/// long as it takes. Returns FP_OK; FP_HOLDER_DIED when the caller has it and a process died that had it,
/// so that what it guards may be half changed; FP_TIMED_OUT; FP_DENIED when the thread has it already;
/// FP_LOST when its memory was lost with a host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_mutex_lock(
    mutex: *const FpMutex,
    timeout_ms: u64,
    error: *mut FpError,
) -> i32 {
    let lock = |mutex: &FpMutex| match mutex.0.acquire(limit(timeout_ms))? {
        Acquired::Taken => Ok(()),
        Acquired::HolderDied => Err(holder_died()),
        Acquired::TimedOut => Err(timed_out()),
    };
    // SAFETY: as the header says.
    unsafe { does(mutex, "mutex", error, lock) }
}

/// Gives it back. FP_DENIED when the calling thread does not have it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_mutex_unlock(mutex: *const FpMutex, error: *mut FpError) -> i32 {
    // SAFETY: as the header says.
    unsafe { does(mutex, "mutex", error, |mutex| Ok(mutex.0.release()?)) }
}

/// What a process that died left half done is put right: nobody is told FP_HOLDER_DIED of it any more.
/// FP_DENIED when the calling thread does not have the lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_mutex_consistent(mutex: *const FpMutex, error: *mut FpError) -> i32 {
    // SAFETY: as the header says.
    unsafe {
        does(mutex, "mutex", error, |mutex| {
            Ok(mutex.0.is_right_again()?)
        })
    }
}

/// Gives the lock back, waits until somebody says that something has changed, `timeout_ms` at most, and
/// takes the lock again. Returns as fp_mutex_lock; with FP_OK, FP_TIMED_OUT and FP_HOLDER_DIED the caller
/// has the lock. Look whether it is what was waited for: others are woken, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_condition_wait(
    mutex: *const FpMutex,
    timeout_ms: u64,
    error: *mut FpError,
) -> i32 {
    let wait = |mutex: &FpMutex| {
        let waited = Condition::of(&mutex.0).wait(limit(timeout_ms))?;
        match (waited.holder_died, waited.is_notified) {
            (true, _) => Err(holder_died()),
            (false, true) => Ok(()),
            (false, false) => Err(timed_out()),
        }
    };
    // SAFETY: as the header says.
    unsafe { does(mutex, "mutex", error, wait) }
}

/// Lets all go on that wait by fp_condition_wait. FP_DENIED when the calling thread does not have the
/// lock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_condition_notify(mutex: *const FpMutex, error: *mut FpError) -> i32 {
    let notify = |mutex: &FpMutex| Ok(Condition::of(&mutex.0).notify()?);
    // SAFETY: as the header says.
    unsafe { does(mutex, "mutex", error, notify) }
}

/// The semaphore of a name with 1 to 4096 places; else as fp_mutex_open. FP_CHANGED when it is there with
/// another number of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_semaphore_open(
    name: *const c_char,
    places: u32,
    replicas: u32,
    error: *mut FpError,
) -> *mut FpSemaphore {
    // SAFETY: as the header says.
    unsafe {
        opened(name, replicas, error, |host, name, replicas| {
            Semaphore::named(host, name, places, replicas).map(FpSemaphore)
        })
    }
}

/// The semaphore that lies at byte `offset`, as fp_mutex_at has it, in 64 bytes and 64 for every
/// eight places.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_semaphore_at(
    shared: *const FpShared,
    offset: u64,
    places: u32,
    error: *mut FpError,
) -> *mut FpSemaphore {
    let open = |shared: &Shared| Semaphore::at(shared, offset, places).map(FpSemaphore);
    // SAFETY: as the header says.
    unsafe { lies(shared, error, open) }
}

/// Closes it. Takes NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_semaphore_close(semaphore: *mut FpSemaphore) {
    // SAFETY: as the header says.
    unsafe { closed(semaphore) }
}

/// Takes a place, and waits for one as fp_mutex_lock does. What a process had that died is free again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_semaphore_take(
    semaphore: *const FpSemaphore,
    timeout_ms: u64,
    error: *mut FpError,
) -> i32 {
    let take = |semaphore: &FpSemaphore| match semaphore.0.acquire(limit(timeout_ms))? {
        true => Ok(()),
        false => Err(timed_out()),
    };
    // SAFETY: as the header says.
    unsafe { does(semaphore, "semaphore", error, take) }
}

/// Gives a place back. FP_DENIED when the calling process has none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_semaphore_give(
    semaphore: *const FpSemaphore,
    error: *mut FpError,
) -> i32 {
    let give = |semaphore: &FpSemaphore| Ok(semaphore.0.release()?);
    // SAFETY: as the header says.
    unsafe { does(semaphore, "semaphore", error, give) }
}

/// The barrier of a name for 1 to 4096 parties; else as fp_semaphore_open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_barrier_open(
    name: *const c_char,
    parties: u32,
    replicas: u32,
    error: *mut FpError,
) -> *mut FpBarrier {
    // SAFETY: as the header says.
    unsafe {
        opened(name, replicas, error, |host, name, replicas| {
            Barrier::named(host, name, parties, replicas).map(FpBarrier)
        })
    }
}

/// The barrier that lies at byte `offset`, as fp_semaphore_at has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_barrier_at(
    shared: *const FpShared,
    offset: u64,
    parties: u32,
    error: *mut FpError,
) -> *mut FpBarrier {
    let open = |shared: &Shared| Barrier::at(shared, offset, parties).map(FpBarrier);
    // SAFETY: as the header says.
    unsafe { lies(shared, error, open) }
}

/// Closes it. Takes NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_barrier_close(barrier: *mut FpBarrier) {
    // SAFETY: as the header says.
    unsafe { closed(barrier) }
}

/// Waits until all are there. FP_BROKEN when they will not be: a party that was there before has died,
/// somebody did not wait any longer (`timeout_ms`; UINT64_MAX waits as long as it takes), or broke it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_barrier_wait(
    barrier: *const FpBarrier,
    timeout_ms: u64,
    error: *mut FpError,
) -> i32 {
    let wait = |barrier: &FpBarrier| {
        barrier.0.wait(limit(timeout_ms))?;
        Ok(())
    };
    // SAFETY: as the header says.
    unsafe { does(barrier, "barrier", error, wait) }
}

/// Breaks it for who waits, and makes it as new.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_barrier_reset(barrier: *const FpBarrier, error: *mut FpError) -> i32 {
    let reset = |barrier: &FpBarrier| Ok(barrier.0.reset()?);
    // SAFETY: as the header says.
    unsafe { does(barrier, "barrier", error, reset) }
}
