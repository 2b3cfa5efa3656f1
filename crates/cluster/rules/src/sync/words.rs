//! What words say.

/// Hosts of a cluster at most: one bit each.
pub const HOSTS_MAX: u8 = 64;
/// Bits of the number by which a process is told from all others of its host, now and ever.
pub const SERIAL_BITS: u32 = 44;
const HOST_BITS: u32 = 6;
const PROCESS: u64 = (1 << (SERIAL_BITS + HOST_BITS)) - 1;

/// The word that says what lies there: 0 is nothing.
pub const KIND: u32 = 0;
/// The word with a bit for each host at which threads may sleep.
pub(crate) const WAITING: u32 = 1;
/// A lock's place, a barrier's generation, a condition's turns.
pub const STATE: u32 = 2;
/// A lock's condition lies beside it: so much further are its words.
pub const CONDITION: u32 = 3;
/// The word of a lock that says which thread of its process has it.
pub const THREAD: u32 = 6;
/// Where the places of a semaphore and the parties of a barrier begin.
const CELLS: u32 = 8;

/// A process of a host, unlike any that was or will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Process(u64);

impl Process {
    /// The process of a host that has this number there.
    ///
    /// # Panics
    /// When there is no such host, or the number is none.
    #[must_use]
    pub fn new(host: u8, serial: u64) -> Self {
        assert!(host < HOSTS_MAX, "no such host");
        assert!((1..1 << SERIAL_BITS).contains(&serial), "no such number");
        Self(u64::from(host) << SERIAL_BITS | serial)
    }

    /// As [`Process::number`] says it; `None` for what is none.
    #[must_use]
    pub fn from_number(number: u64) -> Option<Self> {
        let has_serial = number & ((1 << SERIAL_BITS) - 1) != 0;
        (number & !PROCESS == 0 && has_serial).then_some(Self(number))
    }

    /// It as a number.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }

    /// Its host.
    #[must_use]
    pub fn host(self) -> u8 {
        (self.0 >> SERIAL_BITS) as u8
    }
}

/// A place, which one process at a time may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cell {
    /// Who has it.
    pub held: Held,
    /// A process died that had it, and nobody has said since that what it guards is right again.
    pub is_marked: bool,
}

/// Who has a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Held {
    /// Nobody.
    Free,
    /// Nobody; it is kept for the threads of a host that wait.
    For(u8),
    /// A process.
    By(Process),
}

impl Cell {
    /// The bit of a mark.
    pub const MARK: u64 = 1 << 63;
    const HELD: u64 = 1 << 62;

    /// As a word. Zero is free and without a mark.
    #[must_use]
    pub fn word(self) -> u64 {
        let held = match self.held {
            Held::Free => 0,
            Held::For(host) => u64::from(host) + 1,
            Held::By(process) => Self::HELD | process.0,
        };
        held | if self.is_marked { Self::MARK } else { 0 }
    }

    /// What a word says. Whatever somebody wrote there: what is no process is nobody.
    #[must_use]
    pub fn from_word(word: u64) -> Self {
        let held = match (word & Self::HELD != 0, word & PROCESS) {
            (true, number) => Process::from_number(number).map_or(Held::Free, Held::By),
            (false, host @ 1..=64) => Held::For(host as u8 - 1),
            (false, _) => Held::Free,
        };
        Self {
            held,
            is_marked: word & Self::MARK != 0,
        }
    }
}

/// The bits of a party's cell that say in which generation it arrived last.
const TAG_SHIFT: u32 = SERIAL_BITS + HOST_BITS;

/// A party of a barrier that arrived, and in which generation, as a word.
pub(crate) fn party(process: Process, generation: u64) -> u64 {
    process.0 | generation << TAG_SHIFT
}

/// Who has a party's cell; `None`: nobody yet.
pub(crate) fn party_of(word: u64) -> Option<Process> {
    Process::from_number(word & PROCESS)
}

/// It arrived in this generation.
pub(crate) fn is_of(word: u64, generation: u64) -> bool {
    word & PROCESS != 0 && word >> TAG_SHIFT == generation & (u64::MAX >> TAG_SHIFT)
}

/// Places beside one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cells {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

impl Cells {
    pub(crate) fn word(self, at: u32) -> u32 {
        self.first + at
    }
}

/// What lies somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A lock.
    Mutex,
    /// So many places.
    Semaphore(u32),
    /// For so many parties.
    Barrier(u32),
}

impl core::fmt::Display for Kind {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Mutex => f.write_str("a lock"),
            Self::Semaphore(places) => write!(f, "a semaphore of {places}"),
            Self::Barrier(parties) => write!(f, "a barrier of {parties}"),
        }
    }
}

/// Marks words that say what lies there.
const MAGIC: u64 = 0x4670_5379 << 32;

/// How something lies in memory: words of eight bytes, all zero before anybody has used them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout(pub Kind);

impl Layout {
    /// Places of a semaphore, and parties of a barrier, at most.
    pub const CELLS_MAX: u32 = 4096;

    /// Its size in words.
    #[must_use]
    pub fn words(self) -> u32 {
        match self.0 {
            Kind::Mutex => CELLS,
            Kind::Semaphore(count) | Kind::Barrier(count) => CELLS + count.next_multiple_of(CELLS),
        }
    }

    /// Its places or parties; for a lock its one place.
    #[must_use]
    pub fn cells(self) -> Cells {
        let (first, count) = match self.0 {
            Kind::Mutex => (STATE, 1),
            Kind::Semaphore(count) | Kind::Barrier(count) => (CELLS, count),
        };
        Cells { first, count }
    }

    /// What [`KIND`] is to be.
    #[must_use]
    pub fn word(self) -> u64 {
        let (kind, count) = match self.0 {
            Kind::Mutex => (1, 0),
            Kind::Semaphore(count) => (2, count),
            Kind::Barrier(count) => (3, count),
        };
        MAGIC | kind << 24 | u64::from(count)
    }

    /// What lies there; `None`: nothing that is of this crate.
    #[must_use]
    pub fn from_word(word: u64) -> Option<Self> {
        let count = (word & 0xff_ffff) as u32;
        let kind = match (word >> 24 & 0xff, count) {
            (1, 0) => Kind::Mutex,
            (2, 1..=Self::CELLS_MAX) => Kind::Semaphore(count),
            (3, 1..=Self::CELLS_MAX) => Kind::Barrier(count),
            (_, _) => return None,
        };
        (word & !0xffff_ffff == MAGIC).then_some(Self(kind))
    }
}
