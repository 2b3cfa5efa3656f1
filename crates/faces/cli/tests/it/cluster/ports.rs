//! Ports between hosts: programs of real host kernels in network namespaces, which send to one another by
//! names of the cluster as programs of one host do.

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use farpage_client::Host;
use farpage_port::interface::{Both, Contents};
use farpage_port::link::Region;
use farpage_port::{
    Lent, Memory, Message, Notice, ReceiveRight, Right, SendError, SendRight, Sender, interface,
};

use super::support::{Client, Kernel, Net};

use crate::support::up::until;

/// What a program is told where its host kernel listens.
const PROGRAM: &str = "FARPAGE_TEST_PORTS";
const LONG: Duration = farpage_testkit::HANGS;
/// More messages than wait for anybody.
const FLOOD: u32 = 10_000;
/// Who has no room for so long has none.
const NO_ROOM: Duration = Duration::from_secs(3);

interface! {
    /// What a program serves to others.
    trait Board, client BoardClient, "farpage.test.board" version 1 {
        /// The sum.
        fn add(one: u64, other: u64) -> u64;
        /// What came, and how many bytes of it are not 7.
        fn echo(contents: Contents) -> Both<u64, Contents>;
        /// The next number.
        fn number(number: u64);
        /// How many came, one after the other from 1 on.
        fn numbers() -> u64;
        /// Keeps a right.
        fn pin(to: SendRight) -> ();
        /// Gives it.
        fn unpin() -> Option<u64>;
        /// The right that is kept.
        fn pinned() -> SendRight;
    }
}

#[derive(Default)]
struct Served {
    numbers: u64,
    pinned: Option<SendRight>,
}

impl Board for Served {
    fn add(&mut self, _: Sender, one: u64, other: u64) -> u64 {
        one + other
    }

    fn echo(&mut self, _: Sender, contents: Contents) -> Both<u64, Contents> {
        let wrong = contents.iter().filter(|byte| **byte != 7).count();
        Both(wrong as u64, contents)
    }

    fn number(&mut self, _: Sender, number: u64) {
        if number == self.numbers + 1 {
            self.numbers = number;
        }
    }

    fn numbers(&mut self, _: Sender) -> u64 {
        self.numbers
    }

    fn pin(&mut self, _: Sender, to: SendRight) {
        self.pinned = Some(to);
    }

    fn unpin(&mut self, _: Sender) -> Option<u64> {
        self.pinned.take().map(|_| 1)
    }

    fn pinned(&mut self, _: Sender) -> SendRight {
        self.pinned.clone().expect("something is pinned")
    }
}

/// A port whose messages and notices are told.
fn told(port: ReceiveRight) -> Receiver<String> {
    let (tell, told) = channel();
    std::thread::spawn(move || {
        while let Ok(mut received) = port.receive(None) {
            let what = match received.notice() {
                Some(Notice::NoSenders(_)) => "nobody sends".to_owned(),
                Some(Notice::Dead(_)) => "dead".to_owned(),
                Some(other) => format!("{other:?}"),
                None => format!("message {}", received.id),
            };
            let lent = received.memory.drain(..).map(|memory| match memory {
                Memory::Lent(lent) => {
                    let mut bytes = vec![0; lent.bytes()];
                    lent.copy_to(0, &mut bytes).unwrap();
                    format!(" lent {} of {}", bytes[0], bytes.len())
                }
                Memory::Donated(donated) => format!(" given {}", donated.bytes()),
            });
            let what = what + &lent.collect::<String>();
            let _ = received.answer(Message::new(1));
            if tell.send(what).is_err() {
                return;
            }
        }
    });
    told
}

#[derive(Default)]
struct Program {
    board: Option<BoardClient>,
    events: Option<Receiver<String>>,
    silent: Option<ReceiveRight>,
    other: Option<SendRight>,
}

