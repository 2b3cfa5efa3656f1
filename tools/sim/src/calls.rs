//! Calls of the program that the agent carries out in the program's own thread.

use farpage_object::{PageIndex, PageRange, State};

use crate::coverage::Event;
use crate::fork;
use crate::handler::{restore, restore_protected};
use crate::linux::WINDOW;
use crate::shared::{ActorId, Core, Proc, say};

/// A call under way.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    /// mmap.
    Map { pages: PageRange },
    /// munmap or MADV_DONTNEED: waits until nothing is busy.
    Discard { pages: PageRange, unmap: bool },
    /// Nothing is busy and all is registered; has the lock.
    Registered { pages: PageRange, unmap: bool },
    /// The contents are gone, the automaton does not know; has the lock.
    Dropped { pages: PageRange, unmap: bool },
    /// mremap to a place where nothing is: waits until nothing is busy.
    Remap { from: PageRange, to: u64 },
    /// Nothing is busy: moves back what is aside, then renames; has the lock.
    Restoring { from: PageRange, to: u64 },
    /// mlock, munlock.
    Wire { pages: PageRange, wired: bool },
    /// fork.
    Fork,
    /// exit: waits until nothing is busy, then all memory goes.
    Exit,
}

impl Call {
    fn has_lock(&self) -> bool {
        match self {
            Self::Registered { .. } | Self::Dropped { .. } | Self::Restoring { .. } => true,
            Self::Map { .. } | Self::Discard { .. } | Self::Remap { .. } => false,
            Self::Wire { .. } | Self::Fork | Self::Exit => false,
        }
    }

    /// True when the call has begun something that must end, though the program ends.
    pub(crate) fn goes_on(&self) -> bool {
        self.has_lock() || matches!(self, Self::Fork | Self::Exit)
    }
}

/// Maps something before the program starts.
pub(crate) fn first_map(core: &mut Core) {
    if let Some(pages) = free_range(core, 0) {
        map(core, 0, pages);
    }
}

/// Chooses a call that makes sense now.
pub(crate) fn begin(core: &mut Core, proc: usize) -> Option<Call> {
    if core.procs.len() < 3 && core.rng.chance(core.settings.forks) {
        return Some(Call::Fork);
    }
    if core.rng.chance(core.settings.exits) {
        return Some(Call::Exit);
    }
    let maps = core.procs[proc].maps.clone();
    if maps.is_empty() || core.rng.chance(300) {
        return free_range(core, proc).map(|pages| Call::Map { pages });
    }
    let map = maps[core.rng.below(maps.len() as u64) as usize];
    let pages = part_of(core, map);
    let own = core.is_own(map.start.0);
    match core.rng.below(4) {
        0 => Some(Call::Discard { pages, unmap: true }),
        1 => Some(Call::Discard { pages, unmap: own }),
        2 => {
            let to = free_range(core, proc)?;
            if own || core.is_own(to.start.0) {
                return None;
            }
            let length = to.pages().min(pages.pages());
            let from = PageRange::new(pages.start.0, pages.start.0 + length);
            let to = to.start.0;
            Some(Call::Remap { from, to })
        }
        _ => {
            let wired = core.procs[proc].program.wired_pages();
            let lock = wired * 4 < core.settings.budget && core.rng.chance(500);
            let most = if lock {
                core.settings.budget / 6
            } else {
                WINDOW
            };
            let end = pages.end.0.min(pages.start.0 + most);
            let pages = PageRange::new(pages.start.0, end);
            Some(Call::Wire { pages, wired: lock })
        }
    }
}

pub(crate) fn part_of(core: &mut Core, map: PageRange) -> PageRange {
    let mut start = map.start.0 + core.rng.below(map.pages());
    let mut end = start + 1 + core.rng.below(map.end.0 - start);
    if core.rng.chance(300) {
        start = start / 16 * 16;
        end = end.next_multiple_of(16);
    }
    let small = core.rng.chance(500);
    end = if small { end.min(start + 40) } else { end };
    PageRange::new(start, end).intersect(map)
}

/// A range where nothing is mapped.
fn free_range(core: &mut Core, proc: usize) -> Option<PageRange> {
    let start = match core.rng.below(3) {
        0 => core.rng.below(4) * 512,
        1 => core.rng.below(WINDOW / 16) * 16,
        _ => core.rng.below(WINDOW),
    };
    let length = core.rng.pick(&[3, 100, 512, 700, 1024]);
    let next = core.procs[proc].maps.iter().map(|m| m.start.0);
    let border = if core.is_own(start) {
        WINDOW
    } else {
        core.settings.own_from
    };
    let next = next
        .filter(|&at| at >= start)
        .min()
        .unwrap_or(border)
        .min(border);
    let end = next.min(start + length).min(WINDOW);
    let free = core.procs[proc].mapping(start).is_none() && end > start;
    free.then(|| PageRange::new(start, end))
}

