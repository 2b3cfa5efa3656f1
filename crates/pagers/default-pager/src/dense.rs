//! The dense level: when no paging file takes segments, the oldest are compressed once more.
//!
//! Before a segment goes to a paging file this would not pay: zstd takes some 20 us a page, writing
//! the page as it is takes 1.5.

#[cfg(feature = "zstd")]
use farpage_object::{PAGE_BYTES, SEGMENT_BYTES};
#[cfg(feature = "zstd")]
use farpage_sys::buffer::Buffer;

use crate::DefaultPager;
#[cfg(feature = "zstd")]
use crate::{
    codec::{Dense, decode_fast},
    location::Location,
    page_out::finish_record,
    record::{Coding, HEADER, Header, record_bytes},
    segments::Growth,
};

/// What only the one thread that makes room uses.
#[cfg(feature = "zstd")]
pub(crate) struct Evictor {
    dense: Dense,
    scratch: Buffer,
}

/// What only the one thread that makes room uses: nothing, without the dense level.
#[cfg(not(feature = "zstd"))]
pub(crate) struct Evictor;

#[cfg(not(feature = "zstd"))]
impl Evictor {
    pub(crate) fn new() -> Option<Self> {
        Some(Self)
    }

    pub(crate) fn make_dense(&mut self, _: &DefaultPager) -> bool {
        false
    }
}

/// Segments tried in one go before giving up.
#[cfg(feature = "zstd")]
const TRIES: usize = 4;
/// A segment is tried when it has this much that was not tried before.
#[cfg(feature = "zstd")]
const FRESH_BYTES: usize = SEGMENT_BYTES / 10 * 3;
/// Room that must be won for the new segment to be opened.
#[cfg(feature = "zstd")]
const WORTH_BYTES: usize = SEGMENT_BYTES / 16;

#[cfg(feature = "zstd")]
impl Evictor {
    pub(crate) fn new() -> Option<Self> {
        Some(Self {
            dense: Dense::new()?,
            scratch: Buffer::new(4 * PAGE_BYTES).ok()?,
        })
    }

    /// Compresses the oldest segments of the tier once more, one into one, until one of the new has
    /// room, which is opened. False when none was won.
    pub(crate) fn make_dense(&mut self, pager: &DefaultPager) -> bool {
        (0..TRIES).map_while(|_| self.one(pager)).any(|won| won)
    }

    /// `None` when there is nothing to try.
    fn one(&mut self, pager: &DefaultPager) -> Option<bool> {
        let (from, to) = {
            let mut state = pager.state.lock();
            let (from, _) = state
                .movable()
                .find(|(_, s)| s.live_bytes >= s.dense_bytes + FRESH_BYTES)?;
            let to = state.make_packed(&pager.shared, Growth::Forced)?;
            state.segment(from).readers += 1;
            (from, to)
        };
        self.move_all(pager, from, to);
        let mut state = pager.state.lock();
        state.segment(from).readers -= 1;
        state.settle(&pager.shared, from);
        let ram = state.segment(to).ram?;
        let filled = pager.shared.arena.filled(ram.slot);
        state.segment(to).dense_bytes = filled;
        let won = filled + WORTH_BYTES <= SEGMENT_BYTES;
        if won {
            state.open_packed = Some(to);
        } else {
            pager.seal(&mut state, to);
        }
        Some(won)
    }

    /// Moves the records alive in `from` to `to`, denser where that pays. Nobody else knows `to`.
    /// The lock is not held while a page is compressed.
    fn move_all(&mut self, pager: &DefaultPager, from: u32, to: u32) {
        let Some(ram) = pager.state.lock().segment(from).ram else {
            return;
        };
        let bytes = pager.shared.arena.read(ram.slot);
        let mut offset = 0;
        while let Some(header) = bytes.get(offset..).and_then(Header::unpack) {
            let record = &bytes[offset..offset + record_bytes(header.length)];
            let old = Location::packed(from, offset, header.length);
            offset += record.len();
            let alive =
                |state: &crate::segments::State| state.table.get(header.object, header.page) == old;
            if !alive(&pager.state.lock()) {
                continue;
            }
            let denser = self.again(header, record).filter(|&b| b < record.len());
            let record = denser.map_or(record, |b| &self.scratch[PAGE_BYTES..PAGE_BYTES + b]);
            let mut state = pager.state.lock();
            if alive(&state)
                && let Some(new) = pager.append_to(&mut state, to, &[record])
            {
                state.place_page(&pager.shared, header.object, header.page, new);
            }
        }
    }

    /// Compresses a record once more into the scratch memory behind its first page; `None` when
    /// that cannot be done. A record that is not whole is found out by whoever reads it.
    fn again(&mut self, header: Header, record: &[u8]) -> Option<usize> {
        if header.coding != Coding::Lz4 {
            return None;
        }
        let (_, bytes) = Header::checked(record, 0)?;
        let (page, room) = self.scratch.split_at_mut(PAGE_BYTES);
        decode_fast(bytes, page).ok()?;
        let length = self.dense.compress(page, &mut room[HEADER..])?;
        let Header { object, page, .. } = header;
        Some(finish_record(room, object, page, length, Coding::Zstd))
    }
}
