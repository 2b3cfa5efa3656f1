//! Tracing a thread through its `execve`, and making system calls in its name.

use core::cell::Cell;

use linux_raw_sys::general as g;
use linux_raw_sys::ptrace as p;

use crate::raw::{Errno, Result};
use crate::syscall;

const WNOHANG: u32 = 1;
const WALL: u32 = 0x4000_0000;
const WNOTHREAD: u32 = 0x2000_0000;
const EXIT_KILL: u32 = 0x0010_0000;

/// The registers of a stopped thread, in the kernel's order.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    /// Register.
    pub r15: u64,
    /// Register.
    pub r14: u64,
    /// Register.
    pub r13: u64,
    /// Register.
    pub r12: u64,
    /// Register.
    pub rbp: u64,
    /// Register.
    pub rbx: u64,
    /// Register.
    pub r11: u64,
    /// Register.
    pub r10: u64,
    /// Register.
    pub r9: u64,
    /// Register.
    pub r8: u64,
    /// Register.
    pub rax: u64,
    /// Register.
    pub rcx: u64,
    /// Register.
    pub rdx: u64,
    /// Register.
    pub rsi: u64,
    /// Register.
    pub rdi: u64,
    /// The system call that the thread is in, all ones when it is in none.
    pub orig_rax: u64,
    /// Next instruction.
    pub rip: u64,
    /// Segment.
    pub cs: u64,
    /// Flags.
    pub eflags: u64,
    /// Stack pointer.
    pub rsp: u64,
    /// Segments.
    pub segments: [u64; 7],
}

const _: () = assert!(size_of::<Registers>() == 216);

/// What a traced thread did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It executed a program and is about to run its first instruction.
    Exec,
    /// A signal is about to be delivered.
    Signal(u32),
    /// The group it belongs to was stopped, or it was interrupted.
    Group,
    /// It is gone.
    Gone,
}

/// A thread that this thread traces. Only this thread can use it.
#[derive(Debug)]
pub struct Tracee {
    /// Its number. By `execve` it becomes its process's.
    id: Cell<u32>,
    process: u32,
}

impl Tracee {
    /// Begins to trace thread `id` of `process`, which goes on meanwhile and stops when it executes.
    ///
    /// # Errors
    /// As `ptrace(2)`: `EPERM` when another tracer has it or tracing is forbidden.
    pub fn seize(id: u32, process: u32) -> Result<Self> {
        let options = p::PTRACE_O_TRACEEXEC;
        // SAFETY: takes no pointer.
        unsafe { syscall!(g::__NR_ptrace, p::PTRACE_SEIZE, id, 0, options) }?;
        Ok(Self {
            id: Cell::new(id),
            process,
        })
    }

    /// Looks whether the thread has stopped. Not [`Tracee::wait`] but this, again and again, is the
    /// way to wait for `execve`: Linux does not wake a waiter for a number that goes away.
    ///
    /// # Errors
    /// As `wait4(2)`.
    pub fn poll(&self) -> Result<Option<Stop>> {
        self.wait_with(WNOHANG)
    }

