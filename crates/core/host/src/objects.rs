//! All objects, who maps them, and the threads that answer for them.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::{Duration, Instant};

use farpage_object::{Control, ObjectId, PAGE_BYTES, PageIndex, PageRange};
use farpage_object::{Later, Pager, PagerError, Supplied};
use farpage_sys::file::{self, Fd};
use farpage_sys::uffd::Fault;
use farpage_sys::under_way::UnderWay;
use farpage_sys::{Errno, lock};

use crate::budget::{Budget, WINDOW_MAX};
use crate::copies::Copies;
use crate::counters::now_ns;
use crate::full::Full;
use crate::handlers::Handlers;
use crate::leave::ASIDE_PART;
use crate::object::{Asked, Object};
use crate::room::{Room, Tree};
use crate::share::Share;
use crate::space::{FAULTS, Mapping, Places, Space, Task, Telling, Told};
use crate::trace::What;
use crate::waiter::{MappedBy, Thread, Waiter, Who};
use crate::{Error, MapError};

/// Pages taken out of an object at a time.
const BATCH: u64 = 64;
/// Objects of which the one that has most gives pages up.
const COMPARED: usize = 8;
/// Time between two tries to take pages out when none could go.
const TRY_AGAIN: Duration = Duration::from_millis(20);
/// The same for objects that have more than they may have, while there is room.
const LIMITS_AGAIN: Duration = Duration::from_millis(200);

/// A process that maps objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpaceId(u64);

/// The memory objects of a host.
pub struct Objects {
    pub(crate) room: Room,
    /// Pages in memory, of all objects.
    resident: AtomicU64,
    /// Pages that were taken out since objects last aged.
    taken_out: AtomicU64,
    /// Pages that were asked for ahead of need and have not come yet.
    pub(crate) under_way: UnderWay,
    asked: Mutex<HashMap<u64, Asked>>,
    next: AtomicU64,
    number: AtomicU32,
    objects: Mutex<Table>,
    spaces: Mutex<HashMap<u64, Arc<Space>>>,
    pub(crate) handlers: Handlers,
    /// Somebody waits for pages to leave.
    pressed: (Mutex<bool>, Condvar),
    pub(crate) full: Full,
    pub(crate) copies: Copies,
    /// Pages that stay in memory.
    pub(crate) wired: AtomicU64,
    /// Some object may not have all of the memory.
    limited: AtomicBool,
    /// Linux has no userfaultfd here: nobody maps objects.
    pub(crate) is_for_calls: bool,
}

/// How far objects keep to what they may have.
enum Limits {
    Kept,
    /// Some pages have left.
    Nearer,
    /// None could.
    Stuck,
}

#[derive(Default)]
struct Table {
    objects: BTreeMap<ObjectId, Weak<Object>>,
    /// The number of where to look next for one that gives pages up.
    next: u32,
    /// Of those that are gone.
    gone: Paged,
}

/// What all objects, those that are gone too, had done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paged {
    /// Pages that came from pagers.
    pub brought: u64,
    /// Pages that pagers took.
    pub taken: u64,
    /// Faults that were answered.
    pub faults: u64,
    /// How long they took together, in nanoseconds, and the longest.
    pub stall_ns: u64,
    /// The longest.
    pub stall_ns_max: u64,
}

impl Paged {
    fn and(self, object: &Object) -> Self {
        let figures = object.counters.figures();
        Self {
            brought: self.brought + figures.brought,
            taken: self.taken + figures.taken,
            faults: self.faults + figures.faults.count(),
            stall_ns: self.stall_ns + figures.faults.sum_ns(),
            stall_ns_max: self
                .stall_ns_max
                .max(figures.faults.quantile_ns(1.0).unwrap_or(0)),
        }
    }
}

