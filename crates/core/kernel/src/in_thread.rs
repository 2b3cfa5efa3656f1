//! Faults that are answered in the thread that faults.
//!
//! A second userfaultfd raises SIGBUS instead of sending a message. What is quick and needs no
//! pager is done in the signal handler: bring a page back, lift a protection, wait for a transfer.
//! So is a page-in whose pager says that this is safe and that the page is at hand. All else is
//! laid on a [`Desk`], for handlers that take it from there, and the thread waits. The end of any
//! transfer makes all threads look that wait for one: right for tens of them, not for thousands.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use farpage_object::State as PageState;
use farpage_object::{PAGE_BYTES, PageIndex};
use farpage_sys::Errno;
use farpage_sys::futex::{Event, Mutex};
use farpage_sys::signal::{self, BadAccess};
use farpage_sys::uffd::{self, Fault, features};

use crate::fault::{Stall, Step};
use crate::handler::{Buffer, Watch};
use crate::kernel::{Kernel, State, WANTED};
use crate::layout::IN_THREAD_AREA;

/// Handlers that take faults from the desk.
pub(crate) const DESK_HANDLERS: usize = 4;
/// Faults that lie on the desk at a time; threads beyond wait for a place.
const PLACES: usize = 64;
/// Page-ins that threads do by themselves at a time; others go to the desk.
const BUFFERS: usize = 8;
/// Kernels of a process that answer in the thread.
const KERNELS_MAX: usize = 16;
/// A thread that waits looks again after this long, ns.
const LOOK_AGAIN_NS: u64 = 100_000_000;

/// Those that have such mappings: the signal handler finds them here.
static KERNELS: [AtomicPtr<Kernel>; KERNELS_MAX] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; KERNELS_MAX];

/// How far a fault on the desk is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Free,
    Asked(Fault),
    Taken,
    /// `locked`: the page stays locked.
    Answered {
        locked: bool,
    },
}

/// Where threads lay faults for handlers.
pub(crate) struct Desk {
    places: Mutex<[Place; PLACES]>,
    /// Where the search for work goes on: the oldest must not starve.
    next: AtomicU32,
    asked: Event,
    answered: Event,
    buffers: Mutex<Buffers>,
}

/// Buffers for page-ins in the thread, mapped when they are first needed.
struct Buffers {
    free: [Option<Buffer>; BUFFERS],
    made: usize,
}

impl Desk {
    pub(crate) const fn new() -> Self {
        Self {
            places: Mutex::new([Place::Free; PLACES]),
            next: AtomicU32::new(0),
            asked: Event::new(),
            answered: Event::new(),
            buffers: Mutex::new(Buffers {
                free: [const { None }; BUFFERS],
                made: 0,
            }),
        }
    }

    /// Takes the first place that `wanted` accepts, from `from` on, and makes it `becomes`.
    fn take(
        &self,
        from: usize,
        wanted: fn(Place) -> bool,
        becomes: Place,
    ) -> Option<(usize, Place)> {
        let mut places = self.places.lock();
        let mut order = (0..PLACES).map(|i| (from + i) % PLACES);
        let at = order.find(|&at| wanted(places[at]))?;
        let before = core::mem::replace(&mut places[at], becomes);
        Some((at, before))
    }

    /// Lays a fault down and waits until a handler has seen to it. False when the page stays
    /// locked.
    fn ask(&self, fault: Fault) -> bool {
        let at = loop {
            let seen = self.answered.seen();
            let free = |place| place == Place::Free;
            match self.take(0, free, Place::Asked(fault)) {
                Some((at, _)) => break at,
                None => self.answered.wait(seen, Some(LOOK_AGAIN_NS)),
            }
        };
        self.asked.notify();
        let locked = loop {
            let seen = self.answered.seen();
            let mut places = self.places.lock();
            if let Place::Answered { locked } = places[at] {
                places[at] = Place::Free;
                break locked;
            }
            drop(places);
            self.answered.wait(seen, Some(LOOK_AGAIN_NS));
        };
        self.answered.notify();
        !locked
    }

    /// Waits for a fault and takes it.
    fn next(&self) -> (usize, Fault) {
        loop {
            let seen = self.asked.seen();
            let from = self.next.load(Ordering::Relaxed) as usize;
            let asked = |place| matches!(place, Place::Asked(_));
            if let Some((at, Place::Asked(fault))) = self.take(from, asked, Place::Taken) {
                self.next.store(at as u32 + 1, Ordering::Relaxed);
                return (at, fault);
            }
            self.asked.wait(seen, None);
        }
    }

    fn answer(&self, at: usize, locked: bool) {
        self.places.lock()[at] = Place::Answered { locked };
        self.answered.notify();
    }

    fn buffer(&self) -> Option<Buffer> {
        let mut buffers = self.buffers.lock();
        if let Some(free) = buffers.free.iter_mut().find_map(Option::take) {
            return Some(free);
        }
        if buffers.made == BUFFERS {
            return None;
        }
        buffers.made += 1;
        drop(buffers);
        Buffer::new().ok()
    }

    fn put_back(&self, buffer: Buffer) {
        let mut buffers = self.buffers.lock();
        if let Some(place) = buffers.free.iter_mut().find(|place| place.is_none()) {
            *place = Some(buffer);
        }
    }
}

