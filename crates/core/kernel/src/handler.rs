//! The threads that answer faults and the thread that pages out.
//!
//! A few handlers are on watch: they wait for faults. Before one does something slow (a disk, waiting
//! for memory) it lets another watch.

use core::sync::atomic::Ordering;

use farpage_object::{PAGE_BYTES, PagerError};
use farpage_sys::Errno;

use crate::follow::Follower;
use crate::full;
use crate::inherited::Looks;
use crate::kernel::Kernel;
use crate::layout::WINDOW;

/// Handlers that exist at most.
const HANDLERS_MAX: u32 = 8;
/// Time between two looks of the page-out thread at memory that cannot be had yet, or is shared with
/// a parent.
const LOOK_NS: u64 = 20_000_000;
/// Pages that one page-in brings at most.
pub(crate) const BUFFER_PAGES: usize = 512;

/// Where a handler has pages put before they go into the program. Mapped once per handler.
pub struct Buffer(farpage_sys::buffer::Buffer);

impl Buffer {
    /// Maps a buffer.
    ///
    /// # Errors
    /// As `mmap(2)`.
    pub fn new() -> Result<Self, Errno> {
        farpage_sys::buffer::Buffer::new(BUFFER_PAGES * PAGE_BYTES).map(Self)
    }

    pub(crate) fn bytes(&mut self, pages: usize) -> &mut [u8] {
        self.0.room(pages * PAGE_BYTES)
    }

    /// Gives the memory of all but the first `kept` bytes back to the system.
    pub(crate) fn shrink(&mut self, kept: usize) {
        self.0.shrink(kept);
    }
}

/// The right to wait for faults; given up before something slow.
pub(crate) struct Watch<'a> {
    kernel: &'a Kernel,
    number: Option<usize>,
}

impl<'a> Watch<'a> {
    /// Of a handler that does not wait for faults.
    #[cfg(feature = "std")]
    pub(crate) fn none(kernel: &'a Kernel) -> Self {
        let number = None;
        Self { kernel, number }
    }

    fn take(kernel: &'a Kernel) -> Self {
        let number = Some(kernel.watches.take());
        Self { kernel, number }
    }

    /// Gives up before a page is waited for, unless somebody else is on watch: changing the watch
    /// would cost more than it saves.
    pub(crate) fn give_up_unless_kept(&mut self) {
        if !self.kernel.watches.is_kept() {
            self.give_up();
        }
    }

    /// Lets another handler watch while this one is busy. Has one made when there is none.
    pub(crate) fn give_up(&mut self) {
        if let Some(number) = self.number.take() {
            self.kernel.watches.give_back(number);
            self.kernel.have_handler_made();
        }
    }
}

impl Kernel {
    /// True when another handler would help.
    pub fn wants_handler(&self) -> bool {
        self.handlers.load(Ordering::Acquire) < HANDLERS_MAX && self.watches.wants_another()
    }

    /// True when a handler was started, or is about to be.
    pub fn has_handler(&self) -> bool {
        self.handlers.load(Ordering::Acquire) > 0
    }

    /// If another handler would help, the page-out thread makes it: a handler is in a hurry.
    fn have_handler_made(&self) {
        if self.wants_handler() {
            self.page_out.notify();
        }
    }

    /// Counts a handler that is about to be started, so that it is not started twice.
    pub fn handler_starts(&self) {
        self.handlers.fetch_add(1, Ordering::AcqRel);
        self.watches.comes();
    }

    /// A handler that was counted could not be started after all.
    pub fn handler_did_not_start(&self) {
        self.handlers.fetch_sub(1, Ordering::AcqRel);
        self.watches.comes_not();
    }

    /// Answers faults for ever. Runs on a thread of its own, which the embedder starts after
    /// [`Kernel::handler_starts`].
    pub fn handle_faults(&'static self, mut buffer: Buffer) -> ! {
        let mut follower = Follower::new();
        loop {
            let mut watch = Watch::take(self);
            while let Some(number) = watch.number {
                follower.go_to(self.watches.cpu(number));
                self.next_fault(&mut watch, &mut buffer, &mut follower);
            }
            self.watches.comes();
        }
    }

