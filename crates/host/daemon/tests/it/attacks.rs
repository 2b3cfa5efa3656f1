//! Clients that keep to no rule: each is refused, or only harms itself; honest ones are served as
//! before, and nothing of it stays in the host kernel.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use farpage_client::Refusal;
use farpage_object::PAGE_BYTES;
use farpage_port::interface::{Both, Fd, Interface, InvokeError};
use farpage_port::{CallError, Message, SendRight};
use farpage_sys::view::View;
use farpage_sys::{file, memory_file, message, socket, uffd};
use rustix::event::EventfdFlags;
use rustix::fs::{FallocateFlags, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::support;
use crate::support::{
    Answer, KernelByHand, MemoryByHand, PATIENCE, PROGRAM, Program, RAM, Victim, run_host, until,
};

/// What programs do; nothing when it is run as a test.
#[test]
fn the_program() {
    let Ok(kind) = std::env::var(PROGRAM) else {
        return;
    };
    match kind.as_str() {
        "host" => run_host(),
        "small host" => {
            let mut limit = getrlimit(Resource::Nofile);
            limit.current = Some(256);
            setrlimit(Resource::Nofile, limit).unwrap();
            run_host()
        }
        "attacker" => attack_as_told(),
        other => panic!("no such program: {other}"),
    }
}

/// An attacking process, a line at a time.
fn attack_as_told() -> ! {
    let node = farpage_port::Node::new().unwrap();
    let path = farpage_client::default_socket();
    let right = node.connect(&path, Some(PATIENCE)).unwrap();
    let kernel = KernelByHand::new(right.clone()).with_timeout(PATIENCE);
    println!("> ready");
    let mut kept: Vec<SendRight> = Vec::new();
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (what, name) = line.split_once(' ').unwrap_or((&line, ""));
        match what {
            "hoard" => println!("> {}", hoard(&kernel, &mut kept)),
            "hoard-mappings" => println!("> {}", hoard_mappings(&kernel, &mut kept)),
            "forget" => {
                kept.clear();
                println!("> done");
            }
            "make-long-list" => {
                for number in 0..name.parse::<usize>().unwrap() {
                    let name = format!("{number}{}", "x".repeat(190));
                    let Both(object, of_name) = kernel.create(name, 1).unwrap().0.unwrap();
                    kept.extend([object, of_name]);
                }
                println!("> done");
            }
            "flood" => {
                flood(&node, &right, name);
                println!("> done");
            }
            "work-for-ever" => work_for_ever(&kernel, name),
            other => panic!("no such attack: {other}"),
        }
    }
    std::process::exit(0);
}

/// Makes objects until it is refused: how many, and why.
fn hoard(kernel: &KernelByHand, kept: &mut Vec<SendRight>) -> String {
    for made in 0.. {
        match kernel.create(String::new(), 4096).unwrap().0 {
            Ok(Both(object, of_name)) => kept.extend([object, of_name]),
            Err(refusal) => return format!("{made} {refusal}"),
        }
    }
    unreachable!("refused some time")
}

fn hoard_mappings(kernel: &KernelByHand, kept: &mut Vec<SendRight>) -> String {
    let Both(object, _) = kernel.create(String::new(), 4096).unwrap().0.unwrap();
    kept.push(object.clone());
    let memory = MemoryByHand::new(object).with_timeout(PATIENCE);
    for made in 0.. {
        match memory.map(Fd(userfaultfd(Some(0))), 0x10000).unwrap().0 {
            Ok(mapping) => kept.push(mapping),
            Err(refusal) => return format!("{made} {refusal}"),
        }
    }
    unreachable!("refused some time")
}

/// Sends requests, and takes no answer: the process stops.
fn flood(node: &farpage_port::Node, right: &SendRight, method: &str) {
    let port = node.port();
    let number = KernelByHand::INTERFACE.number_of(method);
    for _ in 0..200_000 {
        let mut call = Message::new(number);
        call.bytes = head(&KernelByHand::INTERFACE, 0).to_vec();
        call.reply = Some(port.make_send_once().into());
        if right.send(call, Some(Duration::from_millis(100))).is_err() {
            return;
        }
    }
}

