//! The host kernel of this machine, from its start to its end.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use farpage_client::{Host, Listed, check_owner, default_socket};
use farpage_default_pager::manager::Manager;
use farpage_default_pager::manager::paging::{Paging, PagingConfig};
use farpage_host::Objects;
use farpage_object::Pager;
use farpage_server::joined::join::JoinConfig;
use rustix::fs::Mode;
use rustix::process::umask;

use crate::cluster::{Joined, join};
use crate::locks::FramesTold;
use crate::service::{Service, WriteBack};

/// What a host kernel is like.
pub struct DaemonConfig {
    /// Where its pages may be.
    pub memory: PagingConfig,
    /// RAM that all shared memory of one user may take. `None`: all of it.
    pub user_ram_bytes: Option<u64>,
    /// Shared memory that processes of one user may have locked.
    pub lock_limit_bytes: u64,
    /// Who is told the frames of what it has locked.
    pub frames: FramesTold,
    /// The cluster that it joins.
    pub join: JoinConfig,
    /// Where it listens, unless a service manager has made a socket. `None`: where programs look
    /// for it.
    pub socket: Option<PathBuf>,
}

/// A host kernel that answers.
pub struct Daemon {
    socket: PathBuf,
    /// Takes the socket away when it is dropped.
    _listening: farpage_port::Listening,
    write_back: WriteBack,
    joined: Option<(Arc<Joined>, String)>,
    hand_over: Duration,
}

impl Daemon {
    /// Starts to answer.
    ///
    /// # Errors
    /// When it cannot start as asked.
    pub fn start(config: DaemonConfig) -> Result<Self> {
        let memory = &config.memory;
        let paging = Arc::new(Paging::start(memory)?);
        let resident = memory.ram_bytes - memory.compressed_max_bytes;
        let objects = Objects::start(resident)?;
        if let Some(patience) = memory.when_full.patience_of_shared() {
            objects.set_patience(patience);
        }
        let manager =
            Manager::start(Arc::clone(&paging.pager) as _).context("cannot start a thread")?;
        let own: Arc<dyn Pager> = Arc::clone(&paging.pager) as _;
        let service = Service::new(objects, memory.ram_bytes, Arc::clone(&own))?;
        let joined = join(&config.join, objects, own, service.here())?;
        let service = service
            .with_default_memory_manager(manager)
            .with_locks(config.lock_limit_bytes, config.frames)
            .with_paging_space_told(move || paging.about());
        let service = match config.user_ram_bytes {
            Some(bytes) => service.with_user_ram(bytes),
            None => service,
        };
        let service = match &joined {
            Some((cluster, _)) => service
                .with_net_messages(cluster.net_messages())
                .context("cannot start the network message server")?
                .with_cluster(Arc::clone(cluster) as _)
                .context("cannot start a thread")?,
            None => service,
        };
        let (listening, socket) = match given_socket()? {
            Some((given, path)) => {
                let listening = service.listen_on(given).context(
                    "cannot listen on the socket that was given; \
                     it must be ListenSequentialPacket=",
                )?;
                (listening, path)
            }
            None => {
                let is_default = config.socket.is_none();
                let path = config.socket.unwrap_or_else(default_socket);
                (listen(&service, &path, is_default)?, path)
            }
        };
        let write_back = service.write_back();
        std::thread::Builder::new()
            .name("services".into())
            .spawn(move || service.run())
            .context("cannot start a thread")?;
        Ok(Self {
            socket,
            _listening: listening,
            write_back,
            joined,
            hand_over: config.join.hand_over,
        })
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Which host of which cluster it is, in words.
    pub fn cluster(&self) -> Option<&str> {
        self.joined.as_ref().map(|(_, said)| said.as_str())
    }

    /// Has pagers take what was modified, for a time. Returns how many bytes they have not taken.
    pub fn write_back(&self, within: Duration) -> u64 {
        self.write_back.run(within)
    }

    /// Blocks of shared memory that are lost when it ends now: they are in use, and no other host
    /// has them.
    pub fn lost_blocks(&self) -> usize {
        let left = Host::connect(&self.socket).and_then(|host| host.list());
        let goes_on = |one: &Listed| {
            let joined = self.joined.as_ref().filter(|_| one.is_shared);
            joined.is_some_and(|(cluster, _)| cluster.outlives(&one.name))
        };
        left.map_or(0, |left| left.iter().filter(|one| !goes_on(one)).count())
    }

    /// Leaves the cluster, if it is in one: other hosts get what only this one has.
    pub fn leave(&self) {
        if let Some((cluster, _)) = &self.joined {
            cluster.leave(self.hand_over);
        }
    }
}

/// The socket that a service manager has made for the host kernel, and where it lies.
fn given_socket() -> Result<Option<(OwnedFd, PathBuf)>> {
    let numbers: Vec<i32> = sd_notify::listen_fds()
        .map(Iterator::collect)
        .unwrap_or_default();
    let [number] = numbers[..] else {
        let count = numbers.len();
        anyhow::ensure!(
            count == 0,
            "{count} sockets were given; have one ListenSequentialPacket= in the unit"
        );
        return Ok(None);
    };
    let socket = farpage_sys::process::inherited(number).context("no socket was given")?;
    let address = rustix::net::getsockname(&socket).context("no socket was given")?;
    let address = rustix::net::SocketAddrUnix::try_from(address);
    let path = address
        .ok()
        .and_then(|address| address.path_bytes().map(<[u8]>::to_vec));
    let Some(path) = path else {
        bail!("the socket that was given has no path; have ListenSequentialPacket=/a/path");
    };
    Ok(Some((socket, PathBuf::from(OsString::from_vec(path)))))
}

/// Listens where only this user comes. Of the place that is nobody's choice the folder is made.
fn listen(service: &Service, socket: &Path, is_default: bool) -> Result<farpage_port::Listening> {
    if let Ok(about) = std::fs::symlink_metadata(socket)
        && !about.file_type().is_socket()
    {
        bail!(
            "'{}' is there, and is no socket; give another --socket",
            socket.display()
        );
    }
    let folder = socket
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.exists()) {
        anyhow::ensure!(
            is_default,
            "cannot listen at '{}': there is no folder '{}'; make it, or give another --socket",
            socket.display(),
            folder.display()
        );
        std::fs::create_dir(folder)
            .and_then(|()| std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700)))
            .with_context(|| format!("cannot make '{}'", folder.display()))?;
    }
    check_owner(socket)?;
    if let Ok(host) = Host::connect(socket) {
        let of = |status: farpage_client::Status| format!(" (process {})", status.pid);
        let process = host.status().map_or(String::new(), of);
        bail!(
            "a host kernel listens at '{}' already{process}; use that, or give another --socket",
            socket.display()
        );
    }
    // From its first moment on.
    let before = umask(Mode::RWXG | Mode::RWXO | Mode::XUSR);
    let listening = service.listen(socket);
    umask(before);
    listening.with_context(|| format!("cannot listen at '{}'", socket.display()))
}
