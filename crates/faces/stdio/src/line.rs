//! `fgets` and `getline`.

use std::ffi::{c_char, c_int};

use farpage_mapio::Use;

use crate::file::{ERR_SEEN, File, set_errno};
use crate::lend::{self, More};
use crate::place::EOF;
use crate::real::{self, Lock};

const EAGAIN: c_int = 11;
const ENOMEM: c_int = 12;
const EINVAL: c_int = 22;
const EOVERFLOW: c_int = 75;

/// Bytes of a line that are here.
enum Part {
    /// So many, and the line goes on.
    More(usize),
    /// So many, the last of which ends it.
    Last(usize),
}

/// Finds the end of the line in what is here, of which `most` bytes are wanted.
unsafe fn find(stream: &File, end: u8, most: usize) -> Part {
    unsafe extern "C" {
        fn memchr(at: *const u8, byte: c_int, bytes: usize) -> *const u8;
    }
    let bytes = stream.ready().min(most);
    // SAFETY: so many are there.
    let found = unsafe { memchr(stream.read_ptr, c_int::from(end), bytes) };
    if found.is_null() {
        Part::More(bytes)
    } else {
        Part::Last(found.addr() + 1 - stream.read_ptr.addr())
    }
}

/// Copies a part, and looks again where it may be zeros of nobody's. `None`: then it has to be
/// looked for again.
unsafe fn copy(stream: &mut File, to: *mut u8, bytes: usize) -> Option<usize> {
    let from = stream.read_ptr;
    // SAFETY: so many are there, and there is room for them.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
    stream.read_ptr = from.wrapping_add(bytes);
    // SAFETY: just written.
    if bytes == 0 || unsafe { to.add(bytes - 1).read() } != 0 {
        return Some(bytes);
    }
    let before = stream.read_base;
    // SAFETY: forwarded to the caller; `from` was lent, if anything was.
    match unsafe { lend::check(stream, from) } {
        None => Some(bytes),
        Some(More::Here) if stream.read_base == before => {
            stream.read_ptr = from.wrapping_add(bytes);
            Some(bytes)
        }
        Some(_) => None,
    }
}

/// Whether there is more to read, whoever brings it.
unsafe fn is_more(stream: &mut File) -> bool {
    if stream.ready() > 0 {
        return true;
    }
    // SAFETY: forwarded to the caller.
    match unsafe { lend::more(stream, Use::Copied) } {
        More::Here => true,
        // SAFETY: forwarded to the caller.
        More::Glibc => unsafe { real::underflow(stream) != EOF },
        More::Lost => false,
    }
}

