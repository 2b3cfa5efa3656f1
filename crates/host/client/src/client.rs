//! A process's side.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use farpage_default_pager::manager::{Offer, Serving, Wired};
use farpage_object::Access;
use farpage_port::interface::{Both, Fd as SentFd, InvokeError};
use farpage_port::{CallError, ConnectError, Node, Notice, ReceiveRight, SendRight, Sender, link};
use farpage_rules::sync::Process;
use farpage_sys::area::{Area, Place};
use farpage_sys::file::Fd;
use farpage_sys::futex;
use farpage_sys::memory_file::Words;
use farpage_sys::uffd::with_device;
use farpage_sys::view::View;
use farpage_sys::{Errno, lock};
use rustix::fs::{FlockOperation, flock};

use crate::cluster::{
    ClusterFigures, ClusterListed, Consistency, PagesTold, PagesWanted, Passes, Wanted,
};
use crate::figures::{Figures, Message};
use crate::interface::{
    FailuresCalls, KernelClient, MemoryClient, NetNameClient, OfCluster, PagesClient, Tried,
};
use crate::locks::LockRefusal;
use crate::pager::{MemoryObject, MemoryObjects};
use crate::passes;
use crate::sleepers;
use crate::{Listed, PagerListed, PortsListed, Refusal, Status, default_socket, sync};

/// A host kernel that does not answer for so long is taken for dead.
const PATIENCE: Duration = Duration::from_secs(30);

/// What to give to `farpage up` so that it listens there.
fn option(socket: &Path) -> String {
    match socket == default_socket() {
        true => String::new(),
        false => format!(" --socket {}", socket.display()),
    }
}

/// Why there is no shared memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No host kernel listens.
    #[error("no host kernel listens at '{}'; start one: farpage up{}", .0.display(), option(.0))]
    Absent(PathBuf),
    /// Another user may have put it there, and would have all that is shared through it.
    #[error(
        "'{}' belongs to user {uid}: a host kernel there could read and change what this user \
         shares; set FARPAGE_HOST to a socket of this user's, in a folder of this user's", .0.display(), uid = .1
    )]
    NotOurs(PathBuf, u32),
    /// Only its own user, and root, may use it.
    #[error(
        "the host kernel at '{}' is user {uid}'s, and only that user and root may use it; start one \
         of your own: farpage up; or set FARPAGE_HOST to where one of yours listens", .0.display(), uid = .1
    )]
    Denied(PathBuf, u32),
    /// It cannot be reached.
    #[error("cannot connect to the host kernel at '{}': {why}", .path.display())]
    Connect {
        /// Where.
        path: PathBuf,
        /// Why not.
        why: ConnectError,
    },
    /// It does not answer as it should.
    #[error("the host kernel does not answer: {0}")]
    Call(#[from] InvokeError),
    /// It has gone, and a lock with it.
    #[error(
        "the host kernel has gone, and this lock with it: the memory is not locked any more; start it again (farpage \
         up), and lock the memory anew"
    )]
    Unlocked,
    /// Other hosts have had pages for longer than was waited.
    #[error(
        "pages of '{0}' have not come in time: another host has some of them locked, or is slow; wait longer, or have \
         it give them back. Nothing of it is locked"
    )]
    Late(String),
    /// It says no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A file cannot be opened.
    #[error(
        "cannot open '{}' to keep memory there: {why}; give a file in a folder that is there and that this user \
         may write to",
        .path.display()
    )]
    File {
        /// Which.
        path: PathBuf,
        /// What Linux says.
        why: std::io::Error,
    },
    /// The object cannot be mapped here.
    #[error("cannot map '{name}' here: {errno}; farpage doctor says what this user lacks")]
    Map {
        /// Of the object.
        name: String,
        /// What Linux says.
        errno: Errno,
    },
    /// A child of fork cannot have it where its parent has it.
    #[error(
        "cannot map '{0}' in this child of fork: memory of another library's lies where the parent \
         has it; open it by its name in the child"
    )]
    Taken(String),
    /// A child of fork has not inherited it.
    #[error("'{0}' is open in the parent, and not in this child of fork; open it here by its name")]
    Parents(String),
}

/// A file to be read and written, which is made when there is none, and is taken away again when it was not
/// used.
struct Opened {
    file: File,
    made: Option<PathBuf>,
}

