//! What hosts that share memory may do, as values: who may read, write and lock ([`coherence`]),
//! how locks, semaphores, barriers and conditions work in memory that they share ([`sync`]), and in
//! which order calls of System V are made ([`sysv`]).
//!
//! The crate is pure: no I/O, no clock, no threads.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod coherence;
pub mod sync;
pub mod sysv;
