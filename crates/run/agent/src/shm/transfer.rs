//! Reading and writing by a descriptor: through a mapping that is made for it.

use core::ops::Range;

use farpage_object::PAGE_BYTES;
use farpage_object::shm::{Ask, Kind, Shm};
use farpage_sys::file::{self, Fd, Status};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, Result, process, syscall};

use super::connection::STATE;
use super::descriptors::Object;
use super::memory::{Wanted, keep_from_children, unmap};
use super::turns::Turn;
use super::{descriptors, memory_files};
use crate::transfer::{TRANSFER_MAX, Transfer, Way};

/// What is mapped at a time.
const WINDOW: usize = 4 << 20;

/// Pages that are made zeros by being written to, at a time.
const ZEROS_MAX: usize = 256;

/// Flags of a transfer that memory has no need of, and the one that [`Transfer`] has.
const DONE_ANYWAY: u32 = g::RWF_HIPRI | g::RWF_DSYNC | g::RWF_SYNC | g::RWF_APPEND;

static ZEROS: [u8; PAGE_BYTES] = [0; PAGE_BYTES];

pub(super) fn call(
    object: &Object,
    number: u32,
    args: [usize; 6],
    mask: u64,
) -> Option<Result<usize>> {
    let [.., flags] = args;
    let meant = Transfer::meant(number, args)?;
    let has_flags = matches!(number, g::__NR_preadv2 | g::__NR_pwritev2);
    if has_flags && flags as u32 & !DONE_ANYWAY != 0 {
        return Some(Err(Errno::EOPNOTSUPP));
    }
    Some(meant.and_then(|meant| meant.make(object, mask)))
}

/// Where a write would end; `None` of other calls.
pub(super) fn end_of_write(
    status: &Status,
    number: u32,
    args: [usize; 6],
) -> Option<Result<usize>> {
    let meant = Transfer::meant(number, args)?;
    match meant {
        Ok(Transfer { way: Way::Out, .. }) => None,
        Ok(meant) => Some(meant.range(status).map(|range| range.end)),
        Err(errno) => Some(Err(errno)),
    }
}

/// `lseek` to data or a hole: there is data everywhere, and one hole at the end.
pub(super) fn seek(status: &Status, fd: usize, offset: usize, whence: u32) -> Result<usize> {
    let size = status.bytes as usize;
    let to = match whence {
        _ if offset >= size => return Err(Errno::ENXIO),
        g::SEEK_DATA => offset,
        _ => size,
    };
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_lseek, fd, to, g::SEEK_SET) }
}

impl Transfer {
    /// The bytes of the file that are meant, as far as it goes when they are read.
    fn range(&self, status: &Status) -> Result<Range<usize>> {
        let flags = file::flags(Fd(self.fd as i32))?;
        let forbidden = match self.way {
            Way::Out => g::O_WRONLY,
            Way::In => g::O_RDONLY,
        };
        if flags & g::O_ACCMODE == forbidden {
            return Err(Errno::EBADF);
        }
        if self.way == Way::In && memory_files::is_sealed(Fd(self.fd as i32)) {
            return Err(Errno::EPERM);
        }
        let add = |sum: usize, [_, bytes]: &[usize; 2]| sum.checked_add(*bytes);
        let wanted = self.pieces.iter().try_fold(0, add).ok_or(Errno::EINVAL)?;
        let size = status.bytes as usize;
        let start = match self.at {
            Some(at) if at > isize::MAX as usize => return Err(Errno::EINVAL),
            // Wherever else was said.
            _ if self.appends || self.way == Way::In && flags & g::O_APPEND != 0 => size,
            Some(at) => at,
            None => self.seek(0, g::SEEK_CUR)?,
        };
        let end = start.checked_add(wanted.min(TRANSFER_MAX));
        let end = end.ok_or(Errno::EINVAL)?;
        Ok(match self.way {
            Way::Out => start..end.min(size).max(start),
            Way::In => start..end,
        })
    }

    /// # Errors
    /// What the program's call fails with; [`SIGNAL_FIRST`](super::SIGNAL_FIRST) when a signal that is
    /// not in `mask` has come before the transfer's turn.
    pub(crate) fn make(&self, object: &Object, mask: u64) -> Result<usize> {
        let _turn = Turn::wait(object, self.way, mask)?;
        let status = file::status(Fd(self.fd as i32))?;
        let range = self.range(&status)?;
        match self.way {
            Way::Out => self.read(object, &status, range),
            Way::In => self.write(object, &status, range),
        }
    }

    fn read(&self, object: &Object, status: &Status, range: Range<usize>) -> Result<usize> {
        let Range { mut start, mut end } = range;
        let wanted = end - start;
        if self.at.is_none() && wanted > 0 {
            // Others may read by the same open file just now: what Linux says is this call's part.
            start = self.seek(wanted as isize, g::SEEK_CUR)? - wanted;
            end = (start + wanted).min(status.bytes as usize).max(start);
        }
        let read = copy(object, Way::Out, start, end - start, &self.pieces);
        let missing = wanted - read.unwrap_or(0);
        if self.at.is_none() && missing > 0 {
            self.seek(-(missing as isize), g::SEEK_CUR)?;
        }
        read
    }