impl Kernel {
    /// Opens the userfaultfd for faults that are answered in the thread, and installs the signal
    /// handler. True the first time: the embedder then starts [`DESK_HANDLERS`] threads that call
    /// [`Kernel::handle_desk`].
    ///
    /// # Errors
    /// As `userfaultfd(2)`; `EMFILE` when too many kernels of this process do so.
    pub(crate) fn answer_in_thread(&'static self) -> Result<bool, Errno> {
        static INSTALLED: Mutex<bool> = Mutex::new(false);
        let mut installed = INSTALLED.lock();
        if self.in_thread.load(Ordering::Acquire) >= 0 {
            return Ok(false);
        }
        let own = core::ptr::from_ref(self).cast_mut();
        let free = KERNELS
            .iter()
            .find(|kernel| kernel.load(Ordering::Acquire).is_null());
        let free = free.ok_or(Errno::EMFILE)?;
        let (uffd, _) = uffd::open(self.device)?;
        let offered = uffd::offered(self.device)?;
        uffd.enable(offered & WANTED | features::SIGBUS)?;
        if !*installed {
            // SAFETY: the handler allocates nothing, takes locks that no thread holds while it
            // touches managed memory, and calls only pagers that say that they may be called.
            unsafe { signal::answer_sigbus(answer) }?;
            *installed = true;
        }
        free.store(own, Ordering::Release);
        self.in_thread.store(uffd.0.0, Ordering::Release);
        Ok(true)
    }

    /// Answers faults from the desk for ever. Runs on a thread of its own.
    pub(crate) fn handle_desk(&'static self, mut buffer: Buffer) -> ! {
        loop {
            let (at, fault) = self.desk.next();
            let served = self.serve(fault, &mut Watch::none(self), &mut buffer);
            self.desk.answer(at, !served);
        }
    }

    /// Answers a fault of the calling thread. False when it is not ours to answer.
    fn fault_in_thread(&'static self, fault: Fault) -> bool {
        let page = PageIndex(fault.address as u64 / PAGE_BYTES as u64);
        let seen = self.settled.seen();
        let state = self.state.lock();
        let Some(region) = state.region_of_page(page.0) else {
            return false;
        };
        let source = needs_pager(&state, page).then(|| region.source.clone());
        drop(state);
        let at_hand = source.is_some_and(|source| {
            let asked = PageIndex(page.0 - source.origin);
            source.pager.is_signal_safe() && source.pager.is_at_hand(source.object, asked)
        });
        let mut buffer = if at_hand { self.desk.buffer() } else { None };
        let answered = self.answer_in_place(fault, page, seen, buffer.as_mut());
        if let Some(buffer) = buffer {
            self.desk.put_back(buffer);
        }
        answered
    }

    fn answer_in_place(
        &'static self,
        fault: Fault,
        page: PageIndex,
        seen: u32,
        buffer: Option<&mut Buffer>,
    ) -> bool {
        let state = self.state.lock();
        if state.pages.state(page) == PageState::Failed {
            return false;
        }
        let locked = fault.protection && state.pages.is_locked(page);
        if locked || needs_pager(&state, page) && buffer.is_none() {
            drop(state);
            self.ask_at_desk(fault, page);
            return true;
        }
        let counters = self.account.counters();
        counters.faults.fetch_add(1, Ordering::Relaxed);
        match self.step_with(state, page, fault, false) {
            Step::Done => {}
            Step::Wait | Step::Frozen => self.settled.wait(seen, Some(LOOK_AGAIN_NS)),
            Step::Room(_) => self.ask_at_desk(fault, page),
            Step::Unlock(..) => unreachable!("a locked page goes to the desk"),
            Step::Window(_) => unreachable!("what is answered in its thread is not covered"),
            Step::Lost => return false,
            Step::PageIn {
                pages,
                also,
                source,
            } => {
                let buffer = buffer.expect("only a page that needs its pager is asked for");
                self.page_in(page, pages, fault, &source, buffer, &mut Stall::new());
                self.prefetch_strided(page, also, &source, buffer);
            }
        }
        true
    }

    fn ask_at_desk(&self, fault: Fault, page: PageIndex) {
        if self.desk.ask(fault) {
            return;
        }
        // The pager has refused, and is not asked again: somebody lifts the lock.
        loop {
            let seen = self.settled.seen();
            if !self.state.lock().pages.is_locked(page) {
                return;
            }
            self.settled.wait(seen, Some(LOOK_AGAIN_NS));
        }
    }
}

fn needs_pager(state: &State, page: PageIndex) -> bool {
    matches!(state.pages.state(page), PageState::Out | PageState::Absent)
}

/// The signal handler's part.
fn answer(access: BadAccess) -> bool {
    if !IN_THREAD_AREA.contains(&access.address) {
        return false;
    }
    let fault = Fault {
        address: access.address,
        write: access.write,
        protection: access.protection,
        // Nobody needs to know: to ask would be a system call.
        thread: 0,
    };
    let errno = errno();
    let known = KERNELS
        .iter()
        .map(|kernel| kernel.load(Ordering::Acquire))
        .take_while(|kernel| !kernel.is_null());
    let mut answered = false;
    for kernel in known {
        // SAFETY: kernels in the list live for ever.
        let kernel = unsafe { &*kernel };
        if kernel.fault_in_thread(fault) {
            answered = true;
            break;
        }
    }
    set_errno(errno);
    answered
}

unsafe extern "C" {
    fn __errno_location() -> *mut i32;
}

fn errno() -> i32 {
    // SAFETY: libc's word of this thread.
    unsafe { *__errno_location() }
}

/// A pager may have called libc; the interrupted code does not expect that.
fn set_errno(value: i32) {
    // SAFETY: as above.
    unsafe { *__errno_location() = value }
}