impl Opened {
    fn open(path: &Path) -> Result<Self, Error> {
        let mut options = File::options();
        options.read(true).write(true);
        let (opened, made) = match options.clone().create_new(true).open(path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                (options.open(path), None)
            }
            opened => (opened, Some(path.to_owned())),
        };
        let file = opened.map_err(|why| Error::File {
            path: path.to_owned(),
            why,
        })?;
        Ok(Self { file, made })
    }

    fn sent(&self) -> std::io::Result<SentFd> {
        Ok(SentFd(self.file.try_clone()?.into()))
    }

    fn keep(mut self) {
        self.made = None;
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // Somebody else may have it meanwhile: the host kernel of that locks the journal, and gives the file
        // its size.
        let is_free = flock(&self.file, FlockOperation::NonBlockingLockExclusive).is_ok();
        let is_empty = self.file.metadata().is_ok_and(|about| about.len() == 0);
        if let Some(path) = self.made.take().filter(|_| is_free && is_empty) {
            // Then it stays, and is empty.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The host kernel, as one process sees it.
pub struct Host(Arc<Connection>);

struct Connection {
    path: PathBuf,
    up: Mutex<OfProcess<Up>>,
    /// What this process is to those that wait for it, once it has had a lock.
    member: Mutex<Option<Arc<Member>>>,
    /// What is to fail when the host kernel dies, and to be mapped again in a child of fork.
    mapped: Mutex<Vec<Weak<Mapped>>>,
}

/// What a child of fork must have of its own.
struct Up {
    node: Node,
    kernel: KernelClient,
    /// Once it was needed.
    net_name: Mutex<Option<NetNameClient>>,
    /// A thread waits for the host kernel's end.
    watched: AtomicBool,
}

/// A process that may have locks.
pub(crate) struct Member {
    pub(crate) process: Process,
    /// Threads of this host sleep there.
    pub(crate) sleepers: Words,
    /// As long as this process has it, it lives.
    right: OfProcess<SendRight>,
}

/// Shared memory, mapped here. It goes when nobody has it any more.
#[derive(Clone)]
pub struct Shared(Arc<Mapped>);

/// Shared memory that may be mapped no more.
pub(crate) struct WeakShared(Weak<Mapped>);

impl WeakShared {
    pub(crate) fn upgrade(&self) -> Option<Shared> {
        self.0.upgrade().map(Shared)
    }
}

struct Mapped {
    name: String,
    bytes: u64,
    writable: bool,
    consistency: Consistency,
    file: OwnedFd,
    /// The number of the file.
    inode: u64,
    /// Before the rights: the host kernel answers for it until it is not mapped any more.
    view: OfProcess<View>,
    rights: Mutex<OfProcess<Rights>>,
    host: Arc<Connection>,
}

/// What [`Host::create_in`] has made.
pub enum Created {
    /// Shared memory.
    Shared(Shared),
    /// Its file alone.
    File(OwnedFd),
}

/// As long as it lives, pages stay in memory ([`Shared::wire`]).
pub struct Wire {
    pages: OfProcess<PagesClient>,
    _shared: Shared,
}

impl Wire {
    /// Whether they still do, and, of memory that other hosts have, too ([`Shared::lock`]), at this host.
    ///
    /// # Errors
    /// [`Refusal::Unkept`] when this host was cut off or has left the cluster; [`Error::Unlocked`] when the host
    /// kernel has gone; [`Refusal::Lock`] in a child of fork.
    pub fn check(&self) -> Result<(), Error> {
        self.pages.ask_lock(|pages| pages.are_here(false)).map(drop)
    }
}

/// As long as it lives, so does shared memory that was made here, until its name is taken away.
pub struct Hold(#[expect(dead_code, reason = "it is held")] OfProcess<SendRight>);

/// Something that in a child of fork is not to be touched, nor dropped: it is the parent's.
#[derive(Debug)]
pub(crate) struct OfProcess<T> {
    process: AtomicU32,
    value: Option<T>,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            process: AtomicU32::new(std::process::id()),
            value: Some(value),
        }
    }

    pub(crate) fn is_own(&self) -> bool {
        self.process.load(Ordering::Acquire) == std::process::id()
    }

    /// Asks something that stands for a lock.
    pub(crate) fn ask_lock<R>(
        &self,
        ask: impl FnOnce(&T) -> Result<Tried<R>, InvokeError>,
    ) -> Result<R, Error> {
        if !self.is_own() {
            return Err(Refusal::from(LockRefusal::Parents).into());
        }
        match ask(self) {
            Ok(tried) => Ok(tried.0?),
            Err(InvokeError::Call(CallError::Refused(_) | CallError::Unanswered)) => {
                Err(Error::Unlocked)
            }
            Err(why) => Err(why.into()),
        }
    }

    /// It is this process's from now on.
    fn becomes_own(&self) {
        self.process.store(std::process::id(), Ordering::Release);
    }
}

impl<T> std::ops::Deref for OfProcess<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("there until it is dropped")
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if !self.is_own() {
            std::mem::forget(self.value.take());
        }
    }
}

struct Rights {
    _mapping: SendRight,
    memory: MemoryClient,
    /// Of who made it.
    name: Option<SendRight>,
}

impl Host {
    /// Connects to the host kernel that listens at `path`.
    ///
    /// # Errors
    /// [`Error::Absent`], [`Error::Connect`].
    pub fn connect(path: &Path) -> Result<Self, Error> {
        let up = Up::new(path)?;
        let connection = Arc::new(Connection {
            path: path.into(),
            up: Mutex::new(OfProcess::new(up)),
            member: Mutex::default(),
            mapped: Mutex::default(),
        });
        Ok(Self(connection))
    }

    /// Makes `bytes` of zeros, and maps them; without a name when that is empty.
    ///
    /// # Errors
    /// [`Refusal::Exists`], [`Refusal::Name`], [`Refusal::Size`] and others.
    pub fn create(&self, name: &str, bytes: u64) -> Result<Shared, Error> {
        let up = self.0.up()?;
        let Both(right, of_name) = up.kernel.create(name.into(), bytes)?.0?;
        let found = Found::new(bytes, right).named(name);
        Shared::map(&self.0, &up, found, Some(of_name))
    }

