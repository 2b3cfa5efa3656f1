//! Mappings. Addresses here are claims about the whole process, so most of it is unsafe.

use linux_raw_sys::general as g;

use crate::file::{Fd, ioctl};
use crate::raw::Result;
use crate::syscall;

pub use linux_raw_sys::general::{
    MADV_COLLAPSE, MADV_DONTDUMP, MADV_DONTFORK, MADV_DONTNEED, MADV_DONTNEED_LOCKED, MADV_FREE,
    MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_WILLNEED,
    MAP_ANONYMOUS, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_NORESERVE, MAP_PRIVATE, MAP_SHARED,
    PROT_EXEC, PROT_NONE, PROT_READ, PROT_WRITE,
};

/// In the low 2 GiB; only x86-64 has it.
pub const MAP_32BIT: u32 = 0x40;

/// Maps memory, as `mmap(2)`.
///
/// # Safety
/// With `MAP_FIXED`, what was mapped there must not be in use.
///
/// # Errors
/// As `mmap(2)`.
pub unsafe fn map(
    at: usize,
    bytes: usize,
    prot: u32,
    flags: u32,
    fd: Fd,
    offset: u64,
) -> Result<usize> {
    let args: [usize; 6] = [
        at,
        bytes,
        prot as usize,
        flags as usize,
        fd.0 as usize,
        offset as usize,
    ];
    if cfg!(target_arch = "s390x") {
        // There they lie in memory.
        // SAFETY: forwarded to the caller.
        return unsafe { syscall!(g::__NR_mmap, args.as_ptr()) };
    }
    // SAFETY: forwarded to the caller.
    unsafe { crate::raw::syscall(g::__NR_mmap, args) }
}

/// Maps fresh anonymous private memory where the kernel likes.
///
/// # Errors
/// As `mmap(2)`.
pub fn map_anonymous(bytes: usize) -> Result<usize> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    // SAFETY: without MAP_FIXED nothing existing is touched.
    unsafe { map(0, bytes, PROT_READ | PROT_WRITE, flags, Fd(-1), 0) }
}

/// Maps all of a shared file, read and write.
///
/// # Errors
/// As `mmap(2)`.
pub fn map_shared(fd: Fd, bytes: usize) -> Result<usize> {
    map_shared_at(0, fd, bytes)
}

/// The same at an address where nothing is; anywhere when that is 0.
///
/// # Errors
/// As `mmap(2)`; `EEXIST` when something is there.
pub fn map_shared_at(at: usize, fd: Fd, bytes: usize) -> Result<usize> {
    let place = if at == 0 { 0 } else { MAP_FIXED_NOREPLACE };
    let flags = MAP_SHARED | MAP_NORESERVE | place;
    // SAFETY: nothing existing is touched.
    unsafe { map(at, bytes, PROT_READ | PROT_WRITE, flags, fd, 0) }
}

/// Unmaps a range.
///
/// # Safety
/// Nothing may use the range any more.
///
/// # Errors
/// As `munmap(2)`.
pub unsafe fn unmap(at: usize, bytes: usize) -> Result<()> {
    // SAFETY: forwarded to the caller.
    unsafe { syscall!(g::__NR_munmap, at, bytes) }.map(drop)
}

/// Moves or resizes a mapping, as `mremap(2)`.
///
/// # Safety
/// As for `unmap` of what goes away, and as for `map` of a fixed target.
///
/// # Errors
/// As `mremap(2)`.
pub unsafe fn remap(at: usize, old: usize, new: usize, flags: u32, target: usize) -> Result<usize> {
    // SAFETY: forwarded to the caller.
    unsafe { syscall!(g::__NR_mremap, at, old, new, flags, target) }
}

/// Changes protection.
///
/// # Safety
/// Nothing that relies on the old protection may use the range.
///
/// # Errors
/// As `mprotect(2)`.
pub unsafe fn protect(at: usize, bytes: usize, prot: u32) -> Result<()> {
    // SAFETY: forwarded to the caller.
    unsafe { syscall!(g::__NR_mprotect, at, bytes, prot) }.map(drop)
}

/// Changes protection and, unless `key` is -1, the protection key.
///
/// # Safety
/// As for [`protect`].
///
/// # Errors
/// As `pkey_mprotect(2)`.
pub unsafe fn protect_by_key(at: usize, bytes: usize, prot: u32, key: i32) -> Result<()> {
    if key == -1 {
        // SAFETY: forwarded to the caller.
        return unsafe { protect(at, bytes, prot) };
    }
    // SAFETY: forwarded to the caller.
    unsafe { syscall!(g::__NR_pkey_mprotect, at, bytes, prot, key) }.map(drop)
}

