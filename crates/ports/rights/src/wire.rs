//! Frames as bytes: fixed little-endian layouts, one way to write each frame.
//!
//! A message is a head of 64 bytes with the reply right in it, then the bytes inside, the rights
//! (32 bytes each) and the memory (24 bytes each). All other frames are 32 bytes, and 64 with a
//! right.

use alloc::vec::Vec;

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::frame::{ExportId, Frame, MessageFrame, WireMemory, WireRight};
use crate::message::{
    MAX_DESCRIPTORS, MAX_INLINE, MAX_MEMORY, MAX_RIGHTS, MemoryKind, RightKind, TaskId,
};

/// The version of the layouts; the first byte of every frame.
const VERSION: u8 = 1;
/// Bytes of a message before the bytes inside: with 64 of these it fills a slot of 128.
pub const MESSAGE_HEAD_BYTES: usize = size_of::<MessageHead>();

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Another version.
    #[error("the frame is of another version; both tasks need the same one")]
    Version,
    /// Fewer or more bytes than the frame has.
    #[error("the frame is cut short or too long")]
    Length,
    /// A value that means nothing, or one where there should be none.
    #[error("a field of the frame has no meaning")]
    Field,
    /// More than the limits.
    #[error("the frame exceeds a limit")]
    TooMuch,
}

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Right {
    what: u8,
    kind: u8,
    /// Credits, or the queue limit of a receive right.
    number: U16,
    unused: U32,
    export: U64,
    task: U64,
    nonce: U64,
}

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct MessageHead {
    version: u8,
    what: u8,
    hops: u8,
    forwarded: u8,
    rights: u8,
    descriptors: u8,
    memory: u8,
    unused: u8,
    id: U32,
    length: U32,
    to: U64,
    origin: U64,
    reply: Right,
}

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Memory {
    kind: u8,
    unused: [u8; 7],
    region: U64,
    length: U64,
}

#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Control {
    version: u8,
    what: u8,
    kind: u8,
    unused: u8,
    /// A count or credits.
    number: U32,
    export: U64,
    task: U64,
    nonce: U64,
}

const _: () = assert!(size_of::<MessageHead>() == 64 && size_of::<Right>() == 32);
const _: () = assert!(size_of::<Memory>() == 24 && size_of::<Control>() == 32);

/// The second byte of a frame.
mod what {
    pub(super) const MESSAGE: u8 = 1;
    pub(super) const RELEASE: u8 = 2;
    pub(super) const FREED: u8 = 3;
    pub(super) const CREDIT: u8 = 4;
    pub(super) const DEAD: u8 = 5;
    pub(super) const PROVIDE: u8 = 6;
    pub(super) const WITHDRAW: u8 = 7;
    pub(super) const SETTLED: u8 = 8;
    pub(super) const ACCEPT: u8 = 9;
    pub(super) const ACCEPTED: u8 = 10;
    pub(super) const REFUSED: u8 = 11;
    pub(super) const DECLINE: u8 = 12;
    pub(super) const MOVED: u8 = 13;
    pub(super) const FOLLOWING: u8 = 14;
    pub(super) const HANDED: u8 = 15;
    pub(super) const OFFER: u8 = 16;
}

/// The first byte of a right.
mod right {
    pub(super) const NONE: u8 = 0;
    pub(super) const DEAD: u8 = 1;
    pub(super) const MINE: u8 = 2;
    pub(super) const YOURS: u8 = 3;
    pub(super) const THIRD: u8 = 4;
    pub(super) const RECEIVE: u8 = 5;
}

const SEND: u8 = 1;
const SEND_ONCE: u8 = 2;
const DONATED: u8 = 1;
const LENT: u8 = 2;

fn kind_byte(kind: RightKind) -> u8 {
    match kind {
        RightKind::Send => SEND,
        RightKind::SendOnce => SEND_ONCE,
    }
}

fn kind_of(byte: u8) -> Result<RightKind, DecodeError> {
    match byte {
        SEND => Ok(RightKind::Send),
        SEND_ONCE => Ok(RightKind::SendOnce),
        _ => Err(DecodeError::Field),
    }
}

fn encode_right(wire: Option<WireRight>) -> Right {
    let mut right = Right::default();
    match wire {
        None => right.what = right::NONE,
        Some(WireRight::Dead) => right.what = right::DEAD,
        Some(WireRight::Mine {
            export,
            kind,
            credits,
        }) => {
            right.what = right::MINE;
            right.kind = kind_byte(kind);
            right.export = export.0.into();
            right.number = credits.into();
        }
        Some(WireRight::Yours { export, kind }) => {
            right.what = right::YOURS;
            right.kind = kind_byte(kind);
            right.export = export.0.into();
        }
        Some(WireRight::Third { task, nonce, kind }) => {
            right.what = right::THIRD;
            right.kind = kind_byte(kind);
            right.task = task.0.into();
            right.nonce = nonce.into();
        }
        Some(WireRight::Receive { nonce, limit }) => {
            right.what = right::RECEIVE;
            right.nonce = nonce.into();
            right.number = limit.into();
        }
    }
    right
}

