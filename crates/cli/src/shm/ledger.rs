//! What a run has made, in a file: whoever finds it without its run removes what is left.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};

use super::FOLDER;
use super::names::{self, Name};
use crate::control_socket;

/// The ledger of a run, locked while the run lives.
pub struct Ledger {
    path: PathBuf,
    file: File,
}

impl Ledger {
    /// An empty one.
    ///
    /// # Errors
    /// When there is no place for it.
    pub fn start() -> Result<Self> {
        let folder = control_socket::own_dir()?;
        let path = folder.join(format!("{}.shm", std::process::id()));
        let open = || {
            let mut options = OpenOptions::new();
            options.create(true).write(true).truncate(true).mode(0o600);
            let file = options.open(&path)?;
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            writeln!(&file, "{}\n{}", boot(), place())?;
            Ok::<_, std::io::Error>(file)
        };
        let file = open().with_context(|| format!("cannot write '{}'", path.display()))?;
        Ok(Self { path, file })
    }

    /// Notes a name before anybody can rely on its removal.
    pub fn note(&self, name: &Name) {
        // Without it the name is removed all the same, unless this process is killed.
        let _ = writeln!(&self.file, "{}", name.to_line());
    }

    /// Nothing is left.
    pub fn end(&self) {
        // The next run does it otherwise.
        let _ = fs::remove_file(&self.path);
    }
}

/// Numbers mean other things after the machine was started again.
fn boot() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.unwrap_or_default().trim().to_string()
}

/// What names and numbers mean is told by the mount that is at [`FOLDER`], and the namespace of
/// System V. Devices have the numbers of earlier ones, but not their age.
fn place() -> String {
    let folder = fs::metadata(FOLDER).ok();
    let device = folder.as_ref().map_or(0, MetadataExt::dev);
    let made = folder.and_then(|folder| folder.created().ok());
    let made = made.and_then(|made| made.duration_since(UNIX_EPOCH).ok());
    let namespace = fs::metadata("/proc/self/ns/ipc").map_or(0, |it| it.ino());
    let made = made.map_or(0, |made| made.as_nanos());
    format!("{device} {made} {namespace}")
}

/// Removes what runs of this user have left that were killed. Returns how much that was; when it is
/// `dry`, how much it is at most, and nothing is removed.
pub fn remove_what_dead_runs_left(dry: bool) -> u64 {
    control_socket::candidate_dirs()
        .iter()
        .flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten())
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|end| end == "shm"))
        .filter_map(|path| remove_of(&path, dry).ok())
        .sum()
}

fn remove_of(path: &Path, dry: bool) -> Result<u64> {
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    // Its run lives.
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let mut lines = text.lines();
    let mut count = 0;
    if lines.next() == Some(boot().as_str()) {
        if lines.next() != Some(place().as_str()) {
            // It is for who sees what that run has seen: another container, perhaps.
            return Ok(0);
        }
        let left: Vec<Name> = lines.filter_map(Name::from_line).collect();
        count = match dry {
            true => left.len() as u64,
            false => names::remove(left.iter()),
        };
    }
    if !dry {
        fs::remove_file(path)?;
    }
    Ok(count)
}
