//! Descriptors, through the socket, in the order of the frames that announce them.

use std::os::fd::{BorrowedFd, OwnedFd};

use farpage_sys::{Errno, Result, message};

use super::error::{Ended, Violation};

/// Sends `fds` under `number`.
///
/// # Errors
/// As `sendmsg(2)`.
pub(super) fn send(socket: BorrowedFd<'_>, number: u64, fds: &[BorrowedFd<'_>]) -> Result<()> {
    message::send(socket, &number.to_ne_bytes(), fds, false)
}

/// Takes the `count` descriptors that a frame announced as `number`. They are there: they were
/// sent before the frame.
///
/// # Errors
/// What else is there, or that this process may not have so many.
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    number: u64,
    count: usize,
) -> std::result::Result<Vec<OwnedFd>, Ended> {
    let mut bytes = [0; 8];
    let mut received = message::receive(socket, &mut bytes);
    if matches!(received, Err(Errno::ECONNRESET)) {
        // Said once when the peer left without reading all; what it sent is still there.
        received = message::receive(socket, &mut bytes);
    }
    let wrong = |came, other| {
        Ended::from(Violation::Descriptors {
            announced: count,
            number,
            came,
            other,
        })
    };
    let received = match received {
        Ok(received) => received,
        Err(Errno::EAGAIN | Errno::ECONNRESET) => return Err(wrong(0, 0)),
        Err(errno) => {
            let doing = "receive descriptors";
            return Err(Ended::Failed { doing, errno });
        }
    };
    if received.lost {
        return Err(Ended::Failed {
            doing: "receive descriptors, of which this process may not have more",
            errno: Errno::EMFILE,
        });
    }
    let other = u64::from_ne_bytes(bytes);
    let came = received.fds.len();
    if received.bytes != bytes.len() || received.truncated || other != number || came != count {
        return Err(wrong(came, other));
    }
    Ok(received.fds)
}
