//! Control messages of sockets: where the program has the descriptors of a message.

use farpage_sys::syscall;

use crate::program;

const SOL_SOCKET: i32 = 1;
const SCM_RIGHTS: i32 = 1;
const SO_PEERCRED: usize = 17;
const SO_DOMAIN: usize = 39;
const AF_UNIX: i32 = 1;

/// `struct msghdr`.
type Message = [usize; 7];
/// Where it has the address of its control messages, and their bytes.
const CONTROL: usize = 4;
/// `struct mmsghdr`, bytes.
pub(super) const EACH: usize = size_of::<Message>() + 8;
/// Messages that one call sends or receives.
pub(super) const COUNT_MAX: usize = 1024;

/// True of a message that has room for control messages, or some.
pub(super) fn has_any(message: usize) -> bool {
    let message = program::read::<Message>(message);
    message.is_ok_and(|message| message[CONTROL] != 0 && message[CONTROL + 1] != 0)
}

/// Does something where each descriptor of a message has its number.
pub(super) fn for_each_descriptor(message: usize, mut act: impl FnMut(usize)) {
    let Ok(message) = program::read::<Message>(message) else {
        return;
    };
    let mut at = message[CONTROL];
    let end = at.saturating_add(message[CONTROL + 1]);
    while at != 0 && at + 16 <= end {
        let (Ok(length), Ok(about)) = (
            program::read::<usize>(at),
            program::read::<[i32; 2]>(at + 8),
        ) else {
            return;
        };
        let last = at.saturating_add(length).min(end);
        if about == [SOL_SOCKET, SCM_RIGHTS] {
            (at + 16..last.saturating_sub(3))
                .step_by(4)
                .for_each(&mut act);
        }
        if length < 16 {
            return;
        }
        at = at.saturating_add(length.next_multiple_of(8));
    }
}

/// True of a socket by which descriptors can go.
pub(super) fn is_local(socket: usize) -> bool {
    option::<1>(socket, SO_DOMAIN) == Some([AF_UNIX])
}

/// The process that made the other end of a connection.
pub(super) fn peer(socket: usize) -> Option<u32> {
    let [pid, _, _] = option::<3>(socket, SO_PEERCRED)?;
    u32::try_from(pid).ok().filter(|pid| *pid != 0)
}

fn option<const WORDS: usize>(socket: usize, what: usize) -> Option<[i32; WORDS]> {
    let (mut value, mut bytes) = ([0i32; WORDS], size_of::<[i32; WORDS]>() as u32);
    let (to, length) = (&raw mut value, &raw mut bytes);
    let level = SOL_SOCKET as usize;
    // SAFETY: Linux writes at most so many bytes, and how many they were.
    let asked = unsafe {
        syscall!(
            farpage_sys::linux::general::__NR_getsockopt,
            socket,
            level,
            what,
            to,
            length
        )
    };
    asked.is_ok().then_some(value)
}
