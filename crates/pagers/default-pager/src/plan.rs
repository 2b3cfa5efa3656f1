//! Which reads a request takes: a value, made under the lock.

use farpage_object::{ObjectId, PAGE_BYTES, PagerError};
use farpage_sys::ring::DEPTH;

use crate::files::Place;
use crate::location::{At, Location};
use crate::record::{HEADER, record_bytes};
use crate::segments::{Kind, State};
use crate::table::PAGES_MAX;

/// Pages in one answer, at most.
pub(crate) const RUN_PAGES: usize = 256;
/// Bytes read from packed segments at once, at most.
pub(crate) const BOUNCE_BYTES: usize = 256 << 10;
/// Bytes between two records that are read rather than asked for separately.
const GAP_BYTES: usize = 16 << 10;

/// Where pages come from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// Zeros, and records of a segment in RAM once one is met.
    Memory { segment: Option<u32> },
    /// Consecutive slots of a raw segment.
    Slots {
        segment: u32,
        place: Place,
        first: usize,
    },
    /// Records of a packed segment in a paging file, all within `start .. end`.
    Records {
        segment: u32,
        place: Place,
        start: usize,
        end: usize,
    },
}

impl Source {
    fn segment(self) -> Option<u32> {
        match self {
            Self::Memory { segment } => segment,
            Self::Slots { segment, .. } | Self::Records { segment, .. } => Some(segment),
        }
    }

    /// Where it lies in a paging file.
    pub(crate) fn place(self) -> Option<Place> {
        match self {
            Self::Memory { .. } => None,
            Self::Slots { place, .. } | Self::Records { place, .. } => Some(place),
        }
    }

    /// Bytes that go through a buffer of ours.
    pub(crate) fn bounced(self) -> usize {
        match self {
            Self::Memory { .. } | Self::Slots { .. } => 0,
            Self::Records { start, end, .. } => end - start,
        }
    }
}

/// Pages that one read supplies: those from number `first` of the run on.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    pub(crate) first: usize,
    pub(crate) count: usize,
    pub(crate) source: Source,
}

/// Pages that one request supplies: of several reads, or of one from memory.
pub(crate) struct Run {
    pub(crate) object: ObjectId,
    first: u64,
    /// Distance between two of them.
    stride: i64,
    pub(crate) count: usize,
    parts: [Part; DEPTH],
    parts_count: usize,
    pub(crate) locations: [Location; RUN_PAGES],
    pub(crate) crc: [u32; RUN_PAGES],
}

impl Run {
    pub(crate) fn page(&self, index: usize) -> u64 {
        self.first
            .wrapping_add_signed(self.stride.wrapping_mul(index as i64))
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts[..self.parts_count]
    }

    /// Bytes of records that are read to have its pages.
    pub(crate) fn bounced(&self) -> usize {
        self.parts().iter().map(|part| part.source.bounced()).sum()
    }

    pub(crate) fn segments(&self) -> impl Iterator<Item = u32> {
        self.parts().iter().filter_map(|part| part.source.segment())
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self.parts[0].source, Source::Memory { .. })
    }
}

/// Pages that somebody wants: `pages` of them, `stride` apart.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) object: ObjectId,
    pub(crate) first: u64,
    pub(crate) stride: i64,
    pub(crate) pages: usize,
}

/// The longest run from the first page on that at most `parts_max` reads can supply.
pub(crate) fn plan(state: &State, wanted: Wanted, parts_max: usize) -> Result<Run, PagerError> {
    let nothing = Part {
        first: 0,
        count: 0,
        source: Source::Memory { segment: None },
    };
    let mut run = Run {
        object: wanted.object,
        first: wanted.first,
        stride: wanted.stride,
        count: 0,
        parts: [nothing; DEPTH],
        parts_count: 0,
        locations: [Location::NOWHERE; RUN_PAGES],
        crc: [0; RUN_PAGES],
    };
    for index in 0..wanted.pages {
        let page = run.page(index);
        // A stride leads out of the object, below its first page as well.
        if page >= PAGES_MAX {
            break;
        }
        let location = state.table.get(wanted.object, page);
        let Some((source, crc)) = start(state, location) else {
            break;
        };
        if !take(&mut run, source, parts_max) {
            break;
        }
        run.locations[index] = location;
        run.crc[index] = crc;
        run.count = index + 1;
    }
    if run.count == 0 {
        return Err(PagerError::Unavailable);
    }
    Ok(run)
}

/// What a run reads that begins with the page at `location`, and the page's checksum.
fn start(state: &State, location: Location) -> Option<(Source, u32)> {
    match location.at() {
        At::Nowhere => None,
        At::Zero => Some((Source::Memory { segment: None }, 0)),
        At::Raw { segment: id, slot } => {
            let segment = &state.segments[id as usize];
            let (Kind::Raw(slots), Some(place)) = (&segment.kind, segment.place) else {
                return None;
            };
            let source = Source::Slots {
                segment: id,
                place,
                first: slot,
            };
            Some((source, slots.crc[slot]))
        }
        At::Packed {
            segment: id,
            offset,
            length,
        } => {
            let Some(place) = state.segments[id as usize].place else {
                return Some((Source::Memory { segment: Some(id) }, 0));
            };
            let record_end = offset + record_bytes(length).max(HEADER);
            let source = Source::Records {
                segment: id,
                place,
                start: offset / PAGE_BYTES * PAGE_BYTES,
                end: record_end.next_multiple_of(PAGE_BYTES),
            };
            Some((source, 0))
        }
    }
}

/// Adds the next page, which lies in `source`, to the last part of a run, or as another part.
/// False when it takes another request.
fn take(run: &mut Run, source: Source, parts_max: usize) -> bool {
    let bounced = run.bounced();
    let number = run.parts_count;
    if number > 0 {
        let last = &mut run.parts[number - 1];
        let room = BOUNCE_BYTES - (bounced - last.source.bounced());
        if let Some(longer) = join(last, source).filter(|longer| longer.bounced() <= room) {
            last.source = longer;
            last.count += 1;
            return true;
        }
        let in_memory = |source| matches!(source, Source::Memory { .. });
        if in_memory(last.source)
            || in_memory(source)
            || number == parts_max
            || bounced + source.bounced() > BOUNCE_BYTES
        {
            return false;
        }
    }
    run.parts[number] = Part {
        first: run.count,
        count: 1,
        source,
    };
    run.parts_count += 1;
    true
}

/// The source of a part together with that of the page behind it, if one read does for both.
fn join(part: &Part, next: Source) -> Option<Source> {
    match (part.source, next) {
        (Source::Memory { segment: one }, Source::Memory { segment: other }) => {
            let same = one.is_none() || other.is_none() || one == other;
            same.then_some(Source::Memory {
                segment: one.or(other),
            })
        }
        (
            Source::Slots { segment, first, .. },
            Source::Slots {
                segment: id,
                first: slot,
                ..
            },
        ) => (segment == id && first + part.count == slot).then_some(part.source),
        (
            Source::Records {
                segment,
                place,
                start,
                end,
            },
            Source::Records {
                segment: id,
                start: from,
                end: to,
                ..
            },
        ) => {
            (segment == id && start <= from && from <= end + GAP_BYTES).then_some(Source::Records {
                segment,
                place,
                start,
                end: end.max(to),
            })
        }
        (Source::Memory { .. } | Source::Slots { .. } | Source::Records { .. }, _) => None,
    }
}
