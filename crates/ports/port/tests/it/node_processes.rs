//! Nodes of several processes: who is who, who goes, who is killed, who lies.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use farpage_port::link::{Draft, Frame, Link, Region, Sealed};
use farpage_port::{
    CallError, ConnectError, Lent, Memory, Message, Node, Notice, ReceiveRight, Right, SendError,
    SendRight, Sender,
};
use farpage_testkit::{Thread, pass, sleeps, until};

use crate::support::{descriptors, file_of, sockets, soon};

const ROLE: &str = "FARPAGE_NODE_ROLE";
const PATH: &str = "FARPAGE_NODE_PATH";
/// So long that only a fault is longer.
const LONG: Option<Duration> = Some(Duration::from_secs(120));
const NOW: Option<Duration> = Some(Duration::ZERO);

/// A child of this program, dead at the latest when the test is over.
struct Task(Child);

impl Task {
    fn start(role: &str, path: &Path, input: Stdio) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "node_processes::child",
                "--nocapture",
                "--ignored",
            ])
            .env(ROLE, role)
            .env(PATH, path)
            .stdin(input)
            .stdout(Stdio::null())
            .spawn();
        Self(child.unwrap())
    }

    /// A child, and a right to its port. It has a right to `port`.
    fn with(role: &str, node: &Node, port: &ReceiveRight) -> (Self, SendRight) {
        let (own, other) = sockets();
        let task = Self::start(role, Path::new("/"), Stdio::from(other));
        node.offer_over(own, &port.make_send()).unwrap();
        let first = port.receive(LONG).unwrap();
        let Sender::Peer { pid, .. } = first.sender else {
            panic!("{first:?}");
        };
        assert_eq!(pid, task.0.id());
        let right = first.rights.into_iter().next().unwrap();
        (task, right.into_send().unwrap())
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

fn with(id: u32, rights: Vec<Right>) -> Message {
    Message {
        rights,
        ..Message::new(id)
    }
}

const ECHO: u32 = 1;
/// Gives the right that came the number of this process.
const TELL: u32 = 2;
/// Keeps the rights that came.
const KEEP: u32 = 3;
/// Gives a new receive right, whose send right it keeps and sends three messages to.
const SPLIT: u32 = 4;
const GO_ON: u32 = 5;

/// What a child does.
#[test]
#[ignore = "runs in the children of the other tests"]
fn child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let node = Node::new().unwrap();
    let port = node.port();
    if role == "at path" {
        let path = std::env::var(PATH).unwrap();
        let parent = node.connect(Path::new(&path), LONG).unwrap();
        let pid = std::process::id();
        assert_eq!(parent.call(Message::new(pid), LONG).unwrap().id, pid + 1);
        return;
    }
    let socket = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    if role == "garbage" {
        return garbage(&Link::connect_over(socket, soon()).unwrap());
    }
    let parent = node.connect_over(socket, LONG).unwrap();
    parent
        .send(with(0, vec![port.make_send().into()]), LONG)
        .unwrap();
    match role.as_str() {
        "serve" => serve(&node, &port),
        "flood" => loop {
            let message = Message {
                bytes: vec![1; 200],
                ..with(9, vec![port.make_send().into(), node.port().into()])
            };
            if parent.send(message, None).is_err() {
                return;
            }
        },
        "all kinds" => all_kinds(&node, &parent, &port),
        other => panic!("no role {other}"),
    }
}

fn serve(node: &Node, port: &ReceiveRight) {
    let dead = node.port();
    let mut kept = Vec::new();
    let mut split = None;
    while let Ok(mut call) = port.receive(LONG) {
        if call.notice().is_some() {
            return;
        }
        let pid = std::process::id();
        match call.id {
            ECHO => {
                let answer = Message {
                    bytes: std::mem::take(&mut call.bytes),
                    rights: std::mem::take(&mut call.rights),
                    descriptors: std::mem::take(&mut call.descriptors),
                    memory: std::mem::take(&mut call.memory),
                    ..Message::new(ECHO)
                };
                call.answer(answer).unwrap();
            }
            TELL => {
                let right = call.rights.remove(0).into_send().unwrap();
                right.notify_dead(&dead);
                let _ = right.send(Message::new(pid), LONG);
                let _ = call.answer(Message::new(0));
            }
            KEEP => {
                kept.append(&mut call.rights);
                call.answer(Message::new(0)).unwrap();
            }
            SPLIT => {
                let moving = node.port();
                let right = moving.make_send();
                (0..3).for_each(|n| right.send(Message::new(n), LONG).unwrap());
                call.answer(with(0, vec![moving.into()])).unwrap();
                split = Some(right);
            }
            GO_ON => {
                let right = split.take().unwrap();
                call.answer(Message::new(0)).unwrap();
                (3..20).for_each(|n| right.send(Message::new(n), LONG).unwrap());
            }
            other => panic!("no call {other}"),
        }
    }
}