    /// Makes zeros without a name, in place of zeros at `range` that nobody has touched. What it is
    /// when a thread did so just then: a file of the contents, mapped there, that the host kernel
    /// knows nothing of.
    ///
    /// # Errors
    /// As [`Host::create`]; nothing may be mapped at `range` then.
    pub fn create_in(&self, area: &Area, range: &Range<usize>) -> Result<Created, Error> {
        let up = self.0.up()?;
        let bytes = range.len() as u64;
        let Both(right, of_name) = up.kernel.create(String::new(), bytes)?.0?;
        let found = Found::new(bytes, right);
        let SentFd(file) = found.memory.file()?.0?;
        let map = |device| View::map_in(area, range, Place::Replace, file.as_fd(), device);
        let view = with_device(map).map_err(|errno| found.cannot_be_mapped(errno))?;
        let Some(view) = view else {
            return Ok(Created::File(file));
        };
        let shared = Shared::keep(&self.0, &up, found, file, view, Some(of_name))?;
        Ok(Created::Shared(shared))
    }

    /// Maps the object whose memory file this is to `range`, where nothing is: for programs that
    /// got the descriptor when they were executed.
    ///
    /// # Errors
    /// [`Refusal::NotFound`] when nobody has had it since; [`Error::Map`].
    pub fn adopt_in(
        &self,
        area: &Area,
        range: &Range<usize>,
        file: OwnedFd,
    ) -> Result<Shared, Error> {
        let up = self.0.up()?;
        let handed = file.try_clone().map_err(|error| Error::Map {
            name: String::new(),
            errno: Errno(error.raw_os_error().unwrap_or(0)),
        })?;
        let Both(bytes, right) = up.kernel.adopt(SentFd(handed))?.0?;
        let found = Found::new(bytes, right);
        if bytes != range.len() as u64 {
            return Err(found.cannot_be_mapped(Errno::EINVAL));
        }
        let map = |device| View::map_in(area, range, Place::Free, file.as_fd(), device);
        let view = with_device(map).map_err(|errno| found.cannot_be_mapped(errno))?;
        let view = view.ok_or_else(|| found.cannot_be_mapped(Errno::EBUSY))?;
        Shared::keep(&self.0, &up, found, file, view, None)
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Finds shared memory by its name, or the object of a pager that was mapped before, and maps
    /// it.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], [`Refusal::NotYours`] and others.
    pub fn open(&self, name: &str) -> Result<Shared, Error> {
        let up = self.0.up()?;
        let Both(bytes, right) = up.kernel.open(name.into())?.0?;
        let found = Found::new(bytes, right).learnt()?.named(name);
        Shared::map(&self.0, &up, found, None)
    }

    /// The memory of this name that all hosts of the cluster have in common, mapped, and what was said
    /// of its contents: found, or made when there is none and it is `wanted`.
    ///
    /// # Errors
    /// [`Refusal::Alone`], [`Refusal::NotFound`], [`Refusal::Differs`], [`Refusal::Cluster`] and
    /// others.
    pub fn shared(&self, name: &str, wanted: Option<Wanted>) -> Result<(Shared, String), Error> {
        // Others of this process go on while the store is asked.
        let kernel = self.0.up()?.kernel.clone();
        let given = kernel.shared(name.into(), wanted)?.0?;
        self.maps_shared(name, given)
    }

    /// The same, durable: what is made has its contents from the file at `path`, which is made, too, when
    /// there is none, and [`Host::flush_shared`] puts them there. Beside it lies its journal.
    ///
    /// # Errors
    /// As [`Host::shared`]; [`Error::File`] without the file.
    pub fn shared_with_file(
        &self,
        name: &str,
        wanted: Wanted,
        path: &Path,
    ) -> Result<(Shared, String), Error> {
        let mut journal = path.as_os_str().to_owned();
        journal.push(".journal");
        let (file, journal) = (Opened::open(path)?, Opened::open(Path::new(&journal))?);
        let sent = file.sent().and_then(|file| Ok((file, journal.sent()?)));
        let (sent_file, sent_journal) = sent.map_err(|why| Error::File {
            path: path.to_owned(),
            why,
        })?;
        let kernel = self.0.up()?.kernel.clone();
        let given = kernel.shared_with_file(name.into(), wanted, sent_file, sent_journal)?;
        let given = given.0?;
        file.keep();
        journal.keep();
        self.maps_shared(name, given)
    }

    fn maps_shared(
        &self,
        name: &str,
        given: Both<OfCluster, SendRight>,
    ) -> Result<(Shared, String), Error> {
        let Both(told, right) = given;
        let OfCluster { bytes, note, .. } = told;
        let found = Found {
            writable: !told.is_sealed,
            consistency: told.consistency,
            ..Found::new(bytes, right).named(name)
        };
        Ok((Shared::map(&self.0, &*self.0.up()?, found, None)?, note))
    }

    /// All that any host wrote to durable memory of the cluster before this is in its file when it
    /// returns, and stays there when the machine stops. How many bytes went there.
    ///
    /// # Errors
    /// [`Refusal::Cluster`] for memory without a file, or of which a page cannot be had; the file is as of
    /// the last flush then. As [`Host::shared`].
    pub fn flush_shared(&self, name: &str) -> Result<u64, Error> {
        // It may take long: only the end of the host kernel ends it.
        let kernel = KernelClient::new(self.0.up()?.kernel.right().clone());
        Ok(kernel.flush_shared(name.into())?.0?)
    }

    /// Takes the name of an object of the cluster away.
    ///
    /// # Errors
    /// As [`Host::shared`].
    pub fn unlink_shared(&self, name: &str) -> Result<(), Error> {
        let kernel = self.0.up()?.kernel.clone();
        Ok(kernel.unlink_shared(name.into())?.0?)
    }

    /// Nobody writes to an object of the cluster any more: who does gets SIGBUS, and hosts that have its
    /// pages give them to others. When it returns, all hosts know it. Who maps it from then on may only
    /// read.
    ///
    /// # Errors
    /// [`Refusal::Cluster`] for memory with the simple scheduler, or two replicas; as [`Host::shared`].
    pub fn seal_shared(&self, name: &str) -> Result<(), Error> {
        let kernel = self.0.up()?.kernel.clone();
        Ok(kernel.seal_shared(name.into())?.0?)
    }

    /// The hosts and objects of the cluster.
    ///
    /// # Errors
    /// [`Refusal::Alone`] and others.
    pub fn cluster(&self) -> Result<ClusterListed, Error> {
        Ok(self.0.up()?.kernel.cluster()?.0?)
    }

    /// Pages of an object of the cluster, as all its hosts tell of them.
    ///
    /// # Errors
    /// As [`Host::shared`].
    pub fn pages(&self, name: &str, wanted: PagesWanted) -> Result<PagesTold, Error> {
        let kernel = self.0.up()?.kernel.clone();
        Ok(kernel.pages(name.into(), wanted)?.0?)
    }

    /// What all hosts of the cluster do.
    ///
    /// # Errors
    /// [`Refusal::Alone`] and others.
    pub fn cluster_figures(&self) -> Result<ClusterFigures, Error> {
        let kernel = self.0.up()?.kernel.clone();
        Ok(kernel.cluster_figures()?.0?)
    }

    fn net_name(&self) -> Result<NetNameClient, Error> {
        let up = self.0.up()?;
        let mut known = lock(&up.net_name);
        match &*known {
            Some(client) if !client.right().is_dead() => Ok(client.clone()),
            Some(_) | None => {
                let right = up.kernel.network_server()?.0?;
                let client = NetNameClient::new(right).with_timeout(PATIENCE);
                Ok(known.insert(client).clone())
            }
        }
    }

    /// Gives a port of this process, a right to which is of [`Host::node`], a name that all hosts of the
    /// cluster know (Mach's `netname_check_in`): until it is checked out or dead, or this host leaves the
    /// cluster. It is for programs of the same user, and root.
    ///
    /// # Errors
    /// [`Refusal::Alone`], [`Refusal::PortExists`], [`Refusal::PortName`], [`Refusal::PortElsewhere`] and
    /// others.
    pub fn check_in(&self, name: &str, port: &SendRight) -> Result<(), Error> {
        Ok(self.net_name()?.check_in(name.into(), port.clone())?.0?)
    }

    /// A right to the port of a name, at whichever host of the cluster (`netname_look_up`). What is sent
    /// to it goes there by the host kernels; else it is as one to a port of this host.
    ///
    /// # Errors
    /// [`Refusal::Alone`], [`Refusal::NoPort`], [`Refusal::NotYours`] and others.
    pub fn look_up(&self, name: &str) -> Result<SendRight, Error> {
        Ok(self.net_name()?.look_up(name.into())?.0?)
    }

    /// Takes its name away from a port of this host (`netname_check_out`). Who has a right keeps it.
    ///
    /// # Errors
    /// [`Refusal::Alone`], [`Refusal::PortNotHere`], [`Refusal::NotYours`] and others.
    pub fn check_out(&self, name: &str) -> Result<(), Error> {
        Ok(self.net_name()?.check_out(name.into())?.0?)
    }

    /// Ports of the cluster.
    ///
    /// # Errors
    /// [`Refusal::Alone`] and others.
    pub fn ports(&self) -> Result<PortsListed, Error> {
        Ok(self.net_name()?.list()?.0?)
    }

    /// The Node by which it is reached: rights to memory objects are rights of this Node's.
    ///
    /// # Errors
    /// As [`Host::connect`], when the host kernel has been started again.
    pub fn node(&self) -> Result<Node, Error> {
        Ok(self.0.up()?.node.clone())
    }

    /// Maps the memory object of a pager in whatever process (`vm_map`): the right to it comes from
    /// [`MemoryObjects::add`], there or here. All of it is mapped, to be read alone when it cannot
    /// be written to. The same object is one memory for all who map it.
    ///
    /// `patience`: who waits for a page waits so long, also for a pager that died to be started
    /// again, and then gets SIGBUS, and the host kernel says why; `None`: waits until it comes. It
    /// counts for the object, and is for who first maps it to say.
    ///
    /// # Errors
    /// [`Refusal::Pager`], [`Refusal::Answered`], [`Refusal::Exists`] and others.
    pub fn map_object(
        &self,
        object: &SendRight,
        patience: Option<Duration>,
    ) -> Result<Shared, Error> {
        let (bytes, right) = self.map_right(object, patience)?;
        let found = Found::new(bytes, right).learnt()?;
        let up = self.0.up()?;
        Shared::map(&self.0, &up, found, None)
    }

    /// Has `offer` be the default pager of the host kernel: what does not fit into its memory comes
    /// here from now on, and what it has elsewhere in the background. For its own user, and root.
    ///
    /// # Errors
    /// [`Refusal::NotYours`], [`Refusal::Failed`].
    pub fn set_default_memory_manager(
        &self,
        offer: Offer,
        wired: Wired,
        folders: Vec<String>,
    ) -> Result<Serving, Error> {
        let copy = |fd: BorrowedFd<'_>| {
            let copied = fd.try_clone_to_owned().map(SentFd);
            copied.map_err(|error| Refusal::Failed(error.to_string()))
        };
        let (calls, life) = (copy(offer.channel())?, copy(offer.life())?);
        let up = self.0.up()?;
        up.kernel
            .set_default_pager(calls, life, wired.to_string(), folders)?
            .0?;
        Ok(offer.is_taken())
    }

