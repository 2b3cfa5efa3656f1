//! The default memory manager: who keeps the pages of memory that has no pager of its own.
//!
//! It begins inside the kernel. A process of its own may take its place while everything runs
//! ([`Manager::set_default_memory_manager`]), and be replaced in turn: pages move from one to the other
//! in the background, and every page is with one of them at any time.
//!
//! The two processes share a memory file with places for calls ([`channel`]). A call is answered on the
//! processor that it comes from, so that no other one has to be woken for it.

mod ask;
mod channel;
mod exchange;
mod keeper;
mod member;
mod outside;
pub mod paging;
mod serve;
mod space;
mod wire;

pub use exchange::{Manager, State};
pub use keeper::Keeper;
pub use outside::{About, NotTaken, Outside};
pub use serve::{Ended, Offer, Serving};
pub use space::{FileSpace, Space};
pub use wire::{Wired, thread_wire, vm_wire};