/// Calls all methods in turn until it is killed.
fn work_for_ever(kernel: &KernelByHand, name: &str) -> ! {
    println!("> done");
    loop {
        let made = kernel.create(name.into(), 1 << 20).unwrap().0;
        let Ok(Both(object, _of_name)) = made else {
            panic!("{made:?}")
        };
        let memory = MemoryByHand::new(object).with_timeout(PATIENCE);
        let Fd(file) = memory.file().unwrap().0.unwrap();
        let view = View::map(farpage_sys::file::Fd(file.as_raw_fd()), 1 << 20, device()).unwrap();
        let faults = Fd(view.faults().unwrap());
        let mapping = memory.map(faults, view.address() as u64).unwrap().0;
        view.words()
            .iter()
            .step_by(512)
            .for_each(|word| word.store(7, Ordering::Relaxed));
        let found = kernel.open(name.into()).unwrap().0.unwrap();
        let adopted = kernel.adopt(Fd(file)).unwrap().0.unwrap();
        assert!(!kernel.list().unwrap().is_empty());
        kernel.unlink(name.into()).unwrap().0.unwrap();
        drop((view, mapping, found, adopted, memory));
    }
}

fn device() -> Option<file::Fd> {
    static DEVICE: std::sync::OnceLock<Option<File>> = std::sync::OnceLock::new();
    let open = || {
        File::options()
            .read(true)
            .write(true)
            .open("/dev/userfaultfd")
    };
    let device = DEVICE.get_or_init(|| open().ok()).as_ref();
    device.map(|device| file::Fd(device.as_raw_fd()))
}

/// Set up for such features, or not at all.
fn userfaultfd(features: Option<u64>) -> OwnedFd {
    let (made, _) = uffd::open(device()).unwrap();
    if let Some(features) = features {
        made.enable(features).unwrap();
    }
    // To have it owned it is sent around.
    let (one, other) = packets();
    socket::send(file::Fd(one.as_raw_fd()), b"x", Some(made.0)).unwrap();
    file::close(made.0);
    message::receive(other.as_fd(), &mut [0; 8])
        .unwrap()
        .fds
        .remove(0)
}

fn packets() -> (OwnedFd, OwnedFd) {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None).unwrap()
}

/// A connection on which nothing has been said.
fn bare(victim: &Victim) -> OwnedFd {
    let made = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    );
    let socket = made.unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(victim.socket()).unwrap()).unwrap();
    socket
}

/// What begins a call: interface, version, outcome, how arguments come.
fn head(of: &Interface, flags: u8) -> [u8; 12] {
    let hash = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let id = of.name.bytes().fold(0x811c_9dc5, hash);
    let mut head = [0; 12];
    head[..4].copy_from_slice(&id.to_le_bytes());
    head[4..6].copy_from_slice(&of.version.to_le_bytes());
    head[7] = flags;
    head
}

trait Number {
    fn number_of(&self, method: &str) -> u32;
}

impl Number for Interface {
    fn number_of(&self, method: &str) -> u32 {
        self.methods.iter().position(|one| *one == method).unwrap() as u32
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        (0..self.next(most)).map(|_| self.next(256) as u8).collect()
    }
}

fn is_refused<T: std::fmt::Debug>(answer: Answer<T>) -> Refusal {
    answer.0.expect_err("refused")
}

/// An object made by hand.
fn object(kernel: &KernelByHand, bytes: u64) -> (MemoryByHand, SendRight) {
    let Both(right, of_name) = kernel.create("object".into(), bytes).unwrap().0.unwrap();
    (MemoryByHand::new(right).with_timeout(PATIENCE), of_name)
}

#[test]
fn garbage_on_the_socket_ends_that_connection_alone() {
    let victim = Victim::new();
    let mut random = Random(1);
    for round in 0..200usize {
        let socket = bare(&victim);
        let mut bytes = random.bytes(3000);
        if round % 3 == 0 && bytes.len() >= 8 {
            bytes[..4].copy_from_slice(b"FpLk");
            bytes[4..6].copy_from_slice(&farpage_port::link::VERSION.to_ne_bytes());
        }
        if round % 5 == 0 {
            bytes.truncate(16);
        }
        let null = File::open("/dev/null").unwrap();
        let fds: Vec<_> = (0..round % 4).map(|_| null.as_fd()).collect();
        // It may have been closed already.
        for _ in 0..1 + round % 3 {
            let _ = message::send(socket.as_fd(), &bytes, &fds, round % 2 == 0);
        }
    }
    victim.ends_unharmed();
}

#[test]
fn those_who_connect_and_say_nothing_make_room_for_those_who_do() {
    let victim = Victim::new();
    let silent: Vec<OwnedFd> = (0..400).map(|_| bare(&victim)).collect();
    let (_node, kernel) = victim.kernel();
    kernel.status().unwrap();
    drop((silent, kernel, _node));
    victim.ends_unharmed();
}

