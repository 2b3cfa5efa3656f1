//! `map_fd`: copies of any bytes of a file, or the bytes themselves, in memory.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_void};
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use farpage::{Error, MappedBytes};

use crate::error::{Failure, FpError, coded, text};
use crate::options::{FpOptions, options};

/// What is mapped, by the address of its first byte.
static MAPPED: Mutex<BTreeMap<usize, MappedBytes>> = Mutex::new(BTreeMap::new());

fn all() -> MutexGuard<'static, BTreeMap<usize, MappedBytes>> {
    MAPPED.lock().unwrap_or_else(PoisonError::into_inner)
}

type Map = fn(BorrowedFd<'_>, u64, u64, Option<usize>) -> Result<MappedBytes, Error>;

/// What the two functions of descriptors have in common.
///
/// # Safety
/// `address` is NULL or the caller's own, as is `error`.
unsafe fn of_fd(
    fd: i32,
    (offset, bytes): (u64, usize),
    (address, find_space): (*mut *mut c_void, i32),
    error: *mut FpError,
    map: Map,
) -> i32 {
    let map = || {
        // SAFETY: forwarded.
        let at = unsafe { place(address, find_space) }?;
        if fd < 0 {
            return Err(Failure::argument(format!(
                "fd: {fd} is no descriptor; give one that is open"
            )));
        }
        // SAFETY: used during this call, in which the caller keeps it open.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let mapped = map(fd, offset, bytes as u64, at)?;
        // SAFETY: checked above.
        unsafe { address.write(kept(mapped)) };
        Ok(())
    };
    // SAFETY: forwarded.
    unsafe { coded(error, map) }
}

/// Where the first byte is to lie.
///
/// # Safety
/// `address` is NULL or can be read.
unsafe fn place(address: *mut *mut c_void, find_space: i32) -> Result<Option<usize>, Failure> {
    if address.is_null() {
        let why = "address: it is NULL; give a place for the address";
        return Err(Failure::argument(why));
    }
    // SAFETY: the caller says so.
    Ok((find_space == 0).then(|| unsafe { address.read() }.addr()))
}

fn kept(mapped: MappedBytes) -> *mut c_void {
    let address = mapped.as_ptr();
    all().insert(address.addr(), mapped);
    address.cast()
}

/// Maps a private copy of `bytes` bytes of the file of `fd` from byte `offset` on, as they are now:
/// what others write to the file later is not seen, and what is written to the copy stays in this
/// process. Neither number has to be a multiple of anything. `fd` may be closed afterwards.
///
/// With `find_space` the address of the first byte is written to `*address`; it may lie inside a
/// page. Without, the first byte comes to lie at `*address`, which must begin a page where nothing
/// lies; then all is copied at once. With it more than a MiB of a file that nobody has open for
/// writing comes when it is touched, and whoever opens it for writing waits until the rest is
/// copied. A page that cannot be had raises SIGBUS where it is touched, after a message on standard
/// error. Returns the error's code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_map_fd(
    fd: i32,
    offset: u64,
    address: *mut *mut c_void,
    find_space: i32,
    bytes: usize,
    error: *mut FpError,
) -> i32 {
    let place = (address, find_space);
    // SAFETY: the header asks for NULL or the caller's own.
    unsafe { of_fd(fd, (offset, bytes), place, error, farpage::map_fd) }
}

/// As fp_map_fd, of the bytes themselves: what is written is in the file, and what others write is
/// seen. They can be written to when `fd` can. Without `find_space` `offset` must be a multiple of
/// 4096. Returns the error's code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_map_fd_shared(
    fd: i32,
    offset: u64,
    address: *mut *mut c_void,
    find_space: i32,
    bytes: usize,
    error: *mut FpError,
) -> i32 {
    let place = (address, find_space);
    // SAFETY: as in `fp_map_fd`.
    unsafe { of_fd(fd, (offset, bytes), place, error, farpage::map_fd_shared) }
}

/// As fp_map_fd, of what is at `url`, a path or an URL: `*bytes` of it, or, when that is 0, all
/// from `offset` on, and `*bytes` says how many then. `options` may be NULL. Returns the error's
/// code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_map_url(
    url: *const c_char,
    offset: u64,
    address: *mut *mut c_void,
    find_space: i32,
    bytes: *mut usize,
    options: *const FpOptions,
    error: *mut FpError,
) -> i32 {
    let map = || {
        // SAFETY: the header asks for text.
        let url = unsafe { text(url, "url") }?;
        // SAFETY: and for NULL or the caller's own.
        let at = unsafe { place(address, find_space) }?;
        if bytes.is_null() {
            let why = "bytes: it is NULL; give a place for their number";
            return Err(Failure::argument(why));
        }
        // SAFETY: and for NULL or options.
        let options = unsafe { self::options(options) }?;
        // SAFETY: checked above.
        let wanted = Some(unsafe { bytes.read() } as u64).filter(|bytes| *bytes > 0);
        let mapped = farpage::map_url(url, offset, wanted, at, &options.open)?;
        // SAFETY: checked above.
        unsafe { bytes.write(mapped.bytes()) };
        // SAFETY: checked above.
        unsafe { address.write(kept(mapped)) };
        Ok(())
    };
    // SAFETY: NULL or the caller's own.
    unsafe { coded(error, map) }
}

/// Unmaps what fp_map_fd, fp_map_fd_shared or fp_map_url mapped: `address` is the one that it gave.
/// Pointers into it are not valid any more. Takes NULL. Returns the error's code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_unmap(address: *mut c_void, error: *mut FpError) -> i32 {
    let unmap = || {
        let mapped = all().remove(&address.addr());
        if mapped.is_none() && !address.is_null() {
            return Err(Failure::argument(format!(
                "address: nothing was mapped with its first byte at {address:p}; give the address \
                 that fp_map_fd gave"
            )));
        }
        drop(mapped);
        Ok(())
    };
    // SAFETY: NULL or the caller's own.
    unsafe { coded(error, unmap) }
}
