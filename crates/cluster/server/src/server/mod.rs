//! All shared objects at this host.

mod leave;
mod recover;
mod take;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use farpage_host::{Object, Objects};
use farpage_membership::{Consistency, Scheduler};
use farpage_object::{Access, PageRange, Pager, PagerError};
use farpage_rules::coherence::{Generation, Host, Members, View, Violation};
use farpage_sys::lock;

use crate::backing::Backing;
use crate::counters::{Figures, Flows};
use crate::durable::FlushError;
use crate::gate::Gate;
use crate::holds::Holds;
use crate::object::{About, FENCED, Home, LOST, NotTaken, SEALED, Shared, UNREADABLE};
use crate::parts::Parts;
use crate::recovery::Recovering;
use crate::seen::{Flow, UnitFigures};
use crate::twins::OnEnd;
use crate::types::NotTurned;
use crate::wire::Said;
use leave::Leaving;
pub(crate) use leave::Stage;
pub use leave::{Left, Why};

/// Pages of a unit at most: 2 MiB.
const UNIT_PAGES_MAX: u64 = 512;
/// Objects that are not open here and of which others send messages, at most.
const EARLY_MAX: usize = 4096;
/// Closed objects of which messages may still be under way, at most.
const CLOSED_MAX: usize = 4096;

/// Brings messages to other hosts: each once, in any order.
pub trait Wire: Send + Sync {
    /// Sends a message, the parts one after the other. It is not waited for.
    fn send(&self, to: Host, parts: &[&[u8]]);
}

/// What all objects here have in common.
pub(crate) struct Shell {
    pub(crate) own: Host,
    wire: Arc<dyn Wire>,
    parts: Parts,
    flows: Flows,
    /// Keeps what does not fit into memory.
    pub(crate) paging_space: Arc<dyn Pager>,
    pub(crate) holds: Holds,
    /// Whoever acts on a unit is in it.
    pub(crate) gate: Gate,
    members: Mutex<Members>,
    /// Hosts that are known to take what this one sends.
    met: Mutex<farpage_rules::coherence::Hosts>,
    is_fenced: AtomicBool,
    leaving: Mutex<Leaving>,
}

impl Shell {
    /// A message of a unit goes to a host: the view that it carries. `None`: the host has died.
    pub(crate) fn generation_to(&self, to: Host) -> Option<Generation> {
        lock(&self.members).send(to)
    }

    pub(crate) fn is_frozen(&self) -> bool {
        lock(&self.members).is_frozen()
    }

    /// This host may not act any more.
    pub(crate) fn is_fenced(&self) -> bool {
        self.is_fenced.load(Ordering::Relaxed)
    }

    /// The view, of those of its hosts that are known to have begun: what is sent to another might be
    /// of before it began, and not be taken.
    pub(crate) fn backup_view(&self) -> View {
        let view = lock(&self.members).view();
        let mut met = *lock(&self.met);
        met.add(self.own);
        let living = view.living.less(view.living.less(met));
        View { living, ..view }
    }

    /// Sends a message, in parts if it is long.
    pub(crate) fn send(&self, to: Host, parts: &[&[u8]]) {
        self.flows.goes(to, parts);
        self.parts.send(parts, |parts| self.wire.send(to, parts));
    }

    fn sends(&self, to: Host, said: &Said) {
        self.send(to, &[&said.bytes()]);
    }
}

/// Who is in the cluster, as the control plane says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// Grows with each change.
    pub generation: u64,
    /// The stay of each host: numbers grow, and none comes twice.
    pub stays: BTreeMap<Host, u64>,
}

impl Hosts {
    fn view(&self) -> View {
        let living = farpage_rules::coherence::Hosts::all(self.stays.keys().copied());
        View {
            generation: Generation(self.generation),
            living,
            home: living.iter().next().expect("a view has somebody"),
        }
    }

