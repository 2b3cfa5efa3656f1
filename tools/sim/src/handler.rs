//! A thread of the agent that answers faults: lock; ask; do; tell; unlock.

use farpage_object::{Answer, Filled, Mapping, PageIndex, PageRange, State};

use crate::coverage::Event;
use crate::linux::{Errno, Fault};
use crate::locks::Question;
use crate::pagein::PageIn;
use crate::shared::{ActorId, Core, say};
use crate::world::{Actor, Machine};

/// Between two steps of a handler.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Handler {
    /// Reads the userfaultfd.
    Idle,
    /// Has a message; wants the lock.
    Taken { fault: Fault, again: bool },
    /// Has the lock and the answer, and has charged for it.
    Decided {
        fault: Fault,
        answer: Answer,
        charged: u64,
    },
    /// Has done what the answer said, for so many pages; has the lock.
    Did {
        fault: Fault,
        answer: Answer,
        charged: u64,
        done: u64,
    },
}

pub(crate) fn step(core: &mut Core, proc: usize, actor: ActorId, at: Handler) -> Handler {
    match at {
        Handler::Idle => read(core, proc),
        Handler::Taken { fault, again } => {
            if core.procs[proc].space.event && core.rng.chance(500) {
                core.procs[proc].space.event = false;
            }
            if !core.lock(proc, actor) {
                return at;
            }
            decide(core, proc, actor, fault, again)
        }
        Handler::Decided {
            fault,
            answer,
            charged,
        } => act(core, proc, actor, fault, answer, charged),
        Handler::Did {
            fault,
            answer,
            charged,
            done,
        } => tell(core, proc, actor, fault, answer, charged, done),
    }
}

/// Takes any message: they arrive in no order, and some arrive twice.
fn read(core: &mut Core, proc: usize) -> Handler {
    let twice = core.trouble(core.settings.spurious);
    let process = &mut core.procs[proc];
    if process.space.event && core.rng.chance(500) {
        process.space.event = false;
    }
    if process.space.queue.is_empty() {
        return Handler::Idle;
    }
    let at = core.rng.below(process.space.queue.len() as u64) as usize;
    let fault = if twice {
        process.space.queue[at]
    } else {
        process.space.queue.swap_remove(at)
    };
    process.in_hand.push(fault.page);
    core.faults += 1;
    Handler::Taken {
        fault,
        again: false,
    }
}

fn finish(core: &mut Core, proc: usize, actor: ActorId, fault: Fault) -> Handler {
    let process = &mut core.procs[proc];
    let Some(at) = process.in_hand.iter().position(|&p| p == fault.page) else {
        panic!("an answered message was in nobody's hand");
    };
    process.in_hand.swap_remove(at);
    core.unlock(proc, actor);
    Handler::Idle
}

fn retry(core: &mut Core, proc: usize, actor: ActorId, fault: Fault) -> Handler {
    if core.rng.chance(300) {
        core.procs[proc].space.queue.push(fault);
        return finish(core, proc, actor, fault);
    }
    core.unlock(proc, actor);
    Handler::Taken { fault, again: true }
}

fn event_of(answer: &Answer) -> Event {
    match answer {
        Answer::Wake => Event::Wake,
        Answer::Wait => Event::Wait,
        Answer::Zero(_) => Event::Zero,
        Answer::Grant(_) => Event::Grant,
        Answer::Restore(_) => Event::Restore,
        Answer::RestoreProtected(_) => Event::RestoreProtected,
        Answer::CopyBack(_) => Event::CopyBack,
        Answer::PageIn { .. } => Event::PageIn,
        Answer::Unprotect(_) => Event::Unprotect,
        Answer::Fail => Event::Fail,
        Answer::Unlock(_) => Event::Unlock,
    }
}

fn wanted(answer: &Answer) -> u64 {
    match answer {
        Answer::Zero(pages) | Answer::Grant(pages) | Answer::PageIn { pages, .. } => pages.pages(),
        Answer::Wake
        | Answer::Wait
        | Answer::Restore(_)
        | Answer::CopyBack(_)
        | Answer::Unprotect(_)
        | Answer::RestoreProtected(_)
        | Answer::Unlock(_)
        | Answer::Fail => 0,
    }
}

