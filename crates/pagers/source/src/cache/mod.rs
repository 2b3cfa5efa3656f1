//! Copies on the disk of what was fetched from far away.

mod folder;
mod kept;
mod layout;
mod object;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use folder::Folder;
use kept::Kept;
pub(crate) use layout::Key;
use object::Object;

use crate::file::opening;
use crate::{Source, SourceError};

/// A folder in which sources keep what they have fetched, so that it is fetched once.
///
/// Any number of processes share one. What is read is checked: bytes that were damaged on the disk,
/// or not written whole when a process or the machine died, are fetched again. A disk that is full
/// or fails costs fetches and never a read. When the limit is reached, the objects that were not
/// used for longest are thrown out whole; one that another process has used within a minute stays,
/// and what has no room then is not kept.
#[derive(Clone)]
pub struct Cache {
    shared: Arc<Shared>,
}

struct Shared {
    folder: Folder,
    counts: Counts,
    /// A child of fork shares the lock with its parent, which then keeps neither out.
    process: u32,
}

#[derive(Default)]
struct Counts {
    hit_bytes: AtomicU64,
    fetched_bytes: AtomicU64,
    not_kept_bytes: AtomicU64,
    damaged_pages: AtomicU64,
}

/// What a cache holds, and what this process has had of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheUsage {
    /// Bytes of all objects. The sums of their pages take a thousandth more on the disk.
    pub bytes: u64,
    /// Objects of which something is there.
    pub objects: usize,
    /// What `bytes` stays below.
    pub limit_bytes: u64,
    /// Bytes that this process read from it.
    pub hit_bytes: u64,
    /// Bytes that this process fetched for it.
    pub fetched_bytes: u64,
    /// Those of them that were not kept: the limit was reached, or the disk was full.
    pub not_kept_bytes: u64,
    /// Pages of 4096 bytes that this process found damaged, and fetched again.
    pub damaged_pages: u64,
}

fn unusable(folder: &Path, error: &io::Error) -> SourceError {
    let name = folder.display().to_string();
    match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            SourceError::Denied {
                name,
                cause: error.to_string(),
                remedy: "give a folder for the cache that you may write to",
            }
        }
        _ => SourceError::Unsupported {
            name,
            cause: format!("no cache can be kept there: {error}"),
            remedy: "give another folder".into(),
        },
    }
}

impl Cache {
    /// Uses `folder`, and makes it if it is not there. It shall take `limit_bytes` at most.
    ///
    /// Processes that share it may give different limits; each makes room for itself by its own.
    ///
    /// # Errors
    /// [`SourceError::Denied`], [`SourceError::Unsupported`] when the folder cannot be made or written
    /// to, or its file system has no locks.
    pub fn open(folder: &Path, limit_bytes: u64) -> Result<Self, SourceError> {
        let made = Folder::open(folder, limit_bytes);
        let folder = made.map_err(|error| unusable(folder, &error))?;
        Ok(Self {
            shared: Arc::new(Shared {
                folder,
                counts: Counts::default(),
                process: std::process::id(),
            }),
        })
    }

    /// It, or in a child of fork another handle of the same folder.
    fn of_this_process(&self) -> Result<Self, SourceError> {
        if self.shared.process == std::process::id() {
            return Ok(self.clone());
        }
        let folder = &self.shared.folder;
        Self::open(&folder.path, folder.limit)
    }

    /// Where caches are when nobody says otherwise: `$FARPAGE_CACHE`, `$XDG_CACHE_HOME/farpage` or
    /// `~/.cache/farpage`. `None` where none of the variables is set.
    pub fn default_folder() -> Option<PathBuf> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let below = |name, rest| Some(PathBuf::from(variable(name)?).join(rest));
        variable("FARPAGE_CACHE")
            .map(PathBuf::from)
            .or_else(|| below("XDG_CACHE_HOME", "farpage"))
            .or_else(|| below("HOME", ".cache/farpage"))
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.shared.folder.path
    }

    /// `inner`, with what is read of it kept here. A source without a version, one that is
    /// writable, and one of more than 16 TiB is returned as it is; so it is when its file cannot
    /// be made.
    pub fn keep(&self, inner: Arc<dyn Source>) -> Arc<dyn Source> {
        let Some(key) = key_of(&*inner) else {
            return inner;
        };
        let Ok(Self { shared }) = self.of_this_process() else {
            return inner;
        };
        let held = shared.folder.hold();
        let open = |held| Object::open(&held, key, inner.size(), shared.clone()).ok();
        let object = held.and_then(open);
        match object {
            Some(object) => Arc::new(Kept::new(shared.clone(), inner, object)),
            None => inner,
        }
    }

    /// The bytes of `source` that are here, in order; without reading them to see whether they are
    /// damaged.
    pub fn resident(&self, source: &dyn Source) -> Vec<Range<u64>> {
        let file = key_of(source).map(|key| File::open(self.shared.folder.path_of(key)));
        match file {
            Some(Ok(file)) => object::resident(&file, source.size()),
            _ => Vec::new(),
        }
    }

    /// How much there is.
    ///
    /// # Errors
    /// [`SourceError::Io`] when the folder cannot be read, or another process holds its lock.
    pub fn usage(&self) -> Result<CacheUsage, SourceError> {
        let (bytes, objects) = self.under_lock(|held| held.usage())?;
        let counts = &self.shared.counts;
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Ok(CacheUsage {
            bytes,
            objects,
            limit_bytes: self.shared.folder.limit,
            hit_bytes: read(&counts.hit_bytes),
            fetched_bytes: read(&counts.fetched_bytes),
            not_kept_bytes: read(&counts.not_kept_bytes),
            damaged_pages: read(&counts.damaged_pages),
        })
    }

    /// Throws everything out. Programs that use it go on, and fetch what they need again.
    ///
    /// # Errors
    /// [`SourceError::Io`] when the folder cannot be written to, or another process holds its lock.
    pub fn clear(&self) -> Result<(), SourceError> {
        self.under_lock(|held| held.clear())
    }

    fn under_lock<T>(
        &self,
        act: impl FnOnce(&folder::Held<'_>) -> std::io::Result<T>,
    ) -> Result<T, SourceError> {
        let own = self.of_this_process()?;
        let folder = &own.shared.folder;
        let name = || folder.path.display().to_string();
        let held = folder.hold_patiently().ok_or_else(|| SourceError::Io {
            name: name(),
            what: "lock",
            offset: 0,
            cause: "another process holds the lock for long".into(),
            remedy: "see whether a program that uses it is stopped",
        })?;
        act(&held).map_err(|error| opening(&name(), &error))
    }
}

/// `None` for what cannot be kept.
fn key_of(source: &dyn Source) -> Option<Key> {
    let version = source.version()?;
    let fits = source.size() <= layout::SIZE_MAX && !source.is_writable();
    fits.then(|| Key::of(&source.identity(), &version, source.size()))
}
