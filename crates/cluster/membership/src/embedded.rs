//! A store in this process, for one host.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::table::{Change, Snapshot, Table, Txn};

/// A store in this process. Its leases end when who has them ends: there is nothing between the
/// two that could break.
#[derive(Clone, Default)]
pub struct Embedded {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    table: Table,
    leases: BTreeSet<i64>,
    granted: i64,
    watchers: Vec<UnboundedSender<Vec<Change>>>,
}

impl std::fmt::Debug for Embedded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Embedded")
    }
}

impl Embedded {
    /// An empty one. Clones are the same store.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn read(&self, prefix: &str) -> Snapshot {
        self.lock().table.read(prefix)
    }

    pub(crate) fn transact(&self, txn: &Txn) -> bool {
        let mut inner = self.lock();
        let changes = inner.table.transact(txn.clone());
        let done = changes.is_some();
        inner.tell(changes.unwrap_or_default());
        done
    }

    pub(crate) fn grant(&self) -> i64 {
        let mut inner = self.lock();
        inner.granted += 1;
        let lease = inner.granted;
        inner.leases.insert(lease);
        lease
    }

    pub(crate) fn keeps(&self, lease: i64) -> bool {
        self.lock().leases.contains(&lease)
    }

    pub(crate) fn revoke(&self, lease: i64) {
        let mut inner = self.lock();
        inner.leases.remove(&lease);
        let changes = inner.table.revoke(lease);
        inner.tell(changes);
    }

    /// What there is under a prefix, and every change of anything from then on.
    pub(crate) fn watch(&self, prefix: &str) -> (Snapshot, UnboundedReceiver<Vec<Change>>) {
        let mut inner = self.lock();
        let (sender, receiver) = unbounded_channel();
        inner.watchers.push(sender);
        (inner.table.read(prefix), receiver)
    }
}

impl Inner {
    fn tell(&mut self, changes: Vec<Change>) {
        if !changes.is_empty() {
            let mut watchers = std::mem::take(&mut self.watchers);
            watchers.retain(|watcher| watcher.send(changes.clone()).is_ok());
            self.watchers = watchers;
        }
    }
}