/// The answer for the page of the fault alone, when there is no room for more.
fn alone(answer: Answer, page: u64) -> Answer {
    let pages = PageRange::one(PageIndex(page));
    match answer {
        Answer::Zero(_) | Answer::Grant(_) => Answer::Zero(pages),
        Answer::PageIn { .. } => Answer::PageIn { pages, also: None },
        other => other,
    }
}

fn decide(core: &mut Core, proc: usize, actor: ActorId, fault: Fault, again: bool) -> Handler {
    let page = fault.page;
    if core.procs[proc].frozen {
        core.note(Event::Frozen);
        core.unlock(proc, actor);
        return Handler::Taken { fault, again: true };
    }
    let Some(limits) = core.procs[proc].mapping(page) else {
        core.procs[proc]
            .space
            .wake(PageRange::new(page, page + 1), &mut core.rng);
        return finish(core, proc, actor, fault);
    };
    let own = core.is_own(page);
    if own && core.procs[proc].state(page) == State::Absent {
        core.note(Event::OwnAsked);
    }
    let pages = &mut core.procs[proc].pages;
    let mapping = Mapping {
        pages: limits,
        temporary: !own,
    };
    let mut answer = pages.fault(PageIndex(page), fault.protection, mapping, again);
    if let Answer::PageIn {
        pages: alone,
        also: None,
    } = &mut answer
        && alone.pages() == 1
        && core.rng.chance(500)
    {
        *alone = pages.neighbourhood(PageIndex(page), limits);
    }
    let mut charged = wanted(&answer);
    if !core.budget.take(charged) {
        answer = alone(answer, page);
        charged = 1;
        if !core.budget.take(charged) {
            core.note(Event::Starved);
            return retry(core, proc, actor, fault);
        }
    }
    core.note(event_of(&answer));
    say!(
        core,
        "p{proc} h{actor} {fault:?} is {:?}: {answer:?}",
        core.procs[proc].state(page)
    );
    Handler::Decided {
        fault,
        answer,
        charged,
    }
}

fn act(
    core: &mut Core,
    proc: usize,
    actor: ActorId,
    fault: Fault,
    answer: Answer,
    charged: u64,
) -> Handler {
    let here = PageRange::one(PageIndex(fault.page));
    let (space, rng) = (&mut core.procs[proc].space, &mut core.rng);
    let outcome = match answer {
        Answer::Wake => {
            let pte = space.pte(fault.page);
            let there = pte.present || !pte.registered;
            let works = there && !(fault.protection && pte.protected);
            assert!(works, "woken for nothing: {fault:?}, {pte:?}");
            space.wake(here, rng);
            return finish(core, proc, actor, fault);
        }
        Answer::Wait => return finish(core, proc, actor, fault),
        Answer::Unlock(page) => {
            core.procs[proc].pages.unlock_begins(page);
            begin_question(core, proc, page);
            return finish(core, proc, actor, fault);
        }
        Answer::Fail => {
            space.pte(fault.page).poisoned = true;
            space.wake(here, rng);
            return finish(core, proc, actor, fault);
        }
        Answer::PageIn { pages, also } => {
            let waited = Some(PageIndex(fault.page));
            core.procs[proc].pages.page_in_begins(pages, waited);
            begin_page_in(core, proc, pages);
            strided(core, proc, fault.page, also);
            return finish(core, proc, actor, fault);
        }
        Answer::Grant(pages) => {
            space.register(pages, false, rng);
            Ok(pages.pages())
        }
        Answer::Zero(pages) => space.zero(pages, rng),
        Answer::Restore(pages) => restore(core, proc, pages),
        Answer::RestoreProtected(pages) => restore_protected(core, proc, pages),
        Answer::CopyBack(page) => {
            let value = space.shadow(page.0);
            space.copy(page.0, value, true, rng)
        }
        Answer::Unprotect(pages) => space.unprotect(pages, rng).map(|()| pages.pages()),
    };
    match outcome {
        Ok(done) => Handler::Did {
            fault,
            answer,
            charged,
            done,
        },
        Err(errno) => {
            core.budget.give(charged);
            core.note(Event::Again);
            assert_ne!(
                errno,
                Errno::Exist,
                "page {} was there already: {answer:?}",
                fault.page
            );
            retry(core, proc, actor, fault)
        }
    }
}

