//! What the host kernel says to its cluster, and hears of it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use farpage_client::Refusal;
use farpage_client::cluster::{ClusterFigures, Consistency, PagesTold};
use farpage_host::Object;

/// An object of the cluster at this host.
pub struct Had {
    /// Its number.
    pub number: u64,
    /// Its size.
    pub bytes: u64,
    /// Whose it is.
    pub uid: u32,
    /// What was said of its contents.
    pub note: String,
    /// It is sealed: no host writes to it again.
    pub is_sealed: bool,
    /// When a host sees what another has written.
    pub consistency: Consistency,
    /// The object.
    pub object: Arc<Object>,
}

/// The file of an object that outlives its hosts, and the journal of that.
pub struct Files {
    /// The file.
    pub file: OwnedFd,
    /// What a flush writes first.
    pub journal: OwnedFd,
}

/// Is told how many bytes were flushed.
pub type OnFlushed = Box<dyn FnOnce(Result<u64, Refusal>) + Send>;

/// Is told pages of an object.
pub type OnPages = Box<dyn FnOnce(Result<PagesTold, Refusal>) + Send>;

/// Is told how a release, an acquire or a lock has ended. It must not wait.
pub type OnReleased = Box<dyn FnOnce(Result<(), Refusal>) + Send>;

/// Is told how locking has ended: false when it was given up.
pub type OnLocked = Box<dyn FnOnce(Result<bool, Refusal>) + Send>;

/// Gives up what was asked for.
pub type GiveUp = Box<dyn FnOnce() + Send>;

/// Is told what all hosts do.
pub type OnFigures = Box<dyn FnOnce(Result<ClusterFigures, Refusal>) + Send>;
