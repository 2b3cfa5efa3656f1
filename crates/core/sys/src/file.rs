//! Descriptors and files.

use alloc::ffi::CString;
use alloc::vec::Vec;
use core::ffi::CStr;

use linux_raw_sys::general as g;

use crate::limits::{self, Limit, Resource};
use crate::mem;
use crate::raw::{Errno, Result};
use crate::{process, syscall};

/// Flag of `close_range`: the calling thread gets a table of descriptors of its own.
pub const CLOSE_RANGE_UNSHARE: u32 = 1 << 1;

/// What [`system_of`] says of files in the layers of a container.
pub const OVERLAYFS: u64 = 0x794C_7630;

/// A descriptor number. Not owned: the agent's descriptors live at fixed numbers for the life of
/// the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fd(pub i32);

/// Opens `path` relative to the working directory.
///
/// # Errors
/// As `open(2)`.
pub fn open(path: &CStr, flags: u32, mode: u32) -> Result<Fd> {
    // SAFETY: `path` is a valid string for the call's duration.
    unsafe { syscall!(g::__NR_openat, g::AT_FDCWD, path.as_ptr(), flags, mode) }
        .map(|fd| Fd(fd as i32))
}

/// Closes a descriptor.
pub fn close(fd: Fd) {
    // SAFETY: closing takes no pointer. An error leaves nothing to do.
    let _ = unsafe { syscall!(g::__NR_close, fd.0) };
}

/// Moves `fd` to the number `to`, closed on exec when `cloexec`, and closes the old number.
///
/// # Errors
/// As `dup3(2)`. The limit on numbers is raised meanwhile if it must and can be.
pub fn move_to(fd: Fd, to: Fd, cloexec: bool) -> Result<Fd> {
    if fd == to {
        return Ok(fd);
    }
    let flags = if cloexec { g::O_CLOEXEC } else { 0 };
    // SAFETY: takes no pointer.
    let duplicate = || unsafe { syscall!(g::__NR_dup3, fd.0, to.0, flags) };
    match duplicate() {
        // The program has lowered its limit on descriptors below the number.
        Err(Errno::EBADF) => with_higher_limit(to.0 as u64 + 1, duplicate)?,
        other => other?,
    };
    close(fd);
    Ok(to)
}

/// Moves `fd` to the number `to`, closed on exec, or, where that is beyond a limit that cannot be
/// raised, as high as it can be: programs use low numbers, and close what they find there.
pub fn keep_at(fd: Fd, to: Fd) -> Fd {
    /// Numbers below the limit that are tried.
    const LAST: u64 = 32;
    if let Ok(there) = move_to(fd, to, true) {
        return there;
    }
    let limit = limits::get(Resource::Descriptors);
    let least = limit.map_or(0, |limit| limit.now.saturating_sub(LAST));
    // SAFETY: takes no pointer.
    match unsafe { syscall!(g::__NR_fcntl, fd.0, g::F_DUPFD_CLOEXEC, least) } {
        Ok(high) => {
            close(fd);
            Fd(high as i32)
        }
        Err(_) => fd,
    }
}

/// Makes `call`; where no descriptor number is left, with a few more allowed meanwhile, if they can
/// be.
///
/// # Errors
/// As `call`.
pub fn with_room<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    const MORE: u64 = 4;
    match call() {
        Err(Errno::EMFILE) => {
            with_higher_limit(limits::get(Resource::Descriptors)?.now + MORE, call)
        }
        other => other,
    }
}

/// Makes `call` while `wanted` descriptor numbers are allowed, if they can be.
fn with_higher_limit<T>(wanted: u64, mut call: impl FnMut() -> Result<T>) -> Result<T> {
    let before = limits::get(Resource::Descriptors)?;
    if before.now >= wanted {
        return Err(Errno::EBADF);
    }
    let most = before.most.max(wanted);
    let higher = Limit { now: wanted, most };
    limits::set(Resource::Descriptors, higher).map_err(|_| Errno::EMFILE)?;
    let done = call();
    // Where the limit was raised by privilege this lowers it again.
    let _ = limits::set(Resource::Descriptors, before);
    done
}

