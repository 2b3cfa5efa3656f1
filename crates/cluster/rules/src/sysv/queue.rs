//! A message queue.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::sysv::errno;
use crate::sysv::state::{About, NO_WAIT};

/// Bytes of a message at most (`MSGMAX`).
pub(crate) const MESSAGE_MAX: usize = 8192;
/// Bytes of all messages of a queue at most (`MSGMNB`).
const BYTES_MAX: u64 = 16384;
/// A message that is too long is cut (`MSG_NOERROR`).
const CUTS: u32 = 0o10000;
/// Any message but those of the type (`MSG_EXCEPT`).
const EXCEPT: u32 = 0o20000;
/// The message stays (`MSG_COPY`).
const COPY: u32 = 0o40000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Message {
    kind: i64,
    text: Vec<u8>,
}

/// Which message is to be received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Wanted {
    pub(crate) kind: i64,
    pub(crate) flags: u32,
}

impl Wanted {
    fn is_it(&self, message: &Message) -> bool {
        match self.kind {
            0 => true,
            kind if kind > 0 => (message.kind == kind) != (self.flags & EXCEPT != 0),
            kind => message.kind.unsigned_abs() <= kind.unsigned_abs(),
        }
    }
}

/// A queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Queue {
    pub(crate) about: About,
    messages: VecDeque<Message>,
    bytes: u64,
    bytes_max: u64,
    sent: i64,
    received: i64,
    /// Who sent last, and who received.
    by: [u32; 2],
}

impl Queue {
    pub(crate) fn new(about: About) -> Self {
        Self {
            about,
            messages: VecDeque::new(),
            bytes: 0,
            bytes_max: BYTES_MAX,
            sent: 0,
            received: 0,
            by: [0; 2],
        }
    }

    /// There is room for a message.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        let count = self.messages.len() as u64;
        self.bytes + bytes <= self.bytes_max && count < self.bytes_max
    }

    /// `msgsnd`. False: there is no room yet.
    pub(crate) fn send(
        &mut self,
        kind: i64,
        text: &[u8],
        flags: u32,
        (by, time): (u32, i64),
    ) -> Result<bool, i32> {
        if kind < 1 || text.len() > MESSAGE_MAX {
            return Err(errno::EINVAL);
        }
        if !self.has_room(text.len() as u64) {
            return match flags & u32::from(NO_WAIT) {
                0 => Ok(false),
                _ => Err(errno::EAGAIN),
            };
        }
        self.bytes += text.len() as u64;
        let text = text.to_vec();
        self.messages.push_back(Message { kind, text });
        (self.by[0], self.sent) = (by, time);
        Ok(true)
    }

    fn find(&self, wanted: &Wanted) -> Option<usize> {
        let mut fit = self
            .messages
            .iter()
            .enumerate()
            .filter(|(_, one)| wanted.is_it(one));
        match wanted.kind < 0 {
            // The first of the lowest type.
            true => fit.min_by_key(|(_, one)| one.kind).map(|(at, _)| at),
            false => fit.next().map(|(at, _)| at),
        }
    }

    /// There is such a message.
    pub(crate) fn has(&self, wanted: &Wanted) -> bool {
        self.find(wanted).is_some()
    }

    /// `msgrcv`: its type, and its text. `None`: there is none yet.
    pub(crate) fn receive(
        &mut self,
        wanted: &Wanted,
        bytes_max: u64,
        (by, time): (u32, i64),
    ) -> Result<Option<(i64, Vec<u8>)>, i32> {
        if wanted.flags & COPY != 0 {
            return Err(errno::ENOSYS);
        }
        let Some(at) = self.find(wanted) else {
            return match wanted.flags & u32::from(NO_WAIT) {
                0 => Ok(None),
                _ => Err(errno::ENOMSG),
            };
        };
        let length = self.messages[at].text.len() as u64;
        if length > bytes_max && wanted.flags & CUTS == 0 {
            return Err(errno::E2BIG);
        }
        let taken = self.messages.remove(at);
        self.bytes -= length;
        (self.by[1], self.received) = (by, time);
        Ok(taken.map(|Message { kind, mut text }| {
            text.truncate(usize::try_from(bytes_max).unwrap_or(usize::MAX));
            (kind, text)
        }))
    }

    /// `IPC_SET` of how many bytes there may be.
    pub(crate) fn set_bytes_max(&mut self, bytes: u64) -> Result<(), i32> {
        if bytes > BYTES_MAX {
            return Err(errno::EPERM);
        }
        self.bytes_max = bytes;
        Ok(())
    }

    /// `struct msqid64_ds` of x86-64.
    pub(crate) fn stat(&self) -> Vec<u8> {
        let mut bytes = self.about.permissions();
        let count = self.messages.len() as i64;
        let words = [
            self.sent,
            self.received,
            self.about.changed,
            self.bytes as i64,
            count,
        ];
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend(self.bytes_max.to_ne_bytes());
        bytes.extend(self.by.iter().flat_map(|by| by.to_ne_bytes()));
        bytes.extend([0; 16]);
        bytes
    }
}
