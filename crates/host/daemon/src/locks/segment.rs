//! A piece of shared memory of which something is locked: its accounts, and the mapping that locks it.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use farpage_client::locks::LockRefusal;
use farpage_object::{PAGE_BYTES, PageRange};
use farpage_pinning::Areas;
use farpage_pinning::system::{self, Hold, Pins, Wires};
use farpage_sys::linux::general::CAP_IPC_OWNER;
use farpage_sys::untouched::Untouched;
use farpage_sys::{Errno, ipc};

use super::caller::Caller;

/// Bytes of a file that are mapped at a time: as many as Linux pins in one piece.
const VIEW_BYTES: u64 = 1 << 30;
const VIEW_PAGES: u64 = VIEW_BYTES / PAGE_BYTES as u64;
/// `f_type` of tmpfs, of which memory files and POSIX shared memory are, too.
const TMPFS: i64 = 0x0102_1994;

/// Shared memory, as a caller names it.
pub(crate) enum Memory {
    File(OwnedFd),
    /// Of System V.
    Segment(u32),
}

/// What tells shared memory from other, as long as it is mapped here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Identity {
    File(u64, u64),
    SystemV(u32),
}

/// What counts how often a page is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Account {
    /// Linux is asked for it.
    Held(Hold),
    /// A user is charged with it.
    User(u32),
    /// A process is said to have it.
    Process(u32, Hold),
}

/// What is known of shared memory that a caller may lock.
pub(super) struct Found {
    pub(super) identity: Identity,
    pub(super) name: String,
    pub(super) bytes: u64,
}

impl Memory {
    /// What it is, if the caller may have it locked in this way.
    pub(super) fn find(&self, caller: &Caller, hold: Hold) -> Result<Found, LockRefusal> {
        match self {
            Self::File(file) => of_file(file),
            Self::Segment(number) => of_segment(*number, caller, hold),
        }
    }
}

fn of_file(file: &OwnedFd) -> Result<Found, LockRefusal> {
    let none = |_| LockRefusal::NoMemory;
    // Others are not asked: some are answered for by processes, and may never answer.
    rustix::fs::fcntl_get_seals(file).map_err(none)?;
    let system = rustix::fs::fstatfs(file).map_err(none)?;
    if system.f_type as i64 != TMPFS {
        return Err(LockRefusal::NoMemory);
    }
    let about = rustix::fs::fstat(file).map_err(none)?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let path = std::fs::read_link(path).unwrap_or_default();
    // What it is called may be anything.
    let path: String = path.to_string_lossy().chars().take(256).collect();
    let path = path.replace(char::is_control, "");
    let path = path.strip_suffix(" (deleted)").unwrap_or(&path);
    Ok(Found {
        identity: Identity::File(about.st_dev, about.st_ino),
        name: path
            .strip_prefix("/memfd:")
            .map_or_else(|| path.to_owned(), |name| format!("memfd:{name}")),
        bytes: about.st_size.try_into().unwrap_or(0),
    })
}

fn of_segment(number: u32, caller: &Caller, hold: Hold) -> Result<Found, LockRefusal> {
    if !caller.shares("ipc") {
        return Err(LockRefusal::Apart(caller.pid));
    }
    let failed = |errno: Errno| match errno {
        Errno::EACCES => LockRefusal::Failed(format!(
            "its own user may not read System V segment {number}"
        )),
        _ => LockRefusal::NoSegment(number),
    };
    let allowed = ipc::permissions(number).map_err(failed)?;
    let writing = hold == Hold::Pinned;
    let may = allowed.allow(caller.uid, |group| caller.is_in(group), writing);
    if !may && !caller.has(CAP_IPC_OWNER) {
        return Err(LockRefusal::Denied {
            user: caller.uid,
            what: if writing { "write to" } else { "read" }.into(),
            number,
            owner: allowed.users[0],
            mode: allowed.mode,
        });
    }
    Ok(Found {
        identity: Identity::SystemV(number),
        name: format!("sysv:{number}"),
        bytes: ipc::segment(number).map_err(failed)?.bytes,
    })
}

/// Shared memory of which something is locked.
pub(super) struct Segment {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) areas: Areas<Account>,
    /// Mappings, by their number in the memory. What is only to stay in memory is mapped for reading.
    views: BTreeMap<(Hold, u64), Untouched>,
    /// Pages of each.
    view_pages: u64,
    wires: Wires,
}

impl Segment {
    pub(super) fn new(found: &Found) -> Self {
        Self {
            name: found.name.clone(),
            bytes: found.bytes,
            areas: Areas::new(),
            views: BTreeMap::new(),
            view_pages: match found.identity {
                Identity::File(..) => VIEW_PAGES,
                // It is mapped whole.
                Identity::SystemV(_) => u64::MAX,
            },
            wires: Wires::default(),
        }
    }

    /// Has pages stay that did not: all of them, or none.
    pub(super) fn hold(
        &mut self,
        pages: PageRange,
        hold: Hold,
        memory: &Memory,
        pins: &mut Pins,
    ) -> Result<(), LockRefusal> {
        let mut done = pages.start.0;
        for (view, part) in self.parts(pages) {
            let held = self.view(view, hold, memory).and_then(|at| {
                let here = here(at, part, view * self.view_pages);
                match hold {
                    Hold::Resident => Ok(self.wires.wire(here)?),
                    Hold::Pinned => Ok(pins.pin(here)?),
                }
            });
            if let Err(why) = held {
                self.release(PageRange::new(pages.start.0, done), hold, pins);
                return Err(why);
            }
            done = part.end.0;
        }
        Ok(())
    }

