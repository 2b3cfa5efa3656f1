//! The cluster that this host belongs to: its store, its network, and its shared objects.

mod lives;
mod names;
mod ports;
mod post;
mod process;
mod sysv;
mod told;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use farpage_host::{Object, Objects};
use farpage_membership::{
    Consistency, Control, ControlError, Description, Durability, Event, Home, ObjectId, Ping, Pong,
    Scheduler, View,
};
use farpage_network::{ClusterKey, Incarnation, Network, NetworkError};
use farpage_object::{Access, PAGE_BYTES, PageRange, Pager};
use farpage_rules::coherence::Host;
use farpage_sys::lock;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::backing::{Backing, BackingError};
use crate::counters::Figures;
use crate::object::About;
use crate::server::{
    GiveUp, Hosts, Left, OnLocked, OnReleased, OpenError, Server, Wire, Wrong, check_kind,
};
use crate::types::Types;
use lives::Questions;
use names::Rounds;
use post::{Ears, Inbox, Kind, Post};
use process::Process;
use sysv::Sysv;
use told::{Desk, Gathering};

pub use lives::Lives;
pub use ports::PortWire;
pub use sysv::{Replied, Woken};
pub use told::{HostFigures, Units};

/// Threads that were let in to a unit keep it so long, unless the object says otherwise.
const HOLD: Duration = Duration::from_micros(100);
/// Time between two questions whether the others are there.
const PING: Duration = Duration::from_millis(200);
/// What is the same as before is said again after so long.
const AGAIN: Duration = Duration::from_secs(60);

/// How a host joins a cluster.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its stay: the store, the address by which others reach it, its name.
    pub control: farpage_membership::Config,
    /// Who has the same may take part.
    pub key: ClusterKey,
    /// Where it listens.
    pub listen: SocketAddr,
}

/// Why a host did not join.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The store.
    #[error("cannot join the cluster: {0}")]
    Control(ControlError),
    /// The network.
    #[error("cannot join the cluster: {0}")]
    Network(NetworkError),
    /// Linux.
    #[error("cannot join the cluster: no thread can be started ({0})")]
    Threads(std::io::Error),
}

// What they say is said by the error itself, and would be said again as its cause.
impl From<ControlError> for JoinError {
    fn from(error: ControlError) -> Self {
        Self::Control(error)
    }
}

impl From<NetworkError> for JoinError {
    fn from(error: NetworkError) -> Self {
        Self::Network(error)
    }
}

/// Why an object of the cluster could not be had.
#[derive(Debug, thiserror::Error)]
pub enum HaveError {
    /// The store.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// This host.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It is another user's.
    #[error("'{0}' is another user's")]
    NotYours(String),
    /// It is of a kind that stays writable.
    #[error(
        "'{0}' cannot be sealed: hosts pass on copies only of memory with the distributed scheduler, 1 \
         replica and strict consistency; make it so, and fill it anew"
    )]
    Unsealable(String),
    /// Its file cannot be one.
    #[error("'{0}' cannot have that file: {1}")]
    File(String, BackingError),
    /// It is there, and has no file.
    #[error("'{0}' is there already, and has no file; give another name, or remove it first")]
    NoFile(String),
    /// It is there, with a file of another host, or another file.
    #[error(
        "'{0}' is there already, with another file, or that of another host; leave the file out to open it"
    )]
    OtherFile(String),
    /// The host that had its file has gone.
    #[error("'{0}' is over: the host that had its file is not in the cluster any more")]
    Over(String),
    /// It cannot be flushed.
    #[error("cannot flush '{0}': {1}")]
    Flush(String, String),
    /// It is there, and hosts see what others write at other times than was wanted.
    #[error("'{0}' has consistency {1}")]
    Consistency(String, Consistency),
    /// It is there, and differs from what was wanted.
    #[error("'{name}' has {bytes} bytes in units of {unit_bytes}")]
    Differs {
        /// Its name.
        name: String,
        /// Its size.
        bytes: u64,
        /// The size of its units.
        unit_bytes: u64,
    },
}

/// The file of a durable object, and its journal: both to be read and written.
#[derive(Debug)]
pub struct Files {
    /// It.
    pub file: std::fs::File,
    /// What a flush writes first; kept beside it.
    pub journal: std::fs::File,
}

