//! `data_write`: pages are compressed without the lock, appended under it, and written to paging
//! files without it again.
//!
//! Nothing is allocated for a page but, at worst, a block of the location table, and that before
//! any page of the batch is taken (`Table::hold`).

use alloc::vec::Vec;

use farpage_object::{ObjectId, PAGE_BYTES, PageOut, PagerError};
use farpage_sys::buffer::Buffer;
use farpage_sys::{Errno, crc32c};

use crate::DefaultPager;
use crate::codec::{Fast, KEEP_BYTES, ROOM_BYTES, is_zero};
use crate::files::Place;
use crate::gauges::add;
use crate::location::Location;
use crate::record::{Coding, HEADER, Header, record_bytes};
use crate::segments::{Kind, State};
use crate::slots::SlotRun;

/// Pages taken at a time.
pub(crate) const CHUNK_PAGES: usize = 256;
/// Records appended while the lock is held once: about 10 us.
const APPEND_PAGES: usize = 32;

/// What becomes of one page of a chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Zero,
    /// Compressed: its record of `bytes` bytes lies at `at` in the scratch memory.
    Record {
        at: usize,
        bytes: usize,
    },
    Raw,
    Done,
}

/// What one page-out needs.
pub(crate) struct Writer {
    fast: Fast,
    /// Records on their way to a segment.
    scratch: Buffer,
    /// Raw pages that are not aligned on their way to a file.
    gather: Buffer,
    fates: Vec<Fate>,
}

impl Writer {
    pub(crate) fn new() -> Option<Self> {
        let mut fates = Vec::new();
        fates.try_reserve_exact(CHUNK_PAGES).ok()?;
        let record = record_bytes(KEEP_BYTES);
        Some(Self {
            fast: Fast::new(),
            scratch: Buffer::new(CHUNK_PAGES * record + HEADER + ROOM_BYTES).ok()?,
            gather: Buffer::new(CHUNK_PAGES * PAGE_BYTES).ok()?,
            fates,
        })
    }

    /// Gives memory back when a chunk has taken more than what a buffer may keep.
    fn shrink(&mut self, kept: usize) {
        self.scratch.shrink(kept);
        self.gather.shrink(kept);
    }
}

/// Pages that go out together. With `expect`, each only if it still is where `expect` says: for
/// pages that the pager moves by itself.
#[derive(Clone, Copy)]
pub(crate) struct Chunk<'a> {
    pub(crate) object: ObjectId,
    pub(crate) pages: &'a [PageOut<'a>],
    pub(crate) expect: Option<&'a [Location]>,
}

impl Chunk<'_> {
    fn wanted(&self, state: &State, index: usize) -> bool {
        let page = self.pages[index].page.0;
        self.expect
            .is_none_or(|expect| state.table.get(self.object, page) == expect[index])
    }

    fn set(&self, pager: &DefaultPager, state: &mut State, index: usize, location: Location) {
        let page = self.pages[index].page.0;
        state.place_page(&pager.shared, self.object, page, location);
    }
}

impl DefaultPager {
    /// Takes a chunk of at most [`CHUNK_PAGES`] pages.
    pub(crate) fn write_out(&self, chunk: Chunk<'_>) -> Result<(), PagerError> {
        let mut writer = self.writers.lend();
        let packs = self.packs(chunk);
        if !packs {
            self.shed()?;
        }
        self.sort(&mut writer, chunk, packs);
        let pages = chunk.pages.iter().map(|page| page.page.0);
        if !self.state.lock().table.hold(chunk.object, pages.clone()) {
            return Err(PagerError::OutOfSpace);
        }
        self.store_zeros(&mut writer, chunk);
        let stored = self
            .store_records(&mut writer, chunk)
            .and_then(|()| self.store_raw(&mut writer, chunk));
        self.state.lock().table.let_go(chunk.object, pages);
        writer.shrink(self.shared.gauges.buffer_bytes());
        self.tidy();
        stored
    }

    /// All-zero pages take no place. The kernel drops them before they come here.
    fn store_zeros(&self, writer: &mut Writer, chunk: Chunk<'_>) {
        if !writer.fates.contains(&Fate::Zero) {
            return;
        }
        let mut state = self.state.lock();
        for (index, fate) in writer.fates.iter_mut().enumerate() {
            if *fate == Fate::Zero {
                if chunk.wanted(&state, index) {
                    chunk.set(self, &mut state, index, Location::ZERO);
                }
                *fate = Fate::Done;
            }
        }
    }

    /// True when pages are to be compressed.
    fn packs(&self, chunk: Chunk<'_>) -> bool {
        let gauges = &self.shared.gauges;
        let can = gauges.most() >= farpage_object::SEGMENT_BYTES as u64;
        can && !(self.shared.files.any() && gauges.is_without_tier(chunk.pages.len() as u64))
    }

