//! `farpage pager`: programs that answer for memory objects of the host kernel, and what keeps its
//! memory that has no pager.

mod default;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use farpage_client::{Host, PagerListed, default_socket};
use farpage_sys::{process, signal};
use rustix::process::{Pid, Signal, kill_process};

use farpage_supervisor::signals;
use farpage_text::columns::{Side, columns};
use farpage_text::size::human;

/// HUP, INT and TERM end it, and the program before.
const ENDS: u64 = 1 | 1 << (2 - 1) | 1 << (15 - 1);
/// Time between two looks at how the program does.
const LOOK: Duration = Duration::from_secs(1);
/// Time until a program that failed is started again: doubled while it fails soon.
const AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// A program that ran so long has not failed soon.
const LONG: Duration = Duration::from_secs(10);
/// After so many failures in a row, each soon, that is said.
const FAILS: u32 = 5;
/// A signal to all processes of a terminal comes to this one so late at most.
const SIGNAL_COMES: Duration = Duration::from_millis(50);
/// A program that was told to end has so much time, as long as a container is given.
const ENDING: Duration = Duration::from_secs(10);

/// Programs that answer for memory: run one, or see how they do
#[derive(Args, Debug)]
pub struct PagerArgs {
    #[command(subcommand)]
    command: PagerCommand,
}

#[derive(Subcommand, Debug)]
enum PagerCommand {
    Serve(ServeArgs),
    Ls(LsArgs),
    Default(default::DefaultArgs),
}

