//! The program's memory calls, handed to the kernel of this process.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use farpage_default_pager::DefaultPager;
use farpage_kernel::{Buffer, Config, Kernel, OnLoss};
use farpage_object::{DataRequest, PageOut, Pager, PagerError, Supplied};
use farpage_object::{Death, ObjectId, PageIndex, PageRange, Tier, fds};
use farpage_sys::file::{self, Fd};
use farpage_sys::limits::{self, Resource};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, Result, futex, mem, process, syscall, thread, time};

use crate::{maps, own_threads, program, sandbox, shm, small, start, trap};

/// Tasks that have mapped less are not asked to manage it before they must themselves.
const WATCHED_BYTES: u64 = 32 << 20;
/// Demand of a process that does more than to start others.
const USED_BYTES: u64 = 4 << 20;
/// How long it is tried to start a thread.
const SPAWN_NS: u64 = 2_000_000_000;
/// Time between two looks of the page-out thread at the demand, before memory is managed: while the
/// program's threads look as well, and when they cannot.
const LOOK_NS: u64 = 1_000_000_000;
/// See [`LOOK_NS`].
const ALONE_NS: u64 = 20_000_000;
/// Time between two looks at paging files that are being removed.
const TIDY_NS: u64 = 100_000_000;

static KERNEL: AtomicPtr<Kernel> = AtomicPtr::new(core::ptr::null_mut());
static PAGER: AtomicPtr<DefaultPager> = AtomicPtr::new(core::ptr::null_mut());
static WATCHED: AtomicBool = AtomicBool::new(false);
/// A filter of the program's own is on: its threads may not be able to do what managing takes.
static SANDBOXED: AtomicBool = AtomicBool::new(false);
static TIDIED_NS: AtomicU64 = AtomicU64::new(0);

/// The default pager, made when the first page leaves.
struct Paging;

fn pager() -> Option<&'static DefaultPager> {
    // SAFETY: null, or leaked by `make_pager`.
    unsafe { PAGER.load(Ordering::Acquire).as_ref() }
}

fn made() -> core::result::Result<&'static DefaultPager, PagerError> {
    pager().ok_or(PagerError::OutOfSpace)
}

fn make_pager() -> core::result::Result<(), PagerError> {
    let (Some(control), Some(slot), None) = (start::control(), start::slot(), pager()) else {
        return Ok(());
    };
    let made = Box::new(DefaultPager::new(control, slot)?);
    if SANDBOXED.load(Ordering::Relaxed) {
        made.withdraw_rings();
    }
    let made = Box::into_raw(made);
    PAGER.store(made, Ordering::Release);
    Ok(())
}

impl Pager for Paging {
    fn data_request(&self, request: DataRequest<'_>) -> core::result::Result<Supplied, PagerError> {
        made()?.data_request(request)
    }

    fn data_request_strided(
        &self,
        object: ObjectId,
        first: PageIndex,
        stride: i64,
        buffer: &mut [u8],
    ) -> core::result::Result<Supplied, PagerError> {
        made()?.data_request_strided(object, first, stride, buffer)
    }

    fn is_at_hand(&self, object: ObjectId, page: PageIndex) -> bool {
        pager().is_some_and(|pager| pager.is_at_hand(object, page))
    }

    fn data_write(
        &self,
        object: ObjectId,
        pages: &[PageOut<'_>],
    ) -> core::result::Result<(), PagerError> {
        made()?.data_write(object, pages)
    }

    fn discard(&self, object: ObjectId, pages: PageRange) {
        if let Some(pager) = pager() {
            pager.discard(object, pages);
        }
    }

    fn rename(
        &self,
        object: ObjectId,
        from: PageRange,
        to: PageIndex,
    ) -> core::result::Result<(), PagerError> {
        pager().map_or(Ok(()), |pager| pager.move_pages(object, from, to))
    }
}

/// The kernel of this process, if there is one.
pub(crate) fn kernel() -> Option<&'static Kernel> {
    // SAFETY: null, or leaked by `init`.
    unsafe { KERNEL.load(Ordering::Acquire).as_ref() }
}

