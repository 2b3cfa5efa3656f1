//! `fread`, and `fwrite` to a file that is mapped.

use std::ffi::c_int;

use farpage_mapio::Use;
use farpage_sys::file::{self, Fd};

use crate::file::{ERR_SEEN, File, set_errno};
use crate::lend::{self, More};
use crate::place::end_of_map;
use crate::real::{self, Lock};
use crate::slots;

/// Copies of this size and more are Linux's own.
const DIRECT_BYTES: usize = 32 << 10;
const EFBIG: c_int = 27;
const O_APPEND: u32 = 0o2000;

/// `fread_unlocked` of `count` items.
///
/// # Safety
/// `to` takes them; `file` is an open stream that this thread has to itself.
unsafe fn read(to: *mut u8, size: usize, count: usize, file: *mut File) -> usize {
    let bytes = size.wrapping_mul(count);
    if bytes == 0 {
        return 0;
    }
    // SAFETY: forwarded to the caller.
    let done = unsafe { read_bytes(to, bytes, file) };
    if done == bytes { count } else { done / size }
}

unsafe fn read_bytes(to: *mut u8, bytes: usize, file: *mut File) -> usize {
    // SAFETY: forwarded to the caller.
    let stream = unsafe { &mut *file };
    let mut done = 0;
    loop {
        // SAFETY: there is room for the rest.
        done += unsafe { copy(to.add(done), bytes - done, stream) };
        let left = bytes - done;
        if left == 0 {
            return done;
        }
        // SAFETY: as above.
        let rest = unsafe { to.add(done) };
        if left >= DIRECT_BYTES {
            // SAFETY: as above.
            let got = unsafe { read_past(rest, left, stream) };
            done += got;
            if got > 0 {
                continue;
            }
            if stream.ready() > 0 {
                continue;
            }
            // SAFETY: as above.
            if unsafe { lend::lent(stream) }.is_none() {
                // SAFETY: as above, in glibc's own state.
                return done + unsafe { real::fread_unlocked(rest, 1, left, file) };
            }
        }
        // SAFETY: forwarded to the caller.
        match unsafe { lend::more(stream, Use::Copied) } {
            More::Here => {}
            // SAFETY: as above.
            More::Glibc => return done + unsafe { real::fread_unlocked(rest, 1, left, file) },
            More::Lost => return done,
        }
    }
}

/// Copies what is there, and returns how much.
unsafe fn copy(to: *mut u8, most: usize, stream: &mut File) -> usize {
    let bytes = stream.ready().min(most);
    if bytes == 0 {
        return 0;
    }
    let from = stream.read_ptr;
    // SAFETY: so much is there, and there is room for it.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
    stream.read_ptr = from.wrapping_add(bytes);
    // SAFETY: just written.
    if unsafe { to.add(bytes - 1).read() } != 0 {
        return bytes;
    }
    // SAFETY: forwarded to the caller; `from` was lent, if anything was.
    match unsafe { lend::check(stream, from) } {
        None => bytes,
        Some(More::Here) => {
            let bytes = stream.ready().min(bytes);
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(stream.read_ptr, to, bytes) };
            stream.read_ptr = stream.read_ptr.wrapping_add(bytes);
            bytes
        }
        Some(More::Glibc | More::Lost) => 0,
    }
}

/// Reads straight to where it is wanted, when nothing is left of what was lent.
unsafe fn read_past(to: *mut u8, bytes: usize, stream: &mut File) -> usize {
    // SAFETY: forwarded to the caller.
    let Some(slot) = (unsafe { lend::lent(stream) }) else {
        return 0;
    };
    let at = stream.read_ptr.addr().min(slot.window.end);
    let Some(windows) = slot
        .windows
        .as_mut()
        .filter(|windows| windows.left(at) == 0)
    else {
        return 0;
    };
    // SAFETY: there is room for so many, and nobody else knows it.
    let into = unsafe { std::slice::from_raw_parts_mut(to, bytes) };
    let got = windows.read_past(Fd(stream.fileno), into);
    // What comes next is read anew. At the end, or after an error, glibc finds out itself.
    slot.window.base = stream.buf_base.addr();
    (slot.window.at, slot.window.end) = (slot.window.base, slot.window.base);
    stream.empty();
    match got {
        Ok(got) if got > 0 => got,
        Ok(_) | Err(_) => {
            slot.is_lent = false;
            0
        }
    }
}

macro_rules! freads { ($($name:ident $lock:literal;)*) => { $(
    #[unsafe(no_mangle)]
    unsafe extern "C" fn $name(to: *mut u8, size: usize, count: usize, file: *mut File) -> usize {
        // SAFETY: C's promise: an open stream.
        let _lock = $lock.then(|| unsafe { Lock::take(file) });
        // SAFETY: C's promise, locked.
        unsafe { read(to, size, count, file) }
    }
)* } }
freads! { fread true; _IO_fread true; fread_unlocked false; }

macro_rules! checked { ($($name:ident: $fread:ident;)*) => { $(
    #[unsafe(no_mangle)]
    unsafe extern "C" fn $name(
        to: *mut u8,
        room: usize,
        size: usize,
        count: usize,
        file: *mut File,
    ) -> usize {
        if size.checked_mul(count).is_none_or(|bytes| bytes > room) {
            // SAFETY: ends the process.
            unsafe { real::chk_fail() };
        }
        // SAFETY: C's promise.
        unsafe { $fread(to, size, count, file) }
    }
)* } }
checked! { __fread_chk: fread; __fread_unlocked_chk: fread_unlocked; }

/// Writes; beyond the end of a map nothing.
unsafe fn write(from: *const u8, size: usize, count: usize, file: *mut File) -> usize {
    if slots::find(file).is_some() {
        // SAFETY: C's promise: an open stream.
        let _lock = unsafe { Lock::take(file) };
        // SAFETY: locked.
        unsafe { lend::settle(&mut *file) };
        // SAFETY: as above.
        if let Some(end) = unsafe { end_of_map(file) } {
            let bytes = size.saturating_mul(count) as u64;
            // SAFETY: as above, in glibc's own state.
            let at = match unsafe { end_of_appended(file) } {
                Some(size) => size,
                // SAFETY: as above.
                None => unsafe { real::ftello(file) },
            };
            if u64::try_from(at).is_ok_and(|at| at.saturating_add(bytes) > end as u64) {
                // SAFETY: as above.
                unsafe { (*file).flags |= ERR_SEEN };
                set_errno(EFBIG);
                return 0;
            }
        }
    }
    // SAFETY: C's promise.
    unsafe { real::fwrite(from, size, count, file) }
}

/// Where writes go when they go to the end, whatever the offset.
///
/// # Safety
/// The stream is locked.
unsafe fn end_of_appended(file: *mut File) -> Option<i64> {
    // SAFETY: forwarded to the caller.
    let fd = Fd(unsafe { (*file).fileno });
    let appends = file::flags(fd).is_ok_and(|flags| flags & O_APPEND != 0);
    let status = appends.then(|| file::status(fd).ok()).flatten()?;
    i64::try_from(status.bytes).ok()
}

macro_rules! fwrites { ($($name:ident)*) => { $(
    #[unsafe(no_mangle)]
    unsafe extern "C" fn $name(
        from: *const u8,
        size: usize,
        count: usize,
        file: *mut File,
    ) -> usize {
        // SAFETY: C's promise.
        unsafe { write(from, size, count, file) }
    }
)* } }
fwrites!(fwrite _IO_fwrite);
