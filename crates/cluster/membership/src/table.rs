//! A store as a value: keys, transactions, leases, and what each transaction changed.
//!
//! etcd's semantics as far as this crate uses them. The embedded store is one of these behind a
//! mutex, and hosts are simulated against one.

use std::collections::BTreeMap;

/// What a transaction depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing is at this key.
    Absent(String),
    /// Something is at this key.
    Present(String),
    /// What is at this key is of this revision.
    Unchanged(String, i64),
    /// No key begins so.
    NoneUnder(String),
}

/// What a transaction does when all its needs are met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Write {
    /// Puts a value, which goes with the lease.
    Put {
        key: String,
        value: String,
        lease: Option<i64>,
    },
    /// Deletes a key that may be there.
    Delete(String),
}

impl Write {
    pub(crate) fn put(key: String, value: String) -> Self {
        let lease = None;
        Self::Put { key, value, lease }
    }
}

/// All of it or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Txn {
    pub(crate) needs: Vec<Need>,
    pub(crate) writes: Vec<Write>,
}

/// A value and the revision that put it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) value: Vec<u8>,
    pub(crate) revision: i64,
}

/// A key that changed at a revision; `None` when it was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) key: String,
    pub(crate) revision: i64,
    pub(crate) value: Option<Vec<u8>>,
}

/// Everything under a prefix at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    pub(crate) revision: i64,
    pub(crate) entries: BTreeMap<String, Entry>,
}

/// The store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    revision: i64,
    entries: BTreeMap<String, (Entry, Option<i64>)>,
}

impl Table {
    /// What there is under a prefix.
    pub(crate) fn read(&self, prefix: &str) -> Snapshot {
        let under = self.under(prefix);
        let entries = under.map(|(key, (entry, _))| (key.clone(), entry.clone()));
        Snapshot {
            revision: self.revision,
            entries: entries.collect(),
        }
    }

    fn under(&self, prefix: &str) -> impl Iterator<Item = (&String, &(Entry, Option<i64>))> {
        let from = self.entries.range(String::from(prefix)..);
        from.take_while(move |(key, _)| key.starts_with(prefix))
    }

    fn meets(&self, need: &Need) -> bool {
        match need {
            Need::Absent(key) => !self.entries.contains_key(key),
            Need::Present(key) => self.entries.contains_key(key),
            Need::Unchanged(key, revision) => {
                let entry = self.entries.get(key);
                entry.is_some_and(|(entry, _)| entry.revision == *revision)
            }
            Need::NoneUnder(prefix) => self.under(prefix).next().is_none(),
        }
    }

    /// What it changed; `None` when a need is not met.
    pub(crate) fn transact(&mut self, txn: Txn) -> Option<Vec<Change>> {
        if !txn.needs.iter().all(|need| self.meets(need)) {
            return None;
        }
        Some(self.write(txn.writes))
    }

    /// Deletes what goes with a lease.
    pub(crate) fn revoke(&mut self, lease: i64) -> Vec<Change> {
        let of_it = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.1 == Some(lease));
        let deletes = of_it.map(|(key, _)| Write::Delete(key.clone())).collect();
        self.write(deletes)
    }

    fn write(&mut self, writes: Vec<Write>) -> Vec<Change> {
        let revision = self.revision + 1;
        let mut changes = Vec::new();
        for write in writes {
            let (key, value) = match write {
                Write::Put { key, value, lease } => {
                    let value = value.into_bytes();
                    let entry = Entry {
                        value: value.clone(),
                        revision,
                    };
                    self.entries.insert(key.clone(), (entry, lease));
                    (key, Some(value))
                }
                Write::Delete(key) => match self.entries.remove(&key) {
                    Some(_) => (key, None),
                    None => continue,
                },
            };
            changes.push(Change {
                key,
                revision,
                value,
            });
        }
        if !changes.is_empty() {
            self.revision = revision;
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, lease: Option<i64>) -> Write {
        let (key, value) = (key.into(), "x".into());
        Write::Put { key, value, lease }
    }

    #[test]
    fn a_transaction_is_all_or_nothing() {
        let mut table = Table::default();
        let needs = vec![Need::Absent("a".into()), Need::NoneUnder("h/".into())];
        let writes = vec![put("a", None), put("h/1", Some(7))];
        let txn = Txn { needs, writes };
        assert_eq!(table.transact(txn.clone()).map(|c| c.len()), Some(2));
        assert_eq!(table.transact(txn), None);
        let needs = vec![Need::Unchanged("a".into(), 1), Need::Present("h/1".into())];
        let writes = vec![Write::Delete("a".into()), Write::Delete("b".into())];
        let changes = table.transact(Txn { needs, writes });
        assert_eq!(changes.map(|c| c.len()), Some(1));
        assert_eq!(table.read("").revision, 2);
        assert_eq!(table.revoke(7).len(), 1);
        assert!(table.read("").entries.is_empty());
    }
}
