//! What the processes of one `farpage run` have in common: the control block.

mod control;
mod full;
pub mod maps;
pub mod shm;
mod trace;

pub use control::{
    BEST_IS_NONE, CONTROL_MAGIC, CONTROL_VERSION, Control, Counters, Death, HOLDERS, Inject, RINGS,
    SEGMENT_BYTES, SEGMENTS_MAX, SPILL_FILES_MAX, SegmentLine, SpillFile, SpillState, TASKS_MAX,
    TaskSlot, Tier, fds,
};
pub use full::Full;
pub use trace::{TRACE_EVENTS, TraceEvent, TraceKind, TraceRing};
