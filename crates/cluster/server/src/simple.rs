//! A unit under the simple scheduler, at one host: a client of the server, which is the object's home.
//! There the server is part of the same cell, and what the two tell each other goes no way.

use std::collections::{HashMap, HashSet, VecDeque};

use farpage_object::Access;
use farpage_rules::coherence::{Asked, Central, Host, Hosts, Order, Output, TwinOutput, Violation};
use serde::{Deserialize, Serialize};

use crate::line::Lanes;

/// What clients and server tell each other. Contents go along with what the client gives back, and
/// with what the server supplies if it says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// A client wants to read or to write.
    Asks { to_write: bool, has_copy: bool },
    /// A client that might write gives the contents back.
    Returned { kept: bool },
    /// A client has no copy any more.
    Dropped,
    /// The client may read or write.
    Supply { to_write: bool, contents: bool },
    /// The client gives the contents back, and may keep a copy.
    Recall { keep: bool },
    /// The client drops its copy.
    Drop,
}

impl Message {
    pub(crate) fn has_contents(self) -> bool {
        match self {
            Self::Returned { .. } => true,
            Self::Supply { contents, .. } => contents,
            Self::Asks { .. } | Self::Dropped | Self::Recall { .. } | Self::Drop => false,
        }
    }
}

/// A message of a unit, with its contents.
pub(crate) struct Said {
    pub(crate) unit: u64,
    pub(crate) message: Message,
    pub(crate) contents: Option<Box<[u8]>>,
}

/// What such an object needs at a host besides its cells.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) lanes: Lanes<Said>,
    /// The server's contents that do not fit into paging space.
    pub(crate) unstored: HashMap<u64, Box<[u8]>>,
    /// Units whose contents the host that had them could not read.
    pub(crate) bad: HashSet<u64>,
    /// Its home has died.
    pub(crate) is_homeless: bool,
}

/// What the shell does, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Does {
    /// What the distributed scheduler says; the simple one only to take, to allow and to answer.
    As(Output),
    /// Tell a host, which may be this one.
    Send(Host, Message),
    /// The contents that came are the server's.
    Store,
    /// What the scheduler of release consistency says besides.
    Twinned(TwinOutput),
}

/// What the server wants of a client.
#[derive(Clone, Copy, Debug)]
enum Wants {
    /// The contents.
    Back { keep: bool },
    /// Its copy is to go.
    Gone,
}

#[derive(Clone, Debug)]
pub(crate) struct Simple {
    home: Host,
    allowed: Option<Access>,
    wanted: Option<Access>,
    asked: Option<Access>,
    is_held: bool,
    /// What the server wants, when threads here have had their time.
    told: Option<Wants>,
    /// At home.
    server: Option<Central>,
    does: VecDeque<Does>,
}

impl Simple {
    pub(crate) fn new(own: Host, home: Host) -> Self {
        Self {
            home,
            allowed: None,
            wanted: None,
            asked: None,
            is_held: false,
            told: None,
            server: (own == home).then(Central::new),
            does: VecDeque::new(),
        }
    }

    pub(crate) fn allowed(&self) -> Option<Access> {
        self.allowed
    }

    /// Who may write, as far as this host knows; else the home, which has the contents.
    pub(crate) fn owner(&self) -> Host {
        let writer = self.server.as_ref().and_then(|server| server.holders().0);
        writer.unwrap_or(self.home)
    }

    /// Who has copies; at home, where that is known.
    pub(crate) fn copies(&self) -> Option<Hosts> {
        self.server.as_ref().map(|server| server.holders().1)
    }

    pub(crate) fn wanted(&self) -> Option<Access> {
        self.wanted
    }

    pub(crate) fn is_awaited(&self) -> bool {
        self.is_held && self.told.is_some()
    }

    pub(crate) fn poll(&mut self) -> Option<Does> {
        self.does.pop_front()
    }

    /// A thread of this host waits for an access.
    pub(crate) fn fault(&mut self, access: Access) {
        if self.may(access) {
            return self.answer(access);
        }
        if self.wanted != Some(Access::Write) {
            self.wanted = Some(access);
        }
        self.ask();
    }

    /// The threads that were answered had time enough.
    pub(crate) fn let_go(&mut self) {
        self.is_held = false;
        if let Some(wants) = self.told.take() {
            self.obey(wants);
        }
    }

    /// A copy has gone, as copies may: the server need not know.
    pub(crate) fn forget(&mut self) {
        if self.allowed == Some(Access::Read) && self.asked.is_none() && !self.is_held {
            self.allow(None);
        }
    }

    /// A host has died.
    pub(crate) fn is_gone(&mut self, host: Host) {
        if let Some(server) = &mut self.server {
            // What it wrote and nobody saw is not there: the server's contents count.
            server.is_gone(host);
        }
        self.orders();
    }

