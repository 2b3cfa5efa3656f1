//! What the hosts of a cluster tell of what they counted.

use serde::{Deserialize, Serialize};

/// Which pages of an object are asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PagesWanted {
    /// So many, of which most messages told.
    Hottest(u32),
    /// These; and which words of them each host changes, from now on for ten seconds.
    Watched(Vec<u64>),
}

/// Pages of an object of the cluster. A page is what goes from host to host together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagesTold {
    /// Of the object.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Of a page.
    pub page_bytes: u64,
    /// Hosts of the cluster, by their numbers.
    pub hosts: Vec<(u8, String)>,
    /// Numbers of those that told nothing.
    pub silent: Vec<u8>,
    /// Pages, in the order that was asked for.
    pub pages: Vec<PageTold>,
}

/// A page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageTold {
    /// Its number in the object.
    pub page: u64,
    /// The host that owns it; `None` while it goes from one to the other.
    pub owner: Option<u8>,
    /// Hosts that have copies, as its owner knows.
    pub copies: Vec<u8>,
    /// What is known of it at each host that has touched it.
    pub hosts: Vec<PageAtHost>,
}

impl PageTold {
    /// Messages about it that all hosts have sent.
    pub fn messages(&self) -> u64 {
        self.hosts.iter().map(|host| u64::from(host.sent)).sum()
    }
}

/// A page at a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageAtHost {
    /// Which.
    pub host: u8,
    /// What it has of the page.
    pub holds: Holds,
    /// Who owns it, as far as this host knows.
    pub believes: u8,
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
    /// Of those sent, requests of other hosts that were sent on.
    pub forwarded: u32,
    /// Times that it was here and was taken away.
    pub taken: u32,
    /// What this host has changed, if that is looked at.
    pub changed: Option<PageChanged>,
}

/// What a host has of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Holds {
    /// It owns it.
    Owner,
    /// It has a copy.
    Copy,
    /// Nothing.
    #[default]
    Nothing,
}

/// What a host changed of a page while that was looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageChanged {
    /// Times that it might write, and then not any more.
    pub turns: u32,
    /// Words of 8 bytes that had other contents after that: so many from each first one.
    pub words: Vec<(u32, u32)>,
    /// There are more than are told.
    pub is_cut: bool,
    /// Who faulted on it, those that did most first, and how often.
    pub by: Vec<(String, u32)>,
}

impl PageAtHost {
    /// Times that threads waited.
    #[must_use]
    pub fn faults(&self) -> u64 {
        [self.read_misses, self.write_misses, self.upgrades]
            .into_iter()
            .map(u64::from)
            .sum()
    }
}

/// What all hosts of a cluster do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterFigures {
    /// When: nanoseconds since 1970.
    pub at_ns: u64,
    /// Objects that the caller may see.
    pub objects: Vec<ClusterObject>,
    /// Hosts.
    pub hosts: Vec<HostFigures>,
}

/// An object of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterObject {
    /// Its number.
    pub number: u64,
    /// Its name; empty when that was taken away.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Of a page of it.
    pub page_bytes: u64,
    /// The host that has what nobody touched.
    pub home: u8,
    /// Over all hosts: pages that threads waited for to read.
    pub read_misses: u64,
    /// The same, to write.
    pub write_misses: u64,
    /// Pages that were there to be read, and that threads waited for to write.
    pub upgrades: u64,
    /// Messages.
    pub sent: u64,
    /// Of those, requests that were sent on.
    pub forwarded: u64,
    /// Pages that each host owns, by its number; those that nobody touched are not counted.
    pub owned: Vec<(u8, u64)>,
    /// Pages of which each host has a copy.
    pub copies: Vec<(u8, u64)>,
}

/// A host of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFigures {
    /// Its number.
    pub number: u8,
    /// What it calls itself.
    pub name: String,
    /// It is the one that was asked.
    pub is_own: bool,
    /// It told what it counted.
    pub has_told: bool,
    /// Messages of shared memory that it sent to each other host, and their bytes.
    pub flows: Vec<HostFlow>,
}

/// Messages from one host to another, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFlow {
    /// To which.
    pub to: u8,
    /// How many.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
}
