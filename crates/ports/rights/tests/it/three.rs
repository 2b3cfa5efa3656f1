//! Three tasks: rights to a third one's port, and receive rights that move.

use farpage_rights::{
    Got, Message, Name, Notice, Output, Request, SendError, Sender, TaskId, Wait,
};

use crate::support::*;

/// Task 0 owns a port, task 1 holds a right to it, task 2 has an inbox that 1 can send to.
fn three() -> (Net, [Name; 4]) {
    let mut net = Net::new(3);
    let (port, held) = net.offered(0, 1);
    let (inbox, to_inbox) = net.offered(2, 1);
    (net, [port, held, inbox, to_inbox])
}

#[test]
fn a_right_to_a_third_tasks_port_works_without_the_one_who_gave_it() {
    let (mut net, [port, held, inbox, to_inbox]) = three();
    net.send(1, copy_send(to_inbox), &[move_send(held)])
        .unwrap();
    let Got::Send(right) = net.got(2, inbox) else {
        panic!("a send right was sent");
    };
    net.cut(0, 1);
    net.cut(1, 2);
    net.run();
    net.send(2, copy_send(right), &[]).unwrap();
    let message = net.spaces[0].receive(port).unwrap();
    assert!(matches!(
        message.sender,
        Sender::Peer {
            task: TaskId(2),
            forwards: None,
            ..
        }
    ));
}

#[test]
fn until_it_is_accepted_such_a_right_takes_no_message_but_can_be_given_on() {
    let (mut net, [port, held, inbox, to_inbox]) = three();
    let mut message = Message::new(copy_send(to_inbox), 1);
    message.rights = vec![copy_send(held)];
    net.spaces[1].send(message).unwrap();
    net.deliver(1);
    let Got::Send(right) = net.spaces[2].receive(inbox).unwrap().rights[0] else {
        panic!("a send right was sent");
    };
    let blocked = net.spaces[2]
        .send(Message::new(copy_send(right), 1))
        .unwrap_err();
    assert_eq!(blocked.error, SendError::WouldBlock(Wait::Room(right)));
    let mut message = Message::new(make_send(inbox), 1);
    message.rights = vec![copy_send(right)];
    net.spaces[2].send(message).unwrap();
    net.run();
    net.send(2, copy_send(right), &[]).unwrap();
    assert!(net.spaces[0].receive(port).is_ok());
}

#[test]
fn a_reply_right_that_is_passed_on_is_answered_by_the_third_task() {
    let (mut net, [_, _, inbox, to_inbox]) = three();
    let (server, to_server) = net.offered(1, 0);
    let answers = net.spaces[0].allocate_port();
    let mut call = Message::new(copy_send(to_server), 1);
    call.reply = Some(make_send_once(answers));
    net.spaces[0].send(call).unwrap();
    net.run();
    let reply = net.spaces[1]
        .receive(server)
        .unwrap()
        .reply
        .and_then(Got::name)
        .unwrap();
    let mut call = Message::new(copy_send(to_inbox), 2);
    call.reply = Some(move_send_once(reply));
    net.spaces[1].send(call).unwrap();
    // The third task answers before its right is accepted; the answer goes when it is.
    net.deliver(1);
    let reply = net.spaces[2]
        .receive(inbox)
        .unwrap()
        .reply
        .and_then(Got::name)
        .unwrap();
    net.spaces[2]
        .send(Message::new(move_send_once(reply), 3))
        .unwrap();
    net.run();
    assert_eq!(net.spaces[0].receive(answers).unwrap().id, 3);
    assert_eq!(
        net.notices(0, answers),
        [],
        "used once, and not noticed as well"
    );
}

#[test]
fn strangers_are_introduced_when_one_gets_a_right_of_the_other() {
    let mut net = Net::strangers(3);
    net.connect(0, 1);
    net.connect(1, 2);
    let (port, held) = net.offered(0, 1);
    let (inbox, to_inbox) = net.offered(2, 1);
    net.send(1, copy_send(to_inbox), &[copy_send(held)])
        .unwrap();
    let asked = Output::Introduce {
        task: TaskId(0),
        by: Net::link(1, 2),
    };
    assert_eq!(net.others, [(2, asked)]);
    let Got::Send(right) = net.got(2, inbox) else {
        panic!("a send right was sent");
    };
    net.connect(0, 2);
    net.run();
    net.send(2, copy_send(right), &[]).unwrap();
    assert!(net.spaces[0].receive(port).is_ok());
}

