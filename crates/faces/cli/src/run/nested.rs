//! `farpage run` inside of `farpage run`.
//!
//! The program belongs to the outer run, as all that is started there does: one filter, one agent,
//! one budget. So it is executed as it is.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Result, bail};
use farpage_supervisor::cannot_execute;
use farpage_supervisor::config::RunOptions;
use farpage_sys::seccomp::GATE_ADDRESS;

use super::args::Report;

/// True in a process of a run.
pub fn is_inside() -> bool {
    let gate = format!("{GATE_ADDRESS:x}-");
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().any(|line| line.starts_with(&gate))
}

/// Becomes the program of `options`.
///
/// # Errors
/// When it is to have what only the outer run can give, or cannot be executed.
pub fn run(options: &RunOptions, report: &Report) -> Result<std::convert::Infallible> {
    let wanted = [
        (!options.maps.is_empty(), "--map"),
        (options.shm, "--shm"),
        (options.stdio, "--stdio"),
        (options.machine_bytes.is_some(), "--memory"),
        (report.stats.is_some(), "--stats"),
        (options.exec.is_some(), "farpage exec"),
    ];
    if let Some((_, what)) = wanted.iter().find(|(is_wanted, _)| *is_wanted) {
        bail!(
            "cannot have {what} here: this is inside of another farpage run, to which all its \
             programs belong; give it to that one"
        );
    }
    if !report.quiet {
        farpage_sys::say!(
            "farpage: this is inside of another farpage run: the program runs within its budget, \
             and --ram, --compressed, --spill and --when-full are those of that one"
        );
    }
    let name = options.args.first().map_or(OsStr::new(""), |name| name);
    let failed = Command::new(&options.program)
        .arg0(name)
        .args(options.args.iter().skip(1))
        .exec();
    Err(cannot_execute(&options.program, &failed).into())
}
