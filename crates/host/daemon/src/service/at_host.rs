//! Pages of memory of the cluster that a process has locked at this host.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farpage_client::Refusal;
use farpage_client::interface::{PagesCalls, Tried};
use farpage_object::{Access, PageRange};
use farpage_port::Sender;
use farpage_port::interface::Answer;

use crate::cluster::Joined;
use crate::service::cluster::GiveUp;

/// One lock.
pub(crate) struct AtHost {
    cluster: Arc<Joined>,
    number: u64,
    pages: PageRange,
    access: Access,
    state: Mutex<State>,
}

enum State {
    /// The pages are on their way.
    Asked {
        give_up: Option<GiveUp>,
        /// Who asked last does not wait.
        is_given_up: bool,
        /// Who waits for them.
        waits: Option<Answer<Tried<bool>>>,
    },
    /// They are locked, or waiting for them was given up (false), or they cannot be.
    Ended(Result<bool, Refusal>),
    /// Nobody has the lock any more.
    Over,
}

/// Who asked is told, whatever becomes of the object.
struct Ends(Option<Arc<AtHost>>);

impl AtHost {
    pub(super) fn new(cluster: Arc<Joined>, number: u64, pages: PageRange, to_write: bool) -> Self {
        Self {
            cluster,
            number,
            pages,
            access: if to_write {
                Access::Write
            } else {
                Access::Read
            },
            state: Mutex::new(State::Asked {
                give_up: None,
                is_given_up: false,
                waits: None,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for the pages.
    pub(super) fn begins(self: &Arc<Self>) {
        let mut ends = Ends(Some(Arc::clone(self)));
        let ended = move |ended: Result<bool, _>| {
            if let Some(lock) = ends.0.take() {
                lock.ends(ended);
            }
        };
        let gives_up = self
            .cluster
            .locks(self.number, self.pages, self.access, Box::new(ended));
        let at_once = match &mut *self.state() {
            State::Asked {
                is_given_up: true, ..
            } => Some(gives_up),
            State::Asked { give_up, .. } => {
                *give_up = Some(gives_up);
                None
            }
            State::Ended(_) | State::Over => None,
        };
        if let Some(gives_up) = at_once {
            gives_up();
        }
    }

    fn ends(&self, ended: Result<bool, Refusal>) {
        let was = {
            let mut state = self.state();
            let next = match &*state {
                State::Asked { .. } => State::Ended(ended.clone()),
                State::Ended(_) | State::Over => State::Over,
            };
            std::mem::replace(&mut *state, next)
        };
        match was {
            State::Asked { waits, .. } => {
                if let Some(answer) = waits {
                    // Who waited may be gone.
                    let _ = answer.give(Tried(ended));
                }
            }
            State::Ended(_) | State::Over => {
                if ended == Ok(true) {
                    self.gives_back();
                }
            }
        }
    }

    /// Nobody has the lock any more.
    pub(super) fn is_over(&self) {
        let was = std::mem::replace(&mut *self.state(), State::Over);
        match was {
            State::Asked { give_up, .. } => {
                if let Some(give_up) = give_up {
                    give_up();
                }
            }
            State::Ended(Ok(true)) => self.gives_back(),
            State::Ended(Ok(false) | Err(_)) | State::Over => {}
        }
    }

    fn gives_back(&self) {
        self.cluster.unlocks(self.number, self.pages, self.access);
    }

    /// Who does not wait is answered when it is known whether the pages are here already: another thread may be
    /// at work on one of them.
    fn are_here(&self, waits: bool, answer: Answer<Tried<bool>>) {
        let give_up = match &mut *self.state() {
            State::Asked {
                waits: place,
                give_up,
                is_given_up,
            } => {
                // Who waited before has called again.
                *place = Some(answer);
                *is_given_up |= !waits;
                give_up.take_if(|_| *is_given_up)
            }
            State::Ended(Ok(true)) => {
                let has = self
                    .cluster
                    .has_locked(self.number, self.pages, self.access);
                let here = if has { Ok(true) } else { Err(Refusal::Unkept) };
                // Who asked may be gone, here and below.
                let _ = answer.give(Tried(here));
                None
            }
            State::Ended(ended) => {
                let _ = answer.give(Tried(ended.clone()));
                None
            }
            State::Over => None,
        };
        if let Some(give_up) = give_up {
            give_up();
        }
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        if let Some(lock) = self.0.take() {
            lock.ends(Err(Refusal::Cluster("the object was closed".into())));
        }
    }
}

/// The port of pages that stay in memory; without a lock they are here.
pub(super) struct OfPages(pub(super) Option<Arc<AtHost>>);

impl PagesCalls for OfPages {
    fn are_here(&mut self, _: Sender, waits: bool, answer: Answer<Tried<bool>>) {
        match &self.0 {
            Some(lock) => lock.are_here(waits, answer),
            None => drop(answer.give(Tried(Ok(true)))),
        }
    }
}
