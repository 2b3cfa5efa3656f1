//! Locked areas: memory of this process that stays where it is while it is needed there.
//!
//! The counts are those of crate `pinning`; here they reach the system.

use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use farpage_object::{PAGE_BYTES, PageRange};
use farpage_pinning::system::{self, Pins, Wires};
use farpage_pinning::{Area, AreaError, Areas, Handle};
use farpage_sys::mem;

pub use farpage_pinning::Block;
pub use farpage_pinning::system::{Hold, LockError};
pub(crate) use farpage_pinning::system::{has_table, put};

/// An area that is locked until this is dropped.
///
/// The memory has to stay mapped meanwhile: what is unmapped, discarded by its last other user, or
/// cut off is no longer what is locked. A child of `fork` has nothing locked, and dropping its copy
/// changes nothing for the parent.
#[derive(Debug)]
pub struct Locked {
    resident: Handle,
    pinned: Option<Handle>,
    pages: PageRange,
    is_here: &'static AtomicU32,
}

/// How the system is asked to hold pages; each has its own counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Wired,
    Pinned,
}

/// Everything locked of one process.
struct Task {
    areas: Areas<Way>,
    wires: Wires,
    pins: Pins,
}

/// A process, and what it has locked. A child of fork has another: another thread of its parent may
/// have had the lock of this one.
struct Process {
    /// 1, and 0 in a child of fork: to ask for its number would be a call of the system.
    is_here: &'static AtomicU32,
    task: Mutex<Task>,
}

static PROCESS: ArcSwapOption<Process> = ArcSwapOption::const_empty();

/// Locks the pages that have some of `bytes` bytes from address `at` on. They are there when this
/// returns. Areas may overlap and nest; each page is locked until the last of them is given up, in
/// any order. What is locked already needs no call of the system.
///
/// # Errors
/// [`LockError`], and then nothing of it is locked.
pub fn lock_area(at: usize, bytes: usize, hold: Hold) -> Result<Locked, LockError> {
    let pages = pages_of(at, bytes)?;
    // What is locked is pages of the memory itself: those of a file would be exchanged for them when others
    // write to it.
    crate::fork::uncover(at..at + bytes);
    let process = process();
    let mut task = process.task();
    let resident = task.lock(pages, Way::Wired)?;
    let pinned = match hold {
        Hold::Resident => None,
        Hold::Pinned => match task.pin(pages) {
            Ok(handle) => Some(handle),
            Err(why) => {
                task.unlock(resident);
                return Err(why);
            }
        },
    };
    Ok(Locked {
        resident,
        pinned,
        pages,
        is_here: process.is_here,
    })
}

/// What of `pages` cannot be read, if anything.
pub(crate) fn unusable(pages: PageRange) -> Option<LockError> {
    system::unusable(pages, false)
}

/// How much is locked, in how many areas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockedSums {
    /// Areas that were not given up.
    pub areas: u64,
    /// Bytes that stay in memory, each counted once.
    pub resident_bytes: u64,
    /// Bytes of them whose frames stay.
    pub pinned_bytes: u64,
}

/// What this process has locked by [`lock_area`].
pub fn locked_sums() -> LockedSums {
    let process = process();
    let task = process.task();
    let bytes = |way| {
        let pieces = task.areas.counts(way).map(|counts| counts.pieces());
        let pages = pieces.iter().flatten().map(|piece| piece.pages.pages());
        pages.sum::<u64>() * PAGE_BYTES as u64
    };
    let wired = |(_, area, _): &(Handle, Area<Way>, bool)| area.kind == Way::Wired;
    LockedSums {
        areas: task.areas.all().filter(wired).count() as u64,
        resident_bytes: bytes(Way::Wired),
        pinned_bytes: bytes(Way::Pinned),
    }
}

impl Locked {
    /// The addresses of the pages, from the first to behind the last.
    pub fn range(&self) -> Range<usize> {
        let at = |page: u64| page as usize * PAGE_BYTES;
        at(self.pages.start.0)..at(self.pages.end.0)
    }

    /// How it is held.
    pub fn hold(&self) -> Hold {
        match self.pinned {
            None => Hold::Resident,
            Some(_) => Hold::Pinned,
        }
    }

    /// Whether it still is what was locked: mapped, locked, in memory, and, if it is pinned, in the frames
    /// that were pinned. Linux tells nobody when memory is unmapped, discarded or cut off by who shares it;
    /// this looks. Nothing is given back or locked anew.
    ///
    /// Of what is resident only, pages that were discarded and touched again since, and a mapping that the
    /// program itself has locked in place of the old one, are not told from what was there.
    ///
    /// # Errors
    /// [`LockError::Stale`] with the first address that is not; [`LockError::NoFrames`] when it is pinned and
    /// all is well but for the frames, which this process could not read when it was locked
    /// (`CAP_SYS_ADMIN`).
    pub fn check(&self) -> Result<(), LockError> {
        if self.is_here.load(Relaxed) == 0 {
            return Err(LockError::Stale {
                at: self.range().start as u64,
                why: "the parent has locked it, and a child of fork has nothing locked",
            });
        }
        process().task().check(self.pages, self.hold())
    }

