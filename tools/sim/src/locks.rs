//! What the pager of an object asks of the kernel by itself: lock, unlock, clean, flush; and what
//! it is asked: whether a thread may write to a locked page.

use farpage_object::{PageIndex, PageRange, State};

use crate::calls::{is_mapped, is_wired, part_of};
use crate::coverage::Event;
use crate::handler::{restore, restore_protected};
use crate::pageout::{self, Writer};
use crate::shared::{ActorId, Core, say};

/// A question to the pager on its way. Nobody holds the lock while the pager thinks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Question {
    Asked { page: PageIndex, delay: u64 },
    Answered { page: PageIndex, allowed: bool },
    Over,
}

pub(crate) fn ask(core: &mut Core, proc: usize, actor: ActorId, at: Question) -> Question {
    match at {
        Question::Asked { page, delay: 0 } => {
            let allowed = !core.trouble(core.settings.refuses);
            let program = &mut core.procs[proc].program;
            program.locked[page.0 as usize] &= !allowed;
            program.refused[page.0 as usize] = !allowed;
            say!(core, "p{proc} page {} may be written: {allowed}", page.0);
            core.note(if allowed {
                Event::Allowed
            } else {
                Event::Forbidden
            });
            Question::Answered { page, allowed }
        }
        Question::Asked { page, delay } => Question::Asked {
            page,
            delay: delay - 1,
        },
        Question::Answered { page, allowed } => {
            if !core.lock(proc, actor) {
                return at;
            }
            let (process, rng) = (&mut core.procs[proc], &mut core.rng);
            let lift = process.pages.unlock_ends(page, allowed);
            if lift {
                process.space.unprotect_until_done(page.0, rng);
            } else if allowed {
                process.space.wake(PageRange::one(page), rng);
            }
            process.in_flight -= 1;
            core.unlock(proc, actor);
            Question::Over
        }
        Question::Over => Question::Over,
    }
}

/// What the pager's own thread asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Lock,
    Unlock,
    Clean,
    Flush,
}

/// A thread of the pager.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Locker {
    Idle,
    /// Waits until nothing of it is busy.
    Waiting {
        pages: PageRange,
        wish: Wish,
    },
    /// The automaton knows; these are still to be protected, or not. Has the lock.
    Protecting {
        rest: PageRange,
        pages: PageRange,
        locked: bool,
    },
    /// Brings back and copies what is dirty, a page a step. Has the lock.
    Copying {
        pages: PageRange,
        at: u64,
        dirty: u16,
        wish: Wish,
    },
    /// The pager takes the copies.
    Writing {
        pages: PageRange,
        writer: Writer,
        wish: Wish,
    },
    /// Drops what is clean when nothing is busy.
    Dropping {
        pages: PageRange,
    },
}

pub(crate) fn step(core: &mut Core, proc: usize, actor: ActorId, at: Locker) -> Locker {
    match at {
        Locker::Idle => begin(core, proc),
        Locker::Waiting { pages, wish } => settled(core, proc, actor, pages, wish),
        Locker::Protecting {
            rest,
            pages,
            locked,
        } => protect(core, proc, actor, rest, pages, locked),
        Locker::Copying {
            pages,
            at,
            dirty,
            wish,
        } => copy(core, proc, actor, pages, at, dirty, wish),
        Locker::Writing {
            pages,
            writer,
            wish,
        } => match pageout::write(core, proc, actor, writer) {
            Writer::Idle if wish == Wish::Flush => Locker::Dropping { pages },
            Writer::Idle => Locker::Idle,
            writer => Locker::Writing {
                pages,
                writer,
                wish,
            },
        },
        Locker::Dropping { pages } => drop_clean(core, proc, actor, pages),
    }
}

fn own_maps(core: &Core, proc: usize) -> Vec<PageRange> {
    let own = |map: &&PageRange| core.is_own(map.start.0);
    core.procs[proc].maps.iter().filter(own).copied().collect()
}

/// In the end every pager lifts its locks.
fn begin(core: &mut Core, proc: usize) -> Locker {
    let maps = own_maps(core, proc);
    if core.healing {
        let pages = &core.procs[proc].pages;
        let locked = |map: &PageRange| map.iter().any(|page| pages.is_locked(page));
        let wish = Wish::Unlock;
        return match maps.into_iter().find(locked) {
            Some(pages) => Locker::Waiting { pages, wish },
            None => Locker::Idle,
        };
    }
    if maps.is_empty() || !core.rng.chance(core.settings.locks) {
        return Locker::Idle;
    }
    let map = maps[core.rng.below(maps.len() as u64) as usize];
    let mut pages = part_of(core, map);
    let wish = core
        .rng
        .pick(&[Wish::Lock, Wish::Unlock, Wish::Clean, Wish::Flush]);
    if matches!(wish, Wish::Clean | Wish::Flush) {
        let cluster_end = (pages.start.0 / 16 + 1) * 16;
        pages = PageRange::new(pages.start.0, pages.end.0.min(cluster_end));
    }
    Locker::Waiting { pages, wish }
}

/// True when an actor that has the lock may begin something with `pages`.
fn is_settled(core: &Core, proc: usize, pages: PageRange) -> bool {
    !core.procs[proc].frozen && !core.procs[proc].pages.busy(pages)
}

