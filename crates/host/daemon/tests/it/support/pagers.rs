//! Pagers and their clients, each a process, and a host kernel between them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use farpage_client::pager::{About, Kernel, MemoryObject, PageRequest};
use farpage_client::{Host, Shared};
use farpage_object::{PageIndex, PageRange};

use super::{Program, until, until_gone};

pub const PAGE: usize = 4096;
pub const SIGBUS: i32 = 7;
pub const SIGSEGV: i32 = 11;

/// Where pagers keep their contents.
const FOLDER: &str = "FARPAGE_TEST_FOLDER";

/// An object whose contents are in a file, and that does what it is told.
pub struct Stored {
    pub about: About,
    pub file: File,
    pub told: Mutex<Told>,
    pub goes: Condvar,
    pub kernels: Mutex<Vec<Kernel>>,
}

#[derive(Default)]
pub struct Told {
    /// Requests are not answered.
    pub holds: bool,
    pub held: Vec<PageRequest>,
    /// Writes are not taken for now, or never.
    pub holds_writes: bool,
    pub refuses_writes: bool,
    /// Dies in the middle of so manieth request, or write, from now on.
    pub dies_in_request: Option<u32>,
    pub dies_in_write: Option<u32>,
    /// Supplies pages locked; unlocks none.
    pub supplies_locked: bool,
    pub holds_unlocks: bool,
    pub unlocks: u32,
    pub requests: u32,
    pub writes: u32,
    pub ended: u32,
}

fn counts_down(counter: &mut Option<u32>) {
    match counter {
        Some(0) => std::process::abort(),
        Some(left) => *left -= 1,
        None => {}
    }
}

impl Stored {
    pub fn new(name: &str, bytes: u64, writable: bool, file: File) -> Arc<Self> {
        Arc::new(Self {
            about: About {
                name: name.into(),
                bytes,
                writable,
                cluster_pages: 1,
            },
            file,
            told: Mutex::default(),
            goes: Condvar::new(),
            kernels: Mutex::default(),
        })
    }

    fn read(&self, request: PageRequest) {
        let pages = request.pages();
        let mut contents = vec![0; pages.bytes() as usize];
        let read = self
            .file
            .read_at(&mut contents, pages.start.0 * PAGE as u64);
        match read.unwrap() {
            0 => request.zeros(pages.pages()),
            _ if self.told.lock().unwrap().supplies_locked => request.supply_locked(contents),
            _ => request.supply(contents),
        }
    }
}

impl MemoryObject for Stored {
    fn about(&self) -> About {
        self.about.clone()
    }

    fn init(&self, kernel: &Kernel) -> Result<(), String> {
        self.kernels.lock().unwrap().push(kernel.clone());
        Ok(())
    }

    fn data_request(&self, request: PageRequest) {
        let mut told = self.told.lock().unwrap();
        told.requests += 1;
        counts_down(&mut told.dies_in_request);
        if told.holds {
            return told.held.push(request);
        }
        drop(told);
        if request.pages().start.0 == 13 && !self.about.writable {
            return request.fail("page 13 brings bad luck");
        }
        self.read(request);
    }

    fn data_write(&self, _: &Kernel, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let mut told = self.told.lock().unwrap();
        told.writes += 1;
        counts_down(&mut told.dies_in_write);
        while told.holds_writes {
            told = self.goes.wait(told).unwrap();
        }
        if told.refuses_writes {
            return Err("the disk is full".into());
        }
        self.file.write_all_at(bytes, offset).unwrap();
        Ok(())
    }

    fn data_unlock(&self, kernel: &Kernel, page: PageIndex) {
        let mut told = self.told.lock().unwrap();
        told.unlocks += 1;
        if !told.holds_unlocks {
            drop(told);
            kernel.unlock(PageRange::one(page)).unwrap();
        }
    }

    fn terminate(&self, _: &Kernel) {
        self.told.lock().unwrap().ended += 1;
    }
}

