//! userfaultfd: opening, registering, answering.
//!
//! Structures and codes are our own: no crate has all of them, and distributions' headers are
//! older than the kernels that they run.

use farpage_object::Tier;
use linux_raw_sys::general as g;

use crate::file::{self, Fd, ioctl};
use crate::raw::{Errno, Result};
use crate::syscall;

const fn code(direction: u32, number: u32, bytes: usize) -> u32 {
    direction << 30 | (bytes as u32) << 16 | 0xAA << 8 | number
}
const READ: u32 = 2;
const READ_WRITE: u32 = 3;
const API: u32 = code(READ_WRITE, 0x3f, size_of::<Api>());
/// The request of `ioctl(2)` by which memory begins to be managed.
pub const REGISTER: u32 = code(READ_WRITE, 0x00, size_of::<Register>());
const UNREGISTER: u32 = code(READ, 0x01, size_of::<Range>());
const WAKE: u32 = code(READ, 0x02, size_of::<Range>());
const COPY: u32 = code(READ_WRITE, 0x03, size_of::<Copy>());
const ZEROPAGE: u32 = code(READ_WRITE, 0x04, size_of::<Zero>());
const MOVE: u32 = code(READ_WRITE, 0x05, size_of::<Copy>());
const WRITEPROTECT: u32 = code(READ_WRITE, 0x06, size_of::<Protect>());
const CONTINUE: u32 = code(READ_WRITE, 0x07, size_of::<Zero>());
const POISON: u32 = code(READ_WRITE, 0x08, size_of::<Zero>());
const DEVICE_NEW: u32 = 0xAA << 8;

/// Feature bits of `UFFDIO_API`.
pub mod features {
    /// Write-protection faults are reported as such.
    pub const FAULT_FLAG_WP: u64 = 1 << 0;
    /// Faults on pages of a memory file that are there but not mapped are reported.
    pub const MINOR_SHMEM: u64 = 1 << 10;
    /// `mremap` is reported.
    pub const EVENT_REMAP: u64 = 1 << 2;
    /// `MADV_DONTNEED`, `MADV_FREE` and `MADV_REMOVE` are reported.
    pub const EVENT_REMOVE: u64 = 1 << 3;
    /// `munmap`, and what is mapped over, are reported.
    pub const EVENT_UNMAP: u64 = 1 << 6;
    /// Pages of memory files can be write-protected.
    pub const WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
    /// Missing faults raise SIGBUS in the faulting thread instead of a message.
    pub const SIGBUS: u64 = 1 << 7;
    /// Messages carry the faulting thread's id.
    pub const THREAD_ID: u64 = 1 << 8;
    /// Pages that were never populated can be write-protected.
    pub const WP_UNPOPULATED: u64 = 1 << 13;
    /// `UFFDIO_POISON`.
    pub const POISON: u64 = 1 << 14;
    /// Write-protection that Linux resolves by itself.
    pub const WP_ASYNC: u64 = 1 << 15;
    /// `UFFDIO_MOVE`.
    pub const MOVE: u64 = 1 << 16;
}

const USER_MODE_ONLY: u32 = 1;
/// Faults that a range is registered for.
const MISSING: u64 = 1;
const PROTECTED: u64 = 2;
const MINOR: u64 = 4;
const API_VERSION: u64 = 0xAA;
/// What messages are of.
const PAGEFAULT: u8 = 0x12;
const REMAP: u8 = 0x14;
const REMOVE: u8 = 0x15;
const UNMAP: u8 = 0x16;

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Range {
    start: u64,
    bytes: u64,
}

#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct Copy {
    to: u64,
    from: u64,
    bytes: u64,
    mode: u64,
    done: i64,
}

#[repr(C)]
struct Zero {
    range: Range,
    mode: u64,
    done: i64,
}

