//! What a run has made, in a file: whoever finds it without its run removes what is left.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, ensure};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::FOLDER;
use super::names::{self, MadeName};
use crate::control_socket;

/// The ledger of a run, locked while the run lives.
#[derive(Debug)]
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
        Self::start_in(&control_socket::own_dir()?)
    }

    fn start_in(folder: &Path) -> Result<Self> {
        let id = std::process::id();
        // A process of another container can have the same number, and another run may be removing
        // a file that it has found without its run.
        let mut paths = (0..).map(|number| folder.join(format!("{id}-{number}.shm")));
        let mut open = || loop {
            let path = paths.next().expect("there is always a next number");
            let mut options = OpenOptions::new();
            options.create(true).write(true).mode(0o600);
            let file = options.open(&path)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if is_at(&file, &path) => {}
                Ok(()) | Err(Errno::WOULDBLOCK) => continue,
                Err(errno) => return Err(errno.into()),
            }
            file.set_len(0)?;
            writeln!(&file, "{}\n{}", boot(), place())?;
            return Ok::<_, std::io::Error>(Self { path, file });
        };
        open().with_context(|| format!("cannot note in '{}' what is made", folder.display()))
    }

    /// Notes a name before anybody can rely on its removal.
    pub fn note(&self, name: &MadeName) {
        // Without it the name is removed all the same, unless this process is killed.
        let _ = writeln!(&self.file, "{}", name.to_line());
    }

    /// Nothing is left.
    pub fn end(&self) {
        // The next run does it otherwise.
        let _ = fs::remove_file(&self.path);
    }
}

/// True while this is the file that the path leads to.
fn is_at(file: &File, path: &Path) -> bool {
    let of = |about: std::io::Result<fs::Metadata>| about.ok().map(|of| (of.dev(), of.ino()));
    let own = of(file.metadata());
    own.is_some() && own == of(fs::symlink_metadata(path))
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
    ensure!(is_at(&file, path), "somebody else has removed it");
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let mut lines = text.lines();
    let mut count = 0;
    if lines.next() == Some(boot().as_str()) {
        if lines.next() != Some(place().as_str()) {
            // It is for who sees what that run has seen: another container, perhaps.
            return Ok(0);
        }
        let left: Vec<MadeName> = lines.filter_map(MadeName::from_line).collect();
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn runs_that_start_while_others_clear_up_keep_their_ledgers() {
        let folder = tempfile::tempdir().unwrap();
        let is_over = AtomicBool::new(false);
        let clears = || {
            while !is_over.load(Ordering::Relaxed) {
                for entry in fs::read_dir(folder.path()).unwrap().flatten() {
                    // It refuses what a run has, and what is gone.
                    let _ = remove_of(&entry.path(), false);
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(clears);
            scope.spawn(clears);
            let starts = std::panic::catch_unwind(|| {
                let mut last = None;
                for _ in 0..1000 {
                    let ledger = Ledger::start_in(folder.path()).unwrap();
                    let text = fs::read_to_string(&ledger.path).unwrap();
                    assert!(text.starts_with(&boot()), "{text}");
                    assert!(is_at(&ledger.file, &ledger.path));
                    // What is left without its run is cleared up while the next one starts.
                    last.replace(ledger);
                }
            });
            is_over.store(true, Ordering::Relaxed);
            starts.unwrap();
        });
    }

    #[test]
    fn a_place_that_takes_no_ledger_is_refused() {
        let refused = Ledger::start_in(Path::new("/proc/self")).unwrap_err();
        assert!(
            format!("{refused:#}").contains("'/proc/self'"),
            "{refused:#}"
        );
    }
}
