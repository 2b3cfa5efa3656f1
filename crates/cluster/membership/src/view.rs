//! Who is in the cluster.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::names;
use crate::record::RecordError;

/// Hosts of a cluster at most.
pub const HOSTS_MAX: usize = 64;

/// A host's place in the cluster, below [`HOSTS_MAX`]. Another host may have it later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Slot(pub u8);

/// One stay of a host in its cluster: a number never given twice there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(pub u64);

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How a host lays out numbers in memory. Between hosts that differ, numbers are turned on the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Representation {
    /// The least significant byte comes first.
    pub little_endian: bool,
    /// Bits of an address.
    pub pointer_bits: u8,
    /// The processor's architecture, as Rust calls it.
    pub architecture: String,
}

impl Representation {
    /// This host's.
    #[must_use]
    pub fn here() -> Self {
        Self {
            little_endian: cfg!(target_endian = "little"),
            pointer_bits: usize::BITS as u8,
            architecture: String::from(std::env::consts::ARCH),
        }
    }
}

/// A host of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// This stay of it.
    pub incarnation: Incarnation,
    /// Where other hosts reach it.
    pub address: SocketAddr,
    /// What it is called, to show.
    pub name: String,
    /// Bytes of a page there.
    pub page_bytes: u64,
    /// How numbers are laid out there.
    pub representation: Representation,
    /// Which process of which machine it is, in its own words.
    #[serde(default)]
    pub process: String,
}

/// Who is in the cluster from one change to the next. Every host sees the same sequence of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Grows with each view.
    pub generation: u64,
    /// Who.
    pub members: BTreeMap<Slot, Member>,
}

impl View {
    /// The member of this incarnation.
    #[must_use]
    pub fn member(&self, incarnation: Incarnation) -> Option<(Slot, &Member)> {
        let mut members = self.members.iter();
        members
            .find(|(_, member)| member.incarnation == incarnation)
            .map(|(slot, member)| (*slot, member))
    }
}

/// A view as it is stored; its generation is the store's revision of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Members {
    /// The next incarnation.
    pub(crate) next: u64,
    /// Who.
    pub(crate) members: BTreeMap<Slot, Member>,
}

impl Members {
    /// Who, by their slots.
    #[must_use]
    pub fn members(&self) -> &BTreeMap<Slot, Member> {
        &self.members
    }

    /// Refuses what no host of this version writes.
    pub(crate) fn check(&self) -> Result<(), RecordError> {
        let wrong = |what: String| Err(RecordError::Wrong(what));
        let mut seen = Vec::new();
        for (slot, member) in &self.members {
            if usize::from(slot.0) >= HOSTS_MAX {
                return wrong(format!("slot {slot} is not below {HOSTS_MAX}"));
            }
            let number = member.incarnation;
            if number.0 >= self.next || seen.contains(&number) {
                return wrong(format!("the incarnation {number} of slot {slot} cannot be"));
            }
            seen.push(number);
            member.check()?;
        }
        Ok(())
    }

    /// With one more, in the lowest slot that is free.
    pub(crate) fn with(&self, member: impl FnOnce(Incarnation) -> Member) -> Option<(Slot, Self)> {
        let slots = (0..HOSTS_MAX as u8).map(Slot);
        let slot = slots.into_iter().find(|s| !self.members.contains_key(s))?;
        let mut more = self.clone();
        more.members.insert(slot, member(Incarnation(self.next)));
        more.next += 1;
        Some((slot, more))
    }

    pub(crate) fn without(&self, gone: &[Incarnation]) -> Self {
        let mut fewer = self.clone();
        fewer
            .members
            .retain(|_, member| !gone.contains(&member.incarnation));
        fewer
    }
}

impl Member {
    pub(crate) fn check(&self) -> Result<(), RecordError> {
        if !names::is_name(&self.name) {
            let name = names::shown(&self.name);
            return Err(RecordError::Wrong(format!("{name:?} cannot name a host")));
        }
        if !self.page_bytes.is_power_of_two() {
            let what = format!("pages of {} bytes are no power of two", self.page_bytes);
            return Err(RecordError::Wrong(what));
        }
        Ok(())
    }
}
