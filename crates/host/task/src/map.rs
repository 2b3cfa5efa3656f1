//! What is allocated where: pure book-keeping.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::object::{FrozenFile, Object, View};
use crate::{Inheritance, Protection};

/// What a piece is made of.
#[derive(Clone, Debug)]
pub(crate) enum Backing {
    /// Memory of this task alone, zeros at first.
    Zeros,
    /// A sealed file from an offset on, and this task's copies of pages that it wrote to.
    Frozen(Arc<FrozenFile>, u64),
    /// An object from an offset on.
    Shared(Arc<Object>, u64),
}

impl Backing {
    /// The file that lies beneath, and where in it.
    pub(crate) fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        match self {
            Self::Zeros => None,
            Self::Frozen(file, offset) => Some((file.file(), *offset)),
            Self::Shared(object, offset) => Some((object.file(), *offset)),
        }
    }

    /// How it is mapped, where the host kernel answers for it.
    pub(crate) fn view(&self) -> Option<&View> {
        match self {
            Self::Zeros | Self::Frozen(..) => None,
            Self::Shared(object, _) => object.view(),
        }
    }

    /// The same, so many bytes further on.
    pub(crate) fn advanced(&self, bytes: u64) -> Self {
        match self {
            Self::Zeros => Self::Zeros,
            Self::Frozen(file, offset) => Self::Frozen(Arc::clone(file), offset + bytes),
            Self::Shared(object, offset) => Self::Shared(Arc::clone(object), offset + bytes),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Zeros, Self::Zeros) => true,
            (Self::Frozen(a, x), Self::Frozen(b, y)) => Arc::ptr_eq(a, b) && x == y,
            (Self::Shared(a, x), Self::Shared(b, y)) => Arc::ptr_eq(a, b) && x == y,
            (Self::Zeros | Self::Frozen(..) | Self::Shared(..), _) => false,
        }
    }
}

/// What is the same throughout a piece.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) protection: Protection,
    pub(crate) max_protection: Protection,
    pub(crate) inheritance: Inheritance,
    pub(crate) backing: Backing,
}

impl Piece {
    /// As `vm_allocate` makes it.
    pub(crate) fn new() -> Self {
        Self {
            protection: Protection::DEFAULT,
            max_protection: Protection::ALL,
            inheritance: Inheritance::Copy,
            backing: Backing::Zeros,
        }
    }

    fn advanced(&self, bytes: u64) -> Self {
        let backing = self.backing.advanced(bytes);
        Self {
            backing,
            ..self.clone()
        }
    }

    /// `next` goes on where this ends, `bytes` further on.
    fn goes_on_with(&self, next: &Self, bytes: u64) -> bool {
        self.protection == next.protection
            && self.max_protection == next.max_protection
            && self.inheritance == next.inheritance
            && self.backing.advanced(bytes).is_same(&next.backing)
    }
}

/// Pieces by their first address, with where they end. Invariant: they do not overlap, none is
/// empty, and none goes on with the next.
#[derive(Debug, Default)]
pub(crate) struct Map(BTreeMap<u64, (u64, Piece)>);

impl Map {
    /// How many pieces there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// A piece goes on before and after `range`.
    pub(crate) fn is_middle(&self, range: &Range<u64>) -> bool {
        let before = self.0.range(..range.start).next_back();
        before.is_some_and(|(_, (end, _))| *end > range.end)
    }

    /// The parts of pieces that lie in `range`, in order.
    pub(crate) fn within(&self, range: &Range<u64>) -> Vec<(Range<u64>, Piece)> {
        let before = self.0.range(..range.start).next_back();
        let inside = self.0.range(range.clone());
        let all = before.into_iter().chain(inside);
        all.filter(|(_, (end, _))| *end > range.start)
            .map(|(&start, (end, piece))| {
                let from = start.max(range.start);
                (from..range.end.min(*end), piece.advanced(from - start))
            })
            .collect()
    }

    /// The same, if they leave nothing out.
    pub(crate) fn whole(&self, range: &Range<u64>) -> Option<Vec<(Range<u64>, Piece)>> {
        let parts = self.within(range);
        let mut at = range.start;
        for (part, _) in &parts {
            if part.start != at {
                return None;
            }
            at = part.end;
        }
        (at == range.end).then_some(parts)
    }

    /// All pieces.
    pub(crate) fn all(&self) -> Vec<(Range<u64>, Piece)> {
        self.within(&(0..u64::MAX))
    }