    /// Answers for a memory object from now on, by which others of this user find it by its name.
    /// `patience`: as for [`Host::map_object`].
    ///
    /// # Errors
    /// As [`Host::map_object`].
    pub fn offer(
        &self,
        object: Arc<dyn MemoryObject>,
        patience: Option<Duration>,
    ) -> Result<Offered, Error> {
        let connect = |why| Error::Connect {
            path: self.0.path.clone(),
            why,
        };
        let objects = MemoryObjects::new(&self.node()?).map_err(connect)?;
        let right = objects.add(object);
        let (_, held) = self.map_right(&right, patience)?;
        let up = self.0.up()?;
        let over = up.node.port();
        up.kernel.right().notify_dead(&over);
        Ok(Offered {
            _objects: objects,
            _held: held,
            right,
            over,
        })
    }

    /// Others of this process go on meanwhile: the pager may take its time to begin.
    fn map_right(
        &self,
        object: &SendRight,
        patience: Option<Duration>,
    ) -> Result<(u64, SendRight), Error> {
        let kernel = self.0.up()?.kernel.clone();
        let ms = patience.map(|patience| u32::try_from(patience.as_millis()).unwrap_or(u32::MAX));
        let Both(bytes, right) = kernel.map_object(object.clone(), ms)?.0?;
        Ok((bytes, right))
    }

