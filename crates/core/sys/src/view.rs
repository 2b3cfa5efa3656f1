//! A memory file of another process's, mapped here: that process decides which pages are there.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

#[cfg(feature = "std")]
use crate::area::{Access, Area, From, Place};
use crate::file::{self, Fd};
use crate::mem;
use crate::raw::{Errno, Result};
#[cfg(feature = "std")]
use crate::syscall;
use crate::uffd::{self, Uffd, features};
#[cfg(feature = "std")]
use core::ops::Range;
use farpage_object::Tier;
#[cfg(feature = "std")]
use linux_raw_sys::general as g;
#[cfg(feature = "std")]
use std::os::fd::BorrowedFd;

const PAGE: usize = 4096;
/// What whoever answers registers and unregisters at a time.
const BLOCK: usize = 2 << 20;

/// All of such a file. Threads that touch a page wait until it is let in, by whoever has the
/// userfaultfd; a copy stays here, so that they wait, and read no zeros, when nobody has it.
pub struct View {
    /// The number of the userfaultfd: another one in a child of fork.
    uffd: AtomicI32,
    address: usize,
    bytes: usize,
    tier: Tier,
}

impl View {
    /// Maps all `bytes` of the file. Children of fork do not have it: they would read zeros. What
    /// they have in its place cannot be accessed, until [`View::map_again`].
    /// `device`: an open `/dev/userfaultfd`, if there is one.
    ///
    /// # Errors
    /// As `mmap(2)`, and as for [`Uffd::register_all`]; `EINVAL` when the file is empty.
    pub fn map(file: Fd, bytes: usize, device: Option<Fd>) -> Result<Self> {
        Self::map_at(0, file, bytes, device)
    }

    /// Maps all of the file to `range`, a place in an area of the caller's: in place of zeros that
    /// nobody has touched, or ([`Place::Free`]) where nothing is. `None` when a thread touched it
    /// just then: the file is mapped there, and nobody is asked about its pages.
    ///
    /// # Errors
    /// As for [`View::map`]; `EEXIST` when something is there that should not.
    ///
    /// # Panics
    /// When `range` is not of whole pages in the area.
    #[cfg(feature = "std")]
    pub fn map_in(
        area: &Area,
        range: &Range<usize>,
        place: Place,
        file: BorrowedFd<'_>,
        device: Option<Fd>,
    ) -> Result<Option<Self>> {
        const ACCESS: Access = Access {
            read: true,
            write: true,
            execute: false,
        };
        let view = Self::map_by(range.len(), device, || {
            area.map(range, ACCESS, From::Shared(file, 0), place)?;
            Ok(range.start)
        })?;
        if area.resident_bytes(range)? == 0 {
            return view.answered().map(Some);
        }
        Uffd(view.userfaultfd()).leave(range.start, range.len())?;
        file::close(view.userfaultfd());
        // What is mapped is not this value's any more.
        core::mem::forget(view);
        Ok(None)
    }

    fn map_at(at: usize, file: Fd, bytes: usize, device: Option<Fd>) -> Result<Self> {
        let bytes = bytes.next_multiple_of(PAGE);
        Self::map_by(bytes, device, || mem::map_shared_at(at, file, bytes))?.answered()
    }

    /// Registers what `map` maps.
    fn map_by(
        bytes: usize,
        device: Option<Fd>,
        map: impl FnOnce() -> Result<usize>,
    ) -> Result<Self> {
        const FEATURES: u64 = features::FAULT_FLAG_WP
            | features::THREAD_ID
            | features::MINOR_SHMEM
            | features::WP_HUGETLBFS_SHMEM;
        if bytes == 0 {
            return Err(Errno::EINVAL);
        }
        let (uffd, tier) = uffd::open(device)?;
        let mapped = uffd.enable(FEATURES).and_then(|()| map());
        let address = mapped.inspect_err(|_| file::close(uffd.0))?;
        let view = Self {
            uffd: AtomicI32::new(uffd.0.0),
            address,
            bytes,
            tier,
        };
        // SAFETY: the mapping is this value's own; nobody has touched it.
        unsafe { uffd.register_all(address, bytes) }?;
        Ok(view)
    }

    /// Somebody will answer for it.
    fn answered(self) -> Result<Self> {
        // SAFETY: the mapping is this value's own; it changes what children have of it.
        unsafe { mem::advise(self.address, self.bytes, mem::MADV_DONTFORK) }?;
        #[cfg(feature = "std")]
        places::add(self.address, self.bytes);
        Ok(self)
    }

    /// In a child of fork, which has this value but not its mapping: the same file at the same
    /// place, with a userfaultfd of the child's own.
    ///
    /// # Errors
    /// As for [`View::map`]; `EEXIST` when something else lies there already.
    pub fn map_again(&self, file: Fd, device: Option<Fd>) -> Result<()> {
        #[cfg(feature = "std")]
        places::free(self.address);
        let again = Self::map_at(self.address, file, self.bytes, device)?;
        let own = again.uffd.load(Ordering::Relaxed);
        // The mapping is this value's now.
        core::mem::forget(again);
        file::close(Fd(self.uffd.swap(own, Ordering::AcqRel)));
        Ok(())
    }

    /// It is only read from now on: a thread that writes to it gets SIGSEGV.
    ///
    /// # Errors
    /// As `mprotect(2)`.
    pub fn only_reads(&self) -> Result<()> {
        // SAFETY: the mapping is this value's own; words of it may be read as before, and writing
        // to one ends in a signal, and changes nothing.
        unsafe { mem::protect(self.address, self.bytes, mem::PROT_READ) }
    }