    /// Compresses what compresses, if the chunk `packs`.
    fn sort(&self, writer: &mut Writer, chunk: Chunk<'_>, packs: bool) {
        let object = chunk.object;
        let mut at = 0;
        writer.fates.clear();
        for page in chunk.pages {
            let number = page.page.0;
            let fate = if is_zero(page.bytes) {
                Fate::Zero
            } else if !packs || !self.misses.worth_trying(object, number) {
                Fate::Raw
            } else {
                let room = &mut writer.scratch.room(at + HEADER + ROOM_BYTES)[at..];
                let length = writer.fast.compress(page.bytes, &mut room[HEADER..]);
                self.misses.note(object, number, length.is_some());
                length.map_or(Fate::Raw, |length| {
                    let record = Fate::Record {
                        at,
                        bytes: finish_record(room, object, number, length, Coding::Lz4),
                    };
                    at += record_bytes(length);
                    record
                })
            };
            writer.fates.push(fate);
        }
    }

    /// Appends records to the compressed tier; those that find no room there become raw.
    fn store_records(&self, writer: &mut Writer, chunk: Chunk<'_>) -> Result<(), PagerError> {
        let counters = self.shared.gauges.counters();
        let (mut pages, mut bytes) = (0, 0);
        let mut next = 0;
        while next < writer.fates.len() {
            let mut full = false;
            let mut state = self.state.lock();
            let mut budget = APPEND_PAGES;
            while next < writer.fates.len() && budget > 0 && !full {
                if let Fate::Record { at, bytes: record } = writer.fates[next] {
                    budget -= 1;
                    let record = &writer.scratch[at..at + record];
                    if chunk.wanted(&state, next) {
                        let open = state.open_packed;
                        let put = open.and_then(|id| self.append_to(&mut state, id, &[record]));
                        let Some(location) = put else {
                            full = true;
                            continue;
                        };
                        chunk.set(self, &mut state, next, location);
                        pages += 1;
                        bytes += record.len() as u64;
                    }
                    writer.fates[next] = Fate::Done;
                }
                next += 1;
            }
            drop(state);
            if full && !self.make_room()? {
                break;
            }
        }
        for fate in &mut writer.fates {
            if matches!(fate, Fate::Record { .. }) {
                *fate = Fate::Raw;
            }
        }
        add(&counters.page_outs_compressed, pages);
        add(&counters.compress_in_bytes, pages * PAGE_BYTES as u64);
        add(&counters.compress_out_bytes, bytes);
        Ok(())
    }

    /// Appends a record, which begins with its header, to segment `id`, if it has room.
    pub(crate) fn append_to(
        &self,
        state: &mut State,
        id: u32,
        record: &[&[u8]],
    ) -> Option<Location> {
        let slot = state.segment(id).ram?.slot;
        let header = Header::unpack(record[0])?;
        let offset = self.shared.arena.append(slot, record)?;
        Some(Location::packed(id, offset, header.length))
    }

    /// Writes raw pages to paging files, as many at once as lie in one segment.
    fn store_raw(&self, writer: &mut Writer, chunk: Chunk<'_>) -> Result<(), PagerError> {
        let mut indices = [0u8; CHUNK_PAGES];
        let mut count = 0;
        for (index, fate) in (0..).zip(&writer.fates) {
            if *fate == Fate::Raw {
                indices[count] = index as u8;
                count += 1;
            }
        }
        let mut rest = &indices[..count];
        let mut avoid = 0;
        while !rest.is_empty() {
            let run = match self.reserve_slots(rest.len(), avoid) {
                Ok(run) => run,
                Err(PagerError::OutOfSpace) => {
                    self.store_whole(chunk, rest)?;
                    count -= rest.len();
                    break;
                }
                Err(error) => return Err(error),
            };
            let (now, later) = rest.split_at(run.count);
            let written = self.write_run(writer, chunk, now, &run);
            self.finish_run(chunk, now, &run, written.is_ok());
            match written {
                Ok(()) => rest = later,
                Err(errno) => avoid = self.excuse(run.place, errno, avoid)?,
            }
        }
        add(
            &self.shared.gauges.counters().page_outs_spilled,
            count as u64,
        );
        Ok(())
    }

