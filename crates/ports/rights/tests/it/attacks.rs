//! A peer that lies: each lie closes its own Link, names it, and harms nobody else.

use farpage_rights::{
    Descriptor, ExportId, Fault, Frame, Got, LinkId, Message, MessageFrame, Notice, Output,
    RightKind, Space, TaskId, Violation, WireMemory, WireRight,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::*;

/// Task 0 is attacked by task 1, which holds a right to a port of it; task 2 is honest.
struct Attack {
    net: Net,
    port: farpage_rights::Name,
    /// What task 1 holds.
    entry: ExportId,
    /// The port that task 2 holds a right to, and that right.
    other: (farpage_rights::Name, farpage_rights::Name),
}

const LINK: LinkId = LinkId(1);

fn attack() -> Attack {
    let mut net = Net::new(3);
    let port = net.spaces[0].allocate_port();
    net.spaces[0].offer(LINK, 0, make_send(port)).unwrap();
    let (_, frame, _) = net.frames(0).pop().unwrap();
    let Frame::Offer {
        right: WireRight::Mine { export, .. },
        ..
    } = frame
    else {
        panic!("{frame:?}");
    };
    let other = net.offered(0, 2);
    Attack {
        net,
        port,
        entry: export,
        other,
    }
}

fn message(to: ExportId) -> MessageFrame {
    MessageFrame {
        to,
        reply: None,
        id: 1,
        origin: None,
        hops: 0,
        bytes: Vec::new(),
        rights: Vec::new(),
        descriptors: 0,
        memory: Vec::new(),
    }
}

fn with(to: ExportId, rights: &[WireRight]) -> Frame {
    let mut message = message(to);
    message.rights = rights.to_vec();
    Frame::Message(message)
}

impl Attack {
    fn tell(&mut self, frame: Frame) -> Result<(), Violation> {
        self.net.spaces[0].handle_frame(LINK, frame, Vec::new())
    }

    fn accepted(&mut self, frame: Frame) {
        assert_eq!(self.tell(frame), Ok(()));
    }

    /// The frame closes the Link of task 1, and nothing else happens.
    fn refused(mut self, frame: Frame, fault: Fault) {
        let violation = Violation {
            link: LINK,
            task: TaskId(1),
            fault,
        };
        assert_eq!(self.tell(frame), Err(violation));
        self.closed();
    }

    fn closed(mut self) {
        self.net.frames(0);
        let late = self.tell(Frame::Freed { export: self.entry });
        assert_eq!(late, Ok(()), "what comes later is dropped");
        let status = self.net.spaces[0].status(self.port).unwrap();
        assert_eq!((status.sends, status.queued), (0, 0), "its rights are gone");
        let (port, to) = self.other;
        self.net.send(2, copy_send(to), &[]).unwrap();
        assert!(self.net.spaces[0].receive(port).is_ok(), "others go on");
    }
}

fn mine(export: u64, kind: RightKind) -> WireRight {
    WireRight::Mine {
        export: ExportId(export),
        kind,
        credits: 1,
    }
}

#[test]
fn a_forged_name_is_refused_and_a_held_one_accepted() {
    let mut it = attack();
    it.accepted(with(it.entry, &[]));
    it.net.spaces[0].receive(it.port).unwrap();
    for forged in [0, u64::MAX, it.entry.0 + 1, it.entry.0 | 1 << 63] {
        attack().refused(with(ExportId(forged), &[]), Fault::NotHeld);
    }
}

#[test]
fn an_entry_of_anothers_link_is_refused() {
    // Task 2's entry lies next to task 1's; its number alone says nothing.
    let it = attack();
    let next = ExportId(it.entry.0 + 1);
    it.refused(with(next, &[]), Fault::NotHeld);
    let it = attack();
    let right = WireRight::Yours {
        export: ExportId(it.entry.0 + 1),
        kind: RightKind::Send,
    };
    let entry = it.entry;
    it.refused(with(entry, &[right]), Fault::NotHeld);
}

#[test]
fn a_stale_generation_is_refused() {
    let mut it = attack();
    let entry = it.entry;
    it.accepted(Frame::Release {
        export: entry,
        count: 1,
    });
    it.refused(with(entry, &[]), Fault::NotHeld);
}

#[test]
fn a_send_once_right_works_once() {
    let mut it = attack();
    let to = {
        // Task 0 holds a right to task 1, and sends it a send-once right.
        it.net.spaces[0].expect_offer(0);
        it.accepted(Frame::Offer {
            token: 0,
            right: mine(50, RightKind::Send),
        });
        let Some(Output::Offered {
            right: Got::Send(to),
            ..
        }) = it.net.spaces[0].poll_output()
        else {
            panic!("a right was offered");
        };
        to
    };
    let mut sent = Message::new(move_send(to), 1);
    sent.reply = Some(make_send_once(it.port));
    it.net.spaces[0].send(sent).unwrap();
    let (_, Frame::Message(frame), _) = it.net.frames(0).remove(0) else {
        panic!("a message was sent");
    };
    let Some(WireRight::Mine { export: once, .. }) = frame.reply else {
        panic!("{frame:?}");
    };
    let twice = WireRight::Yours {
        export: once,
        kind: RightKind::SendOnce,
    };
    it.accepted(with(once, &[]));
    it.net.spaces[0].receive(it.port).unwrap();
    it.refused(with(once, &[twice]), Fault::NotHeld);
}

#[test]
fn one_message_cannot_use_a_send_once_right_twice() {
    for also_destination in [false, true] {
        let mut it = attack();
        it.net.spaces[0].expect_offer(0);
        it.accepted(Frame::Offer {
            token: 0,
            right: mine(50, RightKind::SendOnce),
        });
        let Some(Output::Offered { right, .. }) = it.net.spaces[0].poll_output() else {
            panic!("a right was offered");
        };
        let mut sent = Message::new(move_send_once(right.name().unwrap()), 1);
        sent.reply = Some(make_send_once(it.port));
        it.net.spaces[0].send(sent).unwrap();
        let (_, Frame::Message(frame), _) = it.net.frames(0).remove(0) else {
            panic!("a message was sent");
        };
        let Some(WireRight::Mine { export: once, .. }) = frame.reply else {
            panic!("{frame:?}");
        };
        let yours = WireRight::Yours {
            export: once,
            kind: RightKind::SendOnce,
        };
        let frame = match also_destination {
            true => with(once, &[yours]),
            false => with(it.entry, &[yours, yours]),
        };
        let violation = it.tell(frame).unwrap_err();
        assert_eq!(violation.fault, Fault::NotHeld);
        assert_eq!(
            it.net.notices(0, it.port),
            [Notice::SendOnce],
            "it was never used"
        );
    }
}

#[test]
fn a_message_without_credit_is_refused() {
    let mut it = attack();
    for _ in 0..5 {
        it.accepted(with(it.entry, &[]));
    }
    let violation = it.tell(with(it.entry, &[])).unwrap_err();
    assert_eq!(violation.fault, Fault::NoCredit);
    let received = std::iter::from_fn(|| it.net.spaces[0].receive(it.port).ok()).count();
    assert_eq!(received, 5, "what was sent with credit stays");
}

#[test]
fn too_many_rights_bytes_or_pieces_are_refused() {
    let it = attack();
    let entry = it.entry;
    it.refused(with(entry, &[WireRight::Dead; 65]), Fault::TooMuch);
    let mut it = attack();
    it.accepted(with(it.entry, &[WireRight::Dead; 64]));
    let it = attack();
    let mut large = message(it.entry);
    large.bytes = vec![0; farpage_rights::MAX_INLINE + 1];
    it.refused(Frame::Message(large), Fault::TooMuch);
}

#[test]
fn descriptors_announced_but_absent_are_refused() {
    let it = attack();
    let mut lying = message(it.entry);
    lying.descriptors = 1;
    it.refused(Frame::Message(lying), Fault::Descriptors);
    let it = attack();
    let mut lying = message(it.entry);
    lying.memory = vec![WireMemory {
        kind: farpage_rights::MemoryKind::Donated,
        region: 0,
        length: 4096,
    }];
    it.refused(Frame::Message(lying), Fault::Descriptors);
}

#[test]
fn descriptors_that_were_not_announced_are_closed() {
    for control in [false, true] {
        let mut it = attack();
        let frame = match control {
            true => Frame::Settled { nonce: 0 },
            false => with(it.entry, &[]),
        };
        let surplus = vec![Descriptor(77)];
        let refused = it.net.spaces[0]
            .handle_frame(LINK, frame, surplus)
            .unwrap_err();
        assert_eq!(refused.fault, Fault::Descriptors);
        let mut outputs = std::iter::from_fn(|| it.net.spaces[0].poll_output());
        assert!(outputs.any(|output| output == Output::Close(Descriptor(77))));
    }
}

#[test]
fn releasing_more_than_was_given_is_refused() {
    for count in [0, 2, u32::MAX] {
        let it = attack();
        let export = it.entry;
        it.refused(Frame::Release { export, count }, Fault::Count);
    }
}

#[test]
fn answers_to_what_was_not_given_are_refused() {
    let export = ExportId(1 << 32 | 9);
    let right = mine(51, RightKind::Send);
    for frame in [
        Frame::Freed { export },
        Frame::Credit { export, credits: 1 },
        Frame::Moved { export },
        Frame::Handed { export, right },
        Frame::Settled { nonce: 9 },
        Frame::Withdraw { nonce: 9 },
        Frame::Decline {
            owner: TaskId(2),
            nonce: 9,
        },
        Frame::Refused {
            from: TaskId(2),
            nonce: 9,
        },
        Frame::Accepted {
            from: TaskId(2),
            nonce: 9,
            export,
            credits: 1,
        },
    ] {
        attack().refused(frame, Fault::NotGiven);
    }
    let it = attack();
    let export = it.entry;
    it.refused(Frame::Following { export }, Fault::Contradiction);
}

#[test]
fn a_replayed_provide_is_refused() {
    let mut it = attack();
    let provide = |nonce| Frame::Provide {
        nonce,
        export: it.entry,
        to: TaskId(2),
    };
    let (first, second, older) = (provide(5), provide(5), provide(4));
    it.accepted(first.clone());
    it.refused(second, Fault::Replay);
    let mut it = attack();
    it.accepted(first);
    it.refused(older, Fault::Replay);
}

#[test]
fn what_was_provided_for_one_task_is_not_given_to_another_nor_twice() {
    let mut it = attack();
    it.accepted(Frame::Provide {
        nonce: 5,
        export: it.entry,
        to: TaskId(7),
    });
    let accept = Frame::Accept {
        from: TaskId(1),
        nonce: 5,
        kind: RightKind::Send,
    };
    let honest = Net::link(0, 2);
    it.net.frames(0);
    it.net.spaces[0]
        .handle_frame(honest, accept.clone(), vec![])
        .unwrap();
    let (to, frame, _) = it.net.frames(0).remove(0);
    let refused = Frame::Refused {
        from: TaskId(1),
        nonce: 5,
    };
    assert_eq!(
        (to, frame),
        (2, refused.clone()),
        "task 1 may have named it wrongly"
    );
    it.accepted(Frame::Provide {
        nonce: 6,
        export: it.entry,
        to: TaskId(2),
    });
    let accept = |kind| Frame::Accept {
        from: TaskId(1),
        nonce: 6,
        kind,
    };
    let space = &mut it.net.spaces[0];
    space
        .handle_frame(honest, accept(RightKind::SendOnce), vec![])
        .unwrap();
    space
        .handle_frame(honest, accept(RightKind::Send), vec![])
        .unwrap();
    space
        .handle_frame(honest, accept(RightKind::Send), vec![])
        .unwrap();
    let frames = it.net.frames(0);
    let accepted = frames
        .iter()
        .filter(|(_, frame, _)| matches!(frame, Frame::Accepted { .. }));
    assert_eq!(accepted.count(), 1);
    let refused = frames
        .iter()
        .filter(|(_, frame, _)| matches!(frame, Frame::Refused { .. }));
    assert_eq!(refused.count(), 2);
}

#[test]
fn an_accept_is_asked_once_and_not_of_oneself() {
    let accept = |from| Frame::Accept {
        from: TaskId(from),
        nonce: 5,
        kind: RightKind::Send,
    };
    let mut it = attack();
    it.accepted(accept(2));
    it.refused(accept(2), Fault::Replay);
    attack().refused(accept(1), Fault::NotThird);
}

#[test]
fn third_tasks_are_third() {
    let third = |task, nonce| WireRight::Third {
        task: TaskId(task),
        nonce,
        kind: RightKind::Send,
    };
    for task in [0, 1] {
        let it = attack();
        let entry = it.entry;
        it.refused(with(entry, &[third(task, 1)]), Fault::NotThird);
    }
    let it = attack();
    let entry = it.entry;
    it.refused(with(entry, &[third(2, 1), third(2, 1)]), Fault::Replay);
    for to in [0, 1] {
        let it = attack();
        let provide = Frame::Provide {
            nonce: 1,
            export: it.entry,
            to: TaskId(to),
        };
        it.refused(provide, Fault::NotThird);
    }
}

#[test]
fn grants_that_contradict_each_other_are_refused() {
    use RightKind::{Send, SendOnce};
    for pair in [
        [mine(60, SendOnce), mine(60, SendOnce)],
        [mine(60, SendOnce), mine(60, Send)],
        [mine(60, Send), mine(60, SendOnce)],
    ] {
        let it = attack();
        let entry = it.entry;
        it.refused(with(entry, &pair), Fault::Contradiction);
        let mut it = attack();
        it.accepted(with(entry, &pair[..1]));
        let violation = it.tell(with(entry, &pair[1..])).unwrap_err();
        assert_eq!(violation.fault, Fault::Contradiction);
    }
}

#[test]
fn credits_come_with_a_new_entry_only() {
    let again = |credits| WireRight::Mine {
        export: ExportId(60),
        kind: RightKind::Send,
        credits,
    };
    let mut it = attack();
    let entry = it.entry;
    it.accepted(with(entry, &[again(u16::MAX), again(0)]));
    it.accepted(with(entry, &[again(0)]));
    let refused = it.tell(with(entry, &[again(1)])).unwrap_err();
    assert_eq!(refused.fault, Fault::Contradiction);
    let it = attack();
    it.refused(
        with(entry, &[again(u16::MAX), again(u16::MAX)]),
        Fault::Contradiction,
    );
    let mut it = attack();
    it.accepted(with(entry, &[again(u16::MAX)]));
    let export = ExportId(60);
    let refused = it.tell(Frame::Credit { export, credits: 1 }).unwrap_err();
    assert_eq!(refused.fault, Fault::Contradiction);
}

#[test]
fn an_offer_that_nobody_waits_for_leaves_nothing() {
    let mut it = attack();
    it.net.spaces[0].expect_offer(1);
    let offer = |token, export| Frame::Offer {
        token,
        right: mine(export, RightKind::Send),
    };
    it.accepted(offer(1, 70));
    let came = it.net.spaces[0].poll_output();
    assert!(matches!(came, Some(Output::Offered { token: 1, .. })));
    for (token, export) in [(1, 71), (2, 72)] {
        it.accepted(offer(token, export));
        let export = ExportId(export);
        let back = Frame::Release { export, count: 1 };
        let frames = it.net.frames(0).into_iter().map(|(_, frame, _)| frame);
        assert_eq!(frames.collect::<Vec<_>>(), [back], "it goes back");
    }
}

/// Task 0 has a right of task 1's entry 50, and moves a receive right there: its number.
fn moving() -> (Attack, u64) {
    let mut it = attack();
    it.net.spaces[0].expect_offer(0);
    it.accepted(Frame::Offer {
        token: 0,
        right: mine(50, RightKind::Send),
    });
    let Some(Output::Offered { right, .. }) = it.net.spaces[0].poll_output() else {
        panic!("a right was offered");
    };
    let mut sent = Message::new(copy_send(right.name().unwrap()), 1);
    sent.rights = vec![move_receive(it.port)];
    it.net.spaces[0].send(sent).unwrap();
    let (_, Frame::Message(frame), _) = it.net.frames(0).remove(0) else {
        panic!("a message was sent");
    };
    let WireRight::Receive { nonce, .. } = frame.rights[0] else {
        panic!("{frame:?}");
    };
    (it, nonce)
}

fn accepted(nonce: u64, export: u64) -> Frame {
    Frame::Accepted {
        from: TaskId(0),
        nonce,
        export: ExportId(export),
        credits: 1,
    }
}

#[test]
fn a_right_is_accepted_once_and_as_a_new_entry() {
    let (mut it, nonce) = moving();
    let refused = it.tell(accepted(nonce, 50)).unwrap_err();
    assert_eq!(refused.fault, Fault::Contradiction);
    let (mut it, nonce) = moving();
    it.accepted(accepted(nonce, 80));
    let refused = it.tell(accepted(nonce, 81)).unwrap_err();
    assert_eq!(refused.fault, Fault::NotGiven);
}

#[test]
fn what_is_handed_over_is_a_new_send_right_and_not_the_own_port() {
    let once = mine(90, RightKind::SendOnce);
    let receive = WireRight::Receive { nonce: 1, limit: 1 };
    let handed = |right: fn(&Attack) -> WireRight| {
        let (mut it, nonce) = moving();
        it.accepted(accepted(nonce, 80));
        let export = ExportId(80);
        it.accepted(Frame::Moved { export });
        let right = right(&it);
        it.tell(Frame::Handed { export, right })
            .map_err(|violation| violation.fault)
    };
    assert_eq!(handed(|_| mine(90, RightKind::Send)), Ok(()));
    let known = handed(|_| WireRight::Mine {
        export: ExportId(50),
        kind: RightKind::Send,
        credits: 0,
    });
    assert_eq!(known, Err(Fault::Contradiction));
    assert_eq!(handed(|_| WireRight::Dead), Err(Fault::Contradiction));
    // Its own port: the forwarder would lead to itself.
    let own = handed(|it| WireRight::Yours {
        export: it.entry,
        kind: RightKind::Send,
    });
    assert_eq!(own, Err(Fault::Contradiction));
    for right in [once, receive] {
        let (mut it, nonce) = moving();
        it.accepted(accepted(nonce, 80));
        let export = ExportId(80);
        it.accepted(Frame::Moved { export });
        let refused = it.tell(Frame::Handed { export, right }).unwrap_err();
        assert_eq!(refused.fault, Fault::Contradiction);
    }
}

fn any_right() -> impl Strategy<Value = WireRight> {
    let number = || {
        prop_oneof![
            0..4u64,
            (0..4u64).prop_map(|index| 1 << 32 | index),
            any::<u64>()
        ]
    };
    let kind = prop_oneof![Just(RightKind::Send), Just(RightKind::SendOnce)];
    prop_oneof![
        Just(WireRight::Dead),
        (number(), kind.clone()).prop_map(|(export, kind)| mine(export, kind)),
        (number(), kind.clone()).prop_map(|(export, kind)| WireRight::Yours {
            export: ExportId(export),
            kind
        }),
        (0..4u64, 0..6u64, kind).prop_map(|(task, nonce, kind)| WireRight::Third {
            task: TaskId(task),
            nonce,
            kind
        }),
        (0..4u64).prop_map(|nonce| WireRight::Receive { nonce, limit: 3 }),
    ]
}

fn any_frame() -> impl Strategy<Value = Frame> {
    let export = || {
        let index = prop_oneof![0..4u64, 50..54u64];
        (index, 0..3u64).prop_map(|(index, generation)| ExportId(generation << 32 | index))
    };
    let task = || (0..4u64).prop_map(TaskId);
    let nonce = || 0..8u64;
    let kind = || prop_oneof![Just(RightKind::Send), Just(RightKind::SendOnce)];
    prop_oneof![
        8 => (export(), vec(any_right(), 0..4)).prop_map(|(to, rights)| with(to, &rights)),
        1 => (0..3u64, any_right()).prop_map(|(token, right)| Frame::Offer { token, right }),
        1 => (export(), 0..3u32).prop_map(|(export, count)| Frame::Release { export, count }),
        1 => export().prop_map(|export| Frame::Freed { export }),
        1 => (export(), any::<u16>())
            .prop_map(|(export, credits)| Frame::Credit { export, credits }),
        1 => export().prop_map(|export| Frame::Dead { export }),
        1 => (nonce(), export(), task())
            .prop_map(|(nonce, export, to)| Frame::Provide { nonce, export, to }),
        1 => nonce().prop_map(|nonce| Frame::Withdraw { nonce }),
        1 => nonce().prop_map(|nonce| Frame::Settled { nonce }),
        1 => (task(), nonce(), kind())
            .prop_map(|(from, nonce, kind)| Frame::Accept { from, nonce, kind }),
        1 => (task(), nonce(), export()).prop_map(|(from, nonce, export)| Frame::Accepted {
            from, nonce, export, credits: 1
        }),
        1 => (task(), nonce()).prop_map(|(from, nonce)| Frame::Refused { from, nonce }),
        1 => (task(), nonce()).prop_map(|(owner, nonce)| Frame::Decline { owner, nonce }),
        1 => export().prop_map(|export| Frame::Moved { export }),
        1 => export().prop_map(|export| Frame::Following { export }),
        1 => (export(), any_right()).prop_map(|(export, right)| Frame::Handed { export, right }),
    ]
}

/// What an honest task does with what came.
fn work(space: &mut Space, ports: &mut Vec<farpage_rights::Name>, choice: usize) {
    let port = ports[choice % ports.len()];
    let Ok(message) = space.receive(port) else {
        return;
    };
    for right in message.rights {
        match right {
            Got::Receive(port) => ports.push(port),
            Got::Send(name) => {
                let mut answer = Message::new(copy_send(name), 2);
                answer.rights = vec![move_receive(ports.pop().unwrap())];
                if let Err(refused) = space.send(answer) {
                    ports.push(refused.message.rights[0].name);
                } else if ports.is_empty() {
                    ports.push(space.allocate_port());
                }
            }
            Got::SendOnce(name) if choice.is_multiple_of(2) => {
                space.send(Message::new(move_send_once(name), 3)).ok();
            }
            Got::SendOnce(_) | Got::Dead => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn no_frames_whatever_harm_a_task_or_its_other_peers(
        frames in vec((any_frame(), any::<usize>()), 1..60)
    ) {
        let mut it = attack();
        let mut ports = vec![it.port];
        for (frame, choice) in frames {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            let frame = Frame::decode(&bytes).unwrap();
            let done = it.tell(frame);
            work(&mut it.net.spaces[0], &mut ports, choice);
            it.net.frames(0);
            if let Err(violation) = done {
                prop_assert_eq!((violation.link, violation.task), (LINK, TaskId(1)));
                break;
            }
        }
        it.net.spaces[0].link_down(LINK);
        it.net.frames(0);
        let (port, to) = it.other;
        // The honest peer was asked for nothing that it cannot refuse, and still gets through.
        let mut message = Message::new(copy_send(to), 4);
        message.rights = vec![copy_send(to)];
        it.net.spaces[2].send(message).unwrap();
        it.net.deliver(2);
        prop_assert_eq!(it.net.spaces[0].receive(port).unwrap().id, 4);
    }
}