/// A pipe, closed on exec: the end to read from and the end to write to.
///
/// # Errors
/// As `pipe2(2)`.
pub fn pipe() -> Result<[Fd; 2]> {
    let mut ends = [0i32; 2];
    // SAFETY: the call writes two numbers.
    unsafe { syscall!(g::__NR_pipe2, ends.as_mut_ptr(), g::O_CLOEXEC) }?;
    Ok(ends.map(Fd))
}

/// Makes the number `to` another name of `fd`, kept by exec; what had the number is closed.
///
/// # Errors
/// As `dup3(2)`.
pub fn put_at(fd: Fd, to: Fd) -> Result<()> {
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_dup3, fd.0, to.0, 0) }.map(drop)
}

/// As [`put_at`], closed on exec.
///
/// # Errors
/// As `dup3(2)`.
pub fn keep(fd: Fd, to: Fd) -> Result<()> {
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_dup3, fd.0, to.0, g::O_CLOEXEC) }.map(drop)
}

/// The inode number of what `path` names.
///
/// # Errors
/// As `stat(2)`.
pub fn inode(path: &CStr) -> Result<u64> {
    let mut status = [0u64; 18];
    // SAFETY: `path` is a valid string; the kernel's `struct stat` has 144 bytes.
    unsafe {
        syscall!(
            g::__NR_newfstatat,
            g::AT_FDCWD,
            path.as_ptr(),
            status.as_mut_ptr(),
            0
        )
    }?;
    Ok(status[1])
}

