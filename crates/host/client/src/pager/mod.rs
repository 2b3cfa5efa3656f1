//! Pagers in other processes: the memory-object protocol over ports.
//!
//! [`MemoryObjects`] offers [`MemoryObject`]s to any number of kernels; [`protocol`] is what they
//! and a kernel say to each other.

pub mod protocol;
mod serve;
mod source;

pub use serve::{About, Kernel, MemoryObject, MemoryObjects, PageRequest};
pub use source::SourceObject;
