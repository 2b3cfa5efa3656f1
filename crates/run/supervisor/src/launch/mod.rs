//! Starts the program and looks after its tree of processes until it ends.

mod agent;
mod cores;
mod inject;
mod layout;
mod tasks;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::ffi::{CStr, CString, OsStr};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use farpage_object::{SpillState, Tier, fds};
use farpage_sys::elf::{self, Image};
use farpage_sys::file::Fd;
use farpage_sys::spawn::{Program, Step, spawn};
use farpage_sys::{Errno, join, layout as program_layout, process, seccomp};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, waitpid};

use crate::config::{Casualty, Prepared};
use crate::limits;
use crate::program::Unusable;
use tasks::Tasks;

/// What is looked at of a program that is not executed.
const HEAD_BYTES: u64 = 256;
/// What a dead program held is taken back in much less time, unless the machine stands still.
const BURIED: Duration = Duration::from_secs(60);

/// The program, started.
pub struct Running {
    pid: Pid,
    pidfd: OwnedFd,
    tasks: Arc<Tasks>,
}

/// Filters of system calls that this process is subject to. `u32::MAX` where one may be its
/// tracer's.
fn filters() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let number = |name| -> Option<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line?.trim().parse().ok()
    };
    let filters = number("Seccomp_filters:").unwrap_or(0);
    match number("TracerPid:") {
        Some(1..) if filters > 0 => u32::MAX,
        _ => filters,
    }
}

/// Starts the program of `prepared`.
///
/// # Errors
/// When it cannot be started.
pub fn start(prepared: &Prepared) -> Result<Running> {
    let options = &prepared.options;
    let control = prepared.control;
    let shown = options.program.display();
    let image = image_of(prepared)?;
    let fd_base = limits::first_descriptor(prepared.looks_at_files())?;
    control.fd_base.store(fd_base, Ordering::Relaxed);
    let namespace = std::fs::metadata("/proc/self/ns/pid");
    let namespace = namespace.context("cannot run without /proc: mount it")?;
    control
        .pid_namespace
        .store(namespace.ino(), Ordering::Relaxed);
    control.filters.store(filters(), Ordering::Relaxed);

    let library = agent::library(fd_base)?;
    let agent = agent::file(&library)?;
    if prepared.shm.is_some() {
        keep_numbers(fd_base, &agent)?;
    }
    let tasks = Tasks::watch(control, agent::AgentImage::new(&library)?)?;
    let tier = Tier::from_raw(control.tier.load(Ordering::Relaxed)).unwrap_or(Tier::None);
    let device = open_device(tier)?;
    let stdio = options.stdio.then(agent::stdio).transpose()?;
    let libraries = [&agent, stdio.as_ref().unwrap_or(&agent)];
    let places = places(fd_base, prepared, libraries, device.as_ref());

    let path = match options.exec {
        Some(_) => {
            // The memory file of the first of the mapped files.
            let number = fd_base + fds::MAPPED;
            CString::new(format!("/proc/self/fd/{number}"))?
        }
        None => string(options.program.as_os_str())?,
    };
    let arguments: Vec<CString> = options
        .args
        .iter()
        .map(|arg| string(arg))
        .collect::<Result<_>>()?;
    // Before its dynamic linker opens anything, where opening is looked at.
    let speaks = tier == Tier::UserModeOnly && std::env::var_os("LD_DEBUG").is_some();
    let is_seen_early =
        prepared.looks_at_opening() || program_layout::has_too_much_room() || speaks;
    let from_outside = image == Image::Static || (is_seen_early && image != Image::Foreign);
    let environment = environment(fd_base, !from_outside, options.stdio)?;
    let filter = seccomp::filter(&seccomp::Params {
        fd_base,
        threshold_bytes: options.threshold_bytes,
        user_mode_tier: tier == Tier::UserModeOnly,
        maps: prepared.maps.is_some(),
        shm: prepared.shm.is_some(),
        cluster: control.shm.is_cluster(),
        machine: options.machine_bytes.is_some(),
    });
    // Where Linux has no such thing there is nothing to forbid.
    let _ = process::never_merge();
    let spawned = spawn(&Program {
        path: &path,
        arguments: &references(&arguments),
        environment: &references(&environment),
        own_number: &own_numbers(),
        places: &places,
        filter: &filter,
        signal_mask: prepared.signal_mask,
        file_size: Some(prepared.file_size),
        from_outside: from_outside.then_some(control),
    });
    let pid = spawned.map_err(|(step, errno)| {
        let why = io::Error::from_raw_os_error(errno.0);
        match describe(step) {
            None => cannot_execute(&options.program, &why).into(),
            Some(what) => anyhow::anyhow!("cannot run '{shown}': {what}: {why}"),
        }
    })?;
    let pid = Pid::from_raw(pid as i32).context("the program has no process id")?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).context("cannot watch the program")?;
    // Watching thousands of tasks takes one each. The program keeps the limit that it was given.
    farpage_sys::limits::raise_descriptors();
    Ok(Running { pid, pidfd, tasks })
}