impl Objects {
    /// Starts to answer for objects that together keep `ram_bytes` in memory.
    ///
    /// # Errors
    /// Without threads or descriptors.
    pub fn start(ram_bytes: u64) -> Result<&'static Self, Error> {
        Self::start_with(ram_bytes, false)
    }

    /// As [`Objects::start`], where Linux has no userfaultfd (an emulated processor, a container
    /// that forbids it): nobody can map the objects, and they are used by [`Object::read`] and
    /// [`Object::write`].
    ///
    /// # Errors
    /// As there.
    pub fn start_for_calls(ram_bytes: u64) -> Result<&'static Self, Error> {
        Self::start_with(ram_bytes, true)
    }

    fn start_with(ram_bytes: u64, is_for_calls: bool) -> Result<&'static Self, Error> {
        let pages = AtomicU64::new(ram_bytes / PAGE_BYTES as u64);
        let objects = Self::with_room(Room::Own(pages), is_for_calls)?;
        spawn("objects-room", move || objects.keep_room())?;
        Ok(objects)
    }

    /// As [`Objects::start`], for objects that share the budget of a tree with its programs.
    ///
    /// # Errors
    /// As there; [`Error::TooMany`] when the tree has no account left.
    pub fn in_tree(control: &'static Control) -> Result<&'static Self, Error> {
        let budget = Budget::new(control).ok_or(Error::TooMany)?;
        let objects = Self::with_room(Room::Tree(Tree::new(control, budget)), false)?;
        spawn("objects-room", move || objects.give_way())?;
        Ok(objects)
    }

    /// Gives memory back that the programs of a tree need.
    fn give_way(&self) {
        let Room::Tree(tree) = &self.room else {
            return;
        };
        let mut seen = 0;
        loop {
            tree.give_way(&mut seen, self);
            if self.is_full() {
                self.try_again();
            }
            self.answer_waiting();
            self.detach_tasks(|task| !task.lives());
        }
    }

    pub(crate) fn with_room(room: Room, is_for_calls: bool) -> Result<&'static Self, Error> {
        let copies = Copies::new(room.bytes() / PAGE_BYTES as u64 / ASIDE_PART);
        let copies =
            copies.map_err(|errno| Error::Start(std::io::Error::from_raw_os_error(errno.0)))?;
        let objects: &'static Self = Box::leak(Box::new(Self {
            room,
            resident: AtomicU64::new(0),
            taken_out: AtomicU64::new(0),
            under_way: UnderWay::default(),
            asked: Mutex::default(),
            next: AtomicU64::new(0),
            number: AtomicU32::new(0),
            objects: Mutex::default(),
            spaces: Mutex::default(),
            handlers: Handlers::new()?,
            pressed: (Mutex::new(false), Condvar::new()),
            full: Full::default(),
            copies,
            wired: AtomicU64::new(0),
            limited: AtomicBool::new(false),
            is_for_calls,
        }));
        objects.handlers.start(objects)?;
        Ok(objects)
    }

    /// Makes an object of `pages` pages. A `temporary` one begins as zeros; its pager has only what
    /// is handed to it. It lives as long as somebody has it or maps it.
    ///
    /// # Errors
    /// When it has no pages; when Linux gives no memory file or userfaultfd; when the pager
    /// refuses.
    pub fn create(
        &'static self,
        name: &str,
        pages: u64,
        pager: Arc<dyn Pager>,
        temporary: bool,
    ) -> Result<Arc<Object>, Error> {
        if pages == 0 {
            return Err(Error::Empty(name.to_owned()));
        }
        self.make(name, pages * PAGE_BYTES as u64, pager, temporary, None)
    }

    /// As [`Objects::create`], of a temporary object that has as many pages as `file`, whatever size
    /// that is given later ([`Object::look_at_size`]). It may be mapped beyond its end, where who
    /// touches a page gets SIGBUS. Its memory file has [`SPARSE_BYTES`].
    ///
    /// # Errors
    /// As [`Objects::create`].
    ///
    /// [`SPARSE_BYTES`]: farpage_sys::mapped::SPARSE_BYTES
    pub fn create_sized_by(
        &'static self,
        name: &str,
        file: OwnedFd,
        pager: Arc<dyn Pager>,
    ) -> Result<Arc<Object>, Error> {
        let status = file::status(Fd(file.as_raw_fd())).map_err(|errno| Error::System {
            path: name.to_owned(),
            what: "look at it",
            errno,
        })?;
        self.make(name, status.bytes, pager, true, Some(file))
    }

    /// As [`Objects::create`], of any size.
    pub(crate) fn make(
        &'static self,
        name: &str,
        bytes: u64,
        pager: Arc<dyn Pager>,
        temporary: bool,
        sized_by: Option<OwnedFd>,
    ) -> Result<Arc<Object>, Error> {
        let path = name.to_owned();
        let number = ObjectId(self.number.fetch_add(1, Ordering::Relaxed));
        if let Err(error) = pager.init(number, bytes.div_ceil(PAGE_BYTES as u64)) {
            return Err(Error::Refused { path, error });
        }
        let shared = Arc::clone(&pager);
        let object = match Object::new(path, number, bytes, shared, temporary, sized_by, self) {
            Ok(object) => Arc::new(object),
            Err(errno) => {
                pager.terminate(number);
                return Err(Error::System {
                    path: name.to_owned(),
                    what: "make a memory object",
                    errno,
                });
            }
        };
        let kept = Arc::downgrade(&object);
        lock(&self.objects).objects.insert(number, kept);
        Ok(object)
    }

    /// A process that is to map objects hands its userfaultfd over.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn attach(&self, faults: OwnedFd) -> Result<SpaceId, Errno> {
        self.answer(faults, Places::Told(Mutex::default()))
    }

    /// Before the process of a space gets SIGBUS for a page that cannot be had, `told` says why, and is
    /// waited for: it should not take long. Where the reason is that of before, it is not said again.
    pub fn tell_of_failure(&self, space: SpaceId, told: Told) {
        if let Some(space) = self.space(space.0) {
            *lock(&space.told) = Telling::by(told);
        }
    }

    /// Answers the faults of a userfaultfd from now on.
    pub(crate) fn answer(&self, faults: OwnedFd, places: Places) -> Result<SpaceId, Errno> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let space = Arc::new(Space::new(number, faults, places)?);
        lock(&self.spaces).insert(number, Arc::clone(&space));
        if let Err(errno) = self.handlers.begin(&space) {
            lock(&self.spaces).remove(&number);
            return Err(errno);
        }
        Ok(SpaceId(number))
    }

    /// The process has mapped `pages` of `object` at `address`, and registered them with its
    /// userfaultfd for all faults. Threads that touched them already are answered.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn map(
        &self,
        space: SpaceId,
        object: &Arc<Object>,
        address: usize,
        pages: PageRange,
    ) -> Result<(), MapError> {
        let space = self.space(space.0).ok_or(MapError::NoSpace)?;
        let Places::Told(mappings) = &space.places else {
            return Err(MapError::NoSpace);
        };
        if pages.is_empty() || pages.end.0 > object.pages() && !object.is_sized() {
            return Err(MapError::Outside {
                pages: object.pages(),
                start: pages.start.0,
                end: pages.end.0,
            });
        }
        let bytes = pages.bytes() as usize;
        let end = address.checked_add(bytes);
        let mut mappings = lock(mappings);
        let overlaps = |other: &Arc<Mapping>| {
            let other_end = other.address + other.pages.bytes() as usize;
            end.is_some_and(|end| address < other_end && other.address < end)
        };
        let is_page = address.is_multiple_of(PAGE_BYTES) && end.is_some();
        if !is_page || mappings.iter().any(overlaps) {
            return Err(MapError::Address { address });
        }
        let mapping = Arc::new(Mapping {
            space: Arc::clone(&space),
            object: Arc::clone(object),
            address,
            pages,
            streams: Mutex::default(),
        });
        object.add(Arc::clone(&mapping));
        mappings.push(mapping);
        space.wake(address, bytes);
        Ok(())
    }

    /// The process is about to unmap what is mapped at `address`, and touches it no more. False
    /// when nothing is. To be called before: what the process maps there afterwards is none of this
    /// one's.
    pub fn unmap(&self, space: SpaceId, address: usize) -> bool {
        let Some(space) = self.space(space.0) else {
            return false;
        };
        let Places::Told(mappings) = &space.places else {
            return false;
        };
        let mut mappings = lock(mappings);
        let Some(at) = mappings.iter().position(|m| m.address == address) else {
            return false;
        };
        let mapping = mappings.swap_remove(at);
        mapping.object.remove(&mapping);
        true
    }

    /// As [`Objects::unmap`], of all that lies in `bytes` bytes from `address` on, both those of
    /// pages.
    pub fn unmap_part(&self, space: SpaceId, address: usize, bytes: usize) {
        let Some(space) = self.space(space.0) else {
            return;
        };
        let Places::Told(mappings) = &space.places else {
            return;
        };
        let end = address.saturating_add(bytes);
        let mut mappings = lock(mappings);
        let is_cut = |mapping: &Arc<Mapping>| {
            let own_end = mapping.address + mapping.pages.bytes() as usize;
            mapping.address < end && address < own_end
        };
        let (cut, mut kept): (Vec<_>, Vec<_>) = mappings.drain(..).partition(is_cut);
        for mapping in cut {
            for part in mapping.without(address, end) {
                // Before the whole goes: what stays mapped is protected when pages leave.
                mapping.object.add(Arc::clone(&part));
                kept.push(part);
            }
            mapping.object.remove(&mapping);
        }
        *mappings = kept;
    }

    /// The objects that a process has mapped.
    pub fn mapped_by(&self, space: SpaceId) -> Vec<Arc<Object>> {
        let space = self.space(space.0);
        match space.as_ref().map(|space| &space.places) {
            Some(Places::Told(mappings)) => {
                let mappings = lock(mappings);
                mappings.iter().map(|one| Arc::clone(&one.object)).collect()
            }
            Some(Places::Listed(_)) | None => Vec::new(),
        }
    }

    /// The process is gone, or will map nothing any more.
    pub fn detach(&self, space: SpaceId) {
        let space = lock(&self.spaces).remove(&space.0);
        let Some(space) = space else {
            return;
        };
        space.goes();
        self.handlers.end(&space);
        if let Places::Told(mappings) = &space.places {
            let mappings = std::mem::take(&mut *lock(mappings));
            for mapping in mappings {
                mapping.object.remove(&mapping);
            }
        }
    }

    /// Forgets the tasks of which `which` is true.
    pub(crate) fn detach_tasks(&self, which: impl Fn(&Task) -> bool) {
        let is_one = |space: &&Arc<Space>| match &space.places {
            Places::Listed(task) => which(task),
            Places::Told(_) => false,
        };
        let numbers: Vec<u64> = lock(&self.spaces)
            .values()
            .filter(is_one)
            .map(|space| space.number)
            .collect();
        for number in numbers {
            self.detach(SpaceId(number));
        }
    }

    pub(crate) fn forget(&self, space: &Space) {
        self.detach(SpaceId(space.number));
    }

    /// Changes what may be in memory. What is there beyond it leaves soon.
    pub fn set_ram(&self, ram_bytes: u64) {
        if let Room::Own(pages) = &self.room {
            pages.store(ram_bytes / PAGE_BYTES as u64, Ordering::Relaxed);
            self.press();
        }
    }

    /// Bytes in memory, of all objects.
    pub fn resident_bytes(&self) -> u64 {
        self.resident() * PAGE_BYTES as u64
    }

    /// The most bytes of the budget of a tree that the objects had at a time; 0 where they have one
    /// of their own.
    pub fn charged_max_bytes(&self) -> u64 {
        match &self.room {
            Room::Own(_) => 0,
            Room::Tree(tree) => tree.budget.most(),
        }
    }

    /// Bytes that came although there was no room for them: whoever needed them had waited too long.
    pub fn charged_beyond_bytes(&self) -> u64 {
        match &self.room {
            Room::Own(_) => 0,
            Room::Tree(tree) => tree.beyond.load(Ordering::Relaxed) * PAGE_BYTES as u64,
        }
    }

    /// Objects that live.
    pub fn objects(&self) -> Vec<Arc<Object>> {
        let table = lock(&self.objects);
        table.objects.values().filter_map(Weak::upgrade).collect()
    }

    /// Pages in memory, of all objects.
    pub(crate) fn resident(&self) -> u64 {
        self.resident.load(Ordering::Relaxed)
    }

    /// An object has other pages in memory than before.
    pub(crate) fn resident_changes(&self, before: u64, now: u64) {
        let change = now.wrapping_sub(before);
        self.resident.fetch_add(change, Ordering::Relaxed);
        if now < before {
            self.room.uncharge(before - now);
        }
    }

    /// What was paged in and out of all.
    pub fn paged(&self) -> Paged {
        let table = lock(&self.objects);
        let live: Vec<Arc<Object>> = table.objects.values().filter_map(Weak::upgrade).collect();
        let gone = table.gone;
        // The last of them may go with the list.
        drop(table);
        live.iter().fold(gone, |sum, object| sum.and(object))
    }

    /// An object is gone.
    pub(crate) fn remove(&self, object: &Object) {
        let mut table = lock(&self.objects);
        table.objects.remove(&object.number);
        table.gone = table.gone.and(object);
    }

    /// Keeps what a pager was asked for until it answers. Returns the number of that.
    pub(crate) fn ask(&self, asked: Asked) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.asked).insert(number, asked);
        number
    }

    pub(crate) fn object(&self, number: ObjectId) -> Option<Arc<Object>> {
        lock(&self.objects).objects.get(&number)?.upgrade()
    }

    pub(crate) fn space(&self, number: u64) -> Option<Arc<Space>> {
        lock(&self.spaces).get(&number).cloned()
    }

    /// Answers what a space asks for.
    pub(crate) fn serve_all(&'static self, space: &Arc<Space>) {
        loop {
            let Ok(faults) = space.faults() else {
                return self.detach(SpaceId(space.number));
            };
            let faults = faults.as_slice();
            // Read while the thread waits, and acted on when it runs again.
            let cpu = faults.first().and_then(|fault| space.look(fault.thread));
            for fault in faults {
                self.serve(space, fault);
            }
            if let Some(cpu) = cpu {
                self.handlers.is_needed_at(cpu, space);
            }
            self.makes_room();
            if faults.len() < FAULTS {
                return;
            }
        }
    }

    fn serve(&self, space: &Arc<Space>, fault: &Fault) {
        let since_ns = now_ns();
        let address = fault.address & !(PAGE_BYTES - 1);
        let (object, page, mapped_by) = match &space.places {
            Places::Told(mappings) => {
                let lies = |mapping: &&Arc<Mapping>| mapping.page_at(address).is_some();
                let mapping = lock(mappings).iter().find(lies).cloned();
                // Where nothing is mapped yet, the thread is woken when it is.
                let Some(mapping) = mapping else { return };
                let page = mapping.page_at(address).expect("found by it");
                (Arc::clone(&mapping.object), page, MappedBy::Host(mapping))
            }
            Places::Listed(task) => {
                let found = task.find(address).and_then(|(piece, page)| {
                    let object = self.object(ObjectId(piece.file as u32))?;
                    let reading = piece.reading;
                    (page < object.pages()).then_some((object, page, MappedBy::Linux { reading }))
                });
                let Some(found) = found else {
                    // What lay there is gone, or comes: the thread finds out.
                    return space.wake(address, PAGE_BYTES);
                };
                found
            }
        };
        let what = if fault.write { What::Write } else { What::Read };
        let one = PageRange::one(PageIndex(page));
        object.tracer.note_fault(what, fault.thread, one);
        self.slow_down(&object);
        let space = Arc::clone(space);
        object.want(Waiter {
            page,
            write: fault.write,
            since_ns,
            who: Who::Thread(Thread {
                space,
                address,
                mapped_by,
            }),
        });
    }

    /// Those who bring pages in faster than they leave wait here.
    pub(crate) fn makes_room(&self) {
        while self.room.is_overfull(self) && self.evict(BATCH) > 0 {}
    }

    /// Those who bring pages in faster than they leave take some out: as many as come at a time.
    pub(crate) fn slow_down(&self, object: &Object) {
        for _ in 0..WINDOW_MAX / BATCH {
            let gone = match object.share().filter(|share| share.is_overfull()) {
                Some(share) => self.evict_of(share),
                None if object.is_overfull() => object.evict(BATCH),
                None => return,
            };
            if gone == 0 {
                return;
            }
        }
    }

    pub(crate) fn press(&self) {
        *lock(&self.pressed.0) = true;
        self.pressed.1.notify_one();
    }

    /// Takes pages out while there are too many.
    fn keep_room(&'static self) {
        let (pressed, press) = &self.pressed;
        // When limits of objects are looked at again that could not be kept.
        let mut limits_at: Option<Instant> = None;
        loop {
            // Nobody presses when there is room again where the paging files are.
            let left = limits_at.map(|at| at.saturating_duration_since(Instant::now()));
            let patience = left.map_or(Duration::MAX, |left| left.max(TRY_AGAIN));
            let patience = patience.min(self.until_next_look());
            let waited = press.wait_timeout_while(lock(pressed), patience, |pressed| !*pressed);
            if let Ok((mut pressed, _)) = waited {
                *pressed = false;
            }
            if self.is_full() {
                self.try_again();
            }
            self.answer_waiting();
            self.make_room();
            while limits_at.is_none_or(|at| at <= Instant::now()) {
                let kept = self.keep_limits();
                limits_at = match kept {
                    Limits::Kept | Limits::Nearer => None,
                    Limits::Stuck => Some(Instant::now() + LIMITS_AGAIN),
                };
                self.answer_waiting();
                self.make_room();
                if matches!(kept, Limits::Kept) {
                    break;
                }
            }
        }
    }

    fn make_room(&self) {
        while self.room.excess(self) > 0 {
            if self.evict(BATCH) == 0 {
                self.answer_waiting();
                std::thread::sleep(TRY_AGAIN);
            }
        }
    }

    /// Takes some pages out of each object that has more than it may have, and of the largest of
    /// those that have more together.
    fn keep_limits(&self) -> Limits {
        if !self.limited.load(Ordering::Relaxed) {
            return Limits::Kept;
        }
        let mut gone = Vec::new();
        let objects = self.objects();
        for object in &objects {
            let excess = object.own_excess();
            if excess > 0 {
                gone.push(object.evict(BATCH.min(excess)));
            }
            let share = object.share();
            if let Some(share) = share.filter(|share| share.excess() > 0) {
                gone.push(self.evict_of(share));
            }
        }
        match gone.iter().sum() {
            _ if gone.is_empty() => Limits::Kept,
            0u64 => Limits::Stuck,
            _ => Limits::Nearer,
        }
    }

    /// Takes some pages out of the object that is a part of `share` and has most to give.
    fn evict_of(&self, share: &Arc<Share>) -> u64 {
        let mut of = self.objects();
        of.retain(|object| {
            object
                .share()
                .is_some_and(|other| Arc::ptr_eq(other, share))
        });
        of.sort_by_cached_key(|object| std::cmp::Reverse(object.idle()));
        let most = BATCH.min(share.excess());
        let mut gone = of.iter().map(|object| object.evict(most));
        gone.find(|gone| *gone > 0).unwrap_or(0)
    }

    /// Some object may not have all of the memory.
    pub(crate) fn has_limits(&self) {
        self.limited.store(true, Ordering::Relaxed);
    }

    /// Takes about `wanted` pages out. Returns how many: fewer when no object gives more up.
    pub(crate) fn evict(&self, wanted: u64) -> u64 {
        let (mut freed, mut refused) = (0, 0);
        while freed < wanted {
            let (mut some, last) = self.some_to_evict();
            some.sort_by_cached_key(|object| std::cmp::Reverse(object.idle()));
            let most = BATCH.min(wanted - freed);
            let gone = some
                .iter()
                .map(|object| object.evict(most))
                .find(|n| *n > 0);
            match gone {
                Some(gone) => {
                    freed += gone;
                    refused = 0;
                    self.age(gone);
                }
                None if last || some.is_empty() => refused += 1,
                None => {}
            }
            // All were asked since one gave something.
            if refused == 2 {
                break;
            }
        }
        freed
    }

    /// So many pages were taken out. Once all that there is room for has been, what objects have used until
    /// then counts less.
    fn age(&self, pages: u64) {
        let taken = self.taken_out.fetch_add(pages, Ordering::Relaxed) + pages;
        if taken >= self.room.pages() {
            self.taken_out.store(0, Ordering::Relaxed);
            self.objects().iter().for_each(|object| object.ages());
        }
    }

    /// The next few objects in turn that have pages in memory, and whether the last one is among
    /// them. With few objects these are all.
    fn some_to_evict(&self) -> (Vec<Arc<Object>>, bool) {
        // Dropped after the table is unlocked, from which an object removes itself.
        let (mut some, mut others) = (Vec::new(), Vec::new());
        let mut table = lock(&self.objects);
        let mut end = None;
        for (number, object) in table.objects.range(ObjectId(table.next)..) {
            if some.len() == COMPARED {
                end = Some(number.0);
                break;
            }
            match object.upgrade() {
                Some(object) if object.resident() > 0 => some.push(object),
                other => others.extend(other),
            }
        }
        table.next = end.unwrap_or_default();
        (some, end.is_none())
    }
}

