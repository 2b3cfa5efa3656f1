//! `malloc` in shared memory: a FreeList allocator of two levels, for unrelated processes.
//!
//! A [`Heap`] lies in memory that several processes map, wherever each of them maps it: a
//! [`Block`] is an offset. Any process may free what another has allocated. A process may be killed
//! at any instruction: the others go on, and what it had in hand is found again ([`Heap::recover`],
//! and whenever a process opens the heap or finds it full).
//!
//! How it looks, and what always holds:
//!
//! 1. Memory is cut into slabs of 64 KiB. One word says what a slab is ([`slab`]): free, blocks of
//!    one size and one type, or (part of) a large block. Every change of it is one atomic step.
//! 2. The free list of a size is one bit for each block of its slabs: a block is allocated when its
//!    bit is set, and nothing else has to agree with it. So there are no links that a killed process
//!    could leave half done.
//! 3. The first level: of each size and type a process owns the one slab that it allocates from.
//!    Nobody else allocates there, so processes do not meet; blocks of different sizes have
//!    different locks inside one.
//! 4. The second level: slabs that nobody owns. A hint, one bit, says that one of them has room.
//!    A slab without a block in use becomes free.
//! 5. Invariant: a free slab has no bits set. Invariant: an unowned slab with room has its hint, or
//!    somebody who lives (or is recovered) is about to give it.
//! 6. Large blocks are slabs in a row: the first one's word commits them all.
//!
//! What it does not do: a block that a process allocated and told nobody about before it was killed
//! stays allocated; [`Heap::blocks`] lists all, for who wants to look for such. Processes that share
//! a heap trust each other: one that writes into what is not its own breaks it for all.

mod blocks;
mod check;
mod hosts;
mod large;
mod layout;
mod memory;
mod owner;
mod recover;
mod size;
mod slab;
mod words;

#[cfg(test)]
mod sim;

pub use check::Damage;
pub use hosts::HeapError;
pub use memory::{AllocateError, Block, FreeError, Heap, Kind, OpenError, Usage, head_bytes};
pub use owner::Processes;
