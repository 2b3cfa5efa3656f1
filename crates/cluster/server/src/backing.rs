//! The file of a durable object: what was flushed last, all of it.
//!
//! The home of the object has it. A flush writes what is to change to a journal first; when the
//! journal's head says that it is whole, it goes to the file. Who finds a whole journal writes it to the
//! file again. So the two have either what was there before a flush or all of it, whenever the host or
//! the machine stops.
//!
//! The file has the bytes of the object as they are in memory. Pages that are neither with the kernel
//! nor in paging space are read from it, as long as no other host can have written to them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use farpage_object::{PAGE_BYTES, PageIndex};
use farpage_sys::{crc32c, lock};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// "farpage", and the version of the journal.
const MAGIC: u64 = 0x6661_7270_6167_6a01;
/// Before the contents of units.
const HEAD_BYTES: u64 = 4096;
/// Of the head: magic number, bytes of a unit, units, checksum of their entries, and that of all this.
const HEAD_WORDS: usize = 5;
/// After the contents, for each unit: its number, and the checksum of its contents.
const ENTRY_BYTES: usize = 16;
/// A file that was given up may still be held for a moment: by a thread that finishes its work on the object,
/// or by a process that was killed and has not ended yet.
const LETS_GO: Duration = Duration::from_secs(1);

/// A file, its journal, and what is known of them.
pub struct Backing {
    file: File,
    journal: File,
    bytes: u64,
    unit_bytes: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Units that may have been written since they were flushed.
    modified: BTreeSet<u64>,
    /// Units that other hosts may have written to since: what the file has of them does not count.
    elsewhere: BTreeSet<u64>,
    /// Units that are as they are in the journal, which is not yet in the file.
    taken: BTreeSet<u64>,
    /// What the journal has.
    entries: Vec<Entry>,
    /// What the journal has of a flush that did not come to its end: its head may say that it is whole, so
    /// that nothing is written over it before it is in the file.
    unfinished: Option<Vec<Entry>>,
}

#[derive(Clone, Copy)]
struct Entry {
    unit: u64,
    sum: u32,
}

/// Why a file cannot be that of an object.
#[derive(Debug, thiserror::Error)]
pub enum BackingError {
    /// Somebody has it.
    #[error("other memory has it as its file; give each a file of its own")]
    InUse,
    /// It is longer than the object.
    #[error(
        "it has {file} bytes, and the memory only {memory}; make that as large, or give another file"
    )]
    Longer {
        /// Its bytes.
        file: u64,
        /// The object's.
        memory: u64,
    },
    /// It is something else, as its size says.
    #[error(
        "it has {file} bytes, and the memory {memory}: it is not what was flushed of such memory; give its size, \
         or another file (a new or empty one is zeros)"
    )]
    Shorter {
        /// Its bytes.
        file: u64,
        /// The object's.
        memory: u64,
    },
    /// What was flushed is of units of another size.
    #[error(
        "what was flushed last, and is in its journal, is in pages of {there} bytes, not of {wanted}; give \
         that page size once"
    )]
    Units {
        /// That of the journal.
        there: u64,
        /// That of the object.
        wanted: u64,
    },
    /// The journal is something else, or damaged.
    #[error(
        "its journal is damaged, or is another file; move it away if it is another: with a damaged one the file \
         may have but a part of the last flush, so take both from a copy"
    )]
    Journal,
    /// The journal takes nothing.
    #[error(
        "its journal cannot be written ({0}), so that its file is as of the last flush; make room where it lies, \
         and flush again"
    )]
    NotWritten(io::Error),
    /// The journal is whole, and the file is not.
    #[error(
        "what was flushed is in its journal, and cannot all be written to its file ({0}): keep the two together, \
         make room where they lie, and flush again; whoever makes memory with the two has all of it, or of the \
         flush before"
    )]
    Unfinished(Box<BackingError>),
    /// Linux refuses.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Nobody else has the file, or it is refused after [`LETS_GO`].
fn lock_alone(file: &File) -> Result<(), BackingError> {
    let until = Instant::now() + LETS_GO;
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(Errno::WOULDBLOCK) => return Err(BackingError::InUse),
            Err(errno) => return Err(BackingError::Io(errno.into())),
        }
    }
}

