//! `farpage up`: the host kernel.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use farpage::memory_limit::MemoryLimit;
use farpage_abi::{Control, fds};
use farpage_default_pager::DefaultPager;
use farpage_host::Objects;
use farpage_services::{Host, Service, check_owner, default_socket};
use farpage_sys::signal;
use rustix::fs::Mode;
use rustix::process::{Resource, getrlimit, setrlimit, umask};

use crate::args::MemoryArgs;
use crate::options::Memory;
use crate::size::human;
use crate::spill_set::SpillSet;
use crate::{prepare, signals};

/// INT and TERM end it.
const ENDS: u64 = 1 << (2 - 1) | 1 << (15 - 1);
/// Pagers have so much time to take what was modified when it ends.
const ENDING: Duration = Duration::from_secs(10);
/// The paging space's place among the tasks of its control block, of which it is the only one.
const SLOT: usize = 0;

/// Run the host kernel: memory that processes share by name, and that spills
///
/// Stays in the foreground until it is interrupted; then, or when it is killed, what is shared is
/// lost. Processes reach it at a socket that only this user (and root) may use.
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
}

/// Answers until a signal ends it.
///
/// # Errors
/// When it cannot start.
pub fn main(args: &UpArgs) -> Result<()> {
    let memory = prepare::memory(&args.memory, &MemoryLimit::read())?;
    let socket = args.socket.clone().unwrap_or_else(default_socket);
    let _blocked = signals::block();
    let ends = signal::watch(ENDS).context("cannot watch for signals")?;
    raise_descriptors();
    let (_file, control) =
        farpage_sys::control::create().context("cannot make the control block")?;
    fill(control, &memory)?;
    let spill = SpillSet::start(control, &memory)?;
    let pager = DefaultPager::new(control, SLOT);
    let pager = pager.map_err(|error| anyhow::anyhow!("cannot make paging space: {error}"))?;
    let resident = memory.ram_bytes - memory.compressed_max_bytes;
    let objects = Objects::start(resident)?;
    let service = Service::new(objects, memory.ram_bytes, Arc::new(pager))?;
    let listening = listen(&service, &socket)?;
    let write_back = service.write_back();
    println!(
        "farpage: the host kernel answers at {}, with {} of RAM",
        socket.display(),
        human(memory.ram_bytes)
    );
    std::thread::Builder::new()
        .name("services".into())
        .spawn(move || service.run())
        .context("cannot start a thread")?;
    // A watch is told of one signal at a time; an interrupted wait is none.
    while signal::next(ends).is_err() {}
    let not_taken = write_back.run(ENDING);
    if not_taken > 0 {
        eprintln!(
            "farpage: {} of modified pages are lost: their pagers have not taken them",
            human(not_taken)
        );
    }
    let left = Host::connect(&socket).and_then(|host| host.list());
    if let Ok(left) = left
        && !left.is_empty()
    {
        eprintln!(
            "farpage: {} blocks of shared memory are lost: they were still in use",
            left.len()
        );
    }
    // Takes the socket away.
    drop(listening);
    drop(spill);
    Ok(())
}

/// Each object and each mapping takes descriptors here.
fn raise_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // With fewer it says so when they are needed.
    let _ = setrlimit(Resource::Nofile, limit);
}

fn fill(control: &Control, memory: &Memory) -> Result<()> {
    // The highest numbers: those of objects grow from below.
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
    let base = limit.min(1 << 20).saturating_sub(u64::from(fds::COUNT));
    control.fd_base.store(base as u32, Ordering::Relaxed);
    memory.fill(control)
}

/// Listens where only this user comes.
fn listen(service: &Service, socket: &Path) -> Result<farpage_port::Listening> {
    if let Ok(about) = std::fs::symlink_metadata(socket)
        && !about.file_type().is_socket()
    {
        bail!(
            "'{}' is there, and is no socket; give another --socket",
            socket.display()
        );
    }
    if let Some(folder) = socket.parent().filter(|folder| !folder.exists()) {
        std::fs::create_dir(folder)
            .and_then(|()| std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700)))
            .with_context(|| format!("cannot make '{}'", folder.display()))?;
    }
    check_owner(socket)?;
    if Host::connect(socket).is_ok() {
        bail!(
            "a host kernel listens at '{}' already; use that, or give another --socket",
            socket.display()
        );
    }
    // From its first moment on.
    let before = umask(Mode::RWXG | Mode::RWXO | Mode::XUSR);
    let listening = service.listen(socket);
    umask(before);
    listening.with_context(|| format!("cannot listen at '{}'", socket.display()))
}
