//! The bytes of a source, mapped.

use std::ffi::{c_char, c_void};
use std::ops::Range;

use farpage::{Memory, Place, Places};

use crate::error::{Failure, FpError, bytes_at, bytes_at_mut, call, coded, handle, text};
use crate::options::{FpOptions, copy_known, options};

/// The bytes of a file, of an address or of a pager, in memory. Any number of threads use one.
pub struct FpMemory(pub(crate) Memory);

/// Bytes at an address: all of them, or some.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FpPart {
    /// A path or an URL.
    pub address: *const c_char,
    /// The first byte.
    pub offset: u64,
    /// Number of bytes; 0: all from there on.
    pub bytes: u64,
}

/// What it takes, and what it has cost so far. Set `size` before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FpStats {
    /// sizeof(fp_stats).
    pub size: usize,
    /// Bytes of the source.
    pub bytes: u64,
    /// Bytes that are in memory.
    pub resident_bytes: u64,
    /// Reads of the source.
    pub reads: u64,
    /// Bytes that they brought.
    pub read_bytes: u64,
    /// Bytes written back.
    pub written_bytes: u64,
    /// Reads and writes that failed for good.
    pub failures: u64,
}

/// Bytes from `start` up to `end`, which is not one of them.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FpRange {
    /// The first.
    pub start: u64,
    /// The one after the last.
    pub end: u64,
}

/// Told how many bytes have come. It must not end by longjmp or an exception.
pub type FpProgress = Option<unsafe extern "C" fn(context: *mut c_void, bytes: u64)>;

fn range(offset: u64, bytes: u64) -> Result<Range<u64>, Failure> {
    let end = offset.checked_add(bytes);
    let end = end.ok_or_else(|| {
        Failure::argument(format!(
            "range: {bytes} bytes from byte {offset} on are more than there can be; give a range \
             inside"
        ))
    })?;
    Ok(offset..end)
}

pub(crate) fn boxed(memory: Memory) -> *mut FpMemory {
    Box::into_raw(Box::new(FpMemory(memory)))
}

/// Maps what is at `address`, a path or an URL. Nothing is read but what it takes to open it.
/// `options` may be NULL. Returns NULL when it fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_open(
    address: *const c_char,
    options: *const FpOptions,
    error: *mut FpError,
) -> *mut FpMemory {
    let open = || {
        // SAFETY: the header asks for text.
        let address = unsafe { text(address, "address") }?;
        // SAFETY: and for NULL or options.
        let options = unsafe { self::options(options) }?;
        Ok(boxed(Memory::open(address, &options.open)?))
    };
    // SAFETY: NULL or the caller's own.
    unsafe { call(error, std::ptr::null_mut(), open) }
}

/// Maps `count` parts, one after another, as one memory. `options` may be NULL; with FP_WRITE,
/// which takes parts of local files, none of them grows. Returns NULL when it fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_open_parts(
    parts: *const FpPart,
    count: usize,
    options: *const FpOptions,
    error: *mut FpError,
) -> *mut FpMemory {
    let open = || {
        if parts.is_null() && count > 0 {
            return Err(Failure::argument("parts: it is NULL; give them"));
        }
        let place = |at: usize| {
            // SAFETY: the header asks for so many.
            let part = unsafe { parts.add(at).read() };
            // SAFETY: and for text in each.
            let address = unsafe { text(part.address, "parts") }?;
            Ok(Place {
                offset: Some(part.offset).filter(|offset| *offset > 0),
                size: Some(part.bytes).filter(|bytes| *bytes > 0),
                ..address.into()
            })
        };
        let places: Result<Vec<Place>, Failure> = (0..count).map(place).collect();
        // SAFETY: the header asks for NULL or options.
        let options = unsafe { self::options(options) }?;
        Ok(boxed(Memory::open(Places(places?), &options.open)?))
    };
    // SAFETY: NULL or the caller's own.
    unsafe { call(error, std::ptr::null_mut(), open) }
}