#[repr(C)]
struct Protect {
    range: Range,
    mode: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawMessage {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u32,
    padding: u32,
}

const _: () = {
    assert!(size_of::<Api>() == 24 && size_of::<Range>() == 16 && size_of::<Register>() == 32);
    assert!(size_of::<Copy>() == 40 && size_of::<Zero>() == 32 && size_of::<Protect>() == 24);
    assert!(size_of::<RawMessage>() == 32);
};

/// A fault that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Address, as far as the kernel tells: at least its page.
    pub address: usize,
    /// The thread wants to write.
    pub write: bool,
    /// The page is there and write-protected.
    pub protection: bool,
    /// The thread (0 when unknown).
    pub thread: u32,
}

/// How far an operation on a range came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes done from the range's start.
    pub bytes: usize,
    /// Why it stopped before the end.
    pub stopped: Option<Errno>,
}

/// A userfaultfd. Not owned: it lives at a fixed number for the life of the process.
#[derive(Clone, Copy, Debug)]
pub struct Uffd(pub Fd);

/// `/dev/userfaultfd`, for who may open it.
pub fn device() -> Option<Fd> {
    crate::file::open(c"/dev/userfaultfd", g::O_RDWR | g::O_CLOEXEC, 0).ok()
}

/// Acts with the [`device`], and closes it.
pub fn with_device<T>(act: impl FnOnce(Option<Fd>) -> T) -> T {
    let device = device();
    let result = act(device);
    device.into_iter().for_each(crate::file::close);
    result
}

/// True when this user's userfaultfd serves system calls, too ([`Tier`]).
pub fn serves_system_calls() -> bool {
    with_device(open).is_ok_and(|(uffd, tier)| {
        crate::file::close(uffd.0);
        tier != Tier::UserModeOnly
    })
}

/// Opens a userfaultfd by the best way this process has, without enabling features yet.
/// `device`: an open `/dev/userfaultfd`, if there is one.
///
/// # Errors
/// The error of the last way tried.
pub fn open(device: Option<Fd>) -> Result<(Uffd, Tier)> {
    let flags = g::O_CLOEXEC;
    if let Some(device) = device {
        // SAFETY: the request takes its flags by value.
        let made = unsafe { syscall!(g::__NR_ioctl, device.0, DEVICE_NEW, flags) };
        if let Ok(fd) = made {
            return Ok((Uffd(Fd(fd as i32)), Tier::Device));
        }
    }
    // SAFETY: takes no pointer.
    if let Ok(fd) = unsafe { syscall!(g::__NR_userfaultfd, flags) } {
        return Ok((Uffd(Fd(fd as i32)), Tier::Syscall));
    }
    // SAFETY: takes no pointer.
    let fd = unsafe { syscall!(g::__NR_userfaultfd, flags | USER_MODE_ONLY) }?;
    Ok((Uffd(Fd(fd as i32)), Tier::UserModeOnly))
}

/// The features that this kernel offers, by asking a descriptor that is thrown away.
///
/// # Errors
/// As [`open`].
pub fn offered(device: Option<Fd>) -> Result<u64> {
    let (uffd, _) = open(device)?;
    let mut api = Api {
        api: API_VERSION,
        features: 0,
        ioctls: 0,
    };
    // SAFETY: `api` is the structure that the request expects.
    let asked = unsafe { ioctl(uffd.0, API, &mut api) };
    file::close(uffd.0);
    asked.map(|_| api.features)
}

/// Repeats `step`, which is told how many bytes are done and tells its result and how far it came,
/// until `bytes` are done or it fails: EAGAIN means that it was interrupted.
fn in_steps(bytes: usize, mut step: impl FnMut(usize) -> (Result<usize>, i64)) -> Progress {
    let mut done = 0;
    while done < bytes {
        match step(done) {
            (Ok(_), _) => done = bytes,
            (Err(Errno::EAGAIN), came) if came > 0 => done += came as usize,
            (Err(Errno::EAGAIN), _) => core::hint::spin_loop(),
            (Err(errno), _) => {
                return Progress {
                    bytes: done,
                    stopped: Some(errno),
                };
            }
        }
    }
    Progress {
        bytes: done,
        stopped: None,
    }
}

