//! All shared objects at this host.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use farpage_coherence::{
    Change, Epoch, Generation, HOSTS_MAX, Host, Members, Message, Receipt, Report, View, Violation,
};
use farpage_host::{Object, Objects};
use farpage_pagers::Pager;

use crate::counters::Figures;
use crate::gate::Gate;
use crate::holds::Holds;
use crate::mirrored::{Parcel, Then, Written};
use crate::object::{About, Home, Shared, lock};
use crate::parts::{Parts, Place};
use crate::recovery::Recovering;
use crate::wire::{Garbled, Passed, Said, UNITS_MAX};

/// Pages of a unit at most: 2 MiB.
const UNIT_PAGES_MAX: u64 = 512;

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
    /// Keeps what does not fit into memory.
    pub(crate) paging_space: Arc<dyn Pager>,
    pub(crate) holds: Holds,
    /// Whoever acts on a unit is in it.
    pub(crate) gate: Gate,
    members: Mutex<Members>,
    /// Hosts that are known to take what this one sends.
    met: Mutex<farpage_coherence::Hosts>,
    is_fenced: AtomicBool,
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

    /// The view since which parcels are counted.
    pub(crate) fn era(&self) -> Generation {
        lock(&self.members).fence()
    }

    /// Sends a message, in parts if it is long.
    pub(crate) fn send(&self, to: Host, parts: &[&[u8]]) {
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
        let living = farpage_coherence::Hosts::all(self.stays.keys().copied());
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
    kept: Mutex<Vec<(Host, Vec<u8>)>>,
    recovering: Mutex<Option<Recovering>>,
}

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
    /// The kernel of this host could not make it.
    #[error(transparent)]
    Kernel(#[from] farpage_host::Error),
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
    /// This host knows no such object.
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
    /// The server of `own`, among `hosts`. What does not fit into the memory of `objects` goes to
    /// `paging_space`.
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
            paging_space,
            holds: Holds::default(),
            gate: Gate::default(),
            members: Mutex::new(Members::new(own, hosts.view())),
            met: Mutex::default(),
            is_fenced: AtomicBool::new(false),
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
            recovering: Mutex::default(),
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
        let (bytes, unit_pages) = (about.bytes, about.unit_pages);
        if bytes == 0 || !unit_pages.is_power_of_two() || unit_pages > UNIT_PAGES_MAX {
            return Err(OpenError::Size { bytes, unit_pages });
        }
        check_replicas(about.replicas)?;
        let mut all = lock(&self.shared);
        if let Some(open) = all.get(&about.number) {
            return Ok(Arc::clone(&open.kernel));
        }
        // The homes of all objects change with the gate closed.
        let _entered = self.shell.gate.enter();
        let home = lock(&self.hosts).home(about);
        let shared = Shared::new(about.clone(), home, Arc::clone(&self.shell));
        let pages = bytes.div_ceil(farpage_abi::PAGE_BYTES as u64);
        let pager = Arc::clone(&shared) as Arc<dyn Pager>;
        let kernel = self.objects.create(&about.name, pages, pager, false)?;
        shared.is_of(&kernel);
        let open = Open {
            shared,
            kernel: Arc::clone(&kernel),
        };
        all.insert(about.number, open);
        Ok(kernel)
    }

    /// An object is gone from all hosts.
    pub fn close(&self, number: u64) {
        // Dropped without the lock: that gives its memory back.
        let _gone = lock(&self.shared).remove(&number);
    }

    /// What was done for an object so far.
    pub fn figures(&self, number: u64) -> Option<Figures> {
        Some(lock(&self.shared).get(&number)?.shared.figures())
    }

    /// A message has come from a peer.
    ///
    /// # Errors
    /// What is wrong with it; nothing was done then.
    pub fn received(&self, from: Host, bytes: &[u8]) -> Result<(), Wrong> {
        let garbled = |error: Garbled| wrong(from, error);
        let (said, contents) = Said::take(bytes).map_err(garbled)?;
        match said {
            Said::Unit {
                object,
                unit,
                generation,
                origin,
                message,
            } => self.counted(from, object, generation, bytes, |shared| {
                take_unit(shared, (from, origin), unit, message, contents)
            }),
            Said::Parcel {
                object,
                generation,
                era,
                order,
                number,
                units,
                then,
            } => self.counted(from, object, generation, bytes, |shared| {
                let parcel = parcel(shared, units, then, contents);
                let (units, then) = parcel.map_err(|what| wrong(from, what))?;
                let parcel = Parcel {
                    era,
                    order,
                    number,
                    units,
                    then,
                };
                Ok(shared.parcel_came(from, parcel)?)
            }),
            Said::Arrived {
                object,
                generation,
                number,
            } => self.counted(from, object, generation, bytes, |shared| {
                shared.parcels_arrived(number);
                Ok(())
            }),
            Said::OnTwo {
                object,
                generation,
                units,
            } => self.counted(from, object, generation, bytes, |shared| {
                shared.are_on_two(units);
                Ok(())
            }),
            Said::Part {
                message,
                part,
                count,
            } => {
                let place = Place {
                    message,
                    part,
                    count,
                };
                let whole = self.shell.parts.came(from, place, contents);
                let Some(whole) = whole.map_err(|what| wrong(from, what))? else {
                    return Ok(());
                };
                let received = self.received(from, &whole);
                if let Err(Wrong::Unknown { .. }) = received {
                    // It is brought again when the object is known.
                    self.shell.parts.again(from, place, &whole);
                }
                received
            }
            Said::Began(generation) => {
                let mut members = lock(&self.shell.members);
                members.began(from, generation)?;
                let (fence, view) = (members.fence(), members.view());
                drop(members);
                if generation <= view.generation {
                    lock(&self.shell.met).add(from);
                }
                if generation >= fence
                    && let Some(now) = &mut *lock(&self.recovering)
                {
                    now.excuse(from);
                }
                self.goes_on();
                Ok(())
            }
            Said::Marker(marker) => {
                lock(&self.shell.members).marked(from, marker)?;
                self.goes_on();
                Ok(())
            }
            Said::Reports {
                fence,
                units,
                is_last,
            } => self.told(from, fence, bytes, |now| now.reported(from, units, is_last)),
            Said::Verdicts {
                fence,
                units,
                is_last,
            } => self.told(from, fence, bytes, |now| now.decided(from, units, is_last)),
        }
    }

    /// A message of an object has come, which counts in its view.
    fn counted(
        &self,
        from: Host,
        object: u64,
        generation: Generation,
        bytes: &[u8],
        take: impl FnOnce(&Shared) -> Result<(), Wrong>,
    ) -> Result<(), Wrong> {
        let entered = self.shell.gate.enter();
        let opened = lock(&self.shared)
            .get(&object)
            .map(|open| Arc::clone(&open.shared));
        let Some(shared) = opened else {
            let by = from;
            return Err(Wrong::Unknown { by, object });
        };
        match lock(&self.shell.members).receive(from, generation) {
            Receipt::Take => {}
            Receipt::Keep => {
                lock(&self.kept).push((from, bytes.to_vec()));
                return Ok(());
            }
            Receipt::Refuse => return Ok(()),
        }
        lock(&self.shell.met).add(from);
        let taken = take(&shared);
        drop(entered);
        self.goes_on();
        taken
    }

    /// A part of a recovery has come: of this one, of a later one, or of one that is over.
    fn told(
        &self,
        from: Host,
        fence: Generation,
        bytes: &[u8],
        take: impl FnOnce(&mut Recovering) -> Result<(), &'static str>,
    ) -> Result<(), Wrong> {
        let now = lock(&self.shell.members).fence();
        if fence > now {
            lock(&self.kept).push((from, bytes.to_vec()));
            return Ok(());
        }
        match &mut *lock(&self.recovering) {
            Some(recovering) if recovering.fence == fence => {
                take(recovering).map_err(|what| wrong(from, what))?;
            }
            Some(_) | None => return Ok(()),
        }
        self.goes_on();
        Ok(())
    }

    /// Hosts have come or died. Returns what is wrong with what others did meanwhile.
    pub fn sees(&self, hosts: Hosts) -> Vec<Wrong> {
        // A host whose place another has taken at once dies first.
        let mut between = lock(&self.hosts).clone();
        let stays = |host: &Host, stay: &u64| hosts.stays.get(host).is_none_or(|now| now == stay);
        if !between.stays.iter().all(|(host, stay)| stays(host, stay)) {
            between
                .stays
                .retain(|host, stay| hosts.stays.get(host) == Some(stay));
            between.generation = hosts.generation * 2;
            self.changes(between);
        }
        let generation = hosts.generation * 2 + 1;
        self.changes(Hosts {
            generation,
            ..hosts
        })
    }

    fn changes(&self, hosts: Hosts) -> Vec<Wrong> {
        let closed = self.shell.gate.close();
        let all: Vec<Arc<Shared>> = self.all();
        let change = lock(&self.shell.members).change(hosts.view());
        for shared in &all {
            shared.has_home(hosts.home(&shared.about));
        }
        *lock(&self.hosts) = hosts;
        match change {
            Change::Joined => {}
            Change::Fenced => {
                drop(closed);
                self.fence();
                return Vec::new();
            }
            Change::Died { marks_to } => {
                all.iter().for_each(|shared| shared.freeze());
                self.parts_from_the_dead_go();
                let members = lock(&self.shell.members);
                let fence = members.fence();
                let recovering = Recovering::new(self.shell.own, fence, marks_to);
                *lock(&self.recovering) = Some(recovering);
                for to in marks_to.iter() {
                    if let Some(marker) = members.marker(to) {
                        self.shell.sends(to, &Said::Marker(marker));
                    }
                }
            }
        }
        drop(closed);
        let wrong = self.offers_again();
        self.goes_on();
        wrong
    }

    /// Nothing of those who have died comes any more.
    fn parts_from_the_dead_go(&self) {
        let living = lock(&self.shell.members).view().living;
        let mut met = lock(&self.shell.met);
        *met = met.less(met.less(living));
        for host in (0..HOSTS_MAX).map(Host).filter(|host| !living.has(*host)) {
            self.shell.parts.is_gone(host);
        }
    }

    fn all(&self) -> Vec<Arc<Shared>> {
        let all = lock(&self.shared);
        all.values().map(|open| Arc::clone(&open.shared)).collect()
    }

    /// What was of later may be of now.
    fn offers_again(&self) -> Vec<Wrong> {
        let kept = std::mem::take(&mut *lock(&self.kept));
        let taken = kept
            .into_iter()
            .map(|(from, bytes)| self.received(from, &bytes));
        taken.filter_map(Result::err).collect()
    }

    /// Does the next step of a recovery, if it is time.
    fn goes_on(&self) {
        if lock(&self.recovering).is_none() {
            return;
        }
        self.reports();
        self.decides();
        self.resumes();
    }

    /// Tells the homes what this host has, once nothing of before is on its way.
    fn reports(&self) {
        let is_drained = lock(&self.shell.members).is_drained();
        let (fence, all) = {
            let mut recovering = lock(&self.recovering);
            let Some(now) = &mut *recovering else {
                return;
            };
            if !now.reports_now(is_drained) {
                return;
            }
            (now.fence, now.all())
        };
        let mut by_home: HashMap<Host, Vec<(u64, u64, Report)>> = HashMap::new();
        for shared in self.all() {
            let number = shared.about.number;
            let reports = shared.reports().into_iter();
            let of = by_home.entry(shared.home()).or_default();
            of.extend(reports.map(|(unit, report)| (number, unit, report)));
        }
        for home in all.iter() {
            let units = by_home.remove(&home).unwrap_or_default();
            if home == self.shell.own {
                if let Some(now) = &mut *lock(&self.recovering) {
                    now.reported(home, units, true).expect("its own, once");
                }
                continue;
            }
            in_parts(units, |units, is_last| {
                let said = Said::Reports {
                    fence,
                    units,
                    is_last,
                };
                self.shell.sends(home, &said);
            });
        }
    }

    /// Decides as the home, when all have reported.
    fn decides(&self) {
        let own = |object: u64, unit: u64| {
            let all = lock(&self.shared);
            let shared = &all.get(&object)?.shared;
            Some((shared.report_of(unit), shared.known()))
        };
        let (fence, all, verdicts) = {
            let mut recovering = lock(&self.recovering);
            let Some(now) = &mut *recovering else {
                return;
            };
            let Some(verdicts) = now.decides_now(own) else {
                return;
            };
            let host = self.shell.own;
            now.decided(host, verdicts.clone(), true)
                .expect("its own, once");
            (now.fence, now.all(), verdicts)
        };
        for to in all.iter().filter(|to| *to != self.shell.own) {
            in_parts(verdicts.clone(), |units, is_last| {
                let said = Said::Verdicts {
                    fence,
                    units,
                    is_last,
                };
                self.shell.sends(to, &said);
            });
        }
    }

    /// Goes on, when all homes have decided.
    fn resumes(&self) {
        let closed = self.shell.gate.close();
        let verdicts = {
            let mut recovering = lock(&self.recovering);
            let Some(verdicts) = recovering.as_mut().and_then(Recovering::goes_on) else {
                return;
            };
            *recovering = None;
            verdicts
        };
        lock(&self.shell.members).resume();
        for shared in self.all() {
            let number = shared.about.number;
            for violation in shared.resume(|unit| verdicts.get(&(number, unit)).copied()) {
                eprintln!("farpage: {violation}");
            }
        }
        drop(closed);
        for wrong in self.offers_again() {
            eprintln!("farpage: {wrong}");
        }
    }

    /// This host may not act any more: nothing that is shared can be used here.
    pub fn fence(&self) {
        let closed = self.shell.gate.close();
        self.shell.is_fenced.store(true, Ordering::Relaxed);
        *lock(&self.recovering) = None;
        self.all().iter().for_each(|shared| shared.fence());
        drop(closed);
    }
}

