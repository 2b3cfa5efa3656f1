//! `farpage spill`: the paging files of a run that goes on.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use farpage_default_pager::manager::paging::PagingFileListed;
use farpage_object::{SEGMENT_BYTES, SEGMENTS_MAX};
use farpage_supervisor::control_socket::{self, SpillReply, SpillRequest};
use farpage_text::columns::{Side, columns};
use farpage_text::size::human;

use crate::memory::absolute;

/// Add, remove or list the paging files of a run
#[derive(Args, Debug)]
pub struct SpillArgs {
    /// What to do with them.
    #[command(subcommand)]
    pub command: SpillCommand,
}

/// What can be done with paging files.
#[derive(Subcommand, Debug)]
pub enum SpillCommand {
    /// Add a paging file in a directory to a run, or change what one may take
    Add {
        /// Directory for the file
        dir: PathBuf,
        /// Disk space that it may take [default: no limit]
        #[arg(long, value_name = "SIZE")]
        limit: Option<String>,
        #[command(flatten)]
        which: WhichRun,
    },
    /// Move everything out of the paging file in a directory and remove it
    Rm {
        /// Directory of the file, as `spill ls` shows it
        dir: PathBuf,
        #[command(flatten)]
        which: WhichRun,
    },
    /// List the paging files of a run
    Ls {
        #[command(flatten)]
        which: WhichRun,
    },
}

/// Which run is meant.
#[derive(Args, Debug)]
pub struct WhichRun {
    /// Process id of `farpage run`; needed when you have more than one
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
}

/// Does what `farpage spill` was asked for.
///
/// # Errors
/// When there is no such run, or it refuses.
pub fn main(args: &SpillArgs) -> Result<()> {
    match &args.command {
        SpillCommand::Add { dir, limit, which } => {
            let limit = absolute("--limit", limit.as_deref())?;
            let dir = absolute_dir(dir)?;
            let segments =
                |bytes: u64| (bytes / SEGMENT_BYTES as u64).min(SEGMENTS_MAX as u64) as u32;
            let request = SpillRequest::Add {
                dir: dir.clone(),
                limit_segments: limit.map(segments),
            };
            finish(control_socket::ask(&find(which)?, &request, |_| ())?)?;
            outln!("'{}' takes pages now", dir.display());
        }
        SpillCommand::Rm { dir, which } => {
            let dir = absolute_dir(dir)?;
            remove(&find(which)?, &dir)?;
        }
        SpillCommand::Ls { which } => {
            let reply = control_socket::ask(&find(which)?, &SpillRequest::List, |_| ())?;
            let SpillReply::Files(files) = reply else {
                bail!("cannot read the answer; use the same version of farpage as the run's");
            };
            out!("{}", table(&files));
        }
    }
    Ok(())
}

fn remove(socket: &Path, dir: &Path) -> Result<()> {
    let request = SpillRequest::Remove {
        dir: dir.to_path_buf(),
    };
    let terminal = std::io::stderr().is_terminal();
    let mut shown = false;
    let reply = control_socket::ask(socket, &request, |reply| {
        if let SpillReply::Left { bytes } = reply
            && terminal
        {
            shown = true;
            let text = format!("\r{} still in '{}'\x1b[K", human(*bytes), dir.display());
            let _ = std::io::stderr().write_all(text.as_bytes());
        }
    });
    if shown {
        let _ = std::io::stderr().write_all(b"\r\x1b[K");
    }
    finish(reply?)?;
    outln!("'{}' is empty and removed", dir.display());
    Ok(())
}

fn finish(reply: SpillReply) -> Result<()> {
    match reply {
        SpillReply::Done { warning } => {
            if let Some(warning) = warning {
                farpage_sys::say!("farpage: {warning}");
            }
            Ok(())
        }
        SpillReply::Refused { message } => bail!(message),
        SpillReply::Left { .. } | SpillReply::Files(_) => {
            bail!("cannot read the answer; use the same version of farpage as the run's")
        }
    }
}

/// The socket of the run that is meant.
fn find(which: &WhichRun) -> Result<PathBuf> {
    let runs = control_socket::runs();
    let list = || {
        let pids: Vec<String> = runs.iter().map(|(pid, _)| describe(*pid)).collect();
        pids.join(", ")
    };
    match (which.pid, runs.as_slice()) {
        (None, []) => bail!(
            "cannot find a run: you have no farpage run going on; \
             start one with: farpage run -- PROGRAM"
        ),
        (None, [(_, socket)]) => Ok(socket.clone()),
        (None, _) => bail!(
            "cannot tell which run is meant: you have {} ({}); give one with --pid",
            runs.len(),
            list()
        ),
        (Some(pid), _) => match runs.iter().find(|run| run.0 == pid) {
            Some((_, socket)) => Ok(socket.clone()),
            None if runs.is_empty() => bail!(
                "cannot find run {pid}: you have no farpage run going on; \
                 --pid takes the process id of farpage run"
            ),
            None => bail!(
                "cannot find run {pid}: your runs are {}; \
                 --pid takes the process id of farpage run",
                list()
            ),
        },
    }
}

/// `1234: farpage run --ram 1G -- python3 job.py`, shortened.
fn describe(pid: u32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line).replace('\0', " ");
    let line = line.trim();
    let short: String = line.chars().take(60).collect();
    let cut = if short.len() < line.len() { "..." } else { "" };
    format!("{pid}: {short}{cut}")
}

fn absolute_dir(dir: &Path) -> Result<PathBuf> {
    dir.canonicalize()
        .or_else(|_| std::path::absolute(dir))
        .with_context(|| format!("cannot find '{}'", dir.display()))
}

fn table(files: &[PagingFileListed]) -> String {
    let rows = files.iter().filter(|file| file.is_there()).map(|file| {
        let limit = file.limit_bytes.map_or("none".to_string(), human);
        let mut state = file.state.clone();
        if let Some(trouble) = file.trouble() {
            state = format!("{state}, {trouble}");
        }
        if !file.direct {
            state += ", through the page cache";
        }
        [
            human(file.used_bytes),
            human(file.allocated_bytes),
            limit,
            file.dir.display().to_string(),
            state,
        ]
    });
    let head = ["USED", "ON DISK", "LIMIT", "DIRECTORY", "STATE"];
    let (left, right) = (Side::Left, Side::Right);
    columns([right, right, right, left, left], head, rows).join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_aligned() {
        let file = |dir: &str, used, limit_bytes, full| PagingFileListed {
            dir: dir.into(),
            state: "active".to_string(),
            used_bytes: used,
            allocated_bytes: used * 2,
            limit_bytes,
            direct: true,
            full,
            write_error: None,
        };
        let files = [
            file("/var/tmp", 312 << 20, None, false),
            file("/mnt/fast/pages", 3 << 30, Some(8 << 30), true),
        ];
        let expected = "    \
    USED   ON DISK     LIMIT  DIRECTORY        STATE
 312 MiB   624 MiB      none  /var/tmp         active
3.00 GiB  6.00 GiB  8.00 GiB  /mnt/fast/pages  active, disk full
";
        assert_eq!(table(&files), expected);
    }
}
