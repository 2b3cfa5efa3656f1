//! Hosts, and sets of them.

use core::fmt;

use serde::{Deserialize, Serialize};

/// Hosts of one object at most: a set of them is one word.
pub const HOSTS_MAX: u8 = 64;

/// A host among those of an object: less than [`HOSTS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Host(pub u8);

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host {}", self.0)
    }
}

/// A set of hosts.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Hosts(u64);

impl Hosts {
    /// Nobody.
    pub const NONE: Self = Self(0);

    /// One.
    ///
    /// # Panics
    /// When its number is too large.
    #[must_use]
    pub fn of(host: Host) -> Self {
        let mut hosts = Self::NONE;
        hosts.add(host);
        hosts
    }

    /// All of these.
    ///
    /// # Panics
    /// When a number is too large.
    pub fn all(hosts: impl IntoIterator<Item = Host>) -> Self {
        let mut all = Self::NONE;
        hosts.into_iter().for_each(|host| all.add(host));
        all
    }

    /// Adds a host.
    ///
    /// # Panics
    /// When its number is too large.
    pub fn add(&mut self, host: Host) {
        assert!(host.0 < HOSTS_MAX, "no such host");
        self.0 |= 1 << host.0;
    }

    /// Takes a host out. True when it was there.
    pub fn remove(&mut self, host: Host) -> bool {
        let had = self.has(host);
        self.0 &= !(1u64.checked_shl(host.0.into()).unwrap_or(0));
        had
    }

    /// True when a host is in it.
    #[must_use]
    pub fn has(self, host: Host) -> bool {
        self.0 & 1u64.checked_shl(host.0.into()).unwrap_or(0) != 0
    }

    /// The same without others.
    #[must_use]
    pub fn less(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }

    /// True when all of `others` are in it.
    #[must_use]
    pub fn has_all(self, others: Self) -> bool {
        self.0 & others.0 == others.0
    }

    /// True of nobody.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// How many.
    #[must_use]
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// Each, the lowest number first.
    pub fn iter(self) -> impl Iterator<Item = Host> {
        (0..HOSTS_MAX).map(Host).filter(move |host| self.has(*host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_come_and_go() {
        let mut hosts = Hosts::NONE;
        for number in [63, 0, 7] {
            hosts.add(Host(number));
        }
        assert!(hosts.remove(Host(0)) && !hosts.remove(Host(0)) && !hosts.has(Host(200)));
        assert_eq!(
            hosts
                .less(Hosts::of(Host(7)))
                .iter()
                .collect::<alloc::vec::Vec<_>>(),
            [Host(63)]
        );
        assert_eq!((hosts.count(), hosts.is_empty()), (2, false));
    }
}
