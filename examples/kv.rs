//! A key-value store on a mapped file, with a write-ahead log.
//!
//!     cargo run --release -p farpage --example kv -- /tmp/store put apple red
//!     cargo run --release -p farpage --example kv -- /tmp/store get apple
//!     cargo run --release -p farpage --example kv -- /tmp/store bench
//!
//! The table is memory: a put stores into it and never waits for its file. Pages reach the file when
//! the kernel wants room, in the background, or at a checkpoint, in no order that the store knows.
//! What keeps that safe is one rule, the **barrier**: before a page goes to the file, the log is on
//! the disk as far as the page depends on it. So a put is durable when its log record is, the file
//! never holds what the log does not, and after `kill -9` at any instant replaying the log gives
//! every put that was acknowledged, whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use farpage::{
    Embedded, FileSource, Mapping, Object, OpenMode, PageRange, SourceError, SourcePager,
};

/// Bytes of a slot: a whole number of them in a page, so that none crosses two.
const SLOT: usize = 128;
const KEY_MAX: usize = 32;
const VALUE_MAX: usize = SLOT - KEY_MAX - 2;
const SLOTS: usize = 1 << 17;
const PAGE: usize = 4096;
/// The log is started anew when it is longer than this.
const LOG_MAX: u64 = 64 << 20;

type Slot = [u8; SLOT];

/// The log: records in memory, on their way, and on the disk.
struct Log {
    file: File,
    buffer: Vec<u8>,
    /// Bytes ever appended; a record's number is where it ends.
    appended: u64,
    /// As far as it is on the disk.
    durable: u64,
}

impl Log {
    fn append(&mut self, changes: &[(u32, Slot)]) -> u64 {
        let mut record = (changes.len() as u32).to_le_bytes().to_vec();
        for (slot, contents) in changes {
            record.extend(slot.to_le_bytes());
            record.extend(contents);
        }
        record.extend(checksum(&record).to_le_bytes());
        self.buffer.extend(&record);
        self.appended += record.len() as u64;
        self.appended
    }

    fn force(&mut self, as_far_as: u64) -> io::Result<()> {
        if self.durable >= as_far_as {
            return Ok(());
        }
        self.file.write_all(&self.buffer)?;
        self.buffer.clear();
        self.file.sync_data()?;
        self.durable = self.appended;
        Ok(())
    }
}

/// FNV-1a: enough to tell a record that was cut off.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The whole records of a log: lists of changes.
fn records(mut bytes: &[u8]) -> Vec<Vec<(u32, Slot)>> {
    let mut found = Vec::new();
    while let Some((head, _)) = bytes.split_first_chunk::<4>() {
        let length = 4 + u32::from_le_bytes(*head) as usize * (4 + SLOT);
        let Some((record, rest)) = bytes.split_at_checked(length) else {
            break;
        };
        let Some((sum, rest)) = rest.split_first_chunk::<8>() else {
            break;
        };
        if u64::from_le_bytes(*sum) != checksum(record) {
            break;
        }
        let change = |change: &[u8]| {
            let (slot, contents) = change.split_first_chunk::<4>()?;
            Some((u32::from_le_bytes(*slot), contents.try_into().ok()?))
        };
        found.push(
            record[4..]
                .chunks_exact(4 + SLOT)
                .filter_map(change)
                .collect(),
        );
        bytes = rest;
    }
    found
}

/// The store.
pub struct Store {
    memory: Mapping,
    _object: Object,
    source: Arc<FileSource>,
    log: Arc<Mutex<Log>>,
    /// For each page of the table, the record that changed it last.
    depends: Arc<Vec<AtomicU64>>,
    path: PathBuf,
}

impl Store {
    /// Opens the store in `folder`, replaying its log; `ram` bytes of it are in memory at most.
    pub fn open(folder: &Path, ram: u64) -> Result<Self, Box<dyn std::error::Error>> {
        Self::open_with(folder, ram, true)
    }

