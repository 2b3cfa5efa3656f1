//! The kernel embedded in a Rust program: memory objects with pagers of your own.
//!
//! ```
//! use std::sync::Arc;
//! use farpage_object::{ObjectId, PAGE_BYTES};
//! use farpage_kernel::embed::Embedded;
//! use farpage_object::{DataRequest, PageOut, Pager, PagerError, Supplied};
//!
//! /// Every page holds its own number.
//! struct Numbers;
//!
//! impl Pager for Numbers {
//!     fn data_request(&self, mut request: DataRequest<'_>) -> Result<Supplied, PagerError> {
//!         let pages = request.pages();
//!         for (page, bytes) in pages.iter().zip(request.buffer().chunks_mut(PAGE_BYTES)) {
//!             bytes.fill(0);
//!             bytes[..8].copy_from_slice(&page.0.to_le_bytes());
//!         }
//!         Ok(Supplied::clean(pages.pages()))
//!     }
//!
//!     fn data_write(&self, _: ObjectId, _: &[PageOut<'_>]) -> Result<(), PagerError> {
//!         Err(PagerError::Write(30)) // read-only
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let kernel = Embedded::start(16 << 20)?; // at most 16 MiB resident
//! let object = kernel.object(Arc::new(Numbers), 1 << 30)?; // 1 GiB of it
//! let memory = object.map()?;
//! let mut word = [0; 8];
//! memory.read(777 * PAGE_BYTES, &mut word)?;
//! assert_eq!(u64::from_le_bytes(word), 777);
//! assert!(memory.stats().resident_pages < 4096);
//! # Ok(())
//! # }
//! ```

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, Ordering};
use std::io;
use std::time::Duration;

use farpage_object::{
    Control, DataRequest, ObjectId, PAGE_BYTES, PageOut, Pager, PagerError, Supplied,
};
use farpage_sys::file::Fd;
use farpage_sys::uffd::device;
use farpage_sys::{Errno, control, pthread};

use crate::handler::Buffer;
use crate::in_thread::DESK_HANDLERS;
use crate::kernel::{Config, Kernel, OnLoss};

mod object;

pub use object::{Mapping, Object, Stats};

/// Budgets below this leave no room for what one fault needs.
const RAM_MIN: u64 = 4 << 20;

/// Time between two looks of an idle kernel at itself: whoever wants something says so.
const REST_NS: u64 = 10_000_000_000;

/// Why a kernel could not be started, or an object not be mapped.
#[derive(Debug)]
pub enum Error {
    /// The budget is too small.
    Budget {
        /// Bytes asked for.
        bytes: u64,
    },
    /// A system call failed.
    System {
        /// Which step.
        what: &'static str,
        /// Its error.
        errno: Errno,
    },
    /// No thread can be started.
    Thread {
        /// Why.
        errno: Errno,
    },
    /// The pager refused the object.
    Refused(PagerError),
    /// The object is mapped already.
    Mapped,
    /// More would have to stay in memory than may.
    Wired {
        /// Bytes that were to be wired.
        bytes: u64,
        /// Bytes that are.
        wired: u64,
        /// Bytes that may be.
        most: u64,
    },
    /// An offset or length beyond the object.
    Outside {
        /// First byte.
        offset: usize,
        /// Number of bytes.
        bytes: usize,
        /// Size of the object.
        size: usize,
    },
}

impl core::fmt::Display for Error {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Budget { bytes } => {
                write!(
                    f,
                    "a budget of {bytes} bytes is too small; give at least {} MiB",
                    RAM_MIN >> 20
                )
            }
            Self::System { what, errno } => write!(
                f,
                "cannot {what}: {errno}; `farpage doctor` says what this user may do here"
            ),
            Self::Thread { errno } => write!(
                f,
                "cannot start a thread: {errno}; raise the limit on processes (ulimit -u, or the \
                 pids limit of the container)"
            ),
            Self::Refused(error) => write!(f, "the pager refused the object: {error}"),
            Self::Wired { bytes, wired, most } => write!(
                f,
                "cannot keep {bytes} bytes in memory: {wired} are kept already, and {most}, half of \
                 the budget, may be; keep less, or raise the budget"
            ),
            Self::Mapped => write!(f, "the object is mapped already; unmap it first"),
            Self::Outside {
                offset,
                bytes,
                size,
            } => {
                write!(
                    f,
                    "bytes {offset} to {} of an object of {size}",
                    offset + bytes
                )
            }
        }
    }
}

impl std::error::Error for Error {}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::other(error)
    }
}

fn system(what: &'static str) -> impl FnOnce(Errno) -> Error {
    move |errno| Error::System { what, errno }
}

/// A kernel with threads of its own. It lives as long as the process.
#[derive(Clone, Copy)]
pub struct Embedded {
    kernel: &'static Kernel,
    control: &'static Control,
}

/// Temporary memory needs a default pager; who maps only objects of their own has none.
struct NoPager;

