//! The pager's side.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender as Queue, channel};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use farpage_object::{Access, PAGE_BYTES, PageIndex, PageRange};
use farpage_port::interface::{Both, Contents, InvokeError};
use farpage_port::{
    ConnectError, Message, Name, Node, PortSet, ReceiveRight, Received, SendRight, Sender,
};
use farpage_sys::lock;

use super::protocol::{
    DataWanted, OfferedCalls, PageOrder, PagingCalls, Provided, Ready, RequestClient,
};

/// Threads that answer for all objects. One more comes whenever all of them wait for a kernel that cleans or
/// flushes: one has to receive what it writes.
const THREADS: usize = 4;
/// Threads that take modified pages: who waits for a page does not wait for them.
const WRITERS: usize = 2;
thread_local! {
    /// Of the objects that this thread answers for.
    static ANSWERS_FOR: RefCell<Weak<Shared>> = const { RefCell::new(Weak::new()) };
}
/// The number of the next kernel.
static NEXT: AtomicU64 = AtomicU64::new(1);
/// What a kernel may have sent and is not read yet: all that it asks at a time.
const QUEUE: u16 = 64;

/// What there is to know of a memory object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// Its name, by which processes of the same user open it, and by which a restarted pager takes
    /// over: 1 to 200 characters without '/'.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Whether it can be written to.
    pub writable: bool,
    /// Pages, up to 64, that are worth bringing in where one is wanted.
    pub cluster_pages: u32,
}

/// Memory whose contents this process answers for.
///
/// Several threads call at a time. What is called must not touch the same object where a kernel has
/// mapped it: its own fault would wait for itself. It may have kernels clean and flush, and must not hold
/// a lock meanwhile that [`MemoryObject::data_write`] takes.
///
/// ```
/// use farpage_client::pager::{About, MemoryObject, PageRequest};
///
/// /// Every byte is the number of its page.
/// struct Numbers;
///
/// impl MemoryObject for Numbers {
///     fn about(&self) -> About {
///         About { name: "numbers".into(), bytes: 1 << 30, writable: false, cluster_pages: 16 }
///     }
///
///     fn data_request(&self, request: PageRequest) {
///         let pages = request.pages();
///         let bytes = pages.iter().flat_map(|page| [page.0 as u8; 4096]).collect();
///         request.supply(bytes);
///     }
/// }
/// ```
pub trait MemoryObject: Send + Sync {
    /// What there is to know of it.
    fn about(&self) -> About;

    /// A kernel begins to use it (`pager_init`). Each has its own [`Kernel`], by which it can be
    /// asked to give back or forget pages.
    ///
    /// # Errors
    /// Why it may not, in words.
    fn init(&self, kernel: &Kernel) -> Result<(), String> {
        let _ = kernel;
        Ok(())
    }

    /// Pages are wanted (`pager_data_request`). Any thread answers the request, now or later.
    fn data_request(&self, request: PageRequest);

    /// Modified pages come back, from byte `offset` on, whole pages (`pager_data_write`). When this
    /// returns `Ok` the pager answers for them.
    ///
    /// # Errors
    /// Why they could not be taken, in words: they are kept, and come again.
    fn data_write(&self, kernel: &Kernel, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let _ = (kernel, offset, bytes);
        Err("it can only be read".into())
    }

    /// Somebody wants to write to a page that is locked (`pager_data_unlock`), and waits until it is
    /// unlocked, then or later, or locked again: then it asks again. Unlocks it, unless it is
    /// overridden.
    ///
    /// A pager that locks pages is asked for a page that it has not locked, too, when the page was to come
    /// back, and [`MemoryObject::data_write`] did not take it in time: it is locked when it is used again.
    fn data_unlock(&self, kernel: &Kernel, page: PageIndex) {
        // A kernel that is gone asks no more.
        let _ = kernel.unlock(PageRange::one(page));
    }

    /// A kernel has let go of it, or is gone.
    fn terminate(&self, kernel: &Kernel) {
        let _ = kernel;
    }
}

/// A kernel that uses an object.
#[derive(Clone)]
pub struct Kernel(Arc<Session>);

struct Session {
    number: u64,
    caller: Sender,
    kernel: RequestClient,
}

impl Kernel {
    /// Tells kernels of this process's objects apart.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// Its process, as Linux says.
    #[must_use]
    pub fn caller(&self) -> Sender {
        self.0.caller
    }

