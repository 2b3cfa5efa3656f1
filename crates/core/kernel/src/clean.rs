//! Writing modified pages back while they stay.

use alloc::vec::Vec;

use farpage_object::{CLUSTER_PAGES, PageRange, State as PageState};
use farpage_sys::{Errno, mem};

use crate::evict::BATCH;
use crate::kernel::{Kernel, State, drop_shadow};
use crate::layout::shadow_of;
use crate::regions::{Source, address_of, pages_of};

/// Pages that are looked at, and copied, at a time.
const BATCH_PAGES: u64 = BATCH as u64 * CLUSTER_PAGES;

impl Kernel {
    /// Hands every dirty page of `start .. end` to its pager, in order; with `drop_cached` no page
    /// stays in memory. Returns when the pager has taken them.
    ///
    /// # Errors
    /// `EIO` when the pager did not take a page: it stays dirty.
    pub fn clean(&self, start: usize, end: usize, drop_cached: bool) -> Result<(), Errno> {
        let pages = pages_of(start, end);
        let failed = self.clean_pages(pages).is_err();
        if drop_cached {
            self.drop_cached(pages);
        }
        if failed { Err(Errno::EIO) } else { Ok(()) }
    }

    /// The same. Returns how many there were.
    fn clean_pages(&self, pages: PageRange) -> Result<u64, Errno> {
        let (mut cleaned, mut failed) = (0, false);
        for batch in batches(pages) {
            if let Some((runs, source)) = self.begin_cleaning(batch) {
                failed |= !self.write_runs(&runs, source);
                cleaned += runs.iter().map(|run| run.pages()).sum::<u64>();
            }
        }
        if failed { Err(Errno::EIO) } else { Ok(cleaned) }
    }

    /// Protects and copies what is dirty among `pages`: a transfer begins, which
    /// [`Kernel::write_runs`] ends. `None` when nothing is.
    fn begin_cleaning(&self, pages: PageRange) -> Option<(Vec<PageRange>, Source)> {
        let idle = |state: PageState| {
            matches!(
                state,
                PageState::Clean | PageState::Spare | PageState::Out | PageState::Absent
            )
        };
        let state = self.state.lock();
        if !state.pages.any(pages, |state| !idle(state)) {
            return None;
        }
        let aside = state.pages.any(pages, |state| state == PageState::Aside);
        drop(state);
        if aside {
            // What has left the program goes to its pager from where it is.
            self.page_out_to(0);
        }
        let mut state = self.lock_settled(pages);
        self.bring_all_back(&mut state, pages);
        let source = state.region_of_page(pages.start.0)?.source.clone();
        let runs: Vec<PageRange> = state.pages.runs(pages, PageState::Resident).collect();
        if runs.is_empty() {
            return None;
        }
        runs.iter()
            .for_each(|run| self.copy_for_cleaning(&mut state, *run));
        state.in_flight += 1;
        Some((runs, source))
    }

    fn copy_for_cleaning(&self, state: &mut State, run: PageRange) {
        let (at, bytes) = (address_of(run.start.0), run.bytes() as usize);
        // SAFETY: registered; a writer waits until the pages are clean.
        let protected = unsafe { self.uffd_at(at).protect(at, bytes, true) };
        // SAFETY: the shadow is empty; the pages are protected and stay.
        let copied = unsafe { self.uffd().copy(shadow_of(at), at, bytes, false) };
        assert!(
            protected.is_ok() && copied.stopped.is_none(),
            "a resident page is not there"
        );
        self.account.charge_anyway(run.pages());
        run.iter().for_each(|page| state.pages.clean_begins(page));
    }

    fn drop_cached(&self, pages: PageRange) {
        let mut state = self.lock_settled(pages);
        let clean: Vec<PageRange> = state.pages.runs(pages, PageState::Clean).collect();
        for run in clean {
            let (at, bytes) = (address_of(run.start.0), run.bytes() as usize);
            // SAFETY: write-protected, and the pager has the same contents.
            let _ = unsafe { mem::advise(at, bytes, mem::MADV_DONTNEED) };
            self.forget_clean(&mut state, run);
        }
        let spare: Vec<PageRange> = state.pages.runs(pages, PageState::Spare).collect();
        for run in spare {
            // SAFETY: the pager has the same contents.
            unsafe { drop_shadow(address_of(run.start.0), run.bytes() as usize) };
            self.forget_clean(&mut state, run);
        }
    }

    fn forget_clean(&self, state: &mut State, run: PageRange) {
        run.iter().for_each(|page| state.pages.dropped(page));
        state.pages.requeue_all(run);
        self.account.uncharge(run.pages());
    }

    /// Writes pages of mapped objects back, the default pager's not counted, when more than `limit`
    /// are dirty; from `cursor` on, where the last time ended: a page that is written to all the time
    /// has its turn, and no more. What a pager does not take stays, and is tried again.
    pub(crate) fn clean_beyond(&self, limit: u64, cursor: &mut u64) {
        let state = self.state.lock();
        let own = state.regions.iter().filter(|r| !r.source.temporary);
        let own: Vec<PageRange> = own.map(|region| region.pages()).collect();
        let dirty = own
            .iter()
            .flat_map(|own| state.pages.runs(*own, PageState::Resident));
        let mut excess = dirty
            .map(|run| run.pages())
            .sum::<u64>()
            .saturating_sub(limit);
        drop(state);
        let turns = [
            PageRange::new(*cursor, u64::MAX),
            PageRange::new(0, *cursor),
        ];
        let turns = turns
            .iter()
            .flat_map(|turn| own.iter().map(|own| own.intersect(*turn)));
        for batch in turns.flat_map(batches) {
            if excess == 0 {
                return;
            }
            excess = excess.saturating_sub(self.clean_pages(batch).unwrap_or(0));
            *cursor = batch.end.0;
        }
    }
}

/// The parts of `pages` that are cleaned at a time: up to where the clusters of a batch end.
fn batches(pages: PageRange) -> impl Iterator<Item = PageRange> {
    let mut at = pages.start.0;
    core::iter::from_fn(move || {
        let end = pages.end.0.min((at / BATCH_PAGES + 1) * BATCH_PAGES);
        let batch = (at < end).then(|| PageRange::new(at, end));
        at = end;
        batch
    })
}
