//! Two tasks and a Link: rights, messages, credits, notifications, and the Link's end.

use farpage_rights::{
    Descriptor, Frame, Got, Message, Notice, Output, ReceiveError, Request, SendError, Sender,
    TaskId, Wait, Waiter, WireRight, Woken,
};

use crate::support::*;

#[test]
fn a_call_and_its_answer_are_one_frame_each() {
    let mut net = Net::new(2);
    let (server, to_server) = net.offered(0, 1);
    let answers = net.spaces[1].allocate_port();
    let mut call = Message::new(copy_send(to_server), 7);
    call.reply = Some(make_send_once(answers));
    net.spaces[1].send(call).unwrap();
    assert_eq!(net.deliver(1), 1);
    let call = net.spaces[0].receive(server).unwrap();
    let link = Net::link(0, 1);
    let sender = Sender::Peer {
        link,
        task: TaskId(1),
        badge: 0,
        forwards: None,
    };
    assert_eq!((call.id, call.sender), (7, sender));
    let Some(Got::SendOnce(reply)) = call.reply else {
        panic!("{call:?}");
    };
    net.spaces[0]
        .send(Message::new(move_send_once(reply), 8))
        .unwrap();
    assert_eq!(net.deliver(0), 1, "credits come back later, all at once");
    assert_eq!(net.spaces[1].receive(answers).unwrap().id, 8);
    assert_eq!(net.deliver(1), 0);
}

#[test]
fn descriptors_and_memory_go_along() {
    let mut net = Net::new(2);
    let (port, to) = net.offered(0, 1);
    let mut message = Message::new(copy_send(to), 1);
    message.descriptors = vec![Descriptor(3)];
    message.memory = vec![lent(5, 100), donated(4, 200)];
    net.spaces[1].send(message).unwrap();
    let mut frames = net.frames(1);
    let (_, frame, descriptors) = frames.pop().unwrap();
    assert_eq!(descriptors, [Descriptor(3), Descriptor(4)]);
    // The other task knows them by other numbers.
    let arrived = vec![Descriptor(13), Descriptor(14)];
    net.spaces[0]
        .handle_frame(Net::link(0, 1), frame, arrived)
        .unwrap();
    let got = net.spaces[0].receive(port).unwrap();
    assert_eq!(got.descriptors, [Descriptor(13)]);
    assert_eq!(got.memory, [lent(5, 100), donated(14, 200)]);
}

#[test]
fn a_right_that_goes_home_is_the_own_port() {
    let mut net = Net::new(2);
    let (port, to) = net.offered(0, 1);
    net.send(1, copy_send(to), &[copy_send(to)]).unwrap();
    assert_eq!(net.got(0, port), Got::Send(port));
}

#[test]
fn a_right_that_comes_twice_has_one_name_and_is_released_once() {
    let mut net = Net::new(2);
    let (port, to) = net.offered(0, 1);
    let (inbox, to_inbox) = net.offered(1, 0);
    net.send(0, copy_send(to_inbox), &[make_send(port)])
        .unwrap();
    assert_eq!(net.got(1, inbox), Got::Send(to));
    assert_eq!(net.spaces[1].references(to), Ok((2, false)));
    assert_eq!(net.spaces[0].status(port).unwrap().sends, 1);
    let told = ask(&mut net.spaces[0], port, Request::NoSenders { sync: 0 });
    net.spaces[1].deallocate(to).unwrap();
    net.run();
    assert_eq!(net.notices(0, told), []);
    net.spaces[1].deallocate(to).unwrap();
    net.run();
    assert_eq!(net.notices(0, told), [Notice::NoSenders(2)]);
}