    /// Has modified pages handed over; they stay there (`pager_clean_request`). Returns when
    /// [`MemoryObject::data_write`] has taken them, so it is not to be called from there.
    ///
    /// # Errors
    /// Why not: [`MemoryObject::data_write`] does not take them, the kernel is gone, or too many ask.
    pub fn clean(&self, pages: PageRange) -> Result<(), String> {
        self.request(pages, PageOrder::Clean)
    }

    /// Has modified pages handed over and all pages forgotten (`pager_flush_request`).
    ///
    /// # Errors
    /// As [`Kernel::clean`].
    pub fn flush(&self, pages: PageRange) -> Result<(), String> {
        self.request(pages, PageOrder::Flush)
    }

    /// Nobody writes to those of the pages that are there, or on their way there, before they are
    /// unlocked (`pager_data_lock`). When this returns, nobody does any more. Who wants to makes
    /// [`MemoryObject::data_unlock`] be called. A lock ends with its page: when a page that was let
    /// go of is supplied again, that says whether it is locked.
    ///
    /// # Errors
    /// As [`Kernel::clean`].
    pub fn lock(&self, pages: PageRange) -> Result<(), String> {
        self.request(pages, PageOrder::Lock)
    }

    /// Everybody may write to the pages again; who waited for that goes on.
    ///
    /// # Errors
    /// As [`Kernel::clean`].
    pub fn unlock(&self, pages: PageRange) -> Result<(), String> {
        self.request(pages, PageOrder::Unlock)
    }

    fn request(&self, pages: PageRange, order: PageOrder) -> Result<(), String> {
        let waits = matches!(order, PageOrder::Clean | PageOrder::Flush);
        let _waits = waits.then(Waits::begin).transpose()?;
        let locked = self
            .0
            .kernel
            .lock_request(pages.start.0, pages.pages(), order);
        locked.map_err(|error| error.to_string())?
    }

    /// So many pages are worth bringing in where one is wanted, from now on.
    ///
    /// # Errors
    /// When the kernel is gone.
    pub fn set_cluster_pages(&self, pages: u32) -> Result<(), InvokeError> {
        self.0.kernel.set_attributes(pages)
    }
}

/// Pages that a kernel waits for. Dropped unanswered, it fails.
pub struct PageRequest {
    session: Arc<Session>,
    id: u64,
    wanted: DataWanted,
    is_answered: bool,
}

impl PageRequest {
    /// Who asks.
    #[must_use]
    pub fn kernel(&self) -> Kernel {
        Kernel(Arc::clone(&self.session))
    }

    /// The pages that may be supplied, in order from the first.
    #[must_use]
    pub fn pages(&self) -> PageRange {
        PageRange::new(self.wanted.first, self.wanted.first + self.wanted.pages)
    }

    /// How many of them, from the first, somebody waits for; at least 1.
    #[must_use]
    pub fn needed(&self) -> u64 {
        self.wanted.needed
    }

    /// What the waiting thread wants to do.
    #[must_use]
    pub fn access(&self) -> Access {
        match self.wanted.write {
            true => Access::Write,
            false => Access::Read,
        }
    }

    /// Supplies contents from the first page on; a part of a page at the end is filled up with
    /// zeros, and pages that are not supplied are asked for again. The pager keeps its copy.
    pub fn supply(self, contents: Vec<u8>) {
        self.provide(contents, Provided::default());
    }

    /// The same; the pager keeps no copy, so the pages come back even if nobody writes to them.
    pub fn supply_precious(self, contents: Vec<u8>) {
        self.provide(
            contents,
            Provided {
                precious: true,
                locked: false,
            },
        );
    }

    /// As [`PageRequest::supply`]; nobody writes to the pages before the pager has unlocked them.
    pub fn supply_locked(self, contents: Vec<u8>) {
        self.provide(
            contents,
            Provided {
                precious: false,
                locked: true,
            },
        );
    }

    fn provide(mut self, mut contents: Vec<u8>, how: Provided) {
        contents.resize(contents.len().next_multiple_of(PAGE_BYTES), 0);
        self.is_answered = true;
        // A kernel that is gone needs nothing.
        let _ = self
            .session
            .kernel
            .data_provided(self.id, how, contents.into());
    }

    /// The first `pages` never had contents: they are zeros (`pager_data_unavailable`).
    pub fn zeros(mut self, pages: u64) {
        self.is_answered = true;
        let _ = self.session.kernel.data_unavailable(self.id, pages);
    }

    /// The first page cannot be had. Who waits for it gets an error that says why.
    pub fn fail(mut self, why: &str) {
        self.is_answered = true;
        let _ = self.session.kernel.data_error(self.id, why.into());
    }
}

