//! All pagers in other processes: what they answer, when their time is up, what is given back.
//!
//! One thread takes the answers of all, in turn and without waiting for anybody; one looks at the
//! clock; one gives kept pages back; one cleans and flushes what pagers ask for.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, LazyLock, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use farpage_client::pager::protocol::{
    OfferedClient, PageOrder, PagingClient, Provided, Ready, RequestCalls,
};
use farpage_object::{Access, PAGE_BYTES, PageRange, Pager, PagerError, Supplied, errno};
use farpage_port::interface::{self, Answer, Both, Contents, InvokeError, Outgoing, Wire};
use farpage_port::{Name, Node, Notice, PortSet, Received, SendRight, Sender};
use farpage_sys::lock;

use super::cleaning::Cleaning;
use super::pager::{Outside, Session, words};
use crate::service::identity::identity;

/// A pager that does not begin in this time is refused.
const BEGINNING: Duration = Duration::from_secs(10);
/// What a pager may have sent and is not read yet: answers to all it can be asked at a time.
const QUEUE: u16 = 64;
/// All of a host kernel.
pub(crate) struct Outsides {
    node: Node,
    /// Where pagers answer.
    ports: PortSet,
    by_port: Mutex<HashMap<Name, Arc<Outside>>>,
    all: Mutex<Vec<Weak<Outside>>>,
    began: Instant,
    /// When to look at the clock.
    alarm: (Mutex<Option<Instant>>, Condvar),
    /// Kept pages may be given back.
    pressed: (Mutex<bool>, Condvar),
    /// Pagers have ordered something, or what orders wait for may have happened.
    ordered: (Mutex<bool>, Condvar),
    /// Called when an object's pager has taken all that was kept for it.
    given_back: Box<dyn Fn() + Send + Sync>,
}

/// A pager that has begun, and answers for nothing yet.
pub(crate) struct Begun {
    pub(crate) ready: Ready,
    session: Session,
}

impl Begun {
    pub(crate) fn pid(&self) -> u32 {
        self.session.pid
    }

    pub(crate) fn uid(&self) -> u32 {
        self.session.uid
    }
}

impl Outsides {
    /// Those of the host kernel whose Node it is. `given_back` is called when a pager has taken all
    /// that was kept for it.
    ///
    /// # Errors
    /// Without threads.
    pub(crate) fn start(
        node: &Node,
        given_back: Box<dyn Fn() + Send + Sync>,
    ) -> std::io::Result<Arc<Self>> {
        let all = Arc::new(Self {
            node: node.clone(),
            ports: node.port_set(),
            by_port: Mutex::default(),
            all: Mutex::default(),
            began: Instant::now(),
            alarm: (Mutex::default(), Condvar::new()),
            pressed: (Mutex::default(), Condvar::new()),
            ordered: (Mutex::default(), Condvar::new()),
            given_back,
        });
        let spawn = |name: &str, work: fn(&Self)| {
            let all = Arc::clone(&all);
            let builder = std::thread::Builder::new().name(name.into());
            builder.spawn(move || work(&all)).map(drop)
        };
        spawn("pagers-answer", Self::receive)?;
        spawn("pagers-clock", Self::watch_clock)?;
        spawn("pagers-return", Self::give_back)?;
        spawn("pagers-clean", Self::carry_out)?;
        Ok(all)
    }

    /// Asks a pager to begin. Waits for it.
    ///
    /// # Errors
    /// Why it does not, in words.
    pub(crate) fn begin(&self, object: &SendRight) -> Result<Begun, String> {
        let port = self.node.port();
        port.set_limit(QUEUE);
        let mut out = Outgoing::new(OfferedClient::INTERFACE.number("init"));
        let put = port.make_send().put(&mut out);
        put.map_err(|error| error.to_string())?;
        type Answered = Both<Result<Ready, String>, SendRight>;
        let begun = interface::invoke_by::<Answered>(
            object,
            &OfferedClient::INTERFACE,
            out,
            Some(BEGINNING),
        );
        let (sender, Both(ready, paging)) = begun.map_err(|error| match error {
            InvokeError::Call(why) => format!("it does not begin: {why}"),
            why => why.to_string(),
        })?;
        let ready = ready.map_err(|why| format!("it refuses: {}", words(&why)))?;
        let (uid, pid) = identity(sender);
        // One whose queue is full is asked later.
        let pager = PagingClient::new(paging).with_timeout(Duration::ZERO);
        let session = Session {
            pager,
            port,
            pid,
            uid,
        };
        Ok(Begun { ready, session })
    }

