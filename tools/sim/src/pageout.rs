//! The page-out threads: one empties clusters, one hands what lies aside to the pager.

use farpage_object::{PageIndex, PageOuts, PageRange, Victim};

use crate::coverage::Event;
use crate::linux::Errno;
use crate::shared::{ActorId, Core, first_run, say, without};
use crate::store::Slot;

/// Between two steps of the thread that empties clusters. All but `Idle` hold the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Evictor {
    Idle,
    /// Takes a granted run back.
    Granted {
        pages: PageRange,
    },
    /// It is registered again: looks what is there.
    Registered {
        pages: PageRange,
    },
    /// Has pages of a cluster still to drop (clean) and to move aside (spare: the pager has them;
    /// dirty).
    Cluster {
        first: PageIndex,
        clean: u16,
        spare: u16,
        dirty: u16,
    },
    /// These left just now, and the automaton does not know.
    Left {
        first: PageIndex,
        clean: u16,
        spare: u16,
        dirty: u16,
        left: PageRange,
        how: How,
    },
    /// A shared page: write-protected, to be copied.
    Shared {
        first: PageIndex,
        dirty: u16,
        page: PageIndex,
    },
}

/// How pages left.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    Dropped,
    Aside,
}

pub(crate) fn evict(core: &mut Core, proc: usize, actor: ActorId, at: Evictor) -> Evictor {
    match at {
        Evictor::Idle => {
            let wanted = core.budget.is_tight() || core.trouble(core.settings.eager);
            if !wanted || !core.lock_to_begin(proc, actor) {
                return at;
            }
            choose(core, proc, actor)
        }
        Evictor::Granted { pages } => {
            let (space, rng) = (&mut core.procs[proc].space, &mut core.rng);
            space.register(pages, true, rng);
            Evictor::Registered { pages }
        }
        Evictor::Registered { pages } => {
            let process = &mut core.procs[proc];
            let ptes = &process.space.ptes;
            let there = |page: PageIndex| ptes[page.0 as usize].present;
            let absent = process.pages.ungranted(pages, there);
            core.budget.give(absent);
            core.note(Event::Ungranted);
            core.unlock(proc, actor);
            Evictor::Idle
        }
        Evictor::Cluster {
            first,
            clean,
            spare,
            dirty,
        } => leave(core, proc, actor, first, (clean, spare, dirty)),
        Evictor::Left {
            first,
            clean,
            spare,
            dirty,
            left,
            how,
        } => {
            told(core, proc, left, how);
            Evictor::Cluster {
                first,
                clean,
                spare,
                dirty,
            }
        }
        Evictor::Shared { first, page, .. } if core.trouble(core.settings.partial) => {
            let process = &mut core.procs[proc];
            if !process.pages.is_locked(page) {
                process.space.unprotect_until_done(page.0, &mut core.rng);
            }
            core.note(Event::SharedStays);
            stop(core, proc, actor, first)
        }
        Evictor::Shared { first, dirty, page } => {
            let space = &mut core.procs[proc].space;
            space.copy_aside(page.0);
            space.drop_pages(PageRange::one(page));
            core.note(Event::SharedOut);
            let left = PageRange::one(page);
            Evictor::Left {
                first,
                clean: 0,
                spare: 0,
                dirty: without(first, dirty, left),
                left,
                how: How::Aside,
            }
        }
    }
}

fn choose(core: &mut Core, proc: usize, actor: ActorId) -> Evictor {
    let victim = core.procs[proc].pages.choose();
    say!(core, "p{proc} e{actor} chose {victim:?}");
    match victim {
        None => {
            core.unlock(proc, actor);
            Evictor::Idle
        }
        Some(Victim::Granted(pages)) => Evictor::Granted { pages },
        Some(Victim::Cluster {
            first,
            clean,
            dirty,
        }) => {
            let chance = core.rng.chance(500);
            Evictor::Cluster {
                first,
                clean: if chance { 0 } else { clean },
                spare: if chance { clean } else { 0 },
                dirty,
            }
        }
    }
}

