//! Errors, as C sees them.

use std::any::Any;
use std::ffi::{CStr, CString, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use farpage::{Error, SourceError};

/// No error.
pub const FP_OK: i32 = 0;
/// An argument that makes no sense.
pub const FP_ARGUMENT: i32 = 1;
/// Nothing is there.
pub const FP_NOT_FOUND: i32 = 2;
/// Access is not allowed.
pub const FP_DENIED: i32 = 3;
/// It is not the version that was opened.
pub const FP_CHANGED: i32 = 4;
/// It ends before it should.
pub const FP_SHORT: i32 = 5;
/// A server answered with other bytes than those asked for.
pub const FP_WRONG_RANGE: i32 = 6;
/// It could not be reached. From a callback: worth another try.
pub const FP_UNREACHABLE: i32 = 7;
/// It was tried again until the deadline.
pub const FP_TIMED_OUT: i32 = 8;
/// Reading or writing failed.
pub const FP_IO: i32 = 9;
/// The bytes are not what they must be.
pub const FP_CORRUPT: i32 = 10;
/// It is of a kind that cannot be opened.
pub const FP_UNSUPPORTED: i32 = 11;
/// It cannot be written to.
pub const FP_READ_ONLY: i32 = 12;
/// A value has no exact counterpart in the type that the source holds.
pub const FP_NOT_EXACT: i32 = 13;
/// A callback of the program's failed.
pub const FP_CALLBACK: i32 = 14;
/// It is of no format of arrays that is known, or breaks its rules.
pub const FP_FORMAT: i32 = 15;
/// The machine does not allow it: userfaultfd, memory, the budget.
pub const FP_KERNEL: i32 = 16;
/// Pages could not be written back; they stay in memory.
pub const FP_NOT_WRITTEN: i32 = 17;
/// A failure inside Farpage: please report it.
pub const FP_PANIC: i32 = 18;
/// A failure that this version of the library has no code for.
pub const FP_OTHER: i32 = 19;
/// The caller has the lock, and a process died that had it.
pub const FP_HOLDER_DIED: i32 = 20;
/// Not all parties of a barrier will come.
pub const FP_BROKEN: i32 = 21;
/// Shared memory was lost with the host that had it.
pub const FP_LOST: i32 = 22;
/// Memory is not what was locked any more.
pub const FP_STALE: i32 = 23;

/// What a call came to. Every function that takes one fills it in, also with FP_OK; it takes NULL
/// as well. What is in it before is not looked at. New codes are added at the end.
#[repr(C)]
pub struct FpError {
    /// FP_OK, or why not.
    pub code: i32,
    /// What, why, and what to do about it; NULL with FP_OK. Give it back with fp_error_free.
    pub message: *mut c_char,
}

/// Why a call fails, on this side.
pub(crate) struct Failure {
    code: i32,
    message: String,
}

impl Failure {
    pub(crate) fn new(code: i32, message: String) -> Self {
        Self { code, message }
    }

    pub(crate) fn argument(message: impl Into<String>) -> Self {
        Self {
            code: FP_ARGUMENT,
            message: message.into(),
        }
    }
}

fn code_of_source(error: &SourceError) -> i32 {
    match error {
        SourceError::NotFound { .. } => FP_NOT_FOUND,
        SourceError::Denied { .. } => FP_DENIED,
        SourceError::Changed { .. } => FP_CHANGED,
        SourceError::Short { .. } => FP_SHORT,
        SourceError::WrongRange { .. } => FP_WRONG_RANGE,
        SourceError::Unreachable { .. } => FP_UNREACHABLE,
        SourceError::TimedOut { .. } => FP_TIMED_OUT,
        SourceError::Io { .. } => FP_IO,
        SourceError::Corrupt { .. } => FP_CORRUPT,
        SourceError::Unsupported { .. } => FP_UNSUPPORTED,
        SourceError::ReadOnly { .. } => FP_READ_ONLY,
        SourceError::NotExact { .. } => FP_NOT_EXACT,
        SourceError::Callback { .. } => FP_CALLBACK,
        _ => FP_OTHER,
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Source(why) | Error::NotRead { why } => code_of_source(why),
            Error::Format { .. } => FP_FORMAT,
            Error::Kernel(_) => FP_KERNEL,
            Error::Argument { .. } => FP_ARGUMENT,
            Error::NotWritten { .. } => FP_NOT_WRITTEN,
            _ => FP_OTHER,
        };
        let message = error.to_string();
        Self { code, message }
    }
}

impl From<SourceError> for Failure {
    fn from(error: SourceError) -> Self {
        Error::from(error).into()
    }
}

fn of_panic(panic: &(dyn Any + Send)) -> Failure {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    Failure {
        code: FP_PANIC,
        message: format!(
            "a failure inside Farpage: {}; please report it",
            text.unwrap_or("of unknown kind")
        ),
    }
}

/// Text for C: what a NUL would cut is kept, the NUL is not.
pub(crate) fn c_text(text: &str) -> CString {
    let bytes: Vec<u8> = text.bytes().filter(|byte| *byte != 0).collect();
    CString::new(bytes).unwrap_or_default()
}

