//! One shared object at this host: the pager of the host's kernel, and a peer of other hosts.

mod contents;
mod durable;
mod leave;
mod line;
mod locked;
mod mirrored;
mod pager;
mod recovery;
mod seal;
mod seen;
mod simple;
mod stale;
mod twinned;

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

use farpage_host::Object;
use farpage_membership::{Consistency, Scheduler};
use farpage_object::{Access, ObjectId, PAGE_BYTES, PageRange, PagerError, errno};
use farpage_rules::coherence::{Contents, HOSTS_MAX, Host, Message, Output};
use farpage_rules::coherence::{Page, Twinned, Violation};
use farpage_sys::lock;

use crate::backing::Backing;
use crate::cell::{Cell, Event};
use crate::counters::{Counters, Figures, count};
use crate::holds::Due;
use crate::line::{Happening, Line};
use crate::mirrored::State as Mirrored;
use crate::recovery::of_nobody;
use crate::scheduled::Scheduled;
use crate::server::Shell;
use crate::simple::{Does, Simple, State as OfSimple};
use crate::twins::{State as Twins, Waits};
use crate::types::Types;
use crate::unit::Places;
use crate::wire::Said;
use leave::Untouched;
pub(crate) use locked::{Locking, NotTaken};

/// Cells are kept in so many parts, each with its lock.
const PARTS: u64 = 16;
/// The last contents died with a host.
pub(crate) const LOST: PagerError = PagerError::Read(errno::EIO);
/// Whoever had the last contents cannot read them.
pub(crate) const UNREADABLE: PagerError = PagerError::Read(errno::EREMOTEIO);
/// This host may not act any more.
pub(crate) const FENCED: PagerError = PagerError::Read(errno::EHOSTUNREACH);
/// Nobody may write.
pub(crate) const SEALED: PagerError = PagerError::Read(errno::EROFS);
/// Who had all contents has died.
const HOMELESS: PagerError = PagerError::Dead;

/// What a shared object is, the same at all hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Its number, which no other object of the cluster ever has.
    pub number: u64,
    /// What messages call it.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Pages that go from host to host together: a power of two, at most 512.
    pub unit_pages: u64,
    /// Who decides who may have a unit.
    pub scheduler: Scheduler,
    /// On how many hosts is what another host sees: 2, or 1.
    pub replicas: u8,
    /// Who has all of it, as zeros, in the beginning.
    pub home: Host,
    /// Which stay of that host.
    pub stay: u64,
    /// Threads that were let in to a unit keep it so long, if they have not run yet.
    pub hold: Duration,
    /// When a host sees what another has written.
    pub consistency: Consistency,
    /// What a host reads may be so old; `None`: it is what was written last.
    pub stale: Option<Duration>,
    /// Its home has a file of what was flushed ([`crate::Backing`]).
    pub is_durable: bool,
    /// Its numbers, at a host whose own are in another byte order than those between hosts.
    pub turned: Option<Arc<Types>>,
}

impl About {
    /// A host that was home before `own`.
    fn home_before(&self, own: Host) -> Host {
        match self.home == own {
            // Its slot is another's by now.
            true => Host((own.0 + 1) % HOSTS_MAX),
            false => self.home,
        }
    }
}

/// One of them at this host.
pub(crate) struct Shared {
    pub(crate) about: About,
    shell: Arc<Shell>,
    own: Weak<Self>,
    kernel: OnceLock<Weak<Object>>,
    /// The number that the kernel calls it by, and paging space.
    number: OnceLock<ObjectId>,
    cells: [Mutex<HashMap<u64, Cell>>; PARTS as usize],
    counters: Counters,
    /// Why units could not be had.
    failures: Mutex<HashMap<u64, PagerError>>,
    /// When it was last said that one cannot be read here.
    unread_said: Mutex<Option<Instant>>,
    /// Its home now.
    home: Mutex<Home>,
    kind: Kind,
    /// Its file, at its home.
    backing: Option<Backing>,
    /// Its home has gone, and it with it.
    is_homeless: AtomicBool,
    /// Somebody flushes it.
    flushes: Mutex<()>,
    /// What has yet to happen, if it happens one after the other.
    line: Mutex<Line>,
    untouched: Mutex<Untouched>,
    /// Nobody is to write to it any more.
    is_sealed: AtomicBool,
}

