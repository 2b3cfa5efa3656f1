//! The address space of another process, as far as this one may change it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use farpage_object::maps::PieceOf;
use farpage_object::{Control, PAGE_BYTES, PageIndex, PageRange, Plan, Streams, Tier};
use farpage_sys::file::Fd;
use farpage_sys::uffd::{Faults, Uffd};
use farpage_sys::{Errno, lock, socket, thread};

use crate::handlers::Watch;
use crate::object::Object;

/// Pages that are there and are let in with one that is wanted, where they are: that costs a
/// fifteenth of a fault each.
const AROUND: u64 = 16;

/// Faults that are taken at a time at most.
pub(crate) const FAULTS: usize = 8;

/// Who tells a process why it gets SIGBUS, and what it was told last.
#[derive(Default)]
pub(crate) struct Telling {
    tell: Option<Told>,
    /// Of which object, and why.
    last: Option<(String, String)>,
    /// It is being told, and these addresses are refused after that.
    now: Option<Vec<usize>>,
}

impl Telling {
    /// It is to be told by `tell`.
    pub(crate) fn by(tell: Told) -> Self {
        Self {
            tell: Some(tell),
            ..Self::default()
        }
    }

    /// Who is to tell it that, if it does not know.
    fn news(&mut self, name: &str, why: &str) -> Option<Told> {
        let last = self.last.as_ref();
        if last.is_some_and(|(of, was)| of == name && was == why) {
            return None;
        }
        self.last = Some((name.to_owned(), why.to_owned()));
        self.tell.clone()
    }
}

/// A process's userfaultfd. What is done by it changes that process's mappings, and nobody else's.
pub(crate) struct Space {
    pub(crate) number: u64,
    faults: OwnedFd,
    pub(crate) places: Places,
    /// Nobody answers for it any more.
    gone: AtomicBool,
    /// Linux does not take ranges over there: it has too many mappings.
    full: AtomicBool,
    pub(crate) watch: Mutex<Watch>,
    /// Who is told why the process gets SIGBUS: once, and again for another reason.
    pub(crate) told: Mutex<Telling>,
}

/// Tells a process that what it uses cannot be had: of which object, from which byte on, and why.
pub type Told = Arc<dyn Fn(&str, u64, &str) + Send + Sync>;

/// What lies where in a space.
pub(crate) enum Places {
    /// As this process was told; it decides which pages are mapped there.
    Told(Mutex<Vec<Arc<Mapping>>>),
    /// As a tree's control block says. Linux maps what the memory files have.
    Listed(Task),
}

/// Pages of an object in the memory of a process.
pub(crate) struct Mapping {
    /// Whose.
    pub(crate) space: Arc<Space>,
    /// What.
    pub(crate) object: Arc<Object>,
    /// Where, the address of the first page.
    pub(crate) address: usize,
    /// Which pages.
    pub(crate) pages: PageRange,
    /// How its threads go through pages that are there.
    pub(crate) streams: Mutex<Streams>,
}

/// A task of a tree.
pub(crate) struct Task {
    control: &'static Control,
    pub(crate) slot: usize,
    /// As the control block has it.
    pub(crate) process: u32,
}

impl Space {
    /// Takes over the userfaultfd that a process has registered its mappings with. `EINVAL` when it
    /// is none, or reports other things than faults.
    pub(crate) fn new(number: u64, faults: OwnedFd, places: Places) -> Result<Self, Errno> {
        if !reports_only_faults(&faults) {
            return Err(Errno::EINVAL);
        }
        socket::do_not_wait(Fd(faults.as_raw_fd()))?;
        Ok(Self {
            number,
            faults,
            places,
            gone: AtomicBool::new(false),
            full: AtomicBool::new(false),
            watch: Mutex::default(),
            told: Mutex::default(),
        })
    }

    /// Faults that wait, up to [`FAULTS`]. Fails when it is no userfaultfd, or one that reports
    /// other things than faults.
    pub(crate) fn faults(&self) -> Result<Faults<FAULTS>, Errno> {
        self.uffd().faults_now()
    }

    /// The processor of a thread that waits for its fault, if it is time to look.
    pub(crate) fn look(&self, faulting: u32) -> Option<u32> {
        let is_time = lock(&self.watch).counts();
        (is_time && faulting != 0)
            .then(|| thread::cpu_of(faulting))
            .flatten()
    }

