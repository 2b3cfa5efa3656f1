//! The kernel's state and how it is made.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicIsize, AtomicU32, AtomicU64, Ordering};

use farpage_object::{Control, ObjectId, PAGE_BYTES, PageIndex, PageRange, Pager, Pages};
use farpage_sys::file::{self, Fd};
use farpage_sys::futex::{Event, Mutex};
use farpage_sys::uffd::{self, Uffd, features};
use farpage_sys::{Errno, mem, pagemap};

use crate::account::Account;
use crate::hold::Holds;
use crate::layout::{IN_THREAD_AREA, shadow_of};
use crate::outstanding::Outstanding;
use crate::pinned::Pinned;
use crate::regions::{Region, Regions, Source, address_of};
use crate::rewrites::Rewrites;
use crate::watch::Watches;
use crate::windows::Windows;

/// What happens when a page cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoss {
    /// The process is killed, with a message: its contents are gone and nobody can be told.
    Kill,
    /// Accesses to the page raise SIGBUS from then on.
    Poison,
}

const NO_FD: Fd = Fd(-1);
/// Features of userfaultfd that are used where Linux has them.
pub(crate) const WANTED: u64 =
    features::FAULT_FLAG_WP | features::THREAD_ID | features::MOVE | features::POISON;

/// How a kernel is made.
pub struct Config {
    /// The budget and the accounts.
    pub control: &'static Control,
    /// This task's slot in it.
    pub slot: usize,
    /// Answers for temporary memory.
    pub default_pager: Arc<dyn Pager>,
    /// Lost pages.
    pub on_loss: OnLoss,
    /// Regions can be covered, see `cover`.
    pub covers: bool,
    /// An open `/dev/userfaultfd`.
    pub device: Option<Fd>,
    /// Where messages to the user go.
    pub messages: Fd,
    /// Numbers at which userfaultfd and pagemap are to live; `None`: wherever they come.
    pub fixed_fds: Option<(Fd, Fd)>,
}

/// One address space whose memory is managed.
pub struct Kernel {
    pub(crate) account: Account,
    pub(crate) on_loss: OnLoss,
    pub(crate) device: Option<Fd>,
    pub(crate) messages: Fd,
    pub(crate) fixed_fds: Option<(Fd, Fd)>,
    /// Regions can be covered: this is wanted, and Linux is new enough.
    pub(crate) covers: AtomicBool,
    pub(crate) temporary: Source,
    uffd: AtomicI32,
    /// The one whose faults raise SIGBUS in the faulting thread; -1 until it is wanted.
    pub(crate) in_thread: AtomicI32,
    pagemap: AtomicI32,
    /// Faults are answered: userfaultfd is open.
    pub(crate) active: AtomicBool,
    /// Linux may fill whole blocks by itself.
    pub(crate) granting: AtomicBool,
    /// Memory that is mapped from now on is left to Linux, what was mapped stays managed: the
    /// program has forbidden its threads the calls by which memory begins to be.
    pub leaves_new: AtomicBool,
    /// The program has locked all its memory, by `mlockall`.
    pub(crate) all_locked: AtomicBool,
    /// Mappings are managed whatever their size.
    pub(crate) small: AtomicBool,
    pub(crate) state: Mutex<State>,
    /// Something that was busy is not any more.
    pub(crate) settled: Event,
    /// Page-out has something to do.
    pub(crate) page_out: Event,
    /// The page-out thread does not look by itself: it is told when memory is wanted.
    pub(crate) page_out_rests: AtomicBool,
    pub(crate) watches: Watches,
    pub(crate) handlers: AtomicU32,
    /// How far a thread's restartable-sequences area lies from its robust list; 0: not known.
    pub(crate) rseq_from_list: AtomicIsize,
    /// When a fault last took memory above the budget; 0: never.
    pub(crate) overdrawn_ns: AtomicU64,
    /// Since when threads wait because paging space is full; 0: none does.
    pub(crate) parked_ns: AtomicU64,
    /// Pages of temporary memory that are written after they came in.
    pub(crate) rewrites: Rewrites,
    /// Faults that a thread could not answer itself.
    #[cfg(feature = "std")]
    pub(crate) desk: crate::in_thread::Desk,
}

