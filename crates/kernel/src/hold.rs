//! Pages that must not leave: locked by the program, or in use by a system call that Linux could
//! not fault them in for.

use alloc::vec::Vec;

use core::sync::atomic::Ordering;

use farpage_abi::PageRange;
use farpage_sys::{Errno, mem};

use crate::kernel::{Kernel, State};
use crate::regions::{Region, address_of, pages_of};

/// Holds that can exist at a time; the oldest of a thread that never came back gives way.
const HOLDS_MAX: usize = 512;

/// Who holds pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// `mlock`, until `munlock`.
    Lock,
    /// Linux was told of it (a signal stack, a thread's rseq area) and uses it when it likes.
    Linux,
    /// The system call that this thread is making, until it makes the next.
    Call(u32),
}

/// All holds.
#[derive(Default)]
pub(crate) struct Holds {
    list: Vec<(Holder, PageRange)>,
}

impl State {
    pub(crate) fn hold(&mut self, holder: Holder, pages: PageRange) {
        if !matches!(holder, Holder::Call(_)) {
            // These do not nest, and must not pile up.
            self.holds.cut(|other| other == holder, pages);
        }
        if self.holds.list.len() >= HOLDS_MAX {
            let stale = self
                .holds
                .list
                .iter()
                .position(|(h, _)| matches!(h, Holder::Call(_)));
            if let Some((holder, pages)) = stale.map(|at| self.holds.list[at]) {
                self.release(|other| other == holder, pages);
            }
        }
        self.pages.wire(pages, true);
        self.holds.list.push((holder, pages));
    }

    /// Ends the holds of `whose` as far as they lie in `within`.
    pub(crate) fn release(&mut self, whose: impl Fn(Holder) -> bool, within: PageRange) {
        let ended = self.holds.cut(whose, within);
        for part in ended {
            self.pages.wire(part, false);
            // A page that another holds too stays.
            self.wire_held(part);
        }
    }

    /// The automaton has forgotten who holds what in `within`: tell it again.
    pub(crate) fn wire_held(&mut self, within: PageRange) {
        let held = self.holds.list.iter().map(|(_, pages)| pages);
        for pages in held.chain(self.pinned.runs()) {
            self.pages.wire(pages.intersect(within), true);
        }
    }

    /// What `mlock` holds in `within`.
    pub(crate) fn locked(&self, within: PageRange) -> Vec<PageRange> {
        let locks = self.holds.list.iter();
        locks
            .filter(|(holder, _)| *holder == Holder::Lock)
            .map(|(_, pages)| pages.intersect(within))
            .filter(|pages| !pages.is_empty())
            .collect()
    }
}

impl Holds {
    /// Takes the parts that lie in `within` out of the holds of `whose`, and returns them.
    fn cut(&mut self, whose: impl Fn(Holder) -> bool, within: PageRange) -> Vec<PageRange> {
        let mut ended = Vec::new();
        let mut rest = Vec::new();
        for (holder, pages) in core::mem::take(&mut self.list) {
            let part = pages.intersect(within);
            if !whose(holder) || part.is_empty() {
                rest.push((holder, pages));
                continue;
            }
            ended.push(part);
            for outside in [
                PageRange::new(pages.start.0, part.start.0),
                PageRange::new(part.end.0, pages.end.0),
            ] {
                if !outside.is_empty() {
                    rest.push((holder, outside));
                }
            }
        }
        self.list = rest;
        ended
    }
}

/// Whether the program may read a region, or write it.
fn allows(part: &Region, write: bool) -> bool {
    part.prot & mem::PROT_READ != 0 && (!write || part.prot & mem::PROT_WRITE != 0)
}

impl Kernel {
    /// Brings in what is managed of `start .. end` and keeps it, for `holder`; `write` when it will
    /// be written. Returns false when a part of it is managed and may not be accessed so. What is managed
    /// only later is brought in then.
    ///
    /// # Safety
    /// The calling thread must be able to fault: it holds no lock of the kernel.
    pub unsafe fn hold(&self, holder: Holder, start: usize, end: usize, write: bool) -> bool {
        let (parts, is_active) = self.hold_parts(holder, start, end);
        parts.iter().all(|part| {
            // SAFETY: forwarded.
            allows(part, write) && (!is_active || unsafe { self.touch_for(part, write) })
        })
    }