impl Uffd {
    /// Agrees with the kernel on `features`. Once per descriptor, before anything else.
    ///
    /// # Errors
    /// `EINVAL` when a feature is not there, `EPERM` when it is not allowed.
    pub fn enable(self, features: u64) -> Result<()> {
        let mut api = Api {
            api: API_VERSION,
            features,
            ioctls: 0,
        };
        // SAFETY: `api` is the structure that the request expects.
        unsafe { ioctl(self.0, API, &mut api) }.map(drop)
    }

    /// Registers a range for missing and write-protection faults.
    ///
    /// # Safety
    /// From now on threads that touch absent pages there wait until somebody answers.
    ///
    /// # Errors
    /// `ENOMEM` when nothing is mapped there or there are too many mappings, `EBUSY` when another
    /// userfaultfd has it, `EINVAL` when its kind does not allow it.
    pub unsafe fn register(self, at: usize, bytes: usize) -> Result<()> {
        // SAFETY: forwarded to the caller.
        unsafe { self.register_for(MISSING | PROTECTED, at, bytes) }
    }

    /// Registers a range of a shared file for missing faults only.
    ///
    /// # Safety
    /// As for [`Uffd::register`].
    ///
    /// # Errors
    /// As for [`Uffd::register`]; `EPERM` when the file is mapped shared and cannot be written.
    pub unsafe fn register_missing(self, at: usize, bytes: usize) -> Result<()> {
        // SAFETY: forwarded to the caller.
        unsafe { self.register_for(MISSING, at, bytes) }
    }

    /// Registers a range of a memory file for all faults: no page is mapped there, and none written
    /// to, unless somebody lets it ([`Uffd::map_in`], [`Uffd::set_protected`]).
    ///
    /// # Safety
    /// As for [`Uffd::register`].
    ///
    /// # Errors
    /// As for [`Uffd::register_missing`].
    pub unsafe fn register_all(self, at: usize, bytes: usize) -> Result<()> {
        // SAFETY: forwarded to the caller.
        unsafe { self.register_for(MISSING | PROTECTED | MINOR, at, bytes) }
    }

    /// Registers a range for write-protection faults only.
    ///
    /// # Safety
    /// From now on threads that write to pages that are protected there wait until somebody answers.
    ///
    /// # Errors
    /// As for [`Uffd::register`].
    pub unsafe fn register_protected(self, at: usize, bytes: usize) -> Result<()> {
        // SAFETY: forwarded to the caller.
        unsafe { self.register_for(PROTECTED, at, bytes) }
    }

    unsafe fn register_for(self, mode: u64, at: usize, bytes: usize) -> Result<()> {
        let range = Range {
            start: at as u64,
            bytes: bytes as u64,
        };
        let mut arg = Register {
            range,
            mode,
            ioctls: 0,
        };
        // SAFETY: `arg` is the structure that the request expects.
        unsafe { ioctl(self.0, REGISTER, &mut arg) }.map(drop)
    }

    /// Gives a range back to Linux; threads that wait there go on.
    ///
    /// # Safety
    /// Absent pages there read as zeros afterwards.
    ///
    /// # Errors
    /// As for [`Uffd::register`].
    pub unsafe fn unregister(self, at: usize, bytes: usize) -> Result<()> {
        let mut arg = Range {
            start: at as u64,
            bytes: bytes as u64,
        };
        // SAFETY: `arg` is the structure that the request expects.
        unsafe { ioctl(self.0, UNREGISTER, &mut arg) }.map(drop)
    }

    /// As [`Uffd::unregister`], for ranges of [`Uffd::register_all`], in the process that the
    /// userfaultfd is of: Linux maps what the file has there, and fills what it has not with zeros.
    ///
    /// # Errors
    /// As for [`Uffd::register`]: `ENOMEM` when the process has too many mappings; `ESRCH` when it is
    /// gone.
    pub fn leave(self, at: usize, bytes: usize) -> Result<()> {
        // SAFETY: as for `map_in`; all pages of a file of zeros are contents that it may have.
        unsafe { self.unregister(at, bytes) }
    }

