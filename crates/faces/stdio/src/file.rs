//! glibc's `FILE`, as programs compiled with its macros know it.

use std::ffi::c_void;
use std::ptr;

/// `struct _IO_FILE`. Its fields before `lock` are part of what programs are compiled with; `mode`
/// has been where it is since glibc 2.2.
#[repr(C)]
pub struct File {
    pub flags: i32,
    pub read_ptr: *mut u8,
    pub read_end: *mut u8,
    pub read_base: *mut u8,
    write: [*mut u8; 3],
    pub buf_base: *mut u8,
    pub buf_end: *mut u8,
    save_base: *mut u8,
    backup: [*mut u8; 2],
    markers: *mut c_void,
    chain: *mut c_void,
    pub fileno: i32,
    flags2: i32,
    old_offset: i64,
    column: u16,
    vtable_offset: i8,
    short: [u8; 1],
    lock: *mut c_void,
    /// Where glibc believes the descriptor is.
    pub offset: i64,
    wide: [*mut c_void; 4],
    pad: usize,
    mode: i32,
    unused: [u8; 20],
}

const _: () = {
    assert!(size_of::<File>() == 216);
    assert!(std::mem::offset_of!(File, fileno) == 112);
    assert!(std::mem::offset_of!(File, offset) == 144);
    assert!(std::mem::offset_of!(File, mode) == 192);
};

const UNBUFFERED: i32 = 0x2;
const NO_READS: i32 = 0x4;
pub const EOF_SEEN: i32 = 0x10;
pub const ERR_SEEN: i32 = 0x20;
const IN_BACKUP: i32 = 0x100;
const LINE_BUF: i32 = 0x200;
/// Something was written last. `forward` has this number in its instructions.
const PUTTING: i32 = 0x800;
pub const USER_LOCK: i32 = 0x8000;
/// In `flags2`: glibc sets it in all streams when there is a second thread.
const NEEDS_LOCK: i32 = 0x80;

/// An offset that glibc has to ask for.
pub const UNKNOWN: i64 = -1;
/// A stream that was read or written by bytes, not by wide characters.
const BYTES: i32 = -1;

impl File {
    /// False while the process has one thread, as glibc itself asks.
    #[inline]
    pub fn needs_lock(&self) -> bool {
        self.flags2 & NEEDS_LOCK != 0
    }

    /// Bytes that can be taken at once.
    pub fn ready(&self) -> usize {
        self.read_end.addr().saturating_sub(self.read_ptr.addr())
    }

    /// True when glibc has used up a full buffer of bytes that it read last, and would now read the
    /// next.
    pub fn could_read_on(&self) -> bool {
        let unfit = UNBUFFERED | NO_READS | EOF_SEEN | IN_BACKUP | LINE_BUF | PUTTING;
        self.flags & unfit == 0
            && self.mode == BYTES
            && self.fileno >= 0
            && self.save_base.is_null()
            && self.markers.is_null()
            && !self.buf_base.is_null()
            && self.read_base == self.buf_base
            && self.read_ptr == self.read_end
            && self.read_end == self.buf_end
    }

    /// Nothing to take: what comes next is glibc's to read.
    pub fn empty(&mut self) {
        self.take(self.buf_base, self.buf_base, self.buf_base);
    }

    /// These bytes are to be taken.
    pub fn take(&mut self, base: *mut u8, at: *mut u8, end: *mut u8) {
        (self.read_base, self.read_ptr, self.read_end) = (base, at, end);
    }
}

/// Sets what `errno` is.
pub fn set_errno(value: i32) {
    unsafe extern "C" {
        fn __errno_location() -> *mut i32;
    }
    // SAFETY: glibc's own place for it, of this thread.
    unsafe { ptr::write(__errno_location(), value) };
}
