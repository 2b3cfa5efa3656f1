//! Pages that must not leave: locked by the program, or in use by a system call that Linux could
//! not fault them in for.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use core::sync::atomic::Ordering;

use farpage_object::PageRange;
use farpage_sys::{Errno, mem, thread};

use crate::kernel::{Kernel, State};
use crate::regions::{Region, address_of, pages_of};

const ALL: PageRange = PageRange::new(0, u64::MAX);
/// Threads that hold something, from which on those are looked for that have ended without giving it back.
const THREADS_MANY: usize = 512;

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
    locked: Vec<PageRange>,
    told: Vec<PageRange>,
    /// By thread.
    calls: BTreeMap<u32, Vec<PageRange>>,
    /// Threads that held something when it was last looked which of them there are.
    looked_at: usize,
}

impl State {
    pub(crate) fn hold(&mut self, holder: Holder, pages: PageRange) {
        let list = self.holds.of(holder);
        // What is held already is not held twice.
        cut(list, pages);
        list.push(pages);
        self.pages.wire(pages, true);
    }

    /// Ends what `holder` holds of `within`.
    pub(crate) fn release(&mut self, holder: Holder, within: PageRange) {
        let ended = cut(self.holds.of(holder), within);
        self.end(ended);
    }

    /// Ends what anybody holds of `within`.
    pub(crate) fn release_all(&mut self, within: PageRange) {
        let ended = self.holds.lists().flat_map(|list| cut(list, within));
        let ended: Vec<PageRange> = ended.collect();
        self.end(ended);
    }

    fn end(&mut self, ended: Vec<PageRange>) {
        for part in ended {
            self.pages.wire(part, false);
            // A page that another holds too stays.
            self.wire_held(part);
        }
    }

    /// Ends what a child of fork does not inherit: locks, and the calls of other threads.
    pub(crate) fn release_uninherited(&mut self) {
        self.release(Holder::Lock, ALL);
        let calls = core::mem::take(&mut self.holds.calls);
        self.end(calls.into_values().flatten().collect());
    }

    /// Ends what threads hold that have ended without giving it back. Looks for them when there are many, and then
    /// when there are twice as many.
    fn release_gone(&mut self) {
        let holds = &mut self.holds;
        if holds.calls.len() < THREADS_MANY.max(2 * holds.looked_at) {
            return;
        }
        holds.calls.retain(|_, pages| !pages.is_empty());
        let all = holds.calls.keys().copied();
        let gone: Vec<u32> = all.filter(|id| thread::has_ended(*id)).collect();
        holds.looked_at = holds.calls.len() - gone.len();
        for thread in gone {
            self.release(Holder::Call(thread), ALL);
            self.holds.calls.remove(&thread);
        }
    }

    /// The automaton has forgotten who holds what in `within`: tell it again.
    pub(crate) fn wire_held(&mut self, within: PageRange) {
        for pages in self.holds.all().chain(self.pinned.runs()) {
            self.pages.wire(pages.intersect(within), true);
        }
    }

    /// What `mlock` holds in `within`.
    pub(crate) fn locked(&self, within: PageRange) -> Vec<PageRange> {
        let locked = self.holds.locked.iter();
        locked
            .map(|pages| pages.intersect(within))
            .filter(|pages| !pages.is_empty())
            .collect()
    }
}

impl Holds {
    fn of(&mut self, holder: Holder) -> &mut Vec<PageRange> {
        match holder {
            Holder::Lock => &mut self.locked,
            Holder::Linux => &mut self.told,
            Holder::Call(thread) => self.calls.entry(thread).or_default(),
        }
    }

    fn lists(&mut self) -> impl Iterator<Item = &mut Vec<PageRange>> {
        let own = [&mut self.locked, &mut self.told];
        own.into_iter().chain(self.calls.values_mut())
    }

    fn all(&self) -> impl Iterator<Item = &PageRange> {
        self.locked.iter().chain(self.unlocked())
    }

    /// What Linux may use at any time.
    fn unlocked(&self) -> impl Iterator<Item = &PageRange> {
        self.told.iter().chain(self.calls.values().flatten())
    }
}

/// Takes the parts that lie in `within` out of `list`, and returns them.
fn cut(list: &mut Vec<PageRange>, within: PageRange) -> Vec<PageRange> {
    let mut ended = Vec::new();
    let mut outside = Vec::new();
    list.retain(|pages| {
        let part = pages.intersect(within);
        if part.is_empty() {
            return true;
        }
        ended.push(part);
        outside.push(PageRange::new(pages.start.0, part.start.0));
        outside.push(PageRange::new(part.end.0, pages.end.0));
        false
    });
    list.extend(outside.into_iter().filter(|pages| !pages.is_empty()));
    ended
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
        // A stack is wanted from above: what lies below it may be its guard.
        parts.iter().fold(true, |all, part| {
            // SAFETY: forwarded.
            all & (allows(part, write) && (!is_active || unsafe { self.touch_for(part, write) }))
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
        // A program that has forbidden its threads calls may have forbidden them to ask.
        if self.granting.load(Ordering::Relaxed) {
            state.release_gone();
        }
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
        for pages in state.holds.unlocked() {
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
        self.state.lock().release(holder, ALL);
    }

    /// Bytes that one call should hold at most.
    pub fn hold_limit(&self) -> usize {
        let budget = self.account.control().budget_bytes.load(Ordering::Relaxed);
        (budget as usize / 8).clamp(1 << 20, 64 << 20)
    }
}
