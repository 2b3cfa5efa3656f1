//! Frames that stay: buffers that are registered with an `io_uring`, on which nothing is ever sent.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::string::{String, ToString};
use std::sync::Arc;
use std::vec::Vec;

use farpage_abi::{PAGE_BYTES, PageRange};
use farpage_sys::file::Fd;
use rustix::io::Errno;
use rustix::io_uring::{
    IoringRegisterOp, IoringRsrcFlags, io_uring_params, io_uring_ptr, io_uring_register,
    io_uring_rsrc_register, io_uring_rsrc_update2, io_uring_setup, iovec,
};

use super::error::LockError;
use super::{frames, stale, wired};

/// Pieces that the first ring has places for; each that follows has twice as many. For each huge page Linux
/// looks at all places of a ring, so few pieces are not in a large one.
const FIRST: u32 = 64;
/// Rings at most: a table has 16,384 places at most.
const RINGS: usize = 9;
/// Pages of a piece: Linux takes no more than 1 GiB.
const PIECE_PAGES: u64 = (1 << 30) / PAGE_BYTES as u64;

/// What is pinned.
///
/// Pieces do not overlap. A piece of which a part is given up is registered anew without it, before
/// the old one goes, so that no frame is let go of in between. Where that cannot be done it stays whole
/// until all of it is given up.
pub struct Pins {
    rings: Vec<OwnedFd>,
    /// By their first page.
    pieces: BTreeMap<u64, Piece>,
    /// The first places first: they are in the smallest rings.
    free: BTreeSet<u32>,
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
    slot: u32,
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
        let whole = std::vec![PageRange::new(start, self.end)];
        self.idle
            .iter()
            .fold(whole, |left, one| without(&left, *one))
    }
}

impl Pins {
    /// Nothing yet.
    ///
    /// # Errors
    /// [`LockError::NoRing`].
    pub fn new() -> Result<Self, LockError> {
        let mut new = Self {
            rings: Vec::new(),
            pieces: BTreeMap::new(),
            free: BTreeSet::new(),
            map: None,
            is_blind: false,
        };
        new.grow()?;
        Ok(new)
    }

    /// One ring more.
    fn grow(&mut self) -> Result<(), LockError> {
        let refused = |errno: Errno| LockError::NoRing {
            why: errno.to_string(),
        };
        let (first, places) = (places_before(self.rings.len()), FIRST << self.rings.len());
        if self.rings.len() == RINGS {
            return Err(LockError::Full(first));
        }
        let mut parameters = io_uring_params::default();
        // SAFETY: the structure that the call reads and fills.
        let ring = unsafe { io_uring_setup(1, &mut parameters) }.map_err(refused)?;
        let mut table = io_uring_rsrc_register::default();
        (table.nr, table.flags) = (places, IoringRsrcFlags::REGISTER_SPARSE);
        let size = size_of_val(&table) as u32;
        let at = (&raw const table).cast();
        // SAFETY: the structure that this operation reads, and its size.
        unsafe { io_uring_register(&ring, IoringRegisterOp::RegisterBuffers2, at, size) }
            .map_err(refused)?;
        self.rings.push(ring);
        self.free.extend(first..first + places);
        Ok(())
    }

    /// Has a place hold the frames of some pages, or of none.
    fn put(&self, place: u32, pages: Option<PageRange>) -> Result<(), LockError> {
        let ring = (place / FIRST + 1).ilog2() as usize;
        put(&self.rings[ring], place - places_before(ring), pages)
    }

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
                self.clear(piece.slot);
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
        if self.free.is_empty() {
            self.grow()?;
        }
        let slot = self.free.pop_first().expect("there is a ring more");
        if let Err(why) = self.put(slot, Some(part)) {
            self.free.insert(slot);
            return Err(why);
        }
        let end = part.end.0;
        let piece = Piece {
            end,
            slot,
            frames,
            idle: Vec::new(),
        };
        self.pieces.insert(part.start.0, piece);
        Ok(())
    }

    fn forget(&mut self, start: u64) {
        if let Some(piece) = self.pieces.remove(&start) {
            self.clear(piece.slot);
        }
    }

    fn clear(&mut self, slot: u32) {
        // Nothing is on its way in this ring, so it can be done.
        if self.put(slot, None).is_ok() {
            self.free.insert(slot);
        }
    }
}

