//! The host kernel's side.

mod at_host;
mod backed;
pub(crate) mod cluster;
mod figures;
pub(crate) mod here;
pub(crate) mod identity;
pub(crate) mod limits;
mod locked;
pub(crate) mod names;
mod paging;
mod shared;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use farpage_client::cluster::{
    ClusterFigures, ClusterListed, PagesTold, PagesWanted, Passes, Wanted,
};
use farpage_client::interface::{
    FailuresClient, KernelCalls, LockedCalls, MemoryCalls, ObjectAbout, OfCluster, PagesCalls,
    Tried,
};
use farpage_client::locks::{LockWanted, LocksListed};
use farpage_client::{Figures, Listed, Message, PagerListed, Refusal, Status};
use farpage_default_pager::manager::Manager;
use farpage_host::{Object, Objects, Share, SpaceId};
use farpage_object::{PAGE_BYTES, PageRange, Pager};
use farpage_port::interface::{Answer, Both, Fd};
use farpage_port::{
    ConnectError, Listening, Name, Node, Notice, PortSet, ReceiveError, ReceiveRight, Received,
    SendRight, Sender,
};
use farpage_rules::sync::Process;
use farpage_sys::Errno;

use at_host::{AtHost, OfPages};
pub use backed::WriteBack;
use backed::{Backed, Backing};
pub use here::Here;
use identity::{identity, identity_of};
use locked::OfLock;
use paging::AboutPagingSpace;
use shared::Clustered;

use crate::locks::{self, Caller, Keeper, Work};
use crate::net_message::NetMessages;
use crate::service::cluster::Files;
use crate::service::limits::{Cost, Limits};

/// A child of fork has so much time to come for what its parent had.
const FORK: Duration = Duration::from_secs(5);
/// A process that is told why it gets SIGBUS has so much time to say it: on a busy machine the thread
/// that does may wait for a processor.
const TOLD: Duration = Duration::from_secs(5);
/// What an object may be kept within at least.
const RAM_MIN: u64 = 1 << 20;
/// Time between two looks for children that did not come.
const LOOK: Duration = Duration::from_millis(500);
/// Bytes of an object at most.
const BYTES_MAX: u64 = 1 << 45;
/// Objects that wait to be let go of at most.
const LEAVING_MAX: usize = 64;

/// Names, objects, and who holds them. One thread answers; faults have their own.
pub struct Service {
    node: Node,
    pub(crate) objects: &'static Objects,
    /// Keeps what does not fit into memory.
    pub(crate) paging_space: Arc<dyn Pager>,
    about_paging_space: Option<AboutPagingSpace>,
    manager: Option<Arc<Manager>>,
    pub(crate) ram_bytes: u64,
    port: ReceiveRight,
    ports: PortSet,
    pub(crate) held: HashMap<Name, Held>,
    names: BTreeMap<String, Name>,
    /// Objects by device and inode number of their memory files.
    files: HashMap<(u64, u64), Name>,
    /// Objects that nobody has, but a child of fork may come for.
    lingering: Vec<Name>,
    limits: Limits,
    /// Objects whose messages are kept, and when they were last asked for.
    pub(crate) traced: Vec<(Name, Instant)>,
    /// Giving back an object's memory takes long when there is much: others do not wait for it.
    leaving: SyncSender<Arc<Object>>,
    /// Pagers in other processes.
    backed: Backed,
    /// Processes that want to know why they get SIGBUS.
    told: HashMap<u32, FailuresClient>,
    /// What all objects of a user may have in memory, in bytes, and the users that have any.
    user_ram: Option<u64>,
    users: HashMap<u32, Arc<Share>>,
    clustered: Option<Clustered>,
    here: Arc<Here>,
    net_messages: Option<SendRight>,
    /// Shared memory that others have locked.
    locks: Keeper,
}

