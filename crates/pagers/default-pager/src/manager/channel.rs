//! The memory file that the kernel and a default pager outside of it share.
//!
//! It has 64 places for calls, each with 64 pages of contents, and a bell for each processor. Who calls
//! takes a place, says in it what is wanted, and rings the bell of its own processor: a thread of
//! the default pager that stays there takes the call and answers in the place. Either side may write
//! anything at any time: what is wrong fails that call, or all, and nothing else.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use farpage_object::{PAGE_BYTES, PagerError};
use farpage_sys::memory_file::{self, Words};
use farpage_sys::{Errno, futex};

use crate::manager::ask::NUMBERS;
use crate::manager::space::{self, Space};

/// Places: each is a bit of a word.
pub(crate) const PLACES: usize = 64;
/// Pages of contents in a place.
pub(crate) const PAGES: usize = 64;
/// Processors that have a bell of their own.
pub(crate) const BELLS: usize = 256;

const NAME: &CStr = c"farpage-default-pager";
/// "farpage", and the version of all this.
const MAGIC: u64 = 0x6661_7270_6167_6501;
const HEAD_BYTES: usize = 4096;
const BELL_BYTES: usize = 64;
const PLACE_BYTES: usize = 1024;
const PLACES_AT: usize = HEAD_BYTES + BELLS * BELL_BYTES;
const CONTENTS_AT: usize = PLACES_AT + PLACES * PLACE_BYTES;
const CONTENTS_BYTES: usize = PAGES * PAGE_BYTES;
const BYTES: usize = CONTENTS_AT + PLACES * CONTENTS_BYTES;

/// Word of the head with [`MAGIC`], that with a processor that has threads, and the first that say
/// how full it is.
const MAGIC_WORD: usize = 0;
const ANY_WORD: usize = 1;
const SPACE_WORD: usize = 8;
/// Words of a place: a state, what is asked, what is answered, and the numbers of pages.
const ASK_WORD: usize = 1;
const ANSWER_WORD: usize = ASK_WORD + NUMBERS;
const PAGES_WORD: usize = 16;

const _: () = assert!(CONTENTS_AT.is_multiple_of(PAGE_BYTES));
const _: () = assert!(ANSWER_WORD + NUMBERS <= PAGES_WORD);
const _: () = assert!((PAGES_WORD + PAGES) * 8 <= PLACE_BYTES);
const _: () = assert!((SPACE_WORD + space::NUMBERS) * 8 <= HEAD_BYTES);

/// A place's state: something is asked in it.
pub(crate) const ASKED: u32 = 1;
/// A place's state: it is answered.
pub(crate) const ANSWERED: u32 = 2;

/// The shared memory.
pub(crate) struct Channel(Words);

impl Channel {
    /// Makes one for a default pager with threads on `cpus`.
    pub(crate) fn create(cpus: &[u32]) -> Result<(OwnedFd, Self), Errno> {
        let fd = memory_file::create(NAME, BYTES)?;
        memory_file::seal(fd.as_fd(), memory_file::FIXED)?;
        let channel = Self(Words::map_as_touched(fd.as_fd(), BYTES)?);
        for cpu in cpus {
            channel.bell(*cpu).staffed().store(1, Ordering::Relaxed);
        }
        let any = cpus.first().copied().unwrap_or(0);
        channel.words()[ANY_WORD].store(any.into(), Ordering::Relaxed);
        channel.words()[MAGIC_WORD].store(MAGIC, Ordering::Release);
        Ok((fd, channel))
    }

    /// Maps that of a default pager.
    ///
    /// # Errors
    /// As [`Words::map`]; `EPROTO` when it is none, or of another version.
    pub(crate) fn map(fd: BorrowedFd<'_>) -> Result<Self, Errno> {
        let channel = Self(Words::map_as_touched(fd, BYTES)?);
        match channel.words()[MAGIC_WORD].load(Ordering::Acquire) {
            MAGIC => Ok(channel),
            _ => Err(Errno::EPROTO),
        }
    }

    fn words(&self) -> &[AtomicU64] {
        self.0.u64s()
    }

    /// That of a processor.
    pub(crate) fn bell(&self, cpu: u32) -> Bell<'_> {
        let at = HEAD_BYTES + cpu as usize % BELLS * BELL_BYTES;
        Bell {
            halves: &self.0.u32s()[at / 4..(at + BELL_BYTES) / 4],
            words: &self.words()[at / 8..(at + BELL_BYTES) / 8],
        }
    }

    /// That of `cpu`, or another one, where there are threads.
    pub(crate) fn staffed_bell(&self, cpu: u32) -> Bell<'_> {
        let own = self.bell(cpu);
        if own.staffed().load(Ordering::Relaxed) != 0 {
            return own;
        }
        self.bell(self.words()[ANY_WORD].load(Ordering::Relaxed) as u32)
    }

    /// A place, by its number below [`PLACES`].
    pub(crate) fn place(&self, number: usize) -> Place<'_> {
        assert!(number < PLACES, "no such place");
        let at = PLACES_AT + number * PLACE_BYTES;
        Place {
            state: &self.0.u32s()[at / 4],
            words: &self.words()[at / 8..(at + PLACE_BYTES) / 8],
            memory: &self.0,
            contents_at: CONTENTS_AT + number * CONTENTS_BYTES,
        }
    }

    /// How full the default pager is, as it said last.
    pub(crate) fn space(&self) -> Space {
        let mut numbers = [0; space::NUMBERS];
        for (number, word) in numbers.iter_mut().zip(&self.words()[SPACE_WORD..]) {
            *number = word.load(Ordering::Relaxed);
        }
        Space::of(&numbers)
    }

    pub(crate) fn set_space(&self, space: &Space) {
        for (number, word) in space.numbers().iter().zip(&self.words()[SPACE_WORD..]) {
            word.store(*number, Ordering::Relaxed);
        }
    }
}