    /// The opposite of [`Uffd::leave`]. What is mapped stays mapped.
    ///
    /// # Errors
    /// As for [`Uffd::leave`]; `EINVAL` also when something else is mapped there.
    pub fn take_back(self, at: usize, bytes: usize) -> Result<()> {
        // SAFETY: who registered the range before waits there for the same answers again.
        unsafe { self.register_all(at, bytes) }
    }

    /// Wakes the threads that wait on a range; they fault again if the page is still not there.
    pub fn wake(self, at: usize, bytes: usize) {
        let mut arg = Range {
            start: at as u64,
            bytes: bytes as u64,
        };
        // SAFETY: `arg` is the structure that the request expects. An error means nobody waits.
        let _ = unsafe { ioctl(self.0, WAKE, &mut arg) };
    }

    /// Copies pages into absent ones and wakes their threads; write-protected when `protect`.
    ///
    /// # Safety
    /// `from` must be readable for `bytes` bytes and `to .. to + bytes` registered by this
    /// userfaultfd, as memory that the caller decides over.
    pub unsafe fn copy(self, to: usize, from: usize, bytes: usize, protect: bool) -> Progress {
        const PROTECT: u64 = 2;
        let mode = if protect { PROTECT } else { 0 };
        // SAFETY: forwarded to the caller.
        unsafe { self.transfer(COPY, to, from, bytes, mode) }
    }

    /// Moves pages of anonymous memory from `from` to absent ones at `to`, holes included, and
    /// wakes threads that wait at `to`.
    ///
    /// # Safety
    /// Both ranges must be the caller's to decide over; `to` registered by this userfaultfd.
    pub unsafe fn move_pages(self, to: usize, from: usize, bytes: usize) -> Progress {
        const ALLOW_HOLES: u64 = 2;
        // SAFETY: forwarded to the caller.
        unsafe { self.transfer(MOVE, to, from, bytes, ALLOW_HOLES) }
    }

    /// The same, but stops with `ENOENT` at a page that Linux does not have.
    ///
    /// # Safety
    /// As for [`Uffd::move_pages`].
    pub unsafe fn move_present(self, to: usize, from: usize, bytes: usize) -> Progress {
        // SAFETY: forwarded to the caller.
        unsafe { self.transfer(MOVE, to, from, bytes, 0) }
    }

    unsafe fn transfer(
        self,
        request: u32,
        to: usize,
        from: usize,
        bytes: usize,
        mode: u64,
    ) -> Progress {
        in_steps(bytes, |done| {
            let mut arg = Copy {
                to: (to + done) as u64,
                from: (from + done) as u64,
                bytes: (bytes - done) as u64,
                mode,
                done: 0,
            };
            // SAFETY: forwarded to the caller.
            let result = unsafe { ioctl(self.0, request, &mut arg) };
            (result, arg.done)
        })
    }

    /// Maps the zero page over absent pages of a range and wakes their threads.
    ///
    /// # Safety
    /// The range must be registered by this userfaultfd, and its absent pages must have no
    /// contents elsewhere.
    pub unsafe fn zero(self, at: usize, bytes: usize) -> Progress {
        // SAFETY: forwarded to the caller.
        unsafe { self.fill(ZEROPAGE, 0, at, bytes) }
    }

    /// Maps pages of a memory file that are there, write-protected when `protect`, in the process that
    /// the userfaultfd is of, and wakes nobody. Stops with `EEXIST` at one that is mapped already.
    pub fn map_in(self, at: usize, bytes: usize, protect: bool) -> Progress {
        const DONT_WAKE: u64 = 1;
        const PROTECT: u64 = 2;
        let mode = DONT_WAKE | if protect { PROTECT } else { 0 };
        // SAFETY: whoever registered the range with [`Uffd::register_all`] lets others decide which
        // pages of the file are mapped there.
        unsafe { self.fill(CONTINUE, mode, at, bytes) }
    }

