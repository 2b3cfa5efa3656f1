//! The kernel's side: a pager in another process, as the objects of this one know it.
//!
//! Invariant: while a lock of this module is held, nobody in another process is waited for, but for
//! a write that its pager is to take (`kept.rs`): that has 50 ms, and holds no lock.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

use farpage_client::pager::protocol::{DataWanted, PagingClient, Ready};
use farpage_host::Object;
use farpage_object::outside::{Outside as UnderWay, Violation};
use farpage_object::{
    Access, DataRequest, ObjectId, PageIndex, PageOut, PageRange, Pager, PagerError, Supplied,
    Ticket, errno,
};
use farpage_port::{Name, ReceiveRight};
use farpage_sys::lock;

use super::cleaning::Cleaning;
use super::pagers::Outsides;

/// After a pager has refused pages they are offered again.
pub(super) const AGAIN: Duration = Duration::from_millis(500);
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
    pub(super) number: OnceLock<ObjectId>,
    object: OnceLock<Weak<Object>>,
    state: Mutex<State>,
    /// A write has ended.
    pub(super) wrote: Condvar,
    /// Whoever moves pages of this object to or from paging space has it.
    pub(super) keeping: Mutex<()>,
    pub(super) paging_space: Arc<dyn Pager>,
    pub(super) all: Arc<Outsides>,
}

pub(super) struct State {
    pub(super) under_way: UnderWay<Ticket>,
    pub(super) session: Option<Session>,
    /// The process of this session, or of the last.
    pager: u32,
    uid: u32,
    /// Why there is no session.
    pub(super) cause: String,
    /// Not before that are pages offered again.
    pub(super) again: Option<Instant>,
    /// What is said of pages that just fail.
    said: Vec<(PageRange, String)>,
    answered: u64,
    is_over: bool,
    /// The pager locks pages.
    pub(super) locks: bool,
    /// What it has ordered, but for what is just carried out, and how much that is in all.
    pub(super) cleanings: Vec<Cleaning>,
    pub(super) orders: usize,
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
            locks: false,
            cleanings: Vec::new(),
            orders: 0,
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

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
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
        self.all.press_orders();
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
        self.all.press_orders();
        if !over {
            let name = &self.name;
            farpage_sys::say!(
                "farpage: the pager of '{name}' (process {pid}) {cause}; start it again"
            );
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
        while let Some(page) = under_way.next_unlock_to_send() {
            if session.pager.data_unlock(page).is_err() {
                under_way.unlock_was_not_sent(page);
                self.all.arm(Instant::now() + UNSENT_AGAIN);
                return;
            }
        }
        while let Some((id, pages, ticket)) = under_way.next_to_send() {
            let wanted = DataWanted {
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
                if ticket.is_none() {
                    // It may keep up again.
                    self.all.press();
                }
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
        if state.orders > 0 {
            self.all.press_orders();
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
            farpage_sys::say!(
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
        let locked = state.under_way.expire_unlocks(self.all.tick(now));
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
        if let Some(object) = self.object().filter(|_| !locked.is_empty()) {
            let why = format!("it is locked against writing, {why}");
            for page in locked {
                object.unlock_fails(PageRange::new(page, page + 1), &why);
            }
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

    /// The pager is to be asked for something, at the latest until some tick.
    fn ask(&self, ask: impl FnOnce(&mut UnderWay<Ticket>, Option<u64>)) {
        let until = self.patience.map(|patience| Instant::now() + patience);
        let mut state = self.state();
        if state.is_over {
            return;
        }
        let tick = until.map(|until| self.all.tick(until));
        ask(&mut state.under_way, tick);
        drop(state);
        if let Some(until) = until {
            self.all.arm(until);
        }
        self.pump();
    }

    /// The pager locks pages, or unlocks them, or has them back: who waits to write to them asks
    /// again.
    pub(super) fn unlocked(&self, pages: PageRange) {
        self.state().under_way.unlocked(pages);
    }

    /// The pager is one that locks pages: it is asked before somebody writes to kept ones.
    pub(super) fn locks(&self) {
        self.state().locks = true;
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
        Ok(request.later(|ticket| {
            let covers = ticket.pages();
            self.ask(|under_way, until| {
                under_way.ask(pages, covers, until, ticket);
            });
        }))
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
        self.write(object, pages)
    }

    fn data_unlock(&self, _: ObjectId, page: PageIndex, _: Access) -> bool {
        self.ask(|under_way, until| under_way.ask_unlock(page.0, until));
        false
    }

    fn terminate(&self, object: ObjectId) {
        let mut state = self.state();
        state.is_over = true;
        let requests = state.under_way.take_requests();
        let session = state.session.take();
        state.under_way.goes();
        self.wrote.notify_all();
        drop(state);
        self.all.press_orders();
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

/// The words of a pager, as far as they are fit to be shown.
pub(super) fn words(why: &str) -> String {
    let mut shown = String::new();
    let fit = why.chars().filter(|c| !c.is_control()).take(200);
    fit.for_each(|c| {
        let _ = write!(shown, "{c}");
    });
    shown
}
