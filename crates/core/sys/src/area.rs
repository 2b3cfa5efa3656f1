//! A part of the address space where nothing is but what its one owner maps there.
//!
//! Linux places nothing in it by itself, nor does the agent of `farpage run`, and it is the same in
//! all processes: what is mapped there can lie at the same address in another one.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use std::os::fd::{AsRawFd, BorrowedFd};

use linux_raw_sys::general as g;

use crate::file::{self, Fd};
use crate::raw::{Errno, Result};
use crate::uffd::{self, Uffd, features, with_device};
use crate::{copy, mem, pagemap, syscall};

/// Where it is.
pub const AREA: Range<usize> = 0x6800_0000_0000..0x6F00_0000_0000;
const PAGE: usize = 4096;

static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// The right to map and unmap in [`AREA`]: there is one in a process.
///
/// Nobody has a reference into it whom its owner did not let have one: its functions are safe, and
/// whoever makes references of addresses answers for what the owner does with those.
#[derive(Debug)]
pub struct Area(());

/// What is mapped.
#[derive(Clone, Copy, Debug)]
pub enum From<'a> {
    /// Memory of this process alone, all zeros.
    Zeros,
    /// A file from an offset on; what is written stays in the mapping.
    Private(BorrowedFd<'a>, u64),
    /// A file from an offset on; what is written, all see who have it mapped so.
    Shared(BorrowedFd<'a>, u64),
}

/// Whether something may be there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// It is `EEXIST` when something is.
    Free,
    /// It goes, in one step: a thread finds what was there or what is there then.
    Replace,
}

/// Reading, writing and executing, as for `mmap(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// It may be read.
    pub read: bool,
    /// It may be written.
    pub write: bool,
    /// It may be executed.
    pub execute: bool,
}

impl Access {
    fn bits(self) -> u32 {
        let bit = |is: bool, bit| if is { bit } else { 0 };
        bit(self.read, mem::PROT_READ)
            | bit(self.write, mem::PROT_WRITE)
            | bit(self.execute, mem::PROT_EXEC)
    }
}

impl Area {
    /// The only one of this process; `None` when somebody has it.
    #[must_use]
    pub fn take() -> Option<Self> {
        (!IS_TAKEN.swap(true, Ordering::AcqRel)).then_some(Self(()))
    }

    /// Maps `range`.
    ///
    /// # Errors
    /// As `mmap(2)`.
    ///
    /// # Panics
    /// When it is not of whole pages in the area.
    pub fn map(
        &self,
        range: &Range<usize>,
        access: Access,
        from: From<'_>,
        place: Place,
    ) -> Result<()> {
        check(range);
        let (how, fd, offset) = match from {
            From::Zeros => (mem::MAP_PRIVATE | mem::MAP_ANONYMOUS, -1, 0),
            From::Private(fd, offset) => (mem::MAP_PRIVATE, fd.as_raw_fd(), offset),
            From::Shared(fd, offset) => (mem::MAP_SHARED, fd.as_raw_fd(), offset),
        };
        let fixed = match place {
            Place::Free => mem::MAP_FIXED_NOREPLACE,
            Place::Replace => mem::MAP_FIXED,
        };
        let (bytes, flags) = (range.len(), how | fixed | mem::MAP_NORESERVE);
        // SAFETY: what lies in the area is its owner's to replace, who is the caller.
        unsafe { mem::map(range.start, bytes, access.bits(), flags, Fd(fd), offset) }.map(drop)
    }

    /// Unmaps `range`.
    ///
    /// # Errors
    /// As `munmap(2)`: `ENOMEM` when there are too many mappings.
    ///
    /// # Panics
    /// As [`Area::map`].
    pub fn unmap(&self, range: &Range<usize>) -> Result<()> {
        check(range);
        // SAFETY: as for `map`.
        unsafe { mem::unmap(range.start, range.len()) }
    }

    /// Says what may be done with `range`.
    ///
    /// # Errors
    /// As `mprotect(2)`.
    ///
    /// # Panics
    /// As [`Area::map`].
    pub fn protect(&self, range: &Range<usize>, access: Access) -> Result<()> {
        check(range);
        // SAFETY: as for `map`.
        unsafe { mem::protect(range.start, range.len(), access.bits()) }
    }

