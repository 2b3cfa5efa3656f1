//! Calls in which Linux reaches memory while it has the address space locked. It cannot have userfaultfd
//! answer there, so such a call fails where a page is away or write-protected.
//!
//! Drivers do it that pin memory for a device, and so do futexes whose word Linux changes. What such a
//! call names is brought in, writable, and held while the call lasts. What a device has pinned from
//! then on Linux does not move; the kernel leaves it alone.

use farpage_kernel::{Holder, Kernel};
use farpage_sys::linux::general as g;
use farpage_sys::seccomp::pinning::{
    IOMMUFD_MAP, NVIDIA_ALLOCATE, REQUEST_MASK, SOL_XDP, VFIO_MAP, XDP_UMEM_REG,
};
use farpage_sys::{Result, process};

use crate::{memory, program, trap};

/// What NVIDIA's driver allocates when it is to use memory of the program: `NV01_MEMORY_SYSTEM_OS_DESCRIPTOR`.
const NVIDIA_OF_PROGRAM: usize = 0x71;
/// The longest of the structures that these calls take.
const ARGUMENT_BYTES: usize = 56;

/// The call, if it pins memory for a device.
///
/// # Safety
/// As the call that the program made.
pub(crate) unsafe fn call(number: u32, args: [usize; 6]) -> Option<Result<usize>> {
    let (argument, (at, bytes)) = pinned(number, args)?;
    let (kernel, end) = (memory::kernel()?, at.checked_add(bytes)?);
    let holder = new_call(kernel);
    // SAFETY: a trapped call's thread holds no lock.
    let held = unsafe { kernel.hold_to_pin(holder, at, end) };
    let done = held.and_then(|()| {
        // SAFETY: as above. It lies in memory of the program, and may be away like any other.
        unsafe { kernel.hold(holder, argument, argument + ARGUMENT_BYTES, true) };
        // SAFETY: forwarded.
        unsafe { trap::pass(number, args) }
    });
    kernel.release(holder);
    Some(done)
}

/// Brings in the words that a futex changes, until this thread's next call of these. In the
/// user-mode-only tier all calls have what they point to brought in.
pub(crate) fn before_futex(args: [usize; 6]) {
    let Some(kernel) = memory::kernel().filter(|_| !memory::is_user_tier()) else {
        return;
    };
    let holder = new_call(kernel);
    let [one, _, _, _, other, _] = args;
    for word in [one, other] {
        if let Some(end) = word.checked_add(size_of::<u32>()) {
            // Where nobody may write, Linux at most reads.
            // SAFETY: a trapped call's thread holds no lock.
            let _ = unsafe {
                kernel.hold(holder, word, end, true) || kernel.hold(holder, word, end, false)
            };
        }
    }
}

/// This thread, which holds nothing any more of its last call.
fn new_call(kernel: &Kernel) -> Holder {
    let holder = Holder::Call(process::thread_id());
    kernel.release(holder);
    holder
}

/// Where the call's argument lies, and the memory that it has pinned, with its bytes.
fn pinned(number: u32, args: [usize; 6]) -> Option<(usize, (usize, usize))> {
    let [_, request, third, fourth, ..] = args;
    let request = request as u32;
    let argument = match number {
        g::__NR_setsockopt if (request, third as u32) == (SOL_XDP, XDP_UMEM_REG) => fourth,
        g::__NR_ioctl => third,
        _ => return None,
    };
    let range = match (number, request & REQUEST_MASK) {
        (g::__NR_setsockopt, _) => {
            let [at, bytes] = program::read(argument).ok()?;
            (at, bytes)
        }
        (_, NVIDIA_ALLOCATE) => {
            // struct { u32 handles[3], class, flags; u64 address, last byte; u32 status; int fd }
            let [_, class, _, at, last] = program::read::<[usize; 5]>(argument).ok()?;
            (class >> 32 == NVIDIA_OF_PROGRAM).then_some((at, last.checked_add(1)?))?
        }
        (_, VFIO_MAP) => {
            // struct { u32 bytes, flags; u64 address, address of the device, bytes }
            let [_, at, _, bytes] = program::read(argument).ok()?;
            (at, bytes)
        }
        (_, IOMMUFD_MAP) => {
            // struct { u32 bytes, flags, id, reserved; u64 address, bytes, address of the device }
            let [_, _, at, bytes] = program::read(argument).ok()?;
            (at, bytes)
        }
        _ => return None,
    };
    Some((argument, range))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(number: u32, request: u32, words: [usize; 7]) -> Option<(usize, usize)> {
        process::set_signal_mask(!0);
        let at = words.as_ptr().expose_provenance();
        let args = match number {
            g::__NR_setsockopt => [3, SOL_XDP as usize, request as usize, at, 32, 0],
            _ => [3, request as usize, at, 0, 0, 0],
        };
        pinned(number, args).map(|(argument, range)| {
            assert_eq!(argument, at);
            range
        })
    }

    #[test]
    fn each_drivers_request_names_its_memory_where_its_header_says() {
        let (at, bytes) = (0x1000_0000_0000, 0x20_0000);
        let range = Some((at, bytes));
        assert_eq!(
            of(g::__NR_setsockopt, XDP_UMEM_REG, [at, bytes, 0, 0, 0, 0, 0]),
            range
        );
        assert_eq!(of(g::__NR_setsockopt, 5, [at, bytes, 0, 0, 0, 0, 0]), None);
        let class = |class: usize| [1 << 32 | 2, class << 32 | 3, 7, at, bytes - 1, 0, 0];
        assert_eq!(of(g::__NR_ioctl, 0xc038_4627, class(0x71)), range);
        assert_eq!(of(g::__NR_ioctl, 0xc038_4627, class(0x3e)), None);
        let vfio = [3 << 32 | 32, at, 0x7000, bytes, 0, 0, 0];
        assert_eq!(of(g::__NR_ioctl, 0x3b71, vfio), range);
        let iommufd = [7 << 32 | 40, 1, at, bytes, 0x7000, 0, 0];
        assert_eq!(of(g::__NR_ioctl, 0x3b85, iommufd), range);
        assert_eq!(of(g::__NR_ioctl, 0x5401, vfio), None);
        assert_eq!(pinned(g::__NR_ioctl, [3, 0x3b71, 8, 0, 0, 0]), None);
    }
}
