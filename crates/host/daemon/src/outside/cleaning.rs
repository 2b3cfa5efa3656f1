//! Pages that a pager wants to have: cleaned, or cleaned and let go of.
//!
//! An order is carried out in steps, none of which waits for its pager for longer than a write may take. One
//! thread takes a step of the orders of each object in turn, so no pager holds up another's:
//!
//! 1. What is modified is written, a few pages in each step.
//! 2. What the pager did not take in time is with the default pager: the order waits until the pager has
//!    taken that, and all that was kept of the pages before.
//! 3. Pages that are to be let go of and come from the default pager just now are waited for. Then they go.

use std::time::{Duration, Instant};

use farpage_host::Object;
use farpage_object::PageRange;
use farpage_port::Name;
use farpage_port::interface::Answer;

use super::pager::Outside;

/// Orders of an object that are not carried out yet, at most.
const ORDERS_MAX: usize = 64;
/// Time between two looks at pages that are on their way.
const ON_ITS_WAY: Duration = Duration::from_millis(1);

/// What a pager asked for.
pub(super) struct Cleaning {
    /// Of the session that asked.
    port: Name,
    pages: PageRange,
    lets_go: bool,
    answer: Answer<Result<(), String>>,
    step: Step,
}

enum Step {
    /// From this page on some can be modified; of those before, some were on their way out.
    Cleans { from: u64, passed: bool },
    /// The pager is to take what was kept of them up to this number.
    IsTaken(u64),
    /// These were on their way in when it had taken it.
    Comes(Vec<PageRange>),
}

/// What follows a step.
enum Next {
    Soon(Duration),
    /// Something happens first, of which `Outsides::press_orders` tells.
    Waits,
    Done(Result<(), String>),
}

impl Cleaning {
    pub(super) fn new(
        port: Name,
        pages: PageRange,
        lets_go: bool,
        answer: Answer<Result<(), String>>,
    ) -> Self {
        Self {
            port,
            pages,
            lets_go,
            answer,
            step: Step::Cleans {
                from: pages.start.0,
                passed: false,
            },
        }
    }

    fn ends(self, done: Result<(), String>) {
        // Nobody may wait any more.
        let _ = self.answer.give(done);
    }
}

impl Outside {
    /// Takes one more order.
    pub(super) fn orders(&self, cleaning: Cleaning) {
        let mut state = self.state();
        if state.orders >= ORDERS_MAX {
            drop(state);
            return cleaning.ends(Err("too many locks at a time; wait for some".into()));
        }
        state.orders += 1;
        state.cleanings.push(cleaning);
    }

    /// Takes a step of the orders. Returns when to look again, unless something happens before.
    pub(super) fn carries_out(&self) -> Option<Instant> {
        let orders = std::mem::take(&mut self.state().cleanings);
        if orders.is_empty() {
            return None;
        }
        // When it is gone, so are the orders.
        let object = self.object()?;
        // Who has written goes behind who waits, and the pager is waited for once in each round.
        let (mut waiting, mut written) = (Vec::new(), Vec::new());
        let mut soon: Option<Duration> = None;
        for mut order in orders {
            let writes = matches!(order.step, Step::Cleans { .. });
            let next = match writes && !written.is_empty() {
                true => Next::Soon(Duration::ZERO),
                false => self.step(&object, &mut order),
            };
            let has_written = writes && matches!(order.step, Step::Cleans { .. });
            match next {
                Next::Done(done) => {
                    self.state().orders -= 1;
                    order.ends(done);
                }
                Next::Soon(time) => {
                    soon = Some(soon.map_or(time, |soon| time.min(soon)));
                    match has_written && time.is_zero() && written.is_empty() {
                        true => written.push(order),
                        false => waiting.push(order),
                    }
                }
                Next::Waits => waiting.push(order),
            }
        }
        waiting.append(&mut written);
        let mut state = self.state();
        // What was ordered meanwhile comes after it.
        waiting.append(&mut state.cleanings);
        state.cleanings = waiting;
        soon.map(|time| Instant::now() + time)
    }

    fn step(&self, object: &Object, order: &mut Cleaning) -> Next {
        let pages = order.pages;
        if let Err(gone) = self.answers_at(order.port) {
            return Next::Done(Err(gone));
        }
        match &mut order.step {
            Step::Cleans { from, passed } => {
                let cleaned = match object.clean_some(PageRange::new(*from, pages.end.0)) {
                    Ok(cleaned) => cleaned,
                    Err(error) => return Next::Done(Err(error.to_string())),
                };
                *passed |= cleaned.passed;
                match cleaned.after {
                    Some(after) => *from = after,
                    None if *passed => {
                        (*from, *passed) = (pages.start.0, false);
                        return Next::Soon(ON_ITS_WAY);
                    }
                    None => order.step = Step::IsTaken(self.state().under_way.last_kept()),
                }
            }
            Step::IsTaken(last) => {
                let state = self.state();
                if state.under_way.keeps_since(pages, *last) {
                    return match state.under_way.refuses_since(pages, *last) {
                        true => {
                            let why = &state.cause;
                            Next::Done(Err(format!("the pager does not take them: {why}")))
                        }
                        false => Next::Waits,
                    };
                }
                drop(state);
                if !order.lets_go {
                    return Next::Done(Ok(()));
                }
                order.step = Step::Comes(object.coming(pages).collect());
            }
            Step::Comes(runs) => {
                let is_asked_for = |run| self.state().under_way.are_asked_for(run);
                runs.retain(|run| !object.coming(*run).all(is_asked_for));
                if !runs.is_empty() {
                    return Next::Soon(ON_ITS_WAY);
                }
                self.unlocked(pages);
                object.let_go(pages);
                return Next::Done(match object.are_held(pages) {
                    true => Err("some of them are wired, and stay".into()),
                    false => Ok(()),
                });
            }
        }
        Next::Soon(Duration::ZERO)
    }

    /// `Err` when the session at `port` does not answer for the object any more.
    fn answers_at(&self, port: Name) -> Result<(), String> {
        let state = self.state();
        match &state.session {
            Some(session) if session.port.name() == port => Ok(()),
            Some(session) => Err(format!("process {} answers for it now", session.pid)),
            None => Err(format!("the pager {}", state.cause)),
        }
    }
}