/// Gives advice, as `madvise(2)`.
///
/// # Safety
/// Advice that drops contents (`MADV_DONTNEED` and its like) must not surprise their owner.
///
/// # Errors
/// As `madvise(2)`.
pub unsafe fn advise(at: usize, bytes: usize, advice: u32) -> Result<()> {
    // SAFETY: forwarded to the caller.
    unsafe { syscall!(g::__NR_madvise, at, bytes, advice) }.map(drop)
}

/// Has all pages of a range that is mapped be there, for reading, and waits until they are.
///
/// # Errors
/// As `madvise(2)` with `MADV_POPULATE_READ`: `EFAULT` for what cannot be read.
pub fn populate(at: usize, bytes: usize) -> Result<()> {
    // SAFETY: changes no contents.
    unsafe { advise(at, bytes, MADV_POPULATE_READ) }
}

/// Which pages of a range are in memory: for each a byte whose lowest bit says so.
///
/// # Errors
/// As `mincore(2)`.
pub fn in_core(at: usize, pages: &mut [u8]) -> Result<()> {
    let bytes = pages.len() * 4096;
    // SAFETY: Linux writes one byte for each page.
    unsafe { syscall!(g::__NR_mincore, at, bytes, pages.as_mut_ptr()) }.map(drop)
}

/// Writes a byte back to where it is, atomically: the page is there and writable afterwards, and
/// nothing has changed.
///
/// # Safety
/// `at` must be mapped writable.
pub unsafe fn touch_write(at: usize) {
    // An idempotent atomic in Rust would be compiled to a load, or to nothing.
    #[cfg(target_arch = "x86_64")]
    // SAFETY: forwarded; other threads may write the same byte meanwhile, none of it is lost.
    unsafe {
        core::arch::asm!("lock or byte ptr [{}], 0", in(reg) at, options(nostack))
    };
    #[cfg(not(target_arch = "x86_64"))]
    {
        use core::sync::atomic::{AtomicU8, Ordering};
        let byte = core::ptr::with_exposed_provenance_mut::<u8>(at);
        // SAFETY: as above.
        let byte = unsafe { AtomicU8::from_ptr(byte) };
        byte.fetch_or(core::hint::black_box(0), Ordering::Relaxed);
    }
}

/// Keeps every page that this process touches in memory, those that are there and those that come.
///
/// # Errors
/// As `mlockall(2)`.
pub fn wire() -> Result<()> {
    let flags = g::MCL_CURRENT | g::MCL_FUTURE | g::MCL_ONFAULT;
    // SAFETY: takes no pointer, and changes no contents.
    unsafe { syscall!(g::__NR_mlockall, flags) }.map(drop)
}

/// A mapping, as Linux tells it.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// From its first address to behind the last.
    pub range: core::ops::Range<usize>,
    /// Loads are allowed.
    pub is_readable: bool,
    /// Stores are allowed.
    pub is_writable: bool,
}

/// The mapping that has an address, as `maps`, an open `/proc/self/maps`, tells.
///
/// # Errors
/// `ENOENT` when nothing is mapped there, `ENOTTY` before Linux 6.11.
pub fn mapping_of(maps: Fd, at: usize) -> Result<Mapping> {
    /// `struct procmap_query`.
    #[repr(C)]
    struct Query {
        size: u64,
        flags: u64,
        address: u64,
        start: u64,
        end: u64,
        access: u64,
        others: [u64; 7],
    }
    const READABLE: u64 = 1;
    const WRITABLE: u64 = 2;
    const QUERY: u32 = 3 << 30 | (size_of::<Query>() as u32) << 16 | 0x66 << 8 | 17;
    let mut query = Query {
        size: size_of::<Query>() as u64,
        flags: 0,
        address: at as u64,
        start: 0,
        end: 0,
        access: 0,
        others: [0; 7],
    };
    // SAFETY: `query` is the structure that the request expects, without places for names.
    unsafe { ioctl(maps, QUERY, &mut query) }?;
    Ok(Mapping {
        range: query.start as usize..query.end as usize,
        is_readable: query.access & READABLE != 0,
        is_writable: query.access & WRITABLE != 0,
    })
}

/// A word of zeros, never freed, that is zero again in a child of fork.
///
/// # Errors
/// As `mmap(2)`.
pub fn word_of_process() -> Result<&'static core::sync::atomic::AtomicU32> {
    let at = map_anonymous(farpage_object::PAGE_BYTES)?;
    // SAFETY: the page was mapped above, and is nobody else's.
    unsafe {
        syscall!(
            g::__NR_madvise,
            at,
            farpage_object::PAGE_BYTES,
            g::MADV_WIPEONFORK
        )
    }?;
    // SAFETY: mapped for good, of zeros, aligned, and used as nothing else.
    Ok(unsafe { &*core::ptr::with_exposed_provenance(at) })
}
