//! Sockets in pairs, and messages with a descriptor.

use linux_raw_sys::general as g;

use crate::file::Fd;
use crate::raw::{Errno, Result};
use crate::syscall;

const SOL_SOCKET: u32 = 1;
const SCM_RIGHTS: u32 = 1;
const MSG_NOSIGNAL: usize = 0x4000;
const MSG_CMSG_CLOEXEC: usize = 0x4000_0000;

/// `struct msghdr` of one piece.
#[repr(C)]
struct Header {
    name: usize,
    name_bytes: usize,
    pieces: *const [usize; 2],
    count: usize,
    control: *mut Control,
    control_bytes: usize,
    flags: usize,
}

/// `struct cmsghdr` with one descriptor.
#[repr(C)]
struct Control {
    bytes: usize,
    level: u32,
    kind: u32,
    fd: i32,
    padding: u32,
}

/// Sends `bytes`, and a copy of the descriptor `with` when one is given, as one message. Waits while
/// the socket is full; raises no SIGPIPE.
///
/// # Errors
/// As `sendmsg(2)`.
pub fn send(socket: Fd, bytes: &[u8], with: Option<Fd>) -> Result<()> {
    let piece = [bytes.as_ptr() as usize, bytes.len()];
    let mut control = Control {
        bytes: 20,
        level: SOL_SOCKET,
        kind: SCM_RIGHTS,
        fd: with.map_or(-1, |fd| fd.0),
        padding: 0,
    };
    let header = Header {
        name: 0,
        name_bytes: 0,
        pieces: &raw const piece,
        count: 1,
        control: &raw mut control,
        control_bytes: if with.is_some() {
            size_of::<Control>()
        } else {
            0
        },
        flags: 0,
    };
    // SAFETY: the header names a slice and a structure on this stack, valid for reads.
    unsafe { syscall!(g::__NR_sendmsg, socket.0, &raw const header, MSG_NOSIGNAL) }.map(drop)
}

/// Waits for a message: how many bytes came, and the descriptor that came along, closed on exec. No
/// bytes: nobody has the other end any more.
///
/// # Errors
/// As `recvmsg(2)`; `EMFILE` when a descriptor came and there was no number left for it.
pub fn receive(socket: Fd, bytes: &mut [u8]) -> Result<(usize, Option<Fd>)> {
    const CUT: usize = 0x8;
    let piece = [bytes.as_mut_ptr() as usize, bytes.len()];
    let mut control = Control {
        bytes: 0,
        level: 0,
        kind: 0,
        fd: -1,
        padding: 0,
    };
    let mut header = Header {
        name: 0,
        name_bytes: 0,
        pieces: &raw const piece,
        count: 1,
        control: &raw mut control,
        control_bytes: size_of::<Control>(),
        flags: 0,
    };
    let flags = MSG_CMSG_CLOEXEC;
    // SAFETY: the header names a slice and a structure on this stack, valid for writes.
    let got = unsafe { syscall!(g::__NR_recvmsg, socket.0, &raw mut header, flags) }?;
    if header.flags & CUT != 0 {
        return Err(Errno::EMFILE);
    }
    let came = header.control_bytes >= 20 && control.kind == SCM_RIGHTS;
    Ok((got, came.then_some(Fd(control.fd))))
}

/// Two sockets that are connected, for whole messages, closed on exec.
///
/// # Errors
/// As `socketpair(2)`.
pub fn pair() -> Result<[Fd; 2]> {
    const AF_UNIX: usize = 1;
    const SOCK_SEQPACKET: usize = 5;
    let mut ends = [0i32; 2];
    let kind = SOCK_SEQPACKET | g::O_CLOEXEC as usize;
    // SAFETY: the call writes two numbers.
    unsafe { syscall!(g::__NR_socketpair, AF_UNIX, kind, 0, ends.as_mut_ptr()) }?;
    Ok(ends.map(Fd))
}

/// Makes `fd` answer `EAGAIN` instead of waiting, here and wherever else the same file is open.
///
/// # Errors
/// As `fcntl(2)`.
pub fn do_not_wait(fd: Fd) -> Result<()> {
    // SAFETY: takes no pointer.
    let flags = unsafe { syscall!(g::__NR_fcntl, fd.0, g::F_GETFL) }?;
    // SAFETY: takes no pointer.
    unsafe {
        syscall!(
            g::__NR_fcntl,
            fd.0,
            g::F_SETFL,
            flags | g::O_NONBLOCK as usize
        )
    }
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file;

    #[test]
    fn a_descriptor_comes_with_its_message_and_the_end_is_told() {
        let [a, b] = pair().unwrap();
        send(a, b"hello", Some(a)).unwrap();
        send(a, b"again", None).unwrap();
        let mut bytes = [0; 8];
        let (got, fd) = receive(b, &mut bytes).unwrap();
        assert_eq!(&bytes[..got], b"hello");
        assert!(file::is_same(fd.unwrap(), a));
        assert_eq!(receive(b, &mut bytes), Ok((5, None)));
        file::close(fd.unwrap());
        file::close(a);
        assert_eq!(receive(b, &mut bytes), Ok((0, None)));
        file::close(b);
    }
}
