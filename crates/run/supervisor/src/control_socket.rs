//! The socket through which `farpage spill` talks to a run: one request a connection, a line of
//! JSON each way, several back while something is going on. Only its user can reach it.

use std::fs::{self, DirBuilder};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{geteuid, getuid};
use serde::{Deserialize, Serialize};

use farpage_default_pager::manager::paging::{PagingFileListed, SpillSet};

/// Between two looks at a paging file that is being emptied.
const PROGRESS: Duration = Duration::from_millis(200);
/// Longest request that is read, bytes.
const REQUEST_MAX: u64 = 16 << 10;

/// What can be asked of a run.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpillRequest {
    /// Add a paging file.
    Add {
        /// Absolute path of its directory.
        dir: PathBuf,
        /// Segments that it may take; `None`: as the disk allows.
        limit_segments: Option<u32>,
    },
    /// Remove the paging file in a directory.
    Remove {
        /// Absolute path of the directory.
        dir: PathBuf,
    },
    /// List the paging files.
    List,
}

/// What a run answers.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpillReply {
    /// Done; perhaps with something to know.
    Done {
        /// What the user should know.
        warning: Option<String>,
    },
    /// Refused.
    Refused {
        /// What, why, what to do.
        message: String,
    },
    /// Still emptying; more replies follow.
    Left {
        /// Bytes still in the file.
        bytes: u64,
    },
    /// The paging files.
    Files(Vec<PagingFileListed>),
}

/// Listens while it lives.
pub struct SpillServer {
    path: PathBuf,
}

impl Drop for SpillServer {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl SpillServer {
    /// Answers requests about `set` from a thread of its own.
    ///
    /// # Errors
    /// When there is no safe place for the socket.
    pub fn start(set: Arc<SpillSet>) -> Result<Self> {
        let dir = own_dir()?;
        let path = dir.join(format!("{}.sock", std::process::id()));
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path)
            .with_context(|| format!("cannot listen on '{}'", path.display()))?;
        let accept = move || {
            for stream in listener.incoming().flatten() {
                let set = Arc::clone(&set);
                let serve = move || drop(serve(&stream, &set));
                // A thread each, for an `rm` takes as long as its pages take to move.
                let _ = std::thread::Builder::new().spawn(serve);
            }
        };
        std::thread::Builder::new()
            .name("control".into())
            .spawn(accept)
            .context("cannot start a thread for the control socket")?;
        Ok(Self { path })
    }
}

fn serve(stream: &UnixStream, set: &SpillSet) -> io::Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(stream)?.uid;
    if peer != getuid() && !peer.is_root() {
        return Ok(());
    }
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut text = String::new();
    let mut reader = BufReader::new(io::Read::take(stream, REQUEST_MAX));
    reader.read_line(&mut text)?;
    let reply = |reply: &SpillReply| writeln!(&*stream, "{}", serde_json::to_string(reply)?);
    let refused = |error: &anyhow::Error| {
        reply(&SpillReply::Refused {
            message: format!("{error:#}"),
        })
    };
    let request: SpillRequest = match serde_json::from_str(&text) {
        Ok(request) => request,
        Err(error) => {
            let error = anyhow::Error::new(error)
                .context("cannot read the request; use the same version of farpage as the run's");
            return refused(&error);
        }
    };
    match request {
        SpillRequest::List => reply(&SpillReply::Files(set.list())),
        SpillRequest::Add {
            dir,
            limit_segments,
        } => match set.add(&dir, limit_segments) {
            Ok(added) => reply(&SpillReply::Done {
                warning: added.warning,
            }),
            Err(error) => refused(&error),
        },
        SpillRequest::Remove { dir } => match set.start_removal(&dir) {
            Ok(at) => remove(set, at, &dir, reply),
            Err(error) => refused(&error),
        },
    }
}

/// Reports until file `at` is empty. Whoever asked may go away: the emptying goes on.
fn remove(
    set: &SpillSet,
    at: usize,
    dir: &Path,
    reply: impl Fn(&SpillReply) -> io::Result<()>,
) -> io::Result<()> {
    let mut listened = Ok(());
    loop {
        match set.left(at) {
            Some(0) => return reply(&SpillReply::Done { warning: None }),
            Some(bytes) if listened.is_ok() => listened = reply(&SpillReply::Left { bytes }),
            Some(_) => {}
            None => {
                let message = format!(
                    "'{}' was added again before it was empty; it stays",
                    dir.display()
                );
                return reply(&SpillReply::Refused { message });
            }
        }
        std::thread::sleep(PROGRESS);
    }
}

/// Directories in which runs of this user may have their sockets.
pub fn candidate_dirs() -> Vec<PathBuf> {
    let uid = getuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
    let mut dirs = Vec::new();
    if let Some(runtime) = runtime {
        dirs.push(Path::new(&runtime).join("farpage"));
    }
    dirs.push(PathBuf::from(format!("/run/user/{uid}/farpage")));
    dirs.push(PathBuf::from(format!("/tmp/farpage-{uid}")));
    dirs.dedup();
    dirs
}

/// The first of them that can be made and is ours alone.
///
/// # Errors
/// When none is.
pub fn own_dir() -> Result<PathBuf> {
    let mut why = anyhow::anyhow!("no place for a control socket");
    for dir in candidate_dirs() {
        match make_private(&dir) {
            Ok(()) => return Ok(dir),
            Err(error) => why = error,
        }
    }
    Err(why)
}