impl Backing {
    /// The file of an object of `bytes` in units of `unit_bytes`. What was flushed, and had not come to
    /// the file, does so now. A file that somebody else has is refused after a second.
    ///
    /// # Errors
    /// [`BackingError`].
    pub fn open(
        file: File,
        journal: File,
        bytes: u64,
        unit_bytes: u64,
    ) -> Result<Self, BackingError> {
        lock_alone(&journal)?;
        let there = file.metadata()?.len();
        if there > bytes {
            return Err(BackingError::Longer {
                file: there,
                memory: bytes,
            });
        }
        // What is not whole units is zeros to their end.
        if there > 0 && there + unit_bytes <= bytes {
            return Err(BackingError::Shorter {
                file: there,
                memory: bytes,
            });
        }
        let backing = Self {
            file,
            journal,
            bytes,
            unit_bytes,
            state: Mutex::default(),
        };
        backing.finds_journal()?;
        if there < bytes {
            backing.file.set_len(bytes)?;
        }
        Ok(backing)
    }

    /// True of the same file.
    pub(crate) fn is(&self, other: &File) -> bool {
        let of = |file: &File| file.metadata().map(|of| (of.dev(), of.ino())).ok();
        of(&self.file).is_some_and(|own| Some(own) == of(other))
    }

    /// Writes a whole journal to the file.
    fn finds_journal(&self) -> Result<(), BackingError> {
        let mut head = [0; HEAD_WORDS * 8];
        if self.journal.metadata()?.len() < HEAD_BYTES {
            return Ok(());
        }
        self.journal.read_exact_at(&mut head, 0)?;
        let (words, _) = head.as_chunks();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let [magic, unit_bytes, count, sum] = words[..4] else {
            unreachable!("there are five");
        };
        if magic == 0 || (magic == MAGIC && head != head_of(unit_bytes, count, sum)) {
            // Nothing was under way, or the head is not whole: then nobody was told that it is flushed.
            return Ok(());
        }
        if magic != MAGIC {
            return Err(BackingError::Journal);
        }
        if unit_bytes != self.unit_bytes {
            return Err(BackingError::Units {
                there: unit_bytes,
                wanted: self.unit_bytes,
            });
        }
        let mut table = vec![0; count as usize * ENTRY_BYTES];
        self.journal.read_exact_at(&mut table, self.slot(count))?;
        let (entries, _) = table.as_chunks::<ENTRY_BYTES>();
        let entries = entries.iter().map(|entry| {
            let (words, _) = entry.as_chunks();
            let [unit, sum] = [words[0], words[1]].map(u64::from_le_bytes);
            Entry {
                unit,
                sum: sum as u32,
            }
        });
        let entries: Vec<Entry> = entries.collect();
        let is_inside = |entry: &Entry| entry.unit < self.bytes.div_ceil(self.unit_bytes);
        if u64::from(crc32c(&table)) != sum || !entries.iter().all(is_inside) {
            return Err(BackingError::Journal);
        }
        self.goes_to_file(&entries)
    }

    /// Where the contents of the journal's unit of this number are.
    fn slot(&self, number: u64) -> u64 {
        HEAD_BYTES + number * self.unit_bytes
    }

    /// Bytes of a unit; the last may be shorter.
    fn unit_bytes_of(&self, unit: u64) -> usize {
        (self.bytes - unit * self.unit_bytes).min(self.unit_bytes) as usize
    }

    /// What is in the journal goes to the file, and out of the journal.
    fn goes_to_file(&self, entries: &[Entry]) -> Result<(), BackingError> {
        let mut contents = vec![0; self.unit_bytes as usize];
        for (number, entry) in entries.iter().enumerate() {
            let contents = &mut contents[..self.unit_bytes_of(entry.unit)];
            self.journal
                .read_exact_at(contents, self.slot(number as u64))?;
            if crc32c(contents) != entry.sum {
                return Err(BackingError::Journal);
            }
            self.file
                .write_all_at(contents, entry.unit * self.unit_bytes)?;
        }
        self.file.sync_data()?;
        // Before anything else is written over what the head tells of.
        self.journal.write_all_at(&[0; HEAD_WORDS * 8], 0)?;
        self.journal.sync_data()?;
        // Its room is of use to others; that it is there is no failure.
        let _ = self.journal.set_len(HEAD_BYTES);
        Ok(())
    }

