//! What servers tell each other, as bytes.

use farpage_rules::coherence::{
    Epoch, Generation, Host, Hosts, Marker, Message, Report, Request, Standing, TwinMessage,
    Verdict,
};
use serde::{Deserialize, Serialize};

use crate::simple;

/// Bytes of a head at most.
const HEAD_MAX: usize = 1 << 20;
/// Units of one report, or one message of verdicts, at most.
pub(crate) const UNITS_MAX: usize = 8192;

/// What a message says. Contents follow where it has any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Said {
    /// Of a unit of an object.
    Unit {
        /// The object's number in the cluster.
        object: u64,
        /// The number of the unit in the object.
        unit: u64,
        /// The view of its sender.
        generation: Generation,
        /// Who says it: the sender, or the host whose backup the sender is.
        origin: Host,
        message: Message,
    },
    /// Of a mirrored object, for the sender's backup: what it has written, and what to pass on when
    /// that is kept. Their contents follow, of each once.
    Parcel {
        object: u64,
        generation: Generation,
        /// Parcels are taken in order: so many the sender had sent to the receiver.
        order: u64,
        /// What the sender calls it.
        number: u64,
        units: Vec<(u64, Epoch)>,
        then: Option<Passed>,
    },
    /// Nobody waits for it: the sender has all parcels of the receiver up to this one.
    Arrived {
        object: u64,
        generation: Generation,
        number: u64,
    },
    /// Nobody waits for it: these versions of units are on two hosts, so earlier ones need not be
    /// kept.
    OnTwo {
        object: u64,
        generation: Generation,
        units: Vec<(u64, Epoch)>,
    },
    /// Of a unit of an object with the simple scheduler. Such messages are taken in order: so many
    /// of the object the sender had sent to the receiver.
    Simple {
        object: u64,
        unit: u64,
        generation: Generation,
        number: u64,
        message: simple::Message,
    },
    /// The sender leaves: the receiver takes units over, so many from each first one.
    TakeOver {
        object: u64,
        generation: Generation,
        units: Vec<(u64, u64)>,
    },
    /// The sender, an object's home, leaves. Which units it has touched follows, so many from each
    /// first one: all others are zeros, unless somebody has them.
    Touched { object: u64, generation: Generation },
    /// The sender leaves when all have what it has sent, and asks how much that is.
    Leaves,
    /// So many messages of the receiver, which leaves, have come; and whether the sender leaves too.
    Has { received: u64, is_leaving: bool },
    /// A part of a message that is too long for one. Its bytes follow.
    Part { message: u64, part: u16, count: u16 },
    /// The first view that the sender has heard of.
    Began(Generation),
    /// A host has died, and nothing of before comes any more.
    Marker(Marker),
    /// What the sender has of units whose home the receiver is.
    Reports {
        fence: Generation,
        units: Vec<(u64, u64, Report)>,
        /// There is no more.
        is_last: bool,
    },
    /// What is to be of units whose home the sender is.
    Verdicts {
        fence: Generation,
        units: Vec<(u64, u64, Verdict)>,
        /// There is no more.
        is_last: bool,
    },
    /// Of a unit of an object with release consistency. Contents, or a diff, follow where they belong
    /// to it.
    Twinned {
        object: u64,
        unit: u64,
        generation: Generation,
        message: TwinMessage,
    },
}

/// What a backup passes on, with the contents of the unit if they belong to the message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Passed {
    pub(crate) to: Host,
    pub(crate) unit: u64,
    pub(crate) message: Message,
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Garbled {
    #[error("a message that is cut off")]
    Short,
    #[error("a message that is none of this version")]
    Unknown,
}

impl Said {
    /// Its bytes, with their number before them.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; 4];
        bytes = postcard::to_extend(self, bytes).expect("it is serialized into memory");
        let length = bytes.len() - 4;
        assert!(length <= HEAD_MAX, "a head of {length} bytes");
        bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
        bytes
    }

    /// What is said, and what comes after it.
    pub(crate) fn take(bytes: &[u8]) -> Result<(Self, &[u8]), Garbled> {
        let (length, rest) = bytes.split_first_chunk().ok_or(Garbled::Short)?;
        let length = u32::from_le_bytes(*length) as usize;
        let (head, contents) = rest.split_at_checked(length).ok_or(Garbled::Short)?;
        let (said, left) = postcard::take_from_bytes(head).map_err(|_| Garbled::Unknown)?;
        match left.is_empty() {
            true => Ok((said, contents)),
            false => Err(Garbled::Unknown),
        }
    }
}