/// Makes the kernel; nothing is managed yet.
pub(crate) fn init() {
    let (Some(control), Some(slot)) = (start::control(), start::slot()) else {
        return;
    };
    let made = Kernel::new(Config {
        control,
        slot,
        default_pager: Arc::new(Paging),
        on_loss: OnLoss::Kill,
        covers: false,
        device: Some(start::descriptor(fds::DEVICE)),
        messages: start::descriptor(fds::MESSAGES),
        fixed_fds: Some((
            start::descriptor(fds::UFFD),
            start::descriptor(fds::PAGEMAP),
        )),
    });
    small::begin(&made);
    KERNEL.store(Box::into_raw(Box::new(made)), Ordering::Release);
}

/// The program is about to forbid its threads something: new mappings are left to Linux from now
/// on. What managing the others will take is done by a thread that is not one of them; it must
/// exist before, for threads inherit what is forbidden. Returns whether it was so before.
pub(crate) fn begin_sandbox() -> bool {
    let was = SANDBOXED.swap(true, Ordering::AcqRel);
    if let Some(kernel) = kernel()
        && !was
        && kernel.has_memory()
    {
        watch(kernel);
        // It may be asleep for long.
        futex::wake(&kernel.account().control().pressure, i32::MAX as u32);
        kernel.stop_granting();
    }
    // Paging files are used from now on by calls that filters know.
    if let Some(pager) = pager() {
        pager.withdraw_rings();
    }
    was
}

/// It was not forbidden after all.
pub(crate) fn no_sandbox() {
    SANDBOXED.store(false, Ordering::Release);
}

/// True when the page-out thread is there, which does what it is asked of the program's threads.
pub(crate) fn has_page_out_thread() -> bool {
    WATCHED.load(Ordering::Acquire)
}

fn is_sandboxed() -> bool {
    SANDBOXED.load(Ordering::Relaxed)
}

/// Ends the process, and says of what.
fn give_up(what: core::fmt::Arguments<'_>) -> ! {
    let process = process::id();
    let line = alloc::format!("farpage: process {process} is killed: {what}\n");
    file::write_message(start::descriptor(fds::MESSAGES), line.as_bytes());
    if let Some(task) = start::task() {
        task.death.store(Death::Told as u32, Ordering::Release);
    }
    process::die()
}

/// After a call that may have raised demand: starts what has become necessary.
fn look(kernel: &'static Kernel) {
    if is_sandboxed() && WATCHED.load(Ordering::Acquire) {
        // The page-out thread looks by itself: this one may not be allowed to.
        return;
    }
    if !is_sandboxed() {
        small::look(kernel);
    }
    if kernel.must_activate() {
        activate(kernel);
    }
    if kernel.is_active() || demand(kernel) >= WATCHED_BYTES {
        watch(kernel);
    }
}

fn activate(kernel: &'static Kernel) {
    if make_pager().is_err() || kernel.activate().is_err() {
        cannot_manage(kernel);
    }
}

fn cannot_manage(kernel: &'static Kernel) -> ! {
    let what = match kernel.open_pagemap() {
        Err(Errno::ENOENT) => alloc::string::String::from(
            "it has no /proc/self/pagemap; mount /proc in the root that it has",
        ),
        Err(errno) => alloc::format!(
            "it may not open /proc/self/pagemap: {errno}; what forbids that (Landlock, AppArmor, SELinux) must allow it"
        ),
        Ok(()) if limits::get(Resource::Data).is_ok_and(|limit| limit.now != u64::MAX) => {
            alloc::string::String::from(
                "the limit on data (ulimit -d) leaves no room; it counts managed memory twice: raise it",
            )
        }
        Ok(()) => alloc::string::String::from(
            "userfaultfd or memory for the page tables cannot be had; see `farpage doctor`",
        ),
    };
    give_up(format_args!("its memory cannot be managed: {what}"))
}

/// The program may lose the way to `/proc`, or forbid it to itself: what is there is opened now.
/// Where that fails it is said when it is needed.
pub(crate) fn proc_is_lost() {
    if let Some(kernel) = manager() {
        let _ = kernel.open_pagemap();
    }
}