/// How an object is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Its size.
    pub bytes: u64,
    /// What goes from host to host together.
    pub unit_bytes: u64,
    /// Who decides.
    pub scheduler: Scheduler,
    /// On how many hosts each modified unit is.
    pub replicas: u8,
    /// Microseconds that a unit stays with threads that were let in to it; `None`: as hosts see fit.
    pub hold_us: Option<u32>,
    /// Microseconds that what a host reads may be old by; `None`: it is what was written last.
    pub stale_us: Option<u32>,
    /// When a host sees what another has written.
    pub consistency: Consistency,
    /// It stays without anybody who has it.
    pub stays: bool,
    /// What is said of its contents.
    pub note: String,
}

impl Wish {
    /// Refuses what cannot be together.
    fn check(&self, is_durable: bool) -> Result<(), OpenError> {
        let is_old = self.stale_us.is_some();
        check_kind(
            self.scheduler,
            self.replicas,
            is_old,
            self.consistency,
            is_durable,
        )
    }
}

/// A host of the view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub host: Host,
    /// What it calls itself.
    pub name: String,
    /// Where it listens.
    pub address: SocketAddr,
    /// It is connected; this host is to itself.
    pub is_up: bool,
    /// Why not, or what was last wrong.
    pub cause: String,
}

/// What is known of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// The number of the view.
    pub generation: u64,
    /// Its hosts.
    pub members: BTreeMap<u8, Member>,
    /// Its objects.
    pub objects: BTreeMap<u64, (Option<String>, Description)>,
    /// Why the store does not answer.
    pub store_lost: Option<String>,
    /// Why this host may not act any more.
    pub fenced: Option<String>,
}

/// Who is told what happens in a cluster.
pub trait Observer: Send + Sync {
    /// What a user should see.
    fn say(&self, what: &str);

    /// This stay is over, for this reason: the host may not act any more. Called once, after which
    /// nothing happens in it.
    fn is_out(&self, why: &str) {
        self.say(&format!(
            "this host is out of the cluster: {why}; what it shared cannot be used here any more; \
             start farpage again to join anew"
        ));
    }

    /// An object was made, or has another name or note. Called by one thread, in the order of the
    /// store, which does nothing else meanwhile: it must not wait for the store.
    fn object_changed(&self, number: u64, name: Option<&str>, described: &Description) {
        let _ = (number, name, described);
    }

    /// An object is gone. As [`Observer::object_changed`].
    fn object_removed(&self, number: u64) {
        let _ = number;
    }

    /// So many of those who wait at a byte of an object at this host are to go on
    /// ([`Cluster::wake`]). The caller must not be kept waiting.
    fn wake(&self, number: u64, offset: u64, count: u32) {
        let _ = (number, offset, count);
    }

    /// A thread of this host, or every one that waits, is to make its call of System V again
    /// ([`Cluster::sysv`]). The caller must not be kept waiting.
    fn sysv_wakes(&self, thread: Woken) {
        let _ = thread;
    }

    /// Whether a process of this host lives ([`Cluster::asks_whether`]). No process lives again.
    fn lives(&self, process: u64) -> bool {
        let _ = process;
        false
    }

    /// A stay of this host begins, in which its network server sends so. Called before anything of it
    /// comes. What network servers say is carried as it is, in order and once between two stays.
    fn ports_begin(&self, own: u64, wire: PortWire) {
        let _ = (own, wire);
    }

    /// Stays of other hosts are about to be heard. As [`Observer::port_packet`].
    fn port_hosts_come(&self, stays: &[u64]) {
        let _ = stays;
    }

    /// These are the stays of the other hosts of the newest view: of others nothing comes any more.
    fn port_hosts_are(&self, generation: u64, stays: &BTreeSet<u64>) {
        let _ = (generation, stays);
    }

    /// Another host's network server says this. The caller must not be kept waiting.
    fn port_packet(&self, from: u64, packet: &[u8]) {
        let _ = (from, packet);
    }

    /// Another host has handled all that came to it from hosts that are not in a view any more. As
    /// [`Observer::port_packet`], and in order with that.
    fn port_saw(&self, from: u64, generation: u64) {
        let _ = (from, generation);
    }

    /// A thread of this host, which may have ended, and the instruction at which it waited, in words: its
    /// process, and the place in its program. The instruction is 0 when it is not known.
    fn place(&self, thread: u32, instruction: u64) -> String {
        let _ = instruction;
        format!("thread {thread}")
    }
}

