//! Messages with a descriptor.

use linux_raw_sys::general as g;

use crate::file::Fd;
use crate::raw::Result;
use crate::syscall;

const SOL_SOCKET: u32 = 1;
const SCM_RIGHTS: u32 = 1;
const MSG_NOSIGNAL: usize = 0x4000;

/// `struct msghdr` of one piece.
#[repr(C)]
struct Header {
    name: usize,
    name_bytes: usize,
    pieces: *const [usize; 2],
    count: usize,
    control: *const Control,
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
    let control = Control {
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
        control: &raw const control,
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