/// Who owns what nobody touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Home {
    pub(crate) host: Host,
    /// It is another than in the beginning, which has died.
    pub(crate) is_next: bool,
}

/// Who decides of an object, and what that needs besides cells.
enum Kind {
    /// The distributed scheduler; units die with their owner.
    Plain,
    /// Release consistency; units die with their owner.
    Twinned(Twins),
    /// The distributed scheduler, and what others see is on two hosts.
    Mirrored(Mutex<Mirrored>),
    /// The simple scheduler.
    Simple(Mutex<OfSimple>),
}

impl Kind {
    fn of(about: &About, home: Home) -> Self {
        match (about.scheduler, about.replicas) {
            (Scheduler::Simple, _) => Self::Simple(Mutex::new(OfSimple {
                is_homeless: home.is_next,
                ..OfSimple::default()
            })),
            (Scheduler::Distributed, 1) => match about.consistency {
                Consistency::Strict => Self::Plain,
                Consistency::Release => Self::Twinned(Twins::default()),
            },
            (Scheduler::Distributed, _) => Self::Mirrored(Mutex::default()),
        }
    }
}

/// What is to be done, without any lock, for a cell that is at work.
struct Work {
    outputs: Vec<Does>,
    /// What came with the message that led to them.
    came: Option<Box<[u8]>>,
    /// Somebody wants to know what this host changes.
    is_watched: bool,
}

