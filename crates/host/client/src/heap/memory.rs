//! A heap: opening it, and what its user asks for.

use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::heap::layout::{
    BIT_WORDS, BYTES, CURSOR, Layout, MAGIC, ROOT_WORDS, ROOTS, SLOT_WORDS, SLOTS, WAY,
};
use crate::heap::owner::{self, Local, Processes};
use crate::heap::size::{self, CLASSES};
use crate::heap::slab::{SLABS_MAX, Slab, Slot};
use crate::heap::words::Words;

/// An allocated piece of a heap: the offset of its first byte from the beginning of the memory, which
/// is the same in all processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Block(pub u64);

/// What lies in a block, in numbers that the heap's users agree on. Blocks of different types never
/// share 64 KiB, so that what presents memory to others (in another byte order, say) can tell by the
/// page what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kind(pub u16);

impl Kind {
    /// Nothing in particular.
    pub const BYTES: Self = Self(0);
}

/// What a heap holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All of it that blocks can have, in bytes.
    pub bytes: u64,
    /// Of that, in blocks that are allocated, with what their sizes were rounded up by.
    pub allocated_bytes: u64,
    /// Blocks.
    pub blocks: u64,
    /// What is neither allocated nor kept for blocks of one size and type.
    pub free_bytes: u64,
    /// Processes that have it open.
    pub processes: u32,
}

/// Why memory is no heap.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no room for a block.
    #[error("{bytes} bytes are too few for a heap; give 256 KiB at least")]
    TooSmall {
        /// How many there are.
        bytes: u64,
    },
    /// Something else lies there, or a heap of another version.
    #[error("the memory holds something that is no heap of this version; give it zeroed")]
    NotAHeap,
    /// The heap is larger than the memory.
    #[error("the heap has {heap} bytes and the memory {memory}; map all of it")]
    Cut {
        /// Bytes of the heap.
        heap: u64,
        /// Bytes of the memory.
        memory: u64,
    },
    /// Whether a process is dead could not be told.
    #[error(
        "the heap's other processes are known in another way: they are in another namespace of process ids, \
         or have it by way of a host kernel, and this one not, or the reverse; open it as they do"
    )]
    Way,
    /// Too many processes have it open.
    #[error("{SLOT_WORDS} processes have the heap open, which is all it takes; close one")]
    Processes,
    /// This process could not be identified.
    #[error("cannot tell who this process is: {0}; mount /proc")]
    Process(#[from] std::io::Error),
}

/// Why there is no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// The heap is full, or has no piece that is long enough.
    #[error("the heap has no {bytes} bytes in a row left; free some, or make it larger")]
    Full {
        /// How many were wanted.
        bytes: u64,
    },
    /// A forked child has its parent's heap.
    #[error("this process was forked from the one that opened the heap; open it again")]
    Forked,
}

/// Why a block is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FreeError {
    /// There is no such block.
    #[error("offset {0} is no allocated block; it was freed before, or lies inside of one")]
    NotAllocated(u64),
    /// A forked child has its parent's heap.
    #[error("this process was forked from the one that opened the heap; open it again")]
    Forked,
}

/// Bytes before the first block of a heap in `bytes` bytes of memory: words of 8 bytes. `None` where
/// there is no room for a block.
pub fn head_bytes(bytes: u64) -> Option<u64> {
    Layout::new(bytes).map(|layout| layout.offset(0))
}

/// The slab that this process allocates from.
#[derive(Clone, Copy)]
pub(crate) struct Current {
    pub(crate) kind: Kind,
    pub(crate) slab: u32,
    /// Where the search for a free block begins.
    pub(crate) word: usize,
}

/// One process's way to a heap, for all its threads.
///
/// `M` is the memory: its words, which other processes change as well, wherever they are mapped.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use farpage_client::heap::{Heap, Kind};
/// // Here memory of this process alone; otherwise the words of a shared mapping.
/// let memory: Vec<AtomicU64> = (0..1 << 17).map(|_| AtomicU64::new(0)).collect();
/// let heap = Heap::open(&memory[..])?;
/// let block = heap.allocate(Kind::BYTES, 100)?;
/// heap.words(block)?[0].store(7, Ordering::Relaxed);
/// heap.root(0).store(block.0, Ordering::Release); // for whoever opens it next
/// heap.free(block)?;
/// assert!(heap.free(block).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Heap<M: AsRef<[AtomicU64]>> {
    pub(crate) words: Words<M>,
    pub(crate) layout: Layout,
    pub(crate) slot: Slot,
    pub(crate) processes: Box<dyn Processes>,
    forks: u64,
    /// Of each class one for each type in use.
    pub(crate) current: [Mutex<Vec<Current>>; CLASSES],
}

