//! Objects and their mappings.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use farpage_object::{ObjectId, PAGE_BYTES, PageRange, Pager};
use farpage_sys::file::Fd;
use farpage_sys::{Errno, mem};

use super::{Embedded, Error, system};
use crate::handler::Buffer;
use crate::kernel::Kernel;
use crate::regions::Source;

/// Pages that one step of [`Mapping::prefetch`] asks for.
const PREFETCH_PAGES: u64 = 2048;
/// Pages under way at which it waits before it asks for more.
const UNDER_WAY_PAGES: u64 = 16384;

/// Memory whose contents are the business of a pager. A [`Mapping`] keeps it alive.
pub struct Object(Arc<Inner>);

struct Inner {
    host: Embedded,
    pager: Arc<dyn Pager>,
    id: ObjectId,
    pages: u64,
    place: Mutex<Place>,
}

/// Where an object is in memory.
#[derive(Default)]
struct Place {
    /// A [`Mapping`] exists.
    mapped: bool,
    /// Its pages outlive the mapping.
    cached: bool,
    /// They do: it is mapped at this address, for nobody.
    kept: Option<Kept>,
    /// The pager has been told that it is let go (`terminate`), and not again of the object
    /// (`init`).
    ended: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Kept {
    start: usize,
    in_thread: bool,
}

impl Object {
    pub(super) fn new(host: Embedded, pager: Arc<dyn Pager>, id: ObjectId, pages: u64) -> Self {
        Self(Arc::new(Inner {
            host,
            pager,
            id,
            pages,
            place: Mutex::default(),
        }))
    }

    /// What the pager knows this object as.
    pub fn id(&self) -> ObjectId {
        self.0.id
    }

    /// Maps the whole object into this process. Nothing is read before it is touched.
    ///
    /// # Errors
    /// [`Error::Mapped`] while a mapping exists; [`Error::Refused`] when the object was unmapped
    /// and its pager does not want it again; [`Error::System`] when there is no room.
    pub fn map(&self) -> Result<Mapping, Error> {
        Inner::map(&self.0, false, None)
    }

    /// As [`Object::map`], at `address`. A child of fork has no mappings of objects; it makes them
    /// anew, with a kernel of its own, where its parent had them, so that pointers stay right.
    ///
    /// # Errors
    /// As [`Object::map`]; [`Error::System`] also when something else lies there.
    pub fn map_at(&self, address: usize) -> Result<Mapping, Error> {
        Inner::map(&self.0, false, Some(address))
    }

    /// As [`Object::map`], but a fault raises SIGBUS in the thread that faults, and a signal
    /// handler of the kernel's answers it there: no other thread is woken. Pages come that way when
    /// they only have to be brought back or unprotected, or when the pager is
    /// [signal-safe](Pager::is_signal_safe) and has the page at hand; else the signal handler waits
    /// for the kernel's threads, with all signals blocked.
    ///
    /// System calls on pages that are not in memory fail with `EFAULT`: give them other buffers,
    /// and copy with [`Mapping::read`] and [`Mapping::write`]. The handler takes SIGBUS for the
    /// whole process when this is first called, and hands on what is not its own to the action that
    /// was there, on the thread's own stack: install yours before.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use farpage_object::{ObjectId, PageIndex};
    /// # use farpage_kernel::embed::Embedded;
    /// # use farpage_object::{DataRequest, PageOut, Pager, PagerError, Supplied};
    /// /// All bytes are 7.
    /// struct Sevens;
    ///
    /// impl Pager for Sevens {
    ///     fn data_request(&self, mut request: DataRequest<'_>) -> Result<Supplied, PagerError> {
    ///         request.buffer().fill(7);
    ///         Ok(Supplied::clean(request.pages().pages()))
    ///     }
    ///
    ///     fn is_at_hand(&self, _: ObjectId, _: PageIndex) -> bool {
    ///         true
    ///     }
    ///
    ///     fn is_signal_safe(&self) -> bool {
    ///         true // it takes no mutex, allocates nothing and does not panic
    ///     }
    ///
    ///     fn data_write(&self, _: ObjectId, _: &[PageOut<'_>]) -> Result<(), PagerError> {
    ///         Err(PagerError::Write(30)) // read-only
    ///     }
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let kernel = Embedded::start(16 << 20)?;
    /// let object = kernel.object(Arc::new(Sevens), 1 << 30)?;
    /// let memory = object.map_in_thread()?;
    /// let mut bytes = [0; 3];
    /// memory.read(5_000_000, &mut bytes)?;
    /// assert_eq!(bytes, [7; 3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Object::map`], and [`Error::System`] when Linux does not offer it, or more than 16
    /// kernels of this process do it.
    pub fn map_in_thread(&self) -> Result<Mapping, Error> {
        self.0.host.answer_in_thread()?;
        Inner::map(&self.0, true, None)
    }

