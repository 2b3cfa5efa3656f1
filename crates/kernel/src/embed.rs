//! The kernel embedded in a Rust program: memory objects with pagers of your own.
//!
//! ```
//! use std::sync::Arc;
//! use farpage_abi::{ObjectId, PAGE_BYTES};
//! use farpage_kernel::embed::Embedded;
//! use farpage_pagers::{DataRequest, PageOut, Pager, PagerError, Supplied};
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
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::io;

use farpage_abi::{Control, ObjectId, PAGE_BYTES, PageRange};
use farpage_pagers::{DataRequest, PageOut, Pager, PagerError, Supplied};
use farpage_sys::file::Fd;
use farpage_sys::{Errno, control};

use crate::handler::Buffer;
use crate::kernel::{Config, Kernel, OnLoss};
use crate::regions::Source;

/// Budgets below this leave no room for what one fault needs.
const RAM_MIN: u64 = 4 << 20;

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
    /// The pager refused the object.
    Refused(PagerError),
    /// The object is mapped already.
    Mapped,
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
                    "a budget of {bytes} bytes is too small; give at least {RAM_MIN}"
                )
            }
            Self::System { what, errno } => write!(
                f,
                "cannot {what}: {errno}; `farpage doctor` says what this user may do here"
            ),
            Self::Refused(error) => write!(f, "the pager refused the object: {error}"),
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
    /// [`Error::Budget`] below 4 MiB; [`Error::System`] when userfaultfd or memory cannot be had.
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
            device: device(),
            messages: Fd(2),
            fixed_fds: None,
        });
        let kernel: &'static Kernel = Box::leak(Box::new(kernel));
        kernel.activate().map_err(system("open userfaultfd"))?;
        start_handler(kernel)?;
        std::thread::spawn(move || {
            kernel.page_out_for_ever(|| {
                if kernel.wants_handler() {
                    // Without memory for one more, those that there are go on.
                    let _ = start_handler(kernel);
                }
            })
        });
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
        Ok(Object {
            host: *self,
            pager,
            id,
            pages,
            mapped: AtomicBool::new(false),
            begun: AtomicBool::new(true),
        })
    }

    /// Bytes resident now, of all objects.
    pub fn resident_bytes(&self) -> u64 {
        self.control.resident_bytes.load(Ordering::Relaxed)
    }
}

fn device() -> Option<Fd> {
    let flags = farpage_sys::linux::general::O_RDWR | farpage_sys::linux::general::O_CLOEXEC;
    farpage_sys::file::open(c"/dev/userfaultfd", flags, 0).ok()
}

fn start_handler(kernel: &'static Kernel) -> Result<(), Error> {
    let buffer = Buffer::new().map_err(system("map a buffer"))?;
    kernel.handler_starts();
    std::thread::spawn(move || kernel.handle_faults(buffer));
    Ok(())
}

/// Memory whose contents are the business of a pager.
pub struct Object {
    host: Embedded,
    pager: Arc<dyn Pager>,
    id: ObjectId,
    pages: u64,
    mapped: AtomicBool,
    /// The pager knows of the object (`init`), and not yet that it is let go (`terminate`).
    begun: AtomicBool,
}

impl Object {
    /// What the pager knows this object as.
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Maps the whole object into this process. Nothing is read before it is touched.
    ///
    /// # Errors
    /// [`Error::Mapped`] while a mapping exists; [`Error::Refused`] when the object was unmapped
    /// and its pager does not want it again; [`Error::System`] when there is no room.
    pub fn map(&self) -> Result<Mapping<'_>, Error> {
        if self.mapped.swap(true, Ordering::AcqRel) {
            return Err(Error::Mapped);
        }
        if !self.begun.load(Ordering::Acquire) {
            if let Err(error) = self.pager.init(self.id, self.pages) {
                self.mapped.store(false, Ordering::Release);
                return Err(Error::Refused(error));
            }
            self.begun.store(true, Ordering::Release);
        }
        let source = Source {
            object: self.id,
            pager: Arc::clone(&self.pager),
            temporary: false,
            origin: 0,
        };
        match self.host.kernel.map_object(source, self.pages) {
            Ok(start) => Ok(Mapping {
                object: self,
                start,
            }),
            Err(errno) => {
                self.mapped.store(false, Ordering::Release);
                Err(system("map the object")(errno))
            }
        }
    }

    /// Tells the pager, if it has not been told, that the kernel has let go.
    fn end(&self) {
        if self.begun.swap(false, Ordering::AcqRel) {
            self.pager.terminate(self.id);
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.end();
    }
}

