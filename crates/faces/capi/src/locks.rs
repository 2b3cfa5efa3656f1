//! Locked areas: memory that stays where it is.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farpage::{Block, Hold, LockError, Locked};
use farpage_client::Wire;
use farpage_client::locks::SegmentLock;

use crate::error::{
    FP_ARGUMENT, FP_DENIED, FP_KERNEL, FP_STALE, FP_UNSUPPORTED, Failure, FpError, coded,
};

/// The frames stay, too, and not only the pages in memory: for what reads memory by its physical
/// address.
pub const FP_PINNED: u32 = 1;

/// Frames one behind the other, of 4096 bytes each.
#[repr(C)]
pub struct FpBlock {
    /// The number of the first: its physical address divided by 4096.
    pub first: u64,
    /// So many.
    pub frames: u64,
}

/// What is locked by a handle.
pub(crate) enum Held {
    /// Memory of this process.
    Own(Locked),
    /// Shared memory, by the host kernel.
    Shared(SegmentLock),
    /// Pages of shared memory of the cluster, at this host.
    AtHost(Wire),
}

impl Held {
    fn check(&self) -> Result<(), Failure> {
        match self {
            Self::Own(locked) => Ok(locked.check()?),
            Self::Shared(lock) => Ok(lock.check()?),
            Self::AtHost(wire) => Ok(wire.check()?),
        }
    }

    fn frames(&self) -> Result<Vec<u64>, Failure> {
        match self {
            Self::Own(locked) => Ok(locked.frames()?),
            Self::Shared(lock) => Ok(lock.frames()?),
            Self::AtHost(_) => Err(no_frames()),
        }
    }

    fn blocks(&self, most: u64) -> Result<Vec<Block>, Failure> {
        match self {
            Self::Own(locked) => Ok(locked.blocks(most)?),
            Self::Shared(lock) => Ok(lock.blocks(most)?),
            Self::AtHost(_) => Err(no_frames()),
        }
    }
}

fn no_frames() -> Failure {
    let message = "handle: fp_shared_lock keeps pages at this host, in whichever frames; lock them, too (fp_lock_area with \
                   FP_PINNED, of fp_shared_data), and ask that handle";
    Failure::new(FP_UNSUPPORTED, message.into())
}

struct Locks {
    held: BTreeMap<u64, Arc<Held>>,
    last: u64,
}

static LOCKS: Mutex<Locks> = Mutex::new(Locks {
    held: BTreeMap::new(),
    last: 0,
});

fn locks() -> MutexGuard<'static, Locks> {
    LOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        let code = match &error {
            LockError::Area(_) | LockError::Beyond { .. } | LockError::Unusable { .. } => {
                FP_ARGUMENT
            }
            LockError::NoFrames => FP_DENIED,
            LockError::Stale { .. } => FP_STALE,
            LockError::NoRing { .. } => FP_UNSUPPORTED,
            _ => FP_KERNEL,
        };
        Self::new(code, error.to_string())
    }
}

fn unknown(handle: u64) -> Failure {
    Failure::argument(format!(
        "handle: no locked area has the number {handle}; give one of fp_lock_area that was not given \
         back"
    ))
}

pub(crate) fn held(handle: u64) -> Result<Arc<Held>, Failure> {
    let found = locks().held.get(&handle).cloned();
    found.ok_or_else(|| unknown(handle))
}

pub(crate) fn hold(flags: u32) -> Result<Hold, Failure> {
    match flags {
        0 => Ok(Hold::Resident),
        FP_PINNED => Ok(Hold::Pinned),
        other => Err(Failure::argument(format!(
            "flags: {other:#x} is not known; give 0 or FP_PINNED"
        ))),
    }
}

/// Gives what was locked a handle.
///
/// # Safety
/// `handle` is NULL or the caller's own.
pub(crate) unsafe fn keep(held: Held, handle: *mut u64) -> Result<(), Failure> {
    if handle.is_null() {
        return Err(Failure::argument(
            "handle: it is NULL; give a place for the handle",
        ));
    }
    let mut locks = locks();
    locks.last += 1;
    let number = locks.last;
    locks.held.insert(number, Arc::new(held));
    // SAFETY: checked above, and the header asks for the caller's own.
    unsafe { handle.write(number) };
    Ok(())
}

