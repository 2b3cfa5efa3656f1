//! Where pages are and what is in them, by what Linux tells, not by what is tested.

use anyhow::{Context, Result};
use farpage_sys::file;
use farpage_sys::pagemap::{self, Place};

use super::memory::{Memory, PAGE};

/// Memory as it is.
#[derive(Debug)]
pub(super) struct Seen {
    /// The frame of each page; `None`: it is not in memory.
    pub(super) frames: Vec<Option<u64>>,
    /// It has what was written to it. Nobody looks at what is not there: that would bring it.
    pub(super) is_filled: bool,
}

impl Seen {
    /// Looks.
    pub(super) fn new(memory: &Memory) -> Result<Self> {
        let frames = frames(memory.range().start, memory.range().end)?;
        let is_there = frames.iter().all(Option::is_some);
        let is_filled = is_there && memory.is_filled();
        Ok(Self { frames, is_filled })
    }
}

/// The frames of pages. Waits for those that are on their way to another.
pub(super) fn frames(start: usize, end: usize) -> Result<Vec<Option<u64>>> {
    let mut found = Vec::new();
    let map = pagemap::open().ok().context("no pagemap")?;
    for at in (start..end).step_by(PAGE) {
        let mut place = Place::Away;
        for _ in 0..10_000 {
            let read = pagemap::places(map, at, at + PAGE, |one| place = one);
            read.ok().context("the pagemap cannot be read")?;
            if place != Place::Away {
                break;
            }
            std::thread::yield_now();
        }
        found.push(match place {
            Place::Frame(frame) => Some(frame),
            Place::Absent | Place::Away => None,
            Place::Hidden => anyhow::bail!("only root may read frames"),
        });
    }
    file::close(map);
    Ok(found)
}

/// Pages of a range that are on swap.
pub(super) fn swapped(start: usize, end: usize) -> Result<usize> {
    let mut count = 0;
    let map = pagemap::open().ok().context("no pagemap")?;
    let read = pagemap::places(map, start, end, |place| {
        count += usize::from(place == Place::Away);
    });
    file::close(map);
    read.ok().context("the pagemap cannot be read")?;
    Ok(count)
}
