//! Links between real processes: greeting, introduction, death at any moment.

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use farpage_port::link::{
    Attached, Draft, Ended, IN_RING_MAX, Link, LinkSet, Listener, ReceiveError, Region, Sealed,
    introduce,
};
use farpage_testkit::Thread;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::support;
use crate::support::{descriptors, file_of, frame, header, number, sockets, soon, text_of};

/// The environment variable that makes a child of this program.
const ROLE: &str = "FARPAGE_PORT_ROLE";
const PATH: &str = "FARPAGE_PORT_PATH";

/// A child of this program, dead at the latest when the test is over.
struct Task(Child);

impl Task {
    fn start(role: &str, path: &Path, input: Stdio) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes::child", "--nocapture", "--ignored"])
            .env(ROLE, role)
            .env(PATH, path)
            .stdin(input)
            .stdout(Stdio::piped())
            .spawn();
        Self(child.unwrap())
    }

    /// A child with a Link to it, over a pair of sockets that it inherits.
    fn linked(role: &str) -> (Self, Link) {
        let (own, other) = sockets();
        let task = Self::start(role, Path::new("/"), Stdio::from(other));
        (task, Link::accept_over(own, soon()).unwrap())
    }

    /// Waits for the child to say `word`.
    fn await_word(&mut self, word: &str) -> String {
        let mut lines = BufReader::new(self.0.stdout.as_mut().unwrap()).lines();
        let said: Option<String> = lines.find_map(|line| line.ok().filter(|l| l.contains(word)));
        said.unwrap_or_else(|| panic!("the child ended without saying {word}"))
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a child does.
#[test]
#[ignore = "runs in the children of the other tests"]
fn child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let path = std::env::var(PATH).unwrap();
    let inherited = || {
        let socket = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
        Link::connect_over(socket, soon()).unwrap()
    };
    match role.as_str() {
        "echo" => echo(&inherited()),
        "echo at path" => echo(&Link::connect(Path::new(&path), soon()).unwrap()),
        "flood" => flood(&inherited(), u64::MAX),
        "send and wait" => {
            let link = inherited();
            flood(&link, 40);
            println!("\nsent");
            // Until it is killed, or there is nobody left who would.
            let parent = rustix::process::getppid().unwrap();
            let parent = pidfd_open(parent, PidfdFlags::empty()).unwrap();
            poll(&mut [PollFd::new(&parent, PollFlags::IN)], None).unwrap();
        }
        "leave a child" => {
            let link = inherited();
            flood(&link, 3);
            // The grandchild keeps the socket; the Link's process is dead all the same.
            let kept = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
            let sleeper = Command::new("sleep")
                .arg("600")
                .stdin(Stdio::from(kept))
                .spawn();
            println!("\nsleeper {}", sleeper.unwrap().id());
            std::process::abort();
        }
        "first" | "second" => meet(&inherited(), role == "first"),
        other => panic!("no role {other}"),
    }
}

/// Sends everything back until the peer leaves.
fn echo(link: &Link) {
    while let Ok(message) = link.receive(soon()) {
        let fds: Vec<_> = message.fds.iter().map(AsFd::as_fd).collect();
        let frame = farpage_port::link::Frame {
            header: message.header,
            body: &message.body,
        };
        if link.send_until(&frame, &fds, soon()).is_err() {
            return;
        }
        if let Attached::Loan(loan) = message.attached {
            link.give_back(message.header, loan).unwrap();
        }
    }
}

/// Sends numbered frames of many kinds.
fn flood(link: &Link, count: u64) {
    let file = file_of("flood");
    let fds = [file.as_fd()];
    for n in 0..count {
        let fds = if n.is_multiple_of(5) { &fds[..] } else { &[] };
        let body = vec![n as u8; length(n)];
        link.send_until(&frame(n, &body), fds, None).unwrap();
    }
}

/// Bytes of the flood's frame `n`: at most three slots, seldom in memory.
fn length(n: u64) -> usize {
    if n % 97 == 96 {
        IN_RING_MAX + 1
    } else {
        n as usize * 37 % 130
    }
}

/// Takes what is left of a flood, from frame `next` on. Returns the number after the last.
fn drain(link: &Link, mut next: u64) -> u64 {
    loop {
        match link.receive(soon()) {
            Ok(message) => {
                check(&message, next);
                next += 1;
            }
            Err(error) => {
                assert_eq!(error, ReceiveError::Ended(Ended::Died));
                return next;
            }
        }
    }
}

