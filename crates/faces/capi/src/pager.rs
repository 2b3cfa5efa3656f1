//! Memory whose contents the program's own functions answer for.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

use farpage::{Memory, Reach, Source, SourceError};

use crate::error::{FP_CORRUPT, FP_OK, FP_UNREACHABLE, Failure, FpError, call, text};
use crate::memory::{FpMemory, boxed};
use crate::options::{FpOptions, copy_known, options};

/// In this machine: read in the thread that asks.
pub const FP_NEAR: u32 = 0;
/// Behind a network: several reads at a time, ahead of need, and again after FP_UNREACHABLE.
pub const FP_FAR: u32 = 1;

/// Bytes that a callback may write to `text`.
pub const FP_TEXT_BYTES: usize = 512;

/// Answers for the contents of memory. Set all to 0, then `size`. Several threads of the library
/// call it at a time, each with 200 KiB of stack; it must not touch memory that it answers for, nor
/// end by longjmp or an exception. A function returns FP_OK, or why not: FP_UNREACHABLE (the
/// same may succeed later), FP_CORRUPT or FP_CALLBACK; and may say why in `text`, `text_bytes` bytes
/// that the NUL ends. In a child of fork the functions are called as well, in the child.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FpPager {
    /// sizeof(fp_pager).
    pub size: usize,
    /// Given to the functions.
    pub context: *mut c_void,
    /// What messages call it; copied.
    pub name: *const c_char,
    /// What tells this version from others of the same name; copied; NULL: nothing does.
    pub version: *const c_char,
    /// How many bytes there are.
    pub bytes: u64,
    /// FP_NEAR or FP_FAR.
    pub reach: u32,
    /// Fills `buffer` with `bytes` bytes from `offset` on, all of it. They lie inside.
    pub read_at: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            offset: u64,
            buffer: *mut c_void,
            bytes: usize,
            text: *mut c_char,
            text_bytes: usize,
        ) -> i32,
    >,
    /// Replaces the bytes from `offset` on; NULL: nobody writes.
    pub write_at: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            offset: u64,
            buffer: *const c_void,
            bytes: usize,
            text: *mut c_char,
            text_bytes: usize,
        ) -> i32,
    >,
    /// Returns when all that was written is durable; NULL: it always is.
    pub sync: Option<
        unsafe extern "C" fn(context: *mut c_void, text: *mut c_char, text_bytes: usize) -> i32,
    >,
    /// Called once, when nothing will be called any more: after fp_close, a moment later at times
    /// and by another thread; or before fp_open_pager returns NULL because it could not be mapped
    /// (not when an argument is wrong). What the functions use must stay until then. NULL: nobody
    /// wants to know. Not called in a child of fork.
    pub closed: Option<unsafe extern "C" fn(context: *mut c_void)>,
}

const NONE: FpPager = FpPager {
    size: size_of::<FpPager>(),
    context: std::ptr::null_mut(),
    name: std::ptr::null(),
    version: std::ptr::null(),
    bytes: 0,
    reach: FP_NEAR,
    read_at: None,
    write_at: None,
    sync: None,
    closed: None,
};

struct Callbacks {
    name: String,
    version: Option<String>,
    table: FpPager,
    process: u32,
}

// SAFETY: the header says that the functions are called by several threads at a time.
unsafe impl Send for Callbacks {}
// SAFETY: as above.
unsafe impl Sync for Callbacks {}

impl Callbacks {
    /// What a function said that returned `code`.
    fn failure(&self, code: i32, offset: u64, text: &[u8; FP_TEXT_BYTES]) -> SourceError {
        let said = CStr::from_bytes_until_nul(text).map(CStr::to_string_lossy);
        let cause = match said {
            Ok(said) if !said.is_empty() => said.into_owned(),
            _ => format!("it returned {code}"),
        };
        let name = self.name.clone();
        match code {
            FP_UNREACHABLE => SourceError::Unreachable {
                name,
                cause,
                retry_after: None,
            },
            FP_CORRUPT => SourceError::Corrupt {
                name,
                offset,
                cause,
            },
            _ => SourceError::Callback {
                name,
                offset,
                cause,
            },
        }
    }