    fn open_with(
        folder: &Path,
        ram: u64,
        barrier: bool,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        fs::create_dir_all(folder)?;
        let (table, path) = (folder.join("table"), folder.join("log"));
        let mode = if table.exists() {
            OpenMode::Write
        } else {
            OpenMode::Create
        };
        let size = (SLOTS * SLOT) as u64;
        let source = Arc::new(FileSource::open(&table, mode, Some(size))?);
        let file = OpenOptions::new().append(true).create(true).open(&path)?;
        let log = Arc::new(Mutex::new(Log {
            file,
            buffer: Vec::new(),
            appended: 0,
            durable: 0,
        }));
        let pages = SLOTS * SLOT / PAGE;
        let depends: Arc<Vec<AtomicU64>> =
            Arc::new((0..pages).map(|_| AtomicU64::new(0)).collect());
        let (forced, on) = (Arc::clone(&log), Arc::clone(&depends));
        let mut pager = SourcePager::new(source.clone(), &Default::default());
        if barrier {
            pager = pager.with_barrier(move |leaving| {
                let last = leaving
                    .iter()
                    .map(|out| on[out.page.0 as usize].load(Ordering::Acquire));
                let mut log = forced
                    .lock()
                    .unwrap_or_else(|poisoned| poisoned.into_inner());
                let done = log.force(last.max().unwrap_or(0));
                done.map_err(|error| SourceError::Callback {
                    name: "write-ahead log".into(),
                    offset: leaving[0].page.0 * PAGE as u64,
                    cause: error.to_string(),
                })
            });
        }
        let object = Embedded::start(ram)?.object(Arc::new(pager), size as usize)?;
        let store = Self {
            memory: object.map()?,
            _object: object,
            source,
            log,
            depends,
            path,
        };
        store.recover()?;
        Ok(store)
    }

    /// Replays the log: what it says is what holds, whatever reached the table.
    fn recover(&self) -> Result<(), Box<dyn std::error::Error>> {
        let mut bytes = Vec::new();
        File::open(&self.path)?.read_to_end(&mut bytes)?;
        for (slot, contents) in records(&bytes).into_iter().flatten() {
            self.memory.write(slot as usize * SLOT, &contents)?;
        }
        self.checkpoint()
    }

