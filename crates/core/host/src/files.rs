//! The files of a tree: what `farpage run --map` keeps for the programs that it runs.
//!
//! The tree's control block says what tasks have of them in their memory, and the budget is the
//! tree's. They live in the supervisor, which has the tasks' userfaultfds: a fault takes one change
//! of processes, and no thread in the program.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};

use farpage_object::maps::{MAPPED_MAX, PATH_MAX, Word};
use farpage_object::{Control, PAGE_BYTES, PageRange, Pager};
use farpage_sys::Errno;
use farpage_sys::file::Fd;
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::objects::spawn;
use crate::room::{Room, Tree};
use crate::tasks::hear;
use crate::{Error, Object, Objects};

/// Pages that programs said they will want, and that were not asked for yet: so many words. More
/// are not heard.
const SOON_MAX: usize = 256;
/// Mode of a program that is only read.
const EXECUTABLE: u32 = 0o555;

/// A file that the tree is to find.
pub struct Request {
    /// Absolute path, without `.`, `..` or doubled slashes.
    pub path: String,
    /// The same file by another path.
    pub also: Option<String>,
    /// Its size.
    pub bytes: u64,
    /// Has its contents.
    pub pager: Arc<dyn Pager>,
}

/// What became of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Figures {
    /// Its path.
    pub path: String,
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
}

/// Answers for a tree's mapped files until the process ends.
pub struct Files {
    pub(crate) objects: &'static Objects,
    pub(crate) all: Vec<Arc<Object>>,
}

/// Files of a tree in which no task is yet: more can be added.
pub struct Opening {
    control: &'static Control,
    objects: &'static Objects,
    all: Vec<Arc<Object>>,
}

impl Opening {
    /// No files yet.
    ///
    /// # Errors
    /// As [`Objects::in_tree`].
    pub fn new(control: &'static Control) -> Result<Self, Error> {
        let objects = Objects::in_tree(control)?;
        let all = Vec::new();
        Ok(Self {
            control,
            objects,
            all,
        })
    }

    /// Adds a file; returns its number.
    ///
    /// # Errors
    /// Why not.
    pub fn add(&mut self, request: Request) -> Result<usize, Error> {
        if self.all.len() == MAPPED_MAX {
            return Err(Error::TooMany);
        }
        let object = make(self.control, self.objects, request)?;
        self.all.push(object);
        Ok(self.all.len() - 1)
    }

    /// The memory object of a file.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn object(&self, number: usize) -> &Arc<Object> {
        &self.all[number]
    }

    /// The file is a program: `before_start` stay in memory once they are there. Linux itself reads
    /// them when it executes it, and what it does not find there are zeros to it: who calls this has
    /// them brought in before any task starts.
    ///
    /// # Errors
    /// When they are too many for the budget.
    ///
    /// # Panics
    /// When there is no such file.
    pub fn is_executable(&self, number: usize, before_start: &[PageRange]) -> Result<(), Error> {
        let object = &self.all[number];
        let refused = |what, errno| Error::System {
            path: object.name().to_owned(),
            what,
            errno,
        };
        for pages in before_start {
            let wired = object.wire(*pages);
            wired.map_err(|_| refused("keep its first pages in memory", Errno::ENOMEM))?;
        }
        rustix::fs::fchmod(object.file(), Mode::from_raw_mode(EXECUTABLE))
            .map_err(|errno| refused("make it executable", Errno(errno.raw_os_error())))?;
        let entry = &self.control.maps.files[number];
        entry.executable.store(true, Ordering::Release);
        Ok(())
    }

    /// Starts to answer for the files. Also returns the end of the socket that tasks are to have:
    /// this process must not keep it, so that tasks notice its end.
    ///
    /// # Errors
    /// Without threads or descriptors.
    pub fn start(self) -> Result<(&'static Files, OwnedFd), Error> {
        let Self {
            control,
            objects,
            all,
        } = self;
        let flags = SocketFlags::CLOEXEC;
        let (own, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(|errno| Error::Start(errno.into()))?;
        let files: &'static Files = Box::leak(Box::new(Files { objects, all }));
        let (soon, words) = mpsc::sync_channel(SOON_MAX);
        spawn("maps-words", move || hear(control, objects, &own, &soon))?;
        spawn("maps-soon", move || {
            words.iter().for_each(|word| files.soon(word));
        })?;
        let count = &control.maps.count;
        count.store(files.all.len() as u32, Ordering::Release);
        Ok((files, theirs))
    }
}

impl Files {
    /// Makes the files and starts to answer for them, as [`Opening::start`].
    ///
    /// # Errors
    /// Why not.
    pub fn start(
        control: &'static Control,
        requests: Vec<Request>,
    ) -> Result<(&'static Self, OwnedFd), Error> {
        let mut opening = Opening::new(control)?;
        for request in requests {
            opening.add(request)?;
        }
        opening.start()
    }

    /// The memory files, in the order of the requests.
    pub fn descriptors(&self) -> Vec<Fd> {
        self.all.iter().map(|file| file.descriptor()).collect()
    }

    /// What became of each file.
    pub fn figures(&self) -> Vec<Figures> {
        self.all.iter().map(|file| figures(file)).collect()
    }

    pub(crate) fn tree(&self) -> &Tree {
        match &self.objects.room {
            Room::Tree(tree) => tree,
            Room::Own(_) => unreachable!("made for a tree"),
        }
    }

    /// Somebody will want pages.
    fn soon(&self, word: Word) {
        let Some(file) = self.all.get(word.which as usize) else {
            return;
        };
        let most = self.tree().budget.floor();
        let end = word.first.saturating_add(word.pages.min(most));
        let (mut at, end) = (word.first, end.min(file.pages()));
        while at < end {
            let window = self.objects.room.window(self.objects);
            let Some(pages) = file.want_soon(PageRange::new(at, end), window) else {
                break;
            };
            at = pages.end.0;
            self.objects.room.charge(pages.pages(), self.objects);
            file.request_soon(pages);
        }
    }
}

fn make(
    control: &Control,
    objects: &'static Objects,
    request: Request,
) -> Result<Arc<Object>, Error> {
    let path = request.path;
    let names = [path.as_str(), request.also.as_deref().unwrap_or("")];
    if let Some(long) = names.iter().find(|name| name.len() > PATH_MAX) {
        return Err(Error::Path((*long).to_string()));
    }
    let object = objects.make(&path, request.bytes, request.pager, false, None)?;
    let identity = object.identity().map_err(|errno| Error::System {
        path: path.clone(),
        what: "look at a memory file",
        errno,
    })?;
    // Objects are numbered from 0 on, as the files are there.
    let entry = &control.maps.files[object.number().0 as usize];
    for (to, name) in entry.paths.iter().zip(names) {
        to.set(name.as_bytes());
    }
    entry.bytes.store(request.bytes, Ordering::Relaxed);
    entry.device.store(identity.0, Ordering::Relaxed);
    entry.inode.store(identity.1, Ordering::Relaxed);
    Ok(object)
}

fn figures(file: &Object) -> Figures {
    let bytes = |pages: u64| pages * PAGE_BYTES as u64;
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let counters = file.counters();
    Figures {
        path: file.name().to_owned(),
        resident_bytes: bytes(file.resident()),
        resident_max_bytes: bytes(file.resident_max()),
        page_ins: of(&counters.page_ins),
        brought_bytes: bytes(of(&counters.brought)),
        ahead_bytes: bytes(of(&counters.ahead)),
    }
}