impl<M: AsRef<[AtomicU64]>> Heap<M> {
    /// Opens the heap in `memory`; makes one there if all of it is zero. What processes that have
    /// died had in hand is found again.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(memory: M) -> Result<Self, OpenError> {
        Self::open_among(memory, Box::new(Local::this_process()?))
    }

    /// As [`Heap::open`], among processes that are known in another way.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_among(memory: M, processes: Box<dyn Processes>) -> Result<Self, OpenError> {
        owner::count_forks();
        let way = processes.way();
        let words = Words(memory);
        let bytes = words.0.as_ref().len() as u64 * 8;
        Layout::new(bytes).ok_or(OpenError::TooSmall { bytes })?;
        if words.load(0) == 0 {
            // Several may do so at a time: all write the same.
            words.replace(BYTES, 0, bytes);
            words.replace(WAY, 0, way);
            if words.load(BYTES) != bytes {
                return Err(OpenError::NotAHeap);
            }
            words.replace(0, 0, MAGIC);
        }
        if words.load(0) != MAGIC {
            return Err(OpenError::NotAHeap);
        }
        let heap = words.load(BYTES);
        if heap > bytes {
            let memory = bytes;
            return Err(OpenError::Cut { heap, memory });
        }
        let layout = Layout::new(heap).ok_or(OpenError::NotAHeap)?;
        if words.load(WAY) != way {
            return Err(OpenError::Way);
        }
        let mut heap = Self {
            words,
            layout,
            slot: 0,
            processes,
            forks: owner::forks(),
            current: std::array::from_fn(|_| Mutex::new(Vec::new())),
        };
        let slot = heap.take_slot().or_else(|| {
            heap.recover_dead();
            heap.take_slot()
        });
        heap.slot = slot.ok_or(OpenError::Processes)?;
        heap.recover_dead();
        Ok(heap)
    }

    fn take_slot(&self) -> Option<Slot> {
        let mut slots = 0..SLOT_WORDS as Slot;
        slots.find(|slot| {
            self.words
                .replace(SLOTS + usize::from(*slot), 0, self.processes.own())
        })
    }

    /// False in a forked child, which must not use what its parent may be using.
    fn is_own(&self) -> bool {
        self.forks == owner::forks()
    }

    /// The memory that it lies in.
    pub fn memory(&self) -> &M {
        &self.words.0
    }

    /// Allocates `bytes` bytes of `kind`, with any contents. Blocks begin at multiples of 16 bytes of
    /// the memory; those whose size is a power of two, at multiples of it up to 64 KiB.
    ///
    /// # Errors
    /// [`AllocateError`].
    pub fn allocate(&self, kind: Kind, bytes: u64) -> Result<Block, AllocateError> {
        if !self.is_own() {
            return Err(AllocateError::Forked);
        }
        let class = size::class(bytes);
        let slabs = bytes.div_ceil(size::SLAB_BYTES);
        let slabs = u32::try_from(slabs)
            .ok()
            .filter(|slabs| *slabs <= SLABS_MAX);
        let full = AllocateError::Full { bytes };
        let slabs = slabs.ok_or(full)?;
        let take = || match class {
            Some(class) => self.allocate_small(class, kind),
            None => self.allocate_large(slabs, kind),
        };
        // What this process holds, and what dead ones held, may be what is missing.
        let found = take().or_else(|| {
            self.release_current();
            self.recover_dead();
            take()
        });
        found.ok_or(full)
    }

    /// Frees a block, whoever has allocated it.
    ///
    /// # Errors
    /// [`FreeError`].
    pub fn free(&self, block: Block) -> Result<(), FreeError> {
        if !self.is_own() {
            return Err(FreeError::Forked);
        }
        let freed = match self.place(block)? {
            Found::Small { slab, bit, .. } => self.free_small(slab, bit),
            Found::Large { first, slabs, kind } => self.free_large(first, slabs, kind),
        };
        match freed {
            true => Ok(()),
            false => Err(FreeError::NotAllocated(block.0)),
        }
    }

    /// How many bytes a block has: what was asked for, rounded up.
    ///
    /// # Errors
    /// [`FreeError::NotAllocated`].
    pub fn bytes(&self, block: Block) -> Result<u64, FreeError> {
        Ok(match self.find(block)? {
            Found::Small { class, .. } => size::block_bytes(class),
            Found::Large { slabs, .. } => u64::from(slabs) * size::SLAB_BYTES,
        })
    }

    /// What was said to lie in the block.
    ///
    /// # Errors
    /// [`FreeError::NotAllocated`].
    pub fn kind(&self, block: Block) -> Result<Kind, FreeError> {
        match self.find(block)? {
            Found::Large { kind, .. } | Found::Small { kind, .. } => Ok(kind),
        }
    }

    /// The words of a block.
    ///
    /// # Errors
    /// [`FreeError::NotAllocated`].
    pub fn words(&self, block: Block) -> Result<&[AtomicU64], FreeError> {
        let bytes = self.bytes(block)?;
        let first = (block.0 / 8) as usize;
        Ok(&self.words.0.as_ref()[first..first + (bytes / 8) as usize])
    }

    /// One of 16 words that are the users': where they find what they have allocated. Zero at first.
    ///
    /// # Panics
    /// When `number` is not below 16.
    pub fn root(&self, number: usize) -> &AtomicU64 {
        assert!(number < ROOT_WORDS, "a heap has {ROOT_WORDS} roots");
        &self.words.0.as_ref()[ROOTS + number]
    }

    /// Finds again what processes that have died had in hand; so many there were.
    pub fn recover(&self) -> u32 {
        match self.is_own() {
            true => self.recover_dead(),
            false => 0,
        }
    }

    /// All blocks that are allocated, those while this looks perhaps.
    pub fn blocks(&self) -> impl Iterator<Item = (Block, Kind)> + '_ {
        (0..self.layout.slabs).flat_map(|slab| self.blocks_of(slab))
    }

    /// What is in use; while others allocate, about.
    pub fn usage(&self) -> Usage {
        let all = (0..self.layout.slabs).map(|slab| self.slab(slab));
        let free = all.filter(|slab| *slab == Slab::Free).count() as u64;
        let bytes = |(block, _)| self.bytes(block).unwrap_or(0);
        let blocks: Vec<u64> = self.blocks().map(bytes).collect();
        let slots = 0..SLOT_WORDS;
        let taken = slots.filter(|slot| self.words.load(SLOTS + slot) != 0);
        Usage {
            bytes: u64::from(self.layout.slabs) * size::SLAB_BYTES,
            allocated_bytes: blocks.iter().sum(),
            blocks: blocks.len() as u64,
            free_bytes: free * size::SLAB_BYTES,
            processes: taken.count() as u32,
        }
    }

    pub(crate) fn slab(&self, slab: u32) -> Slab {
        // What is nothing is nobody's business: `check` says so.
        let word = self.words.load(self.layout.slab_word(slab));
        Slab::decode(word).unwrap_or(Slab::Claimed { slot: Slot::MAX })
    }

    pub(crate) fn set_slab(&self, slab: u32, to: Slab) {
        self.words.store(self.layout.slab_word(slab), to.encode());
    }

    pub(crate) fn change_slab(&self, slab: u32, from: Slab, to: Slab) -> bool {
        let word = self.layout.slab_word(slab);
        self.words.replace(word, from.encode(), to.encode())
    }

    /// Where to look for free slabs first.
    pub(crate) fn cursor(&self) -> u32 {
        (self.words.load(CURSOR) % u64::from(self.layout.slabs)) as u32
    }

    pub(crate) fn set_cursor(&self, slab: u32) {
        self.words.store(CURSOR, slab.into());
    }

    pub(crate) fn current(&self, class: u8) -> MutexGuard<'_, Vec<Current>> {
        let current = &self.current[usize::from(class)];
        current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The block's place, if it is allocated.
    fn find(&self, block: Block) -> Result<Found, FreeError> {
        let found = self.place(block)?;
        if let Found::Small { slab, bit, .. } = found {
            let word = self.words.load(self.layout.bit_word(slab, bit / 64));
            if word >> (bit % 64) & 1 == 0 {
                return Err(FreeError::NotAllocated(block.0));
            }
        }
        Ok(found)
    }

    /// The place of a block, which may be free.
    fn place(&self, block: Block) -> Result<Found, FreeError> {
        let none = FreeError::NotAllocated(block.0);
        let (slab, at) = self.layout.slab_at(block.0).ok_or(none)?;
        match self.slab(slab) {
            // Who believes that it is empty may be wrong.
            Slab::Small { class, kind, .. } | Slab::Emptied { class, kind, .. } => {
                let size = size::block_bytes(class);
                let bit = (at / size) as usize;
                match at.is_multiple_of(size) && bit < size::blocks(class) {
                    true => Ok(Found::Small {
                        slab,
                        class,
                        kind,
                        bit,
                    }),
                    false => Err(none),
                }
            }
            Slab::Large { slabs, kind } if at == 0 => Ok(Found::Large {
                first: slab,
                slabs,
                kind,
            }),
            _ => Err(none),
        }
    }

    /// True when no block of a slab is allocated.
    pub(crate) fn is_empty(&self, slab: u32) -> bool {
        (0..BIT_WORDS).all(|word| self.words.load(self.layout.bit_word(slab, word)) == 0)
    }
}

/// An allocated block.
enum Found {
    Small {
        slab: u32,
        class: u8,
        kind: Kind,
        bit: usize,
    },
    Large {
        first: u32,
        slabs: u32,
        kind: Kind,
    },
}

impl<M: AsRef<[AtomicU64]>> Drop for Heap<M> {
    fn drop(&mut self) {
        // What unwinds may be in the middle of anything: it is recovered like the dead.
        if self.is_own() && !std::thread::panicking() {
            self.release_current();
            self.words.store(SLOTS + usize::from(self.slot), 0);
        }
    }
}

impl<M: AsRef<[AtomicU64]>> std::fmt::Debug for Heap<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Heap of {} slabs", self.layout.slabs)
    }
}