fn check(message: &farpage_port::link::Message, n: u64) {
    assert_eq!(number(&message.header), n);
    assert_eq!(message.body[..], vec![n as u8; length(n)]);
    assert_eq!(message.fds.len(), usize::from(n.is_multiple_of(5)));
    message
        .fds
        .iter()
        .for_each(|file| assert_eq!(text_of(file), "flood"));
}

/// Gets introduced to the other one, and exchanges a word.
fn meet(introducer: &Link, is_first: bool) {
    let message = introducer.receive(soon()).unwrap();
    let socket = message.fds.into_iter().next().unwrap();
    let other = if is_first {
        Link::connect_over(socket, soon()).unwrap()
    } else {
        Link::accept_over(socket, soon()).unwrap()
    };
    let own = std::process::id().to_ne_bytes();
    other.send(&frame(0, &own), &[]).unwrap();
    let said = other.receive(soon()).unwrap();
    assert_eq!(
        said.body[..],
        other.peer().pid.to_ne_bytes(),
        "Linux says the same"
    );
    introducer
        .send(&frame(other.peer().pid.into(), &said.body), &[])
        .unwrap();
    // Both have the other's word before either goes.
    let _ = introducer.receive(soon());
}

#[test]
fn an_inherited_socket_makes_a_link_and_says_who_is_there() {
    let (task, link) = Task::linked("echo");
    assert_eq!(link.peer().pid, task.0.id(), "not who made the pair");
    let file = file_of("there and back");
    let region = Region::create(1 << 16).unwrap();
    for n in 0..500u64 {
        let body = vec![3; n as usize * 11];
        link.send_until(&frame(n, &body), &[file.as_fd()], soon())
            .unwrap();
        let message = link.receive(soon()).unwrap();
        assert_eq!((number(&message.header), &message.body[..]), (n, &body[..]));
        assert_eq!(text_of(&message.fds[0]), "there and back");
    }
    let id = link.lend(header(1), &region, 0..100).unwrap();
    assert!(link.receive(soon()).is_ok());
    let back = link.receive(soon()).unwrap();
    assert!(matches!(back.attached, Attached::Returned(returned) if returned == id));
}

#[test]
fn a_named_socket_serves_many_and_replaces_a_dead_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("port");
    let dead = Listener::bind(&path).unwrap();
    assert!(Listener::bind(&path).is_err(), "somebody listens");
    leave_dead_socket(dead, &path);
    // A process that another test makes just now has the dead one, too, until it executes.
    let until = soon();
    let listener = loop {
        match Listener::bind(&path) {
            Ok(listener) => break listener,
            Err(error) => assert!(Some(Instant::now()) < until, "{error}"),
        }
    };
    let tasks: Vec<_> = (0..5)
        .map(|_| Task::start("echo at path", &path, Stdio::null()))
        .collect();
    let mut set = LinkSet::new().unwrap();
    let mut pids: Vec<_> = tasks.iter().map(|task| task.0.id()).collect();
    for name in 0..5 {
        let link = Arc::new(listener.accept(soon()).unwrap());
        pids.retain(|pid| *pid != link.peer().pid);
        link.send(&frame(name, &[]), &[]).unwrap();
        set.insert(name, link).unwrap();
    }
    assert!(pids.is_empty());
    let (mut ready, mut answers) = (Vec::new(), 0);
    while answers < 5 * 100 {
        set.wait(soon(), &mut ready).unwrap();
        assert!(!ready.is_empty());
        for &name in &ready {
            let link = set.remove(name).unwrap();
            let message = link.try_receive().unwrap().unwrap();
            answers += 1;
            assert_eq!(number(&message.header), name);
            link.send(&frame(name, &[]), &[]).unwrap();
            set.insert(name, link).unwrap();
        }
    }
    let missing = Link::connect(&folder.path().join("none"), soon());
    assert!(missing.is_err());
}

/// What a listener that is killed leaves: the name stays.
fn leave_dead_socket(listener: Listener, path: &Path) {
    let aside = path.with_extension("aside");
    std::fs::rename(path, &aside).unwrap();
    drop(listener);
    std::fs::rename(&aside, path).unwrap();
}

#[test]
fn two_peers_that_are_introduced_talk_without_the_third() {
    let (first, to_first) = Task::linked("first");
    let (second, to_second) = Task::linked("second");
    introduce((&to_first, header(1)), (&to_second, header(2))).unwrap();
    let met = |link: &Link| number(&link.receive(soon()).unwrap().header) as u32;
    assert_eq!(met(&to_first), second.0.id());
    assert_eq!(met(&to_second), first.0.id());
}

