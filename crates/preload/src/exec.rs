//! execve: the next program gets the agent too.
//!
//! Dynamic programs get it by LD_PRELOAD, put back where the environment was cleaned; static ones
//! by the supervisor, which stops them before their first instruction.

use alloc::vec::Vec;
use core::ffi::CStr;
use core::sync::atomic::{AtomicUsize, Ordering};

use farpage_abi::{Inject, fds};
use farpage_sys::file::{self, Fd};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, futex, process, syscall, time};

use crate::frame::Frame;
use crate::start;
use crate::trap::Outcome;

const SCRIPTS_MAX: usize = 4;
const INJECT_TIMEOUT_NS: u64 = 2_000_000_000;

/// What a file is to `execve`.
#[derive(Debug, PartialEq, Eq)]
enum Image {
    Dynamic,
    Static,
    /// Nothing that the agent can be put into, or nothing that can be executed: let Linux say.
    Other,
}

/// `execve(path, argv, envp)`.
///
/// # Safety
/// As the call that the program made.
pub(crate) unsafe fn execve(frame: &mut Frame) -> Outcome {
    let Some(_) = start::slot() else {
        return Outcome::Reissue;
    };
    // SAFETY: the program's string.
    let image = unsafe { image_at(Fd(g::AT_FDCWD), frame.rdi, 0) };
    let args = frame.arguments();
    // SAFETY: forwarded; the environment is the third argument.
    unsafe { start_image(image, frame, |frame| &mut frame.rdx, g::__NR_execve, args) }
}

/// `execveat(dir, path, argv, envp, flags)`.
///
/// # Safety
/// As the call that the program made.
pub(crate) unsafe fn execveat(frame: &mut Frame) -> Outcome {
    let Some(_) = start::slot() else {
        return Outcome::Reissue;
    };
    // SAFETY: the program's string.
    let image = unsafe { image_at(Fd(frame.rdi as i32), frame.rsi, frame.r8 as u32) };
    let args = frame.arguments();
    // SAFETY: forwarded; the environment is the fourth argument.
    unsafe { start_image(image, frame, |frame| &mut frame.r10, g::__NR_execveat, args) }
}

unsafe fn start_image(
    image: Image,
    frame: &mut Frame,
    environment: fn(&mut Frame) -> &mut usize,
    number: u32,
    args: [usize; 6],
) -> Outcome {
    match image {
        Image::Other => Outcome::Reissue,
        Image::Dynamic => {
            let at = environment(frame);
            // SAFETY: the program's array of strings.
            if let Some(changed) = unsafe { with_agent(*at) } {
                *at = changed;
            }
            Outcome::Reissue
        }
        // SAFETY: forwarded.
        Image::Static => Outcome::Done(unsafe { execute_static(number, args) }),
    }
}

unsafe fn image_at(dir: Fd, path: usize, flags: u32) -> Image {
    if path == 0 {
        return Image::Other;
    }
    // SAFETY: the program's string.
    let path = unsafe { CStr::from_ptr(path as *const _) };
    let empty = path.is_empty() && flags & g::AT_EMPTY_PATH != 0;
    let open = g::O_CLOEXEC;
    // SAFETY: `path` is a string; an empty one names the descriptor itself.
    let fd = unsafe {
        if empty {
            syscall!(g::__NR_fcntl, dir.0, g::F_DUPFD_CLOEXEC, 3)
        } else {
            syscall!(g::__NR_openat, dir.0, path.as_ptr(), open, 0)
        }
    };
    match fd {
        Ok(fd) => inspect(Fd(fd as i32)),
        // May be executed but not read: all that can be done is to hope that it is dynamic.
        Err(Errno::EACCES) => Image::Dynamic,
        Err(_) => Image::Other,
    }
}

fn inspect(mut fd: Fd) -> Image {
    for _ in 0..=SCRIPTS_MAX {
        let mut head = [0u8; 4096];
        let got = file::pread(fd, &mut head, 0).unwrap_or(0);
        let head = &mut head[..got];
        if !head.starts_with(b"#!") {
            let image = elf_image(fd, head);
            file::close(fd);
            return image;
        }
        file::close(fd);
        let Some(path) = interpreter(head) else {
            return Image::Other;
        };
        match file::open(path, g::O_CLOEXEC, 0) {
            Ok(next) => fd = next,
            Err(Errno::EACCES) => return Image::Dynamic,
            Err(_) => return Image::Other,
        }
    }
    file::close(fd);
    Image::Other
}

/// The path behind `#!`, ended in place.
fn interpreter(head: &mut [u8]) -> Option<&CStr> {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let start = 2 + head[2..].iter().position(|byte| !blank(byte))?;
    let ends = |byte: &u8| blank(byte) || matches!(byte, b'\n' | 0);
    let length = head[start..].iter().position(ends)?;
    head[start + length] = 0;
    CStr::from_bytes_until_nul(&head[start..]).ok()
}