/// A pager: it offers an object and does what it is told.
pub fn run_pager() -> ! {
    let host = Host::connect(&farpage_client::default_socket()).unwrap();
    let mut offered = Vec::new();
    let mut object: Option<Arc<Stored>> = None;
    println!("> ready");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let mut answer = "done".to_owned();
        if words[0] == "offer" {
            let path = PathBuf::from(std::env::var_os(FOLDER).unwrap()).join(words[1]);
            let mut file = File::options();
            file.read(true).write(true).create(true).truncate(false);
            let stored = {
                let file = file.open(path).unwrap();
                Stored::new(words[1], number(2), words[4] == "rw", file)
            };
            let patience = (words[3] != "wait").then(|| Duration::from_millis(number(3)));
            match host.offer(stored.clone(), patience) {
                Ok(one) => offered.push(one),
                Err(error) => answer = error.to_string(),
            }
            object = Some(stored);
        } else {
            let object = object.as_ref().unwrap();
            let mut told = object.told.lock().unwrap();
            match words[0] {
                "hold" => told.holds = true,
                "go" => {
                    told.holds = false;
                    let held = std::mem::take(&mut told.held);
                    drop(told);
                    held.into_iter().for_each(|request| object.read(request));
                }
                "held" => answer = told.held.len().to_string(),
                "drop" => told.held.clear(),
                "hold-writes" => told.holds_writes = true,
                "go-writes" => {
                    told.holds_writes = false;
                    object.goes.notify_all();
                }
                "refuse-writes" => told.refuses_writes = true,
                "take-writes" => told.refuses_writes = false,
                "die-in-request" => told.dies_in_request = Some(number(1) as u32),
                "die-in-write" => told.dies_in_write = Some(number(1) as u32),
                "writes" => answer = told.writes.to_string(),
                "ended" => answer = told.ended.to_string(),
                "supply-locked" => told.supplies_locked = true,
                "hold-unlocks" => told.holds_unlocks = true,
                "unlocks" => answer = told.unlocks.to_string(),
                "clean" | "flush" | "lock" | "unlock" => {
                    drop(told);
                    let pages = PageRange::new(number(1), number(2));
                    let kernel = object.kernels.lock().unwrap()[0].clone();
                    let locked = match words[0] {
                        "clean" => kernel.clean(pages),
                        "lock" => kernel.lock(pages),
                        "unlock" => kernel.unlock(pages),
                        _ => kernel.flush(pages),
                    };
                    answer = locked.err().unwrap_or(answer);
                }
                other => panic!("no such thing: {other}"),
            }
        }
        println!("> {answer}");
    }
    std::process::exit(0);
}

/// A client: it maps objects by name.
pub fn run_client() -> ! {
    let host = Host::connect(&farpage_client::default_socket()).unwrap();
    let mut held: Vec<Shared> = Vec::new();
    println!("> ready");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        let word = |page: u64| &held[0].words()[page as usize * PAGE / 8];
        let answer = match words[0] {
            "open" => match host.open(words[1]) {
                Ok(one) => {
                    held.push(one);
                    "done".into()
                }
                Err(error) => error.to_string(),
            },
            "read" => word(number(1)).load(Ordering::Relaxed).to_string(),
            "write" => {
                word(number(1)).store(number(2), Ordering::Relaxed);
                "done".into()
            }
            // A word of a page, so many times, by one.
            "count" => {
                for _ in 0..number(2) {
                    word(number(1)).fetch_add(1, Ordering::Relaxed);
                }
                "done".into()
            }
            // Each page: its number and what it is given.
            "fill" => {
                let pages = held[0].words().chunks(PAGE / 8).enumerate();
                for (page, words) in pages {
                    for word in words {
                        word.store(page as u64 + number(1), Ordering::Relaxed);
                    }
                }
                "done".into()
            }
            "check" => {
                let mut pages = held[0].words().chunks(PAGE / 8).enumerate();
                let is_wrong = |(page, words): &(usize, &[std::sync::atomic::AtomicU64])| {
                    let right = *page as u64 + number(1);
                    words
                        .iter()
                        .any(|word| word.load(Ordering::Relaxed) != right)
                };
                let wrong = pages.find(is_wrong);
                wrong.map_or("right".into(), |(page, _)| format!("page {page}"))
            }
            "close" => {
                held.clear();
                "done".into()
            }
            other => panic!("no such thing: {other}"),
        };
        println!("> {answer}");
    }
    std::process::exit(0);
}