    /// As [`Uffd::protect`], for ranges of [`Uffd::register_all`], in the process that the userfaultfd
    /// is of; wakes nobody.
    ///
    /// # Errors
    /// As [`Uffd::protect`].
    pub fn set_protected(self, at: usize, bytes: usize, protect: bool) -> Result<()> {
        const DONT_WAKE: u64 = 2;
        // Protecting wakes nobody anyhow, and refuses to be told so.
        let mode = if protect { 1 } else { DONT_WAKE };
        // SAFETY: as for `map_in`.
        unsafe { self.protect_with(at, bytes, mode) }
    }

    /// Makes accesses to absent pages of a range fail with SIGBUS.
    ///
    /// # Safety
    /// The range must be registered by this userfaultfd.
    pub unsafe fn poison(self, at: usize, bytes: usize) -> Progress {
        // SAFETY: forwarded to the caller.
        unsafe { self.fill(POISON, 0, at, bytes) }
    }

    /// As [`Uffd::poison`], in the process that the userfaultfd is of, whichever that is. A page that
    /// was protected and is absent has a mark, which is in the way: it is taken away first.
    ///
    /// # Errors
    /// `EINVAL` before Linux 6.6; `EEXIST` when a page is there.
    pub fn refuse(self, at: usize, bytes: usize) -> Result<()> {
        let refuse = || {
            // SAFETY: who accesses the range gets a signal: nothing is changed for anybody else.
            let progress = unsafe { self.poison(at, bytes) };
            progress.stopped.map_or(Ok(()), Err)
        };
        match refuse() {
            Err(Errno::EEXIST) => {
                self.set_protected(at, bytes, false)?;
                refuse()
            }
            done => done,
        }
    }

    unsafe fn fill(self, request: u32, mode: u64, at: usize, bytes: usize) -> Progress {
        in_steps(bytes, |done| {
            let range = Range {
                start: (at + done) as u64,
                bytes: (bytes - done) as u64,
            };
            let mut arg = Zero {
                range,
                mode,
                done: 0,
            };
            // SAFETY: forwarded to the caller.
            let result = unsafe { ioctl(self.0, request, &mut arg) };
            (result, arg.done)
        })
    }

    /// Write-protects the present pages of a range, or lifts that and wakes their threads.
    ///
    /// # Safety
    /// The range must be registered by this userfaultfd.
    ///
    /// # Errors
    /// `ENOENT` when a part is not registered or not mapped.
    pub unsafe fn protect(self, at: usize, bytes: usize, protect: bool) -> Result<()> {
        // SAFETY: forwarded to the caller.
        unsafe { self.protect_with(at, bytes, u64::from(protect)) }
    }

    unsafe fn protect_with(self, at: usize, bytes: usize, mode: u64) -> Result<()> {
        loop {
            let range = Range {
                start: at as u64,
                bytes: bytes as u64,
            };
            let mut arg = Protect { range, mode };
            // SAFETY: forwarded to the caller.
            match unsafe { ioctl(self.0, WRITEPROTECT, &mut arg) } {
                Err(Errno::EAGAIN) => core::hint::spin_loop(),
                other => return other.map(drop),
            }
        }
    }

    /// Waits for a fault and takes up to `N`. An empty list after an interruption.
    ///
    /// # Errors
    /// As `read(2)`; `EPROTO` when it reports other things, which nobody here asked for. Moves, where
    /// they are reported, are taken and are no faults.
    pub fn faults<const N: usize>(self) -> Result<Faults<N>> {
        self.take_faults(|to, bytes| {
            // SAFETY: `to` is valid for writes of `bytes`, as the caller says.
            unsafe { syscall!(g::__NR_read, self.0.0, to, bytes) }
        })
    }

    /// Takes up to `N` faults that wait now, also where another process that has the userfaultfd
    /// has made it one that waits. Linux before 6.10 does what that process has said.
    ///
    /// # Errors
    /// As [`Uffd::faults`].
    pub fn faults_now<const N: usize>(self) -> Result<Faults<N>> {
        self.take_faults(|to, bytes| {
            // SAFETY: `to` is valid for writes of `bytes`, as the caller says.
            match unsafe { self.read_now(to as usize, bytes) } {
                // SAFETY: as above.
                Err(Errno::EOPNOTSUPP) => unsafe { syscall!(g::__NR_read, self.0.0, to, bytes) },
                other => other,
            }
        })
    }