fn elf_image(fd: Fd, head: &[u8]) -> Image {
    const ELF64_LITTLE: &[u8] = b"\x7fELF\x02\x01";
    const X86_64: u16 = 62;
    const PT_INTERP: u32 = 3;
    if head.len() < 64 || !head.starts_with(ELF64_LITTLE) {
        return Image::Other;
    }
    let u16_at = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    if u16_at(18) != X86_64 {
        return Image::Other;
    }
    let mut word = [0; 8];
    word.copy_from_slice(&head[32..40]);
    let table = u64::from_le_bytes(word);
    let (size, count) = (u16_at(54), u16_at(56));
    for i in 0..u64::from(count) {
        let mut kind = [0; 4];
        let at = table + i * u64::from(size);
        if file::pread(fd, &mut kind, at) == Ok(4) && u32::from_le_bytes(kind) == PT_INTERP {
            return Image::Dynamic;
        }
    }
    Image::Static
}

/// Environments made here: kept until many later ones were made, since a successful `execve` in a
/// vfork child does not come back to give them up.
static MADE: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];
static NEXT: AtomicUsize = AtomicUsize::new(0);

struct Made {
    text: Vec<u8>,
    pointers: Vec<usize>,
}

/// The environment at `envp` with the agent first in LD_PRELOAD; `None` when it is there already.
unsafe fn with_agent(envp: usize) -> Option<usize> {
    const NAME: &[u8] = b"LD_PRELOAD=";
    let own = start::library_path();
    let mut pointers = Vec::new();
    let mut text = Vec::new();
    text.extend_from_slice(NAME);
    text.extend_from_slice(own.to_bytes());
    let mut at = envp;
    // SAFETY: the program's array, ended by a null pointer; none at all is allowed too.
    while at != 0 && unsafe { (at as *const usize).read_unaligned() } != 0 {
        // SAFETY: as above.
        let entry = unsafe { (at as *const usize).read_unaligned() };
        // SAFETY: the program's string.
        let bytes = unsafe { CStr::from_ptr(entry as *const _) }.to_bytes();
        match bytes.strip_prefix(NAME) {
            Some(value) if value.starts_with(own.to_bytes()) => return None,
            Some(value) => {
                text.push(b':');
                text.extend_from_slice(value);
            }
            None => pointers.push(entry),
        }
        at += size_of::<usize>();
    }
    text.push(0);
    pointers.push(text.as_ptr() as usize);
    pointers.push(0);
    let made = alloc::boxed::Box::new(Made { text, pointers });
    debug_assert!(made.text.ends_with(&[0]));
    let array = made.pointers.as_ptr() as usize;
    let kept = alloc::boxed::Box::into_raw(made) as usize;
    let slot = NEXT.fetch_add(1, Ordering::Relaxed) % MADE.len();
    let old = MADE[slot].swap(kept, Ordering::AcqRel);
    if old != 0 {
        // SAFETY: put there by `into_raw` above; 64 executions later nobody reads it any more.
        drop(unsafe { alloc::boxed::Box::from_raw(old as *mut Made) });
    }
    Some(array)
}

/// Executes a static program under the eyes of the supervisor, which maps the agent into it.
unsafe fn execute_static(number: u32, args: [usize; 6]) -> Result<usize, Errno> {
    let task = start::task().ok_or(Errno::EACCES)?;
    let control = start::control().ok_or(Errno::EACCES)?;
    task.inject_tid
        .store(process::thread_id(), Ordering::Relaxed);
    task.inject.store(Inject::Asked as u32, Ordering::Release);
    control.inject_requests.fetch_add(1, Ordering::AcqRel);
    futex::wake(&control.inject_requests, 1);
    let give_up = time::now_ns() + INJECT_TIMEOUT_NS;
    while task.inject.load(Ordering::Acquire) == Inject::Asked as u32 && time::now_ns() < give_up {
        futex::wait(&task.inject, Inject::Asked as u32, Some(50_000_000));
    }
    if task.inject.load(Ordering::Acquire) != Inject::Ready as u32 {
        task.inject.store(Inject::None as u32, Ordering::Release);
        file::write_message(
            start::descriptor(fds::MESSAGES),
            b"farpage: cannot execute a static program: its memory cannot be managed because ptrace \
              is not permitted here, a debugger has the process, or `farpage run` is gone; run it \
              outside of farpage, or use a dynamically linked build\n",
        );
        return Err(Errno::EACCES);
    }
    // SAFETY: the program's own call.
    let failed = unsafe { farpage_sys::raw::syscall(number, args) };
    task.inject
        .store(Inject::Cancelled as u32, Ordering::Release);
    control.inject_requests.fetch_add(1, Ordering::AcqRel);
    futex::wake(&control.inject_requests, 1);
    failed
}
