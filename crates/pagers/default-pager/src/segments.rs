//! Segments and the records alive in them: what the lock protects. Nothing here does I/O.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use farpage_object::{ObjectId, PageRange, SEGMENT_BYTES};
use farpage_sys::arena::Arena;

use crate::files::{Files, Place};
use crate::gauges::Gauges;
use crate::location::{At, Location};
use crate::record::record_bytes;
use crate::rings::Permission;
use crate::sizing::{Pages, Sizing, Zones};
use crate::table::Table;

/// Pages in a raw segment.
pub(crate) const RAW_SLOTS: usize = SEGMENT_BYTES / farpage_object::PAGE_BYTES;

/// What all parts of the pager share and nothing of which needs the lock.
pub(crate) struct Shared {
    pub(crate) gauges: Gauges,
    pub(crate) files: Files,
    pub(crate) rings: Permission,
    pub(crate) arena: Arena,
}

/// What a segment holds.
pub(crate) enum Kind {
    /// Nothing: the number may be given out.
    Free,
    /// Compressed records.
    Packed,
    /// Whole pages; only ever in a paging file.
    Raw(Box<RawSlots>),
}

/// The slots of a raw segment.
pub(crate) struct RawSlots {
    pub(crate) crc: [u32; RAW_SLOTS],
    live: [u64; RAW_SLOTS / 64],
    /// Slots from here on were never given out.
    pub(crate) next: usize,
}

impl RawSlots {
    pub(crate) fn new() -> Option<Box<Self>> {
        let mut one = Vec::new();
        one.try_reserve_exact(1).ok()?;
        one.push(Self {
            crc: [0; RAW_SLOTS],
            live: [0; RAW_SLOTS / 64],
            next: 0,
        });
        let one: Box<[Self; 1]> = one.into_boxed_slice().try_into().ok()?;
        let [slots] = *one;
        Some(Box::new(slots))
    }

    /// The first dead slots side by side that were used before, up to `wanted`: where, how many.
    pub(crate) fn hole(&self, wanted: usize) -> Option<(usize, usize)> {
        let dead = |slot: &usize| self.live[slot / 64] >> (slot % 64) & 1 == 0;
        let first = (0..self.next).find(dead)?;
        let count = (first..self.next).take(wanted).take_while(dead).count();
        Some((first, count))
    }
}

/// RAM that a segment takes.
#[derive(Clone, Copy)]
pub(crate) struct Ram {
    pub(crate) slot: usize,
    /// It was charged to this task (not so after fork: the parent pays for what both share).
    pub(crate) charged: bool,
}

/// How far the compressed tier may grow for one more segment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Growth {
    /// Within the tier's limit and the budget.
    InBudget,
    /// Within the tier's limit: where no paging file takes pages, compressing them is the only
    /// way to come back into the budget.
    InLimit,
    /// Within the budget, for as long as it takes to free another segment.
    ToPack,
    /// The same, where that is the only way to free one.
    Forced,
}

/// One segment. With `ram` alone it is in the compressed tier; with `place` it is in a paging file,
/// and `ram`, if it is still there, only waits for its readers.
pub(crate) struct Segment {
    pub(crate) kind: Kind,
    pub(crate) ram: Option<Ram>,
    pub(crate) place: Option<Place>,
    /// Records alive, and their bytes.
    pub(crate) live: usize,
    pub(crate) live_bytes: usize,
    /// Reads under way without the lock: memory and place must stay.
    pub(crate) readers: usize,
    /// Writes under way whose records are not in the table yet.
    pub(crate) writers: usize,
    /// Its pages count in this task's gauges.
    counted: bool,
    /// Age: later ones are larger.
    pub(crate) age: u64,
    /// Bytes of records here that were tried with the dense level.
    #[cfg_attr(not(feature = "zstd"), expect(dead_code))]
    pub(crate) dense_bytes: usize,
}

/// Everything behind the pager's lock.
pub(crate) struct State {
    pub(crate) table: Table,
    pub(crate) segments: Vec<Segment>,
    /// Packed segments in the tier and those that left it lately, by age, with their numbers. Those
    /// that are gone stay until the next look, see `State::resize`.
    packed: Vec<(u64, u32)>,
    free: Vec<u32>,
    /// Empty, uncharged slots of the arena.
    slots: Vec<usize>,
    /// Slots nobody reads any more, still charged and with memory. See `DefaultPager::tidy`.
    retired: Vec<Ram>,
    /// Where records are appended.
    pub(crate) open_packed: Option<u32>,
    /// Where raw pages are appended.
    pub(crate) open_raw: Option<u32>,
    /// Segment where the last dead slots were found.
    pub(crate) hole_from: usize,
    ages: u64,
    pub(crate) sizing: Sizing,
}