/// Does what a function does and fills in `error`; returns `failed` when it fails.
///
/// # Safety
/// `error` is NULL or may be written to.
pub(crate) unsafe fn call<T>(
    error: *mut FpError,
    failed: T,
    body: impl FnOnce() -> Result<T, Failure>,
) -> T {
    let done = catch_unwind(AssertUnwindSafe(body));
    let done = done.unwrap_or_else(|panic| Err(of_panic(&*panic)));
    let (value, filled) = match done {
        Ok(value) => (value, (FP_OK, std::ptr::null_mut())),
        Err(Failure { code, message }) => (failed, (code, c_text(&message).into_raw())),
    };
    let (code, message) = filled;
    if !error.is_null() {
        // SAFETY: the caller says so.
        unsafe { error.write(FpError { code, message }) };
    } else if !message.is_null() {
        // SAFETY: made above, and nobody has it.
        drop(unsafe { CString::from_raw(message) });
    }
    value
}

/// As [`call`], of functions that return their code.
///
/// # Safety
/// As for [`call`].
pub(crate) unsafe fn coded(error: *mut FpError, body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    let mut code = FP_OK;
    let noting = || {
        let done = catch_unwind(AssertUnwindSafe(body));
        let done = done.unwrap_or_else(|panic| Err(of_panic(&*panic)));
        done.inspect_err(|failure| code = failure.code)
    };
    // SAFETY: forwarded.
    unsafe { call(error, (), noting) };
    code
}

/// The text at `text`.
///
/// # Safety
/// `text` is NULL or ends with a NUL, and lives as long as it is used.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::argument(format!("{what}: it is NULL; give text")));
    }
    // SAFETY: the caller says so.
    let text = unsafe { CStr::from_ptr(text) };
    let text = text.to_str();
    text.map_err(|_| Failure::argument(format!("{what}: it is not UTF-8; give text in UTF-8")))
}

/// What `handle` points to.
///
/// # Safety
/// `handle` is NULL, or what the library returned and has not got back.
pub(crate) unsafe fn handle<'a, T>(handle: *const T, what: &str) -> Result<&'a T, Failure> {
    // SAFETY: the caller says so.
    let there = unsafe { handle.as_ref() };
    there.ok_or_else(|| Failure::argument(format!("{what}: it is NULL; give what was opened")))
}

/// What a call reads from.
///
/// # Safety
/// `buffer` is NULL, or has so many bytes, which nobody changes meanwhile.
pub(crate) unsafe fn bytes_at<'a>(
    buffer: *const c_void,
    bytes: usize,
) -> Result<&'a [u8], Failure> {
    match (bytes, buffer.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(no_buffer()),
        // SAFETY: the caller says so.
        (_, false) => Ok(unsafe { std::slice::from_raw_parts(buffer.cast(), bytes) }),
    }
}

/// What a call writes to.
///
/// # Safety
/// `buffer` is NULL, or has so many bytes, which only this call uses.
pub(crate) unsafe fn bytes_at_mut<'a>(
    buffer: *mut c_void,
    bytes: usize,
) -> Result<&'a mut [u8], Failure> {
    match (bytes, buffer.is_null()) {
        (0, _) => Ok(&mut []),
        (_, true) => Err(no_buffer()),
        // SAFETY: the caller says so.
        (_, false) => Ok(unsafe { std::slice::from_raw_parts_mut(buffer.cast(), bytes) }),
    }
}

fn no_buffer() -> Failure {
    Failure::argument("buffer: it is NULL; give one")
}

/// Gives the message of an error back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_error_free(error: *mut FpError) {
    // SAFETY: NULL, or the caller's own.
    let Some(error) = (unsafe { error.as_mut() }) else {
        return;
    };
    let message = std::mem::replace(&mut error.message, std::ptr::null_mut());
    error.code = FP_OK;
    if !message.is_null() {
        // SAFETY: filled in by `call`, and given back once.
        drop(unsafe { CString::from_raw(message) });
    }
}

/// The version of the library, as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn fp_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error_and_goes_no_further() {
        let mut error = FpError {
            code: 99,
            message: std::ptr::null_mut(),
        };
        // SAFETY: `error` is this test's own.
        let code = unsafe { coded(&mut error, || panic!("out of {}", "luck")) };
        assert_eq!((code, error.code), (FP_PANIC, FP_PANIC));
        // SAFETY: filled in above.
        let message = unsafe { CStr::from_ptr(error.message) };
        assert!(message.to_str().unwrap().contains("out of luck"));
        // SAFETY: as above.
        unsafe { fp_error_free(&mut error) };
        assert!(error.message.is_null());
        // SAFETY: NULL is allowed.
        let value = unsafe { call(std::ptr::null_mut(), 7, || Err(Failure::argument("x\0y"))) };
        assert_eq!((value, c_text("x\0y").to_bytes()), (7, &b"xy"[..]));
    }
}
