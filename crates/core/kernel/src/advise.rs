//! `madvise` of an unmodified program.

use alloc::vec::Vec;

use farpage_object::State as PageState;
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, mem};

use crate::kernel::{Kernel, State};
use crate::regions::{Region, pages_of};
use crate::space::end_of;

/// Brings all pages in. Linux, which says what else is wrong, is asked about no more of them at a
/// time than stay for that long.
fn populate(
    kernel: &Kernel,
    parts: &[Region],
    (at, end): (usize, usize),
    advice: u32,
) -> Result<(), Errno> {
    let step = kernel.hold_limit();
    let mut from = at;
    while from < end {
        let to = end.min(from.saturating_add(step));
        for part in parts
            .iter()
            .filter(|part| part.start < to && from < part.end)
        {
            let part = Region {
                start: part.start.max(from),
                end: part.end.min(to),
                ..part.clone()
            };
            // SAFETY: a trapped call's thread holds no lock.
            unsafe { kernel.touch_for(&part, advice == mem::MADV_POPULATE_WRITE) };
        }
        // SAFETY: the program's own call, of a part.
        match unsafe { mem::advise(from, to - from, advice) } {
            // In the tier that Linux cannot bring pages in for, some have left again already.
            Err(Errno::EFAULT) => populated(parts, (from, to), advice)?,
            done => done?,
        }
        from = to;
    }
    Ok(())
}

/// What Linux would say of populating `from .. to` if it could bring in the pages of `parts`, which
/// are in order, itself.
fn populated(parts: &[Region], (from, to): (usize, usize), advice: u32) -> Result<(), Errno> {
    let wanted = match advice {
        mem::MADV_POPULATE_WRITE => mem::PROT_WRITE,
        _ => mem::PROT_READ,
    };
    // SAFETY: the program's own call, of a part.
    let plain = |start, end| unsafe { mem::advise(start, end - start, advice) };
    let mut at = from;
    for part in parts
        .iter()
        .filter(|part| part.start < to && from < part.end)
    {
        if at < part.start {
            plain(at, part.start)?;
        }
        if part.prot & wanted == 0 {
            return Err(Errno::EINVAL);
        }
        at = part.end;
    }
    if at < to { plain(at, to) } else { Ok(()) }
}

impl Kernel {
    /// `madvise(2)`.
    ///
    /// # Safety
    /// As the call that the program made.
    ///
    /// # Errors
    /// As `madvise(2)`; `EINVAL` for `MADV_GUARD_INSTALL` of managed memory, as on Linux before
    /// 6.13.
    pub unsafe fn madvise(&self, at: usize, bytes: usize, advice: u32) -> Result<(), Errno> {
        // SAFETY: the program's own call.
        let plain = || unsafe { mem::advise(at, bytes, advice) };
        if bytes == 0 {
            return plain();
        }
        let end = end_of(at, bytes)?;
        let parts: Vec<Region> = self.state.lock().regions.within(at, end).collect();
        if parts.is_empty() {
            return plain();
        }
        match advice {
            mem::MADV_DONTFORK | g::MADV_DOFORK | g::MADV_WIPEONFORK | g::MADV_KEEPONFORK => {
                self.set_on_fork(at, end, advice)
            }
            g::MADV_GUARD_INSTALL => Err(Errno::EINVAL),
            // What Linux merges loses the protection by which writing to clean pages is noticed.
            g::MADV_MERGEABLE => Ok(()),
            _ if !self.is_active() => plain(),
            mem::MADV_DONTNEED | mem::MADV_FREE => self.drop_contents(at, end, mem::MADV_DONTNEED),
            g::MADV_DONTNEED_LOCKED => self.drop_contents(at, end, advice),
            // Paging in and out is our business.
            mem::MADV_WILLNEED | g::MADV_COLD | g::MADV_PAGEOUT | mem::MADV_COLLAPSE => Ok(()),
            mem::MADV_POPULATE_READ | mem::MADV_POPULATE_WRITE => {
                populate(self, &parts, (at, end), advice)
            }
            _ => plain(),
        }
    }

    /// What the child of a fork gets of a range: Linux does it to the program's memory, and
    /// [`Kernel::after_fork_in_child`] to what lies elsewhere.
    fn set_on_fork(&self, at: usize, end: usize, advice: u32) -> Result<(), Errno> {
        let mut state = self.state.lock();
        // SAFETY: changes nothing in this process.
        unsafe { mem::advise(at, end - at, advice) }?;
        state.regions.change(at, end, |region| {
            let on_fork = &mut region.on_fork;
            match advice {
                g::MADV_WIPEONFORK => on_fork.wiped = true,
                g::MADV_KEEPONFORK => on_fork.wiped = false,
                mem::MADV_DONTFORK => on_fork.left_out = true,
                _ => on_fork.left_out = false,
            }
        });
        Ok(())
    }

    /// The new place of a region, or its growth, keeps what was advised about its children.
    pub(crate) fn inherit_on_fork(&self, from: &Region, at: usize, end: usize) {
        if from.on_fork.wiped {
            let _ = self.set_on_fork(at, end, g::MADV_WIPEONFORK);
        }
        if from.on_fork.left_out {
            let _ = self.set_on_fork(at, end, mem::MADV_DONTFORK);
        }
    }

    fn drop_contents(&self, at: usize, end: usize, advice: u32) -> Result<(), Errno> {
        let pages = pages_of(at, end);
        let mut state = self.lock_settled(pages);
        self.take_granted(&mut state, at, end)?;
        let parts: Vec<Region> = state.regions.within(at, end).collect();
        // SAFETY: the program gave these contents up.
        let dropped = unsafe { mem::advise(at, end - at, advice) };
        for part in &parts {
            match dropped {
                // ENOMEM: there are holes, and all else was dropped.
                Ok(()) | Err(Errno::ENOMEM) => self.discard(&mut state, part),
                Err(_) => self.discard_dropped(&mut state, part)?,
            }
        }
        state.wire_held(pages);
        drop(state);
        self.account.announce();
        dropped
    }

    /// Linux stopped somewhere in the middle (at locked memory, for one): what was in memory and is
    /// not any more was dropped.
    fn discard_dropped(&self, state: &mut State, part: &Region) -> Result<(), Errno> {
        let present = self.present(part.start, part.end)?;
        let gone = |page: &farpage_object::PageIndex| {
            matches!(
                state.pages.state(*page),
                PageState::Resident | PageState::Clean
            ) && !present.iter().any(|run| run.contains(*page))
        };
        let gone: Vec<_> = state.pages.existing(part.pages()).filter(gone).collect();
        for page in gone {
            let start = crate::regions::address_of(page.0);
            let end = start + farpage_object::PAGE_BYTES;
            self.discard(
                state,
                &Region {
                    start,
                    end,
                    ..part.clone()
                },
            );
        }
        Ok(())
    }
}
