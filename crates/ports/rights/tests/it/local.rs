//! One task by itself: names, rights, queues, sets, notifications.

use farpage_rights::{
    DEFAULT_LIMIT, Disposition, Error, Got, Message, Name, Notice, Output, ReceiveError, Request,
    SendError, Sender, Space, TaskId, Tick, Wait, Waiter, Woken,
};

use crate::support::*;

fn space() -> Space {
    Space::new(TaskId(1))
}

/// The ids of all messages that can be received.
fn drain(space: &mut Space, from: Name) -> Vec<u32> {
    std::iter::from_fn(|| space.receive(from).ok().map(|message| message.id)).collect()
}

#[test]
fn messages_come_in_the_order_they_were_sent() {
    let mut space = space();
    let port = space.allocate_port();
    for id in 0..3 {
        space.send(Message::new(make_send(port), id)).unwrap();
    }
    let first = space.receive(port).unwrap();
    assert_eq!(
        (first.id, first.sequence, first.sender),
        (0, 0, Sender::Own)
    );
    assert_eq!(space.receive(port).unwrap().sequence, 1);
    assert_eq!(drain(&mut space, port), [2]);
    assert_eq!(space.receive(port), Err(ReceiveError::WouldBlock));
}

#[test]
fn everything_inside_a_message_arrives() {
    let mut space = space();
    let port = space.allocate_port();
    let mut message = Message::new(make_send(port), 7);
    message.bytes = b"bytes".to_vec();
    message.descriptors = vec![farpage_rights::Descriptor(3)];
    message.memory = vec![lent(5, 4096), donated(9, 8192)];
    message.reply = Some(make_send_once(port));
    space.send(message.clone()).unwrap();
    let got = space.receive(port).unwrap();
    assert_eq!(got.bytes, b"bytes");
    assert_eq!(got.descriptors, message.descriptors);
    assert_eq!(got.memory, message.memory);
    assert!(matches!(got.reply, Some(Got::SendOnce(_))));
}

#[test]
fn a_message_that_is_too_large_is_refused_whole() {
    let mut space = space();
    let port = space.allocate_port();
    let mut message = Message::new(make_send(port), 7);
    message.bytes = vec![0; farpage_rights::MAX_INLINE + 1];
    let refused = space.send(message.clone()).unwrap_err();
    assert_eq!(refused.error, SendError::TooLarge);
    assert_eq!(*refused.message, message);
    assert_eq!(space.status(port).unwrap().make_sends, 0);
    message.bytes.pop();
    space.send(message).unwrap();
}

#[test]
fn a_full_queue_blocks_send_rights_but_not_send_once() {
    let mut space = space();
    let port = space.allocate_port();
    let send = space.insert(make_send(port)).unwrap();
    assert_eq!(send, port, "a task has one name for its rights to a port");
    for id in 0..u32::from(DEFAULT_LIMIT) {
        space.send(Message::new(copy_send(send), id)).unwrap();
    }
    let refused = space.send(Message::new(move_send(send), 9)).unwrap_err();
    assert_eq!(refused.error, SendError::WouldBlock(Wait::Room(send)));
    assert_eq!(
        space.references(send).unwrap(),
        (1, false),
        "the right is still here"
    );
    space.send(Message::new(make_send_once(port), 10)).unwrap();
    assert_eq!(drain(&mut space, port), [0, 1, 2, 3, 4, 10]);
}

#[test]
fn a_larger_limit_lets_more_in() {
    let mut space = space();
    let port = space.allocate_port();
    space.set_limit(port, 1).unwrap();
    space.send(Message::new(make_send(port), 0)).unwrap();
    assert!(space.send(Message::new(make_send(port), 1)).is_err());
    space.set_limit(port, 2).unwrap();
    space.send(Message::new(make_send(port), 1)).unwrap();
    assert!(space.send(Message::new(make_send(port), 2)).is_err());
}