impl Program {
    fn act(&mut self, host: &Host, words: &[&str]) -> Result<String, String> {
        let node = host.node().map_err(|error| error.to_string())?;
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let why = |error: farpage_client::Error| error.to_string();
        let failed = |error: farpage_port::interface::InvokeError| error.to_string();
        let done = |()| "done".to_owned();
        let refused = |refused: farpage_port::Refused| refused.error.to_string();
        let board = || self.board.clone().expect("it has found a board");
        match words[0] {
            "serve" => {
                let port = node.port();
                host.check_in(words[1], &port.make_send()).map_err(why)?;
                std::thread::spawn(move || Served::default().serve(&port));
                Ok("done".into())
            }
            "find" => {
                let right = host.look_up(words[1]).map_err(why)?;
                self.board = Some(BoardClient::new(right).with_timeout(LONG));
                Ok("done".into())
            }
            "leave" => {
                self.board = None;
                self.other = None;
                Ok("done".into())
            }
            "out" => host.check_out(words[1]).map(done).map_err(why),
            "add" => board()
                .add(number(1), number(2))
                .map(|sum| sum.to_string())
                .map_err(failed),
            "echo" => {
                let bytes = vec![7; number(1) as usize];
                let sent = Contents::from(bytes);
                let Both(wrong, back) = board().echo(sent).map_err(failed)?;
                Ok(format!("{wrong} wrong of {}", back.len()))
            }
            "count" => {
                for number in 1..=number(1) {
                    board().number(number).map_err(failed)?;
                }
                board()
                    .numbers()
                    .map(|count| count.to_string())
                    .map_err(failed)
            }
            // A port of this program's, pinned at the board.
            "pin" => {
                let port = node.port();
                let right = port.make_send();
                port.notify_no_senders(1, &port);
                self.events = Some(told(port));
                board().pin(right).map(done).map_err(failed)
            }
            "take" => {
                self.other = Some(board().pinned().map_err(failed)?);
                Ok("done".into())
            }
            "unpin" => board().unpin().map(|_| "done".into()).map_err(failed),
            "say" => {
                let message = Message::new(number(1) as u32);
                let other = self.other.as_ref().expect("it has taken one");
                other
                    .send(message, Some(LONG))
                    .map(|()| "done".into())
                    .map_err(refused)
            }
            "ask" => {
                let other = self.other.as_ref().expect("it has taken one");
                let answer = other.call(Message::new(number(1) as u32), Some(LONG));
                answer
                    .map(|answer| format!("answer {}", answer.id))
                    .map_err(|why| why.to_string())
            }
            "lend" => {
                let mut region = Region::create(8192).unwrap();
                region.fill(9);
                let (lent, ticket) = Lent::new(&region, 4096..8192);
                let memory = vec![Memory::Lent(lent)];
                let message = Message {
                    memory,
                    ..Message::new(5)
                };
                let other = self.other.as_ref().expect("it has taken one");
                other.send(message, Some(LONG)).map_err(refused)?;
                assert!(ticket.wait(Some(LONG)), "the loan comes back");
                Ok("done".into())
            }
            // Is told when the board dies, which it waits for.
            "watch" => {
                let port = node.port();
                board().right().notify_dead(&port);
                self.events = Some(told(port));
                Ok("done".into())
            }
            "next" => {
                let events = self.events.as_ref().expect("it is told something");
                events.recv_timeout(LONG).map_err(|_| "nothing came".into())
            }
            // A port that nobody receives from.
            "silent" => {
                let port = node.port();
                host.check_in(words[1], &port.make_send()).map_err(why)?;
                self.silent = Some(port);
                Ok("done".into())
            }
            "drain" => {
                let port = self.silent.as_ref().expect("it has one");
                let mut last = 0;
                for expected in 1..=number(1) as u32 {
                    let received = port.receive(Some(LONG)).map_err(|why| why.to_string())?;
                    assert_eq!(received.id, expected);
                    last = received.id;
                }
                Ok(last.to_string())
            }
            // Sends until there is no room, and says how many went.
            "flood" => {
                let right = host.look_up(words[1]).map_err(why)?;
                let mut sent = 0;
                loop {
                    let message = Message::new(sent + 1);
                    match right.send(message, Some(NO_ROOM)) {
                        Ok(()) => sent += 1,
                        Err(full) if full.error == SendError::TimedOut => break,
                        Err(other) => return Err(other.error.to_string()),
                    }
                    assert!(sent < FLOOD, "there is always room");
                }
                self.other = Some(right);
                Ok(sent.to_string())
            }
            "descriptor" | "receive" | "much" => {
                let mut message = Message::new(1);
                match words[0] {
                    "descriptor" => message.descriptors.push(std::io::pipe().unwrap().0.into()),
                    "receive" => message.rights.push(Right::Receive(node.port())),
                    _ => {
                        let region = Region::create((64 << 20) + 4096).unwrap();
                        let bytes = region.len();
                        message
                            .memory
                            .push(Memory::Lent(Lent::new(&region, 0..bytes).0));
                    }
                }
                let sent = board().right().send(message, Some(LONG));
                sent.map(|()| "done".into()).map_err(refused)
            }
            other => panic!("{other}?"),
        }
    }
}