    /// Reads without waiting, whatever the descriptor says.
    ///
    /// # Safety
    /// `to` must be valid for writes of `bytes`.
    unsafe fn read_now(self, to: usize, bytes: usize) -> Result<usize> {
        const FROM_HERE: usize = usize::MAX;
        let (part, flags) = ([to, bytes], g::RWF_NOWAIT);
        // SAFETY: `part` is a `struct iovec`; what it names is forwarded to the caller.
        unsafe {
            syscall!(
                g::__NR_preadv2,
                self.0.0,
                part.as_ptr(),
                1,
                FROM_HERE,
                0,
                flags
            )
        }
    }

    /// True when [`Uffd::faults_now`] never waits, of one where no fault can be yet.
    pub fn can_be_read_at_once(self) -> bool {
        let mut message = [0u64; 4];
        // SAFETY: `message` is valid for writes of as many bytes.
        let got = unsafe { self.read_now(message.as_mut_ptr() as usize, size_of_val(&message)) };
        got == Err(Errno::EAGAIN)
    }

    /// Takes which memory that is registered goes away, from its first address to behind the last, as far as
    /// the `features::EVENT_*` that are enabled report it: it has been unmapped, or moved to another address, or
    /// its contents are discarded as soon as this is read. Who does it waits until it is taken. `None` when
    /// there is nothing, and of a fault. The descriptor must be one that does not wait.
    ///
    /// # Errors
    /// As `read(2)`.
    pub fn gone(self) -> Result<Option<(usize, usize)>> {
        let mut message = [0u64; 4];
        let (to, bytes) = (message.as_mut_ptr(), size_of_val(&message));
        // SAFETY: `message` is valid for writes of `bytes`, and as large as a message.
        match unsafe { syscall!(g::__NR_read, self.0.0, to, bytes) } {
            Ok(_) => {}
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        let [kind, a, b, c] = message;
        let (a, b, c) = (a as usize, b as usize, c as usize);
        Ok(match kind.to_ne_bytes()[0] {
            REMAP => Some((a, a + c)),
            REMOVE | UNMAP => Some((a, b)),
            _ => None,
        })
    }

    /// `read` gets where so many bytes may be written.
    fn take_faults<const N: usize>(
        self,
        read: impl FnOnce(*mut RawMessage, usize) -> Result<usize>,
    ) -> Result<Faults<N>> {
        let empty = RawMessage {
            event: 0,
            reserved: [0; 7],
            flags: 0,
            address: 0,
            thread: 0,
            padding: 0,
        };
        // Any bytes are a valid `RawMessage`.
        let mut raw = [empty; N];
        let bytes = match read(raw.as_mut_ptr(), size_of_val(&raw)) {
            Ok(bytes) => bytes,
            Err(Errno::EAGAIN | Errno::EINTR) => 0,
            Err(errno) => return Err(errno),
        };
        let none = Fault {
            address: 0,
            write: false,
            protection: false,
            thread: 0,
        };
        let (mut faults, mut count) = ([none; N], 0);
        for message in &raw[..bytes / size_of::<RawMessage>()] {
            match message.event {
                PAGEFAULT => {
                    faults[count] = Fault {
                        address: message.address as usize,
                        write: message.flags & 1 != 0,
                        protection: message.flags & 2 != 0,
                        thread: message.thread,
                    };
                    count += 1;
                }
                REMAP => {}
                _ => return Err(Errno::EPROTO),
            }
        }
        Ok(Faults { faults, count })
    }
}

/// Faults taken at a time.
pub struct Faults<const N: usize> {
    faults: [Fault; N],
    count: usize,
}

impl<const N: usize> Faults<N> {
    /// The faults.
    pub fn as_slice(&self) -> &[Fault] {
        &self.faults[..self.count]
    }
}