/// One step of a call; `None` when it has returned.
pub(crate) fn step(core: &mut Core, proc: usize, actor: ActorId, call: Call) -> Option<Call> {
    if !call.has_lock() {
        if !core.lock(proc, actor) {
            return Some(call);
        }
        say!(core, "p{proc} t{actor} {call:?}");
    }
    match call {
        Call::Map { pages } => map(core, proc, pages),
        Call::Discard { pages, unmap } => {
            if !is_mapped(&core.procs[proc], pages) || (!unmap && is_wired(core, proc, pages)) {
                core.unlock(proc, actor);
                return None;
            }
            if core.procs[proc].frozen || core.procs[proc].pages.busy(pages) {
                core.note(Event::DiscardWaits);
                core.unlock(proc, actor);
                return Some(call);
            }
            core.procs[proc].space.register(pages, true, &mut core.rng);
            return Some(Call::Registered { pages, unmap });
        }
        Call::Registered { pages, unmap } => {
            drop_contents(core, proc, pages, unmap);
            return Some(Call::Dropped { pages, unmap });
        }
        Call::Dropped { pages, unmap } => discarded(core, proc, pages, unmap),
        Call::Remap { from, to } => {
            let target = PageRange::new(to, to + from.pages());
            let process = &core.procs[proc];
            let possible = is_mapped(process, from) && is_free(process, target);
            if possible && !process.frozen && !process.pages.busy(from) {
                return Some(Call::Restoring { from, to });
            }
            core.unlock(proc, actor);
            return possible.then_some(call);
        }
        Call::Restoring { from, to } => {
            if let Some(page) = first_aside(&core.procs[proc], from) {
                return move_back(core, proc, actor, page, call);
            }
            rename(core, proc, from, to);
            core.note(Event::Renamed);
        }
        Call::Wire { pages, wired } => {
            if is_mapped(&core.procs[proc], pages) {
                wire(&mut core.procs[proc], pages, wired);
                core.note(Event::Wired);
            }
        }
        Call::Fork => {
            if !fork::fork(core, proc) {
                core.unlock(proc, actor);
                return Some(call);
            }
        }
        Call::Exit => {
            if !exit(core, proc) {
                core.unlock(proc, actor);
                return Some(call);
            }
        }
    }
    core.unlock(proc, actor);
    None
}

pub(crate) fn is_mapped(process: &Proc, pages: PageRange) -> bool {
    let map = process.mapping(pages.start.0);
    map.is_some_and(|map| map.intersect(pages) == pages)
}

fn is_free(process: &Proc, pages: PageRange) -> bool {
    pages.end.0 <= WINDOW && process.maps.iter().all(|m| m.intersect(pages).is_empty())
}

pub(crate) fn is_wired(core: &Core, proc: usize, pages: PageRange) -> bool {
    let wired = &core.procs[proc].program.wired;
    pages.iter().any(|page| wired[page.0 as usize])
}

fn add_map(process: &mut Proc, pages: PageRange) {
    process.maps.push(pages);
    process.maps.sort_by_key(|map| map.start.0);
}

fn remove_map(process: &mut Proc, pages: PageRange) {
    let maps = core::mem::take(&mut process.maps);
    for map in maps {
        let below = PageRange::new(map.start.0, map.end.0.min(pages.start.0).max(map.start.0));
        let above = PageRange::new(map.start.0.max(pages.end.0).min(map.end.0), map.end.0);
        if map.intersect(pages).is_empty() {
            process.maps.push(map);
        } else {
            let rest = [below, above].into_iter().filter(|part| !part.is_empty());
            process.maps.extend(rest);
        }
    }
}

fn map(core: &mut Core, proc: usize, pages: PageRange) {
    if !is_free(&core.procs[proc], pages) {
        return;
    }
    let own = core.is_own(pages.start.0);
    let adopted = !own && core.rng.chance(core.settings.adopted);
    core.procs[proc].space.map(pages, !adopted);
    add_map(&mut core.procs[proc], pages);
    if own {
        for page in pages.iter().map(|page| page.0) {
            // Never zero: a page of zeros would be an invented one.
            let value = core.now * WINDOW + page + 1;
            let slot = core.store.own(value, &mut core.rng);
            core.procs[proc].slots[page as usize] = Some(slot);
            core.procs[proc].program.values[page as usize] = value;
        }
    }
    if !adopted {
        return;
    }
    for page in pages.iter() {
        if core.rng.chance(500) {
            let value = core.rng.pick(&[0, core.now]);
            let pte = core.procs[proc].space.pte(page.0);
            pte.present = true;
            pte.exclusive = true;
            pte.value = value;
            core.procs[proc].program.values[page.0 as usize] = value;
        }
    }
    core.procs[proc].pages.adopt(pages);
    core.charge_anyway(pages.pages());
    core.note(Event::Adopted);
}

