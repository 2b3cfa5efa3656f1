//! Semaphores and message queues of System V of all hosts: `rules::sysv`, over the network.

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;

use farpage_membership::View;
use farpage_network::Incarnation;
use farpage_rules::sysv::{Command, Message, Output, Replica, Reply, Thread};
use farpage_sys::lock;

use super::post::Inbox;
use super::{Cluster, Inner, Kind, put, take};

/// Why calls fail here when this host is out of the cluster.
const EIO: i32 = 5;
/// Bytes that are sent at a time: all that there is may be longer than a message can be.
const PART_BYTES: usize = 512 << 10;
/// Bytes of a message at most: all semaphores and queues that there can be, and more.
const MESSAGE_BYTES_MAX: usize = 256 << 20;

/// What is done with what a call returns.
pub type Replied = Box<dyn FnOnce(Reply) + Send>;

/// Who is to make its call again: a thread, or all that wait.
pub type Woken = Option<Thread>;

/// This host's part of it.
pub(super) struct Sysv {
    state: Mutex<State>,
    parts: Mutex<Parts>,
}

/// What has come of messages that come in parts, by the stay of who sends them: another that has its
/// number begins anew.
#[derive(Default)]
struct Parts(HashMap<Incarnation, Vec<u8>>);

impl Parts {
    /// Another part: the whole message, when it was the last. What is too long is cut, and so is none.
    fn came(&mut self, from: Incarnation, is_last: bool, part: &[u8]) -> Option<Vec<u8>> {
        let known = self.0.entry(from).or_default();
        let room = MESSAGE_BYTES_MAX.saturating_sub(known.len());
        known.extend_from_slice(&part[..part.len().min(room)]);
        is_last.then(|| self.0.remove(&from)).flatten()
    }
}

struct State {
    replica: Replica,
    replies: HashMap<u64, Replied>,
    /// A thread does what is to be done, in its order.
    is_drained: bool,
    /// This host is out of the cluster.
    is_over: bool,
}

impl Sysv {
    pub(super) fn new(own: u64) -> Self {
        let state = State {
            replica: Replica::new(own),
            replies: HashMap::new(),
            is_drained: false,
            is_over: false,
        };
        Self {
            state: Mutex::new(state),
            parts: Mutex::default(),
        }
    }
}

impl Inner {
    /// There is a new view.
    pub(super) fn sysv_sees(&self, view: &View) {
        let members: BTreeSet<u64> = view.members.values().map(|one| one.incarnation.0).collect();
        let there = |stay: &Incarnation, _: &mut Vec<u8>| members.contains(&stay.0);
        lock(&self.sysv.parts).0.retain(there);
        lock(&self.sysv.state).replica.viewed(&members);
        self.drain_sysv();
    }

    /// A part of a message of another host came: who that is, whether it is the last, and it.
    pub(super) fn sysv_came(&self, from: Incarnation, bytes: &[u8]) {
        // Who has left meanwhile is not heard.
        let Some(host) = self.host_of(from.0) else {
            return;
        };
        let Some((is_last, part)) = bytes.split_first() else {
            return self.is_wrong(host, "a part of nothing");
        };
        let Some(whole) = lock(&self.sysv.parts).came(from, *is_last != 0, part) else {
            return;
        };
        let known = take::<(u64, Message)>(&whole).filter(|(stay, _)| *stay == from.0);
        let Some((stay, message)) = known else {
            return self.is_wrong(host, "what is nothing of System V");
        };
        let received = lock(&self.sysv.state).replica.received(stay, message);
        if let Err(wrong) = received {
            self.say(&wrong.to_string());
        }
        self.drain_sysv();
    }

    /// Nothing comes of what was asked for, and of nothing that will be.
    pub(super) fn sysv_ends(&self) {
        let replies = {
            let mut state = lock(&self.sysv.state);
            state.is_over = true;
            std::mem::take(&mut state.replies)
        };
        for replied in replies.into_values() {
            replied(Reply::Failed(EIO));
        }
        self.observer.sysv_wakes(None);
    }

    /// Does what is to be done, one thing at a time in its order, and under no lock.
    fn drain_sysv(&self) {
        let mut state = lock(&self.sysv.state);
        if state.is_drained {
            return;
        }
        state.is_drained = true;
        while let Some(output) = state.replica.poll_output() {
            match output {
                Output::Replied(number, reply) => {
                    let replied = state.replies.remove(&number);
                    drop(state);
                    if let Some(replied) = replied {
                        replied(reply);
                    }
                }
                Output::Send(to, message) => {
                    drop(state);
                    self.send_sysv(to, &message);
                }
                Output::Wake(thread) => {
                    drop(state);
                    self.observer.sysv_wakes(Some(thread));
                }
                Output::WakeAll => {
                    drop(state);
                    self.observer.sysv_wakes(None);
                }
            }
            state = lock(&self.sysv.state);
        }
        state.is_drained = false;
    }

    fn send_sysv(&self, to: u64, message: &Message) {
        let Some(to) = self.host_of(to) else {
            return;
        };
        let bytes = put(&(self.control.incarnation().0, message));
        let mut parts = bytes.chunks(PART_BYTES).peekable();
        while let Some(part) = parts.next() {
            let is_last = u8::from(parts.peek().is_none());
            self.post.sends(to, Kind::Sysv, &[&[is_last], part]);
        }
    }
}

impl Cluster {
    /// This host's stay in the cluster.
    #[must_use]
    pub fn stay(&self) -> u64 {
        self.inner.control.incarnation().0
    }

    /// Has something done with semaphores and message queues of System V, in one order with what all
    /// other hosts want; `replied` gets what comes of it, perhaps at once, and must not wait. Threads that are
    /// to wait are told by [`super::Observer::sysv_wakes`] when to ask again.
    pub fn sysv(&self, command: Command, replied: Replied) {
        let inner = &self.inner;
        let mut state = lock(&inner.sysv.state);
        if state.is_over {
            drop(state);
            return replied(Reply::Failed(EIO));
        }
        let number = state.replica.ask(command);
        state.replies.insert(number, replied);
        drop(state);
        inner.drain_sysv();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_stay_are_one_message_and_not_those_of_another() {
        let mut parts = Parts::default();
        let [one, next] = [Incarnation(1), Incarnation(2)];
        assert_eq!(parts.came(one, false, b"ab"), None);
        assert_eq!(parts.came(next, true, b"x"), Some(b"x".to_vec()));
        assert_eq!(parts.came(one, true, b"c"), Some(b"abc".to_vec()));
        assert_eq!(parts.came(one, true, b""), Some(Vec::new()));
        assert!(parts.0.is_empty());
    }

    #[test]
    fn what_is_too_long_takes_no_more_room() {
        let mut parts = Parts::default();
        let part = vec![0; 100 << 20];
        for _ in 0..3 {
            parts.came(Incarnation(1), false, &part);
        }
        assert_eq!(parts.0[&Incarnation(1)].len(), MESSAGE_BYTES_MAX);
    }
}
