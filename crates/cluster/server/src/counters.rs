//! What is counted of a shared object at this host.

use std::sync::atomic::{AtomicU64, Ordering};

use farpage_rules::coherence::{HOSTS_MAX, Host};
use serde::{Deserialize, Serialize};

use crate::seen::Flow;

/// What was done for a shared object at this host so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Units that threads of this host waited for to read, which another host had.
    pub read_misses: u64,
    /// The same, to write.
    pub write_misses: u64,
    /// Units that were here to be read, and that threads waited for to write.
    pub upgrades: u64,
    /// Messages to other hosts that somebody waits for, or may.
    pub sent: u64,
    /// Of those, requests of other hosts that were sent on, since this host was no owner any more.
    pub forwarded: u64,
    /// Of those, with contents.
    pub contents_sent: u64,
    /// Of those, with what this host has written for its backup.
    pub parcels: u64,
    /// Of those, what this host passed on as a backup.
    pub passed: u64,
    /// Messages for which nobody waits, besides: that parcels have arrived, and need not be kept.
    pub background: u64,
    /// Units that another host was given to write.
    pub given: u64,
    /// Copies that were dropped since another host wrote.
    pub dropped: u64,
    /// Messages with what this host changed of a copy (release consistency); they are among those sent.
    pub diffs: u64,
    /// Their bytes.
    pub diff_bytes: u64,
    /// Units that this host owns now; those that nobody touched are not counted.
    pub owned: u64,
    /// Units of which it has a copy now.
    pub copies: u64,
    /// Parcels that are not known to have arrived at the backup.
    pub on_their_way: u64,
    /// Units of which older contents are kept for the day when another host dies.
    pub kept: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) read_misses: AtomicU64,
    pub(crate) write_misses: AtomicU64,
    pub(crate) upgrades: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) forwarded: AtomicU64,
    pub(crate) contents_sent: AtomicU64,
    pub(crate) parcels: AtomicU64,
    pub(crate) passed: AtomicU64,
    pub(crate) background: AtomicU64,
    pub(crate) given: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) diffs: AtomicU64,
    pub(crate) diff_bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn figures(&self) -> Figures {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Figures {
            read_misses: of(&self.read_misses),
            write_misses: of(&self.write_misses),
            upgrades: of(&self.upgrades),
            sent: of(&self.sent),
            forwarded: of(&self.forwarded),
            contents_sent: of(&self.contents_sent),
            parcels: of(&self.parcels),
            passed: of(&self.passed),
            background: of(&self.background),
            given: of(&self.given),
            dropped: of(&self.dropped),
            diffs: of(&self.diffs),
            diff_bytes: of(&self.diff_bytes),
            owned: 0,
            copies: 0,
            on_their_way: 0,
            kept: 0,
        }
    }
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

/// Messages to each host, and their bytes.
pub(crate) struct Flows([(AtomicU64, AtomicU64); HOSTS_MAX as usize]);

impl Default for Flows {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Default::default()))
    }
}

impl Flows {
    pub(crate) fn goes(&self, to: Host, parts: &[&[u8]]) {
        let (messages, bytes) = &self.0[usize::from(to.0)];
        let all: usize = parts.iter().map(|part| part.len()).sum();
        count(messages);
        bytes.fetch_add(all as u64, Ordering::Relaxed);
    }

    pub(crate) fn told(&self) -> Vec<Flow> {
        let flow = |(to, (messages, bytes)): (usize, &(AtomicU64, AtomicU64))| Flow {
            to: to as u8,
            messages: messages.load(Ordering::Relaxed),
            bytes: bytes.load(Ordering::Relaxed),
        };
        let all = self.0.iter().enumerate().map(flow);
        all.filter(|flow| flow.messages > 0).collect()
    }
}