    /// For calls that may take long.
    pub(crate) fn kernel_right(&self) -> Result<SendRight, Error> {
        Ok(self.0.up()?.kernel.right().clone())
    }

    /// All pagers of this user in other processes; of all users for root.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn pagers(&self) -> Result<Vec<PagerListed>, Error> {
        Ok(self.0.up()?.kernel.pagers()?)
    }

    /// Takes a name away. Who has the memory keeps it.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], [`Refusal::NotYours`].
    pub fn unlink(&self, name: &str) -> Result<(), Error> {
        Ok(self.0.up()?.kernel.unlink(name.into())?.0?)
    }

    /// All shared memory of this user; of all users for root.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn list(&self) -> Result<Vec<Listed>, Error> {
        Ok(self.0.up()?.kernel.list()?)
    }

    /// How the host kernel does.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn status(&self) -> Result<Status, Error> {
        Ok(self.0.up()?.kernel.status()?)
    }

    /// How it and all shared memory of this user do; of all users for root.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn figures(&self) -> Result<Figures, Error> {
        Ok(self.0.up()?.kernel.figures()?)
    }

    /// What is said about shared memory, from number `from` on, and the number of the first that is
    /// told: more than `from` when some are lost. The host kernel keeps them while somebody asks.
    ///
    /// # Errors
    /// [`Refusal::NotFound`], [`Refusal::NotYours`].
    pub fn messages(&self, name: &str, from: u64) -> Result<(u64, Vec<Message>), Error> {
        Ok(self.0.up()?.kernel.messages(name.into(), from)?.0?)
    }
}

/// A memory object that this process answers for, until it is dropped.
pub struct Offered {
    _objects: MemoryObjects,
    /// The host kernel keeps the object's name as long as somebody has it.
    _held: SendRight,
    right: SendRight,
    over: ReceiveRight,
}

impl Offered {
    /// A right to the memory object, to be sent to who is to map it or to hand it to other kernels.
    #[must_use]
    pub fn right(&self) -> &SendRight {
        &self.right
    }

    /// Waits for the end of the host kernel, at most for `timeout`. False: it lives.
    #[must_use]
    pub fn wait(&self, timeout: Option<Duration>) -> bool {
        self.over.receive(timeout).is_ok()
    }
}

/// An object that the host kernel has given a right to.
struct Found {
    name: String,
    bytes: u64,
    writable: bool,
    consistency: Consistency,
    memory: MemoryClient,
}

impl Found {
    fn new(bytes: u64, right: SendRight) -> Self {
        Self {
            name: String::new(),
            bytes,
            writable: true,
            consistency: Consistency::Strict,
            memory: MemoryClient::new(right).with_timeout(PATIENCE),
        }
    }

    fn named(self, name: &str) -> Self {
        let name = name.to_owned();
        Self { name, ..self }
    }

    fn cannot_be_mapped(&self, errno: Errno) -> Error {
        Error::Map {
            name: self.name.clone(),
            errno,
        }
    }

    /// With what there is to know of it.
    fn learnt(self) -> Result<Self, Error> {
        let about = self.memory.about()?.0?;
        Ok(Self {
            name: about.name,
            writable: about.writable,
            ..self
        })
    }
}

/// Refuses a socket that another user may have put where it is.
///
/// # Errors
/// [`Error::NotOurs`].
pub fn check_owner(socket: &Path) -> Result<(), Error> {
    refuse_others(socket, rustix::process::geteuid().as_raw())
}

impl Up {
    fn new(path: &Path) -> Result<Self, Error> {
        let failed = |why| Error::Connect {
            path: path.into(),
            why,
        };
        let connect = |why| match why {
            ConnectError::Link(link::ConnectError::Failed {
                errno: Errno::ENOENT | Errno::ECONNREFUSED,
                ..
            }) => Error::Absent(path.into()),
            why @ ConnectError::Link(link::ConnectError::Failed {
                errno: Errno::EACCES,
                ..
            }) => match std::fs::metadata(path) {
                Ok(about) => Error::Denied(path.into(), about.uid()),
                Err(_) => failed(why),
            },
            why => failed(why),
        };
        check_owner(path)?;
        let node = Node::new().map_err(connect)?;
        let right = node.connect(path, Some(PATIENCE)).map_err(connect)?;
        let kernel = KernelClient::new(right).with_timeout(PATIENCE);
        Ok(Self {
            node,
            kernel,
            net_name: Mutex::default(),
            watched: AtomicBool::new(false),
        })
    }
}

