//! What arguments and answers can be, and how they are written.

use std::os::fd::OwnedFd;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::INSIDE_MAX;
use crate::link::{Draft, Frozen, Sealed};
use crate::{Donated, Memory, Message, ReceiveRight, Right, SendOnceRight, SendRight};

/// Bytes that mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what came is not what was declared")]
pub struct Garbled;

/// What a call or an answer is made of.
#[derive(Debug)]
pub struct Outgoing {
    pub(super) bytes: Vec<u8>,
    pub(super) message: Message,
}

/// What came with a call or an answer, to be taken in order.
#[derive(Debug)]
pub struct Incoming<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) rights: std::vec::IntoIter<Right>,
    pub(super) descriptors: std::vec::IntoIter<OwnedFd>,
    pub(super) memory: std::vec::IntoIter<Memory>,
}

/// What arguments and answers of an interface can be: whatever serde knows, rights, descriptors,
/// memory, and several of them ([`Both`]).
pub trait Wire: Sized {
    /// Puts it into a call or an answer.
    ///
    /// # Errors
    /// As serde says.
    fn put(self, out: &mut Outgoing) -> Result<(), postcard::Error>;

    /// Takes it out again.
    ///
    /// # Errors
    /// [`Garbled`] when it is not there.
    fn take(from: &mut Incoming<'_>) -> Result<Self, Garbled>;
}

impl<T: Serialize + DeserializeOwned> Wire for T {
    fn put(self, out: &mut Outgoing) -> Result<(), postcard::Error> {
        out.bytes = postcard::to_extend(&self, std::mem::take(&mut out.bytes))?;
        Ok(())
    }

    fn take(from: &mut Incoming<'_>) -> Result<Self, Garbled> {
        let (value, rest) = postcard::take_from_bytes(from.bytes).map_err(|_| Garbled)?;
        from.bytes = rest;
        Ok(value)
    }
}

impl Wire for Right {
    fn put(self, out: &mut Outgoing) -> Result<(), postcard::Error> {
        out.message.rights.push(self);
        Ok(())
    }

    fn take(from: &mut Incoming<'_>) -> Result<Self, Garbled> {
        from.rights.next().ok_or(Garbled)
    }
}

macro_rules! rights_on_the_wire {
    ($($right:ident is $kind:ident),*) => {$(
        impl Wire for $right {
            fn put(self, out: &mut Outgoing) -> Result<(), postcard::Error> {
                Right::from(self).put(out)
            }

            fn take(from: &mut Incoming<'_>) -> Result<Self, Garbled> {
                match from.rights.next() {
                    Some(Right::$kind(right)) => Ok(right),
                    _ => Err(Garbled),
                }
            }
        }
    )*};
}
rights_on_the_wire!(SendRight is Send, SendOnceRight is SendOnce, ReceiveRight is Receive);

/// A descriptor as an argument or an answer.
#[derive(Debug)]
pub struct Fd(pub OwnedFd);

impl Wire for Fd {
    fn put(self, out: &mut Outgoing) -> Result<(), postcard::Error> {
        out.message.descriptors.push(self.0);
        Ok(())
    }

    fn take(from: &mut Incoming<'_>) -> Result<Self, Garbled> {
        from.descriptors.next().map(Self).ok_or(Garbled)
    }
}

impl Wire for Memory {
    fn put(self, out: &mut Outgoing) -> Result<(), postcard::Error> {
        out.message.memory.push(self);
        Ok(())
    }

    fn take(from: &mut Incoming<'_>) -> Result<Self, Garbled> {
        from.memory.next().ok_or(Garbled)
    }
}

/// Bytes of any length as an argument or an answer, not looked at one by one: inside of the message
/// where they fit, else as donated memory, which the receiver maps.
pub struct Contents(Held);

enum Held {
    Own(Vec<u8>),
    Mapped(Frozen, Donated),
}

impl std::fmt::Debug for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl From<Vec<u8>> for Contents {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Held::Own(bytes))
    }
}

impl std::ops::Deref for Contents {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Held::Own(bytes) => bytes,
            Held::Mapped(map, _) => map,
        }
    }
}

/// Bytes of a message that are left for other arguments.
const OTHERS: usize = 1 << 10;

impl Wire for Contents {
    fn put(self, out: &mut Outgoing) -> Result<(), postcard::Error> {
        let is_inside = self.len() + out.bytes.len() + OTHERS <= INSIDE_MAX;
        is_inside.then_some(self.len() as u32).put(out)?;
        if is_inside {
            out.bytes.extend_from_slice(&self);
            return Ok(());
        }
        let bytes = match self.0 {
            Held::Mapped(_, donated) => return Memory::Donated(donated).put(out),
            Held::Own(bytes) => bytes,
        };
        let sealed = Draft::create(c"farpage-contents", bytes.len()).and_then(|mut draft| {
            draft.copy_from_slice(&bytes);
            Sealed::new(draft)
        });
        let sealed = sealed.map_err(|_| postcard::Error::SerializeBufferFull)?;
        Memory::Donated(sealed.into()).put(out)
    }

    fn take(from: &mut Incoming<'_>) -> Result<Self, Garbled> {
        if let Some(length) = <Option<u32> as Wire>::take(from)? {
            let inside = from.bytes.split_at_checked(length as usize);
            let (inside, rest) = inside.ok_or(Garbled)?;
            from.bytes = rest;
            return Ok(Self(Held::Own(inside.to_vec())));
        }
        match Memory::take(from)? {
            Memory::Donated(donated) => {
                let map = donated.map().map_err(|_| Garbled)?;
                Ok(Self(Held::Mapped(map, donated)))
            }
            Memory::Lent(_) => Err(Garbled),
        }
    }
}

/// Two in one, for answers: `Both<u64, SendRight>`.
#[derive(Debug)]
pub struct Both<A, B>(pub A, pub B);

impl<A: Wire, B: Wire> Wire for Both<A, B> {
    fn put(self, out: &mut Outgoing) -> Result<(), postcard::Error> {
        self.0.put(out)?;
        self.1.put(out)
    }

    fn take(from: &mut Incoming<'_>) -> Result<Self, Garbled> {
        Ok(Self(A::take(from)?, B::take(from)?))
    }
}

impl Incoming<'_> {
    /// All was taken.
    ///
    /// # Errors
    /// [`Garbled`] when more came than was declared.
    pub fn end(&self) -> Result<(), Garbled> {
        let left =
            self.bytes.len() + self.rights.len() + self.descriptors.len() + self.memory.len();
        if left == 0 { Ok(()) } else { Err(Garbled) }
    }
}
