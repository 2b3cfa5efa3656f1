//! Files that exist only under `farpage run --map`: what the processes of a tree share about them.
//!
//! The contents of each lie in one memory file, the **mapped file**, of which pages are there or
//! not. A task may have pieces of it in its memory: those are listed here, so that the supervisor,
//! which answers the faults, knows from an address which page is meant. An entry that is read
//! while it changes names a page that nobody wants: that page is brought in for nothing, and the
//! thread faults again.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Files of one tree.
pub const MAPPED_MAX: usize = 64;
/// Pieces of them in the memory of all tasks together.
pub const PIECES_MAX: usize = 1 << 16;
/// Ranges that can be held at a time.
pub const HOLDS_MAX: usize = 1024;
/// Longest path, bytes.
pub const PATH_MAX: usize = 4096;

/// Everything about mapped files.
#[repr(C)]
pub struct Maps {
    /// How many there are; 0 in a tree without.
    pub count: AtomicU32,
    /// One more than the highest piece ever claimed.
    pub pieces_high: AtomicU32,
    /// The files.
    pub files: [MappedFile; MAPPED_MAX],
    /// Odd while the supervisor takes pages out; a futex.
    pub taking_out: AtomicU32,
    /// Pages that must stay.
    pub holds: [Hold; HOLDS_MAX],
    /// What tasks have of them in their memory.
    pub pieces: [Piece; PIECES_MAX],
}

/// One file.
#[repr(C)]
pub struct MappedFile {
    /// Its size.
    pub bytes: AtomicU64,
    /// Device and inode number by which its descriptors are known.
    pub device: AtomicU64,
    /// See `device`.
    pub inode: AtomicU64,
    /// It is a program: what Linux itself needs of it to execute it stays in memory.
    pub executable: AtomicBool,
    /// Absolute paths at which the program finds it, without `.`, `..` or doubled slashes: as it
    /// was given, and with the links of its folder followed. A length of 0: none.
    pub paths: [Path; 2],
}

/// A path.
#[repr(C)]
pub struct Path {
    /// Bytes that count.
    pub length: AtomicU32,
    /// The bytes.
    pub bytes: [AtomicU8; PATH_MAX],
}

impl Path {
    /// Sets it. The caller has checked that `path` is not longer than [`PATH_MAX`].
    pub fn set(&self, path: &[u8]) {
        for (to, from) in self.bytes.iter().zip(path) {
            to.store(*from, Ordering::Relaxed);
        }
        self.length.store(path.len() as u32, Ordering::Release);
    }

    fn get(&self) -> impl DoubleEndedIterator<Item = u8> {
        let length = self.length.load(Ordering::Acquire) as usize;
        let bytes = &self.bytes[..length.min(PATH_MAX)];
        bytes.iter().map(|byte| byte.load(Ordering::Relaxed))
    }

    /// True when it is `path`.
    pub fn is(&self, path: &[u8]) -> bool {
        self.length.load(Ordering::Acquire) as usize == path.len()
            && self.get().eq(path.iter().copied())
    }

    /// True when its last component is `name`.
    pub fn ends_with(&self, name: &[u8]) -> bool {
        let mut own = self.get().rev();
        name.iter().rev().all(|byte| own.next() == Some(*byte)) && own.next() == Some(b'/')
    }

    /// Copies it to `buffer`; returns how much of that is used.
    pub fn copy_to(&self, buffer: &mut [u8; PATH_MAX]) -> usize {
        let mut length = 0;
        for (to, from) in buffer.iter_mut().zip(self.get()) {
            *to = from;
            length += 1;
        }
        length
    }
}

/// Pages that a system call of a task uses, where Linux does not wait for pages: the supervisor
/// does not take them out.
#[repr(C)]
pub struct Hold {
    /// As [`Piece::owner`].
    pub owner: AtomicU32,
    /// The thread that makes the call.
    pub thread: AtomicU32,
    /// Number of the file.
    pub file: AtomicU32,
    /// First page.
    pub first: AtomicU64,
    /// One past the last page.
    pub end: AtomicU64,
}

/// A range of a task's memory that shows a part of a mapped file.
#[repr(C)]
pub struct Piece {
    /// Slot number of the task plus one; 0: free; [`Piece::CLAIMED`]: being filled in.
    pub owner: AtomicU32,
    /// Number of the file, and how it is mapped: see the flags.
    pub what: AtomicU32,
    /// First address.
    pub start: AtomicU64,
    /// One past the last address.
    pub end: AtomicU64,
    /// The page of the file at `start`.
    pub first: AtomicU64,
}

/// What a [`Piece`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceOf {
    /// Number of the file.
    pub file: usize,
    /// Mapped shared: writing is refused.
    pub shared: bool,
    /// The agent's own, to read from: what cannot be had is an error there, not the end.
    pub reading: bool,
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// The page of the file at `start`.
    pub first: u64,
}

impl Piece {
    /// In `owner`.
    pub const CLAIMED: u32 = u32::MAX;
    const SHARED: u32 = 1 << 16;
    const READING: u32 = 1 << 17;