/// Refuses numbers of replicas that cannot be.
pub(crate) fn check_replicas(replicas: u8) -> Result<(), OpenError> {
    match replicas {
        1 | 2 => Ok(()),
        more => Err(OpenError::Replicas(more)),
    }
}

fn wrong(by: Host, what: impl std::fmt::Display) -> Wrong {
    let what = what.to_string();
    Wrong::Garbled { by, what }
}

fn take_unit(
    shared: &Shared,
    (from, origin): (Host, Host),
    unit: u64,
    message: Message,
    contents: &[u8],
) -> Result<(), Wrong> {
    if origin != from && (!shared.is_mirrored() || origin.0 >= HOSTS_MAX) {
        return Err(wrong(from, "a message as another host"));
    }
    let wanted = match message.has_contents() {
        true => unit_bytes(shared, unit),
        false => unit_bytes(shared, unit).map(|_| 0),
    };
    let wanted = wanted.map_err(|what| wrong(from, what))?;
    if contents.len() != wanted {
        return Err(wrong(from, "a message with the wrong number of bytes"));
    }
    let contents = (wanted > 0).then(|| contents.into());
    Ok(shared.came(origin, unit, message, contents)?)
}

fn unit_bytes(shared: &Shared, unit: u64) -> Result<usize, &'static str> {
    match unit < shared.units() {
        true => Ok(shared.unit_bytes_of(unit)),
        false => Err("a message of a place beyond the end of its object"),
    }
}