    fn write(&self, object: &Object, status: &Status, range: Range<usize>) -> Result<usize> {
        let (fd, before) = (Fd(self.fd as i32), status.bytes as usize);
        let Range { start, end } = range;
        let grows = end > before && start < end;
        if grows {
            descriptors::resize(fd, Some(object), before, end)?;
        } else if start < end {
            descriptors::was_written(fd);
        }
        let written = copy(object, Way::In, start, end - start, &self.pieces);
        let last = start + written.unwrap_or(0);
        // Another host of a cluster may have made it longer meanwhile.
        if grows && last < end && !super::shm().is_some_and(Shm::is_cluster) {
            let size = written.map_or(before, |_| last.max(before));
            descriptors::resize(fd, Some(object), end, size)?;
        }
        if written.is_ok() && self.at.is_none() {
            self.seek(last as isize, g::SEEK_SET)?;
        }
        written
    }
}

/// Copies `bytes` bytes from `offset` on; they lie in the file.
fn copy(
    object: &Object,
    way: Way,
    offset: usize,
    bytes: usize,
    pieces: &[[usize; 2]],
) -> Result<usize> {
    let mut done = 0;
    while done < bytes {
        let at = offset + done;
        let start = at / PAGE_BYTES * PAGE_BYTES;
        let part = (bytes - done).min(WINDOW - (at - start));
        let span = (at - start + part).next_multiple_of(PAGE_BYTES);
        let wanted = Wanted::window(object, start, span);
        let moved = in_window(&wanted, |window| {
            move_bytes(way, window + (at - start), part, pieces, done)
        });
        match moved {
            Ok(moved) => done += moved,
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => return Ok(done),
        }
        if moved != Ok(part) {
            break;
        }
    }
    Ok(done)
}

/// Does something where `wanted` is mapped meanwhile.
fn in_window<T>(wanted: &Wanted, act: impl FnOnce(usize) -> Result<T>) -> Result<T> {
    let mut state = STATE.lock();
    // SAFETY: it lies where nothing is.
    let window = unsafe { wanted.map(&mut state) }?;
    let bytes = wanted.bytes.next_multiple_of(PAGE_BYTES);
    keep_from_children(&mut state, window, bytes);
    drop(state);
    let done = act(window);
    // SAFETY: nobody else knows it.
    unsafe { unmap(&mut STATE.lock(), window, wanted.bytes) };
    done
}

/// Moves `bytes` bytes between the mapping at `here` and the program's pieces, from byte `skip` of
/// those on.
fn move_bytes(
    way: Way,
    here: usize,
    bytes: usize,
    pieces: &[[usize; 2]],
    skip: usize,
) -> Result<usize> {
    let (mut done, mut skip, own) = (0, skip, process::id());
    for &[at, length] in pieces {
        let before = skip.min(length);
        skip -= before;
        let mut piece = before;
        while piece < length && done < bytes {
            let part = (length - piece).min(bytes - done);
            let (window, theirs) = ([here + done, part], [at + piece, part]);
            let (to, from) = match way {
                Way::Out => (theirs.as_ptr(), window.as_ptr()),
                Way::In => (window.as_ptr(), theirs.as_ptr()),
            };
            // SAFETY: Linux checks the program's pointer; the other is a mapping of ours.
            match unsafe { syscall!(g::__NR_process_vm_readv, own, to, 1, from, 1, 0) } {
                Ok(0) if done == 0 => return Err(Errno::EFAULT),
                Ok(0) => return Ok(done),
                Ok(count) => {
                    done += count;
                    piece += count;
                }
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => return Ok(done),
            }
        }
    }
    Ok(done)
}

/// Makes `bytes` bytes from `offset` on zeros.
pub(super) fn zero(object: &Object, offset: usize, bytes: usize) -> Result<()> {
    if super::shm().is_some_and(Shm::is_cluster) {
        // Other hosts have the pages, too.
        let zeros = [[ZEROS.as_ptr().expose_provenance(), PAGE_BYTES]; ZEROS_MAX];
        let most = ZEROS_MAX * PAGE_BYTES;
        for start in (0..bytes).step_by(most) {
            let part = most.min(bytes - start);
            copy(object, Way::In, offset + start, part, &zeros)?;
        }
        return Ok(());
    }
    let end = offset + bytes;
    let (first, last) = (
        offset.next_multiple_of(PAGE_BYTES),
        end / PAGE_BYTES * PAGE_BYTES,
    );
    if first < last {
        let ask = Ask {
            a: object.number,
            b: first as u64,
            d: (last - first) as u64,
            ..Ask::new(Kind::Zero)
        };
        STATE.lock().ask(ask, None)?;
    }
    let edges = match first <= last {
        true => [(offset, first.min(end)), (last.max(offset), end)],
        false => [(offset, end), (end, end)],
    };
    for (from, to) in edges.into_iter().filter(|(from, to)| from < to) {
        let zeros = [ZEROS.as_ptr().expose_provenance(), to - from];
        copy(object, Way::In, from, to - from, &[zeros])?;
    }
    Ok(())
}