/// Reads a message, and writes it again; and what comes after it. For fuzzing.
#[must_use]
pub fn read_and_write(bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let (said, rest) = Said::take(bytes).ok()?;
    Some((said.bytes(), rest))
}

/// A message of each kind. For fuzzing.
#[must_use]
pub fn samples() -> Vec<Vec<u8>> {
    let fence = Generation(3);
    let request = Request {
        by: Host(3),
        to_write: true,
        has_copy: false,
        known: Epoch(70_000),
        hops: 2,
        to_copy: false,
    };
    let own = Message::Own {
        epoch: Epoch(9),
        copies: Hosts::of(Host(1)),
        contents: true,
        waiting: [request].into(),
        migrates: false,
        is_sealed: false,
    };
    let messages = [
        Message::Request(request),
        own,
        Message::Lost { epoch: Epoch(4) },
        Message::Sealed {
            epoch: Epoch(4),
            owner: Host(1),
        },
    ];
    let unit = |message| Said::Unit {
        object: 7,
        unit: 1 << 40,
        generation: fence,
        origin: Host(1),
        message,
    };
    let report = Report {
        standing: Standing::Copy,
        epoch: Epoch(3),
        owner: Host(1),
        kept: None,
    };
    let others = [
        Said::Parcel {
            object: 7,
            generation: fence,
            order: 1,
            number: 2,
            units: vec![(3, Epoch(4))],
            then: Some(Passed {
                to: Host(2),
                unit: 3,
                message: Message::Copy { epoch: Epoch(4) },
            }),
        },
        Said::Arrived {
            object: 7,
            generation: fence,
            number: 2,
        },
        Said::OnTwo {
            object: 7,
            generation: fence,
            units: vec![(3, Epoch(4))],
        },
        Said::TakeOver {
            object: 7,
            generation: fence,
            units: vec![(3, 2)],
        },
        Said::Touched {
            object: 7,
            generation: fence,
        },
        Said::Leaves,
        Said::Has {
            received: 9,
            is_leaving: false,
        },
        Said::Part {
            message: 1,
            part: 0,
            count: 2,
        },
        Said::Began(fence),
        Said::Marker(Marker {
            generation: fence,
            sent: 12,
        }),
        Said::Reports {
            fence,
            units: vec![(7, 1, report)],
            is_last: true,
        },
        Said::Verdicts {
            fence,
            units: vec![(7, 1, Verdict::untouched(Host(0)))],
            is_last: false,
        },
        Said::Twinned {
            object: 7,
            unit: 3,
            generation: fence,
            message: TwinMessage::Diff { number: 2 },
        },
    ];
    let all = messages.into_iter().map(unit).chain(others);
    all.map(|said| said.bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_nothing_else() {
        let request = Request {
            by: Host(3),
            to_write: true,
            has_copy: false,
            known: Epoch(70_000),
            hops: 2,
            to_copy: false,
        };
        let said = Said::Unit {
            object: 7,
            unit: 1 << 40,
            generation: Generation(9),
            origin: Host(3),
            message: Message::Request(request),
        };
        let mut bytes = said.bytes();
        bytes.extend([1, 2, 3]);
        assert_eq!(Said::take(&bytes), Ok((said, &[1, 2, 3][..])));
        for length in 0..bytes.len() - 3 {
            assert_eq!(Said::take(&bytes[..length]), Err(Garbled::Short));
        }
        let mut longer = bytes.clone();
        longer[0] += 1;
        assert_eq!(Said::take(&longer), Err(Garbled::Unknown));
        assert_eq!(Said::take(&[1, 0, 0, 0, 0xff]), Err(Garbled::Unknown));
        for sample in samples() {
            assert_eq!(read_and_write(&sample), Some((sample.clone(), &[][..])));
        }
    }
}
