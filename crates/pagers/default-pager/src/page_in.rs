//! `data_request`: what is asked for is looked up under the lock and read without it.

use core::sync::atomic::Ordering;

use farpage_object::{Access, DataRequest, PAGE_BYTES, PagerError, Supplied};
use farpage_sys::buffer::Buffer;
use farpage_sys::file::{self, Fd};
use farpage_sys::ring::{DEPTH, Read};
use farpage_sys::{Errno, crc32c, time};

use crate::DefaultPager;
use crate::codec::{Decoder, decode_fast, decode_stored};
use crate::files::Place;
use crate::gauges::add;
use crate::location::{At, Location};
use crate::plan::{BOUNCE_BYTES, Part, RUN_PAGES, Run, Source, Wanted, plan};
use crate::record::{Coding, Header};
use crate::rings::Lazy;
use crate::sizing::From;

/// Requests for pages in the tier are timed once in so many.
const TIMED_EVERY: u64 = 8;

/// Pages that come together with those that a thread waits for; more come after it goes on.
const AT_FIRST_PAGES: usize = 15;

/// Who waits for pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Demand {
    /// A thread that has faulted.
    Fault,
    /// Nobody yet.
    None,
}

/// What the pager has no more, once it has supplied it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Giving {
    /// It keeps all.
    Nothing,
    /// What was in the compressed tier.
    Memory,
    All,
}

/// What one request needs.
pub(crate) struct Reader {
    bounce: Buffer,
    decoder: Decoder,
    pub(crate) ring: Lazy,
}

impl Reader {
    pub(crate) fn new(number: usize) -> Option<Self> {
        Some(Self {
            bounce: Buffer::new(BOUNCE_BYTES).ok()?,
            decoder: Decoder::new()?,
            ring: Lazy::new(number),
        })
    }
}

impl Wanted {
    fn of(request: &DataRequest<'_>) -> Self {
        let range = request.pages();
        Self {
            object: request.object(),
            first: range.start.0,
            stride: 1,
            pages: range.pages() as usize,
        }
    }
}

impl DefaultPager {
    pub(crate) fn request(&self, mut request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        let mut wanted = Wanted::of(&request);
        let giving = match request.access() {
            _ if request.is_copied() => Giving::Nothing,
            Access::Write => Giving::All,
            Access::Read => Giving::Memory,
        };
        let demand = match request.is_ahead_of_need() {
            true => Demand::None,
            false => Demand::Fault,
        };
        if demand == Demand::Fault {
            // The thread goes on while the others are read.
            wanted.pages = wanted.pages.min(request.needed() as usize + AT_FIRST_PAGES);
        }
        self.supply(wanted, giving, demand, request.buffer())
    }

    /// Puts the first of the pages that are wanted into `buffer`.
    pub(crate) fn supply(
        &self,
        wanted: Wanted,
        giving: Giving,
        demand: Demand,
        buffer: &mut [u8],
    ) -> Result<Supplied, PagerError> {
        let (run, from) = self.begin(wanted, buffer)?;
        let counters = self.shared.gauges.counters();
        let memory = run.is_in_memory();
        let before = counters.page_ins_compressed.load(Ordering::Relaxed);
        let is_timed = !memory || before.is_multiple_of(TIMED_EVERY);
        let began = is_timed.then(time::now_ns);
        let read = self.read(&run, &mut buffer[..run.count * PAGE_BYTES]);
        let took = began.map(|began| time::now_ns() - began);
        let gives = match giving {
            Giving::Nothing => false,
            Giving::Memory => memory,
            Giving::All => true,
        };
        let given = match (&read, gives) {
            (Ok(count), true) => *count,
            _ => 0,
        };
        let waited = from.filter(|_| demand == Demand::Fault);
        self.finish(&run, given, waited.map(|from| (from, took)));
        let count = read? as u64;
        let counter = match memory {
            true => &counters.page_ins_compressed,
            false => &counters.page_ins_spilled,
        };
        add(counter, count);
        if gives {
            self.tidy();
            Ok(Supplied::precious(count))
        } else {
            Ok(Supplied::clean(count))
        }
    }

