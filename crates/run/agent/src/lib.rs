//! The agent: what `farpage run` puts into a program.
//!
//! It has no libc, no thread-local storage and no memory in common with the program's own
//! libraries: a call of the program can be trapped anywhere, in the middle of `malloc` too. A
//! seccomp filter sends the calls that matter here as SIGSYS ([`trap`]); [`memory`] carries them out
//! with the kernel of this process.
#![no_std]

extern crate alloc;

mod delivery;
mod drivers;
mod exec;
mod frame;
mod lost;
mod machine;
mod maps;
mod memory;
#[cfg(feature = "standalone")]
mod memory_functions;
mod namespaces;
mod own_threads;
mod proc_mem;
mod process;
mod program;
mod sandbox;
mod segments;
mod sending;
mod shm;
mod signals;
mod small;
mod stacks;
#[cfg(feature = "standalone")]
mod standalone;
mod start;
mod supervised;
mod threads;
mod tracing;
mod transfer;
mod trap;
mod user_tier;

pub use start::{farpage_agent_entry, farpage_agent_init};
