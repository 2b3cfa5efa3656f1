//! Who polls: a thread that waits anyway, or else the keeper.
//!
//! Whoever waits and finds that nobody polls does so itself, so that a message wakes the thread
//! that wants it and no other. A thread that has what it wants leaves the poll to another one that
//! waits. Is there none, the keeper, a thread of the Node's, takes over when nobody has come back
//! for a moment; while threads come and go it only looks from time to time, and it sleeps for good
//! while one waits or while it waits itself.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farpage_rights::{Waiter, Woken};

use super::state::{How, Inner, State};
use crate::link::{ALARM, LinkSet};

/// After so long without anybody who polls, the keeper does. What peers ask of the Node itself
/// waits for at most twice as long.
const ABSENCE: Duration = Duration::from_millis(2);
/// The keeper's number among those who wait.
const KEEPER: Waiter = Waiter(0);

/// What the keeper knows.
#[derive(Default)]
pub(super) struct Keeper {
    is_started: bool,
    is_asleep: bool,
    /// How often a thread has left the poll to nobody.
    leaves: u64,
    /// The Node is no more.
    pub(super) is_over: bool,
}

impl Inner {
    /// Waits until `waiter` is woken, at most until `until`; it is no waiter any more then.
    pub(super) fn block<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        waiter: Waiter,
        until: Option<Instant>,
    ) -> (MutexGuard<'a, State>, Option<Woken>) {
        let woken = loop {
            let slot = state.waiters.get(&waiter).expect("removed below only");
            let condvar = match (&slot.woken, &slot.how) {
                (Some(woken), _) => break Some(*woken),
                (None, How::Thread(condvar)) => Arc::clone(condvar),
                (None, How::Task(_) | How::Descriptor(_)) => unreachable!("threads block"),
            };
            if until.is_some_and(|until| until <= Instant::now()) {
                break None;
            }
            if state.set.is_some() {
                state = self.lead(state, waiter, until);
                continue;
            }
            state.sleepers.insert(waiter);
            state = match until {
                None => condvar.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    let waited = condvar.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            state.sleepers.remove(&waiter);
        };
        if let Some(How::Thread(condvar)) = state.waiters.remove(&waiter).map(|slot| slot.how) {
            state.condvars.push(condvar);
        }
        self.leave(&mut state);
        (state, woken)
    }

    /// Polls once: waits for something to happen, at most until `until`, and deals with it.
    fn lead<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        waiter: Waiter,
        until: Option<Instant>,
    ) -> MutexGuard<'a, State> {
        let mut set = state.set.take().expect("nobody else polls");
        state.leader = Some(waiter);
        let deadline = until.into_iter().chain(state.next_deadline()).min();
        let mut ready = std::mem::take(&mut state.ready);
        drop(state);
        let waited = set.wait(deadline, &mut ready);
        let mut state = self.lock();
        if waited.is_err() {
            // Linux refuses to look: not for good, as far as it says.
            std::thread::sleep(ABSENCE);
        }
        self.deal(&mut state, set, ready);
        for id in state.stuck() {
            state.flush(id);
        }
        if !state.deadlines.is_empty() {
            state.expire(Instant::now());
        }
        self.pump(&mut state);
        state.leader = None;
        state
    }

    /// Deals with what was found by whoever polled `set`, which is here again.
    fn deal(&self, state: &mut State, set: Box<LinkSet>, mut ready: Vec<u64>) {
        state.set = Some(set);
        if state.apply() {
            self.applied.notify_all();
        }
        for name in ready.drain(..) {
            if name != ALARM {
                let id = name as u32;
                state.socket_ready(id);
                state.read(id);
            }
        }
        state.ready = ready;
    }

    /// Looks at the Links where something is going on, and waits a moment for the last of them,
    /// when nobody else polls or waits: an answer that comes at once needs nobody to be registered
    /// and woken. True when something came.
    pub(super) fn peek<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
    ) -> (MutexGuard<'a, State>, bool) {
        if !state.sleepers.is_empty() {
            return (state, false);
        }
        let Some(mut set) = state.set.take_if(|set| set.is_busy()) else {
            return (state, false);
        };
        state.leader = Some(KEEPER);
        let mut ready = std::mem::take(&mut state.ready);
        drop(state);
        let came = set.peek(&mut ready);
        let mut state = self.lock();
        self.deal(&mut state, set, ready);
        self.pump(&mut state);
        state.leader = None;
        if came {
            self.leave(&mut state);
        }
        (state, came)
    }

    /// Deals with what has happened, without waiting; nothing when somebody polls already.
    pub(super) fn glance<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        if state.set.is_none() {
            return state;
        }
        let mut state = self.lead(state, KEEPER, Some(Instant::now()));
        self.leave(&mut state);
        state
    }

    /// Leaves the poll to somebody.
    fn leave(&self, state: &mut State) {
        if state.set.is_none() {
            return;
        }
        let next = state.sleepers.first().and_then(|it| state.waiters.get(it));
        if let Some(How::Thread(condvar)) = next.map(|slot| &slot.how) {
            condvar.notify_one();
            return;
        }
        state.keeper.leaves += 1;
        if std::mem::replace(&mut state.keeper.is_asleep, false) {
            self.keeper.notify_one();
        }
    }

    /// Has a keeper from now on.
    pub(super) fn start_keeper(self: &Arc<Self>, state: &mut State) -> std::io::Result<()> {
        if state.keeper.is_started {
            return Ok(());
        }
        let inner = Arc::clone(self);
        std::thread::Builder::new()
            .name("farpage-port".into())
            .spawn(move || inner.keep())?;
        state.keeper.is_started = true;
        Ok(())
    }

    /// The keeper's life.
    fn keep(&self) {
        let mut state = self.lock();
        while !state.keeper.is_over {
            let leaves = state.keeper.leaves;
            let waited = self.keeper.wait_timeout(state, ABSENCE);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if state.keeper.leaves != leaves {
                continue;
            }
            while state.set.is_some() && state.sleepers.is_empty() && !state.keeper.is_over {
                state = self.lead(state, KEEPER, None);
            }
            if state.set.is_some() {
                self.leave(&mut state);
                continue;
            }
            state.keeper.is_asleep = true;
            while state.keeper.is_asleep && !state.keeper.is_over {
                state = self
                    .keeper
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
        let links = (
            std::mem::take(&mut state.peers),
            std::mem::take(&mut state.sockets),
            state.set.take(),
        );
        drop(state);
        drop(links);
    }

    /// Nobody has the Node any more.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.keeper.is_over = true;
        self.keeper.notify_one();
        self.alarm.ring();
        if !state.keeper.is_started {
            state.peers.clear();
        }
    }
}
