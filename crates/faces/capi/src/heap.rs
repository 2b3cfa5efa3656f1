//! `malloc` in shared memory.

use std::ffi::c_void;
use std::sync::atomic::AtomicU64;

use farpage_client::heap::{AllocateError, Block, FreeError, Heap, HeapError, Kind, OpenError};

use crate::error::{FP_DENIED, FP_KERNEL, FP_UNSUPPORTED, Failure, FpError, call, coded, handle};
use crate::shared::FpShared;

/// One process's way to a heap, for all its threads. A forked child opens the heap again.
pub struct FpHeap(Heap<Shared>);

/// Memory that the caller has mapped.
struct Shared {
    address: usize,
    words: usize,
}

impl AsRef<[AtomicU64]> for Shared {
    fn as_ref(&self) -> &[AtomicU64] {
        // SAFETY: whoever opened the heap says that it stays mapped; its words are changed by
        // atomic operations, and what lies in blocks is their owners' business.
        unsafe { std::slice::from_raw_parts(self.address as *const AtomicU64, self.words) }
    }
}

/// What a heap holds.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FpHeapUsage {
    /// All that blocks can have.
    pub bytes: u64,
    /// What allocated blocks have.
    pub allocated_bytes: u64,
    /// How many they are.
    pub blocks: u64,
    /// What is not kept for blocks of one size and kind.
    pub free_bytes: u64,
    /// Processes that have the heap open.
    pub processes: u32,
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        let message = error.to_string();
        match error {
            OpenError::NotAHeap | OpenError::Way => Self::new(FP_UNSUPPORTED, message),
            OpenError::Processes | OpenError::Process(_) => Self::new(FP_KERNEL, message),
            OpenError::TooSmall { .. } | OpenError::Cut { .. } => Self::argument(message),
        }
    }
}

impl From<HeapError> for Failure {
    fn from(error: HeapError) -> Self {
        match error {
            HeapError::Host(error) => error.into(),
            HeapError::Heap(error) => error.into(),
            HeapError::ReadOnly(_) => Self::new(FP_DENIED, error.to_string()),
            HeapError::Apart(_) => Self::argument(error.to_string()),
        }
    }
}

impl From<AllocateError> for Failure {
    fn from(error: AllocateError) -> Self {
        let message = error.to_string();
        match error {
            AllocateError::Full { .. } => Self::new(FP_KERNEL, message),
            AllocateError::Forked => Self::argument(message),
        }
    }
}

impl From<FreeError> for Failure {
    fn from(error: FreeError) -> Self {
        Self::argument(error.to_string())
    }
}

impl FpHeap {
    fn base(&self) -> usize {
        self.0.memory().address
    }

    fn block(&self, block: *const c_void) -> Block {
        // What lies before the heap is far behind it, and no block.
        Block((block as usize).wrapping_sub(self.base()) as u64)
    }
}

/// Opens the heap in `bytes` bytes at `memory`, and makes one there if all of it is zero. The memory
/// is a shared mapping, at a multiple of 4096, that stays until fp_heap_close. Processes may have it
/// at different addresses. What processes that were killed had in hand is found again. NULL with
/// FP_UNSUPPORTED when something else lies there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_heap_open(
    memory: *mut c_void,
    bytes: usize,
    error: *mut FpError,
) -> *mut FpHeap {
    let body = || {
        let address = memory as usize;
        if address == 0 || !address.is_multiple_of(4096) {
            return Err(Failure::argument(
                "memory: a heap begins at a multiple of 4096; give what mmap returned",
            ));
        }
        let words = bytes / 8;
        let heap = Heap::open(Shared { address, words })?;
        Ok(Box::into_raw(Box::new(FpHeap(heap))))
    };
    // SAFETY: forwarded.
    unsafe { call(error, std::ptr::null_mut(), body) }
}

