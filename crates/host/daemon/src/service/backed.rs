//! Objects whose contents processes answer for.
//!
//! A pager that begins is waited for by a thread of its own, and what is modified when nobody has
//! an object any more is written back by another: the one that answers callers does neither.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender as Queue, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use farpage_client::interface::Tried;
use farpage_client::{PagerListed, Refusal};
use farpage_host::Object;
use farpage_object::{PAGE_BYTES, PageRange, Pager};
use farpage_port::interface::{Answer, Both};
use farpage_port::{Message, Name, Node, ReceiveRight, SendRight, Sender};

use super::shared::Came;
use super::{BYTES_MAX, Entry, Held, Service, failed, identity};
use crate::outside::{Begun, Outside, Outsides};
use crate::service::limits::Cost;

/// Pagers that are waited for to begin at most: all, and those that one process asks for.
const BEGINNING_MAX: (usize, usize) = (64, 8);
/// Callers that wait for the same pager to begin at most.
const ASKING_MAX: usize = 64;

type Asked = Answer<Tried<Both<u64, SendRight>>>;

/// The pager of an object.
pub(super) struct Backing {
    pub(super) outside: Arc<Outside>,
    /// To the memory object: its name is known as long as this is held.
    right: SendRight,
    /// How often it was mapped.
    maps: u32,
    /// What is modified is being written back.
    is_cleaning: bool,
    /// How often it had been mapped when all was written back.
    cleaned: Option<u32>,
}

/// What other threads tell the one that answers.
pub(super) enum Event {
    /// A pager has begun, or not.
    Begun(SendRight, Option<Duration>, Box<Result<Begun, String>>),
    /// An object was written back when it had been mapped so often; whether all of it was.
    Cleaned(Name, u32, bool),
    /// A pager has taken all that was kept for it.
    GivenBack,
    /// The cluster's store was asked for an object.
    Had(Box<Came>),
}

/// Pagers in other processes.
pub(super) struct Backed {
    outsides: Arc<OnceLock<Arc<Outsides>>>,
    /// Objects by the ports of their pagers.
    by_right: HashMap<Name, Name>,
    /// Who waits for a pager to begin, and which process asked first.
    beginning: HashMap<Name, (u32, Vec<Asked>)>,
    /// Where it is told that there are events.
    port: ReceiveRight,
    tells: Tells,
    events: Receiver<Event>,
    to_clean: Queue<(Name, u32, Arc<Object>)>,
}

/// How other threads tell.
#[derive(Clone)]
pub(super) struct Tells(Queue<Event>, SendRight);

impl Entry {
    /// What its pager is called.
    pub(crate) fn pager(&self) -> String {
        match (&self.backing, self.shared) {
            (Some(backing), _) => format!("process {}", backing.outside.health().pid),
            (None, Some(_)) => "shared memory server".to_owned(),
            (None, None) => "paging space".to_owned(),
        }
    }
}

impl Tells {
    pub(super) fn tell(&self, event: Event) {
        // The service lives as long as this process.
        let _ = self.0.send(event);
        // When its queue is full it has been told, and takes all events.
        let _ = self.1.send(Message::new(0), Some(Duration::ZERO));
    }
}

impl Backing {
    /// Somebody maps it, and may change it.
    pub(super) fn is_mapped(&mut self) {
        self.maps += 1;
    }
}

impl Backed {
    pub(super) fn new(node: &Node) -> std::io::Result<Self> {
        let (queue, events) = channel();
        let port = node.port();
        let tells = Tells(queue, port.make_send());
        let (to_clean, cleaning) = channel::<(Name, u32, Arc<Object>)>();
        let told = tells.clone();
        let clean = move || {
            for (port, maps, object) in cleaning {
                let all = PageRange::new(0, object.pages());
                let done = object.clean(all).is_ok();
                drop(object);
                told.tell(Event::Cleaned(port, maps, done));
            }
        };
        std::thread::Builder::new()
            .name("services-clean".into())
            .spawn(clean)?;
        Ok(Self {
            outsides: Arc::default(),
            by_right: HashMap::new(),
            beginning: HashMap::new(),
            port,
            tells,
            events,
            to_clean,
        })
    }

    pub(super) fn port(&self) -> &ReceiveRight {
        &self.port
    }

    pub(super) fn tells(&self) -> Tells {
        self.tells.clone()
    }
}

/// What is to be done at the end of a host kernel.
pub struct WriteBack(Arc<OnceLock<Arc<Outsides>>>);

impl WriteBack {
    /// Hands over to pagers in other processes what was modified, and waits until they have taken
    /// it, at most for `patience`. Returns the bytes that they have not: they are lost with the host
    /// kernel.
    #[must_use]
    pub fn run(&self, patience: Duration) -> u64 {
        let outsides = self.0.get();
        outsides.map_or(0, |outsides| outsides.write_back(patience))
    }
}

impl Service {
    /// What is to be done when this service is to end.
    #[must_use]
    pub fn write_back(&self) -> WriteBack {
        WriteBack(Arc::clone(&self.backed.outsides))
    }

