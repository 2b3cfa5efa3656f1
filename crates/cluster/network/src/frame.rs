//! What goes over a connection: a greeting from each side, then frames. Decoders of both take
//! anything that a peer may write.

use crate::{Incarnation, Priority};

/// The longest message.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Before each message: its length, its number, and how many of the other side's messages have come.
pub const HEADER_BYTES: usize = 20;
/// A greeting without words.
const GREETING_BYTES: usize = 48;
const WORDS_BYTES_MAX: usize = 256;
const MAGIC: [u8; 8] = *b"farpage1";

/// A peer sent what cannot be. Its connection ends; it may connect again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Something else than Farpage, or another version of it.
    #[error("it does not speak this version of Farpage's protocol")]
    Stranger,
    /// A greeting that says nothing.
    #[error("its greeting makes no sense")]
    Greeting,
    /// A frame's length.
    #[error("it announced a message of {0} bytes, more than {MESSAGE_BYTES_MAX}")]
    Length(u32),
    /// Messages are missing.
    #[error("it sent message {number} when message {expected} was due")]
    Gap {
        /// The one that came.
        number: u64,
        /// The one that was due.
        expected: u64,
    },
    /// It has what was never sent to it, or has lost what it had.
    #[error("it acknowledged {acknowledged} messages, where it can have had {least} to {most}")]
    Acknowledged {
        /// How many it says.
        acknowledged: u64,
        /// How many it said before.
        least: u64,
        /// How many it was sent.
        most: u64,
    },
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Of the message that follows; none: the frame only acknowledges, and shows a sign of life.
    pub length: usize,
    /// Of the message, or of the next one that there will be.
    pub number: u64,
    /// So many messages of the receiver have come.
    pub acknowledged: u64,
}

impl Header {
    /// The frame that `bytes` begin with, as soon as all of it is there.
    ///
    /// # Errors
    /// A length beyond all bounds.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, Violation> {
        let Some((head, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let [a, b, c, d, ..] = *head;
        let length = u32::from_le_bytes([a, b, c, d]);
        if length as usize > MESSAGE_BYTES_MAX {
            return Err(Violation::Length(length));
        }
        let header = Self {
            length: length as usize,
            number: word(head, 4),
            acknowledged: word(head, 12),
        };
        Ok((rest.len() >= header.length).then_some(header))
    }

    /// As it is sent.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&(self.length as u32).to_le_bytes());
        bytes[4..12].copy_from_slice(&self.number.to_le_bytes());
        bytes[12..].copy_from_slice(&self.acknowledged.to_le_bytes());
        bytes
    }
}

/// Who greets whom, and where they go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Who sends it.
    pub from: Incarnation,
    /// Who is meant.
    pub to: Incarnation,
    /// What the connection is for.
    pub priority: Priority,
    /// Which of the connector's connections this is: an older one never replaces a younger.
    pub attempt: u64,
    /// The number of the message that the sender has not had yet.
    pub expected: u64,
}

/// The first thing that each side sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// From who connected.
    Hello(Hello),
    /// From who accepted.
    Welcome(Hello),
    /// From who accepted: the connection ends, for this reason.
    Refused(String),
}

impl Greeting {
    /// The greeting that `bytes` begin with and its length, as soon as all of it is there.
    ///
    /// # Errors
    /// Anything else.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, Violation> {
        let known = bytes.len().min(MAGIC.len());
        if bytes[..known] != MAGIC[..known] {
            return Err(Violation::Stranger);
        }
        let Some((head, rest)) = bytes.split_first_chunk::<GREETING_BYTES>() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_le_bytes([head[10], head[11]]));
        if head[12..16] != [0; 4] || length > WORDS_BYTES_MAX || (head[8] != 3 && length != 0) {
            return Err(Violation::Greeting);
        }
        let hello = Hello {
            from: Incarnation(word(head, 16)),
            to: Incarnation(word(head, 24)),
            priority: match head[9] {
                0 => Priority::Urgent,
                1 => Priority::Bulk,
                _ => return Err(Violation::Greeting),
            },
            attempt: word(head, 32),
            expected: word(head, 40),
        };
        let greeting = match head[8] {
            1 => Self::Hello(hello),
            2 => Self::Welcome(hello),
            3 => {
                let Some(words) = rest.get(..length) else {
                    return Ok(None);
                };
                let words = str::from_utf8(words).map_err(|_| Violation::Greeting)?;
                if head[9] != 0 || head[16..] != [0; 32] || words.chars().any(char::is_control) {
                    return Err(Violation::Greeting);
                }
                Self::Refused(words.into())
            }
            _ => return Err(Violation::Greeting),
        };
        Ok(Some((greeting, GREETING_BYTES + length)))
    }

    /// As it is sent. Words are cut to what a greeting takes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; GREETING_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        match self {
            Self::Hello(hello) => hello.put(1, &mut bytes),
            Self::Welcome(hello) => hello.put(2, &mut bytes),
            Self::Refused(words) => {
                let mut end = words.len().min(WORDS_BYTES_MAX);
                while !words.is_char_boundary(end) {
                    end -= 1;
                }
                let words = &words[..end];
                bytes[8] = 3;
                bytes[10..12].copy_from_slice(&(words.len() as u16).to_le_bytes());
                bytes.extend_from_slice(words.as_bytes());
            }
        }
        bytes
    }
}

