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

/// What waits are sorted by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(test, derive(Hash, Debug))]
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
            let why = Woken::Ready;
            self.outputs.push_back(Output::Wake { waiter, why });
            return Ok(());
        }
        self.waits.entry(on).or_default().push_back(waiter);
        self.waiters.insert(waiter, Waiting { on, deadline });
        self.deadlines.extend(deadline.map(|at| (at, waiter)));
        Ok(())
    }

    /// The waiter gives up `what`. If it was woken for it already, another is woken instead.
    pub fn cancel(&mut self, waiter: Waiter, what: Wait) {
        if self.unregister(waiter) {
            return;
        }
        if let Ok((on, true)) = self.find(what) {
            self.wake_one(on);
        }
        self.settle();
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
            let why = Woken::TimedOut;
            self.outputs.push_back(Output::Wake { waiter, why });
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

    fn find(&mut self, what: Wait) -> Result<(On, bool), Error> {
        match what {
            Wait::Message(name) => {
                let port = self.receiving_port(name)?;
                let ready = port.is_some_and(|port| self.ports[port].queued > 0);
                match self.entry(name)? {
                    Entry::Set(set) => Ok((On::Set(set), ready)),
                    Entry::Port { .. } | Entry::Once(_) | Entry::Dead { .. } => {
                        Ok((On::Queue(port.unwrap_or(NONE)), ready))
                    }
                }
            }
            Wait::Room(name) => match self.entry(name)? {
                Entry::Port { target, .. } => Ok((On::Room(target), self.has_room(target))),
                Entry::Once(target) => Ok((On::Room(target), true)),
                Entry::Dead { .. } => Ok((On::Queue(NONE), true)),
                Entry::Set(_) => Err(Error::InvalidRight),
            },
        }
    }

    fn has_room(&self, target: Target) -> bool {
        match target {
            Target::Port(port) => {
                let it = &self.ports[port];
                it.home == Home::Dead || it.local < it.limit
            }
            Target::Import(import) => {
                let it = &self.imports[import];
                it.state == ImportState::Live && it.credits > 0
            }
        }
    }

    pub(crate) fn wake_one(&mut self, on: On) -> bool {
        let Some(&waiter) = self.waits.get(&on).and_then(VecDeque::front) else {
            return false;
        };
        self.unregister(waiter);
        let why = Woken::Ready;
        self.outputs.push_back(Output::Wake { waiter, why });
        true
    }

    pub(crate) fn wake_all(&mut self, on: On) {
        while self.wake_one(on) {}
    }
}