    /// Another pager for `outside`, or its first.
    pub(crate) fn take_over(&self, outside: &Arc<Outside>, begun: Begun) {
        let session = begun.session;
        let port = session.port.name();
        lock(&self.by_port).insert(port, Arc::clone(outside));
        session.pager.right().notify_dead(&session.port);
        self.ports.insert(&session.port);
        outside.begins(session);
    }

    /// The pager of an object that is to be made; it begins with [`Outsides::take_over`].
    pub(crate) fn outside(
        self: &Arc<Self>,
        ready: &Ready,
        patience: Option<Duration>,
        paging_space: Arc<dyn Pager>,
    ) -> Arc<Outside> {
        let outside = Outside::new(ready, patience, paging_space, Arc::clone(self));
        let mut all = lock(&self.all);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&outside));
        outside
    }

    /// A session is over.
    pub(super) fn forget(&self, session: &Session) {
        lock(&self.by_port).remove(&session.port.name());
    }

    /// Some moment, as a number.
    pub(super) fn tick(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.began).as_nanos() as u64
    }

    pub(super) fn instant(&self, tick: u64) -> Instant {
        self.began + Duration::from_nanos(tick)
    }

    /// Has the clock looked at, at `at` or before.
    pub(super) fn arm(&self, at: Instant) {
        let (armed, alarm) = &self.alarm;
        let mut armed = lock(armed);
        if armed.is_none_or(|armed| at < armed) {
            *armed = Some(at);
            alarm.notify_one();
        }
    }

    /// Kept pages may be given back.
    pub(super) fn press(&self) {
        *lock(&self.pressed.0) = true;
        self.pressed.1.notify_one();
    }

    pub(super) fn has_given_back(&self) {
        (self.given_back)();
    }

    /// An order may be carried out further.
    pub(super) fn press_orders(&self) {
        *lock(&self.ordered.0) = true;
        self.ordered.1.notify_one();
    }

    /// Hands over all that was modified, and waits until pagers have taken it, at most for
    /// `patience`. Returns the bytes that they have not.
    pub(crate) fn write_back(&self, patience: Duration) -> u64 {
        let until = Instant::now() + patience;
        let mut pages = 0;
        for outside in self.everyone() {
            let Some(object) = outside.object() else {
                continue;
            };
            let all = PageRange::new(0, object.pages());
            if let Err(error) = object.clean(all) {
                farpage_sys::say!("farpage: cannot write back '{}': {error}", object.name());
            }
            pages += outside.waits_until_taken(until);
        }
        pages * PAGE_BYTES as u64
    }

    fn everyone(&self) -> Vec<Arc<Outside>> {
        lock(&self.all).iter().filter_map(Weak::upgrade).collect()
    }

    fn receive(&self) {
        while let Ok(received) = self.ports.receive(None) {
            self.answer(received);
        }
    }

    fn answer(&self, received: Received) {
        let port = received.port;
        let Some(outside) = lock(&self.by_port).get(&port).cloned() else {
            return;
        };
        match received.notice() {
            Some(Notice::Dead(_)) => outside.ends(port, "is gone"),
            Some(_) => {}
            // It is no notice.
            None => drop(OfSession(self, &outside, port).dispatch(received)),
        }
    }

    fn watch_clock(&self) {
        let (armed, alarm) = &self.alarm;
        let mut at = lock(armed);
        loop {
            let now = Instant::now();
            at = match *at {
                None => alarm.wait(at).unwrap_or_else(PoisonError::into_inner),
                Some(then) if now < then => {
                    let waited = alarm.wait_timeout(at, then - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => {
                    *at = None;
                    drop(at);
                    let next = self
                        .everyone()
                        .iter()
                        .filter_map(|one| one.looks(now))
                        .min();
                    next.into_iter().for_each(|next| self.arm(next));
                    lock(armed)
                }
            };
        }
    }

    fn give_back(&self) {
        let (pressed, press) = &self.pressed;
        loop {
            let waited = press.wait_while(lock(pressed), |pressed| !*pressed);
            *waited.unwrap_or_else(PoisonError::into_inner) = false;
            // In turn: one that takes all in time does not hold up the others.
            while self
                .everyone()
                .iter()
                .filter(|one| one.gives_back())
                .count()
                > 0
            {}
        }
    }

    /// Carries out what pagers order, as far as that can be done.
    fn carry_out(&self) {
        let (ordered, order) = &self.ordered;
        let mut again: Option<Instant> = None;
        loop {
            let mut is_ordered = lock(ordered);
            while !*is_ordered && again.is_none_or(|again| Instant::now() < again) {
                is_ordered = match again {
                    None => order
                        .wait(is_ordered)
                        .unwrap_or_else(PoisonError::into_inner),
                    Some(again) => {
                        let left = again.saturating_duration_since(Instant::now());
                        let waited = order.wait_timeout(is_ordered, left);
                        waited.unwrap_or_else(PoisonError::into_inner).0
                    }
                };
            }
            *is_ordered = false;
            drop(is_ordered);
            let all = self.everyone();
            again = all.iter().filter_map(|one| one.carries_out()).min();
        }
    }
}

/// What comes to a session's port.
struct OfSession<'a>(&'a Outsides, &'a Arc<Outside>, Name);

impl OfSession<'_> {
    fn supply(&self, id: u64, contents: &[u8], how: Provided) {
        let Self(_, outside, port) = self;
        if !contents.len().is_multiple_of(PAGE_BYTES) {
            return outside.breaks(*port, "supplied a part of a page");
        }
        let pages = (contents.len() / PAGE_BYTES) as u64;
        if how.locked {
            outside.locks();
        }
        if let Some(ticket) = outside.answered(*port, id, Some(pages)) {
            let how = Supplied {
                pages,
                precious: how.precious,
                locked: how.locked.then_some(Access::Write),
            };
            ticket.supply_as(contents, how);
        }
    }
}

