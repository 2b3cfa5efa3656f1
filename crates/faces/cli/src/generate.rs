//! Completion scripts and manual pages, from the definition of the command line.

use std::path::Path;

use anyhow::{Result, anyhow};
use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Cli;

/// Prints the completion script for `shell`.
pub fn completions(shell: Shell) {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "farpage", &mut script);
    out!("{}", String::from_utf8_lossy(&script));
}

/// Writes the manual pages into `dir`.
///
/// # Errors
/// When `dir` is no directory that can be written.
pub fn man(dir: &Path) -> Result<()> {
    clap_mangen::generate_to(Cli::command(), dir).map_err(|error| {
        anyhow!(
            "cannot write manual pages to '{}': {error}; give a directory that exists and is yours",
            dir.display()
        )
    })
}