    /// Before another flush: that of before comes to its end.
    ///
    /// # Errors
    /// [`BackingError::Unfinished`]: nothing can be flushed until it has.
    pub(crate) fn finishes(&self) -> Result<(), BackingError> {
        let unfinished = lock(&self.state).unfinished.clone();
        if let Some(entries) = unfinished {
            // The head may not have been written, and the file must not have a part without it.
            let done = self.writes_head(&entries).map_err(BackingError::Io);
            let done = done.and_then(|()| self.goes_to_file(&entries));
            done.map_err(|error| BackingError::Unfinished(Box::new(error)))?;
            lock(&self.state).unfinished = None;
        }
        Ok(())
    }

    /// Somebody of this host may write to a unit from now on.
    pub(crate) fn may_change(&self, unit: u64) {
        lock(&self.state).modified.insert(unit);
    }

    /// This host has no contents of a unit any more that count.
    pub(crate) fn leaves(&self, unit: u64) {
        let mut state = lock(&self.state);
        state.modified.insert(unit);
        state.elsewhere.insert(unit);
        state.taken.remove(&unit);
    }

    /// Units that may have been written since they were flushed.
    pub(crate) fn modified(&self) -> Vec<u64> {
        lock(&self.state).modified.iter().copied().collect()
    }

    /// A page, if the file's contents of it count. They are what the object is where nobody at this host
    /// has others.
    pub(crate) fn page(&self, page: PageIndex, into: &mut [u8; PAGE_BYTES]) -> io::Result<bool> {
        let at = page.0 * PAGE_BYTES as u64;
        if lock(&self.state)
            .elsewhere
            .contains(&(at / self.unit_bytes))
        {
            return Ok(false);
        }
        self.file.read_exact_at(into, at)?;
        Ok(true)
    }

    /// What a unit is now goes to the journal. `changes`: somebody may write to it at once.
    ///
    /// # Panics
    /// When a flush of before is unfinished.
    pub(crate) fn takes(&self, unit: u64, contents: &[u8], changes: bool) -> io::Result<()> {
        let mut state = lock(&self.state);
        assert!(state.unfinished.is_none(), "that comes to its end before");
        let number = state.entries.len() as u64;
        let sum = crc32c(contents);
        state.entries.push(Entry { unit, sum });
        state.taken.insert(unit);
        if !changes {
            state.modified.remove(&unit);
        }
        drop(state);
        self.journal.write_all_at(contents, self.slot(number))
    }

    /// All that is to be flushed is in the journal: when this returns it outlives the machine. How many
    /// bytes it was.
    pub(crate) fn commits(&self) -> Result<u64, BackingError> {
        let entries = lock(&self.state).entries.clone();
        if let Err(error) = self.writes(&entries) {
            self.gives_up();
            return Err(error);
        }
        let mut state = lock(&self.state);
        state.entries.clear();
        let taken = std::mem::take(&mut state.taken);
        taken.iter().for_each(|unit| {
            state.elsewhere.remove(unit);
        });
        Ok(entries
            .iter()
            .map(|entry| self.unit_bytes_of(entry.unit) as u64)
            .sum())
    }

    fn writes(&self, entries: &[Entry]) -> Result<(), BackingError> {
        if entries.is_empty() {
            return Ok(());
        }
        let table = table_of(entries);
        let written = self
            .journal
            .write_all_at(&table, self.slot(entries.len() as u64));
        let written = written.and_then(|()| self.journal.sync_data());
        written.map_err(BackingError::NotWritten)?;
        // From here on it may be whole: nobody knows what a write that fails has done.
        lock(&self.state).unfinished = Some(entries.to_vec());
        self.finishes()
    }

    /// With it the journal is whole.
    fn writes_head(&self, entries: &[Entry]) -> io::Result<()> {
        let sum = crc32c(&table_of(entries)).into();
        let head = head_of(self.unit_bytes, entries.len() as u64, sum);
        self.journal.write_all_at(&head, 0)?;
        self.journal.sync_data()
    }

    /// What is in the journal is not to be flushed, but for what is unfinished.
    pub(crate) fn gives_up(&self) {
        let mut state = lock(&self.state);
        if state.unfinished.is_none() {
            // Its room is of use to others; the next flush needs none of it.
            let _ = self.journal.set_len(HEAD_BYTES);
        }
        state.entries.clear();
        let taken = std::mem::take(&mut state.taken);
        state.modified.extend(taken);
    }
}

/// What the journal has after the contents.
fn table_of(entries: &[Entry]) -> Vec<u8> {
    let words = entries
        .iter()
        .flat_map(|entry| [entry.unit, entry.sum.into()]);
    words.flat_map(u64::to_le_bytes).collect()
}