/// This host's stay in a cluster.
pub struct Cluster {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

struct Inner {
    own: Host,
    control: Control,
    post: Arc<Post>,
    server: Server,
    state: Mutex<State>,
    /// How often each object was had, and not released.
    uses: Mutex<HashMap<u64, usize>>,
    is_over: AtomicBool,
    rounds: Rounds,
    sysv: Sysv,
    /// Other hosts whose processes are this machine's.
    neighbours: Mutex<Vec<(farpage_membership::Incarnation, Process)>>,
    questions: Questions,
    gathering: Gathering,
    desk: Desk,
    parts: ports::Parts,
    /// Why somebody was turned away, and when that was last said.
    told: Mutex<HashMap<String, Instant>>,
    observer: Arc<dyn Observer>,
}

impl Cluster {
    /// Joins. Pages that do not fit into the memory of `objects` go to `paging_space`.
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn join(
        mut config: Config,
        objects: &'static Objects,
        paging_space: Arc<dyn Pager>,
        observer: Arc<dyn Observer>,
    ) -> Result<Self, JoinError> {
        config.control.key = config.key.name().into();
        config.control.process = process::own().map_or_else(String::new, |own| own.to_string());
        let control = Control::join(config.control)?;
        let own = Host(control.slot().0);
        let post = Arc::new(Post::default());
        let wire: Arc<dyn Wire> = Arc::clone(&post) as _;
        let (view, early) = first_view(&control)?;
        let server = Server::start(own, hosts_of(&view), objects, paging_space, wire);
        let server = server.map_err(JoinError::Threads)?;
        let incarnation = Incarnation(control.incarnation().0);
        let network = farpage_network::Config::new(config.listen, config.key, incarnation);
        let sysv = Sysv::new(control.incarnation().0);
        let (desk, jobs) = Desk::new();
        let inner = Arc::new(Inner {
            own,
            control,
            post: Arc::clone(&post),
            server,
            state: Mutex::default(),
            uses: Mutex::default(),
            is_over: AtomicBool::new(false),
            rounds: Rounds::default(),
            sysv,
            neighbours: Mutex::default(),
            questions: Questions::default(),
            gathering: Gathering::default(),
            desk,
            parts: ports::Parts::default(),
            told: Mutex::default(),
            observer,
        });
        let inbox: Weak<Inner> = Arc::downgrade(&inner);
        post.begin(inbox);
        let ears = Ears(Arc::downgrade(&post));
        post.uses(Network::start(network, Arc::new(ears))?);
        inner
            .observer
            .ports_begin(inner.control.incarnation().0, PortWire::new(&post));
        inner.shows(&view);
        inner.sysv_sees(&view);
        inner.server.begins();
        let asked: Weak<Inner> = Arc::downgrade(&inner);
        std::thread::Builder::new()
            .name("share-tells".into())
            .spawn(move || told::run(&asked, jobs))
            .map_err(JoinError::Threads)?;
        let working = Arc::clone(&inner);
        let thread = std::thread::Builder::new()
            .name("share-cluster".into())
            .spawn(move || {
                early.into_iter().for_each(|event| working.happened(event));
                working.work();
            })
            .map_err(JoinError::Threads)?;
        let thread = Some(thread);
        Ok(Self { inner, thread })
    }

    /// Members that are alive, and that this host does not reach within so long each: where it joined
    /// nevertheless, it or they would have to leave.
    ///
    /// # Errors
    /// When the store cannot be asked.
    pub fn unreached(config: &Config, within: Duration) -> Result<Vec<String>, JoinError> {
        let members = Control::look(&config.control)?;
        let is_unreached = |address| TcpStream::connect_timeout(&address, within).is_err();
        let unreached = members.into_iter().filter(|one| is_unreached(one.address));
        Ok(unreached
            .map(|one| format!("{} at {}", one.name, one.address))
            .collect())
    }

    /// This host's number.
    #[must_use]
    pub fn own(&self) -> Host {
        self.inner.own
    }

    /// Takes the word of who knows that an earlier stay of this very process is over: it is removed from
    /// the view without the others being waited for that it might have heard of.
    pub fn vouch_over(&self, stay: u64) {
        let stay = farpage_membership::Incarnation(stay);
        self.inner.control.vouch_gone(stay);
    }