fn drop_contents(core: &mut Core, proc: usize, pages: PageRange, unmap: bool) {
    let process = &mut core.procs[proc];
    process.program.forget(pages);
    if unmap {
        process.space.unmap(pages, &mut core.rng);
        remove_map(process, pages);
    } else {
        process.space.drop_pages(pages);
    }
}

fn discarded(core: &mut Core, proc: usize, pages: PageRange, unmap: bool) {
    let process = &mut core.procs[proc];
    let held = process.pages.discard(pages);
    core.budget.give(held.charged);
    let range = pages.start.0 as usize..pages.end.0 as usize;
    if held.aside {
        process.space.aside[range.clone()].fill(None);
    }
    if held.with_pager || core.is_own(pages.start.0) {
        for page in pages.iter() {
            core.release_slot(proc, page.0);
        }
    }
    let process = &mut core.procs[proc];
    let clean = process.space.aside[range.clone()]
        .iter()
        .all(Option::is_none);
    assert!(clean, "discard said that nothing was aside");
    let clean = process.slots[range].iter().all(Option::is_none);
    assert!(clean, "discard said that the pager has nothing");
    if !unmap {
        process.space.wake(pages, &mut core.rng);
    }
}

fn first_aside(process: &Proc, from: PageRange) -> Option<u64> {
    let aside = |page: &PageIndex| process.pages.state(*page).is_aside();
    from.iter().find(aside).map(|page| page.0)
}

/// Moves a run back, across clusters; starts anew when that is cut short.
fn move_back(core: &mut Core, proc: usize, actor: ActorId, page: u64, call: Call) -> Option<Call> {
    let Call::Restoring { from, to } = call else {
        unreachable!("only mremap restores");
    };
    let rest = PageRange::new(page, from.end.0);
    let process = &core.procs[proc];
    let kind = process.state(page);
    let run = rest.iter().take_while(|&p| process.pages.state(p) == kind);
    let run = PageRange::new(page, page + run.count() as u64);
    let back = match kind {
        State::Spare => restore_protected(core, proc, run),
        _ => restore(core, proc, run),
    };
    match back {
        Ok(done) => {
            let part = PageRange::new(page, page + done);
            core.procs[proc].pages.restored(part);
            core.note(Event::RenameRestores);
            Some(call)
        }
        Err(_) => {
            core.unlock(proc, actor);
            Some(Call::Remap { from, to })
        }
    }
}

fn rename(core: &mut Core, proc: usize, from: PageRange, to: u64) {
    let target = PageRange::new(to, to + from.pages());
    let process = &mut core.procs[proc];
    process.space.remap(from, to, &mut core.rng);
    process.pages.rename(from, PageIndex(to));
    remove_map(process, from);
    add_map(process, target);
    for page in from.iter() {
        let (old, new) = (page.0 as usize, (to + page.0 - from.start.0) as usize);
        process.slots[new] = process.slots[old].take();
        let program = &mut process.program;
        program.values[new] = core::mem::take(&mut program.values[old]);
        // What is wired is a place: whoever wants the new one wired does so.
        program.wired[old] = false;
        program.pinned[old] = false;
    }
    protect_again(process, target);
}

/// Write-protects again what must be: the program does not run there yet.
pub(crate) fn protect_again(process: &mut Proc, pages: PageRange) {
    for page in process
        .pages
        .protected_runs(pages)
        .flat_map(|run| run.iter())
    {
        process.space.pte(page.0).protected = true;
    }
}

/// The program ends; false while something is busy. Nothing may be left of it.
fn exit(core: &mut Core, proc: usize) -> bool {
    let process = &mut core.procs[proc];
    process.exited = true;
    if process.frozen || process.in_flight > 0 {
        core.note(Event::ExitWaits);
        return false;
    }
    for map in core.procs[proc].maps.clone() {
        drop_contents(core, proc, map, true);
        discarded(core, proc, map, true);
        core.note(Event::Exited);
    }
    let pages = &core.procs[proc].pages;
    let known = pages.existing(PageRange::new(0, WINDOW)).next();
    assert_eq!(known, None, "a page of a program that has ended");
    true
}

fn wire(process: &mut Proc, pages: PageRange, wired: bool) {
    process.pages.wire(pages, wired);
    for page in pages.start.0 as usize..pages.end.0 as usize {
        process.program.wired[page] = wired;
        process.program.pinned[page] = false;
    }
}