    /// Waits until the thread stops.
    ///
    /// # Errors
    /// As `wait4(2)`.
    pub fn wait(&self) -> Result<Stop> {
        loop {
            match self.wait_with(0) {
                Ok(Some(stop)) => return Ok(stop),
                Ok(None) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }

    fn wait_with(&self, flags: u32) -> Result<Option<Stop>> {
        let mut status = 0i32;
        let flags = flags | WALL | WNOTHREAD;
        loop {
            let id = self.id.get();
            // SAFETY: `status` is valid for a write.
            return match unsafe { syscall!(g::__NR_wait4, id, &raw mut status, flags, 0) } {
                Ok(0) => Ok(None),
                Ok(_) => Ok(Some(stop(status as u32))),
                Err(Errno::ECHILD) if id != self.process => {
                    self.id.set(self.process);
                    continue;
                }
                Err(Errno::ECHILD) => Ok(Some(Stop::Gone)),
                Err(errno) => Err(errno),
            };
        }
    }

    /// Lets the stopped thread go on, delivering `signal` (0: none).
    ///
    /// # Errors
    /// As `ptrace(2)`.
    pub fn go_on(&self, signal: u32) -> Result<()> {
        self.request(p::PTRACE_CONT, signal as usize)
    }

    /// Lets the thread's group stay stopped while it is traced.
    ///
    /// # Errors
    /// As `ptrace(2)`.
    pub fn listen(&self) -> Result<()> {
        self.request(p::PTRACE_LISTEN, 0)
    }

    /// Makes the running thread stop.
    ///
    /// # Errors
    /// As `ptrace(2)`.
    pub fn interrupt(&self) -> Result<()> {
        self.request(p::PTRACE_INTERRUPT, 0)
    }

    /// Lets the process die with its tracer from now on: half changed, it must not go on.
    ///
    /// # Errors
    /// As `ptrace(2)`.
    pub fn die_with_tracer(&self) -> Result<()> {
        self.request(
            p::PTRACE_SETOPTIONS,
            (p::PTRACE_O_TRACEEXEC | EXIT_KILL) as usize,
        )
    }

    /// Ends tracing of the stopped thread, which goes on and gets `signal` (0: none).
    ///
    /// # Errors
    /// As `ptrace(2)`.
    pub fn detach(&self, signal: u32) -> Result<()> {
        self.request(p::PTRACE_DETACH, signal as usize)
    }

    /// The stopped thread's registers.
    ///
    /// # Errors
    /// As `ptrace(2)`.
    pub fn registers(&self) -> Result<Registers> {
        let mut registers = Registers::default();
        self.request(p::PTRACE_GETREGS, (&raw mut registers).expose_provenance())?;
        Ok(registers)
    }

    /// Sets the stopped thread's registers.
    ///
    /// # Errors
    /// As `ptrace(2)`.
    pub fn set_registers(&self, registers: &Registers) -> Result<()> {
        self.request(
            p::PTRACE_SETREGS,
            core::ptr::from_ref(registers).expose_provenance(),
        )
    }

    /// Makes the stopped thread issue a system call, with the instruction at `at`, whose bytes are
    /// put back afterwards, as are the registers. Returns what the call returned.
    ///
    /// # Errors
    /// Errors of the call itself, and those of `ptrace(2)`; `EINTR` when the thread is gone.
    pub fn call(&self, at: u64, nr: u32, args: [u64; 6]) -> Result<u64> {
        // `mov eax, nr; syscall; int3`: a thread that stopped in `execve` gets that call's result
        // into its register first.
        let code = 0xb8 | u64::from(nr) << 8 | 0xcc_050f << 40;
        let registers = self.registers()?;
        let before = self.peek(at)?;
        self.poke(at, code)?;
        let [rdi, rsi, rdx, r10, r8, r9] = args;
        self.set_registers(&Registers {
            rip: at,
            orig_rax: !0,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            ..registers
        })?;
        self.go_on(0)?;
        let mut held_back = None;
        loop {
            match self.wait()? {
                Stop::Signal(g::SIGTRAP) => break,
                // Comes again when the thread goes on for good.
                Stop::Signal(signal) => held_back = Some(signal),
                Stop::Exec | Stop::Group => {}
                Stop::Gone => return Err(Errno::EINTR),
            }
            self.go_on(0)?;
        }
        let value = self.registers()?.rax as i64;
        self.poke(at, before)?;
        self.set_registers(&Registers {
            orig_rax: !0,
            ..registers
        })?;
        if let Some(signal) = held_back {
            // SAFETY: takes no pointer.
            let _ = unsafe { syscall!(g::__NR_tkill, self.id.get(), signal) };
        }
        if (-4095..0).contains(&value) {
            Err(Errno(-value as i32))
        } else {
            Ok(value as u64)
        }
    }

    /// Copies `bytes` to `at` in the thread's memory, which must be writable there.
    ///
    /// # Errors
    /// As `process_vm_writev(2)`; `EFAULT` when not all could be copied.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let own = [bytes.as_ptr().expose_provenance(), bytes.len()];
        let other = [at as usize, bytes.len()];
        let (own, other) = (own.as_ptr(), other.as_ptr());
        // SAFETY: both are one `iovec`; ours names `bytes`, the other one foreign memory.
        match unsafe {
            syscall!(
                g::__NR_process_vm_writev,
                self.id.get(),
                own,
                1,
                other,
                1,
                0
            )
        } {
            Ok(done) if done == bytes.len() => Ok(()),
            Ok(_) => Err(Errno::EFAULT),
            Err(errno) => Err(errno),
        }
    }

    fn peek(&self, at: u64) -> Result<u64> {
        let mut word = 0u64;
        let to = &raw mut word;
        // SAFETY: the raw call writes the word to its fourth argument.
        unsafe { syscall!(g::__NR_ptrace, p::PTRACE_PEEKTEXT, self.id.get(), at, to) }?;
        Ok(word)
    }

    fn poke(&self, at: u64, word: u64) -> Result<()> {
        // SAFETY: the word is given by value; the memory is the tracee's.
        unsafe { syscall!(g::__NR_ptrace, p::PTRACE_POKETEXT, self.id.get(), at, word) }.map(drop)
    }

    fn request(&self, request: u32, data: usize) -> Result<()> {
        // SAFETY: callers pass a number, or the address of what the request reads or writes.
        unsafe { syscall!(g::__NR_ptrace, request, self.id.get(), 0, data) }.map(drop)
    }
}

fn stop(status: u32) -> Stop {
    if status & 0xff != 0x7f {
        return Stop::Gone;
    }
    match (status >> 16, (status >> 8) & 0xff) {
        (p::PTRACE_EVENT_EXEC, _) => Stop::Exec,
        (0, signal) => Stop::Signal(signal),
        _ => Stop::Group,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_are_told_apart() {
        assert_eq!(
            stop(p::PTRACE_EVENT_EXEC << 16 | g::SIGTRAP << 8 | 0x7f),
            Stop::Exec
        );
        assert_eq!(stop(g::SIGTERM << 8 | 0x7f), Stop::Signal(g::SIGTERM));
        assert_eq!(
            stop(p::PTRACE_EVENT_STOP << 16 | g::SIGSTOP << 8 | 0x7f),
            Stop::Group
        );
        assert_eq!(stop(0), Stop::Gone);
        assert_eq!(stop(9), Stop::Gone);
    }
}