fn head_of(unit_bytes: u64, count: u64, sum: u64) -> [u8; HEAD_WORDS * 8] {
    let mut head = [0; HEAD_WORDS * 8];
    let words = [MAGIC, unit_bytes, count, sum];
    for (into, word) in head.chunks_exact_mut(8).zip(words) {
        into.copy_from_slice(&word.to_le_bytes());
    }
    let sum = u64::from(crc32c(&head[..32]));
    head[32..].copy_from_slice(&sum.to_le_bytes());
    head
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::path::Path;

    use super::*;

    const UNIT: u64 = 8192;
    const UNITS: u64 = 10;

    fn open(folder: &Path) -> Result<Backing, BackingError> {
        opens(folder, UNITS * UNIT, UNIT)
    }

    fn opens(folder: &Path, bytes: u64, unit_bytes: u64) -> Result<Backing, BackingError> {
        let file = |name| {
            let options = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .clone();
            options.open(folder.join(name)).unwrap()
        };
        Backing::open(file("file"), file("journal"), bytes, unit_bytes)
    }

    fn unit(with: u8) -> Vec<u8> {
        vec![with; UNIT as usize]
    }

    fn seen(backing: &Backing) -> Vec<u8> {
        let mut bytes = [0; PAGE_BYTES];
        let of = |unit| {
            let is_there = backing.page(PageIndex(unit * 2 + 1), &mut bytes).unwrap();
            assert!(is_there && bytes.iter().all(|byte| *byte == bytes[0]));
            bytes[0]
        };
        (0..UNITS).map(of).collect()
    }

    #[test]
    fn wherever_a_flush_is_cut_off_all_of_it_is_there_or_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let before = open(folder.path()).unwrap();
        for one in [3, 4, 9] {
            before.takes(one, &unit(7), false).unwrap();
        }
        assert_eq!(before.commits().unwrap(), 3 * UNIT);
        drop(before);
        let first = seen(&open(folder.path()).unwrap());
        assert_eq!(first, [0, 0, 0, 7, 7, 0, 0, 0, 0, 7]);
        // The journal of the next flush, as it is when its head has been written.
        let next = open(folder.path()).unwrap();
        for one in [0, 4] {
            next.takes(one, &unit(8), false).unwrap();
        }
        let entries = lock(&next.state).entries.clone();
        let table = table_of(&entries);
        next.journal.write_all_at(&table, next.slot(2)).unwrap();
        let head = head_of(UNIT, 2, crc32c(&table).into());
        drop(next);
        let journal = std::fs::read(folder.path().join("journal")).unwrap();
        let file = std::fs::read(folder.path().join("file")).unwrap();
        for written in 0..=head.len() {
            let mut cut = journal.clone();
            cut[..written].copy_from_slice(&head[..written]);
            // Its last bytes may be zeros.
            let is_whole = cut[..head.len()] == head;
            // The file may have a part of it already, when the head is whole.
            let mut file = file.clone();
            if is_whole {
                file[..5000].fill(8);
            }
            std::fs::write(folder.path().join("journal"), cut).unwrap();
            std::fs::write(folder.path().join("file"), file).unwrap();
            let found = open(folder.path());
            if (1..8).contains(&written) {
                assert!(
                    matches!(found, Err(BackingError::Journal)),
                    "no machine writes a part of a word"
                );
                continue;
            }
            let second = [8, 0, 0, 7, 8, 0, 0, 0, 0, 7].to_vec();
            let expected = if is_whole { second } else { first.clone() };
            assert_eq!(
                seen(&found.unwrap()),
                expected,
                "{written} bytes of the head"
            );
        }
    }

    #[test]
    fn what_is_written_while_it_is_flushed_is_flushed_the_next_time() {
        let folder = tempfile::tempdir().unwrap();
        let backing = open(folder.path()).unwrap();
        assert!(backing.modified().is_empty());
        backing.may_change(1);
        backing.may_change(2);
        backing.leaves(3);
        assert_eq!(backing.modified(), [1, 2, 3]);
        let mut bytes = [0; PAGE_BYTES];
        let mut has = |unit: u64| backing.page(PageIndex(unit * 2), &mut bytes).unwrap();
        assert!(has(2) && !has(3));
        backing.takes(1, &unit(1), false).unwrap();
        backing.takes(2, &unit(2), true).unwrap();
        backing.takes(3, &unit(3), false).unwrap();
        backing.takes(4, &unit(4), false).unwrap();
        assert_eq!(backing.modified(), [2]);
        assert!(!has(3), "it is not in the file yet");
        backing.leaves(4);
        backing.commits().unwrap();
        assert_eq!(backing.modified(), [2, 4]);
        assert!(has(3) && !has(4));
        backing.takes(2, &unit(5), false).unwrap();
        backing.gives_up();
        assert_eq!(backing.modified(), [2, 4]);
        assert_eq!(backing.commits().unwrap(), 0);
    }

    #[test]
    fn a_flush_after_one_that_could_not_write_the_file_leaves_it_whole() {
        let folder = tempfile::tempdir().unwrap();
        let first = open(folder.path()).unwrap();
        for one in 0..3 {
            first.takes(one, &unit(1), false).unwrap();
        }
        first.commits().unwrap();
        drop(first);
        // The file takes nothing any more (as on a full disk), the journal does.
        let options = |writes| OpenOptions::new().read(true).write(writes).clone();
        let file = options(false).open(folder.path().join("file")).unwrap();
        let journal = options(true).open(folder.path().join("journal")).unwrap();
        let full = Backing::open(file, journal, UNITS * UNIT, UNIT).unwrap();
        for one in 0..3 {
            full.takes(one, &unit(2), false).unwrap();
        }
        let failed = full.commits().unwrap_err();
        assert!(
            failed.to_string().contains("keep the two together"),
            "{failed}"
        );
        assert_eq!(full.modified(), [0, 1, 2], "they are flushed again");
        // Somebody flushes again, which has to wait, and the host dies.
        assert!(matches!(full.finishes(), Err(BackingError::Unfinished(_))));
        drop(full);
        let found = open(folder.path()).unwrap();
        assert_eq!(seen(&found), [2, 2, 2, 0, 0, 0, 0, 0, 0, 0]);
        found.finishes().unwrap();
        found.takes(1, &unit(3), false).unwrap();
        found.commits().unwrap();
        assert_eq!(seen(&found)[..3], [2, 3, 2]);
    }

    #[test]
    fn a_flush_whose_head_was_not_written_has_one_before_it_goes_to_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut backing = open(folder.path()).unwrap();
        backing.takes(1, &unit(1), false).unwrap();
        backing.takes(2, &unit(1), false).unwrap();
        backing.file = File::open(folder.path().join("file")).unwrap();
        assert!(backing.commits().is_err());
        // As if the disk had not taken it.
        let head = [0; HEAD_WORDS * 8];
        backing.journal.write_all_at(&head, 0).unwrap();
        assert!(backing.finishes().is_err());
        drop(backing);
        let found = open(folder.path()).unwrap();
        assert_eq!(seen(&found)[..4], [0, 1, 1, 0]);
    }

    #[test]
    fn a_flush_that_is_given_up_leaves_its_room_on_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let backing = open(folder.path()).unwrap();
        backing.takes(1, &unit(1), false).unwrap();
        assert!(backing.journal.metadata().unwrap().len() > HEAD_BYTES);
        backing.gives_up();
        assert_eq!(backing.journal.metadata().unwrap().len(), HEAD_BYTES);
        assert_eq!(backing.modified(), [1]);
    }

    #[test]
    fn a_file_that_is_given_up_meanwhile_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let backing = open(folder.path()).unwrap();
        std::thread::scope(|scope| {
            let next = scope.spawn(|| open(folder.path()));
            // It may ask before this or after it: both find the file free in the end.
            drop(backing);
            assert!(next.join().unwrap().is_ok());
        });
    }

    #[test]
    fn what_cannot_be_the_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let backing = open(folder.path()).unwrap();
        assert!(matches!(open(folder.path()), Err(BackingError::InUse)));
        drop(backing);
        let shorter = opens(folder.path(), UNIT, UNIT);
        assert!(matches!(shorter, Err(BackingError::Longer { .. })));
        let longer = opens(folder.path(), 2 * UNITS * UNIT, UNIT);
        assert!(matches!(longer, Err(BackingError::Shorter { .. })));
        let journal = folder.path().join("journal");
        std::fs::write(&journal, vec![5; 5000]).unwrap();
        assert!(matches!(open(folder.path()), Err(BackingError::Journal)));
        let mut other = vec![0; 8192];
        other[..40].copy_from_slice(&head_of(4096, 0, 0));
        std::fs::write(&journal, other).unwrap();
        assert!(matches!(
            open(folder.path()),
            Err(BackingError::Units { .. })
        ));
    }
}
