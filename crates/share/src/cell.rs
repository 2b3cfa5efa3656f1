//! A unit at this host: its scheduler, and what waits for it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use farpage_abi::Access;
use farpage_coherence::{Host, Message};
use farpage_pagers::Ticket;

use crate::scheduled::Scheduled;

/// What happens to a unit.
pub(crate) enum Event {
    /// The kernel wants pages of it.
    Wanted(Ticket),
    /// A thread waits to write to a page of it that is here.
    Unlock,
    /// A peer sent a message, and contents where they belong to it.
    Came {
        from: Host,
        message: Message,
        contents: Option<Box<[u8]>>,
    },
    /// Threads that were let in had time enough.
    LetGo,
}

pub(crate) struct Cell {
    pub(crate) unit: Scheduled,
    pub(crate) inbox: VecDeque<Event>,
    /// Somebody is at work.
    pub(crate) is_busy: bool,
    /// What the kernel waits for.
    pub(crate) tickets: Vec<Ticket>,
    /// Contents that are neither with the kernel nor in paging space: they have just come, or are
    /// a copy that another host was told of.
    pub(crate) contents: Option<Box<[u8]>>,
    /// Nobody but this host has ever had it: what is nowhere is zeros.
    pub(crate) is_new: bool,
    /// When threads were last let in.
    let_in: Option<Instant>,
    /// It will be told when those have had their time.
    pub(crate) is_timed: bool,
}

impl Cell {
    pub(crate) fn new(unit: Scheduled, is_new: bool) -> Self {
        Self {
            unit,
            inbox: VecDeque::new(),
            is_busy: false,
            tickets: Vec::new(),
            contents: None,
            is_new,
            let_in: None,
            is_timed: false,
        }
    }

    /// Threads are let in now.
    pub(crate) fn lets_in(&mut self) {
        self.let_in = Some(Instant::now());
    }

    /// When those who were let in will have had `time`; `None` when they have.
    pub(crate) fn until(&self, time: Duration) -> Option<Instant> {
        let until = self.let_in? + time;
        (Instant::now() < until).then_some(until)
    }

    /// The tickets that an access is enough for.
    pub(crate) fn tickets_for(&mut self, allowed: Access) -> Vec<Ticket> {
        let fits = |ticket: &mut Ticket| allowed == Access::Write || ticket.access() == allowed;
        self.tickets.extract_if(.., fits).collect()
    }
}
