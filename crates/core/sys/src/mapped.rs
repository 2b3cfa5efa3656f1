//! Memory files whose pages are there or not, and come from one process for many.

use core::ffi::CStr;
use core::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::vec::Vec;

use linux_raw_sys::general as g;

use crate::file::{self, Fd};
use crate::raw::{Errno, Result};
use crate::uffd::Uffd;
use crate::{mem, memory_file, syscall};

const PAGE: usize = 4096;
/// Size of a file of [`Mapped::sparse`]: more than anybody has.
pub const SPARSE_BYTES: usize = 1 << 44;

/// A memory file and, unless it is [sparse](Mapped::sparse) or [unmapped](Mapped::unmapped), this process's mapping of it,
/// registered with a userfaultfd: whoever else has it mapped and registered waits for pages that are
/// not there.
///
/// Pages are put in one by one and whole (`UFFDIO_COPY`): nobody ever sees a part of one, and Linux
/// makes no larger page of which only a part is right.
pub struct Mapped {
    fd: OwnedFd,
    uffd: Option<Uffd>,
    address: usize,
    bytes: usize,
}

impl Mapped {
    /// An empty file of `bytes` bytes, closed on exec, whose size nobody can change, and which has
    /// the mode of a file that is only read. `uffd` has its features agreed on.
    ///
    /// # Errors
    /// As `memfd_create(2)`, `ftruncate(2)`, `fcntl(2)`, `fchmod(2)`, `mmap(2)`, and as for
    /// [`Uffd::register`].
    pub fn create(name: &CStr, bytes: u64, uffd: Uffd) -> Result<Self> {
        const READ_ONLY: usize = 0o444;
        let bytes = usize::try_from(bytes).map_err(|_| Errno::EFBIG)?;
        let fd = memory_file::create(name, bytes)?;
        memory_file::seal(fd.as_fd(), memory_file::FIXED)?;
        // SAFETY: takes no pointer.
        unsafe { syscall!(g::__NR_fchmod, fd.as_raw_fd(), READ_ONLY) }?;
        let mut mapped = Self {
            fd,
            uffd: Some(uffd),
            address: 0,
            bytes: 0,
        };
        let bytes = bytes.next_multiple_of(PAGE);
        if bytes > 0 {
            mapped.address = mem::map_shared(mapped.fd(), bytes)?;
            mapped.bytes = bytes;
            // SAFETY: the mapping is this value's own; nothing of it is touched.
            unsafe { uffd.register_missing(mapped.address, bytes) }?;
        }
        Ok(mapped)
    }

    /// As [`Mapped::create`], where there is no userfaultfd: nobody is to map it.
    ///
    /// # Errors
    /// As `memfd_create(2)`, `ftruncate(2)` and `fcntl(2)`.
    pub fn unmapped(name: &CStr, bytes: u64) -> Result<Self> {
        let bytes = usize::try_from(bytes).map_err(|_| Errno::EFBIG)?;
        let fd = memory_file::create(name, bytes)?;
        memory_file::seal(fd.as_fd(), memory_file::FIXED)?;
        Ok(Self {
            fd,
            uffd: None,
            address: 0,
            bytes: bytes.next_multiple_of(PAGE),
        })
    }

    /// An empty file of [`SPARSE_BYTES`] that is not mapped here, closed on exec, whose size nobody
    /// can change. Pages are written into it, which only those do not see early whose mappings are
    /// registered for all faults.
    ///
    /// # Errors
    /// As `memfd_create(2)`, `ftruncate(2)` and `fcntl(2)`.
    pub fn sparse(name: &CStr) -> Result<Self> {
        let fd = memory_file::create(name, SPARSE_BYTES)?;
        memory_file::seal(fd.as_fd(), memory_file::FIXED)?;
        Ok(Self {
            fd,
            uffd: None,
            address: 0,
            bytes: SPARSE_BYTES,
        })
    }

    /// Its descriptor, to read and write.
    pub fn fd(&self) -> Fd {
        Fd(self.fd.as_raw_fd())
    }

    /// The memory file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Device and inode number.
    ///
    /// # Errors
    /// As `fstat(2)`.
    pub fn identity(&self) -> Result<(u64, u64)> {
        file::identity(self.fd())
    }

