//! Taking pages out of paging files that are being removed (`farpage spill rm`).

use farpage_object::{Access, DataRequest, ObjectId, PAGE_BYTES, PageIndex, PageOut, PageRange};
use farpage_sys::buffer::Buffer;

use crate::DefaultPager;
use crate::location::{At, Location};
use crate::page_out::Chunk;
use crate::segments::State;

/// Pages moved in one go.
const PAGES: usize = 64;

/// Where the search goes on, and a place for pages on their way.
pub(crate) struct Drain {
    cursor: usize,
    buffer: Buffer,
}

impl Drain {
    pub(crate) fn new() -> Option<Self> {
        Some(Self {
            cursor: 0,
            buffer: Buffer::new(PAGES * PAGE_BYTES).ok()?,
        })
    }
}

/// Consecutive pages of one object, and where they were.
struct Found {
    object: ObjectId,
    first: u64,
    count: usize,
    locations: [Location; PAGES],
}

impl DefaultPager {
    /// Moves some of this task's pages out of paging files that are being removed. True while some
    /// are left: call it again, now and then, from a page-out thread. Pages that cannot be read or
    /// for which there is no room elsewhere stay where they are.
    ///
    /// The thread that calls this is the one that writes segments behind, where rings can be made.
    pub fn drain(&self) -> bool {
        let _inside = self.gate.enter();
        self.shared.rings.write_here();
        self.look_behind();
        if !self.shared.files.any_draining() {
            return false;
        }
        self.settle_behind();
        let mut drain = self.drain.lock();
        let found = {
            let mut state = self.state.lock();
            self.close_draining(&mut state);
            if !self.in_draining(&state) {
                drain.cursor = 0;
                return false;
            }
            let (found, cursor) = self.find_draining(&state, drain.cursor);
            drain.cursor = cursor.unwrap_or(0);
            found
        };
        if let Some(found) = found {
            self.move_out(&mut drain.buffer, &found);
        }
        self.in_draining(&self.state.lock())
    }

    fn close_draining(&self, state: &mut State) {
        let Some(id) = state.open_raw else {
            return;
        };
        let place = state.segment(id).place;
        if place.is_some_and(|place| self.shared.files.is_draining(place.file)) {
            state.open_raw = None;
            state.settle(&self.shared, id);
        }
    }

    fn in_draining(&self, state: &State) -> bool {
        let places = state.segments.iter().filter_map(|segment| segment.place);
        places
            .map(|place| place.file)
            .any(|file| self.shared.files.is_draining(file))
    }

    /// The next run of pages in a file that is being removed, and where the search goes on.
    fn find_draining(&self, state: &State, cursor: usize) -> (Option<Found>, Option<usize>) {
        let mut found: Option<Found> = None;
        let next = state.table.scan(cursor, |object, page, location| {
            let (At::Packed { segment, .. } | At::Raw { segment, .. }) = location.at() else {
                return found.is_none();
            };
            let place = state.segments[segment as usize].place;
            if !place.is_some_and(|place| self.shared.files.is_draining(place.file)) {
                return found.is_none();
            }
            let run = found.get_or_insert(Found {
                object,
                first: page,
                count: 0,
                locations: [Location::NOWHERE; PAGES],
            });
            let follows = run.object == object && run.first + run.count as u64 == page;
            if !follows || run.count == PAGES {
                return false;
            }
            run.locations[run.count] = location;
            run.count += 1;
            true
        });
        (found, next)
    }

    fn move_out(&self, buffer: &mut Buffer, found: &Found) {
        let mut done = 0;
        while done < found.count {
            let first = found.first + done as u64;
            let range = PageRange::new(first, found.first + found.count as u64);
            let buffer = buffer.room(range.bytes() as usize);
            let request = DataRequest::new(found.object, range, 1, Access::Read, buffer);
            let Ok(count) = self.copy_out(request) else {
                return;
            };
            let mut pages = [None; PAGES];
            let bytes = buffer.as_chunks::<PAGE_BYTES>().0;
            for ((page, bytes), number) in pages.iter_mut().zip(bytes).zip(first..) {
                let page_out = PageOut {
                    page: PageIndex(number),
                    bytes,
                };
                *page = Some(page_out);
            }
            let Some(first) = pages[0] else { return };
            let pages = pages.map(|page| page.unwrap_or(first));
            let chunk = Chunk {
                object: found.object,
                pages: &pages[..count],
                expect: Some(&found.locations[done..done + count]),
            };
            if self.write_out(chunk).is_err() {
                return;
            }
            done += count;
        }
    }
}