    /// The object of a name, which is made for user `uid` when there is none and it is said how. It
    /// is at this host from then on, until [`Cluster::release`] was called as often as this. Its number,
    /// what is said of it, and it. With `files`, what is made has its contents from there, and is durable.
    ///
    /// # Errors
    /// [`HaveError`].
    pub fn have(
        &self,
        name: &str,
        uid: u32,
        wish: Option<&Wish>,
        mut files: Option<Files>,
    ) -> Result<(u64, Description, Arc<Object>), HaveError> {
        let inner = &self.inner;
        let mut backing = None;
        // Held all the while: what somebody else releases meanwhile would be gone for this one, too.
        let mut uses = lock(&inner.uses);
        loop {
            let (id, described, has_made) = match (inner.control.find(name), wish) {
                (Ok((id, found)), wish) => {
                    fits(name, uid, &found.description, wish)?;
                    // Its home may have joined just then. Whom this host does not know yet it would
                    // take for dead, and what is there for lost.
                    inner.knows_newest(id.0)?;
                    let wants_file = files.is_some() || backing.is_some();
                    let has_this = |files: &Files| inner.server.has_file(id.0, &files.file);
                    let is_this = files.as_ref().is_some_and(has_this);
                    inner.fits_file(name, &found.description, wants_file, is_this)?;
                    match inner.control.hold(id) {
                        Ok(()) => (id, found.description, false),
                        // Gone just then.
                        Err(ControlError::NoObject(_)) => continue,
                        Err(error) => return Err(error.into()),
                    }
                }
                (Err(ControlError::NoName(_)), Some(wish)) => {
                    wish.check(files.is_some() || backing.is_some())?;
                    if let Some(Files { file, journal }) = files.take() {
                        let backing_of =
                            Backing::open(file, journal, rounded(wish), wish.unit_bytes);
                        let refused = |why| HaveError::File(name.into(), why);
                        backing = Some(backing_of.map_err(refused)?);
                    }
                    let durability = match backing {
                        Some(_) => Durability::Flushed,
                        None => Durability::Volatile,
                    };
                    let described = inner.described(uid, wish, durability);
                    match inner.control.make(Some(name), described.clone()) {
                        Ok(id) => (id, described, true),
                        // Somebody else was faster.
                        Err(ControlError::Exists(_)) => continue,
                        Err(error) => return Err(error.into()),
                    }
                }
                (Err(error), _) => return Err(error.into()),
            };
            // That of who made it.
            let own = backing.take().filter(|_| has_made);
            return match inner.open(id.0, name, &described, own) {
                Ok(object) => {
                    *uses.entry(id.0).or_default() += 1;
                    Ok((id.0, described, object))
                }
                Err(error) => {
                    if has_made {
                        // Nobody else can have it without this host.
                        let _ = inner.control.remove(name);
                    }
                    if !uses.contains_key(&id.0) {
                        // At the latest when this host leaves.
                        let _ = inner.control.release(id);
                    }
                    Err(error.into())
                }
            };
        }
    }

    /// Somebody at this host does not need an object any more: when all have said so that had it
    /// ([`Cluster::have`]), this host has it no longer.
    ///
    /// # Errors
    /// When the store does not answer; it is released with this host then.
    pub fn release(&self, number: u64) -> Result<(), ControlError> {
        let mut uses = lock(&self.inner.uses);
        if let Some(others @ 1..) = uses.get(&number).map(|times| times - 1) {
            uses.insert(number, others);
            return Ok(());
        }
        uses.remove(&number);
        // Who had it may have ended without.
        self.inner.server.releases(number, Box::new(drop));
        self.inner.control.release(ObjectId(number))
    }

    /// Takes an object's name away, for user `uid`. When it returns, this host knows it.
    ///
    /// # Errors
    /// [`HaveError`].
    pub fn remove(&self, name: &str, uid: u32) -> Result<(), HaveError> {
        let (_, found) = self.inner.control.find(name)?;
        fits(name, uid, &found.description, None)?;
        let id = self.inner.control.remove(name)?;
        Ok(self.inner.knows_newest(id.0).map(drop)?)
    }

    /// Nobody writes to the object of a name any more, for user `uid`. When it returns, all hosts know it.
    ///
    /// # Errors
    /// [`HaveError`].
    pub fn seal(&self, name: &str, uid: u32) -> Result<(), HaveError> {
        let (id, found) = self.inner.control.find(name)?;
        let described = &found.description;
        fits(name, uid, described, None)?;
        let is_plain = (described.scheduler, described.replicas) == (Scheduler::Distributed, 1);
        if !is_plain || described.consistency != Consistency::Strict {
            return Err(HaveError::Unsealable(name.into()));
        }
        self.inner.control.seal(id)?;
        Ok(self.inner.all_know(id.0)?)
    }

    /// As [`Server::releases`].
    pub fn releases(&self, number: u64, on_end: OnReleased) {
        self.inner.server.releases(number, on_end);
    }

    /// As [`Server::acquires`].
    pub fn acquires(&self, number: u64, on_end: OnReleased) {
        self.inner.server.acquires(number, on_end);
    }