/// `fgets_unlocked`.
unsafe fn line(to: *mut c_char, most: c_int, file: *mut File) -> *mut c_char {
    // SAFETY: forwarded to the caller.
    let stream = unsafe { &mut *file };
    // SAFETY: forwarded to the caller.
    if most <= 1 || (stream.ready() == 0 && unsafe { lend::lent(stream) }.is_none()) {
        // SAFETY: as above.
        if most <= 1 || unsafe { lend::more(stream, Use::Copied) } == More::Glibc {
            // SAFETY: forwarded to the caller, in glibc's own state.
            return unsafe { real::fgets_unlocked(to, most, file) };
        }
    }
    let before = stream.flags & ERR_SEEN;
    stream.flags &= !ERR_SEEN;
    let most = most as usize - 1;
    let mut done = 0;
    // SAFETY: as above.
    while done < most && unsafe { is_more(stream) } {
        // SAFETY: as above.
        let (bytes, is_last) = match unsafe { find(stream, b'\n', most - done) } {
            Part::More(bytes) => (bytes, false),
            Part::Last(bytes) => (bytes, true),
        };
        // SAFETY: there is room for `most` bytes and a zero.
        let Some(bytes) = (unsafe { copy(stream, to.cast::<u8>().add(done), bytes) }) else {
            continue;
        };
        done += bytes;
        if is_last {
            break;
        }
    }
    let failed = stream.flags & ERR_SEEN != 0 && errno() != EAGAIN;
    stream.flags |= before;
    if done == 0 || failed {
        return std::ptr::null_mut();
    }
    // SAFETY: as above.
    unsafe { to.add(done).write(0) };
    to
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

macro_rules! lines { ($($name:ident $checked:ident $lock:literal;)*) => { $(
    #[unsafe(no_mangle)]
    unsafe extern "C" fn $name(to: *mut c_char, most: c_int, file: *mut File) -> *mut c_char {
        // SAFETY: C's promise: an open stream.
        let _lock = $lock.then(|| unsafe { Lock::take(file) });
        // SAFETY: C's promise, locked.
        unsafe { line(to, most, file) }
    }

    #[unsafe(no_mangle)]
    unsafe extern "C" fn $checked(
        to: *mut c_char,
        room: usize,
        most: c_int,
        file: *mut File,
    ) -> *mut c_char {
        if usize::try_from(most).is_ok_and(|most| most > room) {
            // SAFETY: ends the process.
            unsafe { real::chk_fail() };
        }
        // SAFETY: C's promise.
        unsafe { $name(to, most, file) }
    }
)* } }
lines! { fgets __fgets_chk true; fgets_unlocked __fgets_unlocked_chk false; }

#[unsafe(no_mangle)]
unsafe extern "C" fn _IO_fgets(to: *mut c_char, most: c_int, file: *mut File) -> *mut c_char {
    // SAFETY: C's promise.
    unsafe { fgets(to, most, file) }
}

/// Memory of malloc that a line is put into.
struct Room {
    line: *mut *mut c_char,
    bytes: *mut usize,
}

impl Room {
    /// Room for `wanted` bytes, doubled as glibc does it.
    unsafe fn grow(&self, wanted: usize) -> bool {
        unsafe extern "C" {
            fn realloc(at: *mut c_char, bytes: usize) -> *mut c_char;
        }
        // SAFETY: C's promise.
        let (line, bytes) = unsafe { (*self.line, *self.bytes) };
        if wanted <= bytes {
            return true;
        }
        let wanted = wanted.max(bytes.saturating_mul(2));
        // SAFETY: C's promise: null, or of malloc.
        let new = unsafe { realloc(line, wanted) };
        if new.is_null() {
            return false;
        }
        // SAFETY: C's promise.
        unsafe { (*self.line, *self.bytes) = (new, wanted) };
        true
    }
}

/// `getdelim`, of a stream that is locked.
unsafe fn delimited(room: &Room, end: c_int, file: *mut File) -> isize {
    // SAFETY: forwarded to the caller.
    let stream = unsafe { &mut *file };
    // SAFETY: forwarded to the caller.
    if stream.ready() == 0 && unsafe { lend::lent(stream) }.is_none() {
        // SAFETY: as above.
        if unsafe { lend::more(stream, Use::Copied) } == More::Glibc {
            // SAFETY: forwarded to the caller, in glibc's own state.
            return unsafe { real::getdelim(room.line, room.bytes, end, file) };
        }
    }
    const FIRST: usize = 120;
    // SAFETY: C's promise.
    unsafe {
        if (*room.line).is_null() || *room.bytes == 0 {
            *room.bytes = 0;
            if !room.grow(FIRST) {
                return -1;
            }
        }
    }
    let mut done = 0usize;
    // SAFETY: forwarded to the caller.
    while unsafe { is_more(stream) } {
        // SAFETY: as above.
        let (bytes, is_last) = match unsafe { find(stream, end as u8, usize::MAX) } {
            Part::More(bytes) => (bytes, false),
            Part::Last(bytes) => (bytes, true),
        };
        let wanted = done.saturating_add(bytes).saturating_add(1);
        if isize::try_from(wanted).is_err() {
            set_errno(EOVERFLOW);
            return -1;
        }
        // SAFETY: as above.
        if !unsafe { room.grow(wanted) } {
            set_errno(ENOMEM);
            return -1;
        }
        // SAFETY: there is room for so many, and a zero.
        let Some(bytes) = (unsafe { copy(stream, (*room.line).cast::<u8>().add(done), bytes) })
        else {
            continue;
        };
        done += bytes;
        if is_last {
            break;
        }
    }
    if done == 0 {
        return -1;
    }
    // SAFETY: as above.
    unsafe { (*room.line).add(done).write(0) };
    done as isize
}

macro_rules! getdelims { ($($name:ident)*) => { $(
    #[unsafe(no_mangle)]
    unsafe extern "C" fn $name(
        line: *mut *mut c_char,
        bytes: *mut usize,
        end: c_int,
        file: *mut File,
    ) -> isize {
        if line.is_null() || bytes.is_null() {
            set_errno(EINVAL);
            return -1;
        }
        // SAFETY: C's promise: an open stream.
        let _lock = unsafe { Lock::take(file) };
        // SAFETY: locked, and C's promise.
        unsafe { delimited(&Room { line, bytes }, end, file) }
    }
)* } }
getdelims!(getdelim __getdelim);

#[unsafe(no_mangle)]
unsafe extern "C" fn getline(line: *mut *mut c_char, bytes: *mut usize, file: *mut File) -> isize {
    // SAFETY: C's promise.
    unsafe { getdelim(line, bytes, c_int::from(b'\n'), file) }
}
