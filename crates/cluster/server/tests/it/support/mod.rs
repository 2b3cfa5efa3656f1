//! Hosts in one process: each with its kernel, its server and mappings, and messages between them
//! that come in any order.

pub mod dying;
pub mod history;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use farpage_host::{Object, Objects, SpaceId};
use farpage_object::{
    DataRequest, ObjectId, PAGE_BYTES, PageOut, PageRange, Pager, PagerError, Supplied,
};
use farpage_rules::coherence::Host;
use farpage_server::{About, Consistency, Hosts, Scheduler, Server, Wire};
use farpage_sys::file::Fd;
use farpage_sys::view::View;
use farpage_sys::{copy, message, socket};
use farpage_testkit::until;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

/// Keeps what it is given. As real paging space does, it gives some of it away when it is asked.
#[derive(Default)]
pub struct Store {
    pages: Mutex<HashMap<(u32, u64), Contents>>,
    asked: AtomicU64,
}

type Contents = Box<[u8; PAGE_BYTES]>;

/// Paging space cannot be read at the moment.
pub static UNREADABLE: AtomicBool = AtomicBool::new(false);

impl Pager for Store {
    fn data_request(&self, mut request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        if UNREADABLE.load(Ordering::SeqCst) {
            return Err(PagerError::Read(farpage_object::errno::EIO));
        }
        let (object, pages, mut all) = (
            request.object(),
            request.pages(),
            self.pages.lock().unwrap(),
        );
        let gives = !self.asked.fetch_add(1, Ordering::Relaxed).is_multiple_of(3);
        let parts = request.buffer().chunks_exact_mut(PAGE_BYTES);
        for (page, into) in pages.iter().zip(parts) {
            let kept = all.get(&(object.0, page.0));
            into.copy_from_slice(&**kept.ok_or(PagerError::Unavailable)?);
            if gives {
                all.remove(&(object.0, page.0));
            }
        }
        Ok(match gives {
            true => Supplied::precious(pages.pages()),
            false => Supplied::clean(pages.pages()),
        })
    }

    fn data_write(&self, object: ObjectId, pages: &[PageOut<'_>]) -> Result<(), PagerError> {
        let mut all = self.pages.lock().unwrap();
        all.extend(
            pages
                .iter()
                .map(|out| ((object.0, out.page.0), Box::new(*out.bytes))),
        );
        Ok(())
    }

    fn discard(&self, object: ObjectId, pages: PageRange) {
        let mut all = self.pages.lock().unwrap();
        for page in pages.iter() {
            all.remove(&(object.0, page.0));
        }
    }
}

/// How messages come.
#[derive(Clone, Copy)]
pub enum Order {
    AsSent,
    /// As a seed says.
    Any(u64),
}

struct Post {
    own: Host,
    to: Vec<Sender<(Host, Vec<u8>)>>,
    /// Hosts that have died: nothing of them goes anywhere.
    dead: Dead,
}

type Dead = Arc<Vec<AtomicBool>>;
/// Messages that a host was given, of each.
type Heard = Arc<Vec<AtomicU64>>;

impl Wire for Post {
    fn send(&self, to: Host, parts: &[&[u8]]) {
        if self.dead[usize::from(self.own.0)].load(Ordering::SeqCst) {
            return;
        }
        // Who does not listen any more has ended.
        let _ = self.to[usize::from(to.0)].send((self.own, parts.concat()));
    }
}

/// A message that is refused ends the test: who waits for what it brings would wait for ever.
fn take(server: &Server, heard: &Heard, (from, bytes): (Host, Vec<u8>)) {
    if let Err(wrong) = server.received(from, &bytes) {
        eprintln!("a message that can be: {wrong}");
        std::process::abort();
    }
    heard[usize::from(from.0)].fetch_add(1, Ordering::SeqCst);
}

/// A thread of a host that panics ends the test, for the same reason.
struct EndsAll;

impl Drop for EndsAll {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::abort();
        }
    }
}