fn settled(core: &mut Core, proc: usize, actor: ActorId, pages: PageRange, wish: Wish) -> Locker {
    if !core.lock(proc, actor) {
        return Locker::Waiting { pages, wish };
    }
    if !is_mapped(&core.procs[proc], pages) {
        core.unlock(proc, actor);
        return Locker::Idle;
    }
    if !is_settled(core, proc, pages) {
        core.unlock(proc, actor);
        return Locker::Waiting { pages, wish };
    }
    say!(core, "p{proc} k{actor} {wish:?} {pages:?}");
    match wish {
        Wish::Lock | Wish::Unlock => {
            let locked = wish == Wish::Lock;
            core.procs[proc].pages.lock_writes(pages, locked);
            if !locked {
                core.procs[proc].program.set_locked(pages, false);
            }
            core.note(if locked {
                Event::Locked
            } else {
                Event::Unlocked
            });
            Locker::Protecting {
                rest: pages,
                pages,
                locked,
            }
        }
        Wish::Clean | Wish::Flush => Locker::Copying {
            pages,
            at: pages.start.0,
            dirty: 0,
            wish,
        },
    }
}

/// One run a step; at its end the lock holds, or is lifted.
fn protect(
    core: &mut Core,
    proc: usize,
    actor: ActorId,
    rest: PageRange,
    pages: PageRange,
    locked: bool,
) -> Locker {
    let (process, rng) = (&mut core.procs[proc], &mut core.rng);
    let run = process.pages.runs(rest, State::Resident).next();
    if let Some(run) = run {
        let done = match locked {
            true => process.space.protect(run, rng),
            false => process.space.unprotect(run, rng),
        };
        if done.is_err() {
            process.space.event = false;
            return Locker::Protecting {
                rest,
                pages,
                locked,
            };
        }
        let rest = PageRange::new(run.end.0, rest.end.0);
        return Locker::Protecting {
            rest,
            pages,
            locked,
        };
    }
    process.space.wake(pages, rng);
    if locked {
        process.program.set_locked(pages, true);
    }
    core.unlock(proc, actor);
    Locker::Idle
}

fn copy(
    core: &mut Core,
    proc: usize,
    actor: ActorId,
    pages: PageRange,
    at: u64,
    dirty: u16,
    wish: Wish,
) -> Locker {
    let page = PageIndex(at);
    if at == pages.end.0 {
        let writer = pageout::begin(core, proc, PageIndex(pages.start.0 / 16 * 16), dirty);
        core.unlock(proc, actor);
        if dirty != 0 {
            core.note(Event::Cleaned);
        }
        return Locker::Writing {
            pages,
            writer,
            wish,
        };
    }
    let (mut at, mut dirty) = (at, dirty);
    match core.procs[proc].state(at) {
        State::Aside => {
            let back = match core.procs[proc].pages.is_locked(page) {
                true => restore_protected(core, proc, PageRange::one(page)),
                false => restore(core, proc, PageRange::one(page)),
            };
            match back {
                Ok(_) => core.procs[proc].pages.restored(PageRange::one(page)),
                Err(_) => core.procs[proc].space.event = false,
            }
        }
        State::Resident => {
            let (process, rng) = (&mut core.procs[proc], &mut core.rng);
            while process.space.protect(PageRange::one(page), rng).is_err() {
                process.space.event = false;
            }
            process.space.copy_aside(at);
            process.pages.clean_begins(page);
            dirty |= 1 << (at % 16);
            at += 1;
        }
        State::Absent
        | State::Granted
        | State::Clean
        | State::Spare
        | State::Out
        | State::Failed => at += 1,
        State::PagingIn | State::PagingOut | State::PagingOutMapped => {
            unreachable!("nothing was busy when the lock was taken")
        }
    }
    Locker::Copying {
        pages,
        at,
        dirty,
        wish,
    }
}

fn drop_clean(core: &mut Core, proc: usize, actor: ActorId, pages: PageRange) -> Locker {
    if !core.lock(proc, actor) {
        return Locker::Dropping { pages };
    }
    if !is_settled(core, proc, pages) {
        core.unlock(proc, actor);
        return Locker::Dropping { pages };
    }
    if is_mapped(&core.procs[proc], pages) && !is_wired(core, proc, pages) {
        let process = &mut core.procs[proc];
        let clean: Vec<PageRange> = process.pages.runs(pages, State::Clean).collect();
        for run in clean {
            process.space.drop_pages(run);
            run.iter().for_each(|page| process.pages.dropped(page));
            process.pages.requeue_all(run);
            core.budget.give(run.pages());
            core.coverage.note(Event::Flushed);
        }
        let spare: Vec<PageRange> = process.pages.runs(pages, State::Spare).collect();
        for run in spare {
            for page in run.iter() {
                process.space.drop_shadow(page.0);
                process.pages.dropped(page);
            }
            process.pages.requeue_all(run);
            core.budget.give(run.pages());
            core.coverage.note(Event::FlushedSpare);
        }
    }
    core.unlock(proc, actor);
    Locker::Idle
}
