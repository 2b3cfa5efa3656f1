//! Pages of memory of the cluster that a process has locked at this host.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farpage_abi::{Access, PageRange};
use farpage_port::SendRight;
use farpage_port::interface::Answer;

use crate::cluster::Cluster;
use crate::interface::Tried;

/// One lock.
pub(crate) struct AtHost {
    cluster: Arc<dyn Cluster>,
    number: u64,
    pages: PageRange,
    access: Access,
    state: Mutex<State>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The pages are on their way.
    Asked,
    Locked,
    /// Nobody has the lock any more.
    Over,
}

impl AtHost {
    pub(super) fn new(
        cluster: Arc<dyn Cluster>,
        number: u64,
        pages: PageRange,
        to_write: bool,
    ) -> Self {
        Self {
            cluster,
            number,
            pages,
            access: if to_write {
                Access::Write
            } else {
                Access::Read
            },
            state: Mutex::new(State::Asked),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for the pages. Whoever asked gets the right when they are here, and has the lock as long as that.
    pub(super) fn begins(self: Arc<Self>, right: SendRight, answer: Answer<Tried<SendRight>>) {
        let (number, pages, access) = (self.number, self.pages, self.access);
        let cluster = Arc::clone(&self.cluster);
        let ended = move |ended: Result<(), _>| {
            if ended.is_ok() {
                self.is_locked();
            }
            // Who asked may be gone: the right goes, and the lock with it.
            let _ = answer.give(Tried(ended.map(|()| right)));
        };
        cluster.locks(number, pages, access, Box::new(ended));
    }

    fn is_locked(&self) {
        let is_over = {
            let mut state = self.state();
            let is_over = *state == State::Over;
            *state = State::Locked;
            is_over
        };
        if is_over {
            self.is_over();
        }
    }

    /// Nobody has the lock any more.
    pub(super) fn is_over(&self) {
        let was = std::mem::replace(&mut *self.state(), State::Over);
        if was == State::Locked {
            self.cluster.unlocks(self.number, self.pages, self.access);
        }
    }
}