/// Unmaps it, after writing back what was written; what cannot be written then is lost with a
/// message on standard error: call fp_flush before. Pointers into it are not valid any more. Takes
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_close(memory: *mut FpMemory) {
    let close = || {
        if !memory.is_null() {
            // SAFETY: the header asks for what was opened and not closed.
            drop(unsafe { Box::from_raw(memory) });
        }
        Ok(())
    };
    // SAFETY: NULL is allowed.
    unsafe { call(std::ptr::null_mut(), (), close) }
}

/// The first byte; NULL of NULL. A page that cannot be had raises SIGBUS where it is touched, after a
/// message on standard error; fp_read returns an error instead. Writing to what was opened for
/// reading raises SIGSEGV.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_data(memory: *const FpMemory) -> *mut c_void {
    // SAFETY: the header asks for NULL or what was opened.
    let memory = unsafe { memory.as_ref() };
    memory.map_or(std::ptr::null_mut(), |memory| memory.0.as_ptr().cast())
}

/// Its size in bytes; 0 of NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_size(memory: *const FpMemory) -> u64 {
    // SAFETY: as in `fp_data`.
    let memory = unsafe { memory.as_ref() };
    memory.map_or(0, |memory| memory.0.size())
}

/// 1 when it can be written to, 0 otherwise. In a child of fork only private copies can.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_is_writable(memory: *const FpMemory) -> i32 {
    // SAFETY: as in `fp_data`.
    let memory = unsafe { memory.as_ref() };
    memory.map_or(0, |memory| i32::from(memory.0.is_writable()))
}

/// Copies bytes to `buffer`. Bytes that cannot be had are an error and no signal; what `buffer`
/// holds then is unspecified. Returns the error's code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_read(
    memory: *const FpMemory,
    offset: u64,
    buffer: *mut c_void,
    bytes: usize,
    error: *mut FpError,
) -> i32 {
    let read = || {
        // SAFETY: the header asks for NULL or what was opened.
        let memory = unsafe { handle(memory, "memory") }?;
        // SAFETY: and for so many bytes that only this call uses.
        let buffer = unsafe { bytes_at_mut(buffer, bytes) }?;
        Ok(memory.0.read_at(offset, buffer)?)
    };
    // SAFETY: NULL or the caller's own.
    unsafe { coded(error, read) }
}

/// Copies bytes from `buffer`. What cannot be had or written to is an error and no signal. It is
/// durable after fp_flush. Returns the error's code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_write(
    memory: *const FpMemory,
    offset: u64,
    buffer: *const c_void,
    bytes: usize,
    error: *mut FpError,
) -> i32 {
    let write = || {
        // SAFETY: the header asks for NULL or what was opened.
        let memory = unsafe { handle(memory, "memory") }?;
        // SAFETY: and for so many bytes that nobody changes meanwhile.
        let buffer = unsafe { bytes_at(buffer, bytes) }?;
        Ok(memory.0.write_at(offset, buffer)?)
    };
    // SAFETY: NULL or the caller's own.
    unsafe { coded(error, write) }
}

/// Brings bytes in before they are touched, and waits until they are there. At most half of the
/// budget is filled. `progress` may be NULL; `context` is given to it. Returns how many bytes of
/// the range are in memory afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_prefetch(
    memory: *const FpMemory,
    offset: u64,
    bytes: u64,
    progress: FpProgress,
    context: *mut c_void,
    error: *mut FpError,
) -> u64 {
    let prefetch = || {
        // SAFETY: the header asks for NULL or what was opened.
        let memory = unsafe { handle(memory, "memory") }?;
        let came = memory.0.prefetch(range(offset, bytes)?, |bytes| {
            if let Some(progress) = progress {
                // SAFETY: the caller's function, with its own context.
                unsafe { progress(context, bytes) };
            }
        });
        Ok(came?)
    };
    // SAFETY: NULL or the caller's own.
    unsafe { call(error, 0, prefetch) }
}