    /// As [`Server::locks`].
    pub fn locks(&self, number: u64, pages: PageRange, access: Access, on_end: OnLocked) -> GiveUp {
        self.inner.server.locks(number, pages, access, on_end)
    }

    /// As [`Server::has_locked`].
    #[must_use]
    pub fn has_locked(&self, number: u64, pages: PageRange, access: Access) -> bool {
        self.inner.server.has_locked(number, pages, access)
    }

    /// As [`Server::unlocks`].
    pub fn unlocks(&self, number: u64, pages: PageRange, access: Access) {
        self.inner.server.unlocks(number, pages, access);
    }

    /// True of an object that this host made, in this stay.
    #[must_use]
    pub fn is_home(&self, described: &Description) -> bool {
        described.home.incarnation == self.inner.control.incarnation()
    }

    /// Leaves in good order: gives what only this host has to those that stay, for so long at most;
    /// `says` is told how many bytes are left when that takes long. What could not be given.
    pub fn leave(&self, within: Duration, says: &dyn Fn(u64)) -> Vec<Left> {
        let inner = &self.inner;
        let outlives = |number| inner.outlives(number);
        let left = inner.server.leave(within, &outlives, says);
        inner.is_over.store(true, Ordering::Release);
        inner.sysv_ends();
        let is_fenced = inner.control.is_fenced();
        if let Err(error) = inner.control.leave()
            && !is_fenced
        {
            inner.say(&format!(
                "the others notice only in a while that this host has left: {error}"
            ));
        }
        left
    }

    /// True when the object of a name is still there when this host has left.
    #[must_use]
    pub fn outlives(&self, name: &str) -> bool {
        let state = lock(&self.inner.state);
        let mut named = state.objects.iter();
        let found = named.find(|(_, (of, _))| of.as_deref() == Some(name));
        found.is_some_and(|(number, _)| self.inner.outlives(*number))
    }

    /// What is known of the cluster.
    #[must_use]
    pub fn state(&self) -> State {
        lock(&self.inner.state).clone()
    }

    /// True when this host goes on without the store while the others answer it.
    #[must_use]
    pub fn counts_on_promises(&self) -> bool {
        self.inner.control.counts_on_promises()
    }

    /// True while the host is there that had all of an object in the beginning.
    #[must_use]
    pub fn has_home(&self, described: &Description) -> bool {
        self.inner.has_home(described)
    }

    /// What was done for an object at this host, if it is here.
    #[must_use]
    pub fn figures(&self, number: u64) -> Option<Figures> {
        self.inner.server.figures(number)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.inner.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.inner.post.ends();
    }
}

/// The first view that this host hears of, and what it heard before.
fn first_view(control: &Control) -> Result<(View, Vec<Event>), ControlError> {
    let mut early = Vec::new();
    loop {
        match control.next_event(Duration::MAX) {
            Some(Event::View(view)) => return Ok((view, early)),
            Some(Event::Fenced(why)) => return Err(ControlError::Fenced(why)),
            Some(other) => early.push(other),
            None => {}
        }
    }
}

fn hosts_of(view: &View) -> Hosts {
    let stays = view.members.iter();
    let stays = stays.map(|(slot, member)| (Host(slot.0), member.incarnation.0));
    Hosts {
        generation: view.generation,
        stays: stays.collect(),
    }
}

/// Refuses an object that is another's, or another than was wanted.
fn fits(
    name: &str,
    uid: u32,
    described: &Description,
    wish: Option<&Wish>,
) -> Result<(), HaveError> {
    if uid != 0 && uid != described.uid {
        return Err(HaveError::NotYours(name.into()));
    }
    let (bytes, unit_bytes) = (described.bytes, described.page_bytes);
    let differs = |wish: &Wish| rounded(wish) != bytes || wish.unit_bytes != unit_bytes;
    let is_other = |wish: &&Wish| wish.consistency != described.consistency;
    if wish.filter(is_other).is_some() {
        return Err(HaveError::Consistency(name.into(), described.consistency));
    }
    match wish.is_some_and(differs) {
        true => Err(HaveError::Differs {
            name: name.into(),
            bytes,
            unit_bytes,
        }),
        false => Ok(()),
    }
}

fn micros(us: u32) -> Duration {
    Duration::from_micros(us.into())
}

/// What is turned of an object at this host.
fn turned(name: &str, note: &str) -> Result<Option<Arc<Types>>, OpenError> {
    if cfg!(target_endian = "little") {
        return Ok(None);
    }
    let types = Types::of_note(note);
    let types = types.map_err(|why| OpenError::Turned(name.into(), why))?;
    Ok(types.map(Arc::new))
}

/// Whole units.
fn rounded(wish: &Wish) -> u64 {
    wish.bytes.next_multiple_of(wish.unit_bytes.max(1))
}

impl Inner {
    fn described(&self, uid: u32, wish: &Wish, durability: Durability) -> Description {
        Description {
            bytes: rounded(wish),
            page_bytes: wish.unit_bytes,
            scheduler: wish.scheduler,
            replicas: wish.replicas,
            hold_us: wish.hold_us,
            stale_us: wish.stale_us,
            consistency: wish.consistency,
            is_sealed: false,
            durability,
            home: Home {
                slot: self.control.slot(),
                incarnation: self.control.incarnation(),
            },
            uid,
            stays: wish.stays,
            note: wish.note.clone(),
        }
    }

