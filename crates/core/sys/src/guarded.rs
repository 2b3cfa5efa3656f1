//! Mappings of files that others may cut off while they are mapped.
//!
//! An access beyond the end of a mapped file raises SIGBUS. In a [`Guarded`] range it finds zeros
//! instead, and whoever has the range learns from where on they are not the file's.

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::file::Fd;
use crate::mem;
use crate::raw::{Errno, Result};
use crate::signal::{self, BadAccess};

const PAGE: usize = 4096;
/// Ranges that one process can have.
const RANGES_MAX: usize = 1024;

/// Told that a range has lost what lies from an address on: its owner's word, and the address.
///
/// Called in a signal handler, between any two instructions of the thread that uses the range.
pub type OnLoss = fn(usize, usize);

/// A range as the signal handler knows it.
struct Range {
    /// Address; 0 of a place that is free.
    at: AtomicUsize,
    /// End of what is mapped; the start when nothing is.
    end: AtomicUsize,
    protection: AtomicUsize,
    /// First address whose contents are not the file's; 0 while all are.
    lost: AtomicUsize,
    owner: AtomicUsize,
    on_loss: AtomicUsize,
}

static RANGES: [Range; RANGES_MAX] = [const {
    Range {
        at: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        protection: AtomicUsize::new(0),
        lost: AtomicUsize::new(0),
        owner: AtomicUsize::new(0),
        on_loss: AtomicUsize::new(0),
    }
}; RANGES_MAX];

/// A range of addresses, of one owner, in which a part of a file can be mapped shared.
pub struct Guarded {
    /// What was reserved.
    reserved: (usize, usize),
    /// Aligned start, and bytes from there.
    at: usize,
    bytes: usize,
    range: &'static Range,
}

impl Guarded {
    /// Reserves `bytes` bytes at a multiple of `align`, both powers of two from a page on. Nothing
    /// is mapped yet. Neither its start nor its end is an end of other memory, so an address tells
    /// what it is in.
    ///
    /// # Errors
    /// As `mmap(2)`; `EMFILE` when the process has too many; `EBUSY` when somebody else answers
    /// SIGBUS, `ENOSYS` where nobody can.
    pub fn reserve(bytes: usize, align: usize) -> Result<Self> {
        // SAFETY: `answer` reads atomics, maps zeros over pages that are lost, and takes no lock.
        unsafe { signal::answer_sigbus(answer) }?;
        if !signal::is_answering_sigbus() {
            return Err(Errno::EBUSY);
        }
        let length = PAGE + align + bytes;
        let flags = mem::MAP_PRIVATE | mem::MAP_ANONYMOUS | mem::MAP_NORESERVE;
        // SAFETY: nothing existing is touched.
        let start = unsafe { mem::map(0, length, mem::PROT_NONE, flags, Fd(-1), 0) }?;
        let at = (start + PAGE).next_multiple_of(align);
        let is_taken = |range: &&Range| {
            let taken = range
                .at
                .compare_exchange(0, at, Ordering::AcqRel, Ordering::Relaxed);
            taken.is_ok()
        };
        let Some(range) = RANGES.iter().find(is_taken) else {
            // SAFETY: nobody knows the reservation.
            let _ = unsafe { mem::unmap(start, length) };
            return Err(Errno::EMFILE);
        };
        range.on_loss.store(0, Ordering::Relaxed);
        range.lost.store(0, Ordering::Relaxed);
        range.end.store(at, Ordering::Release);
        Ok(Self {
            reserved: (start, length),
            at,
            bytes,
            range,
        })
    }

    /// Has `call` told of losses, with `owner`.
    ///
    /// # Safety
    /// `call` must be sound in a signal handler, for as long as this range is mapped.
    pub unsafe fn tell(&self, owner: usize, call: OnLoss) {
        self.range.owner.store(owner, Ordering::Relaxed);
        self.range.on_loss.store(call as usize, Ordering::Release);
    }

