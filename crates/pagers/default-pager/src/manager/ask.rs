//! What the kernel asks of a default pager, as numbers in a place of the channel.

use farpage_object::{Access, ObjectId, PageRange, PagerError, Supplied};

use crate::manager::channel::PAGES;

/// Numbers that say what is asked, and what is answered.
pub(crate) const NUMBERS: usize = 6;

/// Something that is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// `data_request`; the contents come in the pages of the place.
    Request {
        object: ObjectId,
        pages: PageRange,
        needed: u64,
        access: Access,
    },
    /// `data_write` of so many pages, whose numbers and contents are in the place.
    Write { object: ObjectId, count: u64 },
    /// `discard`.
    Discard { object: ObjectId, pages: PageRange },
    /// `terminate`.
    Terminate { object: ObjectId },
    /// [`some_kept`](crate::manager::Keeper::some_kept).
    SomeKept { cursor: u64 },
    /// [`copy`](crate::manager::Keeper::copy).
    Copy { object: ObjectId, pages: PageRange },
}

/// What is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    /// So many pages are in the place; the pager keeps no copy when they are precious.
    Supplied {
        pages: u64,
        precious: bool,
    },
    /// It has these pages; where to go on.
    Kept(ObjectId, PageRange, u64),
    Failed(PagerError),
}

/// A range of pages that there can be.
fn range(first: u64, pages: u64) -> Option<PageRange> {
    const END: u64 = 1 << 41;
    let end = first.checked_add(pages)?;
    (pages > 0 && end <= END).then(|| PageRange::new(first, end))
}

fn object(number: u64) -> Option<ObjectId> {
    u32::try_from(number).ok().map(ObjectId)
}

impl Ask {
    pub(crate) fn numbers(self) -> [u64; NUMBERS] {
        match self {
            Self::Request {
                object,
                pages,
                needed,
                access,
            } => {
                let write = u64::from(access == Access::Write);
                let (first, count) = (pages.start.0, pages.pages());
                [1, object.0.into(), first, count, needed, write]
            }
            Self::Write { object, count } => [2, object.0.into(), 0, count, 0, 0],
            Self::Discard { object, pages } => {
                [3, object.0.into(), pages.start.0, pages.pages(), 0, 0]
            }
            Self::Terminate { object } => [4, object.0.into(), 0, 0, 0, 0],
            Self::SomeKept { cursor } => [5, 0, cursor, 0, 0, 0],
            Self::Copy { object, pages } => {
                [6, object.0.into(), pages.start.0, pages.pages(), 0, 0]
            }
        }
    }

    /// `None` when it makes no sense.
    pub(crate) fn of(numbers: [u64; NUMBERS]) -> Option<Self> {
        let [what, number, first, count, needed, write] = numbers;
        let object = object(number)?;
        let fits = count <= PAGES as u64;
        match what {
            1 if fits && (1..=count).contains(&needed) => Some(Self::Request {
                object,
                pages: range(first, count)?,
                needed,
                access: match write {
                    0 => Access::Read,
                    _ => Access::Write,
                },
            }),
            2 if fits && count > 0 => Some(Self::Write { object, count }),
            3 => Some(Self::Discard {
                object,
                pages: range(first, count)?,
            }),
            4 => Some(Self::Terminate { object }),
            5 => Some(Self::SomeKept { cursor: first }),
            6 if fits => Some(Self::Copy {
                object,
                pages: range(first, count)?,
            }),
            _ => None,
        }
    }
}

impl Answer {
    pub(crate) fn numbers(self) -> [u64; NUMBERS] {
        match self {
            Self::Done => [1, 0, 0, 0, 0, 0],
            Self::Supplied { pages, precious } => [2, pages, precious.into(), 0, 0, 0],
            Self::Kept(object, pages, cursor) => {
                let (first, count) = (pages.start.0, pages.pages());
                [3, object.0.into(), first, count, cursor, 0]
            }
            Self::Failed(error) => {
                let (kind, errno) = match error {
                    PagerError::Unavailable => (1, 0),
                    PagerError::OutOfSpace => (2, 0),
                    PagerError::Corrupt => (3, 0),
                    PagerError::Read(errno) => (4, errno),
                    PagerError::Write(errno) => (5, errno),
                    PagerError::Dead => (6, 0),
                    PagerError::Violation => (7, 0),
                };
                [4, kind, errno as u32 as u64, 0, 0, 0]
            }
        }
    }

    /// What makes no sense is a violation.
    pub(crate) fn of(numbers: [u64; NUMBERS]) -> Self {
        let [what, a, b, c, d, _] = numbers;
        let kept = || Some(Self::Kept(object(a)?, range(b, c)?, d));
        let wrong = Self::Failed(PagerError::Violation);
        match what {
            1 => Self::Done,
            2 => Self::Supplied {
                pages: a,
                precious: b != 0,
            },
            3 => kept().unwrap_or(wrong),
            4 => Self::Failed(match a {
                1 => PagerError::Unavailable,
                2 => PagerError::OutOfSpace,
                3 => PagerError::Corrupt,
                4 => PagerError::Read(b as i32),
                5 => PagerError::Write(b as i32),
                _ => PagerError::Violation,
            }),
            _ => wrong,
        }
    }
}

impl From<Result<Supplied, PagerError>> for Answer {
    fn from(supplied: Result<Supplied, PagerError>) -> Self {
        match supplied {
            Ok(supplied) => Self::Supplied {
                pages: supplied.pages,
                precious: supplied.precious,
            },
            Err(error) => Self::Failed(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_comes_as_it_was_said() {
        let (object, pages) = (ObjectId(7), PageRange::new(5, 9));
        for ask in [
            Ask::Request {
                object,
                pages,
                needed: 2,
                access: Access::Write,
            },
            Ask::Write { object, count: 64 },
            Ask::Discard { object, pages },
            Ask::Terminate { object },
            Ask::SomeKept { cursor: 3 },
            Ask::Copy { object, pages },
        ] {
            assert_eq!(Ask::of(ask.numbers()), Some(ask));
        }
        for answer in [
            Answer::Done,
            Answer::Supplied {
                pages: 3,
                precious: true,
            },
            Answer::Kept(object, pages, 11),
            Answer::Failed(PagerError::Write(28)),
            Answer::Failed(PagerError::Read(-1)),
            Answer::Failed(PagerError::Unavailable),
        ] {
            assert_eq!(Answer::of(answer.numbers()), answer);
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let wrong = [
            [0, 0, 0, 0, 0, 0],
            [1, 1, 0, 65, 1, 0],
            [1, 1, 0, 4, 0, 0],
            [1, 1, 0, 4, 5, 0],
            [1, 1 << 32, 0, 4, 1, 0],
            [1, 1, u64::MAX, 4, 1, 0],
            [2, 1, 0, 0, 0, 0],
            [2, 1, 0, 65, 0, 0],
            [3, 1, 1 << 41, 1, 0, 0],
            [6, 1, 0, 0, 0, 0],
            [7, 1, 0, 1, 1, 0],
        ];
        for numbers in wrong {
            assert_eq!(Ask::of(numbers), None, "{numbers:?}");
        }
        let wrong = Answer::Failed(PagerError::Violation);
        assert_eq!(Answer::of([3, 1 << 40, 0, 1, 0, 0]), wrong);
        assert_eq!(Answer::of([3, 1, 1 << 50, 1, 0, 0]), wrong);
        assert_eq!(Answer::of([9, 0, 0, 0, 0, 0]), wrong);
        assert_eq!(Answer::of([4, 6, 0, 0, 0, 0]), wrong);
    }
}
