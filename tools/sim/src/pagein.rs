//! A request to the pager on its way: nobody holds the lock while the pager works.

use farpage_object::{PageIndex, PageRange};

use crate::coverage::Event;
use crate::linux::Errno;
use crate::shared::{ActorId, Core, say};

/// Between two steps of a page-in.
#[derive(Debug)]
pub(crate) enum PageIn {
    /// The pager works.
    Reading { pages: PageRange, delay: u64 },
    /// The pager has answered for a prefix; wants the lock.
    Supplied { pages: PageRange, supply: Supply },
    /// Puts pages into the program; has the lock, or does without until all are there.
    Putting {
        pages: PageRange,
        supply: Supply,
        put: u64,
    },
    /// Done.
    Over,
}

/// What the pager said.
#[derive(Debug)]
pub(crate) struct Supply {
    values: Vec<u64>,
    /// It keeps its copies.
    clean: bool,
    /// They may not be written to.
    locked: bool,
    /// The page after the prefix cannot be had.
    failed: bool,
}

pub(crate) fn step(core: &mut Core, proc: usize, actor: ActorId, at: PageIn) -> PageIn {
    match at {
        PageIn::Reading { pages, delay: 0 } => {
            let supply = ask(core, proc, pages);
            PageIn::Supplied { pages, supply }
        }
        PageIn::Reading { pages, delay } => PageIn::Reading {
            pages,
            delay: delay - 1,
        },
        PageIn::Supplied { pages, supply } => {
            if core.settings.unlocked || core.lock(proc, actor) {
                PageIn::Putting {
                    pages,
                    supply,
                    put: 0,
                }
            } else {
                PageIn::Supplied { pages, supply }
            }
        }
        PageIn::Putting { pages, supply, put } => put_one(core, proc, actor, pages, supply, put),
        PageIn::Over => PageIn::Over,
    }
}

fn ask(core: &mut Core, proc: usize, pages: PageRange) -> Supply {
    let most = if core.rng.chance(200) {
        1 + core.rng.below(pages.pages())
    } else {
        pages.pages()
    };
    let mut supply = Supply {
        values: Vec::new(),
        clean: !core.rng.chance(core.settings.precious),
        locked: core.is_own(pages.start.0) && core.trouble(core.settings.locked),
        failed: false,
    };
    for page in pages.iter().take(most as usize) {
        let Some(slot) = core.procs[proc].slots[page.0 as usize] else {
            panic!("page {} is asked for and not with the pager", page.0);
        };
        match core.store.read(slot) {
            Some(value) => supply.values.push(value),
            None => {
                supply.failed = supply.values.is_empty();
                break;
            }
        }
    }
    supply
}

fn put_one(
    core: &mut Core,
    proc: usize,
    actor: ActorId,
    pages: PageRange,
    mut supply: Supply,
    put: u64,
) -> PageIn {
    let page = pages.start.0 + put;
    if put < supply.values.len() as u64 {
        let (process, rng) = (&mut core.procs[proc], &mut core.rng);
        let locked = supply.locked || process.pages.is_locked(pages.start);
        let value = supply.values[put as usize];
        match process.space.copy(page, value, supply.clean || locked, rng) {
            Ok(_) => {
                return PageIn::Putting {
                    pages,
                    supply,
                    put: put + 1,
                };
            }
            Err(Errno::Again) if core.settings.unlocked => {
                return PageIn::Putting { pages, supply, put };
            }
            Err(Errno::Again) => {
                told(core, proc, PageRange::new(pages.start.0, page), &supply);
                core.unlock(proc, actor);
                supply.values.drain(..put as usize);
                let pages = PageRange::new(page, pages.end.0);
                return PageIn::Supplied { pages, supply };
            }
            Err(errno) => panic!("page {page} paged in over another: {errno:?}"),
        }
    }
    if core.settings.unlocked && !core.lock(proc, actor) {
        return PageIn::Putting { pages, supply, put };
    }
    told(core, proc, PageRange::new(pages.start.0, page), &supply);
    end(core, proc, PageRange::new(page, pages.end.0), supply.failed);
    core.procs[proc].in_flight -= 1;
    core.unlock(proc, actor);
    PageIn::Over
}

fn told(core: &mut Core, proc: usize, pages: PageRange, supply: &Supply) {
    let clean = supply.clean;
    say!(
        core,
        "p{proc} paged in {}..{} clean={clean}",
        pages.start.0,
        pages.end.0
    );
    if core.procs[proc].pages.paged_in(pages, clean) {
        core.procs[proc].space.wake(pages, &mut core.rng);
        core.note(Event::WriterCame);
    }
    if supply.locked && !pages.is_empty() {
        core.procs[proc].pages.lock_writes(pages, true);
        core.procs[proc].program.set_locked(pages, true);
        core.note(Event::SuppliedLocked);
    }
    if !clean && !pages.is_empty() {
        core.note(Event::Precious);
        for page in pages.iter() {
            core.release_slot(proc, page.0);
        }
    }
}

/// The pages that were not supplied.
fn end(core: &mut Core, proc: usize, rest: PageRange, failed: bool) {
    core.budget.give(rest.pages());
    let mut rest = rest;
    let own = core.is_own(rest.start.0);
    if failed {
        say!(core, "p{proc} page {} is lost", rest.start.0);
        let one = PageRange::one(rest.start);
        core.procs[proc].pages.page_in_failed(rest.start);
        core.note(if own { Event::OwnLost } else { Event::Lost });
        core.procs[proc].space.wake(one, &mut core.rng);
        rest = PageRange {
            start: PageIndex(rest.start.0 + 1),
            end: rest.end,
        };
    }
    if core.procs[proc].pages.page_in_ends(rest) {
        core.note(if own { Event::OwnShort } else { Event::Short });
        core.procs[proc].space.wake(rest, &mut core.rng);
    }
}