/// What a port of ours stands for.
pub(crate) enum Held {
    Object(Entry),
    /// The name of an object.
    Name(Name),
    Mapping(Mapping),
    Wired(Wired),
    /// A lock of shared memory.
    Locked {
        _port: ReceiveRight,
    },
    /// A process that may have locks.
    Process {
        _port: ReceiveRight,
        process: Process,
        pid: u32,
    },
}

pub(crate) struct Entry {
    port: ReceiveRight,
    /// Send rights that were ever given.
    given: u32,
    /// Somebody has one.
    held: bool,
    /// A child of fork may come for it until then.
    stays_until: Option<Instant>,
    /// Who holds a right to it keeps the object until its name is taken away.
    name_port: Option<ReceiveRight>,
    pub(crate) object: Arc<Object>,
    file: (u64, u64),
    /// None, or not any more, when it is empty.
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) uid: u32,
    pub(crate) pid: u32,
    /// Processes that map it.
    pub(crate) mapped_by: Vec<u32>,
    /// `None`: paging space has what does not fit into memory.
    backing: Option<Backing>,
    /// Its number in the cluster, when all hosts have it in common.
    pub(crate) shared: Option<u64>,
}

pub(crate) struct Mapping {
    _port: ReceiveRight,
    object: Name,
    space: SpaceId,
    pid: u32,
}

/// Pages that stay in memory as long as somebody has the right to this.
pub(crate) struct Wired {
    _port: ReceiveRight,
    object: Weak<Object>,
    pages: PageRange,
    /// Of memory that other hosts have, too.
    lock: Option<Arc<AtHost>>,
}

impl Service {
    /// A service of objects that together keep `ram_bytes` in memory, and the rest in
    /// `paging_space`.
    ///
    /// # Errors
    /// [`ConnectError::Failed`] without descriptors or threads.
    pub fn new(
        objects: &'static Objects,
        ram_bytes: u64,
        paging_space: Arc<dyn Pager>,
    ) -> Result<Self, ConnectError> {
        let node = Node::new()?;
        let (port, ports) = (node.port(), node.port_set());
        ports.insert(&port);
        let (leaving, left) = sync_channel(LEAVING_MAX);
        let no_thread = |error: std::io::Error| ConnectError::Failed {
            doing: "start a thread",
            errno: Errno(error.raw_os_error().unwrap_or(0)),
        };
        std::thread::Builder::new()
            .name("services-leave".into())
            .spawn(move || left.into_iter().for_each(drop::<Arc<Object>>))
            .map_err(no_thread)?;
        let backed = Backed::new(&node).map_err(no_thread)?;
        ports.insert(backed.port());
        let here = Arc::new(Here::new().map_err(no_thread)?);
        Ok(Self {
            node,
            objects,
            paging_space,
            about_paging_space: None,
            manager: None,
            ram_bytes,
            port,
            ports,
            held: HashMap::new(),
            names: BTreeMap::new(),
            files: HashMap::new(),
            limits: Limits::of_this_process(),
            traced: Vec::new(),
            lingering: Vec::new(),
            leaving,
            backed,
            told: HashMap::new(),
            user_ram: None,
            users: HashMap::new(),
            clustered: None,
            here,
            net_messages: None,
            locks: Keeper::start().map_err(no_thread)?,
        })
    }

    /// What other hosts want of the processes of this one.
    #[must_use]
    pub fn here(&self) -> Arc<Here> {
        Arc::clone(&self.here)
    }

    /// Programs may give ports names for the whole cluster, and send to those of other hosts.
    ///
    /// # Errors
    /// [`ConnectError`] without descriptors or threads.
    pub fn with_net_messages(mut self, server: &NetMessages) -> Result<Self, ConnectError> {
        self.net_messages = Some(server.introduce(&self.node)?);
        Ok(self)
    }

    /// Objects of one user have at most so many bytes in memory together.
    #[must_use]
    pub fn with_user_ram(mut self, bytes: u64) -> Self {
        self.user_ram = Some(bytes);
        self
    }

