//! `farpage gc`: removes what host kernels and runs that were killed have left.
//!
//! Memory files and paging files have no names, so that nothing of them stays. Sockets have.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use farpage_client::default_socket;
use rustix::process::geteuid;

use farpage_supervisor::{control_socket, shm};
use farpage_text::size::counted;

/// Remove what killed host kernels and runs have left
///
/// That is sockets on which nobody listens, and names of the shared memory of runs with --shm.
/// Nothing else is left of them: their memory and paging files have no names.
#[derive(Args, Debug)]
pub struct GcArgs {
    /// Only say what would be removed
    #[arg(long)]
    pub dry_run: bool,
    /// Look at this socket of a host kernel, too; may be given again
    #[arg(long, value_name = "PATH")]
    pub socket: Vec<PathBuf>,
}

/// Removes them, and says which.
///
/// # Errors
/// When one cannot be removed.
pub fn gc(args: &GcArgs) -> Result<()> {
    names(args.dry_run);
    let mut sockets = control_socket::all();
    sockets.push(default_socket());
    sockets.extend(args.socket.iter().cloned());
    sockets.sort();
    sockets.dedup();
    let mut folders: Vec<PathBuf> = Vec::new();
    let mut removed = 0;
    for path in sockets.iter().filter(|path| is_left(path)) {
        if !args.dry_run {
            fs::remove_file(path).with_context(|| format!("cannot remove '{}'", path.display()))?;
            folders.extend(path.parent().map(Path::to_path_buf));
        }
        outln!("{}", path.display());
        removed += 1;
    }
    folders.dedup();
    for folder in folders.iter().filter(|folder| folder.ends_with("farpage")) {
        // Others may be in it.
        let _ = fs::remove_dir(folder);
    }
    let sockets = counted(removed, "socket");
    match args.dry_run {
        true => outln!("would remove {sockets}"),
        false => outln!("removed {sockets}"),
    }
    let asked = args
        .socket
        .iter()
        .find(|path| !is_socket(path) && path.exists());
    match asked {
        Some(path) => bail!("'{}' is no socket of this user's: it stays", path.display()),
        None => Ok(()),
    }
}

/// True of a socket of this user's on which nobody listens.
fn is_left(path: &Path) -> bool {
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    is_socket(path) && UnixStream::connect(path).is_err_and(refused)
}

fn is_socket(path: &Path) -> bool {
    let own = geteuid();
    fs::symlink_metadata(path).is_ok_and(|about| {
        about.file_type().is_socket() && (about.uid() == own.as_raw() || own.is_root())
    })
}

/// Removes names of shared memory, and says how many there were.
fn names(dry: bool) {
    match shm::collect(dry) {
        0 => outln!("killed runs have left no shared memory"),
        count if dry => outln!(
            "would remove shared memory of killed runs, unless others use it: {}",
            counted(count, "name")
        ),
        count => out!("{}", shm::removed(count)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_sockets_on_which_nobody_listens_are_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let _listens = UnixListener::bind(path("used")).unwrap();
        drop(UnixListener::bind(path("left")).unwrap());
        fs::write(path("file"), "").unwrap();
        std::os::unix::fs::symlink(path("left"), path("link")).unwrap();
        let left = |name: &str| is_left(&path(name));
        assert!(left("left"));
        for name in ["used", "file", "link", "none"] {
            assert!(!left(name), "{name}");
        }
    }
}
