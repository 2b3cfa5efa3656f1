//! Ports of the cluster that have names.

use serde::{Deserialize, Serialize};

/// A port that has a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortListed {
    /// Its name.
    pub name: String,
    /// What its host calls itself.
    pub host: String,
    /// Its host is this one.
    pub is_own: bool,
    /// Whose it is.
    pub uid: u32,
}

/// Ports of the cluster, as one host knows them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortsListed {
    /// Those that have names, and that the caller may use.
    pub named: Vec<PortListed>,
    /// Rights to ports of this host that other hosts have.
    pub held_by_others: u64,
    /// Rights to ports of other hosts that this one has.
    pub held_of_others: u64,
}