/// The process will soon be unable to make threads: watches now what would be watched from more
/// memory on.
pub(crate) fn watch_if_used() {
    if let Some(kernel) = manager().filter(|kernel| demand(kernel) >= USED_BYTES) {
        watch(kernel);
    }
}

/// The process is about to limit its descriptors or threads. Where few will be left, memory is
/// managed from now on: what that takes could not be had later.
pub(crate) fn before_limit(resource: usize, limit: usize) {
    const FEW: u64 = 64;
    let is_meant = matches!(resource as u32, g::RLIMIT_NOFILE | g::RLIMIT_NPROC);
    if !is_meant || limit == 0 || sandbox::is_on() {
        return;
    }
    let few = program::read::<[u64; 2]>(limit).is_ok_and(|[now, _]| now < FEW);
    let Some(kernel) = manager().filter(|_| few && !start::is_visitor()) else {
        return;
    };
    // Where this fails it is said when it is needed.
    if make_pager().is_err() {
        return;
    }
    if begins_to_watch(kernel) && spawn_once(page_out_thread, kernel).is_err() {
        return WATCHED.store(false, Ordering::Release);
    }
    if kernel.activate().is_ok() {
        make_handlers(kernel);
    }
}

fn demand(kernel: &Kernel) -> u64 {
    let counters = kernel.account().counters();
    counters.demand_bytes.load(Ordering::Relaxed)
}

fn watch(kernel: &'static Kernel) {
    if begins_to_watch(kernel) {
        spawn(page_out_thread, kernel);
    }
}

/// True when the page-out thread is to be made now.
fn begins_to_watch(kernel: &'static Kernel) -> bool {
    let begins = !WATCHED.swap(true, Ordering::AcqRel);
    // A filter of the program's own may not know the calls that ask. A child has what its parent
    // learned.
    if begins && !sandbox::is_on() {
        kernel.learn_threads();
        own_threads::learn_tracer();
    }
    begins
}

fn spawn(main: thread::Main, kernel: &'static Kernel) {
    let until = time::now_ns() + SPAWN_NS;
    loop {
        match spawn_once(main, kernel) {
            Ok(()) => return,
            // Others take what there is just now: without the thread the process cannot go on.
            Err(Errno::EAGAIN | Errno::ENOMEM) if time::now_ns() < until => {
                futex::wait(&AtomicU32::new(0), 0, Some(SPAWN_NS / 200));
            }
            // Its memory may never have to be managed.
            Err(Errno::EINVAL) if !kernel.is_active() => {
                return WATCHED.store(false, Ordering::Release);
            }
            Err(Errno::EINVAL) => give_up(format_args!(
                "farpage can start no thread in it: its children begin another namespace of process ids, and Linux makes \
                 no threads for such a process; run the program in a child of it (unshare --pid --fork)"
            )),
            Err(errno) => give_up(format_args!(
                "farpage can start no thread in it ({errno}): raise the limit on processes (ulimit -u) or on memory"
            )),
        }
    }
}

fn spawn_once(main: thread::Main, kernel: &'static Kernel) -> Result<()> {
    // SAFETY: both mains use nothing of libc; all signals are blocked in the handler that calls
    // this, and in the threads made here.
    unsafe { own_threads::spawn(main, core::ptr::from_ref(kernel) as usize) }
}

/// Waits until memory must be managed, then keeps some free.
extern "C" fn page_out_thread(kernel: usize) -> ! {
    // SAFETY: `spawn` passes the kernel.
    let kernel = unsafe { &*(kernel as *const Kernel) };
    let control = kernel.account().control();
    let before = control.pressure.load(Ordering::Acquire);
    while !kernel.is_active() {
        if control.pressure.load(Ordering::Acquire) != before || kernel.must_activate() {
            activate(kernel);
            break;
        }
        own_threads::end_with_the_program();
        own_threads::serve();
        let step_ns = if is_sandboxed() { ALONE_NS } else { LOOK_NS };
        futex::wait(&control.pressure, before, Some(step_ns));
    }
    kernel.page_out_for_ever(TIDY_NS, || tick(kernel))
}

