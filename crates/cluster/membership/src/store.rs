//! The two stores behind one set of operations. Each is one attempt; who calls tries again.

use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;

use crate::embedded::Embedded;
use crate::endpoint::Endpoint;
use crate::error::{ControlError, StoreError};
#[cfg(feature = "etcd")]
use crate::etcd::{Etcd, EtcdWatch};
use crate::table::{Change, Entry, Snapshot, Txn};

/// A store.
pub(crate) enum Store {
    #[cfg(feature = "etcd")]
    Etcd(Box<Etcd>),
    Embedded(Embedded),
}

/// Changes of what is watched.
pub(crate) enum Watch {
    #[cfg(feature = "etcd")]
    Etcd(Box<EtcdWatch>),
    Embedded(Option<Snapshot>, UnboundedReceiver<Vec<Change>>),
}

/// What a watch says.
pub(crate) enum Watched {
    Changes(Vec<Change>),
    /// Changes were missed, and everything is to be read again; here it is already, or not.
    Missed(Option<Snapshot>),
}

impl Store {
    pub(crate) fn new(endpoint: &Endpoint, attempt: Duration) -> Result<Self, ControlError> {
        match endpoint {
            #[cfg(feature = "etcd")]
            Endpoint::Etcd(etcd) => Ok(Self::Etcd(Box::new(Etcd::new(etcd, attempt)))),
            #[cfg(not(feature = "etcd"))]
            Endpoint::Etcd(_) => {
                let _ = attempt;
                let what = "this program was built without etcd; build it with the feature etcd";
                Err(ControlError::Config(String::from(what)))
            }
            Endpoint::Embedded(store) => Ok(Self::Embedded(store.clone())),
        }
    }

    /// Everything under a prefix.
    pub(crate) async fn read(&self, prefix: &str) -> Result<Snapshot, StoreError> {
        match self {
            #[cfg(feature = "etcd")]
            Self::Etcd(etcd) => etcd.read(prefix).await,
            Self::Embedded(store) => Ok(store.read(prefix)),
        }
    }

    /// What is at a key.
    pub(crate) async fn get(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        match self {
            #[cfg(feature = "etcd")]
            Self::Etcd(etcd) => etcd.get(key).await,
            Self::Embedded(store) => Ok(store.read(key).entries.remove(key)),
        }
    }

    /// Whether it was done: all needs were met.
    pub(crate) async fn transact(&self, txn: &Txn) -> Result<bool, StoreError> {
        match self {
            #[cfg(feature = "etcd")]
            Self::Etcd(etcd) => etcd.transact(txn).await,
            Self::Embedded(store) => Ok(store.transact(txn)),
        }
    }

    /// A lease, and how long it really is.
    pub(crate) async fn grant(&self, length: Duration) -> Result<(i64, Duration), StoreError> {
        match self {
            #[cfg(feature = "etcd")]
            Self::Etcd(etcd) => etcd.grant(length).await,
            Self::Embedded(store) => Ok((store.grant(), length)),
        }
    }

    /// Keeps a lease, for its whole length from now; `false` when it is over.
    pub(crate) async fn keep(&self, lease: i64) -> Result<bool, StoreError> {
        match self {
            #[cfg(feature = "etcd")]
            Self::Etcd(etcd) => etcd.keep(lease).await,
            Self::Embedded(store) => Ok(store.keeps(lease)),
        }
    }

    /// Ends a lease.
    pub(crate) async fn revoke(&self, lease: i64) -> Result<(), StoreError> {
        match self {
            #[cfg(feature = "etcd")]
            Self::Etcd(etcd) => etcd.revoke(lease).await,
            Self::Embedded(store) => {
                store.revoke(lease);
                Ok(())
            }
        }
    }

    /// The host is gone, with its process or as if: etcd notices by itself.
    pub(crate) fn drop_lease(&self, lease: i64) {
        match self {
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => {}
            Self::Embedded(store) => store.revoke(lease),
        }
    }

    /// Watches a prefix from a revision on.
    pub(crate) async fn watch(&self, prefix: &str, from: i64) -> Result<Watch, StoreError> {
        match self {
            #[cfg(feature = "etcd")]
            Self::Etcd(etcd) => Ok(Watch::Etcd(Box::new(etcd.watch(prefix, from).await?))),
            Self::Embedded(store) => {
                // It has no history: everything anew.
                let _ = from;
                let (snapshot, receiver) = store.watch(prefix);
                Ok(Watch::Embedded(Some(snapshot), receiver))
            }
        }
    }
}

impl Watch {
    /// What happens next.
    pub(crate) async fn next(&mut self) -> Result<Watched, StoreError> {
        match self {
            #[cfg(feature = "etcd")]
            Self::Etcd(watch) => watch.next().await,
            Self::Embedded(snapshot, receiver) => match snapshot.take() {
                Some(snapshot) => Ok(Watched::Missed(Some(snapshot))),
                None => {
                    let ended = || StoreError::Silent(String::from("the store ended"));
                    receiver
                        .recv()
                        .await
                        .map(Watched::Changes)
                        .ok_or_else(ended)
                }
            },
        }
    }
}
