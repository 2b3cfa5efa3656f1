//! The scheduler of a unit, whichever its object has.

use farpage_abi::Access;
use farpage_coherence::{Host, Hosts, Page};

use crate::simple::{Does, Simple};

/// One of the two.
pub(crate) enum Scheduled {
    Distributed(Page),
    Simple(Simple),
}

impl Scheduled {
    /// That of an object that is not simple.
    pub(crate) fn page(&mut self) -> Option<&mut Page> {
        match self {
            Self::Distributed(page) => Some(page),
            Self::Simple(_) => None,
        }
    }

    /// That of an object that is.
    pub(crate) fn simple(&mut self) -> Option<&mut Simple> {
        match self {
            Self::Simple(simple) => Some(simple),
            Self::Distributed(_) => None,
        }
    }

    /// What tasks of this host may do with the unit.
    pub(crate) fn allowed(&self) -> Option<Access> {
        match self {
            Self::Distributed(page) => page.allowed(),
            Self::Simple(simple) => simple.allowed(),
        }
    }

    /// True when what is at this host may be nowhere else.
    pub(crate) fn is_owner(&self) -> bool {
        match self {
            Self::Distributed(page) => page.is_owner(),
            Self::Simple(simple) => simple.allowed() == Some(Access::Write),
        }
    }

    /// Who owns the unit, as far as this host knows.
    pub(crate) fn owner(&self) -> Host {
        match self {
            Self::Distributed(page) => page.owner(),
            Self::Simple(simple) => simple.owner(),
        }
    }

    /// Who has copies, where that is known.
    pub(crate) fn copies(&self) -> Option<Hosts> {
        match self {
            Self::Distributed(page) => page.copies(),
            Self::Simple(simple) => simple.copies(),
        }
    }

    /// Hosts that have copies of what this host has to give when it leaves; `None`: that is nothing.
    pub(crate) fn to_give(&self) -> Option<Hosts> {
        match self {
            Self::Distributed(page) => page.copies(),
            Self::Simple(simple) => {
                (simple.allowed() == Some(Access::Write)).then_some(Hosts::NONE)
            }
        }
    }

    /// What threads here wait for.
    pub(crate) fn wanted(&self) -> Option<Access> {
        match self {
            Self::Distributed(page) => page.wanted(),
            Self::Simple(simple) => simple.wanted(),
        }
    }

    /// True when others wait for threads here to have had their time.
    pub(crate) fn is_awaited(&self) -> bool {
        match self {
            Self::Distributed(page) => page.is_awaited(),
            Self::Simple(simple) => simple.is_awaited(),
        }
    }

    /// They have.
    pub(crate) fn let_go(&mut self) {
        match self {
            Self::Distributed(page) => page.let_go(),
            Self::Simple(simple) => simple.let_go(),
        }
    }

    /// A copy has gone, as copies may.
    pub(crate) fn forget(&mut self) {
        match self {
            Self::Distributed(page) => {
                page.forget();
            }
            Self::Simple(simple) => simple.forget(),
        }
    }

    /// A thread waits for an access.
    pub(crate) fn fault(&mut self, access: Access) {
        match self {
            Self::Distributed(page) => page.fault(access),
            Self::Simple(simple) => simple.fault(access),
        }
    }

    /// What is to be done next.
    pub(crate) fn poll(&mut self) -> Option<Does> {
        match self {
            Self::Distributed(page) => page.poll_output().map(Does::As),
            Self::Simple(simple) => simple.poll(),
        }
    }
}