/// Run a pager program, and start it again when it fails
///
/// The program offers memory objects to the host kernel: see `Host::offer` (Rust), fp_serve_pager
/// (C) and farpage.serve_pager (Python). When it is killed or fails, threads that wait for its
/// pages go on when it runs again; it ends for good when it ends with status 0, or this command
/// with a signal.
#[derive(Args, Debug)]
struct ServeArgs {
    /// The host kernel that listens there; the program finds it in $FARPAGE_HOST
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// List the pagers of this host: whether they answer, and what waits for them
///
/// Root sees those of all users.
#[derive(Args, Debug)]
struct LsArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The host kernel that listens there
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// Runs a command of `farpage pager`.
///
/// # Errors
/// When the program cannot be started, or no host kernel answers.
pub fn main(args: &PagerArgs) -> Result<()> {
    match &args.command {
        PagerCommand::Serve(args) => serve(args),
        PagerCommand::Ls(args) => list(args),
        PagerCommand::Default(args) => default::main(args),
    }
}

fn list(args: &LsArgs) -> Result<()> {
    let socket = args.socket.clone().unwrap_or_else(default_socket);
    let pagers = Host::connect(&socket)?.pagers()?;
    match (args.json, pagers.is_empty()) {
        (true, _) => outln!("{}", serde_json::to_string_pretty(&pagers)?),
        (false, true) => outln!("this host kernel has no pager; for one: farpage pager serve"),
        (false, false) => out!("{}", table(&pagers)),
    }
    Ok(())
}

fn serve(args: &ServeArgs) -> Result<()> {
    let socket = args.socket.clone().unwrap_or_else(default_socket);
    // The program would fail, and say less.
    Host::connect(&socket)?;
    let blocked = signals::block();
    let ends = signal::watch(ENDS).context("cannot watch for signals")?;
    let (told, signals) = channel();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            while let Ok(arrival) = signal::next(ends) {
                if told.send(arrival.from_kernel).is_err() {
                    return;
                }
            }
        })
        .context("cannot start a thread for signals")?;
    let name = Path::new(&args.program[0]).display();
    let mut pause = AGAIN.0;
    let mut failed = 0;
    loop {
        let began = Instant::now();
        // The program gets the mask of this thread.
        let mask = process::set_signal_mask(blocked.mask_before);
        let child = Command::new(&args.program[0])
            .args(&args.program[1..])
            .env("FARPAGE_HOST", &socket)
            .spawn();
        process::set_signal_mask(mask);
        let child = child.with_context(|| format!("cannot start '{name}'"))?;
        let pid = child.id();
        let Some(status) = watch(child, &socket, &signals)? else {
            return Ok(());
        };
        if status.success() {
            tell!("farpage: '{name}' (process {pid}) has ended");
            return Ok(());
        }
        // Interrupted, as this is.
        if signals.recv_timeout(SIGNAL_COMES).is_ok() {
            return Ok(());
        }
        if began.elapsed() >= LONG {
            (pause, failed) = (AGAIN.0, 0);
        }
        failed += 1;
        let often = match failed {
            ..FAILS => String::new(),
            _ => format!(", {failed} times in a row; end this command and mend it"),
        };
        farpage_sys::say!(
            "farpage: '{name}' (process {pid}) failed ({status}){often}; it is started again in \
             {:.1} s",
            pause.as_secs_f32()
        );
        match signals.recv_timeout(pause) {
            Err(RecvTimeoutError::Timeout) => pause = (pause * 2).min(AGAIN.1),
            Ok(_) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Waits for the end of a program, and says how it does meanwhile. `None`: it was to end.
fn watch(mut child: Child, socket: &Path, signals: &Receiver<bool>) -> Result<Option<ExitStatus>> {
    let pid = child.id();
    let ended = {
        let process = Pid::from_child(&child);
        let (told, ended) = channel();
        let wait = move || {
            // Only seen: it is the child's own value that takes the status.
            let how =
                rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
            let _ = rustix::process::waitid(rustix::process::WaitId::Pid(process), how);
            let _ = told.send(());
        };
        std::thread::Builder::new()
            .name("wait".into())
            .spawn(wait)
            .context("cannot start a thread")?;
        ended
    };
    let mut health = Health::default();
    loop {
        match ended.recv_timeout(LOOK.min(health.soon())) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(Some(child.wait()?)),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Ok(from_kernel) = signals.try_recv() {
            end(&mut child, &ended, from_kernel)?;
            return Ok(None);
        }
        health.look(pid, socket);
    }
}

/// Ends the program: with the signal first.
fn end(child: &mut Child, ended: &Receiver<()>, was_told: bool) -> Result<()> {
    if !was_told {
        // It may have ended.
        let _ = kill_process(Pid::from_child(child), Signal::TERM);
    }
    if ended.recv_timeout(ENDING).is_err() {
        child.kill()?;
    }
    child.wait()?;
    Ok(())
}

/// What was last said of the objects of a program.
#[derive(Default)]
struct Health {
    said: Vec<(String, &'static str)>,
}

impl Health {
    /// Looks often until there is something to see.
    fn soon(&self) -> Duration {
        match self.said.is_empty() {
            true => AGAIN.0,
            false => LOOK,
        }
    }

    fn look(&mut self, pid: u32, socket: &Path) {
        // The host kernel may not run yet.
        let Ok(pagers) = Host::connect(socket).and_then(|host| host.pagers()) else {
            return;
        };
        for pager in pagers.iter().filter(|pager| pager.pid == pid) {
            let state = state(pager);
            let said = self.said.iter_mut().find(|(name, _)| *name == pager.name);
            match said {
                Some((_, before)) if *before == state => continue,
                Some((_, before)) => *before = state,
                None => self.said.push((pager.name.clone(), state)),
            }
            tell!(
                "farpage: process {pid} {state} for '{}', {}{}",
                pager.name,
                human(pager.bytes),
                if pager.cause.is_empty() {
                    String::new()
                } else {
                    format!(" ({})", pager.cause)
                }
            );
        }
    }
}

fn state(pager: &PagerListed) -> &'static str {
    match (pager.is_up, pager.is_behind) {
        (true, _) if pager.is_silent() => "is silent",
        (true, false) => "answers",
        (true, true) => "is late",
        (false, _) => "is gone",
    }
}

fn table(pagers: &[PagerListed]) -> String {
    let head = [
        "NAME", "SIZE", "PAGER", "STATE", "WAITING", "ANSWERED", "KEPT",
    ];
    let rows = pagers.iter().map(|one| {
        let name = if one.name.is_empty() { "-" } else { &one.name };
        [
            name.to_owned(),
            human(one.bytes),
            one.pid.to_string(),
            state(one).to_owned(),
            one.waiting.to_string(),
            one.answered.to_string(),
            human(one.kept_bytes),
        ]
    });
    let (left, right) = (Side::Left, Side::Right);
    let sides = [left, right, right, left, right, right, right];
    columns(sides, head, rows).join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_line_for_each_pager() {
        let one = PagerListed {
            name: "squares".into(),
            bytes: 1 << 30,
            pid: 71,
            is_up: true,
            is_behind: false,
            waiting: 0,
            silent_ns: 0,
            answered: 12,
            kept_bytes: 0,
            cause: String::new(),
        };
        let gone = PagerListed {
            name: "x".into(),
            is_up: false,
            waiting: 3,
            kept_bytes: 1 << 20,
            ..one.clone()
        };
        assert_eq!(
            table(&[one, gone]),
            "NAME         SIZE  PAGER  STATE    WAITING  ANSWERED      KEPT\n\
             squares  1.00 GiB     71  answers        0        12       0 B\n\
             x        1.00 GiB     71  is gone        3        12  1.00 MiB\n"
        );
    }
}