/// Reads at `offset` into `buffer` until it is full, the file ends, or an error.
///
/// # Errors
/// As `pread(2)`; interrupted reads are repeated.
pub fn pread(fd: Fd, buffer: &mut [u8], offset: u64) -> Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        let rest = &mut buffer[done..];
        // SAFETY: `rest` is valid for writes of its length.
        let got = unsafe {
            syscall!(
                g::__NR_pread64,
                fd.0,
                rest.as_mut_ptr(),
                rest.len(),
                offset + done as u64
            )
        };
        match got {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

/// Writes all of `parts`, one after another, at `offset` of a file that is long enough, by a mapping: whatever
/// limit there is on the size of files.
///
/// # Errors
/// As `mmap(2)`; `ENOSPC` when there is no room, or the file ends before.
pub fn write_mapped(fd: Fd, parts: &[&[u8]], offset: u64) -> Result<()> {
    const PAGE: usize = farpage_object::PAGE_BYTES;
    let total: usize = parts.iter().map(|part| part.len()).sum();
    let lead = (offset % PAGE as u64) as usize;
    let bytes = (lead + total).next_multiple_of(PAGE);
    let prot = mem::PROT_READ | mem::PROT_WRITE;
    // SAFETY: without MAP_FIXED nothing existing is touched.
    let at = unsafe { mem::map(0, bytes, prot, mem::MAP_SHARED, fd, offset - lead as u64) }?;
    let mut to = at + lead;
    let done = parts.iter().try_for_each(|part| {
        let (local, remote) = ([part.as_ptr() as usize, part.len()], [to, part.len()]);
        let (local, remote) = (local.as_ptr(), remote.as_ptr());
        let own = process::id();
        // SAFETY: reads the part; what cannot be written in the mapping Linux tells.
        let put = unsafe { syscall!(g::__NR_process_vm_writev, own, local, 1, remote, 1, 0) };
        to += part.len();
        match put {
            Ok(put) if put == part.len() => Ok(()),
            // Whether it is the disk that fails Linux tells who asks for the space, of which the file's size is no part.
            Ok(_) | Err(Errno::EFAULT) => {
                let start = offset - lead as u64;
                match fallocate(fd, g::FALLOC_FL_KEEP_SIZE, start, bytes as u64) {
                    Err(Errno::EIO) => Err(Errno::EIO),
                    _ => Err(Errno::ENOSPC),
                }
            }
            Err(errno) => Err(errno),
        }
    });
    // SAFETY: made above, and nobody else knows it.
    let _ = unsafe { mem::unmap(at, bytes) };
    done
}

/// Has the page cache forget a range, as far as it is clean and nobody maps it.
pub fn forget_cached(fd: Fd, offset: u64, bytes: u64) {
    // SAFETY: takes no pointer. Advice: nothing depends on it.
    let _ = unsafe {
        syscall!(
            g::__NR_fadvise64,
            fd.0,
            offset,
            bytes,
            g::POSIX_FADV_DONTNEED
        )
    };
}

/// All that is in a file whose size Linux does not say, as in `/proc`.
///
/// # Errors
/// As [`pread`].
pub fn read_all(fd: Fd) -> Result<Vec<u8>> {
    const PART: usize = 4096;
    let mut text = Vec::new();
    loop {
        let length = text.len();
        text.resize(length + PART, 0);
        let read = pread(fd, &mut text[length..], length as u64)?;
        text.truncate(length + read);
        if read == 0 {
            return Ok(text);
        }
    }
}

/// Reads at `offset` what the page cache has, without waiting for a disk; returns how much. The page
/// cache begins to read what it does not have.
///
/// # Errors
/// As `preadv2(2)` with `RWF_NOWAIT`: `EAGAIN` when the cache has nothing of it, `EOPNOTSUPP`
/// where the file system does not know the flag.
pub fn pread_cached(fd: Fd, buffer: &mut [u8], offset: u64) -> Result<usize> {
    let part = [buffer.as_mut_ptr() as usize, buffer.len()];
    // SAFETY: `part` is a `struct iovec` for `buffer`, valid for writes of its length.
    unsafe {
        syscall!(
            g::__NR_preadv2,
            fd.0,
            part.as_ptr(),
            1,
            offset,
            0,
            g::RWF_NOWAIT
        )
    }
}

/// How many pages of a range (not empty) the page cache has; without reading any, which even
/// `RWF_NOWAIT` does.
///
/// # Errors
/// As `cachestat(2)`: `ENOSYS` before Linux 6.5, `EPERM` for files that the caller neither owns nor
/// may write. `EOPNOTSUPP` on overlayfs, of which Linux says that there are none.
pub fn cached_pages(fd: Fd, offset: u64, bytes: u64) -> Result<u64> {
    let range = g::cachestat_range {
        off: offset,
        len: bytes,
    };
    let mut counts = [0u64; 5];
    const { assert!(size_of::<g::cachestat>() == size_of::<[u64; 5]>()) };
    // SAFETY: Linux reads `range` and writes a `struct cachestat`, five counts, of which the first
    // is that of the pages there.
    unsafe {
        syscall!(
            g::__NR_cachestat,
            fd.0,
            &raw const range,
            counts.as_mut_ptr(),
            0
        )
    }?;
    match counts[0] {
        0 if system_of(fd)? == OVERLAYFS => Err(Errno::EOPNOTSUPP),
        count => Ok(count),
    }
}

/// Writes all of `buffer` at `offset`.
///
/// # Errors
/// As `pwrite(2)`; `EIO` when the file takes nothing more.
pub fn pwrite_all(fd: Fd, buffer: &[u8], offset: u64) -> Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        let rest = &buffer[done..];
        // SAFETY: `rest` is valid for reads of its length.
        let put = unsafe {
            syscall!(
                g::__NR_pwrite64,
                fd.0,
                rest.as_ptr(),
                rest.len(),
                offset + done as u64
            )
        };
        match put {
            Ok(0) => return Err(Errno::EIO),
            Ok(n) => done += n,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Writes all of `parts`, one after another, at `offset`: one call for each [`PARTS_MAX`] runs of
/// memory (parts that lie side by side are one run).
///
/// # Errors
/// As `pwritev(2)`; `EIO` when the file takes nothing more.
pub fn pwritev_all(fd: Fd, parts: &[&[u8]], offset: u64) -> Result<()> {
    let (mut next, mut offset) = (0, offset);
    while next < parts.len() {
        let mut runs: [(*const u8, usize); PARTS_MAX] = [(core::ptr::null(), 0); PARTS_MAX];
        let (mut count, mut total) = (0, 0);
        while next < parts.len() {
            let part = parts[next];
            let (start, length) = runs[count.max(1) - 1];
            if count > 0 && start.wrapping_add(length) == part.as_ptr() {
                runs[count - 1].1 += part.len();
            } else if count < PARTS_MAX {
                runs[count] = (part.as_ptr(), part.len());
                count += 1;
            } else {
                break;
            }
            total += part.len();
            next += 1;
        }
        write_runs(fd, &mut runs[..count], offset)?;
        offset += total as u64;
    }
    Ok(())
}

/// Runs of memory that one `pwritev` takes.
pub const PARTS_MAX: usize = 64;

/// The memory of each run must be readable: [`pwritev_all`] builds them from slices.
fn write_runs(fd: Fd, runs: &mut [(*const u8, usize)], mut offset: u64) -> Result<()> {
    let mut first = 0;
    while first < runs.len() {
        let vectors: [g::iovec; PARTS_MAX] = core::array::from_fn(|i| {
            let (at, length) = *runs.get(first + i).unwrap_or(&(core::ptr::null(), 0));
            g::iovec {
                iov_base: at.cast_mut().cast(),
                iov_len: length as _,
            }
        });
        let count = runs.len() - first;
        // SAFETY: the first `count` vectors name slices that the caller borrows.
        let put = unsafe {
            syscall!(
                g::__NR_pwritev,
                fd.0,
                vectors.as_ptr(),
                count,
                offset,
                0usize
            )
        };
        let mut put = match put {
            Ok(0) => return Err(Errno::EIO),
            Ok(n) => n,
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(errno),
        };
        offset += put as u64;
        while first < runs.len() && put >= runs[first].1 {
            put -= runs[first].1;
            first += 1;
        }
        if put > 0 {
            runs[first] = (runs[first].0.wrapping_add(put), runs[first].1 - put);
        }
    }
    Ok(())
}

/// True when the number names an open descriptor.
pub fn is_open(fd: Fd) -> bool {
    // SAFETY: F_GETFD takes no pointer.
    unsafe { syscall!(g::__NR_fcntl, fd.0, g::F_GETFD) }.is_ok()
}

/// Device and inode number of an open file.
///
/// # Errors
/// As `fstat(2)`.
pub fn identity(fd: Fd) -> Result<(u64, u64)> {
    let mut status = [0u64; 18];
    // SAFETY: the kernel's `struct stat` has 144 bytes.
    unsafe { syscall!(g::__NR_fstat, fd.0, status.as_mut_ptr()) }?;
    Ok((status[0], status[1]))
}

/// What Linux says about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The file system that it is in.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
    /// Names that it has.
    pub links: u64,
    /// Its size.
    pub bytes: u64,
    mode: u32,
}

impl Status {
    const FORMAT: u32 = 0o170_000;

    fn new(raw: &[u64; 18]) -> Self {
        Self {
            device: raw[0],
            inode: raw[1],
            links: raw[2],
            mode: raw[3] as u32,
            bytes: raw[6],
        }
    }

    /// What `chmod(2)` sets.
    pub fn permissions(&self) -> u32 {
        self.mode & !Self::FORMAT
    }

    /// True of a regular file.
    pub fn is_regular(&self) -> bool {
        self.mode & Self::FORMAT == 0o100_000
    }

    /// True of a pipe.
    pub fn is_pipe(&self) -> bool {
        self.mode & Self::FORMAT == 0o010_000
    }

    /// True of a folder.
    pub fn is_folder(&self) -> bool {
        self.mode & Self::FORMAT == 0o040_000
    }
}

/// What Linux says about an open file.
///
/// # Errors
/// As `fstat(2)`.
pub fn status(fd: Fd) -> Result<Status> {
    let mut raw = [0u64; 18];
    // SAFETY: the kernel's `struct stat` has 144 bytes.
    unsafe { syscall!(g::__NR_fstat, fd.0, raw.as_mut_ptr()) }?;
    Ok(Status::new(&raw))
}

/// The kind of the file system that an open file is in, as `statfs(2)` has it.
///
/// # Errors
/// As `fstatfs(2)`.
pub fn system_of(fd: Fd) -> Result<u64> {
    let mut system = [0u64; 15];
    // SAFETY: the kernel's `struct statfs` has 120 bytes.
    unsafe { syscall!(g::__NR_fstatfs, fd.0, system.as_mut_ptr()) }?;
    Ok(system[0])
}

/// What changes when a file is written to: its size, and when it was written to and changed last.
///
/// # Errors
/// As `fstat(2)`.
pub fn stamp(fd: Fd) -> Result<[u64; 5]> {
    let mut raw = [0u64; 18];
    // SAFETY: the kernel's `struct stat` has 144 bytes.
    unsafe { syscall!(g::__NR_fstat, fd.0, raw.as_mut_ptr()) }?;
    let at = if cfg!(target_arch = "s390x") { 9 } else { 11 };
    Ok([raw[6], raw[at], raw[at + 1], raw[at + 2], raw[at + 3]])
}

/// What Linux says about what the path at the address `path`, perhaps a program's, leads to from
/// `dir`.
///
/// # Errors
/// As `fstatat(2)`.
pub fn status_at(dir: usize, path: usize, flags: u32) -> Result<Status> {
    let mut raw = [0u64; 18];
    let to = raw.as_mut_ptr();
    // SAFETY: Linux checks the address; the kernel's `struct stat` has 144 bytes.
    unsafe { syscall!(g::__NR_newfstatat, dir, path, to, flags) }?;
    Ok(Status::new(&raw))
}

/// The flags that a descriptor was opened with, as far as they still hold.
///
/// # Errors
/// As `fcntl(2)`.
pub fn flags(fd: Fd) -> Result<u32> {
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_fcntl, fd.0, g::F_GETFL) }.map(|flags| flags as u32)
}

