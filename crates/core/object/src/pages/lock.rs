//! Locks that a pager sets, and cleaning: pages that are written back and stay.
//!
//! A locked page keeps its lock wherever it goes. In the program it is write-protected, so it comes
//! back from aside and from the pager as a protected copy, never by a move.

use super::*;

impl Pages {
    /// Forbids writing to `pages`, or allows it again. Nothing in them may be busy. The shell then
    /// protects those that are dirty and in the program, or lifts that (see [`Pages::runs`]).
    pub fn lock_writes(&mut self, pages: PageRange, locked: bool) {
        assert!(!self.busy(pages), "locked or unlocked while busy");
        if locked {
            for page in pages.iter() {
                *self.table.byte_mut(page.0) |= State::LOCKED;
            }
            return;
        }
        let mut block = self.table.next_block(pages.start.0 / BLOCK_PAGES);
        while let Some(at) = block.filter(|at| at * BLOCK_PAGES < pages.end.0) {
            for page in block_range(at * BLOCK_PAGES).intersect(pages).iter() {
                *self.table.byte_mut(page.0) &= !State::LOCKED;
            }
            self.table.free_if_empty(at);
            block = self.table.next_block(at + 1);
        }
    }

    /// True while writing to `page` is forbidden.
    pub fn is_locked(&self, page: PageIndex) -> bool {
        self.table.byte(page.0) & State::LOCKED != 0
    }

    /// True while the pager of a locked page is asked to let a thread write to it.
    pub(super) fn is_asked(&self, page: PageIndex) -> bool {
        let byte = self.table.byte(page.0);
        State::of(byte).can_leave() && byte & State::WRITER != 0
    }

    /// The pager is asked whether a thread may write to this locked page. Until it has answered,
    /// nothing else happens to the page: its answer is about what it knew.
    pub fn unlock_begins(&mut self, page: PageIndex) {
        self.expect(page.0, &[State::Resident, State::Clean]);
        assert!(self.is_locked(page), "page {page:?} is not locked");
        *self.table.byte_mut(page.0) |= State::WRITER;
    }

    /// The pager has answered. True when it allowed writing and the page is dirty already, so that
    /// the shell must lift its protection. Threads that wait are woken when it allowed it; they
    /// fault again, if need be, and are answered as usual.
    #[must_use]
    pub fn unlock_ends(&mut self, page: PageIndex, allowed: bool) -> bool {
        assert!(self.is_asked(page), "page {page:?} was not asked about");
        let byte = self.table.byte_mut(page.0);
        *byte &= !State::WRITER;
        if allowed {
            *byte &= !State::LOCKED;
        }
        self.settle(cluster_of(page.0));
        allowed && self.state(page) == State::Resident
    }

    /// A dirty page, write-protected and copied aside by the shell, is written back and stays.
    /// Ends with `paged_out` or `page_out_failed`.
    pub fn clean_begins(&mut self, page: PageIndex) {
        self.expect(page.0, &[State::Resident]);
        self.set(page.0, State::PagingOutMapped);
        self.settle(cluster_of(page.0));
    }
}
