//! Room in the compressed tier: growing it, packing sparse segments, writing old ones out.

use farpage_abi::{PAGE_BYTES, SEGMENT_BYTES};
use farpage_pagers::PagerError;
use farpage_sys::{Errno, file};

use crate::DefaultPager;
use crate::files::Place;
use crate::gauges::add;
use crate::location::Location;
use crate::record::{Header, record_bytes};
use crate::segments::{Growth, State};

/// A segment with less alive than this is packed rather than written out.
const SPARSE_BYTES: usize = SEGMENT_BYTES / 10 * 6;
/// Records moved while the lock is held once.
const MOVE_RECORDS: usize = 32;

impl DefaultPager {
    /// Sees to it that the open segment has room. False when the tier can give none: then pages
    /// go to a paging file as they are.
    pub(crate) fn make_room(&self) -> Result<bool, PagerError> {
        let mut evictor = self.evictor.lock();
        {
            let mut state = self.state.lock();
            if let Some(id) = state.open_packed {
                let ram = state.segment(id).ram;
                let filled = ram.map_or(SEGMENT_BYTES, |ram| self.shared.arena.filled(ram.slot));
                if filled + PAGE_BYTES <= SEGMENT_BYTES {
                    return Ok(true);
                }
                self.seal(&mut state, id);
            }
        }
        loop {
            if self.open_new(Growth::InBudget) || self.pack_sparse() {
                return Ok(true);
            }
            match self.write_oldest() {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(PagerError::OutOfSpace) => {
                    return Ok(self.open_new(Growth::InLimit) || evictor.make_dense(self));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// No more is appended to a segment: it is filled up to a whole page, for direct I/O.
    pub(crate) fn seal(&self, state: &mut State, id: u32) {
        static ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];
        if state.open_packed == Some(id) {
            state.open_packed = None;
        }
        if let Some(ram) = state.segment(id).ram {
            let filled = self.shared.arena.filled(ram.slot);
            let gap = filled.next_multiple_of(PAGE_BYTES) - filled;
            self.shared.arena.append(ram.slot, &[&ZEROS[..gap]]);
        }
        state.settle(&self.shared, id);
    }

    /// Opens a new segment within the limits.
    fn open_new(&self, growth: Growth) -> bool {
        let mut state = self.state.lock();
        state.open_packed = state.make_packed(&self.shared, growth);
        state.open_packed.is_some()
    }

    /// Moves the records of the sparsest segment into a new one and opens that.
    fn pack_sparse(&self) -> bool {
        let (from, to) = {
            let mut state = self.state.lock();
            let sparsest = state
                .movable()
                .min_by_key(|(_, segment)| segment.live_bytes);
            let Some((from, _)) = sparsest.filter(|(_, segment)| segment.live_bytes < SPARSE_BYTES)
            else {
                return false;
            };
            let Some(to) = state.make_packed(&self.shared, Growth::Forced) else {
                return false;
            };
            state.segment(from).readers += 1;
            (from, to)
        };
        let moved = self.move_records(from, |state, _, record| {
            self.append_to(state, to, &[record])
        });
        let mut state = self.state.lock();
        state.segment(from).readers -= 1;
        state.settle(&self.shared, from);
        if moved {
            state.open_packed = Some(to);
        } else {
            self.seal(&mut state, to);
        }
        moved
    }

    /// Visits the records alive in a segment in RAM that the caller reads; `put` gives each its
    /// new place. False when one found none.
    pub(crate) fn move_records(
        &self,
        from: u32,
        mut put: impl FnMut(&mut State, Header, &[u8]) -> Option<Location>,
    ) -> bool {
        let Some(ram) = self.state.lock().segment(from).ram else {
            return true;
        };
        let bytes = self.shared.arena.read(ram.slot);
        let mut offset = 0;
        loop {
            let mut state = self.state.lock();
            for _ in 0..MOVE_RECORDS {
                let Some(header) = bytes.get(offset..).and_then(Header::unpack) else {
                    return true;
                };
                let next = offset + record_bytes(header.length);
                let old = Location::packed(from, offset, header.length);
                if state.table.get(header.object, header.page) == old {
                    let Some(new) = put(&mut state, header, &bytes[offset..next]) else {
                        return false;
                    };
                    state.place_page(&self.shared, header.object, header.page, new);
                }
                offset = next;
            }
        }
    }

    /// Writes the oldest segment of the tier to a paging file. False when this task has none.
    ///
    /// # Errors
    /// `OutOfSpace` when no paging file takes it.
    fn write_oldest(&self) -> Result<bool, PagerError> {
        if !self.shared.files.any() {
            return Err(PagerError::OutOfSpace);
        }
        let own = self.shared.gauges.slot();
        let mut avoid = 0;
        loop {
            let (id, slot) = {
                let mut state = self.state.lock();
                let oldest = state.movable().min_by_key(|(_, segment)| segment.age);
                let Some((id, segment)) = oldest else {
                    return Ok(false);
                };
                let slot = segment.ram.map_or(0, |ram| ram.slot);
                state.segment(id).readers += 1;
                (id, slot)
            };
            let written = match self.shared.files.claim(own, avoid) {
                Err(error) => Err((None, error)),
                Ok(place) => match self.write_segment(slot, place) {
                    Ok(()) => Ok(place),
                    Err(errno) => {
                        self.shared.files.release(place, own);
                        Err((Some((place, errno)), PagerError::Write(errno.0)))
                    }
                },
            };
            let mut state = self.state.lock();
            state.segment(id).readers -= 1;
            if let Ok(place) = written {
                let pages = state.segment(id).live as u64;
                state.written(&self.shared, id, place);
                add(&self.shared.gauges.counters().page_outs_spilled, pages);
            }
            state.settle(&self.shared, id);
            drop(state);
            match written {
                Ok(_) => return Ok(true),
                Err((Some((place, errno)), _)) => avoid = self.excuse(place, errno, avoid)?,
                Err((None, error)) => return Err(error),
            }
        }
    }

    fn write_segment(&self, slot: usize, place: Place) -> Result<(), Errno> {
        let fd = self.shared.files.fd(place.file)?;
        let bytes = self.shared.arena.read(slot);
        file::pwrite_all(fd, &bytes, place.offset())
    }

    /// Gives the memory of retired slots back to the system, without the lock.
    pub(crate) fn tidy(&self) {
        loop {
            let Some(ram) = self.state.lock().take_retired() else {
                return;
            };
            let cleared = self.shared.arena.clear(ram.slot, true);
            assert!(cleared, "a retired slot is in use");
            self.state.lock().slot_cleared(ram);
            if ram.charged {
                self.shared.gauges.uncharge();
            }
        }
    }
}
