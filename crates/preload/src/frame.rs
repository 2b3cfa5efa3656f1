//! The interrupted program's registers, as Linux lays them out for a signal handler on x86-64.

use farpage_sys::linux::general as g;
use farpage_sys::seccomp::SLEPT;
use farpage_sys::{Errno, Result};

/// `siginfo_t` of SIGSYS.
#[repr(C)]
pub(crate) struct Info {
    pub(crate) signo: i32,
    pub(crate) errno: i32,
    pub(crate) code: i32,
    padding: i32,
    pub(crate) call_address: usize,
    pub(crate) number: u32,
    pub(crate) arch: u32,
}

/// `ucontext_t`: what `rt_sigreturn` puts back.
#[repr(C)]
pub(crate) struct Frame {
    flags: u64,
    link: u64,
    stack: [u64; 3],
    pub(crate) r8: usize,
    pub(crate) r9: usize,
    pub(crate) r10: usize,
    pub(crate) r11: usize,
    pub(crate) r12: usize,
    pub(crate) r13: usize,
    pub(crate) r14: usize,
    pub(crate) r15: usize,
    pub(crate) rdi: usize,
    pub(crate) rsi: usize,
    pub(crate) rbp: usize,
    pub(crate) rbx: usize,
    pub(crate) rdx: usize,
    pub(crate) rax: usize,
    pub(crate) rcx: usize,
    pub(crate) rsp: usize,
    pub(crate) rip: usize,
    flags_to_fault: [u64; 6],
    /// Where the vector registers and the protection keys are.
    vectors: usize,
    reserved: [u64; 8],
    /// Signals blocked once the handler is over.
    pub(crate) mask: u64,
}

const _: () = {
    assert!(core::mem::offset_of!(Frame, r8) == 40);
    assert!(core::mem::offset_of!(Frame, rip) == 168);
    assert!(core::mem::offset_of!(Frame, vectors) == 224);
    assert!(core::mem::offset_of!(Frame, mask) == 296);
    assert!(core::mem::offset_of!(Info, call_address) == 16);
};

/// Bytes below the stack pointer that Linux leaves alone.
const RED_ZONE: usize = 128;
/// Bytes below them that the agent may use after [`Frame::make_room`].
const ROOM: usize = 128;
/// Bytes of vector registers where no more follow, and where Linux says whether some do.
const LEGACY: usize = 512;
const MORE: usize = 464;
const MORE_MARK: u32 = 0x4650_5853;

impl Frame {
    /// Makes room below the red zone of the program's stack, where Linux has put the vector registers
    /// that it puts back when the handler is over: they move down, over the signal's information,
    /// which lies there, has that size and is not needed any more.
    ///
    /// What ends that area are the protection keys: overwritten, they forbid the program its own
    /// memory.
    pub(crate) fn make_room(&mut self) {
        let (at, top) = (self.vectors, self.rsp.wrapping_sub(RED_ZONE));
        if at == 0 {
            return;
        }
        // SAFETY: Linux has put 512 bytes there at least, for as long as the handler runs.
        let mark = unsafe { core::ptr::with_exposed_provenance::<[u32; 2]>(at + MORE).read() };
        let bytes = if mark[0] == MORE_MARK {
            mark[1] as usize
        } else {
            LEGACY
        };
        // On another stack, or moved already, it is out of the way.
        if at > top || at + bytes <= top.wrapping_sub(ROOM) || at + bytes > top {
            return;
        }
        let from = core::ptr::with_exposed_provenance_mut::<u8>(at);
        // SAFETY: as above; below it lies the signal's information, of 128 bytes, which nobody reads
        // any more. The new place is as aligned as the old one.
        unsafe { core::ptr::copy(from, from.sub(ROOM), bytes) };
        self.vectors = at - ROOM;
    }

    /// The trapped call's arguments.
    pub(crate) fn arguments(&self) -> [usize; 6] {
        [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9]
    }
}

impl Frame {
    /// What the sleep returned from which the call comes that was trapped now; `None`: from none.
    pub(crate) fn slept(&self) -> Option<Result<()>> {
        match (self.rax >> 32) as u32 ^ SLEPT {
            0 => Some(Ok(())),
            raw => {
                let errno = (raw as i32)
                    .checked_neg()
                    .filter(|errno| (1..4096).contains(errno));
                errno.map(|errno| Err(Errno(errno)))
            }
        }
    }
}

/// A set of signals without SIGSYS, which must always reach the agent.
pub(crate) fn without_sigsys(mask: u64) -> u64 {
    mask & !(1 << (g::SIGSYS - 1))
}