#[test]
fn a_failed_introduction_leaves_a_dead_name_and_no_reference_behind() {
    let mut net = Net::strangers(3);
    net.connect(0, 1);
    net.connect(1, 2);
    let (port, held) = net.offered(0, 1);
    let (inbox, to_inbox) = net.offered(2, 1);
    net.send(1, copy_send(to_inbox), &[move_send(held)])
        .unwrap();
    let Got::Send(right) = net.got(2, inbox) else {
        panic!("a send right was sent");
    };
    assert_eq!(net.spaces[0].status(port).unwrap().sends, 1);
    let told = ask(&mut net.spaces[0], port, Request::NoSenders { sync: 0 });
    net.spaces[2].not_introduced(TaskId(0));
    net.run();
    assert_eq!(net.spaces[2].references(right), Ok((1, true)));
    assert_eq!(net.notices(0, told), [Notice::NoSenders(1)]);
}

#[test]
fn a_right_on_its_way_to_a_task_that_dies_is_withdrawn() {
    let (mut net, [port, held, _, to_inbox]) = three();
    let told = ask(&mut net.spaces[0], port, Request::NoSenders { sync: 0 });
    let mut message = Message::new(copy_send(to_inbox), 1);
    message.rights = vec![move_send(held)];
    net.spaces[1].send(message).unwrap();
    for (to, frame, _) in net.frames(1) {
        if to == 0 {
            net.spaces[0]
                .handle_frame(Net::link(0, 1), frame, vec![])
                .unwrap();
        }
    }
    assert_eq!(net.notices(0, told), [], "what is provided is held");
    net.spaces[1].link_down(Net::link(1, 2));
    net.run();
    assert_eq!(net.notices(0, told), [Notice::NoSenders(1)]);
}

#[test]
fn a_provider_that_dies_before_its_right_is_accepted_takes_it_along() {
    let (mut net, [port, held, inbox, to_inbox]) = three();
    let mut message = Message::new(copy_send(to_inbox), 1);
    message.rights = vec![copy_send(held)];
    net.spaces[1].send(message).unwrap();
    for (to, frame, _) in net.frames(1) {
        if to == 2 {
            net.spaces[2]
                .handle_frame(Net::link(1, 2), frame, vec![])
                .unwrap();
        }
    }
    net.deliver(2);
    net.cut(0, 1);
    net.run();
    let Got::Dead = net.got(2, inbox) else {
        panic!("the right is dead");
    };
    assert_eq!(net.spaces[0].status(port).unwrap().sends, 0);
}

#[test]
fn messages_follow_a_receive_right_that_moves_and_keep_their_order() {
    let (mut net, [port, held, ..]) = three();
    let (inbox, to_inbox) = net.offered(2, 0);
    let number = |net: &mut Net, id| {
        net.spaces[1]
            .send(Message::new(copy_send(held), id))
            .unwrap();
    };
    number(&mut net, 1);
    net.run();
    number(&mut net, 2);
    let mut message = Message::new(copy_send(to_inbox), 9);
    message.rights = vec![move_receive(port)];
    net.spaces[0].send(message).unwrap();
    number(&mut net, 3);
    net.run();
    number(&mut net, 4);
    net.run();
    let Got::Receive(port) = net.got(2, inbox) else {
        panic!("a receive right was sent");
    };
    let mut senders = Vec::new();
    for id in 1..=4 {
        let message = net.spaces[2].receive(port).unwrap();
        assert_eq!(message.id, id);
        senders.push(message.sender);
    }
    let Sender::Peer { forwards, .. } = senders[0] else {
        panic!("{senders:?}");
    };
    assert_eq!(forwards, Some(TaskId(1)));
    let Sender::Peer { task, forwards, .. } = senders[3] else {
        panic!("{senders:?}");
    };
    assert_eq!((task, forwards), (TaskId(1), None));
}

#[test]
fn when_all_have_followed_the_old_home_is_not_needed() {
    let (mut net, [port, held, _, _]) = three();
    let (inbox, to_inbox) = net.offered(2, 0);
    net.send(0, copy_send(to_inbox), &[move_receive(port)])
        .unwrap();
    let Got::Receive(port) = net.got(2, inbox) else {
        panic!("a receive right was sent");
    };
    net.cut(0, 1);
    net.cut(0, 2);
    net.run();
    net.send(1, copy_send(held), &[]).unwrap();
    assert!(net.spaces[2].receive(port).is_ok());
    let told = ask(&mut net.spaces[2], port, Request::NoSenders { sync: 0 });
    assert_eq!(net.notices(2, told), []);
    net.spaces[1].deallocate(held).unwrap();
    net.run();
    assert_eq!(net.notices(2, told), [Notice::NoSenders(0)]);
}

