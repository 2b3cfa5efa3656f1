//! Signals that whoever started us had ignored: programs that tests start would ignore them, too.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};

/// Numbers of HUP, INT, QUIT, TERM and of those that terminals and jobs send.
const MATTER: [u32; 8] = [1, 2, 3, 10, 12, 15, 17, 20];

/// Starts this program again with default dispositions, unless it has them.
pub(crate) fn reset() -> Result<()> {
    let status =
        fs::read_to_string("/proc/self/status").context("cannot read /proc/self/status")?;
    if ignored(&status).is_empty() {
        return Ok(());
    }
    let error = Command::new("env")
        .args(["--default-signal", "--"])
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .exec();
    Err(error).context("cannot start `env --default-signal`, which coreutils 8.31 and newer have")
}

/// Which signals that matter are ignored, by the status of a process.
fn ignored(status: &str) -> Vec<u32> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    MATTER
        .into_iter()
        .filter(|signal| mask >> (signal - 1) & 1 == 1)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::ignored;

    #[test]
    fn ignored_signals_are_read_from_the_mask() {
        assert_eq!(ignored("Name:\tx\nSigIgn:\t0000000000000003\n"), [1, 2]);
        // SIGPIPE, which Rust's own start ignores, and which is set back in every program it starts.
        assert!(ignored("SigIgn:\t0000000000001000\n").is_empty());
    }
}