/// Brings messages to a server.
fn deliver(
    come: &Receiver<(Host, Vec<u8>)>,
    server: &Weak<Server>,
    heard: &Heard,
    order: Order,
    dead: &Dead,
) {
    let _ends = EndsAll;
    let is_dead = |host: Host| dead[usize::from(host.0)].load(Ordering::SeqCst);
    let mut late: Vec<(Host, Vec<u8>)> = Vec::new();
    let Order::Any(mut seed) = order else {
        while let Ok((from, bytes)) = come.recv() {
            let Some(server) = server.upgrade() else {
                return;
            };
            if !is_dead(from) {
                take(&server, heard, (from, bytes));
            }
        }
        return;
    };
    loop {
        let next = match late.is_empty() {
            true => come.recv().map_err(|_| false),
            false => come
                .recv_timeout(Duration::from_micros(50))
                .map_err(|_| true),
        };
        match next {
            Ok(message) => late.push(message),
            Err(false) => return,
            Err(true) => {}
        }
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let which = (seed >> 33) as usize % (late.len() + 1);
        if which < late.len() {
            let (from, bytes) = late.swap_remove(which);
            let Some(server) = server.upgrade() else {
                return;
            };
            if !is_dead(from) {
                take(&server, heard, (from, bytes));
            }
        }
    }
}

/// A host.
pub struct One {
    pub server: Arc<Server>,
    pub objects: &'static Objects,
    dead: Dead,
    heard: Heard,
}

impl One {
    /// Waits until it was given a message of another.
    pub fn until_it_hears_of(&self, other: u8) {
        let heard = &self.heard[usize::from(other)];
        until("a message comes", || heard.load(Ordering::SeqCst) > 0);
    }
}

/// A view of these hosts.
pub fn view(generation: u64, hosts: impl IntoIterator<Item = u8>) -> Hosts {
    let stays = hosts.into_iter().map(|host| (Host(host), u64::from(host)));
    Hosts {
        generation,
        stays: BTreeMap::from_iter(stays),
    }
}

/// So many hosts, each with so much memory.
pub fn hosts(count: u8, ram_bytes: u64, order: Order) -> Vec<One> {
    hosts_that_see(count, ram_bytes, order, |_| view(1, 0..count))
}

/// The same, which begin with these views.
pub fn hosts_that_see(
    count: u8,
    ram_bytes: u64,
    order: Order,
    first: impl Fn(u8) -> Hosts,
) -> Vec<One> {
    let (to, come): (Vec<_>, Vec<_>) = (0..count).map(|_| channel()).unzip();
    let dead: Dead = Arc::new((0..count).map(|_| AtomicBool::new(false)).collect());
    let mut all = Vec::new();
    for (number, come) in come.into_iter().enumerate() {
        let own = Host(number as u8);
        let wire = Arc::new(Post {
            own,
            to: to.clone(),
            dead: Arc::clone(&dead),
        });
        let objects = Objects::start(ram_bytes).unwrap();
        let store = Arc::new(Store::default());
        let server = Server::start(own, first(own.0), objects, store, wire).unwrap();
        let server = Arc::new(server);
        let order = match order {
            Order::AsSent => Order::AsSent,
            Order::Any(seed) => Order::Any(seed + number as u64 * 7919),
        };
        let received = Arc::downgrade(&server);
        let ends = Arc::clone(&dead);
        let heard: Heard = Arc::new((0..count).map(|_| AtomicU64::new(0)).collect());
        let hears = Arc::clone(&heard);
        thread::spawn(move || deliver(&come, &received, &hears, order, &ends));
        server.begins();
        let dead = Arc::clone(&dead);
        all.push(One {
            server,
            objects,
            dead,
            heard,
        });
    }
    all
}

/// The same with two replicas.
pub fn mirrored(number: u64, pages: u64, unit_pages: u64) -> About {
    About {
        replicas: 2,
        ..about(number, pages, unit_pages)
    }
}

/// The same with the simple scheduler.
pub fn simple(number: u64, pages: u64, unit_pages: u64) -> About {
    About {
        scheduler: Scheduler::Simple,
        ..about(number, pages, unit_pages)
    }
}

