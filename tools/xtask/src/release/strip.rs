//! Symbols apart: what debuggers and backtraces need, out of what is installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::names::listed;
use super::tree::anew;
use crate::proc;

/// Strips the command and the libraries below `prefix`. Their symbols go to `symbols`, each as
/// `NAME.debug`, by which name the stripped file asks for it.
pub(crate) fn apart(prefix: &Path, symbols: &Path) -> Result<()> {
    anew(symbols)?;
    for program in programs(prefix)? {
        let name = program.file_name().context("a program has a name")?;
        let kept = symbols.join(format!("{}.debug", name.to_string_lossy()));
        objcopy(&["--only-keep-debug"], &program, Some(&kept))?;
        objcopy(&["--strip-all"], &program, None)?;
        let link = format!("--add-gnu-debuglink={}", kept.display());
        objcopy(&[&link], &program, None)?;
    }
    Ok(())
}

/// The command and the shared libraries themselves, without the links to them.
pub(crate) fn programs(prefix: &Path) -> Result<Vec<PathBuf>> {
    let mut found = vec![prefix.join("bin/farpage")];
    for path in listed(&prefix.join("lib"))? {
        let is_shared = path.to_string_lossy().contains(".so");
        if is_shared && fs::symlink_metadata(&path)?.is_file() {
            found.push(path);
        }
    }
    Ok(found)
}

fn objcopy(args: &[&str], from: &Path, to: Option<&Path>) -> Result<()> {
    let mut objcopy = Command::new("objcopy");
    objcopy.args(args).arg(from).args(to);
    proc::output(&mut objcopy, "objcopy").map(drop)
}
