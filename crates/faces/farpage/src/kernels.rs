//! Kernels of this process: one for all that gives no budget of its own, and one for each that
//! does.

use std::sync::{Mutex, MutexGuard, PoisonError};

use farpage_kernel::embed::Embedded;
use farpage_sys::memory_limit::MemoryLimit;

use crate::Error;

/// The budget of what gives none: this part of the memory that is free or can be freed.
const PART: u64 = 2;

/// Kernels live as long as the process, so those that nobody uses are used again.
#[derive(Default)]
struct Kernels {
    shared: Option<Embedded>,
    shared_ram: Option<u64>,
    idle: Vec<Embedded>,
}

static KERNELS: Mutex<Kernels> = Mutex::new(Kernels {
    shared: None,
    shared_ram: None,
    idle: Vec::new(),
});

/// A kernel with a budget of its own is given back when this is dropped.
pub(crate) struct Lease {
    pub(crate) kernel: Embedded,
    own: bool,
    process: u32,
}

fn lock() -> MutexGuard<'static, Kernels> {
    KERNELS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is opened without a budget keeps at most `bytes` resident, all of it together. Without
/// this call it is half of the memory that the machine, or the control group, has left.
///
/// # Errors
/// [`Error::Kernel`] below 4 MiB.
pub fn set_default_ram(bytes: u64) -> Result<(), Error> {
    let mut kernels = lock();
    if let Some(kernel) = &kernels.shared {
        kernel.set_ram(bytes)?;
    }
    kernels.shared_ram = Some(bytes);
    Ok(())
}

/// A kernel with a budget of `ram` bytes, or the shared one.
pub(crate) fn lease(ram: Option<u64>) -> Result<Lease, Error> {
    let mut kernels = lock();
    let process = std::process::id();
    if let Some(ram) = ram {
        let kernel = match kernels.idle.pop() {
            Some(kernel) => {
                kernel.set_ram(ram)?;
                kernel
            }
            None => Embedded::start(ram)?,
        };
        return Ok(Lease {
            kernel,
            own: true,
            process,
        });
    }
    let kernel = match kernels.shared {
        Some(kernel) => kernel,
        None => Embedded::start(kernels.shared_ram.unwrap_or_else(default_ram))?,
    };
    kernels.shared = Some(kernel);
    Ok(Lease {
        kernel,
        own: false,
        process,
    })
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.own && self.process == std::process::id() {
            lock().idle.push(self.kernel);
        }
    }
}

/// The budget, in bytes, of all that is opened without one, where [`set_default_ram`] was not called:
/// it is fixed when the first is opened.
pub fn default_ram() -> u64 {
    (MemoryLimit::read().bytes() / PART).max(64 << 20)
}

/// The kernels, held over a fork, so that a child finds them whole.
pub(crate) struct Forked(MutexGuard<'static, Kernels>);

pub(crate) fn hold() -> Forked {
    Forked(lock())
}

impl Forked {
    /// The kernels of a parent are not this child's.
    pub(crate) fn forget(&mut self) {
        *self.0 = Kernels {
            shared_ram: self.0.shared_ram,
            ..Kernels::default()
        };
    }
}
