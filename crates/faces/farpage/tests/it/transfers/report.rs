//! What was done, and how it came out.

use std::fmt;

/// Ways that memory is held, each for reads and for writes.
const KINDS: [&str; 8] = [
    "fixed reads, the ring's cache",
    "fixed writes, the ring's cache",
    "reads, pinned by a cache",
    "writes, pinned by a cache",
    "reads, pinned area",
    "writes, pinned area",
    "reads, resident area",
    "writes, resident area",
];

/// What was done.
#[derive(Default)]
pub(crate) struct Report {
    /// File system, device, and how the file is open.
    pub(crate) file: String,
    /// Transfers and bytes of each of [`KINDS`].
    pub(crate) done: [(u64, u64); 8],
    /// Times that a cache was asked.
    pub(crate) gets: u64,
    /// Registrations made, given up for others, and of memory that went away.
    pub(crate) made: u64,
    pub(crate) evicted: u64,
    pub(crate) gone: u64,
    /// What limits did not allow: the transfer was made without.
    pub(crate) refused: u64,
    /// Areas locked.
    pub(crate) locked: u64,
    /// Pinned areas whose frames were compared.
    pub(crate) compared: u64,
    /// Resident areas that were found in other frames.
    pub(crate) moved: u64,
    /// Ranges whose pages went away.
    pub(crate) lost: u64,
    pub(crate) forks: u64,
    pub(crate) compactions: u64,
    /// Why memory could not be compacted.
    pub(crate) uncompacted: Option<String>,
    /// Pages of the whole machine that went to swap space, came back, and changed their frames.
    pub(crate) swapped_out: u64,
    pub(crate) swapped_in: u64,
    pub(crate) migrated: u64,
    /// What is wrong: nothing should be.
    pub(crate) wrong: Vec<String>,
}

impl Report {
    pub(super) fn adds(&mut self, other: Self) {
        for (sum, one) in self.done.iter_mut().zip(other.done) {
            *sum = (sum.0 + one.0, sum.1 + one.1);
        }
        self.gets += other.gets;
        self.made += other.made;
        self.evicted += other.evicted;
        self.gone += other.gone;
        self.refused += other.refused;
        self.locked += other.locked;
        self.compared += other.compared;
        self.moved += other.moved;
        self.lost += other.lost;
        self.wrong.extend(other.wrong);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "file: {}", self.file)?;
        for (kind, (transfers, bytes)) in KINDS.iter().zip(self.done) {
            let gib = bytes as f64 / f64::from(1 << 30);
            writeln!(f, "{kind:<32} {transfers:>9} transfers {gib:>9.2} GiB")?;
        }
        writeln!(
            f,
            "registrations: {} hits, {} misses, {} evicted, {} gone with their memory, {} refused by limits",
            self.gets.saturating_sub(self.made),
            self.made,
            self.evicted,
            self.gone,
            self.refused
        )?;
        writeln!(
            f,
            "areas: {} locked; frames of {} pinned ones compared, {} resident ones moved meanwhile",
            self.locked, self.compared, self.moved
        )?;
        let compactions = match &self.uncompacted {
            None => self.compactions.to_string(),
            Some(why) => format!("no ({why})"),
        };
        writeln!(
            f,
            "{compactions} compactions, {} forks, {} ranges lost their pages",
            self.forks, self.lost
        )?;
        writeln!(
            f,
            "pages of the machine: {} moved to other frames, {} swapped out, {} swapped in",
            self.migrated, self.swapped_out, self.swapped_in
        )?;
        write!(f, "mismatches: {}", self.wrong.len())?;
        let mut some = self.wrong.iter().take(20);
        some.try_for_each(|wrong| write!(f, "\n    {wrong}"))
    }
}