    /// Whether pages outlive the mapping (`pager_cache`). They stay in memory then, within the
    /// budget, and leave like all others when room is needed: clean ones are dropped, modified ones
    /// written back. The next [`Object::map`] finds the rest without asking the pager, if faults
    /// are answered as before ([`Object::map_in_thread`] or not). With `false`, or when the object
    /// is dropped, what an earlier mapping left is written back and let go; then the pager is told
    /// by [`Pager::terminate`].
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use farpage_object::ObjectId;
    /// # use farpage_kernel::embed::Embedded;
    /// # use farpage_object::{DataRequest, PageOut, Pager, PagerError, Supplied};
    /// # struct Words;
    /// # impl Pager for Words {
    /// #     fn data_request(&self, request: DataRequest<'_>) -> Result<Supplied, PagerError> {
    /// #         Ok(request.supply(b"far away"))
    /// #     }
    /// #     fn data_write(&self, _: ObjectId, _: &[PageOut<'_>]) -> Result<(), PagerError> {
    /// #         Ok(())
    /// #     }
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let kernel = Embedded::start(16 << 20)?;
    /// let object = kernel.object(Arc::new(Words), 1 << 20)?;
    /// object.cache(true)?;
    /// let memory = object.map()?;
    /// memory.read(0, &mut [0; 8])?;
    /// memory.unmap()?;
    /// assert!(object.map()?.stats().resident_pages > 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Mapping::unmap`], when there is something to write back; it is let go all the same.
    pub fn cache(&self, cached: bool) -> Result<(), Error> {
        let mut place = self.0.place();
        place.cached = cached;
        match place.kept.take_if(|_| !cached) {
            Some(kept) => self.0.let_go(&mut place, kept.start),
            None => Ok(()),
        }
    }
}

impl Inner {
    fn map(this: &Arc<Self>, in_thread: bool, at: Option<usize>) -> Result<Mapping, Error> {
        let mut place = this.place();
        if place.mapped {
            return Err(Error::Mapped);
        }
        let start = match place.kept.take() {
            Some(kept) if kept.in_thread == in_thread && at.is_none() => kept.start,
            other => {
                if let Some(kept) = other {
                    // As when a mapping is dropped: a pager that refuses has been told.
                    let _ = this.let_go(&mut place, kept.start);
                }
                if place.ended {
                    let begun = this.pager.init(this.id, this.pages);
                    begun.map_err(Error::Refused)?;
                    place.ended = false;
                }
                let source = Source {
                    object: this.id,
                    pager: Arc::clone(&this.pager),
                    temporary: false,
                    origin: 0,
                };
                let mapped = this
                    .host
                    .kernel
                    .map_object(source, this.pages, in_thread, at);
                mapped.map_err(system("map the object"))?
            }
        };
        place.mapped = true;
        drop(place);
        Ok(Mapping {
            object: Arc::clone(this),
            start,
            in_thread,
            covered: AtomicBool::new(false),
            covering: Mutex::new(()),
        })
    }

