//! `execve`: the agent comes into the next program as well.

use alloc::boxed::Box;
use alloc::vec::Vec;

use farpage_object::fds;
use farpage_sys::elf::{self, Image};
use farpage_sys::file::{self, Fd};
use farpage_sys::join::NotTraced;
use farpage_sys::linux::general as g;
use farpage_sys::seccomp::later;
use farpage_sys::{Errno, Result, join, layout, process, syscall};

use crate::frame::Frame;
use crate::program::Reader;
use crate::stacks::Stack;
use crate::{machine, maps, memory, sandbox, shm, start, threads, user_tier};

/// What `execveat` takes.
#[derive(Clone, Copy)]
pub(crate) struct Call {
    pub(crate) dir: i32,
    pub(crate) path: usize,
    pub(crate) argv: usize,
    pub(crate) envp: usize,
    pub(crate) flags: usize,
}

/// Pointers that a list may have.
const POINTERS_MAX: usize = 1 << 20;
/// Bytes of arguments and environment that Linux takes at most, whatever the limits of the process.
const TEXTS_BYTES_MAX: usize = 6 << 20;
const AT_EMPTY_PATH: usize = 0x1000;

/// What the next program is given, where that is not what the call names.
#[derive(Default)]
struct Given {
    argv: Option<Vec<usize>>,
    envp: Vec<usize>,
    texts: Texts,
}

/// Strings of the agent's. They stay where they are as long as this lives.
#[derive(Default)]
struct Texts {
    list: Vec<Box<[u8]>>,
    bytes: usize,
    /// Strings of the program's are copied: Linux cannot bring in what is away.
    copied: bool,
}

impl Texts {
    /// Adds a string; returns where it lies.
    fn add(&mut self, text: &[u8]) -> Result<usize> {
        let mut copy = Vec::with_capacity(text.len() + 1);
        copy.extend_from_slice(text);
        copy.push(0);
        self.bytes += copy.len() + size_of::<usize>();
        if self.bytes > TEXTS_BYTES_MAX {
            return Err(Errno::E2BIG);
        }
        let at = copy.as_ptr().expose_provenance();
        self.list.push(copy.into_boxed_slice());
        Ok(at)
    }

    /// The string at `at`, where Linux can read it.
    fn readable(&mut self, reader: &mut Reader, at: usize) -> Result<usize> {
        match self.copied {
            true => self.add(reader.string(at)?),
            false => Ok(at),
        }
    }
}

