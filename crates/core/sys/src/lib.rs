//! Every system call that Farpage makes, and every `unsafe` that it takes.
//!
//! What only has to do with programs of x86-64 that run under the agent (`ptrace`, `seccomp`, threads
//! without libc) is there on that processor alone; the rest is on any of 64 bits that [`raw`] knows.
//!
//! No libc, but for what the feature `std` adds: the agent runs inside programs at places where libc must not be
//! entered. Results are [`Errno`] values, never a thread-local.
#![no_std]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

#[cfg(feature = "std")]
pub mod area;
pub mod arena;
pub mod buffer;
pub mod control;
pub mod copy;
mod crc32c;
pub mod elf;
pub mod file;
#[cfg(feature = "std")]
pub mod fork;
pub mod futex;
pub mod gate;
#[cfg(feature = "std")]
pub mod guarded;
pub mod ipc;
pub mod join;
#[cfg(target_arch = "x86_64")]
pub mod layout;
#[cfg(feature = "std")]
pub mod lease;
pub mod limits;
#[cfg(feature = "std")]
pub mod mapped;
pub mod marks;
pub mod mem;
#[cfg(feature = "std")]
pub mod memory_file;
#[cfg(feature = "std")]
pub mod memory_limit;
#[cfg(feature = "std")]
pub mod message;
pub mod of_process;
pub mod pagemap;
#[cfg(feature = "std")]
pub mod part;
pub mod pressure;
pub mod probe;
pub mod process;
#[cfg(feature = "std")]
pub mod pthread;
#[cfg(target_arch = "x86_64")]
pub mod ptrace;
pub mod raw;
pub mod ring;
#[cfg(feature = "std")]
pub mod say;
#[cfg(target_arch = "x86_64")]
pub mod seccomp;
pub mod signal;
pub mod socket;
#[cfg(target_arch = "x86_64")]
pub mod spawn;
pub mod symbol;
pub mod thread;
pub mod time;
pub mod uffd;
#[cfg(feature = "std")]
pub mod under_way;
#[cfg(feature = "std")]
pub mod untouched;
#[cfg(feature = "std")]
pub mod userfaultfd;
pub mod view;

pub use crc32c::crc32c;
pub use linux_raw_sys as linux;
pub use raw::{Errno, Result};

/// Locks a mutex. What a thread that panicked has left behind it is as whole as it was: nothing
/// panics between two changes that belong together.
#[cfg(feature = "std")]
pub fn lock<T: ?Sized>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