/// What the four functions of ranges have in common.
///
/// # Safety
/// `memory` is NULL or what was opened, `error` NULL or the caller's own.
unsafe fn ranged(
    memory: *const FpMemory,
    (offset, bytes): (u64, u64),
    error: *mut FpError,
    act: impl FnOnce(&Memory, Range<u64>) -> Result<(), farpage::Error>,
) -> i32 {
    let done = || {
        // SAFETY: forwarded.
        let memory = unsafe { handle(memory, "memory") }?;
        Ok(act(&memory.0, range(offset, bytes)?)?)
    };
    // SAFETY: forwarded.
    unsafe { coded(error, done) }
}

/// Lets bytes go from memory; what was written is written back before. Returns the error's code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_discard(
    memory: *const FpMemory,
    offset: u64,
    bytes: u64,
    error: *mut FpError,
) -> i32 {
    // SAFETY: as the header says.
    unsafe { ranged(memory, (offset, bytes), error, Memory::discard) }
}

/// Brings bytes in and keeps them there until fp_unpin: half of the budget at most. Returns the
/// error's code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_pin(
    memory: *const FpMemory,
    offset: u64,
    bytes: u64,
    error: *mut FpError,
) -> i32 {
    // SAFETY: as the header says.
    unsafe { ranged(memory, (offset, bytes), error, Memory::pin) }
}

/// Lets what is pinned of the range leave again. Returns the error's code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_unpin(
    memory: *const FpMemory,
    offset: u64,
    bytes: u64,
    error: *mut FpError,
) -> i32 {
    // SAFETY: as the header says.
    unsafe { ranged(memory, (offset, bytes), error, Memory::unpin) }
}

/// Writes back what was written, and returns when it is durable. Returns the error's code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_flush(memory: *const FpMemory, error: *mut FpError) -> i32 {
    // SAFETY: as the header says.
    unsafe { ranged(memory, (0, 0), error, |memory, _| memory.flush()) }
}

/// What it takes, and has cost. Returns the error's code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_stat(
    memory: *const FpMemory,
    stats: *mut FpStats,
    error: *mut FpError,
) -> i32 {
    let fill = || {
        // SAFETY: the header asks for NULL or what was opened.
        let memory = unsafe { handle(memory, "memory") }?;
        if stats.is_null() {
            return Err(Failure::argument("stats: it is NULL; give one"));
        }
        let now = memory.0.stats();
        let known = FpStats {
            size: size_of::<FpStats>(),
            bytes: now.bytes,
            resident_bytes: now.resident_bytes,
            reads: now.reads,
            read_bytes: now.read_bytes,
            written_bytes: now.written_bytes,
            failures: now.failures,
        };
        // SAFETY: the header asks for a table that begins with its size.
        let size = unsafe { copy_known(stats, known, "stats") }?.size;
        let known = FpStats { size, ..known };
        let from = (&raw const known).cast::<u8>();
        let bytes = size.min(size_of::<FpStats>());
        // SAFETY: the caller's table has `size` bytes.
        unsafe { std::ptr::copy_nonoverlapping(from, stats.cast::<u8>(), bytes) };
        Ok(())
    };
    // SAFETY: NULL or the caller's own.
    unsafe { coded(error, fill) }
}

/// Writes the ranges of bytes that are in memory to `ranges`, in order, `count` of them at most.
/// Returns how many there are, which may be more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_residency(
    memory: *const FpMemory,
    ranges: *mut FpRange,
    count: usize,
    error: *mut FpError,
) -> usize {
    let fill = || {
        // SAFETY: the header asks for NULL or what was opened.
        let memory = unsafe { handle(memory, "memory") }?;
        if ranges.is_null() && count > 0 {
            return Err(Failure::argument("ranges: it is NULL; give a count of 0"));
        }
        let all = memory.0.residency();
        for (at, Range { start, end }) in all.iter().cloned().enumerate().take(count) {
            // SAFETY: the caller has room for `count`.
            unsafe { ranges.add(at).write(FpRange { start, end }) };
        }
        Ok(all.len())
    };
    // SAFETY: NULL or the caller's own.
    unsafe { call(error, 0, fill) }
}