fn decode_right(right: Right) -> Result<Option<WireRight>, DecodeError> {
    let export = ExportId(right.export.get());
    let wire = match right.what {
        right::NONE => None,
        right::DEAD => Some(WireRight::Dead),
        right::MINE => Some(WireRight::Mine {
            export,
            kind: kind_of(right.kind)?,
            credits: right.number.get(),
        }),
        right::YOURS => Some(WireRight::Yours {
            export,
            kind: kind_of(right.kind)?,
        }),
        right::THIRD => Some(WireRight::Third {
            task: TaskId(right.task.get()),
            nonce: right.nonce.get(),
            kind: kind_of(right.kind)?,
        }),
        right::RECEIVE => Some(WireRight::Receive {
            nonce: right.nonce.get(),
            limit: right.number.get(),
        }),
        _ => return Err(DecodeError::Field),
    };
    // What the right does not use must be zero: there is one way to write it.
    if encode_right(wire).as_bytes() == right.as_bytes() {
        Ok(wire)
    } else {
        Err(DecodeError::Field)
    }
}

fn control(frame: &Frame) -> Control {
    let none = ExportId(0);
    let (what, export, (task, nonce), number) = match *frame {
        Frame::Message(_) => unreachable!("messages have a head of their own"),
        Frame::Offer { token, .. } => (what::OFFER, none, (0, token), 0),
        Frame::Release { export, count } => (what::RELEASE, export, (0, 0), count),
        Frame::Freed { export } => (what::FREED, export, (0, 0), 0),
        Frame::Credit { export, credits } => (what::CREDIT, export, (0, 0), credits.into()),
        Frame::Dead { export } => (what::DEAD, export, (0, 0), 0),
        Frame::Provide { nonce, export, to } => (what::PROVIDE, export, (to.0, nonce), 0),
        Frame::Withdraw { nonce } => (what::WITHDRAW, none, (0, nonce), 0),
        Frame::Settled { nonce } => (what::SETTLED, none, (0, nonce), 0),
        Frame::Accept { from, nonce, .. } => (what::ACCEPT, none, (from.0, nonce), 0),
        Frame::Accepted {
            from,
            nonce,
            export,
            credits,
        } => (what::ACCEPTED, export, (from.0, nonce), credits.into()),
        Frame::Refused { from, nonce } => (what::REFUSED, none, (from.0, nonce), 0),
        Frame::Decline { owner, nonce } => (what::DECLINE, none, (owner.0, nonce), 0),
        Frame::Moved { export } => (what::MOVED, export, (0, 0), 0),
        Frame::Following { export } => (what::FOLLOWING, export, (0, 0), 0),
        Frame::Handed { export, .. } => (what::HANDED, export, (0, 0), 0),
    };
    let kind = match *frame {
        Frame::Accept { kind, .. } => kind_byte(kind),
        _ => 0,
    };
    Control {
        version: VERSION,
        what,
        kind,
        unused: 0,
        number: number.into(),
        export: export.0.into(),
        task: task.into(),
        nonce: nonce.into(),
    }
}

fn right_after(rest: &[u8]) -> Result<WireRight, DecodeError> {
    let right = Right::read_from_bytes(rest).map_err(|_| DecodeError::Length)?;
    decode_right(right)?.ok_or(DecodeError::Field)
}

fn decode_control(bytes: &[u8]) -> Result<Frame, DecodeError> {
    let (it, rest) = Control::read_from_prefix(bytes).map_err(|_| DecodeError::Length)?;
    let export = ExportId(it.export.get());
    let (task, nonce) = (TaskId(it.task.get()), it.nonce.get());
    let credits = || u16::try_from(it.number.get()).map_err(|_| DecodeError::Field);
    let frame = match it.what {
        what::RELEASE => Frame::Release {
            export,
            count: it.number.get(),
        },
        what::FREED => Frame::Freed { export },
        what::CREDIT => Frame::Credit {
            export,
            credits: credits()?,
        },
        what::DEAD => Frame::Dead { export },
        what::PROVIDE => Frame::Provide {
            nonce,
            export,
            to: task,
        },
        what::WITHDRAW => Frame::Withdraw { nonce },
        what::SETTLED => Frame::Settled { nonce },
        what::ACCEPT => Frame::Accept {
            from: task,
            nonce,
            kind: kind_of(it.kind)?,
        },
        what::ACCEPTED => Frame::Accepted {
            from: task,
            nonce,
            export,
            credits: credits()?,
        },
        what::REFUSED => Frame::Refused { from: task, nonce },
        what::DECLINE => Frame::Decline { owner: task, nonce },
        what::MOVED => Frame::Moved { export },
        what::FOLLOWING => Frame::Following { export },
        what::HANDED => Frame::Handed {
            export,
            right: right_after(rest)?,
        },
        what::OFFER => Frame::Offer {
            token: nonce,
            right: right_after(rest)?,
        },
        _ => return Err(DecodeError::Field),
    };
    match frame {
        Frame::Handed { .. } | Frame::Offer { .. } => {}
        _ if rest.is_empty() => {}
        _ => return Err(DecodeError::Length),
    }
    if control(&frame).as_bytes() == it.as_bytes() {
        Ok(frame)
    } else {
        Err(DecodeError::Field)
    }
}

