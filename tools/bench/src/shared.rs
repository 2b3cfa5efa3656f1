//! Objects that two processes map, beside a bare memory file: pages that are there and not mapped
//! yet, and pages that nobody has touched. And pages that the pager has, beside the embedded
//! kernel.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use farpage_host::{Object, Objects, SpaceId};
use farpage_object::{
    DataRequest, ObjectId, PAGE_BYTES, PageOut, PageRange, Pager, PagerError, Supplied,
};
use farpage_sys::file::Fd;
use farpage_sys::memory_file::{self, Words};
use farpage_sys::view::View;
use farpage_sys::{message, socket};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::Signal;

use crate::{fault, hot, together};

/// Whose memory file a program maps: the host's, or nobody's.
const HOSTS: u64 = 1;
pub const BARE: u64 = 0;

/// Touches pages that lie apart, one after another, and tells the median.
const APART: u64 = 4;

/// Has nothing, and is never asked: all stays in memory.
pub struct Nothing;

impl Pager for Nothing {
    fn data_request(&self, _: DataRequest<'_>) -> Result<Supplied, PagerError> {
        Err(PagerError::Unavailable)
    }

    fn data_write(&self, _: ObjectId, _: &[PageOut<'_>]) -> Result<(), PagerError> {
        Err(PagerError::OutOfSpace)
    }
}

/// A process that has the file mapped and touches it when it is told.
pub struct Program {
    child: Child,
    socket: OwnedFd,
    attached: Option<(&'static Objects, SpaceId)>,
}

impl Program {
    pub fn start(file: Fd, pages: u64, kind: u64) -> (Self, u64, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (socket, its) = pair.expect("a socket");
        let own = std::env::current_exe().expect("a path");
        let mut command = Command::new(own);
        command.args(["shared-program", &pages.to_string()]);
        let child = command.stdin(Stdio::from(its)).spawn().expect("a process");
        let program = Self {
            child,
            socket,
            attached: None,
        };
        program.tell(kind, Some(file));
        let (address, fd) = receive(&program.socket);
        (program, address, fd.expect("a userfaultfd"))
    }

    pub fn of(objects: &'static Objects, object: &Arc<Object>) -> Self {
        let pages = object.pages();
        let (mut program, address, faults) = Self::start(object.descriptor(), pages, HOSTS);
        let space = objects.attach(faults).expect("a userfaultfd");
        let all = PageRange::new(0, pages);
        let mapped = objects.map(space, object, address as usize, all);
        mapped.expect("a mapping");
        program.attached = Some((objects, space));
        program
    }