    /// Has an object, which nobody uses yet, be a part of what its user may have.
    fn is_of_user(&mut self, object: &Object, uid: u32) {
        if let Some(bytes) = self.user_ram {
            let share = self.users.entry(uid);
            object.belongs_to(Arc::clone(
                share.or_insert_with(|| Arc::new(Share::new(bytes))),
            ));
        }
    }

    /// Listens at a path, until what is returned is dropped.
    ///
    /// # Errors
    /// As [`Node::listen`].
    pub fn listen(&self, path: &Path) -> Result<Listening, ConnectError> {
        self.node.listen(path, &self.port.make_send())
    }

    /// Listens on a socket that a service manager has bound and made listen.
    ///
    /// # Errors
    /// As [`Node::listen_on`].
    pub fn listen_on(&self, socket: OwnedFd) -> Result<Listening, ConnectError> {
        self.node.listen_on(socket, &self.port.make_send())
    }

    /// Answers for ever.
    ///
    /// # Errors
    /// When its ports are gone, which they are not.
    pub fn run(mut self) -> Result<std::convert::Infallible, ReceiveError> {
        loop {
            let patience = (!self.lingering.is_empty()).then_some(LOOK);
            match self.ports.receive(patience) {
                Ok(received) => self.answer(received),
                Err(ReceiveError::TimedOut) => {}
                Err(error) => return Err(error),
            }
            let lingering = std::mem::take(&mut self.lingering);
            lingering
                .into_iter()
                .for_each(|port| self.forget_unheld(port));
        }
    }

    fn answer(&mut self, received: Received) {
        let port = received.port;
        if let Some(notice) = received.notice() {
            if let Notice::NoSenders(given) = notice {
                self.nobody_holds(port, given);
            }
        } else if port == self.backed.port().name() {
            self.take_events();
        } else if port == self.port.name() {
            // It is no notice.
            let _ = self.dispatch(received);
        } else if let Some(Held::Object(_)) = self.held.get(&port) {
            let _ = OfObject(self, port).dispatch(received);
        } else if let Some(Held::Locked { .. }) = self.held.get(&port) {
            let _ = OfLock(self, port).dispatch(received);
        } else if let Some(Held::Wired(wired)) = self.held.get(&port) {
            let _ = OfPages(wired.lock.clone()).dispatch(received);
        }
    }

    /// Nobody holds a right to a port of ours, of which `given` were ever given.
    fn nobody_holds(&mut self, port: Name, given: u32) {
        match self.held.get_mut(&port) {
            // One was given meanwhile.
            Some(Held::Object(entry)) if given != entry.given => {
                entry.port.notify_no_senders(entry.given, &entry.port);
            }
            Some(Held::Object(entry)) => {
                entry.held = false;
                self.forget_unheld(port);
            }
            Some(Held::Name(object)) => {
                let object = *object;
                self.held.remove(&port);
                if let Some(Held::Object(entry)) = self.held.get_mut(&object) {
                    entry.name_port = None;
                }
                self.forget_unheld(object);
            }
            Some(Held::Mapping(mapping)) => {
                self.objects.detach(mapping.space);
                let (object, pid) = (mapping.object, mapping.pid);
                self.held.remove(&port);
                self.limits.give_back(pid, Cost::MAPPING);
                if let Some(Held::Object(entry)) = self.held.get_mut(&object)
                    && let Some(at) = entry.mapped_by.iter().position(|other| *other == pid)
                {
                    entry.mapped_by.swap_remove(at);
                    if entry.mapped_by.is_empty() {
                        self.clean(object);
                    }
                }
            }
            Some(Held::Wired(wired)) => {
                if let Some(object) = wired.object.upgrade() {
                    object.unwire(wired.pages);
                }
                if let Some(lock) = &wired.lock {
                    lock.is_over();
                }
                self.held.remove(&port);
            }
            Some(Held::Locked { .. }) => {
                self.locks.tell(Work::Release(port));
                self.held.remove(&port);
            }
            Some(Held::Process { process, pid, .. }) => {
                self.here.leaves(*process);
                self.limits.give_back(*pid, Cost::MAPPING);
                self.held.remove(&port);
            }
            None => {}
        }
    }

