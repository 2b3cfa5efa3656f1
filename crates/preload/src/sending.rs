//! `sendfile` and `splice` where one side is a mapped file or shared memory: through a buffer. What would have to
//! wait sleeps where signals find it, and is then made again.

use alloc::vec::Vec;

use farpage_sys::file::{self, Fd, Status};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, Result, syscall};

use crate::maps::MappedFile;
use crate::shm::Object;
use crate::transfer::{Transfer, Way};
use crate::trap::{Outcome, Sleep};
use crate::{maps, program, shm, signals};

const BUFFER: usize = 256 << 10;
const ESPIPE: Errno = Errno(29);
const NONBLOCK: u32 = 0x02;
/// Linux transfers no more at a time.
const TRANSFER_MAX: usize = 0x7fff_f000;
const POLLIN: u16 = 0x1;
const POLLOUT: u16 = 0x4;

/// One side.
struct Side {
    fd: Fd,
    /// Where the program has the offset, or 0: it goes by where the descriptor stands.
    offset: usize,
    status: Status,
    contents: Contents,
}

/// Who has the contents of a side.
enum Contents {
    Linux,
    Shared(Object),
    Mapped(MappedFile),
}

/// Why no byte went over.
enum Stop {
    Failed(Errno),
    /// This side would have to wait.
    Waits(Fd, u16),
}

/// `None` where Linux has the contents of both sides, and of other calls. `slept`: the call was made before,
/// and this is how the sleep ended.
pub(crate) fn call(number: u32, args: [usize; 6], slept: Option<Result<()>>) -> Option<Outcome> {
    let [a, b, c, d, e, f] = args;
    let (from, to, bytes, flags) = match number {
        g::__NR_sendfile => ((b, c), (a, 0), d, 0),
        g::__NR_splice => ((a, b), (c, d), e, f as u32),
        _ => return None,
    };
    if !maps::exist() && !shm::exist() {
        return None;
    }
    let (from, to) = (Side::new(from)?, Side::new(to)?);
    if from.is_linuxs() && to.is_linuxs() {
        return None;
    }
    // Linux splices with a pipe on one side, and sends from what can be mapped.
    let is_allowed = match number {
        g::__NR_sendfile => from.status.is_regular(),
        _ => from.is_pipe() || to.is_pipe(),
    };
    if !is_allowed {
        return Some(Outcome::Done(Err(Errno::EINVAL)));
    }
    if [&from, &to]
        .into_iter()
        .any(|side| side.is_pipe() && side.offset != 0)
    {
        return Some(Outcome::Done(Err(ESPIPE)));
    }
    if let Some(Err(errno)) = slept
        && signals::interrupt_calls()
    {
        return Some(Outcome::Done(Err(errno)));
    }
    Some(match send(&from, &to, bytes.min(TRANSFER_MAX)) {
        Ok(done) => Outcome::Done(Ok(done)),
        Err(Stop::Failed(errno)) => Outcome::Done(Err(errno)),
        Err(Stop::Waits(fd, _)) if flags & NONBLOCK != 0 || !waits(fd) => {
            Outcome::Done(Err(Errno::EAGAIN))
        }
        Err(Stop::Waits(fd, events)) => Outcome::Sleep(Sleep::Ready(fd, events)),
    })
}

fn waits(fd: Fd) -> bool {
    file::flags(fd).is_ok_and(|flags| flags & g::O_NONBLOCK == 0)
}

/// Sends until all is sent, or one side has no more, or would have to wait.
fn send(from: &Side, to: &Side, bytes: usize) -> core::result::Result<usize, Stop> {
    let (mut source, mut target) = (from.position()?, to.position()?);
    let mut buffer = alloc::vec![0; BUFFER.min(bytes)];
    let mut done = 0;
    let mut end = Ok(());
    while done < bytes {
        let part = buffer.len().min(bytes - done);
        let sent = from.take(source, &mut buffer[..part]).and_then(|got| {
            // What a pipe has given cannot be put back.
            let sent = to.put(target, &buffer[..got]);
            sent.map(|sent| (got, sent))
        });
        match sent {
            Ok((_, 0)) => break,
            Ok((got, sent)) => {
                done += sent;
                source = source.map(|at| at + sent);
                target = target.map(|at| at + sent);
                if got < part || sent < got {
                    break;
                }
            }
            Err(stop) => {
                end = Err(stop);
                break;
            }
        }
    }
    from.moved(source, done)?;
    to.moved(target, done)?;
    match end {
        Err(stop) if done == 0 => Err(stop),
        _ => Ok(done),
    }
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Failed(errno)
    }
}