#[test]
fn a_freed_name_is_invalid_even_when_its_slot_is_reused() {
    let mut space = space();
    let old = space.allocate_port();
    space.destroy(old).unwrap();
    let new = space.allocate_port();
    assert_eq!(
        old.to_bits() as u32,
        new.to_bits() as u32,
        "the slot is reused"
    );
    assert_eq!(space.status(old), Err(Error::InvalidName));
    assert_eq!(
        space.receive(old),
        Err(ReceiveError::Name(Error::InvalidName))
    );
    assert!(space.status(new).is_ok());
    assert_eq!(
        space.destroy(Name::from_bits(u64::MAX)),
        Err(Error::InvalidName)
    );
    assert_eq!(space.destroy(Name::from_bits(0)), Err(Error::InvalidName));
}

#[test]
fn rights_are_only_given_by_who_has_them() {
    let mut space = space();
    let port = space.allocate_port();
    let to = space.allocate_port();
    let refused = |space: &mut Space, how, name| {
        let mut message = Message::new(make_send(to), 0);
        message.rights = vec![give(name, how)];
        space.send(message).map_err(|refused| refused.error)
    };
    let invalid = Err(SendError::Right(0, Error::InvalidRight));
    assert_eq!(refused(&mut space, Disposition::CopySend, port), invalid);
    assert_eq!(refused(&mut space, Disposition::MoveSend, port), invalid);
    assert_eq!(
        refused(&mut space, Disposition::MoveSendOnce, port),
        invalid
    );
    let once = space.insert(make_send_once(port)).unwrap();
    assert_eq!(refused(&mut space, Disposition::CopySend, once), invalid);
    assert_eq!(refused(&mut space, Disposition::MakeSend, once), invalid);
    assert_eq!(refused(&mut space, Disposition::MoveReceive, once), invalid);
    assert_eq!(refused(&mut space, Disposition::MoveSendOnce, once), Ok(()));
    assert_eq!(refused(&mut space, Disposition::MakeSend, port), Ok(()));
}

#[test]
fn one_message_cannot_move_the_same_right_twice() {
    let mut space = space();
    let port = space.allocate_port();
    let to = space.allocate_port();
    let send = space.insert(make_send(port)).unwrap();
    let mut message = Message::new(make_send(to), 0);
    message.rights = vec![move_send(send), move_send(send)];
    let refused = space.send(message.clone()).unwrap_err();
    assert_eq!(refused.error, SendError::Right(1, Error::InvalidRight));
    space.mod_refs(send, 1).unwrap();
    space.send(message).unwrap();
    let once = space.insert(make_send_once(port)).unwrap();
    let mut message = Message::new(move_send_once(once), 0);
    message.reply = Some(move_send_once(once));
    let refused = space.send(message).unwrap_err();
    assert_eq!(refused.error, SendError::Reply(Error::TooFew));
}

#[test]
fn user_references_are_counted() {
    let mut space = space();
    let port = space.allocate_port();
    let send = space.insert(make_send(port)).unwrap();
    space.mod_refs(send, 2).unwrap();
    assert_eq!(space.references(send), Ok((3, false)));
    assert_eq!(space.mod_refs(send, -4), Err(Error::TooFew));
    assert_eq!(space.mod_refs(send, i32::MAX), Ok(()));
    assert_eq!(space.mod_refs(send, i32::MAX), Err(Error::TooMany));
    space.mod_refs(send, -i32::MAX).unwrap();
    space.mod_refs(send, -3).unwrap();
    assert_eq!(
        space.deallocate(send),
        Err(Error::InvalidRight),
        "the receive right stays"
    );
    assert_eq!(space.status(port).unwrap().sends, 0);
}

#[test]
fn send_rights_in_messages_join_the_name_that_is_there() {
    let mut space = space();
    let to = space.allocate_port();
    let port = space.allocate_port();
    let mut message = Message::new(make_send(to), 0);
    message.rights = vec![give(port, Disposition::MakeSend), make_send_once(port)];
    space.send(message).unwrap();
    let got = space.receive(to).unwrap();
    assert_eq!(got.rights[0], Got::Send(port));
    assert!(matches!(got.rights[1], Got::SendOnce(name) if name != port));
}

