//! The seccomp filter of `farpage run`: which system calls the agent gets to see.
//!
//! It is built here as plain instructions and installed once, before the program starts; whatever
//! the program forks and executes inherits it. It knows three answers: allow, trap (SIGSYS, the
//! agent's handler carries the call out), and a fixed error.
//!
//! The number of the call is looked at first and alone: for calls that are allowed whatever their
//! arguments are, Linux finds that out once and then skips the filter altogether.

mod assembler;
mod gate;
pub mod judge;
pub mod later;
pub mod pinning;
pub mod pointers;
mod rules;
#[cfg(test)]
mod tests;

use alloc::vec::Vec;

use farpage_object::fds;
use linux_raw_sys::general as g;
use linux_raw_sys::ptrace as p;

use crate::raw::Result;
use crate::syscall;

pub use assembler::Instruction;
pub(crate) use gate::call;
pub use gate::{
    GATE_ADDRESS, GATE_AGAIN, GATE_BYTES, GATE_REISSUE, GATE_RETURN, GATE_SLEEP, GATE_THREAD,
    GATE_WAIT, REISSUE_SKIP, SLEEP_WORDS, SLEPT, WAIT_WORDS, map_gate,
};

/// `si_errno` of the SIGSYS that this filter raises: tells it from the program's own filters.
pub const TRAP_MARK: u16 = 0xFA6E;

/// The least of the addresses that the filter takes for such where a call says a place in a file. Files that
/// are not memory are shorter.
pub const LEAST_ADDRESS: usize = 0x1000_0000_0000;

/// What the filter depends on.
#[derive(Clone, Copy, Debug)]
pub struct Params {
    /// First of the descriptor numbers that belong to Farpage.
    pub fd_base: u32,
    /// Anonymous private mappings below this size are not looked at, bytes.
    pub threshold_bytes: u64,
    /// Also trap calls that give the kernel pointers to managed memory: userfaultfd does not serve
    /// the kernel's own accesses.
    pub user_mode_tier: bool,
    /// There are mapped files: also trap calls that name files by path, and those that use
    /// descriptors of such files.
    pub maps: bool,
    /// Shared memory is kept by the supervisor: also trap calls that make or map it, and those that
    /// use descriptors of its files. Not together with `maps`.
    pub shm: bool,
    /// Other hosts have the same shared memory: also trap calls that remove its names, and those that
    /// wait at its words. Only with `shm`.
    pub cluster: bool,
    /// Programs are told how much memory the machine has: also trap calls that ask for it, and those that
    /// open files.
    pub machine: bool,
}

impl Params {
    /// How many descriptor numbers, from [`Params::fd_base`], belong to Farpage.
    pub(crate) fn own_fds(&self) -> u32 {
        if self.maps || self.shm {
            fds::OPENED
        } else {
            fds::COUNT
        }
    }
}

/// The filter for `params`.
pub fn filter(params: &Params) -> Vec<Instruction> {
    rules::build(params)
}

/// Gives up new privileges and installs `filter` for the calling thread and what it makes.
///
/// # Errors
/// As `prctl(2)` and `seccomp(2)`.
pub fn install(filter: &[Instruction]) -> Result<()> {
    const PR_SET_NO_NEW_PRIVS: usize = 38;
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }?;
    set(filter, 0)
}

/// Installs `filter`, with flags of `seccomp(2)`.
fn set(filter: &[Instruction], flags: u32) -> Result<()> {
    #[repr(C)]
    struct Program {
        length: u16,
        code: *const Instruction,
    }
    let program = Program {
        length: filter.len() as u16,
        code: filter.as_ptr(),
    };
    let set = p::SECCOMP_SET_MODE_FILTER;
    // SAFETY: `program` and the instructions it names are valid for reads; the kernel copies them.
    unsafe { syscall!(g::__NR_seccomp, set, flags, &raw const program) }.map(drop)
}