impl State {
    pub(crate) fn new(slots: usize) -> Option<Self> {
        let (mut free_slots, mut retired) = (Vec::new(), Vec::new());
        free_slots.try_reserve_exact(slots).ok()?;
        retired.try_reserve_exact(slots).ok()?;
        free_slots.extend((0..slots).rev());
        Some(Self {
            table: Table::default(),
            segments: Vec::new(),
            packed: Vec::new(),
            free: Vec::new(),
            slots: free_slots,
            retired,
            open_packed: None,
            open_raw: None,
            hole_from: 0,
            ages: 0,
            sizing: Sizing::new(),
        })
    }

    pub(crate) fn segment(&mut self, id: u32) -> &mut Segment {
        &mut self.segments[id as usize]
    }

    /// A new segment, `None` when memory is short.
    fn make(&mut self, kind: Kind, ram: Option<Ram>, place: Option<Place>) -> Option<u32> {
        self.ages += 1;
        let segment = Segment {
            kind,
            ram,
            place,
            live: 0,
            live_bytes: 0,
            readers: 0,
            writers: 0,
            counted: true,
            age: self.ages,
            dense_bytes: 0,
        };
        if let Some(id) = self.free.pop() {
            self.segments[id as usize] = segment;
            return Some(id);
        }
        let id = u32::try_from(self.segments.len()).ok()?;
        self.segments.try_reserve(1).ok()?;
        // Every number fits into the list of free ones, so that freeing cannot fail.
        let capacity = self.segments.capacity();
        self.free
            .try_reserve(capacity.saturating_sub(self.free.len()))
            .ok()?;
        self.segments.push(segment);
        Some(id)
    }

    /// A new packed segment in RAM, as far as `growth` allows. `None` when there is no room.
    pub(crate) fn make_packed(&mut self, shared: &Shared, growth: Growth) -> Option<u32> {
        self.packed.try_reserve(1).ok()?;
        let ram = self.take_ram(shared, growth)?;
        let Some(id) = self.make(Kind::Packed, Some(ram), None) else {
            self.retired.push(ram);
            return None;
        };
        self.packed.push((self.ages, id));
        Some(id)
    }

    fn take_ram(&mut self, shared: &Shared, growth: Growth) -> Option<Ram> {
        let gauges = &shared.gauges;
        let limit = match growth {
            Growth::InBudget if shared.files.any() => gauges.best(),
            Growth::InBudget | Growth::InLimit => gauges.most(),
            Growth::ToPack | Growth::Forced => u64::MAX,
        };
        // A slot that was given up a moment ago is warm and still paid for.
        let tier = gauges.control.compressed_bytes.load(Ordering::Relaxed);
        if tier <= limit {
            let warm = self.retired.iter().position(|ram| ram.charged);
            if let Some(ram) = warm.map(|at| self.retired.swap_remove(at)) {
                let cleared = shared.arena.clear(ram.slot, false);
                assert!(cleared, "a retired slot is in use");
                return Some(ram);
            }
        }
        if self.slots.is_empty() {
            return None;
        }
        let paid = match growth {
            Growth::InBudget | Growth::ToPack => gauges.try_charge(limit, true),
            Growth::InLimit | Growth::Forced => gauges.try_charge(limit, false),
        };
        let slot = if paid { self.slots.pop()? } else { return None };
        Some(Ram {
            slot,
            charged: true,
        })
    }

    /// A new raw segment at `place`, `None` when memory is short.
    pub(crate) fn make_raw(&mut self, slots: Box<RawSlots>, place: Place) -> Option<u32> {
        self.make(Kind::Raw(slots), None, Some(place))
    }

    /// Notes one more record in a segment.
    pub(crate) fn born(&mut self, shared: &Shared, location: Location) {
        let (id, bytes) = match location.at() {
            At::Nowhere | At::Zero => return,
            At::Packed {
                segment, length, ..
            } => (segment, record_bytes(length)),
            At::Raw { segment, slot } => {
                if let Kind::Raw(slots) = &mut self.segment(segment).kind {
                    slots.live[slot / 64] |= 1 << (slot % 64);
                }
                (segment, farpage_object::PAGE_BYTES)
            }
        };
        let segment = self.segment(id);
        segment.live += 1;
        segment.live_bytes += bytes;
        segment.count(shared, 1);
    }

    /// Notes that a record is dead.
    pub(crate) fn died(&mut self, shared: &Shared, location: Location) {
        let (id, bytes) = match location.at() {
            At::Nowhere | At::Zero => return,
            At::Packed {
                segment, length, ..
            } => (segment, record_bytes(length)),
            At::Raw { segment, slot } => {
                if let Kind::Raw(slots) = &mut self.segment(segment).kind {
                    slots.live[slot / 64] &= !(1 << (slot % 64));
                }
                (segment, farpage_object::PAGE_BYTES)
            }
        };
        let segment = self.segment(id);
        segment.live -= 1;
        segment.live_bytes -= bytes;
        segment.count(shared, -1);
        self.settle(shared, id);
    }