fn make_private(dir: &Path) -> Result<()> {
    let made = DirBuilder::new().mode(0o700).create(dir);
    if let Err(error) = made
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(error).with_context(|| format!("cannot make '{}'", dir.display()));
    }
    let meta = fs::symlink_metadata(dir)?;
    let ours = meta.is_dir() && meta.uid() == geteuid().as_raw() && meta.mode() & 0o077 == 0;
    if !ours {
        bail!(
            "cannot use '{}': it is not a directory that only you can enter; remove it",
            dir.display()
        );
    }
    Ok(())
}

/// What lies where runs of this user have their sockets, whether anybody listens or not.
pub fn all() -> Vec<PathBuf> {
    let entries = candidate_dirs().into_iter().flat_map(fs::read_dir);
    let paths = entries.flatten().flatten().map(|entry| entry.path());
    let is_socket = |path: &PathBuf| path.extension().is_some_and(|end| end == "sock");
    paths.filter(is_socket).collect()
}

/// Process ids of this user's runs, with their sockets. Sockets that nobody listens on are
/// removed.
pub fn runs() -> Vec<(u32, PathBuf)> {
    let mut runs = Vec::new();
    for path in all() {
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        let Some(pid) = stem.and_then(|stem| stem.parse().ok()) else {
            continue;
        };
        match UnixStream::connect(&path) {
            Ok(_) => runs.push((pid, path)),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                let _ = fs::remove_file(&path);
            }
            Err(_) => {}
        }
    }
    runs.sort();
    runs
}

/// Asks the run that listens at `path`; `progress` hears of every reply but the last, which is
/// returned.
///
/// # Errors
/// When the run ended or its answer can't be read.
pub fn ask(
    path: &Path,
    request: &SpillRequest,
    mut progress: impl FnMut(&SpillReply),
) -> Result<SpillReply> {
    const GONE: &str = "cannot ask the run: it has ended";
    let mut stream = UnixStream::connect(path).context(GONE)?;
    writeln!(stream, "{}", serde_json::to_string(request)?).context(GONE)?;
    for line in BufReader::new(stream).lines() {
        let line = line.context(GONE)?;
        let reply = serde_json::from_str(&line)
            .context("cannot read the answer; use the same version of farpage as the run's")?;
        if !matches!(reply, SpillReply::Left { .. }) {
            return Ok(reply);
        }
        progress(&reply);
    }
    bail!(GONE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        let base = std::env::temp_dir().join(format!("farpage-socket-{}", std::process::id()));
        fs::create_dir_all(&base).unwrap();
        assert!(make_private(&base.join("fresh")).is_ok());
        assert!(make_private(&base.join("fresh")).is_ok(), "it may be there");
        let open = base.join("open");
        DirBuilder::new().mode(0o755).create(&open).unwrap();
        assert!(make_private(&open).is_err());
        std::os::unix::fs::symlink(base.join("fresh"), base.join("link")).unwrap();
        assert!(make_private(&base.join("link")).is_err());
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn a_run_answers_requests_and_removes_what_it_is_told() {
        let (fd, control) = farpage_sys::control::create().unwrap();
        farpage_sys::file::close(fd);
        let set = Arc::new(SpillSet::new(control));
        let server = SpillServer::start(Arc::clone(&set)).unwrap();
        let own = runs()
            .into_iter()
            .find(|run| run.0 == std::process::id())
            .unwrap()
            .1;
        let add = |dir: &str| SpillRequest::Add {
            dir: dir.into(),
            limit_segments: Some(9),
        };
        let done = SpillReply::Done { warning: None };
        assert_eq!(ask(&own, &add("/tmp"), |_| ()).unwrap(), done);
        assert_eq!(ask(&own, &add("/var/tmp"), |_| ()).unwrap(), done);
        let refused = ask(&own, &add("/no/such/dir"), |_| ()).unwrap();
        assert!(matches!(refused, SpillReply::Refused { .. }));
        control.spill[0].used_segments.store(3, Ordering::Relaxed);
        let remove = SpillRequest::Remove { dir: "/tmp".into() };
        let mut seen = Vec::new();
        let last = ask(&own, &remove, |reply| {
            if let SpillReply::Left { bytes } = reply {
                seen.push(*bytes);
            }
            control.spill[0].used_segments.store(0, Ordering::Relaxed);
        });
        assert_eq!(last.unwrap(), done);
        // Said again and again, as long as it is so.
        assert!(
            !seen.is_empty() && seen.iter().all(|bytes| *bytes == 3 << 20),
            "{seen:?}"
        );
        let SpillReply::Files(files) = ask(&own, &SpillRequest::List, |_| ()).unwrap() else {
            panic!("no list");
        };
        assert_eq!(files[0].state, "removed");
        assert_eq!(files[1].state, "active");
        drop(server);
        assert!(!own.exists());
        // What else lies there is no socket that nobody listens on.
        let ledger = own.with_extension("shm");
        fs::write(&ledger, "").unwrap();
        assert!(!runs().iter().any(|(_, path)| *path == ledger));
        assert!(ledger.exists());
        fs::remove_file(ledger).unwrap();
    }
}