/// What is left of ranges without some pages.
fn without(all: &[PageRange], pages: PageRange) -> Vec<PageRange> {
    let parts = all.iter().flat_map(|one| {
        let (start, end) = (one.start.0, one.end.0);
        let (from, to) = (
            pages.start.0.clamp(start, end),
            pages.end.0.clamp(start, end),
        );
        [PageRange::new(start, from), PageRange::new(to, end)]
    });
    parts.filter(|part| !part.is_empty()).collect()
}

/// Places of the rings before this one.
fn places_before(ring: usize) -> u32 {
    FIRST * ((1 << ring) - 1)
}

/// Has a place of a ring's table of buffers hold the frames of some pages, or of none.
///
/// # Errors
/// [`LockError`].
pub fn put(ring: &OwnedFd, slot: u32, pages: Option<PageRange>) -> Result<(), LockError> {
    let buffer = iovec {
        iov_base: pages.map_or(std::ptr::null_mut(), wired::address),
        iov_len: pages.map_or(0, |pages| pages.bytes() as usize),
    };
    let mut update = io_uring_rsrc_update2::default();
    (update.offset, update.nr) = (slot, 1);
    update.data = io_uring_ptr::new((&raw const buffer).cast_mut().cast::<c_void>());
    let size = size_of_val(&update) as u32;
    let at = (&raw const update).cast();
    let operation = IoringRegisterOp::RegisterBuffersUpdate;
    // SAFETY: the structure that this operation reads, and its size; the ring does nothing with the
    // memory by itself but hold its frames.
    let done = unsafe { io_uring_register(ring, operation, at, size) };
    match (done, pages) {
        (Err(errno), Some(pages)) => Err(explained(pages, errno)),
        (Err(errno), None) => Err(LockError::System {
            call: "unpin",
            asked: 0,
            why: errno.to_string(),
        }),
        (Ok(_), _) => Ok(()),
    }
}

fn explained(part: PageRange, errno: Errno) -> LockError {
    if let Some(why) = wired::unusable(part, true) {
        return why;
    }
    let asked = part.bytes() >> 10;
    match (errno, wired::limit()) {
        (Errno::NOMEM, Some(limit)) => LockError::Limit {
            what: "pin",
            whose: "user",
            asked,
            limit,
            used: String::new(),
        },
        (Errno::NOMEM, None) => LockError::NoMemory { asked },
        (Errno::OPNOTSUPP | Errno::FAULT, _) => LockError::Unusable {
            at: part.start.0 * PAGE_BYTES as u64,
            why: "Linux pins no shared mapping of a file on a disk; map it privately, or copy it to memory",
        },
        (errno, _) => LockError::System {
            call: "pin",
            asked,
            why: errno.to_string(),
        },
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
        let mut pins = Pins::new().unwrap();
        pins.pin(range(0, 10)).unwrap();
        // As if a part of it were no longer mapped: there is no place for the rest.
        let free = std::mem::take(&mut pins.free);
        for _ in pins.rings.len()..RINGS {
            let ring = pins.rings[0].try_clone().unwrap();
            pins.rings.push(ring);
        }
        pins.unpin(range(0, 4));
        pins.unpin(range(6, 8));
        let piece = &pins.pieces[&range(0, 1).start.0];
        assert_eq!(
            piece.wanted(range(0, 1).start.0),
            [range(4, 6), range(8, 10)]
        );
        // Wanted again, it is there already.
        pins.pin(range(2, 4)).unwrap();
        pins.free = free;
        pins.unpin(range(4, 10));
        let left: Vec<u64> = pins.pieces.keys().copied().collect();
        assert_eq!(left, [range(2, 4).start.0]);
        pins.unpin(range(0, 12));
        assert!(pins.pieces.is_empty());
    }

    #[test]
    fn many_pieces_take_more_rings_and_each_has_its_place() {
        const PIECES: u64 = 500;
        let memory = std::vec![1_u8; 2 * PIECES as usize * PAGE_BYTES];
        let first = memory.as_ptr().addr().div_ceil(PAGE_BYTES) as u64;
        let piece = |at: u64| PageRange::new(first + 2 * at, first + 2 * at + 1);
        let mut pins = Pins::new().unwrap();
        for at in 0..PIECES - 1 {
            pins.pin(piece(at)).unwrap();
        }
        let places = 64 + 128 + 256 + 512;
        assert_eq!((pins.rings.len(), pins.free.len()), (4, places - 499));
        for at in (0..PIECES - 1).rev() {
            pins.unpin(piece(at));
        }
        assert_eq!((pins.pieces.len(), pins.free.len()), (0, places));
        pins.pin(piece(7)).unwrap();
        assert_eq!(pins.pieces.values().next().map(|piece| piece.slot), Some(0));
    }
}