/// Where calls of a processor are told.
pub(crate) struct Bell<'a> {
    halves: &'a [AtomicU32],
    words: &'a [AtomicU64],
}

impl Bell<'_> {
    /// Not zero: threads of the default pager stay at this processor.
    fn staffed(&self) -> &AtomicU32 {
        &self.halves[1]
    }

    fn rings(&self) -> &AtomicU32 {
        &self.halves[0]
    }

    /// Places in which something is asked.
    fn places(&self) -> &AtomicU64 {
        &self.words[1]
    }

    /// Something is asked in a place.
    pub(crate) fn ring(&self, place: usize) {
        self.places().fetch_or(1 << place, Ordering::Release);
        self.rings().fetch_add(1, Ordering::Release);
        futex::wake(self.rings(), 1);
    }

    /// Waits for a place in which something is asked, and takes it. `None`: it was woken, and there is
    /// none.
    pub(crate) fn answer(&self) -> Option<usize> {
        let rings = self.rings().load(Ordering::Acquire);
        let take = |places: u64| (places != 0).then(|| places & (places - 1));
        let order = Ordering::AcqRel;
        match self.places().fetch_update(order, Ordering::Acquire, take) {
            Ok(places) => Some(places.trailing_zeros() as usize),
            Err(_) => {
                futex::wait(self.rings(), rings, None);
                None
            }
        }
    }
}

/// A place for a call.
pub(crate) struct Place<'a> {
    state: &'a AtomicU32,
    words: &'a [AtomicU64],
    memory: &'a Words,
    contents_at: usize,
}

impl Place<'_> {
    fn numbers(&self, at: usize) -> [u64; NUMBERS] {
        std::array::from_fn(|word| self.words[at + word].load(Ordering::Relaxed))
    }

    fn set_numbers(&self, at: usize, numbers: [u64; NUMBERS]) {
        for (word, number) in self.words[at..].iter().zip(numbers) {
            word.store(number, Ordering::Relaxed);
        }
    }

    pub(crate) fn ask(&self, numbers: [u64; NUMBERS]) {
        self.set_numbers(ASK_WORD, numbers);
        self.state.store(ASKED, Ordering::Release);
    }

    pub(crate) fn asked(&self) -> Option<[u64; NUMBERS]> {
        (self.state.load(Ordering::Acquire) == ASKED).then(|| self.numbers(ASK_WORD))
    }

    pub(crate) fn answer(&self, numbers: [u64; NUMBERS]) {
        self.set_numbers(ANSWER_WORD, numbers);
        self.state.store(ANSWERED, Ordering::Release);
        self.wake();
    }

    /// `None`: not yet.
    ///
    /// # Errors
    /// With a state that there is not: whoever waits for another would not sleep.
    pub(crate) fn answered(&self) -> Result<Option<[u64; NUMBERS]>, PagerError> {
        match self.state.load(Ordering::Acquire) {
            ANSWERED => Ok(Some(self.numbers(ANSWER_WORD))),
            ASKED => Ok(None),
            _ => Err(PagerError::Violation),
        }
    }

    /// Waits for the answer, or for so many nanoseconds.
    pub(crate) fn wait(&self, timeout_ns: u64) {
        futex::wait(self.state, ASKED, Some(timeout_ns));
    }

    /// Wakes who waits for the answer.
    pub(crate) fn wake(&self) {
        futex::wake(self.state, 1);
    }

    /// The number of page `index` of those that are written.
    pub(crate) fn page(&self, index: usize) -> u64 {
        self.words[PAGES_WORD..][..PAGES][index].load(Ordering::Relaxed)
    }

    pub(crate) fn set_page(&self, index: usize, page: u64) {
        self.words[PAGES_WORD..][..PAGES][index].store(page, Ordering::Relaxed);
    }

    /// Puts contents where page `index` of them is.
    ///
    /// # Panics
    /// When they have no room.
    pub(crate) fn put(&self, index: usize, contents: &[u8]) {
        let at = index * PAGE_BYTES;
        assert!(at + contents.len() <= CONTENTS_BYTES, "no room for it");
        self.memory.copy_from(self.contents_at + at, contents);
    }

    /// Takes contents from where page 0 of them is.
    ///
    /// # Panics
    /// When there are not as many.
    pub(crate) fn take(&self, into: &mut [u8]) {
        assert!(into.len() <= CONTENTS_BYTES, "there is no more");
        self.memory.copy_to(self.contents_at, into);
    }
}
