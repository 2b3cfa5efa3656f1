//! Other processes that have the same memory.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use anyhow::{Context, Result, bail};
use farpage_sys::Errno;
use rustix::pipe::pipe;
use rustix::process::{Pid, WaitOptions, waitpid};

unsafe extern "C" {
    fn fork() -> i32;
    #[link_name = "_exit"]
    fn end(code: i32) -> !;
}

/// Does something in another process, which has all memory that is shared, and ends: its error.
///
/// `act` makes system calls and writes to memory, and nothing else: other threads may have had locks.
pub(super) fn in_another(act: impl FnOnce() -> Result<(), Errno>) -> Result<Option<Errno>> {
    // SAFETY: the child does what is said above.
    match unsafe { fork() } {
        0 => {
            let code = act().err().map_or(0, |errno| errno.0);
            // SAFETY: ends the child.
            unsafe { end(code) }
        }
        child => {
            let code = ended(child)?;
            Ok((code != 0).then_some(Errno(code)))
        }
    }
}

/// Writes in parent and child in turn: here first, so that pages move here, then there, then here.
pub(super) fn beside_a_child(write: impl Fn()) -> Result<()> {
    let (here, there) = (pipe()?, pipe()?);
    // SAFETY: the child writes to memory and pipes.
    match unsafe { fork() } {
        0 => {
            let done = hears(here.0.as_fd()).is_ok()
                && {
                    write();
                    tells(there.1.as_fd()).is_ok()
                }
                && hears(here.0.as_fd()).is_ok();
            // SAFETY: ends the child.
            unsafe { end(i32::from(!done)) }
        }
        child => {
            // When the child has gone this ends, too.
            drop(there.1);
            write();
            tells(here.1.as_fd())?;
            hears(there.0.as_fd()).context("the child could not write")?;
            write();
            tells(here.1.as_fd())?;
            match ended(child)? {
                0 => Ok(()),
                code => bail!("the child ended with {code}"),
            }
        }
    }
}

fn tells(to: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::io::write(to, &[1]).map(drop)?)
}

fn hears(from: BorrowedFd<'_>) -> io::Result<()> {
    match rustix::io::read(from, &mut [0; 1])? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

/// How a child ended.
fn ended(child: i32) -> Result<i32> {
    let child = Pid::from_raw(child).context("there is no other process")?;
    let (_, status) = waitpid(Some(child), WaitOptions::empty())?.context("it has not ended")?;
    match status.exit_status() {
        Some(code) => Ok(code),
        None => bail!(
            "another process died by signal {:?}",
            status.terminating_signal()
        ),
    }
}
