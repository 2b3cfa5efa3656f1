//! Page-ins whose pager answers later: a few words each, and no thread.

use alloc::vec::Vec;

use farpage_object::{Later, PAGE_BYTES, PageIndex, PageRange, PagerError, Supplied};

use crate::kernel::{Kernel, StateGuard};
use crate::page_in::is_valid;
use crate::regions::pages_of;

/// Not the number of a ticket.
pub(crate) const NO_TICKET: u64 = u64::MAX;

/// One page-in that waits for its pager, or a free place in the table.
struct Slot {
    /// Grows when the place is given up: the ticket's number is stale then.
    generation: u32,
    /// The next free place, of a free one.
    next_free: u32,
    /// Empty when it is free.
    pages: PageRange,
    /// The page that a thread waits for.
    page: PageIndex,
}

/// All of them.
pub(crate) struct Outstanding {
    slots: Vec<Slot>,
    first_free: u32,
    /// Ranges that are being unmapped: nothing there is waited for any more.
    closing: Vec<PageRange>,
}

impl Outstanding {
    const NO_SLOT: u32 = u32::MAX;

    pub(crate) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            first_free: Self::NO_SLOT,
            closing: Vec::new(),
        }
    }

    fn begins(&mut self, pages: PageRange, page: PageIndex) -> u64 {
        if self.first_free == Self::NO_SLOT {
            self.first_free = self.slots.len() as u32;
            self.slots.push(Slot {
                generation: 0,
                next_free: Self::NO_SLOT,
                pages: PageRange::new(0, 0),
                page,
            });
        }
        let at = self.first_free;
        let slot = &mut self.slots[at as usize];
        self.first_free = slot.next_free;
        (slot.pages, slot.page) = (pages, page);
        u64::from(slot.generation) << 32 | u64::from(at)
    }

    /// Takes the page-in `id` out, if it is still waited for.
    pub(crate) fn take(&mut self, id: u64) -> Option<(PageRange, PageIndex)> {
        let (generation, at) = ((id >> 32) as u32, id as u32);
        let slot = self.slots.get_mut(at as usize)?;
        if slot.generation != generation || slot.pages.is_empty() {
            return None;
        }
        let pages = core::mem::replace(&mut slot.pages, PageRange::new(0, 0));
        slot.generation = slot.generation.wrapping_add(1);
        slot.next_free = self.first_free;
        self.first_free = at;
        Some((pages, slot.page))
    }

    /// Takes out what overlaps `within`.
    fn take_within(&mut self, within: PageRange) -> Option<PageRange> {
        let overlaps = |slot: &Slot| !slot.pages.intersect(within).is_empty();
        let at = self.slots.iter().position(overlaps)?;
        let id = u64::from(self.slots[at].generation) << 32 | at as u64;
        self.take(id).map(|(pages, _)| pages)
    }

    fn closes(&self, pages: PageRange) -> bool {
        let overlaps = |closing: &PageRange| !closing.intersect(pages).is_empty();
        self.closing.iter().any(overlaps)
    }
}

impl Kernel {
    /// The page-in of `pages`, of which a thread waits for `page`, is answered later: the number
    /// for its ticket.
    pub(crate) fn stays_outstanding(&self, pages: PageRange, page: PageIndex) -> u64 {
        let mut state = self.state.lock();
        let id = state.outstanding.begins(pages, page);
        if state.outstanding.closes(pages) {
            state.outstanding.take(id);
            self.withdrawn(state, pages);
        }
        id
    }

    /// Forgets the page-ins of `start .. end` that wait for their pager, and those that will, until
    /// [`Kernel::closed`]: it is being unmapped.
    pub(crate) fn close(&self, start: usize, end: usize) {
        let within = pages_of(start, end);
        let mut state = self.state.lock();
        if !state.outstanding.closing.contains(&within) {
            state.outstanding.closing.push(within);
        }
        drop(state);
        loop {
            let mut state = self.state.lock();
            let Some(pages) = state.outstanding.take_within(within) else {
                return;
            };
            self.withdrawn(state, pages);
        }
    }

    /// It is unmapped.
    pub(crate) fn closed(&self, start: usize, end: usize) {
        let within = pages_of(start, end);
        let closing = &mut self.state.lock().outstanding.closing;
        if let Some(at) = closing.iter().position(|range| *range == within) {
            closing.swap_remove(at);
        }
    }

    fn withdrawn(&self, state: StateGuard<'_>, pages: PageRange) {
        drop(state);
        self.page_in_is_over(pages.start, pages, None);
    }
}

impl Later for Kernel {
    fn supply(&self, id: u64, bytes: &[u8], supplied: Supplied) -> bool {
        let Some((pages, page)) = self.state.lock().outstanding.take(id) else {
            return false;
        };
        if !is_valid(supplied, pages.pages()) {
            self.page_in_is_over(page, pages, Some(PagerError::Violation));
            return true;
        }
        let came = PageRange::new(pages.start.0, pages.start.0 + supplied.pages);
        let rest = PageRange::new(came.end.0, pages.end.0);
        self.came_in(came, page);
        let (whole, part) = bytes.split_at(bytes.len() / PAGE_BYTES * PAGE_BYTES);
        let split = pages.start.0 + (whole.len() / PAGE_BYTES) as u64;
        let ends = |at: u64| at == pages.end.0;
        if !whole.is_empty() {
            let pages = PageRange::new(pages.start.0, split);
            self.install(pages, supplied, whole.as_ptr() as usize, ends(split));
        }
        if !part.is_empty() {
            let mut last = [0; PAGE_BYTES];
            last[..part.len()].copy_from_slice(part);
            let page = PageRange::one(PageIndex(split));
            self.install(page, supplied, last.as_ptr() as usize, ends(split + 1));
        }
        if !rest.is_empty() {
            self.page_in_is_over(page, rest, None);
        }
        true
    }

    fn fail(&self, id: u64, error: PagerError) -> bool {
        let Some((pages, page)) = self.state.lock().outstanding.take(id) else {
            return false;
        };
        self.page_in_is_over(page, pages, Some(error));
        true
    }
}

#[cfg(test)]
mod tests {
    use farpage_object::Ticket;

    use super::*;

    #[test]
    fn a_page_in_that_waits_takes_a_hundred_bytes() {
        assert!(size_of::<Slot>() + size_of::<Ticket>() <= 100);
    }

    #[test]
    fn a_stale_ticket_finds_nothing() {
        let mut table = Outstanding::new();
        let (one, two) = (PageRange::new(5, 9), PageRange::new(20, 21));
        let first = table.begins(one, PageIndex(5));
        let second = table.begins(two, PageIndex(20));
        assert_eq!(table.take(first), Some((one, PageIndex(5))));
        assert_eq!(table.take(first), None);
        let third = table.begins(two, PageIndex(20));
        assert_ne!(first, third);
        assert_eq!(table.take(first), None, "its place has another owner");
        assert_eq!(table.take_within(PageRange::new(0, 20)), None);
        assert!(table.take_within(PageRange::new(20, 30)).is_some());
        assert!(table.take_within(PageRange::new(20, 30)).is_some());
        assert_eq!((table.take(second), table.take(third)), (None, None));
        assert_eq!(table.slots.len(), 2, "places are used again");
        assert_eq!(table.take(NO_TICKET), None);
    }
}
