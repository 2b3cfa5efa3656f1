//! The address map: which addresses are managed, and who answers for their contents.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use farpage_object::{ObjectId, PAGE_SHIFT, PageRange, Pager};
use farpage_sys::file::Fd;
use farpage_sys::mem::{self, PROT_WRITE};

use crate::layout::PLACE_START;

/// Who answers for the pages of a region.
#[derive(Clone)]
pub struct Source {
    /// The memory object.
    pub object: ObjectId,
    /// Its pager.
    pub pager: Arc<dyn Pager>,
    /// Absent pages are zeros (a temporary object); else the pager is asked first.
    pub temporary: bool,
    /// Virtual page number of the object's page 0.
    pub origin: u64,
}

/// What the child of a fork gets of a region. Linux keeps the two apart, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnFork {
    /// Zeros (`MADV_WIPEONFORK`).
    pub wiped: bool,
    /// Nothing (`MADV_DONTFORK`), whatever `wiped` says.
    pub left_out: bool,
}

/// A run of addresses with one protection and one source.
#[derive(Clone)]
pub struct Region {
    /// First address.
    pub start: usize,
    /// One past the last.
    pub end: usize,
    /// Protection as the program set it.
    pub prot: u32,
    /// Protection key, 0 for none.
    pub key: i32,
    /// What a child gets of it.
    pub on_fork: OnFork,
    /// Who answers.
    pub source: Source,
    /// Something else is mapped in its place, so that nobody is asked.
    pub covered: bool,
    /// The file whose pages may be mapped in its place.
    pub file: Option<File>,
}

/// The file that a region's contents are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File {
    /// The file, open for reading as long as the region knows it.
    pub fd: Fd,
    /// What is at an address lies this many bytes from there in the file, modulo 2^64.
    shift: u64,
}

impl File {
    /// The file `fd` from `offset` on is what is at `start`.
    pub(crate) fn at(start: usize, fd: Fd, offset: u64) -> Self {
        let shift = offset.wrapping_sub(start as u64);
        Self { fd, shift }
    }

    /// Where in the file the contents of an address lie.
    pub(crate) fn offset(&self, address: usize) -> u64 {
        (address as u64).wrapping_add(self.shift)
    }
}

impl Region {
    /// Its virtual page numbers.
    pub fn pages(&self) -> PageRange {
        pages_of(self.start, self.end)
    }

    fn continues(&self, next: &Self) -> bool {
        self.end == next.start
            && self.prot == next.prot
            && self.key == next.key
            && self.on_fork == next.on_fork
            && self.covered == next.covered
            && self.file == next.file
            && self.source.object == next.source.object
            && self.source.origin == next.source.origin
    }
}

/// The virtual page numbers of `start .. end`.
pub(crate) fn pages_of(start: usize, end: usize) -> PageRange {
    PageRange::new(start as u64 >> PAGE_SHIFT, end as u64 >> PAGE_SHIFT)
}

/// The address of the first byte of a virtual page.
pub(crate) fn address_of(page: u64) -> usize {
    (page << PAGE_SHIFT) as usize
}

/// Regions by address; they do not overlap.
pub(crate) struct Regions {
    by_start: BTreeMap<usize, Region>,
    /// The room above [`PLACE_START`] that lies below or between regions: (bytes, first address). Without it, each
    /// search for room would go through all regions.
    rooms: BTreeSet<(usize, usize)>,
}

/// Smaller mappings are placed from the top down.
pub(crate) const FROM_BELOW: usize = 128 << 10;

impl Default for Regions {
    fn default() -> Self {
        Self {
            by_start: BTreeMap::new(),
            rooms: BTreeSet::from([(usize::MAX - PLACE_START, PLACE_START)]),
        }
    }
}

impl Regions {
    /// The region that holds `address`.
    pub(crate) fn find(&self, address: usize) -> Option<&Region> {
        let (_, region) = self.by_start.range(..=address).next_back()?;
        (address < region.end).then_some(region)
    }

