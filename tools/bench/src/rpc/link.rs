//! A Link.

use std::os::fd::AsFd;
use std::process::Stdio;

use farpage_port::link::{Frame, HEADER_BYTES, Link};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::Channel;

/// A channel of one Link.
pub(super) fn connect(processor: u32, bytes: usize) -> Channel {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let (own, other) =
        rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("a pair");
    let mut server = super::server("farpage_link", processor, bytes, "");
    let server = server.stdin(Stdio::from(other)).spawn().expect("a child");
    let link = Link::accept_over(own, None).expect("a Link");
    let body = vec![1; bytes];
    let call = Box::new(move || {
        let header = [0; HEADER_BYTES];
        let frame = Frame {
            header,
            body: &body,
        };
        link.send(&frame, &[]).expect("sent");
        let answer = link.receive(None).expect("answered");
        assert_eq!(answer.body.len(), body.len());
    });
    Channel { server, call }
}

/// Sends back what comes in.
pub(super) fn serve(_: &[String]) {
    let socket = std::io::stdin().as_fd().try_clone_to_owned();
    let link = Link::connect_over(socket.expect("a descriptor"), None).expect("a Link");
    while let Ok(message) = link.receive(None) {
        let frame = Frame {
            header: message.header,
            body: &message.body,
        };
        link.send(&frame, &[]).expect("answered");
    }
}
