//! What blocks of the file have in them: each tells its own place and how often it was written, so that
//! a transfer that is stale, misplaced, lost or torn is seen.

use std::fmt;

pub(crate) const BLOCK: usize = 4096;
const WORDS: usize = BLOCK / 8;
/// Of memory that a read is to fill.
const POISON: u64 = 0xDEAD_5EA1_DEAD_5EA1;

/// Which block, of how many writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) seed: u64,
    pub(crate) block: u64,
    pub(crate) generation: u64,
}

/// What is there instead of a block.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// What was there before the transfer.
    Untouched,
    /// The block as it was at another time.
    OfGeneration(u64),
    /// Another block.
    OfBlock(u64),
    /// So many words are not as they were written.
    Torn(usize),
}

impl Stamp {
    /// Its words: mark, place, generation, what follows from them, and a sum of all that.
    fn words(self) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        [words[0], words[1], words[2]] = [self.mark(), self.block, self.generation];
        let key = mixed(self.mark() ^ mixed(self.block) ^ self.generation.rotate_left(40));
        for (at, word) in (0_u64..).zip(&mut words[3..WORDS - 1]) {
            *word = mixed(key.wrapping_add(at));
        }
        words[WORDS - 1] = sum(&words);
        words
    }

    fn mark(self) -> u64 {
        mixed(self.seed ^ 0xFA6E)
    }
}

fn mixed(word: u64) -> u64 {
    let word = word.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let word = (word ^ (word >> 31)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word ^ (word >> 29)
}

/// Of all but the last.
fn sum(words: &[u64; WORDS]) -> u64 {
    let words = words[..WORDS - 1].iter();
    words.fold(0, |sum: u64, word| {
        (sum ^ word).rotate_left(7).wrapping_mul(0x100_0000_01B3)
    })
}

fn place(at: usize) -> *mut [u64; WORDS] {
    std::ptr::with_exposed_provenance_mut(at)
}

/// Writes a block to memory.
///
/// # Safety
/// `at` is a multiple of 8, and the memory there the caller's.
pub(crate) unsafe fn fill(at: usize, stamp: Stamp) {
    // SAFETY: as the caller promises.
    unsafe { place(at).write_volatile(stamp.words()) };
}

/// Writes what no block is.
///
/// # Safety
/// As for [`fill`].
pub(crate) unsafe fn poison(at: usize) {
    // SAFETY: as the caller promises.
    unsafe { place(at).write_volatile([POISON; WORDS]) };
}

/// Changes a bit.
///
/// # Safety
/// As for [`fill`].
pub(crate) unsafe fn flip(at: usize, bit: usize) {
    let word = std::ptr::with_exposed_provenance_mut::<u64>(at + bit / 64 * 8);
    // SAFETY: as the caller promises.
    unsafe { word.write_volatile(word.read_volatile() ^ 1 << (bit % 64)) };
}

/// Whether memory is that block.
///
/// # Safety
/// As for [`fill`].
pub(crate) unsafe fn look(at: usize, stamp: Stamp) -> Result<(), Wrong> {
    // SAFETY: as the caller promises.
    let words = unsafe { place(at).read_volatile() };
    let wanted = stamp.words();
    if words == wanted {
        return Ok(());
    }
    Err(match words {
        _ if words == [POISON; WORDS] => Wrong::Untouched,
        _ if words[0] != stamp.mark() || words[WORDS - 1] != sum(&words) => {
            Wrong::Torn(words.iter().zip(wanted).filter(|(a, b)| **a != *b).count())
        }
        _ if words[1] != stamp.block => Wrong::OfBlock(words[1]),
        _ => Wrong::OfGeneration(words[2]),
    })
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Untouched => f.write_str("nothing was transferred there"),
            Self::OfGeneration(other) => write!(f, "it is of generation {other}"),
            Self::OfBlock(other) => write!(f, "it is block {other}"),
            Self::Torn(words) => write!(f, "{words} of {WORDS} words are other ones"),
        }
    }
}
