//! A host kernel in a process of its own, programs beside it, and its protocol by hand.

pub mod pagers;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farpage_client::{Host, Listed, Refusal, Status};
use farpage_daemon::Service;
use farpage_host::Objects;
use farpage_object::{DataRequest, ObjectId, PAGE_BYTES, PageOut, Pager, PagerError, Supplied};
use farpage_port::interface::{Both, Fd, Garbled, Incoming, Outgoing, Wire};
use farpage_port::{Node, SendRight, interface};
pub use farpage_testkit::until;
use farpage_testkit::until_or;

pub const PROGRAM: &str = "FARPAGE_TEST_PROGRAM";
pub const RAM: u64 = 4 << 20;
/// Longer than anything takes that is answered at all.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Keeps pages in memory of its own.
#[derive(Default)]
struct Store(Mutex<HashMap<(ObjectId, u64), Box<Page>>>);

type Page = [u8; PAGE_BYTES];

impl Pager for Store {
    fn data_request(&self, mut request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        let (object, pages, all) = (request.object(), request.pages(), self.0.lock().unwrap());
        let buffer = request.buffer().chunks_exact_mut(PAGE_BYTES);
        for (page, into) in pages.iter().zip(buffer) {
            match all.get(&(object, page.0)) {
                Some(kept) => into.copy_from_slice(&**kept),
                None => into.fill(0),
            }
        }
        Ok(Supplied::clean(pages.pages()))
    }

    fn data_write(&self, object: ObjectId, pages: &[PageOut<'_>]) -> Result<(), PagerError> {
        let mut all = self.0.lock().unwrap();
        for page in pages {
            all.insert((object, page.page.0), Box::new(*page.bytes));
        }
        Ok(())
    }

    fn terminate(&self, object: ObjectId) {
        self.0.lock().unwrap().retain(|(of, _), _| *of != object);
    }
}

/// Runs a host kernel for ever, at the default socket.
pub fn run_host() -> ! {
    run_host_with(|service| service)
}

/// The same, with options.
pub fn run_host_with(options: impl FnOnce(Service) -> Service) -> ! {
    let objects = Objects::start(RAM).unwrap();
    let service = Service::new(objects, RAM, Arc::new(Store::default())).unwrap();
    let service = options(service);
    let _listening = service.listen(&farpage_client::default_socket()).unwrap();
    let write_back = service.write_back();
    println!("> ready");
    std::thread::spawn(move || {
        let Err(error) = service.run();
        panic!("{error}");
    });
    for line in std::io::stdin().lines() {
        assert_eq!(line.unwrap(), "end");
        println!("> {}", write_back.run(PATIENCE));
    }
    // Killed, not ended.
    loop {
        std::thread::park();
    }
}

/// Another process: it does what it is told, a line at a time.
pub struct Program {
    pub child: Child,
    pub says: BufReader<ChildStdout>,
    pub hears: ChildStdin,
}

impl Program {
    /// Runs the test `the_program` of a file: `kind` is the file and what that test does there,
    /// such as `locks::host`.
    pub fn start(kind: &str, socket: &Path) -> Self {
        Self::start_as(Command::new(std::env::current_exe().unwrap()), kind, socket)
    }

    /// The same; what it says on the error output goes to a file.
    pub fn start_telling(kind: &str, socket: &Path, file: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.stderr(std::fs::File::create(file).unwrap());
        Self::start_as(command, kind, socket)
    }

    /// The same, with a folder for what it keeps.
    pub fn start_in(kind: &str, socket: &Path, folder: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env("FARPAGE_TEST_FOLDER", folder);
        Self::start_as(command, kind, socket)
    }

    /// The same, by a command that runs it.
    pub fn start_as(mut command: Command, kind: &str, socket: &Path) -> Self {
        let (file, kind) = kind.split_once("::").expect("a file and a kind");
        command.args([&format!("{file}::the_program"), "--exact", "--nocapture"]);
        command.env(PROGRAM, kind).env("FARPAGE_HOST", socket);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let says = BufReader::new(child.stdout.take().unwrap());
        let hears = child.stdin.take().unwrap();
        let mut program = Self { child, says, hears };
        assert_eq!(program.line(), "ready");
        program
    }

    /// What it says, but for what the test harness prints.
    pub fn line(&mut self) -> String {
        self.line_or_end().expect("the program has ended")
    }

    /// As [`Program::line`]; `None` when it has ended.
    pub fn line_or_end(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.says.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            if let Some(at) = line.find("> ") {
                return Some(line[at + 2..].trim().to_owned());
            }
        }
    }

    pub fn does(&mut self, what: &str) -> String {
        writeln!(self.hears, "{what}").unwrap();
        self.line()
    }