    fn open(
        &self,
        number: u64,
        name: &str,
        described: &Description,
        backing: Option<Backing>,
    ) -> Result<Arc<Object>, OpenError> {
        let about = About {
            number,
            name: name.into(),
            bytes: described.bytes,
            unit_pages: described.page_bytes / PAGE_BYTES as u64,
            scheduler: described.scheduler,
            replicas: described.replicas,
            home: Host(described.home.slot.0),
            stay: described.home.incarnation.0,
            hold: described.hold_us.map_or(HOLD, micros),
            stale: described.stale_us.map(micros),
            is_durable: described.durability == Durability::Flushed,
            consistency: described.consistency,
            turned: turned(name, &described.note)?,
        };
        let object = match backing {
            Some(backing) => self.server.open_with(&about, backing)?,
            None => self.server.open(&about)?,
        };
        // It may have been sealed since it was described, before it was open here.
        let known = lock(&self.state).objects.get(&number).cloned();
        let is_sealed = known.is_some_and(|(_, known)| known.is_sealed);
        if described.is_sealed || is_sealed {
            self.server.seal(number);
        }
        Ok(object)
    }

    /// Refuses what is there with another file than is given, or whose file has gone with its host.
    fn fits_file(
        &self,
        name: &str,
        described: &Description,
        wants_file: bool,
        is_this: bool,
    ) -> Result<(), HaveError> {
        match (described.durability, wants_file) {
            (Durability::Volatile, false) => Ok(()),
            (Durability::Volatile, true) => Err(HaveError::NoFile(name.into())),
            (Durability::Flushed, _) if !self.has_home(described) => {
                Err(HaveError::Over(name.into()))
            }
            (Durability::Flushed, true) if !is_this => Err(HaveError::OtherFile(name.into())),
            (Durability::Flushed, _) => Ok(()),
        }
    }

    /// True while the host is there that had all of it in the beginning.
    fn has_home(&self, described: &Description) -> bool {
        let home = described.home.incarnation;
        home == self.control.incarnation() || self.host_of(home.0).is_some()
    }

    /// True when an object stays, or another host has it.
    fn outlives(&self, number: u64) -> bool {
        let outlives = self.control.outlives_this_host(ObjectId(number));
        outlives.unwrap_or(false)
    }

    /// Asks whether the others are there, and takes what happens in the cluster.
    fn work(&self) {
        while !self.is_over.load(Ordering::Acquire) {
            for ping in self.control.pings() {
                if let Some(to) = self.host_of(ping.to.0) {
                    self.post.sends(to, Kind::Ping, &[&put(&ping)]);
                }
            }
            self.vouches();
            let event = self.control.next_event(PING);
            // Who leaves is fenced, which is no news then.
            let event = event.filter(|_| !self.is_over.load(Ordering::Acquire));
            if let Some(event) = event {
                self.happened(event);
            }
            self.catches_up();
        }
    }

    /// Hosts whose processes have ended need not be waited for: it can be seen here.
    fn vouches(&self) {
        lock(&self.neighbours).retain(|(host, process)| {
            let has_ended = process.has_ended();
            if has_ended {
                self.control.vouch_gone(*host);
            }
            !has_ended
        });
    }

    fn say(&self, what: &str) {
        self.observer.say(what);
    }

    fn knows(&self, number: u64, object: &farpage_membership::Object) {
        let named = (object.name.clone(), object.description.clone());
        lock(&self.state).objects.insert(number, named);
        let name = object.name.as_deref();
        let described = &object.description;
        self.observer.object_changed(number, name, described);
    }

