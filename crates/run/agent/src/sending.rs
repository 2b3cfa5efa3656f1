//! `sendfile` and `splice` where one side is a mapped file or shared memory: through a buffer. What would have to
//! wait sleeps where signals find it, and is then made again.

use alloc::vec::Vec;

use farpage_object::PAGE_BYTES;
use farpage_sys::file::{self, Fd, Status};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, Result, syscall};

use crate::frame::Frame;
use crate::maps::MappedFile;
use crate::shm::Object;
use crate::transfer::{TRANSFER_MAX, Transfer, Way};
use crate::trap::{Outcome, Sleep};
use crate::{maps, program, sandbox, shm, signals};

const BUFFER: usize = 256 << 10;
const EXDEV: Errno = Errno(18);
const ESPIPE: Errno = Errno(29);
const NONBLOCK: u32 = 0x02;
const POLLIN: u16 = 0x1;
const POLLOUT: u16 = 0x4;

/// One side.
struct Side {
    fd: Fd,
    /// Where the program has the offset, or 0: it goes by where the descriptor stands.
    offset: usize,
    status: Status,
    /// How it was opened.
    flags: u32,
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
    /// The side that is read, or the one that is written, would have to wait.
    Waits(Way),
}

/// `None` where Linux has the contents of both sides, and of other calls.
pub(crate) fn call(number: u32, frame: &mut Frame) -> Option<Outcome> {
    let [a, b, c, d, e, f] = frame.arguments();
    let (from, to, bytes, flags) = match number {
        g::__NR_sendfile => ((b, c), (a, 0), d, 0),
        g::__NR_splice => ((a, b), (c, d), e, f as u32),
        g::__NR_copy_file_range if f == 0 => ((a, b), (c, d), e, 0),
        _ => return None,
    };
    if !maps::exist() && !shm::exist() {
        return None;
    }
    let sides = Side::both(from, to);
    if let Ok(Some((from, to))) = &sides
        && from.is_linuxs()
        && to.is_linuxs()
    {
        return None;
    }
    // What was sent before a sleep stands above the first descriptor, of which Linux takes the lower half.
    let slept = frame.slept();
    let mut before = 0;
    if slept.is_some() {
        before = frame.rdi >> 32;
        frame.rdi &= u32::MAX as usize;
    }
    if let Some(Err(errno)) = slept
        && (before > 0 || signals::interrupt_calls())
    {
        let sent = Some(before).filter(|before| *before > 0);
        return Some(Outcome::Done(sent.ok_or(errno)));
    }
    let (from, to) = match sides {
        Ok(sides) => sides?,
        Err(_) if before > 0 => return Some(Outcome::Done(Ok(before))),
        Err(errno) => return Some(Outcome::Done(Err(errno))),
    };
    let bytes = bytes.min(TRANSFER_MAX).saturating_sub(before);
    let (more, end) = match check(number, &from, &to) {
        _ if number == g::__NR_splice && bytes == 0 => (0, None),
        Ok(()) if number == g::__NR_copy_file_range && from.overlaps(&to, bytes) => {
            (0, Some(Stop::Failed(Errno::EINVAL)))
        }
        Ok(()) => send(&from, &to, bytes, frame.mask),
        Err(errno) => (0, Some(Stop::Failed(errno))),
    };
    let done = before + more;
    // A pipe takes and gives what it can. Everywhere else all is sent, unless a signal comes.
    let is_whole = number == g::__NR_sendfile && !to.is_pipe();
    let side = |way| match way {
        Way::Out => (&from, POLLIN),
        Way::In => (&to, POLLOUT),
    };
    Some(match end {
        Some(Stop::Waits(way))
            if (done == 0 || is_whole) && flags & NONBLOCK == 0 && side(way).0.may_wait() =>
        {
            frame.rdi |= done << 32;
            let (side, events) = side(way);
            Outcome::Sleep(Sleep::Ready(side.fd, events))
        }
        Some(Stop::Waits(..)) if done == 0 => Outcome::Done(Err(Errno::EAGAIN)),
        Some(Stop::Failed(errno)) if done == 0 => Outcome::Done(Err(errno)),
        _ => Outcome::Done(Ok(done)),
    })
}

/// What Linux refuses.
fn check(number: u32, from: &Side, to: &Side) -> Result<()> {
    let copies = number == g::__NR_copy_file_range;
    let is_apart = |side: &Side| match side.contents {
        Contents::Mapped(_) => true,
        Contents::Shared(_) => false,
        // They may leave Linux in the middle of the call.
        Contents::Linux => shm::may_be_kept(side.fd),
    };
    // As between file systems: programs then read and write.
    if copies && (sandbox::is_on() || is_apart(from) || is_apart(to)) {
        return Err(EXDEV);
    }
    // What the call does by itself others do here, which the program may have forbidden.
    if sandbox::is_on() {
        return Err(Errno::EINVAL);
    }
    let appends = to.flags & g::O_APPEND != 0;
    if !from.may(g::O_RDONLY) || !to.may(g::O_WRONLY) || copies && appends {
        return Err(Errno::EBADF);
    }
    if [from, to]
        .iter()
        .any(|side| side.is_pipe() && side.offset != 0)
    {
        return Err(ESPIPE);
    }
    // It splices with a pipe on one side, and sends from what can be mapped.
    let is_allowed = match number {
        g::__NR_sendfile => from.status.is_regular(),
        g::__NR_copy_file_range => from.status.is_regular() && to.status.is_regular(),
        _ => from.is_pipe() || to.is_pipe(),
    };
    match is_allowed && !appends {
        true => Ok(()),
        false => Err(Errno::EINVAL),
    }
}