/// A program of a host; nothing when it is run as a test.
#[test]
fn the_port_program() {
    let Ok(socket) = std::env::var(PROGRAM) else {
        return;
    };
    let host = Host::connect(Path::new(&socket)).unwrap();
    let mut program = Program::default();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        match program.act(&host, &words) {
            Ok(said) => println!("{said}"),
            Err(why) => println!("no: {why}"),
        }
    }
}

fn program(of: &Kernel) -> Client {
    Client::running("cluster::ports::the_port_program", PROGRAM, &of.socket)
}

fn does(program: &mut Client, what: &[&str]) {
    for line in what {
        assert_eq!(program.does(line), "done", "{line}");
    }
}

/// Nothing of ports is left between hosts.
fn nothing_is_held(hosts: &[&Kernel]) {
    for host in hosts {
        host.until(
            &["ports"],
            &["other hosts have 0 rights to ports of this host; it has 0 rights to theirs"],
        );
    }
}

#[test]
fn a_program_serves_those_of_other_hosts_as_those_of_its_own() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let (one, two, three) = (net.host(), net.host(), net.host());
    let (mut a, mut b, mut c) = (program(&one), program(&two), program(&three));
    let mut own = program(&one);
    does(&mut a, &["serve board"]);
    for client in [&mut b, &mut c, &mut own] {
        does(client, &["find board"]);
        assert_eq!(client.does("add 3 4"), "7");
        assert_eq!(client.does("echo 20"), "0 wrong of 20");
        assert_eq!(client.does("echo 1048576"), "0 wrong of 1048576");
    }
    assert_eq!(b.does("echo 50000000"), "0 wrong of 50000000");
    assert_eq!(b.does("count 10000"), "10000", "all came, in order");
    let said = two.says(&["ports"]);
    assert!(
        said.contains("board  host0") && said.contains("it has 1 right to theirs"),
        "{said}"
    );
    assert!(one.says(&["ports", "--json"]).contains("\"is_own\": true"));
    // A right of the second host's goes through the first to the third, which uses it.
    does(&mut b, &["pin"]);
    does(&mut c, &["take", "say 42", "lend"]);
    assert_eq!(b.does("next"), "message 42");
    assert_eq!(b.does("next"), "message 5 lent 9 of 4096");
    assert_eq!(c.does("ask 8"), "answer 1");
    assert_eq!(b.does("next"), "message 8");
    // Whoever gave it lets go of it: the third has it still.
    does(&mut c, &["unpin", "say 43"]);
    assert_eq!(b.does("next"), "message 43");
    does(&mut c, &["leave"]);
    assert_eq!(b.does("next"), "nobody sends");
    // One that comes home is the real one.
    does(&mut b, &["pin", "take", "say 1"]);
    assert_eq!(b.does("next"), "message 1");
    does(&mut b, &["unpin", "leave"]);
    assert_eq!(b.does("next"), "nobody sends");
    does(&mut a, &["out board"]);
    assert!(
        c.does("find board")
            .starts_with("no: there is no port 'board' in the cluster")
    );
    nothing_is_held(&[&one, &two, &three]);
}

