//! Pages that their pager locks against writing.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier, Mutex};

use farpage_client::Host;
use farpage_client::pager::{About, Kernel, MemoryObject, PageRequest};
use farpage_object::{Access, PageIndex, PageRange};

use crate::support::pagers::{PAGE, SIGBUS, Stored, World, ends_by, send};
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
    let mut pager = world.pager("x 40960 10000 rw");
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
        errors.contains("does not answer, and 10 s have passed"),
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
    /// It takes what is written only when one of these kernels does not wait for it any more.
    late: Vec<Host>,
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
    fn new(pages: usize, late: Vec<Host>) -> Arc<Self> {
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
        Arc::new(Self {
            events,
            contents,
            late,
        })
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
        if !self.late.is_empty() {
            let is_late = |host: &Host| host.pagers().unwrap().iter().any(|one| one.is_behind);
            until("the write is late", || self.late.iter().any(is_late));
        }
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
    count([World::new(), World::new()], Vec::new(), [5, 300]);
}

#[test]
fn so_they_do_when_their_pager_takes_long_for_what_they_write() {
    let worlds = [World::new(), World::new()];
    let late = worlds.each_ref().map(World::connect);
    count(worlds, late.into(), [2, 20]);
}

/// Each program counts in each page in turn, `times` times so many.
fn count(worlds: [World; 2], late: Vec<Host>, [times, rounds]: [u64; 2]) {
    let object = Coherent::new(2, late);
    let offered = worlds
        .each_ref()
        .map(|world| world.host.offer(object.clone(), None).unwrap());
    let mut clients: Vec<_> = worlds
        .iter()
        .map(|world| world.client("coherent"))
        .collect();
    let pages: BTreeSet<u64> = [0, 1].into();
    for _ in 0..times {
        for page in &pages {
            clients
                .iter_mut()
                .for_each(|one| send(one, &format!("count {page} {rounds}")));
            for client in &mut clients {
                assert_eq!(client.line(), "done");
            }
        }
    }
    for page in &pages {
        for client in &mut clients {
            assert_eq!(
                client.does(&format!("read {page}")),
                (2 * times * rounds).to_string()
            );
        }
    }
    drop((clients, offered, object));
    worlds.into_iter().for_each(World::ends);
}

/// Threads that answer for objects.
const THREADS: u64 = 4;
/// No page is asked for together with the next of those.
const APART: u64 = 64;

/// Who asks for one of its later pages has an earlier one flushed, by the thread that it is asked in.
struct Alone {
    contents: Mutex<Vec<u8>>,
    /// All threads are asked before one of them flushes.
    together: Barrier,
}

impl MemoryObject for Alone {
    fn about(&self) -> About {
        About {
            name: "alone".into(),
            bytes: self.contents.lock().unwrap().len() as u64,
            writable: true,
            cluster_pages: 1,
        }
    }

    fn data_request(&self, request: PageRequest) {
        let page = request.pages().start.0;
        if page >= THREADS * APART {
            self.together.wait();
            let earlier = PageRange::one(PageIndex(page - THREADS * APART));
            request.kernel().flush(earlier).unwrap();
        }
        let at = page as usize * PAGE;
        let bytes = self.contents.lock().unwrap()[at..at + PAGE].to_vec();
        request.supply(bytes);
    }

