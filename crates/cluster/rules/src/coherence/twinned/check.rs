//! What other hosts may send of such a page, and when: all else is refused, and changes nothing.

use super::{Asked, TwinMessage, Twinned};
use crate::coherence::hosts::{HOSTS_MAX, Host};
use crate::coherence::message::{Epoch, Violation};

impl Twinned {
    pub(super) fn check(&self, from: Host, message: TwinMessage) -> Result<(), Violation> {
        let waits = self.asked.is_some() || self.diffs.is_under_way();
        let what = match message {
            _ if from.0 >= HOSTS_MAX || from == self.own => {
                "a message as a host that cannot be there"
            }
            TwinMessage::Ask { .. } | TwinMessage::Diff { .. }
                if self.later.iter().any(|later| later.by() == from) =>
            {
                "a second thing while it waits for the first"
            }
            TwinMessage::Diff { .. } if self.has_diff_of(from) => {
                "a second diff while the first is put in"
            }
            TwinMessage::Copy if self.asked != Some(Asked::Copy) => "a copy that was not asked for",
            TwinMessage::Own { .. } if self.asked != Some(Asked::Own) => {
                "a page that was not asked for"
            }
            TwinMessage::Own { epoch } if epoch <= self.epoch || epoch > Epoch::MAX => {
                "a page of an epoch that cannot be"
            }
            TwinMessage::Applied { number } if number > self.diffs.begun => {
                "that it has a diff, which it was not sent"
            }
            TwinMessage::Elsewhere { owner }
                if !waits || owner == self.own || owner.0 >= HOSTS_MAX =>
            {
                "who owns a page, which nobody asked, or who cannot"
            }
            TwinMessage::Lost if !waits => "that a page is lost, which nobody asked for",
            TwinMessage::Ask { .. }
            | TwinMessage::Diff { .. }
            | TwinMessage::Copy
            | TwinMessage::Own { .. }
            | TwinMessage::Applied { .. }
            | TwinMessage::Elsewhere { .. }
            | TwinMessage::Lost => return Ok(()),
        };
        Err(Violation { by: from, what })
    }

    /// True when a diff of a host is being put in.
    fn has_diff_of(&self, from: Host) -> bool {
        let mut all = self.applying.iter().filter_map(|one| one.of);
        all.any(|(of, _)| of == from)
    }
}