/// `execve` and `execveat`.
///
/// # Safety
/// As the call that the program made.
pub(crate) unsafe fn execute(frame: &Frame, own: Option<&Stack>, call: &Call) -> Result<usize> {
    let mut reader = Reader::new();
    let mut given = Box::new(Given::default());
    given.texts.copied = memory::is_user_tier();
    let call = &Call {
        path: given.texts.readable(&mut reader, call.path)?,
        ..*call
    };
    let mapped = maps::target(call.dir, call.path, call.flags).transpose()?;
    let image = match mapped {
        Some(_) => Image::Static,
        None => image_of(&mut reader, call)?,
    };
    let looks_at_files = maps::exist() || shm::exist();
    let is_seen_early = looks_at_files
        || memory::is_user_tier() && speaks(&mut reader, call.envp)?
        || machine::is_said()
        || layout::has_too_much_room()
        || !sandbox::is_on() && later::are_there();
    if image == Image::Foreign && looks_at_files {
        return Err(refuse_foreign(&mut reader, call));
    }
    let visible = image != Image::Foreign && join::agent_is_visible(start::fd_base());
    // Before its dynamic linker opens anything, where opening is looked at.
    let from_outside = image == Image::Static
        || (image == Image::Dynamic && !visible)
        || (image != Image::Foreign && is_seen_early);
    let with_agent = visible && !from_outside;
    given.environment(&mut reader, call.envp, with_agent)?;
    given.arguments(&mut reader, call.argv)?;
    let visitor = start::is_visitor();
    // Undone where the program is not executed.
    let _laid_out = (image != Image::Foreign).then(layout::prepare);
    let asked = if from_outside {
        Some(ask(&mut reader, call, visitor)?)
    } else {
        None
    };
    // One that is kept is its parent's, or Linux knows of it already.
    let left = own.filter(|stack| visitor && !stack.is_kept());
    if let Some(stack) = left {
        stack.release_with_memory();
    }
    // A child of `vfork` holds memory of its parent, which does not learn when the child is gone.
    user_tier::let_go();
    threads::bring_in_locks();
    // Signals that arrive from here on run on this stack; those of the program that follows must
    // not be blocked for ever.
    let blocked = process::set_signal_mask(frame.mask);
    let envp = given.envp.as_ptr();
    let own_argv = given.argv.as_ref();
    let argv = own_argv.map_or(call.argv, |argv| argv.as_ptr().expose_provenance());
    let kept = keep_for_next_owner(own, visitor, given);
    let (dir, path, flags) = match mapped {
        Some(fd) => (fd.0, c"".as_ptr().expose_provenance(), AT_EMPTY_PATH),
        None => (call.dir, call.path, call.flags),
    };
    // SAFETY: the program's own call, with lists that live until the memory is gone.
    let result = unsafe { syscall!(g::__NR_execveat, dir, path, argv, envp, flags) };
    process::set_signal_mask(blocked);
    drop(kept.or_else(|| own.and_then(left_by_last_owner)));
    if let Some(stack) = left {
        stack.release_as_ever();
    }
    if let (Some(slot), Some(control)) = (asked, start::control()) {
        join::cancel(control, slot);
        if visitor {
            control.reap(slot);
        }
    }
    result
}

/// A `vfork` child shares the heap with its parent: what it leaves there when it executes is freed
/// by the next owner of its stack.
fn keep_for_next_owner(
    own: Option<&Stack>,
    visitor: bool,
    given: Box<Given>,
) -> Option<Box<Given>> {
    match own {
        Some(stack) if visitor => {
            drop(left_by_last_owner(stack));
            stack.leave(Box::into_raw(given).cast());
            None
        }
        _ => Some(given),
    }
}

fn left_by_last_owner(stack: &Stack) -> Option<Box<Given>> {
    let left = stack.leave(core::ptr::null_mut()).cast::<Given>();
    // SAFETY: only this is left, by owners that are gone; the swap makes it ours.
    (!left.is_null()).then(|| unsafe { Box::from_raw(left) })
}

/// Frees what an owner of the stack left that never came back.
pub(crate) fn clean(stack: &Stack) {
    drop(left_by_last_owner(stack));
}

fn image_of(reader: &mut Reader, call: &Call) -> Result<Image> {
    let path = reader.string(call.path)?;
    let in_dir = path.is_empty() && call.flags & AT_EMPTY_PATH != 0;
    let opened = file::with_room(|| {
        if in_dir {
            // The descriptor may be good for nothing but executing: look at the file anew.
            file::open(&file::path_of(Fd(call.dir)), CLOEXEC, 0)
        } else {
            open_at(call.dir, call.path)
        }
    });
    match opened {
        Ok(fd) => {
            let image = elf::inspect(fd, shm::before_execution);
            file::close(fd);
            Ok(image)
        }
        // No number is left to look with. What is mapped from outside gets into any program.
        Err(Errno::EMFILE | Errno::ENFILE) => Ok(Image::Static),
        // Most likely a program that may be executed and not read; or the execution fails, too.
        Err(_) => Ok(Image::Unknown),
    }
}

const CLOEXEC: u32 = g::O_CLOEXEC | g::O_NONBLOCK;

fn open_at(dir: i32, path: usize) -> Result<Fd> {
    // SAFETY: the program's string was read to its end just now.
    unsafe { syscall!(g::__NR_openat, dir, path, CLOEXEC) }.map(|fd| Fd(fd as i32))
}

