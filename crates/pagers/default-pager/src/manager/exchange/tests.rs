//! Random calls between random steps of an exchange, against what the pages must be.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;

use farpage_object::Access;
use proptest::prelude::*;

use super::*;
use crate::manager::channel::Channel;
use crate::manager::{About, Offer};

type Page = [u8; PAGE_BYTES];

/// Keeps so many pages at most, and tells which.
#[derive(Default)]
struct Small {
    most: usize,
    kept: Mutex<BTreeMap<(u32, u64), Box<Page>>>,
    /// Gives away what it is asked for.
    gives_away: bool,
    /// It cannot read this page.
    is_bad: Option<u64>,
}

impl Small {
    fn of(most: usize, gives_away: bool) -> Arc<Self> {
        Arc::new(Self {
            most,
            gives_away,
            ..Self::default()
        })
    }

    fn first(
        kept: &BTreeMap<(u32, u64), Box<Page>>,
        object: ObjectId,
        pages: PageRange,
        buffer: &mut [u8],
    ) -> Result<u64, PagerError> {
        let mut count = 0;
        for (page, into) in pages.iter().zip(buffer.chunks_exact_mut(PAGE_BYTES)) {
            let Some(bytes) = kept.get(&(object.0, page.0)) else {
                break;
            };
            into.copy_from_slice(bytes.as_slice());
            count += 1;
        }
        match count {
            0 => Err(PagerError::Unavailable),
            count => Ok(count),
        }
    }
}

impl Pager for Small {
    fn data_request(&self, mut request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        let (object, pages) = (request.object(), request.pages());
        let kept = &mut *whole(self.kept.lock());
        let count = Self::first(kept, object, pages, request.buffer())?;
        if !self.gives_away {
            return Ok(Supplied::clean(count));
        }
        for page in pages.iter().take(count as usize) {
            kept.remove(&(object.0, page.0));
        }
        Ok(Supplied::precious(count))
    }

    /// Takes as many as there is room for, and then says that there is none.
    fn data_write(&self, object: ObjectId, pages: &[PageOut<'_>]) -> Result<(), PagerError> {
        let kept = &mut *whole(self.kept.lock());
        for out in pages {
            let key = (object.0, out.page.0);
            if kept.len() >= self.most && !kept.contains_key(&key) {
                return Err(PagerError::OutOfSpace);
            }
            kept.insert(key, Box::new(*out.bytes));
        }
        Ok(())
    }

    fn discard(&self, object: ObjectId, pages: PageRange) {
        let within = (object.0, pages.start.0)..(object.0, pages.end.0);
        whole(self.kept.lock()).retain(|page, _| !within.contains(page));
    }

    fn terminate(&self, object: ObjectId) {
        self.discard(object, PageRange::new(0, 1 << 41));
    }
}

impl Keeper for Small {
    fn some_kept(&self, cursor: u64) -> Result<Option<(ObjectId, PageRange, u64)>, PagerError> {
        let kept = whole(self.kept.lock());
        let mut from = kept.keys().skip(cursor as usize);
        Ok(from.next().map(|(object, page)| {
            let pages = PageRange::new(*page, page + 2);
            (ObjectId(*object), pages, cursor + 1)
        }))
    }