    fn get(&self) -> PieceOf {
        let what = self.what.load(Ordering::Relaxed);
        PieceOf {
            file: (what & 0xffff) as usize,
            shared: what & Self::SHARED != 0,
            reading: what & Self::READING != 0,
            start: self.start.load(Ordering::Relaxed),
            end: self.end.load(Ordering::Relaxed),
            first: self.first.load(Ordering::Relaxed),
        }
    }

    fn set(&self, of: PieceOf) {
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let what = of.file as u32 | flag(of.shared, Self::SHARED) | flag(of.reading, Self::READING);
        self.what.store(what, Ordering::Relaxed);
        self.start.store(of.start, Ordering::Relaxed);
        self.end.store(of.end, Ordering::Relaxed);
        self.first.store(of.first, Ordering::Relaxed);
    }
}

impl Maps {
    /// The files that there are.
    pub fn files(&self) -> &[MappedFile] {
        let count = self.count.load(Ordering::Acquire) as usize;
        &self.files[..count.min(MAPPED_MAX)]
    }

    /// The pieces of the task in `slot`, with their numbers.
    pub fn pieces_of(&self, slot: usize) -> impl Iterator<Item = (usize, PieceOf)> {
        let high = self.pieces_high.load(Ordering::Acquire) as usize;
        let all = self.pieces[..high.min(PIECES_MAX)].iter().enumerate();
        all.filter(move |(_, piece)| piece.owner.load(Ordering::Acquire) == slot as u32 + 1)
            .map(|(number, piece)| (number, piece.get()))
    }

    /// The piece of the task in `slot` that holds `address`.
    pub fn find(&self, slot: usize, address: u64) -> Option<PieceOf> {
        let mut own = self.pieces_of(slot);
        own.find(|(_, of)| (of.start..of.end).contains(&address))
            .map(|(_, of)| of)
    }

    /// Notes a piece of the task in `slot`. False: there are too many.
    pub fn add(&self, slot: usize, of: PieceOf) -> bool {
        let free = |piece: &Piece| {
            let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
            piece.owner.load(Ordering::Relaxed) == 0
                && piece
                    .owner
                    .compare_exchange(0, Piece::CLAIMED, order, failed)
                    .is_ok()
        };
        let Some(number) = self.pieces.iter().position(free) else {
            return false;
        };
        let piece = &self.pieces[number];
        piece.set(of);
        self.pieces_high
            .fetch_max(number as u32 + 1, Ordering::AcqRel);
        piece.owner.store(slot as u32 + 1, Ordering::Release);
        true
    }

    /// Nothing of the task's in `slot` lies in `start .. end` any more. False when a piece had to
    /// be divided and there is no room for that: it stays noted whole.
    pub fn remove(&self, slot: usize, start: u64, end: u64) -> bool {
        let mut whole = true;
        for (number, of) in self.pieces_of(slot) {
            if of.end <= start || end <= of.start {
                continue;
            }
            let (low, high) = (of.start < start, end < of.end);
            let above = PieceOf {
                start: end,
                first: of.first + end.saturating_sub(of.start) / crate::PAGE_BYTES as u64,
                ..of
            };
            let piece = &self.pieces[number];
            match (low, high) {
                (false, false) => piece.owner.store(0, Ordering::Release),
                (true, false) => piece.end.store(start, Ordering::Release),
                (false, true) => piece.set(above),
                (true, true) if self.add(slot, above) => piece.end.store(start, Ordering::Release),
                (true, true) => whole = false,
            }
        }
        whole
    }

    /// Holds pages `first .. end` of `file` for `thread` of the task in `slot`, once what is being
    /// taken out is gone: see `taking_out`. False: there are too many holds.
    pub fn hold(&self, slot: usize, thread: u32, file: usize, first: u64, end: u64) -> bool {
        let free = |hold: &&Hold| {
            let (order, failed) = (Ordering::AcqRel, Ordering::Relaxed);
            hold.owner.load(Ordering::Relaxed) == 0
                && hold
                    .owner
                    .compare_exchange(0, Piece::CLAIMED, order, failed)
                    .is_ok()
        };
        let Some(hold) = self.holds.iter().find(free) else {
            return false;
        };
        hold.thread.store(thread, Ordering::Relaxed);
        hold.file.store(file as u32, Ordering::Relaxed);
        hold.first.store(first, Ordering::Relaxed);
        hold.end.store(end, Ordering::Relaxed);
        // Before `taking_out` is looked at: either the supervisor sees this, or this thread that.
        hold.owner.store(slot as u32 + 1, Ordering::SeqCst);
        core::sync::atomic::fence(Ordering::SeqCst);
        true
    }

    /// Ends what `thread` holds, or all of the task's for `None`.
    pub fn release(&self, slot: usize, thread: Option<u32>) {
        for hold in &self.holds {
            let of_thread = |thread| hold.thread.load(Ordering::Relaxed) == thread;
            if hold.owner.load(Ordering::Relaxed) == slot as u32 + 1 && thread.is_none_or(of_thread)
            {
                hold.owner.store(0, Ordering::Release);
            }
        }
    }

