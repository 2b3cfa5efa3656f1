//! Files of `farpage run --map`: the program's calls that concern them.
//!
//! A program opens one and gets a descriptor of the memory file that holds what there is of its
//! contents, at one of the numbers by which the filter knows such descriptors. Everything that
//! would let Linux read that file by itself is done here, or refused: to Linux a page that is not
//! there reads as zeros.

mod descriptors;
mod executed;
mod memory;
mod paths;
mod read;

use alloc::string::String;
use core::ops::Range;

use farpage_object::fds;
use farpage_object::maps::{Maps, PATH_MAX};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, Result, file};

use crate::frame::Frame;
use crate::trap::Outcome;
use crate::{shm, start};

pub(crate) use executed::{adopt, target};
pub(crate) use memory::{
    after_fork_in_child, after_fork_in_parent, are_mapped, before_fork, forget, hold, release,
};

/// What is shared about mapped files; `None` in a tree without.
fn maps() -> Option<&'static Maps> {
    let maps = &start::control()?.maps;
    (!maps.files().is_empty()).then_some(maps)
}

/// True in a tree with mapped files.
pub(crate) fn exist() -> bool {
    maps().is_some()
}

/// How many descriptor numbers belong to Farpage.
pub(crate) fn own_fds() -> u32 {
    if exist() || shm::exist() {
        fds::OPENED
    } else {
        fds::COUNT
    }
}

/// A call that was trapped, if it concerns a mapped file.
///
/// # Safety
/// As the call that the program made.
pub(crate) unsafe fn call(number: u32, frame: &Frame) -> Option<Outcome> {
    let maps = maps()?;
    let args = frame.arguments();
    // SAFETY: forwarded.
    let done = unsafe { paths::call(maps, number, args) }
        .or_else(|| descriptors::call(maps, number, args))
        // SAFETY: forwarded.
        .or_else(|| unsafe { memory::call(maps, number, args) });
    done.map(Outcome::Done)
}

/// A mapped file that is open, to be read.
pub(crate) struct MappedFile {
    maps: &'static Maps,
    number: usize,
}

impl MappedFile {
    /// Reads from `offset` on to a piece of memory, its address and length.
    pub(crate) fn read_at(&self, offset: usize, piece: [usize; 2]) -> Result<usize> {
        read::read_at(self.maps, self.number, offset, &[piece])
    }
}

/// The mapped file that is open as `fd`.
pub(crate) fn opened_as(fd: file::Fd) -> Option<MappedFile> {
    let maps = maps()?;
    let number = file_of(maps, fd.0 as usize)?;
    Some(MappedFile { maps, number })
}

/// Says what is not possible, in one line.
pub(crate) fn say(what: &str) {
    let line = alloc::format!("farpage: {what}\n");
    file::write_message(start::descriptor(fds::MESSAGES), line.as_bytes());
}

/// The numbers at which the filter knows descriptors of mapped files.
fn kept() -> Range<usize> {
    let base = start::fd_base() as usize;
    base + fds::OPENED as usize..base + fds::OPENED_END as usize
}

pub(crate) fn is_kept(fd: usize) -> bool {
    kept().contains(&fd)
}

/// The path of the mapped file that is open as `fd`, for messages.
fn path_of(maps: &Maps, fd: usize) -> String {
    let mut path = [0; PATH_MAX];
    let file = file_of(maps, fd).map(|file| &maps.files()[file].paths[0]);
    let length = file.map_or(0, |file| file.copy_to(&mut path));
    String::from_utf8_lossy(&path[..length]).into_owned()
}

/// The number of the mapped file that is open as `fd`.
fn file_of(maps: &Maps, fd: usize) -> Option<usize> {
    let identity = file::identity(file::Fd(fd as i32)).ok()?;
    by_identity(maps, identity)
}

fn by_identity(maps: &Maps, (device, inode): (u64, u64)) -> Option<usize> {
    use core::sync::atomic::Ordering::Relaxed;
    let is_it = |file: &farpage_object::maps::MappedFile| {
        file.inode.load(Relaxed) == inode && file.device.load(Relaxed) == device
    };
    maps.files().iter().position(is_it)
}

/// Size in bytes of a mapped file.
fn size_of_file(maps: &Maps, file: usize) -> u64 {
    maps.files()[file]
        .bytes
        .load(core::sync::atomic::Ordering::Relaxed)
}

/// Makes `fd`, a descriptor of a mapped file, known to the filter: gives it one of the numbers for
/// such, `least` or above, and closes the old one.
fn keep(fd: file::Fd, least: usize, cloexec: bool) -> Result<usize> {
    let kept = duplicate(fd, least, cloexec);
    file::close(fd);
    kept
}

/// As [`keep`]; the old number stays.
pub(crate) fn duplicate(fd: file::Fd, least: usize, cloexec: bool) -> Result<usize> {
    let Range { start: first, end } = kept();
    let command = if cloexec {
        g::F_DUPFD_CLOEXEC
    } else {
        g::F_DUPFD
    };
    // SAFETY: takes no pointer.
    let made = unsafe { farpage_sys::syscall!(g::__NR_fcntl, fd.0, command, least.max(first)) };
    match made {
        Ok(number) if number < end => Ok(number),
        Ok(number) => {
            file::close(file::Fd(number as i32));
            Err(Errno::EMFILE)
        }
        // The program has lowered its limit below these numbers.
        Err(Errno::EINVAL) => Err(Errno::EMFILE),
        Err(errno) => Err(errno),
    }
}