impl Given {
    fn environment(&mut self, reader: &mut Reader, envp: usize, with_agent: bool) -> Result<()> {
        let mut wanted: &[u8] = &[];
        let mut place = None;
        for variable in pointers(reader, envp)? {
            if reader.starts_with(variable, join::PRELOAD)? {
                wanted = &reader.string(variable)?[join::PRELOAD.len()..];
                place = Some(self.envp.len());
            }
            self.envp.push(self.texts.readable(reader, variable)?);
        }
        match join::preload_value(wanted, start::fd_base(), with_agent) {
            Some(value) => {
                let variable = self.texts.add(&[join::PRELOAD, &value].concat())?;
                match place {
                    Some(place) => self.envp[place] = variable,
                    None => self.envp.push(variable),
                }
            }
            None if place.is_some() && !wanted.is_empty() => {
                self.envp.remove(place.unwrap_or(0));
            }
            None => {}
        }
        self.envp.push(0);
        Ok(())
    }

    fn arguments(&mut self, reader: &mut Reader, argv: usize) -> Result<()> {
        if argv == 0 || !self.texts.copied {
            return Ok(());
        }
        let mut own = Vec::with_capacity(16);
        for argument in pointers(reader, argv)? {
            own.push(self.texts.readable(reader, argument)?);
        }
        own.push(0);
        self.argv = Some(own);
        Ok(())
    }
}

/// Whether the dynamic linker is to say a lot before the agent is there.
fn speaks(reader: &mut Reader, envp: usize) -> Result<bool> {
    for variable in pointers(reader, envp)? {
        if reader.starts_with(variable, join::LINKER_SPEAKS)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The pointers of the list at `at`, without the null that ends it. No list is an empty one.
fn pointers(reader: &mut Reader, at: usize) -> Result<Vec<usize>> {
    let mut all = Vec::with_capacity(64);
    if at == 0 {
        return Ok(all);
    }
    while all.len() < POINTERS_MAX {
        match reader.pointer(at + all.len() * size_of::<usize>())? {
            0 => return Ok(all),
            pointer => all.push(pointer),
        }
    }
    Err(Errno::E2BIG)
}

/// The filter is not for its calls: of a mapped file it would read zeros.
fn refuse_foreign(reader: &mut Reader, call: &Call) -> Errno {
    let name = reader.string(call.path).unwrap_or(b"?");
    let name = alloc::string::String::from_utf8_lossy(name);
    let line = alloc::format!(
        "farpage: cannot run '{name}': it is no 64-bit x86 program, and those cannot use --map or --shm; \
         run it without farpage\n"
    );
    file::write_message(start::descriptor(fds::MESSAGES), line.as_bytes());
    Errno::EACCES
}

/// Has the supervisor trace this thread. The slot that it was asked under.
fn ask(reader: &mut Reader, call: &Call, visitor: bool) -> Result<usize> {
    let control = start::control().ok_or(Errno::EACCES)?;
    let slot = if visitor {
        control.claim(process::id())
    } else {
        start::slot()
    };
    let why = match slot.map(|slot| (slot, join::ask(control, slot, process::thread_id()))) {
        Some((slot, Ok(()))) => return Ok(slot),
        Some((_, Err(NotTraced::Refused))) => {
            "farpage run cannot trace it (a debugger does, or ptrace is forbidden here)"
        }
        Some((_, Err(NotTraced::NoAnswer))) => {
            "farpage run, which must help with that, has ended or does not answer"
        }
        None => {
            "this process is in another namespace of process ids than farpage run, or there are \
             too many processes"
        }
    };
    if let (true, Some(slot)) = (visitor, slot) {
        control.reap(slot);
    }
    let name = reader.string(call.path).unwrap_or(b"?");
    let name = alloc::string::String::from_utf8_lossy(name);
    let line = alloc::format!(
        "farpage: cannot run '{name}': farpage has to come into it from outside, and \
         {why}; run it without farpage\n"
    );
    file::write_message(start::descriptor(fds::MESSAGES), line.as_bytes());
    Err(Errno::EACCES)
}