    /// The home of an object: while its first one is there, that; then who is there longest.
    fn home(&self, about: &About) -> Home {
        let host = about.home;
        if self.stays.get(&host) == Some(&about.stay) {
            let is_next = false;
            return Home { host, is_next };
        }
        let oldest = self.stays.iter().min_by_key(|(_, stay)| **stay);
        Home {
            host: *oldest.expect("a view has somebody").0,
            is_next: true,
        }
    }
}

/// The shared memory server of a host.
pub struct Server {
    shell: Arc<Shell>,
    objects: &'static Objects,
    shared: Mutex<HashMap<u64, Open>>,
    holds: Option<JoinHandle<()>>,
    hosts: Mutex<Hosts>,
    /// Messages of later: they are taken when this host has come so far.
    kept: Mutex<Vec<Early>>,
    /// Messages of objects that are not open here yet.
    early: Mutex<HashMap<u64, Vec<Early>>>,
    /// Numbers of objects that were closed here, the last first: what comes of them is for nobody.
    closed: Mutex<VecDeque<u64>>,
    recovering: Mutex<Option<Recovering>>,
    /// Hosts that have died since all went on after the last death.
    deaths: Mutex<u32>,
}

/// Who sent a message, and it.
type Early = (Host, Vec<u8>);

struct Open {
    shared: Arc<Shared>,
    kernel: Arc<Object>,
}

/// Why an object could not be had.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It is of no size, or its units are.
    #[error(
        "a shared object of {bytes} bytes in units of {unit_pages} pages cannot be; give at least a \
         byte, and units of 1 to 512 pages, a power of two"
    )]
    Size {
        /// Its bytes.
        bytes: u64,
        /// Pages of a unit.
        unit_pages: u64,
    },
    /// It is to be on more hosts than this version can, or on none.
    #[error(
        "what is written to a shared object is on 1 host or on 2, not on {0}; give 1 or 2 replicas"
    )]
    Replicas(u8),
    /// It is to be on two hosts, and to have a scheduler that keeps it on one.
    #[error(
        "the simple scheduler keeps what is written on 1 host, the home of the object; give 1 replica, \
         or the distributed scheduler"
    )]
    Simple,
    /// What is read of it may be old, and it has a kind that has no use for that.
    #[error(
        "what is read may be old (stale) only with the distributed scheduler and 1 replica; give these, or \
         leave out stale"
    )]
    Old,
    /// It is to have a file, and a kind that cannot.
    #[error(
        "only memory with the distributed scheduler, 1 replica and strict consistency, of which nothing old is \
         read, has a file; give these, or leave out the file"
    )]
    Durable,
    /// Several hosts are to write to one page, and it has a kind of which one does.
    #[error(
        "with consistency release hosts write to copies of a page, which one host, its home, puts together: \
         that is with the distributed scheduler and 1 replica, and what is read is as old as the last \
         acquire, not by a time; give these and no stale, or leave out the consistency"
    )]
    Release,
    /// It cannot be had in this host's byte order.
    #[error("'{0}': {1}")]
    Turned(String, NotTurned),
    /// The kernel of this host could not make it.
    #[error(transparent)]
    Kernel(#[from] farpage_host::Error),
}

/// Is told how a release or an acquire has ended.
pub type OnReleased = Box<dyn FnOnce(Result<(), Unreleased>) + Send>;

/// Why a release or an acquire did not do all that it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreleased {
    /// The contents are lost.
    #[error(
        "what was written to '{0}' is lost in part: the host that had those pages has died, or cannot read \
         them, and nobody else has them (consistency release is with 1 replica); make it anew"
    )]
    Lost(String),
    /// A page cannot be read.
    #[error(
        "what was written to '{0}' does not reach others: a page of it cannot be read from the paging space of \
         this host ({1}), so what was changed there is lost; look at that disk"
    )]
    Unread(String, PagerError),
    /// This host may not act any more.
    #[error(
        "what was written to '{0}' does not reach others: this host is out of the cluster, or \
         leaves it; start the program again when the host is in the cluster"
    )]
    Out(String),
}