    /// An object that nobody has, and whose name nobody keeps, is gone.
    fn forget_unheld(&mut self, port: Name) {
        let Some(Held::Object(entry)) = self.held.get(&port) else {
            return;
        };
        if entry.held || entry.name_port.is_some() {
            return;
        }
        if entry
            .stays_until
            .is_some_and(|until| Instant::now() < until)
        {
            return self.lingering.push(port);
        }
        if !self.may_go(port) {
            return;
        }
        let Some(Held::Object(entry)) = self.held.get(&port) else {
            return;
        };
        let shared = entry.shared;
        if !entry.name.is_empty() && shared.is_none() {
            self.names.remove(&entry.name);
        }
        self.files.remove(&entry.file);
        self.limits
            .give_back(entry.pid, Cost::of_object(entry.bytes));
        if let Some(number) = shared {
            self.release_shared(number, port);
        }
        if let Some(Held::Object(entry)) = self.held.remove(&port) {
            // It takes them as long as this process lives.
            let _ = self.leaving.send(entry.object);
        }
    }

    pub(crate) fn named(&mut self, name: &str) -> Result<(Name, &mut Entry), Refusal> {
        names::check(name)?;
        let port = self.names.get(name).copied();
        let held = port.and_then(|port| Some((port, self.held.get_mut(&port)?)));
        match held {
            Some((port, Held::Object(entry))) => Ok((port, entry)),
            Some((
                _,
                Held::Name(_)
                | Held::Mapping(_)
                | Held::Wired(_)
                | Held::Locked { .. }
                | Held::Process { .. },
            ))
            | None => Err(Refusal::NotFound(name.into())),
        }
    }

    fn make(
        &mut self,
        caller: Sender,
        name: String,
        bytes: u64,
    ) -> Result<Both<SendRight, SendRight>, Refusal> {
        if !name.is_empty() {
            match self.named(&name) {
                Err(Refusal::NotFound(_)) => {}
                Err(other) => return Err(other),
                Ok(_) => return Err(Refusal::Exists(name)),
            }
        }
        if !(1..=BYTES_MAX).contains(&bytes) {
            return Err(Refusal::Size(bytes));
        }
        if !self.objects.has_room(1) {
            return Err(Refusal::NoRoom {
                resident_bytes: self.objects.resident_bytes(),
                ram_bytes: self.ram_bytes,
            });
        }
        let (uid, pid) = identity(caller);
        self.limits.take(pid, Cost::of_object(bytes))?;
        let made = self.make_object(&name, bytes);
        let (object, file) =
            made.inspect_err(|_| self.limits.give_back(pid, Cost::of_object(bytes)))?;
        self.is_of_user(&object, uid);
        let (port, right) = self.make_port();
        let (name_port, name_right) = self.make_port();
        let key = port.name();
        self.files.insert(file, key);
        self.held.insert(name_port.name(), Held::Name(key));
        if !name.is_empty() {
            self.names.insert(name.clone(), key);
        }
        let entry = Entry {
            port,
            given: 1,
            held: true,
            stays_until: None,
            name_port: Some(name_port),
            object,
            file,
            name,
            bytes,
            uid,
            pid,
            mapped_by: Vec::new(),
            backing: None,
            shared: None,
        };
        self.held.insert(key, Held::Object(entry));
        Ok(Both(right, name_right))
    }