fn stop(core: &mut Core, proc: usize, actor: ActorId, first: PageIndex) -> Evictor {
    core.procs[proc].pages.requeue(first);
    core.unlock(proc, actor);
    Evictor::Idle
}

fn leave(
    core: &mut Core,
    proc: usize,
    actor: ActorId,
    first: PageIndex,
    (clean, spare, dirty): (u16, u16, u16),
) -> Evictor {
    if clean != 0 {
        let left = first_run(first, clean);
        core.procs[proc].space.drop_pages(left);
        return Evictor::Left {
            first,
            clean: without(first, clean, left),
            spare,
            dirty,
            left,
            how: How::Dropped,
        };
    }
    if spare != 0 {
        return leave_spare(core, proc, first, (spare, dirty));
    }
    if dirty == 0 {
        return stop(core, proc, actor, first);
    }
    let run = first_run(first, dirty);
    let (space, rng) = (&mut core.procs[proc].space, &mut core.rng);
    match space.move_aside(run, rng) {
        Ok(done) => {
            let left = PageRange::new(run.start.0, run.start.0 + done);
            Evictor::Left {
                first,
                clean: 0,
                spare: 0,
                dirty: without(first, dirty, left),
                left,
                how: How::Aside,
            }
        }
        Err(Errno::Busy) if space.protect(PageRange::one(run.start), rng).is_ok() => {
            Evictor::Shared {
                first,
                dirty,
                page: run.start,
            }
        }
        Err(_) => stop(core, proc, actor, first),
    }
}

/// Moves clean pages aside; what cannot be moved is dropped.
fn leave_spare(
    core: &mut Core,
    proc: usize,
    first: PageIndex,
    (spare, dirty): (u16, u16),
) -> Evictor {
    let run = first_run(first, spare);
    let (space, rng) = (&mut core.procs[proc].space, &mut core.rng);
    let Ok(done) = space.move_aside(run, rng) else {
        space.event = false;
        let one = PageRange::one(run.start);
        return Evictor::Cluster {
            first,
            clean: spare & !without(first, spare, one),
            spare: without(first, spare, one),
            dirty,
        };
    };
    core.note(Event::Spared);
    let left = PageRange::new(run.start.0, run.start.0 + done);
    Evictor::Left {
        first,
        clean: 0,
        spare: without(first, spare, left),
        dirty,
        left,
        how: How::Aside,
    }
}

fn told(core: &mut Core, proc: usize, left: PageRange, how: How) {
    for page in left.iter() {
        match how {
            How::Dropped => {
                core.procs[proc].pages.dropped(page);
                core.note(Event::Dropped);
                core.budget.give(1);
            }
            How::Aside => core.procs[proc].pages.moved_aside(page),
        }
    }
}

/// Between two steps of the thread that hands pages to the pager.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Writer {
    Idle,
    /// The pager works on the first page of `left`; nobody holds the lock.
    Writing {
        first: PageIndex,
        left: u16,
        delay: u64,
        /// It was found to be zero, and then turned out to be mapped.
        zero_refused: bool,
    },
    /// The pager is done with the first page of `left`; wants the lock.
    Written {
        first: PageIndex,
        left: u16,
        outcome: Outcome,
    },
}

/// What became of a page on its way out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    Zero,
    Taken(Slot),
    Refused,
}