fn unreleased(name: String, error: PagerError) -> Unreleased {
    match error {
        LOST => Unreleased::Lost(name),
        FENCED => Unreleased::Out(name),
        error => Unreleased::Unread(name, error),
    }
}

/// Why pages are not locked at this host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotLocked {
    /// Its scheduler has no locks.
    #[error(
        "pages of '{0}' cannot be kept at a host: it has the simple scheduler, or release consistency; make it without \
         them"
    )]
    Kind(String),
    /// They are locked to read, and were to be locked to write.
    #[error(
        "this host has pages of '{0}' locked to read, which is not exchanged for a lock to write: two hosts that did \
         would wait for each other; whoever of its programs has them gives them back first, or locks them to write from the \
         beginning"
    )]
    Exchanged(String),
    /// Nobody writes to it any more.
    #[error("pages of '{0}' cannot be locked to write: it is sealed; lock them to read")]
    Sealed(String),
    /// The contents are lost.
    #[error(
        "a page of '{0}' is lost: the host that had it has died, or cannot read it, and nobody else has it; make it anew"
    )]
    Lost(String),
    /// This host may not act any more.
    #[error(
        "pages of '{0}' cannot be kept: this host is out of the cluster, or leaves it; start the program again when the \
         host is in the cluster"
    )]
    Out(String),
    /// It is not open here.
    #[error("the object is not open at this host")]
    Closed,
    /// Nobody wants it any more.
    #[error("the lock was given up while it waited for pages of '{0}'; take it again")]
    GivenUp(String),
    /// A page cannot be had.
    #[error("a page of '{0}' cannot be had ({1}); look at the paging space of this host")]
    Failed(String, PagerError),
}

/// Is told how locking has ended.
pub type OnLocked = Box<dyn FnOnce(Result<(), NotLocked>) + Send>;

/// Ends the waiting for a lock: it is taken when all its pages are at this host already, and else ends with
/// [`NotLocked::GivenUp`], soon in both cases. Does nothing when the lock has ended.
pub type GiveUp = Box<dyn FnOnce() + Send>;

fn not_locked(name: String, why: NotTaken) -> NotLocked {
    match why {
        NotTaken::Kind => NotLocked::Kind(name),
        NotTaken::Exchanged => NotLocked::Exchanged(name),
        NotTaken::Failed(SEALED) => NotLocked::Sealed(name),
        NotTaken::Failed(LOST | UNREADABLE) => NotLocked::Lost(name),
        NotTaken::Failed(FENCED) => NotLocked::Out(name),
        NotTaken::Failed(error) => NotLocked::Failed(name, error),
        NotTaken::GivenUp => NotLocked::GivenUp(name),
    }
}

/// Why what a peer sent was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// It is no message.
    #[error("{by} sent {what}; its connection is to be closed")]
    Garbled {
        /// Who.
        by: Host,
        /// What.
        what: String,
    },
    /// The object is not open here; the message waits until it is.
    #[error("{by} sent a message of object {object}, which this host does not know")]
    Unknown {
        /// Who.
        by: Host,
        /// Which.
        object: u64,
    },
    /// It does not keep to the protocol.
    #[error(transparent)]
    Violation(#[from] Violation),
}