    /// The table is on the disk whole, and the log is empty.
    pub fn checkpoint(&self) -> Result<(), Box<dyn std::error::Error>> {
        let mut log = self.lock();
        let all = log.appended;
        log.force(all)?;
        drop(log);
        self.memory.clean(PageRange::new(0, u64::MAX))?;
        farpage::Source::sync(&*self.source)?;
        // What was appended meanwhile would be lost with the old log: nobody may append now.
        let log = self.lock();
        if log.appended == all {
            log.file.set_len(0)?;
            log.file.sync_data()?;
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Log> {
        self.log
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn slot(&self, at: usize) -> Slot {
        let mut slot = [0; SLOT];
        self.memory.read(at * SLOT, &mut slot).expect("inside");
        slot
    }

    /// The slot that holds `key`, or where it would go, after `changes`.
    fn find(&self, key: &[u8], changes: &[(u32, Slot)]) -> Option<usize> {
        let first = checksum(key) as usize % SLOTS;
        let slots = (0..SLOTS).map(|step| (first + step) % SLOTS);
        slots.into_iter().find(|at| {
            let changed = changes.iter().rev().find(|(slot, _)| *slot as usize == *at);
            let slot = changed.map_or_else(|| self.slot(*at), |(_, contents)| *contents);
            slot[0] == 0 || slot[0] as usize == key.len() && slot[2..].starts_with(key)
        })
    }

    /// The value of `key`.
    pub fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        let slot = self.slot(self.find(key, &[])?);
        let length = slot[1] as usize;
        (slot[0] > 0).then(|| slot[2 + KEY_MAX..][..length].to_vec())
    }

    /// Sets all of `pairs`, or none of them. They are durable after [`Store::commit`].
    pub fn put(&self, pairs: &[(&[u8], &[u8])]) -> Result<(), Box<dyn std::error::Error>> {
        let mut changes = Vec::with_capacity(pairs.len());
        for (key, value) in pairs {
            if key.is_empty() || key.len() > KEY_MAX || value.len() > VALUE_MAX {
                return Err(format!("a key has 1 to {KEY_MAX} bytes, a value {VALUE_MAX}").into());
            }
            let at = self.find(key, &changes).ok_or("the table is full")?;
            let mut slot = [0; SLOT];
            (slot[0], slot[1]) = (key.len() as u8, value.len() as u8);
            slot[2..][..key.len()].copy_from_slice(key);
            slot[2 + KEY_MAX..][..value.len()].copy_from_slice(value);
            changes.push((at as u32, slot));
        }
        let record = self.lock().append(&changes);
        for (at, slot) in &changes {
            // First: a page that leaves from now on takes this record with it.
            let page = *at as usize * SLOT / PAGE;
            self.depends[page].fetch_max(record, Ordering::AcqRel);
            self.memory.write(*at as usize * SLOT, slot)?;
        }
        Ok(())
    }

    /// Returns when all puts are durable. One write of the log, however many they are.
    pub fn commit(&self) -> Result<(), Box<dyn std::error::Error>> {
        let mut log = self.lock();
        let all = log.appended;
        log.force(all)?;
        let long = log.file.metadata()?.len() > LOG_MAX;
        drop(log);
        if long { self.checkpoint() } else { Ok(()) }
    }
}

/// Moves amounts between accounts for ever, and says what is durable; for the test below.
fn transfers(folder: &Path, seed: u64, barrier: bool) -> Result<(), Box<dyn std::error::Error>> {
    // The smallest budget, so that pages leave all the time.
    let store = Store::open_with(folder, 4 << 20, barrier)?;
    let key = |account: u64| format!("account {account}").into_bytes();
    let amount = |account: u64| {
        let value = store.get(&key(account)).unwrap_or_default();
        i64::from_le_bytes(value.try_into().unwrap_or_default())
    };
    let mut random = seed | 1;
    for round in 1u64.. {
        for _ in 0..64 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let (from, to) = (random % 20_000, random / 20_000 % 20_000);
            if from == to {
                continue;
            }
            let (less, more) = (amount(from) - 1, amount(to) + 1);
            let pairs: [(&[u8], &[u8]); 2] = [
                (&key(from), &less.to_le_bytes()),
                (&key(to), &more.to_le_bytes()),
            ];
            store.put(&pairs)?;
        }
        store.put(&[(b"round", &round.to_le_bytes())])?;
        // Commits seldom, so that pages leave before it does.
        if round.is_multiple_of(8) {
            store.commit()?;
            println!("{round}");
        }
        if round.is_multiple_of(200) {
            store.checkpoint()?;
        }
    }
    Ok(())
}

/// The round of transfers that the store has, and the sum of all accounts; for the test.
fn state(store: &Store) -> Result<(), Box<dyn std::error::Error>> {
    // All of it will be looked at.
    store
        .memory
        .prefetch([PageRange::new(0, u64::MAX)], |_| ())?;
    let number = |key: &str| {
        let value = store.get(key.as_bytes()).unwrap_or_default();
        i64::from_le_bytes(value.try_into().unwrap_or_default())
    };
    let sum: i64 = (0..20_000)
        .map(|account| number(&format!("account {account}")))
        .sum();
    println!("{} {sum}", number("round"));
    Ok(())
}

fn bench(store: &Store) -> Result<(), Box<dyn std::error::Error>> {
    let began = Instant::now();
    let count = 100_000u64;
    for n in 0..count {
        store.put(&[(&n.wrapping_mul(0x9e37_79b9).to_le_bytes(), &n.to_le_bytes())])?;
        if n % 100 == 0 {
            store.commit()?;
        }
    }
    store.commit()?;
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{count} puts, durable by hundreds, in {seconds:.2} s: {:.0}/s",
        count as f64 / seconds
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let open = |folder: &str| Store::open(Path::new(folder), 16 << 20);
    match words.as_slice() {
        [folder, "get", key] => match open(folder)?.get(key.as_bytes()) {
            Some(value) => println!("{}", String::from_utf8_lossy(&value)),
            None => return Err(format!("there is no {key}").into()),
        },
        [folder, "put", key, value] => {
            let store = open(folder)?;
            store.put(&[(key.as_bytes(), value.as_bytes())])?;
            store.commit()?;
        }
        [folder, "bench"] => bench(&open(folder)?)?,
        [folder, "state"] => state(&Store::open(Path::new(folder), 64 << 20)?)?,
        [folder, "transfers", seed] => transfers(Path::new(folder), seed.parse()?, true)?,
        [folder, "transfers", seed, "unordered"] => {
            transfers(Path::new(folder), seed.parse()?, false)?;
        }
        _ => return Err("usage: kv FOLDER get KEY | put KEY VALUE | bench".into()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_new_keys_that_want_one_slot_are_both_kept() {
        let keys = (0..20_000u64).map(|n| format!("account {n}").into_bytes());
        let mut wanted = std::collections::HashMap::new();
        let slot_of = |key: &Vec<u8>| checksum(key) as usize % SLOTS;
        let pair = keys.into_iter().find_map(|key| {
            let other = wanted.insert(slot_of(&key), key.clone());
            other.map(|other| (other, key))
        });
        let (one, other) = pair.unwrap();
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let store = Store::open(folder.path(), 16 << 20).unwrap();
        store.put(&[(&one, b"1"), (&other, b"2")]).unwrap();
        store.put(&[(&other, b"3"), (&other, b"4")]).unwrap();
        assert_eq!(store.get(&one).unwrap(), b"1");
        assert_eq!(store.get(&other).unwrap(), b"4");
    }
}
