//! What becomes of a page after a host has died.
//!
//! Every survivor reports, and the home decides from all reports. Two things make that simple:
//! whoever may read at a survivor has the last contents, since nobody writes before all copies are
//! gone; and whoever of the survivors owns the page has them too, since what survivors sent each
//! other has come before they report. If neither is there, the last contents died with their owner.

use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::coherence::hosts::{Host, Hosts};
use crate::coherence::message::{Epoch, Violation};

/// What a survivor has of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Standing {
    /// No contents that count.
    Nothing,
    /// A copy.
    Copy,
    /// The page, with its contents.
    Owner {
        /// They may be nowhere else: it has written since it last mirrored or flushed them.
        is_written: bool,
        /// Else they are elsewhere as of this version; zero are the first contents of the page.
        version: Epoch,
    },
    /// It answers for the page, whose contents were lost before.
    Lost,
}

/// What a survivor says of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Report {
    /// What it has.
    pub standing: Standing,
    /// What it last knew.
    pub epoch: Epoch,
    /// Who owned the page then, as far as it knew.
    pub owner: Host,
    /// It keeps contents of this version for another host ([`crate::coherence::Mirror::kept`]).
    pub kept: Option<Epoch>,
}

/// What is known of a page whose contents no survivor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Known {
    /// All that anybody saw is with survivors: the object is mirrored, and one host died since
    /// everything was on two.
    Mirrored,
    /// Nobody ever wrote to it: a survivor or a store bears witness.
    NeverWritten,
    /// Its owner may have written to it, and told nobody.
    Nothing,
}

/// Which contents a page has after a death.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Contents {
    /// Those that the new owner has.
    Current,
    /// Those that the new owner keeps of this version: nobody who lives has seen later ones.
    Kept(Epoch),
    /// The first ones, as if nobody had touched it: nobody who lives has seen others.
    First,
    /// None: who touches it is told so.
    Lost {
        /// A host keeps older ones, which an object may go back to if that is its policy.
        older: Option<(Host, Epoch)>,
    },
}

/// What the home decides of a page, for all hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Verdict {
    /// Who owns it.
    pub owner: Host,
    /// Later than all that anybody knew.
    pub epoch: Epoch,
    /// Who has copies besides.
    pub copies: Hosts,
    /// What the owner has.
    pub contents: Contents,
    /// Another host keeps the same contents.
    pub is_kept: bool,
}

impl Verdict {
    /// Of a page that the home owns, since nobody had reported it and the home of before lives.
    #[must_use]
    pub fn untouched(home: Host) -> Self {
        Self {
            owner: home,
            epoch: Epoch(0),
            copies: Hosts::NONE,
            contents: Contents::Current,
            is_kept: true,
        }
    }
}

/// The reports of a page, at its home.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Recovery {
    home: Host,
    reports: Vec<(Host, Report)>,
}

impl Recovery {
    /// No report yet. The home reports as all do, also what it has not touched: as the owner if it
    /// was the home before, else with nothing.
    #[must_use]
    pub fn new(home: Host) -> Self {
        let reports = Vec::new();
        Self { home, reports }
    }

    /// A survivor reports.
    ///
    /// # Errors
    /// When it cannot be: twice, or a second owner.
    pub fn add(&mut self, by: Host, report: Report) -> Result<(), Violation> {
        let answers = |report: &Report| match report.standing {
            Standing::Owner { .. } | Standing::Lost => true,
            Standing::Nothing | Standing::Copy => false,
        };
        let has =
            |which: fn(&Standing) -> bool| self.reports.iter().any(|(_, one)| which(&one.standing));
        let what = if self.reports.iter().any(|(host, _)| *host == by) {
            "two reports of one page"
        } else if answers(&report) && self.reports.iter().any(|(_, one)| answers(one)) {
            "that it owns a page which another owns"
        } else if report.standing == Standing::Copy && has(|one| *one == Standing::Lost)
            || report.standing == Standing::Lost && has(|one| *one == Standing::Copy)
        {
            "a copy of a page that is lost, or that a page is lost of which another has a copy"
        } else {
            self.reports.push((by, report));
            return Ok(());
        };
        Err(Violation { by, what })
    }

    /// What is to be, when all survivors have reported what they have.
    #[must_use]
    pub fn verdict(&self, known: Known) -> Verdict {
        let epochs = self
            .reports
            .iter()
            .map(|(_, one)| one.epoch.max(one.kept.unwrap_or_default()));
        let epoch = Epoch(epochs.max().unwrap_or_default().0 + 1);
        let (owner, contents) = match self.owner() {
            Some((owner, Standing::Lost)) => (owner, self.lost()),
            Some((owner, Standing::Owner { .. } | Standing::Copy | Standing::Nothing)) => {
                (owner, Contents::Current)
            }
            None => match (known, self.kept()) {
                (Known::Mirrored, Some((owner, version))) => (owner, Contents::Kept(version)),
                (Known::Mirrored, None) | (Known::NeverWritten, _) => (self.home, Contents::First),
                (Known::Nothing, _) => (self.home, self.lost()),
            },
        };
        let mut copies = Hosts::NONE;
        for (host, report) in &self.reports {
            if report.standing == Standing::Copy && *host != owner {
                copies.add(*host);
            }
        }
        Verdict {
            owner,
            epoch,
            copies,
            contents,
            is_kept: self.is_kept(owner),
        }
    }

    /// Who owns it, else who is to: of those that have copies the home, or the lowest.
    fn owner(&self) -> Option<(Host, Standing)> {
        let is_owner = |(_, one): &&(Host, Report)| match one.standing {
            Standing::Owner { .. } | Standing::Lost => true,
            Standing::Copy | Standing::Nothing => false,
        };
        let copies = self
            .reports
            .iter()
            .filter(|(_, one)| one.standing == Standing::Copy);
        let found = self.reports.iter().find(is_owner);
        let found = found.or_else(|| copies.min_by_key(|(host, _)| (*host != self.home, *host)));
        found.map(|(host, one)| (*host, one.standing))
    }

    /// The latest version that somebody keeps, at the home if it has it too.
    fn kept(&self) -> Option<(Host, Epoch)> {
        let kept = self
            .reports
            .iter()
            .filter_map(|(host, one)| Some((*host, one.kept?)));
        kept.min_by_key(|(host, version)| (core::cmp::Reverse(*version), *host != self.home, *host))
    }

    fn lost(&self) -> Contents {
        let older = self.kept();
        Contents::Lost { older }
    }

    /// True when what the owner has is also with another.
    fn is_kept(&self, owner: Host) -> bool {
        let standing = self.reports.iter().find(|(host, _)| *host == owner);
        match standing.map(|(_, one)| one.standing) {
            Some(Standing::Owner {
                is_written: false,
                version,
            }) => {
                version == Epoch(0)
                    || self.reports.iter().any(|(host, one)| {
                        *host != owner && one.kept.is_some_and(|kept| kept >= version)
                    })
            }
            Some(
                Standing::Owner {
                    is_written: true, ..
                }
                | Standing::Copy
                | Standing::Nothing
                | Standing::Lost,
            )
            | None => false,
        }
    }
}
