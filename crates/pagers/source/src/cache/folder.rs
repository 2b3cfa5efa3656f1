//! The folder of a cache: what all processes that use it agree about, under one lock.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use farpage_sys::crc32c;

use super::layout::{self, HEADER_BYTES, Header, Key, PAGE};
use super::object;

/// What files of objects are called: the key and this.
const ENDING: &str = ".kept";
/// Indices of compressed objects, which may lie in the same folder: they are made anew when needed.
const INDEX_ENDING: &str = ".index";
/// A file that another process has open and has used within this time is not thrown out.
const IN_USE: Duration = Duration::from_secs(60);
/// How long the lock is waited for by who reads. Only a process that was stopped holds it for long.
const LOCK_WAIT: Duration = Duration::from_millis(200);
/// The same by who asks what is kept, or throws it out.
const LONG_LOCK_WAIT: Duration = Duration::from_secs(30);

pub(super) struct Folder {
    pub(super) path: PathBuf,
    pub(super) limit: u64,
    /// `flock` of this file is between processes, the mutex between threads. It holds the number
    /// of bytes that all objects take, and a sum of that.
    lock: Mutex<File>,
    opened: Instant,
    /// The second, since opening, in which no room could be made.
    full_at_s: AtomicU64,
    /// The second in which somebody else held the lock for too long.
    stuck_at_s: AtomicU64,
}

/// One file.
struct Entry {
    path: PathBuf,
    used: SystemTime,
    bytes: u64,
}

/// The lock, held.
pub(super) struct Held<'a> {
    folder: &'a Folder,
    lock: MutexGuard<'a, File>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // It fails for no descriptor that is open.
        let _ = self.lock.unlock();
    }
}

fn open(path: &Path) -> io::Result<File> {
    let mut how = OpenOptions::new();
    how.read(true).write(true).create(true).truncate(false);
    how.mode(0o600).open(path)
}

impl Folder {
    pub(super) fn open(path: &Path, limit: u64) -> io::Result<Self> {
        // What is kept may be for this user's eyes only.
        let mut make = DirBuilder::new();
        make.recursive(true).mode(0o700).create(path)?;
        let lock = open(&path.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => lock.unlock()?,
            Err(TryLockError::WouldBlock) => {}
            // A file system without locks: nothing would ever be kept.
            Err(TryLockError::Error(error)) => return Err(error),
        }
        Ok(Self {
            lock: Mutex::new(lock),
            path: path.into(),
            limit,
            opened: Instant::now(),
            full_at_s: AtomicU64::new(u64::MAX),
            stuck_at_s: AtomicU64::new(u64::MAX),
        })
    }

    /// `None` when somebody else holds it for long, or the file system has no such locks. Not
    /// everybody waits for that again within the same second.
    pub(super) fn hold(&self) -> Option<Held<'_>> {
        if self.stuck_at_s.load(Ordering::Relaxed) == self.now_s() {
            return None;
        }
        let held = self.hold_within(LOCK_WAIT);
        if held.is_none() {
            self.stuck_at_s.store(self.now_s(), Ordering::Relaxed);
        }
        held
    }

    /// The same, and it is waited for however often that was in vain.
    pub(super) fn hold_patiently(&self) -> Option<Held<'_>> {
        self.hold_within(LONG_LOCK_WAIT)
    }

    fn hold_within(&self, wait: Duration) -> Option<Held<'_>> {
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        let mut pause = Duration::from_micros(5);
        loop {
            match lock.try_lock() {
                Ok(()) => return Some(Held { folder: self, lock }),
                Err(TryLockError::WouldBlock) if start.elapsed() < wait => {}
                Err(_) => return None,
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }

    fn now_s(&self) -> u64 {
        self.opened.elapsed().as_secs()
    }

    pub(super) fn path_of(&self, key: Key) -> PathBuf {
        self.path.join(key.hex() + ENDING)
    }
}

/// The header of a file, when it is right.
pub(super) fn header_of(file: &File) -> Option<Header> {
    let mut bytes = [0; HEADER_BYTES];
    file.read_exact_at(&mut bytes, 0).ok()?;
    Header::decode(&bytes)
}