    fn data_write(&self, _: &Kernel, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let at = offset as usize;
        self.contents.lock().unwrap()[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

#[test]
fn a_pager_may_flush_in_all_threads_that_answer() {
    let world = World::new();
    let object = Arc::new(Alone {
        contents: Mutex::new(vec![0; 2 * (THREADS * APART) as usize * PAGE]),
        together: Barrier::new(THREADS as usize),
    });
    let offered = world.host.offer(object.clone(), None).unwrap();
    let mut clients: Vec<_> = (0..THREADS).map(|_| world.client("alone")).collect();
    for (at, client) in (0..).zip(&mut clients) {
        assert_eq!(client.does(&format!("write {} 5", at * APART)), "done");
    }
    for (at, client) in (THREADS..).zip(&mut clients) {
        send(client, &format!("read {}", at * APART));
    }
    for client in &mut clients {
        assert_eq!(client.line(), "0");
    }
    let contents = object.contents.lock().unwrap().clone();
    let firsts = contents.chunks(PAGE * APART as usize).map(|pages| pages[0]);
    assert_eq!(firsts.collect::<Vec<u8>>(), [5, 5, 5, 5, 0, 0, 0, 0]);
    drop((clients, offered, object));
    world.ends();
}

#[test]
fn a_late_answer_lets_cleanings_go_on() {
    let world = World::new();
    let mut pager = world.pager("x 40960 200 rw");
    let (victim, mut client) = (world.client("x"), world.client("x"));
    assert_eq!(client.does("write 3 5"), "done");
    assert_eq!(pager.does("hold"), "done");
    let mut victim = victim;
    send(&mut victim, "read 5");
    assert_eq!(ends_by(victim), Some(SIGBUS));
    // It has not answered, and does so when it has been asked to clean.
    send(&mut pager, "clean 0 10");
    assert_eq!(pager.line(), "done");
    assert_eq!(world.stored("x")[3 * PAGE / 8], 5);
    assert_eq!(pager.does("go"), "done");
    assert_eq!(client.does("write 3 6"), "done");
    assert_eq!(pager.does("flush 0 10"), "done");
    assert_eq!(world.stored("x")[3 * PAGE / 8], 6);
    drop(client);
    world.ends_clean("x", pager);
    world.ends();
}

#[test]
fn pages_are_clean_or_gone_only_when_their_pager_has_them() {
    let world = World::new();
    let stored = Stored::new("x", 40960, true, tempfile::tempfile().unwrap());
    let offered = world.host.offer(stored.clone(), None).unwrap();
    let mut client = world.client("x");
    let kernel = stored.kernels.lock().unwrap()[0].clone();
    let page = PageRange::new(3, 4);
    let has = |value: u64| {
        let mut word = [0; 8];
        let read = stored.file.read_at(&mut word, 3 * PAGE as u64);
        read.unwrap() == 8 && u64::from_le_bytes(word) == value
    };
    for (value, flushes) in [(5, false), (6, true)] {
        assert_eq!(client.does(&format!("write 3 {value}")), "done");
        stored.told.lock().unwrap().holds_writes = true;
        std::thread::scope(|scope| {
            let asks = scope.spawn(|| match flushes {
                true => kernel.flush(page),
                false => kernel.clean(page),
            });
            until("it is kept", || world.pager_of("x").kept_bytes > 0);
            assert!(!asks.is_finished(), "the pager does not have it");
            assert_eq!(client.does("read 3"), value.to_string());
            stored.told.lock().unwrap().holds_writes = false;
            stored.goes.notify_all();
            asks.join().unwrap().unwrap();
        });
        assert!(has(value));
    }
    // It is asked for again.
    let requests = || stored.told.lock().unwrap().requests;
    let before = requests();
    assert_eq!(client.does("read 3"), "6");
    assert_eq!(requests(), before + 1);
    // A pager that does not take it is told so, and the page stays.
    assert_eq!(client.does("write 3 7"), "done");
    stored.told.lock().unwrap().refuses_writes = true;
    for flushes in [false, true] {
        let asked = match flushes {
            true => kernel.flush(page),
            false => kernel.clean(page),
        };
        let why = asked.unwrap_err();
        assert!(
            why.contains("the pager does not take them: the disk is full"),
            "{why}"
        );
        assert_eq!((client.does("read 3"), has(7)), ("7".into(), false));
    }
    stored.told.lock().unwrap().refuses_writes = false;
    until("it takes it after all", || kernel.flush(page).is_ok());
    assert!(has(7));
    drop((client, offered));
    world.ends();
}
