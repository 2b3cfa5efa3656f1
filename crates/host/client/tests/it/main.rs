//! The heap in shared memory, used by several processes.

mod heap_fork;
mod heap_processes;
