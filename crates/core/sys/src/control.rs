//! The control block as a reference: the one place where a descriptor becomes a [`Control`].

use core::sync::atomic::Ordering;
use farpage_object::{CONTROL_MAGIC, CONTROL_VERSION, Control};
use linux_raw_sys::general as g;

use crate::file::{self, Fd};
use crate::raw::{Errno, Result};
use crate::{mem, syscall};

const F_SEAL_SHRINK_GROW: usize = 0x2 | 0x4;

/// Makes an empty control block: a memory file that can never change its size, closed on exec,
/// and this process's mapping of it. Magic and version are set, the rest is zero.
///
/// # Errors
/// As `memfd_create(2)`, `ftruncate(2)`, `fcntl(2)` and `mmap(2)`.
pub fn create() -> Result<(Fd, &'static Control)> {
    let flags = g::MFD_CLOEXEC | g::MFD_ALLOW_SEALING;
    let fd = file::memfd(c"farpage-membership", flags)?;
    file::set_size(fd, size_of::<Control>() as u64)?;
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_fcntl, fd.0, g::F_ADD_SEALS, F_SEAL_SHRINK_GROW) }?;
    let control = map_unchecked(fd)?;
    control.version.store(CONTROL_VERSION, Ordering::Relaxed);
    control.magic.store(CONTROL_MAGIC, Ordering::Release);
    Ok((fd, control))
}

/// Maps the control block in `fd` for the life of the process.
///
/// # Errors
/// `EINVAL` when `fd` is no control block of this version: not sealed against a change of size
/// (an access could then kill the process), or magic or version differ. Else as `mmap(2)`.
pub fn map(fd: Fd) -> Result<&'static Control> {
    // SAFETY: takes no pointer.
    let seals = unsafe { syscall!(g::__NR_fcntl, fd.0, g::F_GET_SEALS) }?;
    if seals & F_SEAL_SHRINK_GROW != F_SEAL_SHRINK_GROW {
        return Err(Errno::EINVAL);
    }
    let mut word = [0; 8];
    let last = size_of::<Control>() as u64 - 1;
    if file::pread(fd, &mut word[..1], last)? != 1 {
        return Err(Errno::EINVAL);
    }
    let control = map_unchecked(fd)?;
    let ours = control.magic.load(Ordering::Acquire) == CONTROL_MAGIC
        && control.version.load(Ordering::Relaxed) == CONTROL_VERSION;
    if ours {
        Ok(control)
    } else {
        Err(Errno::EINVAL)
    }
}

fn map_unchecked(fd: Fd) -> Result<&'static Control> {
    let bytes = size_of::<Control>();
    let at = mem::map_shared(fd, bytes)?;
    // A core of the program would have it whole, and Linux would fill its holes for that.
    // SAFETY: changes what a core has, not what is mapped.
    let _ = unsafe { mem::advise(at, bytes, mem::MADV_DONTDUMP) };
    // SAFETY: the mapping is as large as a `Control` (callers checked the file, whose size is
    // sealed), page-aligned and never unmapped; a `Control` is made of atomics only, for which all
    // bytes are valid and other processes' writes are ordinary atomic writes.
    Ok(unsafe { &*(at as *const Control) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_shared_by_all_mappings_and_others_are_refused() {
        let (fd, one) = create().unwrap();
        let two = map(fd).unwrap();
        one.budget_bytes.store(7, Ordering::Relaxed);
        assert_eq!(two.budget_bytes.load(Ordering::Relaxed), 7);
        let plain = file::memfd(c"plain", g::MFD_CLOEXEC).unwrap();
        assert_eq!(map(plain).err(), Some(Errno::EINVAL));
        file::close(plain);
        file::close(fd);
    }
}