    /// Puts whole pages of `contents` in from `offset` on, also where somebody who has the file has
    /// put something else meanwhile.
    ///
    /// # Errors
    /// `ENOMEM` when there is no memory.
    ///
    /// # Panics
    /// When the range is not of whole pages inside the file.
    pub fn supply(&self, offset: u64, contents: &[u8]) -> Result<()> {
        let offset = self.check(offset, contents.len());
        let Some(uffd) = self.uffd else {
            return file::pwrite_all(self.fd(), contents, offset as u64);
        };
        let mut done = 0;
        while done < contents.len() {
            let to = self.address + offset + done;
            let from = contents.as_ptr() as usize + done;
            // SAFETY: `from` is a slice's, and the target this value's own mapping.
            let progress = unsafe { uffd.copy(to, from, contents.len() - done, false) };
            done += progress.bytes;
            match progress.stopped {
                None => {}
                Some(Errno::EEXIST) => {
                    let page = &contents[done..done + PAGE];
                    file::pwrite_all(self.fd(), page, (offset + done) as u64)?;
                    done += PAGE;
                }
                Some(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Takes pages out, wherever they are mapped.
    ///
    /// # Errors
    /// As `fallocate(2)`.
    ///
    /// # Panics
    /// As [`Mapped::supply`].
    pub fn take_out(&self, offset: u64, bytes: usize) -> Result<()> {
        self.check(offset, bytes);
        file::punch(self.fd(), offset, bytes as u64)
    }

    /// The parts of a range that have contents, in order: offsets of whole pages.
    ///
    /// Takes as long as the range, not as the file, which `SEEK_HOLE` does: it goes on to the next
    /// hole, wherever that is.
    ///
    /// # Errors
    /// As `mmap(2)`, `mincore(2)` and `lseek(2)`.
    ///
    /// # Panics
    /// As [`Mapped::supply`].
    pub fn contents(&self, offset: u64, bytes: usize) -> Result<Vec<Range<u64>>> {
        const SEEK_DATA: u32 = 3;
        self.check(offset, bytes);
        let in_memory = self.in_memory(offset, bytes)?;
        let (mut at, end) = (offset, offset + bytes as u64);
        let mut parts: Vec<Range<u64>> = Vec::new();
        while at < end {
            let page = (at - offset) as usize / PAGE;
            if in_memory[page] & 1 == 0 {
                // Linux has swapped it out, or it is a hole.
                // SAFETY: takes no pointer.
                match unsafe { syscall!(g::__NR_lseek, self.fd.as_raw_fd(), at, SEEK_DATA) } {
                    Ok(next) if next as u64 > at => {
                        at = next as u64;
                        continue;
                    }
                    Ok(_) => {}
                    Err(Errno::ENXIO) => break,
                    Err(errno) => return Err(errno),
                }
            }
            let next = at + PAGE as u64;
            match parts.last_mut() {
                Some(part) if part.end == at => part.end = next,
                _ => parts.push(at..next),
            }
            at = next;
        }
        Ok(parts)
    }

    /// Of each page of a range, whether Linux has it in memory: the lowest bit.
    fn in_memory(&self, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        let (protection, flags) = (mem::PROT_READ, mem::MAP_SHARED | mem::MAP_NORESERVE);
        // SAFETY: nothing existing is touched.
        let at = unsafe { mem::map(0, bytes, protection, flags, self.fd(), offset) }?;
        let mut pages = std::vec![0; bytes / PAGE];
        let told = mem::in_core(at, &mut pages);
        // SAFETY: nobody else knows the mapping.
        unsafe { mem::unmap(at, bytes) }?;
        told.map(|()| pages)
    }

    fn check(&self, offset: u64, bytes: usize) -> usize {
        let offset = offset as usize;
        assert!(offset.is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE) && bytes > 0);
        assert!(offset + bytes <= self.bytes, "beyond a mapped file");
        offset
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.address > 0 {
            // SAFETY: nobody else knows the mapping.
            let _ = unsafe { mem::unmap(self.address, self.bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;
    use crate::uffd;

    #[test]
    fn pages_are_put_in_whole_and_taken_out() {
        let (uffd, _) = uffd::open(None).unwrap();
        uffd.enable(0).unwrap();
        let mapped = Mapped::create(c"test", 3 * PAGE as u64 - 5, uffd).unwrap();
        mapped.supply(PAGE as u64, &[7; PAGE]).unwrap();
        mapped.supply(0, &vec![8; 3 * PAGE]).unwrap();
        let mut seen = vec![0; 3 * PAGE];
        let got = file::pread(mapped.fd(), &mut seen, 0).unwrap();
        assert_eq!(got, 3 * PAGE - 5);
        assert_eq!((seen[0], seen[PAGE], seen[2 * PAGE]), (8, 8, 8));
        mapped.take_out(PAGE as u64, PAGE).unwrap();
        file::pread(mapped.fd(), &mut seen, 0).unwrap();
        assert_eq!((seen[0], seen[PAGE], seen[2 * PAGE]), (8, 0, 8));
        let pages = PAGE as u64;
        let contents = mapped.contents(0, 3 * PAGE).unwrap();
        assert_eq!(contents, [0..pages, 2 * pages..3 * pages]);
        assert_eq!(mapped.contents(pages, PAGE).unwrap(), []);
        let last = 2 * pages..3 * pages;
        assert_eq!(mapped.contents(2 * pages, PAGE).unwrap(), [last]);
        assert!(file::set_size(mapped.fd(), 1).is_err());
        drop(mapped);
        file::close(uffd.0);
        let sparse = Mapped::sparse(c"test").unwrap();
        sparse.supply(1 << 40, &[7; PAGE]).unwrap();
        let (far, end) = (1 << 40, (1 << 40) + PAGE as u64);
        let all = sparse.contents(far - PAGE as u64, 8 * PAGE).unwrap();
        let part = far..end;
        assert_eq!(all, [part]);
    }
}
