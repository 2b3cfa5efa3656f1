//! Shared memory that the runs of a cluster have in common: `--cluster`.
//!
//! A name is the cluster's: its store says that there is one, and how large it is. Each run shows it at
//! its own host, by an empty file at /dev/shm or a segment of System V which programs find and
//! measure as ever; behind it is the same object. Names are made, resized and removed by asking the
//! store, and a program's call returns when all hosts show what came of it.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, RwLock, RwLockWriteGuard, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use farpage_abi::PageRange;
use farpage_abi::shm::{Ask, Ipc, Kind};
use farpage_control::{ControlError, Description, Scheduler};
use farpage_host::{Object, Objects, SpaceId};
use farpage_pagers::Pager;
use farpage_share::{Cluster, Figures, HaveError, Left, Observer, Why, Wish};
use farpage_sys::file::{self, Fd};
use farpage_sys::view::View;
use farpage_sys::{Errno, futex, ipc};

use super::objects::{Kept, lock};
use super::{FOLDER, Shared};
use crate::cluster::join;
use crate::signals;
use crate::size::{counted, human};

const ENOSPC: i32 = 28;
const PAGE: u64 = farpage_abi::PAGE_BYTES as u64;
/// What an object may grow to: the cluster's objects have one size for ever, and names theirs.
const BYTES_MAX: u64 = 64 << 30;
/// Names at a time: each object takes up addresses for all that it may grow to, twice.
const NAMES_MAX: usize = 900;
/// How long a name that another host is making is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two looks whether this host has left.
const LOOK: Duration = Duration::from_millis(5);

/// What programs find shared memory by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Name {
    /// A file, by its path in the folder.
    File(String),
    /// A segment of System V, by its key.
    Segment(u32),
}

impl Name {
    /// As the store has it.
    fn stored(&self) -> String {
        match self {
            Self::File(path) => {
                format!("shm:{}", path.replace('%', "%25").replace('/', "%2F"))
            }
            Self::Segment(key) => format!("sysv:{key:#010x}"),
        }
    }

    /// As it is stored, if it is one of these.
    fn from_stored(text: &str) -> Option<Self> {
        if let Some(path) = text.strip_prefix("shm:") {
            let path = path.replace("%2F", "/").replace("%25", "%");
            let is_inside = path.split('/').all(|part| !matches!(part, "" | "." | ".."));
            return is_inside.then_some(Self::File(path));
        }
        let key = text.strip_prefix("sysv:0x")?;
        u32::from_str_radix(key, 16).ok().map(Self::Segment)
    }

    /// Of a file in the folder.
    fn of_path(path: &Path) -> Option<Self> {
        let path = path.strip_prefix(FOLDER).ok()?.to_str()?;
        Self::from_stored(&Self::File(path.into()).stored())
    }
}

/// A name of the cluster as it is at this host.
#[derive(Default)]
struct Shown {
    /// `None`: it was removed.
    name: Option<Name>,
    bytes: u64,
    /// The empty file, opened for this process alone, and which it is.
    file: Option<(File, (u64, u64))>,
    segment: Option<u32>,
    /// It could not be shown.
    is_hidden: bool,
    /// This host has made it.
    is_own: bool,
    /// This host does not hold it any more.
    is_released: bool,
    /// It is opened here.
    object: Option<Arc<Object>>,
}

/// By what a name is shown at this host.
#[derive(Clone, Copy)]
struct At {
    file: Option<(u64, u64)>,
    segment: Option<u32>,
}

impl Shown {
    /// It is shown, and was not removed meanwhile.
    fn is_there(&self) -> bool {
        let is_linked =
            |(own, _): &(File, (u64, u64))| own.metadata().is_ok_and(|of| of.nlink() > 0);
        self.file.as_ref().is_some_and(is_linked)
            || self
                .segment
                .is_some_and(|segment| !ipc::is_removed(segment))
    }

