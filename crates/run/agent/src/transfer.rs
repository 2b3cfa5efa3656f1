//! What calls mean that move bytes between a file and memory.

use alloc::vec::Vec;

use farpage_sys::linux::general as g;
use farpage_sys::{Errno, Result, syscall};

use crate::program;

/// Pieces, and messages, that Linux takes in one call.
pub(crate) const IOV_MAX: usize = 1024;
/// Linux transfers no more bytes at a time.
pub(crate) const TRANSFER_MAX: usize = 0x7fff_f000;

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// They are read.
    Out,
    /// They are written.
    In,
}

/// Where a call transfers.
enum Place {
    /// Where the descriptor stands.
    Stands,
    /// At its offset.
    Given,
    /// At its offset, unless that is -1.
    Either,
}

/// What a call means.
pub(crate) struct Transfer {
    pub(crate) fd: usize,
    pub(crate) way: Way,
    /// Where; `None`: where the descriptor stands.
    pub(crate) at: Option<usize>,
    /// Where the file ends, wherever else was said (`RWF_APPEND`).
    pub(crate) appends: bool,
    /// The program's memory: address and length of each piece.
    pub(crate) pieces: Vec<[usize; 2]>,
}

/// A vector of pieces, as the program has it.
fn pieces(at: usize, count: usize) -> Result<Vec<[usize; 2]>> {
    if count > IOV_MAX {
        return Err(Errno::EINVAL);
    }
    (0..count)
        .map(|i| program::read(at + i * size_of::<[usize; 2]>()))
        .collect()
}

/// True of a call that moves bytes.
pub(crate) fn is_one(number: u32) -> bool {
    kind_of(number).is_some()
}

/// Which way, whether there are several pieces, and where they go; `None` of calls that transfer
/// nothing.
fn kind_of(number: u32) -> Option<(Way, bool, Place)> {
    Some(match number {
        g::__NR_read => (Way::Out, false, Place::Stands),
        g::__NR_readv => (Way::Out, true, Place::Stands),
        g::__NR_pread64 => (Way::Out, false, Place::Given),
        g::__NR_preadv => (Way::Out, true, Place::Given),
        g::__NR_preadv2 => (Way::Out, true, Place::Either),
        g::__NR_write => (Way::In, false, Place::Stands),
        g::__NR_writev => (Way::In, true, Place::Stands),
        g::__NR_pwrite64 => (Way::In, false, Place::Given),
        g::__NR_pwritev => (Way::In, true, Place::Given),
        g::__NR_pwritev2 => (Way::In, true, Place::Either),
        _ => return None,
    })
}

impl Transfer {
    /// `None` of calls that transfer nothing.
    pub(crate) fn meant(number: u32, args: [usize; 6]) -> Option<Result<Self>> {
        let [fd, b, c, d, _, flags] = args;
        let (way, several, place) = kind_of(number)?;
        let has_flags = matches!(number, g::__NR_preadv2 | g::__NR_pwritev2);
        let at = match place {
            Place::Stands => None,
            Place::Given => Some(d),
            Place::Either => Some(d).filter(|at| *at != usize::MAX),
        };
        let pieces = match several {
            true => pieces(b, c),
            false => Ok([[b, c]].to_vec()),
        };
        let meant = |pieces| Self {
            fd,
            way,
            at,
            appends: has_flags && way == Way::In && flags as u32 & g::RWF_APPEND != 0,
            pieces,
        };
        Some(pieces.map(meant))
    }

    /// Moves the descriptor's position; returns where it stands then.
    pub(crate) fn seek(&self, by: isize, whence: u32) -> Result<usize> {
        // SAFETY: takes no pointer.
        unsafe { syscall!(g::__NR_lseek, self.fd, by, whence) }
    }
}
