//! A Node: the same call with its rights checked.

use std::os::fd::AsFd;
use std::process::Stdio;

use farpage_port::{Message, Node};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::Channel;

/// A channel of one right.
pub(super) fn connect(processor: u32, bytes: usize) -> Channel {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (own, other) =
        rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("a pair");
    let mut server = super::server("farpage_port", processor, bytes, "");
    let server = server.stdin(Stdio::from(other)).spawn().expect("a child");
    let node = Node::new().expect("a Node");
    let right = node.connect_over(own, None).expect("a right");
    let body = vec![1; bytes];
    let call = Box::new(move || {
        let message = Message {
            bytes: body.clone(),
            ..Message::new(0)
        };
        let answer = right.call(message, None).expect("answered");
        assert_eq!(answer.bytes.len(), body.len());
    });
    Channel { server, call }
}

/// Sends back what comes in, until nobody has a right any more.
pub(super) fn serve(_: &[String]) {
    let socket = std::io::stdin().as_fd().try_clone_to_owned();
    let node = Node::new().expect("a Node");
    let port = node.port();
    node.offer_over(socket.expect("a descriptor"), &port.make_send())
        .expect("offered");
    port.notify_no_senders(1, &port);
    loop {
        let mut call = port.receive(None).expect("a message");
        if call.notice().is_some() {
            return;
        }
        let message = Message {
            bytes: std::mem::take(&mut call.bytes),
            ..Message::new(0)
        };
        call.answer(message).expect("answered");
    }
}