fn make_handlers(kernel: &'static Kernel) {
    while kernel.wants_handler() {
        let is_first = !kernel.has_handler();
        kernel.handler_starts();
        if is_first {
            spawn(handler_thread, kernel);
        } else if spawn_once(handler_thread, kernel).is_err() {
            // Those that there are go on.
            return kernel.handler_did_not_start();
        }
    }
}

fn tick(kernel: &'static Kernel) {
    make_handlers(kernel);
    own_threads::serve();
    let now = time::now_ns();
    if now - TIDIED_NS.load(Ordering::Relaxed) > TIDY_NS {
        TIDIED_NS.store(now, Ordering::Relaxed);
        while pager().is_some_and(DefaultPager::drain) {}
        own_threads::end_with_the_program();
    }
}

extern "C" fn handler_thread(kernel: usize) -> ! {
    // SAFETY: `spawn` passes the kernel.
    let kernel = unsafe { &*(kernel as *const Kernel) };
    match Buffer::new() {
        Ok(buffer) => kernel.handle_faults(buffer),
        Err(_) => give_up(format_args!(
            "there is no memory for a thread that answers its faults"
        )),
    }
}

/// Makes everything still for a fork whose child will be the task in `child`.
pub(crate) fn before_fork(child: usize) {
    maps::before_fork();
    shm::before_fork();
    if let Some(kernel) = kernel() {
        kernel.before_fork();
        if let Some(pager) = pager() {
            pager.before_fork(child);
        }
    }
    #[cfg(feature = "standalone")]
    crate::standalone::hold_heap();
}

/// # Safety
/// Only after [`before_fork`] on this thread.
pub(crate) unsafe fn after_fork_in_parent(ok: bool, child: usize) {
    #[cfg(feature = "standalone")]
    // SAFETY: held since `before_fork`.
    unsafe {
        crate::standalone::release_heap();
    }
    if let Some(kernel) = kernel() {
        if let Some(pager) = pager() {
            pager.after_fork_parent(ok, child);
        }
        // SAFETY: forwarded.
        unsafe { kernel.after_fork_in_parent() };
    }
    // SAFETY: forwarded.
    unsafe { maps::after_fork_in_parent() };
    // SAFETY: forwarded.
    unsafe { shm::after_fork_in_parent() };
}

/// # Safety
/// Only after [`before_fork`] in the parent, first thing in the child.
pub(crate) unsafe fn after_fork_in_child(slot: usize) {
    #[cfg(feature = "standalone")]
    // SAFETY: held by this thread's twin since `before_fork`.
    unsafe {
        crate::standalone::release_heap();
    }
    // SAFETY: forwarded.
    unsafe { maps::after_fork_in_child(slot) };
    // SAFETY: forwarded.
    unsafe { shm::after_fork_in_child() };
    let Some(kernel) = kernel() else { return };
    if let Some(pager) = pager() {
        pager.after_fork_child(slot);
    }
    WATCHED.store(false, Ordering::Relaxed);
    // SAFETY: forwarded.
    if unsafe { kernel.after_fork_in_child(slot) }.is_err() {
        cannot_manage(kernel);
    }
    look(kernel);
}

/// The kernel, unless the program's own sandbox forbids managing more.
fn manager() -> Option<&'static Kernel> {
    kernel().filter(|_| !is_sandboxed())
}

/// # Safety
/// For this and the others: as the call that the program made.
pub(crate) unsafe fn mmap(
    at: usize,
    bytes: usize,
    prot: u32,
    flags: u32,
    fd: Fd,
    offset: u64,
) -> Result<usize> {
    let fixed = flags & (g::MAP_FIXED | g::MAP_FIXED_NOREPLACE) != 0;
    let manager = if fixed { kernel() } else { manager() };
    let Some(kernel) = manager else {
        // SAFETY: forwarded.
        return unsafe { mem::map(at, bytes, prot, flags, fd, offset) };
    };
    // SAFETY: forwarded.
    let mapped = unsafe { kernel.mmap(at, bytes, prot, flags, fd, offset) };
    look(kernel);
    mapped
}