/// Locks the pages that have some of the `bytes` bytes at `address`: they are in memory when this
/// returns, and stay there. `flags` is 0 or FP_PINNED. Areas may overlap and nest; each page stays
/// locked until the last of them is given back, in any order. The memory has to stay mapped
/// meanwhile. A child of fork has nothing locked.
///
/// Writes a handle to `*handle`, never 0. When it fails nothing is locked: FP_ARGUMENT says which
/// address cannot be locked and why, FP_KERNEL which limit, its value and how to raise it,
/// FP_UNSUPPORTED that there is no io_uring to pin with. Returns the error's code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_lock_area(
    address: *const c_void,
    bytes: usize,
    flags: u32,
    handle: *mut u64,
    error: *mut FpError,
) -> i32 {
    let lock = || {
        let hold = hold(flags)?;
        let locked = farpage::lock_area(address.addr(), bytes, hold)?;
        // SAFETY: NULL or the caller's own.
        unsafe { keep(Held::Own(locked), handle) }
    };
    // SAFETY: NULL or the caller's own.
    unsafe { coded(error, lock) }
}

/// Gives a lock back. Returns the error's code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_unlock_area(handle: u64, error: *mut FpError) -> i32 {
    let unlock = || {
        let found = locks().held.remove(&handle);
        found.map(drop).ok_or_else(|| unknown(handle))
    };
    // SAFETY: NULL or the caller's own.
    unsafe { coded(error, unlock) }
}

/// Looks whether what was locked still is: mapped, locked, in memory, and, if it is pinned, in the frames that
/// were pinned. Linux tells nobody when memory is unmapped, discarded or cut off by who shares it. It is
/// FP_STALE when something is not, and says where and what; FP_DENIED when all is well of pinned memory but
/// for the frames, which this process could not read when it was locked (CAP_SYS_ADMIN). Nothing is given
/// back. Returns the error's code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_lock_check(handle: u64, error: *mut FpError) -> i32 {
    // SAFETY: NULL or the caller's own.
    unsafe { coded(error, || held(handle)?.check()) }
}

/// Writes the frames of the locked pages to `frames`, in order: physical addresses divided by 4096.
/// `*count` is how many there is room for, and says how many there are; with too little room nothing
/// is written, and it is FP_ARGUMENT. Needs CAP_SYS_ADMIN, without which it is FP_DENIED. Unless the
/// area is pinned they may be others the next moment. Returns the error's code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_get_pages(
    handle: u64,
    frames: *mut u64,
    count: *mut usize,
    error: *mut FpError,
) -> i32 {
    let get = || {
        let found = held(handle)?.frames()?;
        // SAFETY: the header asks for so much room.
        unsafe { given(&found, frames, count) }
    };
    // SAFETY: NULL or the caller's own.
    unsafe { coded(error, get) }
}

/// As fp_get_pages, with consecutive frames merged to blocks of `most` frames at most: for lists of
/// scatter and gather. Returns the error's code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_get_blocks(
    handle: u64,
    most: u64,
    blocks: *mut FpBlock,
    count: *mut usize,
    error: *mut FpError,
) -> i32 {
    let get = || {
        if most == 0 {
            return Err(Failure::argument(
                "most: blocks have a frame at least; give 1 or more",
            ));
        }
        let found = held(handle)?.blocks(most)?;
        let found: Vec<FpBlock> = found
            .iter()
            .map(|block| FpBlock {
                first: block.first,
                frames: block.frames,
            })
            .collect();
        // SAFETY: the header asks for so much room.
        unsafe { given(&found, blocks, count) }
    };
    // SAFETY: NULL or the caller's own.
    unsafe { coded(error, get) }
}

/// Gives all locks back.
#[unsafe(no_mangle)]
pub extern "C" fn fp_lock_cleanup() {
    let all = std::mem::take(&mut locks().held);
    drop(all);
}

/// Copies what was found to where the caller has room.
///
/// # Safety
/// `count` is NULL or the caller's own, and says for how many there is room at `to`.
unsafe fn given<T>(found: &[T], to: *mut T, count: *mut usize) -> Result<(), Failure> {
    if count.is_null() {
        return Err(Failure::argument(
            "count: it is NULL; give a place for the number",
        ));
    }
    // SAFETY: checked above.
    let room = unsafe { count.replace(found.len()) };
    if room < found.len() || to.is_null() {
        return Err(Failure::argument(format!(
            "count: there is room for {room}, and there are {}; give room for all",
            found.len()
        )));
    }
    // SAFETY: the caller says that there is room.
    unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), to, found.len()) };
    Ok(())
}
