//! The files, and the threads that answer for them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use farpage_abi::maps::{MAPPED_MAX, Maps, Word};
use farpage_abi::{Access, Control, PAGE_BYTES, PageIndex, PageRange, Tier};
use farpage_object::{Leaving, Wanted};
use farpage_pagers::{DataRequest, Later, Pager, PagerError, Supplied};
use farpage_source::UnderWay;
use farpage_sys::buffer::Buffer;
use farpage_sys::file::Fd;
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, process};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::budget::{Budget, WINDOW_MAX};
use crate::file::{Error, Figures, File, Request, Waiter, id, wake};
use crate::tasks::{Next, Task, Tasks};

/// Threads that answer faults: sources that are near hold one while they read.
const WORKERS: usize = 4;
/// Pages that are worth bringing in where one is wanted.
const NEIGHBOURS: u64 = 16;
/// Pages given up when somebody asks for memory.
const PRESSED: u64 = 1024;
/// Longest time between two looks at what the programs use.
const LOOK_NS: u64 = 50_000_000;
/// After this long without room pages come all the same: progress comes first.
const STARVED: Duration = Duration::from_secs(2);
/// The same when that was so less than [`STARVED`] ago: what must be in memory at one time does not
/// fit, and waiting longer for each page of it would not change that.
const STARVED_AGAIN: Duration = Duration::from_millis(20);

/// Pages that were asked for.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) file: usize,
    pub(crate) pages: PageRange,
    /// The one that somebody waits for.
    pub(crate) wanted: Option<u64>,
}

/// Answers for a tree's mapped files until the process ends.
pub struct Host {
    control: &'static Control,
    pub(crate) budget: Budget,
    pub(crate) files: Vec<File>,
    tasks: Tasks,
    asked: Mutex<HashMap<u64, Asked>>,
    /// Pages that were asked for ahead of need and have not come yet.
    pub(crate) under_way: UnderWay,
    next: AtomicU64,
    answers: OnceLock<&'static Answers>,
    /// One takes pages out at a time.
    taking_out: Mutex<()>,
    /// When pages last came though there was no room.
    starved: Mutex<Option<Instant>>,
}

