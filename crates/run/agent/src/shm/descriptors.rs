//! Calls on descriptors of files of shared memory, but for `mmap`.

use farpage_object::shm::{Ask, Kind, Mark, Shm};
use farpage_sys::file::{self, Fd, Status};
use farpage_sys::linux::general as g;
use farpage_sys::seccomp::later::{self, Unseen};
use farpage_sys::{Errno, Result, marks, syscall};

use super::connection::ask_of;
use super::memory::{EALREADY, given, object_of, wait_for_users};
use super::turns::Turn;
use super::{memory, memory_files, own_files, say, status_of, transfer};
use crate::transfer::Way;
use crate::{maps, sandbox, trap};

const ENODATA: Errno = Errno(61);
const ENODEV: Errno = Errno(19);
const ENOSPC: Errno = Errno(28);
/// Files that are larger when they are written to become objects, though nobody has mapped them.
const LINUXS_MAX: usize = 1 << 20;
const ACCESS_NONE: u32 = 3;
const KEEP_SIZE: u32 = 0x01;
const PUNCH_HOLE: u32 = 0x02;

/// An object that a descriptor's file has.
pub(crate) struct Object {
    pub(super) number: u64,
    /// Its memory file, as an open file of its own.
    pub(super) memory: Fd,
}

impl Object {
    pub(super) fn new(number: u64, memory: Fd) -> Self {
        let memory = own_files::note(memory);
        Self { number, memory }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        own_files::close(self.memory);
    }
}

/// What of a file there is.
pub(super) enum Pages {
    /// Linux has them.
    Linux,
    /// None was mapped yet: what was written Linux has.
    None,
    /// The supervisor has them.
    Kept(Object),
}

/// While this lives, what Linux has of a file does not become an object's.
struct Use {
    own: Fd,
    byte: u64,
}

impl Use {
    /// `None` where the file cannot be opened again: its pages may then leave meanwhile.
    fn begin(shm: &Shm, fd: Fd) -> Option<Self> {
        // A program's own filter may forbid to.
        if sandbox::is_on() {
            return None;
        }
        let used = Self {
            own: own_files::note(file::with_room(|| file::open_again(fd, g::O_RDONLY)).ok()?),
            byte: shm.byte_of(Mark::Used),
        };
        marks::put(used.own, used.byte).ok()?;
        Some(used)
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        // A child that another thread makes just now has the open file, too.
        marks::release(self.own, self.byte);
        own_files::close(self.own);
    }
}

/// Where the pages of a file are, and will be as long as the use lasts.
///
/// # Errors
/// As [`pages_of`].
fn use_pages(shm: &Shm, fd: Fd) -> Result<(Pages, Option<Use>)> {
    loop {
        let used = Use::begin(shm, fd);
        if let Some(pages) = look(fd)? {
            return Ok((pages, used));
        }
        drop(used);
        pages_of(fd)?;
    }
}

/// Where the pages of a file are.
///
/// # Errors
/// When that cannot be learned of a file that the run has made. Linux would read zeros there.
pub(super) fn pages_of(fd: Fd) -> Result<Pages> {
    loop {
        if let Some(pages) = look(fd)? {
            return Ok(pages);
        }
        wait_for_users();
    }
}

/// `None` while the pages are about to become an object's.
fn look(fd: Fd) -> Result<Option<Pages>> {
    let is_linuxs = |shm: &Shm| {
        let status = file::status(fd);
        status.is_ok_and(|status| memory_files::is_one(shm, &status))
            && !memory_files::is_object(shm, fd)
    };
    if super::shm().is_none_or(is_linuxs) {
        return Ok(Some(Pages::Linux));
    }
    let ask = Ask {
        a: 1,
        ..Ask::new(Kind::File)
    };
    match given(ask_of(ask, fd)) {
        Ok((number, memory)) => Ok(Some(Pages::Kept(Object::new(number, memory)))),
        Err(EALREADY) => Ok(None),
        Err(ENODATA) => Ok(Some(Pages::None)),
        // The run has not made it, or another run keeps it, or this process can have no shared memory.
        Err(Errno::ENOENT | Errno::EBUSY | ENODEV) => Ok(Some(Pages::Linux)),
        Err(errno) if has_keeper(fd) => Err(errno),
        // No run has been told of the file.
        Err(_) => Ok(Some(Pages::Linux)),
    }
}

/// True when the supervisor may have a file's pages. Asked without the supervisor.
fn has_keeper(fd: Fd) -> bool {
    let is_object = |shm: &Shm| memory_files::is_object(shm, fd);
    marks::is_claimed(fd) || super::shm().is_some_and(is_object)
}