/// Opens the heap in shared memory (fp_shared_open) as fp_heap_open does: its blocks are allocated and
/// freed by processes of all hosts that map the memory, which lies at fp_shared_data. It stays mapped
/// until fp_heap_close, also when it is closed before. What processes had in hand when they, or their
/// hosts, died is found again; replicas = 2 keeps a heap whole when a host dies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_heap_open_shared(
    shared: *const FpShared,
    error: *mut FpError,
) -> *mut FpHeap {
    let body = || {
        // SAFETY: the header asks for NULL or what was opened.
        let mapped = unsafe { handle(shared, "shared") }?.mapped()?;
        let memory = Shared {
            address: mapped.address(),
            words: mapped.words().len(),
        };
        let heap = Heap::open_among(memory, mapped.processes()?)?;
        Ok(Box::into_raw(Box::new(FpHeap(heap))))
    };
    // SAFETY: NULL or the caller's own.
    unsafe { call(error, std::ptr::null_mut(), body) }
}

/// Closes it; blocks stay allocated. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_heap_close(heap: *mut FpHeap) {
    if !heap.is_null() {
        // SAFETY: made by fp_heap_open, and given back once.
        drop(unsafe { Box::from_raw(heap) });
    }
}

/// Allocates `bytes` bytes, with any contents, at a multiple of 16. `kind` says what they are, in
/// numbers of the program's: blocks of different kinds never share 64 KiB. 0: nothing in particular.
/// NULL with FP_KERNEL when the heap is full.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_heap_alloc(
    heap: *mut FpHeap,
    kind: u16,
    bytes: usize,
    error: *mut FpError,
) -> *mut c_void {
    let body = || {
        // SAFETY: forwarded.
        let heap = unsafe { handle(heap, "heap") }?;
        let block = heap.0.allocate(Kind(kind), bytes as u64)?;
        Ok((heap.base() + block.0 as usize) as *mut c_void)
    };
    // SAFETY: forwarded.
    unsafe { call(error, std::ptr::null_mut(), body) }
}

/// Frees a block, whichever process has allocated it. NULL is allowed. FP_ARGUMENT when it is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_heap_free(
    heap: *mut FpHeap,
    block: *mut c_void,
    error: *mut FpError,
) -> i32 {
    let body = || {
        // SAFETY: forwarded.
        let heap = unsafe { handle(heap, "heap") }?;
        match block.is_null() {
            true => Ok(()),
            false => Ok(heap.0.free(heap.block(block))?),
        }
    };
    // SAFETY: forwarded.
    unsafe { coded(error, body) }
}

/// The bytes that a block has: as many as were asked for, or some more. 0 when it is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_heap_size(
    heap: *const FpHeap,
    block: *const c_void,
    error: *mut FpError,
) -> usize {
    let body = || {
        // SAFETY: forwarded.
        let heap = unsafe { handle(heap, "heap") }?;
        Ok(heap.0.bytes(heap.block(block))? as usize)
    };
    // SAFETY: forwarded.
    unsafe { call(error, 0, body) }
}

/// One of 16 words, 0 at first, by which processes find what is allocated: they keep offsets from
/// the beginning of the memory there. Read and write it by atomic operations.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_heap_root(
    heap: *const FpHeap,
    number: u32,
    error: *mut FpError,
) -> *mut u64 {
    let body = || {
        // SAFETY: forwarded.
        let heap = unsafe { handle(heap, "heap") }?;
        if number >= 16 {
            return Err(Failure::argument(
                "number: a heap has 16 roots; give 0 to 15",
            ));
        }
        Ok(heap.0.root(number as usize).as_ptr())
    };
    // SAFETY: forwarded.
    unsafe { call(error, std::ptr::null_mut(), body) }
}

/// Fills in what the heap holds; while others allocate, about.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_heap_usage_of(
    heap: *const FpHeap,
    usage: *mut FpHeapUsage,
    error: *mut FpError,
) -> i32 {
    let body = || {
        // SAFETY: forwarded.
        let heap = unsafe { handle(heap, "heap") }?;
        if usage.is_null() {
            return Err(Failure::argument("usage: it is NULL; give a place for it"));
        }
        let now = heap.0.usage();
        let now = FpHeapUsage {
            bytes: now.bytes,
            allocated_bytes: now.allocated_bytes,
            blocks: now.blocks,
            free_bytes: now.free_bytes,
            processes: now.processes,
        };
        // SAFETY: not NULL, and the caller's.
        unsafe { usage.write(now) };
        Ok(())
    };
    // SAFETY: forwarded.
    unsafe { coded(error, body) }
}
