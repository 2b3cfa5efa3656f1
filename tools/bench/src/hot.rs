//! A hot set beside scans: how much of it is asked for again, beside pages that leave in the order
//! in which they came.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use farpage_host::Objects;
use farpage_object::{
    DataRequest, ObjectId, PAGE_BYTES, PageOut, PageRange, Pager, PagerError, Supplied,
};
use farpage_sys::file::Fd;
use farpage_sys::view::View;
use farpage_sys::{message, socket};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

const PAGES: u64 = 8192;
const RAM: u64 = 2048;
const HOT: u64 = 512;
/// All of the hot set is used after so many pages of a scan.
const EVERY: u64 = 64;
const LAPS: u64 = 3;
/// Pages that leave together.
const CLUSTER: u64 = 16;

/// Keeps pages, and counts those of the hot set that are asked for.
#[derive(Default)]
struct Store {
    pages: Mutex<HashMap<u64, Box<[u8; PAGE_BYTES]>>>,
    asked: AtomicU64,
}

impl Pager for Store {
    fn data_request(&self, mut request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        let (pages, all) = (request.pages(), self.pages.lock().expect("no panic"));
        let buffer = request.buffer().chunks_exact_mut(PAGE_BYTES);
        for (page, into) in pages.iter().zip(buffer) {
            let is_hot = u64::from(page.0 < HOT);
            self.asked.fetch_add(is_hot, Ordering::Relaxed);
            into.copy_from_slice(&**all.get(&page.0).ok_or(PagerError::Unavailable)?);
        }
        Ok(Supplied::clean(pages.pages()))
    }

    fn data_write(&self, _: ObjectId, pages: &[PageOut<'_>]) -> Result<(), PagerError> {
        let mut all = self.pages.lock().expect("no panic");
        all.extend(
            pages
                .iter()
                .map(|page| (page.page.0, Box::new(*page.bytes))),
        );
        Ok(())
    }
}

/// Uses pages: scans of all but the hot set, and the hot set all the time.
fn uses(mut touch: impl FnMut(u64)) {
    for _ in 0..LAPS {
        for page in HOT..PAGES {
            touch(page);
            if page % EVERY == 0 {
                (0..HOT).for_each(&mut touch);
            }
        }
    }
}

/// Prints lines: pages of the hot set that are asked for, once all of it was written to.
pub fn run(runs: u64) {
    for _ in 0..runs {
        println!("hot in_order beside_scans {PAGES} {}", in_order());
        println!("hot farpage beside_scans {PAGES} {}", farpage());
    }
}

/// As many, of memory that clusters leave in the order in which they came.
fn in_order() -> u64 {
    let (mut queue, mut there) = (VecDeque::new(), HashSet::new());
    let mut asked = 0;
    let mut touch = |page: u64| {
        let cluster = page / CLUSTER;
        if !there.insert(cluster) {
            return;
        }
        asked += if page < HOT { CLUSTER } else { 0 };
        queue.push_back(cluster);
        if queue.len() as u64 > RAM / CLUSTER {
            let oldest = queue.pop_front().expect("it is not empty");
            there.remove(&oldest);
        }
    };
    uses(&mut touch);
    asked
}

fn farpage() -> u64 {
    let store = Arc::new(Store::default());
    let objects = Objects::start(RAM * PAGE_BYTES as u64).expect("a host");
    let pager = Arc::clone(&store) as Arc<dyn Pager>;
    let object = objects
        .create("hot", PAGES, pager, true)
        .expect("an object");
    let bytes = PAGES as usize * PAGE_BYTES;
    let view = View::map(object.descriptor(), bytes, None).expect("a mapping");
    let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let (one, other) = socketpair(AddressFamily::UNIX, kind, flags, None).expect("a socket");
    let sent = socket::send(Fd(one.as_raw_fd()), &[0; 8], Some(view.userfaultfd()));
    sent.expect("sent");
    let (_, faults) = message::wait(other.as_fd(), &mut [0; 8]).expect("received");
    let space = objects
        .attach(faults.expect("a userfaultfd"))
        .expect("attached");
    let all = PageRange::new(0, PAGES);
    objects
        .map(space, &object, view.address(), all)
        .expect("mapped");
    let word = |page: u64| view.word(page as usize * PAGE_BYTES);
    (0..PAGES).for_each(|page| word(page).store(page + 1, Ordering::Relaxed));
    store.asked.store(0, Ordering::Relaxed);
    uses(|page| assert_eq!(word(page).load(Ordering::Relaxed), page + 1, "a wrong page"));
    objects.detach(space);
    store.asked.load(Ordering::Relaxed)
}