    /// Nobody answers for it from now on.
    pub(crate) fn goes(&self) {
        self.gone.store(true, Ordering::Release);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Lets threads that wait at a range fault again.
    pub(crate) fn wake(&self, at: usize, bytes: usize) {
        self.uffd().wake(at, bytes);
    }

    /// Maps pages that the memory file has, to be read or to be written. Who waits there is to be
    /// woken after that, without a lock: it runs at once, and what it waits for next needs the
    /// lock.
    pub(crate) fn let_in(&self, at: usize, bytes: usize, writable: bool) -> Result<(), Errno> {
        let (mut done, mut had_some) = (0, false);
        let mut step = bytes;
        while done < bytes {
            let part = step.min(bytes - done);
            let progress = self.uffd().map_in(at + done, part, !writable);
            done += progress.bytes;
            match progress.stopped {
                None => {}
                // The process has divided its mapping there, by mprotect or mlock: page by page.
                Some(Errno::ENOENT) if part > PAGE_BYTES => step = PAGE_BYTES,
                // It has unmapped it.
                Some(Errno::ENOENT) => done += PAGE_BYTES,
                // It is mapped already.
                Some(Errno::EEXIST) => {
                    done += PAGE_BYTES;
                    had_some = true;
                }
                Some(errno) => return Err(errno),
            }
        }
        if had_some && writable {
            // They may have been protected.
            self.uffd().set_protected(at, bytes, false)?;
        }
        Ok(())
    }

    /// Has Linux map what the memory file has, zeros where it has nothing, and wakes who waits
    /// there. False when it cannot: it is not to be asked again.
    pub(crate) fn leave_to_linux(&self, at: usize, bytes: usize) -> bool {
        let left = self.uffd().leave(at, bytes);
        if left == Err(Errno::ENOMEM) {
            self.full.store(true, Ordering::Relaxed);
        }
        left.is_ok()
    }

    /// True when ranges can be left to Linux there.
    pub(crate) fn can_be_left(&self) -> bool {
        !self.full.load(Ordering::Relaxed)
    }

    /// Nobody writes to the range from now on without a fault.
    pub(crate) fn protect(&self, at: usize, bytes: usize) -> Result<(), Errno> {
        self.uffd().set_protected(at, bytes, true)
    }

    /// Makes accesses to a page fail with SIGBUS.
    pub(crate) fn refuse(&self, at: usize) -> Result<(), Errno> {
        let refused = self.uffd().refuse(at, PAGE_BYTES);
        self.wake(at, PAGE_BYTES);
        refused
    }

    /// As [`Space::refuse`], after the process was told why; others do not wait for that. What is refused
    /// while it is told would end it before it has said so.
    pub(crate) fn tell_and_refuse(self: &Arc<Self>, at: usize, name: &str, offset: u64, why: &str) {
        let mut telling = lock(&self.told);
        if let Some(waiting) = &mut telling.now {
            return waiting.push(at);
        }
        let tell = telling.news(name, why);
        telling.now = tell.as_ref().map(|_| vec![at]);
        drop(telling);
        let Some(tell) = tell else {
            // It may be gone.
            let _ = self.refuse(at);
            return;
        };
        let (space, name, why) = (Arc::clone(self), name.to_owned(), why.to_owned());
        let telling = move || {
            tell(&name, offset, &why);
            space.is_told();
        };
        let thread = std::thread::Builder::new().name("objects-tell".into());
        if thread.spawn(telling).is_err() {
            self.is_told();
        }
    }

    fn is_told(&self) {
        let waiting = lock(&self.told).now.take();
        for at in waiting.into_iter().flatten() {
            // It may be gone.
            let _ = self.refuse(at);
        }
    }

    fn uffd(&self) -> Uffd {
        Uffd(Fd(self.faults.as_raw_fd()))
    }
}

/// True of a userfaultfd that is set up, and for faults alone. One that reports forks gives who
/// reads it descriptors, and while a report of any kind but a fault is not read nothing can be
/// protected. Nothing else is done with the descriptor before: who made it may not be trusted.
fn reports_only_faults(faults: &OwnedFd) -> bool {
    const IS_SET_UP: u64 = 1 << 31;
    const FORK_REMAP_REMOVE_UNMAP: u64 = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6;
    let number = faults.as_raw_fd();
    let file = std::fs::read_link(format!("/proc/self/fd/{number}"));
    if !file.is_ok_and(|file| file.as_os_str() == "anon_inode:[userfaultfd]") {
        return false;
    }
    let Ok(text) = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")) else {
        return false;
    };
    let api = text.lines().find_map(|line| line.strip_prefix("API:"));
    let features = api.and_then(|api| u64::from_str_radix(api.trim().split(':').nth(1)?, 16).ok());
    features.is_some_and(|features| {
        features & IS_SET_UP != 0 && features & FORK_REMAP_REMOVE_UNMAP == 0
    })
}

