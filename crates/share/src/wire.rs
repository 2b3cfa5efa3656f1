//! What servers tell each other, as bytes.

use farpage_coherence::Message;
use serde::{Deserialize, Serialize};

/// Bytes of a head at most.
const HEAD_MAX: usize = 1 << 12;

/// What a message is about. The contents of the unit follow where the message has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    /// The object's number in the cluster.
    pub(crate) object: u64,
    /// The number of the unit in the object.
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

impl Head {
    /// Its bytes, with their number before them.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; 2];
        bytes = postcard::to_extend(self, bytes).expect("a head is serialized into memory");
        let length = bytes.len() - 2;
        assert!(length <= HEAD_MAX, "a head of {length} bytes");
        bytes[..2].copy_from_slice(&(length as u16).to_le_bytes());
        bytes
    }

    /// A head, and what comes after it.
    pub(crate) fn take(bytes: &[u8]) -> Result<(Self, &[u8]), Garbled> {
        let (length, rest) = bytes.split_first_chunk().ok_or(Garbled::Short)?;
        let length = usize::from(u16::from_le_bytes(*length));
        let (head, contents) = rest.split_at_checked(length).ok_or(Garbled::Short)?;
        let (head, left) = postcard::take_from_bytes(head).map_err(|_| Garbled::Unknown)?;
        match left.is_empty() {
            true => Ok((head, contents)),
            false => Err(Garbled::Unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use farpage_coherence::{Epoch, Host, Request};

    use super::*;

    #[test]
    fn what_was_written_is_read_and_nothing_else() {
        let request = Request {
            by: Host(3),
            to_write: true,
            has_copy: false,
            known: Epoch(70_000),
            hops: 2,
        };
        let head = Head {
            object: 7,
            unit: 1 << 40,
            message: Message::Request(request),
        };
        let mut bytes = head.bytes();
        bytes.extend([1, 2, 3]);
        assert_eq!(Head::take(&bytes), Ok((head, &[1, 2, 3][..])));
        for length in 0..bytes.len() - 3 {
            assert_eq!(Head::take(&bytes[..length]), Err(Garbled::Short));
        }
        let mut longer = bytes.clone();
        longer[0] += 1;
        assert_eq!(Head::take(&longer), Err(Garbled::Unknown));
        assert_eq!(Head::take(&[1, 0, 0xff]), Err(Garbled::Unknown));
    }
}
