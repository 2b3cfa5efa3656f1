//! fork: the child gets a copy-on-write copy of tables and compressed tier, and is made a holder of
//! every paging-file segment.
//!
//! The memory of the tier that both share stays charged to the parent, even after the parent has
//! freed its copy; the child pays for what it adds. Pages in shared segments likewise count in the
//! parent's gauges only, until the child writes them out itself.

use farpage_object::{ObjectId, PageIndex, PageRange, PagerError};

use crate::DefaultPager;
use crate::location::{At, Location};
use crate::record::{HEADER, Header};
use crate::segments::{Kind, State};
use crate::table::BLOCK_PAGES;

impl DefaultPager {
    /// Makes the pager whole and still (waits for all calls under way, keeps new ones waiting), and
    /// the task in `child_slot` a holder of every paging-file segment that this one holds. Exactly
    /// one of the `after_fork` calls must follow in each process.
    pub fn before_fork(&self, child_slot: usize) {
        self.gate.close();
        self.settle_behind();
        self.each_place(|files, place| files.share(place, child_slot));
    }

    /// In the parent, after the fork was made (`ok`) or refused.
    pub fn after_fork_parent(&self, ok: bool, child_slot: usize) {
        if !ok {
            self.each_place(|files, place| files.release(place, child_slot));
        }
        self.gate.open();
    }

    /// In the child, whose slot is `slot`: both would append to the same segments, so the child
    /// starts new ones. Its gauges are those of a task that has nothing yet.
    pub fn after_fork_child(&self, slot: usize) {
        self.shared.gauges.set_slot(slot);
        let mut state = self.state.lock();
        state.disown();
        if let Some(id) = state.open_packed {
            self.seal(&mut state, id);
        }
        if let Some(id) = state.open_raw.take() {
            state.settle(&self.shared, id);
        }
        drop(state);
        let rings = &self.shared.rings;
        rings.forget_writer();
        self.readers.each(|reader| reader.ring.abandon(rings));
        self.room.lock().behind.ring.abandon(rings);
        self.gate.open();
    }

    fn each_place(&self, mut visit: impl FnMut(&crate::files::Files, crate::files::Place)) {
        let state = self.state.lock();
        for place in state.segments.iter().filter_map(|segment| segment.place) {
            visit(&self.shared.files, place);
        }
    }

    /// Moves the contents of `from` to the same number of pages from `to` on (`mremap`); what was
    /// there is discarded.
    ///
    /// # Errors
    /// `OutOfSpace` when there is no memory for the table; then nothing was moved.
    ///
    /// # Panics
    /// When the two ranges overlap.
    pub fn move_pages(
        &self,
        object: ObjectId,
        from: PageRange,
        to: PageIndex,
    ) -> Result<(), PagerError> {
        let target = PageRange::new(to.0, to.0 + from.pages());
        assert!(from.intersect(target).is_empty(), "moving onto itself");
        self.gate.close();
        self.settle_behind();
        let mut state = self.state.lock();
        let moved = self.move_range(&mut state, object, from, target);
        drop(state);
        self.gate.open();
        self.tidy();
        moved
    }

    fn move_range(
        &self,
        state: &mut State,
        object: ObjectId,
        from: PageRange,
        target: PageRange,
    ) -> Result<(), PagerError> {
        let distance = target.start.0.wrapping_sub(from.start.0);
        let (mut blocks, mut last) = (0, u64::MAX);
        let mut next = from.start.0;
        while let Some(page) = state
            .table
            .next_in(object, PageRange::new(next, from.end.0))
        {
            let block = page.wrapping_add(distance) / BLOCK_PAGES;
            blocks += usize::from(block != last);
            last = block;
            next = page + 1;
        }
        if !state.table.reserve_blocks(blocks) {
            return Err(PagerError::OutOfSpace);
        }
        state.forget(&self.shared, object, target);
        let mut next = from.start.0;
        while let Some(page) = state
            .table
            .next_in(object, PageRange::new(next, from.end.0))
        {
            let new = page.wrapping_add(distance);
            let location = state.table.set(object, page, Location::NOWHERE);
            let location = self.rename(state, location, new);
            state.table.set(object, new, location);
            next = page + 1;
        }
        Ok(())
    }

    /// Gives a record its new name: in RAM it is written over (the gate is closed: nobody reads);
    /// in a paging file the location says that the old name stands there.
    fn rename(&self, state: &mut State, location: Location, page: u64) -> Location {
        let At::Packed {
            segment, offset, ..
        } = location.at()
        else {
            return location;
        };
        let segment = state.segment(segment);
        debug_assert!(matches!(segment.kind, Kind::Packed));
        let (Some(ram), None) = (segment.ram, segment.place) else {
            return location.moved();
        };
        let header = Header::unpack(&self.shared.arena.read(ram.slot)[offset..]);
        let Some(header) = header else {
            return location.moved();
        };
        let bytes: [u8; HEADER] = Header { page, ..header }.pack();
        let patched = self.shared.arena.patch(ram.slot, offset, &bytes);
        assert!(patched, "a record is read behind a closed gate");
        location
    }
}