impl AsFd for Space {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.faults.as_fd()
    }
}

impl Mapping {
    /// The part of `pages` that it maps: where, and how many bytes.
    pub(crate) fn part(&self, pages: PageRange) -> Option<(usize, usize)> {
        let part = self.pages.intersect(pages);
        let before = part.start.0.checked_sub(self.pages.start.0)? as usize;
        let bytes = part.bytes() as usize;
        (bytes > 0).then(|| (self.address + before * PAGE_BYTES, bytes))
    }

    /// The page at an address.
    pub(crate) fn page_at(&self, address: usize) -> Option<u64> {
        let before = address.checked_sub(self.address)? / PAGE_BYTES;
        let page = self.pages.start.0 + before as u64;
        self.pages.contains(PageIndex(page)).then_some(page)
    }

    /// The parts of it that lie outside `start .. end`, as mappings of their own.
    pub(crate) fn without(&self, start: usize, end: usize) -> Vec<Arc<Self>> {
        let own_end = self.address + self.pages.bytes() as usize;
        let parts = [
            (self.address, start.min(own_end)),
            (end.max(self.address), own_end),
        ];
        let made = parts
            .into_iter()
            .filter(|(from, to)| from < to)
            .map(|(from, to)| {
                let page =
                    |at: usize| self.pages.start.0 + ((at - self.address) / PAGE_BYTES) as u64;
                Arc::new(Self {
                    space: Arc::clone(&self.space),
                    object: Arc::clone(&self.object),
                    address: from,
                    pages: PageRange::new(page(from), page(to)),
                    streams: Mutex::default(),
                })
            });
        made.collect()
    }

    /// Linux maps no more of `pages` by itself. False when that cannot be had.
    pub(crate) fn take_back(&self, pages: PageRange) -> bool {
        let Some((at, bytes)) = self.part(pages) else {
            return true;
        };
        let uffd = self.space.uffd();
        if uffd.take_back(at, bytes) != Err(Errno::ENOMEM) {
            // Otherwise the process is gone, or has put something else there.
            return true;
        }
        // A part of a mapping takes one more; all of it does not.
        let all = self.pages.bytes() as usize;
        uffd.take_back(self.address, all) != Err(Errno::ENOMEM)
    }

    /// Pages to let in with `page` as far as they are there: more and more in a run.
    pub(crate) fn plan(&self, page: u64) -> PageRange {
        let planned = match lock(&self.streams).fault(page) {
            Plan::Forward(count) => PageRange::new(page, page + count.max(AROUND)),
            Plan::Backward(count) => {
                PageRange::new((page + 1).saturating_sub(count.max(AROUND)), page + 1)
            }
            Plan::Alone | Plan::Strided { .. } => {
                let start = page / AROUND * AROUND;
                PageRange::new(start, start + AROUND)
            }
        };
        planned.intersect(self.pages)
    }
}

impl Task {
    /// The task in a slot, as the control block has it now.
    pub(crate) fn in_slot(control: &'static Control, slot: usize) -> Self {
        let process = control.tasks[slot].pid.load(Ordering::Acquire);
        Self {
            control,
            slot,
            process,
        }
    }

    /// What lies at an address: the piece, and the page of its file.
    pub(crate) fn find(&self, address: usize) -> Option<(PieceOf, u64)> {
        let piece = self.control.maps.find(self.slot, address as u64)?;
        let page = piece.first + (address as u64 - piece.start) / PAGE_BYTES as u64;
        Some((piece, page))
    }

    /// True while it is the one in its slot.
    pub(crate) fn lives(&self) -> bool {
        self.control.tasks[self.slot].pid.load(Ordering::Acquire) == self.process
    }

    /// Where Linux does not wait for pages the agent touches them itself: poison would end it.
    pub(crate) fn reads_by_hand(&self) -> bool {
        self.control.tier.load(Ordering::Relaxed) == Tier::UserModeOnly as u32
    }
}
