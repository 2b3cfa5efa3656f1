//! Locked areas as a value: which pages of a task are locked how often, by whom, and what a lock or an
//! unlock asks of the system. Nothing here makes a system call, waits or looks at a clock, but for `system`,
//! which is there with feature `std`.
//!
//! A task locks areas: ranges of pages, which may overlap, nest or be the same, each with a handle of
//! its own. A page is to be locked when its count leaves zero, and unlocked when it comes back there, in
//! whatever order handles are given back. So a lock of what is locked already asks for nothing.
//!
//! - [`Counts`] has the counts of pages, as a tree of the places where they change: neighbours with equal
//!   counts are one piece. Each operation takes time in proportion to the logarithm of the number of pieces,
//!   and to the number of ranges that it returns.
//! - [`Areas`] has the handles, and what becomes of them when memory goes away.
//! - [`blocks`] merges page frames to what a device is told.
//! - [`Lookup`] finds what is registered by its address, without a lock.
#![no_std]

extern crate alloc;
#[cfg(any(test, feature = "std"))]
extern crate std;

mod areas;
/// What [`hits`] is made of; its test has those of a model checker instead.
mod atomic {
    pub use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

    /// Keeps the compiler's order. Who needs the processor's has every thread pass a barrier.
    #[inline]
    pub fn light_barrier() {
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
}
mod blocks;
mod counts;
mod hits;
mod index;
mod lookup;
#[cfg(feature = "std")]
pub mod system;
mod treap;

pub use areas::{Area, AreaError, Areas, Gone, Handle};
pub use blocks::{Block, blocks};
pub use counts::{Counts, Piece};
pub use hits::{OPEN, Region};
pub use index::ADDRESSES;
pub use lookup::{Lookup, PLACES};
