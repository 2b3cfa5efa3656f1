//! The host of a tree's mapped files: what `farpage run --map` keeps for the programs that it runs.
//!
//! The one copy of each file is a memory file, which tasks map and read. Here is the small kernel
//! of these objects: it answers the tasks' faults, asks pagers for pages, keeps them within the
//! tree's budget and takes the oldest out again, for their pager keeps its copy. It lives in the
//! supervisor, which has the tasks' userfaultfds: a fault takes one change of processes, and no
//! thread in the program.

mod budget;
mod file;
mod host;
mod replay;
pub mod shared;
mod tasks;

pub use file::{Error, Figures, Request};
pub use host::Host;
