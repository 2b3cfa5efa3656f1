//! Types that every part of Farpage shares: identifiers, page ranges, access sets and the control
//! block that the processes of one `farpage run` tree have in common.
//!
//! This crate is pure: no I/O, no clock, no threads, no allocation.
#![no_std]
#![cfg_attr(not(test), forbid(unsafe_code))]

mod control;
mod full;
pub mod maps;
mod page;
pub mod shm;
mod trace;

pub use control::{
    BEST_IS_NONE, CONTROL_MAGIC, CONTROL_VERSION, Control, Counters, Death, HOLDERS, Inject, RINGS,
    SEGMENT_BYTES, SEGMENTS_MAX, SPILL_FILES_MAX, SegmentLine, SpillFile, SpillState, TASKS_MAX,
    TaskSlot, Tier, fds,
};
pub use full::Full;
pub use page::{Access, ObjectId, PAGE_BYTES, PAGE_SHIFT, PageIndex, PageRange};
pub use trace::{TRACE_EVENTS, TraceEvent, TraceKind, TraceRing};
