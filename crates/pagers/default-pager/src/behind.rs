//! Write-behind: while one segment fills, the oldest of the tier is on its way to a paging file.
//!
//! Measured on a virtual disk, ext4, O_DIRECT, 2 cores, segments filled by lz4 at 2:1, ms a segment
//! (median of 11, quartiles): filling alone 2.74 (2.50..2.95), writing alone 0.50 (0.43..0.56), one
//! after the other 3.26 (3.16..3.70), overlapped 2.95 (2.77..3.13), with two on their way 2.83
//! (2.68..3.07). One write on its way is all that this takes.
//!
//! Where a file grows, Linux has a thread of its own do the write, one for each thread that asks,
//! and keeps it. So only one asks: the page-out thread, which is known by its calls of `drain`.
//!
//! A segment on its way stays in the tier, and is read from there, until the write has succeeded.
//! A write that does not is forgotten: the segment is written again, by a plain system call, when
//! its room is needed, and the error of that call counts.

use farpage_sys::limits;

use crate::DefaultPager;
use crate::files::Place;
use crate::gauges::add;
use crate::rings::Lazy;
use crate::room::SPARSE_BYTES;

/// A segment that is being written to its place.
pub(crate) struct Leaving {
    pub(crate) id: u32,
    pub(crate) slot: usize,
    pub(crate) place: Place,
}

/// The write that is on its way, if any.
pub(crate) struct Behind {
    pub(crate) ring: Lazy,
    leaving: Option<Leaving>,
}

impl Behind {
    pub(crate) fn new(number: usize) -> Self {
        Self {
            ring: Lazy::new(number),
            leaving: None,
        }
    }

    fn has_ended(&mut self) -> bool {
        self.ring.made().is_none_or(|ring| ring.has_written())
    }
}

impl DefaultPager {
    /// Starts to write the oldest segment of the tier, where that can be done in a ring.
    pub(crate) fn write_behind(&self, behind: &mut Behind) {
        if behind.leaving.is_some() || !self.shared.rings.writes_here() {
            return;
        }
        let Some(ring) = behind.ring.ring(&self.shared.rings) else {
            return;
        };
        let Ok(Some(leaving)) = self.choose_oldest(0, SPARSE_BYTES) else {
            return;
        };
        let begun = self.shared.files.fd(leaving.place.file).is_ok_and(|fd| {
            let bytes = self.shared.arena.read(leaving.slot);
            let end = leaving.place.offset() + bytes.len() as u64;
            limits::allows_files_of(end) && ring.begin_write(fd, bytes, leaving.place.offset())
        });
        if begun {
            behind.leaving = Some(leaving);
        } else {
            self.leave(&leaving, false);
        }
    }

    /// Waits for the write on its way. True when a segment has left the tier by it.
    pub(crate) fn end_write_behind(&self, behind: &mut Behind) -> bool {
        let Some(leaving) = behind.leaving.take() else {
            return false;
        };
        let ring = behind.ring.made();
        let written = ring.is_some_and(|ring| ring.end_write(&self.shared.arena));
        self.leave(&leaving, written);
        let file = leaving.place.file;
        if !written && self.shared.files.others(1 << file) {
            self.shared.files.failed(file);
        }
        written
    }

    /// Notes that the write on its way has ended, if it has. Waits for nothing.
    pub(crate) fn look_behind(&self) {
        if let Some(mut room) = self.room.try_lock()
            && room.behind.has_ended()
        {
            self.end_write_behind(&mut room.behind);
        }
    }

    /// Sees to it that no write is on its way.
    pub(crate) fn settle_behind(&self) {
        self.end_write_behind(&mut self.room.lock().behind);
    }

    /// A segment was written, or could not be: then it stays in the tier.
    pub(crate) fn leave(&self, leaving: &Leaving, written: bool) {
        if !written {
            let own = self.shared.gauges.slot();
            self.shared.files.release(leaving.place, own);
        }
        let mut state = self.state.lock();
        let segment = state.segment(leaving.id);
        segment.readers -= 1;
        let pages = segment.live as u64;
        if written {
            state.written(&self.shared, leaving.id, leaving.place);
            let counters = self.shared.gauges.counters();
            add(&counters.page_outs_spilled, pages);
        }
        state.settle(&self.shared, leaving.id);
    }
}
