//! Registrations: memory that stays registered with a device after its use.

use std::ffi::{c_int, c_void};
use std::io;
use std::os::fd::BorrowedFd;

use farpage::registrations::{
    Limits, Pinning, Register, RegisterError, Registrations, RingBuffers,
};

use crate::error::{
    FP_ARGUMENT, FP_CALLBACK, FP_KERNEL, FP_UNSUPPORTED, Failure, FpError, call, coded,
};

/// A cache of registrations.
pub struct FpRegCache(Registrations);

/// What a program registers memory with: a driver's functions. They are called by one thread at a
/// time, perhaps one of the library's, and must not use the cache.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FpReg {
    /// sizeof(fp_reg).
    pub size: usize,
    /// Given to the functions.
    pub context: *mut c_void,
    /// Registers whole pages and writes what they are known by. Returns 0, or an errno: after ENOMEM and
    /// ENOSPC it is asked again when others were given up.
    pub add: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            address: *mut c_void,
            bytes: usize,
            token: *mut u64,
        ) -> c_int,
    >,
    /// Gives them up. The memory may be gone.
    pub remove: Option<
        unsafe extern "C" fn(context: *mut c_void, address: *mut c_void, bytes: usize, token: u64),
    >,
}

/// Memory that is registered until it is put back.
#[repr(C)]
pub struct FpRegistered {
    /// What it is known by: of fp_reg's function, or the index of a ring's buffer.
    pub token: u64,
    /// The first address that is registered.
    pub address: *mut c_void,
    /// So many bytes, all that was asked for and perhaps more.
    pub bytes: usize,
    /// The cache's number of it.
    pub number: u32,
}

/// Some memory; as struct iovec.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FpArea {
    /// The first address.
    pub address: *const c_void,
    /// So many bytes.
    pub bytes: usize,
}

/// The functions of a program.
struct Driver {
    context: *mut c_void,
    add: unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *mut u64) -> c_int,
    remove: unsafe extern "C" fn(*mut c_void, *mut c_void, usize, u64),
}

// SAFETY: the header says that any thread may call them.
unsafe impl Send for Driver {}

impl Register for Driver {
    fn register(&mut self, at: usize, bytes: usize) -> Result<u64, RegisterError> {
        const ENOMEM: c_int = 12;
        const ENOSPC: c_int = 28;
        let mut token = 0;
        let address = std::ptr::with_exposed_provenance_mut(at);
        // SAFETY: as the header says that they are called.
        match unsafe { (self.add)(self.context, address, bytes, &raw mut token) } {
            0 => Ok(token),
            errno => Err(RegisterError::Refused {
                at: at as u64,
                asked: bytes as u64 >> 10,
                why: io::Error::from_raw_os_error(errno).to_string(),
                full: matches!(errno, ENOMEM | ENOSPC),
            }),
        }
    }

    fn deregister(&mut self, at: usize, bytes: usize, token: u64) {
        let address = std::ptr::with_exposed_provenance_mut(at);
        // SAFETY: as above.
        unsafe { (self.remove)(self.context, address, bytes, token) };
    }
}

impl From<RegisterError> for Failure {
    fn from(error: RegisterError) -> Self {
        let message = error.to_string();
        let code = match error {
            RegisterError::Lock(why) => return why.into(),
            RegisterError::Large { .. } | RegisterError::Full { .. } | RegisterError::Caches(_) => {
                FP_KERNEL
            }
            RegisterError::Unwatched { .. } => FP_UNSUPPORTED,
            RegisterError::Refused { .. } => FP_CALLBACK,
            _ => FP_ARGUMENT,
        };
        Self::new(code, message)
    }
}

fn limits(most_bytes: u64, most_regions: u32) -> Limits {
    let usual = Limits::default();
    Limits {
        bytes: if most_bytes == 0 {
            usual.bytes
        } else {
            most_bytes
        },
        regions: if most_regions == 0 {
            usual.regions
        } else {
            most_regions
        },
    }
}

fn made(made: Result<Registrations, RegisterError>) -> Result<*mut FpRegCache, Failure> {
    Ok(Box::into_raw(Box::new(FpRegCache(made?))))
}

/// A cache of registrations with a device of the program's, or, when `with` is NULL, of memory whose
/// frames stay (with an io_uring of the library's, on which nothing is sent). `most_bytes` are
/// registered at most, 0: as many as can be, and `most_regions` regions, 0: 16384; what was not used
/// for longest goes first. Returns NULL when it fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_reg_cache(
    with: *const FpReg,
    most_bytes: u64,
    most_regions: u32,
    error: *mut FpError,
) -> *mut FpRegCache {
    let make = || {
        let limits = limits(most_bytes, most_regions);
        if with.is_null() {
            return made(Registrations::new(Pinning::new(), limits));
        }
        // SAFETY: the header asks for the caller's own.
        let given = unsafe { *with };
        if given.size != size_of::<FpReg>() {
            return Err(Failure::argument(format!(
                "with: its size is {}, and a fp_reg has {}; set it to sizeof(fp_reg)",
                given.size,
                size_of::<FpReg>()
            )));
        }
        let (Some(add), Some(remove)) = (given.add, given.remove) else {
            return Err(Failure::argument(
                "with: a function is NULL; give one that adds and one that removes",
            ));
        };
        let context = given.context;
        made(Registrations::new(
            Driver {
                context,
                add,
                remove,
            },
            limits,
        ))
    };
    // SAFETY: NULL or the caller's own.
    unsafe { call(error, std::ptr::null_mut(), make) }
}

