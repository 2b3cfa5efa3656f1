//! Memory objects, as values: pages and their names, what a pager must answer ([`Pager`]), the
//! automata of the kernel side, and what the processes of one `farpage run` have in common
//! ([`Control`]).
//!
//! [`Pages`] knows the state of every page of an address space and decides what a fault needs,
//! which pages leave, and what a completed or failed transfer means. It is pure: it does no I/O,
//! reads no clock, starts no thread. The shell (crate `kernel`) carries its decisions out on Linux;
//! crate `sim` carries them out on a simulated, hostile one.
//!
//! Pages are named by their virtual page number; which memory object and which pager stand behind
//! one is the shell's business.
//!
//! [`Shared`] is the same for an object that several tasks map, whose one copy lies in a memory
//! file. [`outside`] is what its kernel and a pager in another process have under way.
#![no_std]
#![cfg_attr(not(test), forbid(unsafe_code))]

extern crate alloc;

mod chance;
pub mod masks;
mod near;
pub mod outside;
mod page;
mod pager;
mod pages;
mod parts;
mod queue;
mod sequences;
mod shared;
mod state;
mod stream;
mod table;
mod times;
mod tree;

pub use near::Near;
pub use page::{Access, ObjectId, PAGE_BYTES, PAGE_SHIFT, PageIndex, PageRange};
pub use pager::{DataRequest, Later, PageOut, Pager, PagerError, Supplied, Ticket, errno};
pub use pages::{Answer, Discarded, Filled, Mapping, NEIGHBOURS, PageOuts, Pages, Victim};
pub use queue::Place;
pub use shared::{GRANT_PAGES, Here, Leaving, Left, Locked, Shared, Wanted};
pub use state::{CLUSTER_PAGES, State};
pub use stream::{Plan, Streams};
pub use table::BLOCK_PAGES;
pub use times::{Histogram, Times};
pub use tree::{
    BEST_IS_NONE, CONTROL_MAGIC, CONTROL_VERSION, Control, Counters, Death, Full, HOLDERS, Inject,
    RINGS, SEGMENT_BYTES, SEGMENTS_MAX, SPILL_FILES_MAX, SegmentLine, SpillFile, SpillState,
    TASKS_MAX, TRACE_EVENTS, TaskSlot, Tier, TraceEvent, TraceKind, TraceRing, fds, maps, shm,
};