impl Server {
    /// The server of `own`, among `hosts`. What `objects` has no room for goes to `paging_space`.
    ///
    /// # Errors
    /// Without threads.
    pub fn start(
        own: Host,
        mut hosts: Hosts,
        objects: &'static Objects,
        paging_space: Arc<dyn Pager>,
        wire: Arc<dyn Wire>,
    ) -> std::io::Result<Self> {
        // As in [`Server::sees`].
        hosts.generation = hosts.generation * 2 + 1;
        let shell = Arc::new(Shell {
            own,
            wire,
            parts: Parts::default(),
            flows: Flows::default(),
            paging_space,
            holds: Holds::default(),
            gate: Gate::default(),
            members: Mutex::new(Members::new(own, hosts.view())),
            met: Mutex::default(),
            is_fenced: AtomicBool::new(false),
            leaving: Mutex::default(),
        });
        let held = Arc::clone(&shell);
        let holds = std::thread::Builder::new()
            .name("share-holds".into())
            .spawn(move || held.holds.run())?;
        Ok(Self {
            shell,
            objects,
            shared: Mutex::default(),
            holds: Some(holds),
            hosts: Mutex::new(hosts),
            kept: Mutex::default(),
            early: Mutex::default(),
            closed: Mutex::default(),
            recovering: Mutex::default(),
            deaths: Mutex::default(),
        })
    }

    /// Tells the others with which view this host begins: the first that it says.
    pub fn begins(&self) {
        let (view, fence) = {
            let members = lock(&self.shell.members);
            (members.view(), members.fence())
        };
        for to in view.living.iter().filter(|to| *to != self.shell.own) {
            self.shell.sends(to, &Said::Began(fence));
        }
    }

    /// An object, at this host: the same for whoever opens it. It stays until [`Server::close`].
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(&self, about: &About) -> Result<Arc<Object>, OpenError> {
        self.opens(about, None)
    }

