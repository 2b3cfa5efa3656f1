//! Frames that stay, of areas that overlap: each is pinned once.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::string::ToString;
use std::sync::Arc;
use std::vec::Vec;

use farpage_object::{PAGE_BYTES, PageRange};
use farpage_sys::file::Fd;

use super::error::LockError;
use super::places::{PIECE_PAGES, Places};
use super::{frames, left_of, stale, without};

/// What is pinned.
///
/// Pieces do not overlap. A piece of which a part is given up is registered anew without it, before
/// the old one goes, so that no frame is let go of in between. Where that cannot be done it stays whole
/// until all of it is given up.
#[derive(Default)]
pub struct Pins {
    places: Places,
    /// By their first page.
    pieces: BTreeMap<u64, Piece>,
    /// Of this process, opened when frames were to be noted first. Who may not read them then is not
    /// asked again.
    map: Option<File>,
    is_blind: bool,
}

/// Pages that one place of a ring has.
#[derive(Clone, Debug)]
struct Piece {
    /// Behind the last.
    end: u64,
    place: u32,
    /// The frame of each when it was pinned; none where they were not noted.
    frames: Arc<[u64]>,
    /// What nobody wants any more, and could not be let go of without the rest.
    idle: Vec<PageRange>,
}

impl Piece {
    /// The frames of a part of it, which begins at `start`.
    fn frames(&self, start: u64, part: PageRange) -> &[u64] {
        let at = |page: u64| (page - start) as usize;
        let noted = self.frames.get(at(part.start.0)..at(part.end.0));
        noted.unwrap_or_default()
    }

    /// What of it somebody wants.
    fn wanted(&self, start: u64) -> Vec<PageRange> {
        left_of(PageRange::new(start, self.end), &self.idle)
    }
}