    /// Keeps raw pages that no paging file takes in the compressed tier, as they are.
    fn store_whole(&self, chunk: Chunk<'_>, indices: &[u8]) -> Result<(), PagerError> {
        for &index in indices {
            let index = usize::from(index);
            let page = &chunk.pages[index];
            let header = Header {
                object: chunk.object,
                page: page.page.0,
                length: PAGE_BYTES,
                coding: Coding::Stored,
                crc: crc32c(page.bytes),
            };
            loop {
                let mut state = self.state.lock();
                if !chunk.wanted(&state, index) {
                    break;
                }
                let open = state.open_packed;
                let parts: [&[u8]; 2] = [&header.pack(), page.bytes];
                let put = open.and_then(|id| self.append_to(&mut state, id, &parts));
                if let Some(location) = put {
                    chunk.set(self, &mut state, index, location);
                    add(&self.shared.gauges.counters().page_outs_compressed, 1);
                    break;
                }
                drop(state);
                if !self.make_room()? {
                    return Err(PagerError::OutOfSpace);
                }
            }
        }
        Ok(())
    }

    /// After a failed write to `place`: the files to avoid when it is tried once more.
    pub(crate) fn excuse(&self, place: Place, errno: Errno, avoid: u32) -> Result<u32, PagerError> {
        let bit = 1 << place.file;
        match errno {
            Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG => self.shared.files.filled(place.file),
            _ if is_of_disk(errno) => self.shared.files.refused(place.file, errno),
            _ if avoid == 0 && self.shared.files.others(bit) => {
                self.shared.files.failed(place.file);
            }
            _ => return Err(PagerError::Write(errno.0)),
        }
        match avoid & bit {
            0 => Ok(avoid | bit),
            _ => Err(PagerError::OutOfSpace),
        }
    }

    /// Writes the pages of a chunk named by `indices` to the slots of `run`.
    fn write_run(
        &self,
        writer: &mut Writer,
        chunk: Chunk<'_>,
        indices: &[u8],
        run: &SlotRun,
    ) -> Result<(), Errno> {
        let file = run.place.file;
        let offset = run.place.offset() + (run.first * PAGE_BYTES) as u64;
        let page = |index: &u8| chunk.pages[usize::from(*index)].bytes;
        let aligned = |index| (page(index).as_ptr() as usize).is_multiple_of(PAGE_BYTES);
        if indices.iter().all(aligned) {
            let mut parts: [&[u8]; CHUNK_PAGES] = [&[]; CHUNK_PAGES];
            for (part, index) in parts.iter_mut().zip(indices) {
                *part = page(index);
            }
            return self
                .shared
                .files
                .write(file, &parts[..indices.len()], offset);
        }
        let gathered = writer.gather.room(indices.len() * PAGE_BYTES);
        for (copy, index) in gathered.chunks_exact_mut(PAGE_BYTES).zip(indices) {
            copy.copy_from_slice(page(index));
        }
        self.shared.files.write(file, &[gathered], offset)
    }

    fn finish_run(&self, chunk: Chunk<'_>, indices: &[u8], run: &SlotRun, written: bool) {
        let mut crc = [0; CHUNK_PAGES];
        for (crc, &index) in crc.iter_mut().zip(indices) {
            *crc = crc32c(chunk.pages[usize::from(index)].bytes);
        }
        let mut state = self.state.lock();
        if written {
            for ((slot, &index), crc) in (run.first..).zip(indices).zip(crc) {
                let index = usize::from(index);
                if let Kind::Raw(slots) = &mut state.segment(run.segment).kind {
                    slots.crc[slot] = crc;
                }
                if chunk.wanted(&state, index) {
                    chunk.set(self, &mut state, index, Location::raw(run.segment, slot));
                }
            }
        } else if state.open_raw == Some(run.segment) {
            state.open_raw = None;
        }
        state.segment(run.segment).writers -= 1;
        state.settle(&self.shared, run.segment);
    }
}

/// Puts the header before the `length` bytes that lie after it in `room` and zeros behind them.
/// Returns the bytes of the whole record.
pub(crate) fn finish_record(
    room: &mut [u8],
    object: ObjectId,
    page: u64,
    length: usize,
    coding: Coding,
) -> usize {
    let whole = record_bytes(length);
    let header = Header {
        object,
        page,
        length,
        coding,
        crc: crc32c(&room[HEADER..HEADER + length]),
    };
    room[HEADER + length..whole].fill(0);
    room[..HEADER].copy_from_slice(&header.pack());
    whole
}

/// Whether a disk, or the way to it, is what failed: then the pages are as good in memory as before, and it may
/// work again.
fn is_of_disk(errno: Errno) -> bool {
    [
        Errno::EIO,
        Errno::ENXIO,
        Errno::ENODEV,
        Errno::EROFS,
        Errno::ETIMEDOUT,
        Errno::ESTALE,
        Errno::EREMOTEIO,
        // As the layers below a file system say it.
        Errno::ENODATA,
        Errno::ENOLINK,
        Errno::EILSEQ,
        Errno::EBADE,
        Errno::EUCLEAN,
        Errno::ENOMEDIUM,
        Errno::ENOTCONN,
    ]
    .contains(&errno)
}
