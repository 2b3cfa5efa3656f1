//! How something is opened.

use std::ffi::c_char;
use std::path::Path;
use std::time::Duration;

use farpage::{Cache, LoadOptions, Mode, OnFailure, OpenOptions};

use crate::error::{Failure, text};

/// Reading.
pub const FP_READ: u32 = 0;
/// Reading and writing, of a local file or an object in a store, which fp_flush replaces.
pub const FP_WRITE: u32 = 1;
/// As FP_WRITE, of something new; what a file of that name held is lost, an object must not exist.
pub const FP_CREATE: u32 = 2;
/// Reading, and writing to a private copy that vanishes with it.
pub const FP_COPY: u32 = 3;

/// An access to bytes that cannot be had fails: SIGBUS, or an error of fp_read.
pub const FP_FAIL: u32 = 0;
/// It waits as long as the failure may pass.
pub const FP_WAIT: u32 = 1;
/// It reads zeros.
pub const FP_ZEROS: u32 = 2;

/// Compressed when the name ends in .gz, .zst or .zstd.
pub const FP_BY_NAME: u32 = 0;
/// It is compressed, whatever its name is.
pub const FP_DECOMPRESS: u32 = 1;
/// Its bytes as they are.
pub const FP_AS_IT_IS: u32 = 2;

/// How something is opened. Set all to 0, then `size`; 0 and NULL mean the default everywhere.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FpOptions {
    /// sizeof(fp_options): later versions of the library know more fields, and do not look for
    /// them here.
    pub size: usize,
    /// FP_READ, FP_WRITE, FP_CREATE or FP_COPY.
    pub mode: u32,
    /// FP_FAIL, FP_WAIT or FP_ZEROS.
    pub on_failure: u32,
    /// FP_BY_NAME, FP_DECOMPRESS or FP_AS_IT_IS.
    pub decompress: u32,
    /// Not 0: numbers of another byte order are not translated.
    pub as_stored: u32,
    /// Not 0: bf16 is presented as f32.
    pub bf16_as_f32: u32,
    /// Not 0: f16 is presented as f32.
    pub f16_as_f32: u32,
    /// Bytes that are in memory at most, 4 MiB or more; 0: a share of what the machine has.
    pub ram_bytes: u64,
    /// Bytes of what is made (FP_CREATE) or of a file that grows (FP_WRITE).
    pub file_bytes: u64,
    /// How long a far source is tried again, in milliseconds; 0: a minute, and 20 s to open it.
    pub deadline_ms: u64,
    /// Folder in which what comes from far away is kept; NULL: nothing is kept.
    pub cache: *const c_char,
    /// Bytes that the folder takes at most; 0: 16 GiB.
    pub cache_bytes: u64,
    /// Headers of requests to HTTP servers, as "Name: value".
    pub headers: *const *const c_char,
    /// Number of them.
    pub header_count: usize,
}

const NONE: FpOptions = FpOptions {
    size: size_of::<FpOptions>(),
    mode: FP_READ,
    on_failure: FP_FAIL,
    decompress: FP_BY_NAME,
    as_stored: 0,
    bf16_as_f32: 0,
    f16_as_f32: 0,
    ram_bytes: 0,
    file_bytes: 0,
    deadline_ms: 0,
    cache: std::ptr::null(),
    cache_bytes: 0,
    headers: std::ptr::null(),
    header_count: 0,
};

/// What of a table of `size` bytes, its first field, this version knows, over `known`.
///
/// # Safety
/// `from` is valid for reads of the size that it begins with.
pub(crate) unsafe fn copy_known<T: Copy>(
    from: *const T,
    mut known: T,
    what: &str,
) -> Result<T, Failure> {
    // SAFETY: the caller says so; both begin with their size.
    let size = unsafe { from.cast::<usize>().read_unaligned() };
    if size < size_of::<usize>() || size > 1 << 16 {
        return Err(Failure::argument(format!(
            "{what}: its size is {size}; set it to sizeof"
        )));
    }
    let bytes = size.min(size_of::<T>());
    let to = (&raw mut known).cast::<u8>();
    // SAFETY: both have that many bytes, and `T` is made of numbers and pointers that may be NULL.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), to, bytes) };
    Ok(known)
}

fn wrong(what: &str, value: u32) -> Failure {
    Failure::argument(format!(
        "{what}: {value} is none; see farpage.h for those there are"
    ))
}

/// # Safety
/// `from` is NULL or valid, with all it points to.
pub(crate) unsafe fn options(from: *const FpOptions) -> Result<LoadOptions, Failure> {
    if from.is_null() {
        return Ok(LoadOptions::default());
    }
    // SAFETY: the caller says so.
    let from = unsafe { copy_known(from, NONE, "options") }?;
    let mut open = OpenOptions {
        mode: match from.mode {
            FP_READ => Mode::Read,
            FP_WRITE => Mode::Write,
            FP_CREATE => Mode::Create,
            FP_COPY => Mode::Copy,
            other => return Err(wrong("mode", other)),
        },
        on_failure: match from.on_failure {
            FP_FAIL => OnFailure::Error,
            FP_WAIT => OnFailure::Wait,
            FP_ZEROS => OnFailure::Zero,
            other => return Err(wrong("on_failure", other)),
        },
        decompress: match from.decompress {
            FP_BY_NAME => None,
            FP_DECOMPRESS => Some(true),
            FP_AS_IT_IS => Some(false),
            other => return Err(wrong("decompress", other)),
        },
        ram: (from.ram_bytes > 0).then_some(from.ram_bytes),
        size: (from.file_bytes > 0).then_some(from.file_bytes),
        ..OpenOptions::default()
    };
    if from.deadline_ms > 0 {
        open.deadline = Some(Duration::from_millis(from.deadline_ms));
    }
    if !from.cache.is_null() {
        const DEFAULT: u64 = 16 << 30;
        let limit = if from.cache_bytes > 0 {
            from.cache_bytes
        } else {
            DEFAULT
        };
        // SAFETY: the caller says so.
        let folder = unsafe { text(from.cache, "cache") }?;
        open.cache = Some(Cache::open(Path::new(folder), limit)?);
    }
    if from.headers.is_null() && from.header_count > 0 {
        return Err(Failure::argument("headers: it is NULL; give them"));
    }
    for at in 0..from.header_count {
        // SAFETY: the caller says that so many are there.
        let header = unsafe { from.headers.add(at).read() };
        // SAFETY: and that each is text.
        let header = unsafe { text(header, "headers") }?;
        let split = header.split_once(':');
        let (name, value) = split.ok_or_else(|| {
            Failure::argument(format!(
                "headers: '{header}' has no colon; give 'Name: value'"
            ))
        })?;
        open.headers.push((name.trim().into(), value.trim().into()));
    }
    Ok(LoadOptions {
        open,
        native: from.as_stored == 0,
        bf16_as_f32: from.bf16_as_f32 != 0,
        f16_as_f32: from.f16_as_f32 != 0,
    })
}
