//! `fmap` and `fbufsize`.

use std::ffi::{c_int, c_void};
use std::ptr;

use farpage_mapio::Map;
use farpage_sys::file::{self, Fd};

use crate::file::{ERR_SEEN, File, set_errno};
use crate::real::{self, Lock};
use crate::{lend, slots};

const IO_UNBUFFERED: c_int = 2;
const ACCESS_MODE: u32 = 3;
const EBADF: c_int = 9;
const ENOMEM: c_int = 12;
const EINVAL: c_int = 22;
const ENODATA: c_int = 61;

/// Maps the file of a stream from its start, as `farpage/stdio.h` says.
#[unsafe(no_mangle)]
unsafe extern "C" fn fmap(file: *mut File, bytes: usize) -> *mut c_void {
    // SAFETY: C's promise: an open stream.
    let _lock = unsafe { Lock::take(file) };
    // SAFETY: locked.
    match unsafe { map(file, bytes) } {
        Ok(address) => ptr::with_exposed_provenance_mut(address),
        Err(errno) => {
            set_errno(errno);
            ptr::null_mut()
        }
    }
}

unsafe fn map(file: *mut File, bytes: usize) -> Result<usize, c_int> {
    // SAFETY: forwarded to the caller.
    unsafe { lend::settle(&mut *file) };
    // SAFETY: forwarded to the caller.
    let fd = Fd(unsafe { (*file).fileno });
    let mode = file::flags(fd).map_err(|_| EBADF)? & ACCESS_MODE;
    let is_writable = mode != 0;
    // SAFETY: forwarded to the caller, in glibc's own state.
    if is_writable && unsafe { real::fflush(file) } != 0 {
        return Err(std::io::Error::last_os_error()
            .raw_os_error()
            .unwrap_or(EINVAL));
    }
    let slot = slots::make(file).ok_or(ENOMEM)?;
    // SAFETY: the stream is locked, and so is its slot.
    let slot = unsafe { &mut *slot };
    let wanted = Map::again(slot.map.as_ref(), bytes);
    let map = Map::new(fd, wanted, is_writable).map_err(|why| {
        let is_empty = why.kind() == std::io::ErrorKind::UnexpectedEof;
        why.raw_os_error()
            .unwrap_or(if is_empty { ENODATA } else { EINVAL })
    })?;
    // SAFETY: `lose` touches the stream only, which is open while the map is there.
    unsafe { map.tell(file.expose_provenance(), lose) };
    if is_writable {
        // What goes through the stream and what goes through memory is one from now on.
        slot.is_refused = true;
        // SAFETY: nothing is in the buffer.
        unsafe { real::setvbuf(file, ptr::null_mut(), IO_UNBUFFERED, 0) };
    }
    Ok(slot.map.insert(map).address())
}

/// Told, in a signal handler, that what is mapped was cut off.
fn lose(owner: usize, _page: usize) {
    let stream = ptr::with_exposed_provenance_mut::<File>(owner);
    // SAFETY: the stream is open while it is mapped; a flag is set that glibc's functions only read
    // and set.
    unsafe { (*stream).flags |= ERR_SEEN };
}

/// Bytes that are mapped; of a stream that is not, the size of its buffer.
#[unsafe(no_mangle)]
unsafe extern "C" fn fbufsize(file: *mut File) -> usize {
    // SAFETY: C's promise: an open stream.
    let _lock = unsafe { Lock::take(file) };
    // SAFETY: locked, and so is its slot.
    let map = slots::find(file).and_then(|slot| unsafe { (*slot).map.as_ref() });
    // SAFETY: C's promise.
    map.map_or_else(|| unsafe { real::fbufsize(file) }, Map::bytes)
}
