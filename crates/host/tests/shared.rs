//! Processes that map one object, write to it and die, while its pages come and go.

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use farpage_abi::{ObjectId, PAGE_BYTES, PageRange};
use farpage_host::shared::{Mapping, Object, Space};
use farpage_pagers::{DataRequest, PageOut, Pager, PagerError, Supplied};
use farpage_sys::file::Fd;
use farpage_sys::socket;
use farpage_sys::view::View;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};

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
                None => into[..8].copy_from_slice(&page.0.to_le_bytes()),
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

/// A process that has the object mapped, and the thread that answers for it.
struct Program {
    child: Child,
    answers: Option<thread::JoinHandle<()>>,
}

impl Program {
    fn start(object: &Arc<Object>, what: &str) -> Self {
        let flags = SocketFlags::CLOEXEC;
        let (own, its) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["the_program", "--exact", "--nocapture"]);
        command
            .env(PROGRAM, what)
            .stdin(Stdio::from(its))
            .stdout(Stdio::null());
        let child = command.spawn().unwrap();
        // The pipe to a child that is gone must not look open.
        drop(command);
        socket::send(Fd(own.as_raw_fd()), &[0; 8], Some(object.descriptor())).unwrap();
        let (address, faults) = receive(&own);
        let space = Arc::new(Space::new(faults).unwrap());
        let mapping = Arc::new(Mapping {
            space: Arc::clone(&space),
            address: address as usize,
            pages: PageRange::new(0, PAGES),
        });
        object.add(Arc::clone(&mapping));
        let object = Arc::clone(object);
        let answers = thread::spawn(move || answer(&object, &mapping, &own));
        Self {
            child,
            answers: Some(answers),
        }
    }

    fn ends_well(mut self) {
        assert!(self.child.wait().unwrap().success());
        self.answers.take().unwrap().join().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Answers the faults of one process until it is gone.
fn answer(object: &Arc<Object>, mapping: &Arc<Mapping>, socket: &OwnedFd) {
    loop {
        let mut both = [
            PollFd::new(&*mapping.space, PollFlags::IN),
            PollFd::new(socket, PollFlags::IN),
        ];
        poll(&mut both, None).unwrap();
        if !both[1].revents().is_empty() {
            return object.forget(&mapping.space);
        }
        let faults = mapping.space.faults().unwrap();
        for fault in faults.as_slice() {
            object.fault(mapping, fault.address, fault.write);
        }
    }
}

/// A number and a descriptor.
fn receive(socket: &impl std::os::fd::AsFd) -> (u64, OwnedFd) {
    let mut bytes = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut with = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut with, flags).unwrap();
    let fd = with.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
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

fn object(store: &Arc<Store>, temporary: bool) -> Arc<Object> {
    let pager = Arc::clone(store) as Arc<dyn Pager>;
    Arc::new(Object::new(c"test", ObjectId(1), PAGES, pager, temporary).unwrap())
}

/// What all the pages were counted up to, once they are with the pager.
fn counted(object: &Object, store: &Store) -> u64 {
    object.evict(PAGES);
    assert_eq!(object.resident(), 0);
    let pages = store.pages.lock().unwrap();
    let count = |page: &[u8; PAGE_BYTES]| u64::from_le_bytes(page[8..16].try_into().unwrap());
    pages.values().map(|page| count(page)).sum()
}

/// Keeps a fifth of the object in memory until the programs have ended.
fn while_pages_leave(object: &Arc<Object>, run: impl FnOnce()) {
    let ended = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                match object.resident() > PAGES / 5 {
                    true => drop(object.evict(16)),
                    false => thread::yield_now(),
                }
            }
        });
        run();
        ended.store(true, Ordering::Relaxed);
    });
}

#[test]
fn what_processes_write_to_one_object_is_all_there() {
    for temporary in [false, true] {
        let store = Arc::new(Store::default());
        let object = object(&store, temporary);
        let numbered = u64::from(!temporary);
        while_pages_leave(&object, || {
            let program = |seed| Program::start(&object, &format!("{seed} 4000 {numbered}"));
            let programs = [1, 2, 3].map(program);
            programs.into_iter().for_each(Program::ends_well);
        });
        assert_eq!(counted(&object, &store), 3 * 4000, "temporary: {temporary}");
        assert!(
            store.taken.load(Ordering::Relaxed) > PAGES,
            "pages came and went"
        );
    }
}

#[test]
fn a_process_that_is_killed_takes_nothing_of_the_others_with_it() {
    for round in 0..20 {
        let store = Arc::new(Store::default());
        let object = object(&store, true);
        let mut ended = 0;
        while_pages_leave(&object, || {
            let mut killed = Program::start(&object, &format!("{round} 1000000000 0"));
            let other = Program::start(&object, &format!("{} 2000 0", round + 100));
            while store.taken.load(Ordering::Relaxed) < 10 * round {
                thread::yield_now();
            }
            killed.child.kill().unwrap();
            other.ends_well();
            killed.child.wait().unwrap();
            killed.answers.take().unwrap().join().unwrap();
            ended = 2000;
        });
        assert!(counted(&object, &store) >= ended, "round {round}");
    }
}

#[test]
fn a_pager_that_takes_nothing_for_a_time_loses_nothing() {
    let store = Arc::new(Store::default());
    let object = object(&store, true);
    while_pages_leave(&object, || {
        let mut program = Program::start(&object, "5 20000 0");
        while program.child.try_wait().unwrap().is_none() {
            store.refuses.fetch_xor(true, Ordering::Relaxed);
            thread::yield_now();
        }
        store.refuses.store(false, Ordering::Relaxed);
        program.ends_well();
    });
    assert_eq!(counted(&object, &store), 20_000);
}

#[test]
fn what_was_cleaned_is_with_the_pager_and_stays() {
    let store = Arc::new(Store::default());
    let object = object(&store, true);
    Program::start(&object, "9 3000 0").ends_well();
    let all = PageRange::new(0, PAGES);
    store.refuses.store(true, Ordering::Relaxed);
    assert!(object.clean(all).is_err());
    store.refuses.store(false, Ordering::Relaxed);
    object.clean(all).unwrap();
    let resident = object.resident();
    assert!(resident > 0);
    let taken = store.taken.load(Ordering::Relaxed);
    assert_eq!(counted(&object, &store), 3000);
    assert_eq!(
        store.taken.load(Ordering::Relaxed),
        taken,
        "nothing was dirty"
    );
}

#[test]
fn who_puts_zeros_where_no_page_is_changes_nothing() {
    let store = Arc::new(Store::default());
    let object = object(&store, false);
    while_pages_leave(&object, || {
        let cheat = Program::start(&object, &format!("{CHEATS} 1000 1"));
        let other = Program::start(&object, "4 2000 1");
        cheat.ends_well();
        other.ends_well();
    });
    assert_eq!(counted(&object, &store), 3000);
}
