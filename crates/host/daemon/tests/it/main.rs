//! The services of a host kernel, as a process of its own.

mod attacks;
mod figures;
mod heap;
mod locks;
mod net_message;
mod pager_lies;
mod pager_locks;
mod pagers;
mod processes;
mod support;
mod sync;
