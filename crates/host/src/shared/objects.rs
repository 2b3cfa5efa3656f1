//! All objects, who maps them, and the threads that answer for them.

use std::collections::HashMap;
use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

use farpage_abi::{ObjectId, PAGE_BYTES, PageRange};
use farpage_pagers::{Later, Pager, PagerError, Supplied};
use farpage_sys::Errno;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::Object;
use super::object::{Desk, Mapping};
use super::space::Space;
use crate::file::Error;
use crate::host::{lock, spawn, whole_pages};

/// Threads that answer faults.
const WORKERS: usize = 4;
/// Pages taken out of memory at a time.
const BATCH: u64 = 64;
/// Time between two tries to take pages out when none could go.
const TRY_AGAIN: Duration = Duration::from_millis(20);
const ONCE: EventFlags = EventFlags::IN.union(EventFlags::ONESHOT);

/// A process that maps objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpaceId(u64);

/// Why something cannot be mapped.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The process is not known, or not any more.
    #[error("the process has handed no userfaultfd over; do so before mapping")]
    NoSpace,
    /// The object has no such pages, or none are meant.
    #[error("the object has {pages} pages, and {start} to {end} are not among them; map less")]
    Outside {
        /// Pages of the object.
        pages: u64,
        /// The first that was meant.
        start: u64,
        /// One past the last.
        end: u64,
    },
    /// Another mapping of the process lies there, or the address is none.
    #[error(
        "another mapping is at {address:#x} already, or it is no page's address; unmap it first"
    )]
    Address {
        /// Where it was to be.
        address: usize,
    },
}

/// The memory objects of a host.
pub struct Objects {
    desk: Desk,
    budget_pages: AtomicU64,
    number: AtomicU32,
    table: Mutex<Table>,
    epoll: OwnedFd,
    /// Somebody waits for pages to leave.
    pressed: (Mutex<bool>, Condvar),
}

#[derive(Default)]
struct Table {
    objects: HashMap<ObjectId, Weak<Object>>,
    spaces: HashMap<u64, Arc<Attached>>,
    next: u64,
}

/// A process's userfaultfd and what it maps.
struct Attached {
    space: Arc<Space>,
    mappings: Mutex<Vec<Arc<Mapping>>>,
}

