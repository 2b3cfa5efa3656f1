//! What the counts ask of the system: pages that stay in memory, frames that stay, and which they are.

mod error;
mod frames;
mod mapped;
mod pins;
#[allow(unsafe_code)]
mod places;
#[allow(unsafe_code)]
mod stale;
#[allow(unsafe_code)]
mod wired;

pub use error::LockError;
pub use frames::frames;
pub use pins::Pins;
pub use places::{Places, put};
pub use stale::{absent, check};
pub use wired::{unusable, unwire, wire};

/// What is to stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hold {
    /// The pages stay in memory (`mlock(2)`): no access waits for a disk. Linux may still move them to
    /// other frames: compaction, a write after `fork`, large pages.
    Resident,
    /// The frames stay, too: they are registered with an `io_uring` of this process. For what reads
    /// memory by its physical address.
    Pinned,
}