impl Connection {
    fn up(&self) -> Result<MutexGuard<'_, OfProcess<Up>>, Error> {
        let mut up = lock(&self.up);
        if !up.is_own() || up.kernel.right().is_dead() {
            *up = OfProcess::new(Up::new(&self.path)?);
        }
        Ok(up)
    }

    /// What this process is to those that wait for it.
    fn member(&self) -> Result<Arc<Member>, Error> {
        let mut member = lock(&self.member);
        if let Some(member) = &*member
            && member.right.is_own()
            && !member.right.is_dead()
        {
            return Ok(Arc::clone(member));
        }
        let Both(number, Both(right, SentFd(file))) = self.up()?.kernel.enter()?.0?;
        let sleepers = Words::map(file.as_fd(), sleepers::BYTES);
        let sleepers = sleepers.map_err(|errno| Error::Map {
            name: "(where threads sleep)".into(),
            errno,
        })?;
        let process = Process::from_number(number);
        let entered = Arc::new(Member {
            process: process.ok_or(InvokeError::Garbled("answer", "enter"))?,
            sleepers,
            right: OfProcess::new(right),
        });
        *member = Some(Arc::clone(&entered));
        Ok(entered)
    }

    /// What is mapped fails when the host kernel dies: nobody would answer. And who uses what cannot
    /// be had is told why.
    fn watch(self: &Arc<Self>, up: &Up) {
        if up.watched.swap(true, Ordering::Relaxed) {
            return;
        }
        let notices = up.node.port();
        up.kernel.right().notify_dead(&notices);
        // Else it gets SIGBUS without a word.
        let _ = up.kernel.tell_of_failure(notices.make_send());
        let connection = Arc::downgrade(self);
        let watch = move || {
            let Ok(received) = Says.serve(&notices) else {
                return;
            };
            // Else this side has given its right up.
            if matches!(received.notice(), Some(Notice::Dead(_)))
                && let Some(connection) = connection.upgrade()
            {
                connection.fail_all();
            }
        };
        // Without it threads would wait instead.
        let _ = std::thread::Builder::new()
            .name("farpage-host".into())
            .spawn(watch);
    }
}

impl Connection {
    fn fail_all(&self) {
        let mapped = lock(&self.mapped);
        let mapped: Vec<_> = mapped.iter().filter_map(Weak::upgrade).collect();
        for one in mapped.iter().filter(|one| one.view.is_own()) {
            farpage_sys::say!(
                "farpage: the host kernel has gone: pages of '{}' that are not in memory here are \
                 lost, and end this process when they are touched; start it again",
                one.name
            );
            one.view.fail();
        }
    }
}

/// Says why this process gets SIGBUS.
struct Says;

impl FailuresCalls for Says {
    fn cannot_be_had(&mut self, _: Sender, object: String, byte: u64, why: String) {
        // What a pager says may be anything.
        let why: String = why.chars().filter(|c| !c.is_control()).collect();
        farpage_sys::say!(
            "farpage: process {} gets SIGBUS: it uses '{object}' at byte {byte}, which cannot be \
             had: {why}",
            std::process::id()
        );
    }
}

/// Its words: what a heap lies in.
impl AsRef<[AtomicU64]> for Shared {
    fn as_ref(&self) -> &[AtomicU64] {
        self.words()
    }
}

impl Shared {
    fn map(
        host: &Arc<Connection>,
        up: &Up,
        found: Found,
        of_name: Option<SendRight>,
    ) -> Result<Self, Error> {
        let SentFd(file) = found.memory.file()?.0?;
        let raw = Fd(file.as_raw_fd());
        let view = with_device(|device| View::map(raw, found.bytes as usize, device));
        let view = view.map_err(|errno| found.cannot_be_mapped(errno))?;
        if !found.writable {
            let protected = view.only_reads();
            protected.map_err(|errno| found.cannot_be_mapped(errno))?;
        }
        Self::keep(host, up, found, file, view, of_name)
    }

