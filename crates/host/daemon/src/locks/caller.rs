//! Who asks, and what Linux says of it.

use std::fs;

use farpage_port::Sender;
use rustix::process::getegid;

use crate::service::identity::identity;

/// A process that asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) pid: u32,
}

impl Caller {
    pub(crate) fn new(sender: Sender) -> Self {
        let (uid, pid) = identity(sender);
        let gid = match sender {
            Sender::Peer { gid, .. } => gid,
            Sender::Own | Sender::Notice => getegid().as_raw(),
        };
        Self { uid, gid, pid }
    }

    /// May see and use what is `uid`'s.
    pub(super) fn is(&self, uid: u32) -> bool {
        self.uid == uid || self.uid == 0
    }

    pub(super) fn is_in(&self, group: u32) -> bool {
        let more = || {
            let groups = self.status("Groups:");
            let groups = groups.iter().flat_map(|line| line.split_whitespace());
            groups
                .filter_map(|number| number.parse().ok())
                .any(|one: u32| one == group)
        };
        self.gid == group || more()
    }

    /// True when it has a capability that counts here: not in a user namespace of its own.
    pub(super) fn has(&self, capability: u32) -> bool {
        let effective = self.status("CapEff:");
        let effective = effective.and_then(|line| u64::from_str_radix(line.trim(), 16).ok());
        effective.is_some_and(|set| set >> capability & 1 != 0) && self.shares("user")
    }

    /// True when it is in the same namespace as the host kernel.
    pub(super) fn shares(&self, namespace: &str) -> bool {
        let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/{namespace}")).ok();
        let own = of("self");
        own.is_some() && own == of(&self.pid.to_string())
    }

    /// A line of what Linux says of it, unless its number has become another user's.
    fn status(&self, line: &str) -> Option<String> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let find = |line: &str| status.lines().find_map(|one| one.strip_prefix(line));
        let mut users = find("Uid:")?.split_whitespace();
        let is_its = users.any(|user| user.parse() == Ok(self.uid));
        find(line).filter(|_| is_its).map(str::to_owned)
    }
}
