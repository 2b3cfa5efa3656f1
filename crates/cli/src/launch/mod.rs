//! Starts the program and looks after it until it ends.
//!
//! Placeholder: the program runs as it is, without paging, and a signal that arrives in the
//! instant of its start ends the supervisor.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use crate::options::{Casualty, Prepared};

/// The program, started.
pub struct Running {
    child: Child,
}

/// Starts the program of `prepared`.
///
/// # Errors
/// When it cannot be started.
pub fn start(prepared: &Prepared) -> anyhow::Result<Running> {
    let options = &prepared.options;
    let _ = (prepared.control, prepared.control_fd);
    let blocked = farpage_sys::process::set_signal_mask(prepared.signal_mask);
    let child = Command::new(&options.program)
        .arg0(&options.args[0])
        .args(&options.args[1..])
        .spawn();
    farpage_sys::process::set_signal_mask(blocked);
    Ok(Running { child: child? })
}

impl Running {
    /// Process id of the program, for signals. It stays the program's until `wait` returned its
    /// exit status.
    pub fn program_pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits at most `timeout` for the program to end. Whatever else the supervisor has to do for
    /// the tree (taking back what dead tasks held, static programs) goes on meanwhile.
    ///
    /// # Errors
    /// When the tree can't be looked after any more.
    pub fn wait(&mut self, timeout: Duration) -> anyhow::Result<Option<ExitStatus>> {
        let until = Instant::now() + timeout;
        loop {
            let status = self.child.try_wait()?;
            if status.is_some() || Instant::now() >= until {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Tasks that Farpage ended since the last call.
    pub fn take_casualties(&mut self) -> Vec<Casualty> {
        Vec::new()
    }
}