fn encode_message(message: &MessageFrame, out: &mut Vec<u8>) {
    let head = MessageHead {
        version: VERSION,
        what: what::MESSAGE,
        hops: message.hops,
        forwarded: u8::from(message.origin.is_some()),
        rights: message.rights.len() as u8,
        descriptors: message.descriptors,
        memory: message.memory.len() as u8,
        unused: 0,
        id: message.id.into(),
        length: (message.bytes.len() as u32).into(),
        to: message.to.0.into(),
        origin: message.origin.map_or(0, |task| task.0).into(),
        reply: encode_right(message.reply),
    };
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(&message.bytes);
    for &right in &message.rights {
        out.extend_from_slice(encode_right(Some(right)).as_bytes());
    }
    for memory in &message.memory {
        let memory = Memory {
            kind: match memory.kind {
                MemoryKind::Donated => DONATED,
                MemoryKind::Lent => LENT,
            },
            unused: [0; 7],
            region: memory.region.into(),
            length: memory.length.into(),
        };
        out.extend_from_slice(memory.as_bytes());
    }
}

fn decode_memory(it: Memory) -> Result<WireMemory, DecodeError> {
    let kind = match it.kind {
        DONATED if it.region.get() == 0 => MemoryKind::Donated,
        LENT => MemoryKind::Lent,
        _ => return Err(DecodeError::Field),
    };
    if it.unused != [0; 7] {
        return Err(DecodeError::Field);
    }
    Ok(WireMemory {
        kind,
        region: it.region.get(),
        length: it.length.get(),
    })
}

/// Decodes each; nothing of nothing, which most messages have of most things.
fn each_decoded<T, U>(
    from: &[T],
    decode: impl FnMut(&T) -> Result<U, DecodeError>,
) -> Result<Vec<U>, DecodeError> {
    match from {
        [] => Ok(Vec::new()),
        from => from.iter().map(decode).collect(),
    }
}

fn decode_message(bytes: &[u8]) -> Result<Frame, DecodeError> {
    let (head, rest) = MessageHead::read_from_prefix(bytes).map_err(|_| DecodeError::Length)?;
    let length = head.length.get() as usize;
    let rights = usize::from(head.rights);
    let memory = usize::from(head.memory);
    if length > MAX_INLINE
        || rights > MAX_RIGHTS
        || memory > MAX_MEMORY
        || usize::from(head.descriptors) > MAX_DESCRIPTORS
    {
        return Err(DecodeError::TooMuch);
    }
    let origin = match (head.forwarded, head.origin.get()) {
        (0, 0) => None,
        (1, task) => Some(TaskId(task)),
        _ => return Err(DecodeError::Field),
    };
    if head.unused != 0 {
        return Err(DecodeError::Field);
    }
    let split = |bytes, at| <[u8]>::split_at_checked(bytes, at).ok_or(DecodeError::Length);
    let (inside, rest) = split(rest, length)?;
    let (records, rest) = split(rest, rights * size_of::<Right>())?;
    let records = <[Right]>::ref_from_bytes(records).map_err(|_| DecodeError::Length)?;
    let right = |it: &Right| decode_right(*it)?.ok_or(DecodeError::Field);
    let pieces = <[Memory]>::ref_from_bytes(rest).map_err(|_| DecodeError::Length)?;
    if pieces.len() != memory {
        return Err(DecodeError::Length);
    }
    Ok(Frame::Message(MessageFrame {
        to: ExportId(head.to.get()),
        reply: decode_right(head.reply)?,
        id: head.id.get(),
        origin,
        hops: head.hops,
        bytes: inside.into(),
        rights: each_decoded(records, right)?,
        descriptors: head.descriptors,
        memory: each_decoded(pieces, |&it| decode_memory(it))?,
    }))
}

impl Frame {
    /// Appends the frame's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Message(message) => encode_message(message, out),
            frame => {
                out.extend_from_slice(control(frame).as_bytes());
                if let Self::Handed { right, .. } | Self::Offer { right, .. } = frame {
                    out.extend_from_slice(encode_right(Some(*right)).as_bytes());
                }
            }
        }
    }

    /// Reads a frame; the bytes must be one frame and nothing else. Never allocates more than the
    /// bytes are long, times a small constant.
    ///
    /// # Errors
    /// [`DecodeError`] for everything that [`Self::encode`] does not write.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        match bytes {
            [VERSION, what::MESSAGE, ..] => decode_message(bytes),
            [VERSION, ..] => decode_control(bytes),
            [] => Err(DecodeError::Length),
            [_, ..] => Err(DecodeError::Version),
        }
    }
}