/// Takes what pagers answer later.
struct Answers(std::sync::OnceLock<&'static Objects>);

impl Objects {
    /// Starts to answer for objects that together keep `ram_bytes` in memory.
    ///
    /// # Errors
    /// Without threads or descriptors.
    pub fn start(ram_bytes: u64) -> Result<&'static Self, Error> {
        let epoll = epoll::create(CreateFlags::CLOEXEC);
        let epoll = epoll.map_err(|errno| Error::Start(errno.into()))?;
        let answers: &'static Answers = Box::leak(Box::new(Answers(std::sync::OnceLock::new())));
        let objects: &'static Self = Box::leak(Box::new(Self {
            desk: Desk {
                answers,
                asked: Mutex::default(),
                next: AtomicU64::new(0),
                resident: AtomicU64::new(0),
            },
            budget_pages: AtomicU64::new(ram_bytes / PAGE_BYTES as u64),
            number: AtomicU32::new(1),
            table: Mutex::default(),
            epoll,
            pressed: (Mutex::new(false), Condvar::new()),
        }));
        answers.0.get_or_init(|| objects);
        for _ in 0..WORKERS {
            spawn("objects", move || objects.work())?;
        }
        spawn("objects-room", move || objects.keep_room())?;
        Ok(objects)
    }

    /// Makes an object of `pages` pages. A `temporary` one begins as zeros; its pager has only what
    /// is handed to it. It lives as long as somebody has it or maps it.
    ///
    /// # Errors
    /// When Linux gives no memory file or userfaultfd; when the pager refuses.
    pub fn create(
        &'static self,
        name: &str,
        pages: u64,
        pager: Arc<dyn Pager>,
        temporary: bool,
    ) -> Result<Arc<Object>, Error> {
        let system = |errno| Error::System {
            path: name.to_owned(),
            what: "make a memory object",
            errno,
        };
        let number = ObjectId(self.number.fetch_add(1, Ordering::Relaxed));
        let refused = |error| Error::Refused {
            path: name.to_owned(),
            error,
        };
        if pages == 0 {
            return Err(system(Errno::EINVAL));
        }
        pager.init(number, pages).map_err(refused)?;
        let short = name
            .bytes()
            .filter(|byte| *byte != 0)
            .take(200)
            .collect::<Vec<u8>>();
        let label = CString::new(short).unwrap_or_default();
        let made = Object::new(
            &label,
            number,
            pages,
            Arc::clone(&pager),
            temporary,
            &self.desk,
        );
        let object = Arc::new(made.map_err(|errno| {
            pager.terminate(number);
            system(errno)
        })?);
        lock(&self.table)
            .objects
            .insert(number, Arc::downgrade(&object));
        Ok(object)
    }

    /// A process that is to map objects hands its userfaultfd over.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub fn attach(&self, faults: OwnedFd) -> Result<SpaceId, Errno> {
        let attached = Arc::new(Attached {
            space: Arc::new(Space::new(faults)?),
            mappings: Mutex::default(),
        });
        let mut table = lock(&self.table);
        table.next += 1;
        let number = table.next;
        let data = EventData::new_u64(number);
        epoll::add(&self.epoll, &*attached.space, data, ONCE)
            .map_err(|errno| Errno(errno.raw_os_error()))?;
        table.spaces.insert(number, attached);
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
        let attached = self.attached(space.0).ok_or(MapError::NoSpace)?;
        if pages.is_empty() || pages.end.0 > object.pages() {
            return Err(MapError::Outside {
                pages: object.pages(),
                start: pages.start.0,
                end: pages.end.0,
            });
        }
        let bytes = pages.bytes() as usize;
        let end = address.checked_add(bytes);
        let mut mappings = lock(&attached.mappings);
        let overlaps = |other: &Arc<Mapping>| {
            let other_end = other.address + other.pages.bytes() as usize;
            end.is_some_and(|end| address < other_end && other.address < end)
        };
        let is_page = address.is_multiple_of(PAGE_BYTES) && end.is_some();
        if !is_page || mappings.iter().any(overlaps) {
            return Err(MapError::Address { address });
        }
        let mapping = Arc::new(Mapping {
            space: Arc::clone(&attached.space),
            object: Arc::clone(object),
            address,
            pages,
            streams: Mutex::default(),
        });
        object.add(Arc::clone(&mapping));
        mappings.push(mapping);
        attached.space.wake(address, bytes);
        Ok(())
    }

    /// The process has unmapped what was mapped at `address`. False when nothing was.
    pub fn unmap(&self, space: SpaceId, address: usize) -> bool {
        let Some(attached) = self.attached(space.0) else {
            return false;
        };
        let mut mappings = lock(&attached.mappings);
        let Some(at) = mappings.iter().position(|m| m.address == address) else {
            return false;
        };
        let mapping = mappings.swap_remove(at);
        mapping.object.remove(&mapping);
        true
    }

    /// The process is gone, or will map nothing any more.
    pub fn detach(&self, space: SpaceId) {
        let Some(attached) = lock(&self.table).spaces.remove(&space.0) else {
            return;
        };
        let _ = epoll::delete(&self.epoll, &*attached.space);
        for mapping in std::mem::take(&mut *lock(&attached.mappings)) {
            mapping.object.remove(&mapping);
        }
    }

    /// Changes what may be in memory. What is there beyond it leaves soon.
    pub fn set_ram(&self, ram_bytes: u64) {
        let pages = ram_bytes / PAGE_BYTES as u64;
        self.budget_pages.store(pages, Ordering::Relaxed);
        self.press();
    }

    /// Bytes in memory, of all objects.
    pub fn resident_bytes(&self) -> u64 {
        self.desk.resident.load(Ordering::Relaxed) * PAGE_BYTES as u64
    }

    /// Objects that live.
    pub fn objects(&self) -> Vec<Arc<Object>> {
        let mut table = lock(&self.table);
        table.objects.retain(|_, object| object.strong_count() > 0);
        table.objects.values().filter_map(Weak::upgrade).collect()
    }

    fn attached(&self, space: u64) -> Option<Arc<Attached>> {
        lock(&self.table).spaces.get(&space).cloned()
    }

    fn work(&'static self) {
        loop {
            let mut event = [MaybeUninit::uninit()];
            let Ok((events, _)) = epoll::wait(&self.epoll, &mut event, None) else {
                continue;
            };
            let Some(number) = events.first().map(|event| event.data.u64()) else {
                continue;
            };
            let Some(attached) = self.attached(number) else {
                continue;
            };
            let faults = attached.space.faults();
            let data = EventData::new_u64(number);
            // It may be gone meanwhile.
            let _ = epoll::modify(&self.epoll, attached.space.as_fd(), data, ONCE);
            let Ok(faults) = faults else {
                self.detach(SpaceId(number));
                continue;
            };
            for fault in faults.as_slice() {
                let found = lock(&attached.mappings)
                    .iter()
                    .find(|mapping| mapping.has(fault.address))
                    .cloned();
                // Where nothing is mapped yet, the thread is woken when it is.
                if let Some(mapping) = found {
                    mapping.fault(fault.address, fault.write);
                }
            }
            if self.excess() > 0 {
                self.press();
            }
            // Those who bring pages in faster than they leave wait here.
            while self.excess() > self.budget_pages.load(Ordering::Relaxed) / 8 && self.evict() {}
        }
    }

    /// Pages in memory above the budget.
    fn excess(&self) -> u64 {
        let resident = self.desk.resident.load(Ordering::Relaxed);
        resident.saturating_sub(self.budget_pages.load(Ordering::Relaxed))
    }

    fn press(&self) {
        *lock(&self.pressed.0) = true;
        self.pressed.1.notify_one();
    }

    /// Takes pages out while there are too many.
    fn keep_room(&'static self) {
        let (pressed, press) = &self.pressed;
        loop {
            let waited = press.wait_while(lock(pressed), |pressed| !*pressed);
            if let Ok(mut pressed) = waited {
                *pressed = false;
            }
            while self.excess() > 0 {
                if !self.evict() {
                    std::thread::sleep(TRY_AGAIN);
                }
            }
        }
    }

    /// Takes pages out of the object that has most, or of another when its pager takes none. False
    /// when none could go.
    fn evict(&self) -> bool {
        let mut all = self.objects();
        all.sort_by_cached_key(|object| std::cmp::Reverse(object.resident()));
        all.iter().any(|object| object.evict(BATCH) > 0)
    }
}

impl Later for Answers {
    fn supply(&self, id: u64, bytes: &[u8], _: Supplied) -> bool {
        self.take(id, |object, asked| {
            object.supplied(asked, &whole_pages(bytes))
        })
    }

    fn fail(&self, id: u64, error: PagerError) -> bool {
        self.take(id, |object, asked| object.failed(asked, error))
    }
}

impl Answers {
    fn take(&self, id: u64, act: impl FnOnce(&Object, super::object::Asked)) -> bool {
        let Some(objects) = self.0.get() else {
            return false;
        };
        let Some(asked) = lock(&objects.desk.asked).remove(&id) else {
            return false;
        };
        let object = lock(&objects.table)
            .objects
            .get(&asked.object)
            .and_then(Weak::upgrade);
        if let Some(object) = object {
            act(&object, asked);
        }
        true
    }
}
