//! Processes that map one object, write to it and die, while its pages come and go.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use farpage_host::{MapError, Object, Objects, SpaceId};
use farpage_object::{
    DataRequest, ObjectId, PAGE_BYTES, PageOut, PageRange, Pager, PagerError, Supplied, Ticket,
};
use farpage_sys::file::Fd;
use farpage_sys::view::View;
use farpage_sys::{message, socket};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

const PAGES: u64 = 512;
/// The seed of a program that puts zeros where no page is.
const CHEATS: u64 = 666;
const PROGRAM: &str = "FARPAGE_TEST_PROGRAM";

/// Keeps what it is given; of an object of its own, a page begins with its number.
#[derive(Default)]
struct Store {
    pages: Mutex<HashMap<u64, Box<[u8; PAGE_BYTES]>>>,
    taken: AtomicU64,
    refuses: AtomicBool,
}

impl Pager for Store {
    fn data_request(&self, mut request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        let (pages, all) = (request.pages(), self.pages.lock().unwrap());
        for (page, into) in pages
            .iter()
            .zip(request.buffer().chunks_exact_mut(PAGE_BYTES))
        {
            match all.get(&page.0) {
                Some(kept) => into.copy_from_slice(&**kept),
                None => {
                    into.fill(0);
                    into[..8].copy_from_slice(&page.0.to_le_bytes());
                }
            }
        }
        Ok(Supplied::clean(pages.pages()))
    }