#[test]
fn a_destroyed_port_leaves_dead_names() {
    let mut space = space();
    let port = space.allocate_port();
    let send = space.insert(make_send(port)).unwrap();
    let once = space.insert(make_send_once(port)).unwrap();
    space.destroy_receive(port).unwrap();
    assert_eq!(space.references(send), Ok((1, true)));
    assert_eq!(space.references(once), Ok((1, true)));
    let refused = space.send(Message::new(copy_send(send), 0)).unwrap_err();
    assert_eq!(refused.error, SendError::Dead);
    let to = space.allocate_port();
    let mut message = Message::new(make_send(to), 0);
    message.rights = vec![copy_send(send), move_send_once(once)];
    space.send(message).unwrap();
    assert_eq!(space.receive(to).unwrap().rights, [Got::Dead, Got::Dead]);
    assert_eq!(space.references(once), Err(Error::InvalidName));
    space.deallocate(send).unwrap();
    space.destroy(to).unwrap();
    assert!(space.is_empty());
}

#[test]
fn an_unused_send_once_right_gives_notice_and_a_used_one_does_not() {
    let mut space = space();
    let port = space.allocate_port();
    let once = space.insert(make_send_once(port)).unwrap();
    space.send(Message::new(move_send_once(once), 1)).unwrap();
    let message = space.receive(port).unwrap();
    assert_eq!(Notice::of(&message), None);
    let once = space.insert(make_send_once(port)).unwrap();
    space.deallocate(once).unwrap();
    let message = space.receive(port).unwrap();
    assert_eq!(Notice::of(&message), Some(Notice::SendOnce));
    assert_eq!(message.sender, Sender::Space);
    assert_eq!(space.receive(port), Err(ReceiveError::WouldBlock));
}

#[test]
fn dead_name_requests_are_answered_once() {
    let mut space = space();
    let port = space.allocate_port();
    let told = space.allocate_port();
    let send = space.insert(make_send(port)).unwrap();
    let request = Some(make_send_once(told));
    assert_eq!(space.request(send, Request::DeadName, request), Ok(None));
    assert_eq!(space.receive(told), Err(ReceiveError::WouldBlock));
    space.destroy_receive(port).unwrap();
    let message = space.receive(told).unwrap();
    assert_eq!(Notice::of(&message), Some(Notice::DeadName(send)));
    assert_eq!(
        space.references(send),
        Ok((2, true)),
        "one more for the notice"
    );
    assert_eq!(space.receive(told), Err(ReceiveError::WouldBlock));
}

#[test]
fn freeing_a_name_with_a_request_says_port_deleted() {
    let mut space = space();
    let port = space.allocate_port();
    let told = space.allocate_port();
    let once = space.insert(make_send_once(port)).unwrap();
    space
        .request(once, Request::DeadName, Some(make_send_once(told)))
        .unwrap();
    space.deallocate(once).unwrap();
    let message = space.receive(told).unwrap();
    assert_eq!(Notice::of(&message), Some(Notice::PortDeleted(once)));
}

#[test]
fn a_replaced_request_gives_its_right_back() {
    let mut space = space();
    let port = space.allocate_port();
    let told = space.allocate_port();
    let send = space.insert(make_send(port)).unwrap();
    let request = || Some(make_send_once(told));
    space.request(send, Request::DeadName, request()).unwrap();
    let old = space
        .request(send, Request::DeadName, None)
        .unwrap()
        .unwrap();
    space.deallocate(old).unwrap();
    let message = space.receive(told).unwrap();
    assert_eq!(Notice::of(&message), Some(Notice::SendOnce));
    space.destroy_receive(port).unwrap();
    assert_eq!(space.receive(told), Err(ReceiveError::WouldBlock));
    let give = Some(make_send(told));
    assert_eq!(
        space.request(told, Request::DeadName, give),
        Err(Error::NotSendOnce)
    );
}

