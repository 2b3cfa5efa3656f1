//! Reading: through a mapping of the agent's own, in which a page that is not there is a fault that
//! the supervisor answers. So what is read is what the file holds, whatever leaves memory
//! meanwhile.

use core::sync::atomic::{AtomicUsize, Ordering};

use farpage_object::PAGE_BYTES;
use farpage_object::maps::{MAPPED_MAX, Maps};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, Result, mem, process, syscall};

use super::{memory, size_of_file};
use crate::transfer::TRANSFER_MAX;
use crate::{memory as managed, program, sandbox, user_tier};

/// Where each file is mapped for reading, or 0.
static MAPPINGS: [AtomicUsize; MAPPED_MAX] = [const { AtomicUsize::new(0) }; MAPPED_MAX];

/// `read` and `readv`: to the pieces (address and length) `to`, from where the descriptor stands.
///
/// The bytes are claimed before they are read, by moving the position past them: whoever else
/// reads from the same descriptor, perhaps in another process, gets others.
pub(super) fn read(maps: &Maps, file: usize, fd: usize, to: &[[usize; 2]]) -> Result<usize> {
    let size = size_of_file(maps, file) as usize;
    let wanted = total(to)?.min(size);
    let end = advance(fd, wanted as isize)?;
    let start = end - wanted;
    let there = wanted.min(size.saturating_sub(start));
    let done = transfer(maps, file, start, there, to);
    let read = done.unwrap_or(0);
    if read < wanted {
        advance(fd, read as isize - wanted as isize)?;
    }
    done
}

/// `pread` and `preadv`.
pub(super) fn read_at(maps: &Maps, file: usize, offset: usize, to: &[[usize; 2]]) -> Result<usize> {
    if offset > isize::MAX as usize {
        return Err(Errno::EINVAL);
    }
    let rest = (size_of_file(maps, file) as usize).saturating_sub(offset);
    let there = total(to)?.min(rest);
    transfer(maps, file, offset, there, to)
}

fn total(to: &[[usize; 2]]) -> Result<usize> {
    let add = |sum: usize, [_, bytes]: &[usize; 2]| sum.checked_add(*bytes);
    let sum = to.iter().try_fold(0, add);
    let sum = sum
        .filter(|sum| *sum <= isize::MAX as usize)
        .ok_or(Errno::EINVAL)?;
    Ok(sum.min(TRANSFER_MAX))
}

/// Moves the descriptor's position; returns where it stands then.
fn advance(fd: usize, by: isize) -> Result<usize> {
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_lseek, fd, by, g::SEEK_CUR) }
}

/// Copies `bytes` bytes of a file from `offset` on; they lie in it.
fn transfer(
    maps: &Maps,
    file: usize,
    offset: usize,
    bytes: usize,
    to: &[[usize; 2]],
) -> Result<usize> {
    if bytes == 0 {
        return Ok(0);
    }
    let from = mapping(maps, file)? + offset;
    let mut done = 0;
    for &[at, length] in to {
        let length = length.min(bytes - done);
        let mut piece = 0;
        while piece < length {
            match copy(from + done, at + piece, length - piece) {
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

/// Copies some of `bytes` bytes, at least one.
fn copy(from: usize, to: usize, bytes: usize) -> Result<usize> {
    if sandbox::is_on() || managed::is_user_tier() {
        return copy_by_hand(from, to, bytes);
    }
    let (local, remote) = ([to, bytes], [from, bytes]);
    let (local, remote) = (local.as_ptr(), remote.as_ptr());
    let own = process::id();
    // SAFETY: Linux checks the program's pointer; the source is a mapping of ours.
    match unsafe { syscall!(g::__NR_process_vm_readv, own, local, 1, remote, 1, 0) } {
        Err(Errno::EFAULT) if is_lost(from) => Err(Errno::EIO),
        Ok(0) => Err(Errno::EFAULT),
        other => other,
    }
}

/// True when the page at `from` could not be had. It is tried again when it is read again.
fn is_lost(from: usize) -> bool {
    let mut byte = 0u8;
    let (local, remote) = ([&raw mut byte as usize, 1], [from, 1]);
    let (local, remote) = (local.as_ptr(), remote.as_ptr());
    let own = process::id();
    // SAFETY: a byte of ours, from a mapping of ours.
    let read = unsafe { syscall!(g::__NR_process_vm_readv, own, local, 1, remote, 1, 0) };
    if read.is_ok() {
        return false;
    }
    let page = from & !(PAGE_BYTES - 1);
    // SAFETY: the mapping is private and was never written to: nothing is lost.
    let _ = unsafe { mem::advise(page, PAGE_BYTES, mem::MADV_DONTNEED) };
    true
}

/// By this thread itself, where Linux could not wait for pages or may not be asked.
fn copy_by_hand(from: usize, to: usize, bytes: usize) -> Result<usize> {
    let page_left = PAGE_BYTES - to % PAGE_BYTES;
    let bytes = bytes.min(page_left).min(PAGE_BYTES - from % PAGE_BYTES);
    user_tier::bring_in_to_write(to, bytes);
    program::check_writable(to, bytes)?;
    let (from, to) = (
        core::ptr::with_exposed_provenance::<u8>(from),
        core::ptr::with_exposed_provenance_mut::<u8>(to),
    );
    // SAFETY: the source is a mapping of ours, in which the supervisor answers faults; the target
    // could be written just now, and the program that takes it away meanwhile ends by that.
    unsafe { core::ptr::copy(from, to, bytes) };
    Ok(bytes)
}

/// Where the file is mapped for reading.
fn mapping(maps: &Maps, file: usize) -> Result<usize> {
    let known = MAPPINGS[file].load(Ordering::Acquire);
    if known != 0 {
        return Ok(known);
    }
    let made =
        memory::map_for_reading(maps, file, |at| MAPPINGS[file].store(at, Ordering::Release));
    made.map_err(|errno| {
        super::say(&alloc::format!(
            "cannot read a mapped file ({errno}): it takes a userfaultfd, a thread and address \
             space; see farpage doctor"
        ));
        Errno::EIO
    })
    .map(|()| MAPPINGS[file].load(Ordering::Acquire))
}