#[test]
fn all_that_the_dead_had_sent_whole_is_received() {
    let (mut task, link) = Task::linked("send and wait");
    task.await_word("sent");
    task.kill();
    assert_eq!(drain(&link, 0), 40);
}

#[test]
fn a_dead_process_is_noticed_though_its_child_has_the_socket() {
    let (mut task, link) = Task::linked("leave a child");
    let said = task.await_word("sleeper");
    let sleeper = said.rsplit(' ').next().unwrap().parse().unwrap();
    let sleeper = pidfd_open(Pid::from_raw(sleeper).unwrap(), PidfdFlags::empty()).unwrap();
    assert_eq!(drain(&link, 0), 3);
    // Killed, so it lived until now.
    pidfd_send_signal(&sleeper, Signal::KILL).unwrap();
    let _ = task.0.wait();
}

#[test]
fn whoever_waits_for_room_hears_of_death() {
    let (own, other) = sockets();
    let mut task = Task::start("send and wait", Path::new("/"), Stdio::from(other));
    let link = Link::accept_over(own, soon()).unwrap();
    task.await_word("sent");
    std::thread::scope(|s| {
        let (tells, told) = std::sync::mpsc::channel();
        let link = &link;
        let sender = s.spawn(move || {
            tells.send(Thread::current()).unwrap();
            let mut sent = (0..).map(|n| link.send_until(&frame(n, &[]), &[], soon()));
            sent.find_map(Result::err)
        });
        told.recv().unwrap().until_it_waits("who sends, for room");
        task.kill();
        let error = sender.join().unwrap();
        assert_eq!(
            error,
            Some(farpage_port::link::SendError::Ended(Ended::Died))
        );
    });
    assert_eq!(drain(&link, 0), 40);
}

#[test]
fn killed_at_any_moment_it_leaves_whole_frames_and_no_descriptor() {
    run_alone("kills");
}

#[test]
#[ignore = "needs a process of its own: run by the test before"]
fn kills() {
    const KILLS: u64 = 300;
    let mut before = 0;
    for kill in 0..KILLS {
        if kill == 1 {
            before = descriptors();
        }
        let (mut task, link) = Task::linked("flood");
        let frames = kill * kill % 1999;
        for n in 0..frames {
            check(&link.receive(soon()).unwrap(), n);
        }
        if kill % 3 == 0 {
            // In the middle of whatever it does, with the reader ahead or behind.
            farpage_testkit::pass(std::time::Duration::from_micros(kill * 7 % 1000));
        }
        task.0.kill().unwrap();
        let end = drain(&link, frames);
        assert!(
            end <= frames + 64 + 64,
            "no more than a ring was on its way"
        );
        task.0.wait().unwrap();
    }
    assert_eq!(descriptors(), before);
}

#[test]
fn memory_that_was_received_is_free_again_afterwards() {
    run_alone("memory");
}

#[test]
#[ignore = "needs a process of its own: run by the test before"]
fn memory() {
    const MIB: usize = 1 << 20;
    let (a, b) = support::pair();
    let shared = || -> usize {
        let text = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = text
            .lines()
            .find(|line| line.starts_with("RssShmem:"))
            .unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<usize>()
            .unwrap()
            / 1024
    };
    let before = shared();
    for round in 0..40 {
        let mut draft = Draft::create(c"x", 64 * MIB).unwrap();
        draft.fill(round);
        a.donate(&frame(0, &[]), &Sealed::new(draft).unwrap(), &[])
            .unwrap();
        let Attached::Memory(mut memory) = b.receive(soon()).unwrap().attached else {
            panic!("no memory");
        };
        assert_eq!((memory[0], memory[64 * MIB - 1]), (round, round));
        memory[MIB] = 1;
    }
    // Of 2560 MiB that went over.
    assert!(
        shared() < before + 256,
        "{before} MiB before, {} after",
        shared()
    );
}

/// Runs an ignored test in a process that does nothing else.
fn run_alone(test: &str) {
    let own = std::env::current_exe().unwrap();
    let arguments = [
        "--exact",
        &format!("processes::{test}"),
        "--nocapture",
        "--ignored",
    ];
    let output = Command::new(own).args(arguments).output().unwrap();
    let (said, complained) = (output.stdout, output.stderr);
    let text = [said, complained].concat();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&text)
    );
}
