//! Who waits for what, and until when.

use alloc::collections::VecDeque;

use crate::error::Error;
use crate::import::ImportState;
use crate::input::{Output, Woken};
use crate::message::{Name, Tick, Waiter};
use crate::port::Home;
use crate::right::{Entry, Target};
use crate::slab::NONE;
use crate::space::Space;

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wait {
    /// A message at this port or set.
    Message(Name),
    /// Room for a message to this send right.
    Room(Name),
}

/// What a waiter was woken for; see [`Space::pass_on`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Chance(On);

/// What waits are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum On {
    Queue(u32),
    Set(u32),
    Room(Target),
}

#[derive(Clone, Copy)]
#[cfg_attr(test, derive(Hash))]
pub(crate) struct Waiting {
    on: On,
    deadline: Option<Tick>,
}

impl Space {
    /// Registers a waiter, in place of what it waited for before. It is woken once, by
    /// [`Output::Wake`]: at once if there is nothing to wait for. Whoever is woken tries again;
    /// another may have been faster.
    ///
    /// # Errors
    /// [`Error::InvalidName`], [`Error::InvalidRight`], [`Error::InSet`].
    pub fn wait(
        &mut self,
        what: Wait,
        waiter: Waiter,
        deadline: Option<Tick>,
    ) -> Result<(), Error> {
        self.unregister(waiter);
        let found = self.find(what);
        self.settle();
        let (on, ready) = found?;
        if ready {
            self.put_wake(waiter, Woken::Ready(Chance(on)));
            return Ok(());
        }
        self.waits.entry(on).or_default().push_back(waiter);
        self.waiters.insert(waiter, Waiting { on, deadline });
        self.deadlines.extend(deadline.map(|at| (at, waiter)));
        Ok(())
    }

    /// The waiter gives up before it is woken. Afterwards it is not woken, unless the shell has
    /// that output already: then it must [`pass_on`](Self::pass_on) the chance.
    pub fn cancel(&mut self, waiter: Waiter) {
        self.unregister(waiter);
    }

    /// Wakes another for what one waiter was woken for, and did not use: it gave up, or failed.
    pub fn pass_on(&mut self, chance: Chance) {
        if self.is_ready(chance.0) {
            self.wake_one(chance.0);
        }
    }

    /// When [`handle_time`](Self::handle_time) has something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Tick> {
        self.deadlines.first().map(|&(at, _)| at)
    }

    /// Wakes those whose time is up.
    pub fn handle_time(&mut self, now: Tick) {
        while let Some(&(at, waiter)) = self.deadlines.first() {
            if at > now {
                return;
            }
            self.unregister(waiter);
            self.put_wake(waiter, Woken::TimedOut);
        }
    }

    fn unregister(&mut self, waiter: Waiter) -> bool {
        let Some(Waiting { on, deadline }) = self.waiters.remove(&waiter) else {
            return false;
        };
        if let Some(at) = deadline {
            self.deadlines.remove(&(at, waiter));
        }
        if let Some(queue) = self.waits.get_mut(&on) {
            queue.retain(|&other| other != waiter);
            if queue.is_empty() {
                self.waits.remove(&on);
            }
        }
        true
    }

    fn put_wake(&mut self, waiter: Waiter, why: Woken) {
        self.outputs.push_back(Output::Wake { waiter, why });
    }

    fn find(&mut self, what: Wait) -> Result<(On, bool), Error> {
        let on = match what {
            Wait::Message(name) => {
                let port = self.receiving_port(name)?;
                match self.entry(name)? {
                    Entry::Set(set) => On::Set(set),
                    Entry::Port { .. } | Entry::Once(_) | Entry::Dead { .. } => {
                        On::Queue(port.unwrap_or(NONE))
                    }
                }
            }
            Wait::Room(name) => match self.entry(name)? {
                Entry::Port { target, .. } => On::Room(target),
                // Nothing holds these up.
                Entry::Once(target) => return Ok((On::Room(target), true)),
                Entry::Dead { .. } => return Ok((On::Queue(NONE), true)),
                Entry::Set(_) => return Err(Error::InvalidRight),
            },
        };
        Ok((on, self.is_ready(on)))
    }

    fn is_ready(&self, on: On) -> bool {
        match on {
            On::Queue(port) => {
                let port = self.ports.get(port);
                port.is_some_and(|it| it.queued > 0 && it.set == NONE && it.home == Home::Here)
            }
            On::Set(set) => self.sets.get(set).is_some_and(|it| it.oldest != NONE),
            On::Room(Target::Port(port)) => {
                let port = self.ports.get(port);
                port.is_some_and(|it| it.home == Home::Dead || it.local < it.limit)
            }
            On::Room(Target::Import(import)) => {
                let import = self.imports.get(import);
                import.is_some_and(|it| it.state == ImportState::Live && it.credits > 0)
            }
        }
    }

    /// Nobody waits for what is there.
    #[cfg(test)]
    pub(crate) fn check_waits(&self) {
        for &on in self.waits.keys() {
            assert!(!self.is_ready(on), "{on:?} sleeps for ever");
        }
    }

    pub(crate) fn wake_one(&mut self, on: On) -> bool {
        let Some(&waiter) = self.waits.get(&on).and_then(VecDeque::front) else {
            return false;
        };
        self.unregister(waiter);
        self.put_wake(waiter, Woken::Ready(Chance(on)));
        true
    }

    pub(crate) fn wake_all(&mut self, on: On) {
        while self.wake_one(on) {}
    }
}