    fn host_of(&self, incarnation: u64) -> Option<Host> {
        self.post.host(Incarnation(incarnation))
    }

    fn happened(&self, event: Event) {
        match event {
            Event::View(view) => self.sees(&view),
            Event::Made(id, object) => {
                self.knows(id.0, &object);
                let is_awaited = self.server.is_awaited(id.0);
                let is_home = object.description.home.incarnation == self.control.incarnation();
                if is_awaited || is_home {
                    self.keeps(id.0, object.name, &object.description);
                }
            }
            Event::Changed(id, object) => {
                self.knows(id.0, &object);
                if object.description.is_sealed {
                    self.server.seal(id.0);
                }
            }
            Event::Removed(id) => {
                lock(&self.state).objects.remove(&id.0);
                self.observer.object_removed(id.0);
                self.server.close(id.0);
            }
            Event::AtRisk { slot, .. } => {
                let mut state = lock(&self.state);
                if let Some(member) = state.members.get_mut(&slot.0) {
                    member.cause = "the store has not heard of it".into();
                }
            }
            Event::StoreLost(why) => {
                self.say(&format!(
                    "the cluster's store does not answer ({why}): what is shared goes on, nothing new \
                     can be made"
                ));
                lock(&self.state).store_lost = Some(why);
            }
            Event::StoreBack => {
                self.say("the cluster's store answers again");
                lock(&self.state).store_lost = None;
            }
            Event::Unreadable { key, why } => {
                self.say(&format!("cannot use what the store has at {key}: {why}"));
            }
            Event::Fenced(why) => {
                self.rounds.without_all_but(std::iter::empty());
                self.gathering.without_all_but(|_| false);
                lock(&self.state).fenced = Some(why.clone());
                self.server.fence();
                self.control.has_stopped();
                self.sysv_ends();
                self.observer.is_out(&why);
            }
        }
    }

    /// There is a new view.
    fn sees(&self, view: &View) {
        self.shows(view);
        self.sysv_sees(view);
        self.rounds
            .without_all_but(view.members.keys().map(|slot| Host(slot.0)));
        self.takes_over(view);
        self.questions
            .without_all_but(|peer| self.post.host(peer).is_some());
        self.gathers_without_the_gone();
        for wrong in self.server.sees(hosts_of(view)) {
            self.say(&wrong.to_string());
        }
    }

    /// Opens the objects whose home this host is about to be, since theirs has died.
    fn takes_over(&self, view: &View) {
        let stays = || view.members.values().map(|member| member.incarnation);
        if stays().min() != Some(self.control.incarnation()) {
            return;
        }
        let all = lock(&self.state).objects.clone();
        for (number, (name, described)) in all {
            if stays().all(|stay| stay != described.home.incarnation) {
                self.keeps(number, name, &described);
            }
        }
    }

    /// Meets those who have come, parts from those who have died, and shows them in lists.
    fn shows(&self, view: &View) {
        let own = self.control.incarnation();
        let others = view
            .members
            .iter()
            .filter(|(_, one)| one.incarnation != own);
        let others = others.map(|(slot, member)| {
            let peer = Incarnation(member.incarnation.0);
            (Host(slot.0), (peer, member.address))
        });
        let others: HashMap<Host, (Incarnation, SocketAddr)> = others.collect();
        // First, since what connects at once is noted there.
        let mut state = lock(&self.state);
        let before = std::mem::take(&mut state.members);
        state.generation = view.generation;
        state.members = view
            .members
            .iter()
            .map(|(slot, member)| {
                let incarnation = Incarnation(member.incarnation.0);
                let is_known = self.post.incarnation(Host(slot.0)) == Some(incarnation);
                let known = before.get(&slot.0).filter(|_| is_known);
                let one = Member {
                    host: Host(slot.0),
                    name: member.name.clone(),
                    address: member.address,
                    is_up: member.incarnation == own || known.is_some_and(|known| known.is_up),
                    cause: String::new(),
                };
                (slot.0, one)
            })
            .collect();
        drop(state);
        self.ports_meet(others.values().map(|(peer, _)| *peer));
        for why in self.post.are_peers(&others) {
            self.say(&format!("cannot meet a host of the cluster: {why}"));
        }
        self.ports_see(view);
        let neighbours = view.members.values().filter_map(|member| {
            let process = member.process.parse::<Process>().ok()?;
            let is_other = member.incarnation != own && process.is_of_this_machine();
            is_other.then_some((member.incarnation, process))
        });
        *lock(&self.neighbours) = neighbours.collect();
    }