impl Drop for PageRequest {
    fn drop(&mut self) {
        if !self.is_answered {
            let why = "the pager dropped the request without an answer";
            let _ = self.session.kernel.data_error(self.id, why.into());
        }
    }
}

/// The memory objects of a process, and the threads that answer for them.
///
/// Cloning gives the same. It answers while it lives.
#[derive(Clone)]
pub struct MemoryObjects(Arc<Objects>);

struct Objects {
    node: Node,
    shared: Arc<Shared>,
    /// To the port that ends the threads.
    ends: SendRight,
}

impl Drop for Objects {
    fn drop(&mut self) {
        // Each thread that ends tells the next.
        let _ = self.ends.send(Message::new(0), Some(Duration::ZERO));
        lock(&self.shared.writes).take();
        let held = std::mem::take(&mut *lock(&self.shared.held));
        for (_, held) in held.into_values() {
            if let Held::Session(object, session) = held {
                object.terminate(&Kernel(session));
            }
        }
    }
}

/// What the threads have.
struct Shared {
    node: Node,
    ports: PortSet,
    end: ReceiveRight,
    /// Threads, and those of them that wait for a kernel.
    threads: AtomicUsize,
    waiting: AtomicUsize,
    held: Mutex<HashMap<Name, (ReceiveRight, Held)>>,
    /// What is to be written; kernels wait for answers, so there are never many.
    writes: Mutex<Option<Queue<Written>>>,
}

/// Modified pages that came.
struct Written {
    object: Arc<dyn MemoryObject>,
    session: Arc<Session>,
    id: u64,
    first: u64,
    contents: Contents,
}

/// What a port stands for.
#[derive(Clone)]
enum Held {
    Object(Arc<dyn MemoryObject>),
    Session(Arc<dyn MemoryObject>, Arc<Session>),
}

impl MemoryObjects {
    /// None yet, with ports of `node`: that of [`Host::node`](crate::Host::node), say.
    ///
    /// # Errors
    /// Without threads.
    pub fn new(node: &Node) -> Result<Self, ConnectError> {
        let (queue, writes) = channel();
        let shared = Arc::new(Shared {
            node: node.clone(),
            ports: node.port_set(),
            end: node.port(),
            threads: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            held: Mutex::default(),
            writes: Mutex::new(Some(queue)),
        });
        shared.ports.insert(&shared.end);
        for _ in 0..THREADS {
            shared.one_more()?;
        }
        let writes = Arc::new(Mutex::new(writes));
        for _ in 0..WRITERS {
            let writes = Arc::clone(&writes);
            spawn("farpage-write", move || write(&writes))?;
        }
        let (node, ends) = (node.clone(), shared.end.make_send());
        Ok(Self(Arc::new(Objects { node, shared, ends })))
    }

    /// Answers for an object from now on. The right is handed to kernels
    /// ([`Host::map_object`](crate::Host::map_object)), or to processes that are to do so: who has
    /// it can read the object, and write it.
    #[must_use]
    pub fn add(&self, object: Arc<dyn MemoryObject>) -> SendRight {
        let port = self.0.node.port();
        let right = port.make_send();
        self.0.shared.hold(port, Held::Object(object));
        right
    }
}

/// A thread that answers for objects waits for a kernel until this is dropped.
struct Waits(Option<Arc<Shared>>);