    fn make_object(&self, name: &str, bytes: u64) -> Result<(Arc<Object>, (u64, u64)), Refusal> {
        let label = if name.is_empty() { "unnamed" } else { name };
        let (pages, pager) = (
            bytes.div_ceil(PAGE_BYTES as u64),
            Arc::clone(&self.paging_space),
        );
        let object = self.objects.create(label, pages, pager, true);
        let object = object.map_err(|error| failed(&error))?;
        let file = object.identity().map_err(|errno| failed(&errno))?;
        Ok((object, file))
    }

    fn enters(&mut self, pid: u32) -> Result<Both<u64, Both<SendRight, Fd>>, Refusal> {
        let file = self.here.file().map_err(|error| failed(&error))?;
        self.limits.take(pid, Cost::MAPPING)?;
        let process = self.here.enters();
        let (port, right) = self.make_port();
        let key = port.name();
        let held = Held::Process {
            _port: port,
            process,
            pid,
        };
        self.held.insert(key, held);
        Ok(Both(process.number(), Both(right, Fd(file))))
    }

    /// A port of which it is told when nobody holds the right, or another one, any more.
    fn make_port(&self) -> (ReceiveRight, SendRight) {
        let port = self.node.port();
        self.ports.insert(&port);
        let right = port.make_send();
        port.notify_no_senders(1, &port);
        (port, right)
    }
}

fn failed(error: &dyn std::fmt::Display) -> Refusal {
    Refusal::Failed(error.to_string())
}

impl Entry {
    fn give(&mut self) -> SendRight {
        self.given += 1;
        let right = self.port.make_send();
        if !std::mem::replace(&mut self.held, true) {
            self.port.notify_no_senders(self.given, &self.port);
        }
        right
    }

    pub(crate) fn refuse_others(&self, caller: Sender) -> Result<(), Refusal> {
        let (uid, _) = identity(caller);
        match uid == self.uid || uid == 0 {
            true => Ok(()),
            false => Err(Refusal::NotYours(self.name.clone())),
        }
    }
}

impl KernelCalls for Service {
    fn create(
        &mut self,
        caller: Sender,
        name: String,
        bytes: u64,
    ) -> Tried<Both<SendRight, SendRight>> {
        Tried(self.make(caller, name, bytes))
    }

    fn open(&mut self, caller: Sender, name: String) -> Tried<Both<u64, SendRight>> {
        let found = self.named(&name).and_then(|(_, entry)| {
            entry.refuse_others(caller)?;
            Ok(Both(entry.bytes, entry.give()))
        });
        Tried(found)
    }

    /// Who has the file can do all that a right to the object allows, whoever it is.
    fn adopt(&mut self, _: Sender, file: Fd) -> Tried<Both<u64, SendRight>> {
        let port = identity_of(&file.0).and_then(|file| self.files.get(&file).copied());
        Tried(match port.and_then(|port| self.held.get_mut(&port)) {
            Some(Held::Object(entry)) => Ok(Both(entry.bytes, entry.give())),
            Some(
                Held::Name(_)
                | Held::Mapping(_)
                | Held::Wired(_)
                | Held::Locked { .. }
                | Held::Process { .. },
            )
            | None => Err(Refusal::NotFound("(a descriptor)".into())),
        })
    }

    fn unlink(&mut self, caller: Sender, name: String) -> Tried<()> {
        let unlinked = self.named(&name).and_then(|(port, entry)| {
            entry.refuse_others(caller)?;
            entry.name.clear();
            Ok((port, entry.name_port.take()))
        });
        Tried(unlinked.map(|(object, name_port)| {
            self.names.remove(&name);
            if let Some(port) = name_port {
                self.held.remove(&port.name());
            }
            self.forget_unheld(object);
        }))
    }

    fn list(&mut self, caller: Sender) -> Vec<Listed> {
        let listed = self.visible(caller).map(|entry| {
            let mut mapped_by = entry.mapped_by.clone();
            mapped_by.sort_unstable();
            mapped_by.dedup();
            Listed {
                name: entry.name.clone(),
                bytes: entry.bytes,
                resident_bytes: entry.object.resident() * PAGE_BYTES as u64,
                uid: entry.uid,
                pid: entry.pid,
                mapped_by,
                is_shared: entry.shared.is_some(),
            }
        });
        let mut listed: Vec<Listed> = listed.collect();
        listed.sort_by(|one, other| (&one.name, one.pid).cmp(&(&other.name, other.pid)));
        listed
    }

