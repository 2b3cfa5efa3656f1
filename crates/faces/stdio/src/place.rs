//! Single bytes, and where the next one is.

use std::ffi::{c_int, c_long};

use farpage_mapio::Use;
use farpage_sys::file::Fd;

use crate::file::{EOF_SEEN, File, set_errno};
use crate::lend::{self, More};
use crate::real::{self, Lock};
use crate::slots;

pub const EOF: c_int = -1;
const EINVAL: c_int = 22;
const SEEK_SET: c_int = 0;
const SEEK_CUR: c_int = 1;

unsafe extern "C" {
    static stdin: *mut File;
}

/// `getc_unlocked`.
///
/// # Safety
/// `file` is an open stream that this thread has to itself.
#[inline]
unsafe fn next_byte(file: *mut File) -> c_int {
    // SAFETY: forwarded to the caller.
    let stream = unsafe { &mut *file };
    if stream.read_ptr < stream.read_end {
        // SAFETY: bytes between the two may be read, and the pointer may be moved behind them.
        let byte = unsafe { stream.read_ptr.read_volatile() };
        if byte != 0 {
            stream.read_ptr = stream.read_ptr.wrapping_add(1);
            return c_int::from(byte);
        }
    }
    // SAFETY: forwarded to the caller.
    unsafe { next_byte_slowly(file) }
}

/// A zero, or no byte here.
#[cold]
unsafe fn next_byte_slowly(file: *mut File) -> c_int {
    // SAFETY: forwarded to the caller.
    let stream = unsafe { &mut *file };
    if stream.ready() == 0 {
        // SAFETY: forwarded to the caller.
        match unsafe { lend::more(stream, Use::InPlace) } {
            More::Here => {}
            // SAFETY: forwarded to the caller.
            More::Glibc => return unsafe { real::uflow(file) },
            More::Lost => return EOF,
        }
    }
    // SAFETY: there is one.
    let mut byte = unsafe { stream.read_ptr.read_volatile() };
    if byte == 0 {
        let at = stream.read_ptr;
        // SAFETY: forwarded to the caller; that is where the next byte is.
        match unsafe { lend::check(stream, at) } {
            // SAFETY: there is one.
            Some(More::Here) => byte = unsafe { stream.read_ptr.read_volatile() },
            Some(More::Glibc | More::Lost) => return EOF,
            None => {}
        }
    }
    stream.read_ptr = stream.read_ptr.wrapping_add(1);
    c_int::from(byte)
}

/// The same where there are other threads. Apart, so that where there are none no register is saved.
#[inline(never)]
unsafe fn next_byte_locked(file: *mut File) -> c_int {
    // SAFETY: forwarded to the caller.
    let _lock = unsafe { Lock::take(file) };
    // SAFETY: locked.
    unsafe { next_byte(file) }
}

macro_rules! locked { ($($name:ident)*) => { $(
    #[unsafe(no_mangle)]
    unsafe extern "C" fn $name(file: *mut File) -> c_int {
        // SAFETY: C's promise: an open stream.
        if unsafe { (*file).needs_lock() } {
            // SAFETY: as above.
            return unsafe { next_byte_locked(file) };
        }
        // SAFETY: there is no other thread.
        unsafe { next_byte(file) }
    }
)* } }
locked!(getc fgetc _IO_getc);

macro_rules! unlocked { ($($name:ident)*) => { $(
    #[unsafe(no_mangle)]
    unsafe extern "C" fn $name(file: *mut File) -> c_int {
        // SAFETY: C's promise: an open stream, locked by the caller.
        unsafe { next_byte(file) }
    }
)* } }
unlocked!(getc_unlocked fgetc_unlocked __uflow);