    fn keep(
        host: &Arc<Connection>,
        up: &Up,
        found: Found,
        file: OwnedFd,
        view: View,
        of_name: Option<SendRight>,
    ) -> Result<Self, Error> {
        let Found {
            name,
            bytes,
            writable,
            consistency,
            memory,
        } = found;
        host.watch(up);
        let mut rights = Rights::answering(&view, memory, &name)?;
        rights.name = of_name;
        let about = rustix::fs::fstat(&file);
        let about = about.map_err(|errno| Error::Map {
            name: name.clone(),
            errno: Errno(errno.raw_os_error()),
        })?;
        let mapped = Arc::new(Mapped {
            name,
            bytes,
            writable,
            consistency,
            file,
            inode: about.st_ino,
            view: OfProcess::new(view),
            rights: Mutex::new(OfProcess::new(rights)),
            host: Arc::clone(host),
        });
        let mut all = lock(&host.mapped);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&mapped));
        drop(all);
        let shared = Self(mapped);
        if consistency == Consistency::Release {
            passes::is_open(&shared);
        }
        Ok(shared)
    }

    /// Its name, as it was made or found.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// False when it can only be read: a thread that writes to it gets SIGSEGV.
    pub fn is_writable(&self) -> bool {
        self.0.writable
    }

    /// Its memory file.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }

    /// Where it is mapped, as long as this value or a clone of it lives.
    pub fn address(&self) -> usize {
        self.0.view.address()
    }

    /// All of it that makes whole words, those up to the end of its last page included.
    pub fn words(&self) -> &[AtomicU64] {
        self.0.view.words()
    }

    /// When this host sees what another has written to it.
    pub fn consistency(&self) -> Consistency {
        self.0.consistency
    }

    /// What processes of this host have written to it until now is seen by whoever acquires it after
    /// this has returned, at any host. Needed for memory with [`Consistency::Release`] only, and done by
    /// whoever gives back a lock or comes to a barrier ([`crate::sync`]); of other memory nothing is to be
    /// done.
    ///
    /// # Errors
    /// [`Refusal::Cluster`] when some of it is lost with a host that died, or this host is out of the
    /// cluster.
    pub fn release(&self) -> Result<(), Error> {
        self.passes(Passes::Released)
    }

    /// Whatever is read of it after this has what was released before, by any host. As
    /// [`Shared::release`], and done by whoever takes a lock or has passed a barrier.
    ///
    /// # Errors
    /// As [`Shared::release`].
    pub fn acquire(&self) -> Result<(), Error> {
        self.passes(Passes::Acquired)
    }

    fn passes(&self, what: Passes) -> Result<(), Error> {
        if self.0.consistency == Consistency::Strict {
            return Ok(());
        }
        let memory = self.memory()?;
        Ok(memory.passes(what)?.0?)
    }

    /// True in the process that mapped it, and in a child of fork that has done so anew.
    pub(crate) fn is_own(&self) -> bool {
        lock(&self.0.rights).is_own()
    }

    /// The connection is its process's alone: a child of fork that used it would end it for its parent.
    fn memory(&self) -> Result<MemoryClient, Error> {
        let rights = lock(&self.0.rights);
        match rights.is_own() {
            true => Ok(rights.memory.clone()),
            false => Err(Error::Parents(self.0.name.clone())),
        }
    }

    pub(crate) fn downgrade(&self) -> WeakShared {
        WeakShared(Arc::downgrade(&self.0))
    }

    pub(crate) fn member(&self) -> Result<Arc<Member>, Error> {
        self.0.host.member()
    }

    pub(crate) fn inode(&self) -> u64 {
        self.0.inode
    }

    /// Has a byte's page here to be written to, if it can be had.
    pub(crate) fn touch(&self, byte: u64) -> Result<(), Errno> {
        let view = &self.0.view;
        match view.answers_calls() {
            true => futex::touch(view.half_word(byte as usize)),
            false => Ok(()),
        }
    }

    /// Lets threads of other hosts go on, one bit each, that wait at a byte.
    pub(crate) fn wake_others(&self, byte: u64, hosts: u64) -> Result<(), Error> {
        let memory = self.memory()?;
        Ok(memory.wake(byte, hosts)?)
    }

    /// Whether a process lives that took something in it.
    pub(crate) fn lives(&self, process: Process) -> Result<bool, Error> {
        let memory = self.memory()?;
        Ok(memory.lives(process.number())?)
    }

    /// Keeps what was made here also when it is not mapped here any more. `None` for what was
    /// found: its maker keeps it.
    pub fn hold(&self) -> Option<Hold> {
        let rights = lock(&self.0.rights);
        let name = rights.name.clone().filter(|_| rights.is_own());
        name.map(|right| Hold(OfProcess::new(right)))
    }

    /// Has it keep within `bytes` of RAM from now on, in the whole host. For who made it, and root.
    ///
    /// # Errors
    /// [`Refusal::NotYours`], [`Refusal::Ram`].
    pub fn set_ram(&self, bytes: u64) -> Result<(), Error> {
        Ok(self.memory()?.set_ram(bytes)?.0?)
    }

    /// Has `bytes` of it, from `offset` on, in memory, where they stay until what is returned is
    /// dropped: whole pages.
    ///
    /// # Errors
    /// [`Refusal::Outside`], [`Refusal::Wired`].
    pub fn wire(&self, offset: u64, bytes: u64) -> Result<Wire, Error> {
        self.keep_pages(offset, bytes, |memory, first, pages| {
            Ok(memory.wire(first, pages)?.0?)
        })
    }

    fn keep_pages(
        &self,
        offset: u64,
        bytes: u64,
        keep: impl FnOnce(MemoryClient, u64, u64) -> Result<SendRight, Error>,
    ) -> Result<Wire, Error> {
        const PAGE: u64 = farpage_object::PAGE_BYTES as u64;
        let end = offset.checked_add(bytes).filter(|end| *end <= self.bytes());
        let end = end.ok_or(Refusal::Outside(self.bytes()))?;
        let (first, end) = (offset / PAGE, end.div_ceil(PAGE));
        let memory = self.memory()?;
        let right = keep(memory, first, end - first)?;
        for page in first..end {
            self.words()[(page * PAGE / 8) as usize].load(Ordering::Relaxed);
        }
        Ok(Wire {
            pages: OfProcess::new(PagesClient::new(right).with_timeout(PATIENCE)),
            _shared: self.clone(),
        })
    }

    /// Waits until locked pages are here. False: for longer than it wanted.
    fn are_here(pages: &SendRight, limit: Option<Duration>) -> Result<bool, Error> {
        /// A signal is seen after so long.
        const LOOK: Duration = Duration::from_millis(100);
        let ask = |waits, patience| {
            let pages = PagesClient::new(pages.clone()).with_timeout(patience);
            Ok::<bool, Error>(pages.are_here(waits)?.0?)
        };
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        loop {
            let left = until.map_or(LOOK, |until| {
                until.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                return ask(false, PATIENCE);
            }
            match ask(true, left.min(LOOK)) {
                Err(Error::Call(InvokeError::Call(CallError::TimedOut))) => {}
                told => return told,
            }
            if sync::is_interrupted() {
                return Ok(false);
            }
        }
    }

    /// As [`Shared::wire`], of memory that other hosts have, too (else it is the same): as long as what is
    /// returned lives they do not write to these pages, and, with [`Access::Write`], do not read them either. Who
    /// wants to waits. Pages that go from host to host together (`page_size`) are locked together.
    ///
    /// It waits as long as another host has them locked, but not longer than `limit`: zero is for pages that are here
    /// already. Several parts are locked in their order, and all of them before this process waits for anything else:
    /// so nobody waits in a circle. A lock to read is not exchanged for one to write.
    ///
    /// # Errors
    /// As there; [`Error::Late`] when the time is over, or [`sync::interrupts`] says so; [`Refusal::Unfit`] for release
    /// consistency, the simple scheduler, what is sealed and is to be written,
    /// and what this host has locked to read and is to be locked to write; [`Refusal::Cluster`].
    pub fn lock(
        &self,
        offset: u64,
        bytes: u64,
        access: Access,
        limit: Option<Duration>,
    ) -> Result<Wire, Error> {
        if bytes == 0 {
            return Err(Refusal::from(LockRefusal::Empty).into());
        }
        let to_write = access == Access::Write;
        self.keep_pages(offset, bytes, |memory, first, pages| {
            let right = memory.lock(first, pages, to_write)?.0?;
            match Self::are_here(&right, limit)? {
                true => Ok(right),
                false => Err(Error::Late(self.name().into())),
            }
        })
    }

    /// To be called before a fork whose child will use it: it then outlives this process for some
    /// seconds.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn before_fork(&self) -> Result<(), Error> {
        match self.memory() {
            Ok(memory) => Ok(memory.forks()?),
            // A child has nothing of it, and its children neither.
            Err(_) => Ok(()),
        }
    }

    /// To be called in a child of fork, before it touches the memory: which it has not inherited.
    ///
    /// # Errors
    /// As [`Host::open`]; [`Refusal::NotFound`] when nobody has had it since; [`Error::Taken`].
    pub fn after_fork(&self) -> Result<(), Error> {
        let mapped = &self.0;
        let up = mapped.host.up()?;
        let fails = |errno| Error::Map {
            name: mapped.name.clone(),
            errno,
        };
        let file = mapped.file.try_clone();
        let file = file.map_err(|error| fails(Errno(error.raw_os_error().unwrap_or(0))))?;
        let Both(_, right) = up.kernel.adopt(SentFd(file))?.0?;
        let file = Fd(mapped.file.as_raw_fd());
        let again = with_device(|device| mapped.view.map_again(file, device));
        again.map_err(|errno| match errno {
            Errno::EEXIST => Error::Taken(mapped.name.clone()),
            errno => fails(errno),
        })?;
        if !mapped.writable {
            mapped.view.only_reads().map_err(fails)?;
        }
        mapped.view.becomes_own();
        mapped.host.watch(&up);
        let memory = MemoryClient::new(right).with_timeout(PATIENCE);
        let rights = Rights::answering(&mapped.view, memory, &mapped.name)?;
        *lock(&mapped.rights) = OfProcess::new(rights);
        Ok(())
    }
}