/// A cache of registered buffers of an io_uring of the program's: tokens are the indexes of its buffers,
/// for reads and writes of fixed buffers. `ring` is its descriptor; its table of buffers was registered
/// sparse, and the first `buffers` places of it are the cache's: what is there is replaced. A ring has one
/// cache at a time. Returns NULL when it fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_reg_cache_of_ring(
    ring: c_int,
    buffers: u32,
    most_bytes: u64,
    error: *mut FpError,
) -> *mut FpRegCache {
    let make = || {
        if ring < 0 {
            return Err(Failure::argument(
                "ring: there is none; give its descriptor",
            ));
        }
        // SAFETY: it is open, as the caller says.
        let ring = unsafe { BorrowedFd::borrow_raw(ring) };
        let with = RingBuffers::new(ring, buffers)?;
        made(Registrations::new(with, limits(most_bytes, buffers)))
    };
    // SAFETY: NULL or the caller's own.
    unsafe { call(error, std::ptr::null_mut(), make) }
}

/// The pages that have some of the `bytes` bytes at `address`, registered: as before, without a lock or
/// a call of the system, or from now on. Put it back with fp_reg_put, in any thread. Memory that is
/// unmapped, mapped over, moved or discarded by this process is not found again; a shared memory file
/// that is cut off or punched is: call fp_reg_forget then. Returns the error's code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_reg_get(
    cache: *const FpRegCache,
    address: *const c_void,
    bytes: usize,
    registered: *mut FpRegistered,
    error: *mut FpError,
) -> i32 {
    let get = || {
        // SAFETY: NULL or the caller's own.
        let cache = unsafe { cache.as_ref() }.ok_or_else(no_cache)?;
        if registered.is_null() {
            return Err(Failure::argument(
                "registered: it is NULL; give a place for what is got",
            ));
        }
        let number = cache.0.get_number(address.addr(), bytes)?;
        // SAFETY: checked above, and the header asks for the caller's own.
        unsafe { registered.write(cache.got(number)) };
        Ok(())
    };
    // SAFETY: NULL or the caller's own.
    unsafe { coded(error, get) }
}

/// As fp_reg_get for `count` areas at once, a list of scatter or gather: all of them, or none. What
/// overlaps, or follows each other, is registered as one. `registered` has `count` places, in the order
/// of the areas; each is put back by itself. Returns the error's code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_reg_get_all(
    cache: *const FpRegCache,
    areas: *const FpArea,
    count: usize,
    registered: *mut FpRegistered,
    error: *mut FpError,
) -> i32 {
    let get = || {
        // SAFETY: NULL or the caller's own.
        let cache = unsafe { cache.as_ref() }.ok_or_else(no_cache)?;
        if count == 0 {
            return Ok(());
        }
        if areas.is_null() || registered.is_null() {
            return Err(Failure::argument(
                "areas, registered: one is NULL; give as many areas as count says, and places for what is got",
            ));
        }
        // SAFETY: checked above, and the header asks for so many of the caller's own.
        let areas = unsafe { std::slice::from_raw_parts(areas, count) };
        let parts: Vec<_> = areas
            .iter()
            .map(|area| (area.address.addr(), area.bytes))
            .collect();
        for (at, number) in cache.0.get_all_numbers(&parts)?.into_iter().enumerate() {
            // SAFETY: one of `count` places, as above.
            unsafe { registered.add(at).write(cache.got(number)) };
        }
        Ok(())
    };
    // SAFETY: NULL or the caller's own.
    unsafe { coded(error, get) }
}

/// Gives back what was got, once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_reg_put(cache: *const FpRegCache, registered: *const FpRegistered) {
    // SAFETY: NULL or the caller's own.
    if let (Some(cache), Some(got)) = unsafe { (cache.as_ref(), registered.as_ref()) } {
        cache.0.put_number(got.number);
    }
}

/// 1 when memory of it went away since it was got, or more was registered together with it: what it was
/// registered with has what was there, and it is to be got again; and in a child of fork. Else 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_reg_is_gone(
    cache: *const FpRegCache,
    registered: *const FpRegistered,
) -> i32 {
    // SAFETY: NULL or the caller's own.
    match unsafe { (cache.as_ref(), registered.as_ref()) } {
        (Some(cache), Some(got)) => i32::from(!cache.0.about(got.number).2),
        _ => 1,
    }
}

/// Nothing of the `bytes` bytes at `address` is found again. What is held stays registered until it is put
/// back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_reg_forget(
    cache: *const FpRegCache,
    address: *const c_void,
    bytes: usize,
) {
    // SAFETY: NULL or the caller's own.
    if let Some(cache) = unsafe { cache.as_ref() } {
        cache.0.forget(address.addr(), bytes);
    }
}

/// Gives up all that is registered, and the cache. Nothing of it may be held.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fp_reg_cache_free(cache: *mut FpRegCache) {
    if !cache.is_null() {
        // SAFETY: of one of the functions above, as the caller says.
        drop(unsafe { Box::from_raw(cache) });
    }
}

impl FpRegCache {
    fn got(&self, number: u32) -> FpRegistered {
        let (range, token, _) = self.0.about(number);
        FpRegistered {
            token,
            address: std::ptr::with_exposed_provenance_mut(range.start),
            bytes: range.len(),
            number,
        }
    }
}

fn no_cache() -> Failure {
    Failure::argument("cache: it is NULL; give one of fp_reg_cache")
}
