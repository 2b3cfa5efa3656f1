//! The simple scheduler: a server that has a page's contents whenever nobody may write it.
//!
//! Who asks has the page in the order of asking. A host that may write is asked for the contents
//! back before another may read or write, and keeps a copy when the next one only reads; copies are
//! dropped, and known to be, before anybody writes. So a fault costs at most four messages, and two
//! more for each copy that a write makes old. What the server and one host tell each other arrives
//! in order.

use alloc::collections::VecDeque;

use farpage_object::Access;

use crate::coherence::hosts::{Host, Hosts};
use crate::coherence::message::Violation;

/// What a host asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Asked {
    /// Who.
    pub by: Host,
    /// To read, or to write.
    pub access: Access,
    /// It has a copy, unless it was told to drop it just now.
    pub has_copy: bool,
}

/// What the server tells hosts, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// The host may do this with the page.
    Supply {
        /// Who.
        to: Host,
        /// What.
        access: Access,
        /// The contents go along: it has none.
        contents: bool,
    },
    /// The host gives the contents back ([`Central::returned`]) and may not write any more.
    Recall {
        /// Who.
        from: Host,
        /// It keeps a copy, and may read it.
        keep: bool,
    },
    /// The host drops its copy, and says so ([`Central::dropped`]).
    Drop(Host),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    /// The server has the contents, and these hosts have copies.
    Shared { copies: Hosts },
    /// This host may write.
    Lent { to: Host },
    /// It was asked for the contents, and may keep a copy.
    Recalled { from: Host, keep: bool },
    /// These still have copies that are to be dropped; who asked may have one.
    Dropping { copies: Hosts, left: Hosts },
}

/// A page at its server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Central {
    state: State,
    waiting: VecDeque<Asked>,
    orders: VecDeque<Order>,
}

impl Default for Central {
    fn default() -> Self {
        Self::new()
    }
}

impl Central {
    /// Who may write it, and who has copies of it.
    #[must_use]
    pub fn holders(&self) -> (Option<Host>, Hosts) {
        match self.state {
            State::Shared { copies } => (None, copies),
            State::Lent { to } | State::Recalled { from: to, .. } => (Some(to), Hosts::NONE),
            State::Dropping { copies, left } => {
                (None, Hosts::all(copies.iter().chain(left.iter())))
            }
        }
    }

    /// A page that nobody has yet.
    #[must_use]
    pub fn new() -> Self {
        let copies = Hosts::NONE;
        Self {
            state: State::Shared { copies },
            waiting: VecDeque::new(),
            orders: VecDeque::new(),
        }
    }

    /// What is to be told next.
    pub fn poll_order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    /// A host asks.
    ///
    /// # Errors
    /// When it may do so already, or waits for it.
    pub fn ask(&mut self, asked: Asked) -> Result<(), Violation> {
        let may_write = self.state == (State::Lent { to: asked.by });
        if may_write || self.waiting.iter().any(|other| other.by == asked.by) {
            let (by, what) = (asked.by, "a request for what it has, or waits for");
            return Err(Violation { by, what });
        }
        self.waiting.push_back(asked);
        self.go_on();
        Ok(())
    }

    /// The host that may write gives the contents back: it was asked to, or needs the room. It has
    /// `kept` a copy.
    ///
    /// # Errors
    /// When it may not write.
    pub fn returned(&mut self, by: Host, kept: bool) -> Result<(), Violation> {
        let may_keep = match self.state {
            State::Lent { to } if to == by => true,
            State::Recalled { from, keep } if from == by => keep,
            State::Lent { .. }
            | State::Recalled { .. }
            | State::Shared { .. }
            | State::Dropping { .. } => {
                let what = "contents that it may not write";
                return Err(Violation { by, what });
            }
        };
        if kept && !may_keep {
            let what = "that it keeps a copy";
            return Err(Violation { by, what });
        }
        let mut copies = Hosts::NONE;
        if kept {
            copies.add(by);
        }
        self.state = State::Shared { copies };
        self.go_on();
        Ok(())
    }

    /// A host has dropped its copy: it was told to, or needs the room.
    ///
    /// # Errors
    /// When it has none.
    pub fn dropped(&mut self, by: Host) -> Result<(), Violation> {
        let had = match &mut self.state {
            State::Shared { copies } => copies.remove(by),
            State::Dropping { copies, left } => copies.remove(by) | left.remove(by),
            State::Lent { .. } | State::Recalled { .. } => false,
        };
        if !had {
            let what = "that it dropped a copy, of which it had none";
            return Err(Violation { by, what });
        }
        self.go_on();
        Ok(())
    }

    /// A host has died. True when it may have written: what it wrote since it got the page is lost,
    /// and the server's contents count.
    pub fn is_gone(&mut self, host: Host) -> bool {
        self.waiting.retain(|asked| asked.by != host);
        let lost = match &mut self.state {
            State::Shared { copies } => {
                copies.remove(host);
                false
            }
            State::Dropping { copies, left } => {
                copies.remove(host);
                left.remove(host);
                false
            }
            State::Lent { to: owner } | State::Recalled { from: owner, .. } => *owner == host,
        };
        if lost {
            let copies = Hosts::NONE;
            self.state = State::Shared { copies };
        }
        self.go_on();
        lost
    }

    fn go_on(&mut self) {
        if let State::Dropping { copies, left } = self.state
            && left.is_empty()
        {
            self.state = State::Shared { copies };
        }
        while let Some(next) = self.waiting.front().copied() {
            match &mut self.state {
                State::Shared { copies } if next.access == Access::Read => {
                    copies.add(next.by);
                    self.supply(next, true);
                }
                State::Shared { copies } => {
                    let others = copies.less(Hosts::of(next.by));
                    let has_copy = next.has_copy && copies.has(next.by);
                    if others.is_empty() {
                        self.state = State::Lent { to: next.by };
                        self.supply(next, !has_copy);
                        continue;
                    }
                    self.orders.extend(others.iter().map(Order::Drop));
                    let copies = copies.less(others);
                    let left = others;
                    self.state = State::Dropping { copies, left };
                    return;
                }
                State::Lent { to } => {
                    let (from, keep) = (*to, next.access == Access::Read);
                    self.orders.push_back(Order::Recall { from, keep });
                    self.state = State::Recalled { from, keep };
                    return;
                }
                State::Recalled { .. } | State::Dropping { .. } => return,
            }
        }
    }

    fn supply(&mut self, asked: Asked, contents: bool) {
        self.waiting.pop_front();
        let (to, access) = (asked.by, asked.access);
        self.orders.push_back(Order::Supply {
            to,
            access,
            contents,
        });
    }
}