    fn copy(
        &self,
        object: ObjectId,
        pages: PageRange,
        buffer: &mut [u8],
    ) -> Result<u64, PagerError> {
        if self.is_bad == Some(pages.start.0) {
            return Err(PagerError::Corrupt);
        }
        let kept = whole(self.kept.lock());
        Self::first(&kept, object, pages, buffer)
    }
}

const PAGES_OF_ALL: u64 = 12;
const OBJECTS: u32 = 2;

#[derive(Clone, Copy, Debug)]
enum Act {
    Write(u32, u64, u64, u8),
    Read(u32, u64, u64),
    Discard(u32, u64, u64),
    Terminate(u32),
    /// One of three, which may be the one that it is already.
    Begin(usize),
    Step,
}

fn act() -> impl Strategy<Value = Act> {
    let object = 0..OBJECTS;
    let range = (0..PAGES_OF_ALL, 1..4u64);
    prop_oneof![
        6 => (object.clone(), range.clone(), any::<u8>())
            .prop_map(|(object, (first, count), with)| Act::Write(object, first, count, with)),
        5 => (object.clone(), range.clone()).prop_map(|(o, (first, count))| Act::Read(o, first, count)),
        1 => (object.clone(), range).prop_map(|(o, (first, count))| Act::Discard(o, first, count)),
        1 => object.prop_map(Act::Terminate),
        2 => (0..3usize).prop_map(Act::Begin),
        8 => Just(Act::Step),
    ]
}

/// The kernel: what it has in memory, and what it believes the manager to have.
struct Kernel {
    manager: Manager,
    ours: [Arc<dyn Keeper>; 3],
    resident: BTreeMap<(u32, u64), u8>,
    out: BTreeMap<(u32, u64), u8>,
    cursor: u64,
    buffer: Vec<u8>,
}

impl Kernel {
    fn act(&mut self, act: Act) {
        match act {
            Act::Write(object, first, count, with) => self.page_out(object, first, count, with),
            Act::Read(object, first, count) => self.page_in(object, first, count),
            Act::Discard(object, first, count) => {
                self.manager
                    .discard(ObjectId(object), PageRange::new(first, first + count));
                let within = (object, first)..(object, first + count);
                self.out.retain(|page, _| !within.contains(page));
                self.resident.retain(|page, _| !within.contains(page));
            }
            Act::Terminate(object) => {
                self.manager.terminate(ObjectId(object));
                self.out.retain(|(of, _), _| *of != object);
                self.resident.retain(|(of, _), _| *of != object);
            }
            Act::Begin(which) => {
                let next = Arc::clone(&self.ours[which]);
                self.manager.begin(Member::Inside(next));
                self.cursor = 0;
            }
            Act::Step => {
                let _ = self.manager.step(&mut self.cursor, &mut self.buffer);
            }
        }
    }

    /// Pages with new contents leave: those that are not taken stay.
    fn page_out(&mut self, object: u32, first: u64, count: u64, with: u8) {
        let contents: Vec<Page> = (0..count).map(|n| [with ^ n as u8; PAGE_BYTES]).collect();
        let pages = PageRange::new(first, first + count);
        let pairs = pages.iter().zip(&contents);
        let out: Vec<PageOut<'_>> = pairs.map(|(page, bytes)| PageOut { page, bytes }).collect();
        let taken = self.manager.data_write(ObjectId(object), &out);
        for out in &out {
            let key = (object, out.page.0);
            let (there, gone) = match taken {
                Ok(()) => (&mut self.out, &mut self.resident),
                Err(_) => (&mut self.resident, &mut self.out),
            };
            there.insert(key, out.bytes[0]);
            gone.remove(&key);
        }
    }

