//! Messages between processes that need not trust each other.
//!
//! The transport is [`link`]. It knows nothing of rights: what a header means is its users' business.

pub mod link;
