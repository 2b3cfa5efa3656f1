//! One file: its memory, its pager, its pages, and who waits for them.

use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use farpage_abi::maps::{MAPPED_MAX, PATH_MAX};
use farpage_abi::{Control, ObjectId, PAGE_BYTES};
use farpage_object::Shared;
use farpage_pagers::{Pager, PagerError};
use farpage_source::{Counts, Options, Source, SourcePager};
use farpage_sys::linux::general as g;
use farpage_sys::mapped::Mapped;
use farpage_sys::{Errno, file, uffd};

use crate::host::lock;
use crate::tasks::Task;

/// A file that the tree is to find.
pub struct Request {
    /// Absolute path, without `.`, `..` or doubled slashes.
    pub path: String,
    /// The same file by another path.
    pub also: Option<String>,
    /// What it holds.
    pub source: Arc<dyn Source>,
    /// How long it is tried again when it is far and fails. `None`: the default of pagers.
    pub deadline: Option<Duration>,
}

/// Why there can be no host.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// More files than can be.
    #[error("cannot map more than {MAPPED_MAX} files at a time; leave some --map out")]
    TooMany,
    /// A path that is too long.
    #[error("cannot map '{0}': the path is longer than {PATH_MAX} bytes; use a shorter one")]
    Path(String),
    /// Linux refuses something.
    #[error("cannot map '{path}': Linux refuses to {what} ({errno}); see farpage doctor")]
    System {
        /// Of the file.
        path: String,
        /// Which step.
        what: &'static str,
        /// Why.
        errno: Errno,
    },
    /// The source does not want to be used.
    #[error("cannot map '{path}': {error}")]
    Refused {
        /// Of the file.
        path: String,
        /// What its pager says.
        error: PagerError,
    },
    /// No thread or descriptor.
    #[error("cannot answer for mapped files: {0}; raise the limits on processes and open files")]
    Start(std::io::Error),
}

/// What became of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Its path.
    pub path: String,
    /// What messages call its source.
    pub source: String,
    /// Its size.
    pub bytes: u64,
    /// Bytes in memory now.
    pub resident_bytes: u64,
    /// Bytes in memory at most.
    pub resident_max_bytes: u64,
    /// Requests for pages that somebody waited for.
    pub page_ins: u64,
    /// Bytes brought into memory, over all.
    pub brought_bytes: u64,
    /// Those of them that nobody had waited for when they were asked for.
    pub ahead_bytes: u64,
    /// What that took of its source.
    pub counts: Counts,
}

pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) bytes: u64,
    pub(crate) mapped: Mapped,
    pub(crate) pager: SourcePager,
    pub(crate) cache: Mutex<Shared<Waiter>>,
    pub(crate) page_ins: AtomicU64,
    pub(crate) brought_pages: AtomicU64,
    pub(crate) ahead_pages: AtomicU64,
    /// Somebody was told that reading failed.
    pub(crate) told: AtomicBool,
}

/// A thread that waits for a page.
pub(crate) struct Waiter {
    pub(crate) task: Arc<Task>,
    pub(crate) address: u64,
    /// The agent reads there for its program: a failure is an error, not the end.
    pub(crate) reading: bool,
}

impl File {
    pub(crate) fn new(control: &Control, number: usize, request: Request) -> Result<Self, Error> {
        let path = request.path;
        let entry = &control.maps.files[number];
        let names = [Some(&path), request.also.as_ref()];
        for (to, name) in entry.paths.iter().zip(names) {
            let name = name.map_or("", String::as_str);
            if name.len() > PATH_MAX {
                return Err(Error::Path(name.to_string()));
            }
            to.set(name.as_bytes());
        }
        let system = |what| {
            let path = path.clone();
            move |errno| Error::System { path, what, errno }
        };
        let device = file::open(c"/dev/userfaultfd", g::O_RDWR | g::O_CLOEXEC, 0).ok();
        let opened = uffd::open(device);
        device.into_iter().for_each(file::close);
        let (uffd, _) = opened.map_err(system("give a userfaultfd"))?;
        uffd.enable(0).map_err(system("set a userfaultfd up"))?;
        let bytes = request.source.size();
        let name = CString::new(path.rsplit('/').next().unwrap_or_default());
        let name = name.unwrap_or_default();
        let short: Vec<u8> = name.as_bytes().iter().take(200).copied().collect();
        let name = CString::new(short).unwrap_or_default();
        let mapped = Mapped::create(&name, bytes, uffd).map_err(system("make a memory file"))?;
        let identity = mapped.identity().map_err(system("look at a memory file"))?;
        entry.bytes.store(bytes, Ordering::Relaxed);
        entry.device.store(identity.0, Ordering::Relaxed);
        entry.inode.store(identity.1, Ordering::Relaxed);
        let default = Options::default();
        let options = Options {
            deadline: request.deadline.unwrap_or(default.deadline),
            ..default
        };
        let pager = SourcePager::new(request.source, &options);
        let pages = bytes.div_ceil(PAGE_BYTES as u64);
        if let Err(error) = pager.init(id(number), pages) {
            return Err(Error::Refused { path, error });
        }
        Ok(Self {
            bytes,
            mapped,
            pager,
            cache: Mutex::new(Shared::new(pages, false)),
            page_ins: AtomicU64::new(0),
            brought_pages: AtomicU64::new(0),
            ahead_pages: AtomicU64::new(0),
            told: AtomicBool::new(false),
            path,
        })
    }

    pub(crate) fn pages(&self) -> u64 {
        self.bytes.div_ceil(PAGE_BYTES as u64)
    }

    pub(crate) fn figures(&self) -> Figures {
        let bytes = |pages: u64| pages * PAGE_BYTES as u64;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let cache = self.lock();
        Figures {
            path: self.path.clone(),
            source: self.pager.source().name().to_owned(),
            bytes: self.bytes,
            resident_bytes: bytes(cache.resident()),
            resident_max_bytes: bytes(cache.resident_max()),
            page_ins: of(&self.page_ins),
            brought_bytes: bytes(of(&self.brought_pages)),
            ahead_bytes: bytes(of(&self.ahead_pages)),
            counts: self.pager.counts(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Shared<Waiter>> {
        lock(&self.cache)
    }
}

impl Waiter {
    pub(crate) fn wake(&self) {
        wake(&self.task, self.address);
    }

    /// Makes the access fail. False where Linux is too old for that.
    pub(crate) fn poison(&self) -> bool {
        let refused = self.task.uffd().refuse(self.address as usize, PAGE_BYTES);
        self.wake();
        refused.is_ok()
    }
}

pub(crate) fn wake(task: &Task, address: u64) {
    task.uffd().wake(address as usize, PAGE_BYTES);
}

pub(crate) fn id(file: usize) -> ObjectId {
    ObjectId(file as u32)
}
