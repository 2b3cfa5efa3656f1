//! The paging files of a run, as its supervisor has them: opened here, known to the tasks through
//! the control block, added and removed while the run goes on.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, anyhow, bail};
use farpage_object::{
    Control, SEGMENT_BYTES, SEGMENTS_MAX, SPILL_FILES_MAX, SpillFile, SpillState,
};
use rustix::fs::{fstat, fstatvfs};
use serde::{Deserialize, Serialize};

use super::give_back::{self, Seen};
use super::{PagingConfig, file as paging_file};

/// The paging files of one run.
pub struct SpillSet {
    control: &'static Control,
    entries: Mutex<Vec<Entry>>,
}

struct Entry {
    dir: PathBuf,
    /// `None` once it is removed.
    file: Option<OwnedFd>,
    direct: bool,
    seen: Seen,
}

/// A paging file as `farpage spill ls` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagingFileListed {
    /// The directory that it is in.
    pub dir: PathBuf,
    /// `active`, `draining` or `removed`.
    pub state: String,
    /// Bytes that pages take in it.
    pub used_bytes: u64,
    /// Bytes that the disk has of it.
    pub allocated_bytes: u64,
    /// Bytes that it may take; `None`: as the disk allows.
    pub limit_bytes: Option<u64>,
    /// It bypasses the page cache.
    pub direct: bool,
    /// Its disk was full when it last grew.
    pub full: bool,
    /// The system error of its last write, if its disk failed.
    #[serde(default)]
    pub write_error: Option<i32>,
}

impl PagingFileListed {
    /// Whether pages are in it, or may come into it.
    pub fn is_there(&self) -> bool {
        self.state != REMOVED
    }

    /// What is wrong with its disk, in words.
    pub fn trouble(&self) -> Option<String> {
        trouble(self.full, self.write_error)
    }
}

const REMOVED: &str = "removed";

/// The folder of a paging file, with what is wrong with its disk.
pub fn named(folder: &dyn std::fmt::Display, trouble: Option<String>) -> String {
    match trouble {
        Some(trouble) => format!("'{folder}' ({trouble})"),
        None => format!("'{folder}'"),
    }
}

/// What is wrong with the disk of a paging file, in words.
pub fn trouble(is_full: bool, write_error: Option<i32>) -> Option<String> {
    if let Some(errno) = write_error {
        let error = std::io::Error::from_raw_os_error(errno);
        return Some(format!("writing fails: {error}"));
    }
    is_full.then(|| "disk full".into())
}

/// What became of adding a directory.
pub struct Added {
    /// Something the user should know.
    pub warning: Option<String>,
}

impl SpillSet {
    /// No paging files yet.
    pub fn new(control: &'static Control) -> Self {
        Self {
            control,
            entries: Mutex::new(Vec::new()),
        }
    }

    /// The paging files of the command line; what the user should know goes to standard error.
    /// Space of them that is not needed any more goes back, from a thread of its own.
    ///
    /// # Errors
    /// As for [`SpillSet::add`], and without a thread.
    pub fn start(control: &'static Control, memory: &PagingConfig) -> Result<Arc<Self>> {
        let spill = Self::new(control);
        for dir in &memory.spill_dirs {
            let added = spill.add_at_start(dir, memory.segments_per_file())?;
            if let Some(warning) = added.warning {
                farpage_sys::say!("farpage: {warning}");
            }
        }
        let spill = Arc::new(spill);
        let gives_back = Arc::downgrade(&spill);
        let give_back = move || {
            while let Some(spill) = gives_back.upgrade() {
                spill.give_back();
                drop(spill);
                std::thread::sleep(give_back::LOOK);
            }
        };
        let thread = std::thread::Builder::new().name("spill".into());
        thread.spawn(give_back).context("cannot start a thread")?;
        Ok(spill)
    }

    /// Gives back what the disk has of segments that nobody needs.
    fn give_back(&self) {
        for (at, entry) in self.lock().iter_mut().enumerate() {
            if let Some(file) = &entry.file {
                entry.seen.look(self.control, at, file.as_fd());
            }
        }
    }

    /// Makes a paging file in `dir` and lets the tasks use it, up to `limit_segments`; without that
    /// as the disk allows. A file there that is being removed is used again instead; of one that is
    /// in use the limit changes.
    ///
    /// # Errors
    /// When the directory takes none, or the run has had as many files as it can.
    pub fn add(&self, dir: &Path, limit_segments: Option<u32>) -> Result<Added> {
        let mut entries = self.lock();
        if let Some(at) = live(&entries, dir) {
            let limit = &self.control.spill[at].limit_segments;
            if let Some(segments) = limit_segments {
                limit.store(segments, Ordering::Relaxed);
            }
            let state = &self.control.spill[at].state;
            let draining = SpillState::Draining as u32;
            let active = SpillState::Active as u32;
            let again =
                state.compare_exchange(draining, active, Ordering::AcqRel, Ordering::Relaxed);
            if again.is_err() && limit_segments.is_none() {
                bail!(
                    "cannot add '{}': this run pages to it already; give another directory, or change \
                     what it may take with --limit",
                    dir.display()
                );
            }
            return Ok(Added { warning: None });
        }
        let limit_segments = limit_segments.unwrap_or(SEGMENTS_MAX as u32);
        self.open(&mut entries, dir, limit_segments)
    }