impl Running {
    /// Process id of the program, for signals. It stays the program's until `wait` returned its
    /// exit status.
    pub fn program_pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get() as u32
    }

    /// Waits at most `timeout` for the program to end. Whatever else the supervisor has to do for
    /// the tree (taking back what dead tasks held, static programs) goes on meanwhile.
    ///
    /// # Errors
    /// When the tree can't be looked after any more.
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<ExitStatus>> {
        let mut list = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        match poll(&mut list, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(errno) => return Err(errno).context("cannot wait for the program"),
        }
        // Only now: an earlier call would take the stops of a traced program from its tracer.
        let ended = waitpid(Some(self.pid), WaitOptions::NOHANG);
        let ended = ended.context("cannot learn how the program ended")?;
        Ok(ended.map(|(_, status)| ExitStatus::from_raw(status.as_raw())))
    }

    /// Waits until it is noted and told of what the program died that ended with `status`, and
    /// tasks before it.
    pub fn wait_until_buried(&self, status: ExitStatus) {
        let was_killed = status.signal() == Some(Signal::KILL.as_raw());
        if !was_killed && !self.tasks.may_be_told_of() {
            return;
        }
        self.tasks.has_ended(self.program_pid(), status.into_raw());
        let until = Instant::now() + BURIED;
        while self.tasks.is_there(self.program_pid()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Tasks that Farpage ended since the last call.
    pub fn take_casualties(&mut self) -> Vec<Casualty> {
        self.tasks.take_casualties()
    }
}

/// What failed, but for the execution of the program.
fn describe(step: Step) -> Option<&'static str> {
    match step {
        Step::Fork => Some("cannot make a process"),
        Step::Places => Some("cannot give it Farpage's descriptors"),
        Step::Filter => Some("cannot install the system call filter (needs seccomp)"),
        Step::Trace => {
            Some("farpage has to come into it from outside, and ptrace is forbidden here")
        }
        Step::Execute => None,
    }
}

/// Linux does not execute `program`, for `why`.
pub fn cannot_execute(program: &Path, why: &io::Error) -> Unusable {
    let shown = program.display();
    let mut text = format!("cannot run '{shown}': cannot execute it: {why}");
    let mut head = Vec::new();
    let read = File::open(program).and_then(|file| file.take(HEAD_BYTES).read_to_end(&mut head));
    let head = match read {
        Ok(_) => String::from_utf8_lossy(&head),
        Err(_) => Cow::default(),
    };
    let script = head.strip_prefix("#!").map(|line| {
        let line = line.lines().next().unwrap_or_default();
        line.split_whitespace().next().unwrap_or_default()
    });
    match (why.kind(), script) {
        (io::ErrorKind::NotFound, Some(interpreter)) => {
            text += &format!("; its first line names '{interpreter}', which is not there");
        }
        (io::ErrorKind::NotFound, None) if head.starts_with("\x7fELF") => {
            text += "; the dynamic linker that it names is not there";
        }
        _ if why.raw_os_error() == Some(Errno::ENOEXEC.0) && !head.starts_with("\x7fELF") => {
            text += &format!(
                "; it has no #! line: name its interpreter, such as farpage run -- sh '{shown}'"
            );
        }
        _ => {}
    }
    Unusable::NotExecutable(text)
}

/// What the program is, or why it cannot run here.
fn image_of(prepared: &Prepared) -> Result<Image> {
    let options = &prepared.options;
    let shown = options.program.display();
    if options.exec.is_some() {
        return Ok(Image::Static);
    }
    let Ok(file) = File::open(&options.program) else {
        return Ok(Image::Unknown);
    };
    let image = elf::inspect(Fd(file.as_raw_fd()), |_| ());
    let mode = file.metadata().map_or(0, |data| data.mode());
    const SET_ID: u32 = 0o6000;
    if mode & SET_ID != 0 && !rustix::process::geteuid().is_root() {
        bail!(
            "cannot run '{shown}': it is a setuid program, and under farpage it would get no \
             privilege; run farpage itself with that privilege, or the program without farpage"
        );
    }
    if image == Image::Foreign && prepared.looks_at_files() {
        let option = if prepared.options.shm {
            "--shm"
        } else {
            "--map"
        };
        bail!(
            "cannot run '{shown}' with {option}: it is no 64-bit x86 program; leave {option} out, \
             or run it without farpage"
        );
    }
    if image == Image::Foreign {
        farpage_sys::say!(
            "farpage: warning: '{shown}' is no 64-bit x86 program: it runs, but its memory is not \
             managed"
        );
    }
    Ok(image)
}

