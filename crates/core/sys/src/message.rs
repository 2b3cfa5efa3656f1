//! Messages with descriptors and credentials, over Unix sockets.
//!
//! But for [`wait`] nothing here waits, whatever the flags of the socket are: whoever shares it may
//! change them.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::vec::Vec;

use linux_raw_sys::general as g;

use crate::raw::Result;
use crate::syscall;

const SOL_SOCKET: u32 = 1;
const SCM_RIGHTS: u32 = 1;
const SCM_CREDENTIALS: u32 = 2;
const SO_PASSCRED: u32 = 16;
const SO_PEERPIDFD: u32 = 77;
const MSG_CTRUNC: u32 = 0x8;
const MSG_TRUNC: u32 = 0x20;
const MSG_DONTWAIT: u32 = 0x40;
const MSG_NOSIGNAL: u32 = 0x4000;
const MSG_CMSG_CLOEXEC: u32 = 0x4000_0000;

/// Descriptors that Linux lets one message have.
pub const FDS_MAX: usize = 253;
/// Bytes before the contents of a control message.
const HEAD: usize = 16;
/// All that one message can have: credentials and descriptors.
const CONTROL_WORDS: usize = (HEAD + 16 + HEAD + FDS_MAX * 4).div_ceil(8);

/// `struct msghdr` of one piece.
#[repr(C)]
struct Header {
    name: usize,
    name_bytes: usize,
    pieces: *const [usize; 2],
    count: usize,
    control: usize,
    control_bytes: usize,
    flags: u32,
    padding: u32,
}

/// Who sent a message, as Linux has checked it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// The process; 0 when it lies outside of this one's namespace.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

impl Credentials {
    /// Of the calling process.
    pub fn own() -> Self {
        // SAFETY: takes no pointer; these calls do not fail.
        let of = |nr| unsafe { syscall!(nr) }.map_or(0, |id| id as u32);
        Self {
            pid: crate::process::id(),
            uid: of(g::__NR_geteuid),
            gid: of(g::__NR_getegid),
        }
    }
}

/// Control messages, one after another.
struct Control {
    words: [u64; CONTROL_WORDS],
    bytes: usize,
}

impl Control {
    fn new() -> Self {
        let words = [0; CONTROL_WORDS];
        Self { words, bytes: 0 }
    }

    fn push(&mut self, kind: u32, contents: impl ExactSizeIterator<Item = u32>) {
        let at = self.bytes / 8;
        self.words[at] = (HEAD + contents.len() * 4) as u64;
        self.words[at + 1] = u64::from(SOL_SOCKET) | u64::from(kind) << 32;
        self.bytes += (HEAD + contents.len() * 4).next_multiple_of(8);
        for (index, value) in contents.enumerate() {
            self.words[at + 2 + index / 2] |= u64::from(value) << (index % 2 * 32);
        }
    }

    /// Kind and contents of each.
    fn each(&self, mut see: impl FnMut(u32, &mut dyn Iterator<Item = u32>)) {
        let mut at = 0;
        while at + HEAD <= self.bytes {
            let (length, kind) = (self.words[at / 8] as usize, self.words[at / 8 + 1]);
            let end = (at + length).min(self.bytes);
            if length < HEAD || kind as u32 != SOL_SOCKET {
                return;
            }
            let word = |byte: usize| (self.words[byte / 8] >> (byte % 8 * 8)) as u32;
            let whole = at + HEAD..end - (end - at) % 4;
            see((kind >> 32) as u32, &mut whole.step_by(4).map(word));
            at += length.next_multiple_of(8);
        }
    }
}

/// Sends `bytes` with copies of `fds`, and with this process's credentials when `signed`, as one
/// message. Raises no SIGPIPE.
///
/// # Errors
/// As `sendmsg(2)`: `EAGAIN` while the socket is full.
///
/// # Panics
/// When there are more than [`FDS_MAX`].
pub fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    signed: bool,
) -> Result<()> {
    assert!(fds.len() <= FDS_MAX, "{} descriptors", fds.len());
    let mut control = Control::new();
    if signed {
        let own = Credentials::own();
        control.push(SCM_CREDENTIALS, [own.pid, own.uid, own.gid].into_iter());
    }
    if !fds.is_empty() {
        control.push(SCM_RIGHTS, fds.iter().map(|fd| fd.as_raw_fd() as u32));
    }
    let piece = [bytes.as_ptr() as usize, bytes.len()];
    let header = Header {
        name: 0,
        name_bytes: 0,
        pieces: &raw const piece,
        count: 1,
        control: control.words.as_ptr() as usize,
        control_bytes: control.bytes,
        flags: 0,
        padding: 0,
    };
    let flags = MSG_NOSIGNAL | MSG_DONTWAIT;
    // SAFETY: the header names a slice and an array on this stack, valid for reads.
    unsafe {
        syscall!(
            g::__NR_sendmsg,
            socket.as_raw_fd(),
            &raw const header,
            flags
        )
    }
    .map(drop)
}

/// What came.
pub struct Received {
    /// Bytes written to the buffer; 0 also when the peer will send no more.
    pub bytes: usize,
    /// The message was longer than the buffer.
    pub truncated: bool,
    /// Descriptors were lost: this process may not have more.
    pub lost: bool,
    /// Who sent it, when [`pass_credentials`] was asked for.
    pub credentials: Option<Credentials>,
    /// Its descriptors, closed on exec.
    pub fds: Vec<OwnedFd>,
}

/// Takes the next message.
///
/// # Errors
/// As `recvmsg(2)`: `EAGAIN` when there is none, `ECONNRESET` once when the peer left without
/// reading all.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Received> {
    take(socket, buffer, MSG_DONTWAIT)
}