/// Takes what pagers answer later.
impl Later for Objects {
    fn supply(&self, id: u64, bytes: &[u8], how: Supplied) -> bool {
        self.answered(id, |object, asked| {
            object.supplied(asked, &whole_pages(bytes), how);
        })
    }

    fn fail(&self, id: u64, error: PagerError) -> bool {
        self.answered(id, |object, asked| object.failed(asked, error))
    }
}

impl Objects {
    fn answered(&self, id: u64, act: impl FnOnce(&Object, Asked)) -> bool {
        let Some(asked) = lock(&self.asked).remove(&id) else {
            return false;
        };
        if let Some(object) = self.object(asked.object) {
            act(&object, asked);
        }
        true
    }
}

/// What a pager answered; the last page filled up with zeros.
fn whole_pages(bytes: &[u8]) -> Cow<'_, [u8]> {
    if bytes.len().is_multiple_of(PAGE_BYTES) {
        return Cow::Borrowed(bytes);
    }
    let mut whole = bytes.to_vec();
    whole.resize(bytes.len().next_multiple_of(PAGE_BYTES), 0);
    Cow::Owned(whole)
}

pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    /// Without one of its threads the host answers no more: the programs must notice.
    struct EndsAll;
    impl Drop for EndsAll {
        fn drop(&mut self) {
            if std::thread::panicking() {
                std::process::abort();
            }
        }
    }
    let builder = std::thread::Builder::new().name(name.to_string());
    let work = move || {
        let _ends_all = EndsAll;
        work();
    };
    builder.spawn(work).map_err(Error::Start)?;
    Ok(())
}