    fn place(&self) -> MutexGuard<'_, Place> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, start: usize) -> usize {
        start + self.pages as usize * PAGE_BYTES
    }

    /// Writes dirty pages back, unmaps, and tells the pager.
    fn let_go(&self, place: &mut Place, start: usize) -> Result<(), Error> {
        let (kernel, end) = (self.host.kernel, self.end(start));
        kernel.close(start, end);
        let cleaned = kernel.clean(start, end, false);
        // SAFETY: the mapping belongs to a value that goes away, or to nobody; addresses got from
        // `as_ptr` are the caller's responsibility, as with any pointer.
        let unmapped = unsafe { kernel.unmap_object(start, end) };
        debug_assert!(unmapped.is_ok());
        self.ends(place);
        cleaned.map_err(system("write pages back"))
    }
}

impl Inner {
    /// Tells the pager, if it has not been told, that the kernel has let go.
    fn ends(&self, place: &mut Place) {
        if !core::mem::replace(&mut place.ended, true) {
            self.pager.terminate(self.id);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut place = self.place();
        if let Some(kept) = place.kept.take() {
            // A pager that does not take its pages has been told; `cache` reports it.
            let _ = self.let_go(&mut place, kept.start);
        }
        self.ends(&mut place);
    }
}

/// A mapped object. Dropping it writes dirty pages back and unmaps it, unless the object is
/// [cached](Object::cache).
pub struct Mapping {
    object: Arc<Inner>,
    start: usize,
    in_thread: bool,
    /// A file is seen in its place. A child of fork changes it without a lock, which another thread
    /// of its parent may have held.
    covered: AtomicBool,
    /// Held by who puts a cover over it, takes it away or drops pages of it.
    covering: Mutex<()>,
}

/// What a mapping takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Pages in memory.
    pub resident_pages: u64,
    /// Pages of the object.
    pub pages: u64,
}

impl Mapping {
    /// Size in bytes: whole pages.
    pub fn size(&self) -> usize {
        self.object.pages as usize * PAGE_BYTES
    }