/// Sends until all is sent, or one side has no more or would have to wait, or a signal has come. How much, and
/// why no more.
fn send(from: &Side, to: &Side, bytes: usize, mask: u64) -> (usize, Option<Stop>) {
    let mut buffer = alloc::vec![0; BUFFER.min(bytes)];
    let mut done = 0;
    while done < bytes && (done == 0 || !signals::have_come(mask)) {
        let part = buffer.len().min(bytes - done);
        match step(from, to, &mut buffer[..part]) {
            Ok((got, sent)) => {
                done += sent;
                if got < part || sent == 0 {
                    break;
                }
            }
            Err(stop) => return (done, Some(stop)),
        }
    }
    (done, None)
}

/// Sends what fits into the buffer: how much one side gave, and the other took.
fn step(from: &Side, to: &Side, buffer: &mut [u8]) -> core::result::Result<(usize, usize), Stop> {
    let (source, target) = (from.position()?, to.position()?);
    if !to.status.is_regular() && !file::takes_at_once(to.fd) {
        return Err(Stop::Waits(Way::In));
    }
    let got = from.take(source, buffer)?;
    // What a pipe has given cannot be put back.
    let sent = to.put(target, &buffer[..got])?;
    from.moved(source.map(|at| at + sent), sent)?;
    to.moved(target.map(|at| at + sent), sent)?;
    Ok((got, sent))
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Failed(errno)
    }
}

impl Side {
    /// Both sides of a call. `None` where a descriptor is closed, which Linux says.
    ///
    /// # Errors
    /// When it cannot be learned who has the contents.
    fn both(from: (usize, usize), to: (usize, usize)) -> Result<Option<(Self, Self)>> {
        let (from, to) = (Self::new(from)?, Self::new(to)?);
        Ok(from.zip(to))
    }

    fn new((fd, offset): (usize, usize)) -> Result<Option<Self>> {
        let fd = Fd(fd as i32);
        let (Ok(status), Ok(flags)) = (file::status(fd), file::flags(fd)) else {
            return Ok(None);
        };
        let contents = match maps::opened_as(fd) {
            Some(mapped) => Contents::Mapped(mapped),
            None => shm::kept(fd)?.map_or(Contents::Linux, Contents::Shared),
        };
        Ok(Some(Self {
            fd,
            offset,
            status,
            flags,
            contents,
        }))
    }

    fn is_linuxs(&self) -> bool {
        matches!(self.contents, Contents::Linux)
    }

    /// True when it was opened for `how`, reading or writing.
    fn may(&self, how: u32) -> bool {
        let access = self.flags & g::O_ACCMODE;
        self.flags & g::O_PATH == 0 && (access == how || access == g::O_RDWR)
    }

    fn may_wait(&self) -> bool {
        self.flags & g::O_NONBLOCK == 0
    }

    /// True when both are one file, and the `bytes` bytes of it that are meant are partly the same.
    fn overlaps(&self, to: &Self, bytes: usize) -> bool {
        let id = |side: &Self| (side.status.device, side.status.inode);
        let (Ok(Some(from)), Ok(Some(target))) = (self.position(), to.position()) else {
            return false;
        };
        let bytes = bytes.min((self.status.bytes as usize).saturating_sub(from));
        id(self) == id(to) && from.abs_diff(target) < bytes
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
        let (at_a_place, at_once) = match way {
            Way::Out => (g::__NR_pread64, g::__NR_preadv2),
            Way::In => (g::__NR_pwrite64, g::__NR_pwritev2),
        };
        let [address, length] = piece;
        let fd = self.fd.0;
        let done = match (&self.contents, at) {
            (Contents::Shared(object), at) => Transfer {
                fd: fd as usize,
                way,
                at,
                appends: false,
                pieces: Vec::from([piece]),
            }
            .make(object, shm::HOLD_ALL),
            (Contents::Mapped(file), Some(at)) if way == Way::Out => file.read_at(at, piece),
            // SAFETY: Linux reads or writes the buffer.
            (_, Some(at)) => unsafe { syscall!(at_a_place, fd, address, length, at) },
            (_, None) => {
                // SAFETY: as above.
                let moved =
                    unsafe { syscall!(at_once, fd, piece.as_ptr(), 1, -1isize, 0, g::RWF_NOWAIT) };
                match moved {
                    Err(Errno::EOPNOTSUPP) => self.when_ready(way, piece),
                    moved => moved,
                }
            }
        };
        done.map_err(|errno| match errno {
            Errno::EAGAIN => Stop::Waits(way),
            errno => Stop::Failed(errno),
        })
    }

    /// Where Linux cannot be asked not to wait (terminals, pipes with a name): no more than what is ready.
    fn when_ready(&self, way: Way, [address, length]: [usize; 2]) -> Result<usize> {
        let (number, is_ready) = match way {
            Way::Out => (g::__NR_read, file::poll([self.fd], 0)? != 0),
            Way::In => (g::__NR_write, file::takes_at_once(self.fd)),
        };
        if !is_ready {
            return Err(Errno::EAGAIN);
        }
        // SAFETY: Linux reads or writes the buffer.
        unsafe { syscall!(number, self.fd.0, address, length.min(PAGE_BYTES)) }
    }
}
