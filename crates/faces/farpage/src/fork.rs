//! Fork: a child has none of the kernel's threads and none of its mappings. It gets new ones, at
//! the same addresses, before the program's own code runs in it.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use farpage_source::open::{Layered, OpenSourceError, OpenedSource, Overlay, Staged, open_source};
use farpage_source::{Reach, Source, SourceError};
use farpage_sys::fork::AtFork;

use crate::load::Plan;
use crate::memory::Inner;
use crate::{Error, Mode, OpenOptions, Places, kernels};

/// All memories of this process.
static ALL: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

/// What is held over a fork, so that the child finds it whole.
struct Held {
    all: MutexGuard<'static, Vec<Weak<Inner>>>,
    kernels: kernels::Forked,
    memories: Vec<(Arc<Inner>, Ready)>,
}

/// What was written and is in no source, or what kept pages from being written back.
type Ready = Result<Option<Layered>, Error>;

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

pub(crate) fn register(memory: &Arc<Inner>) {
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|other| other.strong_count() > 0);
    all.push(Arc::downgrade(memory));
}

/// Has no file be seen at `addresses`, but the memories themselves.
pub(crate) fn uncover(addresses: Range<usize>) {
    let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let memories: Vec<Arc<Inner>> = all.iter().filter_map(Weak::upgrade).collect();
    drop(all);
    for memory in memories {
        memory.uncover_within(&addresses);
    }
}

static FORKS: AtFork = AtFork::new(prepare, parent, child);

/// Has the functions below called at every fork, from the first memory on.
pub(crate) fn watch() {
    FORKS.begin();
}

extern "C" fn prepare() {
    let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    let memories: Vec<Arc<Inner>> = all.iter().filter_map(Weak::upgrade).collect();
    let memories = memories.into_iter().map(|memory| {
        let ready = memory.before_fork();
        (memory, ready)
    });
    let memories = memories.collect();
    let held = Held {
        all,
        kernels: kernels::hold(),
        memories,
    };
    HELD.with(|place| *place.borrow_mut() = Some(held));
}

extern "C" fn parent() {
    let held = HELD.with(|place| place.borrow_mut().take());
    // Memories that went away meanwhile do so without the locks.
    let memories = held.map(|held| held.memories);
    drop(memories);
}

extern "C" fn child() {
    FORKS.in_child();
    let Some(Held {
        all,
        mut kernels,
        memories,
    }) = HELD.with(|place| place.borrow_mut().take())
    else {
        return;
    };
    kernels.forget();
    drop((all, kernels));
    for (memory, ready) in memories {
        if let Err(error) = ready.and_then(|frozen| memory.after_fork(frozen)) {
            // Not `eprintln`: another thread of the parent may have held its lock.
            let text = format!(
                "farpage: a child of fork cannot use '{}': {error}\n",
                memory.name
            );
            farpage_sys::file::write_message(farpage_sys::file::Fd(2), text.as_bytes());
        }
    }
}

/// How a child of fork comes by the source.
pub(crate) enum Reopen {
    /// It is used as it is: nothing of it is locked or waits.
    Same,
    /// By its addresses, when it is first read; it must have this version.
    Address {
        places: Places,
        version: Option<String>,
        plan: Plan,
    },
    /// By its address, in the version on top of which it was written to when the fork came.
    Staged {
        places: Places,
        staged: Arc<Staged>,
        plan: Plan,
    },
}

impl Reopen {
    /// Of the source that was opened at `places`, with `plan` applied. Local files as they are can
    /// be read by all who have their descriptors.
    pub(crate) fn of(places: &Places, opened: &OpenedSource, plan: Plan) -> Self {
        let places = places.absolute();
        match opened {
            OpenedSource::File(_) => Self::Same,
            OpenedSource::Staged(staged) => Self::Staged {
                places,
                staged: Arc::clone(staged),
                plan,
            },
            OpenedSource::Other(source) => Self::Address {
                places,
                version: source.version(),
                plan,
            },
        }
    }

    /// The object in a store that is written to.
    pub(crate) fn staged(&self) -> Option<&Arc<Staged>> {
        match self {
            Self::Staged { staged, .. } => Some(staged),
            Self::Same | Self::Address { .. } => None,
        }
    }