    /// Says whether children of fork have `range`.
    ///
    /// # Errors
    /// As `madvise(2)`.
    ///
    /// # Panics
    /// As [`Area::map`].
    pub fn give_to_children(&self, range: &Range<usize>, is_given: bool) -> Result<()> {
        check(range);
        let advice = if is_given {
            g::MADV_DOFORK
        } else {
            g::MADV_DONTFORK
        };
        // SAFETY: changes nothing here; a child has no references that its parent has not.
        unsafe { mem::advise(range.start, range.len(), advice) }
    }

    /// Copies bytes to what is mapped at `at`.
    ///
    /// # Errors
    /// As [`copy::to`].
    ///
    /// # Panics
    /// When it is not in the area.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<()> {
        let end = at.checked_add(bytes.len()).expect("an address");
        assert!(AREA.start <= at && end <= AREA.end, "beyond the area");
        // SAFETY: as for `map`.
        unsafe { copy::to(at, bytes) }
    }

    /// Copies `range`, which can be read, into a file that has nothing there: the pages that this
    /// process has, and what the file that is mapped there has, `beneath` from an offset on.
    ///
    /// # Errors
    /// As `pwrite(2)`.
    ///
    /// # Panics
    /// As [`Area::map`].
    pub fn copy_to_file(
        &self,
        range: &Range<usize>,
        file: BorrowedFd<'_>,
        offset: u64,
        beneath: Option<(BorrowedFd<'_>, u64)>,
    ) -> Result<()> {
        check(range);
        let put = |start, end| {
            let to = offset + (start - range.start) as u64;
            write_from(file, start, end - start, to)
        };
        if let Some((beneath, first)) = beneath {
            let (mut at, last) = (first, first + range.len() as u64);
            while let Some(data) = file::data_from(Fd(beneath.as_raw_fd()), at)? {
                if data.start >= last {
                    break;
                }
                at = data.end.min(last);
                let here = |offset: u64| range.start + (offset - first) as usize;
                put(here(data.start), here(at))?;
            }
        }
        let pagemap = pagemap::open()?;
        let mut copied = Ok(());
        let scanned = pagemap::scan(pagemap, range.start, range.end, |start, end| {
            if copied.is_ok() {
                copied = put(start, end);
            }
        });
        file::close(pagemap);
        scanned.and(copied)
    }

    /// Copies all of `range`, which can be read, into a file, whoever has to supply it.
    ///
    /// # Errors
    /// As `pwrite(2)`.
    ///
    /// # Panics
    /// As [`Area::map`].
    pub fn copy_all_to_file(
        &self,
        range: &Range<usize>,
        file: BorrowedFd<'_>,
        offset: u64,
    ) -> Result<()> {
        check(range);
        write_from(file, range.start, range.len(), offset)
    }

    /// How much of `range` this process has mapped.
    ///
    /// # Errors
    /// As [`pagemap::scan`].
    ///
    /// # Panics
    /// As [`Area::map`].
    pub fn resident_bytes(&self, range: &Range<usize>) -> Result<u64> {
        check(range);
        let pagemap = pagemap::open()?;
        let mut bytes = 0;
        let scanned = pagemap::scan(pagemap, range.start, range.end, |start, end| {
            bytes += (end - start) as u64;
        });
        file::close(pagemap);
        scanned.map(|()| bytes)
    }

    /// Whether `range`, private mappings of files, has pages that this process wrote to.
    ///
    /// # Errors
    /// As [`pagemap::scan`].
    ///
    /// # Panics
    /// As [`Area::map`].
    pub fn has_copies(&self, range: &Range<usize>) -> Result<bool> {
        check(range);
        let pagemap = pagemap::open()?;
        let has = pagemap::has_copies(pagemap, range.start, range.end);
        file::close(pagemap);
        has
    }

    /// From now on threads that write to `range` wait, until what this returns is dropped. Then
    /// they try again, whatever is mapped there then. Those that only read do not wait.
    ///
    /// # Errors
    /// As [`uffd::open`], [`Uffd::enable`] (`EINVAL` before Linux 6.4) and [`Uffd::register`].
    ///
    /// # Panics
    /// As [`Area::map`].
    pub fn hold_writers(&self, range: &Range<usize>) -> Result<Held> {
        const FEATURES: u64 =
            features::FAULT_FLAG_WP | features::WP_HUGETLBFS_SHMEM | features::WP_UNPOPULATED;
        let held = Held::open(range, FEATURES)?;
        // SAFETY: who waits there goes on when `held` is dropped.
        unsafe { held.uffd.register_protected(range.start, range.len()) }?;
        // SAFETY: registered just now.
        unsafe { held.uffd.protect(range.start, range.len(), true) }?;
        Ok(held)
    }

    /// The same for all threads that touch pages of `range` which nobody has touched so far.
    ///
    /// # Errors
    /// As [`uffd::open`] and [`Uffd::register`].
    ///
    /// # Panics
    /// As [`Area::map`].
    pub fn hold_first_touches(&self, range: &Range<usize>) -> Result<Held> {
        let held = Held::open(range, 0)?;
        // SAFETY: who waits there goes on when `held` is dropped.
        unsafe { held.uffd.register_missing(range.start, range.len()) }?;
        Ok(held)
    }
}

