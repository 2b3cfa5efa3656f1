//! Memory that goes away: seen by userfaultfd, of all memory that some cache has registered.
//!
//! A thread reads what Linux says. Who unmaps or discards memory waits until it is read, so that thread
//! must never wait for such a one: it takes no lock, allocates nothing and frees nothing. Before it reads
//! it closes the gate, without which nothing is hit; it opens it when all regions that had some of the
//! memory are dead. Another thread lets go of them.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, Thread};

use arc_swap::ArcSwapOption;
use farpage_pinning::OPEN;
use farpage_sys::file::{self, Fd};
use farpage_sys::mem::{self, Mapping};
use farpage_sys::uffd::{self, Uffd, features};
use farpage_sys::{Errno, pthread, signal, socket};

use super::Shared;
use super::error::RegisterError;
use crate::locks::{pages_of, unusable};

/// Caches of a process at most.
const CACHES: usize = 64;

static WATCH: ArcSwapOption<Watch> = ArcSwapOption::const_empty();
/// One at a time begins to watch.
static BEGINS: Mutex<()> = Mutex::new(());

pub(super) struct Watch {
    pub(super) process: u32,
    uffd: Uffd,
    /// To ask which mapping an address is in; not needed.
    maps: Option<File>,
    /// Closed also in a child of fork.
    pub(super) gate: &'static AtomicU32,
    /// What was seen.
    seen: AtomicU64,
    caches: [ArcSwapOption<Shared>; CACHES],
    lets_go: OnceLock<Thread>,
}

impl Watch {
    /// The one of this process.
    pub(super) fn of_process() -> Result<Arc<Self>, RegisterError> {
        let id = process::id();
        let known = || WATCH.load_full().filter(|watch| watch.process == id);
        if let Some(watch) = known() {
            return Ok(watch);
        }
        // In a child another thread of the parent may have had it; nobody of it is here.
        let begins = loop {
            match BEGINS.try_lock() {
                Ok(begins) => break Some(begins),
                Err(std::sync::TryLockError::Poisoned(begins)) => break Some(begins.into_inner()),
                Err(std::sync::TryLockError::WouldBlock) if WATCH.load().is_some() => break None,
                Err(std::sync::TryLockError::WouldBlock) => thread::yield_now(),
            }
        };
        if let Some(watch) = known() {
            return Ok(watch);
        }
        let watch = Arc::new(Self::new(id).map_err(|errno| RegisterError::Unwatched {
            at: 0,
            why: format!(
                "userfaultfd with its events is not to be had here ({errno}); allow it \
                 (vm.unprivileged_userfaultfd, and the sandbox's seccomp profile), or lock areas without a cache"
            ),
        })?);
        let (sees, lets_go) = (Arc::clone(&watch), Arc::clone(&watch));
        let threads = signal::without(|| {
            pthread::start(c"farpage-letgo", move || lets_go.lets_go())?;
            pthread::start(c"farpage-watch", move || sees.sees())
        });
        threads.map_err(|errno| RegisterError::Unwatched {
            at: 0,
            why: format!("no thread can be made for it ({errno})"),
        })?;
        WATCH.store(Some(Arc::clone(&watch)));
        drop(begins);
        Ok(watch)
    }

    fn new(process: u32) -> Result<Self, Errno> {
        let gate = mem::word_of_process()?;
        let uffd = opened()?;
        gate.store(OPEN, Ordering::Release);
        farpage_sys::thread::prepare_barriers()?;
        Ok(Self {
            process,
            uffd,
            maps: File::open("/proc/self/maps").ok(),
            gate,
            seen: AtomicU64::new(0),
            caches: std::array::from_fn(|_| ArcSwapOption::const_empty()),
            lets_go: OnceLock::new(),
        })
    }

    /// A cache is told what goes away from now on.
    pub(super) fn add(&self, cache: &Arc<Shared>) -> Result<(), RegisterError> {
        let free = self.caches.iter().find(|slot| {
            let new = Some(Arc::clone(cache));
            let was = slot.compare_and_swap(&None::<Arc<Shared>>, new);
            was.is_none()
        });
        free.map(drop).ok_or(RegisterError::Caches(CACHES))
    }

    /// It is not any more. The caller alone has it then: the threads here free nothing.
    pub(super) fn remove(&self, cache: &Arc<Shared>) {
        for slot in &self.caches {
            let of_it = slot
                .load()
                .as_ref()
                .is_some_and(|one| Arc::ptr_eq(one, cache));
            if of_it {
                slot.store(None);
            }
        }
        while Arc::strong_count(cache) > 1 {
            thread::yield_now();
        }
    }

    /// What was seen until now.
    pub(super) fn seen(&self) -> u64 {
        fence(Ordering::SeqCst);
        self.seen.load(Ordering::SeqCst)
    }