#[test]
fn no_senders_is_told_when_the_last_message_with_a_right_is_gone() {
    let mut space = space();
    let port = space.allocate_port();
    let told = space.allocate_port();
    let send = space.insert(make_send(port)).unwrap();
    let request = Request::NoSenders { sync: 0 };
    space
        .request(port, request, Some(make_send_once(told)))
        .unwrap();
    space.send(Message::new(move_send(send), 0)).unwrap();
    assert_eq!(
        space.receive(told),
        Err(ReceiveError::WouldBlock),
        "the message holds it"
    );
    space.receive(port).unwrap();
    let message = space.receive(told).unwrap();
    assert_eq!(Notice::of(&message), Some(Notice::NoSenders(1)));
    assert_eq!(space.receive(told), Err(ReceiveError::WouldBlock));
}

#[test]
fn no_senders_waits_for_the_make_send_count() {
    let mut space = space();
    let port = space.allocate_port();
    let told = space.allocate_port();
    let request = Request::NoSenders { sync: 1 };
    space
        .request(port, request, Some(make_send_once(told)))
        .unwrap();
    assert_eq!(space.receive(told), Err(ReceiveError::WouldBlock));
    let send = space.insert(make_send(port)).unwrap();
    space.deallocate(send).unwrap();
    let message = space.receive(told).unwrap();
    assert_eq!(Notice::of(&message), Some(Notice::NoSenders(1)));
    let request = Request::NoSenders { sync: 1 };
    space
        .request(port, request, Some(make_send_once(told)))
        .unwrap();
    assert!(space.receive(told).is_ok(), "it is so already");
}

#[test]
fn a_destroyed_port_goes_to_who_asked_for_it() {
    let mut space = space();
    let port = space.allocate_port();
    let told = space.allocate_port();
    space.send(Message::new(make_send(port), 5)).unwrap();
    space
        .request(port, Request::PortDestroyed, Some(make_send_once(told)))
        .unwrap();
    space.destroy(port).unwrap();
    let message = space.receive(told).unwrap();
    assert_eq!(Notice::of(&message), Some(Notice::PortDestroyed));
    let Got::Receive(port) = message.rights[0] else {
        panic!("{message:?}");
    };
    assert_eq!(drain(&mut space, port), [5], "its queue has come with it");
    space.destroy(port).unwrap();
    space.destroy(told).unwrap();
    assert!(space.is_empty());
}

#[test]
fn the_members_of_a_set_take_turns() {
    let mut space = space();
    let set = space.allocate_set();
    let ports: Vec<Name> = (0..3).map(|_| space.allocate_port()).collect();
    for (at, &port) in (0..).zip(&ports) {
        space.move_member(port, Some(set)).unwrap();
        for id in 0..3 {
            space
                .send(Message::new(make_send(port), at * 10 + id))
                .unwrap();
        }
    }
    assert_eq!(drain(&mut space, set), [0, 10, 20, 1, 11, 21, 2, 12, 22]);
    assert_eq!(
        space.receive(ports[0]),
        Err(ReceiveError::Name(Error::InSet))
    );
    assert_eq!(space.status(ports[0]).unwrap().set, Some(set));
    assert_eq!(space.move_member(set, Some(set)), Err(Error::InvalidRight));
}

