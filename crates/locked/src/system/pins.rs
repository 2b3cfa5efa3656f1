//! Frames that stay: buffers that are registered with an `io_uring`, on which nothing is ever sent.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::string::{String, ToString};
use std::vec::Vec;

use farpage_abi::{PAGE_BYTES, PageRange};
use rustix::io::Errno;
use rustix::io_uring::{
    IoringRegisterOp, IoringRsrcFlags, io_uring_params, io_uring_ptr, io_uring_register,
    io_uring_rsrc_register, io_uring_rsrc_update2, io_uring_setup, iovec,
};

use super::error::LockError;
use super::wired;

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
/// the old one goes, so that no frame is let go of in between. Where that cannot be done it stays whole.
pub struct Pins {
    rings: Vec<OwnedFd>,
    /// End and slot of pieces, by their first page.
    pieces: BTreeMap<u64, (u64, u32)>,
    /// The first places first: they are in the smallest rings.
    free: BTreeSet<u32>,
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
        let mut done = Vec::new();
        for part in self.missing(pages) {
            match self.register(part) {
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

    /// Lets go of all of `pages`.
    pub fn unpin(&mut self, pages: PageRange) {
        for (start, (end, slot)) in self.within(pages) {
            self.pieces.remove(&start);
            let before = PageRange::new(start, pages.start.0.max(start));
            let after = PageRange::new(pages.end.0.min(end), end);
            let kept = [before, after].into_iter().filter(|part| !part.is_empty());
            let mut registered = Vec::new();
            for part in kept {
                match self.register(part) {
                    Ok(()) => registered.push(part.start.0),
                    Err(_) => {
                        // It stays as it was.
                        for start in registered {
                            self.forget(start);
                        }
                        self.pieces.insert(start, (end, slot));
                        return;
                    }
                }
            }
            self.clear(slot);
        }
    }

    /// What of `pages` is in no piece, in pieces that Linux takes.
    fn missing(&self, pages: PageRange) -> Vec<PageRange> {
        let mut missing = Vec::new();
        let mut at = pages.start.0;
        let end = (pages.end.0, (pages.end.0, 0));
        for (start, (next, _)) in self.within(pages).into_iter().chain([end]) {
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
    fn within(&self, pages: PageRange) -> Vec<(u64, (u64, u32))> {
        let before = self.pieces.range(..pages.end.0).rev();
        let mut found: Vec<_> = before
            .take_while(|(_, (end, _))| *end > pages.start.0)
            .map(|(start, piece)| (*start, *piece))
            .collect();
        found.reverse();
        found
    }

    fn register(&mut self, part: PageRange) -> Result<(), LockError> {
        if self.free.is_empty() {
            self.grow()?;
        }
        let slot = self.free.pop_first().expect("there is a ring more");
        if let Err(why) = self.put(slot, Some(part)) {
            self.free.insert(slot);
            return Err(why);
        }
        self.pieces.insert(part.start.0, (part.end.0, slot));
        Ok(())
    }

    fn forget(&mut self, start: u64) {
        if let Some((_, slot)) = self.pieces.remove(&start) {
            self.clear(slot);
        }
    }

    fn clear(&mut self, slot: u32) {
        // Nothing is on its way in this ring, so it can be done.
        if self.put(slot, None).is_ok() {
            self.free.insert(slot);
        }
    }
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
        assert_eq!(pins.pieces.values().next().map(|piece| piece.1), Some(0));
    }
}
