//! The heap in shared memory, used by several processes.

mod fork;
mod processes;