/// The seals of a memory file (`F_SEAL_WRITE` and its like); 0 of other files.
pub fn seals(fd: Fd) -> u32 {
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_fcntl, fd.0, g::F_GET_SEALS) }.map_or(0, |seals| seals as u32)
}

/// Opens the file of a descriptor anew, with a position and rights of its own.
///
/// # Errors
/// As `open(2)`; `ENOENT` without `/proc`.
pub fn open_again(fd: Fd, flags: u32) -> Result<Fd> {
    open(&path_of(fd), flags | g::O_CLOEXEC, 0)
}

/// A path by which this thread finds what it has open. Other threads of its process may have other descriptors.
pub fn path_of(fd: Fd) -> CString {
    CString::new(alloc::format!("/proc/thread-self/fd/{}", fd.0)).unwrap_or_default()
}

/// As [`open_again`], owned.
///
/// # Errors
/// As there.
#[cfg(feature = "std")]
pub fn own_again(fd: Fd, flags: u32) -> Result<std::os::fd::OwnedFd> {
    use std::os::fd::FromRawFd;
    // SAFETY: opened just now, and nobody else's.
    open_again(fd, flags).map(|fd| unsafe { std::os::fd::OwnedFd::from_raw_fd(fd.0) })
}

/// As [`own_again`], to read and write. Where the file's mode forbids that, and this user owns it, the mode is
/// another one for a moment.
///
/// # Errors
/// As there.
#[cfg(feature = "std")]
pub fn own_to_write(fd: Fd) -> Result<std::os::fd::OwnedFd> {
    const OWNER_READS_AND_WRITES: u32 = 0o600;
    let open = || own_again(fd, g::O_RDWR);
    let refused = match open() {
        Err(Errno::EACCES) => Errno::EACCES,
        opened => return opened,
    };
    let mode = status(fd)?.permissions();
    // SAFETY: takes no pointer.
    let set = |mode: u32| unsafe { syscall!(g::__NR_fchmod, fd.0, mode) };
    set(mode | OWNER_READS_AND_WRITES).map_err(|_| refused)?;
    let opened = open();
    let _ = set(mode);
    opened
}

