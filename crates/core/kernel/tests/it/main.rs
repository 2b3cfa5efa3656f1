//! The kernel of one address space, with pagers of all kinds.

mod budget;
mod cache;
mod idle;
mod in_thread;
mod later;
mod lock_all;
mod locking;
mod objects;
mod support;
mod temporary;
