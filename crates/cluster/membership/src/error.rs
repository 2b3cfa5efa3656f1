//! What is refused, and what failed.

use std::time::Duration;

use crate::record::{ObjectId, RecordError};
use crate::view::HOSTS_MAX;

/// What an endpoint cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// Another scheme, or none.
    #[error("no store has the scheme {0}; write etcd://HOST:PORT/NAME or etcds:// for TLS")]
    Scheme(String),
    /// No user, or no password.
    #[error("no user and password stand before the @; write etcd://USER:PASSWORD@HOST:PORT/NAME")]
    Login,
    /// What is no server.
    #[error(
        "{0:?} is no server; each is HOST:PORT with a port from 1 to 65535, as in a:2379,b:2379"
    )]
    Server(String),
    /// No name.
    #[error("the cluster has no name; write it behind the servers: etcd://HOST:PORT/NAME")]
    NoCluster,
    /// A name that cannot be.
    #[error(
        "{0:?} cannot name a cluster; take 1 to 200 characters without / and control characters"
    )]
    Cluster(String),
}

/// What the store could not do.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// No answer; whether something was done is not known.
    #[error("{0}")]
    Silent(String),
    /// It answered that it will not.
    #[error("{0}")]
    Refused(String),
}

/// Why a host cannot join, or something of its was not done.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ControlError {
    /// A [`Config`](crate::Config) that cannot be.
    #[error("{0}")]
    Config(String),
    /// etcd did not answer. What was asked for may have been done.
    #[error(
        "{endpoint} did not answer in {:.1} s ({why}); see that etcd runs there and can be reached, \
         and try again", tried.as_secs_f32()
    )]
    Silent {
        /// Which.
        endpoint: String,
        /// How long it was tried.
        tried: Duration,
        /// What happened last.
        why: String,
    },
    /// etcd answered that it will not.
    #[error("{endpoint} refuses: {why}; see user and password, and the limits of etcd")]
    Store {
        /// Which.
        endpoint: String,
        /// What it says.
        why: String,
    },
    /// Hosts with another key are there.
    #[error(
        "the hosts of {endpoint} have key {theirs}, and this one has key {own}: copy the key that they \
         have, or write another name for a cluster of its own"
    )]
    OtherKey {
        /// Which cluster.
        endpoint: String,
        /// Theirs.
        theirs: String,
        /// This host's.
        own: String,
    },
    /// All slots are taken.
    #[error("{HOSTS_MAX} hosts are in the cluster, and there cannot be more; stop one first")]
    Full,
    /// What is stored is not of this version, or damaged.
    #[error("cannot use what is stored at {key}: {why}")]
    Unreadable {
        /// Where.
        key: String,
        /// Why.
        why: RecordError,
    },
    /// This host may not act any more.
    #[error("this host is out of the cluster: {0}; join again")]
    Fenced(String),
    /// A name that cannot be.
    #[error(
        "{0:?} cannot name an object; take 1 to 200 characters without / and control characters"
    )]
    Name(String),
    /// A description that cannot be.
    #[error("an object cannot be described so: {0}")]
    Description(RecordError),
    /// Another object has the name.
    #[error("object {0} has this name already; take another, or use that object")]
    Exists(ObjectId),
    /// No such object, or no longer.
    #[error("there is no object {0}; it was removed")]
    NoObject(ObjectId),
    /// Nothing has that name.
    #[error("no object is named {0:?}; see the list of objects")]
    NoName(String),
    /// Another port has the name.
    #[error(
        "there is a port '{0}' in the cluster already; take another name, or check that one out"
    )]
    PortExists(String),
    /// No port has that name.
    #[error("there is no port '{0}' in the cluster; farpage ports shows what there is")]
    NoPort(String),
}