/// True when nobody else has the file open or mapped, though there are others of the same user who
/// could: Linux then gives a lease on it. The descriptor is one to write by.
///
/// # Errors
/// As `fcntl(2)` with `F_SETLEASE`: `EACCES` of another user's file.
pub fn is_alone(fd: Fd) -> Result<bool> {
    const F_SETLEASE: u32 = 1024;
    // SAFETY: takes no pointer.
    let lease = |kind: u32| unsafe { syscall!(g::__NR_fcntl, fd.0, F_SETLEASE, kind) };
    match lease(g::F_WRLCK) {
        Ok(_) => lease(g::F_UNLCK).map(|_| true),
        Err(Errno::EAGAIN) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// The parts of `0 .. bytes` of a file that have contents, from `from` on: the first.
///
/// # Errors
/// As `lseek(2)`.
pub fn data_from(fd: Fd, from: u64) -> Result<Option<core::ops::Range<u64>>> {
    // SAFETY: takes no pointer.
    let seek = |at: u64, what: u32| unsafe { syscall!(g::__NR_lseek, fd.0, at, what) };
    match seek(from, g::SEEK_DATA) {
        Ok(start) => Ok(Some(start as u64..seek(start as u64, g::SEEK_HOLE)? as u64)),
        Err(Errno::ENXIO) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Device and inode number of what the path at the address `path`, a program's, leads to from `dir`.
///
/// # Errors
/// As `fstatat(2)`.
pub fn identity_at(dir: usize, path: usize) -> Result<(u64, u64)> {
    let mut status = [0u64; 18];
    let to = status.as_mut_ptr();
    // SAFETY: Linux checks the address; the kernel's `struct stat` has 144 bytes.
    unsafe { syscall!(g::__NR_newfstatat, dir, path, to, 0) }?;
    Ok((status[0], status[1]))
}

/// True when both descriptors are open and name the same file.
pub fn is_same(a: Fd, b: Fd) -> bool {
    matches!((identity(a), identity(b)), (Ok(a), Ok(b)) if a == b)
}

/// Writes `bytes` to `fd` once, best effort: for messages to the user.
pub fn write_message(fd: Fd, bytes: &[u8]) {
    // SAFETY: `bytes` is valid for reads of its length.
    let _ = unsafe { syscall!(g::__NR_write, fd.0, bytes.as_ptr(), bytes.len()) };
}

/// Reads once from `fd`.
///
/// # Errors
/// As `read(2)`.
pub fn read(fd: Fd, buffer: &mut [u8]) -> Result<usize> {
    // SAFETY: `buffer` is valid for writes of its length.
    unsafe { syscall!(g::__NR_read, fd.0, buffer.as_mut_ptr(), buffer.len()) }
}

/// Opens a file that `/proc` has of this process, for reading. When the first thread has ended it is `of_thread` that
/// can be opened.
///
/// # Errors
/// As `open(2)` of the first.
pub fn open_of_process(of_process: &CStr, of_thread: &CStr) -> Result<Fd> {
    open(of_process, g::O_CLOEXEC, 0)
        .or_else(|errno| open(of_thread, g::O_CLOEXEC, 0).map_err(|_| errno))
}

/// Reads once from a file that `/proc` has of a process: its beginning, as far as `buffer` goes.
///
/// # Errors
/// As `open(2)` and `read(2)`.
pub fn read_of_process<'a>(process: u32, name: &str, buffer: &'a mut [u8]) -> Result<&'a [u8]> {
    let path = CString::new(alloc::format!("/proc/{process}/{name}")).unwrap_or_default();
    read_beginning(&path, buffer)
}

/// Reads once from a file, as far as `buffer` goes.
///
/// # Errors
/// As `open(2)` and `read(2)`.
pub fn read_beginning<'a>(path: &CStr, buffer: &'a mut [u8]) -> Result<&'a [u8]> {
    let fd = with_room(|| open(path, g::O_CLOEXEC, 0))?;
    let got = read(fd, buffer);
    close(fd);
    Ok(&buffer[..got?])
}

