//! Who is at the other end, and bringing two together.

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use std::os::fd::AsFd;

pub use farpage_sys::message::Credentials as Peer;

use super::Link;
use super::error::{SendError, errno};
use super::frame::{Frame, HEADER_BYTES};

/// Introduces two peers to each other: either gets one end of a socket as the one descriptor of a
/// frame with the header given for it. The first is to make
/// [`Link::connect_over`](super::Link::connect_over) of it, the other
/// [`Link::accept_over`](super::Link::accept_over).
///
/// # Errors
/// As for [`Link::send`](super::Link::send). When the second cannot be sent to, the first finds
/// its end closed.
pub fn introduce(
    (first, to_first): (&Link, [u8; HEADER_BYTES]),
    (second, to_second): (&Link, [u8; HEADER_BYTES]),
) -> Result<(), SendError> {
    let (one, other) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|error| SendError::Failed {
        doing: "make a socket pair",
        errno: errno(error),
    })?;
    for (link, header, end) in [(first, to_first, one), (second, to_second, other)] {
        let frame = Frame { header, body: &[] };
        link.send(&frame, &[end.as_fd()])?;
    }
    Ok(())
}
