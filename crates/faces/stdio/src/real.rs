//! glibc's own functions, found when they are first needed.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::file::{File, USER_LOCK};

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// The address of the next definition of `name` after ours; 0 when there is none.
pub fn find(name: &CStr) -> usize {
    const RTLD_NEXT: *mut c_void = std::ptr::without_provenance_mut(usize::MAX);
    // SAFETY: `name` is a string.
    unsafe { dlsym(RTLD_NEXT, name.as_ptr()) }.addr()
}

/// One of them.
pub struct Real {
    address: AtomicUsize,
    name: &'static CStr,
}

impl Real {
    pub const fn new(name: &'static CStr) -> Self {
        Self {
            address: AtomicUsize::new(0),
            name,
        }
    }

    /// Its address.
    pub fn address(&self) -> usize {
        match self.address.load(Ordering::Relaxed) {
            0 => {
                let found = find(self.name);
                assert!(found != 0, "the C library lacks {:?}", self.name);
                self.address.store(found, Ordering::Relaxed);
                found
            }
            known => known,
        }
    }
}

/// Declares functions of glibc that are called from here.
macro_rules! reals { ($($name:ident: $symbol:literal ($($arg:ident: $type:ty),*) -> $back:ty;)*) => { $(
    /// The function of that name in glibc.
    ///
    /// # Safety
    /// Its own conditions.
    pub unsafe fn $name($($arg: $type),*) -> $back {
        static REAL: Real = Real::new($symbol);
        type Function = unsafe extern "C" fn($($type),*) -> $back;
        // SAFETY: the C library defines it with this type.
        let function = unsafe { std::mem::transmute::<usize, Function>(REAL.address()) };
        // SAFETY: forwarded to the caller.
        unsafe { function($($arg),*) }
    }
)* } }

reals! {
    uflow: c"__uflow"(file: *mut File) -> c_int;
    underflow: c"__underflow"(file: *mut File) -> c_int;
    fread_unlocked: c"fread_unlocked"(to: *mut u8, size: usize, count: usize, file: *mut File) -> usize;
    fgets_unlocked: c"fgets_unlocked"(to: *mut c_char, most: c_int, file: *mut File) -> *mut c_char;
    getdelim: c"getdelim"(line: *mut *mut c_char, room: *mut usize, end: c_int, file: *mut File) -> isize;
    fwrite: c"fwrite"(from: *const u8, size: usize, count: usize, file: *mut File) -> usize;
    ungetc: c"ungetc"(byte: c_int, file: *mut File) -> c_int;
    ftello: c"ftello"(file: *mut File) -> i64;
    fseeko: c"fseeko"(file: *mut File, offset: i64, whence: c_int) -> c_int;
    fflush: c"fflush"(file: *mut File) -> c_int;
    setvbuf: c"setvbuf"(file: *mut File, buffer: *mut c_char, mode: c_int, size: usize) -> c_int;
    fbufsize: c"__fbufsize"(file: *mut File) -> usize;
    chk_fail: c"__chk_fail"() -> ();
    flockfile: c"flockfile"(file: *mut File) -> ();
    ftrylockfile: c"ftrylockfile"(file: *mut File) -> c_int;
    funlockfile: c"funlockfile"(file: *mut File) -> ();
}

/// True while the process has had one thread only.
pub fn is_single_threaded() -> bool {
    /// Address of glibc's own flag; 1 where there is none.
    static FLAG: AtomicUsize = AtomicUsize::new(0);
    const NONE: usize = 1;
    let mut address = FLAG.load(Ordering::Relaxed);
    if address == 0 {
        address = find(c"__libc_single_threaded").max(NONE);
        FLAG.store(address, Ordering::Relaxed);
    }
    let flag = std::ptr::with_exposed_provenance::<u8>(address);
    // SAFETY: glibc's variable, a byte that it only ever sets to 0 while there are more threads.
    address != NONE && unsafe { flag.read_volatile() } != 0
}

/// The stream's lock, held.
pub struct Lock(Option<*mut File>);

impl Lock {
    /// Waits for it, unless there is nobody to wait for.
    ///
    /// # Safety
    /// `file` must be an open stream.
    pub unsafe fn take(file: *mut File) -> Self {
        // SAFETY: forwarded to the caller.
        let own = unsafe { (*file).flags } & USER_LOCK != 0;
        if own || is_single_threaded() {
            return Self(None);
        }
        // SAFETY: forwarded to the caller.
        unsafe { flockfile(file) };
        Self(Some(file))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some(file) = self.0 {
            // SAFETY: it was locked by `take`, and stays open while it is used.
            unsafe { funlockfile(file) };
        }
    }
}
