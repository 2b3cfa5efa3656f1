//! What is counted of each unit at this host, and told of it.

use farpage_object::Access;
use farpage_rules::coherence::{Host, Message, Output, TwinOutput};
use serde::{Deserialize, Serialize};

use crate::changed::Changed;
use crate::simple::Does;

/// What was done for a unit at one host so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitCounts {
    /// Times that threads waited for it to read, when another host had it.
    pub read_misses: u32,
    /// The same, to write.
    pub write_misses: u32,
    /// Times that it was here to be read, and threads waited for it to write.
    pub upgrades: u32,
    /// Messages to other hosts.
    pub sent: u32,
    /// Messages of other hosts.
    pub received: u32,
    /// Of those sent, requests of other hosts that were sent on: this host was no owner any more.
    pub forwarded: u32,
    /// Times that it was here and was taken away, since another host wrote.
    pub taken: u32,
}

impl UnitCounts {
    /// Times that threads waited.
    #[must_use]
    pub fn faults(&self) -> u64 {
        [self.read_misses, self.write_misses, self.upgrades]
            .into_iter()
            .map(u64::from)
            .sum()
    }

    /// Messages both ways.
    #[must_use]
    pub fn messages(&self) -> u64 {
        u64::from(self.sent) + u64::from(self.received)
    }

    /// A thread waits for it, which may do so much with it.
    pub(crate) fn miss(&mut self, allowed: Option<Access>, wanted: Access) {
        more(match (allowed, wanted) {
            (Some(_), _) => &mut self.upgrades,
            (None, Access::Read) => &mut self.read_misses,
            (None, Access::Write) => &mut self.write_misses,
        });
    }

    /// A message has come.
    pub(crate) fn came(&mut self) {
        more(&mut self.received);
    }

    /// Its scheduler, at this host, says what to do.
    pub(crate) fn does(&mut self, own: Host, all: &[Does]) {
        for one in all {
            match one {
                Does::As(Output::Send(_, message) | Output::Show { message, .. }) => {
                    more(&mut self.sent);
                    if matches!(message, Message::Request(request) if request.by != own) {
                        more(&mut self.forwarded);
                    }
                }
                Does::As(Output::Allow(None)) => more(&mut self.taken),
                Does::As(
                    Output::Allow(Some(_))
                    | Output::Take
                    | Output::Withdraw
                    | Output::Lost
                    | Output::Sealed
                    | Output::Keep(_)
                    | Output::Restore(_)
                    | Output::Answer(_),
                )
                | Does::Store => {}
                Does::Twinned(TwinOutput::Send(..) | TwinOutput::Again { .. }) => {
                    more(&mut self.sent);
                }
                // Counted when something differs.
                Does::Twinned(_) => {}
                Does::Send(to, _) if *to == own => {}
                Does::Send(..) => more(&mut self.sent),
            }
        }
    }
}

/// One more; the largest number stays.
fn more(counter: &mut u32) {
    *counter = counter.saturating_add(1);
}

/// What a host has of a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Holds {
    /// It owns it.
    Owner,
    /// It has a copy.
    Copy,
    /// Nothing.
    #[default]
    Nothing,
}

/// A unit at one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitFigures {
    /// Its number in the object.
    pub unit: u64,
    /// What is there of it.
    pub holds: Holds,
    /// Who owns it, as far as this host knows.
    pub owner: u8,
    /// Who has copies, a bit for each host; `None`: that is for the owner to know.
    pub copies: Option<u64>,
    /// What was done for it.
    pub counts: UnitCounts,
    /// What this host has changed, if that is looked at.
    pub changed: Option<Changed>,
}

/// Messages to another host so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flow {
    /// Which.
    pub to: u8,
    /// How many.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use farpage_rules::coherence::{Epoch, Request};

    use super::*;

    #[test]
    fn what_is_sent_on_for_others_counts_as_that() {
        let request = |by| {
            Output::Send(
                Host(2),
                Message::Request(Request {
                    by: Host(by),
                    to_write: true,
                    has_copy: false,
                    known: Epoch(0),
                    hops: 0,
                    to_copy: false,
                }),
            )
        };
        let mut counts = UnitCounts::default();
        let own = Host(1);
        let all = [request(1), request(3), Output::Allow(None)].map(Does::As);
        counts.does(own, &all);
        assert_eq!((counts.sent, counts.forwarded, counts.taken), (2, 1, 1));
        let to = |host| Does::Send(Host(host), crate::simple::Message::Drop);
        counts.does(own, &[to(1), to(2)]);
        assert_eq!(counts.sent, 3, "what it tells itself goes no way");
        counts.miss(None, Access::Read);
        counts.miss(Some(Access::Read), Access::Write);
        assert_eq!(
            (counts.read_misses, counts.upgrades, counts.faults()),
            (1, 1, 2)
        );
        counts.sent = u32::MAX;
        counts.does(own, &[to(2)]);
        assert_eq!(counts.sent, u32::MAX);
    }
}
