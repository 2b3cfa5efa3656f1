//! Sockets that somebody else has made.

use std::os::fd::OwnedFd;
use std::time::Duration;

use farpage_port::Node;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

fn socket(kind: SocketType, path: &std::path::Path, listens: bool) -> OwnedFd {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::empty(), None);
    let socket = socket.unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    if listens {
        rustix::net::listen(&socket, 8).unwrap();
    }
    socket
}

#[test]
fn a_socket_that_was_given_is_listened_on_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("given");
    let (server, client) = (Node::new().unwrap(), Node::new().unwrap());
    let port = server.port();
    let given = socket(SocketType::SEQPACKET, &path, true);
    let listening = server.listen_on(given, &port.make_send()).unwrap();
    client
        .connect(&path, Some(Duration::from_secs(120)))
        .unwrap();
    drop(listening);
    assert!(path.exists());
}

#[test]
fn sockets_of_other_kinds_and_those_that_do_not_listen_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::new().unwrap();
    let right = node.port().make_send();
    for (name, kind, listens) in [
        ("stream", SocketType::STREAM, true),
        ("silent", SocketType::SEQPACKET, false),
    ] {
        let given = socket(kind, &folder.path().join(name), listens);
        let Err(refused) = node.listen_on(given, &right) else {
            panic!("{name} is listened on");
        };
        assert!(
            refused.to_string().contains("the socket that was given"),
            "{refused}"
        );
    }
    let file = std::fs::File::open("/dev/null").unwrap();
    assert!(node.listen_on(file.into(), &right).is_err());
}