/// What the lock protects.
pub(crate) struct State {
    pub(crate) pages: Pages,
    pub(crate) regions: Regions,
    /// Transfers between the lock's sections: page-ins and page-outs.
    pub(crate) in_flight: u32,
    /// No new transfer may start: a fork is under way.
    pub(crate) frozen: bool,
    /// Pages that must stay, and for whom.
    pub(crate) holds: Holds,
    /// Pages that Linux does not let go.
    pub(crate) pinned: Pinned,
    /// Page-ins that pagers answer later.
    pub(crate) outstanding: Outstanding,
    /// Pages that threads wait for and that were asked for with others, which failed: next they are
    /// asked for alone.
    pub(crate) alone: Vec<PageIndex>,
    /// What of files is mapped in the place of objects, and charged.
    pub(crate) windows: Windows,
}

impl Kernel {
    /// A kernel that manages nothing yet.
    pub fn new(config: Config) -> Self {
        let temporary = Source {
            object: ObjectId(0),
            pager: config.default_pager,
            temporary: true,
            origin: 0,
        };
        Self {
            account: Account::new(config.control, config.slot),
            on_loss: config.on_loss,
            device: config.device,
            messages: config.messages,
            covers: AtomicBool::new(config.covers),
            fixed_fds: config.fixed_fds,
            temporary,
            uffd: AtomicI32::new(-1),
            in_thread: AtomicI32::new(-1),
            pagemap: AtomicI32::new(NO_FD.0),
            active: AtomicBool::new(false),
            granting: AtomicBool::new(true),
            leaves_new: AtomicBool::new(false),
            all_locked: AtomicBool::new(false),
            small: AtomicBool::new(false),
            state: Mutex::new(State {
                pages: Pages::new(),
                regions: Regions::default(),
                in_flight: 0,
                frozen: false,
                holds: Holds::default(),
                pinned: Pinned::default(),
                outstanding: Outstanding::new(),
                alone: Vec::new(),
                windows: Windows::default(),
            }),
            settled: Event::new(),
            page_out: Event::new(),
            page_out_rests: AtomicBool::new(false),
            watches: Watches::new(),
            handlers: AtomicU32::new(0),
            rseq_from_list: AtomicIsize::new(0),
            overdrawn_ns: AtomicU64::new(0),
            parked_ns: AtomicU64::new(0),
            rewrites: Rewrites::new(),
            #[cfg(feature = "std")]
            desk: crate::in_thread::Desk::new(),
        }
    }

    /// The account.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// True when faults are answered.
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// New mappings are managed whatever their size.
    pub fn manage_small(&self) {
        self.small.store(true, Ordering::Relaxed);
    }

    /// Of `all` bytes of memory that the process has, at least so many are not managed.
    pub fn unmanaged_bytes(&self, all: u64) -> u64 {
        let managed = match self.is_active() {
            true => {
                // The compressed tier is memory of the process, too.
                let compressed = &self.account.counters().compressed_bytes;
                self.account.pages_held() * PAGE_BYTES as u64 + compressed.load(Ordering::Relaxed)
            }
            false => self.state.lock().regions.in_memory_bytes(),
        };
        all.saturating_sub(managed)
    }

    pub(crate) fn uffd(&self) -> Uffd {
        Uffd(Fd(self.uffd.load(Ordering::Relaxed)))
    }

    fn is_in_thread(&self, address: usize) -> bool {
        IN_THREAD_AREA.contains(&address) && self.in_thread.load(Ordering::Relaxed) >= 0
    }

    /// The userfaultfd that managed memory at `address` is registered with. Shadows belong to
    /// [`Kernel::uffd`].
    pub(crate) fn uffd_at(&self, address: usize) -> Uffd {
        if self.is_in_thread(address) {
            return Uffd(Fd(self.in_thread.load(Ordering::Relaxed)));
        }
        self.uffd()
    }

    /// Lets threads go on that wait for pages of a range: they try again.
    pub(crate) fn wake(&self, at: usize, bytes: usize) {
        if self.is_in_thread(at) {
            self.settled.notify();
        } else {
            self.uffd().wake(at, bytes);
        }
    }

    pub(crate) fn pagemap(&self) -> Fd {
        Fd(self.pagemap.load(Ordering::Relaxed))
    }

    /// Opens userfaultfd and pagemap.
    pub(crate) fn open(&self) -> Result<(), Errno> {
        self.open_pagemap()?;
        let uffd = file::with_room(|| self.open_uffd())?;
        let uffd = self
            .fixed_fds
            .map_or(uffd, |(at, _)| file::keep_at(uffd, at));
        self.uffd.store(uffd.0, Ordering::Relaxed);
        Ok(())
    }