    /// Maps `bytes` bytes of a file from `offset` (whole pages) on at the start, in place of what
    /// was there, to be read and, if `writable`, written.
    ///
    /// # Errors
    /// As `mmap(2)`; `EBUSY` when somebody else answers SIGBUS now. What was mapped is gone then.
    ///
    /// # Panics
    /// When it is longer than the range.
    pub fn map(&mut self, fd: Fd, offset: u64, bytes: usize, writable: bool) -> Result<()> {
        assert!(bytes <= self.bytes, "more than was reserved");
        if !signal::is_answering_sigbus() {
            self.clear()?;
            return Err(Errno::EBUSY);
        }
        let write = if writable { mem::PROT_WRITE } else { 0 };
        let protection = mem::PROT_READ | write;
        self.range.end.store(self.at, Ordering::Relaxed);
        self.range.lost.store(0, Ordering::Relaxed);
        let stored = &self.range.protection;
        stored.store(protection as usize, Ordering::Relaxed);
        let flags = mem::MAP_SHARED | mem::MAP_FIXED;
        // SAFETY: the range is this value's own; copies out of it are made by `&self`.
        if let Err(errno) = unsafe { mem::map(self.at, bytes, protection, flags, fd, offset) } {
            self.clear()?;
            return Err(errno);
        }
        let end = self.at + bytes.next_multiple_of(PAGE);
        self.range.end.store(end, Ordering::Release);
        Ok(())
    }

    /// Has Linux map the pages of a part that is about to be read, all at once.
    ///
    /// # Errors
    /// As `madvise(2)` with `MADV_POPULATE_READ`: when a page cannot be had.
    ///
    /// # Panics
    /// When the part is not within the range.
    pub fn populate(&self, at: usize, bytes: usize) -> Result<()> {
        self.check(at, bytes);
        let start = at / PAGE * PAGE;
        // SAFETY: changes no contents.
        unsafe { mem::advise(start, at + bytes - start, mem::MADV_POPULATE_READ) }
    }

    /// Lets go of the file.
    ///
    /// # Errors
    /// As `mmap(2)`: then it is still mapped.
    pub fn clear(&mut self) -> Result<()> {
        let flags = mem::MAP_PRIVATE | mem::MAP_ANONYMOUS | mem::MAP_NORESERVE | mem::MAP_FIXED;
        // SAFETY: as in `map`.
        unsafe { mem::map(self.at, self.bytes, mem::PROT_NONE, flags, Fd(-1), 0) }?;
        self.range.end.store(self.at, Ordering::Release);
        Ok(())
    }

    /// Where it starts.
    pub fn address(&self) -> usize {
        self.at
    }

    /// End of what is mapped.
    pub fn end(&self) -> usize {
        self.range.end.load(Ordering::Relaxed)
    }

    /// The first address at which an access found that the file has been cut off.
    pub fn lost(&self) -> Option<usize> {
        match self.range.lost.load(Ordering::Acquire) {
            0 => None,
            address => Some(address),
        }
    }