    /// As [`SpillSet::add`], for the directories of the command line: one may be given twice.
    ///
    /// # Errors
    /// As there.
    pub fn add_at_start(&self, dir: &Path, limit_segments: u32) -> Result<Added> {
        self.open(&mut self.lock(), dir, limit_segments)
    }

    fn open(&self, entries: &mut Vec<Entry>, dir: &Path, limit_segments: u32) -> Result<Added> {
        let Some(line) = self.control.spill.get(entries.len()) else {
            bail!(
                "cannot add '{}': this run has had {SPILL_FILES_MAX} paging files, which is all \
                 that one run can have; start another run",
                dir.display()
            );
        };
        let opened = paging_file::open_in(dir)?;
        publish(line, &opened.file, limit_segments);
        entries.push(Entry {
            dir: dir.to_path_buf(),
            file: Some(opened.file),
            direct: opened.direct,
            seen: Seen::default(),
        });
        let warning = opened
            .in_memory
            .then(|| paging_file::in_memory_warning(dir));
        Ok(Added { warning })
    }

    /// Stops the use of the file in `dir` and asks the tasks to move their pages elsewhere.
    /// Returns its number, for [`SpillSet::left`].
    ///
    /// # Errors
    /// When there is none, or the pages in it would have no other place.
    pub fn start_removal(&self, dir: &Path) -> Result<usize> {
        let entries = self.lock();
        let at = live(&entries, dir).ok_or_else(|| {
            anyhow!(
                "cannot remove '{}': this run does not page to it; see farpage spill ls",
                dir.display()
            )
        })?;
        let files = self.control.spill.iter().enumerate();
        let others = files
            .filter(|(other, file)| *other != at && file.state() == SpillState::Active)
            .count();
        let file = &self.control.spill[at];
        if others == 0 && file.used_segments.load(Ordering::Acquire) > 0 {
            bail!(
                "cannot remove '{}': it is the last paging file and holds pages; \
                 first add another: farpage spill add DIR",
                dir.display()
            );
        }
        file.state
            .store(SpillState::Draining as u32, Ordering::Release);
        Ok(at)
    }

    /// Bytes that are still in file `at`. When there are none and it is being removed, it is
    /// closed. `None`: somebody added it again meanwhile.
    pub fn left(&self, at: usize) -> Option<u64> {
        let mut entries = self.lock();
        let file = &self.control.spill[at];
        if file.state() == SpillState::Active {
            return None;
        }
        let used = file.used_segments.load(Ordering::Acquire);
        if used == 0 {
            file.state
                .store(SpillState::Removed as u32, Ordering::Release);
            entries[at].file = None;
        }
        Some(u64::from(used) * SEGMENT_BYTES as u64)
    }

    /// All files that this run has had.
    pub fn list(&self) -> Vec<PagingFileListed> {
        let entries = self.lock();
        let files = entries.iter().zip(&self.control.spill);
        files.map(|(entry, file)| listed(entry, file)).collect()
    }

    /// Bytes that there is room for: what is free of the budget, and of the paging files and their
    /// disks.
    pub fn room_bytes(&self) -> u64 {
        let budget = self.control.budget_bytes.load(Ordering::Relaxed);
        let free = budget.saturating_sub(self.control.used_bytes());
        let entries = self.lock();
        let files = entries.iter().zip(&self.control.spill);
        free + files.map(|(entry, file)| room_of(entry, file)).sum::<u64>()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().expect("no panic while it is held")
    }
}

fn live(entries: &[Entry], dir: &Path) -> Option<usize> {
    entries
        .iter()
        .position(|entry| entry.file.is_some() && entry.dir == dir)
}

fn publish(line: &SpillFile, fd: &OwnedFd, limit_segments: u32) {
    let number = u32::try_from(fd.as_raw_fd()).expect("an open descriptor is not negative");
    line.supervisor_fd.store(number, Ordering::Relaxed);
    line.limit_segments.store(limit_segments, Ordering::Relaxed);
    line.state
        .store(SpillState::Active as u32, Ordering::Release);
}

fn room_of(entry: &Entry, line: &SpillFile) -> u64 {
    let is_active = line.state() == SpillState::Active;
    let Some(file) = entry.file.as_ref().filter(|_| is_active) else {
        return 0;
    };
    let number = |of: &AtomicU32| u64::from(of.load(Ordering::Relaxed));
    let on_disk = fstatvfs(file).map_or(0, |about| about.f_bavail * about.f_frsize);
    let more = on_disk / SEGMENT_BYTES as u64;
    let most = (number(&line.allocated_segments) + more).min(number(&line.limit_segments));
    most.saturating_sub(number(&line.used_segments)) * SEGMENT_BYTES as u64
}