    /// Lets pages go.
    pub(super) fn release(&mut self, pages: PageRange, hold: Hold, pins: &mut Pins) {
        for here in self.here(pages, hold) {
            match hold {
                Hold::Resident => self.wires.unwire(here),
                Hold::Pinned => pins.unpin(here),
            }
        }
    }

    /// Nothing of it is locked any more: no frame is kept, also where memory went away before.
    pub(super) fn close(self, pins: &mut Pins) {
        let pages = match self.view_pages {
            u64::MAX => self.bytes.div_ceil(PAGE_BYTES as u64),
            pages => pages,
        };
        let views = self.views.iter();
        let pinned = views.filter(|((hold, _), _)| *hold == Hold::Pinned);
        for (_, view) in pinned {
            pins.unpin(here(view.address(), PageRange::new(0, pages), 0));
        }
    }

    /// Pages at the addresses where they are mapped.
    pub(super) fn here(&self, pages: PageRange, hold: Hold) -> Vec<PageRange> {
        let mapped = self.parts(pages).into_iter().filter_map(|(view, part)| {
            let at = self.views.get(&(hold, view))?.address();
            Some(here(at, part, view * self.view_pages))
        });
        mapped.collect()
    }

    /// Those of some pages that are locked and have gone all the same: their memory is another's now.
    pub(super) fn gone(&self, pages: PageRange) -> Vec<PageRange> {
        let mut gone = Vec::new();
        for hold in [Hold::Resident, Hold::Pinned] {
            let Some(counts) = self.areas.counts(Account::Held(hold)) else {
                continue;
            };
            let free = counts.free(pages);
            for held in between(pages, &free) {
                for (view, part) in self.parts(held) {
                    if let Some(at) = self.views.get(&(hold, view)).map(Untouched::address) {
                        let here = here(at, part, view * self.view_pages);
                        let back = part.start.0.wrapping_sub(here.start.0);
                        // Linux never takes away what is locked. What cannot be seen is taken to be there.
                        let absent = system::absent(here).unwrap_or_default().into_iter();
                        gone.extend(absent.map(|one| {
                            let (start, end) = (one.start.0, one.end.0);
                            PageRange::new(start.wrapping_add(back), end.wrapping_add(back))
                        }));
                    }
                }
            }
        }
        gone
    }

    /// Bytes that are locked in an account, each counted once.
    pub(super) fn bytes_of(&self, account: Account) -> u64 {
        let pieces = self.areas.counts(account).map(|counts| counts.pieces());
        let pieces = pieces.iter().flatten();
        pieces.map(|piece| piece.pages.bytes()).sum()
    }

    /// The address of a mapping, which is made when there is none.
    fn view(&mut self, view: u64, hold: Hold, memory: &Memory) -> Result<usize, LockRefusal> {
        if let Some(known) = self.views.get(&(hold, view)) {
            return Ok(known.address());
        }
        let is_written = hold == Hold::Pinned;
        let mapped = match memory {
            Memory::File(file) => {
                let (at, bytes) = (view * VIEW_BYTES, VIEW_BYTES as usize);
                Untouched::of_file(file.as_fd(), at, bytes, is_written)
            }
            Memory::Segment(number) => {
                Untouched::of_segment(*number, self.bytes as usize, is_written)
            }
        };
        let mapped = mapped.map_err(|errno| match errno {
            Errno::EACCES | Errno::EPERM if is_written => LockRefusal::ReadOnly(self.name.clone()),
            errno => LockRefusal::Failed(format!("cannot map {}: {errno}", self.name)),
        })?;
        let at = mapped.address();
        self.views.insert((hold, view), mapped);
        Ok(at)
    }

    /// Pages by the mapping that they belong to.
    fn parts(&self, pages: PageRange) -> Vec<(u64, PageRange)> {
        let (mut parts, mut at) = (Vec::new(), pages.start.0);
        while at < pages.end.0 {
            let view = at / self.view_pages;
            let end = (view + 1).saturating_mul(self.view_pages).min(pages.end.0);
            parts.push((view, PageRange::new(at, end)));
            at = end;
        }
        parts
    }
}

/// Where pages of a memory are, whose page `first` is mapped at `at`.
fn here(at: usize, pages: PageRange, first: u64) -> PageRange {
    let page = (at / PAGE_BYTES) as u64;
    PageRange::new(page + (pages.start.0 - first), page + (pages.end.0 - first))
}

/// What of `pages` is in none of `others`, which are in order.
fn between(pages: PageRange, others: &[PageRange]) -> Vec<PageRange> {
    let (mut found, mut at) = (Vec::new(), pages.start.0);
    let ends = (pages.end.0, pages.end.0);
    let others = others.iter().map(|one| (one.start.0, one.end.0));
    for (start, end) in others.chain([ends]) {
        if at < start {
            found.push(PageRange::new(at, start));
        }
        at = end;
    }
    found
}