    /// # Errors
    /// [`Violation`]; nothing has changed then.
    pub(crate) fn handle(&mut self, from: Host, message: Message) -> Result<(), Violation> {
        match (message, &mut self.server) {
            (Message::Asks { to_write, has_copy }, Some(server)) => server.ask(Asked {
                by: from,
                access: access(to_write),
                has_copy,
            })?,
            (Message::Returned { kept }, Some(server)) => {
                server.returned(from, kept)?;
                self.does.push_back(Does::Store);
            }
            (Message::Dropped, Some(server)) => server.dropped(from)?,
            (Message::Supply { to_write, contents }, _)
                if from == self.home && self.asked == Some(access(to_write)) =>
            {
                self.supplied(access(to_write), contents);
            }
            (Message::Recall { keep }, _)
                if from == self.home && self.allowed == Some(Access::Write) =>
            {
                self.wants(Wants::Back { keep });
            }
            (Message::Drop, _) if from == self.home && self.allowed != Some(Access::Write) => {
                self.wants(Wants::Gone);
            }
            (Message::Asks { .. } | Message::Returned { .. } | Message::Dropped, None)
            | (Message::Supply { .. } | Message::Recall { .. } | Message::Drop, _) => {
                let (by, what) = (from, "an order that does not fit, or to who is no server");
                return Err(Violation { by, what });
            }
        }
        self.orders();
        Ok(())
    }

    fn may(&self, access: Access) -> bool {
        self.allowed == Some(Access::Write) || self.allowed == Some(access)
    }

    fn ask(&mut self) {
        if let (Some(wanted), None) = (self.wanted, self.asked) {
            self.asked = Some(wanted);
            let asks = Message::Asks {
                to_write: wanted == Access::Write,
                has_copy: self.allowed.is_some(),
            };
            self.tell(asks);
        }
    }

    fn supplied(&mut self, access: Access, contents: bool) {
        self.asked = None;
        if contents {
            self.does.push_back(Does::As(Output::Take));
        }
        self.allow(Some(access));
        if self.wanted.is_some_and(|wanted| self.may(wanted)) {
            self.wanted = None;
        }
        self.answer(access);
        self.ask();
    }

    /// The server wants something, now or when threads have had their time.
    fn wants(&mut self, wants: Wants) {
        match self.is_held {
            true => self.told = Some(wants),
            false => self.obey(wants),
        }
    }

    fn obey(&mut self, wants: Wants) {
        match wants {
            Wants::Back { keep } => {
                self.allow(Some(Access::Read));
                if !keep {
                    self.does.push_back(Does::As(Output::Withdraw));
                }
                self.tell(Message::Returned { kept: keep });
                if !keep {
                    self.allow(None);
                }
            }
            Wants::Gone => {
                self.allow(None);
                self.tell(Message::Dropped);
            }
        }
    }

    fn tell(&mut self, message: Message) {
        self.does.push_back(Does::Send(self.home, message));
    }

    fn orders(&mut self) {
        while let Some(order) = self.server.as_mut().and_then(Central::poll_order) {
            let (to, message) = match order {
                Order::Supply {
                    to,
                    access,
                    contents,
                } => {
                    let to_write = access == Access::Write;
                    (to, Message::Supply { to_write, contents })
                }
                Order::Recall { from, keep } => (from, Message::Recall { keep }),
                Order::Drop(host) => (host, Message::Drop),
            };
            self.does.push_back(Does::Send(to, message));
        }
    }

    fn allow(&mut self, access: Option<Access>) {
        self.allowed = access;
        self.does.push_back(Does::As(Output::Allow(access)));
    }

    fn answer(&mut self, access: Access) {
        self.is_held = true;
        self.does.push_back(Does::As(Output::Answer(access)));
    }
}

fn access(to_write: bool) -> Access {
    match to_write {
        true => Access::Write,
        false => Access::Read,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: Host = Host(0);

    fn all(one: &mut Simple) -> Vec<Does> {
        std::iter::from_fn(|| one.poll()).collect()
    }

    #[test]
    fn what_others_want_waits_until_threads_have_had_their_time() {
        let mut one = Simple::new(Host(1), HOME);
        one.fault(Access::Write);
        let (to_write, contents) = (true, true);
        let has_copy = false;
        let asks = Message::Asks { to_write, has_copy };
        assert_eq!(all(&mut one), [Does::Send(HOME, asks)]);
        one.handle(HOME, Message::Supply { to_write, contents })
            .unwrap();
        let write = Some(Access::Write);
        let taken = [
            Output::Take,
            Output::Allow(write),
            Output::Answer(Access::Write),
        ];
        assert_eq!(all(&mut one), taken.map(Does::As));
        one.handle(HOME, Message::Recall { keep: false }).unwrap();
        assert!(one.is_awaited() && all(&mut one).is_empty());
        one.let_go();
        let returned = Does::Send(HOME, Message::Returned { kept: false });
        let allow = |access| Does::As(Output::Allow(access));
        // Nobody here reads on when the server lets another write.
        let withdraw = Does::As(Output::Withdraw);
        let wanted = [allow(Some(Access::Read)), withdraw, returned, allow(None)];
        assert_eq!(all(&mut one), wanted);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut one = Simple::new(Host(1), HOME);
        let (to_write, contents, kept) = (false, true, false);
        let has_copy = false;
        for message in [
            Message::Asks { to_write, has_copy },
            Message::Returned { kept },
            Message::Dropped,
            Message::Supply { to_write, contents },
            Message::Recall { keep: true },
        ] {
            assert!(one.handle(HOME, message).is_err(), "{message:?}");
        }
        one.fault(Access::Read);
        let supply = Message::Supply { to_write, contents };
        assert!(one.handle(Host(2), supply).is_err(), "of no server");
        assert!(one.handle(HOME, supply).is_ok());
        let mut home = Simple::new(HOME, HOME);
        assert!(home.handle(Host(1), Message::Returned { kept }).is_err());
        assert!(home.handle(Host(1), Message::Dropped).is_err());
    }
}
