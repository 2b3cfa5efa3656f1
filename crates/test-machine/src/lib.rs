//! What tests and benches do to a machine, and undo.
//!
//! What they change goes back to what it was when it is dropped, and also when the process is killed:
//! a [`Guard`] does it. Where a machine has not what is needed, the error says what is missing.

mod cgroup;
mod guard;
mod settings;
mod swap;
#[cfg(feature = "truth")]
pub mod truth;

pub use cgroup::Cgroup;
pub use guard::Guard;
pub use settings::{HugePages, Machine, Setting};
pub use swap::Swap;

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