    fn page_in(&mut self, object: u32, first: u64, count: u64) {
        // The kernel asks for what is out only.
        let all_out =
            (first..first + count).take_while(|page| self.out.contains_key(&(object, *page)));
        let count = all_out.count() as u64;
        if count == 0 {
            return;
        }
        let pages = PageRange::new(first, first + count);
        let mut buffer = vec![0; pages.bytes() as usize];
        let request = DataRequest::new(ObjectId(object), pages, 1, Access::Read, &mut buffer);
        let supplied = self.manager.data_request(request).expect("it is kept");
        for (page, bytes) in pages
            .iter()
            .zip(buffer.chunks_exact(PAGE_BYTES))
            .take(supplied.pages as usize)
        {
            let key = (object, page.0);
            let was = self.out[&key];
            assert!(
                bytes.iter().all(|byte| *byte == was),
                "page {key:?} has other contents"
            );
            if supplied.precious {
                self.out.remove(&key);
                self.resident.insert(key, was);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_page_is_lost_or_old_whenever_pagers_are_exchanged(
        acts in proptest::collection::vec(act(), 1..120),
        most in (4..30usize, 4..30usize, 4..30usize),
        gives_away in any::<(bool, bool, bool)>(),
    ) {
        let ours: [Arc<dyn Keeper>; 3] = [
            Small::of(most.0, gives_away.0),
            Small::of(most.1, gives_away.1),
            Small::of(most.2, gives_away.2),
        ];
        let mut kernel = Kernel {
            manager: Manager::new(Arc::clone(&ours[0])),
            ours,
            resident: BTreeMap::new(),
            out: BTreeMap::new(),
            cursor: 0,
            buffer: vec![0; PAGES * PAGE_BYTES],
        };
        acts.into_iter().for_each(|act| kernel.act(act));
        for object in 0..OBJECTS {
            for page in 0..PAGES_OF_ALL + 4 {
                kernel.page_in(object, page, 1);
            }
        }
    }
}

#[test]
fn all_pages_move_and_the_one_before_is_let_go() {
    let ours = [Small::of(100, false), Small::of(100, true)];
    let manager = Manager::new(Arc::clone(&ours[0]) as Arc<dyn Keeper>);
    let bytes = [7; PAGE_BYTES];
    let out: Vec<PageOut<'_>> = (0..40)
        .map(|page| PageOut {
            page: PageIndex(page * 3),
            bytes: &bytes,
        })
        .collect();
    manager
        .data_write(ObjectId(1), &out)
        .expect("there is room");
    manager.begin(Member::Inside(Arc::clone(&ours[1]) as Arc<dyn Keeper>));
    assert!(manager.state().is_moving);
    let (mut cursor, mut buffer) = (0, vec![0; PAGES * PAGE_BYTES]);
    while manager.step(&mut cursor, &mut buffer) != Step::Done {}
    assert!(!manager.state().is_moving);
    assert_eq!(whole(ours[0].kept.lock()).len(), 0);
    assert_eq!(whole(ours[1].kept.lock()).len(), 40);
}

/// A default pager of which only the channel and its socket are there: it never answers.
struct Silent {
    outside: Arc<Outside>,
    channel: Channel,
    life: UnixStream,
}

impl Silent {
    fn new(pid: u32) -> Self {
        let (file, channel) = Channel::create(&[]).expect("memory");
        let (life, theirs) = UnixStream::pair().expect("a socket");
        let outside = Outside::new(pid, About::default(), &file, theirs.into());
        Self {
            outside: outside.expect("it is a channel"),
            channel,
            life,
        }
    }

    fn is_asked(&self) -> bool {
        self.channel.place(0).asked().is_some()
    }
}

fn in_time<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || tell.send(act()));
    told.recv_timeout(Duration::from_secs(120))
        .expect("nobody waits for ever")
}

/// The kernel's own, with a page, and `silent` that is to have it.
fn moving_to(silent: &Silent) -> Arc<Manager> {
    let manager = Manager::start(Small::of(100, false)).expect("a thread");
    write_one(&manager, 7).expect("there is room");
    set(&manager, &silent.outside);
    while !silent.is_asked() {
        std::thread::yield_now();
    }
    manager
}

fn set(manager: &Arc<Manager>, outside: &Arc<Outside>) {
    let set = manager.set_default_memory_manager(Arc::clone(outside));
    set.expect("a thread");
}

fn write_one(manager: &Manager, page: u64) -> Result<(), PagerError> {
    let page = PageIndex(page);
    let bytes = &[7; PAGE_BYTES];
    manager.data_write(ObjectId(1), &[PageOut { page, bytes }])
}

fn read_one(manager: &Manager, page: u64) -> Result<u8, PagerError> {
    let mut buffer = [0; PAGE_BYTES];
    let pages = PageRange::one(PageIndex(page));
    let request = DataRequest::new(ObjectId(1), pages, 1, Access::Read, &mut buffer);
    manager.data_request(request)?;
    Ok(buffer[0])
}

#[test]
fn one_that_wants_to_end_while_it_owes_an_answer_is_seen_to_die() {
    let silent = Silent::new(5);
    let manager = moving_to(&silent);
    (&silent.life)
        .write_all(&[crate::manager::serve::END])
        .expect("sent");
    drop(silent.life);
    assert_eq!(in_time(move || read_one(&manager, 7)), Ok(7));
}

#[test]
fn the_state_is_told_while_an_answer_is_owed() {
    let silent = Silent::new(5);
    let manager = moving_to(&silent);
    let asked = Arc::clone(&manager);
    let state = in_time(move || asked.state());
    assert!(state.is_moving);
    assert_eq!(state.outside.map(|outside| outside.pid()), Some(5));
    drop(silent.life);
    assert_eq!(in_time(move || read_one(&manager, 7)), Ok(7));
}

#[test]
fn one_that_wants_to_end_does_so_though_the_one_after_it_dies() {
    let keeper: Arc<dyn Keeper> = Small::of(100, false);
    let offer = Offer::start(keeper).expect("threads");
    let calls = offer.channel().try_clone_to_owned().expect("descriptors");
    let life = offer.life().try_clone_to_owned().expect("descriptors");
    let first = Outside::new(4, About::default(), &calls, life).expect("it is a channel");
    let serving = offer.is_taken();
    let manager = Manager::start(Small::of(100, false)).expect("a thread");
    write_one(&manager, 7).expect("there is room");
    set(&manager, &first);
    while manager.state().is_moving || manager.state().outside.is_none() {
        std::thread::yield_now();
    }
    let silent = Silent::new(5);
    set(&manager, &silent.outside);
    while !silent.is_asked() {
        std::thread::yield_now();
    }
    serving.end();
    while !first.ends() {
        std::thread::yield_now();
    }
    drop(silent.life);
    assert_eq!(
        in_time(move || serving.wait()),
        crate::manager::Ended::Replaced
    );
    assert_eq!(read_one(&manager, 7), Ok(7));
}

#[test]
fn one_that_ended_before_its_turn_gets_no_pages() {
    for wants in [true, false] {
        let manager = Arc::new(Manager::new(Small::of(100, false)));
        let silent = Silent::new(5);
        set(&manager, &silent.outside);
        // Its turn has come, and it does not know.
        let next = manager.wanted().next.take().expect("just set");
        if wants {
            (&silent.life)
                .write_all(&[crate::manager::serve::END])
                .expect("sent");
        } else {
            drop(silent.life);
        }
        while !silent.outside.ends() {
            std::thread::yield_now();
        }
        manager.begin(next);
        assert!(manager.state().outside.is_none() && !manager.state().is_moving);
        write_one(&manager, 3).expect("there is room");
        assert!(manager.state().lost.is_empty());
    }
}

#[test]
fn only_what_is_gone_is_explained_by_a_death() {
    let inside = Small {
        most: 100,
        is_bad: Some(2),
        ..Small::default()
    };
    let manager = Manager::new(Arc::new(inside));
    write_one(&manager, 2).expect("there is room");
    manager.write().lost.push(5);
    let explain = |page| {
        let mut said = String::new();
        manager
            .explain(ObjectId(1), PageIndex(page), &mut said)
            .then_some(said)
    };
    assert!(explain(1).is_some_and(|said| said.contains("process 5) died with it")));
    assert_eq!(explain(2), None, "it is there, and cannot be read");
}

#[test]
fn a_state_that_there_is_not_fails_the_call_and_is_not_waited_for() {
    const WORD: usize = (4096 + 256 * 64) / 4;
    let (file, _channel) = Channel::create(&[]).expect("memory");
    let bytes = std::fs::File::from(file.try_clone().expect("descriptors"));
    let bytes = bytes.metadata().expect("its size").len() as usize;
    let words = farpage_sys::memory_file::Words::map(file.as_fd(), bytes).expect("memory");
    let (_life, theirs) = UnixStream::pair().expect("a socket");
    let outside = Outside::new(5, About::default(), &file, theirs.into()).expect("it is one");
    // More calls than there are places.
    for _ in 0..crate::manager::channel::PLACES + 1 {
        let asking = Arc::clone(&outside);
        let asked = std::thread::spawn(move || asking.some_kept(0));
        let state = &words.u32s()[WORD];
        while state.load(Ordering::Acquire) != crate::manager::channel::ASKED {
            std::thread::yield_now();
        }
        state.store(77, Ordering::Release);
        farpage_sys::futex::wake(state, 1);
        let failed = in_time(move || asked.join().expect("no panic"));
        assert_eq!(failed, Err(PagerError::Violation));
    }
}

#[test]
fn one_with_room_gets_what_two_full_ones_have() {
    let ours = [
        Small::of(4, false),
        Small::of(4, false),
        Small::of(100, false),
    ];
    let manager = Manager::new(Arc::clone(&ours[0]) as Arc<dyn Keeper>);
    let begin = |which: usize| manager.begin(Member::Inside(Arc::clone(&ours[which]) as _));
    (0..4).for_each(|page| write_one(&manager, page).expect("there is room"));
    begin(1);
    (4..8).for_each(|page| write_one(&manager, page).expect("there is room"));
    assert!(write_one(&manager, 8).is_err(), "both are full");
    let (mut cursor, mut buffer) = (0, vec![0; PAGES * PAGE_BYTES]);
    assert_eq!(manager.step(&mut cursor, &mut buffer), Step::NoRoom);
    begin(2);
    cursor = 0;
    while manager.step(&mut cursor, &mut buffer) != Step::Done {}
    assert!(!manager.state().is_moving);
    assert_eq!(ours.map(|one| whole(one.kept.lock()).len()), [0, 0, 8]);
    (0..8).for_each(|page| assert_eq!(read_one(&manager, page), Ok(7)));
}