    /// Copies out what is mapped at `at`.
    ///
    /// # Panics
    /// When that is not all mapped.
    pub fn copy_to(&self, at: usize, into: &mut [u8]) {
        self.check(at, into.len());
        let from = core::ptr::with_exposed_provenance::<u8>(at);
        // SAFETY: mapped readable; who cuts the file off makes it zeros. Other tasks may write to
        // it meanwhile, which a copy through pointers allows for.
        unsafe { core::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    /// Copies in.
    ///
    /// # Panics
    /// When what is mapped at `at` is shorter, or not to be written.
    pub fn copy_from(&self, at: usize, bytes: &[u8]) {
        self.check(at, bytes.len());
        let protection = self.range.protection.load(Ordering::Relaxed);
        assert!(
            protection & mem::PROT_WRITE as usize != 0,
            "only to be read"
        );
        let to = core::ptr::with_exposed_provenance_mut::<u8>(at);
        // SAFETY: as in `copy_to`, and mapped writable.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// The byte at `at`.
    ///
    /// # Panics
    /// When none is mapped there.
    pub fn byte(&self, at: usize) -> u8 {
        self.check(at, 1);
        // SAFETY: mapped readable, as in `copy_to`.
        unsafe { core::ptr::with_exposed_provenance::<u8>(at).read_volatile() }
    }

    fn check(&self, at: usize, bytes: usize) {
        let fits = at >= self.at && bytes <= self.end().saturating_sub(at);
        assert!(fits, "beyond what is mapped");
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.range.end.store(self.at, Ordering::Relaxed);
        // SAFETY: nobody else knows the reservation.
        let _ = unsafe { mem::unmap(self.reserved.0, self.reserved.1) };
        self.range.at.store(0, Ordering::Release);
    }
}

/// Brings what lies at `at` near the processor, as far as there is something.
#[inline]
pub fn prefetch(at: usize, bytes: usize) {
    const LINE: usize = 64;
    #[cfg(target_arch = "x86_64")]
    for line in (at..at + bytes).step_by(LINE) {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let line = core::ptr::without_provenance::<i8>(line);
        // SAFETY: a prefetch accesses nothing: wrong addresses are ignored.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line) };
    }
}

/// Puts zeros in place of what a file has lost.
fn answer(access: BadAccess) -> bool {
    let page = access.address / PAGE * PAGE;
    for range in &RANGES {
        let (at, end) = (
            range.at.load(Ordering::Acquire),
            range.end.load(Ordering::Acquire),
        );
        if at == 0 || !(at..end).contains(&page) {
            continue;
        }
        let flags = mem::MAP_PRIVATE | mem::MAP_ANONYMOUS | mem::MAP_NORESERVE | mem::MAP_FIXED;
        let protection = range.protection.load(Ordering::Relaxed) as u32;
        // SAFETY: the pages are a range's own, and there is nothing of the file in them.
        let zeros = unsafe { mem::map(page, end - page, protection, flags, Fd(-1), 0) };
        if zeros.is_err() {
            return false;
        }
        let known = range.lost.load(Ordering::Relaxed);
        if known == 0 || page < known {
            range.lost.store(page, Ordering::Release);
        }
        let call = range.on_loss.load(Ordering::Acquire);
        if call != 0 {
            // SAFETY: `tell` stored a function of this type.
            let call = unsafe { core::mem::transmute::<usize, OnLoss>(call) };
            call(range.owner.load(Ordering::Relaxed), page);
        }
        return true;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{file, memory_file};
    use std::os::fd::{AsFd, AsRawFd};

    #[test]
    fn no_other_memory_begins_where_a_range_ends() {
        for align in [PAGE, 8 * PAGE] {
            // Linux puts each below the one before, and one of them there where its start is aligned.
            let pages: [_; 8] = core::array::from_fn(|_| {
                let range = Guarded::reserve(8 * PAGE, align).unwrap();
                (range, mem::map_anonymous(PAGE).unwrap())
            });
            for (range, page) in &pages {
                let (start, length) = range.reserved;
                assert!(start + PAGE <= range.at && range.at.is_multiple_of(align));
                assert!(range.at + range.bytes + PAGE <= start + length);
                // SAFETY: mapped here, and not used.
                unsafe { mem::unmap(*page, PAGE) }.unwrap();
            }
        }
    }

    #[test]
    fn what_a_file_loses_is_zeros_and_known() {
        let fd = memory_file::create(c"test", 4 * PAGE).unwrap();
        let own = Fd(fd.as_fd().as_raw_fd());
        file::pwrite_all(own, &[7; 4 * PAGE], 0).unwrap();
        let mut range = Guarded::reserve(8 * PAGE, 8 * PAGE).unwrap();
        assert_eq!(range.address() % (8 * PAGE), 0);
        range.map(own, 0, 4 * PAGE, false).unwrap();
        let at = range.address();
        assert_eq!((range.byte(at + 3 * PAGE), range.lost()), (7, None));
        file::set_size(own, PAGE as u64 + 1).unwrap();
        let mut seen = [1; 4 * PAGE];
        range.copy_to(at, &mut seen);
        assert!(seen[..=PAGE].iter().all(|&byte| byte == 7));
        assert!(seen[PAGE + 1..].iter().all(|&byte| byte == 0));
        assert_eq!(range.lost(), Some(at + 2 * PAGE));
        range.map(own, 0, PAGE, false).unwrap();
        assert_eq!(range.lost(), None);
    }

    #[test]
    #[should_panic(expected = "beyond what is mapped")]
    fn nothing_is_read_where_nothing_is_mapped() {
        let range = Guarded::reserve(PAGE, PAGE).unwrap();
        range.byte(range.address());
    }
}
