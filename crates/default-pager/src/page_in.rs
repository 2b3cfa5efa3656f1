//! `data_request`: what is asked for is looked up under the lock and read without it.

use farpage_abi::{ObjectId, PAGE_BYTES, PageRange};
use farpage_pagers::{DataRequest, PagerError, Supplied};
use farpage_sys::buffer::Buffer;
use farpage_sys::{Errno, crc32c, file};

use crate::DefaultPager;
use crate::codec::{Decoder, decode_fast, decode_stored};
use crate::files::Place;
use crate::gauges::add;
use crate::location::{At, Location};
use crate::record::{Coding, HEADER, Header, record_bytes};
use crate::segments::{Kind, State};

/// Pages in one answer, at most.
const RUN_PAGES: usize = 256;
/// Bytes read from a packed segment at once, at most.
pub(crate) const BOUNCE_BYTES: usize = 256 << 10;
/// Bytes between two records that are read rather than asked for separately.
const GAP_BYTES: usize = 16 << 10;

/// What one read needs.
pub(crate) struct Reader {
    bounce: Buffer,
    decoder: Decoder,
}

impl Reader {
    pub(crate) fn new() -> Option<Self> {
        Some(Self {
            bounce: Buffer::new(BOUNCE_BYTES).ok()?,
            decoder: Decoder::new()?,
        })
    }
}

/// Where a run of pages comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// Zeros, and records of a segment in RAM once one is met.
    Memory { segment: Option<u32> },
    /// Consecutive slots of a raw segment.
    Slots { segment: u32, place: Place },
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
}

/// Pages that one read supplies.
struct Run {
    object: ObjectId,
    first: u64,
    count: usize,
    source: Source,
    locations: [Location; RUN_PAGES],
    crc: [u32; RUN_PAGES],
}

impl DefaultPager {
    pub(crate) fn request(&self, mut request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        let run = self.begin(request.object(), request.pages())?;
        let buffer = &mut request.buffer()[..run.count * PAGE_BYTES];
        let read = self.read(&run, buffer);
        let memory = matches!(run.source, Source::Memory { .. });
        let given = if memory {
            *read.as_ref().unwrap_or(&0)
        } else {
            0
        };
        self.finish(&run, given);
        let count = read? as u64;
        let counters = self.shared.gauges.counters();
        if memory {
            add(&counters.page_ins_compressed, count);
            self.tidy();
            Ok(Supplied::precious(count))
        } else {
            add(&counters.page_ins_spilled, count);
            Ok(Supplied::clean(count))
        }
    }

    /// Copies pages for the pager's own use: nothing is given away. Returns how many.
    pub(crate) fn copy_out(&self, mut request: DataRequest<'_>) -> Result<usize, PagerError> {
        let run = self.begin(request.object(), request.pages())?;
        let read = self.read(&run, &mut request.buffer()[..run.count * PAGE_BYTES]);
        self.finish(&run, 0);
        read
    }

    /// Looks up where pages are and keeps that from being freed until `finish`.
    fn begin(&self, object: ObjectId, range: PageRange) -> Result<Run, PagerError> {
        let pages = (range.pages() as usize).min(RUN_PAGES);
        let mut state = self.state.lock();
        let run = plan(&state, object, range.start.0, pages)?;
        if let Some(id) = run.source.segment() {
            state.segment(id).readers += 1;
        }
        Ok(run)
    }

    fn read(&self, run: &Run, buffer: &mut [u8]) -> Result<usize, PagerError> {
        match run.source {
            Source::Memory { segment } => self.read_memory(run, segment, buffer),
            Source::Slots { place, .. } => self.read_slots(run, place, buffer),
            Source::Records {
                place, start, end, ..
            } => self.read_records(run, place, start, end, buffer),
        }
    }

