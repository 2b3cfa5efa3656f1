//! The clone that is built: what is committed, and nothing else.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::proc;
use crate::world::World;

/// A clone of one commit.
pub(crate) struct Source {
    /// Where it lies.
    pub(crate) root: PathBuf,
    /// Seconds since 1970 when the commit was made: the date of all files that are packed.
    pub(crate) epoch: String,
    /// The same, as `2026-01-31T12:00:00Z`.
    pub(crate) date: String,
}

/// Clones HEAD to `to`, in place of what is there.
pub(crate) fn clone(world: &World, to: &Path) -> Result<Source> {
    let changes = git(&world.root, &["status", "--porcelain"])?;
    refuse_changes(&changes)?;
    let commit = git(&world.root, &["rev-parse", "HEAD"])?;
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    let mut clone = Command::new("git");
    clone.args(["clone", "--quiet", "--no-checkout", "--shared"]);
    proc::output(clone.arg(&world.root).arg(to), "git clone")?;
    git(to, &["checkout", "--quiet", "--detach", commit.trim()])?;
    let date = [
        "show",
        "--no-patch",
        "--date=format-local:%Y-%m-%dT%H:%M:%SZ",
    ];
    let shown = |format| {
        let shown = git(to, &[&date[..], &[format]].concat())?;
        Ok::<_, anyhow::Error>(shown.trim().to_owned())
    };
    Ok(Source {
        root: to.to_owned(),
        epoch: shown("--format=%ct")?,
        date: shown("--format=%cd")?,
    })
}

fn refuse_changes(changes: &str) -> Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    bail!(
        "a release is made of what is committed, and this is not; commit, ignore or remove it:\n{}",
        changes.trim_end()
    )
}

fn git(root: &Path, args: &[&str]) -> Result<String> {
    let mut git = Command::new("git");
    git.arg("-C").arg(root).args(args).env("TZ", "UTC");
    proc::output(&mut git, "git")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_committed_is_named() {
        assert!(refuse_changes("").is_ok());
        let refused = refuse_changes("?? new.rs\n").unwrap_err().to_string();
        assert!(refused.ends_with("\n?? new.rs"), "{refused}");
    }
}
