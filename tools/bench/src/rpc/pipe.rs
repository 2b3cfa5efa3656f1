//! Two bare pipes.

use std::io::{ErrorKind, PipeReader, Read, Write};
use std::process::Stdio;

use super::Channel;

/// A channel of two pipes.
pub(super) fn connect(processor: u32, bytes: usize) -> Channel {
    let mut server = super::server("pipe", processor, bytes, "")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let (to, from) = (server.stdin.take(), server.stdout.take());
    let (mut to, mut from) = (to.expect("piped"), from.expect("piped"));
    let mut buffer = vec![1; bytes];
    let call = Box::new(move || {
        to.write_all(&buffer).expect("sent");
        from.read_exact(&mut buffer).expect("answered");
    });
    Channel { server, call }
}

/// Sends back what comes in.
pub(super) fn serve(args: &[String]) {
    use std::os::fd::AsFd;
    let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().expect("a descriptor");
    let mut from = PipeReader::from(own(std::io::stdin().as_fd()));
    // Not through the standard library's buffer.
    let mut to = std::io::PipeWriter::from(own(std::io::stdout().as_fd()));
    let mut buffer = vec![0; args[0].parse().expect("bytes")];
    loop {
        match from.read_exact(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return,
            other => other.expect("received"),
        }
        to.write_all(&buffer).expect("answered");
    }
}
