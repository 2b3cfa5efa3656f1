//! The Farpage kernel: it answers faults, keeps pages within a RAM budget and talks to pagers.
//!
//! The same code runs inside unmodified programs (crate `agent`, without libc) and embedded in
//! Rust programs. [`Kernel`] is the shell around the automaton of crate `object`: it locks, asks,
//! does what the answer says on Linux, and tells. It decides nothing.
#![no_std]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

mod account;
mod advise;
#[cfg(feature = "std")]
mod clean;
#[cfg(feature = "std")]
mod cover;
#[cfg(feature = "std")]
pub mod embed;
mod evict;
mod fault;
mod follow;
mod fork;
mod full;
mod handler;
mod hold;
#[cfg(feature = "std")]
mod in_thread;
mod inherited;
mod kernel;
mod layout;
mod lock;
mod loss;
mod object;
mod outstanding;
mod page_in;
mod pinned;
#[cfg(feature = "std")]
mod prefetch;
mod regions;
mod remap;
mod rewrites;
mod space;
mod watch;
mod windows;

pub use account::Account;
pub use handler::Buffer;
pub use hold::Holder;
pub use kernel::{Config, Kernel, OnLoss};
pub use layout::{HEAP_AREA, LOW_AREA, PLACE_END, PLACE_START, WINDOW, shadow_of};
pub use regions::{OnFork, Region, Source};
