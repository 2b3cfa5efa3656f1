//! Farpage for C: what `farpage.h` declares. The header is written from these files; their
//! comments are its documentation.
//!
//! Every function takes NULL and wrong arguments for an error, and no panic leaves it.
#![allow(unsafe_code)]
// What callers owe is said in the header's words.
#![allow(clippy::missing_safety_doc)]

mod arrays;
mod error;
mod heap;
mod locks;
mod map_fd;
mod memory;
mod options;
mod pager;
mod registrations;
mod serve;
mod shared;
mod shared_locks;
mod sync;

pub use arrays::*;
pub use error::*;
pub use heap::*;
pub use locks::*;
pub use map_fd::*;
pub use memory::*;
pub use options::*;
pub use pager::*;
pub use registrations::*;
pub use serve::*;
pub use shared::*;
pub use sync::*;