#[unsafe(no_mangle)]
unsafe extern "C" fn getchar() -> c_int {
    // SAFETY: the C library's own stream.
    unsafe { getc(stdin) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getchar_unlocked() -> c_int {
    // SAFETY: as above, locked by the caller.
    unsafe { next_byte(stdin) }
}

/// The next byte, which is not taken.
#[unsafe(no_mangle)]
unsafe extern "C" fn __underflow(file: *mut File) -> c_int {
    // SAFETY: C's promise: an open stream, locked by the caller.
    let stream = unsafe { &mut *file };
    if stream.ready() == 0 {
        // SAFETY: as above.
        match unsafe { lend::more(stream, Use::InPlace) } {
            More::Here => {}
            // SAFETY: as above.
            More::Glibc => return unsafe { real::underflow(file) },
            More::Lost => return EOF,
        }
    }
    // SAFETY: there is one.
    c_int::from(unsafe { stream.read_ptr.read_volatile() })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ungetc(byte: c_int, file: *mut File) -> c_int {
    if byte == EOF {
        return EOF;
    }
    // SAFETY: C's promise: an open stream.
    let _lock = unsafe { Lock::take(file) };
    // SAFETY: locked.
    let stream = unsafe { &mut *file };
    // SAFETY: as above.
    if unsafe { lend::lent(stream) }.is_some() {
        let before = stream.read_ptr.wrapping_sub(1);
        // SAFETY: where it is not before the base it may be read.
        if before >= stream.read_base && unsafe { before.read_volatile() } == byte as u8 {
            stream.read_ptr = before;
            stream.flags &= !EOF_SEEN;
            return c_int::from(byte as u8);
        }
        // SAFETY: as above.
        unsafe { lend::settle(stream) };
    }
    // SAFETY: an open stream, in glibc's own state.
    unsafe { real::ungetc(byte, file) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _IO_ungetc(byte: c_int, file: *mut File) -> c_int {
    // SAFETY: as above.
    unsafe { ungetc(byte, file) }
}

/// Where a stream is that is lent something.
unsafe fn position(stream: &mut File) -> Option<u64> {
    // SAFETY: forwarded to the caller.
    let slot = unsafe { lend::lent(stream) }?;
    let windows = slot.windows.as_ref()?;
    let at = stream.read_ptr.addr().min(slot.window.end);
    Some(windows.position(at))
}

macro_rules! ftells { ($($name:ident: $type:ty;)*) => { $(
    #[unsafe(no_mangle)]
    unsafe extern "C" fn $name(file: *mut File) -> $type {
        // SAFETY: C's promise: an open stream.
        let _lock = unsafe { Lock::take(file) };
        // SAFETY: locked.
        match unsafe { position(&mut *file) } {
            Some(offset) => offset as $type,
            // SAFETY: as above.
            None => unsafe { real::ftello(file) as $type },
        }
    }
)* } }
ftells! { ftell: c_long; ftello: i64; ftello64: i64; __ftello64: i64; _IO_ftell: c_long; }

/// Moves inside of what is lent; false when that is not possible.
unsafe fn move_inside(stream: &mut File, offset: i64, whence: c_int) -> bool {
    // SAFETY: forwarded to the caller.
    let Some(from) = (unsafe { position(stream) }) else {
        return false;
    };
    let wanted = match whence {
        SEEK_SET => u64::try_from(offset).ok(),
        SEEK_CUR => from.checked_add_signed(offset),
        _ => None,
    };
    // SAFETY: forwarded to the caller.
    let slot = unsafe { lend::lent(stream) };
    let found = wanted.zip(slot).and_then(|(wanted, slot)| {
        let windows = slot.windows.as_mut()?;
        let window = windows.find(Fd(stream.fileno), wanted)?;
        slot.window = window;
        Some(window)
    });
    let Some(window) = found else {
        return false;
    };
    let pointer = std::ptr::with_exposed_provenance_mut;
    stream.take(
        pointer(window.base),
        pointer(window.at),
        pointer(window.end),
    );
    stream.flags &= !EOF_SEEN;
    true
}

macro_rules! fseeks { ($($name:ident: $type:ty;)*) => { $(
    #[unsafe(no_mangle)]
    unsafe extern "C" fn $name(file: *mut File, offset: $type, whence: c_int) -> c_int {
        // SAFETY: C's promise: an open stream.
        let _lock = unsafe { Lock::take(file) };
        // SAFETY: locked.
        unsafe { seek(file, offset as i64, whence) }
    }
)* } }
fseeks! { fseek: c_long; fseeko: i64; fseeko64: i64; __fseeko64: i64; }

unsafe fn seek(file: *mut File, offset: i64, whence: c_int) -> c_int {
    // SAFETY: forwarded to the caller.
    let stream = unsafe { &mut *file };
    // SAFETY: as above.
    if unsafe { move_inside(stream, offset, whence) } {
        return 0;
    }
    // SAFETY: as above.
    unsafe { lend::settle(stream) };
    // SAFETY: as above, in glibc's own state.
    let Some(end) = (unsafe { end_of_map(file) }) else {
        // SAFETY: as above.
        return unsafe { real::fseeko(file, offset, whence) };
    };
    // SAFETY: as above.
    let before = unsafe { real::ftello(file) };
    // SAFETY: as above.
    let moved = unsafe { real::fseeko(file, offset, whence) };
    // SAFETY: as above.
    if moved == 0 && unsafe { real::ftello(file) } > end {
        // SAFETY: as above.
        unsafe { real::fseeko(file, before, SEEK_SET) };
        set_errno(EINVAL);
        return -1;
    }
    moved
}

/// How far a stream may go that is mapped to be written.
pub unsafe fn end_of_map(file: *mut File) -> Option<i64> {
    let slot = slots::find(file)?;
    // SAFETY: forwarded to the caller, who has the stream to itself.
    let map = unsafe { (*slot).map.as_ref() }?;
    map.is_writable().then(|| map.bytes() as i64)
}