    fn status(&mut self, _: Sender) -> Status {
        Status {
            pid: std::process::id(),
            ram_bytes: self.ram_bytes,
            resident_bytes: self.objects.resident_bytes(),
            objects: self.objects.objects().len() as u64,
        }
    }

    fn figures(&mut self, caller: Sender) -> Figures {
        self.tell_figures(caller)
    }

    fn messages(&mut self, caller: Sender, name: String, from: u64) -> Tried<(u64, Vec<Message>)> {
        Tried(self.tell_messages(caller, &name, from))
    }

    fn map_object(
        &mut self,
        caller: Sender,
        object: SendRight,
        patience_ms: Option<u32>,
        answer: Answer<Tried<Both<u64, SendRight>>>,
    ) {
        let patience = patience_ms.map(|ms| Duration::from_millis(ms.into()));
        self.map_backed(caller, object, patience, answer);
    }

    fn set_default_pager(
        &mut self,
        caller: Sender,
        calls: Fd,
        life: Fd,
        wired: String,
        folders: Vec<String>,
    ) -> Tried<()> {
        let about = farpage_default_pager::manager::About { wired, folders };
        Tried(self.set_default_memory_manager(caller, &calls.0, life.0, about))
    }

    fn tell_of_failure(&mut self, caller: Sender, told: SendRight) {
        let (_, pid) = identity(caller);
        self.told.retain(|_, told| !told.right().is_dead());
        let told = FailuresClient::new(told).with_timeout(TOLD);
        self.told.insert(pid, told);
    }

    fn pagers(&mut self, caller: Sender) -> Vec<PagerListed> {
        self.list_pagers(caller)
    }

    fn shared(
        &mut self,
        caller: Sender,
        name: String,
        wanted: Option<Wanted>,
        answer: Answer<Tried<Both<OfCluster, SendRight>>>,
    ) {
        self.have_shared(caller, name, wanted, None, answer);
    }

    fn shared_with_file(
        &mut self,
        caller: Sender,
        name: String,
        wanted: Wanted,
        file: Fd,
        journal: Fd,
        answer: Answer<Tried<Both<OfCluster, SendRight>>>,
    ) {
        let files = Files {
            file: file.0,
            journal: journal.0,
        };
        self.have_shared(caller, name, Some(wanted), Some(files), answer);
    }

    fn flush_shared(&mut self, caller: Sender, name: String, answer: Answer<Tried<u64>>) {
        self.flush_of_cluster(caller, &name, answer);
    }

    fn unlink_shared(&mut self, caller: Sender, name: String, answer: Answer<Tried<()>>) {
        self.remove_shared(caller, name, answer);
    }

    fn seal_shared(&mut self, caller: Sender, name: String, answer: Answer<Tried<()>>) {
        self.seal_of_cluster(caller, name, answer);
    }

    fn cluster(&mut self, caller: Sender) -> Tried<ClusterListed> {
        Tried(self.list_cluster(caller))
    }

    fn pages(
        &mut self,
        caller: Sender,
        name: String,
        wanted: PagesWanted,
        answer: Answer<Tried<PagesTold>>,
    ) {
        self.pages_of_cluster(caller, &name, wanted, answer);
    }

    fn cluster_figures(&mut self, caller: Sender, answer: Answer<Tried<ClusterFigures>>) {
        self.figures_of_cluster(caller, answer);
    }

    fn network_server(&mut self, _: Sender) -> Tried<SendRight> {
        Tried(self.net_messages.clone().ok_or(Refusal::Alone))
    }