/// A mapped object. Dropping it writes dirty pages back and unmaps it.
pub struct Mapping<'a> {
    object: &'a Object,
    start: usize,
}

/// What a mapping takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Pages in memory.
    pub resident_pages: u64,
    /// Pages of the object.
    pub pages: u64,
}

impl Mapping<'_> {
    /// Size in bytes: whole pages.
    pub fn size(&self) -> usize {
        self.object.pages as usize * PAGE_BYTES
    }

    /// The first byte. Reading and writing through it faults pages in; a page that its pager
    /// cannot supply raises SIGBUS.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start as *mut u8
    }

    fn within(&self, offset: usize, bytes: usize) -> Result<usize, Error> {
        let size = self.size();
        match offset.checked_add(bytes) {
            Some(end) if end <= size => Ok(self.start + offset),
            _ => Err(Error::Outside {
                offset,
                bytes,
                size,
            }),
        }
    }

    /// Copies bytes out of the object.
    ///
    /// # Errors
    /// [`Error::Outside`] beyond its end.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), Error> {
        let from = self.within(offset, into.len())?;
        // SAFETY: inside the mapping; `into` is this caller's alone. Other threads may write to
        // the object meanwhile, so it is copied through pointers, never seen as a slice.
        unsafe { core::ptr::copy_nonoverlapping(from as *const u8, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    /// Copies bytes into the object.
    ///
    /// # Errors
    /// [`Error::Outside`] beyond its end.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), Error> {
        let to = self.within(offset, from.len())?;
        // SAFETY: as for `read`.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), to as *mut u8, from.len()) };
        Ok(())
    }

    fn range(&self, pages: PageRange) -> (usize, usize) {
        let end = pages.end.0.min(self.object.pages);
        let at = |page: u64| self.start + page as usize * PAGE_BYTES;
        (at(pages.start.0.min(end)), at(end))
    }

    /// Writes dirty pages back to the pager; they stay resident.
    ///
    /// # Errors
    /// [`Error::System`] with `EIO` when the pager did not take a page: it stays dirty.
    pub fn clean(&self, pages: PageRange) -> Result<(), Error> {
        let (start, end) = self.range(pages);
        self.object
            .host
            .kernel
            .clean(start, end, false)
            .map_err(system("write pages back"))
    }

    /// Writes dirty pages back and drops the cached copies: the next access asks the pager.
    ///
    /// # Errors
    /// As [`Mapping::clean`].
    pub fn flush(&self, pages: PageRange) -> Result<(), Error> {
        let (start, end) = self.range(pages);
        self.object
            .host
            .kernel
            .clean(start, end, true)
            .map_err(system("write pages back"))
    }

    /// Forbids writing until the pager allows it ([`Pager::data_unlock`]) or [`Mapping::unlock`].
    ///
    /// # Errors
    /// [`Error::System`] when the pages cannot be protected.
    pub fn lock(&self, pages: PageRange) -> Result<(), Error> {
        let (start, end) = self.range(pages);
        self.object
            .host
            .kernel
            .lock_writes(start, end, true)
            .map_err(system("lock pages"))
    }

    /// Lifts [`Mapping::lock`]; threads that wait to write go on.
    ///
    /// # Errors
    /// [`Error::System`] when the protection cannot be lifted.
    pub fn unlock(&self, pages: PageRange) -> Result<(), Error> {
        let (start, end) = self.range(pages);
        self.object
            .host
            .kernel
            .lock_writes(start, end, false)
            .map_err(system("unlock pages"))
    }

    /// What it takes now.
    pub fn stats(&self) -> Stats {
        let resident = self
            .object
            .host
            .kernel
            .resident(self.start, self.start + self.size());
        Stats {
            resident_pages: resident,
            pages: self.object.pages,
        }
    }

    /// Writes dirty pages back and unmaps.
    ///
    /// # Errors
    /// As [`Mapping::clean`]; it is unmapped all the same.
    pub fn unmap(self) -> Result<(), Error> {
        let cleaned = self.clean(PageRange::new(0, self.object.pages));
        drop(self);
        cleaned
    }
}

impl Drop for Mapping<'_> {
    fn drop(&mut self) {
        // A pager that does not take its pages has been told; `unmap` reports it.
        let _ = self.clean(PageRange::new(0, self.object.pages));
        let end = self.start + self.size();
        // SAFETY: the mapping goes away with this value; addresses got from `as_ptr` are the
        // caller's responsibility, as with any pointer.
        let unmapped = unsafe { self.object.host.kernel.unmap_object(self.start, end) };
        debug_assert!(unmapped.is_ok());
        self.object.end();
        self.object.mapped.store(false, Ordering::Release);
    }
}