/// Moves the offset of `fd` from where it is; returns where it then is.
///
/// # Errors
/// As `lseek(2)`.
pub fn move_offset(fd: Fd, by: i64) -> Result<u64> {
    const SEEK_CUR: usize = 1;
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_lseek, fd.0, by, SEEK_CUR) }.map(|at| at as u64)
}

/// Has Linux read a range of a file into memory, without waiting for it. Best effort.
pub fn read_ahead(fd: Fd, offset: u64, bytes: u64) {
    const POSIX_FADV_WILLNEED: usize = 3;
    // SAFETY: takes no pointer.
    let _ = unsafe { syscall!(g::__NR_fadvise64, fd.0, offset, bytes, POSIX_FADV_WILLNEED) };
}

/// Allocates disk space for `bytes` bytes from `offset`.
///
/// # Errors
/// As `fallocate(2)`, `ENOSPC` among them.
pub fn allocate(fd: Fd, offset: u64, bytes: u64) -> Result<()> {
    fallocate(fd, 0, offset, bytes)
}

/// Gives the disk space of a range back; it reads as zeros afterwards.
///
/// # Errors
/// As `fallocate(2)` with `FALLOC_FL_PUNCH_HOLE`.
pub fn punch(fd: Fd, offset: u64, bytes: u64) -> Result<()> {
    let mode = g::FALLOC_FL_PUNCH_HOLE | g::FALLOC_FL_KEEP_SIZE;
    fallocate(fd, mode, offset, bytes)
}