/// A parcel, from what its head says and the contents behind it.
fn parcel(
    shared: &Shared,
    units: Vec<(u64, Epoch)>,
    then: Option<Passed>,
    mut contents: &[u8],
) -> Result<(Written, Option<Then>), &'static str> {
    if !shared.is_mirrored() {
        return Err("a parcel of an object that is not mirrored");
    }
    let mut take = |unit: u64| {
        let bytes = unit_bytes(shared, unit)?;
        let parts = contents.split_at_checked(bytes);
        let (first, rest) = parts.ok_or("a parcel that is cut off")?;
        contents = rest;
        Ok::<Box<[u8]>, &'static str>(first.into())
    };
    let mut all = Written::new();
    for (unit, version) in units {
        all.push((unit, version, take(unit)?));
    }
    let then = match then {
        Some(Passed { to, unit, message }) => {
            if to.0 >= HOSTS_MAX || unit >= shared.units() {
                return Err("something to pass on that cannot be");
            }
            let is_along = all.iter().any(|(other, ..)| *other == unit);
            let has_own = message.has_contents() && !is_along;
            let contents = has_own.then(|| take(unit)).transpose()?;
            Some(Then {
                to,
                unit,
                message,
                contents,
            })
        }
        None => None,
    };
    match contents.is_empty() {
        true => Ok((all, then)),
        false => Err("a parcel with more than it says"),
    }
}

/// Says all of `units`, some at a time, and that these are the last.
fn in_parts<T>(mut units: Vec<T>, mut say: impl FnMut(Vec<T>, bool)) {
    while units.len() > UNITS_MAX {
        let rest = units.split_off(UNITS_MAX);
        say(std::mem::replace(&mut units, rest), false);
    }
    say(units, true);
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
