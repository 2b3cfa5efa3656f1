//! Locks that a pager sets, and cleaning: pages that are written back and stay.

use super::*;

impl Pages {
    /// Forbids writing to `pages`, or allows it again. The shell protects those that are in the
    /// program (see [`Pages::runs`]).
    pub fn lock_writes(&mut self, pages: PageRange, locked: bool) {
        for page in pages.iter() {
            let byte = self.table.byte_mut(page.0);
            *byte = if locked {
                *byte | State::LOCKED
            } else {
                *byte & !State::LOCKED
            };
        }
    }

    /// True while writing to `page` is forbidden.
    pub fn is_locked(&self, page: PageIndex) -> bool {
        self.table.byte(page.0) & State::LOCKED != 0
    }

    /// The pager allows writing to `page`. True when the page is dirty already, so that the shell
    /// must lift its protection; else the thread faults again and is answered as usual.
    pub fn unlocked(&mut self, page: PageIndex) -> bool {
        *self.table.byte_mut(page.0) &= !State::LOCKED;
        self.state(page) == State::Resident
    }

    /// A dirty page, write-protected and copied aside by the shell, is written back and stays.
    /// Ends with `paged_out` or `page_out_failed`.
    pub fn clean_begins(&mut self, page: PageIndex) {
        self.expect(page.0, &[State::Resident]);
        self.set(page.0, State::PagingOutMapped);
        self.settle(cluster_of(page.0));
    }
}
