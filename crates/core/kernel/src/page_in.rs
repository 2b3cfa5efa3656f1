//! Page-in: ask the pager, put what it supplies into the program.

use core::sync::atomic::{AtomicU64, Ordering};

use farpage_object::{
    Access, DataRequest, PAGE_BYTES, PageIndex, PageRange, PagerError, Supplied, TraceKind,
};
use farpage_sys::uffd::Fault;

use crate::fault::Stall;
use crate::handler::Buffer;
use crate::kernel::Kernel;
use crate::outstanding::NO_TICKET;
use crate::regions::{Source, address_of};

/// Pages that are put into the program with the lock held.
const INSTALL_PAGES: u64 = 64;
/// Instead of the page that a thread waits for: nobody waits.
pub(crate) const NOBODY: PageIndex = PageIndex(0);

impl Kernel {
    /// Asks the pager and puts what it supplies into the program. What the pager answers later is
    /// left to its ticket.
    pub(crate) fn page_in(
        &'static self,
        page: PageIndex,
        pages: PageRange,
        fault: Fault,
        source: &Source,
        buffer: &mut Buffer,
        stall: &mut Stall,
    ) {
        let mut rest = pages;
        let access = self.access_to_ask_for(pages, fault, source);
        while !rest.is_empty() {
            let Some(answer) = self.ask(page, rest, access, source, buffer) else {
                return;
            };
            let supplied = match answer {
                Ok(supplied) if is_valid(supplied, rest.pages()) => supplied,
                Ok(_) => return self.page_in_is_over(page, rest, Some(PagerError::Violation)),
                Err(error) => return self.page_in_is_over(page, rest, Some(error)),
            };
            let came = PageRange::new(rest.start.0, rest.start.0 + supplied.pages);
            rest = PageRange::new(came.end.0, pages.end.0);
            let from = buffer.bytes(came.pages() as usize).as_ptr() as usize;
            self.came_in(came, page);
            if source.temporary && !supplied.precious {
                self.rewrites.came(came.start, came.pages());
            }
            // The thread goes on when its page is there, whatever else comes.
            let split = came
                .end
                .0
                .min(came.start.0.max(page.0 + 1) + INSTALL_PAGES - 1);
            let first = PageRange::new(came.start.0, split);
            let after = PageRange::new(split, came.end.0);
            self.install(first, supplied, from, rest.is_empty() && after.is_empty());
            if came.contains(page) {
                self.stall_is_over(stall);
            }
            if !after.is_empty() {
                let from = from + first.bytes() as usize;
                self.install(after, supplied, from, rest.is_empty());
            }
        }
        buffer.shrink(self.account.control().buffer_bytes());
    }

    /// To write is asked for what is about to be written. The default pager then gives its copy
    /// away, and the first write costs no fault.
    fn access_to_ask_for(&self, pages: PageRange, fault: Fault, source: &Source) -> Access {
        let written = match source.temporary {
            true => fault.write && pages.pages() == 1 || self.rewrites.expected(pages.start),
            false => fault.write,
        };
        match written {
            true => Access::Write,
            false => Access::Read,
        }
    }

    /// Asks the pager for `rest`. `None`: a ticket has been made of the request, and answers it.
    fn ask(
        &'static self,
        page: PageIndex,
        rest: PageRange,
        access: Access,
        source: &Source,
        buffer: &mut Buffer,
    ) -> Option<Result<Supplied, PagerError>> {
        let needed = if page >= rest.start {
            page.0 - rest.start.0 + 1
        } else {
            1
        };
        let space = buffer.bytes(rest.pages() as usize);
        let asked = object_pages(source, rest);
        let ticket = AtomicU64::new(NO_TICKET);
        let make = || {
            let id = self.stays_outstanding(rest, page);
            ticket.store(id, Ordering::Relaxed);
            id
        };
        let mut request = DataRequest::new(source.object, asked, needed, access, space);
        if !rest.contains(page) {
            request = request.ahead_of_need();
        }
        let answer = source.pager.data_request(request.or_later(self, &make));
        let id = ticket.load(Ordering::Relaxed);
        if id == NO_TICKET {
            return Some(answer);
        }
        let later = matches!(answer, Ok(supplied) if supplied.pages == 0);
        // A pager that made a ticket and answers as well: what came first counts.
        (!later && self.state.lock().outstanding.take(id).is_some()).then_some(answer)
    }