    fn next_fault(
        &'static self,
        watch: &mut Watch<'_>,
        buffer: &mut Buffer,
        follower: &mut Follower,
    ) {
        let uffd = self.uffd();
        let faults = match self.watches.idle(|| uffd.faults::<1>()) {
            Ok(faults) => faults,
            Err(errno) => self.end_for(format_args!("userfaultfd cannot be read"), errno),
        };
        for fault in faults.as_slice() {
            // Read while the thread waits, and acted on when it runs again.
            let cpu = follower.look(self, fault.thread);
            self.serve(*fault, watch, buffer);
            if let (Some(cpu), Some(number)) = (cpu, watch.number)
                && self.watches.seen_on(cpu, number)
            {
                follower.look_again();
                self.have_handler_made();
            }
        }
    }

    /// Learns where glibc's threads keep the number of their processor. To be called in one of
    /// them; without it a handler follows its thread less closely.
    pub fn learn_threads(&self) {
        let learned = farpage_sys::symbol::rseq_offset().map(farpage_sys::thread::rseq_from_list);
        if let Some(Ok(distance)) = learned {
            self.rseq_from_list.store(distance, Ordering::Relaxed);
        }
    }

    /// The processor of a thread that waits for its fault.
    pub(crate) fn cpu_by_rseq(&self, thread: u32) -> Option<u32> {
        let distance = self.rseq_from_list.load(Ordering::Relaxed);
        // Never in managed memory, where reading could fault.
        let area = WINDOW[1].end..usize::MAX;
        (distance != 0)
            .then(|| farpage_sys::thread::cpu_by_rseq(thread, distance, area))
            .flatten()
    }

    /// Keeps memory free ahead of faults, for ever. Runs on a thread of its own. `tick` is called
    /// when somebody asks for something, and every `rest_ns` at least: the embedder starts handlers
    /// there when [`Kernel::wants_handler`], and lets the default pager tidy up.
    pub fn page_out_for_ever(&self, rest_ns: u64, mut tick: impl FnMut()) -> ! {
        let mut pressed = self.account.task().pressure.load(Ordering::Acquire);
        let mut looks = Looks::default();
        loop {
            let seen = self.page_out.seen();
            tick();
            self.let_parked_look();
            self.account.count_tasks();
            let asked = self.account.asked(&mut pressed);
            let excess = self.account.pages_wanted();
            let (mut room, mut is_full) = (true, false);
            if excess.max(asked) > 0 {
                // With room for a whole page-in few of them have to make it.
                let wanted = match excess {
                    0 => 0,
                    _ => excess.max(self.account.window()),
                };
                let gone = self.evict(wanted.max(asked));
                self.account.gave(gone.pages.min(wanted));
                room = gone.pages > 0;
                is_full = !room && gone.refused == Some(PagerError::OutOfSpace);
            }
            if is_full && asked > 0 && self.account.waits_when_full() {
                // Another task of the tree waits for what this one cannot give.
                self.finds_paging_space_full();
            }
            if self.account.inherited() > 0 {
                self.look_at_inherited(&mut looks);
            }
            if !room || excess == 0 {
                let rests = excess == 0 && !self.has_parked();
                let shares = self.account.inherited() > 0;
                let timeout_ns = match (rests, is_full) {
                    (true, _) if shares => looks.rest_ns,
                    (true, _) => rest_ns,
                    (false, true) => full::LOOK_AGAIN_NS,
                    (false, false) => LOOK_NS,
                };
                self.rest(seen, pressed, timeout_ns, rests);
            }
        }
    }

    /// The page-out thread has nothing to do, or can do nothing, for `timeout_ns`; unless somebody
    /// presses, or asks for a handler, or, when it is for `long`, takes of the memory kept free.
    fn rest(&self, seen: u32, pressed: u32, timeout_ns: u64, long: bool) {
        self.page_out_rests.store(long, Ordering::SeqCst);
        // What was taken before it was seen that this thread rests.
        let timeout_ns = match long && self.account.pages_wanted() > 0 {
            true => LOOK_NS,
            false => timeout_ns,
        };
        let pressure = &self.account.task().pressure;
        // A filter of the program's own may not know the call that waits for both.
        let filtered = !self.granting.load(Ordering::Relaxed);
        let either = || self.page_out.wait_or(seen, (pressure, pressed), timeout_ns);
        if filtered || either().is_err() {
            // Nor does an older Linux: pressure is looked for.
            self.page_out.wait(seen, Some(timeout_ns.min(LOOK_NS)));
        }
        self.page_out_rests.store(false, Ordering::Relaxed);
    }

    /// Charges `pages` if the budget allows. Page-out looks after what is left.
    pub(crate) fn charge(&self, pages: u64) -> bool {
        let charged = self.account.charge(pages);
        if self.page_out_rests.load(Ordering::SeqCst) && self.account.pages_wanted() > 0 {
            self.page_out.notify();
        }
        charged
    }
}