    /// Copies pages for the pager's own use: nothing is given away. Returns how many.
    pub(crate) fn copy_out(&self, mut request: DataRequest<'_>) -> Result<usize, PagerError> {
        let wanted = Wanted::of(&request);
        let (run, _) = self.begin(wanted, request.buffer())?;
        let read = self.read(&run, &mut request.buffer()[..run.count * PAGE_BYTES]);
        self.finish(&run, 0, None);
        read
    }

    /// Looks up where pages are and keeps that from being freed until `finish`. Says where the
    /// first comes from, unless it is zeros.
    fn begin(&self, wanted: Wanted, buffer: &[u8]) -> Result<(Run, Option<From>), PagerError> {
        let pages = wanted.pages.min(RUN_PAGES);
        // What is not aligned is read through one buffer of ours, one after another.
        let parts_max = if is_aligned(buffer) { DEPTH } else { 1 };
        let mut state = self.state.lock();
        let run = plan(&state, Wanted { pages, ..wanted }, parts_max)?;
        for id in run.segments() {
            state.segment(id).readers += 1;
        }
        let from = run.segments().next().map(|id| {
            let age = state.segment(id).age;
            match run.is_in_memory() {
                true => From::Tier { age },
                false => From::File { age },
            }
        });
        Ok((run, from))
    }

    fn read(&self, run: &Run, buffer: &mut [u8]) -> Result<usize, PagerError> {
        match run.parts()[0].source {
            Source::Memory { segment } => self.read_memory(run, segment, buffer),
            Source::Slots { place, first, .. } if !is_aligned(buffer) => {
                self.read_slots_through(place, first, buffer)?;
                self.check_slots(run, &run.parts()[0], buffer)
            }
            Source::Slots { .. } | Source::Records { .. } => self.read_parts(run, buffer),
        }
    }