    /// True when somebody holds one of the pages `first .. end` of `file`.
    pub fn is_held(&self, file: usize, first: u64, end: u64) -> bool {
        self.holds.iter().any(|hold| {
            !matches!(hold.owner.load(Ordering::SeqCst), 0 | Piece::CLAIMED)
                && hold.file.load(Ordering::Relaxed) == file as u32
                && hold.first.load(Ordering::Relaxed) < end
                && first < hold.end.load(Ordering::Relaxed)
        })
    }

    /// The task in `slot` has no memory any more.
    pub fn leave(&self, slot: usize) {
        self.release(slot, None);
        for (number, _) in self.pieces_of(slot) {
            self.pieces[number].owner.store(0, Ordering::Release);
        }
    }
}

/// What a task sends to the supervisor, through [`fds::MAPS`].
///
/// [`fds::MAPS`]: crate::fds::MAPS
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// [`Word::FAULTS`] or [`Word::SOON`].
    pub kind: u64,
    /// The task's slot, or the number of the file.
    pub which: u64,
    /// First page.
    pub first: u64,
    /// Number of pages.
    pub pages: u64,
}

impl Word {
    /// The descriptor that comes along is the userfaultfd of the task in slot `which`.
    pub const FAULTS: u64 = 1;
    /// Pages of file `which` will be wanted.
    pub const SOON: u64 = 2;
    /// Bytes.
    pub const BYTES: usize = size_of::<Self>();

    /// As it is sent.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let words = [self.kind, self.which, self.first, self.pages];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// As it was sent.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 * at..8 * at + 8]);
            u64::from_ne_bytes(word)
        };
        Self {
            kind: word(0),
            which: word(1),
            first: word(2),
            pages: word(3),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::boxed::Box;
    use std::vec::Vec;

    use super::*;

    fn maps() -> Box<Maps> {
        // A fresh block is all zeros, and too large for a stack.
        let mut maps = Box::<Maps>::new_uninit();
        let at = maps.as_mut_ptr().cast::<u8>();
        #[allow(unsafe_code)]
        // SAFETY: `Maps` is made of atomics, for which zeros are valid.
        unsafe {
            at.write_bytes(0, size_of::<Maps>());
            maps.assume_init()
        }
    }

    fn piece(start: u64, end: u64, first: u64) -> PieceOf {
        PieceOf {
            file: 3,
            shared: true,
            reading: false,
            start,
            end,
            first,
        }
    }

    #[test]
    fn pieces_are_cut_where_memory_goes_away() {
        let maps = maps();
        assert!(maps.add(7, piece(0x10000, 0x20000, 100)));
        assert!(maps.add(8, piece(0x10000, 0x20000, 0)));
        assert!(maps.remove(7, 0x14000, 0x15000));
        assert!(maps.remove(7, 0x1f000, 0x30000));
        assert!(maps.remove(7, 0, 0x11000));
        let left: Vec<_> = maps.pieces_of(7).map(|(_, of)| of).collect();
        assert_eq!(
            left,
            [piece(0x11000, 0x14000, 101), piece(0x15000, 0x1f000, 105)]
        );
        assert_eq!(maps.find(7, 0x14800), None);
        assert_eq!(maps.find(8, 0x14800), Some(piece(0x10000, 0x20000, 0)));
        maps.leave(8);
        assert_eq!(maps.find(8, 0x14800), None);
    }

    #[test]
    fn a_hold_lasts_until_its_thread_or_task_ends_it() {
        let maps = maps();
        assert!(maps.hold(7, 70, 3, 10, 20) && maps.hold(7, 71, 3, 30, 40));
        assert!(maps.is_held(3, 19, 25) && maps.is_held(3, 0, 11));
        assert!(!maps.is_held(3, 20, 30) && !maps.is_held(2, 10, 20));
        maps.release(7, Some(70));
        assert!(!maps.is_held(3, 10, 20) && maps.is_held(3, 30, 31));
        maps.leave(7);
        assert!(!maps.is_held(3, 30, 31));
    }

    #[test]
    fn paths_are_compared_by_name_first() {
        let maps = maps();
        let path = &maps.files[0].paths[0];
        path.set(b"/data/set.npy");
        assert!(path.is(b"/data/set.npy") && !path.is(b"/data/set.np"));
        assert!(path.ends_with(b"set.npy"));
        assert!(!path.ends_with(b"et.npy") && !path.ends_with(b"data/set"));
        assert!(!maps.files[1].paths[0].ends_with(b""));
    }

    #[test]
    fn words_arrive_as_they_were_sent() {
        let word = Word {
            kind: Word::SOON,
            which: 2,
            first: 1 << 40,
            pages: 9,
        };
        assert_eq!(Word::from_bytes(&word.to_bytes()), word);
    }
}