impl Hello {
    fn put(&self, kind: u8, bytes: &mut [u8]) {
        bytes[8] = kind;
        bytes[9] = self.priority as u8;
        let words = [self.from.0, self.to.0, self.attempt, self.expected];
        for (at, word) in words.into_iter().enumerate() {
            bytes[16 + at * 8..24 + at * 8].copy_from_slice(&word.to_le_bytes());
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            from: Incarnation(7),
            to: Incarnation(u64::MAX),
            priority: Priority::Bulk,
            attempt: 3,
            expected: 1 << 40,
        }
    }

    #[test]
    fn greetings_are_read_as_they_were_written_and_not_before_they_are_whole() {
        let refused = Greeting::Refused("no such host".into());
        for greeting in [
            Greeting::Hello(hello()),
            Greeting::Welcome(hello()),
            refused,
        ] {
            let mut bytes = greeting.encode();
            for short in 0..bytes.len() {
                assert_eq!(Greeting::decode(&bytes[..short]), Ok(None));
            }
            let length = bytes.len();
            bytes.push(9);
            assert_eq!(Greeting::decode(&bytes), Ok(Some((greeting, length))));
        }
    }

    #[test]
    fn a_stranger_is_told_by_its_first_byte() {
        assert_eq!(Greeting::decode(b"G"), Err(Violation::Stranger));
        assert_eq!(Greeting::decode(b"farpage2"), Err(Violation::Stranger));
    }

    #[test]
    fn a_greeting_with_anything_odd_in_it_is_refused() {
        let good = Greeting::Hello(hello()).encode();
        for (at, byte) in [(8, 0), (8, 4), (9, 2), (10, 1), (12, 1)] {
            let mut bytes = good.clone();
            bytes[at] = byte;
            assert_eq!(Greeting::decode(&bytes), Err(Violation::Greeting), "{at}");
        }
        let mut bytes = Greeting::Refused("x\u{7}".into()).encode();
        assert_eq!(Greeting::decode(&bytes), Err(Violation::Greeting));
        bytes[10..12].copy_from_slice(&257_u16.to_le_bytes());
        assert_eq!(Greeting::decode(&bytes), Err(Violation::Greeting));
    }

    #[test]
    fn long_words_are_cut_where_a_character_ends() {
        for (character, fit) in [("ü", 128), ("€", 85)] {
            let bytes = Greeting::Refused(character.repeat(300)).encode();
            let cut = Greeting::Refused(character.repeat(fit));
            assert_eq!(Greeting::decode(&bytes), Ok(Some((cut, bytes.len()))));
        }
    }

    #[test]
    fn a_frame_is_read_when_its_message_is_there_and_never_when_it_is_too_long() {
        let header = Header {
            length: 3,
            number: 5,
            acknowledged: 6,
        };
        let mut bytes = header.encode().to_vec();
        bytes.extend_from_slice(b"ab");
        assert_eq!(Header::decode(&bytes), Ok(None));
        bytes.push(b'c');
        assert_eq!(Header::decode(&bytes), Ok(Some(header)));
        let long = MESSAGE_BYTES_MAX as u32 + 1;
        bytes[..4].copy_from_slice(&long.to_le_bytes());
        assert_eq!(Header::decode(&bytes), Err(Violation::Length(long)));
    }
}