    /// The first byte. Reading and writing through it faults pages in; a page that its pager
    /// cannot supply raises SIGBUS.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start as *mut u8
    }

    fn within(&self, offset: usize, bytes: usize) -> Result<usize, Error> {
        let size = self.size();
        match offset.checked_add(bytes) {
            Some(end) if end <= size => Ok(self.start + offset),
            _ => Err(Error::Outside {
                offset,
                bytes,
                size,
            }),
        }
    }

    /// Copies bytes out of the object.
    ///
    /// # Errors
    /// [`Error::Outside`] beyond its end.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        let from = self.within(offset, into.len())?;
        // SAFETY: inside the mapping; `into` is this caller's alone. Other threads may write to
        // the object meanwhile, so it is copied through pointers, never seen as a slice.
        unsafe { core::ptr::copy_nonoverlapping(from as *const u8, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies bytes into the object.
    ///
    /// # Errors
    /// [`Error::Outside`] beyond its end.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), Error> {
        let to = self.within(offset, from.len())?;
        // SAFETY: as for `read`.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len()) };
        Ok(())
    }

    fn range(&self, pages: PageRange) -> (usize, usize) {
        let end = pages.end.0.min(self.object.pages);
        let at = |page: u64| self.start + page as usize * PAGE_BYTES;
        (at(pages.start.0.min(end)), at(end))
    }

    /// Writes dirty pages back to the pager; they stay resident.
    ///
    /// # Errors
    /// [`Error::System`] with `EIO` when the pager did not take a page: it stays dirty.
    pub fn clean(&self, pages: PageRange) -> Result<(), Error> {
        let (start, end) = self.range(pages);
        self.object
            .host
            .kernel
            .clean(start, end, false)
            .map_err(system("write pages back"))
    }

    /// Writes dirty pages back and drops the cached copies: the next access asks the pager.
    ///
    /// # Errors
    /// As [`Mapping::clean`].
    pub fn flush(&self, pages: PageRange) -> Result<(), Error> {
        let (start, end) = self.range(pages);
        self.object
            .host
            .kernel
            .clean(start, end, true)
            .map_err(system("write pages back"))
    }

    /// Asks for the pages of `runs` that are not in memory, in order, before anybody touches them;
    /// pages used longer ago leave for them. Waits until they are there, and calls `progress` with
    /// the number of pages that have come, ten times a second at least. Never asks for more than
    /// half of the kernel's budget: the first pages would leave before the last came.
    ///
    /// Returns the number of pages of the runs that are in memory afterwards. They are fewer than
    /// asked for when the budget is too small, or the pager could not supply them; it is asked again
    /// for those when they are touched.
    ///
    /// # Errors
    /// [`Error::System`] when there is no memory for a buffer.
    pub fn prefetch(
        &self,
        runs: impl IntoIterator<Item = PageRange>,
        mut progress: impl FnMut(u64),
    ) -> Result<u64, Error> {
        const STEP_NS: u64 = 50_000_000;
        let kernel = self.object.host.kernel;
        let (start, end) = (self.start, self.start + self.size());
        let mut buffer = Buffer::new().map_err(system("map a buffer"))?;
        let most = self.object.host.ram_bytes() / 2 / PAGE_BYTES as u64;
        let (mut asked, mut unlooked) = (0, 0);
        let mut done = Vec::new();
        let mut look = |asked: u64, step_ns: u64| {
            let under_way = kernel.prefetched(start, end, step_ns);
            progress(asked.saturating_sub(under_way));
            under_way
        };
        // In steps, so that progress shows, and what comes first is asked for first.
        let all = PageRange::new(0, self.object.pages);
        'runs: for run in runs {
            let run = run.intersect(all);
            done.push(run);
            for piece in run.chunks(PREFETCH_PAGES) {
                let (from, to) = self.range(piece);
                let more = kernel.prefetch(from, to, most - asked, &mut buffer);
                (asked, unlooked) = (asked + more, unlooked + more);
                while unlooked >= PREFETCH_PAGES && look(asked, STEP_NS) > UNDER_WAY_PAGES {}
                unlooked %= PREFETCH_PAGES;
                if asked >= most {
                    break 'runs;
                }
            }
        }
        while look(asked, STEP_NS) > 0 {}
        let there = |run: PageRange| {
            let (from, to) = self.range(run);
            kernel.resident(from, to)
        };
        Ok(done.into_iter().map(there).sum())
    }

    /// Keeps pages in memory, once they are there, until [`Mapping::unwire`]: bring them in with
    /// [`Mapping::prefetch`].
    ///
    /// # Errors
    /// [`Error::Wired`] when more than half of the kernel's budget would be wired.
    pub fn wire(&self, pages: PageRange) -> Result<(), Error> {
        let (start, end) = self.range(pages);
        let host = self.object.host;
        let most = host.ram_bytes() / 2;
        let wired = host.kernel.wire(start, end, most);
        wired.map_err(|wired| Error::Wired {
            bytes: (end - start) as u64,
            wired,
            most,
        })
    }

    /// Lets pages leave that were wired.
    pub fn unwire(&self, pages: PageRange) {
        let (start, end) = self.range(pages);
        self.object.host.kernel.unwire(start, end);
    }

    /// Writing raises SIGSEGV from now on, in this mapping: its pager cannot take it.
    ///
    /// # Errors
    /// [`Error::System`] when Linux does not allow it.
    pub fn forbid_writing(&self) -> Result<(), Error> {
        // SAFETY: no reference to the mapping's contents exists; who writes by a pointer is told.
        let done = unsafe { mem::protect(self.start, self.size(), mem::PROT_READ) };
        done.map_err(system("protect the object"))
    }

    /// Shows the bytes of a file from `offset` on, a multiple of the page size, in place of the
    /// object, for reading: pages are those of Linux's page cache, no fault is the kernel's, and none
    /// of them counts to its budget. The file must hold what the pager would supply, and stay as it
    /// is until [`Mapping::uncover`].
    ///
    /// ```
    /// # use std::os::fd::AsFd;
    /// # use std::os::unix::fs::FileExt;
    /// # use std::sync::Arc;
    /// # use farpage_object::ObjectId;
    /// # use farpage_kernel::embed::Embedded;
    /// # use farpage_object::{DataRequest, PageOut, Pager, PagerError, Supplied};
    /// # struct Words(std::fs::File);
    /// # impl Pager for Words {
    /// #     fn data_request(&self, mut request: DataRequest<'_>) -> Result<Supplied, PagerError> {
    /// #         let (pages, at) = (request.pages().pages(), request.pages().start.0 * 4096);
    /// #         self.0.read_exact_at(request.buffer(), at).map_err(|_| PagerError::Read(5))?;
    /// #         Ok(Supplied::clean(pages))
    /// #     }
    /// #     fn data_write(&self, _: ObjectId, _: &[PageOut<'_>]) -> Result<(), PagerError> {
    /// #         Ok(())
    /// #     }
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let file = std::fs::File::open(std::env::current_exe()?)?;
    /// # let pager = Arc::new(Words(file.try_clone()?));
    /// let kernel = Embedded::start(16 << 20)?;
    /// let object = kernel.object(pager, 1 << 16)?;
    /// let memory = object.map()?;
    /// memory.cover(file.as_fd(), 0)?;
    /// let (mut covered, mut paged) = ([0; 64], [0; 64]);
    /// memory.read(5000, &mut covered)?;
    /// assert_eq!(memory.stats().resident_pages, 0);
    /// memory.uncover()?; // somebody is about to write to the file
    /// memory.read(5000, &mut paged)?;
    /// assert_eq!(covered, paged);
    /// assert!(memory.stats().resident_pages > 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::System`] when faults are answered in their thread, when pages of the object are in
    /// memory, before Linux 6.10, and when the file cannot be mapped.
    pub fn cover(&self, file: BorrowedFd<'_>, offset: u64) -> Result<(), Error> {
        self.cover_by(|kernel, (start, end)| kernel.cover(start, end, Fd(file.as_raw_fd()), offset))
    }

    /// As [`Mapping::cover`], for files larger than the kernel's budget: parts that are read in order
    /// are shown and count to the budget, from which the oldest leave when memory is short. Other pages are
    /// asked for one by one. The file must stay open until [`Mapping::uncover`].
    ///
    /// # Errors
    /// [`Error::System`] when faults are answered in their thread, and before Linux 6.10.
    pub fn cover_in_windows(&self, file: BorrowedFd<'_>, offset: u64) -> Result<(), Error> {
        let file = Fd(file.as_raw_fd());
        self.cover_by(|kernel, (start, end)| kernel.cover_in_windows(start, end, file, offset))
    }

    fn cover_by(
        &self,
        cover: impl FnOnce(&Kernel, (usize, usize)) -> Result<(), Errno>,
    ) -> Result<(), Error> {
        let _covering = self.covering();
        let range = (self.start, self.start + self.size());
        let done = match self.in_thread {
            true => Err(Errno::EOPNOTSUPP),
            false => cover(self.object.host.kernel, range),
        };
        done.map_err(system("map the file"))?;
        self.covered.store(true, Ordering::Release);
        Ok(())
    }

    /// Shows the object again: each page that is touched from now on comes from its pager. Does
    /// nothing when it is not covered.
    ///
    /// # Errors
    /// [`Error::System`] when there is no room for another mapping: it stays covered.
    pub fn uncover(&self) -> Result<(), Error> {
        let _covering = self.covering();
        if self.is_covered() {
            let kernel = self.object.host.kernel;
            let uncovered = kernel.uncover(self.start, self.start + self.size());
            uncovered.map_err(system("map the object again"))?;
            self.covered.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Drops pages of a cover from this mapping; those that are touched are there again. Does nothing
    /// when it is not covered.
    pub fn drop_covered(&self, pages: PageRange) {
        let _covering = self.covering();
        if self.is_covered() {
            let (start, end) = self.range(pages);
            self.object.host.kernel.drop_covered(start, end);
        }
    }

    /// True from [`Mapping::cover`] to [`Mapping::uncover`].
    pub fn is_covered(&self) -> bool {
        self.covered.load(Ordering::Acquire)
    }

    /// In a child of fork, of a mapping of its parent's: unmaps what the child has of it, which is
    /// what covers it. Then the place is free for [`Object::map_at`].
    pub fn leave_in_child(&self) {
        if self.covered.swap(false, Ordering::AcqRel) {
            // SAFETY: a mapping of the parent's kernel, which this process has not; addresses got
            // from `as_ptr` are the caller's responsibility, as with any pointer.
            let _ = unsafe { mem::unmap(self.start, self.size()) };
        }
    }

    fn covering(&self) -> MutexGuard<'_, ()> {
        self.covering.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which pages are in memory: runs of page numbers of the object, in order.
    pub fn residency(&self) -> Vec<PageRange> {
        let origin = self.start as u64 / PAGE_BYTES as u64;
        let runs = self
            .object
            .host
            .kernel
            .resident_runs(self.start, self.start + self.size());
        let own = |run: PageRange| PageRange::new(run.start.0 - origin, run.end.0 - origin);
        runs.into_iter().map(own).collect()
    }

    /// Forbids writing until the pager allows it ([`Pager::data_unlock`]) or [`Mapping::unlock`].
    ///
    /// # Errors
    /// [`Error::System`] when the pages cannot be protected.
    pub fn lock(&self, pages: PageRange) -> Result<(), Error> {
        let (start, end) = self.range(pages);
        self.object
            .host
            .kernel
            .lock_writes(start, end, true)
            .map_err(system("lock pages"))
    }

    /// Lifts [`Mapping::lock`]; threads that wait to write go on.
    ///
    /// # Errors
    /// [`Error::System`] when the protection cannot be lifted.
    pub fn unlock(&self, pages: PageRange) -> Result<(), Error> {
        let (start, end) = self.range(pages);
        self.object
            .host
            .kernel
            .lock_writes(start, end, false)
            .map_err(system("unlock pages"))
    }

    /// What it takes now.
    pub fn stats(&self) -> Stats {
        let resident = self
            .object
            .host
            .kernel
            .resident(self.start, self.start + self.size());
        Stats {
            resident_pages: resident,
            pages: self.object.pages,
        }
    }

    /// Writes dirty pages back and unmaps; of a [cached](Object::cache) object the pages stay.
    /// Requests whose [ticket](farpage_object::Ticket) has not been answered are withdrawn: the
    /// answers will go nowhere.
    ///
    /// # Errors
    /// As [`Mapping::clean`]; it is unmapped all the same.
    pub fn unmap(self) -> Result<(), Error> {
        let kernel = self.object.host.kernel;
        kernel.close(self.start, self.object.end(self.start));
        let cleaned = self.clean(PageRange::new(0, self.object.pages));
        drop(self);
        cleaned
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (object, start) = (&self.object, self.start);
        if object.place().cached {
            // Whoever maps it again knows of no cover. One that stays shows the same.
            let _ = self.uncover();
        }
        let mut place = object.place();
        if place.cached {
            let in_thread = self.in_thread;
            place.kept = Some(Kept { start, in_thread });
            object.host.kernel.closed(start, object.end(start));
        } else {
            // A pager that does not take its pages has been told; `unmap` reports it.
            let _ = object.let_go(&mut place, start);
        }
        place.mapped = false;
    }
}