    /// Ends the read; the first `given` pages are the kernel's alone now.
    fn finish(&self, run: &Run, given: usize) {
        let mut state = self.state.lock();
        if let Some(id) = run.source.segment() {
            state.segment(id).readers -= 1;
        }
        for (page, &location) in (run.first..).zip(&run.locations[..given]) {
            if state.table.get(run.object, page) == location {
                state.place_page(&self.shared, run.object, page, Location::NOWHERE);
            }
        }
        if let Some(id) = run.source.segment() {
            state.settle(&self.shared, id);
        }
    }

    fn read_memory(
        &self,
        run: &Run,
        segment: Option<u32>,
        buffer: &mut [u8],
    ) -> Result<usize, PagerError> {
        let slot = segment.and_then(|id| self.state.lock().segment(id).ram);
        let reading = slot.map(|ram| self.shared.arena.read(ram.slot));
        let bytes = reading.as_deref().unwrap_or(&[]);
        self.decode_run(run, bytes, 0, &mut None, buffer)
    }

    /// Decodes the pages of `run` from `bytes`, which begin at `base` of their segment. Stops at
    /// the first that is not whole.
    fn decode_run(
        &self,
        run: &Run,
        bytes: &[u8],
        base: usize,
        decoder: &mut Option<&mut Decoder>,
        buffer: &mut [u8],
    ) -> Result<usize, PagerError> {
        let mut count = 0;
        for page in buffer.chunks_exact_mut(PAGE_BYTES) {
            let done = match run.locations[count].at() {
                At::Zero => {
                    page.fill(0);
                    Ok(())
                }
                At::Packed { offset, .. } => {
                    self.decode(run, count, bytes, offset - base, decoder, page)
                }
                At::Nowhere | At::Raw { .. } => Err(PagerError::Corrupt),
            };
            match done {
                Ok(()) => count += 1,
                Err(error) if count == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(count)
    }

    fn decode(
        &self,
        run: &Run,
        index: usize,
        bytes: &[u8],
        offset: usize,
        decoder: &mut Option<&mut Decoder>,
        page: &mut [u8],
    ) -> Result<(), PagerError> {
        let (header, bytes) = Header::checked(bytes, offset).ok_or(PagerError::Corrupt)?;
        let named = header.object == run.object && header.page == run.first + index as u64;
        if !named && !run.locations[index].is_moved() {
            return Err(PagerError::Corrupt);
        }
        match (header.coding, decoder) {
            (Coding::Lz4, _) => decode_fast(bytes, page),
            (Coding::Stored, _) => decode_stored(bytes, page),
            (coding, Some(decoder)) => decoder.decode(coding, bytes, page),
            (coding, None) => self.readers.lend().decoder.decode(coding, bytes, page),
        }
    }

    fn read_slots(&self, run: &Run, place: Place, buffer: &mut [u8]) -> Result<usize, PagerError> {
        let At::Raw { slot, .. } = run.locations[0].at() else {
            return Err(PagerError::Corrupt);
        };
        let offset = place.offset() + (slot * PAGE_BYTES) as u64;
        if (buffer.as_ptr() as usize).is_multiple_of(PAGE_BYTES) {
            self.read_file(place, buffer, offset)?;
        } else {
            let mut reader = self.readers.lend();
            let bounce = &mut reader.bounce;
            for (step, part) in (0u64..).zip(buffer.chunks_mut(bounce.len())) {
                let there = &mut bounce[..part.len()];
                self.read_file(place, there, offset + step * BOUNCE_BYTES as u64)?;
                part.copy_from_slice(there);
            }
        }
        let whole = |(page, crc): &(&[u8], &u32)| crc32c(page) == **crc;
        match buffer
            .chunks_exact(PAGE_BYTES)
            .zip(&run.crc)
            .take_while(whole)
            .count()
        {
            0 => Err(PagerError::Corrupt),
            count => Ok(count),
        }
    }

    fn read_records(
        &self,
        run: &Run,
        place: Place,
        start: usize,
        end: usize,
        buffer: &mut [u8],
    ) -> Result<usize, PagerError> {
        let mut reader = self.readers.lend();
        let Reader { bounce, decoder } = &mut *reader;
        let bytes = &mut bounce[..end - start];
        self.read_file(place, bytes, place.offset() + start as u64)?;
        self.decode_run(run, bytes, start, &mut Some(decoder), buffer)
    }

    /// Reads all of `buffer` or fails.
    fn read_file(&self, place: Place, buffer: &mut [u8], offset: u64) -> Result<(), PagerError> {
        let read = |errno: Errno| PagerError::Read(errno.0);
        let fd = self.shared.files.fd(place.file).map_err(read)?;
        match file::pread(fd, buffer, offset) {
            Ok(count) if count == buffer.len() => Ok(()),
            Ok(_) => Err(read(Errno::EIO)),
            Err(errno) => Err(read(errno)),
        }
    }
}

/// The longest run from `first` on that one read can supply.
fn plan(state: &State, object: ObjectId, first: u64, pages: usize) -> Result<Run, PagerError> {
    let mut run = Run {
        object,
        first,
        count: 0,
        source: Source::Memory { segment: None },
        locations: [Location::NOWHERE; RUN_PAGES],
        crc: [0; RUN_PAGES],
    };
    for (page, index) in (first..).zip(0..pages) {
        let location = state.table.get(object, page);
        let Some((source, crc)) = extend(state, &run, index, location) else {
            break;
        };
        run.source = source;
        run.locations[index] = location;
        run.crc[index] = crc;
        run.count = index + 1;
    }
    if run.count == 0 {
        return Err(PagerError::Unavailable);
    }
    Ok(run)
}

/// What `run` reads when the page at `location` follows as number `index`; `None` when that takes
/// another read.
fn extend(state: &State, run: &Run, index: usize, location: Location) -> Option<(Source, u32)> {
    match location.at() {
        At::Nowhere => None,
        At::Zero => matches!(run.source, Source::Memory { .. }).then_some((run.source, 0)),
        At::Raw { segment: id, slot } => {
            let segment = &state.segments[id as usize];
            let (Kind::Raw(slots), Some(place)) = (&segment.kind, segment.place) else {
                return None;
            };
            let source = Source::Slots { segment: id, place };
            let follows = index == 0
                || run.source == source
                    && run.locations[index - 1] == Location::raw(id, slot.wrapping_sub(1));
            follows.then_some((source, slots.crc[slot]))
        }
        At::Packed {
            segment: id,
            offset,
            length,
        } => {
            let segment = &state.segments[id as usize];
            let source = match segment.place {
                None => in_memory(run, id),
                Some(place) => in_file(run, index, id, place, offset, length),
            };
            source.map(|source| (source, 0))
        }
    }
}

fn in_memory(run: &Run, id: u32) -> Option<Source> {
    match run.source {
        Source::Memory { segment } if segment.is_none_or(|other| other == id) => {
            Some(Source::Memory { segment: Some(id) })
        }
        _ => None,
    }
}

fn in_file(
    run: &Run,
    index: usize,
    id: u32,
    place: Place,
    offset: usize,
    length: usize,
) -> Option<Source> {
    let record_end = offset + record_bytes(length).max(HEADER);
    let aligned_end = record_end.next_multiple_of(PAGE_BYTES);
    if index == 0 {
        return Some(Source::Records {
            segment: id,
            place,
            start: offset / PAGE_BYTES * PAGE_BYTES,
            end: aligned_end,
        });
    }
    match run.source {
        Source::Records {
            segment,
            place,
            start,
            end,
        } if segment == id
            && offset >= start
            && offset <= end + GAP_BYTES
            && aligned_end.max(end) - start <= BOUNCE_BYTES =>
        {
            Some(Source::Records {
                segment,
                place,
                start,
                end: end.max(aligned_end),
            })
        }
        _ => None,
    }
}
