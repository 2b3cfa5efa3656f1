//! A host kernel that does not answer: who it is, since when, and what to do.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Nothing is said before.
const PATIENCE: Duration = Duration::from_secs(1);

/// While it lives, standard error tells when the host kernel at `socket` does not answer.
pub fn watch(socket: &Path) -> Watching {
    let (ends, ended) = channel();
    let socket = PathBuf::from(socket);
    let tell = move || {
        let began = Instant::now();
        if ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            farpage_sys::say!("farpage: {}", message(&socket, began.elapsed()));
        }
    };
    // Without a thread nothing is said.
    let _ = std::thread::Builder::new().spawn(tell);
    Watching { _ends: ends }
}

/// See [`watch`].
pub struct Watching {
    _ends: Sender<()>,
}

fn message(socket: &Path, waited: Duration) -> String {
    let shown = socket.display();
    let seconds = waited.as_secs_f64();
    let Some(pid) = listener(socket) else {
        return format!(
            "nobody accepts at '{shown}' since {seconds:.0} s; still waiting (interrupt to give up)"
        );
    };
    let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    if !command.is_empty() && command.trim() != "farpage" {
        return format!(
            "the host kernel at '{shown}' has not answered for {seconds:.0} s; its socket was made \
             by {} (process {pid}): look at its service there, such as with systemctl status farpage; \
             still waiting (interrupt to give up)",
            command.trim()
        );
    }
    let (who, advice) = match state(pid) {
        Some('T' | 't') => ("is stopped", format!("let it go on: kill -CONT {pid}")),
        Some('D') => (
            "waits for a disk or a network file system",
            "look at where its paging files are (dmesg, df)".to_owned(),
        ),
        Some('Z') | None => ("has ended", "start another one: farpage up".to_owned()),
        Some(_) => (
            "is busy, or its machine is",
            format!("look at it with: top -H -p {pid}"),
        ),
    };
    format!(
        "the host kernel at '{shown}' (process {pid}) {who}, and has not answered for \
         {seconds:.0} s; {advice}; still waiting (interrupt to give up)"
    )
}

/// The process that listens at a socket. Does not wait for it.
fn listener(path: &Path) -> Option<u32> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
    connect(&socket, &SocketAddrUnix::new(path).ok()?).ok()?;
    let peer = rustix::net::sockopt::socket_peercred(&socket).ok()?;
    u32::try_from(peer.pid.as_raw_nonzero().get()).ok()
}

/// The letter that Linux has for what a process does.
fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_state_of_a_process_is_told() {
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let id = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(id, rustix::process::Signal::STOP).unwrap();
        while state(child.id()) != Some('T') {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(state(child.id()), None);
    }

    #[test]
    fn where_nobody_listens_there_is_nobody() {
        assert_eq!(listener(Path::new("/no/such/socket")), None);
        let said = message(Path::new("/no/such/socket"), Duration::from_secs(3));
        assert!(
            said.starts_with("nobody accepts at '/no/such/socket' since 3 s"),
            "{said}"
        );
    }
}