    /// Nothing is in `range` any more.
    pub(crate) fn remove(&mut self, range: &Range<u64>) {
        let before = self.0.range(..range.start).next_back();
        let cut = before.and_then(|(&start, (end, _))| (*end > range.start).then_some(start));
        let inside = self.0.range(range.clone()).map(|(&start, _)| start);
        let starts: Vec<u64> = cut.into_iter().chain(inside).collect();
        for start in starts {
            let Some((end, piece)) = self.0.remove(&start) else {
                continue;
            };
            if range.end < end {
                let rest = piece.advanced(range.end - start);
                self.0.insert(range.end, (end, rest));
            }
            if start < range.start {
                self.0.insert(start, (range.start, piece));
            }
        }
    }

    /// `piece` is in `range`, whatever was there.
    pub(crate) fn put(&mut self, range: &Range<u64>, piece: Piece) {
        self.remove(range);
        let (mut start, mut end, mut piece) = (range.start, range.end, piece);
        if let Some((&before, (at, left))) = self.0.range(..start).next_back()
            && *at == start
            && left.goes_on_with(&piece, start - before)
        {
            (start, piece) = (before, left.clone());
        }
        if let Some((after, right)) = self.0.get(&end)
            && piece.goes_on_with(right, end - start)
        {
            let after = *after;
            self.0.remove(&end);
            end = after;
        }
        self.0.insert(start, (end, piece));
    }

    /// The lowest place in `area` for so many bytes that is a multiple of `align`.
    pub(crate) fn gap(&self, area: &Range<u64>, bytes: u64, align: u64) -> Option<u64> {
        let mut at = area.start.next_multiple_of(align);
        for (&start, (end, _)) in self.0.range(area.clone()) {
            if at.checked_add(bytes)? <= start {
                return Some(at);
            }
            at = at.max(end.next_multiple_of(align));
        }
        (at.checked_add(bytes)? <= area.end).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(read: bool) -> Piece {
        let protection = Protection {
            read,
            ..Protection::DEFAULT
        };
        Piece {
            protection,
            ..Piece::new()
        }
    }

    fn ranges(map: &Map) -> Vec<(u64, u64)> {
        let all = map.all().into_iter();
        all.map(|(range, _)| (range.start, range.end)).collect()
    }

    #[test]
    fn pieces_are_cut_and_grow_together() {
        let mut map = Map::default();
        map.put(&(10..20), piece(true));
        map.put(&(20..30), piece(true));
        assert_eq!(ranges(&map), [(10, 30)]);
        map.put(&(14..16), piece(false));
        assert_eq!(ranges(&map), [(10, 14), (14, 16), (16, 30)]);
        assert!(map.whole(&(12..29)).is_some() && map.whole(&(9..12)).is_none());
        map.put(&(14..16), piece(true));
        assert_eq!(ranges(&map), [(10, 30)]);
        assert!(map.is_middle(&(11..29)) && !map.is_middle(&(10..29)));
        assert!(!map.is_middle(&(11..30)) && !map.is_middle(&(9..31)));
        map.remove(&(12..15));
        assert_eq!(ranges(&map), [(10, 12), (15, 30)]);
        assert!(map.whole(&(11..16)).is_none());
        assert_eq!(ranges(&map), [(10, 12), (15, 30)]);
        assert_eq!(map.gap(&(0..40), 3, 1), Some(0));
        assert_eq!(map.gap(&(10..40), 3, 1), Some(12));
        assert_eq!(map.gap(&(10..40), 4, 4), Some(32));
        assert_eq!(map.gap(&(10..40), 11, 1), None);
        assert_eq!(map.gap(&(10..40), u64::MAX, 1), None);
    }

    #[test]
    fn parts_of_a_file_go_on_only_where_the_file_does() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let file = Arc::new(FrozenFile::new(file.into()).unwrap());
        let of = |offset| Piece {
            backing: Backing::Frozen(Arc::clone(&file), offset),
            ..Piece::new()
        };
        let mut map = Map::default();
        map.put(&(10..20), of(0));
        map.put(&(20..30), of(10));
        assert_eq!(ranges(&map), [(10, 30)]);
        map.put(&(15..20), Piece::new());
        let parts = map.within(&(22..40));
        assert!(matches!(parts[0].1.backing, Backing::Frozen(_, 12)));
        map.put(&(15..20), of(6));
        assert_eq!(ranges(&map), [(10, 15), (15, 20), (20, 30)]);
    }
}