    /// A message of another server.
    fn unit_came(&self, from: Host, bytes: &[u8]) {
        let object = match self.server.received(from, bytes) {
            Ok(()) => return,
            // It waits until the object is open.
            Err(Wrong::Unknown { object, .. }) => object,
            Err(wrong @ (Wrong::Garbled { .. } | Wrong::Violation(_))) => {
                return self.say(&wrong.to_string());
            }
        };
        let known = lock(&self.state).objects.get(&object).cloned();
        if let Some((name, described)) = known {
            self.keeps(object, name, &described);
        }
    }

    /// This host answers for an object, or is asked for it, whether its programs use it or not.
    fn keeps(&self, number: u64, name: Option<String>, described: &Description) {
        let name = name.unwrap_or_default();
        // Who makes it opens it, with its file.
        let has_file = described.durability == Durability::Flushed;
        if has_file && described.home.incarnation == self.control.incarnation() {
            return;
        }
        if let Err(error) = self.open(number, &name, described, None) {
            self.say(&format!("cannot keep '{name}' of the cluster: {error}"));
        }
    }
}

impl Inbox for Inner {
    fn came_from(&self, from: Incarnation, kind: Kind, bytes: &[u8]) {
        match kind {
            Kind::Port => self.port_part_came(from, bytes),
            Kind::Sysv => self.sysv_came(from, bytes),
            _ => self.saw_came(from, bytes),
        }
    }

    fn came(&self, from: Host, kind: Kind, bytes: &[u8]) {
        match kind {
            Kind::Unit => self.unit_came(from, bytes),
            Kind::Ping => match take::<Ping>(bytes) {
                Some(ping) => {
                    if let Some(pong) = self.control.answer(&ping) {
                        self.post.sends(from, Kind::Pong, &[&put(&pong)]);
                    }
                }
                None => self.is_wrong(from, "a question that is none"),
            },
            Kind::Pong => match take::<Pong>(bytes) {
                Some(pong) => self.control.answered(&pong),
                None => self.is_wrong(from, "an answer that is none"),
            },
            Kind::Done => match take(bytes) {
                Some((round, revision)) => self.is_asked(from, round, revision),
                None => self.is_wrong(from, "a question that is none"),
            },
            Kind::IsDone => match take(bytes) {
                Some(round) => self.rounds.answered(round, from),
                None => self.is_wrong(from, "an answer that is none"),
            },
            // They come with their stay.
            Kind::Port | Kind::Saw | Kind::Sysv => {}
            Kind::Wake => match take(bytes) {
                Some((number, offset, count)) => self.observer.wake(number, offset, count),
                None => self.is_wrong(from, "whom to wake, and it is nobody"),
            },
            Kind::Lives => match take(bytes) {
                Some((question, process)) => self.is_asked_who_lives(from, question, process),
                None => self.is_wrong(from, "a question that is none"),
            },
            Kind::Asks => match take(bytes) {
                Some((question, asks)) => self.is_asked_what_it_counted(from, question, asks),
                None => self.is_wrong(from, "a question that is none"),
            },
            Kind::Told => match (take(bytes), self.post.incarnation(from)) {
                (Some((question, tells)), Some(by)) => self.is_told(from, by, question, tells),
                (Some(_), None) => {}
                (None, _) => self.is_wrong(from, "an answer that is none"),
            },
            Kind::IsLiving => match (take(bytes), self.post.incarnation(from)) {
                (Some((question, lives)), Some(by)) => {
                    self.questions.answered(question, by, lives);
                }
                (Some(_), None) => {}
                (None, _) => self.is_wrong(from, "an answer that is none"),
            },
        }
    }

    fn is_wrong(&self, from: Host, what: &str) {
        self.say(&format!("{from} sent {what}; it is left out"));
    }

    fn link_changed(&self, host: Host, is_up: bool, why: &str) {
        if let Some(member) = lock(&self.state).members.get_mut(&host.0) {
            member.is_up = is_up;
            member.cause = if is_up { String::new() } else { why.into() };
        }
    }

    fn turned_away(&self, who: SocketAddr, why: &str) {
        let mut told = lock(&self.told);
        let now = Instant::now();
        let is_new = told.get(why).is_none_or(|last| now - *last > AGAIN);
        if is_new {
            told.retain(|_, last| now - *last <= AGAIN);
            told.insert(why.into(), now);
            drop(told);
            self.say(&format!("turned {who} away: {why}"));
        }
    }
}

fn put(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("it is serialized into memory")
}

fn take<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (value, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(value)
}
