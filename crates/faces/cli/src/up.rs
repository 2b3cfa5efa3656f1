//! `farpage up`: the host kernel.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use farpage_daemon::{Daemon, DaemonConfig};
use farpage_supervisor::{shm, signals};
use farpage_sys::file::Fd;
use farpage_sys::memory_limit::MemoryLimit;
use farpage_sys::signal;
use farpage_text::size::{Size, counted, human};

use crate::cluster::join::JoinArgs;
use crate::host::locks::LockingArgs;
use crate::host::web::{self, WebArgs};
use crate::memory::{COMPRESSED_OF_HOST, MemoryArgs};

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
    let memory = args.memory.config(&of_machine, COMPRESSED_OF_HOST)?;
    let (lock_limit_bytes, frames) = args.locking.read(&of_machine)?;
    let ram_bytes = memory.ram_bytes;
    let user_ram_bytes = user_ram(args, ram_bytes)?;
    shm::tidy();
    let _blocked = signals::block();
    let ends = signal::watch(ENDS).context("cannot watch for signals")?;
    let daemon = Daemon::start(DaemonConfig {
        memory,
        user_ram_bytes,
        lock_limit_bytes,
        frames,
        join: args.join.config(),
        socket: args.socket.clone(),
    })?;
    let page = args.web.web.map(|address| {
        let socket = daemon.socket().to_path_buf();
        farpage_daemon::web::start(address, args.web.web_public, socket)
    });
    let page = page.transpose()?;
    let each = user_ram_bytes.map_or(String::new(), |bytes| {
        format!(", {} of it for each user", human(bytes))
    });
    tell!(
        "farpage: the host kernel answers at {}, with {} of RAM{each}",
        daemon.socket().display(),
        human(ram_bytes)
    );
    if let Some(said) = daemon.cluster() {
        tell!("farpage: it is {said}");
    }
    if let Some(address) = page {
        tell!("farpage: its page is http://{address}/");
    }
    // A service manager, if there is one, is told that programs may come.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    // A watch is told of one signal at a time; an interrupted wait is none.
    while signal::next(ends).is_err() {}
    let not_taken = daemon.write_back(ENDING);
    if not_taken > 0 {
        farpage_sys::say!(
            "farpage: {} of modified pages are lost: their pagers have not taken them",
            human(not_taken)
        );
    }
    let lost = daemon.lost_blocks();
    if lost > 0 {
        let blocks = counted(lost as u64, "block");
        farpage_sys::say!("farpage: lost, for still in use: {blocks} of shared memory");
    }
    if daemon.cluster().is_some() {
        ends_at_once(ends)?;
        daemon.leave();
    }
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