#[test]
fn what_cannot_go_to_another_host_is_refused_and_names_are_one_ports() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let (one, two) = (net.host(), net.host());
    let (mut a, mut b) = (program(&one), program(&two));
    does(&mut a, &["serve board"]);
    does(&mut b, &["find board"]);
    for what in ["descriptor", "receive", "much"] {
        let said = b.does(what);
        assert!(
            said.contains("the port's receiver is on another host"),
            "{said}"
        );
    }
    assert_eq!(b.does("add 1 1"), "2", "it goes on");
    let taken = "there is a port 'board' in the cluster already";
    for (line, why) in [
        ("serve board", taken),
        ("find bored", "there is no port 'bored' in the cluster"),
        ("find a/b", "'a/b' is no name of a port"),
        ("serve a/b", "'a/b' is no name of a port"),
        ("out board", "no port of this host is checked in as 'board'"),
    ] {
        let said = b.does(line);
        assert!(said.contains(why), "{line}: {said}");
    }
    assert!(a.does("serve board").contains(taken));
    let long = b.does(&format!("serve {}", "x".repeat(201)));
    assert!(long.contains("give 1 to 200 characters"), "{long}");
    // Who does not receive holds up whoever sends to it, and nobody else.
    does(&mut a, &["silent deaf"]);
    let sent: u32 = b.does("flood deaf").parse().unwrap();
    assert!((1..100).contains(&sent), "{sent}");
    assert_eq!(b.does("add 2 2"), "4");
    assert_eq!(a.does(&format!("drain {sent}")), sent.to_string());
    does(&mut b, &["say 7", "leave"]);
    // A program that is alone is told how not to be.
    drop((a, b));
    nothing_is_held(&[&one, &two]);
    let mut alone = crate::support::up::farpage(&["ports"], &net.folder.path().join("none"));
    let said = String::from_utf8(alone.output().unwrap().stderr).unwrap();
    assert!(said.contains("no host kernel listens"), "{said}");
}

#[test]
fn who_dies_is_heard_of_at_all_hosts_and_leaves_nothing() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let (mut one, two, three) = (net.host(), net.host(), net.host());
    let (mut a, mut b, mut c) = (program(&one), program(&two), program(&three));
    // The program that serves.
    does(&mut a, &["serve board"]);
    does(&mut b, &["find board", "watch"]);
    does(&mut c, &["find board", "watch"]);
    a.kill();
    assert_eq!(
        (b.does("next"), c.does("next")),
        ("dead".into(), "dead".into())
    );
    assert!(b.does("add 1 1").contains("the port is dead"));
    until("its name is gone", || {
        b.does("find board").contains("there is no port")
    });
    nothing_is_held(&[&one, &two, &three]);
    // A client: what it had is released, also what it had been given by a third host.
    let mut a = program(&one);
    does(&mut a, &["serve board"]);
    does(&mut b, &["find board", "pin"]);
    does(&mut c, &["find board", "take", "say 1"]);
    assert_eq!(b.does("next"), "message 1");
    does(&mut b, &["unpin"]);
    c.kill();
    assert_eq!(b.does("next"), "nobody sends");
    // A host kernel that has a right of another's.
    let mut c = program(&three);
    does(&mut c, &["find board"]);
    does(&mut b, &["pin"]);
    does(&mut c, &["take", "say 2"]);
    assert_eq!(b.does("next"), "message 2");
    does(&mut b, &["unpin"]);
    drop(three);
    assert_eq!(b.does("next"), "nobody sends");
    // The host kernel of who serves.
    does(&mut b, &["watch"]);
    one.kill();
    assert_eq!(b.does("next"), "dead");
    assert!(b.does("find board").contains("there is no port 'board'"));
    does(&mut b, &["serve board"]);
    nothing_is_held(&[&two]);
}
