//! What a default memory manager needs of Linux so that it never waits for memory that it would have to
//! make room for itself: Mach's `vm_wire` and `thread_wire`.

use std::fmt;
use std::fs;

use farpage_sys::{Errno, mem, process};

/// Keeps what this process touches in memory, now and from now on (`vm_wire`, of everything).
///
/// # Errors
/// `EPERM` or `ENOMEM` when this user may not lock so much (`ulimit -l`).
pub fn vm_wire() -> Result<(), Errno> {
    mem::wire()
}

/// Lets this thread, and those that it makes from now on, have memory at once, without waiting for
/// pages to be written (`thread_wire`): Linux has that for processes that write what it waits for.
///
/// # Errors
/// `EPERM` without CAP_SYS_RESOURCE.
pub fn thread_wire() -> Result<(), Errno> {
    process::writes_pages()
}

/// How far this process is wired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wired {
    /// Its memory stays.
    pub memory: bool,
    /// Its threads do not wait for memory.
    pub threads: bool,
    /// Linux ends it last when memory is short.
    pub ends_last: bool,
}

impl Wired {
    /// Wires this process as far as it may. Called before other threads are made.
    pub fn this_process() -> Self {
        Self {
            memory: vm_wire().is_ok(),
            threads: thread_wire().is_ok(),
            ends_last: fs::write("/proc/self/oom_score_adj", "-1000").is_ok(),
        }
    }
}

impl fmt::Display for Wired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            match self.memory {
                true => "its memory stays in RAM",
                false => "its memory may be swapped (raise ulimit -l)",
            },
            match self.threads {
                true => "it may use the last free memory",
                false => "it may have to wait for memory (give it CAP_SYS_RESOURCE)",
            },
            match self.ends_last {
                true => "Linux ends it last",
                false => "Linux may end it when memory is out (give it CAP_SYS_RESOURCE)",
            },
        ];
        f.write_str(&parts.join(", "))
    }
}
