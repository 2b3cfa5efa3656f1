//! The kernel's side: a pager in another process, as the objects of this one know it.
//!
//! Invariant: while a lock of this module is held, nobody in another process is waited for, but for
//! a write that its pager is to take: that has [`TAKING`] and holds no lock.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

use farpage_abi::{Access, ObjectId, PAGE_BYTES, PageIndex, PageRange};
use farpage_host::Object;
use farpage_object::outside::{Outcome, Outside as UnderWay, Violation};
use farpage_pagers::{DataRequest, PageOut, Pager, PagerError, Supplied, Ticket, errno};
use farpage_port::{Name, ReceiveRight};

use super::outsides::Outsides;
use super::protocol::{PagingClient, Ready, Wanted};
use crate::lock;

/// A pager has so much time to take pages while page-out waits: then the default pager keeps them.
pub(crate) const TAKING: Duration = Duration::from_millis(50);
/// Pages of a write: they fit into a message.
pub(crate) const WRITE_PAGES: u64 = 8;
/// After a pager has refused pages they are offered again.
const AGAIN: Duration = Duration::from_millis(500);
/// A message that a full queue did not take is tried again.
const UNSENT_AGAIN: Duration = Duration::from_millis(5);

/// A pager in another process, of one object.
pub(crate) struct Outside {
    name: String,
    bytes: u64,
    pub(super) writable: bool,
    /// How long a thread waits for a page; `None`: until it comes.
    patience: Option<Duration>,
    cluster_pages: AtomicU64,
    number: OnceLock<ObjectId>,
    object: OnceLock<Weak<Object>>,
    state: Mutex<State>,
    /// A write has ended.
    wrote: Condvar,
    /// Whoever moves pages of this object to or from paging space has it.
    keeping: Mutex<()>,
    paging_space: Arc<dyn Pager>,
    all: Arc<Outsides>,
}

struct State {
    under_way: UnderWay<Ticket>,
    session: Option<Session>,
    /// The process of this session, or of the last.
    pager: u32,
    uid: u32,
    /// Why there is no session.
    cause: String,
    /// Not before that are pages offered again.
    again: Option<Instant>,
    /// What is said of pages that just fail.
    said: Vec<(PageRange, String)>,
    answered: u64,
    is_over: bool,
}

/// One pager, from `init` on.
pub(super) struct Session {
    pub(super) pager: PagingClient,
    /// What it answers to.
    pub(super) port: ReceiveRight,
    pub(super) pid: u32,
    pub(super) uid: u32,
}

/// How a pager does.
pub(crate) struct Health {
    pub(crate) pid: u32,
    pub(crate) is_up: bool,
    pub(crate) is_behind: bool,
    pub(crate) waiting: u64,
    pub(crate) kept_pages: u64,
    pub(crate) answered: u64,
    pub(crate) cause: String,
}