    /// Opens pagemap, unless it is open: also before it is needed, in a process that may lose the
    /// way to `/proc`.
    ///
    /// # Errors
    /// As `open(2)`.
    pub fn open_pagemap(&self) -> Result<(), Errno> {
        if self.pagemap() != NO_FD {
            return Ok(());
        }
        let map = file::with_room(pagemap::open)?;
        let map = self.fixed_fds.map_or(map, |(_, at)| file::keep_at(map, at));
        self.pagemap.store(map.0, Ordering::Relaxed);
        Ok(())
    }

    /// The pagemap that is open, if one is, is not used from now on.
    pub(crate) fn take_pagemap(&self) -> Fd {
        Fd(self.pagemap.swap(NO_FD.0, Ordering::Relaxed))
    }

    fn open_uffd(&self) -> Result<Fd, Errno> {
        let offered = uffd::offered(self.device)?;
        let (uffd, _) = uffd::open(self.device)?;
        let covers = self.covers.load(Ordering::Relaxed);
        let moves = if covers { features::EVENT_REMAP } else { 0 };
        let enabled = uffd.enable(offered & WANTED | moves);
        self.covers
            .store(covers && uffd.can_be_read_at_once(), Ordering::Relaxed);
        enabled.inspect_err(|_| file::close(uffd.0))?;
        Ok(uffd.0)
    }

    /// Maps the shadow of a region and registers both.
    pub(crate) fn register(&self, start: usize, end: usize) -> Result<(), Errno> {
        let bytes = end - start;
        match self.map_shadow(start, bytes) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(errno),
        }
        // SAFETY: the shadow is ours; the region's faults are answered from now on.
        unsafe { self.uffd().register(shadow_of(start), bytes) }?;
        // SAFETY: as above.
        unsafe { self.uffd_at(start).register(start, bytes) }
    }

    /// Maps the shadow of `bytes` bytes at `start`: `EEXIST` when there is one.
    pub(crate) fn map_shadow(&self, start: usize, bytes: usize) -> Result<(), Errno> {
        let flags =
            mem::MAP_PRIVATE | mem::MAP_ANONYMOUS | mem::MAP_NORESERVE | mem::MAP_FIXED_NOREPLACE;
        let prot = mem::PROT_READ | mem::PROT_WRITE;
        // SAFETY: MAP_FIXED_NOREPLACE touches nothing that exists.
        let shadow = unsafe { mem::map(shadow_of(start), bytes, prot, flags, Fd(-1), 0) }?;
        // A core of the program would be twice as large. If this fails, it is.
        // SAFETY: changes what a core has, not what is mapped.
        let _ = unsafe { mem::advise(shadow, bytes, mem::MADV_DONTDUMP) };
        Ok(())
    }

    /// The account says what the page table says. While a page is on its way out it may count
    /// twice: in the program and aside.
    pub(crate) fn check_account(&self, state: &State) {
        if cfg!(debug_assertions) && state.in_flight == 0 {
            let table = state.pages.charged_pages() + state.windows.pages();
            let account = self.account.pages_held();
            assert_eq!(account, table, "pages in the account and in the page table");
        }
    }

    /// Waits, with the lock given up meanwhile, until no page of `pages` is busy.
    pub(crate) fn lock_settled(&self, pages: PageRange) -> StateGuard<'_> {
        loop {
            let seen = self.settled.seen();
            let state = self.state.lock();
            if !state.frozen && !state.pages.busy(pages) {
                return state;
            }
            drop(state);
            self.settled.wait(seen, Some(100_000_000));
        }
    }
}

pub(crate) type StateGuard<'a> = farpage_sys::futex::Guard<'a, State>;

impl State {
    pub(crate) fn region_of_page(&self, page: u64) -> Option<&Region> {
        self.regions.find(address_of(page))
    }

    /// Whether the page is of temporary memory.
    pub(crate) fn is_temporary(&self, page: PageIndex) -> bool {
        self.region_of_page(page.0)
            .is_some_and(|region| region.source.temporary)
    }
}

/// Gives up contents of a shadow range.
///
/// # Safety
/// Nobody may need what lies there.
pub(crate) unsafe fn drop_shadow(start: usize, bytes: usize) {
    // SAFETY: forwarded to the caller. The shadow is a mapping of ours, so this cannot fail but for
    // lack of a mapping, and then there is nothing to drop.
    let _ = unsafe { mem::advise(shadow_of(start), bytes, mem::MADV_DONTNEED) };
}
