//! The threads that answer faults and the thread that pages out.
//!
//! One handler leads: it alone waits for faults. Before it does something slow (a disk, waiting for
//! memory) it lets another lead.

use core::sync::atomic::Ordering;

use farpage_abi::PAGE_BYTES;
use farpage_sys::futex::Guard;
use farpage_sys::{Errno, mem, time};

use crate::follow::Follower;
use crate::kernel::Kernel;
use crate::layout::WINDOW;
use crate::regions::Source;

/// Handlers that exist at most.
const HANDLERS_MAX: u32 = 8;
/// Pages that one page-in brings at most.
pub(crate) const BUFFER_PAGES: usize = 512;

/// Where a handler has pages put before they go into the program. Mapped once per handler.
pub struct Buffer {
    address: usize,
}

impl Buffer {
    /// Maps a buffer.
    ///
    /// # Errors
    /// As `mmap(2)`.
    pub fn new() -> Result<Self, Errno> {
        mem::map_anonymous(BUFFER_PAGES * PAGE_BYTES).map(|address| Self { address })
    }

    pub(crate) fn bytes(&mut self, pages: usize) -> &mut [u8] {
        assert!(pages <= BUFFER_PAGES, "a page-in larger than the buffer");
        // SAFETY: the mapping has BUFFER_PAGES pages, lives for ever, and is this buffer's alone.
        unsafe { core::slice::from_raw_parts_mut(self.address as *mut u8, pages * PAGE_BYTES) }
    }
}

/// The right to wait for faults; given up before something slow.
pub(crate) struct Lead<'a> {
    kernel: &'a Kernel,
    guard: Option<Guard<'a, Follower>>,
}

impl<'a> Lead<'a> {
    /// Of a handler that does not wait for faults.
    #[cfg(feature = "std")]
    pub(crate) fn none(kernel: &'a Kernel) -> Self {
        Self {
            kernel,
            guard: None,
        }
    }

    /// Gives up before a page of `source` is waited for, unless only one thread faults lately and
    /// the page is on a local disk at worst: changing the lead would cost more than it saves.
    pub(crate) fn give_up_for(&mut self, source: &Source) {
        let alone = self.guard.as_ref().is_some_and(|follower| follower.alone());
        if !(source.temporary && alone) {
            self.give_up();
        }
    }

    /// Lets another handler lead while this one is busy. Calls `spawn` when there is none.
    pub(crate) fn give_up(&mut self) {
        if self.guard.take().is_some()
            && self.kernel.waiting_to_lead.load(Ordering::Acquire) == 0
            && self.kernel.handlers.load(Ordering::Acquire) < HANDLERS_MAX
        {
            // A new handler is made by the page-out thread: this one is in a hurry.
            self.kernel.page_out.notify();
        }
    }
}

impl Kernel {
    /// True when all handlers are busy and another would help.
    pub fn wants_handler(&self) -> bool {
        let handlers = self.handlers.load(Ordering::Acquire);
        handlers == 0
            || (handlers < HANDLERS_MAX && self.waiting_to_lead.load(Ordering::Acquire) == 0)
    }

    /// Counts a handler that is about to be started, so that it is not started twice.
    pub fn handler_starts(&self) {
        self.handlers.fetch_add(1, Ordering::AcqRel);
    }

    /// Answers faults for ever. Runs on a thread of its own, which the embedder starts after
    /// [`Kernel::handler_starts`].
    pub fn handle_faults(&'static self, mut buffer: Buffer) -> ! {
        let mut own_cpu = None;
        loop {
            self.waiting_to_lead.fetch_add(1, Ordering::AcqRel);
            let guard = self.lead.lock();
            self.waiting_to_lead.fetch_sub(1, Ordering::AcqRel);
            let mut lead = Lead {
                kernel: self,
                guard: Some(guard),
            };
            while lead.guard.is_some() {
                self.next_fault(&mut lead, &mut buffer, &mut own_cpu);
            }
        }
    }

    fn next_fault(
        &'static self,
        lead: &mut Lead<'_>,
        buffer: &mut Buffer,
        own_cpu: &mut Option<u32>,
    ) {
        let uffd = self.uffd();
        let faults = match uffd.faults::<1>() {
            Ok(faults) => faults,
            Err(errno) => self.kill(
                format_args!("userfaultfd cannot be read ({errno})"),
                farpage_pagers::PagerError::Dead,
            ),
        };
        for fault in faults.as_slice() {
            let together = lead
                .guard
                .as_ref()
                .is_some_and(|follower| !follower.alone());
            let reads = lead.guard.as_ref();
            let reads = reads.is_some_and(|follower| follower.wants_to_read(fault.thread));
            let cpu = if reads {
                self.cpu_by_rseq(fault.thread)
            } else {
                None
            };
            self.serve(*fault, lead, buffer);
            if let Some(follower) = lead.guard.as_mut() {
                follower.note(fault.thread, cpu, own_cpu);
                if together && self.waiting_to_lead.load(Ordering::Relaxed) > 0 {
                    lead.guard = None;
                }
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
    fn cpu_by_rseq(&self, thread: u32) -> Option<u32> {
        let distance = self.rseq_from_list.load(Ordering::Relaxed);
        // Never in managed memory, where reading could fault.
        let area = WINDOW[1].end..usize::MAX;
        (distance != 0)
            .then(|| farpage_sys::thread::cpu_by_rseq(thread, distance, area))
            .flatten()
    }

    /// Keeps memory free ahead of faults, for ever. Runs on a thread of its own. `tick` is called
    /// often (at least ten times a second): the embedder starts handlers there when
    /// [`Kernel::wants_handler`], and lets the default pager tidy up.
    pub fn page_out_for_ever(&self, mut tick: impl FnMut()) -> ! {
        let mut pressed = self.account.task().pressure.load(Ordering::Acquire);
        let mut looked_at = 0;
        loop {
            let seen = self.page_out.seen();
            tick();
            self.account.count_tasks();
            let pressure = self.account.task().pressure.load(Ordering::Acquire);
            let asked = if pressure == pressed { 0 } else { 1024 };
            pressed = pressure;
            let reserve = self.account.reserve() / PAGE_BYTES as u64;
            let excess = self.account.excess(reserve) / PAGE_BYTES as u64;
            let room = match excess.max(asked) {
                0 => true,
                wanted => self.evict(wanted.max(64), false) > 0,
            };
            if self.account.inherited() > 0 {
                self.look_at_inherited(&mut looked_at);
            }
            if !room || excess == 0 {
                self.page_out.wait(seen, Some(20_000_000));
            }
        }
    }

    /// Charges inherited pages that are not shared any more. Costs at most a twentieth of the time.
    fn look_at_inherited(&self, not_before_ns: &mut u64) {
        let started = time::now_ns();
        if started < *not_before_ns {
            return;
        }
        let state = self.state.lock();
        let mut exclusive = 0;
        for region in state.regions.iter() {
            let count = farpage_sys::pagemap::count_exclusive;
            exclusive += count(self.pagemap(), region.start, region.end).unwrap_or(0);
        }
        let shared = self.account.pages_held().saturating_sub(exclusive);
        drop(state);
        self.account.charge_inherited(shared);
        let took = time::now_ns() - started;
        *not_before_ns = started + (took * 20).max(20_000_000);
    }
}