pub(super) fn call(shm: &Shm, number: u32, args: [usize; 6], mask: u64) -> Option<Result<usize>> {
    let [a, b, c, ..] = args;
    let fd = Fd(a as i32);
    let status = status_of(shm, fd)?;
    match number {
        g::__NR_ftruncate => Some(set_size(shm, fd, b, mask)),
        g::__NR_fallocate => allocate(shm, fd, args, mask),
        g::__NR_dup => maps::duplicate(fd, 0, false).ok().map(Ok),
        g::__NR_dup2 | g::__NR_dup3 => {
            // SAFETY: takes no pointer.
            let done = unsafe { trap::pass(number, args) };
            Some(done.inspect(|to| see(Fd(*to as i32))))
        }
        g::__NR_fcntl => match b as u32 {
            g::F_DUPFD => maps::duplicate(fd, c, false).ok().map(Ok),
            g::F_DUPFD_CLOEXEC => maps::duplicate(fd, c, true).ok().map(Ok),
            g::F_ADD_SEALS => memory_files::seal(shm, fd, c),
            _ => None,
        },
        g::__NR_lseek => match pages_of(fd) {
            Ok(Pages::Kept(_)) => Some(transfer::seek(&status, a, b, c as u32)),
            Ok(Pages::None | Pages::Linux) => None,
            Err(errno) => Some(Err(errno)),
        },
        _ if crate::transfer::is_one(number) => match use_pages(shm, fd) {
            Ok((Pages::Kept(object), _used)) => transfer::call(&object, number, args, mask),
            Ok((Pages::None, used)) => of_written(fd, used, &status, number, args, mask),
            Ok((Pages::Linux, _used)) => Some(of_linuxs(number, args)),
            Err(errno) => Some(Err(errno)),
        },
        _ => None,
    }
}

/// A call on pages that Linux has.
fn of_linuxs(number: u32, args: [usize; 6]) -> Result<usize> {
    // SAFETY: the program's own call, on a regular file: Linux does not wait in it.
    unsafe { trap::pass(number, args) }
}

/// A transfer of a file that nobody has mapped: Linux has the pages while they are few and there is
/// room.
fn of_written(
    fd: Fd,
    used: Option<Use>,
    status: &Status,
    number: u32,
    args: [usize; 6],
    mask: u64,
) -> Option<Result<usize>> {
    let end = transfer::end_of_write(status, number, args);
    if end.is_none_or(|end| end.is_ok_and(|end| end <= LINUXS_MAX)) {
        let done = of_linuxs(number, args);
        if end.is_none() || done != Err(ENOSPC) {
            return Some(done);
        }
    }
    drop(used);
    match made_now(fd) {
        Ok(object) => transfer::call(&object, number, args, mask),
        Err(errno) => Some(Err(errno)),
    }
}

/// The object of a file that had none yet.
fn made_now(fd: Fd) -> Result<Object> {
    let (state, made) = object_of(fd);
    drop(state);
    file::close(made?.1);
    match pages_of(fd)? {
        Pages::Kept(object) => Ok(object),
        Pages::None | Pages::Linux => Err(Errno::EIO),
    }
}

/// `ftruncate`.
pub(super) fn set_size(shm: &Shm, fd: Fd, bytes: usize, mask: u64) -> Result<usize> {
    let (pages, _used) = use_pages(shm, fd)?;
    let object = match &pages {
        Pages::Kept(object) => Some(object),
        Pages::None | Pages::Linux => None,
    };
    let turn = object.map(|object| Turn::wait(object, Way::In, mask));
    let _turn = turn.transpose()?;
    let before = file::status(fd)?.bytes as usize;
    resize(fd, object, before, bytes)
}

/// Gives a file another size, in a turn for writing where it has an object.
pub(super) fn resize(
    fd: Fd,
    object: Option<&Object>,
    before: usize,
    bytes: usize,
) -> Result<usize> {
    let set = |bytes: usize| {
        let set = |fd: Fd| {
            // SAFETY: takes no pointer.
            unsafe { syscall!(g::__NR_ftruncate, fd.0, bytes) }
        };
        if file::flags(fd)? & g::O_ACCMODE != ACCESS_NONE {
            return set(fd);
        }
        let again = file::open_again(fd, g::O_RDWR)?;
        let done = set(again);
        file::close(again);
        done
    };
    if super::shm().is_some_and(Shm::is_cluster) {
        if let Some(object) = object.filter(|_| bytes < before) {
            // While other hosts have it as large as before: what they write later stays.
            were_cut(object, bytes, before);
        }
        let done = set(bytes)?;
        let told = tell_size(fd, before, bytes);
        if told.is_err() {
            let _ = set(before);
        }
        return told.map(|()| done);
    }
    let done = set(bytes)?;
    if let Some(object) = object.filter(|_| bytes > before) {
        memory::has_grown(object.number, before);
        if before == 0 {
            // Archivers take a file without blocks for one hole.
            let _ = file::allocate(fd, 0, 1);
        }
    }
    if let Some(object) = object.filter(|_| bytes < before) {
        ask_of(Ask::new(Kind::Size), fd)?;
        let rest = bytes.next_multiple_of(farpage_object::PAGE_BYTES) - bytes;
        if rest > 0 {
            transfer::zero(object, bytes, rest)?;
        }
    }
    Ok(done)
}

