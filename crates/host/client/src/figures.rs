//! What the host kernel tells of itself: what there is, who has it, how fast it answers.

use farpage_default_pager::manager::paging::PagingSpace;
use farpage_object::Times;
use serde::{Deserialize, Serialize};

/// A pager that is asked and silent for so long is not well.
pub const SILENT_NS: u64 = 2_000_000_000;

/// How the host kernel and all that the caller may see of it do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// When: nanoseconds since 1970.
    pub at_ns: u64,
    /// The host kernel's process.
    pub pid: u32,
    /// RAM that it may use, compressed pages included.
    pub ram_bytes: u64,
    /// What pages in memory take of it, those of objects that the caller may not see included.
    pub resident_bytes: u64,
    /// Objects, those included.
    pub objects_all: u64,
    /// Objects that the caller may see.
    pub objects: Vec<ObjectFigures>,
    /// Their pagers.
    pub pagers: Vec<PagerFigures>,
    /// Where pages go that do not fit. `None` when whoever runs the host kernel does not say.
    pub paging_space: Option<PagingSpace>,
    /// Since when there is no room, in nanoseconds, and how many new pages were refused since then.
    pub no_room: Option<(u64, u64)>,
}

/// An object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectFigures {
    /// Its number: no other object of this host kernel ever has it.
    pub number: u32,
    /// Its name; empty when it has none, or not any more.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// The user who made it.
    pub uid: u32,
    /// The process that made it.
    pub pid: u32,
    /// Processes that map it, in order, and how often.
    pub mapped_by: Vec<(u32, u32)>,
    /// In memory.
    pub resident_bytes: u64,
    /// Of that, what nobody else has.
    pub dirty_bytes: u64,
    /// Of that in memory, what is next to leave.
    pub aside_bytes: u64,
    /// What stays in memory.
    pub wired_bytes: u64,
    /// What it may have in memory, when it has a limit of its own.
    pub ram_bytes: Option<u64>,
    /// What came from its pager, over all.
    pub paged_in_bytes: u64,
    /// What its pager took, over all.
    pub paged_out_bytes: u64,
    /// Threads that were told that a page cannot be had.
    pub failed: u64,
    /// Faults by the time from their arrival to their answer, over all: see [`times`].
    pub faults: Vec<(u8, u32)>,
    /// Which of the pagers.
    pub pager: u32,
}

/// A pager.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagerFigures {
    /// `paging space`, or its process: `process 71`.
    pub name: String,
    /// Objects of it that the caller may see.
    pub objects: u64,
    /// Requests and returns so far.
    pub calls: u64,
    /// Those that are not answered yet.
    pub open: u64,
    /// Nanoseconds since it was last heard of, while something is open; else 0.
    pub silent_ns: u64,
    /// Answers that were errors.
    pub errors: u64,
    /// The last of them.
    pub last_error: Option<String>,
    /// From asking to the answer: see [`times`].
    pub times: Vec<(u8, u32)>,
}

/// A message between the host kernel, an object's pager and the threads that use it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// When: nanoseconds since 1970.
    pub at_ns: u64,
    /// `read`, `write`, `request`, `supply`, `unavailable`, `return`, `taken`, `refused`, `zeros`,
    /// `aside`, `back` or `dropped`.
    pub what: String,
    /// The thread that faulted; 0 when it is none, or not known.
    pub thread: u32,
    /// The first byte.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
    /// How long the pager took, in answers; 0 else.
    pub took_ns: u64,
    /// The instruction at which the thread waits; 0 when there is none, or the host kernel may not know.
    pub instruction: u64,
}

impl PagerFigures {
    /// True when something is asked of it that it has long not answered.
    pub fn is_silent(&self) -> bool {
        self.silent_ns > SILENT_NS
    }
}

/// Times that were sent as numbers of buckets and counts.
pub fn times(counts: &[(u8, u32)]) -> Times {
    Times(counts.to_vec())
}
