//! Slots of raw segments for pages on their way to a paging file.
//!
//! As long as there is room, pages are appended. When no file gives another segment, the slots of
//! dead pages are used again: in segments that this task alone holds, as another holder may have
//! pages there that are alive. Such slots have their disk space already.

use farpage_object::PagerError;

use crate::DefaultPager;
use crate::files::Place;
use crate::segments::{Kind, RAW_SLOTS, RawSlots, State};

/// Slots given out for one write.
pub(crate) struct SlotRun {
    pub(crate) segment: u32,
    pub(crate) place: Place,
    pub(crate) first: usize,
    pub(crate) count: usize,
}

impl DefaultPager {
    /// Gives out up to `wanted` slots of the open raw segment, or of a new one.
    pub(crate) fn reserve_slots(&self, wanted: usize, avoid: u32) -> Result<SlotRun, PagerError> {
        if let Some(run) = self.reserve_open(wanted, avoid) {
            return Ok(run);
        }
        let _growing = self.growing.lock();
        if let Some(run) = self.reserve_open(wanted, avoid) {
            return Ok(run);
        }
        let slots = RawSlots::new().ok_or(PagerError::OutOfSpace)?;
        let own = self.shared.gauges.slot();
        let place = match self.shared.files.claim(own, avoid) {
            Err(PagerError::OutOfSpace) => {
                let hole = self.reserve_hole(wanted);
                return hole.ok_or(PagerError::OutOfSpace);
            }
            claimed => claimed?,
        };
        let mut state = self.state.lock();
        let Some(id) = state.make_raw(slots, place) else {
            self.shared.files.release(place, own);
            return Err(PagerError::OutOfSpace);
        };
        state.open_raw = Some(id);
        reserve_in(&mut state, id, wanted).ok_or(PagerError::OutOfSpace)
    }

    fn reserve_open(&self, wanted: usize, avoid: u32) -> Option<SlotRun> {
        let mut state = self.state.lock();
        let id = state.open_raw?;
        let file = state.segment(id).place?.file;
        let usable = avoid >> file & 1 == 0 && !self.shared.files.is_draining(file);
        let run = usable.then(|| reserve_in(&mut state, id, wanted)).flatten();
        if run.is_none() {
            state.open_raw = None;
            state.settle(&self.shared, id);
        }
        run
    }

    /// Gives out dead slots side by side, up to `wanted`, wherever the first are found.
    fn reserve_hole(&self, wanted: usize) -> Option<SlotRun> {
        let own = self.shared.gauges.slot();
        let mut state = self.state.lock();
        let count = state.segments.len();
        for step in 0..count {
            let id = (state.hole_from + step) % count;
            let segment = &mut state.segments[id];
            let (Kind::Raw(slots), Some(place)) = (&segment.kind, segment.place) else {
                continue;
            };
            let files = &self.shared.files;
            // Where there is no other file, only writing tells whether it works again.
            let usable = !(files.is_suspect(place.file) && files.others(1 << place.file))
                && segment.live < slots.next
                && segment.readers == 0
                && segment.writers == 0
                && !files.is_draining(place.file)
                && files.is_alone(place, own);
            let hole = if usable { slots.hole(wanted) } else { None };
            if let Some((first, count)) = hole {
                segment.writers += 1;
                state.hole_from = id;
                return Some(SlotRun {
                    segment: id as u32,
                    place,
                    first,
                    count,
                });
            }
        }
        None
    }
}

fn reserve_in(state: &mut State, id: u32, wanted: usize) -> Option<SlotRun> {
    let segment = state.segment(id);
    let place = segment.place?;
    let Kind::Raw(slots) = &mut segment.kind else {
        return None;
    };
    let first = slots.next;
    let count = wanted.min(RAW_SLOTS - first);
    if count == 0 {
        return None;
    }
    slots.next += count;
    segment.writers += 1;
    Some(SlotRun {
        segment: id,
        place,
        first,
        count,
    })
}