pub(crate) fn write(core: &mut Core, proc: usize, actor: ActorId, at: Writer) -> Writer {
    match at {
        Writer::Idle => {
            let wanted = core.budget.is_tight() || core.trouble(core.settings.eager);
            if !wanted || !core.lock_to_begin(proc, actor) {
                return at;
            }
            let outs = core.procs[proc].pages.page_out_begins();
            if let Some(outs) = outs {
                drop_spare(core, proc, outs);
            }
            core.unlock(proc, actor);
            say!(core, "p{proc} w{actor} begins {outs:?}");
            outs.map_or(Writer::Idle, |outs| {
                begin(core, proc, outs.first, outs.pages)
            })
        }
        Writer::Writing {
            first,
            left,
            delay: 0,
            zero_refused,
        } => {
            let page = first.0 + u64::from(left.trailing_zeros());
            let outcome = hand_over(core, proc, page, zero_refused);
            Writer::Written {
                first,
                left,
                outcome,
            }
        }
        Writer::Writing {
            first,
            left,
            delay,
            zero_refused,
        } => Writer::Writing {
            first,
            left,
            delay: delay - 1,
            zero_refused,
        },
        Writer::Written {
            first,
            left,
            outcome,
        } => {
            if !core.lock(proc, actor) {
                return at;
            }
            let page = PageIndex(first.0 + u64::from(left.trailing_zeros()));
            say!(core, "p{proc} w{actor} page {}: {outcome:?}", page.0);
            let zero_refused = !conclude(core, proc, page, outcome);
            let rest = left & (left - 1);
            core.procs[proc].in_flight -= u64::from(rest == 0 && !zero_refused);
            core.unlock(proc, actor);
            if !zero_refused {
                return next(core, first, rest);
            }
            Writer::Writing {
                first,
                left,
                delay: 0,
                zero_refused,
            }
        }
    }
}

/// Drops what lies aside of pages that the pager has.
fn drop_spare(core: &mut Core, proc: usize, outs: PageOuts) {
    for bit in (0..16).filter(|bit| outs.spare >> bit & 1 == 1) {
        core.procs[proc].space.drop_shadow(outs.first.0 + bit);
        core.budget.give(1);
        core.note(Event::SpareDropped);
    }
}

/// The pager takes a page or does not; temporary memory that is zero needs no pager.
fn hand_over(core: &mut Core, proc: usize, page: u64, zero_refused: bool) -> Outcome {
    let value = core.procs[proc].space.shadow(page);
    if value == 0 && !zero_refused && !core.is_own(page) {
        return Outcome::Zero;
    }
    let slot = core.store.write(value, &mut core.rng);
    slot.map_or(Outcome::Refused, Outcome::Taken)
}

/// These pages of a cluster are on their way to the pager.
pub(crate) fn begin(core: &mut Core, proc: usize, first: PageIndex, pages: u16) -> Writer {
    core.procs[proc].in_flight += u64::from(pages != 0);
    next(core, first, pages)
}

fn next(core: &mut Core, first: PageIndex, left: u16) -> Writer {
    if left == 0 {
        return Writer::Idle;
    }
    let delay = core.store.delay(&mut core.rng);
    Writer::Writing {
        first,
        left,
        delay,
        zero_refused: false,
    }
}

/// Tells the automaton what became of a page. False when it must go to the pager after all.
fn conclude(core: &mut Core, proc: usize, page: PageIndex, outcome: Outcome) -> bool {
    let process = &mut core.procs[proc];
    let one = PageRange::one(page);
    match outcome {
        Outcome::Zero => {
            if !process.pages.paged_out_zero(page) {
                core.note(Event::ZeroRefused);
                return false;
            }
            process.space.drop_shadow(page.0);
            core.note(Event::ZeroOut);
            core.budget.give(1);
        }
        Outcome::Taken(slot) => {
            let (mapped, awaited) = process.pages.paged_out(page);
            process.slots[page.0 as usize] = Some(slot);
            process.space.drop_shadow(page.0);
            if awaited {
                process.space.wake(one, &mut core.rng);
                core.note(Event::PagedOutAwaited);
            }
            if mapped {
                core.note(Event::PagedOutMapped);
            } else {
                core.budget.give(1);
                core.note(Event::PagedOut);
            }
        }
        Outcome::Refused => {
            if process.pages.page_out_failed(page) {
                process.space.drop_shadow(page.0);
                if process.pages.is_locked(page) {
                    process.space.wake(one, &mut core.rng);
                } else {
                    process.space.unprotect_until_done(page.0, &mut core.rng);
                }
                core.note(Event::RefusedMapped);
            } else {
                core.note(Event::Refused);
            }
        }
    }
    true
}