/// Calls, rights, memory, one after another, for ever.
fn all_kinds(node: &Node, parent: &SendRight, port: &ReceiveRight) {
    let region = Region::create(8192).unwrap();
    let mut kept = Vec::new();
    for n in 0u32.. {
        let own = node.port();
        let mut message = with(n, vec![own.make_send().into(), own.make_send_once().into()]);
        if n % 3 == 0 {
            message.rights.push(own.into());
        } else {
            kept.push(own);
        }
        if n % 4 == 0 {
            let mut draft = Draft::create(c"x", 4096).unwrap();
            draft.fill(1);
            let sealed = Sealed::new(draft).unwrap();
            message.memory.push(Memory::Donated(sealed.into()));
            let (lent, _ticket) = Lent::new(&region, 0..100);
            message.memory.push(Memory::Lent(lent));
            message.descriptors = (0..20).map(|_| file_of("x")).collect();
        }
        message.bytes = vec![3; n as usize * 97 % 9000];
        if n % 2 == 0 {
            if parent.call(message, LONG).is_err() {
                return;
            }
        } else if parent.send(message, LONG).is_err() {
            return;
        }
        while port.receive(NOW).is_ok() {}
        if kept.len() > 20 {
            kept.clear();
        }
    }
}

/// Frames that no Node sends, one of which ends the Link.
fn garbage(link: &Link) {
    let mut seed = std::process::id();
    let mut random = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 16) as u8
    };
    for n in 0.. {
        let mut header = [0; 48];
        header.fill_with(&mut random);
        header[0] = [1, 0x80, random()][n % 3];
        header[1] = random() % 20;
        let body: Vec<u8> = (0..random()).map(|_| random()).collect();
        let file = file_of("x");
        let frame = Frame {
            header,
            body: &body,
        };
        if link.send_until(&frame, &[file.as_fd()], soon()).is_err() {
            return;
        }
    }
}

#[test]
fn a_right_is_dead_when_the_task_of_its_port_has_ended() {
    let node = Node::new().unwrap();
    let port = node.port();
    for _ in 0..20 {
        let (mut task, right) = Task::with("serve", &node, &port);
        assert!(!right.is_dead());
        task.kill();
        assert!(right.is_dead(), "whether anybody has heard of it or not");
    }
}

#[test]
fn children_at_a_path_are_who_linux_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("port");
    let node = Node::new().unwrap();
    let port = node.port();
    let _listening = node.listen(&path, &port.make_send()).unwrap();
    let mut tasks: Vec<_> = (0..4)
        .map(|_| Task::start("at path", &path, Stdio::null()))
        .collect();
    for _ in 0..4 {
        let mut call = port.receive(LONG).unwrap();
        let own = rustix::process::getuid().as_raw();
        let Sender::Peer { pid, uid, .. } = call.sender else {
            panic!("{call:?}");
        };
        assert_eq!((pid, uid), (call.id, own));
        call.answer(Message::new(pid + 1)).unwrap();
    }
    tasks
        .iter_mut()
        .for_each(|task| assert!(task.0.wait().unwrap().success()));
}

#[test]
fn everything_goes_there_and_back() {
    let node = Node::new().unwrap();
    let port = node.port();
    let (_task, right) = Task::with("serve", &node, &port);
    let inbox = node.port();
    for n in 0..50usize {
        let bytes = vec![n as u8; n * n * 26];
        let message = Message {
            bytes: bytes.clone(),
            descriptors: (0..n).map(|_| file_of("there")).collect(),
            ..with(ECHO, vec![inbox.make_send().into(), Right::Dead])
        };
        let answer = right.call(message, LONG).unwrap();
        assert_eq!((answer.bytes, answer.descriptors.len()), (bytes, n));
        let [Right::Send(own), Right::Dead] = &answer.rights[..] else {
            panic!("{:?}", answer.rights);
        };
        assert_eq!(own.name(), inbox.name(), "a right that is back is the same");
    }
}