    /// Nobody answers for it any more: threads that wait for a page, or touch one that is not
    /// there, get SIGBUS. Nothing before Linux 6.6: they wait.
    pub fn fail(&self) {
        // What is protected and absent counts as there.
        let _ = Uffd(self.userfaultfd()).set_protected(self.address, self.bytes, false);
        let mut at = self.address;
        let all = self.address + self.bytes;
        while at < all {
            // Blocks are registered whole, or not at all: those are Linux's.
            let block = (at - self.address) / BLOCK;
            let end = all.min(self.address + (block + 1) * BLOCK);
            // SAFETY: who touches what is absent gets a signal; nothing else changes.
            let done = unsafe { Uffd(self.userfaultfd()).poison(at, end - at) };
            // A page that is there stays.
            at += done.bytes + if done.stopped.is_some() { PAGE } else { 0 };
        }
        // Whoever answered may have died after it let a thread in, and before it woke it.
        Uffd(self.userfaultfd()).wake(self.address, self.bytes);
    }

    /// How much it is, in whole pages.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What the other process needs to answer for it.
    pub fn userfaultfd(&self) -> Fd {
        Fd(self.uffd.load(Ordering::Acquire))
    }

    /// A copy of it, to be sent there.
    ///
    /// # Errors
    /// As `fcntl(2)`: too many descriptors.
    #[cfg(feature = "std")]
    pub fn faults(&self) -> Result<std::os::fd::OwnedFd> {
        use std::os::fd::{FromRawFd, OwnedFd};
        let own = self.userfaultfd().0;
        // SAFETY: takes no pointer.
        let fd = unsafe { syscall!(g::__NR_fcntl, own, g::F_DUPFD_CLOEXEC, 0) }?;
        // SAFETY: just made, and nobody else's.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }

    /// System calls wait for a page as threads do; else they fail.
    pub fn answers_calls(&self) -> bool {
        match self.tier {
            Tier::Device | Tier::Syscall => true,
            Tier::UserModeOnly | Tier::None => false,
        }
    }

    /// Where it is.
    pub fn address(&self) -> usize {
        self.address
    }

    /// All of it that makes whole words.
    pub fn words(&self) -> &[AtomicU64] {
        let start = self.address as *const AtomicU64;
        // SAFETY: the mapping is this value's own and outlives the borrow; whoever else has it
        // mapped accesses it as another processor would.
        unsafe { core::slice::from_raw_parts(start, self.bytes / size_of::<AtomicU64>()) }
    }

    /// Eight bytes of it, at a multiple of eight.
    ///
    /// # Panics
    /// When they are not in it, or `offset` is not a multiple of eight.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.bytes);
        // SAFETY: the mapping is this value's own and outlives the borrow; whoever else has it mapped
        // accesses it as another processor would.
        unsafe { &*((self.address + offset) as *const AtomicU64) }
    }

    /// Four bytes of it, at a multiple of four.
    ///
    /// # Panics
    /// When they are not in it, or `offset` is not a multiple of four.
    pub fn half_word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.bytes);
        // SAFETY: as in [`View::word`].
        unsafe { &*((self.address + offset) as *const AtomicU32) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        #[cfg(feature = "std")]
        places::remove(self.address);
        // SAFETY: nobody borrows it any more.
        let _ = unsafe { mem::unmap(self.address, self.bytes) };
        file::close(self.userfaultfd());
    }
}

/// The places of all views: nothing else may come there in a child of fork.
#[cfg(feature = "std")]
pub(crate) mod places {
    extern crate std;

    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use crate::file::Fd;
    use crate::fork::AtFork;
    use crate::mem;

    struct Place {
        bytes: usize,
        /// This process is a child that has kept it, and not mapped the view again.
        kept: bool,
    }

    type Places = BTreeMap<usize, Place>;

    static ALL: Mutex<Places> = Mutex::new(Places::new());

    std::thread_local! {
        static HELD: RefCell<Option<MutexGuard<'static, Places>>> = const { RefCell::new(None) };
    }

    fn lock() -> MutexGuard<'static, Places> {
        ALL.lock().unwrap_or_else(PoisonError::into_inner)
    }

    static FORKS: AtFork = AtFork::new(prepare, parent, child);

    pub(crate) fn watch() {
        FORKS.register();
    }

    pub(super) fn add(address: usize, bytes: usize) {
        watch();
        lock().insert(address, Place { bytes, kept: false });
    }

    pub(super) fn remove(address: usize) {
        lock().remove(&address);
    }

    /// In a child: the view comes back to its place. Nothing changes where that was not kept:
    /// something else may lie there.
    pub(super) fn free(address: usize) {
        if let Some(place) = lock().get_mut(&address)
            && std::mem::take(&mut place.kept)
        {
            // SAFETY: `child` mapped it, and nobody can access it.
            let _ = unsafe { mem::unmap(address, place.bytes) };
        }
    }

    extern "C" fn prepare() {
        HELD.with(|held| *held.borrow_mut() = Some(lock()));
    }

    extern "C" fn parent() {
        HELD.with(|held| drop(held.borrow_mut().take()));
    }

    /// Before anything else of the child can map memory.
    extern "C" fn child() {
        FORKS.in_child();
        let Some(mut all) = HELD.with(|held| held.borrow_mut().take()) else {
            return;
        };
        let how = mem::MAP_PRIVATE | mem::MAP_ANONYMOUS | mem::MAP_NORESERVE;
        for (address, place) in all.iter_mut() {
            let fixed = how | mem::MAP_FIXED_NOREPLACE;
            // SAFETY: nothing existing is touched.
            let kept = unsafe { mem::map(*address, place.bytes, mem::PROT_NONE, fixed, Fd(-1), 0) };
            place.kept = kept.is_ok();
        }
    }
}