#[test]
fn a_member_that_leaves_takes_its_messages_along() {
    let mut space = space();
    let set = space.allocate_set();
    let (a, b, c) = (
        space.allocate_port(),
        space.allocate_port(),
        space.allocate_port(),
    );
    for (id, port) in [(0, a), (1, b), (2, c)] {
        space.move_member(port, Some(set)).unwrap();
        space.send(Message::new(make_send(port), id)).unwrap();
    }
    space.move_member(b, None).unwrap();
    space.destroy(c).unwrap();
    assert_eq!(drain(&mut space, set), [0]);
    assert_eq!(drain(&mut space, b), [1]);
    space.destroy(set).unwrap();
    assert_eq!(
        space.receive(a),
        Err(ReceiveError::WouldBlock),
        "in no set any more"
    );
    space.destroy(a).unwrap();
    space.destroy(b).unwrap();
    assert!(space.is_empty());
}

#[test]
fn a_receive_right_moves_with_its_queue() {
    let mut space = space();
    let (port, to) = (space.allocate_port(), space.allocate_port());
    space.send(Message::new(make_send(port), 4)).unwrap();
    let mut message = Message::new(make_send(to), 0);
    message.rights = vec![give(port, Disposition::MoveReceive)];
    space.send(message).unwrap();
    assert_eq!(space.status(port), Err(Error::InvalidName));
    let got = space.receive(to).unwrap();
    let Got::Receive(port) = got.rights[0] else {
        panic!("{got:?}");
    };
    assert_eq!(drain(&mut space, port), [4]);
}

#[test]
fn a_receive_right_cannot_be_queued_at_itself() {
    let mut space = space();
    let (a, b) = (space.allocate_port(), space.allocate_port());
    let send_a = space.insert(make_send(a)).unwrap();
    let moving = |to, port| {
        let mut message = Message::new(to, 0);
        message.rights = vec![give(port, Disposition::MoveReceive)];
        message
    };
    let refused = space.send(moving(make_send(a), a)).unwrap_err();
    assert_eq!(refused.error, SendError::Circular);
    space.send(moving(make_send(b), a)).unwrap();
    let refused = space.send(moving(copy_send(send_a), b)).unwrap_err();
    assert_eq!(refused.error, SendError::Circular);
}

#[test]
fn a_long_chain_of_receive_rights_is_destroyed_without_recursion() {
    let mut space = space();
    let first = space.allocate_port();
    let mut last = first;
    for _ in 0..100_000 {
        let next = space.allocate_port();
        let mut message = Message::new(make_send(next), 0);
        message.rights = vec![give(last, Disposition::MoveReceive)];
        space.send(message).unwrap();
        last = next;
    }
    space.destroy(last).unwrap();
    assert!(space.is_empty());
}

#[test]
fn descriptors_of_a_message_that_nobody_receives_are_closed() {
    let mut space = space();
    let port = space.allocate_port();
    let mut message = Message::new(make_send(port), 0);
    message.descriptors = vec![farpage_rights::Descriptor(3)];
    message.memory = vec![donated(4, 4096), lent(5, 4096)];
    space.send(message).unwrap();
    assert_eq!(space.poll_output(), None);
    space.destroy(port).unwrap();
    let outputs: Vec<Output> = std::iter::from_fn(|| space.poll_output()).collect();
    let close = |number| Output::Close(farpage_rights::Descriptor(number));
    assert_eq!(outputs, [close(3), close(4), Output::Unused(lent(5, 4096))]);
}

#[test]
fn waiters_are_woken_in_turn_and_once() {
    let mut space = space();
    let port = space.allocate_port();
    for waiter in 1..=2 {
        space
            .wait(Wait::Message(port), Waiter(waiter), None)
            .unwrap();
    }
    space.send(Message::new(make_send(port), 0)).unwrap();
    assert_eq!(woken(&mut space), [(1, true)]);
    space.send(Message::new(make_send(port), 1)).unwrap();
    assert_eq!(woken(&mut space), [(2, true)]);
    space.wait(Wait::Message(port), Waiter(3), None).unwrap();
    assert_eq!(woken(&mut space), [(3, true)], "there is a message already");
}

