//! `farpage up`: the host kernel.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use farpage_host::Objects;
use farpage_manager::Manager;
use farpage_pagers::Pager;
use farpage_services::{Host, Listed, Service, check_owner, default_socket};
use farpage_sys::file::Fd;
use farpage_sys::memory_limit::MemoryLimit;
use farpage_sys::signal;
use rustix::fs::Mode;
use rustix::process::umask;

use crate::cluster::join::JoinArgs;
use crate::cluster::joined::join;
use crate::host::locks::LockingArgs;
use crate::host::web::{self, WebArgs};
use crate::prepare;
use crate::prepare::MemoryArgs;
use farpage_manager::paging::Paging;
use farpage_supervisor::{shm, signals};
use farpage_text::size::{Size, counted, human};

/// HUP, INT, QUIT and TERM end it.
const ENDS: u64 = 1 | 1 << (2 - 1) | 1 << (3 - 1) | 1 << (15 - 1);
/// Pagers have so much time to take what was modified when it ends.
const ENDING: Duration = Duration::from_secs(10);
/// The least that objects of a user may have.
const USER_RAM_MIN: u64 = 4 << 20;

/// Run the host kernel: memory that processes share by name, and that spills
///
/// Stays in the foreground until it is interrupted; then, or when it is killed, what is shared is
/// lost. In a cluster it hands over to the other hosts what only it has, when it is interrupted.
/// Processes reach it at a socket that only this user (and root) may use.
#[derive(Args, Debug)]
#[command(after_help = "In Python:\n  \
    shm = farpage.SharedMemory(name=\"grid\", create=True, size=1 << 30)")]
pub struct UpArgs {
    /// Where its pages are.
    #[command(flatten)]
    pub memory: MemoryArgs,
    /// Listen there, and not at $FARPAGE_HOST, $XDG_RUNTIME_DIR/farpage/host or, for root,
    /// /run/farpage/host
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// RAM that all shared memory of one user may take [default: all of --ram]
    ///
    /// For a host kernel that several users use. At least 4M; a percentage is of --ram. What is
    /// beyond it pages out, even while there is room.
    #[arg(long, value_name = "SIZE")]
    pub user_ram: Option<String>,
    #[command(flatten)]
    pub locking: LockingArgs,
    #[command(flatten)]
    pub join: JoinArgs,
    #[command(flatten)]
    pub web: WebArgs,
}

/// Answers until a signal ends it.
///
/// # Errors
/// When it cannot start.
pub fn main(args: &UpArgs) -> Result<()> {
    web::check(&args.web)?;
    let of_machine = MemoryLimit::read();
    let memory = prepare::memory(&args.memory, &of_machine, prepare::COMPRESSED_OF_HOST)?;
    let (lock_limit, frames) = args.locking.read(&of_machine)?;
    let user_ram = user_ram(args, memory.ram_bytes)?;
    let socket = args.socket.clone().unwrap_or_else(default_socket);
    shm::tidy();
    let _blocked = signals::block();
    let ends = signal::watch(ENDS).context("cannot watch for signals")?;
    let paging = Arc::new(Paging::start(&memory)?);
    let resident = memory.ram_bytes - memory.compressed_max_bytes;
    let objects = Objects::start(resident)?;
    if let Some(patience) = memory.when_full.patience_of_shared() {
        objects.set_patience(patience);
    }
    let manager =
        Manager::start(Arc::clone(&paging.pager) as _).context("cannot start a thread")?;
    let own: Arc<dyn Pager> = Arc::clone(&paging.pager) as _;
    let service = Service::new(objects, memory.ram_bytes, Arc::clone(&own))?;
    let joined = join(&args.join.config(), objects, own, service.here())?;
    let service = service.with_default_memory_manager(manager);
    let service = service.with_locks(lock_limit, frames);
    let service = service.with_paging_space_told(move || paging.about());
    let service = match user_ram {
        Some(bytes) => service.with_user_ram(bytes),
        None => service,
    };
    let service = match &joined {
        Some((cluster, _)) => {
            let service = service
                .with_net_messages(cluster.net_messages())
                .context("cannot start the network message server")?;
            let cluster = Arc::clone(cluster) as _;
            service
                .with_cluster(cluster)
                .context("cannot start a thread")?
        }
        None => service,
    };
    let given = given_socket()?;
    let socket = match &given {
        Some((_, path)) => path.clone(),
        None => socket,
    };
    let listening = match given {
        Some((given, _)) => service.listen_on(given).context(
            "cannot listen on the socket that was given; it must be ListenSequentialPacket=",
        )?,
        None => listen(&service, &socket, args.socket.is_none())?,
    };
    let write_back = service.write_back();
    std::thread::Builder::new()
        .name("services".into())
        .spawn(move || service.run())
        .context("cannot start a thread")?;
    let page = web::start(&args.web, socket.clone())?;
    let each = user_ram.map_or(String::new(), |bytes| {
        format!(", {} of it for each user", human(bytes))
    });
    tell!(
        "farpage: the host kernel answers at {}, with {} of RAM{each}",
        socket.display(),
        human(memory.ram_bytes)
    );
    if let Some((_, said)) = &joined {
        tell!("farpage: it is {said}");
    }
    if let Some(address) = page {
        tell!("farpage: its page is http://{address}/");
    }
    // A service manager, if there is one, is told that programs may come.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    // A watch is told of one signal at a time; an interrupted wait is none.
    while signal::next(ends).is_err() {}
    let not_taken = write_back.run(ENDING);
    if not_taken > 0 {
        farpage_sys::say!(
            "farpage: {} of modified pages are lost: their pagers have not taken them",
            human(not_taken)
        );
    }
    let left = Host::connect(&socket).and_then(|host| host.list());
    let goes_on = |one: &Listed| {
        let joined = joined.as_ref().filter(|_| one.is_shared);
        joined.is_some_and(|(cluster, _)| cluster.outlives(&one.name))
    };
    let lost = left.map_or(0, |left| left.iter().filter(|one| !goes_on(one)).count());
    if lost > 0 {
        let blocks = counted(lost as u64, "block");
        farpage_sys::say!("farpage: lost, for still in use: {blocks} of shared memory");
    }
    if let Some((cluster, _)) = &joined {
        ends_at_once(ends)?;
        cluster.leave(Duration::from_secs(args.join.hand_over));
    }
    // Takes the socket away.
    drop(listening);
    Ok(())
}

/// A second signal does not wait for what the first has begun.
fn ends_at_once(ends: Fd) -> Result<()> {
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            while signal::next(ends).is_err() {}
            std::process::exit(1)
        })
        .context("cannot start a thread")?;
    Ok(())
}

fn user_ram(args: &UpArgs, ram_bytes: u64) -> Result<Option<u64>> {
    let Some(text) = &args.user_ram else {
        return Ok(None);
    };
    let bytes = Size::parse("--user-ram", text)?.of(ram_bytes);
    if bytes < USER_RAM_MIN {
        bail!(
            "cannot run with --user-ram {text}, which is {bytes} bytes: give 4M or more, with its unit"
        );
    }
    if bytes > ram_bytes {
        bail!(
            "cannot run with --user-ram {text}: {} is more than --ram, {}; give less, or more RAM",
            human(bytes),
            human(ram_bytes)
        );
    }
    Ok(Some(bytes))
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
        let of = |status: farpage_services::Status| format!(" (process {})", status.pid);
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
