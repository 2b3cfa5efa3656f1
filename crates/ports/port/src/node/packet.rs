//! What goes over a Link: frames of the Space's, and a few of the Node's own.

use std::ops::Range;
use std::os::fd::OwnedFd;

use farpage_rights::TaskId;

use super::memory::Half;
use crate::link::{FDS_MAX, HEADER_BYTES, Loan, RegionHandle};

/// The version of what Nodes say to each other; rights have one of their own.
pub(super) const VERSION: u16 = 1;
/// The first byte of a frame of the Space's.
pub(super) const RIGHTS: u8 = 1;
/// The first byte of a frame of the Node's own.
const OWN: u8 = 0x80;
/// Bytes of a frame of the Space's that is no message.
const CONTROL_BYTES: usize = 32;

/// A frame that waits to be sent.
pub(super) struct Packet {
    pub(super) header: [u8; HEADER_BYTES],
    pub(super) body: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
    pub(super) sending: Sending,
}

/// How it is sent.
pub(super) enum Sending {
    Plain,
    Lend(RegionHandle, Range<usize>, Half),
    Return(Loan),
}

impl Packet {
    pub(super) fn plain(header: [u8; HEADER_BYTES], sending: Sending) -> Self {
        Self {
            header,
            body: Vec::new(),
            fds: Vec::new(),
            sending,
        }
    }

    pub(super) fn own(say: Say, fds: Vec<OwnedFd>) -> Self {
        Self {
            fds,
            ..Self::plain(say.encode(), Sending::Plain)
        }
    }
}

/// What Nodes say to each other beside rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Say {
    /// The first of either side: who this is; who connects also says the token of what it expects.
    Hello { task: TaskId, token: u64 },
    /// The side with the smaller number decides: this is the Link of the two tasks.
    Use,
    /// It decides: there is a Link of the two tasks already.
    Another,
    /// Descriptors of the message that follows.
    Parts,
    /// A piece of lent memory of the message that follows, or a loan that comes back.
    Lending,
    /// Introduce me to this task.
    Introduce { task: TaskId },
    /// Here is a socket to that task; who `connects` begins.
    Meet { task: TaskId, connects: bool },
    /// I do not know that task.
    Unknown { task: TaskId },
}

const HELLO: u8 = 1;
const USE: u8 = 2;
const ANOTHER: u8 = 3;
const PARTS: u8 = 4;
const LENDING: u8 = 5;
const INTRODUCE: u8 = 6;
const MEET: u8 = 7;
const UNKNOWN: u8 = 8;

impl Say {
    pub(super) fn encode(self) -> [u8; HEADER_BYTES] {
        let (what, flag, task, token) = match self {
            Self::Hello { task, token } => (HELLO, 0, task.0, token),
            Self::Use => (USE, 0, 0, 0),
            Self::Another => (ANOTHER, 0, 0, 0),
            Self::Parts => (PARTS, 0, 0, 0),
            Self::Lending => (LENDING, 0, 0, 0),
            Self::Introduce { task } => (INTRODUCE, 0, task.0, 0),
            Self::Meet { task, connects } => (MEET, u8::from(connects), task.0, 0),
            Self::Unknown { task } => (UNKNOWN, 0, task.0, 0),
        };
        let mut header = [0; HEADER_BYTES];
        header[0] = OWN;
        header[1] = what;
        header[2..4].copy_from_slice(&VERSION.to_le_bytes());
        header[4] = flag;
        header[8..16].copy_from_slice(&task.to_le_bytes());
        header[16..24].copy_from_slice(&token.to_le_bytes());
        header
    }

    /// Reads what [`Self::encode`] writes, and nothing else. The version is checked by itself.
    pub(super) fn decode(header: &[u8; HEADER_BYTES]) -> Option<Self> {
        let word = |at: usize| {
            let bytes = header[at..].first_chunk().expect("inside the header");
            u64::from_le_bytes(*bytes)
        };
        let (task, token) = (TaskId(word(8)), word(16));
        let say = match header[1] {
            HELLO => Self::Hello { task, token },
            USE => Self::Use,
            ANOTHER => Self::Another,
            PARTS => Self::Parts,
            LENDING => Self::Lending,
            INTRODUCE => Self::Introduce { task },
            MEET => Self::Meet {
                task,
                connects: header[4] == 1,
            },
            UNKNOWN => Self::Unknown { task },
            _ => return None,
        };
        (say.encode() == *header).then_some(say)
    }
}

/// The version that a Node says it speaks, if it is one.
pub(super) fn version(header: &[u8; HEADER_BYTES]) -> Option<u16> {
    (header[0] == OWN).then(|| u16::from_le_bytes([header[2], header[3]]))
}

/// A frame of the Space's as header and body of a frame of the Link's.
pub(super) fn split(frame: &[u8]) -> ([u8; HEADER_BYTES], &[u8]) {
    let (head, body) = frame.split_at(frame.len().min(HEADER_BYTES));
    let mut header = [0; HEADER_BYTES];
    header[..head.len()].copy_from_slice(head);
    (header, body)
}

/// What a frame of the Link's, whose header and body lie one behind the other, is of the Space's.
/// Nothing when the padding is not empty.
pub(super) fn joined(frame: &[u8]) -> Option<&[u8]> {
    if frame.len() > HEADER_BYTES {
        return Some(frame);
    }
    let (head, padding) = frame.split_at(CONTROL_BYTES);
    padding.iter().all(|byte| *byte == 0).then_some(head)
}

/// Descriptors in the portions that frames take, the last of which goes with the message itself.
pub(super) fn portions(mut fds: Vec<OwnedFd>) -> (Vec<Vec<OwnedFd>>, Vec<OwnedFd>) {
    let mut before = Vec::new();
    while fds.len() > FDS_MAX {
        let rest = fds.split_off(FDS_MAX);
        before.push(std::mem::replace(&mut fds, rest));
    }
    (before, fds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_heard_and_nothing_else() {
        let task = TaskId(u64::MAX);
        for say in [
            Say::Hello { task, token: 5 },
            Say::Use,
            Say::Another,
            Say::Parts,
            Say::Lending,
            Say::Introduce { task },
            Say::Meet {
                task,
                connects: true,
            },
            Say::Meet {
                task,
                connects: false,
            },
            Say::Unknown { task },
        ] {
            let header = say.encode();
            assert_eq!(Say::decode(&header), Some(say));
            assert_eq!(version(&header), Some(VERSION));
            for at in [0, 2, 4, 5, 24, 47] {
                let mut other = header;
                other[at] ^= 2;
                assert_eq!(Say::decode(&other), None, "{say:?} with byte {at} changed");
            }
        }
    }

    #[test]
    fn frames_go_there_and_back() {
        for length in [32, 64, 128, 5000] {
            let frame: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
            let (header, body) = split(&frame);
            let back = [&header, body].concat();
            assert_eq!(joined(&back), Some(&frame[..]));
        }
        let mut header = [0; HEADER_BYTES];
        header[40] = 1;
        assert_eq!(joined(&header), None);
    }
}