#[test]
fn three_processes_are_introduced_without_asking() {
    let node = Node::new().unwrap();
    let port = node.port();
    let (first, to_first) = Task::with("serve", &node, &port);
    let (second, to_second) = Task::with("serve", &node, &port);
    // The first one's port, by way of this process, to the second.
    let answers = node.port();
    let message = with(TELL, vec![answers.make_send().into()]);
    to_first.call(message, LONG).unwrap();
    assert_eq!(answers.receive(LONG).unwrap().id, first.0.id());
    let moving = to_first.call(Message::new(SPLIT), LONG).unwrap();
    let moving = moving.rights.into_iter().next().unwrap();
    let back = to_second.call(with(ECHO, vec![moving]), LONG).unwrap();
    to_first.call(Message::new(GO_ON), LONG).unwrap();
    let moved = back.rights.into_iter().next().unwrap();
    let moved = moved.into_receive().unwrap();
    for n in 0..20 {
        let message = moved.receive(LONG).unwrap();
        assert_eq!(message.id, n, "in order, wherever the port was");
    }
    // A right to the first, used by the second: told by the sender that Linux names.
    let inbox = node.port();
    to_second
        .call(with(KEEP, vec![to_first.clone().into()]), LONG)
        .unwrap();
    to_second
        .call(with(TELL, vec![inbox.make_send().into()]), LONG)
        .unwrap();
    let told = inbox.receive(LONG).unwrap();
    let Sender::Peer { pid, forwards, .. } = told.sender else {
        panic!("{told:?}");
    };
    assert_eq!(
        (pid, told.id, forwards),
        (second.0.id(), second.0.id(), None)
    );
}

#[test]
fn whoever_is_killed_is_missed_by_all_who_asked() {
    let node = Node::new().unwrap();
    let port = node.port();
    let (mut task, right) = Task::with("serve", &node, &port);
    let (dead, nobody, owned) = (node.port(), node.port(), node.port());
    owned.notify_no_senders(1, &nobody);
    right.notify_dead(&dead);
    right
        .call(with(KEEP, vec![owned.make_send().into()]), LONG)
        .unwrap();
    assert!(dead.receive(NOW).is_err());
    assert!(nobody.receive(NOW).is_err());
    task.kill();
    let notice = dead.receive(LONG).unwrap().notice();
    assert_eq!(notice, Some(Notice::Dead(right.name())));
    assert_eq!(
        nobody.receive(LONG).unwrap().notice(),
        Some(Notice::NoSenders(1))
    );
    let called = right.call(Message::new(ECHO), LONG);
    assert!(matches!(called, Err(CallError::Refused(SendError::Dead))));
}

#[test]
fn whoever_waits_for_an_answer_hears_of_the_death_of_its_server() {
    let node = Node::new().unwrap();
    let port = node.port();
    let (mut task, right) = Task::with("flood", &node, &port);
    std::thread::scope(|s| {
        let (tells, told) = std::sync::mpsc::channel();
        let right = &right;
        let calling = s.spawn(move || {
            tells.send(Thread::current()).unwrap();
            right.call(Message::new(ECHO), LONG)
        });
        told.recv().unwrap().until_it_waits("who calls");
        task.kill();
        let answer = calling.join().unwrap();
        assert!(matches!(
            answer,
            Err(CallError::Unanswered | CallError::Refused(SendError::Dead))
        ));
    });
}

#[test]
fn killed_at_any_moment_it_leaves_nothing_behind() {
    run_alone("kills");
}

