//! Pagers in other processes: the memory-object protocol over ports.
//!
//! - `protocol`: what is said.
//! - `outside`, `kept`, `outsides`: the kernel's side, which believes nothing that it hears.
//! - [`MemoryObjects`]: the pager's side: [`MemoryObject`]s, for any number of kernels.

mod cleaning;
mod kept;
pub(crate) mod outside;
pub(crate) mod outsides;
pub(crate) mod protocol;
mod serve;
mod source;

pub use serve::{About, Kernel, MemoryObject, MemoryObjects, PageRequest};
pub use source::SourceObject;
