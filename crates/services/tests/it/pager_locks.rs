//! Pages that their pager locks against writing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use farpage_abi::{Access, PageIndex, PageRange};
use farpage_services::pager::{About, Kernel, MemoryObject, PageRequest};

use crate::support::pagers::{PAGE, SIGBUS, World, ends_by, send};
use crate::support::until;

#[test]
fn who_writes_to_a_locked_page_waits_until_its_pager_unlocks_it() {
    let world = World::new();
    let mut pager = world.pager("x 40960 wait rw");
    let (mut one, mut other) = (world.client("x"), world.client("x"));
    assert_eq!(one.does("write 3 5"), "done");
    assert_eq!(pager.does("hold-unlocks"), "done");
    assert_eq!(pager.does("lock 0 10"), "done");
    send(&mut one, "write 3 6");
    until("it is asked", || pager.does("unlocks") == "1");
    assert_eq!(other.does("read 3"), "5", "it can be read");
    send(&mut other, "write 4 7");
    // Page 4 was not there when pages were locked.
    assert_eq!(other.line(), "done");
    assert_eq!(
        (pager.does("clean 0 10"), pager.does("unlocks")),
        ("done".into(), "1".into())
    );
    // Locked again: who waits asks again.
    assert_eq!(pager.does("lock 3 4"), "done");
    until("it is asked again", || pager.does("unlocks") == "2");
    assert_eq!(pager.does("unlock 3 4"), "done");
    assert_eq!(one.line(), "done");
    assert_eq!(other.does("read 3"), "6");
    drop((one, other));
    world.ends_clean("x", pager);
    world.ends();
}

#[test]
fn pages_are_supplied_locked_and_unlocked_on_demand() {
    let world = World::new();
    let bytes = 64 << 20;
    let mut pager = world.pager(&format!("x {bytes} wait rw"));
    let mut client = world.client("x");
    assert_eq!(client.does("fill 1"), "done");
    assert_eq!(
        pager.does(&format!("flush 0 {}", bytes / PAGE as u64)),
        "done"
    );
    assert_eq!(pager.does("supply-locked"), "done");
    assert_eq!(client.does("check 1"), "right");
    assert_eq!(pager.does("unlocks"), "0");
    assert_eq!(client.does("fill 2"), "done");
    assert_eq!(client.does("check 2"), "right");
    // Some were supplied more than once: the RAM is smaller.
    assert!(pager.does("unlocks").parse::<u64>().unwrap() >= bytes / PAGE as u64);
    drop(client);
    world.until_stored("x", 2, bytes);
    world.ends_clean("x", pager);
    world.ends();
}

#[test]
fn the_next_pager_is_asked_to_unlock_what_the_last_one_did_not() {
    let world = World::new();
    let mut pager = world.pager("x 40960 wait rw");
    let mut client = world.client("x");
    assert_eq!(client.does("write 3 5"), "done");
    assert_eq!(pager.does("hold-unlocks"), "done");
    assert_eq!(pager.does("lock 0 10"), "done");
    send(&mut client, "write 3 6");
    until("it is asked", || pager.does("unlocks") == "1");
    pager.dies();
    let pager = world.pager("x 40960 wait rw");
    assert_eq!(client.line(), "done");
    assert_eq!(client.does("read 3"), "6");
    drop(client);
    world.ends_clean("x", pager);
    world.ends();
}

#[test]
fn who_waits_too_long_for_a_locked_page_gets_an_error_that_says_so() {
    let world = World::new();
    let mut pager = world.pager("x 40960 3000 rw");
    let (mut victim, mut other) = (world.client("x"), world.client("x"));
    assert_eq!(other.does("write 3 5"), "done");
    assert_eq!(pager.does("hold-unlocks"), "done");
    assert_eq!(pager.does("lock 0 10"), "done");
    send(&mut victim, "write 3 6");
    assert_eq!(ends_by(victim), Some(SIGBUS));
    let errors = world.errors();
    assert!(
        errors.contains("'x' at byte 12288: it is locked against writing, its pager (process "),
        "{errors}"
    );
    assert!(
        errors.contains("does not answer, and 3 s have passed"),
        "{errors}"
    );
    assert_eq!(other.does("read 3"), "5");
    // Supplied again since then, and not locked.
    assert_eq!(other.does("write 3 7"), "done");
    drop(other);
    world.ends_clean("x", pager);
    world.ends();
}