    /// The same of a durable object, whose home this host is, and has `backing`.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_with(&self, about: &About, backing: Backing) -> Result<Arc<Object>, OpenError> {
        self.opens(about, Some(backing))
    }

    /// All that any host wrote to a durable object, whose home this host is, before this is in its file when
    /// it returns: how many bytes went there.
    ///
    /// # Errors
    /// [`FlushError`].
    pub fn flush(&self, number: u64) -> Result<u64, FlushError> {
        self.shared(number).ok_or(FlushError::Homeless)?.flush()
    }

    /// True when this is the file of an object, which this host has.
    pub(crate) fn has_file(&self, number: u64, file: &std::fs::File) -> bool {
        let shared = self.shared(number);
        shared.is_some_and(|shared| shared.has_this_file(file))
    }

    fn opens(&self, about: &About, backing: Option<Backing>) -> Result<Arc<Object>, OpenError> {
        let (bytes, unit_pages) = (about.bytes, about.unit_pages);
        if bytes == 0 || !unit_pages.is_power_of_two() || unit_pages > UNIT_PAGES_MAX {
            return Err(OpenError::Size { bytes, unit_pages });
        }
        let is_old = about.stale.is_some();
        check_kind(
            about.scheduler,
            about.replicas,
            is_old,
            about.consistency,
            about.is_durable,
        )?;
        // The homes of all objects change with the gate closed. Whoever is in it may lock.
        let entered = self.shell.gate.enter();
        let mut all = lock(&self.shared);
        if let Some(open) = all.get(&about.number) {
            return Ok(Arc::clone(&open.kernel));
        }
        let home = lock(&self.hosts).home(about);
        let shared = Shared::new(about.clone(), home, Arc::clone(&self.shell), backing);
        let pages = bytes.div_ceil(farpage_object::PAGE_BYTES as u64);
        let pager = Arc::clone(&shared) as Arc<dyn Pager>;
        let kernel = self.objects.create(&about.name, pages, pager, false)?;
        shared.is_of(&kernel);
        let open = Open {
            shared,
            kernel: Arc::clone(&kernel),
        };
        all.insert(about.number, open);
        drop(all);
        let early = lock(&self.early).remove(&about.number);
        let early = early.into_iter().flatten();
        let taken = early.map(|(from, bytes)| self.takes(from, &bytes, true));
        let wrong: Vec<Wrong> = taken.filter_map(Result::err).collect();
        drop(entered);
        for wrong in wrong {
            farpage_sys::say!("farpage: {wrong}");
        }
        Ok(kernel)
    }

    /// Nobody writes to an object any more. When it returns, nobody at this host does.
    pub fn seal(&self, number: u64) {
        let found = lock(&self.shared)
            .get(&number)
            .map(|open| Arc::clone(&open.shared));
        if let Some(shared) = found
            && shared.seal()
        {
            // Who was at work has ended then, with what came meanwhile.
            drop(self.shell.gate.close());
        }
    }

    /// What programs of this host have written to an object with release consistency until now is with
    /// those who own it when this returns: whoever acquires it after that sees it. At once for others.
    ///
    /// # Errors
    /// [`Unreleased`].
    pub fn release(&self, number: u64) -> Result<(), Unreleased> {
        self.waits_for(number, Self::releases)
    }

    /// When this returns, programs of this host read nothing of an object with release consistency that
    /// is older than what was released before. At once for others.
    ///
    /// # Errors
    /// [`Unreleased`].
    pub fn acquire(&self, number: u64) -> Result<(), Unreleased> {
        self.waits_for(number, Self::acquires)
    }

    /// As [`Server::release`], and does not wait: `on_end` is told, perhaps with locks held, and must not
    /// use the server.
    pub fn releases(&self, number: u64, on_end: OnReleased) {
        self.calls(number, on_end, Shared::releases_all);
    }

    /// As [`Server::acquire`], and does not wait.
    pub fn acquires(&self, number: u64, on_end: OnReleased) {
        self.calls(number, on_end, Shared::acquires_all);
    }

    fn calls(&self, number: u64, on_end: OnReleased, begins: fn(&Shared, OnEnd)) {
        let Some(shared) = self.shared(number) else {
            return on_end(Ok(()));
        };
        let name = shared.about.name.clone();
        let ended = |ended: Result<(), _>| on_end(ended.map_err(|error| unreleased(name, error)));
        begins(&shared, Box::new(ended));
    }

    fn waits_for(&self, number: u64, begins: fn(&Self, u64, OnReleased)) -> Result<(), Unreleased> {
        let (tells, told) = std::sync::mpsc::sync_channel(1);
        let on_end = move |ended| {
            // Who called waits.
            let _ = tells.send(ended);
        };
        begins(self, number, Box::new(on_end));
        told.recv().unwrap_or(Ok(()))
    }

    /// Keeps pages of an object at this host from when `on_end` is told, perhaps within a message: others wait
    /// who want to write, and with [`Access::Write`] who want to read, until [`Server::unlocks`]. Units are
    /// taken in their order. What is returned gives it up.
    pub fn locks(&self, number: u64, pages: PageRange, access: Access, on_end: OnLocked) -> GiveUp {
        let Some(shared) = self.shared(number) else {
            on_end(Err(NotLocked::Closed));
            return Box::new(|| {});
        };
        let name = shared.about.name.clone();
        let ended = |ended: Result<(), _>| on_end(ended.map_err(|why| not_locked(name, why)));
        let locking = shared.locks(shared.units_of(pages), access, Box::new(ended));
        // It does not keep the object open.
        let shared = Arc::downgrade(&shared);
        Box::new(move || {
            if let (Some(shared), Some(locking)) = (shared.upgrade(), locking) {
                shared.gives_up(&locking);
            }
        })
    }

    /// True when all of the pages are locked at this host for this access: not any more when it is out of the
    /// cluster, or leaves it.
    #[must_use]
    pub fn has_locked(&self, number: u64, pages: PageRange, access: Access) -> bool {
        let has = |shared: Arc<Shared>| shared.has_locked(shared.units_of(pages), access);
        self.shared(number).is_some_and(has)
    }

    /// Gives back what was locked so.
    pub fn unlocks(&self, number: u64, pages: PageRange, access: Access) {
        if let Some(shared) = self.shared(number) {
            shared.unlocks_units(shared.units_of(pages), access);
        }
    }

    /// True when hosts have sent messages of an object that is not open here.
    pub fn is_awaited(&self, number: u64) -> bool {
        lock(&self.early).contains_key(&number)
    }

    /// An object is gone from all hosts.
    pub fn close(&self, number: u64) {
        let mut closed = lock(&self.closed);
        closed.push_front(number);
        closed.truncate(CLOSED_MAX);
        drop(closed);
        lock(&self.early).remove(&number);
        // Dropped without the lock: that gives its memory back.
        let _gone = lock(&self.shared).remove(&number);
    }

    /// Units of an object of which most messages told, so many at most; none when it is not open here.
    pub fn hottest(&self, number: u64, most: usize) -> Vec<UnitFigures> {
        let shared = self.shared(number);
        shared.map_or_else(Vec::new, |shared| shared.hottest(most))
    }

    /// These units of an object, as far as they were touched here.
    pub fn units(&self, number: u64, units: &[u64]) -> Vec<UnitFigures> {
        let shared = self.shared(number);
        shared.map_or_else(Vec::new, |shared| shared.figures_of(units))
    }

    /// Looks at which words of these units this host changes: for ten seconds, unless it is told again.
    pub fn watch(&self, number: u64, units: &[u64]) {
        if let Some(shared) = self.shared(number) {
            shared.watch_all(units);
        }
    }

    /// Threads of this host that faulted lately on units that are looked at: each unit, thread and
    /// instruction, and how often.
    pub fn faulted(&self, number: u64) -> HashMap<(u64, u32, u64), u32> {
        let shared = self.shared(number);
        shared.map_or_else(HashMap::new, |shared| shared.faulted())
    }

    /// Messages to other hosts so far, of all objects.
    pub fn flows(&self) -> Vec<Flow> {
        self.shell.flows.told()
    }

    /// What was done for each object that is open here.
    pub fn all_figures(&self) -> Vec<(u64, Figures)> {
        let all: Vec<_> = {
            let all = lock(&self.shared);
            let each = all
                .iter()
                .map(|(number, open)| (*number, Arc::clone(&open.shared)));
            each.collect()
        };
        all.into_iter()
            .map(|(number, shared)| (number, shared.figures()))
            .collect()
    }

    fn shared(&self, number: u64) -> Option<Arc<Shared>> {
        Some(Arc::clone(&lock(&self.shared).get(&number)?.shared))
    }

    /// What was done for an object so far.
    pub fn figures(&self, number: u64) -> Option<Figures> {
        Some(self.shared(number)?.figures())
    }
}

/// Refuses what cannot be together.
pub(crate) fn check_kind(
    scheduler: Scheduler,
    replicas: u8,
    may_be_old: bool,
    consistency: Consistency,
    is_durable: bool,
) -> Result<(), OpenError> {
    let is_plain = (scheduler, replicas) == (Scheduler::Distributed, 1) && !may_be_old;
    let is_released = consistency == Consistency::Release;
    match (scheduler, replicas) {
        _ if is_durable && (!is_plain || is_released) => Err(OpenError::Durable),
        _ if is_released && !is_plain => Err(OpenError::Release),
        (Scheduler::Distributed, 2) | (Scheduler::Simple, 1) if may_be_old => Err(OpenError::Old),
        (_, 1) | (Scheduler::Distributed, 2) => Ok(()),
        (Scheduler::Simple, 2) => Err(OpenError::Simple),
        (Scheduler::Simple | Scheduler::Distributed, more) => Err(OpenError::Replicas(more)),
    }
}

fn wrong(by: Host, what: impl std::fmt::Display) -> Wrong {
    let what = what.to_string();
    Wrong::Garbled { by, what }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shell.holds.end();
        if let Some(holds) = self.holds.take() {
            // It panics only when a unit did.
            let _ = holds.join();
        }
    }
}
