//! Paging space that takes no more pages: a thread that needs room waits, and all others go on.
//!
//! Its fault stays unanswered, so that no handler waits with it. Now and then all that wait look again.

use core::sync::atomic::Ordering;

use farpage_object::{PagerError, SpillState};
use farpage_sys::time;

use crate::kernel::Kernel;

/// Time between two looks of a thread that waits.
pub(crate) const LOOK_AGAIN_NS: u64 = 100_000_000;

impl Kernel {
    /// Somebody needs room that paging space would have to give, and it gives none. Kills this process
    /// when that has lasted too long.
    pub(crate) fn finds_paging_space_full(&self) {
        let full = &self.account.control().full;
        if !full.finds_none(time::now_ns()) {
            return;
        }
        let files = self.account.control().spill.iter();
        let mut used = files.filter(|file| file.state() == SpillState::Active);
        let failed = used.find_map(|file| file.write_error());
        let error = failed.map_or(PagerError::OutOfSpace, PagerError::Write);
        match full.patience_ns.load(Ordering::Relaxed) / 1_000_000_000 {
            0 => self.kill(format_args!("cannot page out"), error),
            seconds => self.kill(
                format_args!("cannot page out, and has waited for {seconds} s"),
                error,
            ),
        }
    }

    /// The thread of a fault waits until it may look again. Nobody answers it until then.
    pub(crate) fn park(&self) {
        let (order, failed) = (Ordering::SeqCst, Ordering::Relaxed);
        let parked = &self.parked_ns;
        let first = parked.compare_exchange(0, time::now_ns(), order, failed);
        if first.is_ok() && self.page_out_rests.load(Ordering::SeqCst) {
            self.page_out.notify();
        }
    }

    pub(crate) fn has_parked(&self) -> bool {
        self.parked_ns.load(Ordering::SeqCst) != 0
    }

    /// Has the threads that wait look again, when it is time.
    pub(crate) fn let_parked_look(&self) {
        let since = self.parked_ns.load(Ordering::SeqCst);
        let waited = time::now_ns().saturating_sub(since);
        if since == 0 || waited < LOOK_AGAIN_NS {
            return;
        }
        // Before they are woken: who parks from now on begins anew.
        self.parked_ns.store(0, Ordering::SeqCst);
        let stalled = &self.account.counters().stall_ns;
        stalled.fetch_add(waited, Ordering::Relaxed);
        let state = self.state.lock();
        let mut regions = state.regions.iter();
        let (first, last) = (regions.next(), regions.last());
        let Some(start) = first.map(|region| region.start) else {
            return;
        };
        let end = last.or(first).map_or(start, |region| region.end);
        drop(state);
        self.uffd().wake(start, end - start);
    }
}