pub(crate) unsafe fn munmap(at: usize, bytes: usize) -> Result<usize> {
    // SAFETY: forwarded.
    unsafe {
        match kernel() {
            Some(kernel) => kernel.munmap(at, bytes),
            None => mem::unmap(at, bytes),
        }
    }
    .map(|()| 0)
}

pub(crate) unsafe fn mremap(
    at: usize,
    old: usize,
    new: usize,
    flags: u32,
    target: usize,
) -> Result<usize> {
    let Some(kernel) = kernel() else {
        // SAFETY: forwarded.
        return unsafe { mem::remap(at, old, new, flags, target) };
    };
    // SAFETY: forwarded.
    let moved = unsafe { kernel.mremap(at, old, new, flags, target) };
    look(kernel);
    moved
}

pub(crate) unsafe fn madvise(at: usize, bytes: usize, advice: u32) -> Result<usize> {
    // SAFETY: forwarded.
    unsafe {
        match kernel() {
            Some(kernel) => kernel.madvise(at, bytes, advice),
            None => mem::advise(at, bytes, advice),
        }
    }
    .map(|()| 0)
}

/// Whether Linux lets the process that `of` names be advised as this one may advise itself: it is
/// this one.
pub(crate) fn may_advise(of: usize) -> bool {
    // SAFETY: no memory is named.
    unsafe { syscall!(g::__NR_process_madvise, of, 0, 0, g::MADV_DONTNEED, 0) }.is_ok()
}

pub(crate) unsafe fn mprotect(number: u32, args: [usize; 6]) -> Result<usize> {
    let [at, bytes, prot, key, ..] = args;
    let key = match number {
        g::__NR_mprotect => -1,
        _ => key as i32,
    };
    let Some(kernel) = kernel() else {
        // SAFETY: forwarded.
        return unsafe { trap::pass(number, args) };
    };
    // SAFETY: forwarded.
    let changed = unsafe { kernel.mprotect(at, bytes, prot as u32, key) };
    look(kernel);
    changed.map(|()| 0)
}

pub(crate) unsafe fn mlock(number: u32, args: [usize; 6]) -> Result<usize> {
    let [at, bytes, flags, ..] = args;
    let flags = if number == g::__NR_mlock2 {
        flags as u32
    } else {
        0
    };
    // SAFETY: forwarded.
    unsafe {
        match kernel() {
            Some(kernel) => kernel.mlock(at, bytes, flags).map(|()| 0),
            None => trap::pass(number, args),
        }
    }
}

pub(crate) unsafe fn munlock(args: [usize; 6]) -> Result<usize> {
    // SAFETY: forwarded.
    unsafe {
        match kernel() {
            Some(kernel) => kernel.munlock(args[0], args[1]).map(|()| 0),
            None => trap::pass(g::__NR_munlock, args),
        }
    }
}

pub(crate) unsafe fn mlockall(args: [usize; 6]) -> Result<usize> {
    match kernel() {
        Some(kernel) => kernel.mlockall(args[0] as u32).map(|()| 0),
        // SAFETY: forwarded.
        None => unsafe { trap::pass(g::__NR_mlockall, args) },
    }
}

pub(crate) unsafe fn munlockall(args: [usize; 6]) -> Result<usize> {
    match kernel() {
        Some(kernel) => kernel.munlockall().map(|()| 0),
        // SAFETY: forwarded.
        None => unsafe { trap::pass(g::__NR_munlockall, args) },
    }
}

pub(crate) unsafe fn brk(to: usize) -> usize {
    let Some(kernel) = manager() else {
        // SAFETY: forwarded.
        return unsafe { trap::pass(g::__NR_brk, [to, 0, 0, 0, 0, 0]) }.unwrap_or(0);
    };
    // SAFETY: forwarded.
    let end = unsafe { kernel.brk(to) };
    look(kernel);
    end
}

/// True when userfaultfd does not serve the kernel's own accesses.
pub(crate) fn is_user_tier() -> bool {
    let tier = start::control().map(|control| control.tier.load(Ordering::Relaxed));
    tier == Some(Tier::UserModeOnly as u32)
}