    /// Maps the object of a pager: at once when it is known, else when the pager has begun.
    pub(super) fn map_backed(
        &mut self,
        caller: Sender,
        right: SendRight,
        patience: Option<Duration>,
        answer: Asked,
    ) {
        let name = right.name();
        let known = self.backed.by_right.get(&name).copied();
        if let Some(port) = known
            && let Some(Held::Object(entry)) = self.held.get_mut(&port)
        {
            let given = Both(entry.bytes, entry.give());
            answer.give(Tried(Ok(given)));
            return;
        }
        let (_, pid) = identity(caller);
        let refusal = match self.backed.beginning.get_mut(&name) {
            Some((_, asked)) if asked.len() < ASKING_MAX => return asked.push(answer),
            Some(_) => Some("too many wait for it"),
            None => {
                let (all, each) = BEGINNING_MAX;
                let of = self.backed.beginning.values();
                let own = of.filter(|(asker, _)| *asker == pid).count();
                (self.backed.beginning.len() >= all || own >= each)
                    .then_some("too many pagers begin at a time; wait for some")
            }
        };
        let started = match refusal {
            Some(why) => Err(Refusal::Pager(why.into())),
            None => self.begin(right, patience),
        };
        match started {
            Ok(()) => drop(self.backed.beginning.insert(name, (pid, vec![answer]))),
            Err(refusal) => drop(answer.give(Tried(Err(refusal)))),
        }
    }

    fn begin(&self, right: SendRight, patience: Option<Duration>) -> Result<(), Refusal> {
        let outsides = Arc::clone(self.outsides()?);
        let tells = self.backed.tells.clone();
        let begin = move || {
            let begun = outsides.begin(&right);
            tells.tell(Event::Begun(right, patience, Box::new(begun)));
        };
        let thread = std::thread::Builder::new().name("services-begin".into());
        thread
            .spawn(begin)
            .map(drop)
            .map_err(|error| failed(&error))
    }

    fn outsides(&self) -> Result<&Arc<Outsides>, Refusal> {
        if let Some(outsides) = self.backed.outsides.get() {
            return Ok(outsides);
        }
        let tells = self.backed.tells.clone();
        let given_back = Box::new(move || tells.tell(Event::GivenBack));
        let outsides = Outsides::start(&self.node, given_back);
        let outsides = outsides.map_err(|error| failed(&error))?;
        Ok(self.backed.outsides.get_or_init(|| outsides))
    }

    /// Takes what other threads have told.
    pub(super) fn take_events(&mut self) {
        while let Ok(event) = self.backed.events.try_recv() {
            match event {
                Event::Begun(right, patience, begun) => self.begun(right, patience, *begun),
                Event::Cleaned(port, maps, done) => {
                    if let Some(Held::Object(entry)) = self.held.get_mut(&port)
                        && let Some(backing) = &mut entry.backing
                    {
                        backing.is_cleaning = false;
                        backing.cleaned = done.then_some(maps);
                        match done {
                            true => self.forget_unheld(port),
                            false => self.lingering.push(port),
                        }
                    }
                }
                Event::Had(came) => self.had(*came),
                Event::GivenBack => {
                    let backed = self.held.iter().filter_map(|(port, held)| match held {
                        Held::Object(entry) if entry.backing.is_some() => Some(*port),
                        Held::Object(_)
                        | Held::Name(_)
                        | Held::Mapping(_)
                        | Held::Wired(_)
                        | Held::Locked { .. }
                        | Held::Process { .. } => None,
                    });
                    let backed: Vec<Name> = backed.collect();
                    backed.into_iter().for_each(|port| self.forget_unheld(port));
                }
            }
        }
    }

    fn begun(
        &mut self,
        right: SendRight,
        patience: Option<Duration>,
        begun: Result<Begun, String>,
    ) {
        let asked = self.backed.beginning.remove(&right.name());
        let port = begun
            .map_err(Refusal::Pager)
            .and_then(|begun| self.back(right, patience, begun));
        for answer in asked.into_iter().flat_map(|(_, asked)| asked) {
            let given = port.as_ref().map_err(Refusal::clone).and_then(|port| {
                match self.held.get_mut(port) {
                    Some(Held::Object(entry)) => Ok(Both(entry.bytes, entry.give())),
                    Some(
                        Held::Name(_)
                        | Held::Mapping(_)
                        | Held::Wired(_)
                        | Held::Locked { .. }
                        | Held::Process { .. },
                    )
                    | None => Err(Refusal::NotFound("(it is gone)".into())),
                }
            });
            answer.give(Tried(given));
        }
        if let Ok(port) = port {
            // Those who asked may be gone.
            self.forget_unheld(port);
        }
    }