#[test]
#[ignore = "needs a process of its own: run by the test before"]
fn kills() {
    const KILLS: u64 = 60;
    let node = Node::new().unwrap();
    let port = node.port();
    let nobody = node.port();
    let mut before = 0;
    for kill in 0..KILLS {
        let (mut task, right) = Task::with("all kinds", &node, &port);
        let dead = node.port();
        right.notify_dead(&dead);
        for n in 0..kill * kill % 61 {
            let mut call = port.receive(LONG).unwrap();
            assert_eq!(u64::from(call.id), n);
            call.answer(Message::new(0)).unwrap();
        }
        pass(Duration::from_micros(kill * 137 % 3000));
        task.kill();
        let notice = dead.receive(LONG).unwrap().notice();
        assert_eq!(notice, Some(Notice::Dead(right.name())));
        port.notify_no_senders(0, &nobody);
        // Rights that it had sent, or that were on their way, count as long as they are here.
        while port.receive(NOW).is_ok() {}
        assert_eq!(
            nobody.receive(LONG).unwrap().notice().map(|_| ()),
            Some(()),
            "nobody has a right any more"
        );
        drop(right);
        if kill == 2 {
            before = descriptors();
        }
    }
    assert_eq!(descriptors(), before);
}

#[test]
fn who_floods_fills_its_own_quota_and_holds_up_nobody() {
    let node = Node::new().unwrap();
    let port = node.port();
    let (_flood, _right) = Task::with("flood", &node, &port);
    let (_task, right) = Task::with("serve", &node, &{
        let other = node.port();
        other.set_limit(50);
        other
    });
    for n in 0..200 {
        let message = Message {
            bytes: vec![n; 100],
            ..Message::new(ECHO)
        };
        assert_eq!(right.call(message, LONG).unwrap().bytes, [n; 100]);
        assert!(port.status().queued <= u32::from(port.status().limit));
    }
}

#[test]
fn garbage_ends_the_link_that_it_came_by_and_nothing_else() {
    let node = Node::new().unwrap();
    let port = node.port();
    let (_task, right) = Task::with("serve", &node, &port);
    for _ in 0..10 {
        let (own, other) = sockets();
        let mut liar = Task::start("garbage", Path::new("/"), Stdio::from(other));
        node.offer_over(own, &port.make_send()).unwrap();
        assert!(liar.0.wait().unwrap().success(), "it was shut out");
        assert_eq!(right.call(Message::new(ECHO), LONG).unwrap().id, ECHO);
    }
    assert!(port.receive(NOW).is_err());
}

#[test]
fn a_node_that_idles_does_nothing() {
    run_alone("idle");
}

#[test]
#[ignore = "needs a process of its own: run by the test before"]
fn idle() {
    let node = Node::new().unwrap();
    let port = node.port();
    let (_task, right) = Task::with("serve", &node, &port);
    right.call(Message::new(ECHO), LONG).unwrap();
    for blocked in [false, true] {
        until("the keeper has settled", || {
            let before = sleeps();
            pass(Duration::from_millis(50));
            sleeps() <= before + 2
        });
        let before = sleeps();
        let started = Instant::now();
        if blocked {
            assert!(port.receive(Some(Duration::from_millis(500))).is_err());
        } else {
            pass(Duration::from_millis(500));
        }
        let more = sleeps() - before;
        let passed = started.elapsed();
        assert!(passed >= Duration::from_millis(500));
        // This thread's own sleep and reading; a wake-up each 2 ms would be 250 in 500 ms.
        let most = 40.0 * passed.as_secs_f64() / 0.5;
        assert!(
            (more as f64) < most,
            "{more} sleeps in {passed:?} in which nothing happened"
        );
    }
}

#[test]
fn a_process_of_another_program_is_refused_or_times_out() {
    let node = Node::new().unwrap();
    let port = node.port();
    let (own, other) = sockets();
    let connected = std::thread::scope(|s| {
        let connecting = s.spawn(|| node.connect_over(own, Some(Duration::from_millis(50))));
        connecting.join().unwrap()
    });
    assert_eq!(connected.unwrap_err(), ConnectError::TimedOut);
    drop(other);
    let (own, other) = sockets();
    drop(other);
    assert!(node.connect_over(own, LONG).is_err());
    drop(port);
}

/// Runs an ignored test in a process that does nothing else.
fn run_alone(test: &str) {
    let own = std::env::current_exe().unwrap();
    let arguments = [
        "--exact",
        &format!("node_processes::{test}"),
        "--nocapture",
        "--ignored",
    ];
    let output = Command::new(own).args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&text)
    );
}
