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
pub use places::{Places, has_table, put};
pub use stale::{absent, check};
pub use wired::{Wires, unusable};

use std::vec::Vec;

use farpage_object::PageRange;

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

/// What of `pages` is in none of `others`, in order.
fn left_of(pages: PageRange, others: &[PageRange]) -> Vec<PageRange> {
    let whole = std::vec![pages];
    others.iter().fold(whole, |left, one| without(&left, *one))
}

/// What is left of ranges without some pages.
fn without(all: &[PageRange], pages: PageRange) -> Vec<PageRange> {
    let parts = all.iter().flat_map(|one| {
        let (start, end) = (one.start.0, one.end.0);
        let (from, to) = (
            pages.start.0.clamp(start, end),
            pages.end.0.clamp(start, end),
        );
        [PageRange::new(start, from), PageRange::new(to, end)]
    });
    parts.filter(|part| !part.is_empty()).collect()
}
