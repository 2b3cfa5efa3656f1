//! Memory objects with pagers of their own: mapping them, and what a pager may ask of the kernel
//! (the calls of table 4-3: lock, flush, clean).

use farpage_object::State as PageState;
use farpage_object::{Access, PAGE_BYTES, PageIndex, PageRange};
use farpage_sys::{Errno, mem};

use crate::kernel::Kernel;
use crate::layout::{IN_THREAD_AREA, shadow_of};
use crate::regions::{OnFork, Region, Source, address_of, pages_of};
use crate::space::apart;

impl Kernel {
    /// Maps `pages` pages of the object that `source` describes (its `origin` is set here) and
    /// returns the address; at `at`, if one is given. `in_thread`: its faults are answered in the
    /// thread that faults.
    ///
    /// # Errors
    /// `ENOMEM` when there is no room, or not at `at`, or as userfaultfd's registration.
    pub fn map_object(
        &self,
        mut source: Source,
        pages: u64,
        in_thread: bool,
        at: Option<usize>,
    ) -> Result<usize, Errno> {
        let bytes = pages as usize * PAGE_BYTES;
        let prot = mem::PROT_READ | mem::PROT_WRITE;
        let flags = mem::MAP_PRIVATE | mem::MAP_ANONYMOUS | mem::MAP_NORESERVE;
        let place = match in_thread {
            true => self.place_within(IN_THREAD_AREA, bytes, apart(bytes), prot, flags),
            false => self.place(at.unwrap_or(0), bytes, apart(bytes), prot, flags),
        };
        let start = place.ok_or(Errno::ENOMEM)?;
        let give_up = || {
            // The shadow first: the place is free for other kernels when both are.
            for part in [shadow_of(start), start] {
                // SAFETY: nobody knows the mapping yet.
                let _ = unsafe { mem::unmap(part, bytes) };
            }
        };
        if at.is_some_and(|at| at != start) {
            give_up();
            return Err(Errno::ENOMEM);
        }
        source.origin = pages_of(start, start + bytes).start.0;
        let mut state = self.state.lock();
        if let Err(errno) = self.register(start, start + bytes) {
            give_up();
            return Err(errno);
        }
        // A child of fork has no userfaultfd and would read zeros.
        for part in [start, shadow_of(start)] {
            // SAFETY: changes nothing in this process.
            let _ = unsafe { mem::advise(part, bytes, mem::MADV_DONTFORK) };
        }
        state.regions.insert(Region {
            start,
            end: start + bytes,
            prot,
            key: 0,
            on_fork: OnFork {
                wiped: false,
                left_out: true,
            },
            source,
            covered: false,
            file: None,
        });
        drop(state);
        self.account.demand(bytes as i64);
        Ok(start)
    }

    /// Forbids writing to `start .. end` until the pager allows it (`data_unlock`), or lifts that.
    ///
    /// # Errors
    /// As userfaultfd's write-protection.
    pub fn lock_writes(&self, start: usize, end: usize, locked: bool) -> Result<(), Errno> {
        let pages = pages_of(start, end);
        let mut state = self.lock_settled(pages);
        state.pages.lock_writes(pages, locked);
        let dirty: alloc::vec::Vec<PageRange> =
            state.pages.runs(pages, PageState::Resident).collect();
        for run in dirty {
            let at = address_of(run.start.0);
            // SAFETY: registered; the automaton knows that these pages are locked, or not.
            unsafe { self.uffd_at(at).protect(at, run.bytes() as usize, locked) }?;
        }
        drop(state);
        self.wake(start, end - start);
        Ok(())
    }

    /// A thread wants to write to a locked page: its pager decides. When it refuses, the thread
    /// waits until the lock is lifted. The automaton knows that the pager is asked.
    /// False when it refuses.
    pub(crate) fn ask_to_unlock(&self, page: PageIndex, source: &Source) -> bool {
        let (pager, object) = (&source.pager, source.object);
        let asked = PageIndex(page.0 - source.origin);
        let at = address_of(page.0);
        let allowed = pager.data_unlock(object, asked, Access::Write);
        let mut state = self.state.lock();
        if state.pages.unlock_ends(page, allowed) {
            // SAFETY: the page is dirty and may be written again.
            let _ = unsafe { self.uffd_at(at).protect(at, PAGE_BYTES, false) };
        }
        state.in_flight -= 1;
        drop(state);
        if allowed {
            self.wake(at, PAGE_BYTES);
        }
        self.settled.notify();
        allowed
    }

    /// Pages of `start .. end` that are in the program.
    pub fn resident(&self, start: usize, end: usize) -> u64 {
        let pages = pages_of(start, end);
        let state = self.state.lock();
        let runs = state.pages.resident_runs(pages);
        runs.map(|run| run.pages()).sum::<u64>() + state.windows.within(pages)
    }

    /// Which they are.
    #[cfg(feature = "std")]
    pub(crate) fn resident_runs(&self, start: usize, end: usize) -> alloc::vec::Vec<PageRange> {
        let pages = pages_of(start, end);
        let state = self.state.lock();
        let mut runs: alloc::vec::Vec<PageRange> = state.pages.resident_runs(pages).collect();
        runs.extend(state.windows.iter().map(|window| window.intersect(pages)));
        runs.retain(|run| !run.is_empty());
        runs.sort_unstable_by_key(|run| run.start);
        runs
    }

    /// Unmaps an object: what is dirty is lost, so [`Kernel::clean`] it before. What waits for its
    /// pager is withdrawn.
    ///
    /// # Safety
    /// Nobody may use the mapping any more.
    ///
    /// # Errors
    /// As `munmap(2)`.
    pub unsafe fn unmap_object(&self, start: usize, end: usize) -> Result<(), Errno> {
        self.close(start, end);
        // SAFETY: forwarded.
        let unmapped = unsafe { self.munmap(start, end - start) };
        self.closed(start, end);
        unmapped?;
        // A writer that the pager refused would wait for ever.
        self.wake(start, end - start);
        Ok(())
    }
}