/// One that keeps copies of its pages in several kernels the same: many to be read, or one to be
/// written.
struct Coherent {
    events: Mutex<Sender<Event>>,
    contents: Arc<Mutex<Vec<u8>>>,
}

enum Event {
    Wants(PageRequest),
    Unlock(Kernel, PageIndex),
}

/// Who has a page, by number.
#[derive(Default)]
struct Holders {
    kernels: BTreeMap<u64, Kernel>,
    writer: Option<u64>,
}

impl Holders {
    fn alone(&mut self, kernel: &Kernel, page: PageRange) {
        self.kernels.remove(&kernel.number());
        for (_, other) in std::mem::take(&mut self.kernels) {
            // Nobody writes in between.
            other.lock(page).unwrap();
            other.flush(page).unwrap();
        }
        self.kernels.insert(kernel.number(), kernel.clone());
        self.writer = Some(kernel.number());
    }

    fn with_others(&mut self, kernel: &Kernel, page: PageRange) {
        if let Some(writer) = self.writer.take() {
            let writer = &self.kernels[&writer];
            writer.lock(page).unwrap();
            writer.clean(page).unwrap();
        }
        self.kernels.insert(kernel.number(), kernel.clone());
    }
}

impl Coherent {
    fn new(pages: usize) -> Arc<Self> {
        let (events, come) = channel();
        let contents = Arc::new(Mutex::new(vec![0; pages * PAGE]));
        let stored = Arc::clone(&contents);
        std::thread::spawn(move || {
            let mut all: BTreeMap<u64, Holders> = BTreeMap::new();
            for event in come {
                match event {
                    Event::Wants(request) => {
                        let page = PageRange::one(request.pages().start);
                        let holders = all.entry(page.start.0).or_default();
                        let kernel = request.kernel();
                        let writes = request.access() == Access::Write;
                        match writes || holders.writer == Some(kernel.number()) {
                            true => holders.alone(&kernel, page),
                            false => holders.with_others(&kernel, page),
                        }
                        let at = page.start.0 as usize * PAGE;
                        let bytes = stored.lock().unwrap()[at..at + PAGE].to_vec();
                        match holders.writer {
                            Some(_) => request.supply(bytes),
                            None => request.supply_locked(bytes),
                        }
                    }
                    Event::Unlock(kernel, page) => {
                        let page = PageRange::one(page);
                        all.entry(page.start.0).or_default().alone(&kernel, page);
                        kernel.unlock(page).unwrap();
                    }
                }
            }
        });
        let events = Mutex::new(events);
        Arc::new(Self { events, contents })
    }

    fn tell(&self, event: Event) {
        self.events.lock().unwrap().send(event).unwrap();
    }
}

impl MemoryObject for Coherent {
    fn about(&self) -> About {
        About {
            name: "coherent".into(),
            bytes: self.contents.lock().unwrap().len() as u64,
            writable: true,
            cluster_pages: 1,
        }
    }

    fn data_request(&self, request: PageRequest) {
        self.tell(Event::Wants(request));
    }

    fn data_write(&self, _: &Kernel, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let at = offset as usize;
        self.contents.lock().unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn data_unlock(&self, kernel: &Kernel, page: PageIndex) {
        self.tell(Event::Unlock(kernel.clone(), page));
    }
}

#[test]
fn programs_of_two_kernels_count_in_the_same_pages() {
    const ROUNDS: u64 = 300;
    let worlds = [World::new(), World::new()];
    let object = Coherent::new(2);
    let offered = worlds
        .each_ref()
        .map(|world| world.host.offer(object.clone(), None).unwrap());
    let mut clients: Vec<_> = worlds
        .iter()
        .map(|world| world.client("coherent"))
        .collect();
    let pages: BTreeSet<u64> = [0, 1].into();
    for _ in 0..5 {
        for page in &pages {
            clients
                .iter_mut()
                .for_each(|one| send(one, &format!("count {page} {ROUNDS}")));
            for client in &mut clients {
                assert_eq!(client.line(), "done");
            }
        }
    }
    for page in &pages {
        for client in &mut clients {
            assert_eq!(
                client.does(&format!("read {page}")),
                (10 * ROUNDS).to_string()
            );
        }
    }
    drop((clients, offered));
    worlds.into_iter().for_each(World::ends);
}