    /// Counts pages that a page-in for `page` brought.
    pub(crate) fn came_in(&self, pages: PageRange, page: PageIndex) {
        let unasked = pages.pages() - u64::from(pages.contains(page));
        let prefetched = &self.account.counters().prefetched;
        prefetched.fetch_add(unasked, Ordering::Relaxed);
        self.trace(TraceKind::PageIn, pages);
    }

    /// Puts the contents at `from` into pages that are being paged in. `last` when the transfer
    /// ends with them.
    pub(crate) fn install(&self, pages: PageRange, supplied: Supplied, from: usize, last: bool) {
        let mut at = pages.start.0;
        while at < pages.end.0 {
            let piece = PageRange::new(at, pages.end.0.min(at + INSTALL_PAGES));
            let done = (at - pages.start.0) as usize * PAGE_BYTES;
            at = piece.end.0;
            self.install_piece(piece, supplied, from + done, last && at == pages.end.0);
        }
        if last {
            self.settled.notify();
        }
    }

    /// Copying is what wakes the thread that waits. It comes last: on this processor the thread
    /// runs when the handler sleeps, and what the handler does until then makes Linux move it away.
    fn install_piece(&self, pages: PageRange, supplied: Supplied, from: usize, last: bool) {
        let clean = !supplied.precious;
        let mut state = self.state.lock();
        // A page keeps the lock that it left with; a run with a locked page is that page alone.
        let protect = clean || supplied.locked.is_some() || state.pages.is_locked(pages.start);
        let awaited = state.pages.paged_in(pages, clean);
        if supplied.locked.is_some() {
            state.pages.lock_writes(pages, true);
        }
        state.in_flight -= u32::from(last);
        self.put(pages, from, protect);
        drop(state);
        if awaited {
            // It wrote to a page that was there already, but not known to be.
            self.wake(address_of(pages.start.0), pages.bytes() as usize);
        }
    }

    fn put(&self, pages: PageRange, from: usize, protect: bool) {
        let (to, bytes) = (address_of(pages.start.0), pages.bytes() as usize);
        // SAFETY: the pages are being paged in: absent, and nobody else fills or unmaps them.
        let copied = unsafe { self.uffd_at(to).copy(to, from, bytes, protect) };
        let mut done = copied.bytes;
        while done < bytes {
            // SAFETY: as above. Runs that cross mappings go page by page.
            let one = unsafe {
                self.uffd_at(to)
                    .copy(to + done, from + done, PAGE_BYTES, protect)
            };
            if let Some(errno) = one.stopped {
                let at = to + done;
                self.end_for(format_args!("cannot page in at {at:#x}"), errno);
            }
            done += PAGE_BYTES;
        }
    }

    /// A page-in ends before its end: `rest` was not supplied, because its first page cannot be had
    /// when it `failed`. The page that a thread waits for is lost if it is that one, or would fail
    /// as well.
    pub(crate) fn page_in_is_over(
        &self,
        page: PageIndex,
        rest: PageRange,
        failed: Option<PagerError>,
    ) {
        let failed = failed.filter(|_| rest.contains(page));
        let lost = failed.filter(|error| rest.start == page || error.is_of_the_object());
        let mut state = self.state.lock();
        let (before, after) = match lost {
            Some(_) => (page.0, page.0 + 1),
            None => (rest.end.0, rest.end.0),
        };
        let mut awaited = false;
        for part in [(rest.start.0, before), (after, rest.end.0)] {
            awaited |= state.pages.page_in_ends(PageRange::new(part.0, part.1));
        }
        match lost {
            Some(_) => state.pages.page_in_failed(page),
            None if failed.is_some() && !state.alone.contains(&page) => state.alone.push(page),
            None => {}
        }
        state.in_flight -= 1;
        self.account.uncharge(rest.pages());
        self.check_account(&state);
        drop(state);
        if let Some(error) = lost {
            self.lose(page, error);
        }
        if awaited || failed.is_some() {
            self.wake(address_of(rest.start.0), rest.bytes() as usize);
        }
        self.settled.notify();
    }

