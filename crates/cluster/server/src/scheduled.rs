//! The scheduler of a unit, whichever its object has.

use farpage_object::Access;
use farpage_rules::coherence::{
    Host, Hosts, Page, Report, TwinOutput, Twinned, Verdict, Violation,
};

use crate::simple::{Does, Simple};

/// One of the three.
pub(crate) enum Scheduled {
    Distributed(Page),
    Simple(Simple),
    /// Release consistency.
    Twinned(Box<Twinned>),
}

impl Scheduled {
    /// That of an object that is not simple.
    pub(crate) fn page(&mut self) -> Option<&mut Page> {
        match self {
            Self::Distributed(page) => Some(page),
            Self::Simple(_) | Self::Twinned(_) => None,
        }
    }

    /// That of an object that is.
    pub(crate) fn simple(&mut self) -> Option<&mut Simple> {
        match self {
            Self::Simple(simple) => Some(simple),
            Self::Distributed(_) | Self::Twinned(_) => None,
        }
    }

    /// That of an object with release consistency.
    pub(crate) fn twinned(&mut self) -> Option<&mut Twinned> {
        match self {
            Self::Twinned(page) => Some(page),
            Self::Distributed(_) | Self::Simple(_) => None,
        }
    }

    /// A host has died.
    pub(crate) fn freeze(&mut self) {
        match self {
            Self::Distributed(page) => page.freeze(),
            Self::Twinned(page) => page.freeze(),
            // It needs no recovery.
            Self::Simple(_) => {}
        }
    }

    /// What this host has of the unit; none with the simple scheduler.
    pub(crate) fn report(&self) -> Option<Report> {
        match self {
            Self::Distributed(page) => Some(page.report()),
            Self::Twinned(page) => Some(page.report()),
            Self::Simple(_) => None,
        }
    }

    /// The home has decided.
    pub(crate) fn resume(&mut self, by: Host, verdict: &Verdict) -> Result<(), Violation> {
        match self {
            Self::Distributed(page) => page.resume(by, verdict),
            Self::Twinned(page) => page.resume(by, verdict),
            Self::Simple(_) => Ok(()),
        }
    }

    /// True when this host has yet to hear that others have what it wrote.
    pub(crate) fn is_unreleased(&self) -> bool {
        match self {
            Self::Twinned(page) => page.is_unreleased(),
            Self::Distributed(_) | Self::Simple(_) => false,
        }
    }

    /// What tasks of this host may do with the unit.
    pub(crate) fn allowed(&self) -> Option<Access> {
        match self {
            Self::Distributed(page) => page.allowed(),
            Self::Simple(simple) => simple.allowed(),
            Self::Twinned(page) => page.allowed(),
        }
    }

    /// True when what is at this host may be nowhere else.
    pub(crate) fn is_owner(&self) -> bool {
        match self {
            Self::Distributed(page) => page.is_owner(),
            Self::Simple(simple) => simple.allowed() == Some(Access::Write),
            Self::Twinned(page) => page.is_owner(),
        }
    }

    /// Who owns the unit, as far as this host knows.
    pub(crate) fn owner(&self) -> Host {
        match self {
            Self::Distributed(page) => page.owner(),
            Self::Simple(simple) => simple.owner(),
            Self::Twinned(page) => page.owner(),
        }
    }

    /// Who has copies, where that is known.
    pub(crate) fn copies(&self) -> Option<Hosts> {
        match self {
            Self::Distributed(page) => page.copies(),
            Self::Simple(simple) => simple.copies(),
            Self::Twinned(_) => None,
        }
    }

    /// Hosts that have copies of what this host has to give when it leaves; `None`: that is nothing.
    pub(crate) fn to_give(&self) -> Option<Hosts> {
        match self {
            Self::Distributed(page) => page.copies(),
            Self::Simple(simple) => {
                (simple.allowed() == Some(Access::Write)).then_some(Hosts::NONE)
            }
            Self::Twinned(page) => page.has_to_give().then_some(Hosts::NONE),
        }
    }

    /// What threads here wait for.
    pub(crate) fn wanted(&self) -> Option<Access> {
        match self {
            Self::Distributed(page) => page.wanted(),
            Self::Simple(simple) => simple.wanted(),
            Self::Twinned(page) => page.wanted(),
        }
    }

    /// True when others wait for threads here to have had their time.
    pub(crate) fn is_awaited(&self) -> bool {
        match self {
            // Who waits for a lock waits longer.
            Self::Distributed(page) => page.is_held() && page.is_awaited(),
            Self::Simple(simple) => simple.is_awaited(),
            Self::Twinned(page) => page.is_awaited(),
        }
    }

    /// They have.
    pub(crate) fn let_go(&mut self) {
        match self {
            Self::Distributed(page) => page.let_go(),
            Self::Simple(simple) => simple.let_go(),
            Self::Twinned(page) => page.let_go(),
        }
    }

    /// A copy has gone, as copies may.
    pub(crate) fn forget(&mut self) {
        match self {
            Self::Distributed(page) => {
                page.forget();
            }
            Self::Simple(simple) => simple.forget(),
            Self::Twinned(page) => {
                page.forget();
            }
        }
    }

    /// A thread waits for an access.
    pub(crate) fn fault(&mut self, access: Access) {
        match self {
            Self::Distributed(page) => page.fault(access),
            Self::Simple(simple) => simple.fault(access),
            Self::Twinned(page) => page.fault(access),
        }
    }

    /// What is to be done next.
    pub(crate) fn poll(&mut self) -> Option<Does> {
        match self {
            Self::Distributed(page) => page.poll_output().map(Does::As),
            Self::Simple(simple) => simple.poll(),
            Self::Twinned(page) => Some(match page.poll_output()? {
                TwinOutput::As(output) => Does::As(output),
                output => Does::Twinned(output),
            }),
        }
    }
}