/// Moves pages back; copies where a fork left them shared.
pub(crate) fn restore(core: &mut Core, proc: usize, pages: PageRange) -> Result<u64, Errno> {
    let (space, rng) = (&mut core.procs[proc].space, &mut core.rng);
    match space.move_back(pages, rng) {
        Err(Errno::Busy) => {
            let page = pages.start.0;
            let value = space.shadow(page);
            let done = space.copy(page, value, false, rng)?;
            space.drop_shadow(page);
            core.note(Event::SharedBack);
            Ok(done)
        }
        other => other,
    }
}

/// Copies clean or locked pages back: what is moved loses its protection. It may stop anywhere.
pub(crate) fn restore_protected(
    core: &mut Core,
    proc: usize,
    pages: PageRange,
) -> Result<u64, Errno> {
    let mut done = 0;
    for page in pages.iter() {
        let space = &mut core.procs[proc].space;
        let value = space.shadow(page.0);
        match space.copy(page.0, value, true, &mut core.rng) {
            Ok(_) => space.drop_shadow(page.0),
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => break,
        }
        done += 1;
    }
    Ok(done)
}

fn tell(
    core: &mut Core,
    proc: usize,
    actor: ActorId,
    fault: Fault,
    answer: Answer,
    charged: u64,
    done: u64,
) -> Handler {
    let part = |pages: PageRange| PageRange::new(pages.start.0, pages.start.0 + done);
    let automaton = &mut core.procs[proc].pages;
    match answer {
        Answer::Zero(pages) => automaton.filled(part(pages), Filled::Zero),
        Answer::Grant(pages) => automaton.filled(part(pages), Filled::Granted),
        Answer::Restore(pages) | Answer::RestoreProtected(pages) => {
            automaton.restored(part(pages));
        }
        Answer::CopyBack(page) => automaton.copied_back(page),
        Answer::Unprotect(pages) => {
            automaton.dirtied(pages);
            for page in pages.iter() {
                core.release_slot(proc, page.0);
            }
        }
        Answer::Wake | Answer::Wait | Answer::Fail | Answer::Unlock(_) | Answer::PageIn { .. } => {
            unreachable!("nothing to tell")
        }
    }
    if charged > done {
        core.budget.give(charged - done);
    }
    // The page of the fault may lie behind the part that was done.
    let there = match core.procs[proc].state(fault.page) {
        State::Absent | State::Aside | State::Spare => false,
        State::Granted
        | State::Resident
        | State::Clean
        | State::PagingOut
        | State::PagingOutMapped
        | State::PagingIn
        | State::Out
        | State::Failed => true,
    };
    if there {
        finish(core, proc, actor, fault)
    } else {
        retry(core, proc, actor, fault)
    }
}

fn begin_question(core: &mut Core, proc: usize, page: PageIndex) {
    core.procs[proc].in_flight += 1;
    let delay = core.store.delay(&mut core.rng);
    core.spawned.push(Actor {
        proc,
        machine: Machine::Question(Question::Asked { page, delay }),
    });
}

fn begin_page_in(core: &mut Core, proc: usize, pages: PageRange) {
    core.procs[proc].in_flight += 1;
    let delay = core.store.delay(&mut core.rng);
    core.spawned.push(Actor {
        proc,
        machine: Machine::PageIn(PageIn::Reading { pages, delay }),
    });
}

/// Prefetches single pages further on, as far as they are out and there is room.
fn strided(core: &mut Core, proc: usize, page: u64, also: Option<(i64, u64)>) {
    let Some((stride, count)) = also else { return };
    let Some(limits) = core.procs[proc].mapping(page) else {
        return;
    };
    for n in 1..count as i64 {
        let Some(next) = page.checked_add_signed(stride * n) else {
            return;
        };
        let one = PageRange::new(next, next + 1);
        let inside = limits.contains(PageIndex(next));
        let pages = &core.procs[proc].pages;
        let out = pages.is_with_pager(PageIndex(next), !core.is_own(next));
        if inside && out && core.budget.take(1) {
            core.procs[proc].pages.page_in_begins(one, None);
            begin_page_in(core, proc, one);
            core.note(Event::Strided);
        }
    }
}