/// Tells Linux that a file is being written to. It lets its owner alone leave out the time at which it was read.
pub(super) fn was_written(fd: Fd) {
    /// Nanoseconds of a time that is the present, or stays as it is.
    const NOW: usize = (1 << 30) - 1;
    const OMIT: usize = (1 << 30) - 2;
    if sandbox::is_on() {
        return;
    }
    let times = [[0, OMIT], [0, NOW]];
    // SAFETY: two `struct timespec`, or none; without a path it is the file of the descriptor.
    let set = |times: *const [usize; 2]| unsafe { syscall!(g::__NR_utimensat, fd.0, 0, times, 0) };
    if set(times.as_ptr()).is_err() {
        let _ = set(core::ptr::null());
    }
}

/// All hosts of the cluster are told what size a file has now.
///
/// # Errors
/// When they could not be.
fn tell_size(fd: Fd, before: usize, bytes: usize) -> Result<()> {
    let ask = Ask {
        b: bytes as u64,
        ..Ask::new(Kind::Size)
    };
    if bytes == before {
        return Ok(());
    }
    match ask_of(ask, fd) {
        // Other hosts do not have it.
        Ok(_) | Err(Errno::ENOENT | ENODATA) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// A cluster's file has lost its bytes from `bytes` to `before`: they are zeros if it grows again.
pub(super) fn were_cut(object: &Object, bytes: usize, before: usize) {
    // What is lost cannot be had by others either.
    let _ = transfer::zero(object, bytes, before - bytes);
}

/// `fallocate`: room is found when a page is written to.
fn allocate(shm: &Shm, fd: Fd, args: [usize; 6], mask: u64) -> Option<Result<usize>> {
    let [_, mode, offset, bytes, ..] = args;
    let mode = mode as u32;
    let end = offset
        .checked_add(bytes)
        .filter(|end| *end <= isize::MAX as usize);
    let (Some(end), true) = (end, bytes > 0) else {
        return Some(Err(Errno::EINVAL));
    };
    let (pages, used) = match use_pages(shm, fd) {
        Ok(used) => used,
        Err(errno) => return Some(Err(errno)),
    };
    if matches!(pages, Pages::Linux) || mode & !(KEEP_SIZE | PUNCH_HOLE) != 0 {
        return None;
    }
    let mode_of = file::flags(fd).unwrap_or(0) & g::O_ACCMODE;
    if mode_of == g::O_RDONLY {
        return Some(Err(Errno::EBADF));
    }
    let object = match (mode, pages) {
        (KEEP_SIZE, _) => return Some(Ok(0)),
        (_, Pages::Kept(object)) => object,
        (0, _) => {
            drop(used);
            match made_now(fd) {
                Ok(object) => object,
                Err(errno) => return Some(Err(errno)),
            }
        }
        (..) => return Some(of_linuxs(g::__NR_fallocate, args)),
    };
    if mode == PUNCH_HOLE {
        return None;
    }
    let make = |_turn| {
        let before = file::status(fd)?.bytes as usize;
        if mode != 0 {
            if memory_files::is_sealed(fd) {
                return Err(Errno::EPERM);
            }
            let end = end.min(before.next_multiple_of(farpage_object::PAGE_BYTES));
            transfer::zero(&object, offset, end.saturating_sub(offset))?;
            was_written(fd);
            return Ok(0);
        }
        match end > before {
            true => resize(fd, Some(&object), before, end),
            false => Ok(0),
        }
    };
    Some(Turn::wait(&object, Way::In, mask).and_then(make))
}

/// A file of shared memory has got this number: what is done by it is seen from now on.
pub(super) fn see(fd: Fd) {
    // Where that cannot be learned the supervisor may have its pages.
    if !is_seen(fd) && matches!(pages_of(fd), Ok(Pages::Kept(_)) | Err(_)) {
        hide(fd);
    }
}

/// The file has pages here. Where it cannot be seen what is done by the descriptor, that becomes one
/// by which nothing can be read or written: Linux would read zeros.
pub(super) fn see_or_hide(fd: Fd) {
    if !is_seen(fd) {
        hide(fd);
    }
}

/// True when the filter knows the number, or is told of it now. A program's own filter may forbid to.
fn is_seen(fd: Fd) -> bool {
    let is_told = || later::see(Unseen::Descriptor(fd.0 as u32)).is_ok();
    maps::is_kept(fd.0 as usize) || !sandbox::is_on() && is_told()
}

fn hide(fd: Fd) {
    let is_hidden = |flags: u32| flags & g::O_ACCMODE == ACCESS_NONE;
    if file::flags(fd).is_ok_and(is_hidden) {
        return;
    }
    say(&alloc::format!(
        "shared memory that is mapped cannot be read or written as descriptor {} of a program with a \
         filter of its own: let the system choose the number",
        fd.0
    ));
    // SAFETY: takes no pointer.
    let Ok(own) = (unsafe { syscall!(g::__NR_fcntl, fd.0, g::F_GETFD) }) else {
        return;
    };
    let Ok(hidden) = file::with_room(|| file::open_again(fd, ACCESS_NONE)) else {
        return;
    };
    let cloexec = own as u32 & g::FD_CLOEXEC != 0;
    let _ = file::move_to(hidden, fd, cloexec);
}