impl RequestCalls for OfSession<'_> {
    fn data_provided(&mut self, _: Sender, id: u64, how: Provided, contents: Contents) {
        self.supply(id, &contents, how);
    }

    fn data_unavailable(&mut self, _: Sender, id: u64, pages: u64) {
        /// More than are asked for at a time. A constant would be a MiB of every program.
        static ZEROS: LazyLock<Vec<u8>> = LazyLock::new(|| vec![0; 1 << 20]);
        let bytes = pages.saturating_mul(PAGE_BYTES as u64).min(1 << 20);
        self.supply(id, &ZEROS[..bytes as usize], Provided::default());
    }

    fn data_error(&mut self, _: Sender, id: u64, why: String) {
        let Self(_, outside, port) = self;
        if let Some(ticket) = outside.answered(*port, id, None) {
            let pid = outside.pid();
            let why = format!("its pager (process {pid}) says: {}", words(&why));
            outside.fail(ticket, PagerError::Read(errno::EIO), why);
        }
    }

    fn data_taken(&mut self, _: Sender, id: u64) {
        self.1.answers_write(self.2, id, true);
    }

    fn data_refused(&mut self, _: Sender, id: u64, why: String) {
        self.1.refuses_write(&words(&why));
        self.1.answers_write(self.2, id, false);
    }

    fn lock_request(
        &mut self,
        _: Sender,
        first: u64,
        pages: u64,
        order: PageOrder,
        answer: Answer<Result<(), String>>,
    ) {
        let Self(all, outside, port) = self;
        let Some(object) = outside.object() else {
            return;
        };
        let pages = PageRange::new(first, first.saturating_add(pages));
        let pages = pages.intersect(PageRange::new(0, object.pages()));
        let done = match order {
            _ if pages.is_empty() => Ok(()),
            PageOrder::Clean | PageOrder::Flush => {
                outside.orders(Cleaning::new(
                    *port,
                    pages,
                    order == PageOrder::Flush,
                    answer,
                ));
                return all.press_orders();
            }
            PageOrder::Lock => {
                outside.locks();
                outside.unlocked(pages);
                object.lock_pages(pages)
            }
            PageOrder::Unlock => {
                outside.unlocked(pages);
                object.unlock_pages(pages);
                Ok(())
            }
        };
        // Nobody may wait any more.
        let _ = answer.give(done.map_err(|error| error.to_string()));
    }

    fn set_attributes(&mut self, _: Sender, cluster_pages: u32) {
        self.1.set_cluster_pages(cluster_pages);
    }
}
