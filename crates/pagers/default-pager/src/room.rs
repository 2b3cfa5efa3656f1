//! Room in the compressed tier: growing it, packing sparse segments, writing old ones out.

use farpage_object::{PAGE_BYTES, PagerError, SEGMENT_BYTES};
use farpage_sys::Errno;

use crate::DefaultPager;
use crate::behind::{Behind, Leaving};
use crate::dense::Evictor;
use crate::files::Place;
use crate::location::Location;
use crate::record::{Header, record_bytes};
use crate::segments::{Growth, State};

/// A segment with less alive than this is packed rather than written out.
pub(crate) const SPARSE_BYTES: usize = SEGMENT_BYTES / 10 * 8;
/// Records moved while the lock is held once.
const MOVE_RECORDS: usize = 32;

/// What only the one thread that makes room uses.
pub(crate) struct Room {
    evictor: Evictor,
    pub(crate) behind: Behind,
}

impl Room {
    /// With the ring of that `number`.
    pub(crate) fn new(number: usize) -> Option<Self> {
        Some(Self {
            evictor: Evictor::new()?,
            behind: Behind::new(number),
        })
    }
}

impl DefaultPager {
    /// Sees to it that the open segment has room. False when the tier can give none: then pages
    /// go to a paging file as they are.
    pub(crate) fn make_room(&self) -> Result<bool, PagerError> {
        let mut room = self.room.lock();
        let Room { evictor, behind } = &mut *room;
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
            state.resize(&self.shared);
        }
        let mut wrote = false;
        loop {
            if self.pack_sparse(Growth::ToPack) || self.open_new(Growth::InBudget) {
                if wrote {
                    self.write_behind(behind);
                }
                return Ok(true);
            }
            match self.write_oldest(behind) {
                Ok(true) => wrote = true,
                Ok(false) => return Ok(false),
                Err(PagerError::OutOfSpace) => {
                    return Ok(self.pack_sparse(Growth::Forced)
                        || self.open_new(Growth::InLimit)
                        || evictor.make_dense(self));
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

    /// Moves the records of the sparsest segment into a new one, and opens that.
    fn pack_sparse(&self, growth: Growth) -> bool {
        let (from, to) = {
            let mut state = self.state.lock();
            let sparsest = state
                .movable()
                .min_by_key(|(_, segment)| segment.live_bytes);
            let Some((from, _)) = sparsest.filter(|(_, segment)| segment.live_bytes < SPARSE_BYTES)
            else {
                return false;
            };
            let Some(to) = state.make_packed(&self.shared, growth) else {
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

    /// Writes a segment out, if there is one: the tier is given up.
    pub(crate) fn shed(&self) -> Result<(), PagerError> {
        if !self.shared.gauges.has_tier() || !self.shared.files.any() {
            return Ok(());
        }
        let mut room = self.room.lock();
        {
            let mut state = self.state.lock();
            if let Some(id) = state.open_packed {
                self.seal(&mut state, id);
            }
        }
        match self.write_oldest(&mut room.behind) {
            Ok(_) | Err(PagerError::OutOfSpace) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Writes the oldest segment of the tier to a paging file, unless one is on its way already.
    /// False when this task has none.
    ///
    /// # Errors
    /// `OutOfSpace` when no paging file takes it.
    fn write_oldest(&self, behind: &mut Behind) -> Result<bool, PagerError> {
        if self.end_write_behind(behind) {
            return Ok(true);
        }
        let mut avoid = 0;
        loop {
            let Some(leaving) = self.choose_oldest(avoid, 0)? else {
                return Ok(false);
            };
            let written = self.write_segment(leaving.slot, leaving.place);
            self.leave(&leaving, written.is_ok());
            match written {
                Ok(()) => return Ok(true),
                Err(errno) => avoid = self.excuse(leaving.place, errno, avoid)?,
            }
        }
    }

    /// Chooses the oldest segment of the tier, if `live_min` bytes of it are alive, and a place.
    pub(crate) fn choose_oldest(
        &self,
        avoid: u32,
        live_min: usize,
    ) -> Result<Option<Leaving>, PagerError> {
        if !self.shared.files.any() {
            return Err(PagerError::OutOfSpace);
        }
        let (id, slot) = {
            let mut state = self.state.lock();
            let oldest = state.movable().next();
            let Some((id, segment)) = oldest.filter(|(_, s)| s.live_bytes >= live_min) else {
                return Ok(None);
            };
            let slot = segment.ram.map_or(0, |ram| ram.slot);
            state.segment(id).readers += 1;
            (id, slot)
        };
        let own = self.shared.gauges.slot();
        match self.shared.files.claim(own, avoid) {
            Ok(place) => Ok(Some(Leaving { id, slot, place })),
            Err(error) => {
                let mut state = self.state.lock();
                state.segment(id).readers -= 1;
                state.settle(&self.shared, id);
                Err(error)
            }
        }
    }

    fn write_segment(&self, slot: usize, place: Place) -> Result<(), Errno> {
        let bytes = self.shared.arena.read(slot);
        self.shared
            .files
            .write(place.file, &[&*bytes], place.offset())
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