/// While it lives the tasks know that pages are being taken out.
struct TakingOut(&'static Maps);

impl TakingOut {
    fn tell(maps: &'static Maps) -> Self {
        maps.taking_out.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Self(maps)
    }
}

impl Drop for TakingOut {
    fn drop(&mut self) {
        self.0.taking_out.fetch_add(1, Ordering::SeqCst);
    }
}

/// Takes what pagers answer later.
struct Answers(&'static Host);

impl Host {
    /// Makes the files and starts to answer for them. Also returns the end of the socket that
    /// tasks are to have: this process must not keep it, so that tasks notice its end.
    ///
    /// # Errors
    /// Why not.
    pub fn start(
        control: &'static Control,
        requests: Vec<Request>,
    ) -> Result<(&'static Self, OwnedFd), Error> {
        if requests.len() > MAPPED_MAX {
            return Err(Error::TooMany);
        }
        let no_thread = |errno: rustix::io::Errno| Error::Start(errno.into());
        let mut files = Vec::new();
        for request in requests {
            files.push(File::new(control, files.len(), request)?);
        }
        let flags = SocketFlags::CLOEXEC;
        let (own, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(no_thread)?;
        let budget = Budget::new(control).ok_or(Error::TooMany)?;
        let host: &'static Self = Box::leak(Box::new(Self {
            control,
            budget,
            tasks: Tasks::new(control, own).map_err(no_thread)?,
            asked: Mutex::default(),
            under_way: UnderWay::default(),
            next: AtomicU64::new(0),
            files,
            answers: OnceLock::new(),
            taking_out: Mutex::default(),
            starved: Mutex::default(),
        }));
        host.answers
            .get_or_init(|| Box::leak(Box::new(Answers(host))));
        for _ in 0..WORKERS {
            let buffer = Buffer::new(WINDOW_MAX as usize * PAGE_BYTES);
            let buffer = buffer.map_err(|errno| Error::Start(io_error(errno)))?;
            spawn("maps", move || host.work(buffer))?;
        }
        spawn("maps-room", move || host.keep_room())?;
        control
            .maps
            .count
            .store(host.files.len() as u32, Ordering::Release);
        Ok((host, theirs))
    }

    /// The memory files, in the order of the requests.
    pub fn descriptors(&self) -> Vec<Fd> {
        self.files.iter().map(|file| file.mapped.fd()).collect()
    }

    /// What became of each file.
    pub fn figures(&self) -> Vec<Figures> {
        self.files.iter().map(File::figures).collect()
    }

    fn work(&'static self, mut buffer: Buffer) {
        loop {
            match self.tasks.next() {
                Next::Faults(task) => {
                    let faults = task.uffd().faults::<8>();
                    self.tasks.listen_again(&task);
                    match faults {
                        Ok(faults) => faults.as_slice().iter().for_each(|fault| {
                            self.serve(&task, fault.address as u64, &mut buffer);
                        }),
                        Err(_) => self.tasks.forget(&task),
                    }
                }
                Next::Word(word) if word.kind == Word::SOON => self.soon(word, &mut buffer),
                Next::Word(_) | Next::Nothing => {}
            }
        }
    }

    fn serve(&'static self, task: &Arc<Task>, address: u64, buffer: &mut Buffer) {
        let address = address & !(PAGE_BYTES as u64 - 1);
        let piece = self.control.maps.find(task.slot, address);
        let found = piece.and_then(|piece| {
            let file = self.files.get(piece.file)?;
            let page = piece.first + (address - piece.start) / PAGE_BYTES as u64;
            (page < file.pages()).then_some((piece, file, page))
        });
        let Some((piece, file, page)) = found else {
            // What lay there is gone, or comes: the thread finds out.
            return wake(task, address);
        };
        let who = Waiter {
            task: Arc::clone(task),
            address,
            reading: piece.reading,
        };
        let alone = file
            .pager
            .cluster_pages(id(piece.file), PageIndex(page))
            .max(NEIGHBOURS);
        let mut window = self.budget.window();
        if self.budget.excess(window) > 0 && self.resident() <= self.budget.floor() {
            // The programs have all: what is needed comes, and little else.
            window = NEIGHBOURS;
        }
        let wanted = file.lock().want(page, false, who, alone, window);
        match wanted {
            Wanted::There { .. } => wake(task, address),
            // Perhaps for nobody so far.
            Wanted::Waits => file.pager.hasten(PageIndex(page)),
            Wanted::Zero(_) => unreachable!("the file has all its pages"),
            Wanted::Fetch(pages) => {
                file.page_ins.fetch_add(1, Ordering::Relaxed);
                self.charge(pages.pages());
                let asked = Asked {
                    file: piece.file,
                    pages,
                    wanted: Some(page),
                };
                self.request(asked, buffer);
            }
        }
    }

    /// Somebody will want pages.
    fn soon(&'static self, word: Word, buffer: &mut Buffer) {
        let Some(file) = self.files.get(word.which as usize) else {
            return;
        };
        let most = self.budget.floor();
        let end = word
            .first
            .saturating_add(word.pages.min(most))
            .min(file.pages());
        let mut at = word.first;
        while at < end {
            let window = self.budget.window();
            let Some(pages) = file.lock().want_soon(at..end, window) else {
                break;
            };
            at = pages.end.0;
            self.charge(pages.pages());
            let asked = Asked {
                file: word.which as usize,
                pages,
                wanted: None,
            };
            self.request(asked, buffer);
        }
    }

    /// Asks the pager for pages that were charged.
    pub(crate) fn request(&'static self, asked: Asked, buffer: &mut Buffer) {
        let file = &self.files[asked.file];
        let buffer = &mut buffer[..asked.pages.bytes() as usize];
        let needed = asked
            .wanted
            .map_or(1, |page| page + 1 - asked.pages.start.0);
        let number = || {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            lock(&self.asked).insert(number, asked);
            number
        };
        let object = id(asked.file);
        let mut request = DataRequest::new(object, asked.pages, needed, Access::Read, buffer);
        if asked.wanted.is_none() {
            request = request.ahead_of_need();
            self.under_way.begin(asked.pages.pages());
        }
        let answers = *self.answers.get().expect("made with the host");
        match file.pager.data_request(request.or_later(answers, &number)) {
            // A ticket: the answer comes to `supply` or `fail`.
            Ok(supplied) if supplied.pages == 0 => {}
            Ok(supplied) if supplied.pages <= asked.pages.pages() => {
                let bytes = supplied.pages as usize * PAGE_BYTES;
                self.put_in(asked, &buffer[..bytes]);
            }
            Ok(_) => self.cannot(asked, PagerError::Violation),
            Err(error) => self.cannot(asked, error),
        }
    }

    /// The first pages of what was asked for are `contents`, whole pages.
    fn put_in(&'static self, asked: Asked, contents: &[u8]) {
        let file = &self.files[asked.file];
        let offset = asked.pages.start.0 * PAGE_BYTES as u64;
        if file.mapped.supply(offset, contents).is_err() {
            return self.cannot(asked, PagerError::OutOfSpace);
        }
        let supplied = (contents.len() / PAGE_BYTES) as u64;
        file.brought_pages.fetch_add(supplied, Ordering::Relaxed);
        if asked.wanted.is_none() {
            file.ahead_pages.fetch_add(supplied, Ordering::Relaxed);
            self.under_way.end(asked.pages.pages());
        }
        let waiters = file.lock().came(asked.pages, supplied);
        let missing = asked.pages.pages() - supplied;
        if missing > 0 {
            self.budget.uncharge(missing);
        }
        waiters.iter().for_each(Waiter::wake);
    }

    /// The pages cannot be had, or not together.
    fn cannot(&'static self, asked: Asked, error: PagerError) {
        let file = &self.files[asked.file];
        let (start, end) = (asked.pages.start.0, asked.pages.end.0);
        if let Some(page) = asked.wanted
            && asked.pages.pages() > 1
            && !error.is_of_the_object()
        {
            // Only what somebody waits for matters, and it may be had alone.
            for pages in [PageRange::new(start, page), PageRange::new(page + 1, end)] {
                self.let_go(file, pages).iter().for_each(Waiter::wake);
            }
            let asked = Asked {
                pages: PageRange::one(PageIndex(page)),
                ..asked
            };
            return match Buffer::new(PAGE_BYTES) {
                Ok(mut buffer) => self.request(asked, &mut buffer),
                Err(_) => self.cannot(asked, error),
            };
        }
        if asked.wanted.is_none() {
            self.under_way.end(asked.pages.pages());
        }
        let waiters = self.let_go(file, asked.pages);
        for waiter in waiters {
            match asked.wanted {
                Some(page) => self.fail(asked.file, page, waiter, error),
                // It asks itself.
                None => waiter.wake(),
            }
        }
    }

    /// Pages that were coming come not.
    fn let_go(&self, file: &File, pages: PageRange) -> Vec<Waiter> {
        if pages.is_empty() {
            return Vec::new();
        }
        let waiters = file.lock().came(pages, 0);
        self.budget.uncharge(pages.pages());
        waiters
    }

    /// A thread that waits for a page that cannot be had.
    fn fail(&self, number: usize, page: u64, waiter: Waiter, error: PagerError) {
        let file = &self.files[number];
        if !self.tasks.is_current(&waiter.task) {
            return;
        }
        let mut why = String::new();
        if !file.pager.explain(id(number), PageIndex(page), &mut why) {
            why = error.to_string();
        }
        let (path, offset) = (&file.path, page * PAGE_BYTES as u64);
        let process = waiter.task.process;
        let can_be_killed = process <= i32::MAX as u32;
        // Where Linux does not wait for pages the agent touches them itself: poison would end it.
        let by_hand = self.control.tier.load(Ordering::Relaxed) == Tier::UserModeOnly as u32;
        if waiter.reading && !by_hand && waiter.poison() {
            if !file.told.swap(true, Ordering::Relaxed) {
                eprintln!("farpage: cannot read '{path}' at byte {offset}: {why}");
            }
            return;
        }
        eprintln!(
            "farpage: process {process} is killed: it uses '{path}' at byte {offset}, which cannot \
             be had: {why}"
        );
        self.tasks.forget(&waiter.task);
        if !can_be_killed || process::kill(process, g::SIGKILL).is_err() {
            waiter.poison();
        }
    }

    /// Takes `pages` of the budget, when there is room for them.
    fn charge(&self, pages: u64) {
        let started = Instant::now();
        let last = *lock(&self.starved);
        let lately = last.is_some_and(|last| last.elapsed() < STARVED);
        let patience = match lately {
            // The programs are known to have all: this much is theirs no more.
            true if self.resident() <= self.budget.floor() => Duration::ZERO,
            true => STARVED_AGAIN,
            false => STARVED,
        };
        loop {
            let starved = started.elapsed() > patience;
            if self.budget.charge(pages, starved) {
                if starved {
                    *lock(&self.starved) = Some(Instant::now());
                }
                return;
            }
            let excess = self.budget.excess(pages) / PAGE_BYTES as u64 + 1;
            if self.resident() <= self.budget.floor() + pages || self.evict(excess) == 0 {
                self.budget.press();
                self.evict(pages);
            }
        }
    }

    fn resident(&self) -> u64 {
        self.files.iter().map(|file| file.lock().resident()).sum()
    }

    /// Takes about `wanted` pages out, of the file that has most. Returns how many.
    fn evict(&self, wanted: u64) -> u64 {
        let _alone = lock(&self.taking_out);
        let maps = &self.control.maps;
        let mut freed = 0;
        while freed < wanted {
            let files = self.files.iter().enumerate();
            let Some((number, file)) = files.max_by_key(|(_, file)| file.lock().resident()) else {
                break;
            };
            let is_held = |pages: PageRange| maps.is_held(number, pages.start.0, pages.end.0);
            let mut cache = file.lock();
            let _told = TakingOut::tell(maps);
            let Some(Leaving::Clean(pages)) = cache.choose(is_held) else {
                break;
            };
            let offset = pages.start.0 * PAGE_BYTES as u64;
            // With the lock held: nobody brings them in again before they are out.
            if let Err(errno) = file.mapped.take_out(offset, pages.bytes() as usize) {
                eprintln!(
                    "farpage: cannot take pages of '{}' out ({errno})",
                    file.path
                );
            }
            drop(cache);
            self.budget.uncharge(pages.pages());
            freed += pages.pages();
        }
        freed
    }

    /// Gives memory back that the programs need.
    fn keep_room(&self) {
        let mut seen = 0;
        loop {
            if self.budget.is_pressed(&mut seen, LOOK_NS) {
                self.evict(PRESSED.min(self.resident()));
            }
            let spare = self.resident().saturating_sub(self.budget.floor());
            let excess = self.budget.excess(0) / PAGE_BYTES as u64;
            self.evict(excess.min(spare));
            self.tasks.sweep();
        }
    }
}