impl Waits {
    fn begin() -> Result<Self, String> {
        let shared = ANSWERS_FOR.with_borrow(Weak::upgrade);
        if let Some(shared) = &shared {
            let waiting = shared.waiting.fetch_add(1, Ordering::SeqCst) + 1;
            if waiting >= shared.threads.load(Ordering::SeqCst) {
                shared.one_more().map_err(|error| {
                    shared.waiting.fetch_sub(1, Ordering::SeqCst);
                    error.to_string()
                })?;
            }
        }
        Ok(Self(shared))
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            shared.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Shared {
    /// One more thread answers.
    fn one_more(self: &Arc<Self>) -> Result<(), ConnectError> {
        let shared = Arc::clone(self);
        spawn("farpage-pager", move || work(&shared))?;
        self.threads.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn hold(&self, port: ReceiveRight, held: Held) {
        let mut table = lock(&self.held);
        self.ports.insert(&port);
        table.insert(port.name(), (port, held));
    }

    fn answer(self: &Arc<Self>, received: Received) {
        let port = received.port;
        let held = lock(&self.held).get(&port).map(|(_, held)| held.clone());
        let Some(held) = held else { return };
        let is_notice = received.notice().is_some();
        match held {
            // It is no notice.
            Held::Object(object) if !is_notice => {
                drop(OfObject(self, object).dispatch(received));
            }
            Held::Session(object, session) if !is_notice => {
                let mut session = OfSession(self, port, object, session);
                drop(session.dispatch(received));
            }
            // Its kernel is gone.
            Held::Session(..) => self.end(port),
            Held::Object(..) => {}
        }
    }

    fn end(&self, port: Name) {
        let held = lock(&self.held).remove(&port);
        if let Some((_, Held::Session(object, session))) = held {
            object.terminate(&Kernel(session));
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), ConnectError> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(work);
    thread.map(drop).map_err(|error| ConnectError::Failed {
        doing: "start a thread",
        errno: farpage_sys::Errno(error.raw_os_error().unwrap_or(0)),
    })
}

/// Has modified pages taken until nobody has the objects any more.
fn write(writes: &Mutex<Receiver<Written>>) {
    loop {
        let next = lock(writes).recv();
        let Ok(Written {
            object,
            session,
            id,
            first,
            contents,
        }) = next
        else {
            return;
        };
        let written = match first.checked_mul(PAGE_BYTES as u64) {
            Some(offset) => object.data_write(&Kernel(Arc::clone(&session)), offset, &contents),
            None => Err("there are no such pages".into()),
        };
        // A kernel that is gone has no use for it.
        let _ = match written {
            Ok(()) => session.kernel.data_taken(id),
            Err(why) => session.kernel.data_refused(id, why),
        };
    }
}

/// Answers what comes until nobody has the objects any more.
fn work(shared: &Arc<Shared>) {
    ANSWERS_FOR.set(Arc::downgrade(shared));
    while let Ok(received) = shared.ports.receive(None) {
        if received.port == shared.end.name() {
            let next = shared.end.make_send();
            let _ = next.send(Message::new(0), Some(Duration::ZERO));
            return;
        }
        shared.answer(received);
    }
}

/// What comes to an object's port.
struct OfObject<'a>(&'a Arc<Shared>, Arc<dyn MemoryObject>);

impl OfferedCalls for OfObject<'_> {
    fn init(
        &mut self,
        caller: Sender,
        kernel: SendRight,
    ) -> Both<Result<Ready, String>, SendRight> {
        let Self(shared, object) = self;
        let port = shared.node.port();
        port.set_limit(QUEUE);
        let right = port.make_send();
        let session = Arc::new(Session {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            caller,
            kernel: RequestClient::new(kernel),
        });
        if let Err(why) = object.init(&Kernel(Arc::clone(&session))) {
            return Both(Err(why), right);
        }
        port.notify_no_senders(1, &port);
        shared.hold(port, Held::Session(Arc::clone(object), session));
        let about = object.about();
        let ready = Ready {
            name: about.name,
            bytes: about.bytes,
            writable: about.writable,
            cluster_pages: about.cluster_pages,
        };
        Both(Ok(ready), right)
    }
}

/// What comes to the port of a kernel.
struct OfSession<'a>(&'a Shared, Name, Arc<dyn MemoryObject>, Arc<Session>);

impl PagingCalls for OfSession<'_> {
    fn data_request(&mut self, _: Sender, id: u64, wanted: DataWanted) {
        let Self(_, _, object, session) = self;
        let session = Arc::clone(session);
        let request = PageRequest {
            session,
            id,
            wanted,
            is_answered: false,
        };
        let is_range = wanted.first.checked_add(wanted.pages).is_some();
        if !is_range || wanted.needed == 0 || wanted.needed > wanted.pages {
            return request.fail("the kernel asks for no pages");
        }
        object.data_request(request);
    }

    fn data_write(&mut self, _: Sender, id: u64, first: u64, contents: Contents) {
        let Self(shared, _, object, session) = self;
        let written = Written {
            object: Arc::clone(object),
            session: Arc::clone(session),
            id,
            first,
            contents,
        };
        if let Some(writes) = &*lock(&shared.writes) {
            // The threads take them as long as this is there.
            let _ = writes.send(written);
        }
    }

    fn data_unlock(&mut self, _: Sender, page: u64) {
        let Self(_, _, object, session) = self;
        object.data_unlock(&Kernel(Arc::clone(session)), PageIndex(page));
    }

    fn terminate(&mut self, _: Sender) {
        self.0.end(self.1);
    }
}
