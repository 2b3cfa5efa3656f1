//! Memory objects that several processes map: one copy of each page, in a memory file of this
//! process, filled and taken back by a pager.
//!
//! Whoever maps one registers its mapping with a userfaultfd of its own, and hands the userfaultfd
//! over: its faults come here. [`farpage_object::Shared`] decides; what it decides is done in the
//! mappings while its lock is held, so that they never say more than it allows. Only pagers are
//! asked without the lock, and those that take their time answer later: none holds up the objects
//! of another.
//!
//! Who maps an object of [`Objects::create`] lets this process decide page by page what is mapped,
//! so that it can be written to. The files of [`Files`], which `farpage run --map` keeps for the
//! programs that it runs, are only read: there Linux maps what the memory file has.

mod away;
mod budget;
mod call;
mod copies;
mod counters;
mod error;
mod files;
mod full;
mod handlers;
mod leave;
mod lock;
mod object;
mod objects;
mod replay;
mod room;
mod share;
mod space;
mod tasks;
mod trace;
mod waiter;

pub use call::{CallError, OnPut};
pub use counters::{ObjectFigures, PagerFigures};
pub use error::{Error, MapError};
pub use files::{Figures, Files, Opening, Request};
pub use full::NoRoom;
pub use leave::Cleaned;
pub use object::{Object, WireLimit};
pub use objects::{Objects, Paged, SpaceId};
pub use share::Share;
pub use space::Told;
pub use trace::{Event, What};