    fn tell(&self, number: u64, with: Option<Fd>) {
        let sent = socket::send(Fd(self.socket.as_raw_fd()), &number.to_le_bytes(), with);
        sent.expect("a socket");
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Nanoseconds a page, all touched in an order.
    pub fn touches(&self, order: &Order) -> f64 {
        self.tell(order.number, None);
        receive(&self.socket).0 as f64 / 1000.0
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some((objects, space)) = self.attached {
            objects.detach(space);
        }
    }
}

pub struct Order {
    name: &'static str,
    number: u64,
}

pub const ORDERS: [Order; 4] = [
    Order {
        name: "read_in_order",
        number: 0,
    },
    Order {
        name: "read_at_random",
        number: 1,
    },
    Order {
        name: "write_in_order",
        number: 2,
    },
    Order {
        name: "write_at_random",
        number: 3,
    },
];

/// Prints lines: what name order pages ns.
pub fn run(runs: u64, pages: u64) {
    hot::run(runs);
    together::run();
    let apart = pages / fault::CLUSTER as u64;
    let kernel = fault::kernel(apart as usize);
    let objects = Objects::start(2 * pages * PAGE_BYTES as u64).expect("a host");
    for _ in 0..runs {
        let ns = fault::median(kernel, apart as usize);
        println!("absent embedded read_apart {apart} {ns}");
        let object = objects.create("absent", pages, Arc::new(fault::Source), false);
        let program = Program::of(objects, &object.expect("an object"));
        program.tell(APART, None);
        let ns = receive(&program.socket).0;
        println!("absent farpage read_apart {apart} {ns}");
        for order in &ORDERS {
            let bytes = pages * PAGE_BYTES as u64;
            let bare = memory_file::create(c"bare", bytes as usize).expect("a file");
            memory_file::seal(bare.as_fd(), memory_file::FIXED).expect("sealed");
            let object = objects.create("bench", pages, Arc::new(Nothing), true);
            let object = object.expect("an object");
            let plain = || Program::start(Fd(bare.as_raw_fd()), pages, BARE).0;
            let ours = || Program::of(objects, &object);
            for (what, write) in [("new", false), ("there", true)] {
                for (name, start) in [("bare", &plain as &dyn Fn() -> Program), ("farpage", &ours)]
                {
                    if write {
                        // All of it is there, and was written to.
                        start().touches(&ORDERS[2]);
                    }
                    let ns = start().touches(order);
                    println!("{what} {name} {} {pages} {ns:.1}", order.name);
                }
            }
        }
    }
}

/// What a [`Program`] does.
pub fn program(pages: u64) {
    // It may wait for a page then, and do nothing by itself.
    let ends = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    ends.expect("a signal");
    let socket = std::io::stdin();
    let (kind, fd) = receive(&socket);
    let fd = fd.expect("a file");
    let bytes = pages as usize * PAGE_BYTES;
    let own = Fd(socket.as_raw_fd());
    if kind == HOSTS {
        let view = View::map(Fd(fd.as_raw_fd()), bytes, None).expect("a mapping");
        let address = (view.address() as u64).to_le_bytes();
        socket::send(own, &address, Some(view.userfaultfd())).expect("sent");
        answer(&socket, pages, |at| view.word(at));
    }
    let plain = Words::map_as_touched(fd.as_fd(), bytes).expect("a mapping");
    socket::send(own, &[0; 8], Some(own)).expect("sent");
    answer(&socket, pages, |at| &plain.u64s()[at / 8]);
}

fn answer<'a>(socket: &impl AsFd, pages: u64, word: impl Fn(usize) -> &'a AtomicU64) -> ! {
    loop {
        let (order, _) = receive(socket);
        let fd = Fd(socket.as_fd().as_raw_fd());
        if order == APART {
            let ns = median_apart(pages, &word).to_le_bytes();
            socket::send(fd, &ns, None).expect("sent");
            continue;
        }
        let began = Instant::now();
        let mut at = 0;
        for page in 0..pages {
            // Odd, and the number of pages is a power of two: each once.
            at = if order % 2 == 0 {
                page
            } else {
                (at + 40_503) % pages
            };
            let word = word(at as usize * PAGE_BYTES);
            match order < 2 {
                true => drop(std::hint::black_box(word.load(Ordering::Relaxed))),
                false => word.store(1, Ordering::Relaxed),
            }
        }
        let ns = began.elapsed().as_nanos() as u64 * 1000 / pages;
        socket::send(fd, &ns.to_le_bytes(), None).expect("sent");
    }
}

/// As [`fault::median`], of pages of an object of [`fault::Source`].
fn median_apart<'a>(pages: u64, word: &impl Fn(usize) -> &'a AtomicU64) -> u64 {
    let order = fault::shuffled(pages as usize / fault::CLUSTER);
    let touch = |page: &usize| {
        let began = Instant::now();
        let number = word(page * PAGE_BYTES).load(Ordering::Relaxed);
        let took = began.elapsed().as_nanos() as u64;
        assert_eq!(number, *page as u64, "a wrong page");
        took
    };
    let mut took: Vec<u64> = order.iter().map(touch).collect();
    took.sort_unstable();
    took[took.len() / 2]
}

/// A number and perhaps a descriptor; the end of this process when the other is gone.
fn receive(socket: &impl AsFd) -> (u64, Option<OwnedFd>) {
    let mut bytes = [0; 8];
    match message::wait(socket.as_fd(), &mut bytes) {
        Ok((8, fd)) => (u64::from_le_bytes(bytes), fd),
        _ => std::process::exit(0),
    }
}
