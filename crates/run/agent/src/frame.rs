//! The interrupted program's registers, as Linux lays them out for a signal handler on x86-64.

use farpage_sys::linux::general as g;
use farpage_sys::seccomp::SLEPT;
use farpage_sys::{Errno, Result};

/// `siginfo_t`, as SIGSYS has it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Info {
    pub(crate) signo: i32,
    pub(crate) errno: i32,
    pub(crate) code: i32,
    padding: i32,
    pub(crate) call_address: usize,
    pub(crate) number: u32,
    pub(crate) arch: u32,
    rest: [u64; 12],
}

impl Info {
    /// Whether a filter of system calls raised it, this agent's or the program's.
    pub(crate) fn is_by_filter(&self) -> bool {
        const SYS_SECCOMP: i32 = 1;
        self.code == SYS_SECCOMP
    }
}

/// `stack_t`: a stack for signals.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SignalStack {
    pub(crate) at: usize,
    pub(crate) flags: u32,
    pub(crate) padding: u32,
    pub(crate) bytes: usize,
}

impl SignalStack {
    pub(crate) const NONE: Self = Self {
        at: 0,
        flags: g::SS_DISABLE,
        padding: 0,
        bytes: 0,
    };

    /// Whether a thread with this stack pointer is on it, as Linux sees it.
    pub(crate) fn holds(&self, rsp: usize) -> bool {
        rsp > self.at && rsp - self.at <= self.bytes
    }

    pub(crate) fn is_disarmed_when_used(&self) -> bool {
        self.flags & g::SS_AUTODISARM != 0
    }
}

/// `ucontext_t`: what `rt_sigreturn` puts back.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    flags: u64,
    link: u64,
    /// The thread's stack for signals.
    pub(crate) stack: SignalStack,
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
    pub(crate) eflags: u64,
    segments_to_fault: [u64; 5],
    /// Where the vector registers and the protection keys are. 0: they are as at the start.
    pub(crate) vectors: usize,
    reserved: [u64; 8],
    /// Signals blocked once the handler is over.
    pub(crate) mask: u64,
}

const _: () = {
    assert!(size_of::<Info>() == 128);
    assert!(size_of::<Frame>() == 304);
    assert!(core::mem::offset_of!(Frame, r8) == 40);
    assert!(core::mem::offset_of!(Frame, rip) == 168);
    assert!(core::mem::offset_of!(Frame, vectors) == 224);
    assert!(core::mem::offset_of!(Frame, mask) == 296);
    assert!(core::mem::offset_of!(Info, call_address) == 16);
};

/// Bytes below the stack pointer that Linux leaves alone.
pub(crate) const RED_ZONE: usize = 128;
/// Bytes below them that the agent may use after [`Frame::make_room`].
const ROOM: usize = 128;
/// Bytes of vector registers where no more follow, and where Linux says whether some do.
pub(crate) const LEGACY: usize = 512;
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
        // SAFETY: Linux has put them there, for as long as the handler runs.
        let bytes = unsafe { vector_bytes(at) };
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

    /// The call was carried out and returned this. Linux leaves the return address in `rcx`; here
    /// it would tell that the trap of the call was lost.
    pub(crate) fn set_result(&mut self, result: Result<usize>) {
        self.rcx = 0;
        self.rax = match result {
            Ok(value) => value,
            Err(Errno(number)) => (-i64::from(number)) as usize,
        };
    }

    /// Has it other arguments.
    pub(crate) fn set_arguments(&mut self, arguments: [usize; 6]) {
        [self.rdi, self.rsi, self.rdx, self.r10, self.r8, self.r9] = arguments;
    }
}

impl Frame {
    /// What the sleep returned from which the call comes that was trapped now; `None`: from none.
    pub(crate) fn slept(&self) -> Option<Result<()>> {
        match (self.rax >> 32) as u32 ^ SLEPT {
            // A semaphore is told by 0, a descriptor that is ready by 1.
            0 | 1 => Some(Ok(())),
            raw => {
                let errno = (raw as i32)
                    .checked_neg()
                    .filter(|errno| (1..4096).contains(errno));
                errno.map(|errno| Err(Errno(errno)))
            }
        }
    }
}

/// Bytes of the vector registers that lie at `at`, as they say themselves.
///
/// # Safety
/// As many as [`LEGACY`] can be read there.
pub(crate) unsafe fn vector_bytes(at: usize) -> usize {
    // SAFETY: forwarded.
    let mark = unsafe { core::ptr::with_exposed_provenance::<[u32; 2]>(at + MORE).read() };
    if mark[0] == MORE_MARK {
        mark[1] as usize
    } else {
        LEGACY
    }
}

/// A set of signals without SIGSYS, which must always reach the agent.
pub(crate) fn without_sigsys(mask: u64) -> u64 {
    mask & !(1 << (g::SIGSYS - 1))
}
