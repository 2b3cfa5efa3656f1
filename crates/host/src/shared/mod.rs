//! Memory objects that processes which need not be related map and write: one copy of each page, in
//! a memory file of this process, filled and taken back by a pager.
//!
//! Whoever maps one registers its mapping with a userfaultfd of its own for all faults, and hands the
//! userfaultfd over: no page is mapped anywhere, and none written to, before this process lets it.
//! [`farpage_object::Shared`] decides; what it decides is done in the mappings while its lock is held,
//! so that they never say more than it allows. Only pagers are asked without the lock, and those that
//! take their time answer later: none holds up the objects of another.

mod object;
mod objects;
mod space;

pub use object::Object;
pub use objects::{MapError, Objects, SpaceId};