    /// Calls a function with room for text.
    fn ask(
        &self,
        offset: u64,
        function: impl FnOnce(*mut c_char, usize) -> i32,
    ) -> Result<(), SourceError> {
        let mut text = [0u8; FP_TEXT_BYTES];
        match function(text.as_mut_ptr().cast(), FP_TEXT_BYTES) {
            FP_OK => Ok(()),
            code => Err(self.failure(code, offset, &text)),
        }
    }
}

impl Source for Callbacks {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.table.bytes
    }

    fn version(&self) -> Option<String> {
        self.version.clone()
    }

    fn reach(&self) -> Reach {
        match self.table.reach {
            FP_FAR => Reach::Far,
            _ => Reach::Near,
        }
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        let bytes = buffer.len();
        let end = offset.saturating_add(bytes as u64);
        if end > self.table.bytes {
            return Err(SourceError::Short {
                name: self.name.clone(),
                offset,
                bytes: bytes as u64,
                end: self.table.bytes,
            });
        }
        let Some(read) = self.table.read_at.filter(|_| bytes > 0) else {
            return Ok(());
        };
        let (context, to) = (self.table.context, buffer.as_mut_ptr().cast());
        self.ask(offset, |text, room| {
            // SAFETY: the caller's function, as the header describes it.
            unsafe { read(context, offset, to, bytes, text, room) }
        })
    }

    fn is_writable(&self) -> bool {
        self.table.write_at.is_some()
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), SourceError> {
        let Some(write) = self.table.write_at else {
            let name = self.name.clone();
            return Err(SourceError::ReadOnly { name });
        };
        let (context, from) = (self.table.context, bytes.as_ptr().cast());
        self.ask(offset, |text, room| {
            // SAFETY: as in `read_at`.
            unsafe { write(context, offset, from, bytes.len(), text, room) }
        })
    }

    fn sync(&self) -> Result<(), SourceError> {
        let Some(sync) = self.table.sync else {
            return Ok(());
        };
        let context = self.table.context;
        self.ask(0, |text, room| {
            // SAFETY: as in `read_at`.
            unsafe { sync(context, text, room) }
        })
    }
}

impl Drop for Callbacks {
    fn drop(&mut self) {
        // In a child of fork it is the parent's still.
        if self.process != std::process::id() {
            return;
        }
        if let Some(closed) = self.table.closed {
            // SAFETY: as in `read_at`; nobody else has this value.
            unsafe { closed(self.table.context) };
        }
    }
}

/// The table at `pager`, checked; `closed` is called when it is dropped.
///
/// # Safety
/// NULL, or a table that begins with its size, with text that ends with NUL.
pub(crate) unsafe fn callbacks(pager: *const FpPager) -> Result<Arc<dyn Source>, Failure> {
    if pager.is_null() {
        return Err(Failure::argument("pager: it is NULL; give one"));
    }
    // SAFETY: the caller says so.
    let table = unsafe { copy_known(pager, NONE, "pager") }?;
    if table.read_at.is_none() {
        return Err(Failure::argument("pager: read_at is NULL; give a function"));
    }
    if !matches!(table.reach, FP_NEAR | FP_FAR) {
        return Err(Failure::argument(
            "pager: its reach is neither FP_NEAR nor FP_FAR; give one of them",
        ));
    }
    // SAFETY: the caller says so.
    let name = unsafe { text(table.name, "name of the pager") }?.to_owned();
    let version = match table.version.is_null() {
        true => None,
        // SAFETY: as above.
        false => Some(unsafe { text(table.version, "version of the pager") }?.to_owned()),
    };
    Ok(Arc::new(Callbacks {
        name,
        version,
        table,
        process: std::process::id(),
    }))
}

/// Maps `pager->bytes` bytes that the functions of `pager` answer for. The table is copied. Of
/// `options`, which may be NULL, those count that say how it is mapped and read; it can be written
/// to with FP_WRITE and a function `write_at`, or with FP_COPY. Returns NULL when it fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_open_pager(
    pager: *const FpPager,
    options: *const FpOptions,
    error: *mut FpError,
) -> *mut FpMemory {
    let open = || {
        // SAFETY: the header asks for NULL or options. First: with a wrong argument `closed` is not
        // called.
        let options = unsafe { self::options(options) }?;
        // SAFETY: the header asks for NULL or a table that begins with its size.
        let callbacks = unsafe { callbacks(pager) }?;
        Ok(boxed(Memory::of_source(callbacks, &options.open)?))
    };
    // SAFETY: NULL or the caller's own.
    unsafe { call(error, std::ptr::null_mut(), open) }
}