    /// All of them, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Region> {
        self.by_start.values()
    }

    /// Changes what is in `start .. end`; regions that reach beyond keep the rest as it was.
    pub(crate) fn change(&mut self, start: usize, end: usize, change: impl Fn(&mut Region)) {
        let parts: Vec<Region> = self.within(start, end).collect();
        self.take_out(start, end);
        for mut part in parts {
            change(&mut part);
            self.put(part);
        }
    }

    /// True when one region holds all of `pages`, and is covered.
    pub(crate) fn is_covered(&self, pages: PageRange) -> bool {
        let region = self.find(address_of(pages.start.0));
        region.is_some_and(|region| region.covered && region.pages().intersect(pages) == pages)
    }

    /// Bytes that the program may write.
    pub(crate) fn demand_bytes(&self) -> usize {
        let writable = self.iter().filter(|region| region.prot & PROT_WRITE != 0);
        writable.map(|region| region.end - region.start).sum()
    }

    /// What of them is in memory while Linux fills them. Counting ends after a GiB, sooner where there are many regions: the
    /// rest counts as if it were all there. This runs on small stacks.
    pub(crate) fn in_memory_bytes(&self) -> u64 {
        const AT_ONCE: usize = 1024;
        // A call takes as long as a look at so many pages.
        const LEAST: usize = 64;
        let mut left = (1_usize << 30) >> PAGE_SHIFT;
        let mut bytes = 0;
        for region in self.iter() {
            let mut at = region.start;
            while at < region.end && left > 0 {
                let mut there = [0; AT_ONCE];
                let pages = ((region.end - at) >> PAGE_SHIFT).min(AT_ONCE);
                let there = &mut there[..pages];
                if mem::in_core(at, there).is_ok() {
                    bytes += there.iter().filter(|page| **page & 1 == 1).count() << PAGE_SHIFT;
                }
                at += pages << PAGE_SHIFT;
                left = left.saturating_sub(pages.max(LEAST));
            }
            bytes += region.end - at;
        }
        bytes as u64
    }

    /// The parts of regions that lie in `start .. end`.
    pub(crate) fn within(&self, start: usize, end: usize) -> impl Iterator<Item = Region> {
        let first = self.find(start).map_or(start, |region| region.start);
        self.by_start
            .range(first..end.max(first))
            .map(move |(_, region)| {
                let (from, to) = (region.start.max(start), region.end.min(end));
                Region {
                    start: from,
                    end: to,
                    ..region.clone()
                }
            })
    }

    /// Adds a region where there is none, joined with its neighbours where it continues them.
    pub(crate) fn insert(&mut self, region: Region) {
        let (start, end) = (region.start, region.end);
        self.forget_rooms(start, end);
        self.put(region);
        self.note_rooms(start, end);
    }

    /// As [`Regions::insert`], in the place of what was taken out.
    fn put(&mut self, mut region: Region) {
        debug_assert!(self.within(region.start, region.end).next().is_none());
        if let Some(after) = self.by_start.get(&region.end)
            && region.continues(after)
        {
            let (start, end) = (region.end, after.end);
            self.by_start.remove(&start);
            region.end = end;
        }
        let before = self
            .by_start
            .range(..region.start)
            .next_back()
            .map(|(start, _)| *start);
        if let Some(before) = before
            && self.by_start[&before].continues(&region)
        {
            region.start = before;
        }
        self.by_start.insert(region.start, region);
    }

    /// Takes `start .. end` out; regions that reach beyond keep the rest.
    pub(crate) fn remove(&mut self, start: usize, end: usize) {
        self.forget_rooms(start, end);
        self.take_out(start, end);
        self.note_rooms(start, end);
    }

    /// What is known of the rooms in and beside `start .. end` is about to change.
    fn forget_rooms(&mut self, start: usize, end: usize) {
        for room in self.rooms_beside(start, end) {
            self.rooms.remove(&room);
        }
    }

    fn note_rooms(&mut self, start: usize, end: usize) {
        let rooms = self.rooms_beside(start, end);
        self.rooms.extend(rooms);
    }

    /// The rooms that lie in `start .. end` or touch it. The last one ends nowhere.
    fn rooms_beside(&self, start: usize, end: usize) -> Vec<(usize, usize)> {
        let below = self.by_start.range(..start).next_back();
        let mut room = below.map_or(0, |(_, region)| region.end).max(PLACE_START);
        let mut rooms = Vec::new();
        let regions = self.by_start.range(start..);
        let regions = regions.map(|(start, region)| (*start, region.end));
        for (next, end_of_next) in regions.chain([(usize::MAX, usize::MAX)]) {
            if room > end {
                break;
            }
            if next > room {
                rooms.push((next - room, room));
            }
            room = end_of_next.max(PLACE_START);
        }
        rooms
    }

    /// As [`Regions::remove`], where all of it comes back before there is a search for room.
    fn take_out(&mut self, start: usize, end: usize) {
        self.split(start);
        self.split(end);
        let gone: Vec<usize> = self
            .by_start
            .range(start..end)
            .map(|(start, _)| *start)
            .collect();
        for start in gone {
            self.by_start.remove(&start);
        }
    }

    fn split(&mut self, at: usize) {
        let Some(region) = self.find(at).filter(|region| region.start < at) else {
            return;
        };
        let (low, high) = (
            Region {
                end: at,
                ..region.clone()
            },
            Region {
                start: at,
                ..region.clone()
            },
        );
        self.by_start.insert(low.start, low);
        self.by_start.insert(high.start, high);
    }

    /// Where `bytes` fit between [`PLACE_START`] and `below`, at a multiple of `align`: in the smallest room that is surely
    /// large enough.
    ///
    /// Small mappings are made from the top down, as Linux makes all: an allocator that wants one aligned makes it twice as
    /// large and gives the front back, which the next one then fills. Large ones are made from the bottom
    /// up, so that the last can grow where it is.
    pub(crate) fn room(&self, below: usize, bytes: usize, align: usize) -> Option<usize> {
        let enough = bytes.checked_add(align - (1 << PAGE_SHIFT))?;
        let mut rooms = self.rooms.range((enough, 0)..);
        rooms.find_map(|(size, room)| {
            let start = match bytes < FROM_BELOW {
                true => (room + size).min(below).saturating_sub(bytes) / align * align,
                false => room.next_multiple_of(align),
            };
            (start >= *room && start + bytes <= below).then_some(start)
        })
    }

    /// The lowest address from `from` at which `bytes` fit, a multiple of `align`, below `below`. This looks at all regions
    /// from there.
    pub(crate) fn gap(
        &self,
        from: usize,
        below: usize,
        bytes: usize,
        align: usize,
    ) -> Option<usize> {
        let mut room = self.find(from).map_or(from, |region| region.end);
        let mut regions = self.by_start.range(room..).map(|(_, region)| region);
        loop {
            let next = regions.next();
            let end = next.map_or(below, |region| region.start.min(below));
            let at = room.next_multiple_of(align);
            if at.saturating_add(bytes) <= end {
                return Some(at);
            }
            match next {
                Some(region) if end < below => room = region.end,
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use core::ops::Range;

    use farpage_object::{DataRequest, PageOut, PagerError, Supplied};

    use super::*;

    struct Nothing;

    impl Pager for Nothing {
        fn data_request(&self, _: DataRequest<'_>) -> Result<Supplied, PagerError> {
            Err(PagerError::Unavailable)
        }

        fn data_write(&self, _: ObjectId, _: &[PageOut<'_>]) -> Result<(), PagerError> {
            Err(PagerError::Dead)
        }
    }

    fn region(start: usize, end: usize, prot: u32) -> Region {
        let pager = Arc::new(Nothing);
        let source = Source {
            object: ObjectId(0),
            pager,
            temporary: true,
            origin: 0,
        };
        Region {
            start,
            end,
            prot,
            key: 0,
            on_fork: OnFork::default(),
            source,
            covered: false,
            file: None,
        }
    }

    fn shape(regions: &Regions) -> Vec<(usize, usize, u32)> {
        regions.iter().map(|r| (r.start, r.end, r.prot)).collect()
    }

    #[test]
    fn neighbours_join_and_holes_split() {
        let mut regions = Regions::default();
        regions.insert(region(0x1000, 0x3000, 3));
        regions.insert(region(0x5000, 0x6000, 3));
        regions.insert(region(0x3000, 0x5000, 3));
        assert_eq!(shape(&regions), [(0x1000, 0x6000, 3)]);
        regions.remove(0x2000, 0x3000);
        regions.insert(region(0x2000, 0x3000, 1));
        let want = [
            (0x1000, 0x2000, 3),
            (0x2000, 0x3000, 1),
            (0x3000, 0x6000, 3),
        ];
        assert_eq!(shape(&regions), want);
        let parts: Vec<_> = regions
            .within(0x1800, 0x4000)
            .map(|r| (r.start, r.end))
            .collect();
        assert_eq!(
            parts,
            [(0x1800, 0x2000), (0x2000, 0x3000), (0x3000, 0x4000)]
        );
    }

    #[test]
    fn a_part_is_changed_and_joined_again() {
        let mut regions = Regions::default();
        regions.insert(region(0x1000, 0x9000, 1));
        let cover = |regions: &mut Regions, start, end, covered| {
            regions.change(start, end, |region| region.covered = covered);
        };
        cover(&mut regions, 0x2000, 0x4000, true);
        cover(&mut regions, 0x4000, 0x6000, true);
        let want = [
            (0x1000, 0x2000, 1),
            (0x2000, 0x6000, 1),
            (0x6000, 0x9000, 1),
        ];
        assert_eq!(shape(&regions), want);
        assert!(regions.is_covered(PageRange::new(2, 6)));
        assert!(!regions.is_covered(PageRange::new(5, 7)));
        cover(&mut regions, 0x3000, 0x4000, false);
        assert!(!regions.is_covered(PageRange::new(2, 4)));
        cover(&mut regions, 0x1000, 0x9000, false);
        assert_eq!(shape(&regions), [(0x1000, 0x9000, 1)]);
    }

    #[test]
    fn gaps_are_found() {
        let mut regions = Regions::default();
        regions.insert(region(0x10000, 0x20000, 3));
        regions.insert(region(0x30000, 0x40000, 3));
        assert_eq!(
            regions.gap(0x10000, 1 << 30, 0x10000, 0x10000),
            Some(0x20000)
        );
        assert_eq!(
            regions.gap(0x10000, 1 << 30, 0x20000, 0x10000),
            Some(0x40000)
        );
        assert_eq!(regions.gap(0x10000, 0x40000, 0x20000, 0x10000), None);
    }

    /// The lowest place for it, by trying each.
    fn lowest(regions: &Regions, area: Range<usize>, bytes: usize, align: usize) -> Option<usize> {
        let starts = (area.start.next_multiple_of(align)..area.end).step_by(align);
        let mut fitting = starts.take_while(|start| start + bytes <= area.end);
        fitting.find(|start| regions.within(*start, start + bytes).next().is_none())
    }

    #[test]
    fn room_is_found_whatever_was_added_and_removed_before() {
        const PAGE: usize = 0x1000;
        for seed in 1..=200_u64 {
            let mut random = seed;
            let mut next = |below: usize| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                (random >> 11) as usize % below
            };
            let mut regions = Regions::default();
            for _ in 0..400 {
                let start = PLACE_START - 9 * PAGE + next(300) * PAGE;
                let end = start + (1 + next(40)) * PAGE;
                let prot = next(4) as u32;
                match next(8) {
                    0 => regions.remove(start, end),
                    1 => regions.change(start, end, |region| region.prot = prot),
                    _ => {
                        let from = [PLACE_START, PLACE_START - 9 * PAGE, start][next(3)];
                        let below = PLACE_START + [1000, 320][next(2)] * PAGE;
                        let (bytes, align) = ((1 + next(9)) * PAGE, PAGE << next(3));
                        let lowest = lowest(&regions, from..below, bytes, align);
                        assert_eq!(regions.gap(from, below, bytes, align), lowest, "{seed}");
                        let found = regions.room(below, bytes, align);
                        if let Some(start) = found {
                            let end = start + bytes;
                            assert!(start >= PLACE_START && end <= below, "{seed}");
                            assert!(start.is_multiple_of(align), "{seed}");
                            assert!(regions.within(start, end).next().is_none(), "{seed}");
                        }
                        if let Some(start) = found
                            && next(4) > 0
                        {
                            regions.insert(region(start, start + bytes, prot));
                        }
                    }
                }
                let rooms = regions.rooms_beside(0, usize::MAX);
                assert!(rooms.iter().eq(sorted(&regions.rooms).iter()), "{seed}");
            }
        }
    }

    fn sorted(rooms: &BTreeSet<(usize, usize)>) -> Vec<(usize, usize)> {
        let mut rooms: Vec<_> = rooms.iter().copied().collect();
        rooms.sort_by_key(|(_, start)| *start);
        rooms
    }

    #[test]
    fn what_is_freed_is_used_for_what_has_its_size() {
        let mut regions = Regions::default();
        let mut at = PLACE_START;
        for pages in [3, 5, 3, 9, 3] {
            let end = at + pages * 0x1000;
            regions.insert(region(at, end, 3));
            at = end;
        }
        let [five, nine] = [PLACE_START + 0x3000, PLACE_START + 0xb000];
        regions.remove(nine, nine + 0x9000);
        regions.remove(five, five + 0x5000);
        let mut place = |pages: usize| {
            let place = regions.room(at << 1, pages << 12, 0x1000);
            let start = place.unwrap();
            regions.insert(region(start, start + (pages << 12), 3));
            start
        };
        assert_eq!(place(9), nine);
        assert_eq!(place(6), (at << 1) - 0x6000, "from the top");
        assert_eq!(place(4), five + 0x1000);
        assert_eq!(place(1), five);
        assert_eq!(place(FROM_BELOW >> 12), at);
    }

    #[test]
    fn small_memory_whose_front_is_given_back_lies_together() {
        let mut regions = Regions::default();
        for _ in 0..100 {
            let start = regions.room(PLACE_START << 1, 0x8000, 0x1000);
            let start = start.unwrap();
            regions.insert(region(start, start + 0x8000, 3));
            regions.remove(start, start + 0x4000);
        }
        let end = PLACE_START << 1;
        assert_eq!(shape(&regions), [(end - 100 * 0x4000, end, 3)]);
    }
}