#[test]
fn garbled_calls_are_answered_and_do_nothing() {
    let victim = Victim::new();
    let (node, kernel) = victim.kernel();
    let (memory, of_name) = object(&kernel, 10_000);
    let mut random = Random(7);
    for round in 0..600u32 {
        let of = [&KernelByHand::INTERFACE, &MemoryByHand::INTERFACE][round as usize % 2];
        let to = if round % 4 < 2 {
            kernel.right()
        } else {
            memory.right()
        };
        let mut call = Message::new([round % 9, u32::MAX, 1 << 31][random.next(3) as usize]);
        call.bytes = head(of, 0).to_vec();
        match random.next(6) {
            0 => call.bytes[random.next(12) as usize] ^= 1 << random.next(8),
            1 => call.bytes.truncate(random.next(12) as usize),
            2 => call.bytes[7] = 1,
            _ => {}
        }
        let most = [1, 40, 60_000][random.next(3) as usize];
        call.bytes.extend(random.bytes(most));
        for _ in 0..random.next(4) {
            call.rights.push(node.port().make_send().into());
        }
        for _ in 0..random.next(20) {
            call.descriptors
                .push(File::open("/dev/null").unwrap().into());
        }
        let answer = to.call(call, Some(PATIENCE)).expect("an answer");
        assert!(answer.bytes.len() >= 12, "{answer:?}");
    }
    drop((memory, of_name, kernel, node));
    victim.ends_unharmed();
}

#[test]
fn rights_of_another_kind_are_refused_at_once() {
    let victim = Victim::new();
    let (node, kernel) = victim.kernel();
    let (memory, of_name) = object(&kernel, 8192);
    let mapping = memory
        .map(Fd(userfaultfd(Some(0))), 0x10000)
        .unwrap()
        .0
        .unwrap();
    fn is_refused<T>(answer: Result<T, InvokeError>) {
        let error = answer.err().expect("it is refused");
        let waited = matches!(error, InvokeError::Call(CallError::TimedOut));
        assert!(!waited, "it waited");
    }
    for right in [&mapping, &of_name, kernel.right()] {
        let as_object = MemoryByHand::new(right.clone()).with_timeout(PATIENCE);
        is_refused(as_object.file());
        let faults = Fd(userfaultfd(Some(0)));
        is_refused(as_object.map(faults, 0x20000));
    }
    for right in [&mapping, &of_name, memory.right()] {
        let as_kernel = KernelByHand::new(right.clone()).with_timeout(PATIENCE);
        is_refused(as_kernel.list());
        is_refused(as_kernel.create("x".into(), 1));
    }
    assert!(memory.file().unwrap().0.is_ok());
    drop((mapping, memory, of_name, kernel, node));
    victim.ends_unharmed();
}

#[test]
fn what_is_no_userfaultfd_for_faults_alone_is_not_answered() {
    const REMAP: u64 = 1 << 2;
    const REMOVE: u64 = 1 << 3;
    const UNMAP: u64 = 1 << 6;
    let victim = Victim::new();
    let (node, kernel) = victim.kernel();
    let (memory, of_name) = object(&kernel, 3 * PAGE_BYTES as u64);
    let Fd(its_file) = memory.file().unwrap().0.unwrap();
    let (pipe, _writing) = std::io::pipe().unwrap();
    let bad: [OwnedFd; 10] = [
        File::open("/dev/null").unwrap().into(),
        File::open("/proc/self/maps").unwrap().into(),
        pipe.into(),
        packets().0,
        rustix::event::eventfd(0, EventfdFlags::empty()).unwrap(),
        its_file,
        userfaultfd(None),
        userfaultfd(Some(REMOVE)),
        userfaultfd(Some(REMAP)),
        userfaultfd(Some(UNMAP)),
    ];
    for (which, fd) in bad.into_iter().enumerate() {
        let answer = memory.map(Fd(fd), 0x10000).unwrap();
        let refusal = answer.0.expect_err(&format!("descriptor {which}"));
        assert!(refusal.to_string().contains("no userfaultfd"), "{refusal}");
    }
    for address in [1, 0x10800, u64::MAX, u64::MAX - 4095, u64::MAX - 8191] {
        let faults = Fd(userfaultfd(Some(0)));
        let refusal = is_refused(memory.map(faults, address).unwrap());
        assert!(
            refusal.to_string().contains("no page's address"),
            "{refusal}"
        );
    }
    // Where nothing lies nobody faults. The same place twice is the caller's own trouble.
    let faults = userfaultfd(Some(0));
    for _ in 0..2 {
        let again = Fd(faults.try_clone().unwrap());
        assert!(memory.map(again, 0x10000).unwrap().0.is_ok());
    }
    drop((faults, memory, of_name, kernel, node));
    victim.ends_unharmed();
}

