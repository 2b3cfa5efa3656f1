//! Tasks: address spaces that others may work on, and what children inherit of them.
//!
//! [`AddressSpace::own`] is that of this process. The nine operations on it are Mach's:
//! `vm_allocate`, `vm_copy`, `vm_deallocate`, `vm_inherit`, `vm_protect`, `vm_read`, `vm_regions`,
//! `vm_statistics`, `vm_write`. [`TaskPort::offer`] gives the task a port; who gets a right to it
//! does the same nine from another process, by a [`Task`].
//!
//! - What is allocated lies within [`BOUNDS`], an area that is the same in all processes and where
//!   nothing else is placed. All of a process can be looked at; only what is there can be changed.
//! - What a child has is decided by Linux itself: private mappings, `MADV_DONTFORK`, shared
//!   mappings of memory files. The book-keeping is only told of it.
//! - What is shared lies at the same address in children, also in programs that they execute: the
//!   objects stay open over exec, with a note of what lies where.
//!
//! Invariant: what the book-keeping says of a page is what Linux has there.
//! Invariant: contents that change their place are written by nobody meanwhile.
//!
//! ```
//! use farpage_task::{AddressSpace, Protection, VmError};
//!
//! let own = AddressSpace::own()?;
//! let at = own.vm_allocate(0, 8192, true)?;
//! own.vm_write(at, &[7; 4096])?;
//! own.vm_copy(at, 4096, at + 4096)?;
//! own.vm_protect(at, 8192, false, Protection::READ)?;
//! let refused = own.vm_write(at, &[0; 4096]);
//! assert!(matches!(refused, Err(VmError::ProtectionFailure { .. })));
//! assert_eq!(&own.vm_read(at, 8192)?.map()?[4095..4097], [7, 7]);
//! own.vm_deallocate(at, 8192)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod copy;
mod fork;
mod look;
mod map;
mod note;
mod object;
mod port;
mod space;
mod types;

pub use farpage_port::{Donated, Memory};
pub use note::InheritError;
pub use port::{OfferError, Task, TaskError, TaskPort};
pub use space::{AddressSpace, BOUNDS};
pub use types::{
    Argument, Inheritance, ObjectName, PAGE_BYTES, Protection, Region, Shortage, Statistics,
    VmError,
};