    /// The frame of each page, 4096 bytes each. Unless it is pinned they may be others the next moment.
    ///
    /// # Errors
    /// [`LockError::NoFrames`] without the privilege to read them (`CAP_SYS_ADMIN`); [`LockError::Stale`] when a
    /// page is not in memory any more.
    pub fn frames(&self) -> Result<Vec<u64>, LockError> {
        system::frames(self.range())
    }

    /// The same as runs of consecutive frames, of at most `most` each: what a device is given to gather
    /// from and scatter to.
    ///
    /// # Errors
    /// As [`Locked::frames`].
    ///
    /// # Panics
    /// When `most` is 0.
    pub fn blocks(&self, most: u64) -> Result<Vec<Block>, LockError> {
        Ok(farpage_pinning::blocks(self.frames()?, most))
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // In a child of fork nothing of it is locked.
        if self.is_here.load(Relaxed) == 0 {
            return;
        }
        let process = process();
        let mut task = process.task();
        if let Some(pinned) = self.pinned {
            task.unlock(pinned);
        }
        task.unlock(self.resident);
    }
}

/// This process: with nothing locked at first, also after fork.
fn process() -> Arc<Process> {
    loop {
        let known = PROCESS.load_full();
        match known {
            Some(process) if process.is_here.load(Relaxed) != 0 => return process,
            _ => {
                let is_here = mem::word_of_process().expect("a page of memory");
                is_here.store(1, Relaxed);
                let task = Task {
                    areas: Areas::new(),
                    wires: Wires::default(),
                    pins: Pins::default(),
                };
                let new = Arc::new(Process {
                    is_here,
                    task: Mutex::new(task),
                });
                // Another thread may have been quicker.
                PROCESS.compare_and_swap(&known, Some(new));
            }
        }
    }
}

impl Process {
    fn task(&self) -> MutexGuard<'_, Task> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Task {
    /// Locks what no other area has locked so; all of it or nothing.
    fn lock(&mut self, pages: PageRange, kind: Way) -> Result<Handle, LockError> {
        let (handle, new) = self.areas.lock(Area { pages, kind })?;
        for (done, range) in new.iter().enumerate() {
            if let Err(why) = self.hold(*range, kind) {
                for range in &new[..done] {
                    self.release(*range, kind);
                }
                // What others have locked is not among what this gives back.
                self.areas.unlock(handle)?;
                return Err(why);
            }
        }
        Ok(handle)
    }

    /// Locks so that the frames are known from then on.
    fn pin(&mut self, pages: PageRange) -> Result<Handle, LockError> {
        let handle = self.lock(pages, Way::Pinned)?;
        match self.pins.note(pages) {
            Ok(()) => Ok(handle),
            Err(why) => {
                self.unlock(handle);
                Err(why)
            }
        }
    }

    /// Looks whether pages still are as they were locked.
    fn check(&mut self, pages: PageRange, hold: Hold) -> Result<(), LockError> {
        system::check(pages)?;
        match hold {
            Hold::Pinned => self.pins.check(pages),
            Hold::Resident => Ok(()),
        }
    }

    fn unlock(&mut self, handle: Handle) {
        // A handle of `Locked` is known, and its memory is not watched.
        if let Ok((area, free)) = self.areas.unlock(handle) {
            for range in free {
                self.release(range, area.kind);
            }
        }
    }

    fn hold(&mut self, pages: PageRange, kind: Way) -> Result<(), LockError> {
        match kind {
            Way::Wired => self.wires.wire(pages),
            Way::Pinned => self.pins.pin(pages),
        }
    }

    fn release(&mut self, pages: PageRange, kind: Way) {
        match kind {
            Way::Wired => self.wires.unwire(pages),
            Way::Pinned => self.pins.unpin(pages),
        }
    }
}

pub(crate) fn pages_of(at: usize, bytes: usize) -> Result<PageRange, LockError> {
    if bytes == 0 {
        return Err(AreaError::Empty.into());
    }
    let page = PAGE_BYTES as u64;
    let (at, bytes) = (at as u64, bytes as u64);
    let end = at.checked_add(bytes).filter(|end| *end <= 1 << 63);
    let end = end.ok_or(LockError::Beyond { at, bytes })?;
    Ok(PageRange::new(at / page, end.div_ceil(page)))
}
