//! Pages, ranges of pages, and what a thread may want to do with them.

/// Bytes in one page.
pub const PAGE_BYTES: usize = 4096;
/// log2 of [`PAGE_BYTES`].
pub const PAGE_SHIFT: u32 = 12;

/// Names a memory object inside one kernel. Never reused while the kernel lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u32);

/// A page's position in its memory object, counted in pages from the object's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageIndex(pub u64);

impl PageIndex {
    /// The page that holds byte `offset`.
    pub const fn containing(offset: u64) -> Self {
        Self(offset >> PAGE_SHIFT)
    }

    /// The byte offset of this page's first byte.
    pub const fn offset(self) -> u64 {
        self.0 << PAGE_SHIFT
    }
}

/// A half-open run of pages `start .. end` of one memory object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRange {
    /// First page.
    pub start: PageIndex,
    /// One past the last page; never below `start`.
    pub end: PageIndex,
}

impl PageRange {
    /// The pages `start .. end`.
    ///
    /// # Panics
    /// When `end` is below `start`.
    pub const fn new(start: u64, end: u64) -> Self {
        assert!(start <= end, "a page range ends before it starts");
        Self {
            start: PageIndex(start),
            end: PageIndex(end),
        }
    }

    /// The single page `page`.
    pub const fn one(page: PageIndex) -> Self {
        Self {
            start: page,
            end: PageIndex(page.0 + 1),
        }
    }

    /// Number of pages.
    pub const fn pages(self) -> u64 {
        self.end.0 - self.start.0
    }

    /// Number of bytes.
    pub const fn bytes(self) -> u64 {
        self.pages() << PAGE_SHIFT
    }

    /// True when there is no page in the range.
    pub const fn is_empty(self) -> bool {
        self.start.0 == self.end.0
    }

    /// True when `page` lies in the range.
    pub const fn contains(self, page: PageIndex) -> bool {
        self.start.0 <= page.0 && page.0 < self.end.0
    }

    /// The pages that both ranges have; empty (at the larger start) when there are none.
    pub fn intersect(self, other: Self) -> Self {
        let start = self.start.0.max(other.start.0);
        let end = self.end.0.min(other.end.0).max(start);
        Self::new(start, end)
    }

    /// Runs of at most `pages` pages, in order.
    pub fn chunks(self, pages: u64) -> impl Iterator<Item = Self> {
        let starts = (self.start.0..self.end.0).step_by(pages as usize);
        starts.map(move |start| Self::new(start, self.end.0.min(start + pages)))
    }

    /// Each page, in order.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = PageIndex> {
        (self.start.0..self.end.0).map(PageIndex)
    }
}

/// What an access wants, or what a lock forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reading only.
    Read,
    /// Writing, and reading with it.
    Write,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_intersect() {
        let a = PageRange::new(2, 8);
        assert_eq!(a.intersect(PageRange::new(4, 20)), PageRange::new(4, 8));
        assert!(a.intersect(PageRange::new(8, 9)).is_empty());
        assert!(a.intersect(PageRange::new(0, 1)).is_empty());
        assert_eq!(a.bytes(), 6 * 4096);
    }

    #[test]
    fn offsets_round_trip() {
        assert_eq!(PageIndex::containing(8191), PageIndex(1));
        assert_eq!(PageIndex(3).offset(), 12288);
    }
}