impl Pins {
    /// Pins all of `pages` of this process, or nothing more than was.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn pin(&mut self, pages: PageRange) -> Result<(), LockError> {
        for (start, _) in self.within(pages) {
            let piece = self.pieces.get_mut(&start).expect("found above");
            piece.idle = without(&piece.idle, pages);
        }
        let mut done = Vec::new();
        for part in self.missing(pages) {
            match self.register(part, Arc::default()) {
                Ok(()) => done.push(part),
                Err(why) => {
                    for part in done {
                        self.forget(part.start.0);
                    }
                    return Err(why);
                }
            }
        }
        Ok(())
    }

    /// Notes which frames pages have that were pinned, so that [`Pins::check`] knows them.
    ///
    /// # Errors
    /// [`LockError`], but for want of the privilege.
    pub fn note(&mut self, pages: PageRange) -> Result<(), LockError> {
        for (start, piece) in self.within(pages) {
            if self.is_blind || !piece.frames.is_empty() {
                continue;
            }
            match self.frames(PageRange::new(start, piece.end)) {
                Ok(frames) => {
                    let piece = self.pieces.get_mut(&start).expect("found above");
                    piece.frames = frames.into();
                }
                Err(LockError::NoFrames) => self.is_blind = true,
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    /// Looks whether pages that were pinned and noted are in the frames that they had.
    ///
    /// # Errors
    /// [`LockError::Stale`] with the first that is not; [`LockError::NoFrames`] where this cannot be seen.
    pub fn check(&mut self, pages: PageRange) -> Result<(), LockError> {
        let mut is_seen = true;
        for (start, piece) in self.within(pages) {
            let part = PageRange::new(start, piece.end).intersect(pages);
            let noted = piece.frames(start, part);
            if noted.is_empty() {
                is_seen = false;
                continue;
            }
            let now = self.frames(part)?;
            let mut both = noted.iter().zip(&now);
            if let Some(at) = both.position(|(noted, now)| noted != now) {
                let why = "it is in another frame than the one that was pinned";
                return Err(stale::stale(part.start.0 + at as u64, why));
            }
        }
        match is_seen {
            true => Ok(()),
            false => Err(LockError::NoFrames),
        }
    }

    fn frames(&mut self, pages: PageRange) -> Result<Vec<u64>, LockError> {
        if self.map.is_none() {
            let map = File::open("/proc/self/pagemap").map_err(|why| LockError::System {
                call: "read the frames of",
                asked: pages.bytes() >> 10,
                why: why.to_string(),
            })?;
            self.map = Some(map);
        }
        let map = self.map.as_ref().expect("opened above");
        let at = |page: u64| page as usize * PAGE_BYTES;
        frames::frames_by(Fd(map.as_raw_fd()), at(pages.start.0)..at(pages.end.0))
    }

    /// Lets go of all of `pages`.
    pub fn unpin(&mut self, pages: PageRange) {
        for (start, mut piece) in self.within(pages) {
            self.pieces.remove(&start);
            let kept = without(&piece.wanted(start), pages);
            let mut registered = Vec::new();
            for part in &kept {
                match self.register(*part, piece.frames(start, *part).into()) {
                    Ok(()) => registered.push(part.start.0),
                    Err(_) => break,
                }
            }
            if registered.len() == kept.len() {
                self.places.release(piece.place);
                continue;
            }
            // It stays whole until nobody wants the rest either.
            for start in registered {
                self.forget(start);
            }
            piece.idle = without(&piece.idle, pages);
            let idle = PageRange::new(start, piece.end).intersect(pages);
            piece.idle.push(idle);
            self.pieces.insert(start, piece);
        }
    }

    /// What of `pages` is in no piece, in pieces that Linux takes.
    fn missing(&self, pages: PageRange) -> Vec<PageRange> {
        let mut missing = Vec::new();
        let mut at = pages.start.0;
        let end = (pages.end.0, pages.end.0);
        let pieces = self.within(pages).into_iter();
        let pieces = pieces.map(|(start, piece)| (start, piece.end));
        for (start, next) in pieces.chain([end]) {
            while at < start {
                let to = start.min(at + PIECE_PAGES);
                missing.push(PageRange::new(at, to));
                at = to;
            }
            at = at.max(next);
        }
        missing
    }

    /// Pieces that have some of `pages`.
    fn within(&self, pages: PageRange) -> Vec<(u64, Piece)> {
        let before = self.pieces.range(..pages.end.0).rev();
        let mut found: Vec<_> = before
            .take_while(|(_, piece)| piece.end > pages.start.0)
            .map(|(start, piece)| (*start, piece.clone()))
            .collect();
        found.reverse();
        found
    }

    fn register(&mut self, part: PageRange, frames: Arc<[u64]>) -> Result<(), LockError> {
        let piece = Piece {
            end: part.end.0,
            place: self.places.hold(part)?,
            frames,
            idle: Vec::new(),
        };
        self.pieces.insert(part.start.0, piece);
        Ok(())
    }

    fn forget(&mut self, start: u64) {
        if let Some(piece) = self.pieces.remove(&start) {
            self.places.release(piece.place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_registered_without_a_part_is_let_go_of_with_the_rest() {
        let memory = std::vec![1_u8; 12 * PAGE_BYTES];
        let first = memory.as_ptr().addr().div_ceil(PAGE_BYTES) as u64;
        let range = |start: u64, end: u64| PageRange::new(first + start, first + end);
        let mut pins = Pins::default();
        pins.pin(range(0, 10)).unwrap();
        // As if a part of it were no longer mapped: there is no place for the rest.
        let free = pins.places.fills_up();
        pins.unpin(range(0, 4));
        pins.unpin(range(6, 8));
        let piece = &pins.pieces[&range(0, 1).start.0];
        assert_eq!(
            piece.wanted(range(0, 1).start.0),
            [range(4, 6), range(8, 10)]
        );
        // Wanted again, it is there already.
        pins.pin(range(2, 4)).unwrap();
        pins.places.has_free(free);
        pins.unpin(range(4, 10));
        let left: Vec<u64> = pins.pieces.keys().copied().collect();
        assert_eq!(left, [range(2, 4).start.0]);
        pins.unpin(range(0, 12));
        assert!(pins.pieces.is_empty());
    }
}
