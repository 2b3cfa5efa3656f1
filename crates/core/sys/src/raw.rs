//! The system call instruction, error numbers, and the gate.

use core::arch::asm;
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};

/// A system error number, as in `errno(3)`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

/// What system calls return.
pub type Result<T> = core::result::Result<T, Errno>;

macro_rules! errnos { ($($name:ident = $value:expr),* $(,)?) => {
    impl Errno {
        $(#[doc = concat!("`", stringify!($name), "`")] pub const $name: Self = Self($value);)*

        /// The symbolic name, for messages.
        pub fn name(self) -> &'static str {
            match self { $(Self::$name => stringify!($name),)* _ => "unknown error" }
        }
    }
} }
errnos!(
    EPERM = 1,
    ENOENT = 2,
    ESRCH = 3,
    EINTR = 4,
    EIO = 5,
    ENXIO = 6,
    E2BIG = 7,
    ENOEXEC = 8,
    EBADF = 9,
    ECHILD = 10,
    EAGAIN = 11,
    ENOMEM = 12,
    EACCES = 13,
    EFAULT = 14,
    EBUSY = 16,
    EEXIST = 17,
    ENODEV = 19,
    ENOTDIR = 20,
    EISDIR = 21,
    EINVAL = 22,
    ENFILE = 23,
    EMFILE = 24,
    ENOTTY = 25,
    ETXTBSY = 26,
    EFBIG = 27,
    ENOSPC = 28,
    EROFS = 30,
    EPIPE = 32,
    ERANGE = 34,
    ENAMETOOLONG = 36,
    ENOSYS = 38,
    ELOOP = 40,
    EBADE = 52,
    ENODATA = 61,
    ENOLINK = 67,
    EPROTO = 71,
    EILSEQ = 84,
    ENOTSOCK = 88,
    EMSGSIZE = 90,
    EOPNOTSUPP = 95,
    ECONNRESET = 104,
    ENOTCONN = 107,
    ETOOMANYREFS = 109,
    ETIMEDOUT = 110,
    ECONNREFUSED = 111,
    ESTALE = 116,
    EUCLEAN = 117,
    EREMOTEIO = 121,
    EDQUOT = 122,
    ENOMEDIUM = 123,
);

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl core::error::Error for Errno {}

/// Address of the gate, or 0: then calls are issued in line.
static GATE: AtomicUsize = AtomicUsize::new(0);

/// Sends all later system calls of this crate through the gate at `address`.
///
/// # Safety
/// A function `extern "C" fn(nr, a, b, c, d, e, f) -> isize` that makes the call must lie at `address`, for
/// the life of the process.
pub unsafe fn set_gate(address: usize) {
    GATE.store(address, Ordering::Release);
}

/// Address of the gate, if it is set.
pub fn gate() -> Option<usize> {
    match GATE.load(Ordering::Relaxed) {
        0 => None,
        address => Some(address),
    }
}

/// Issues system call `nr`.
///
/// # Safety
/// The call's own conditions: pointers among the arguments must be valid for what it does.
#[inline]
pub unsafe fn syscall(nr: u32, args: [usize; 6]) -> Result<usize> {
    // SAFETY: the caller upholds the call's conditions.
    result(unsafe { issue(nr as usize, args) })
}

/// What the value means that a call returned.
#[inline]
pub(crate) fn result(value: isize) -> Result<usize> {
    if (-4095..0).contains(&value) {
        Err(Errno(-value as i32))
    } else {
        Ok(value as usize)
    }
}

#[inline]
unsafe fn issue(nr: usize, a: [usize; 6]) -> isize {
    let gate = GATE.load(Ordering::Relaxed);
    if gate != 0 {
        type Gate = extern "C" fn(usize, usize, usize, usize, usize, usize, usize) -> isize;
        // SAFETY: `set_gate`'s caller put a function of this type there.
        let call = unsafe { core::mem::transmute::<usize, Gate>(gate) };
        return call(nr, a[0], a[1], a[2], a[3], a[4], a[5]);
    }
    // SAFETY: the caller upholds the call's conditions.
    unsafe { instruction(nr, a) }
}

/// # Safety
/// As [`syscall`].
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn instruction(nr: usize, a: [usize; 6]) -> isize {
    let value: isize;
    // SAFETY: the caller upholds the call's conditions; the clobbers are those of the ABI.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") nr as isize => value,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    value
}

/// # Safety
/// As [`syscall`].
#[cfg(target_arch = "s390x")]
#[inline]
unsafe fn instruction(nr: usize, a: [usize; 6]) -> isize {
    let value: isize;
    // SAFETY: the caller upholds the call's conditions; Linux changes no other register.
    unsafe {
        asm!(
            "svc 0",
            in("r1") nr,
            inlateout("r2") a[0] as isize => value,
            in("r3") a[1], in("r4") a[2], in("r5") a[3], in("r6") a[4], in("r7") a[5],
            options(nostack)
        );
    }
    value
}

/// `syscall!(nr, args...)`: issues a call with up to six arguments, each converted with `as usize`.
#[macro_export]
macro_rules! syscall {
    ($nr:expr $(, $arg:expr)* $(,)?) => {{
        #[allow(unused_mut, unused_assignments)]
        {
            let mut args = [0usize; 6];
            let mut _at = 0;
            $( args[_at] = $arg as usize; _at += 1; )*
            $crate::raw::syscall($nr, args)
        }
    }};
}
