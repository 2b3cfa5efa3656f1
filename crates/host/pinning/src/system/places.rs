//! Buffers that are registered with an `io_uring`, on which nothing is ever sent: their frames stay.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::format;
use std::os::fd::OwnedFd;
use std::string::ToString;
use std::vec::Vec;

use farpage_object::{PAGE_BYTES, PageRange};
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
pub(super) const PIECE_PAGES: u64 = (1 << 30) / PAGE_BYTES as u64;

/// Places in tables of buffers. Each holds the frames that some pages had when it was taken, whatever becomes of
/// the pages, and whatever other places hold.
#[derive(Default)]
pub struct Places {
    rings: Vec<OwnedFd>,
    /// The first first: they are in the smallest rings.
    free: BTreeSet<u32>,
}

impl Places {
    /// One ring more, for `asked` KiB.
    fn grow(&mut self, asked: u64) -> Result<(), LockError> {
        let refused = |errno| no_ring(asked, errno);
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

    /// Holds the frames of at most 1 GiB of pages of this process.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn hold(&mut self, pages: PageRange) -> Result<u32, LockError> {
        if self.free.is_empty() {
            self.grow(pages.bytes() >> 10)?;
        }
        let place = self.free.pop_first().expect("there is a ring more");
        match self.put(place, Some(pages)) {
            Ok(()) => Ok(place),
            Err(why) => {
                self.free.insert(place);
                Err(why)
            }
        }
    }

    /// The same, of any number of pages, all or nothing.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn hold_all(&mut self, pages: PageRange) -> Result<Vec<u32>, LockError> {
        let mut held = Vec::new();
        let mut start = pages.start.0;
        while start < pages.end.0 {
            let end = pages.end.0.min(start + PIECE_PAGES);
            match self.hold(PageRange::new(start, end)) {
                Ok(place) => held.push(place),
                Err(why) => {
                    held.into_iter().for_each(|place| self.release(place));
                    return Err(why);
                }
            }
            start = end;
        }
        Ok(held)
    }

    /// Lets go of what a place holds.
    pub fn release(&mut self, place: u32) {
        // Nothing is on its way in this ring, so it can be done.
        if self.put(place, None).is_ok() {
            self.free.insert(place);
        }
    }

    /// There is no place from now on; those that were free.
    #[cfg(test)]
    pub(super) fn fills_up(&mut self) -> BTreeSet<u32> {
        for _ in self.rings.len()..RINGS {
            let ring = self.rings[0].try_clone().expect("a descriptor");
            self.rings.push(ring);
        }
        std::mem::take(&mut self.free)
    }

    /// The opposite.
    #[cfg(test)]
    pub(super) fn has_free(&mut self, free: BTreeSet<u32>) {
        self.free = free;
    }
}

/// Places of the rings before this one.
fn places_before(ring: usize) -> u32 {
    FIRST * ((1 << ring) - 1)
}

/// Whether a ring has a table of so many buffers. Nothing of it is changed.
///
/// # Errors
/// What it is not.
pub fn has_table(ring: &OwnedFd, buffers: u32) -> Result<(), &'static str> {
    // A buffer of no bytes is refused before what is there is touched.
    let none = iovec {
        iov_base: std::ptr::dangling_mut(),
        iov_len: 0,
    };
    match update(ring, buffers - 1, &none) {
        Err(Errno::NXIO) => {
            Err("it has no table of buffers; register one sparse (IORING_REGISTER_BUFFERS2)")
        }
        Err(Errno::INVAL) => {
            Err("its table of buffers is smaller than that; give fewer, or register a larger one")
        }
        Err(Errno::OPNOTSUPP | Errno::BADF) => Err("it is no io_uring; give the descriptor of one"),
        // What else is wrong is told when it is used.
        Ok(_) | Err(_) => Ok(()),
    }
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
    match (update(ring, slot, &buffer), pages) {
        (Err(errno), Some(pages)) => Err(explained(pages, errno)),
        (Err(errno), None) => Err(LockError::System {
            call: "unpin",
            asked: 0,
            why: errno.to_string(),
        }),
        (Ok(_), _) => Ok(()),
    }
}

fn update(ring: &OwnedFd, slot: u32, buffer: &iovec) -> Result<u32, Errno> {
    let mut update = io_uring_rsrc_update2::default();
    (update.offset, update.nr) = (slot, 1);
    update.data = io_uring_ptr::new((&raw const *buffer).cast_mut().cast::<c_void>());
    let size = size_of_val(&update) as u32;
    let at = (&raw const update).cast();
    let operation = IoringRegisterOp::RegisterBuffersUpdate;
    // SAFETY: the structure that this operation reads, and its size; the ring does nothing with the
    // memory by itself but hold its frames.
    unsafe { io_uring_register(ring, operation, at, size) }
}

/// Why there is no ring more to pin `asked` KiB with.
fn no_ring(asked: u64, errno: Errno) -> LockError {
    let full = |why: &str| LockError::System {
        call: "pin",
        asked,
        why: why.into(),
    };
    match errno {
        Errno::NOMEM => no_memory(asked),
        Errno::MFILE => {
            full("this process has as many descriptors as it may have; raise it by 'ulimit -n'")
        }
        Errno::NFILE => {
            full("there are as many open files as this machine may have; raise fs.file-max")
        }
        errno => LockError::NoRing {
            why: errno.to_string(),
        },
    }
}

/// Why there is no memory for `asked` KiB of pins, or for a ring.
fn no_memory(asked: u64) -> LockError {
    match wired::limit() {
        Some(limit) => LockError::Limit {
            what: "pin",
            whose: "user",
            asked,
            limit,
            used: format!(
                ", of which {} are pinned here, and each ring takes some",
                wired::kib_of("VmPin:")
            ),
        },
        None => LockError::NoMemory { asked },
    }
}

fn explained(part: PageRange, errno: Errno) -> LockError {
    let asked = part.bytes() >> 10;
    let why = || wired::unusable(part, true).or_else(|| wired::unreadable(part));
    match errno {
        Errno::NOMEM => wired::unusable(part, true).unwrap_or_else(|| no_memory(asked)),
        Errno::OPNOTSUPP | Errno::FAULT => why().unwrap_or(LockError::Unusable {
            at: part.start.0 * PAGE_BYTES as u64,
            why: "Linux pins no shared mapping of a file on a disk; map it privately, or copy it to memory",
        }),
        errno => LockError::System {
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
        let mut places = Places::default();
        let held: Vec<u32> = (0..PIECES - 1)
            .map(|at| places.hold(piece(at)).unwrap())
            .collect();
        let all = 64 + 128 + 256 + 512;
        assert_eq!((places.rings.len(), places.free.len()), (4, all - 499));
        held.into_iter()
            .rev()
            .for_each(|place| places.release(place));
        assert_eq!(places.free.len(), all);
        assert_eq!(places.hold_all(piece(7)).unwrap(), [0]);
        let unmapped = PageRange::new(1, 2);
        assert!(places.hold_all(unmapped).is_err());
        assert_eq!(places.free.len(), all - 1);
    }
}