    fn data_write(&self, _: ObjectId, pages: &[PageOut<'_>]) -> Result<(), PagerError> {
        if self.refuses.load(Ordering::Relaxed) {
            return Err(PagerError::OutOfSpace);
        }
        let mut all = self.pages.lock().unwrap();
        for page in pages {
            all.insert(page.page.0, Box::new(*page.bytes));
            self.taken.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// A process that has the object mapped.
struct Program {
    child: Child,
    objects: &'static Objects,
    space: SpaceId,
}

impl Program {
    fn start(objects: &'static Objects, object: &Arc<Object>, what: &str) -> Self {
        let flags = SocketFlags::CLOEXEC;
        let (own, its) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["shared::the_program", "--exact", "--nocapture"]);
        command.env(PROGRAM, what).stdin(Stdio::from(its));
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        socket::send(Fd(own.as_raw_fd()), &[0; 8], Some(object.descriptor())).unwrap();
        let (address, faults) = receive(&own);
        let space = objects.attach(faults).unwrap();
        let all = PageRange::new(0, PAGES);
        let (address, beyond) = (address as usize, PageRange::new(1, PAGES + 1));
        let outside = objects.map(space, object, address, beyond);
        assert!(matches!(outside, Err(MapError::Outside { .. })));
        objects.map(space, object, address, all).unwrap();
        let again = objects.map(space, object, address + PAGE_BYTES, PageRange::new(0, 1));
        assert!(matches!(again, Err(MapError::Address { .. })));
        Self {
            child,
            objects,
            space,
        }
    }

    fn ends_well(mut self) {
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.objects.detach(self.space);
    }
}

/// A number and a descriptor.
fn receive(socket: &impl AsFd) -> (u64, OwnedFd) {
    let mut bytes = [0; 8];
    let (_, fd) = message::wait(socket.as_fd(), &mut bytes).unwrap();
    (u64::from_le_bytes(bytes), fd.expect("a descriptor"))
}

/// What a [`Program`] does; nothing when it is run as a test.
#[test]
fn the_program() {
    let Ok(what) = std::env::var(PROGRAM) else {
        return;
    };
    let socket = std::io::stdin();
    let (_, file) = receive(&socket);
    let view = View::map(Fd(file.as_raw_fd()), PAGES as usize * PAGE_BYTES, None).unwrap();
    let address = (view.address() as u64).to_le_bytes();
    socket::send(Fd(socket.as_raw_fd()), &address, Some(view.userfaultfd())).unwrap();
    let words: Vec<u64> = what.split(' ').map(|word| word.parse().unwrap()).collect();
    let [mut seed, counts, numbered] = words[..] else {
        panic!("not a program: {what}");
    };
    if seed == CHEATS {
        let all = PAGES * PAGE_BYTES as u64;
        farpage_sys::file::allocate(Fd(file.as_raw_fd()), 0, all).unwrap();
    }
    for _ in 0..counts {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (page, read) = ((seed >> 33) % PAGES, (seed >> 20).is_multiple_of(4));
        let at = page as usize * PAGE_BYTES;
        if read {
            let begins = if numbered == 1 { page } else { 0 };
            assert_eq!(view.word(at).load(Ordering::Relaxed), begins);
        }
        view.word(at + 8).fetch_add(1, Ordering::Relaxed);
    }
}

/// Objects of which a fifth of one stays in memory, and one of them.
fn object(store: &Arc<Store>, temporary: bool) -> (&'static Objects, Arc<Object>) {
    let pager = Arc::clone(store) as Arc<dyn Pager>;
    let objects = Objects::start(PAGES / 5 * PAGE_BYTES as u64).unwrap();
    let object = objects.create("test", PAGES, pager, temporary).unwrap();
    (objects, object)
}

/// What all the pages were counted up to, once they are with the pager.
fn counted(object: &Object, store: &Store) -> u64 {
    while object.resident() > 0 {
        object.evict(PAGES);
    }
    let pages = store.pages.lock().unwrap();
    let count = |page: &[u8; PAGE_BYTES]| u64::from_le_bytes(page[8..16].try_into().unwrap());
    pages.values().map(|page| count(page)).sum()
}

#[test]
fn what_processes_write_to_one_object_is_all_there() {
    for temporary in [false, true] {
        let store = Arc::new(Store::default());
        let (objects, object) = object(&store, temporary);
        let numbered = u64::from(!temporary);
        let start = |seed| Program::start(objects, &object, &format!("{seed} 4000 {numbered}"));
        let programs = [1, 2, 3].map(start);
        programs.into_iter().for_each(Program::ends_well);
        assert_eq!(counted(&object, &store), 3 * 4000, "temporary: {temporary}");
        assert!(
            store.taken.load(Ordering::Relaxed) > PAGES,
            "pages came and went"
        );
        assert_eq!(objects.resident_bytes(), 0);
        drop(object);
        // Who takes pages out may have it for another moment.
        farpage_testkit::until("no object is left", || objects.objects().is_empty());
    }
}

#[test]
fn a_process_that_is_killed_takes_nothing_of_the_others_with_it() {
    for round in 0..20 {
        let store = Arc::new(Store::default());
        let (objects, object) = object(&store, true);
        let mut killed = Program::start(objects, &object, &format!("{round} 1000000000 0"));
        let other = Program::start(objects, &object, &format!("{} 2000 0", round + 100));
        farpage_testkit::until("pages are taken", || {
            store.taken.load(Ordering::Relaxed) >= 10 * round
        });
        killed.child.kill().unwrap();
        other.ends_well();
        drop(killed);
        assert!(counted(&object, &store) >= 2000, "round {round}");
    }
}

/// Lets memory be plenty, so that Linux maps pages by itself, and short again, until `ended`.
/// Returns how often all pages were there, and a few.
fn in_plenty_and_want(objects: &Objects, object: &Object, mut ended: impl FnMut() -> bool) -> u32 {
    let few = PAGES / 5;
    let mut rounds = 0;
    while !ended() {
        objects.set_ram(1 << 30);
        while object.resident() < PAGES && !ended() {
            thread::yield_now();
        }
        objects.set_ram(few * PAGE_BYTES as u64);
        while object.resident() > 2 * few && !ended() {
            thread::yield_now();
        }
        rounds += 1;
    }
    rounds
}

#[test]
fn pages_that_linux_maps_by_itself_are_had_back_when_memory_is_short() {
    for temporary in [true, false] {
        let store = Arc::new(Store::default());
        let (objects, object) = object(&store, temporary);
        let numbered = u64::from(!temporary);
        let start = |seed| Program::start(objects, &object, &format!("{seed} 6000000 {numbered}"));
        let mut programs = [1, 2, 3].map(start);
        let ended = || {
            let has_ended = |p: &mut Program| p.child.try_wait().unwrap().is_some();
            programs.iter_mut().all(has_ended)
        };
        let rounds = in_plenty_and_want(objects, &object, ended);
        assert!(rounds > 3, "{rounds} rounds");
        programs.into_iter().for_each(Program::ends_well);
        assert_eq!(
            counted(&object, &store),
            3 * 6_000_000,
            "temporary: {temporary}"
        );
    }
}

#[test]
fn a_process_that_is_killed_while_linux_maps_pages_takes_nothing_with_it() {
    for round in 0..5 {
        let store = Arc::new(Store::default());
        let (objects, object) = object(&store, true);
        let mut killed = Program::start(objects, &object, &format!("{round} 1000000000 0"));
        let mut other = Program::start(objects, &object, &format!("{} 2000000 0", round + 100));
        let mut rounds = 0;
        let ended = || {
            rounds += 1;
            if rounds == 10 * round {
                killed.child.kill().unwrap();
            }
            other.child.try_wait().unwrap().is_some()
        };
        in_plenty_and_want(objects, &object, ended);
        killed.child.kill().unwrap();
        other.ends_well();
        drop(killed);
        assert!(counted(&object, &store) >= 2_000_000, "round {round}");
    }
}

#[test]
fn of_pages_that_linux_maps_those_that_nobody_touched_are_not_handed_over() {
    let store = Arc::new(Store::default());
    let objects = Objects::start(1 << 30).unwrap();
    let (object, view) = mapped(objects, &store);
    view.word(3 * PAGE_BYTES).store(7, Ordering::Relaxed);
    assert_eq!(object.resident(), 8, "all of them");
    assert_eq!(object.clean(PageRange::new(0, 8)), Ok(()));
    assert_eq!(object.resident(), 1, "what was touched");
    assert_eq!(store.pages.lock().unwrap().keys().collect::<Vec<_>>(), [&3]);
    view.word(3 * PAGE_BYTES).store(8, Ordering::Relaxed);
    assert_eq!(counted(&object, &store), 0);
    assert_eq!(store.pages.lock().unwrap()[&3][0], 8);
}

#[test]
fn a_pager_that_takes_nothing_for_a_time_loses_nothing() {
    let store = Arc::new(Store::default());
    let (objects, object) = object(&store, true);
    let mut program = Program::start(objects, &object, "5 20000 0");
    while program.child.try_wait().unwrap().is_none() {
        store.refuses.fetch_xor(true, Ordering::Relaxed);
        thread::yield_now();
    }
    store.refuses.store(false, Ordering::Relaxed);
    program.ends_well();
    assert_eq!(counted(&object, &store), 20_000);
}

#[test]
fn what_was_cleaned_is_with_the_pager_and_stays() {
    let store = Arc::new(Store::default());
    let (objects, object) = object(&store, true);
    Program::start(objects, &object, "9 3000 0").ends_well();
    let all = PageRange::new(0, PAGES);
    objects.set_ram(1 << 30);
    Program::start(objects, &object, "10 100 0").ends_well();
    store.refuses.store(true, Ordering::Relaxed);
    assert!(object.clean(all).is_err());
    store.refuses.store(false, Ordering::Relaxed);
    object.clean(all).unwrap();
    let resident = object.resident();
    assert!(resident > 0);
    let taken = store.taken.load(Ordering::Relaxed);
    assert_eq!(counted(&object, &store), 3100);
    assert_eq!(
        store.taken.load(Ordering::Relaxed),
        taken,
        "nothing was dirty"
    );
}

#[test]
fn who_puts_zeros_where_no_page_is_changes_nothing() {
    let store = Arc::new(Store::default());
    let (objects, object) = object(&store, false);
    let cheat = Program::start(objects, &object, &format!("{CHEATS} 1000 1"));
    let other = Program::start(objects, &object, "4 2000 1");
    cheat.ends_well();
    other.ends_well();
    assert_eq!(counted(&object, &store), 3000);
}

/// An object that this process maps, like another.
fn mapped(objects: &'static Objects, store: &Arc<Store>) -> (Arc<Object>, View) {
    let pager = Arc::clone(store) as Arc<dyn Pager>;
    let object = objects.create("own", 8, pager, true).unwrap();
    let view = View::map(object.descriptor(), 8 * PAGE_BYTES, None).unwrap();
    let (one, other) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    socket::send(Fd(one.as_raw_fd()), &[0; 8], Some(view.userfaultfd())).unwrap();
    let space = objects.attach(receive(&other).1).unwrap();
    let all = PageRange::new(0, 8);
    objects.map(space, &object, view.address(), all).unwrap();
    (object, view)
}

#[test]
fn what_is_too_much_leaves_whichever_of_many_objects_has_it() {
    const OBJECTS: usize = 60;
    let objects = Objects::start(1 << 30).unwrap();
    let start = |_| {
        let store = Arc::new(Store::default());
        let (object, view) = mapped(objects, &store);
        (store, object, view)
    };
    let all: Vec<_> = (0..OBJECTS).map(start).collect();
    // Every third one is not touched.
    let touched = || all.iter().enumerate().filter(|(n, _)| n % 3 > 0);
    for (n, (_, _, view)) in touched() {
        for page in 0..8 {
            view.word(page * PAGE_BYTES)
                .store((n * 8 + page) as u64, Ordering::Relaxed);
        }
    }
    assert_eq!(
        objects.resident_bytes(),
        (OBJECTS / 3 * 2 * 8 * PAGE_BYTES) as u64
    );
    objects.set_ram(0);
    farpage_testkit::until("nothing is resident", || objects.resident_bytes() == 0);
    objects.set_ram(1 << 30);
    for (n, (store, object, view)) in touched() {
        assert_eq!(
            (object.resident(), store.taken.load(Ordering::Relaxed)),
            (0, 8)
        );
        for page in 0..8 {
            let word = view.word(page * PAGE_BYTES).load(Ordering::Relaxed);
            assert_eq!(word, (n * 8 + page) as u64);
        }
    }
}

/// Keeps requests and answers none of them.
#[derive(Default)]
struct Silent(Mutex<Vec<Ticket>>);

impl Pager for Silent {
    fn data_request(&self, request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        Ok(request.later(|ticket| self.0.lock().unwrap().push(ticket)))
    }

    fn data_write(&self, _: ObjectId, _: &[PageOut<'_>]) -> Result<(), PagerError> {
        Err(PagerError::OutOfSpace)
    }
}

#[test]
fn a_pager_that_answers_nothing_holds_up_its_own_objects_only() {
    let store = Arc::new(Store::default());
    let (objects, object) = object(&store, true);
    let silent = Arc::new(Silent::default());
    let pager = Arc::clone(&silent) as Arc<dyn Pager>;
    let stuck = objects.create("stuck", PAGES, pager, false).unwrap();
    let start = |seed| Program::start(objects, &stuck, &format!("{seed} 10 1"));
    let waiting = [1, 2, 3, 4, 5, 6, 7, 8].map(start);
    farpage_testkit::until("eight pages are asked for", || {
        silent.0.lock().unwrap().len() >= 8
    });
    Program::start(objects, &object, "3 2000 0").ends_well();
    assert_eq!(counted(&object, &store), 2000);
    let tickets = std::mem::take(&mut *silent.0.lock().unwrap());
    for ticket in tickets {
        ticket.fail(PagerError::Dead);
    }
    for mut program in waiting {
        // The page that it waited for cannot be had: SIGBUS.
        let status = program.child.wait().unwrap();
        assert_eq!(status.signal(), Some(7), "{status:?}");
    }
}