#[test]
fn a_waiter_that_gives_up_passes_its_wake_on() {
    let mut space = space();
    let port = space.allocate_port();
    for waiter in 1..=2 {
        space
            .wait(Wait::Message(port), Waiter(waiter), None)
            .unwrap();
    }
    space.send(Message::new(make_send(port), 0)).unwrap();
    let Some(Output::Wake {
        waiter: Waiter(1),
        why: Woken::Ready(chance),
    }) = space.poll_output()
    else {
        panic!("the first is woken");
    };
    space.pass_on(chance);
    assert_eq!(woken(&mut space), [(2, true)]);
    space.receive(port).unwrap();
    space.wait(Wait::Message(port), Waiter(3), None).unwrap();
    space.pass_on(chance);
    assert_eq!(woken(&mut space), [], "nothing is left to take");
    space.cancel(Waiter(3));
    space.send(Message::new(make_send(port), 0)).unwrap();
    assert_eq!(woken(&mut space), []);
}

#[test]
fn room_wakes_senders() {
    let mut space = space();
    let port = space.allocate_port();
    space.set_limit(port, 1).unwrap();
    space.send(Message::new(make_send(port), 0)).unwrap();
    let send = space.insert(make_send(port)).unwrap();
    space.wait(Wait::Room(send), Waiter(1), None).unwrap();
    assert_eq!(woken(&mut space), []);
    space.receive(port).unwrap();
    assert_eq!(woken(&mut space), [(1, true)]);
}

#[test]
fn a_deadline_wakes_once_and_not_early() {
    let mut space = space();
    let port = space.allocate_port();
    space
        .wait(Wait::Message(port), Waiter(1), Some(Tick(10)))
        .unwrap();
    space
        .wait(Wait::Message(port), Waiter(2), Some(Tick(5)))
        .unwrap();
    assert_eq!(space.next_deadline(), Some(Tick(5)));
    space.handle_time(Tick(4));
    assert_eq!(woken(&mut space), []);
    space.handle_time(Tick(5));
    assert_eq!(woken(&mut space), [(2, false)]);
    space.send(Message::new(make_send(port), 0)).unwrap();
    assert_eq!(woken(&mut space), [(1, true)]);
    space.handle_time(Tick(20));
    assert_eq!(woken(&mut space), []);
    assert_eq!(space.next_deadline(), None);
}

#[test]
fn waiters_at_a_port_that_is_destroyed_are_woken() {
    let mut space = space();
    let port = space.allocate_port();
    let set = space.allocate_set();
    space.wait(Wait::Message(port), Waiter(1), None).unwrap();
    space.wait(Wait::Message(set), Waiter(2), None).unwrap();
    space.destroy(port).unwrap();
    space.destroy(set).unwrap();
    assert_eq!(woken(&mut space), [(1, true), (2, true)]);
    let gone = space.wait(Wait::Message(port), Waiter(1), None);
    assert_eq!(gone, Err(Error::InvalidName));
}

#[test]
fn what_stands_for_a_port_of_another_host_takes_only_what_can_go_there() {
    let mut space = space();
    let proxy = space.allocate_proxy();
    let to = space.insert(make_send(proxy)).unwrap();
    let message = || Message::new(copy_send(to), 1);
    let mut moved = message();
    moved.rights = vec![move_receive(space.allocate_port())];
    let mut descriptor = message();
    descriptor.descriptors = vec![farpage_rights::Descriptor(1)];
    let (mut much, mut full) = (message(), message());
    much.memory = vec![lent(1, 64 << 20), donated(2, 1)];
    full.memory = vec![lent(1, 64 << 20)];
    for refused in [moved, descriptor, much] {
        let error = space.send(refused).unwrap_err().error;
        assert_eq!(error, SendError::Elsewhere);
    }
    space.send(full).unwrap();
    space.send(message()).unwrap();
    assert_eq!(drain(&mut space, proxy), [1, 1]);
    let once = space.insert(make_send_once(proxy)).unwrap();
    assert_eq!(space.port_of_once(once), Ok(Some(proxy)));
    assert_eq!(space.port_of_once(to), Ok(None));
}