    /// As [`Kernel::hold`], for a driver that is going to pin the range for a device: it is brought in
    /// writable where it may be written.
    ///
    /// # Safety
    /// As for [`Kernel::hold`].
    ///
    /// # Errors
    /// `ENOMEM`, with a message, when memory is managed and it would take more than half of the budget.
    pub unsafe fn hold_to_pin(
        &self,
        holder: Holder,
        start: usize,
        end: usize,
    ) -> Result<(), Errno> {
        let (parts, is_active) = self.hold_parts(holder, start, end);
        let managed: usize = parts.iter().map(|part| part.end - part.start).sum();
        let budget = self.account.control().budget_bytes.load(Ordering::Relaxed);
        if !is_active {
            return Ok(());
        }
        if managed as u64 > budget / 2 {
            self.release(holder);
            let (wanted, budget) = (managed.div_ceil(1 << 20), budget >> 20);
            self.say(format_args!(
                "cannot pin {wanted} MiB of memory for a device: that is more than half of the memory \
                 that the program may use ({budget} MiB); give it at least {} MiB (--ram)",
                wanted * 2
            ));
            return Err(Errno::ENOMEM);
        }
        for part in &parts {
            // SAFETY: forwarded.
            unsafe { self.touch_for(part, part.prot & mem::PROT_WRITE != 0) };
        }
        Ok(())
    }

    /// Holds what is managed of `start .. end`, or will be. Returns it, and whether it is.
    fn hold_parts(&self, holder: Holder, start: usize, end: usize) -> (Vec<Region>, bool) {
        let mut state = self.state.lock();
        let parts: Vec<Region> = state.regions.within(start, end).collect();
        for part in &parts {
            state.hold(
                holder,
                pages_of(part.start & !4095, part.end.next_multiple_of(4096)),
            );
        }
        (parts, self.is_active())
    }

    /// Memory is about to be managed: makes present what calls that are on their way hold, and what Linux
    /// was told of, for Linux will find nothing there by itself.
    pub(crate) fn bring_in_held(&self, state: &State) {
        for (_, pages) in state.holds.list.iter().filter(|(h, _)| *h != Holder::Lock) {
            let (start, end) = (address_of(pages.start.0), address_of(pages.end.0));
            for part in state.regions.within(start, end) {
                let advice = match allows(&part, true) {
                    true => mem::MADV_POPULATE_WRITE,
                    false => mem::MADV_POPULATE_READ,
                };
                // SAFETY: no contents change. What cannot be accessed cannot be by a call either.
                let _ = unsafe { mem::advise(part.start, part.end - part.start, advice) };
            }
        }
    }

    /// Touches every page of a part, by a write when it is to be written. False when it may not be.
    ///
    /// # Safety
    /// As for [`Kernel::hold`].
    pub(crate) unsafe fn touch_for(&self, part: &Region, write: bool) -> bool {
        if !allows(part, write) {
            return false;
        }
        for page in (part.start & !4095..part.end).step_by(4096) {
            // SAFETY: forwarded.
            unsafe {
                if write {
                    mem::touch_write(page);
                } else {
                    core::ptr::read_volatile(page as *const u8);
                }
            }
        }
        true
    }

    /// Ends what `holder` holds.
    pub fn release(&self, holder: Holder) {
        let mut state = self.state.lock();
        if state.holds.list.iter().any(|(other, _)| *other == holder) {
            state.release(|other| other == holder, PageRange::new(0, u64::MAX));
        }
    }

    /// Bytes that one call should hold at most.
    pub fn hold_limit(&self) -> usize {
        let budget = self.account.control().budget_bytes.load(Ordering::Relaxed);
        (budget as usize / 8).clamp(1 << 20, 64 << 20)
    }
}