#[test]
fn a_right_that_crosses_its_own_release_is_not_lost() {
    let mut net = Net::new(2);
    let (port, to) = net.offered(0, 1);
    let (inbox, to_inbox) = net.offered(1, 0);
    let told = ask(&mut net.spaces[0], port, Request::NoSenders { sync: 0 });
    let mut message = Message::new(copy_send(to_inbox), 1);
    message.rights = vec![make_send(port)];
    net.spaces[0].send(message).unwrap();
    net.spaces[1].deallocate(to).unwrap();
    net.run();
    assert_eq!(net.notices(0, told), []);
    let Got::Send(to) = net.got(1, inbox) else {
        panic!("the right is there");
    };
    net.send(1, copy_send(to), &[]).unwrap();
    assert!(net.spaces[0].receive(port).is_ok());
}

#[test]
fn without_credit_nothing_leaves_and_credit_wakes() {
    let mut net = Net::new(2);
    let (port, to) = net.offered(0, 1);
    let kept = net.spaces[1].allocate_port();
    for _ in 0..5 {
        net.send(1, copy_send(to), &[]).unwrap();
    }
    let refused = net.send(1, copy_send(to), &[move_receive(kept)]);
    assert_eq!(refused, Err(SendError::WouldBlock(Wait::Room(to))));
    assert!(
        net.spaces[1].status(kept).is_ok(),
        "its rights are the sender's still"
    );
    net.spaces[1].wait(Wait::Room(to), Waiter(1), None).unwrap();
    assert_eq!(woken(&mut net.spaces[1]), []);
    net.spaces[0].receive(port).unwrap();
    net.run();
    let [(1, Output::Wake { waiter, why })] = net.others[..] else {
        panic!("{:?}", net.others);
    };
    assert_eq!(waiter, Waiter(1));
    assert_ne!(why, Woken::TimedOut);
    net.send(1, copy_send(to), &[]).unwrap();
}

#[test]
fn every_task_has_its_own_share_of_a_queue() {
    let mut net = Net::new(3);
    let (port, to) = net.offered(0, 1);
    let (_, other) = net.offered(0, 2);
    for _ in 0..5 {
        net.send(1, copy_send(to), &[]).unwrap();
    }
    assert!(net.send(1, copy_send(to), &[]).is_err());
    net.send(2, copy_send(other), &[]).unwrap();
    net.send(0, make_send(port), &[]).unwrap();
}

#[test]
fn a_send_once_right_dropped_far_away_gives_notice() {
    let mut net = Net::new(2);
    let (inbox, to_inbox) = net.offered(1, 0);
    let port = net.spaces[0].allocate_port();
    net.send(0, copy_send(to_inbox), &[make_send_once(port)])
        .unwrap();
    let Got::SendOnce(once) = net.got(1, inbox) else {
        panic!("a send-once right was sent");
    };
    assert_eq!(net.notices(0, port), []);
    net.spaces[1].deallocate(once).unwrap();
    net.run();
    assert_eq!(net.notices(0, port), [Notice::SendOnce]);
}

#[test]
fn a_dead_port_is_told_to_its_holders() {
    let mut net = Net::new(2);
    let (port, to) = net.offered(0, 1);
    let told = ask(&mut net.spaces[1], to, Request::DeadName);
    net.spaces[0].destroy(port).unwrap();
    net.run();
    assert_eq!(net.notices(1, told), [Notice::DeadName(to)]);
    assert_eq!(net.spaces[1].references(to), Ok((2, true)));
    assert_eq!(net.send(1, copy_send(to), &[]), Err(SendError::Dead));
    net.spaces[1].destroy(to).unwrap();
    net.spaces[1].destroy(told).unwrap();
    assert!(net.spaces.iter().all(|space| space.is_empty()));
}

#[test]
fn messages_that_cross_the_death_of_their_port_give_their_rights_back() {
    let mut net = Net::new(2);
    let (port, to) = net.offered(0, 1);
    let answers = net.spaces[1].allocate_port();
    let mut message = Message::new(copy_send(to), 1);
    message.reply = Some(make_send_once(answers));
    message.descriptors = vec![Descriptor(3)];
    net.spaces[1].send(message).unwrap();
    net.spaces[0].destroy(port).unwrap();
    net.run();
    assert_eq!(net.notices(1, answers), [Notice::SendOnce]);
    assert_eq!(net.others, [(0, Output::Close(Descriptor(3)))]);
}