    /// In a child, what stands for the parent's `source`.
    pub(crate) fn in_child(
        &self,
        source: &Arc<dyn Source>,
        options: &OpenOptions,
    ) -> Arc<dyn Source> {
        let lazy = |places: &Places, version, plan, mode| {
            Arc::new(Lazy {
                name: source.name().to_owned(),
                size: source.size(),
                reach: source.reach(),
                places: places.clone(),
                version,
                plan,
                options: OpenOptions {
                    mode,
                    size: None,
                    ..options.clone()
                },
                opened: OnceLock::new(),
                failed: Mutex::new(None),
                failures: AtomicU64::new(0),
            })
        };
        match self {
            Self::Same => Arc::clone(source),
            // Of an object that is not there yet all is known.
            Self::Staged { .. } if source.reach() == Reach::Near => Arc::clone(source),
            Self::Staged { places, .. } => {
                lazy(places, source.version(), Plan::default(), Mode::Read)
            }
            Self::Address {
                places,
                version,
                plan,
            } => lazy(places, version.clone(), plan.clone(), options.mode),
        }
    }

    /// In a child, what is mapped of what was written on top of a source.
    pub(crate) fn mapped(&self, overlay: Arc<Overlay>) -> Arc<dyn Source> {
        match self {
            Self::Staged { plan, .. } => plan.apply(overlay),
            Self::Same | Self::Address { .. } => overlay,
        }
    }
}

/// A source that is opened when it is first read.
struct Lazy {
    name: String,
    size: u64,
    reach: Reach,
    places: Places,
    version: Option<String>,
    plan: Plan,
    options: OpenOptions,
    opened: OnceLock<Arc<dyn Source>>,
    /// Held by the one who opens it: how that failed, if it did.
    failed: Mutex<Option<SourceError>>,
    failures: AtomicU64,
}

impl Lazy {
    /// A failure is for those who ask now, and who wait for it: it may pass.
    fn source(&self) -> Result<&Arc<dyn Source>, SourceError> {
        if let Some(source) = self.opened.get() {
            return Ok(source);
        }
        let seen = self.failures.load(Ordering::Acquire);
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(source) = self.opened.get() {
            return Ok(source);
        }
        if let Some(error) = failed.as_ref()
            && self.failures.load(Ordering::Relaxed) != seen
        {
            return Err(error.clone());
        }
        let source = self.open().inspect_err(|error| {
            *failed = Some(error.clone());
            self.failures.fetch_add(1, Ordering::Release);
        })?;
        Ok(self.opened.get_or_init(|| source))
    }

    fn open(&self) -> Result<Arc<dyn Source>, SourceError> {
        let source = match open_source(self.places.clone(), &self.options) {
            Ok(source) => source,
            Err(OpenSourceError::Source(error)) => return Err(error),
            Err(error) => {
                return Err(SourceError::Unsupported {
                    name: self.name.clone(),
                    cause: error.to_string(),
                    remedy: "open it again".into(),
                });
            }
        };
        let version = source.version();
        let source = self.plan.apply(source);
        if version == self.version && source.size() == self.size {
            return Ok(source);
        }
        let text =
            |version: Option<String>, size: u64| version.unwrap_or_else(|| format!("{size} bytes"));
        Err(SourceError::Changed {
            name: self.name.clone(),
            was: text(self.version.clone(), self.size),
            is: text(version, source.size()),
            remedy: "open it again",
        })
    }
}

impl Source for Lazy {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn version(&self) -> Option<String> {
        self.version.clone()
    }

    fn reach(&self) -> Reach {
        self.reach
    }

    fn is_at_hand(&self, offset: u64, bytes: u64) -> bool {
        self.opened
            .get()
            .is_some_and(|source| source.is_at_hand(offset, bytes))
    }

    fn is_in_memory(&self, offset: u64, bytes: u64) -> bool {
        self.opened
            .get()
            .is_some_and(|source| source.is_in_memory(offset, bytes))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        self.source()?.read_at(offset, buffer)
    }
}
