//! Shared memory that the runs of a cluster have in common: `--cluster`.
//!
//! A name is the cluster's: its store says that there is one, and how large it is. Each run shows it at
//! its own host, by an empty file at /dev/shm or a segment of System V which programs find and
//! measure as ever; behind it is the same object. Names are made, resized and removed by asking the
//! store, and a program's call returns when all hosts show what came of it.

mod name;
mod shown;
mod store;
mod waiting;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, RwLock, RwLockWriteGuard, Weak};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use farpage_host::{Object, Objects};
use farpage_object::Pager;
use farpage_object::shm::{Ask, Ipc, Kind};
use farpage_server::{Cluster, Left, Observer, Why};
use farpage_sys::{Errno, lock};

use super::cost::{Cost, Counted};
use super::objects::KeptObjects;
use super::sysv::{Calls, SysvCall};
use super::{FOLDER, SharedMemoryConfig};
use crate::signals;
use name::Name;
use shown::{Shown, hide, path_of};
use waiting::Waiting;

const PAGE: u64 = farpage_object::PAGE_BYTES as u64;
/// What an object may grow to: the cluster's objects have one size for ever, and names theirs.
const BYTES_MAX: u64 = 64 << 30;
/// Names at a time: each object takes up addresses for all that it may grow to, twice.
const NAMES_MAX: usize = 900;
/// How long a name that another host is making is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two looks whether this host has left.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Default)]
struct State {
    /// By the cluster's numbers.
    all: HashMap<u64, Shown>,
    /// What shows them: files, and segments.
    files: HashMap<(u64, u64), u64>,
    segments: HashMap<u32, u64>,
    /// By the numbers of the objects that are opened here.
    numbers: HashMap<u64, u64>,
    /// What connections have begun to make and not told the end of.
    begun: HashMap<u64, u64>,
    /// Names that tasks of this host are asking the store for.
    taking: HashSet<Name>,
    /// Connections that have ended.
    ended: HashSet<u64>,
    /// This host leaves.
    is_over: bool,
    /// Names that tasks of this host change.
    linking: HashSet<u64>,
    waiting: Waiting,
    /// What was done for objects that were opened here, as far as it was looked at.
    figures: BTreeMap<u64, Counted>,
}

/// What became of what a task asks for.
pub enum Acted {
    /// It is none of the cluster's.
    OfRun,
    /// It is done.
    Done,
    /// The task is to have this.
    Object(Arc<Object>),
}

/// The cluster's names at this host.
pub struct ClusterNames {
    cluster: RwLock<Option<Arc<Cluster>>>,
    kept: Weak<Mutex<KeptObjects>>,
    objects: &'static Objects,
    replicas: u8,
    unit_bytes: u64,
    hand_over: Duration,
    state: Mutex<State>,
    shown: Condvar,
    waker: Mutex<Sender<(u64, u64, u32)>>,
    calls: Arc<Calls>,
    /// What the summary says of it.
    store: OnceLock<String>,
    /// The folder, locked: another run would show the same names there.
    _folder: File,
}

/// Joins.
///
/// # Errors
/// When it cannot.
pub fn start(
    shared: &SharedMemoryConfig,
    kept: &Arc<Mutex<KeptObjects>>,
    paging_space: Arc<dyn Pager>,
) -> Result<Option<Arc<ClusterNames>>> {
    let join = &shared.join;
    let Some(config) = farpage_server::joined::join::config(join, 0)? else {
        return Ok(None);
    };
    let folder = File::open(FOLDER).with_context(|| format!("cannot open {FOLDER}"))?;
    if folder.try_lock().is_err() {
        bail!(
            "cannot run with --cluster: another farpage run --cluster shows its names at {FOLDER}; start \
             both programs by one run (-- sh -c 'one & two; wait')"
        );
    }
    let (waker, wakes) = channel();
    let objects = lock(kept).objects();
    let names = Arc::new(ClusterNames {
        cluster: RwLock::default(),
        kept: Arc::downgrade(kept),
        objects,
        replicas: shared.replicas,
        unit_bytes: shared.unit_bytes,
        hand_over: join.hand_over,
        state: Mutex::default(),
        shown: Condvar::new(),
        waker: Mutex::new(waker),
        calls: Calls::new(Arc::downgrade(kept))?,
        store: OnceLock::new(),
        _folder: folder,
    });
    let observer = Arc::clone(&names) as Arc<dyn Observer>;
    let cluster = Cluster::join(config.share, objects, paging_space, observer)?;
    names.store.get_or_init(|| config.store);
    *write(&names.cluster) = Some(Arc::new(cluster));
    let working = Arc::downgrade(&names);
    std::thread::Builder::new()
        .name("shm-wake".into())
        .spawn(move || waiting::wake_all(&working, &wakes))
        .context("cannot start a thread")?;
    Ok(Some(names))
}

impl ClusterNames {
    fn cluster(&self) -> Result<Arc<Cluster>, Errno> {
        let cluster = self.cluster.read().unwrap_or_else(PoisonError::into_inner);
        cluster.clone().ok_or(Errno::EAGAIN)
    }

    /// Nothing of it is shown at this host any more.
    pub fn hide(&self) {
        self.calls.end();
        let mut state = lock(&self.state);
        state.is_over = true;
        for shown in state.all.values() {
            if let Some(name) = &shown.name {
                hide(name, shown.place());
            }
        }
    }