fn fallocate(fd: Fd, mode: u32, offset: u64, bytes: u64) -> Result<()> {
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_fallocate, fd.0, mode, offset, bytes) }.map(drop)
}

/// Creates a memory file.
///
/// # Errors
/// As `memfd_create(2)`.
pub fn memfd(name: &CStr, flags: u32) -> Result<Fd> {
    // SAFETY: `name` is a valid string for the call's duration.
    unsafe { syscall!(g::__NR_memfd_create, name.as_ptr(), flags) }.map(|fd| Fd(fd as i32))
}

/// Sets a file's size.
///
/// # Errors
/// As `ftruncate(2)`.
pub fn set_size(fd: Fd, bytes: u64) -> Result<()> {
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_ftruncate, fd.0, bytes) }.map(drop)
}

/// Issues `ioctl(fd, request, argument)` with a structure that the kernel reads and writes.
///
/// # Safety
/// `argument` must be the structure that `request` expects, and what it names must be valid for
/// what the request does.
///
/// # Errors
/// As `ioctl(2)`.
pub unsafe fn ioctl<T>(fd: Fd, request: u32, argument: &mut T) -> Result<usize> {
    // SAFETY: forwarded to the caller.
    unsafe { syscall!(g::__NR_ioctl, fd.0, request, core::ptr::from_mut(argument)) }
}

/// Waits until one of `fds` is readable. Returns a bit per descriptor that is (or is broken);
/// 0 after `timeout_ms` (negative: no limit).
///
/// # Errors
/// As `poll(2)`, `EINTR` among them.
pub fn poll<const N: usize>(fds: [Fd; N], timeout_ms: i32) -> Result<u32> {
    const POLLIN: i16 = 1;
    let seen = poll_for(POLLIN, fds, timeout_ms)?;
    let ready = seen.iter().enumerate();
    Ok(ready.fold(0, |bits, (i, seen)| bits | u32::from(*seen != 0) << i))
}

/// Whether a write of 4096 bytes at most to `fd` would not wait: for a pipe, whether it has room for
/// so many.
pub fn takes_at_once(fd: Fd) -> bool {
    const POLLOUT: i16 = 4;
    poll_for(POLLOUT, [fd], 0).is_ok_and(|[seen]| seen != 0)
}

/// What has happened of `events`, or is wrong, to each.
fn poll_for<const N: usize>(events: i16, fds: [Fd; N], timeout_ms: i32) -> Result<[i16; N]> {
    #[repr(C)]
    struct PollFd {
        fd: i32,
        events: i16,
        seen: i16,
    }
    let mut list = fds.map(|Fd(fd)| PollFd {
        fd,
        events,
        seen: 0,
    });
    // SAFETY: `list` is an array of N pollfd structures.
    unsafe { syscall!(g::__NR_poll, list.as_mut_ptr(), N, timeout_ms) }?;
    Ok(list.map(|one| one.seen))
}