    fn lock_file(&mut self, caller: Sender, file: Fd, part: LockWanted, answer: locks::Locked) {
        self.lock_memory(caller, locks::Memory::File(file.0), part, answer);
    }

    fn lock_segment(
        &mut self,
        caller: Sender,
        number: u32,
        part: LockWanted,
        answer: locks::Locked,
    ) {
        self.lock_memory(caller, locks::Memory::Segment(number), part, answer);
    }

    fn borrow_lock(&mut self, caller: Sender, name: String, answer: locks::Locked) {
        self.borrow_locked(caller, name, answer);
    }

    fn locks(&mut self, caller: Sender, answer: Answer<Tried<LocksListed>>) {
        self.locks.ask(Work::List(Caller::new(caller), answer));
    }

    fn enter(&mut self, caller: Sender) -> Tried<Both<u64, Both<SendRight, Fd>>> {
        Tried(self.enters(identity(caller).1))
    }
}

/// An object's port.
struct OfObject<'a>(&'a mut Service, Name);

impl OfObject<'_> {
    fn entry(&mut self) -> Option<&mut Entry> {
        match self.0.held.get_mut(&self.1) {
            Some(Held::Object(entry)) => Some(entry),
            Some(
                Held::Name(_)
                | Held::Mapping(_)
                | Held::Wired(_)
                | Held::Locked { .. }
                | Held::Process { .. },
            )
            | None => None,
        }
    }

    fn try_wire(
        &mut self,
        first: u64,
        pages: u64,
        lock: Option<Arc<AtHost>>,
    ) -> Result<SendRight, Refusal> {
        let gone = || Refusal::NotFound("(it is gone)".into());
        let entry = self.entry().ok_or_else(gone)?;
        let (object, bytes) = (Arc::clone(&entry.object), entry.bytes);
        let end = first.checked_add(pages);
        let Some(end) = end.filter(|end| pages > 0 && *end <= object.pages()) else {
            return Err(Refusal::Outside(bytes));
        };
        let pages = PageRange::new(first, end);
        object.wire(pages).map_err(|limit| {
            let of = limit.of.to_owned();
            Refusal::Wired(limit.wanted_bytes, of, limit.most_bytes, limit.wired_bytes)
        })?;
        let (port, right) = self.0.make_port();
        let wired = Wired {
            object: Arc::downgrade(&object),
            pages,
            _port: port,
            lock,
        };
        let key = wired._port.name();
        self.0.held.insert(key, Held::Wired(wired));
        Ok(right)
    }

    fn try_map(&mut self, caller: Sender, faults: Fd, address: u64) -> Result<SendRight, Refusal> {
        let (_, pid) = identity(caller);
        let objects = self.0.objects;
        let gone = || Refusal::NotFound("(it is gone)".into());
        let object = Arc::clone(&self.entry().ok_or_else(gone)?.object);
        self.0.limits.take(pid, Cost::MAPPING)?;
        let told = self.0.told.get(&pid).cloned();
        let space = match attach(objects, faults, &object, address, told) {
            Ok(space) => space,
            Err(refusal) => {
                self.0.limits.give_back(pid, Cost::MAPPING);
                return Err(refusal);
            }
        };
        if let Some(entry) = self.entry() {
            entry.mapped_by.push(pid);
            entry.backing.iter_mut().for_each(Backing::is_mapped);
        }
        let (port, right) = self.0.make_port();
        let (key, object) = (port.name(), self.1);
        let mapping = Mapping {
            _port: port,
            object,
            space,
            pid,
        };
        self.0.held.insert(key, Held::Mapping(mapping));
        Ok(right)
    }
}