impl Outside {
    pub(super) fn new(
        ready: &Ready,
        patience: Option<Duration>,
        paging_space: Arc<dyn Pager>,
        all: Arc<Outsides>,
    ) -> Arc<Self> {
        let state = State {
            under_way: UnderWay::default(),
            session: None,
            pager: 0,
            uid: 0,
            cause: String::new(),
            again: None,
            said: Vec::new(),
            answered: 0,
            is_over: false,
        };
        Arc::new(Self {
            name: ready.name.clone(),
            bytes: ready.bytes,
            writable: ready.writable,
            patience,
            cluster_pages: AtomicU64::new(clusters(ready.cluster_pages)),
            number: OnceLock::new(),
            object: OnceLock::new(),
            state: Mutex::new(state),
            wrote: Condvar::new(),
            keeping: Mutex::new(()),
            paging_space,
            all,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The object that it is the pager of.
    pub(crate) fn answers_for(&self, object: &Arc<Object>) {
        self.object.get_or_init(|| Arc::downgrade(object));
    }

    pub(super) fn object(&self) -> Option<Arc<Object>> {
        self.object.get()?.upgrade()
    }

    /// A pager begins. All that waits is asked of it.
    pub(super) fn begins(self: &Arc<Self>, session: Session) {
        let mut state = self.state();
        state.pager = session.pid;
        state.uid = session.uid;
        state.under_way.comes();
        state.again = None;
        let before = state.session.replace(session);
        self.wrote.notify_all();
        drop(state);
        if let Some(before) = before {
            self.all.forget(&before);
        }
        self.pump();
        self.all.press();
    }

    /// The session at `port` is over, if it is this one still.
    pub(super) fn ends(&self, port: Name, cause: &str) {
        let mut state = self.state();
        if state
            .session
            .as_ref()
            .is_none_or(|session| session.port.name() != port)
        {
            return;
        }
        cause.clone_into(&mut state.cause);
        state.under_way.goes();
        let session = state.session.take();
        let (pid, over) = (state.pager, state.is_over);
        self.wrote.notify_all();
        drop(state);
        if let Some(session) = session {
            self.all.forget(&session);
        }
        if !over {
            let name = &self.name;
            eprintln!("farpage: the pager of '{name}' (process {pid}) {cause}; start it again");
        }
    }

    /// Whether another pager of `uid` may take over; otherwise the process that answers now.
    pub(crate) fn may_be_taken_over(&self, uid: u32, bytes: u64) -> Result<(), u32> {
        let state = self.state();
        let is_alive = state.under_way.is_up() && !state.under_way.is_behind();
        match !is_alive && state.uid == uid && self.bytes == bytes {
            true => Ok(()),
            false => Err(state.pager),
        }
    }

    pub(crate) fn health(&self) -> Health {
        let state = self.state();
        Health {
            pid: state.pager,
            is_up: state.under_way.is_up(),
            is_behind: state.under_way.is_behind(),
            waiting: state.under_way.waiting() as u64,
            kept_pages: state.under_way.owed() as u64,
            answered: state.answered,
            cause: state.cause.clone(),
        }
    }

    /// Pages that the default pager keeps, and that the pager has not taken.
    pub(crate) fn owes(&self) -> bool {
        self.state().under_way.owed() > 0
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }

    pub(super) fn set_cluster_pages(&self, pages: u32) {
        self.cluster_pages.store(clusters(pages), Ordering::Relaxed);
    }

    /// Sends what may be sent.
    fn pump(&self) {
        let mut state = self.state();
        let State {
            under_way, session, ..
        } = &mut *state;
        let Some(session) = session else { return };
        while let Some((id, pages, ticket)) = under_way.next_to_send() {
            let wanted = Wanted {
                first: pages.start.0,
                pages: pages.pages(),
                needed: ticket.needed().min(pages.pages()),
                write: ticket.access() == Access::Write,
                ahead: false,
            };
            if session.pager.data_request(id, wanted).is_err() {
                // It does not receive, or is gone: that is told.
                under_way.was_not_sent(id);
                self.all.arm(Instant::now() + UNSENT_AGAIN);
                return;
            }
        }
    }

    /// The session at `port` answers request `id`: `Ok(None)` when nobody waits any more.
    pub(super) fn answered(&self, port: Name, id: u64, pages: Option<u64>) -> Option<Ticket> {
        let mut state = self.of_session(port)?;
        let answered = state.under_way.answered(id, pages);
        state.answered += 1;
        drop(state);
        match answered {
            Ok(ticket) => {
                self.pump();
                ticket
            }
            Err(violation) => {
                self.violates(port, violation);
                None
            }
        }
    }

    /// The session at `port` has taken a write, or not.
    pub(super) fn answers_write(&self, port: Name, id: u64, taken: bool) {
        let Some(mut state) = self.of_session(port) else {
            return;
        };
        let wrote = state.under_way.wrote(id, taken);
        if !taken {
            state.again = Some(Instant::now() + AGAIN);
            self.all.arm(Instant::now() + AGAIN);
        }
        drop(state);
        self.wrote.notify_all();
        match wrote {
            Ok(()) => self.all.press(),
            Err(violation) => self.violates(port, violation),
        }
    }

    /// Says why the pager does not take pages.
    pub(super) fn refuses_write(&self, why: &str) {
        let mut state = self.state();
        let is_new = state.cause != why;
        why.clone_into(&mut state.cause);
        let pid = state.pager;
        drop(state);
        if is_new {
            let name = &self.name;
            eprintln!(
                "farpage: the pager of '{name}' (process {pid}) does not take modified pages: \
                 {why}; they are kept, and offered again"
            );
        }
    }

    fn of_session(&self, port: Name) -> Option<MutexGuard<'_, State>> {
        let state = self.state();
        let session = state.session.as_ref()?;
        (session.port.name() == port).then_some(state)
    }

    fn violates(&self, port: Name, violation: Violation) {
        let what = match violation {
            Violation::Unasked(id) => format!("answered number {id}, which it was not asked"),
            Violation::Length { asked, supplied } => {
                format!("supplied {supplied} pages where it was asked for {asked}")
            }
        };
        self.breaks(port, &what);
    }

    /// The pager broke the protocol.
    pub(super) fn breaks(&self, port: Name, what: &str) {
        self.ends(port, &format!("{what}, and is not asked any more: mend it"));
    }

    /// Fails a request, saying why.
    pub(super) fn fail(&self, ticket: Ticket, error: PagerError, why: String) {
        let pages = ticket.pages();
        self.state().said.push((pages, why));
        ticket.fail(error);
        let mut state = self.state();
        if let Some(at) = state.said.iter().position(|(of, _)| *of == pages) {
            state.said.swap_remove(at);
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.state().pager
    }

    /// Fails requests whose time is up, sends what was not sent. When to look again.
    pub(super) fn looks(&self, now: Instant) -> Option<Instant> {
        let mut state = self.state();
        let due = state.under_way.expire(self.all.tick(now));
        let cause = match state.under_way.is_up() {
            true => "does not answer",
            false => &state.cause,
        };
        let patience = self.patience.unwrap_or_default().as_secs_f32();
        let why = format!(
            "its pager (process {}) {cause}, and {patience} s have passed; end it and start it again",
            state.pager
        );
        drop(state);
        for (_, ticket) in due {
            self.fail(ticket, PagerError::Read(errno::ETIMEDOUT), why.clone());
        }
        self.pump();
        let state = self.state();
        let deadline = state.under_way.next_deadline();
        let deadline = deadline.map(|deadline| self.all.instant(deadline));
        let unsent = state.under_way.is_up() && state.under_way.has_unsent();
        let unsent = unsent.then(|| now + UNSENT_AGAIN);
        let again = state.again.filter(|again| *again > now);
        if state.again.is_some() && again.is_none() {
            self.all.press();
        }
        [deadline, unsent, again].into_iter().flatten().min()
    }

    /// Pages that are kept, the first of the request among them.
    fn request_kept(&self, request: &mut DataRequest<'_>) -> Option<Result<Supplied, PagerError>> {
        let _keeping = lock(&self.keeping);
        let (is_kept, run) = self.state().under_way.kept_first(request.pages());
        if !is_kept {
            return None;
        }
        let (object, access) = (request.object(), request.access());
        let needed = request.needed().min(run.pages());
        let buffer = &mut request.buffer()[..run.bytes() as usize];
        let kept = DataRequest::new(object, run, needed, access, buffer);
        let supplied = self.paging_space.data_request(kept);
        if let Ok(supplied) = supplied
            && supplied.precious
        {
            let first = run.start.0;
            let pages = PageRange::new(first, first + supplied.pages);
            self.state().under_way.forget(pages);
        }
        Some(supplied)
    }

    fn ask(&self, pages: PageRange, ticket: Ticket) {
        let until = self.patience.map(|patience| Instant::now() + patience);
        let mut state = self.state();
        if state.is_over {
            return;
        }
        let tick = until.map(|until| self.all.tick(until));
        state.under_way.ask(pages, tick, ticket);
        drop(state);
        if let Some(until) = until {
            self.all.arm(until);
        }
        self.pump();
    }

    /// Sends a run of pages to the pager; the number of that, unless they are to be kept.
    fn send(&self, pages: PageRange, contents: &[PageOut<'_>]) -> Option<u64> {
        let mut state = self.state();
        let id = state.under_way.begin_write(pages)?;
        let bytes = contents.iter().flat_map(|page| page.bytes).copied();
        let bytes: Vec<u8> = bytes.collect();
        let session = state.session.as_ref();
        let sent = session.is_some_and(|session| {
            let sent = session.pager.data_write(id, pages.start.0, bytes.into());
            sent.is_ok()
        });
        if !sent {
            state.under_way.withdraw(id);
        }
        sent.then_some(id)
    }

    /// Waits for the pager to take a write, until `until`: `Err` with its number when the pager has
    /// it still, and without when it was refused.
    fn wait(&self, id: u64, until: Instant) -> Result<(), Option<u64>> {
        let mut state = self.state();
        loop {
            match state.under_way.outcome(id) {
                Outcome::Taken => return Ok(()),
                Outcome::Refused => return Err(None),
                Outcome::Waits => {}
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let is_overdue = state.under_way.is_overdue(id);
                return Err(is_overdue.then_some(id));
            }
            let waited = self.wrote.wait_timeout(state, left);
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    /// The default pager takes pages in place of the pager, which has them as write `sent`.
    fn keep(
        &self,
        object: ObjectId,
        pages: PageRange,
        contents: &[PageOut<'_>],
        sent: Option<u64>,
    ) -> Result<(), PagerError> {
        let _keeping = lock(&self.keeping);
        self.paging_space.data_write(object, contents)?;
        self.state().under_way.keep(pages, sent);
        self.all.press();
        Ok(())
    }

    /// The pager has the newest contents of pages: what is kept of them is old.
    fn forget_kept(&self, object: ObjectId, pages: PageRange) {
        if self.state().under_way.keeps_some(pages) {
            let _keeping = lock(&self.keeping);
            self.state().under_way.forget(pages);
            self.paging_space.discard(object, pages);
        }
    }

    /// Gives kept pages to the pager as long as it takes them in time.
    pub(super) fn gives_back(&self) {
        let Some(object) = self.number.get().copied() else {
            return;
        };
        loop {
            let taken = lock_and(&self.keeping, || {
                let taken = self.state().under_way.taken();
                for pages in &taken {
                    self.paging_space.discard(object, *pages);
                }
                !taken.is_empty()
            });
            if taken && !self.owes() {
                self.all.has_given_back();
            }
            let Some((id, pages)) = self.begin_return(object) else {
                return;
            };
            match self.wait(id, Instant::now() + TAKING) {
                Ok(()) => self.state().under_way.end_return(id, pages, true),
                Err(None) => {
                    let mut state = self.state();
                    state.under_way.end_return(id, pages, false);
                    return;
                }
                // It may take them still.
                Err(Some(_)) => return,
            }
        }
    }

    /// Sends the next kept pages.
    fn begin_return(&self, object: ObjectId) -> Option<(u64, PageRange)> {
        let _keeping = lock(&self.keeping);
        let mut state = self.state();
        if state.again.is_some_and(|again| Instant::now() < again) {
            return None;
        }
        let (id, pages) = state.under_way.begin_return(WRITE_PAGES)?;
        drop(state);
        let contents = self.read_kept(object, pages);
        let mut state = self.state();
        let sent = contents.is_ok_and(|contents| {
            let session = state.session.as_ref();
            session.is_some_and(|session| {
                let sent = session.pager.data_write(id, pages.start.0, contents.into());
                sent.is_ok()
            })
        });
        if !sent {
            state.under_way.withdraw(id);
            let again = Instant::now() + AGAIN;
            state.again = Some(again);
            self.all.arm(again);
            return None;
        }
        Some((id, pages))
    }

    /// What paging space has of kept pages; it has them still after that.
    fn read_kept(&self, object: ObjectId, pages: PageRange) -> Result<Vec<u8>, PagerError> {
        let mut contents = vec![0; pages.bytes() as usize];
        let mut at = pages.start.0;
        while at < pages.end.0 {
            let rest = PageRange::new(at, pages.end.0);
            let begin = (at - pages.start.0) as usize * PAGE_BYTES;
            let buffer = &mut contents[begin..];
            let request = DataRequest::new(object, rest, rest.pages(), Access::Read, buffer);
            let supplied = self.paging_space.data_request(request)?;
            if supplied.pages == 0 || supplied.pages > rest.pages() {
                return Err(PagerError::Violation);
            }
            if supplied.precious {
                let end = begin + supplied.pages as usize * PAGE_BYTES;
                let parts = contents[begin..end].as_chunks::<PAGE_BYTES>().0;
                let parts = parts.iter().zip(at..);
                let back: Vec<PageOut<'_>> = parts
                    .map(|(bytes, page)| PageOut {
                        page: PageIndex(page),
                        bytes,
                    })
                    .collect();
                // It had them a moment ago: there is room, or will be.
                while self.paging_space.data_write(object, &back).is_err() {
                    std::thread::sleep(TAKING);
                }
            }
            at += supplied.pages;
        }
        Ok(contents)
    }
}

impl Pager for Outside {
    fn init(&self, object: ObjectId, _: u64) -> Result<(), PagerError> {
        self.number.get_or_init(|| object);
        Ok(())
    }

    fn data_request(&self, mut request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        let mut pages = request.pages();
        if self.state().under_way.keeps_some(pages) {
            if let Some(supplied) = self.request_kept(&mut request) {
                return supplied;
            }
            pages = self.state().under_way.kept_first(pages).1;
        }
        Ok(request.later(|ticket| self.ask(pages, ticket)))
    }

    fn explain(&self, _: ObjectId, page: PageIndex, into: &mut dyn std::fmt::Write) -> bool {
        let state = self.state();
        let said = state.said.iter().find(|(pages, _)| pages.contains(page));
        said.is_some_and(|(_, why)| write!(into, "{why}").is_ok())
    }

    fn cluster_pages(&self, _: ObjectId, _: PageIndex) -> u64 {
        self.cluster_pages.load(Ordering::Relaxed)
    }

    fn is_at_hand(&self, _: ObjectId, page: PageIndex) -> bool {
        !self.state().under_way.keeps_some(PageRange::one(page))
    }

    fn data_write(&self, object: ObjectId, pages: &[PageOut<'_>]) -> Result<(), PagerError> {
        let follows = |one: &PageOut<'_>, next: &PageOut<'_>| one.page.0 + 1 == next.page.0;
        let runs = pages.chunk_by(follows);
        let runs = runs.flat_map(|run| run.chunks(WRITE_PAGES as usize));
        let range = |run: &[PageOut<'_>]| {
            let first = run[0].page.0;
            PageRange::new(first, first + run.len() as u64)
        };
        let writes = runs.map(|run| (run, range(run), self.send(range(run), run)));
        let writes: Vec<_> = writes.collect();
        let until = Instant::now() + TAKING;
        let mut result = Ok(());
        for (run, pages, sent) in writes {
            let taken = match sent {
                Some(id) => self.wait(id, until),
                None => Err(None),
            };
            match taken {
                Ok(()) => self.forget_kept(object, pages),
                Err(sent) => result = result.and(self.keep(object, pages, run, sent)),
            }
        }
        result
    }

    fn terminate(&self, object: ObjectId) {
        let mut state = self.state();
        state.is_over = true;
        let requests = state.under_way.take_requests();
        let session = state.session.take();
        state.under_way.goes();
        drop(state);
        drop(requests);
        if let Some(session) = session {
            // When it does not hear it, the end of the port says the same.
            let _ = session.pager.terminate();
            self.all.forget(&session);
        }
        self.paging_space.terminate(object);
    }
}

/// What the kernel makes of a number of pages that takes hardly longer than one.
fn clusters(pages: u32) -> u64 {
    const MOST: u32 = 64;
    let pages = pages.clamp(1, MOST);
    1 << pages.ilog2()
}

fn lock_and<T>(mutex: &Mutex<()>, act: impl FnOnce() -> T) -> T {
    let _guard = lock(mutex);
    act()
}

/// The words of a pager, as far as they are fit to be shown.
pub(super) fn words(why: &str) -> String {
    let mut shown = String::new();
    let fit = why.chars().filter(|c| !c.is_control()).take(200);
    fit.for_each(|c| {
        let _ = write!(shown, "{c}");
    });
    shown
}