    /// Leaves.
    pub fn end(&self) {
        let cluster = write(&self.cluster).take();
        if let Some(cluster) = cluster {
            // It goes with its last user.
            let is_news = |left: &Left| left.why != Why::Alone;
            let within = self.hand_over;
            let leaving = std::thread::spawn(move || {
                farpage_server::joined::join::leave(&cluster, within, is_news)
            });
            while !leaving.is_finished() && !signals::end_is_wanted() {
                std::thread::sleep(LOOK);
            }
        }
    }

    /// True of what is asked of the cluster, which may take a while.
    pub fn answers(&self, ask: Ask) -> bool {
        match ask.kind {
            Kind::Making => ask.a != 1,
            Kind::Made => ask.a == 0,
            Kind::Ipc => ask.a == Ipc::Segment as u64,
            Kind::File | Kind::Segment | Kind::Size | Kind::Removed | Kind::Link => true,
            _ => false,
        }
    }

    /// Does what a task asks for, over connection `from`.
    ///
    /// # Errors
    /// What the task's call fails with.
    pub fn act(
        &self,
        from: u64,
        ask: Ask,
        with: Option<&OwnedFd>,
        name: &[u8],
    ) -> Result<Acted, Errno> {
        let object = |number: Option<u64>| match number {
            Some(number) => self.open(number).map(Acted::Object),
            None => Ok(Acted::OfRun),
        };
        match (ask.kind, with) {
            (Kind::Making, _) if ask.a == 3 => {
                self.made_nothing(from);
                return Ok(Acted::OfRun);
            }
            (Kind::Making, folder) => match making(ask, folder, name) {
                Some(name) => self.take(from, &name)?,
                None => return Ok(Acted::OfRun),
            },
            (Kind::Made, Some(file)) => self.made_file(from, file)?,
            (Kind::Ipc, _) => {
                let begun = lock(&self.state).begun.remove(&from);
                let Some(number) = begun else {
                    return Ok(Acted::OfRun);
                };
                self.made_segment(number, ask.b as u32)?;
            }
            (Kind::File, Some(file)) => return object(self.number_of(file)),
            (Kind::Segment, _) => return object(self.number_of_segment(ask.a as u32)),
            (Kind::Size, Some(file)) => match self.number_of(file) {
                Some(number) => self.resize(number, ask.b)?,
                None => return Ok(Acted::OfRun),
            },
            (Kind::Removed, _) => self.look_for_removed(),
            (Kind::Link, Some(file)) => {
                let number = self.number_of(file).ok_or(Errno::ENOENT)?;
                let path = std::str::from_utf8(name).map_err(|_| Errno::ENOENT)?;
                let name = Name::of_path(Path::new(path)).ok_or(Errno::ENOENT)?;
                self.link(number, &name)?;
            }
            _ => return Ok(Acted::OfRun),
        }
        Ok(Acted::Done)
    }

    /// A task calls what System V has by numbers. False: its question is none.
    pub fn calls(&self, asked: SysvCall<'_>) -> bool {
        let cluster = self.cluster().ok();
        if let Some(cluster) = &cluster {
            self.calls.look_for_ended(cluster);
        }
        self.calls.ask(cluster.as_deref(), asked)
    }

    /// Readable when a process has ended of which [`ClusterNames::look_for_ended`] should hear.
    pub fn exits(&self) -> &OwnedFd {
        self.calls.exits()
    }

    /// Looks for processes that have ended.
    pub fn look_for_ended(&self) {
        if let Ok(cluster) = self.cluster() {
            self.calls.look_for_ended(&cluster);
        }
    }

    /// A connection has ended.
    pub fn ended(&self, from: u64) {
        let mut state = lock(&self.state);
        state.waiting.without(from);
        state.ended.insert(from);
        drop(state);
        self.made_nothing(from);
        self.tidy();
    }

    fn counts(&self, number: u64) {
        let figures = self
            .cluster()
            .ok()
            .and_then(|cluster| cluster.figures(number));
        if let (Some(figures), Some(known)) = (figures, lock(&self.state).figures.get_mut(&number))
        {
            known.figures = figures;
        }
    }

    fn kept(&self) -> Result<Arc<Mutex<KeptObjects>>, Errno> {
        self.kept.upgrade().ok_or(Errno::EAGAIN)
    }

    fn says_why(&self, what: &str, name: &Name, error: &dyn std::fmt::Display) -> Errno {
        self.say(&format!(
            "cannot {what} {} in the cluster: {error}",
            name.stored()
        ));
        Errno::EIO
    }

    /// What it has cost so far.
    pub fn cost(&self) -> Cost {
        let numbers: Vec<u64> = lock(&self.state).all.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.counts(number));
        let state = lock(&self.state);
        let store = self.store.get().cloned().unwrap_or_default();
        Cost::of(store, state.figures.values())
    }
}

/// What a task says that it is about to make, if that is to be the cluster's.
fn making(ask: Ask, folder: Option<&OwnedFd>, name: &[u8]) -> Option<Name> {
    match ask.a {
        0 => {
            let folder = path_of(folder?)?;
            Name::of_path(&folder.join(std::str::from_utf8(name).ok()?))
        }
        2 if ask.b == Ipc::Segment as u64 && ask.c != 0 => Some(Name::Segment(ask.c as u32)),
        _ => None,
    }
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}