    /// Brings in pages that nobody waits for. What fails stays out.
    pub(crate) fn page_in_ahead(
        &'static self,
        pages: PageRange,
        source: &Source,
        buffer: &mut Buffer,
    ) {
        let fault = Fault {
            address: address_of(pages.start.0),
            write: false,
            protection: false,
            thread: 0,
        };
        self.page_in(NOBODY, pages, fault, source, buffer, &mut Stall::new());
    }

    /// Brings in what a thread that goes through memory in steps will want next.
    pub(crate) fn prefetch_strided(
        &'static self,
        page: PageIndex,
        also: Option<(i64, u64)>,
        source: &Source,
        buffer: &mut Buffer,
    ) {
        let Some((stride, count)) = also else { return };
        let nth = |step: u64| PageIndex(page.0.saturating_add_signed(stride * step as i64));
        let end = self.prefetch_begins(source, (1..count).map(nth)) + 1;
        if end == 1 {
            return;
        }
        let (mut at, mut one_by_one) = (1, false);
        while at < end {
            let first = PageIndex(nth(at).0 - source.origin);
            let space = buffer.bytes((end - at) as usize);
            let from = space.as_ptr() as usize;
            let (pager, object) = (&source.pager, source.object);
            let answer = pager.data_request_strided(object, first, stride, space);
            one_by_one = at == 1 && answer.is_ok_and(|supplied| supplied.pages == 0);
            let Some(supplied) = answer.ok().filter(|s| is_valid(*s, end - at)) else {
                break;
            };
            for index in 0..supplied.pages {
                let next = PageRange::one(nth(at + index));
                self.install(next, supplied, from + index as usize * PAGE_BYTES, false);
                self.trace(TraceKind::PageIn, next);
            }
            at += supplied.pages;
        }
        buffer.shrink(self.account.control().buffer_bytes());
        self.prefetch_is_over(at - 1, (at..end).map(nth));
        if one_by_one {
            (1..end).for_each(|step| self.prefetch_one(nth(step), source, buffer));
        }
    }

    /// Starts to page in as many of `pages`, from the first, as are out. Returns how many.
    fn prefetch_begins(&self, source: &Source, pages: impl Iterator<Item = PageIndex>) -> u64 {
        let mut state = self.state.lock();
        let mut begun = 0;
        for next in pages {
            let same = state.region_of_page(next.0).is_some_and(|region| {
                let same = region.source.object == source.object;
                same && region.source.origin == source.origin && !region.covered
            });
            let out = state.pages.is_with_pager(next, source.temporary);
            if !(same && out) || state.frozen || !self.charge(1) {
                break;
            }
            state.pages.page_in_begins(PageRange::one(next), None);
            begun += 1;
        }
        state.in_flight += u32::from(begun > 0);
        begun
    }

    fn prefetch_one(&'static self, next: PageIndex, source: &Source, buffer: &mut Buffer) {
        if self.prefetch_begins(source, core::iter::once(next)) == 1 {
            self.page_in_ahead(PageRange::one(next), source, buffer);
        }
    }

    /// Ends a prefetch: `came` pages are there. The others stay out; why, whoever wants them finds.
    fn prefetch_is_over(&self, came: u64, others: impl Iterator<Item = PageIndex>) {
        let mut state = self.state.lock();
        for page in others {
            let awaited = state.pages.page_in_ends(PageRange::one(page));
            self.account.uncharge(1);
            if awaited {
                self.wake(address_of(page.0), PAGE_BYTES);
            }
        }
        state.in_flight -= 1;
        drop(state);
        self.settled.notify();
        let prefetched = &self.account.counters().prefetched;
        prefetched.fetch_add(came, Ordering::Relaxed);
    }
}

/// True when a pager supplied something that it may supply where `asked` pages were asked for.
pub(crate) fn is_valid(supplied: Supplied, asked: u64) -> bool {
    let lock = matches!(supplied.locked, None | Some(Access::Write));
    lock && 0 < supplied.pages && supplied.pages <= asked
}

/// The object's own page numbers of a run of virtual pages.
pub(crate) fn object_pages(source: &Source, pages: PageRange) -> PageRange {
    PageRange::new(pages.start.0 - source.origin, pages.end.0 - source.origin)
}