    /// Ends the read; the first `given` pages are the kernel's alone now. What a fault waited for
    /// was `seen` to come from somewhere, in some time.
    fn finish(&self, run: &Run, given: usize, seen: Option<(From, Option<u64>)>) {
        let mut state = self.state.lock();
        if let Some((from, ns)) = seen {
            state.sizing.came_from(from, ns);
            if given == 0 {
                let key = u64::from(run.object.0) << 41 | run.page(0);
                state.sizing.read(key, || self.shared.gauges.sizes());
            }
        }
        for id in run.segments() {
            state.segment(id).readers -= 1;
        }
        for (index, &location) in run.locations[..given].iter().enumerate() {
            let page = run.page(index);
            if state.table.get(run.object, page) == location {
                state.place_page(&self.shared, run.object, page, Location::NOWHERE);
            }
        }
        for id in run.segments() {
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
        self.decode_part(run, &run.parts()[0], (bytes, 0), &mut None, buffer)
    }

    /// Decodes the pages of `part` from bytes, which begin at `base` of their segment. Stops at
    /// the first that is not whole.
    fn decode_part(
        &self,
        run: &Run,
        part: &Part,
        (bytes, base): (&[u8], usize),
        decoder: &mut Option<&mut Decoder>,
        buffer: &mut [u8],
    ) -> Result<usize, PagerError> {
        let mut count = 0;
        for page in buffer.chunks_exact_mut(PAGE_BYTES) {
            let index = part.first + count;
            let done = match run.locations[index].at() {
                At::Zero => {
                    page.fill(0);
                    Ok(())
                }
                At::Packed { offset, .. } => {
                    self.decode(run, index, bytes, offset - base, decoder, page)
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
        let named = header.object == run.object && header.page == run.page(index);
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

    /// Reads all parts at once. Stops at the first page that cannot be had.
    fn read_parts(&self, run: &Run, buffer: &mut [u8]) -> Result<usize, PagerError> {
        let mut reader = self.readers.lend();
        let read = self.read_parts_by(&mut reader, run, buffer);
        reader.bounce.shrink(self.shared.gauges.buffer_bytes());
        read
    }

    fn read_parts_by(
        &self,
        reader: &mut Reader,
        run: &Run,
        buffer: &mut [u8],
    ) -> Result<usize, PagerError> {
        let Reader {
            bounce,
            decoder,
            ring,
        } = reader;
        let failed = self.fetch(run, bounce.room(run.bounced()), ring, buffer);
        let (mut count, mut bounced) = (0, 0);
        for (index, part) in run.parts().iter().enumerate() {
            if let Some((at, error)) = failed
                && at == index
            {
                return if count == 0 { Err(error) } else { Ok(count) };
            }
            let pages = &mut buffer[part.first * PAGE_BYTES..][..part.count * PAGE_BYTES];
            let bytes = &bounce[bounced..bounced + part.source.bounced()];
            bounced += bytes.len();
            let whole = match part.source {
                Source::Records { start, .. } => {
                    self.decode_part(run, part, (bytes, start), &mut Some(&mut *decoder), pages)
                }
                Source::Slots { .. } => self.check_slots(run, part, pages),
                Source::Memory { .. } => Err(PagerError::Corrupt),
            };
            match whole {
                Ok(whole) if whole == part.count => count += whole,
                Ok(whole) => return Ok(count + whole),
                Err(error) if count == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(count)
    }

    /// Reads the bytes of all parts: of slots into `buffer`, of records into `bounce` in a row.
    /// Returns the first part that cannot be read, and why.
    fn fetch(
        &self,
        run: &Run,
        mut bounce: &mut [u8],
        ring: &mut Lazy,
        mut buffer: &mut [u8],
    ) -> Option<(usize, PagerError)> {
        let mut reads: [Read<'_>; DEPTH] = core::array::from_fn(|_| Read {
            fd: Fd(-1),
            offset: 0,
            buffer: &mut [],
            whole: false,
        });
        let reads = &mut reads[..run.parts().len()];
        for (read, part) in reads.iter_mut().zip(run.parts()) {
            let (pages, rest) = buffer.split_at_mut(part.count * PAGE_BYTES);
            buffer = rest;
            let (bytes, rest) = bounce.split_at_mut(part.source.bounced());
            bounce = rest;
            let (place, from, into) = match part.source {
                Source::Slots { place, first, .. } => (place, first * PAGE_BYTES, pages),
                Source::Records { place, start, .. } => (place, start, bytes),
                Source::Memory { .. } => continue,
            };
            *read = Read {
                fd: self.shared.files.fd(place.file).unwrap_or(Fd(-1)),
                offset: place.offset() + from as u64,
                buffer: into,
                whole: false,
            };
        }
        if reads.iter().any(|read| !read.buffer.is_empty()) {
            ring.read_all(&self.shared.rings, reads);
        }
        // What did not come together is read alone: its error counts.
        for (index, (read, part)) in reads.iter_mut().zip(run.parts()).enumerate() {
            if let (false, Some(place)) = (read.whole, part.source.place())
                && let Err(error) = self.read_file(place, read.buffer, read.offset)
            {
                return Some((index, error));
            }
        }
        None
    }

    /// Reads the slots from `first` on into memory that is not aligned.
    fn read_slots_through(
        &self,
        place: Place,
        first: usize,
        buffer: &mut [u8],
    ) -> Result<(), PagerError> {
        let offset = place.offset() + (first * PAGE_BYTES) as u64;
        let mut reader = self.readers.lend();
        for (step, part) in (0u64..).zip(buffer.chunks_mut(BOUNCE_BYTES)) {
            let there = reader.bounce.room(part.len());
            self.read_file(place, there, offset + step * BOUNCE_BYTES as u64)?;
            part.copy_from_slice(there);
        }
        Ok(())
    }

    /// How many pages of a part are as they were written, from the first on.
    fn check_slots(&self, run: &Run, part: &Part, pages: &[u8]) -> Result<usize, PagerError> {
        let pages = pages.chunks_exact(PAGE_BYTES);
        let whole = |(page, crc): &(&[u8], &u32)| crc32c(page) == **crc;
        match pages.zip(&run.crc[part.first..]).take_while(whole).count() {
            0 => Err(PagerError::Corrupt),
            count => Ok(count),
        }
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

fn is_aligned(buffer: &[u8]) -> bool {
    (buffer.as_ptr() as usize).is_multiple_of(PAGE_BYTES)
}