impl Shared {
    pub(crate) fn new(
        about: About,
        home: Home,
        shell: Arc<Shell>,
        backing: Option<Backing>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            home: Mutex::new(home),
            backing,
            is_homeless: AtomicBool::new(about.is_durable && home.is_next),
            flushes: Mutex::default(),
            kind: Kind::of(&about, home),
            line: Mutex::default(),
            untouched: Mutex::default(),
            is_sealed: AtomicBool::new(false),
            about,
            shell,
            own: Weak::clone(own),
            kernel: OnceLock::new(),
            number: OnceLock::new(),
            cells: std::array::from_fn(|_| Mutex::default()),
            counters: Counters::default(),
            failures: Mutex::default(),
            unread_said: Mutex::default(),
        })
    }

    /// The kernel's side of it.
    pub(crate) fn is_of(&self, kernel: &Arc<Object>) {
        self.kernel.get_or_init(|| Arc::downgrade(kernel));
    }

    pub(crate) fn figures(&self) -> Figures {
        let mut figures = self.counters.figures();
        for part in &self.cells {
            for cell in lock(part).values() {
                let is_owner = cell.unit.is_owner();
                figures.owned += u64::from(is_owner);
                figures.copies += u64::from(!is_owner && cell.unit.allowed().is_some());
            }
        }
        if let Some(mirrored) = self.mirrored() {
            let state = lock(mirrored);
            figures.on_their_way = state.on_their_way();
            figures.kept = state.mirror.kept_pages() as u64;
        }
        figures
    }

    /// Bytes of a unit, whole pages.
    pub(crate) fn unit_bytes(&self) -> usize {
        self.about.unit_pages as usize * PAGE_BYTES
    }

    /// Bytes of a unit; the last may be shorter.
    pub(crate) fn unit_bytes_of(&self, unit: u64) -> usize {
        self.pages_of(unit).bytes() as usize
    }

    /// Contents of a unit as they are between hosts.
    fn abroad<'a>(&self, unit: u64, contents: &'a [u8]) -> Cow<'a, [u8]> {
        match &self.about.turned {
            None => Cow::Borrowed(contents),
            Some(types) => {
                let mut contents = contents.to_vec();
                types.turn(unit * self.unit_bytes() as u64, &mut contents);
                Cow::Owned(contents)
            }
        }
    }

    /// Contents of a unit, or of a part of it from its first byte on, that came from another host.
    pub(crate) fn at_home(&self, unit: u64, contents: &[u8]) -> Box<[u8]> {
        self.abroad(unit, contents).into()
    }

    pub(crate) fn units(&self) -> u64 {
        self.about.bytes.div_ceil(self.unit_bytes() as u64)
    }

    /// A peer sent a message of a unit.
    pub(crate) fn came(
        &self,
        from: Host,
        unit: u64,
        message: Message,
        contents: Option<Box<[u8]>>,
    ) -> Result<(), Violation> {
        let event = Event::Came {
            from,
            message,
            contents,
        };
        self.happens(unit, event)
    }

    /// Threads of a unit had time enough.
    pub(crate) fn lets_go(&self, unit: u64) {
        // No peer has to do with it.
        let _ = self.happens(unit, Event::LetGo);
    }

    fn pages_of(&self, unit: u64) -> PageRange {
        let first = unit * self.about.unit_pages;
        let end = self.about.bytes.div_ceil(PAGE_BYTES as u64);
        PageRange::new(first, end.min(first + self.about.unit_pages))
    }

    /// Units that have some of these pages.
    pub(crate) fn units_of(&self, pages: PageRange) -> Range<u64> {
        let end = pages.end.0.div_ceil(self.about.unit_pages);
        pages.start.0 / self.about.unit_pages..end.min(self.units())
    }

    fn part(&self, unit: u64) -> MutexGuard<'_, HashMap<u64, Cell>> {
        lock(&self.cells[(unit % PARTS) as usize])
    }

    /// Something happens to a unit: it is done here, or by whoever is at work on it. The error is of
    /// the last message that cannot be.
    fn happens(&self, unit: u64, event: Event) -> Result<(), Violation> {
        if self.is_in_line() {
            return self.happens_in_line(Happening::Unit(unit, event));
        }
        let _entered = self.shell.gate.enter();
        let mut wrong = Ok(());
        let mut part = self.part(unit);
        let cell = part.entry(unit).or_insert_with(|| self.untouched(unit));
        cell.inbox.push_back(event);
        if std::mem::replace(&mut cell.is_busy, true) {
            return Ok(());
        }
        loop {
            let cell = part.get_mut(&unit).expect("a cell that is busy stays");
            let Some(event) = cell.inbox.pop_front() else {
                cell.is_busy = false;
                return wrong;
            };
            drop(part);
            if let Err(violation) = self.act(unit, event) {
                wrong = Err(violation);
            }
            part = self.part(unit);
        }
    }

    /// A unit that this host has not touched so far.
    fn untouched(&self, unit: u64) -> Cell {
        let (own, home) = (self.shell.own, *lock(&self.home));
        if self.simple().is_some() {
            return Cell::new(Scheduled::Simple(Simple::new(own, home.host)), false);
        }
        let is_new = own == home.host && !home.is_next;
        if own != home.host || is_new {
            return self.maybe_frozen(self.scheduled(home.host), is_new);
        }
        // Whoever had it died; others may say more, if they have not yet.
        let mut page = self.scheduled(self.about.home_before(own));
        if self.shell.is_frozen() {
            return self.maybe_frozen(page, false);
        }
        page.freeze();
        let verdict = of_nobody(own, self.known(unit));
        self.is_touched(unit);
        page.resume(own, &verdict).expect("nothing is known of it");
        // Nothing of it is anywhere yet, so nothing is to be done.
        while page.poll().is_some() {}
        Cell::new(page, verdict.contents == Contents::First)
    }

    fn scheduled(&self, owner: Host) -> Scheduled {
        match self.kind {
            Kind::Twinned(_) => Scheduled::Twinned(Box::new(Twinned::new(self.shell.own, owner))),
            Kind::Plain | Kind::Mirrored(_) | Kind::Simple(_) => {
                Scheduled::Distributed(self.page(owner))
            }
        }
    }

    fn page(&self, owner: Host) -> Page {
        let page = match (self.is_mirrored(), &self.backing) {
            (true, _) => Page::mirrored(self.shell.own, owner),
            (false, Some(_)) => Page::new(self.shell.own, owner).flushed(),
            (false, None) => Page::new(self.shell.own, owner),
        };
        let mut page = match self.about.stale {
            Some(_) => page.lend(),
            None => page.find_migration(),
        };
        if self.is_sealed() {
            page.seal();
            // Nothing of it is anywhere yet, so nothing is to be done.
            while page.poll_output().is_some() {}
        }
        page
    }

    fn maybe_frozen(&self, mut page: Scheduled, is_new: bool) -> Cell {
        if self.shell.is_frozen() {
            page.freeze();
        }
        Cell::new(page, is_new)
    }

    /// Looks at a cell that this thread is at work on.
    fn with<T>(&self, unit: u64, act: impl FnOnce(&mut Cell) -> T) -> T {
        let mut part = self.part(unit);
        act(part.get_mut(&unit).expect("a cell that is busy stays"))
    }

    /// Why no unit can be had at this host any more.
    fn over(&self) -> Option<PagerError> {
        match (self.shell.is_fenced(), self.is_homeless()) {
            (true, _) => Some(FENCED),
            (false, true) => Some(HOMELESS),
            (false, false) => None,
        }
    }

    fn act(&self, unit: u64, event: Event) -> Result<(), Violation> {
        if let Some(error) = self.over() {
            match event {
                Event::Wanted(ticket) => {
                    lock(&self.failures).insert(unit, error);
                    ticket.fail(error);
                }
                // Who waits sees that it has gone.
                Event::Flush(flushed) => drop(flushed),
                Event::Release(call) | Event::Acquire(call) => call.fails(error),
                Event::Lock(locking) => self.answers_lock(&locking, Err(NotTaken::Failed(error))),
                _ => {}
            }
            return Ok(());
        }
        let Some(event) = self.as_it_leaves(unit, event) else {
            return Ok(());
        };
        self.acts(unit, |places| match event {
            Event::Wanted(ticket) => Ok(self.wanted(places, unit, ticket)),
            Event::Unlock => Ok(self.unlock(places, unit)),
            Event::TakeOver => Ok(self.is_to_take(places, unit)),
            Event::Lock(locking) => Ok(self.is_to_lock(places, unit, locking)),
            Event::GiveUp(locking) => Ok(self.gives_up_lock(places, unit, &locking)),
            Event::GiveBack(access) => {
                self.gives_lock_back(unit, access);
                Ok(Ok(()))
            }
            Event::GiveAllBack => {
                self.gives_locks_back(unit);
                Ok(Ok(()))
            }
            Event::Expire => {
                self.expire(unit);
                Ok(Ok(()))
            }
            Event::Seal => {
                self.with(unit, |cell| cell.unit.page().map(Page::seal));
                Ok(Ok(()))
            }
            Event::Watch => {
                self.watch(places, unit);
                Ok(Ok(()))
            }
            Event::Flush(flushed) => Ok(self.flush_unit(places, unit, flushed)),
            Event::LetGo => {
                self.with(unit, |cell| cell.is_timed = false);
                Ok(Ok(()))
            }
            Event::Release(call) => {
                self.calls(unit, call, |page| page.release().map(Waits::Released));
                Ok(Ok(()))
            }
            Event::Acquire(call) => {
                self.calls(unit, call, |page| page.acquire().map(Waits::Acquired));
                Ok(Ok(()))
            }
            Event::Put { apply, is_put } => {
                self.after_put(places, unit, apply, is_put);
                Ok(Ok(()))
            }
            Event::Twin {
                from,
                message,
                came,
            } => {
                self.with(unit, |cell| {
                    cell.counts.came();
                    let page = cell.unit.twinned();
                    page.map_or(Ok(()), |page| page.handle(from, message))
                })?;
                self.carry_out(places, unit, came);
                Ok(Ok(()))
            }
            Event::Came {
                from,
                message,
                contents,
            } => {
                let keeps = self.keeps_to_give(places, unit, &message);
                self.with(unit, |cell| {
                    cell.counts.came();
                    match cell.unit.page() {
                        Some(page) => page.handle(from, message),
                        None => Err(Violation {
                            by: from,
                            what: "a message of another scheduler",
                        }),
                    }
                })?;
                self.carry_out(places, unit, contents);
                self.has_given(unit, keeps);
                Ok(Ok(()))
            }
        })
    }

    /// Does something with a unit, and all that follows.
    fn acts(
        &self,
        unit: u64,
        act: impl FnOnce(&Places<'_>) -> Result<Result<(), PagerError>, Violation>,
    ) -> Result<(), Violation> {
        let Some(kernel) = self.kernel.get().and_then(Weak::upgrade) else {
            // It goes: tickets are dropped, and messages.
            return Ok(());
        };
        if self.is_in_line() {
            let mut part = self.part(unit);
            part.entry(unit).or_insert_with(|| self.untouched(unit));
        }
        let places = self.places(&kernel);
        self.may_be_here(unit);
        let done = act(&places)?;
        self.carry_out(&places, unit, None);
        if let Err(error) = done {
            self.fails(unit, error);
        }
        self.let_go(&places, unit);
        self.ends_calls(unit);
        Ok(())
    }

    /// What others wait for goes on, once the threads that were let in have had their time.
    fn let_go(&self, places: &Places<'_>, unit: u64) {
        while self.with(unit, |cell| cell.unit.is_awaited()) {
            if let Some(at) = self.with(unit, |cell| cell.until(self.about.hold)) {
                if !self.with(unit, |cell| std::mem::replace(&mut cell.is_timed, true)) {
                    let own = Weak::clone(&self.own);
                    self.shell.holds.add(at, own, Due::LetGo(unit));
                }
                return;
            }
            self.with(unit, |cell| {
                cell.has_let_in();
                cell.unit.let_go();
            });
            self.carry_out(places, unit, None);
        }
    }

    fn places<'a>(&'a self, kernel: &'a Object) -> Places<'a> {
        Places {
            kernel,
            paging_space: &*self.shell.paging_space,
            number: *self.number.get().expect("the kernel has begun to use it"),
            backing: self.backing.as_ref(),
        }
    }

    /// Does what the scheduler of a unit says, until it says no more.
    fn carry_out(&self, places: &Places<'_>, unit: u64, came: Option<Box<[u8]>>) {
        let mut work = Work {
            outputs: Vec::new(),
            came,
            is_watched: false,
        };
        loop {
            (work.outputs, work.is_watched) = self.with(unit, |cell| {
                let outputs: Vec<Does> = std::iter::from_fn(|| cell.unit.poll()).collect();
                cell.counts.does(self.shell.own, &outputs);
                (outputs, cell.watch.is_some())
            });
            if work.outputs.is_empty() {
                self.may_have_written(unit);
                return;
            }
            for output in std::mem::take(&mut work.outputs) {
                let done = match output {
                    Does::As(output) => self.does(places, unit, output, &mut work),
                    Does::Send(to, message) => {
                        self.says_simple(places, unit, to, message);
                        Ok(())
                    }
                    Does::Store => {
                        self.stores(unit, work.came.take());
                        Ok(())
                    }
                    Does::Twinned(output) => self.does_twinned(places, unit, output, &mut work),
                };
                if let Err(error) = done {
                    self.fails(unit, error);
                }
            }
        }
    }

    fn does(
        &self,
        places: &Places<'_>,
        unit: u64,
        output: Output,
        work: &mut Work,
    ) -> Result<(), PagerError> {
        let pages = self.pages_of(unit);
        match output {
            Output::Take => {
                self.with(unit, |cell| {
                    cell.is_bad = work.came.is_none();
                    (cell.contents, cell.is_new) = (work.came.take(), false);
                });
            }
            Output::Allow(Some(Access::Write)) => {
                if let Some(backing) = &self.backing {
                    backing.may_change(unit);
                }
                if work.is_watched {
                    self.may_change(places, unit);
                }
            }
            Output::Allow(Some(Access::Read)) => {
                places.kernel.lock_pages(pages)?;
                if work.is_watched {
                    self.has_changed(places, unit);
                }
            }
            Output::Allow(None) => {
                count(&self.counters.dropped);
                self.with(unit, |cell| {
                    cell.has_let_in();
                    cell.is_bad = false;
                    (cell.contents, cell.is_new) = (None, false);
                });
                if let Some(backing) = &self.backing {
                    backing.leaves(unit);
                }
                places.forget(pages)?;
            }
            Output::Withdraw => {
                self.withdraw(places, unit)?;
                if work.is_watched {
                    self.has_changed(places, unit);
                }
            }
            Output::Send(to, message) => self.sends(places, unit, to, message),
            Output::Lost => self.fails(unit, LOST),
            Output::Sealed => self.refuses_to_write(unit),
            Output::Show {
                to,
                message,
                version,
            } => {
                self.counts_message(&message);
                self.shows(places, unit, to, message, Some(version));
            }
            Output::Keep(version) => self.keeps_own(places, unit, version),
            Output::Restore(version) => self.restores(places, unit, version)?,
            Output::Answer(access) => {
                self.with(unit, Cell::lets_in);
                self.lent_until(unit);
                self.flushes_waiting(places, unit)?;
                self.takes_locks(places, unit)?;
                let is_owner = self.with(unit, |cell| cell.unit.is_owner());
                self.supply(places, unit, access, is_owner)?;
                if access == Access::Write {
                    self.with(unit, |cell| cell.waits_to_unlock = false);
                    places.kernel.unlock_pages(pages);
                }
            }
        }
        Ok(())
    }

    fn sends(&self, places: &Places<'_>, unit: u64, to: Host, message: Message) {
        self.counts_message(&message);
        if message.has_contents() && self.goes_by_backup() {
            return self.shows(places, unit, to, message, None);
        }
        self.asks_at(unit, &message);
        // Before it is counted as sent: it may take long.
        let contents = match message.has_contents() {
            true => self.contents_to_send(places, unit),
            false => None,
        };
        self.says_of_unit(unit, to, message, contents.as_deref());
    }

    /// A message goes straight to a host.
    fn says_of_unit(&self, unit: u64, to: Host, message: Message, contents: Option<&[u8]>) {
        count(&self.counters.sent);
        let Some(generation) = self.shell.generation_to(to) else {
            // It has died: what it asked for is not asked for any more.
            return;
        };
        let said = Said::Unit {
            object: self.about.number,
            unit,
            generation,
            origin: self.shell.own,
            message,
        };
        let head = said.bytes();
        match contents {
            Some(contents) => self.shell.send(to, &[&head, &self.abroad(unit, contents)]),
            None => self.shell.send(to, &[&head]),
        }
    }

    fn counts_message(&self, message: &Message) {
        match message {
            Message::Request(request) if request.by != self.shell.own => {
                count(&self.counters.forwarded);
            }
            Message::Own { .. } => count(&self.counters.given),
            Message::Request(_)
            | Message::Copy { .. }
            | Message::Invalidate { .. }
            | Message::Dropped { .. }
            | Message::Lost { .. }
            | Message::Sealed { .. } => {}
        }
        if message.has_contents() {
            count(&self.counters.contents_sent);
        }
    }

    /// A unit cannot be had: who waits for it gets an error.
    fn fails(&self, unit: u64, error: PagerError) {
        lock(&self.failures).insert(unit, error);
        let (tickets, flushed) = self.with(unit, |cell| {
            (std::mem::take(&mut cell.tickets), cell.flushed.take())
        });
        if let Some(flushed) = flushed {
            flushed.fails(error);
        }
        for ticket in tickets {
            ticket.fail(error);
        }
        self.refuses_locks(unit, NotTaken::Failed(error), |_| true);
    }
}
