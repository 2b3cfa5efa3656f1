//! Local files that are only read: their pages are those that Linux has in its page cache, as long
//! as nobody may write to the file.

use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use farpage_kernel::embed::Mapping;
use farpage_object::{PAGE_BYTES, PageRange};
use farpage_source::{Source, SourceError};
use farpage_sys::file::{self, Fd};
use farpage_sys::{Errno, lease, mem};

use crate::Error;
use crate::leases::{self, Leased};

/// What is brought in at a time, while Linux reads the next: bytes.
const STEP: u64 = 8 << 20;
/// Pages that are looked at at a time.
const LOOK: usize = 1 << 16;

/// How much of a file a mapping shows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All of it: it fits into the budget.
    Whole,
    /// Parts that are read in order.
    Windows,
}

/// A mapping that shows a file, and the lease that makes sure of it.
pub(crate) struct Cover {
    name: String,
    extent: Extent,
    lease: OwnedFd,
    /// Where what is mapped begins in the file.
    offset: u64,
    /// True while the file itself is what is mapped.
    is_shown: AtomicBool,
    /// Locked by who changes it, and only while the leases are held: no other thread of the parent
    /// has it locked when a child of fork begins.
    shown: Mutex<Shown>,
}

enum Shown {
    /// Not yet in this process.
    NotYet,
    /// By this mapping, in this process.
    By(Weak<Mapping>, u32),
    /// No longer: pages are read when they are touched.
    NoLonger,
}

impl Cover {
    /// Covers a mapping of `source`. `None` where that cannot be had: it is no local file, it begins
    /// inside of a page, somebody has it open for writing, or Linux grants no lease on it.
    pub(crate) fn over(
        mapping: &Arc<Mapping>,
        source: &dyn Source,
        extent: Extent,
    ) -> Option<Arc<Self>> {
        let (file, offset) = source.file()?;
        if !offset.is_multiple_of(PAGE_BYTES as u64) || source.size() == 0 {
            return None;
        }
        let cover = leases::take(file, |lease| Self {
            name: source.name().to_owned(),
            extent,
            lease,
            offset,
            is_shown: AtomicBool::new(false),
            shown: Mutex::new(Shown::NotYet),
        });
        let cover = cover.ok()?;
        let shown = leases::hold(|| cover.show(mapping, source));
        shown.then_some(cover)
    }

    /// Shows the file by `mapping`, of this process, as long as the lease is held. The leases are held
    /// meanwhile, as they are over a fork.
    pub(crate) fn show(&self, mapping: &Arc<Mapping>, source: &dyn Source) -> bool {
        let mut shown = self.shown();
        // Asked for again: it is the version that was opened, and stays it from here on.
        let file = match *shown {
            Shown::NoLonger => None,
            Shown::NotYet | Shown::By(..) => source.file(),
        };
        let covered = file.is_some_and(|(file, offset)| match self.extent {
            Extent::Whole => mapping.cover(file, offset).is_ok(),
            Extent::Windows => mapping.cover_in_windows(file, offset).is_ok(),
        });
        *shown = match covered {
            true => Shown::By(Arc::downgrade(mapping), std::process::id()),
            false => Shown::NoLonger,
        };
        self.is_shown.store(covered, Ordering::Release);
        covered
    }

    fn fd(&self) -> Fd {
        Fd(self.lease.as_raw_fd())
    }

    /// Brings bytes of `mapping` in and waits until they are there.
    ///
    /// # Errors
    /// [`Error::NotRead`] when the file cannot be read.
    pub(crate) fn prefetch(
        &self,
        mapping: &Mapping,
        bytes: &Range<u64>,
        mut progress: impl FnMut(u64),
    ) -> Result<u64, Error> {
        let page = PAGE_BYTES as u64;
        let mut at = bytes.start / page * page;
        let (first, end) = (at, bytes.end.next_multiple_of(page));
        file::read_ahead(self.fd(), self.offset + at, STEP);
        while at < end {
            let step = STEP.min(end - at);
            file::read_ahead(self.fd(), self.offset + at + step, STEP);
            let there = mem::populate(mapping.as_ptr() as usize + at as usize, step as usize);
            there.map_err(|errno| self.not_read(at, errno))?;
            at += step;
            progress(at - first);
        }
        Ok(bytes.end - bytes.start)
    }

    fn not_read(&self, offset: u64, errno: Errno) -> Error {
        let why = SourceError::Io {
            name: self.name.clone(),
            what: "read",
            offset,
            cause: std::io::Error::from_raw_os_error(errno.0).to_string(),
            remedy: "check the disk under it",
        };
        Error::NotRead { why }
    }

    /// Lets bytes of `mapping` go, from the page cache too where nobody else has them mapped.
    pub(crate) fn discard(&self, mapping: &Mapping, pages: PageRange) {
        mapping.drop_covered(pages);
        let at = pages.start.0 * PAGE_BYTES as u64;
        file::forget_cached(self.fd(), self.offset + at, pages.bytes());
    }

    /// How many pages of `mapping` are in memory.
    pub(crate) fn resident_pages(&self, mapping: &Mapping) -> u64 {
        let bytes = mapping.size() as u64;
        file::cached_pages(self.fd(), self.offset, bytes)
            .unwrap_or_else(|_| self.residency(mapping).iter().map(|run| run.pages()).sum())
    }

    /// Which these are, in order.
    pub(crate) fn residency(&self, mapping: &Mapping) -> Vec<PageRange> {
        let (first, mut runs) = (mapping.as_ptr() as usize, Vec::<PageRange>::new());
        let mut look = vec![0; LOOK.min(mapping.size() / PAGE_BYTES)];
        for start in (0..mapping.size() / PAGE_BYTES).step_by(LOOK) {
            let count = LOOK.min(mapping.size() / PAGE_BYTES - start);
            let told = mem::in_core(first + start * PAGE_BYTES, &mut look[..count]);
            if told.is_err() {
                continue;
            }
            let there = (start as u64..).zip(&look[..count]);
            for (page, _) in there.filter(|(_, is)| **is & 1 != 0) {
                match runs.last_mut() {
                    Some(run) if run.end.0 == page => run.end.0 += 1,
                    _ => runs.push(PageRange::new(page, page + 1)),
                }
            }
        }
        runs
    }

    /// True while the file itself is what is mapped.
    pub(crate) fn is_shown(&self) -> bool {
        self.is_shown.load(Ordering::Acquire)
    }

    /// True while no page of the file is read otherwise.
    pub(crate) fn is_whole(&self) -> bool {
        self.extent == Extent::Whole && self.is_shown()
    }

    /// Ends it: pages are read when they are touched.
    pub(crate) fn end(&self) {
        leases::hold(|| self.give_way());
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Leased for Cover {
    fn lease(&self) -> &OwnedFd {
        &self.lease
    }

    fn is_over(&self) -> bool {
        matches!(*self.shown(), Shown::NoLonger)
    }

    fn give_way(&self) {
        let mut shown = self.shown();
        if let Shown::By(mapping, process) = &*shown
            && *process == std::process::id()
            && let Some(mapping) = mapping.upgrade()
            && let Err(error) = mapping.uncover()
        {
            farpage_sys::say!(
                "farpage: '{}' is about to be written to, and its pages cannot be kept apart: \
                 {error}; what is read from now on may be of another version",
                self.name
            );
        }
        *shown = Shown::NoLonger;
        self.is_shown.store(false, Ordering::Release);
        lease::give_up(&self.lease);
    }
}