impl Held<'_> {
    /// Opens the file of an object, and makes it when it is not there or not right. It is known to
    /// be in use until it is closed.
    pub(super) fn open_object(&self, key: Key, size: u64) -> io::Result<File> {
        let file = open(&self.folder.path_of(key))?;
        file.try_lock_shared()?;
        self.header(&file, key, size)?;
        Ok(file)
    }

    /// The header of an object's file, which is emptied when it is not right.
    pub(super) fn header(&self, file: &File, key: Key, size: u64) -> io::Result<Header> {
        let right = |header: &Header| header.key == key && header.size == size;
        if let Some(header) = header_of(file).filter(right) {
            return self.recover(file, header);
        }
        let header = Header {
            key,
            size,
            kept: 0,
            writing: (0, 0),
        };
        self.set_total(None)?;
        file.set_len(0)?;
        file.write_all_at(&header.encode(), 0)?;
        Ok(header)
    }

    /// Takes back what was counted for pages that somebody was writing, and did not.
    pub(super) fn recover(&self, file: &File, mut header: Header) -> io::Result<Header> {
        let (first, pages) = header.writing;
        if pages == 0 {
            return Ok(header);
        }
        let mut sums = vec![0; pages as usize * 4];
        object::read_zeros(file, &mut sums, layout::sum_at(first));
        let absent = sums.chunks_exact(4).filter(|sum| **sum == [0; 4]).count() as u64;
        header.kept = header.kept.saturating_sub(absent * PAGE);
        header.writing = (0, 0);
        file.write_all_at(&header.encode(), 0)?;
        self.give_back(absent * PAGE)?;
        Ok(header)
    }

    /// Counts `bytes` more, after throwing out what was not used for longest when they would be
    /// too many. False when there is no room.
    pub(super) fn make_room(&self, bytes: u64, own: Key) -> io::Result<bool> {
        let limit = self.folder.limit;
        let now_s = self.folder.now_s();
        let fits = |total: u64| total.checked_add(bytes).is_some_and(|sum| sum <= limit);
        if let Some(total) = self.total().filter(|total| fits(*total)) {
            self.set_total(Some(total + bytes))?;
            return Ok(true);
        }
        if self.folder.full_at_s.load(Ordering::Relaxed) == now_s {
            return Ok(false);
        }
        let own = self.folder.path_of(own);
        let mut all = self.entries()?;
        let mut total: u64 = all.iter().map(|entry| entry.bytes).sum();
        all.retain(|entry| entry.path != own);
        all.sort_by_key(|entry| entry.used);
        for entry in all {
            if fits(total) {
                break;
            }
            if throw_out(&entry, IN_USE)? {
                total -= entry.bytes;
            }
        }
        let room = fits(total);
        if !room {
            self.folder.full_at_s.store(now_s, Ordering::Relaxed);
        }
        self.set_total(Some(if room { total + bytes } else { total }))?;
        Ok(room)
    }

    /// Takes back what [`Self::make_room`] counted.
    pub(super) fn give_back(&self, bytes: u64) -> io::Result<()> {
        let total = self.total().map(|total| total.saturating_sub(bytes));
        self.set_total(total)
    }

    /// Bytes and number of all objects.
    pub(super) fn usage(&self) -> io::Result<(u64, usize)> {
        let all = self.entries()?;
        let bytes = all.iter().map(|entry| entry.bytes).sum();
        self.set_total(Some(bytes))?;
        let objects = all.iter().filter(|entry| entry.bytes > 0).count();
        Ok((bytes, objects))
    }

    /// Throws out everything.
    pub(super) fn clear(&self) -> io::Result<()> {
        self.folder.full_at_s.store(u64::MAX, Ordering::Relaxed);
        self.set_total(None)?;
        for entry in self.entries()? {
            throw_out(&entry, Duration::ZERO)?;
        }
        Ok(())
    }

    fn entries(&self) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for file in self.folder.path.read_dir()? {
            let path = file?.path();
            let name = path.as_os_str().to_string_lossy();
            let is_index = name.ends_with(INDEX_ENDING);
            if !is_index && !name.ends_with(ENDING) {
                continue;
            }
            let file = match File::open(&path) {
                // An index gets its name without the lock.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            };
            let metadata = file.metadata()?;
            // The first page is the header's.
            let kept = || header_of(&file).map_or(0, |header| header.kept + PAGE);
            entries.push(Entry {
                used: metadata.modified()?,
                bytes: if is_index { metadata.len() } else { kept() },
                path,
            });
        }
        Ok(entries)
    }

    fn total(&self) -> Option<u64> {
        let mut bytes = [0; 12];
        self.lock.read_exact_at(&mut bytes, 0).ok()?;
        let (total, sum) = bytes.split_at(8);
        let right = crc32c(total).to_le_bytes() == sum;
        right.then(|| u64::from_le_bytes(core::array::from_fn(|i| total[i])))
    }

    /// `None`: it must be counted anew.
    fn set_total(&self, total: Option<u64>) -> io::Result<()> {
        let mut bytes = [0xff; 12];
        if let Some(total) = total {
            bytes[..8].copy_from_slice(&total.to_le_bytes());
            let sum = crc32c(&bytes[..8]);
            bytes[8..].copy_from_slice(&sum.to_le_bytes());
        }
        self.lock.write_all_at(&bytes, 0)
    }
}

/// Removes a file that nobody has open, and empties one that somebody has: he finds nothing in it
/// from then on. False, and nothing happens, when it was used within `recent`.
fn throw_out(entry: &Entry, recent: Duration) -> io::Result<bool> {
    let file = open(&entry.path)?;
    if file.try_lock().is_ok() {
        std::fs::remove_file(&entry.path)?;
        return Ok(true);
    }
    let ago = entry.used.elapsed().unwrap_or_default();
    if ago < recent {
        return Ok(false);
    }
    file.set_len(0)?;
    Ok(true)
}