#[test]
fn a_userfaultfd_that_is_made_to_wait_holds_no_handler() {
    const THREADS: usize = 16;
    let victim = Victim::new();
    let (node, kernel) = victim.kernel();
    let bytes = THREADS * PAGE_BYTES;
    let stop = AtomicBool::new(false);
    for _ in 0..12 {
        let (memory, of_name) = object(&kernel, bytes as u64);
        let Fd(its_file) = memory.file().unwrap().0.unwrap();
        let view = View::map(file::Fd(its_file.as_raw_fd()), bytes, device()).unwrap();
        let faults = view.faults().unwrap();
        let waits = faults.try_clone().unwrap();
        std::thread::scope(|s| {
            let wait = s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    rustix::fs::fcntl_setfl(&waits, OFlags::RDONLY).unwrap();
                }
            });
            let touch =
                |page: usize| view.words()[page * PAGE_BYTES / 8].fetch_add(1, Ordering::Relaxed);
            let touching: Vec<_> = (0..THREADS)
                .map(|page| s.spawn(move || touch(page)))
                .collect();
            let mapping = memory.map(Fd(faults), view.address() as u64).unwrap().0;
            touching
                .into_iter()
                .for_each(|one| assert_eq!(one.join().unwrap(), 0));
            stop.store(true, Ordering::Relaxed);
            wait.join().unwrap();
            stop.store(false, Ordering::Relaxed);
            drop(mapping.unwrap());
        });
        drop((memory, of_name));
    }
    drop((kernel, node));
    victim.ends_unharmed();
}

#[test]
fn only_the_file_of_an_object_is_adopted() {
    let victim = Victim::new();
    let (node, kernel) = victim.kernel();
    let (memory, of_name) = object(&kernel, 8192);
    let Fd(its_file) = memory.file().unwrap().0.unwrap();
    let same_size = memory_file::create(c"object", 8192).unwrap();
    memory_file::seal(same_size.as_fd(), memory_file::FIXED).unwrap();
    let strangers: [OwnedFd; 4] = [
        same_size,
        File::open("/dev/null").unwrap().into(),
        std::io::pipe().unwrap().0.into(),
        userfaultfd(Some(0)),
    ];
    for fd in strangers {
        let refusal = is_refused(kernel.adopt(Fd(fd)).unwrap());
        assert!(matches!(refusal, Refusal::NotFound(_)), "{refusal}");
    }
    let copy = || Fd(its_file.try_clone().unwrap());
    let Both(bytes, adopted) = kernel.adopt(copy()).unwrap().0.unwrap();
    assert_eq!(bytes, 8192);
    // It keeps the object; when it is gone, too, the file is none of an object any more.
    drop((memory, of_name));
    assert_eq!(victim.honest.list().unwrap().len(), 1);
    drop(adopted);
    support::until_gone(&victim.honest);
    is_refused(kernel.adopt(copy()).unwrap());
    drop((its_file, kernel, node));
    victim.ends_unharmed();
}

#[test]
fn names_and_sizes_that_cannot_be_are_refused() {
    let victim = Victim::new();
    let (node, kernel) = victim.kernel();
    for name in [
        "/",
        "a/b",
        "../../x",
        "\0",
        "a\nb",
        "\u{7f}",
        &"ü".repeat(201),
    ] {
        let refusal = is_refused(kernel.create(name.into(), 4096).unwrap());
        assert!(matches!(refusal, Refusal::Name(_)), "{refusal}");
        for answer in [
            is_refused(kernel.open(name.into()).unwrap()),
            is_refused(kernel.unlink(name.into()).unwrap()),
        ] {
            assert!(matches!(answer, Refusal::Name(_)), "{answer}");
        }
    }
    for bytes in [0, (1 << 45) + 1, 1 << 53, (1 << 53) + 1, u64::MAX] {
        let refusal = is_refused(kernel.create("x".into(), bytes).unwrap());
        assert_eq!(refusal, Refusal::Size(bytes));
    }
    // The largest is as much as one process may have.
    let largest = kernel.create("x".into(), 1 << 45).unwrap().0.unwrap();
    let refusal = is_refused(kernel.create("y".into(), 1).unwrap());
    assert!(matches!(refusal, Refusal::Limit { .. }), "{refusal}");
    drop((largest, kernel, node));
    victim.ends_unharmed();
}