impl Side {
    fn new((fd, offset): (usize, usize)) -> Option<Self> {
        let fd = Fd(fd as i32);
        let shared = || shm::kept(fd).map(Contents::Shared);
        let mapped = maps::opened_as(fd).map(Contents::Mapped);
        Some(Self {
            fd,
            offset,
            status: file::status(fd).ok()?,
            contents: mapped.or_else(shared).unwrap_or(Contents::Linux),
        })
    }

    fn is_linuxs(&self) -> bool {
        matches!(self.contents, Contents::Linux)
    }

    fn is_pipe(&self) -> bool {
        self.status.is_pipe()
    }

    /// Where it is read or written; `None`: where it stands, which moves by itself.
    fn position(&self) -> Result<Option<usize>> {
        if self.offset != 0 {
            let at = program::read::<i64>(self.offset)?;
            return usize::try_from(at).map(Some).map_err(|_| Errno::EINVAL);
        }
        if !self.status.is_regular() {
            return Ok(None);
        }
        // SAFETY: takes no pointer.
        unsafe { syscall!(g::__NR_lseek, self.fd.0, 0, g::SEEK_CUR) }.map(Some)
    }

    /// `done` bytes went over, up to `position`.
    fn moved(&self, position: Option<usize>, done: usize) -> Result<()> {
        match position {
            Some(at) if self.offset != 0 => program::write(self.offset, &(at as i64)),
            Some(at) if done > 0 => {
                // SAFETY: takes no pointer.
                unsafe { syscall!(g::__NR_lseek, self.fd.0, at, g::SEEK_SET) }.map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Reads into `buffer` from `at` on. Of a pipe only what is there.
    fn take(&self, at: Option<usize>, buffer: &mut [u8]) -> core::result::Result<usize, Stop> {
        let piece = [buffer.as_mut_ptr().expose_provenance(), buffer.len()];
        self.transfer(Way::Out, at, piece)
    }

    /// Writes `bytes` at `at`. To a pipe, a socket or their like what it takes at once.
    fn put(&self, at: Option<usize>, bytes: &[u8]) -> core::result::Result<usize, Stop> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let piece = [bytes.as_ptr().expose_provenance(), bytes.len()];
        self.transfer(Way::In, at, piece)
    }

    /// Moves bytes between the side and a buffer of the agent's.
    fn transfer(
        &self,
        way: Way,
        at: Option<usize>,
        piece: [usize; 2],
    ) -> core::result::Result<usize, Stop> {
        let (at_a_place, at_once, events) = match way {
            Way::Out => (g::__NR_pread64, g::__NR_preadv2, POLLIN),
            Way::In => (g::__NR_pwrite64, g::__NR_pwritev2, POLLOUT),
        };
        let [address, length] = piece;
        let fd = self.fd.0;
        let done = match (&self.contents, at) {
            (Contents::Shared(object), at) => Transfer {
                fd: fd as usize,
                way,
                at,
                pieces: Vec::from([piece]),
            }
            .make(object, &file::status(self.fd)?),
            (Contents::Mapped(file), Some(at)) if way == Way::Out => file.read_at(at, piece),
            // SAFETY: Linux reads or writes the buffer.
            (_, Some(at)) => unsafe { syscall!(at_a_place, fd, address, length, at) },
            // SAFETY: as above.
            (_, None) => unsafe {
                syscall!(at_once, fd, piece.as_ptr(), 1, -1isize, 0, g::RWF_NOWAIT)
            },
        };
        done.map_err(|errno| match errno {
            Errno::EAGAIN => Stop::Waits(self.fd, events),
            // It cannot be asked without waiting: as a file that cannot be spliced.
            Errno::EOPNOTSUPP => Stop::Failed(Errno::EINVAL),
            errno => Stop::Failed(errno),
        })
    }
}