impl Pager for NoPager {
    fn data_request(&self, _: DataRequest<'_>) -> Result<Supplied, PagerError> {
        Err(PagerError::Dead)
    }

    fn data_write(&self, _: ObjectId, _: &[PageOut<'_>]) -> Result<(), PagerError> {
        Err(PagerError::OutOfSpace)
    }
}

impl Embedded {
    /// Starts a kernel that keeps at most `ram_bytes` of its objects' pages resident.
    ///
    /// # Errors
    /// [`Error::Budget`] below 4 MiB; [`Error::System`] when userfaultfd or memory cannot be had;
    /// [`Error::Thread`].
    pub fn start(ram_bytes: u64) -> Result<Self, Error> {
        if ram_bytes < RAM_MIN {
            return Err(Error::Budget { bytes: ram_bytes });
        }
        let (_, control) = control::create().map_err(system("make the control block"))?;
        control.budget_bytes.store(ram_bytes, Ordering::Relaxed);
        control.tasks[0]
            .pid
            .store(std::process::id(), Ordering::Relaxed);
        let kernel = Kernel::new(Config {
            control,
            slot: 0,
            default_pager: Arc::new(NoPager),
            on_loss: OnLoss::Poison,
            covers: true,
            device: device(),
            messages: Fd(2),
            fixed_fds: None,
        });
        let kernel: &'static Kernel = Box::leak(Box::new(kernel));
        kernel.activate().map_err(system("open userfaultfd"))?;
        kernel.learn_threads();
        start_handler(kernel)?;
        start_thread(c"farpage-out", move || {
            kernel.page_out_for_ever(REST_NS, || {
                if kernel.wants_handler() {
                    // Without memory or a thread for one more, those that there are go on.
                    let _ = start_handler(kernel);
                }
            })
        })?;
        start_thread(c"farpage-clean", move || clean_for_ever(kernel))?;
        Ok(Self { kernel, control })
    }

    /// Makes a memory object of `bytes` bytes (rounded up to whole pages) behind `pager`.
    ///
    /// # Errors
    /// [`Error::Refused`] when the pager does not want it.
    pub fn object(&self, pager: Arc<dyn Pager>, bytes: usize) -> Result<Object, Error> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let pages = bytes.div_ceil(PAGE_BYTES).max(1) as u64;
        let id = ObjectId(NEXT.fetch_add(1, Ordering::Relaxed));
        pager.init(id, pages).map_err(Error::Refused)?;
        Ok(Object::new(*self, pager, id, pages))
    }

    fn answer_in_thread(&self) -> Result<(), Error> {
        let first = self.kernel.answer_in_thread();
        if first.map_err(system("have faults answered in their thread"))? {
            for _ in 0..DESK_HANDLERS {
                let buffer = Buffer::new().map_err(system("map a buffer"))?;
                let kernel = self.kernel;
                start_thread(c"farpage-faults", move || kernel.handle_desk(buffer))?;
            }
        }
        Ok(())
    }

    /// Changes the budget. What is resident beyond it leaves soon.
    ///
    /// # Errors
    /// [`Error::Budget`] below 4 MiB.
    pub fn set_ram(&self, ram_bytes: u64) -> Result<(), Error> {
        if ram_bytes < RAM_MIN {
            return Err(Error::Budget { bytes: ram_bytes });
        }
        self.control
            .budget_bytes
            .store(ram_bytes, Ordering::Relaxed);
        self.kernel.page_out.notify();
        Ok(())
    }

    /// The budget.
    pub fn ram_bytes(&self) -> u64 {
        self.control.budget_bytes.load(Ordering::Relaxed)
    }

    /// Bytes resident now, of all objects.
    pub fn resident_bytes(&self) -> u64 {
        self.control.resident_bytes.load(Ordering::Relaxed)
    }
}

/// Writes dirty pages back when they become many, so that a flush, or a need for memory, finds
/// little to write.
fn clean_for_ever(kernel: &'static Kernel) -> ! {
    const DIRTY_MAX: u64 = 256 << 20;
    let (mut cursor, mut written) = (0, 0);
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let counter = &kernel.account.counters().write_faults;
        let now = counter.load(Ordering::Relaxed);
        if core::mem::replace(&mut written, now) != now {
            let budget = kernel
                .account
                .control()
                .budget_bytes
                .load(Ordering::Relaxed);
            let limit = (budget / 4).min(DIRTY_MAX) / PAGE_BYTES as u64;
            kernel.clean_beyond(limit, &mut cursor);
        }
    }
}

fn start_handler(kernel: &'static Kernel) -> Result<(), Error> {
    let buffer = Buffer::new().map_err(system("map a buffer"))?;
    kernel.handler_starts();
    start_thread(c"farpage-faults", move || kernel.handle_faults(buffer))
        .inspect_err(|_| kernel.handler_did_not_start())
}

/// In a child of fork, too: see [`pthread`].
fn start_thread(name: &'static CStr, work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    pthread::start(name, work).map_err(|errno| Error::Thread { errno })
}