    /// Sets where a page is; the record it had dies.
    pub(crate) fn place_page(
        &mut self,
        shared: &Shared,
        object: ObjectId,
        page: u64,
        location: Location,
    ) {
        self.born(shared, location);
        let old = self.table.set(object, page, location);
        self.died(shared, old);
    }

    /// Forgets all of `range`.
    pub(crate) fn forget(&mut self, shared: &Shared, object: ObjectId, range: PageRange) {
        let mut table = core::mem::take(&mut self.table);
        table.remove_range(object, range, |location| self.died(shared, location));
        self.table = table;
    }

    /// Forgets everything: the pager ends.
    pub(crate) fn forget_all(&mut self, shared: &Shared) {
        let table = core::mem::take(&mut self.table);
        table.scan(0, |_, _, location| {
            self.died(shared, location);
            true
        });
    }

    /// Frees what a segment needs no longer. Called whenever one of its counts fell.
    pub(crate) fn settle(&mut self, shared: &Shared, id: u32) {
        let segment = &mut self.segments[id as usize];
        if segment.readers > 0 {
            return;
        }
        let dead = segment.live == 0 && segment.writers == 0;
        if dead || segment.place.is_some() {
            self.retired.extend(segment.ram.take());
        }
        if !dead || matches!(segment.kind, Kind::Free) {
            return;
        }
        segment.kind = Kind::Free;
        if let Some(place) = segment.place.take() {
            shared.files.release(place, shared.gauges.slot());
        }
        for open in [&mut self.open_packed, &mut self.open_raw] {
            if *open == Some(id) {
                *open = None;
            }
        }
        self.free.push(id);
    }

    /// A packed segment is in the paging file now: its pages change tier.
    pub(crate) fn written(&mut self, shared: &Shared, id: u32, place: Place) {
        let segment = self.segment(id);
        let pages = segment.live as i64;
        if segment.counted {
            shared.gauges.in_tier(-pages);
        }
        segment.counted = true;
        segment.place = Some(place);
        shared.gauges.in_files(pages);
    }

    /// The zones of the compressed tier, as of now, and the pages that lie in those of before.
    /// Segments that left before those zones are remembered no longer.
    fn zones(&mut self) -> (Zones, Pages) {
        let before = self.sizing.zones();
        let mut pages = Pages::default();
        let mut oldest = self.ages + 1;
        let segments = &self.segments;
        self.packed.retain(|&(age, id)| {
            let segment = &segments[id as usize];
            if segment.age != age || matches!(segment.kind, Kind::Free) {
                return false;
            }
            let live = segment.live as u64;
            if segment.is_in_tier() {
                oldest = oldest.min(age);
                pages.near += live * u64::from(age >= before.near);
            } else if age < before.gone {
                return false;
            }
            pages.far += live * u64::from(age < before.far);
            true
        });
        (Zones::of(oldest, self.ages + 1), pages)
    }

    /// Looks again how large the tier should be: a segment is full.
    pub(crate) fn resize(&mut self, shared: &Shared) {
        let (zones, pages) = self.zones();
        let change = self.sizing.turn(pages, zones, shared.gauges.sizes());
        shared.gauges.resize(change);
    }

    /// A retired slot whose memory is to be given back.
    pub(crate) fn take_retired(&mut self) -> Option<Ram> {
        self.retired.pop()
    }

    /// A slot is empty again.
    pub(crate) fn slot_cleared(&mut self, ram: Ram) {
        self.slots.push(ram.slot);
    }

    /// In a forked child: what both share is the parent's to pay for.
    pub(crate) fn disown(&mut self) {
        for segment in &mut self.segments {
            segment.counted = false;
            if let Some(ram) = &mut segment.ram {
                ram.charged = false;
            }
        }
        for ram in &mut self.retired {
            ram.charged = false;
        }
    }

    /// Packed segments of the tier that can be moved, with their numbers, the oldest first.
    pub(crate) fn movable(&self) -> impl Iterator<Item = (u32, &Segment)> {
        let packed = self.packed.iter().map(|&(age, id)| (age, id));
        let segments = packed.map(|(age, id)| (age, id, &self.segments[id as usize]));
        let movable = segments.filter(|(age, id, segment)| {
            segment.age == *age
                && segment.is_in_tier()
                && segment.readers == 0
                && Some(*id) != self.open_packed
        });
        movable.map(|(_, id, segment)| (id, segment))
    }
}

impl Segment {
    /// True when its records are in RAM and nowhere else.
    fn is_in_tier(&self) -> bool {
        matches!(self.kind, Kind::Packed) && self.ram.is_some() && self.place.is_none()
    }

    fn count(&self, shared: &Shared, pages: i64) {
        if !self.counted {
            return;
        }
        if self.place.is_some() {
            shared.gauges.in_files(pages);
        } else {
            shared.gauges.in_tier(pages);
        }
    }
}