fn listed(entry: &Entry, file: &SpillFile) -> PagingFileListed {
    let bytes = |segments: u32| u64::from(segments) * SEGMENT_BYTES as u64;
    let limit = file.limit_segments.load(Ordering::Relaxed);
    let state = match file.state() {
        SpillState::Active => "active",
        SpillState::Draining => "draining",
        SpillState::Removed | SpillState::Unused => REMOVED,
    };
    PagingFileListed {
        dir: entry.dir.clone(),
        state: state.to_string(),
        used_bytes: bytes(file.used_segments.load(Ordering::Relaxed)),
        allocated_bytes: entry.file.as_ref().map_or(0, on_disk),
        limit_bytes: ((limit as usize) < SEGMENTS_MAX).then(|| bytes(limit)),
        direct: entry.direct,
        full: file.full.load(Ordering::Relaxed) != 0,
        write_error: file.write_error(),
    }
}

/// Bytes that the disk has of a file.
fn on_disk(file: &OwnedFd) -> u64 {
    fstat(file).map_or(0, |about| about.st_blocks as u64 * 512)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn set() -> (SpillSet, &'static Control) {
        let (fd, control) = farpage_sys::control::create().unwrap();
        farpage_sys::file::close(fd);
        (SpillSet::new(control), control)
    }

    fn message<T>(result: Result<T>) -> String {
        result.err().expect("a refusal").to_string()
    }

    #[test]
    fn there_is_room_in_the_budget_and_in_files_that_take_pages() {
        let (set, control) = set();
        let (tmp, var_tmp) = (Path::new("/tmp"), Path::new("/var/tmp"));
        control.budget_bytes.store(64 << 20, Ordering::Relaxed);
        control.resident_bytes.store(24 << 20, Ordering::Relaxed);
        assert_eq!(set.room_bytes(), 40 << 20);
        set.add(tmp, Some(4)).unwrap();
        set.add(var_tmp, Some(8)).unwrap();
        control.spill[1].used_segments.store(3, Ordering::Relaxed);
        assert_eq!(set.room_bytes(), (40 + 4 + 5) << 20);
        set.start_removal(tmp).unwrap();
        assert_eq!(set.room_bytes(), (40 + 5) << 20);
        control.resident_bytes.store(99 << 20, Ordering::Relaxed);
        assert_eq!(set.room_bytes(), 5 << 20);
    }

    #[test]
    fn a_file_is_drained_before_it_is_removed() {
        let (set, control) = set();
        let (tmp, var_tmp) = (Path::new("/tmp"), Path::new("/var/tmp"));
        set.add(tmp, Some(4)).unwrap();
        control.spill[0].used_segments.store(2, Ordering::Relaxed);
        let refusal = message(set.start_removal(tmp));
        assert!(refusal.contains("the last paging file"), "{refusal}");
        let number = control.spill[0].supervisor_fd.load(Ordering::Relaxed);
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(format!("/proc/self/fd/{number}"));
        let file = file.unwrap();
        file.write_all_at(&vec![7; 3 << 20], 0).unwrap();
        file.sync_all().unwrap();
        drop(file);
        set.add(var_tmp, None).unwrap();
        let at = set.start_removal(tmp).unwrap();
        assert_eq!(set.left(at), Some(2 << 20));
        assert_eq!(set.list()[0].state, "draining");
        assert_eq!(set.list()[0].allocated_bytes, 3 << 20);
        control.spill[0].used_segments.store(0, Ordering::Relaxed);
        assert_eq!(set.left(at), Some(0));
        let list = set.list();
        assert_eq!(list[0].state, "removed");
        assert_eq!(list[0].allocated_bytes, 0, "the disk has it back");
        assert_eq!(list[0].limit_bytes, Some(4 << 20));
        assert_eq!(
            (list[1].state.as_str(), list[1].limit_bytes),
            ("active", None)
        );
        assert!(message(set.start_removal(tmp)).contains("does not page to it"));
    }

    #[test]
    fn a_directory_is_used_once_and_can_come_back() {
        let (set, control) = set();
        let tmp = Path::new("/tmp");
        set.add(tmp, Some(4)).unwrap();
        assert!(message(set.add(tmp, None)).contains("pages to it already"));
        set.add(tmp, Some(9)).unwrap();
        assert_eq!(set.list()[0].limit_bytes, Some(9 << 20), "that may change");
        let at = set.start_removal(tmp).unwrap();
        set.add(tmp, None).unwrap();
        assert_eq!(set.left(at), None, "it was added again");
        let state = control.spill[0].state.load(Ordering::Relaxed);
        assert_eq!(state, SpillState::Active as u32);
    }

    #[test]
    fn a_run_has_a_bounded_number_of_files() {
        let (set, _) = set();
        for _ in 0..SPILL_FILES_MAX {
            set.add_at_start(Path::new("/tmp"), 1).unwrap();
        }
        let refusal = message(set.add_at_start(Path::new("/tmp"), 1));
        assert!(refusal.contains("has had 8 paging files"), "{refusal}");
    }
}