#[test]
fn the_end_of_a_link_ends_its_rights_and_only_these() {
    let mut net = Net::new(3);
    let (port, to) = net.offered(0, 1);
    let (_, other) = net.offered(0, 2);
    let (inbox, to_inbox) = net.offered(1, 0);
    net.send(0, copy_send(to_inbox), &[make_send_once(port)])
        .unwrap();
    let Got::SendOnce(once) = net.got(1, inbox) else {
        panic!("a send-once right was sent");
    };
    let told = ask(&mut net.spaces[1], to, Request::DeadName);
    net.cut(0, 1);
    net.run();
    assert_eq!(net.notices(1, told), [Notice::DeadName(to)]);
    assert_eq!(net.spaces[1].references(once), Ok((1, true)));
    assert_eq!(net.spaces[0].references(to_inbox), Ok((1, true)));
    assert_eq!(net.notices(0, port), [Notice::SendOnce]);
    net.send(2, copy_send(other), &[]).unwrap();
    assert!(net.spaces[0].status(port).is_ok());
}

#[test]
fn what_was_received_is_answered_with_a_dead_right_after_the_links_end() {
    let mut net = Net::new(2);
    let (port, to) = net.offered(0, 1);
    let answers = net.spaces[1].allocate_port();
    let mut message = Message::new(copy_send(to), 1);
    message.reply = Some(make_send_once(answers));
    net.spaces[1].send(message).unwrap();
    net.run();
    net.cut(0, 1);
    let message = net.spaces[0].receive(port).unwrap();
    assert_eq!(message.reply, Some(Got::Dead));
    assert_eq!(net.spaces[0].receive(port), Err(ReceiveError::WouldBlock));
}

#[test]
fn an_offer_goes_to_who_waits_for_it() {
    let mut net = Net::new(2);
    net.offered(0, 1);
    net.offered(0, 1);
    net.offered(1, 0);
    let port = net.spaces[0].allocate_port();
    net.spaces[1].expect_offer(9);
    net.spaces[1].forget_offer(9);
    net.spaces[0]
        .offer(Net::link(0, 1), 9, make_send(port))
        .unwrap();
    net.run();
    assert!(net.others.is_empty(), "nobody waits any more");
    assert_eq!(net.spaces[0].status(port).unwrap().sends, 0);
}

#[test]
fn one_link_for_each_pair_of_tasks() {
    let mut net = Net::new(2);
    let space = &mut net.spaces[0];
    assert!(
        space
            .link_up(farpage_rights::LinkId(9), TaskId(1), 0)
            .is_err()
    );
    assert!(space.link_up(Net::link(0, 1), TaskId(5), 0).is_err());
    assert!(
        space
            .link_up(farpage_rights::LinkId(9), TaskId(0), 0)
            .is_err()
    );
    assert!(
        space
            .link_up(farpage_rights::LinkId(9), TaskId(5), 0)
            .is_ok()
    );
}

#[test]
fn frames_of_a_link_that_is_down_are_dropped_with_their_descriptors() {
    let mut net = Net::new(2);
    let (_, to) = net.offered(0, 1);
    let mut message = Message::new(copy_send(to), 1);
    message.descriptors = vec![Descriptor(3)];
    net.spaces[1].send(message).unwrap();
    net.spaces[1].link_down(Net::link(0, 1));
    let output = net.spaces[1].poll_output();
    assert_eq!(output, Some(Output::Close(Descriptor(3))));
    let late = Frame::Settled { nonce: 1 };
    let late = net.spaces[1].handle_frame(Net::link(0, 1), late, vec![Descriptor(4)]);
    assert_eq!(late, Ok(()));
    let output = net.spaces[1].poll_output();
    assert_eq!(output, Some(Output::Close(Descriptor(4))));
}