#[test]
fn one_that_takes_all_is_refused_and_others_are_served() {
    let victim = Victim::of_kind("attacks::small host");
    let socket = victim.socket();
    let mut hoards = ["hoard", "hoard-mappings"].map(|what| {
        let mut attacker = Program::start("attacks::attacker", &socket);
        let said = attacker.does(what);
        assert!(
            said.contains("this process may have 96 descriptors"),
            "{said}"
        );
        (attacker, said)
    });
    assert!(hoards[0].1.starts_with("48 "), "{}", hoards[0].1);
    assert!(hoards[1].1.starts_with("94 "), "{}", hoards[1].1);
    // Two have all of it: others are told, and served again when one is gone.
    let refused = victim.honest.create("honest", 4096).err().unwrap();
    assert!(
        refused.to_string().contains("all processes together"),
        "{refused}"
    );
    let count = || victim.honest.list().unwrap().len();
    assert_eq!(count(), 49);
    assert_eq!(hoards[0].0.does("forget"), "done");
    until("there is room again", || count() == 1);
    victim.serves();
    assert!(hoards[0].0.does("hoard").starts_with("48 "));
    for (attacker, _) in hoards {
        attacker.dies();
    }
    support::until_gone(&victim.honest);
    victim.ends_unharmed();
}

#[test]
fn one_that_takes_no_answers_holds_up_nobody() {
    let victim = Victim::new();
    for method in ["status", "list"] {
        let mut attacker = Program::start("attacks::attacker", &victim.socket());
        assert_eq!(attacker.does("make-long-list 400"), "done");
        let pid = rustix::process::Pid::from_child(&attacker.child);
        use std::io::Write;
        writeln!(attacker.hears, "flood {method}").unwrap();
        for _ in 0..20 {
            victim.serves();
        }
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        for _ in 0..5 {
            victim.serves();
        }
        let held = victim.count_descriptors();
        assert!(
            held < 4000,
            "{held} descriptors are held for answers that nobody takes"
        );
        attacker.dies();
    }
    victim.ends_unharmed();
}

#[test]
fn what_is_done_to_one_objects_file_harms_no_other() {
    let victim = Victim::new();
    // So much that Linux is not left to fill the other one by itself.
    let bystander = victim.honest.create("bystander", RAM / 4 * 3).unwrap();
    bystander
        .words()
        .iter()
        .for_each(|word| word.store(3, Ordering::Relaxed));
    let shared = victim.honest.create("shared", 1 << 20).unwrap();
    shared
        .words()
        .iter()
        .for_each(|word| word.store(5, Ordering::Relaxed));
    let (node, kernel) = victim.kernel();
    let Both(_, right) = kernel.open("shared".into()).unwrap().0.unwrap();
    let memory = MemoryByHand::new(right).with_timeout(PATIENCE);
    let Fd(its_file) = memory.file().unwrap().0.unwrap();
    assert!(rustix::fs::ftruncate(&its_file, 0).is_err());
    assert!(rustix::fs::ftruncate(&its_file, 1 << 30).is_err());
    let holes = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for round in 0..50u64 {
        let at = round * 20_000;
        rustix::fs::fallocate(&its_file, holes, at, 40_000.min((1 << 20) - at)).unwrap();
        // Zeros or what was there: but nobody waits for ever.
        let seen: Vec<u64> = shared
            .words()
            .iter()
            .map(|word| word.load(Ordering::Relaxed))
            .collect();
        assert!(seen.iter().all(|word| [0, 5].contains(word)));
        shared.words()[at as usize / 8].store(5, Ordering::Relaxed);
    }
    assert!(
        bystander
            .words()
            .iter()
            .all(|word| word.load(Ordering::Relaxed) == 3)
    );
    drop((shared, bystander, memory, its_file, kernel, node));
    victim.ends_unharmed();
}

#[test]
fn killed_in_the_middle_of_any_call_a_client_leaves_nothing() {
    let victim = Victim::new();
    for round in 0..60u64 {
        let mut attacker = Program::start("attacks::attacker", &victim.socket());
        assert_eq!(attacker.does(&format!("work-for-ever name{round}")), "done");
        farpage_testkit::pass(Duration::from_micros(round * 157));
        attacker.dies();
    }
    victim.ends_unharmed();
}
