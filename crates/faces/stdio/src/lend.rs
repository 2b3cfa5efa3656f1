//! Lending a stream what it reads next, and taking it back.

use std::sync::atomic::{AtomicBool, Ordering};

use farpage_mapio::{Next, Use, Window, Windows};
use farpage_sys::file::{self, Fd};

use crate::file::{ERR_SEEN, File, UNKNOWN, set_errno};
use crate::real::{self, Lock};
use crate::slots::{self, Slot};

const EIO: i32 = 5;
/// A file of which less than this is left is read by glibc.
const LEAST_BYTES: u64 = 4096;

/// Nothing is lent any more: the process ends.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// What there is for a stream whose bytes are used up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum More {
    /// Bytes, between `read_ptr` and `read_end`.
    Here,
    /// It is glibc's to read them, or to say that there are none.
    Glibc,
    /// The file was cut off: the stream has its error set.
    Lost,
}

fn pointer(address: usize) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address)
}

fn put(stream: &mut File, slot: &mut Slot, window: Window) {
    slot.window = window;
    stream.take(
        pointer(window.base),
        pointer(window.at),
        pointer(window.end),
    );
}

/// The slot of a stream that is lent something, as `stream` still has it.
///
/// # Safety
/// `stream` is an open stream, used by this thread alone, and its slot is borrowed once.
pub unsafe fn lent<'a>(stream: &mut File) -> Option<&'a mut Slot> {
    let slot = slots::find(stream)?;
    // SAFETY: forwarded to the caller.
    let slot = unsafe { &mut *slot };
    if !slot.is_lent {
        return None;
    }
    // Some programs move the descriptor themselves when all bytes are used, and say so in `offset`.
    if stream.offset != UNKNOWN || stream.read_base.addr() != slot.window.base {
        slot.is_lent = false;
        stream.empty();
        return None;
    }
    Some(slot)
}

fn at_of(stream: &File, slot: &Slot) -> usize {
    stream.read_ptr.addr().min(slot.window.end)
}

/// Gives back what `stream` was lent: it is glibc's, with an empty buffer, at the same place.
///
/// # Safety
/// As for [`lent`].
pub unsafe fn settle(stream: &mut File) {
    // SAFETY: forwarded to the caller.
    let Some(slot) = (unsafe { lent(stream) }) else {
        return;
    };
    give_back(stream, slot);
    if !real::is_single_threaded() {
        // Between now and what glibc does, another thread could have it lent again.
        slot.is_refused = true;
    }
}

fn give_back(stream: &mut File, slot: &mut Slot) {
    let at = at_of(stream, slot);
    if let Some(windows) = &mut slot.windows {
        // It can move: it has moved before.
        let _ = windows.settle(Fd(stream.fileno), at);
    }
    slot.is_lent = false;
    stream.empty();
}

/// Lends `stream` more, if that is better than what glibc would do.
///
/// # Safety
/// As for [`lent`].
pub unsafe fn more(stream: &mut File, wanted: Use) -> More {
    // SAFETY: forwarded to the caller.
    if let Some(slot) = unsafe { lent(stream) } {
        return go_on(stream, slot, wanted);
    }
    if !stream.could_read_on() || IS_OVER.load(Ordering::Relaxed) {
        return More::Glibc;
    }
    let Some(slot) = slots::make(stream) else {
        return More::Glibc;
    };
    // SAFETY: forwarded to the caller.
    let slot = unsafe { &mut *slot };
    if slot.is_refused || !begin(stream, slot) {
        return More::Glibc;
    }
    go_on(stream, slot, wanted)
}

/// False when the file is none to be lent.
fn begin(stream: &mut File, slot: &mut Slot) -> bool {
    let fd = Fd(stream.fileno);
    let Some(status) = file::status(fd).ok().filter(file::Status::is_regular) else {
        slot.is_refused = true;
        return false;
    };
    let Ok(offset) = file::move_offset(fd, 0) else {
        return false;
    };
    if status.bytes < offset + LEAST_BYTES {
        return false;
    }
    match &mut slot.windows {
        Some(windows) => windows.restart(offset),
        None => slot.windows = Windows::new(offset).ok(),
    }
    let Some(windows) = &mut slot.windows else {
        return false;
    };
    // SAFETY: the stream is told of losses while something of it is mapped, so while it is open.
    unsafe { windows.tell(std::ptr::from_mut(stream).expose_provenance(), lose) };
    slot.is_lent = true;
    slot.window = Window::EMPTY;
    stream.offset = UNKNOWN;
    stream.empty();
    true
}

fn go_on(stream: &mut File, slot: &mut Slot, wanted: Use) -> More {
    let at = at_of(stream, slot);
    let Some(windows) = &mut slot.windows else {
        return More::Glibc;
    };
    // With threads, glibc must be able to go on at any moment where `read_end` is: so it is the
    // whole buffer.
    let wanted = if real::is_single_threaded() {
        wanted
    } else {
        Use::Copied
    };
    match windows.next(Fd(stream.fileno), at, wanted) {
        Ok(next) => take(stream, slot, next),
        Err(_) => {
            give_back(stream, slot);
            More::Glibc
        }
    }
}

/// Hands `next` out.
fn take(stream: &mut File, slot: &mut Slot, next: Next) -> More {
    match next {
        Next::Window(window) => {
            put(stream, slot, window);
            More::Here
        }
        Next::End => {
            give_back(stream, slot);
            More::Glibc
        }
        Next::Lost => {
            give_back(stream, slot);
            stream.flags |= ERR_SEEN;
            set_errno(EIO);
            More::Lost
        }
    }
}

/// Looks at bytes again that were just taken, of which the last is zero: from `from` on. The bytes
/// that are right are then to be taken again.
///
/// # Safety
/// As for [`lent`]; `from` lies in what was lent.
pub unsafe fn check(stream: &mut File, from: *mut u8) -> Option<More> {
    // SAFETY: forwarded to the caller.
    let slot = unsafe { lent(stream) }?;
    let window = slot.window;
    let windows = slot.windows.as_mut()?;
    if !windows.is_suspicious(0) {
        return None;
    }
    let next = windows.check(Fd(stream.fileno), from.addr(), window.end);
    stream.read_ptr = from;
    Some(take(stream, slot, next))
}

/// Told, in a signal handler, that the file of a stream was cut off: code that has glibc's macros in
/// it stops there.
fn lose(owner: usize, page: usize) {
    let stream = std::ptr::with_exposed_provenance_mut::<File>(owner);
    // SAFETY: the stream is open while something of it is mapped. The thread that uses it is the
    // one that is interrupted here, between two accesses.
    let stream = unsafe { &mut *stream };
    if (stream.read_base.addr()..stream.read_end.addr()).contains(&page) {
        stream.read_end = pointer(page);
    }
}

/// Gives everything back when the process ends, so that descriptors are where the streams are.
extern "C" fn end() {
    IS_OVER.store(true, Ordering::Relaxed);
    for stream in slots::all() {
        if !real::is_single_threaded() {
            // SAFETY: streams in the table are open.
            let is_busy = unsafe { real::ftrylockfile(stream) } != 0;
            if is_busy {
                continue;
            }
        }
        // SAFETY: locked, or there is no other thread.
        unsafe { settle(&mut *stream) };
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// Settles with the stream locked.
///
/// # Safety
/// `stream` is an open stream.
pub unsafe fn settle_locked(stream: *mut File) {
    // SAFETY: forwarded to the caller.
    let _lock = unsafe { Lock::take(stream) };
    // SAFETY: locked.
    unsafe { settle(&mut *stream) };
}