/// Paging files have the same numbers here as in tasks where this process pages out, too.
fn keep_numbers(fd_base: u32, agent: &OwnedFd) -> Result<()> {
    for offset in 0..fds::COUNT {
        let kept = farpage_sys::file::keep(Fd(agent.as_raw_fd()), join::fd(fd_base, offset));
        kept.map_err(|errno| anyhow::anyhow!("cannot keep descriptors: {errno}"))?;
    }
    Ok(())
}

fn open_device(tier: Tier) -> Result<Option<OwnedFd>> {
    if tier != Tier::Device {
        return Ok(None);
    }
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/userfaultfd");
    Ok(Some(opened.context("cannot open /dev/userfaultfd")?.into()))
}

/// Farpage's descriptors and their numbers. Every number of the range is taken, so that no
/// descriptor of the program comes to lie there.
fn places(
    fd_base: u32,
    prepared: &Prepared,
    libraries: [&OwnedFd; 2],
    device: Option<&OwnedFd>,
) -> Vec<(Fd, Fd)> {
    let [agent, stdio] = libraries.map(|fd| Fd(fd.as_raw_fd()));
    let spill = |offset: u32| {
        let file = prepared.control.spill.get((offset - fds::SPILL) as usize)?;
        let is_active = file.state() == SpillState::Active;
        is_active.then(|| Fd(file.supervisor_fd.load(Ordering::Relaxed) as i32))
    };
    let maps = prepared.maps.as_ref();
    let socket = prepared.socket.as_ref();
    let mapped = |offset: u32| maps?.files.get((offset - fds::MAPPED) as usize).copied();
    let what = |offset| match offset {
        fds::MAPS => socket.map_or(agent, |socket| Fd(socket.as_raw_fd())),
        fds::MAPPED.. => mapped(offset).unwrap_or(agent),
        fds::CONTROL => prepared.control_fd,
        fds::STDIO => stdio,
        fds::SPILL.. if spill(offset).is_some() => spill(offset).unwrap_or(agent),
        fds::DEVICE => device.map_or(agent, |device| Fd(device.as_raw_fd())),
        fds::MESSAGES => Fd(io::stderr().as_fd().as_raw_fd()),
        _ => agent,
    };
    let end = if prepared.looks_at_files() {
        fds::OPENED
    } else {
        fds::COUNT
    };
    (0..end)
        .map(|offset| (what(offset), join::fd(fd_base, offset)))
        .collect()
}

fn environment(fd_base: u32, with_agent: bool, with_stdio: bool) -> Result<Vec<CString>> {
    let name = &join::PRELOAD[..join::PRELOAD.len() - 1];
    let mut wanted = std::env::var_os(OsStr::from_bytes(name)).unwrap_or_default();
    if with_stdio {
        // Like what the program asks for itself, it stays there when it executes others.
        wanted.push(format!(":/proc/self/fd/{}", fd_base + fds::STDIO));
    }
    let mut variables = Vec::new();
    for (key, value) in std::env::vars_os() {
        // The same as LISTEN_PID, in a way that nobody can say beforehand.
        if key.as_bytes() != name && key != "LISTEN_PIDFDID" {
            variables.push(variable(key.as_bytes(), value.as_bytes())?);
        }
    }
    if let Some(value) = join::preload_value(wanted.as_bytes(), fd_base, with_agent) {
        variables.push(variable(name, &value)?);
    }
    Ok(variables)
}

/// Variables that say which process systemd means: the one that was given sockets, the one that is
/// to report that it lives. Those of them that mean this process.
fn own_numbers() -> Vec<&'static str> {
    let own = std::process::id().to_string();
    let is_own = |name: &&str| std::env::var(name).is_ok_and(|value| value == own);
    ["LISTEN_PID", "WATCHDOG_PID", "SYSTEMD_EXEC_PID"]
        .into_iter()
        .filter(is_own)
        .collect()
}

fn variable(key: &[u8], value: &[u8]) -> Result<CString> {
    Ok(CString::new([key, b"=", value].concat())?)
}

fn string(text: &OsStr) -> Result<CString> {
    CString::new(text.as_bytes()).context("an argument contains a zero byte")
}

fn references(strings: &[CString]) -> Vec<&CStr> {
    strings.iter().map(CString::as_c_str).collect()
}