#[test]
fn a_port_set_merges_tasks_fairly() {
    let mut net = Net::new(3);
    let (a, to_a) = net.offered(0, 1);
    let (b, to_b) = net.offered(0, 2);
    let set = net.spaces[0].allocate_set();
    for port in [a, b] {
        net.spaces[0].move_member(port, Some(set)).unwrap();
    }
    for _ in 0..2 {
        net.send(1, copy_send(to_a), &[]).unwrap();
    }
    net.send(2, copy_send(to_b), &[]).unwrap();
    let order: Vec<_> = (0..3)
        .map(|_| net.spaces[0].receive(set).unwrap().port)
        .collect();
    assert_eq!(order, [a, b, a]);
}

#[test]
fn a_frame_says_mine_once_and_then_the_same_entry() {
    let mut net = Net::new(2);
    let (_, to_inbox) = net.offered(1, 0);
    let port = net.spaces[0].allocate_port();
    let mut exports = Vec::new();
    for _ in 0..2 {
        let mut message = Message::new(copy_send(to_inbox), 1);
        message.rights = vec![make_send(port)];
        net.spaces[0].send(message).unwrap();
        let (_, frame, _) = net.frames(0).pop().unwrap();
        let Frame::Message(message) = frame else {
            panic!("a message was sent");
        };
        exports.push(message.rights[0]);
    }
    let [
        WireRight::Mine {
            export: a,
            credits: 5,
            ..
        },
        WireRight::Mine {
            export: b,
            credits: 0,
            ..
        },
    ] = exports[..]
    else {
        panic!("{exports:?}");
    };
    assert_eq!(a, b);
}

#[test]
fn receive_rights_that_cross_each_other_are_not_stuck() {
    for limits in [(0, 0), (1, 1), (1, 5), (5, 5)] {
        for queued in [0, 1] {
            (0..50).for_each(|seed| crossing(limits, queued, seed));
        }
    }
}

/// Each task sends its receive right to the other's port, behind `queued` messages; the
/// seed says who delivers when.
fn crossing(limits: (u16, u16), queued: u16, seed: u64) {
    let mut net = Net::new(2);
    let (a, to_a) = net.offered(0, 1);
    let (b, to_b) = net.offered(1, 0);
    let dead = [net.spaces[0].allocate_port(), net.spaces[1].allocate_port()];
    for (at, (to, told)) in [(to_b, dead[0]), (to_a, dead[1])].into_iter().enumerate() {
        let told = Some(make_send_once(told));
        net.spaces[at].request(to, Request::DeadName, told).unwrap();
    }
    for (at, (to, moving)) in [(to_b, a), (to_a, b)].into_iter().enumerate() {
        for _ in 0..queued {
            net.spaces[at].send(Message::new(copy_send(to), 1)).unwrap();
        }
        let limit = [limits.0, limits.1][at];
        net.spaces[at].set_limit(moving, limit).unwrap();
        let mut message = Message::new(copy_send(to), 2);
        message.rights = vec![move_receive(moving)];
        net.spaces[at].send(message).unwrap();
    }
    for step in 0..64 {
        net.deliver((seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(step) & 1) as usize);
    }
    net.run();
    for (space, (told, to)) in net
        .spaces
        .iter_mut()
        .zip([(dead[0], to_b), (dead[1], to_a)])
    {
        let notice = Notice::of(&space.receive(told).unwrap());
        assert_eq!(
            notice,
            Some(Notice::DeadName(to)),
            "{limits:?} {queued} {seed}"
        );
        space.destroy(told).unwrap();
        space.destroy(to).unwrap();
    }
    net.run();
    assert!(net.spaces.iter().all(farpage_rights::Space::is_empty));
}
