//! Pages that are brought in before anybody touches them, because somebody said so.

use farpage_object::State as PageState;
use farpage_object::{PageIndex, PageRange};

use crate::handler::{BUFFER_PAGES, Buffer};
use crate::hold::Holder;
use crate::kernel::Kernel;
use crate::regions::{Source, pages_of};

impl Kernel {
    /// Asks for what is not in memory of `start .. end`, in order, as long as it takes no more than
    /// `pages_max` pages; older pages leave for it. Returns how many it asked for. Those whose pager
    /// answers later are under way: [`Kernel::prefetched`].
    pub(crate) fn prefetch(
        &'static self,
        start: usize,
        end: usize,
        pages_max: u64,
        buffer: &mut Buffer,
    ) -> u64 {
        let all = pages_of(start, end);
        let (mut at, mut asked) = (all.start.0, 0);
        while at < all.end.0 && asked < pages_max {
            let most = self.account.window().min(pages_max - asked);
            let rest = PageRange::new(at, all.end.0);
            let Some((pages, source)) = self.prefetch_run(rest, most) else {
                return asked;
            };
            if !pages.is_empty() {
                self.page_in_ahead(pages, &source, buffer);
            }
            asked += pages.pages();
            at = pages.end.0;
        }
        asked
    }

    /// Begins to page in the first pages of `within` that can be, `most` at a time. `None` when
    /// there is none, or no room.
    fn prefetch_run(&self, within: PageRange, most: u64) -> Option<(PageRange, Source)> {
        for _ in 0..2 {
            let mut state = self.lock_settled(PageRange::new(0, 0));
            let region = state.region_of_page(within.start.0)?;
            let (limits, source) = (region.pages().intersect(within), region.source.clone());
            if region.covered {
                return Some((PageRange::new(limits.end.0, limits.end.0), source));
            }
            let out = |page: &PageIndex| state.pages.is_with_pager(*page, source.temporary);
            let Some(first) = limits.iter().find(|page| out(page)) else {
                return Some((PageRange::new(limits.end.0, limits.end.0), source));
            };
            let end = limits.end.0.min(first.0 + most.min(BUFFER_PAGES as u64));
            let run = (first.0..end).map(PageIndex).take_while(|page| out(page));
            let pages = PageRange::new(first.0, first.0 + run.count() as u64);
            if self.charge(pages.pages()) {
                state.pages.page_in_begins(pages, None);
                state.in_flight += 1;
                return Some((pages, source));
            }
            drop(state);
            self.make_room(pages.pages(), true);
        }
        None
    }

    /// Waits until no page of `start .. end` is under way any more, or `nanoseconds` have passed.
    /// Returns how many still are.
    pub(crate) fn prefetched(&self, start: usize, end: usize, nanoseconds: u64) -> u64 {
        let pages = pages_of(start, end);
        let under_way = |seen: &mut u32| {
            *seen = self.settled.seen();
            let state = self.state.lock();
            let runs = state.pages.runs(pages, PageState::PagingIn);
            runs.map(|run| run.pages()).sum::<u64>()
        };
        let mut seen = 0;
        let before = under_way(&mut seen);
        if before == 0 {
            return 0;
        }
        self.settled.wait(seen, Some(nanoseconds));
        under_way(&mut seen)
    }

    /// Keeps the pages of `start .. end` in memory once they are there.
    ///
    /// # Errors
    /// The bytes that are kept already, when with these they would be more than `bytes_max`.
    pub(crate) fn wire(&self, start: usize, end: usize, bytes_max: u64) -> Result<(), u64> {
        let pages = pages_of(start, end);
        let mut state = self.state.lock();
        let all = state.locked(PageRange::new(0, u64::MAX));
        let here: u64 = state.locked(pages).iter().map(|run| run.bytes()).sum();
        let wired: u64 = all.iter().map(|run| run.bytes()).sum();
        if wired - here + pages.bytes() > bytes_max {
            return Err(wired);
        }
        state.hold(Holder::Lock, pages);
        Ok(())
    }

    /// They may leave again.
    pub(crate) fn unwire(&self, start: usize, end: usize) {
        let pages = pages_of(start, end);
        self.state.lock().release(Holder::Lock, pages);
    }
}