    /// A pager takes over an object of the same name, or has a new one made.
    fn back(
        &mut self,
        right: SendRight,
        patience: Option<Duration>,
        begun: Begun,
    ) -> Result<Name, Refusal> {
        let (pid, uid) = (begun.pid(), begun.uid());
        let (name, bytes) = (begun.ready.name.clone(), begun.ready.bytes);
        let outsides = Arc::clone(self.outsides()?);
        let port = match self.named(&name) {
            Ok((port, entry)) => {
                let Some(backing) = &mut entry.backing else {
                    return Err(Refusal::Exists(name));
                };
                let taken_over = backing.outside.may_be_taken_over(uid, bytes);
                taken_over.map_err(|pid| Refusal::Answered(name, pid))?;
                let before = std::mem::replace(&mut backing.right, right.clone());
                outsides.take_over(&backing.outside, begun);
                self.backed.by_right.remove(&before.name());
                port
            }
            Err(Refusal::NotFound(_)) => {
                if !(1..=BYTES_MAX).contains(&bytes) {
                    return Err(Refusal::Size(bytes));
                }
                self.limits.take(pid, Cost::of_object(bytes))?;
                let space = Arc::clone(&self.paging_space);
                let outside = outsides.outside(&begun.ready, patience, space);
                let made = self.make_backed(&name, bytes, &outside);
                let (object, file) =
                    made.inspect_err(|_| self.limits.give_back(pid, Cost::of_object(bytes)))?;
                outside.answers_for(&object);
                outsides.take_over(&outside, begun);
                let backing = Backing {
                    outside,
                    right: right.clone(),
                    maps: 0,
                    is_cleaning: false,
                    cleaned: Some(0),
                };
                self.enter(object, file, name, (uid, pid), bytes, backing)
            }
            Err(refusal) => return Err(refusal),
        };
        self.backed.by_right.insert(right.name(), port);
        Ok(port)
    }

    fn make_backed(
        &self,
        name: &str,
        bytes: u64,
        outside: &Arc<Outside>,
    ) -> Result<(Arc<Object>, (u64, u64)), Refusal> {
        let pages = bytes.div_ceil(PAGE_BYTES as u64);
        let pager: Arc<dyn Pager> = Arc::clone(outside) as Arc<dyn Pager>;
        let object = self.objects.create(name, pages, pager, false);
        let object = object.map_err(|error| failed(&error))?;
        let file = object.identity().map_err(|errno| failed(&errno))?;
        Ok((object, file))
    }

    fn enter(
        &mut self,
        object: Arc<Object>,
        file: (u64, u64),
        name: String,
        (uid, pid): (u32, u32),
        bytes: u64,
        backing: Backing,
    ) -> Name {
        self.is_of_user(&object, uid);
        let port = self.node.port();
        self.ports.insert(&port);
        let key = port.name();
        self.files.insert(file, key);
        self.names.insert(name.clone(), key);
        let entry = Entry {
            port,
            given: 0,
            held: false,
            stays_until: None,
            name_port: None,
            object,
            file,
            name,
            bytes,
            uid,
            pid,
            mapped_by: Vec::new(),
            backing: Some(backing),
            shared: None,
        };
        self.held.insert(key, Held::Object(entry));
        key
    }

    /// Nobody maps an object any more, or nobody has it: what its pager does not have goes there.
    /// True when that is so, or there is nothing to do.
    pub(super) fn clean(&mut self, port: Name) -> bool {
        let Some(Held::Object(entry)) = self.held.get_mut(&port) else {
            return false;
        };
        let Some(backing) = &mut entry.backing else {
            return true;
        };
        let is_clean = backing.cleaned == Some(backing.maps);
        if !is_clean && !backing.is_cleaning {
            backing.is_cleaning = true;
            let clean = (port, backing.maps, Arc::clone(&entry.object));
            // The thread takes them as long as this process lives.
            let _ = self.backed.to_clean.send(clean);
        }
        is_clean
    }

    /// Whether an object that nobody has may go: all of it is with its pager, or its name was taken
    /// away. Else it is written back first.
    pub(super) fn may_go(&mut self, port: Name) -> bool {
        if !self.clean(port) {
            return false;
        }
        let Some(Held::Object(entry)) = self.held.get(&port) else {
            return false;
        };
        let Some(backing) = &entry.backing else {
            return true;
        };
        if !entry.name.is_empty() && backing.outside.owes() {
            return false;
        }
        self.backed.by_right.remove(&backing.right.name());
        true
    }

    pub(super) fn list_pagers(&self, caller: Sender) -> Vec<PagerListed> {
        let listed = self.held.values().filter_map(|held| match held {
            Held::Object(entry) if entry.refuse_others(caller).is_ok() => {
                let health = entry.backing.as_ref()?.outside.health();
                Some(PagerListed {
                    name: entry.name.clone(),
                    bytes: entry.bytes,
                    pid: health.pid,
                    is_up: health.is_up,
                    is_behind: health.is_behind,
                    waiting: health.waiting,
                    silent_ns: entry.object.figures().pager.silent_ns,
                    answered: health.answered,
                    kept_bytes: health.kept_pages * PAGE_BYTES as u64,
                    cause: health.cause,
                })
            }
            Held::Object(_)
            | Held::Name(_)
            | Held::Mapping(_)
            | Held::Wired(_)
            | Held::Locked { .. }
            | Held::Process { .. } => None,
        });
        let mut listed: Vec<PagerListed> = listed.collect();
        listed.sort_by(|one, other| one.name.cmp(&other.name));
        listed
    }
}