/// A host kernel with what it says, and where pagers keep their contents.
pub struct World {
    pub folder: tempfile::TempDir,
    pub kernel: Program,
    pub host: Host,
}

impl World {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("host");
        let kernel = Program::start_telling("pagers::host", &socket, &folder.path().join("errors"));
        let host = Host::connect(&socket).unwrap();
        Self {
            folder,
            kernel,
            host,
        }
    }

    /// One more connection.
    pub fn connect(&self) -> Host {
        Host::connect(&self.folder.path().join("host")).unwrap()
    }

    pub fn start(&self, kind: &str) -> Program {
        Program::start_in(
            &format!("pagers::{kind}"),
            &self.folder.path().join("host"),
            self.folder.path(),
        )
    }

    /// A pager that has offered `what`: name, bytes, patience in ms or `wait`, `rw` or `ro`.
    pub fn pager(&self, what: &str) -> Program {
        let mut pager = self.start("pager");
        // One that was killed is known to be gone a moment later.
        until("it may answer for the object", || {
            let answer = pager.does(&format!("offer {what}"));
            assert!(answer == "done" || answer.contains("already"), "{answer}");
            answer == "done"
        });
        pager
    }

    /// A client that has opened an object.
    pub fn client(&self, name: &str) -> Program {
        let mut client = self.start("client");
        assert_eq!(client.does(&format!("open {name}")), "done");
        client
    }

    pub fn errors(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("errors")).unwrap()
    }

    pub fn pager_of(&self, name: &str) -> farpage_client::PagerListed {
        let mut all = self.host.pagers().unwrap();
        let at = all.iter().position(|one| one.name == name).unwrap();
        all.swap_remove(at)
    }

    /// The contents that pagers have.
    pub fn stored(&self, name: &str) -> Vec<u64> {
        let bytes = std::fs::read(self.folder.path().join(name)).unwrap();
        let words = bytes.as_chunks::<8>().0;
        words.iter().map(|word| u64::from_le_bytes(*word)).collect()
    }

    /// Waits until the pager has all of an object: each page's number and `add`.
    pub fn until_stored(&self, name: &str, add: u64, bytes: u64) {
        until("the pager has all", || {
            let stored = self.stored(name);
            let mut words = stored.iter().enumerate();
            stored.len() as u64 * 8 == bytes
                && words.all(|(at, word)| *word == at as u64 / 512 + add)
        });
    }

    /// Ends a pager that has taken all, and is known to have.
    pub fn ends_clean(&self, name: &str, mut pager: Program) {
        assert_eq!(pager.does("clean 0 1000000"), "done");
        until("nothing is kept", || self.pager_of(name).kept_bytes == 0);
        pager.dies();
    }

    pub fn kernel_lives(&mut self) {
        assert!(self.kernel.child.try_wait().unwrap().is_none(), "it died");
        assert!(!self.errors().contains("panicked"), "{}", self.errors());
    }

    /// Everything goes when nobody has it, and the host kernel lives.
    pub fn ends(mut self) {
        until_gone(&self.host);
        until("nothing is in memory", || {
            let status = self.host.status().unwrap();
            status.objects == 0 && status.resident_bytes == 0
        });
        self.kernel_lives();
        self.kernel.dies();
    }
}

pub fn send(program: &mut Program, what: &str) {
    use std::io::Write;
    writeln!(program.hears, "{what}").unwrap();
}

/// The signal that ends a program that just began something.
pub fn ends_by(mut program: Program) -> Option<i32> {
    let mut status = None;
    until("it has ended", || {
        status = program.child.try_wait().unwrap();
        status.is_some()
    });
    status.and_then(|status| status.signal())
}
