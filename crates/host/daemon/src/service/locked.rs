//! Locks of shared memory, which a thread of its own makes.

use std::os::fd::OwnedFd;

use farpage_client::interface::{LockedCalls, Tried};
use farpage_client::locks::{LockRefusal, LockWanted};
use farpage_port::interface::Answer;
use farpage_port::{Name, SendRight, Sender};

use super::{Held, Service, identity_of};
use crate::locks::{self, Caller, FramesTold, Memory, Work};

impl Service {
    /// Processes of one user may have so many bytes of shared memory locked (a limit of 0, which is that
    /// without this, allows nothing), and these are told their frames.
    #[must_use]
    pub fn with_locks(self, limit_bytes: u64, frames: FramesTold) -> Self {
        self.locks.tell(Work::Options(limit_bytes, frames));
        self
    }

    pub(super) fn lock_memory(
        &mut self,
        caller: Sender,
        memory: Memory,
        wanted: LockWanted,
        answer: locks::Locked,
    ) {
        if let Memory::File(file) = &memory
            && let Some(name) = self.own_name(file)
        {
            // Who asked may have gone.
            answer.give(Tried(Err(LockRefusal::Own(name).into())));
            return;
        }
        let given = self.make_lock();
        let caller = Caller::new(caller);
        self.locks
            .ask(Work::Lock(memory, wanted, caller, given, answer));
    }

    pub(super) fn borrow_locked(&mut self, caller: Sender, name: String, answer: locks::Locked) {
        let given = self.make_lock();
        self.locks
            .ask(Work::Borrow(name, Caller::new(caller), given, answer));
    }

    /// A port that stands for a lock: when nobody has the right, nobody has the lock.
    fn make_lock(&mut self) -> (Name, SendRight) {
        let (port, right) = self.make_port();
        let key = port.name();
        self.held.insert(key, Held::Locked { _port: port });
        (key, right)
    }

    /// The name of the object whose memory file this is.
    fn own_name(&self, file: &OwnedFd) -> Option<String> {
        let port = self.files.get(&identity_of(file)?)?;
        match self.held.get(port) {
            Some(Held::Object(entry)) => Some(entry.name.clone()),
            Some(
                Held::Name(_)
                | Held::Mapping(_)
                | Held::Wired(_)
                | Held::Locked { .. }
                | Held::Process { .. },
            )
            | None => None,
        }
    }
}

/// A lock's port.
pub(super) struct OfLock<'a>(pub(super) &'a Service, pub(super) Name);

impl LockedCalls for OfLock<'_> {
    fn lend(&mut self, _: Sender, name: String, answer: Answer<Tried<()>>) {
        self.0.locks.ask(Work::Lend(self.1, name, answer));
    }

    fn check(&mut self, _: Sender, answer: Answer<Tried<()>>) {
        self.0.locks.ask(Work::Check(self.1, answer));
    }

    fn frames(&mut self, caller: Sender, first: u64, pages: u64, answer: Answer<Tried<Vec<u64>>>) {
        let caller = Caller::new(caller);
        let work = Work::Frames(self.1, first, pages, caller, answer);
        self.0.locks.ask(work);
    }
}