/// Waits for the next message, of which a descriptor at most is expected: how many bytes came, and
/// it. No bytes: the peer is gone, or has sent none.
///
/// # Errors
/// As `recvmsg(2)`: `EAGAIN` when somebody has made the socket one that does not wait.
pub fn wait(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<(usize, Option<OwnedFd>)> {
    let mut received = take(socket, buffer, 0)?;
    Ok((received.bytes, received.fds.pop()))
}

fn take(socket: BorrowedFd<'_>, buffer: &mut [u8], flags: u32) -> Result<Received> {
    let mut control = Control::new();
    let piece = [buffer.as_mut_ptr() as usize, buffer.len()];
    let mut header = Header {
        name: 0,
        name_bytes: 0,
        pieces: &raw const piece,
        count: 1,
        control: control.words.as_mut_ptr() as usize,
        control_bytes: size_of_val(&control.words),
        flags: 0,
        padding: 0,
    };
    let flags = flags | MSG_CMSG_CLOEXEC;
    // SAFETY: the header names a slice and an array on this stack, valid for writes.
    let bytes = unsafe { syscall!(g::__NR_recvmsg, socket.as_raw_fd(), &raw mut header, flags) }?;
    control.bytes = header.control_bytes.min(size_of_val(&control.words));
    let (mut credentials, mut fds) = (None, Vec::new());
    control.each(|kind, contents| match kind {
        SCM_RIGHTS => {
            // SAFETY: Linux has just made these descriptors for this process.
            let own = |fd| unsafe { OwnedFd::from_raw_fd(fd as i32) };
            fds.extend(contents.map(own));
        }
        SCM_CREDENTIALS => {
            let mut next = || contents.next().unwrap_or(0);
            let (pid, uid, gid) = (next(), next(), next());
            credentials = Some(Credentials { pid, uid, gid });
        }
        _ => {}
    });
    Ok(Received {
        bytes,
        truncated: header.flags & MSG_TRUNC != 0,
        lost: header.flags & MSG_CTRUNC != 0,
        credentials,
        fds,
    })
}

/// Says whether messages that come are to say who sent them.
///
/// # Errors
/// As `setsockopt(2)`.
pub fn pass_credentials(socket: BorrowedFd<'_>, pass: bool) -> Result<()> {
    let value = u32::from(pass);
    let (raw, at) = (socket.as_raw_fd(), &raw const value);
    // SAFETY: `value` is valid for a read of four bytes.
    unsafe { syscall!(g::__NR_setsockopt, raw, SOL_SOCKET, SO_PASSCRED, at, 4) }.map(drop)
}

/// A descriptor of the process that connected or listened at the other end of a named socket, or
/// that made a pair.
///
/// # Errors
/// `EOPNOTSUPP` or another before Linux 6.5; as `getsockopt(2)`.
pub fn peer_process(socket: BorrowedFd<'_>) -> Result<OwnedFd> {
    let (mut fd, mut bytes) = (-1i32, 4u32);
    let (raw, at, size) = (socket.as_raw_fd(), &raw mut fd, &raw mut bytes);
    // SAFETY: both are valid for writes of their sizes.
    unsafe { syscall!(g::__NR_getsockopt, raw, SOL_SOCKET, SO_PEERPIDFD, at, size) }?;
    // SAFETY: Linux has just made it for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;
    use crate::raw::Errno;

    #[test]
    fn bytes_descriptors_and_credentials_arrive_together() {
        let (a, b) = UnixDatagram::pair().unwrap();
        pass_credentials(b.as_fd(), true).unwrap();
        for count in [0, 1, 2, FDS_MAX] {
            let fds: Vec<_> = (0..count).map(|_| a.as_fd()).collect();
            send(a.as_fd(), b"hello", &fds, true).unwrap();
            let mut buffer = [0; 8];
            let received = receive(b.as_fd(), &mut buffer).unwrap();
            assert_eq!((received.bytes, &buffer[..5]), (5, &b"hello"[..]));
            assert_eq!(received.fds.len(), count);
            assert_eq!(received.credentials, Some(Credentials::own()));
            assert!(!received.truncated && !received.lost);
        }
    }

    #[test]
    fn who_waits_for_a_message_gets_its_descriptor_and_the_next_has_none() {
        let (a, b) = UnixDatagram::pair().unwrap();
        let sender = std::thread::spawn(move || {
            send(a.as_fd(), b"hello", &[a.as_fd()], false).unwrap();
            send(a.as_fd(), b"again", &[], false).unwrap();
        });
        let mut buffer = [0; 8];
        let (bytes, fd) = wait(b.as_fd(), &mut buffer).unwrap();
        assert_eq!((&buffer[..bytes], fd.is_some()), (&b"hello"[..], true));
        let (bytes, fd) = wait(b.as_fd(), &mut buffer).unwrap();
        assert_eq!((&buffer[..bytes], fd.is_some()), (&b"again"[..], false));
        sender.join().unwrap();
        assert_eq!(receive(b.as_fd(), &mut buffer).err(), Some(Errno::EAGAIN));
    }

    #[test]
    fn a_message_that_is_too_long_says_so_and_none_is_no_wait() {
        let (a, b) = UnixDatagram::pair().unwrap();
        let mut buffer = [0; 4];
        assert_eq!(receive(b.as_fd(), &mut buffer).err(), Some(Errno::EAGAIN));
        send(a.as_fd(), b"hello", &[], false).unwrap();
        assert!(receive(b.as_fd(), &mut buffer).unwrap().truncated);
    }
}