/// Answers for all of an object at `address`.
fn attach(
    objects: &Objects,
    faults: Fd,
    object: &Arc<Object>,
    address: u64,
    told: Option<FailuresClient>,
) -> Result<SpaceId, Refusal> {
    let space = objects.attach(faults.0);
    let space = space.map_err(|errno| {
        let why = format!("the descriptor is no userfaultfd that can be waited for ({errno})");
        Refusal::Failed(why)
    })?;
    if let Some(told) = told {
        let tell = move |object: &str, byte, why: &str| {
            // It may be gone, or not listen.
            if let Err(error) = told.cannot_be_had(object.into(), byte, why.into()) {
                farpage_sys::say!(
                    "farpage: a process gets SIGBUS for '{object}' and was not told why: {error}"
                );
            }
        };
        objects.tell_of_failure(space, Arc::new(tell));
    }
    let all = PageRange::new(0, object.pages());
    if let Err(error) = objects.map(space, object, address as usize, all) {
        objects.detach(space);
        return Err(failed(&error));
    }
    Ok(space)
}

impl MemoryCalls for OfObject<'_> {
    fn forks(&mut self, _: Sender) {
        if let Some(entry) = self.entry() {
            entry.stays_until = Some(Instant::now() + FORK);
        }
    }

    fn about(&mut self, _: Sender) -> Tried<ObjectAbout> {
        let gone = || Refusal::NotFound("(it is gone)".into());
        let about = self.entry().ok_or_else(gone).map(|entry| {
            let backing = entry.backing.as_ref();
            ObjectAbout {
                name: entry.name.clone(),
                writable: backing.is_none_or(|backing| backing.outside.is_writable()),
            }
        });
        Tried(about)
    }

    fn set_ram(&mut self, caller: Sender, bytes: u64) -> Tried<()> {
        let gone = || Refusal::NotFound("(it is gone)".into());
        let set = |entry: &mut Entry| {
            entry.refuse_others(caller)?;
            if bytes < RAM_MIN {
                return Err(Refusal::Ram(bytes));
            }
            let set = entry.object.set_most(bytes);
            set.map_err(|wired| Refusal::RamWired(bytes, wired))
        };
        Tried(self.entry().ok_or_else(gone).and_then(set))
    }

    fn wake(&mut self, _: Sender, offset: u64, hosts: u64) {
        let number = self.entry().and_then(|entry| entry.shared);
        if let (Some(number), Some(cluster)) = (number, self.0.cluster_of_hosts()) {
            cluster.wake(number, offset, hosts);
        }
    }

    fn lives(&mut self, _: Sender, process: u64, answer: Answer<bool>) {
        self.0.asked_whether(process, answer);
    }

    fn passes(&mut self, _: Sender, what: Passes, answer: Answer<Tried<()>>) {
        match self.entry().and_then(|entry| entry.shared) {
            Some(number) => self.0.passes_object(number, what, answer),
            // All processes of this host see what each of them writes.
            None => drop(answer.give(Tried(Ok(())))),
        }
    }

    fn wire(&mut self, _: Sender, first: u64, pages: u64) -> Tried<SendRight> {
        Tried(self.try_wire(first, pages, None))
    }

    fn lock(&mut self, _: Sender, first: u64, pages: u64, to_write: bool) -> Tried<SendRight> {
        let number = self.entry().and_then(|entry| entry.shared);
        // Without a number processes of this host share it, and no others.
        let lock = number.and_then(|number| self.0.lock_at_host(number, first, pages, to_write));
        let wired = self.try_wire(first, pages, lock.clone());
        if let (Ok(_), Some(lock)) = (&wired, lock) {
            lock.begins();
        }
        Tried(wired)
    }

    fn file(&mut self, _: Sender) -> Tried<Fd> {
        let gone = || Refusal::NotFound("(it is gone)".into());
        let file = self.entry().ok_or_else(gone).and_then(|entry| {
            let file = entry.object.file();
            let file = file.try_clone_to_owned();
            file.map(Fd).map_err(|error| failed(&error))
        });
        Tried(file)
    }

    fn map(&mut self, caller: Sender, faults: Fd, address: u64) -> Tried<SendRight> {
        Tried(self.try_map(caller, faults, address))
    }
}
