//! What the operations are about: protections, inheritance, regions, statistics, errors.

use std::ops::Range;

use farpage_sys::Errno;
use farpage_sys::area::Access;
use serde::{Deserialize, Serialize};

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;

/// What may be done with memory (`vm_prot_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Protection {
    /// It may be read.
    pub read: bool,
    /// It may be written. On many processors what may be written may be read.
    pub write: bool,
    /// It may be executed.
    pub execute: bool,
}

impl Protection {
    /// `VM_PROT_NONE`.
    pub const NONE: Self = Self::new(false, false, false);
    /// `VM_PROT_READ`.
    pub const READ: Self = Self::new(true, false, false);
    /// `VM_PROT_DEFAULT`: reading and writing. What new memory has.
    pub const DEFAULT: Self = Self::new(true, true, false);
    /// `VM_PROT_ALL`. The maximum of new memory.
    pub const ALL: Self = Self::new(true, true, true);

    const fn new(read: bool, write: bool, execute: bool) -> Self {
        Self {
            read,
            write,
            execute,
        }
    }

    /// Nothing in it goes beyond `other`.
    #[must_use]
    pub fn is_within(self, other: Self) -> bool {
        self.and(other) == self
    }

    /// What both allow.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self::new(
            self.read && other.read,
            self.write && other.write,
            self.execute && other.execute,
        )
    }

    pub(crate) fn access(self) -> Access {
        let Self {
            read,
            write,
            execute,
        } = self;
        Access {
            read,
            write,
            execute,
        }
    }
}

/// What a child has of memory (`vm_inherit_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Inheritance {
    /// `VM_INHERIT_SHARE`: the same memory, at the same address, from then on.
    Share,
    /// `VM_INHERIT_COPY`: a copy of its own. What new memory has.
    Copy,
    /// `VM_INHERIT_NONE`: nothing is there.
    None,
}

/// What a memory object is known by: two regions with the same are of the same memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ObjectName {
    /// Of the memory file.
    pub device: u64,
    /// Of the memory file.
    pub inode: u64,
}

/// A part of an address space that is the same throughout, as `vm_regions` tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// Its first address.
    pub address: u64,
    /// How long it is.
    pub bytes: u64,
    /// What may be done with it.
    pub protection: Protection,
    /// What `protection` may become.
    pub max_protection: Protection,
    /// What children will have of it.
    pub inheritance: Inheritance,
    /// Others may have the same memory, and see what is written.
    pub is_shared: bool,
    /// Of memory that lies in an object: which; `None` for memory of this task alone.
    pub object: Option<ObjectName>,
    /// Where in the object it begins.
    pub offset: u64,
    /// It came from `vm_allocate`. All else of the process can only be looked at.
    pub is_allocated: bool,
}

impl Region {
    /// Its addresses.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.address..self.address + self.bytes
    }
}

/// How a task uses memory, as `vm_statistics` tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Pages of the machine that nobody uses.
    pub free_pages: u64,
    /// What came from `vm_allocate` and is there still.
    pub allocated_bytes: u64,
    /// Of that, in memory.
    pub allocated_resident_bytes: u64,
    /// Of that, memory that others may have as well.
    pub shared_bytes: u64,
    /// Of that, copies which are not made until somebody writes.
    pub copy_bytes: u64,
    /// Parts that are the same throughout.
    pub regions: u64,
    /// Of the whole process, mapped.
    pub virtual_bytes: u64,
    /// Of the whole process, in memory.
    pub resident_bytes: u64,
    /// Faults of the whole process that needed no page from elsewhere.
    pub faults: u64,
    /// Faults of the whole process that did.
    pub pageins: u64,
}

/// Why an operation was not done, by Mach's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum VmError {
    /// Not all of the range is there, or can be had.
    #[error(
        "KERN_INVALID_ADDRESS: not all of {bytes} bytes at {address:#x} is memory that can be used \
         so: vm_regions tells what is there, and only what vm_allocate made can be changed"
    )]
    InvalidAddress {
        /// Where.
        address: u64,
        /// How much.
        bytes: u64,
    },
    /// The protection of the range does not allow it.
    #[error(
        "KERN_PROTECTION_FAILURE: {bytes} bytes at {address:#x} are protected against it; \
         vm_protect changes that up to the maximum that vm_regions tells"
    )]
    ProtectionFailure {
        /// Where.
        address: u64,
        /// How much.
        bytes: u64,
    },
    /// No room.
    #[error(
        "KERN_NO_SPACE: there is no room for {bytes} bytes there; deallocate something, ask for \
         less, or for any place"
    )]
    NoSpace {
        /// How much was wanted.
        bytes: u64,
    },
    /// It makes no sense.
    #[error("KERN_INVALID_ARGUMENT: {0:?}")]
    InvalidArgument(Argument),
    /// Linux, or a limit.
    #[error("KERN_RESOURCE_SHORTAGE: {0:?}; deallocate something, or raise the limit")]
    ResourceShortage(Shortage),
    /// Something that nobody expects.
    #[error("KERN_FAILURE: Linux refuses with error {0}")]
    Failure(i32),
}

/// What is wrong with an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Argument {
    /// Address and size must be multiples of 4096 here.
    NotWholePages,
    /// There must be some bytes here.
    Nothing,
}

/// What there is not enough of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shortage {
    /// Memory, address space or mappings of the process (`vm.max_map_count`, `RLIMIT_AS`).
    Memory,
    /// Descriptors of the process or the machine (`RLIMIT_NOFILE`).
    Descriptors,
    /// Regions that vm_allocate's memory may be divided into.
    Regions,
    /// What the host kernel gives: it has no room, or is gone.
    HostKernel,
    /// Bytes that one operation copies: 1 GiB.
    CopiedBytes,
}

impl VmError {
    /// Mach's number for it (`kern_return_t`).
    #[must_use]
    pub fn code(self) -> i32 {
        match self {
            Self::InvalidAddress { .. } => 1,
            Self::ProtectionFailure { .. } => 2,
            Self::NoSpace { .. } => 3,
            Self::InvalidArgument(_) => 4,
            Self::Failure(_) => 5,
            Self::ResourceShortage(_) => 6,
        }
    }
}

impl From<Errno> for VmError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::ENOMEM | Errno::ENOSPC => Self::ResourceShortage(Shortage::Memory),
            Errno::EMFILE | Errno::ENFILE => Self::ResourceShortage(Shortage::Descriptors),
            Errno(number) => Self::Failure(number),
        }
    }
}
