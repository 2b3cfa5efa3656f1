//! Pagers in other processes: the memory-object protocol over ports.
//!
//! - `protocol`: what is said.
//! - `outside`, `outsides`: the kernel's side, which believes nothing that it hears.
//! - [`MemoryObjects`]: the pager's side: [`MemoryObject`]s, for any number of kernels.

pub(crate) mod outside;
pub(crate) mod outsides;
pub(crate) mod protocol;
mod serve;
mod source;

pub use serve::{About, Kernel, MemoryObject, MemoryObjects, PageRequest};
pub use source::SourceObject;