/// The same with release consistency.
pub fn released(number: u64, pages: u64, unit_pages: u64) -> About {
    About {
        consistency: Consistency::Release,
        ..about(number, pages, unit_pages)
    }
}

/// An object of pages in units of `unit_pages`, whose home is the first host.
pub fn about(number: u64, pages: u64, unit_pages: u64) -> About {
    About {
        number,
        name: format!("object {number}"),
        bytes: pages * PAGE_BYTES as u64,
        unit_pages,
        scheduler: Scheduler::Distributed,
        replicas: 1,
        home: Host(0),
        stay: 0,
        hold: Duration::from_micros(100),
        stale: None,
        is_durable: false,
        consistency: Consistency::Strict,
        turned: None,
    }
}

/// The others see that a host has died, one after the other.
pub fn dies(all: &[One], host: u8, generation: u64) {
    die(all, &[host], generation);
}

/// The same of several at once.
pub fn die(all: &[One], hosts: &[u8], generation: u64) {
    for host in hosts {
        all[0].dead[usize::from(*host)].store(true, Ordering::SeqCst);
    }
    for host in living(all) {
        let wrong = all[usize::from(host)]
            .server
            .sees(view(generation, living(all)));
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}

/// These die one after the other, and the rest see each at about the same time: the first host so much
/// later.
pub fn die_in_turn(all: &[One], hosts: &[u8], generation: u64, lag: Duration) {
    for host in hosts {
        all[0].dead[usize::from(*host)].store(true, Ordering::SeqCst);
    }
    let left = |after: usize| {
        let dying = hosts[after + 1..].iter().copied();
        living(all).into_iter().chain(dying)
    };
    thread::scope(|scope| {
        for survivor in living(all) {
            scope.spawn(move || {
                for after in 0..hosts.len() {
                    if survivor == 0 {
                        let until = Instant::now() + lag;
                        while Instant::now() < until {}
                    }
                    let seen = view(generation + after as u64, left(after));
                    let wrong = all[usize::from(survivor)].server.sees(seen);
                    assert!(wrong.is_empty(), "{wrong:?}");
                }
            });
        }
    });
}

fn living(all: &[One]) -> Vec<u8> {
    let lives = |host: &u8| !all[0].dead[usize::from(*host)].load(Ordering::SeqCst);
    (0..all.len() as u8).filter(lives).collect()
}

/// A word of memory, which may be such as cannot be had: that is `None`, and no signal.
pub fn read(view: &View, offset: usize) -> Option<u64> {
    let mut bytes = [0; 8];
    copy::from(view.address() + offset, &mut bytes).ok()?;
    Some(u64::from_le_bytes(bytes))
}

/// The same. False when it cannot be had.
#[allow(unsafe_code)]
pub fn write(view: &View, offset: usize, word: u64) -> bool {
    let at = view.address() + offset;
    // SAFETY: it is a word of the mapping, which nobody has a reference to.
    unsafe { copy::to(at, &word.to_le_bytes()) }.is_ok()
}

impl One {
    /// The object, mapped by this process as a program of this host.
    pub fn map(&self, about: &About) -> (Arc<Object>, View) {
        let (object, view, _) = self.map_in(about);
        (object, view)
    }

    /// The same, and the space that it is mapped in.
    pub fn map_in(&self, about: &About) -> (Arc<Object>, View, SpaceId) {
        let object = self.server.open(about).unwrap();
        let pages = about.bytes / PAGE_BYTES as u64;
        let view = View::map(object.descriptor(), about.bytes as usize, None).unwrap();
        let (one, other) = pair();
        socket::send(Fd(one.as_raw_fd()), &[0; 8], Some(view.userfaultfd())).unwrap();
        let (_, faults) = message::wait(other.as_fd(), &mut [0; 8]).unwrap();
        let space = self.objects.attach(faults.unwrap()).unwrap();
        let all = PageRange::new(0, pages);
        self.objects
            .map(space, &object, view.address(), all)
            .unwrap();
        (object, view, space)
    }
}

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}