    /// No task of this host can get at it any more.
    fn is_unused(&self) -> bool {
        let is_alone =
            |(own, _): &(File, (u64, u64))| file::is_alone(Fd(own.as_raw_fd())) == Ok(true);
        self.name.is_none()
            && self
                .object
                .as_ref()
                .is_none_or(|object| !object.is_mapped())
            && self.file.as_ref().is_none_or(is_alone)
            && self.segment.is_none_or(ipc::is_gone)
    }

    fn place(&self) -> At {
        At {
            file: self.file.as_ref().map(|(_, key)| *key),
            segment: self.segment,
        }
    }
}

/// A byte of an object of the cluster.
type Place = (u64, u64);

/// Where threads of this host may wait. One that has gone on is among them until it is known: whether it
/// is asleep only Linux knows, which compares the word and lets it sleep at once.
#[derive(Default)]
struct Waiting {
    /// By connection and thread.
    threads: HashMap<(u64, u64), Place>,
    /// How many at each place.
    places: HashMap<Place, u32>,
}

impl Waiting {
    /// A thread waits there, and nowhere else; or nowhere.
    fn set(&mut self, thread: (u64, u64), place: Option<Place>) {
        let before = match place {
            Some(place) => self.threads.insert(thread, place),
            None => self.threads.remove(&thread),
        };
        if let Some(place) = place {
            *self.places.entry(place).or_default() += 1;
        }
        if let Some(before) = before
            && let Entry::Occupied(mut count) = self.places.entry(before)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// A connection has ended.
    fn without(&mut self, connection: u64) {
        let of = self.threads.keys().filter(|(of, _)| *of == connection);
        let gone: Vec<(u64, u64)> = of.copied().collect();
        gone.into_iter().for_each(|thread| self.set(thread, None));
    }
}

#[derive(Default)]
struct State {
    /// By the cluster's numbers.
    all: HashMap<u64, Shown>,
    /// By those of the objects that are opened here.
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
    figures: BTreeMap<u64, Figures>,
}

/// The cluster's names at this host.
pub struct Names {
    cluster: RwLock<Option<Arc<Cluster>>>,
    kept: Weak<Mutex<Kept>>,
    objects: &'static Objects,
    replicas: u8,
    hand_over: Duration,
    state: Mutex<State>,
    shown: Condvar,
    waker: Mutex<Sender<(u64, u64, u32)>>,
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
    Shared { join, replicas }: Shared<'_>,
    kept: &Arc<Mutex<Kept>>,
    paging_space: Arc<dyn Pager>,
) -> Result<Option<Arc<Names>>> {
    let Some(config) = join::config(join, 0)? else {
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
    let names = Arc::new(Names {
        cluster: RwLock::default(),
        kept: Arc::downgrade(kept),
        objects,
        replicas,
        hand_over: Duration::from_secs(join.hand_over),
        state: Mutex::default(),
        shown: Condvar::new(),
        waker: Mutex::new(waker),
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
        .spawn(move || {
            let mut windows = HashMap::new();
            for (number, offset, count) in wakes {
                let Some(names) = working.upgrade() else {
                    return;
                };
                names.wake_here(&mut windows, number, offset, count);
            }
        })
        .context("cannot start a thread")?;
    Ok(Some(names))
}

impl Names {
    fn cluster(&self) -> Result<Arc<Cluster>, Errno> {
        let cluster = self.cluster.read().unwrap_or_else(PoisonError::into_inner);
        cluster.clone().ok_or(Errno::EAGAIN)
    }

    /// Nothing of it is shown at this host any more.
    pub fn hide(&self) {
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
            let leaving = std::thread::spawn(move || join::leave(&cluster, within, is_news));
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

    /// Does what a task asks for, over connection `from`. Returns the object that is to be told; `None`
    /// where it is none of the cluster's.
    pub fn act(
        &self,
        from: u64,
        ask: Ask,
        with: Option<&OwnedFd>,
        name: &[u8],
    ) -> Option<Result<Option<Arc<Object>>, Errno>> {
        let found = |object: Result<Arc<Object>, Errno>| object.map(Some);
        match (ask.kind, with) {
            (Kind::Making, _) if ask.a == 3 => {
                self.made_nothing(from);
                None
            }
            (Kind::Making, folder) => {
                let name = making(ask, folder, name)?;
                Some(self.take(from, &name).map(|()| None))
            }
            (Kind::Made, Some(file)) => Some(self.made_file(from, file).map(|()| None)),
            (Kind::Ipc, _) => {
                let number = lock(&self.state).begun.remove(&from)?;
                let made = self.made_segment(number, ask.b as u32);
                if made.is_err() {
                    self.unname(number);
                }
                Some(made.map(|()| None))
            }
            (Kind::File, Some(file)) => Some(found(self.open(self.number_of(file)?))),
            (Kind::Segment, _) => {
                let number = self.number_of_segment(ask.a as u32)?;
                Some(found(self.open(number)))
            }
            (Kind::Size, Some(file)) => {
                let number = self.number_of(file)?;
                Some(self.resize(number, ask.b).map(|()| None))
            }
            (Kind::Removed, _) => {
                self.look_for_removed();
                Some(Ok(None))
            }
            (Kind::Link, Some(file)) => {
                let number = self.number_of(file);
                let name = Name::of_path(Path::new(std::str::from_utf8(name).ok()?));
                let (Some(number), Some(name)) = (number, name) else {
                    return Some(Err(Errno::ENOENT));
                };
                Some(self.link(number, &name).map(|()| None))
            }
            _ => None,
        }
    }

    /// Thread `thread` of connection `from` is about to wait at a byte of an object of this host's.
    pub fn waits(&self, from: u64, ask: Ask) {
        let mut state = lock(&self.state);
        let number = state.numbers.get(&ask.a).copied();
        let place = number.map(|number| (number, ask.b));
        state.waiting.set((from, ask.c), place);
    }

    /// Threads at other hosts are to go on.
    pub fn wake_others(&self, from: u64, ask: Ask) {
        let number = {
            let mut state = lock(&self.state);
            state.waiting.set((from, ask.d), None);
            state.numbers.get(&ask.a).copied()
        };
        if let (Some(number), Ok(cluster)) = (number, self.cluster()) {
            cluster.wake(number, ask.b, ask.c as u32);
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

    /// Nothing came of what a connection has begun to make.
    fn made_nothing(&self, from: u64) {
        let begun = lock(&self.state).begun.remove(&from);
        if let Some(number) = begun {
            self.unname(number);
        }
    }

    /// The number of the cluster's object that a file shows.
    fn number_of(&self, file: &OwnedFd) -> Option<u64> {
        let key = identity(file)?;
        let is_it = |shown: &Shown| shown.file.as_ref().is_some_and(|(_, own)| *own == key);
        self.number(is_it, |shown| shown.file.is_none(), || name_of(file))
    }

    /// The number of the cluster's object that a segment shows.
    fn number_of_segment(&self, segment: u32) -> Option<u64> {
        let is_it = |shown: &Shown| shown.segment == Some(segment);
        let name = || ipc::key_of(segment).ok().map(Name::Segment);
        self.number(is_it, |shown| shown.segment.is_none(), name)
    }

    /// That of which `is_it` holds. What has this name and is about to be shown, so that it `is_not_yet`,
    /// is waited for: who came between its making and that must not have it for something else.
    fn number(
        &self,
        is_it: impl Fn(&Shown) -> bool,
        is_not_yet: impl Fn(&Shown) -> bool,
        name: impl Fn() -> Option<Name>,
    ) -> Option<u64> {
        let find = |state: &State| {
            let found = state.all.iter().find(|(_, shown)| is_it(shown));
            found.map(|(number, _)| *number)
        };
        let state = lock(&self.state);
        if let Some(number) = find(&state) {
            return Some(number);
        }
        let name = Some(name()?);
        let is_early = |state: &mut State| {
            let mut of_name = state.all.values().filter(|shown| shown.name == name);
            find(state).is_none() && of_name.any(|shown| is_not_yet(shown) && !shown.is_hidden)
        };
        let waited = self.shown.wait_timeout_while(state, PATIENCE, is_early);
        find(&waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    /// A name is about to be made at this host: it is taken in the cluster, or shown here when there is
    /// one.
    fn take(&self, from: u64, name: &Name) -> Result<(), Errno> {
        {
            let state = lock(&self.state);
            let is_taken = |state: &mut State| state.taking.contains(name);
            let waited = self.shown.wait_while(state, is_taken);
            let mut state = waited.unwrap_or_else(PoisonError::into_inner);
            state.taking.insert(name.clone());
        }
        let taken = self.take_alone(from, name);
        lock(&self.state).taking.remove(name);
        self.shown.notify_all();
        taken
    }

    /// The same, while no other task of this host asks for the name.
    fn take_alone(&self, from: u64, name: &Name) -> Result<(), Errno> {
        let cluster = self.cluster()?;
        let wish = Wish {
            bytes: BYTES_MAX,
            unit_bytes: PAGE,
            scheduler: Scheduler::Distributed,
            replicas: self.replicas,
            stays: false,
            note: "0".into(),
        };
        let named = lock(&self.state)
            .all
            .values()
            .filter(|shown| shown.name.is_some())
            .count();
        if named >= NAMES_MAX {
            self.say(&format!(
                "cannot make {}: the cluster has {NAMES_MAX} names of shared memory; remove some",
                name.stored()
            ));
            return Err(Errno(ENOSPC));
        }
        let began = Instant::now();
        loop {
            match cluster.make(&name.stored(), uid(), &wish) {
                Ok(number) => return self.begins(from, number),
                Err(HaveError::Control(ControlError::Exists(id))) => {
                    let is_anothers =
                        |(_, known): &(Option<String>, Description)| known.uid != uid();
                    if cluster.state().objects.get(&id.0).is_some_and(is_anothers) {
                        return Err(Errno::EACCES);
                    }
                    if self.is_shown(id.0) {
                        return Ok(());
                    }
                    if self.is_nobodys(id.0) {
                        return self.begins(from, id.0);
                    }
                }
                Err(error) => return Err(self.says_why("make", name, &error)),
            }
            if began.elapsed() > PATIENCE {
                self.say(&format!(
                    "cannot make {}: another host has it, and it cannot be shown here",
                    name.stored()
                ));
                return Err(Errno::EIO);
            }
        }
    }

    /// A connection has a name that it is about to show.
    fn begins(&self, from: u64, number: u64) -> Result<(), Errno> {
        let mut state = lock(&self.state);
        if state.ended.contains(&from) {
            drop(state);
            self.unname(number);
            return Err(Errno::EIO);
        }
        state.begun.insert(from, number);
        Ok(())
    }

    /// True of a name of this host's that nobody is about to show: who made it has not heard that it did.
    fn is_nobodys(&self, number: u64) -> bool {
        let state = lock(&self.state);
        let is_begun = state.begun.values().any(|begun| *begun == number);
        let shown = state.all.get(&number);
        !is_begun && shown.is_some_and(|shown| shown.is_own && !shown.is_there())
    }

    /// Waits until a name is shown at this host, or removed. True when it is shown.
    fn is_shown(&self, number: u64) -> bool {
        let is_there = Shown::is_there;
        let state = lock(&self.state);
        let waiting = |state: &mut State| {
            let is_begun = state.begun.values().any(|begun| *begun == number);
            let shown = state.all.get(&number);
            let is_coming = |shown: &Shown| is_begun || !shown.is_own;
            shown.is_some_and(|shown| shown.name.is_some() && !is_there(shown) && is_coming(shown))
        };
        let waited = self.shown.wait_timeout_while(state, PATIENCE, waiting);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let shown = state.all.get(&number);
        shown.is_some_and(|shown| shown.name.is_some() && is_there(shown))
    }

    fn made_file(&self, from: u64, file: &OwnedFd) -> Result<(), Errno> {
        let begun = lock(&self.state).begun.get(&from).copied();
        let Some(number) = begun else {
            return match self.number_of(file) {
                // It was there already, shown here.
                Some(_) => Ok(()),
                // It has no name, and stays this run's.
                None => lock(&*self.kept()?).made_file(file).map(drop),
            };
        };
        let own = File::from(lock(&*self.kept()?).made_file(file)?);
        let key = identity(&own).ok_or(Errno::EBADF)?;
        let mut state = lock(&self.state);
        state.begun.remove(&from);
        let known = state.all.entry(number).or_default();
        // What others have done to it since it was made.
        let _ = own.set_len(known.bytes);
        known.file = Some((own, key));
        let place = known.place();
        let is_removed = known.name.is_none();
        self.shown.notify_all();
        drop(state);
        if is_removed && let Some(name) = name_of(file) {
            hide(&name, place);
        }
        Ok(())
    }

    fn made_segment(&self, number: u64, id: u32) -> Result<(), Errno> {
        lock(&*self.kept()?).made_ipc(Ipc::Segment, id);
        let bytes = ipc::segment(id)?.bytes;
        lock(&self.state).all.entry(number).or_default().segment = Some(id);
        self.shown.notify_all();
        self.resize(number, bytes)
    }

    fn resize(&self, number: u64, bytes: u64) -> Result<(), Errno> {
        if bytes > BYTES_MAX {
            self.say(&format!(
                "shared memory of a cluster has {} at most, and was to have {}",
                human(BYTES_MAX),
                human(bytes)
            ));
            return Err(Errno::EFBIG);
        }
        let noted = self.cluster()?.note(number, &bytes.to_string());
        noted.map_err(|error| {
            self.say(&format!("cannot set a size for all hosts: {error}"));
            Errno::EIO
        })
    }

    fn link(&self, number: u64, name: &Name) -> Result<(), Errno> {
        lock(&self.state).linking.insert(number);
        let renamed = self.cluster()?.rename(number, &name.stored());
        lock(&self.state).linking.remove(&number);
        match renamed {
            Ok(()) => Ok(()),
            Err(ControlError::Exists(id)) => {
                self.is_shown(id.0);
                Err(Errno::EEXIST)
            }
            Err(error) => Err(self.says_why("link", name, &error)),
        }
    }

    /// The object of a name, at this host.
    fn open(&self, number: u64) -> Result<Arc<Object>, Errno> {
        if let Some(shown) = lock(&self.state).all.get(&number)
            && let Some(object) = &shown.object
        {
            return Ok(Arc::clone(object));
        }
        let object = self.cluster()?.open(number).map_err(|error| {
            self.say(&format!("cannot map shared memory of the cluster: {error}"));
            Errno::ENOMEM
        })?;
        lock(&*self.kept()?).begin_shared(&object);
        let mut state = lock(&self.state);
        state.numbers.insert(u64::from(object.number().0), number);
        state.figures.entry(number).or_default();
        let shown = state.all.entry(number).or_default();
        shown.object = Some(Arc::clone(&object));
        Ok(object)
    }

    /// Tells the cluster of names that programs of this host have removed.
    fn look_for_removed(&self) {
        let was_shown = |shown: &Shown| shown.file.is_some() || shown.segment.is_some();
        let is_removed =
            |shown: &Shown| shown.name.is_some() && was_shown(shown) && !shown.is_there();
        let removed: Vec<u64> = {
            let state = lock(&self.state);
            let removed = state.all.iter().filter(|(_, shown)| is_removed(shown));
            removed.map(|(number, _)| *number).collect()
        };
        removed.into_iter().for_each(|number| self.unname(number));
        self.tidy();
    }

    fn unname(&self, number: u64) {
        let name = lock(&self.state)
            .all
            .get(&number)
            .and_then(|shown| shown.name.clone());
        let (Some(name), Ok(cluster)) = (name, self.cluster()) else {
            return;
        };
        match cluster.unname(&name.stored()) {
            Ok(()) | Err(ControlError::NoName(_)) => {}
            Err(error) => drop(self.says_why("remove", &name, &error)),
        }
    }

    /// Lets go of objects that have no name, and that nobody has mapped.
    fn tidy(&self) {
        let unused: Vec<u64> = {
            let mut state = lock(&self.state);
            let mut unused = Vec::new();
            for (number, shown) in &mut state.all {
                if !shown.is_released && shown.is_unused() {
                    (shown.object, shown.is_released) = (None, true);
                    unused.push(*number);
                }
            }
            unused
        };
        let Ok(cluster) = self.cluster() else { return };
        for number in unused {
            self.counts(number);
            // It is released with this host, else.
            let _ = cluster.release(number);
        }
    }

    fn counts(&self, number: u64) {
        let figures = self
            .cluster()
            .ok()
            .and_then(|cluster| cluster.figures(number));
        if let (Some(figures), Some(known)) = (figures, lock(&self.state).figures.get_mut(&number))
        {
            *known = figures;
        }
    }

    /// Wakes threads of this host.
    fn wake_here(&self, windows: &mut Windows, number: u64, offset: u64, count: u32) {
        let (object, is_named) = {
            let state = lock(&self.state);
            let all = &state.all;
            windows.retain(|number, window| {
                let shown = all.get(number);
                let stays = shown.is_some_and(|shown| shown.name.is_some());
                if !stays {
                    self.objects.detach(window.space);
                }
                stays
            });
            if !state.waiting.places.contains_key(&(number, offset)) {
                return;
            }
            let shown = state.all.get(&number);
            let is_named = shown.is_some_and(|shown| shown.name.is_some());
            (shown.and_then(|shown| shown.object.clone()), is_named)
        };
        let Some(object) = object else {
            return;
        };
        if let Entry::Vacant(new) = windows.entry(number) {
            match window(self.objects, &object) {
                Ok(window) => drop(new.insert(window)),
                Err(error) => return self.say(&format!("cannot wake threads: {error:#}")),
            }
        }
        futex::wake(windows[&number].view.half_word(offset as usize), count);
        // One without a name goes when nobody has it mapped.
        if !is_named && let Some(window) = windows.remove(&number) {
            self.objects.detach(window.space);
        }
    }

    fn kept(&self) -> Result<Arc<Mutex<Kept>>, Errno> {
        self.kept.upgrade().ok_or(Errno::EAGAIN)
    }

    fn says_why(&self, what: &str, name: &Name, error: &dyn std::fmt::Display) -> Errno {
        self.say(&format!(
            "cannot {what} {} in the cluster: {error}",
            name.stored()
        ));
        Errno::EIO
    }

    /// For the summary.
    pub fn summary(&self) -> String {
        let numbers: Vec<u64> = lock(&self.state).all.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.counts(number));
        let state = lock(&self.state);
        let sum = |of: fn(&Figures) -> u64| state.figures.values().map(of).sum::<u64>();
        format!(
            "farpage: {}: {} mapped; waited for other hosts {} times to read, {} to write; sent {} to \
             them\n",
            self.store.get().map_or("cluster", String::as_str),
            counted(state.figures.len() as u64, "object"),
            sum(|of| of.read_misses),
            sum(|of| of.write_misses + of.upgrades),
            human(sum(|of| of.contents_sent) * PAGE),
        )
    }

    /// Shows a file of the cluster at this host.
    fn show_file(&self, path: &str) -> Option<(File, (u64, u64))> {
        let at = PathBuf::from(FOLDER).join(path);
        if let Some(folder) = at.parent() {
            let _ = fs::create_dir_all(folder);
        }
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create_new(true).mode(0o600);
        let made = match options.open(&at) {
            Ok(made) => made,
            Err(error) => {
                let why = match error.kind() {
                    ErrorKind::AlreadyExists => "another file is there; remove it".into(),
                    _ => error.to_string(),
                };
                self.say(&format!(
                    "cannot show shared memory of the cluster at {}: {why}",
                    at.display()
                ));
                return None;
            }
        };
        let key = identity(&made)?;
        let made = OwnedFd::from(made);
        match self.kept().and_then(|kept| lock(&kept).made_file(&made)) {
            Ok(own) => Some((own.into(), key)),
            Err(errno) => {
                self.say(&format!("cannot show {}: {errno:?}", at.display()));
                let _ = fs::remove_file(at);
                None
            }
        }
    }

    /// Shows a segment of the cluster at this host.
    fn show_segment(&self, key: u32, bytes: u64) -> Option<u32> {
        match ipc::make_segment(key, bytes) {
            Ok(number) => {
                if let Ok(kept) = self.kept() {
                    lock(&kept).made_ipc(Ipc::Segment, number);
                }
                Some(number)
            }
            Err(errno) => {
                self.say(&format!(
                    "cannot show segment {key:#010x} of the cluster: {}; ipcs -m lists what this host has",
                    std::io::Error::from_raw_os_error(errno.0)
                ));
                None
            }
        }
    }
}

impl Observer for Names {
    fn say(&self, what: &str) {
        eprintln!("farpage: {what}");
    }

    fn object_changed(&self, number: u64, name: Option<&str>, described: &Description) {
        if described.uid != uid() {
            return;
        }
        let name = name.and_then(Name::from_stored);
        let bytes = described.note.parse().unwrap_or(0);
        let is_own = self
            .cluster()
            .is_ok_and(|cluster| cluster.is_home(described));
        let mut state = lock(&self.state);
        if name.is_none() && !state.all.contains_key(&number) {
            return;
        }
        let (is_linked, is_over) = (state.linking.contains(&number), state.is_over);
        let known = state.all.entry(number).or_default();
        (known.bytes, known.is_own) = (bytes, is_own);
        let before = std::mem::replace(&mut known.name, name.clone());
        let place = known.place();
        let size_of = known
            .file
            .as_ref()
            .and_then(|(file, _)| file.try_clone().ok());
        drop(state);
        let (mut file, mut segment, mut is_hidden) = (None, None, false);
        match (&before, &name) {
            (Some(name), None) => hide(name, place),
            (Some(Name::File(from)), Some(Name::File(to))) if from != to => {
                rename(from, to, place, is_linked);
            }
            _ if is_over => {}
            (_, Some(Name::File(path))) if place.file.is_none() && !is_own => {
                file = self.show_file(path);
                is_hidden = file.is_none();
            }
            (_, Some(Name::Segment(key))) if place.segment.is_none() && !is_own && bytes > 0 => {
                segment = self.show_segment(*key, bytes);
                is_hidden = segment.is_none();
            }
            _ => {}
        }
        let sized = size_of.as_ref().or(file.as_ref().map(|(file, _)| file));
        if let Some(file) = sized
            && file.metadata().is_ok_and(|about| about.len() != bytes)
        {
            let _ = file.set_len(bytes);
        }
        let mut state = lock(&self.state);
        let known = state.all.entry(number).or_default();
        known.file = known.file.take().or(file);
        known.segment = known.segment.or(segment);
        known.is_hidden |= is_hidden;
        self.shown.notify_all();
    }

    fn object_removed(&self, number: u64) {
        self.counts(number);
        let mut state = lock(&self.state);
        let gone = state.all.remove(&number);
        drop(state);
        if let Some(shown) = gone
            && let Some(name) = &shown.name
        {
            hide(name, shown.place());
        }
        self.shown.notify_all();
    }

    fn wake(&self, number: u64, offset: u64, count: u32) {
        // It fails when this process ends.
        let _ = lock(&self.waker).send((number, offset, count));
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

fn identity(file: &impl AsFd) -> Option<(u64, u64)> {
    let status = rustix::fs::fstat(file).ok()?;
    Some((status.st_dev, status.st_ino))
}

/// Where a file or a folder is.
fn path_of(file: &OwnedFd) -> Option<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

/// The name of a file, if it can have one.
fn name_of(file: &OwnedFd) -> Option<Name> {
    Name::of_path(&path_of(file)?)
}

/// What shows a name is removed, if it is what this process knows.
fn hide(name: &Name, place: At) {
    match name {
        Name::File(path) => {
            let at = PathBuf::from(FOLDER).join(path);
            let is_it = |about: &fs::Metadata| place.file == Some((about.dev(), about.ino()));
            if fs::symlink_metadata(&at).as_ref().is_ok_and(is_it) {
                let _ = fs::remove_file(at);
            }
        }
        Name::Segment(_) => {
            if let Some(number) = place.segment {
                let _ = ipc::remove_segment(number);
            }
        }
    }
}

/// A file has another name; it keeps the one before where a task is about to remove that.
fn rename(from: &str, to: &str, place: At, keeps: bool) {
    let folder = PathBuf::from(FOLDER);
    let (from, to) = (folder.join(from), folder.join(to));
    if place.file.is_some() && fs::hard_link(&from, to).is_ok() && !keeps {
        let _ = fs::remove_file(from);
    }
}

/// A mapping of an object in this process.
struct Window {
    view: View,
    space: SpaceId,
}

/// By the cluster's numbers.
type Windows = HashMap<u64, Window>;

fn window(objects: &'static Objects, object: &Arc<Object>) -> Result<Window> {
    let bytes = BYTES_MAX as usize;
    let view = View::map(Fd(object.file().as_raw_fd()), bytes, None)?;
    let space = objects.attach(view.faults()?)?;
    let pages = PageRange::new(0, BYTES_MAX / PAGE);
    objects
        .map(space, object, view.address(), pages)
        .map_err(|error| anyhow::anyhow!("{error:?}"))?;
    Ok(Window { view, space })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_waits_at_one_place_until_it_is_known_not_to() {
        let mut waiting = Waiting::default();
        let (here, there) = ((1, 0), (1, 64));
        waiting.set((7, 1), Some(here));
        waiting.set((7, 1), Some(here));
        waiting.set((7, 2), Some(here));
        waiting.set((8, 2), Some(there));
        assert_eq!((waiting.places[&here], waiting.places[&there]), (2, 1));
        waiting.set((7, 1), Some(there));
        waiting.set((7, 3), None);
        assert_eq!((waiting.places[&here], waiting.places[&there]), (1, 2));
        waiting.without(7);
        assert_eq!(waiting.places, HashMap::from([(there, 1)]));
        waiting.set((8, 2), None);
        assert!(waiting.places.is_empty() && waiting.threads.is_empty());
    }

    #[test]
    fn names_are_stored_without_slashes_and_come_back() {
        for name in [
            Name::File("psm_1".into()),
            Name::File("a folder/50%2F/x".into()),
            Name::Segment(0xdead_beef),
            Name::Segment(1),
        ] {
            let stored = name.stored();
            assert!(!stored.contains('/'), "{stored}");
            assert_eq!(Name::from_stored(&stored), Some(name));
        }
        for none in [
            "grid",
            "shm:",
            "shm:..%2Fetc",
            "shm:a%2F%2Fb",
            "sysv:7",
            "sysv:0xg",
        ] {
            assert_eq!(Name::from_stored(none), None, "{none}");
        }
    }
}
