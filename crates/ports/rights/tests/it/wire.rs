//! Frames as bytes: every frame there and back, anything else refused.

use farpage_rights::{
    DecodeError, ExportId, Frame, MESSAGE_HEAD_BYTES, MemoryKind, MessageFrame, RightKind, TaskId,
    WireMemory, WireRight,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

fn export() -> impl Strategy<Value = ExportId> {
    any::<u64>().prop_map(ExportId)
}

fn task() -> impl Strategy<Value = TaskId> {
    any::<u64>().prop_map(TaskId)
}

fn kind() -> impl Strategy<Value = RightKind> {
    prop_oneof![Just(RightKind::Send), Just(RightKind::SendOnce)]
}

fn right() -> impl Strategy<Value = WireRight> {
    prop_oneof![
        Just(WireRight::Dead),
        (export(), kind(), any::<u16>()).prop_map(|(export, kind, credits)| WireRight::Mine {
            export,
            kind,
            credits
        }),
        (export(), kind()).prop_map(|(export, kind)| WireRight::Yours { export, kind }),
        (task(), any::<u64>(), kind()).prop_map(|(task, nonce, kind)| WireRight::Third {
            task,
            nonce,
            kind
        }),
        (any::<u64>(), any::<u16>()).prop_map(|(nonce, limit)| WireRight::Receive { nonce, limit }),
    ]
}

fn memory() -> impl Strategy<Value = WireMemory> {
    (any::<bool>(), any::<u64>(), any::<u64>()).prop_map(|(donated, region, length)| WireMemory {
        kind: if donated {
            MemoryKind::Donated
        } else {
            MemoryKind::Lent
        },
        region: if donated { 0 } else { region },
        length,
    })
}

fn message() -> impl Strategy<Value = Frame> {
    let head = (export(), proptest::option::of(right()), any::<u32>());
    let way = (proptest::option::of(task()), any::<u8>(), 0..=253u8);
    let body = (
        vec(any::<u8>(), 0..300),
        vec(right(), 0..=64),
        vec(memory(), 0..=64),
    );
    (head, way, body).prop_map(
        |((to, reply, id), (origin, hops, descriptors), (bytes, rights, memory))| {
            Frame::Message(MessageFrame {
                to,
                reply,
                id,
                origin,
                hops,
                bytes,
                rights,
                descriptors,
                memory,
            })
        },
    )
}

fn frame() -> impl Strategy<Value = Frame> {
    let nonce = any::<u64>;
    prop_oneof![
        message(),
        (export(), any::<u32>()).prop_map(|(export, count)| Frame::Release { export, count }),
        export().prop_map(|export| Frame::Freed { export }),
        (export(), any::<u16>()).prop_map(|(export, credits)| Frame::Credit { export, credits }),
        export().prop_map(|export| Frame::Dead { export }),
        (nonce(), export(), task()).prop_map(|(nonce, export, to)| Frame::Provide {
            nonce,
            export,
            to
        }),
        nonce().prop_map(|nonce| Frame::Withdraw { nonce }),
        nonce().prop_map(|nonce| Frame::Settled { nonce }),
        (task(), nonce(), kind()).prop_map(|(from, nonce, kind)| Frame::Accept {
            from,
            nonce,
            kind
        }),
        (task(), nonce(), export(), any::<u16>()).prop_map(|(from, nonce, export, credits)| {
            Frame::Accepted {
                from,
                nonce,
                export,
                credits,
            }
        }),
        (task(), nonce()).prop_map(|(from, nonce)| Frame::Refused { from, nonce }),
        (task(), nonce()).prop_map(|(owner, nonce)| Frame::Decline { owner, nonce }),
        export().prop_map(|export| Frame::Moved { export }),
        export().prop_map(|export| Frame::Following { export }),
        (any::<u64>(), right()).prop_map(|(token, right)| Frame::Offer { token, right }),
        (export(), right()).prop_map(|(export, right)| Frame::Handed { export, right }),
    ]
}

fn encoded(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    bytes
}

proptest! {
    #[test]
    fn every_frame_comes_back_as_it_was(frame in frame()) {
        prop_assert_eq!(Frame::decode(&encoded(&frame)), Ok(frame));
    }

    #[test]
    fn what_is_cut_short_or_too_long_is_refused(frame in frame(), cut in any::<Index>()) {
        let mut bytes = encoded(&frame);
        let cut = cut.index(bytes.len());
        prop_assert!(Frame::decode(&bytes[..cut]).is_err());
        bytes.push(0);
        prop_assert!(Frame::decode(&bytes).is_err());
    }

    #[test]
    fn any_bytes_are_a_frame_or_an_error(
        mut bytes in vec(any::<u8>(), 0..400), plausible in any::<bool>()
    ) {
        if plausible && bytes.len() > 1 {
            bytes[0] = 1;
            bytes[1] %= 17;
        }
        if let Ok(frame) = Frame::decode(&bytes) {
            prop_assert_eq!(encoded(&frame), bytes);
        }
    }

    #[test]
    fn a_frame_with_changed_bytes_is_another_frame_or_an_error(
        frame in frame(), changes in vec((any::<Index>(), any::<u8>()), 1..4)
    ) {
        let mut bytes = encoded(&frame);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(frame) = Frame::decode(&bytes) {
            prop_assert_eq!(encoded(&frame), bytes);
        }
    }
}

#[test]
fn a_call_of_64_bytes_with_a_reply_right_fills_a_slot_of_128() {
    let frame = Frame::Message(MessageFrame {
        to: ExportId(1),
        reply: Some(WireRight::Mine {
            export: ExportId(2),
            kind: RightKind::SendOnce,
            credits: 0,
        }),
        id: 3,
        origin: None,
        hops: 0,
        bytes: vec![0; 64],
        rights: Vec::new(),
        descriptors: 0,
        memory: Vec::new(),
    });
    assert_eq!(encoded(&frame).len(), 128);
    assert_eq!(MESSAGE_HEAD_BYTES, 64);
}

#[test]
fn lengths_that_lie_are_refused_before_anything_is_allocated() {
    let mut bytes = vec![0; 64];
    bytes[..2].copy_from_slice(&[1, 1]);
    bytes[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(Frame::decode(&bytes), Err(DecodeError::TooMuch));
    bytes[12..16].copy_from_slice(&4096u32.to_le_bytes());
    assert_eq!(Frame::decode(&bytes), Err(DecodeError::Length));
    bytes[12..16].copy_from_slice(&0u32.to_le_bytes());
    bytes[4] = 65;
    assert_eq!(Frame::decode(&bytes), Err(DecodeError::TooMuch));
    bytes[4] = 64;
    assert_eq!(Frame::decode(&bytes), Err(DecodeError::Length));
    bytes[4] = 0;
    assert!(Frame::decode(&bytes).is_ok());
    bytes[0] = 2;
    assert_eq!(Frame::decode(&bytes), Err(DecodeError::Version));
}