impl Rights {
    /// Has the host kernel answer for a mapping.
    fn answering(view: &View, memory: MemoryClient, name: &str) -> Result<Self, Error> {
        let faults = view.faults().map_err(|errno| Error::Map {
            name: name.into(),
            errno,
        })?;
        let Tried(mapping) = memory.map(SentFd(faults), view.address() as u64)?;
        Ok(Self {
            _mapping: mapping?,
            memory,
            name: None,
        })
    }
}

/// The socket and its folder must be root's, or of the user `own`; root uses any.
fn refuse_others(path: &Path, own: u32) -> Result<(), Error> {
    for path in [Some(path), path.parent()].into_iter().flatten() {
        // Nothing there: that is told when it is connected to.
        if let Ok(about) = std::fs::metadata(path)
            && own != 0
            && ![0, own].contains(&about.uid())
        {
            return Err(Error::NotOurs(path.into(), about.uid()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_user_has_put_there_is_not_connected_to() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("host");
        std::fs::write(&socket, "").unwrap();
        let mut owner = rustix::process::geteuid().as_raw();
        if owner == 0 {
            owner = 12345;
            std::os::unix::fs::chown(&socket, Some(owner), None).unwrap();
        }
        let other = owner + 1;
        let refused = refuse_others(&socket, other);
        assert!(matches!(refused, Err(Error::NotOurs(_, uid)) if uid == owner));
        assert!(refuse_others(&socket, owner).is_ok() && refuse_others(&socket, 0).is_ok());
        std::os::unix::fs::chown(folder.path(), Some(owner), None).unwrap();
        std::fs::remove_file(&socket).unwrap();
        assert!(refuse_others(&socket, other).is_err(), "of its folder");
        assert!(refuse_others(&folder.path().join("none/host"), other).is_ok());
    }
}
