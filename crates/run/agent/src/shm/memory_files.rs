//! Memory files (`memfd_create`). One becomes an object when it is first mapped: for writing, shared, and
//! large. Until then it is Linux's, to be read, written, sealed and executed; and it stays so when
//! it was mapped otherwise before, or cannot be written to.

use core::sync::atomic::Ordering;

use farpage_object::shm::{Ask, Kind, Mark, Shm};
use farpage_sys::file::{self, Fd, Status};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, Result, marks};

use super::connection::{STATE, ask_of};
use super::{files, status_of};
use crate::{maps, sandbox, start, trap};

/// Mappings of memory files that make objects of them are at least as long.
const LEAST: usize = 1 << 20;
const HUGE: usize = 0x4;
const SEAL_WRITE: u32 = 0x8;
const SEAL_FUTURE_WRITE: u32 = 0x10;

/// True of a memory file.
pub(super) fn is_one(shm: &Shm, status: &Status) -> bool {
    status.device == shm.memory_device.load(Ordering::Relaxed) && status.is_regular()
}

/// True of one that is an object.
pub(super) fn is_object(shm: &Shm, fd: Fd) -> bool {
    marks::are_there(fd, shm.byte_of(Mark::Object))
}

/// True of a file that nobody may write to any more but by what is mapped already.
pub(super) fn is_sealed(fd: Fd) -> bool {
    file::seals(fd) & (SEAL_WRITE | SEAL_FUTURE_WRITE) != 0
}

/// `memfd_create`.
pub(super) fn create(shm: &Shm, args: [usize; 6]) -> Result<usize> {
    // SAFETY: the program's own call.
    let made = unsafe { trap::pass(g::__NR_memfd_create, args) }?;
    let fd = Fd(made as i32);
    // Where it is not marked it stays Linux's. A program's own filter may forbid to.
    let is_huge = args[1] & HUGE != 0;
    if is_huge || sandbox::is_on() || marks::put(fd, shm.byte_of(Mark::Made)).is_err() {
        return Ok(made);
    }
    const CLOEXEC: usize = 0x1;
    let flags = if args[1] & CLOEXEC != 0 {
        g::O_CLOEXEC
    } else {
        0
    };
    Ok(files::keep(shm, fd, flags))
}

/// Whether a mapping is of an object, or of one that is to be made; otherwise Linux maps the file,
/// from now on and for ever.
pub(super) fn maps_object(shm: &Shm, fd: Fd, bytes: usize, kind: u32) -> bool {
    let is_write = file::flags(fd).is_ok_and(|flags| flags & g::O_ACCMODE == g::O_RDWR);
    let may_ask = start::slot().is_some() && !start::is_visitor();
    let may_be = kind != g::MAP_PRIVATE && is_write && bytes >= LEAST && may_ask;
    if is_object(shm, fd) || may_be && maps::is_kept(fd.0 as usize) {
        return true;
    }
    stays_linuxs(shm, fd);
    // It may have become one just now: who makes one looks for the mark afterwards.
    is_object(shm, fd)
}

pub(super) fn stays_linuxs(shm: &Shm, fd: Fd) {
    // Without it the file is not mapped: it cannot be read by.
    let _ = marks::put(fd, shm.byte_of(Mark::Linuxs));
}

/// `F_ADD_SEALS` of an object: nothing of it may be mapped when it is sealed against writing.
pub(super) fn seal(shm: &Shm, fd: Fd, seals: usize) -> Option<Result<usize>> {
    if seals as u32 & SEAL_WRITE == 0 || !is_object(shm, fd) {
        return None;
    }
    let asked = STATE.lock().ask(Ask::new(Kind::Idle), Some(fd));
    (asked == Err(Errno::EBUSY)).then_some(Err(Errno::EBUSY))
}

/// A file of shared memory is about to be executed: Linux gets its contents.
pub(crate) fn before_execution(fd: Fd) {
    let Some(shm) = super::shm() else { return };
    let Some(status) = status_of(shm, fd) else {
        return;
    };
    if !is_one(shm, &status) || is_object(shm, fd) {
        // What Linux does not get is not executed.
        let _ = ask_of(Ask::new(Kind::Execute), fd);
    }
}
