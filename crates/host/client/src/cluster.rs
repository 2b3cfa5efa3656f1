//! Memory that several hosts have in common, as the host kernel offers it.

use serde::{Deserialize, Serialize};

pub use crate::cluster_figures::*;

/// Who decides which host may read or write a unit of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scheduler {
    /// The object's home, for all of it.
    Simple,
    /// The host that wrote to the unit last.
    #[default]
    Distributed,
}

impl std::fmt::Display for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Simple => "simple",
            Self::Distributed => "distributed",
        })
    }
}

/// When a host sees what another has written to an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Consistency {
    /// At once.
    #[default]
    Strict,
    /// When that has released it, and this one acquired ([`crate::Shared::release`]). Several hosts may
    /// write to different parts of a page meanwhile.
    Release,
}

impl std::fmt::Display for Consistency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Strict => "strict",
            Self::Release => "release",
        })
    }
}

/// How an object of the cluster is to be, where there is none of its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// Its size.
    pub bytes: u64,
    /// What goes from host to host together: a power of two of bytes, 4096 to 2 MiB.
    pub unit_bytes: u64,
    /// Who decides.
    pub scheduler: Scheduler,
    /// On how many hosts each modified unit is.
    pub replicas: u8,
    /// Microseconds that a unit stays with threads that were let in to it; `None`: as hosts see fit.
    pub hold_us: Option<u32>,
    /// Microseconds that what a host reads may be old by; `None`: it is what was written last.
    pub stale_us: Option<u32>,
    /// When a host sees what another has written.
    pub consistency: Consistency,
    /// It stays when no process of any host has it, until its name is taken away.
    pub stays: bool,
    /// What who makes it says of its contents to who opens it: at most [`NOTE_MAX`] bytes.
    pub note: String,
}

/// Bytes of a note at most.
pub const NOTE_MAX: usize = 1024;

/// A host of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostListed {
    /// Its number.
    pub number: u8,
    /// What it calls itself.
    pub name: String,
    /// Where it listens.
    pub address: String,
    /// It is this one.
    pub is_own: bool,
    /// It is connected.
    pub is_up: bool,
    /// What is wrong with it; empty: nothing.
    pub cause: String,
}

/// An object of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedListed {
    /// Its name; empty when that was taken away.
    pub name: String,
    /// Its number in the cluster.
    pub number: u64,
    /// How it was made.
    pub wanted: Wanted,
    /// Nobody writes to it any more.
    pub is_sealed: bool,
    /// What was flushed is in a file of its home.
    pub is_durable: bool,
    /// The number of the host that had all of it in the beginning; `None`: it has gone.
    pub home: Option<u8>,
    /// Units that this host owns.
    pub owned: u64,
    /// Units of which it has a copy.
    pub copies: u64,
    /// What was done for it at this host.
    pub figures: SharedFigures,
}

impl SharedListed {
    /// It was with a host that has gone, and cannot be had any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let is_kept_by_home = self.is_durable || self.wanted.scheduler == Scheduler::Simple;
        self.home.is_none() && is_kept_by_home
    }
}

/// What was done for an object of the cluster at one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedFigures {
    /// Units that threads waited for to read, which another host had.
    pub read_misses: u64,
    /// The same, to write.
    pub write_misses: u64,
    /// Units that were here to be read, and that threads waited for to write.
    pub upgrades: u64,
    /// Messages to other hosts.
    pub sent: u64,
    /// Of those, requests that were sent on.
    pub forwarded: u64,
    /// Of those, with contents.
    pub contents_sent: u64,
    /// Units that another host was given to write.
    pub given: u64,
    /// Copies that were dropped since another host wrote.
    pub dropped: u64,
}

/// The cluster, as a process sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterListed {
    /// Where its names are kept.
    pub store: String,
    /// What is wrong with the store, or with this host; empty: nothing.
    pub trouble: String,
    /// This host goes on when its store does not answer, while the others do.
    pub goes_on: bool,
    /// The number of the view.
    pub generation: u64,
    /// Its hosts.
    pub hosts: Vec<HostListed>,
    /// Its objects, those that the caller may see.
    pub objects: Vec<SharedListed>,
}

/// What processes of a host and others tell each other of memory with release consistency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Passes {
    /// What was written here until now is to be seen by whoever acquires it after that.
    Released,
    /// What others have released until now is to be seen here.
    Acquired,
}