    /// Waits until nothing is being read. False in a child of fork, where it is closed for good.
    pub(super) fn passes(&self) -> bool {
        while self.gate.load(Ordering::Acquire) != OPEN {
            if process::id() != self.process {
                return false;
            }
            thread::yield_now();
        }
        true
    }

    /// What becomes of the pages of `start..end` is seen from now on. Linux is told each time: what was watched
    /// there may have gone, and other memory come, without having been seen yet.
    pub(super) fn watch(&self, start: usize, end: usize) -> Result<(), RegisterError> {
        let mut at = start;
        while at < end {
            let maps = self.maps.as_ref().ok_or(Errno::ENOTTY);
            match maps.and_then(|maps| mem::mapping_of(Fd(maps.as_raw_fd()), at)) {
                // All of the mapping, so that it is not divided.
                Ok(Mapping { range: whole, .. })
                    if self.register(whole.start, whole.end).is_ok() =>
                {
                    at = whole.end;
                }
                Ok(Mapping { range: whole, .. }) => {
                    let until = whole.end.min(end);
                    self.register(at, until)?;
                    at = until;
                }
                Err(Errno::ENOENT) => return Err(unwatched(at, end, Errno::ENOENT)),
                // It cannot be asked for: all at once, and Linux passes holes by.
                Err(_) => {
                    if let Some(why) = pages_of(at, end - at).ok().and_then(unusable) {
                        return Err(why.into());
                    }
                    self.register(at, end)?;
                    at = end;
                }
            }
        }
        Ok(())
    }

    fn register(&self, start: usize, end: usize) -> Result<(), RegisterError> {
        // SAFETY: nothing is ever protected there.
        #[allow(unsafe_code)]
        let done = unsafe { self.uffd.register_protected(start, end - start) };
        done.map_err(|errno| unwatched(start, end, errno))
    }

    /// What the thread that reads does. Nothing here may allocate, free, or take a lock.
    fn sees(&self) {
        // What looking at the caches takes is made here.
        drop(self.caches[0].load_full());
        loop {
            // Interrupted by nothing: signals are handled elsewhere.
            let _ = file::poll([self.uffd.0], -1);
            self.gate.store(0, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            let mut killed = 0;
            while let Ok(Some((start, end))) = self.uffd.gone() {
                self.seen.fetch_add(1, Ordering::SeqCst);
                for cache in self.caches.iter().filter_map(ArcSwapOption::load_full) {
                    killed += cache.lookup.kill_all(start, end);
                }
            }
            self.gate.store(OPEN, Ordering::Release);
            if killed > 0 {
                self.lets_go.get().into_iter().for_each(Thread::unpark);
            }
        }
    }

    /// What the thread does that lets go of what is dead.
    fn lets_go(&self) {
        let _ = self.lets_go.set(thread::current());
        loop {
            for cache in self.caches.iter().filter_map(ArcSwapOption::load_full) {
                cache.lets_go();
            }
            thread::park();
        }
    }
}

/// A userfaultfd that reports what goes away.
fn opened() -> Result<Uffd, Errno> {
    const EVENTS: u64 = features::EVENT_REMAP | features::EVENT_REMOVE | features::EVENT_UNMAP;
    // With the first any memory can be watched, with the second shared memory, too.
    let wanted = [
        features::WP_ASYNC | features::WP_UNPOPULATED | features::WP_HUGETLBFS_SHMEM,
        features::WP_HUGETLBFS_SHMEM,
        0,
    ];
    uffd::with_device(|device| {
        let mut last = Errno::EINVAL;
        for features in wanted {
            let (uffd, _) = uffd::open(device)?;
            match uffd.enable(EVENTS | features) {
                Ok(()) => {
                    socket::do_not_wait(uffd.0)?;
                    return Ok(uffd);
                }
                Err(errno) => last = errno,
            }
            file::close(uffd.0);
        }
        Err(last)
    })
}

fn unwatched(at: usize, end: usize, errno: Errno) -> RegisterError {
    if let Some(why) = pages_of(at, end - at).ok().and_then(unusable) {
        return why.into();
    }
    let why = match errno {
        Errno::EBUSY => {
            "another userfaultfd has it: it is Farpage's own memory, or a library's; lock it as an area".to_owned()
        }
        Errno::EPERM => "it is of a file that is only read; lock it as an area".to_owned(),
        Errno::ENOMEM => "there are too many mappings; raise vm.max_map_count".to_owned(),
        Errno::EINVAL => {
            "this Linux does not watch memory of its kind; lock it as an area, or use Linux 6.7 or later".to_owned()
        }
        errno => errno.to_string(),
    };
    RegisterError::Unwatched { at: at as u64, why }
}