impl Later for Answers {
    fn supply(&self, id: u64, bytes: &[u8], _: Supplied) -> bool {
        let host = self.0;
        let Some(asked) = lock(&host.asked).remove(&id) else {
            return false;
        };
        host.put_in(asked, &whole_pages(bytes));
        true
    }

    fn fail(&self, id: u64, error: PagerError) -> bool {
        let Some(asked) = lock(&self.0.asked).remove(&id) else {
            return false;
        };
        self.0.cannot(asked, error);
        true
    }
}

/// What a pager answered; the last page filled up with zeros.
pub(crate) fn whole_pages(bytes: &[u8]) -> Cow<'_, [u8]> {
    if bytes.len().is_multiple_of(PAGE_BYTES) {
        return Cow::Borrowed(bytes);
    }
    let mut whole = bytes.to_vec();
    whole.resize(bytes.len().next_multiple_of(PAGE_BYTES), 0);
    Cow::Owned(whole)
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn io_error(errno: Errno) -> std::io::Error {
    std::io::Error::from_raw_os_error(errno.0)
}

pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    /// Without one of its threads the host answers no more: the programs must notice.
    struct EndsAll;
    impl Drop for EndsAll {
        fn drop(&mut self) {
            std::process::abort();
        }
    }
    let builder = std::thread::Builder::new().name(name.to_string());
    let work = move || {
        let _ends_all = EndsAll;
        work();
    };
    builder.spawn(work).map_err(Error::Start)?;
    Ok(())
}