    pub fn dies(self) {
        drop(self);
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until nothing is listed: the host kernel hears of a death when Linux tells it.
pub fn until_gone(host: &Host) {
    let left = || format!("{:?} {:?}", host.list(), host.pagers());
    until_or(left, || host.list().unwrap().is_empty());
}

/// A host kernel that is attacked, and an honest client of it.
pub struct Victim {
    pub folder: tempfile::TempDir,
    pub kernel: Program,
    pub honest: Host,
    descriptors: usize,
}

impl Victim {
    pub fn new() -> Self {
        Self::of_kind("attacks::host")
    }

    pub fn of_kind(kind: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("host");
        let kernel = Program::start(kind, &socket);
        let honest = Host::connect(&socket).unwrap();
        let mut victim = Self {
            folder,
            kernel,
            honest,
            descriptors: 0,
        };
        victim.serves();
        until_gone(&victim.honest);
        victim.descriptors = victim.count_descriptors();
        victim
    }

    pub fn socket(&self) -> std::path::PathBuf {
        self.folder.path().join("host")
    }

    /// A Node of its own, and the right that all get who connect.
    pub fn attacker(&self) -> (Node, SendRight) {
        let node = Node::new().unwrap();
        let right = node.connect(&self.socket(), Some(PATIENCE)).unwrap();
        (node, right)
    }

    pub fn kernel(&self) -> (Node, KernelByHand) {
        let (node, right) = self.attacker();
        (node, KernelByHand::new(right).with_timeout(PATIENCE))
    }

    /// Honest clients make, write, find, read and list, beyond what memory holds.
    pub fn serves(&self) {
        let made = self.honest.create("honest", 2 * RAM).unwrap();
        let words = made.words().iter().step_by(PAGE_BYTES / 8).enumerate();
        words.for_each(|(at, word)| word.store(at as u64 + 1, Ordering::Relaxed));
        let found = self.honest.open("honest").unwrap();
        let mut words = found.words().iter().step_by(PAGE_BYTES / 8).enumerate();
        let wrong = words.find(|(at, word)| word.load(Ordering::Relaxed) != *at as u64 + 1);
        assert!(wrong.is_none(), "{wrong:?}");
        let listed = self.honest.list().unwrap();
        assert!(listed.iter().any(|one| one.name == "honest"), "{listed:?}");
    }

    /// After an attack: it serves, and has kept nothing.
    pub fn ends_unharmed(mut self) {
        assert!(self.kernel.child.try_wait().unwrap().is_none(), "it died");
        self.serves();
        until_gone(&self.honest);
        until("objects are forgotten", || {
            let status = self.honest.status().unwrap();
            status.objects == 0 && status.resident_bytes == 0
        });
        let descriptors = || {
            let (now, before) = (self.count_descriptors(), self.descriptors);
            format!("{now} descriptors, once {before}")
        };
        until_or(descriptors, || self.count_descriptors() <= self.descriptors);
        self.kernel.dies();
    }

    /// But for those of handlers, which are made where threads fault first.
    pub fn count_descriptors(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.kernel.child.id());
        let links = std::fs::read_dir(folder).unwrap();
        let links = links.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        links
            .filter(|link| link.as_os_str() != "anon_inode:[eventpoll]")
            .count()
    }
}

/// What came of something that may be refused.
#[derive(Debug)]
pub struct Answer<T>(pub Result<T, Refusal>);

impl<T: Wire> Wire for Answer<T> {
    fn put(self, _: &mut Outgoing) -> Result<(), farpage_port::interface::EncodeError> {
        unreachable!("the host kernel answers")
    }

    fn take(from: &mut Incoming<'_>) -> Result<Self, Garbled> {
        Ok(Self(match bool::take(from)? {
            true => Ok(T::take(from)?),
            false => Err(Refusal::take(from)?),
        }))
    }
}

interface! {
    /// As the host kernel declares it.
    pub trait Kernel, client KernelByHand, "farpage.kernel" version 7 {
        /// See there.
        fn create(name: String, bytes: u64) -> Answer<Both<SendRight, SendRight>>;
        /// See there.
        fn open(name: String) -> Answer<Both<u64, SendRight>>;
        /// See there.
        fn adopt(file: Fd) -> Answer<Both<u64, SendRight>>;
        /// See there.
        fn unlink(name: String) -> Answer<()>;
        /// See there.
        fn list() -> Vec<Listed>;
        /// See there.
        fn status() -> Status;
    }
}

interface! {
    /// As the host kernel declares it.
    pub trait Memory, client MemoryByHand, "farpage.memory" version 6 {
        /// See there.
        fn file() -> Answer<Fd>;
        /// See there.
        fn map(faults: Fd, address: u64) -> Answer<SendRight>;
    }
}
