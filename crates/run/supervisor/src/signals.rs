//! Signals that `farpage run` gets are the program's: they are passed on, and do not end the
//! supervisor before the program has ended.

use std::os::fd::{AsRawFd, OwnedFd};
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use farpage_sys::file::Fd;
use farpage_sys::{process, signal};
use rustix::process::{PidfdFlags, Resource, Rlimit};

/// HUP, INT, QUIT, USR1, USR2, ALRM, TERM, URG, VTALRM, PROF, WINCH, PWR and those of real time.
/// Those that stop and continue keep their effect on the supervisor: the terminal's keys send them
/// to the program as well.
fn forwarded() -> impl Iterator<Item = u32> {
    let named = [1, 2, 3, 10, 12, 14, 15, 23, 26, 27, 28, 30];
    // The C library has the first two for itself.
    named.into_iter().chain(34..=64)
}

/// XFSZ: a file that may not become longer is told by the error alone.
const TOO_LONG: u64 = 1 << 24;

/// The program has ended: signals are not for it any more.
static ENDED: AtomicBool = AtomicBool::new(false);
/// A signal that ends processes came after that.
static LATE: AtomicBool = AtomicBool::new(false);

/// From now on signals end the waiting for other tasks.
pub fn program_has_ended() {
    ENDED.store(true, Ordering::Relaxed);
}

/// True when a signal came since [`program_has_ended`].
pub fn end_is_wanted() -> bool {
    LATE.load(Ordering::Relaxed)
}

/// Blocked signals, with what is needed to put things back.
pub struct Blocked {
    /// What was blocked before: the program starts with this.
    pub mask_before: u64,
}

fn forwarded_mask() -> u64 {
    forwarded().fold(0, |mask, signal| mask | 1 << (signal - 1))
}

/// Blocks the signals that are forwarded, in this thread and those it makes from now on. They
/// wait until [`Blocked::forward_to`].
pub fn block() -> Blocked {
    let mask_before = process::set_signal_mask(u64::MAX);
    process::set_signal_mask(mask_before | forwarded_mask() | TOO_LONG);
    Blocked { mask_before }
}

impl Blocked {
    /// Sends every such signal on to process `pid` from now on, from a thread of its own. What
    /// the kernel sends (a key on the terminal, a hang-up) went to the whole process group, so to
    /// the program too, and is not sent twice.
    ///
    /// # Errors
    /// When the kernel has no descriptor or thread for it.
    pub fn forward_to(&self, pid: u32) -> Result<()> {
        let program = pidfd(pid).context("cannot watch the program")?;
        let signals = signal::watch(forwarded_mask()).context("cannot watch for signals")?;
        let forward = move || {
            while let Ok(arrival) = signal::next(signals) {
                if ENDED.load(Ordering::Relaxed) && ENDING.contains(&arrival.signal) {
                    LATE.store(true, Ordering::Relaxed);
                }
                if arrival.from_kernel {
                    continue;
                }
                let _ = signal::pass_on(Fd(program.as_raw_fd()), arrival);
            }
        };
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(forward)
            .context("cannot start a thread for signals")?;
        Ok(())
    }
}

fn pidfd(pid: u32) -> Result<OwnedFd> {
    let pid = rustix::process::Pid::from_raw(pid as i32).context("there is no process 0")?;
    Ok(rustix::process::pidfd_open(pid, PidfdFlags::empty())?)
}

/// HUP, INT, QUIT, TERM.
const ENDING: [u32; 4] = [1, 2, 3, 15];

/// From now on, in this thread and those it makes, signals that end this process wait until
/// `before` has been done.
///
/// # Errors
/// When the kernel has no descriptor or thread for it.
pub fn do_before_the_end(before: impl FnOnce() + Send + 'static) -> Result<()> {
    let mask = ENDING
        .iter()
        .fold(0, |mask, signal| mask | 1 << (signal - 1));
    let blocked = process::set_signal_mask(u64::MAX);
    process::set_signal_mask(blocked | mask);
    let signals = signal::watch(mask).context("cannot watch for signals")?;
    let wait = move || {
        if let Ok(arrival) = signal::next(signals) {
            before();
            die_by(arrival.signal);
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(wait)
        .context("cannot start a thread for signals")?;
    Ok(())
}

/// Ends this process as the program ended: with its exit status, or by the same signal.
pub fn end_like(status: ExitStatus) -> ! {
    use std::os::unix::process::ExitStatusExt;
    if let Some(number) = status.signal() {
        // The program may have left a core file; the supervisor's would only overwrite it.
        let none = Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        let _ = rustix::process::setrlimit(Resource::Core, none);
        die_by(number as u32);
    }
    std::process::exit(status.code().unwrap_or(125));
}

/// Ends this process by a signal.
fn die_by(number: u32) -> ! {
    // Rust's library handles SIGSEGV and SIGBUS, and our parent may have us ignore others.
    let _ = signal::set_default(number);
    process::set_signal_mask(!(1 << (u64::from(number) - 1)));
    let _ = process::kill(process::id(), number);
    std::process::exit(128 + number as i32);
}