#[test]
fn a_receive_right_that_comes_home_serves_its_old_holders() {
    let mut net = Net::new(3);
    let (port, held) = net.offered(0, 1);
    let (inbox, to_inbox) = net.offered(2, 0);
    let (home, to_home) = net.offered(0, 2);
    net.send(0, copy_send(to_inbox), &[move_receive(port)])
        .unwrap();
    let Got::Receive(away) = net.got(2, inbox) else {
        panic!("a receive right was sent");
    };
    net.send(2, copy_send(to_home), &[move_receive(away)])
        .unwrap();
    let Got::Receive(back) = net.got(0, home) else {
        panic!("a receive right was sent");
    };
    net.cut(0, 2);
    net.cut(1, 2);
    net.run();
    net.send(1, copy_send(held), &[]).unwrap();
    assert!(net.spaces[0].receive(back).is_ok());
}

#[test]
fn a_receive_right_lost_with_its_link_is_dead_for_all_holders() {
    let (mut net, [port, held, _, _]) = three();
    let (_, to_inbox) = net.offered(2, 0);
    let told = ask(&mut net.spaces[1], held, Request::DeadName);
    let mut message = Message::new(copy_send(to_inbox), 1);
    message.rights = vec![move_receive(port)];
    net.spaces[0].send(message).unwrap();
    net.cut(0, 2);
    net.run();
    assert_eq!(net.notices(1, told), [Notice::DeadName(held)]);
}

#[test]
fn a_send_once_right_to_a_port_that_moved_gives_notice_at_its_new_home() {
    let mut net = Net::new(3);
    let (inbox, to_inbox) = net.offered(2, 0);
    let (other, to_other) = net.offered(1, 0);
    let port = net.spaces[0].allocate_port();
    net.send(0, copy_send(to_other), &[make_send_once(port)])
        .unwrap();
    net.send(0, copy_send(to_inbox), &[move_receive(port)])
        .unwrap();
    let Got::Receive(port) = net.got(2, inbox) else {
        panic!("a receive right was sent");
    };
    let Got::SendOnce(once) = net.got(1, other) else {
        panic!("a send-once right was sent");
    };
    net.spaces[1].deallocate(once).unwrap();
    net.run();
    assert_eq!(net.notices(2, port), [Notice::SendOnce]);
}

#[test]
fn a_destroyed_port_can_go_to_another_task() {
    let mut net = Net::new(2);
    let (inbox, to_inbox) = net.offered(1, 0);
    let (port, held) = net.offered(0, 1);
    // Task 1 gives a send-once right to be told by.
    let (asked, to_asked) = {
        let port = net.spaces[0].allocate_port();
        net.send(0, copy_send(to_inbox), &[make_send(port)])
            .unwrap();
        let Got::Send(to) = net.got(1, inbox) else {
            panic!("a send right was sent");
        };
        (port, to)
    };
    net.send(1, copy_send(to_asked), &[make_send_once(inbox)])
        .unwrap();
    let Got::SendOnce(once) = net.got(0, asked) else {
        panic!("a send-once right was sent");
    };
    let space = &mut net.spaces[0];
    space
        .request(port, Request::PortDestroyed, Some(move_send_once(once)))
        .unwrap();
    space.destroy(port).unwrap();
    net.run();
    let message = net.spaces[1].receive(inbox).unwrap();
    assert_eq!(Notice::of(&message), Some(Notice::PortDestroyed));
    let Got::Receive(port) = message.rights[0] else {
        panic!("{message:?}");
    };
    net.send(1, copy_send(held), &[]).unwrap();
    assert!(
        net.spaces[1].receive(port).is_ok(),
        "it follows to the own task"
    );
}

#[test]
fn nothing_that_can_be_handed_over_stays_behind() {
    let (mut net, [port, held, inbox, to_inbox]) = three();
    net.send(1, copy_send(to_inbox), &[move_send(held)])
        .unwrap();
    let Got::Send(right) = net.got(2, inbox) else {
        panic!("a send right was sent");
    };
    for (at, name) in [(0, port), (1, to_inbox), (2, right), (2, inbox)] {
        net.spaces[at].destroy(name).unwrap();
        net.run();
    }
    assert!(net.spaces.iter().all(|space| space.is_empty()));
}
