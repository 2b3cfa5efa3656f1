//! What tests and benches share: which seeds are run ([`seeds`]), a server of files that fails on
//! demand ([`server`]), and what they do to a machine, and undo.
//!
//! What they change goes back to what it was when it is dropped, and also when the process is
//! killed: a [`Guard`] does it. Where a machine has not what is needed, the error says what is
//! missing.

mod alone;
mod cgroup;
mod guard;
mod seeds;
pub mod server;
mod settings;
mod started;
mod swap;
#[cfg(feature = "truth")]
pub mod truth;
mod until;

pub use alone::{Alone, alone, ran_in_own_process};
pub use cgroup::Cgroup;
pub use guard::Guard;
pub use seeds::seeds;
pub use settings::{HugePages, Machine, Setting};
pub use started::Started;
pub use swap::Swap;
pub use until::{HANGS, Thread, pass, sleeps, until, until_or};

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// What a program prints that must succeed.
fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command
        .output()
        .with_context(|| format!("cannot start {name}"))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        bail!("{name}: {}, {}", said.trim(), done.status);
    }
    Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned())
}

/// Gives a program another name, for instance for a user who cannot reach the first: it must not be
/// changed then. Where that cannot be, it is copied.
pub fn name_program(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
    std::fs::hard_link(&from, &to).or_else(|_| copy_program(from, to))
}

/// Copies a program that is run then. Another process copies it: while this one had the copy open
/// for writing, a child that another thread forks would have it open as well, and whoever runs it
/// would be refused with ETXTBSY.
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
    let mut copy = Command::new("cp");
    copy.args(["-p", "--"]).args([from.as_ref(), to.as_ref()]);
    output(&mut copy).map(drop)
}