/// Threads wait: see [`Area::hold_writers`] and [`Area::hold_first_touches`].
#[derive(Debug)]
pub struct Held {
    uffd: Uffd,
    range: Range<usize>,
}

impl Held {
    fn open(range: &Range<usize>, features: u64) -> Result<Self> {
        check(range);
        let (uffd, _) = with_device(uffd::open)?;
        let range = range.clone();
        let held = Self { uffd, range };
        uffd.enable(features)?;
        Ok(held)
    }
}

impl Drop for Held {
    /// Wakes all. Nothing is unregistered by its place: before Linux 6.16 that takes away what
    /// another userfaultfd has there now.
    fn drop(&mut self) {
        self.uffd.wake(self.range.start, self.range.len());
        file::close(self.uffd.0);
    }
}

/// Copies memory of this process that is not borrowed as a slice: others may write to it.
fn write_from(file: BorrowedFd<'_>, at: usize, bytes: usize, offset: u64) -> Result<()> {
    let mut done = 0;
    while done < bytes {
        let (fd, from, left) = (file.as_raw_fd(), at + done, bytes - done);
        // SAFETY: Linux reads what it can of the range, and fails where it cannot.
        match unsafe { syscall!(g::__NR_pwrite64, fd, from, left, offset + done as u64) } {
            Ok(0) => return Err(Errno::EIO),
            Ok(put) => done += put,
            Err(Errno::EINTR) => {}
            // It may only be that Linux does not wait for the page ([`copy`]).
            Err(Errno::EFAULT) => {
                let mut page = [0; PAGE];
                let part = &mut page[..left.min(PAGE - from % PAGE)];
                copy::from(from, part)?;
                file::pwrite_all(Fd(fd), part, offset + done as u64)?;
                done += part.len();
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn check(range: &Range<usize>) {
    let is_inside = AREA.start <= range.start && range.start < range.end && range.end <= AREA.end;
    assert!(is_inside, "{range:x?} is no part of the area");
    assert!(range.start.is_multiple_of(PAGE) && range.end.is_multiple_of(PAGE));
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::vec;

    use super::*;
    use crate::memory_file;

    const ALL: Access = Access {
        read: true,
        write: true,
        execute: false,
    };

    #[test]
    fn writers_wait_while_contents_move_to_a_file() {
        let area = Area::take().unwrap();
        assert!(Area::take().is_none(), "there is one");
        let range = AREA.start..AREA.start + 4 * PAGE;
        area.map(&range, ALL, From::Zeros, Place::Free).unwrap();
        let again = area.map(&range, ALL, From::Zeros, Place::Free);
        assert_eq!(again, Err(Errno::EEXIST));
        area.write(range.start, &[7; PAGE]).unwrap();
        let held = area.hold_writers(&range).unwrap();
        let last = range.end - PAGE;
        let writer = std::thread::spawn(move || {
            // SAFETY: mapped until the end of the test.
            unsafe { mem::touch_write(last) };
        });
        let file = memory_file::create(c"test", 4 * PAGE).unwrap();
        area.copy_to_file(&range, file.as_fd(), 0, None).unwrap();
        assert!(!writer.is_finished());
        let from = From::Shared(file.as_fd(), 0);
        area.map(&range, ALL, from, Place::Replace).unwrap();
        drop(held);
        writer.join().unwrap();
        let data = file::data_from(Fd(file.as_raw_fd()), 3 * PAGE as u64).unwrap();
        assert_eq!(data, Some(3 * PAGE as u64..4 * PAGE as u64), "the writer's");
        let mut seen = vec![1; 4 * PAGE];
        copy::from(range.start, &mut seen).unwrap();
        assert_eq!((seen[0], seen[PAGE - 1], seen[PAGE]), (7, 7, 0));
        area.protect(
            &range,
            Access {
                write: false,
                ..ALL
            },
        )
        .unwrap();
        assert_eq!(area.write(range.start, &[1]), Err(Errno::EFAULT));
        area.unmap(&range).unwrap();
    }
}
