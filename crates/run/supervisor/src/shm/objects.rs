//! The objects behind names, from their first mapping to the end of their last user.

use std::collections::HashMap;
use std::fs::{File, FileTimes};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use farpage_default_pager::DefaultPager;
use farpage_host::{Object, Objects, SpaceId};
use farpage_object::shm::{Ipc, Mark, Shm};
use farpage_object::{PAGE_BYTES, PageRange, Pager};
use farpage_sys::file::{self, Fd, Status};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, ipc, marks};

use super::SharedMemoryFigures;
use super::ledger::Ledger;
use super::names::{self, MadeName, Making};

const ENODATA: Errno = Errno(61);
const EALREADY: Errno = Errno(114);
/// `F_SEAL_WRITE` and `F_SEAL_FUTURE_WRITE`.
const UNWRITABLE: u32 = 0x8 | 0x10;
/// Pages of a file's first contents that are moved at a time.
const MOVED: usize = 64;

/// Everything of a run.
pub struct KeptObjects {
    objects: &'static Objects,
    pager: Arc<DefaultPager>,
    ledger: Ledger,
    /// The marks of this run's memory files.
    marks: &'static Shm,
    /// Files that were made in the run, by device and inode number, as long as somebody has them.
    files: HashMap<(u64, u64), MadeFile>,
    /// Segments that were made in the run.
    segments: HashMap<u32, Option<Arc<Object>>>,
    /// What else was.
    others: Vec<MadeName>,
    /// By their numbers.
    all: HashMap<u64, Weak<Object>>,
    made: u64,
    removed: u64,
    /// Memory files that could not become objects.
    left: u64,
}

struct MadeFile {
    /// The file, opened for this process alone.
    own: OwnedFd,
    contents: Contents,
}

/// Who has the pages of a file.
enum Contents {
    /// Linux, for ever: it is a semaphore.
    Linuxs,
    /// Linux, until the file is mapped.
    Written,
    /// Linux, until those who read or write them just now are done.
    Wanted,
    Object(Arc<Object>),
}

impl MadeFile {
    fn object(&self) -> Option<&Arc<Object>> {
        match &self.contents {
            Contents::Object(object) => Some(object),
            Contents::Linuxs | Contents::Written | Contents::Wanted => None,
        }
    }
}

fn number(fd: &OwnedFd) -> Fd {
    Fd(fd.as_raw_fd())
}

impl KeptObjects {
    pub fn new(
        objects: &'static Objects,
        pager: Arc<DefaultPager>,
        ledger: Ledger,
        marks: &'static Shm,
    ) -> Self {
        Self {
            objects,
            marks,
            pager,
            ledger,
            files: HashMap::new(),
            segments: HashMap::new(),
            others: Vec::new(),
            all: HashMap::new(),
            made: 0,
            removed: 0,
            left: 0,
        }
    }

    pub fn objects(&self) -> &'static Objects {
        self.objects
    }

    /// A task has made a file. The same open file as is kept here, which is one to read by, for
    /// Linux executes nothing that is open for writing, or with `writes` one to write by.
    pub fn made_file(&mut self, theirs: &OwnedFd, writes: bool) -> Result<OwnedFd, Errno> {
        let status = file::status(number(theirs))?;
        let link = format!("/proc/self/fd/{}", theirs.as_raw_fd());
        let path = std::fs::read_link(link).unwrap_or_default();
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        let open = |flags| file::own_again(number(theirs), flags);
        let flags = if writes { g::O_RDWR } else { g::O_RDONLY };
        let own = open(flags).or_else(|_| open(g::O_RDONLY))?;
        marks::claim(number(&own))?;
        self.ledger
            .note(&MadeName::File(status.device, status.inode));
        let contents = match name.starts_with(b"sem.") {
            true => Contents::Linuxs,
            false => Contents::Written,
        };
        let same = own.try_clone().map_err(|_| Errno::EMFILE)?;
        let file = MadeFile { own, contents };
        self.files.insert((status.device, status.inode), file);
        Ok(same)
    }

    /// A task has made a message queue.
    pub fn made_queue(&mut self, theirs: &OwnedFd) {
        let link = format!("/proc/self/fd/{}", theirs.as_raw_fd());
        let path = std::fs::read_link(link).unwrap_or_default();
        self.note(MadeName::Queue(path.to_string_lossy().into_owned()));
    }

    /// A task has made something of System V.
    pub fn made_ipc(&mut self, what: Ipc, number: u32) {
        if what == Ipc::Segment {
            self.segments.insert(number, None);
        }
        self.note(MadeName::Ipc(what, number));
    }

    fn note(&mut self, name: MadeName) {
        self.ledger.note(&name);
        self.others.push(name);
    }

    /// The object of a file; `only`: if there is one, or is to be one.
    pub fn of_file(&mut self, theirs: &OwnedFd, only: bool) -> Result<Arc<Object>, Errno> {
        let status = file::status(number(theirs))?;
        let key = (status.device, status.inode);
        if !self.files.contains_key(&key) {
            match self.is_memory_file(&status) {
                true => self.note_memory_file(theirs, key, only)?,
                false => return Err(is_of_another_run(theirs)),
            }
        }
        let made = self.files.get_mut(&key).ok_or(Errno::ENOENT)?;
        match &made.contents {
            Contents::Object(object) => return Ok(Arc::clone(object)),
            Contents::Linuxs => return Err(Errno::ENOENT),
            Contents::Written if only => return Err(ENODATA),
            Contents::Written | Contents::Wanted => {}
        }
        made.contents = Contents::Wanted;
        if marks::are_there(number(&made.own), self.marks.byte_of(Mark::Used)) {
            return Err(EALREADY);
        }
        let own = made.own.try_clone().map_err(|_| Errno::EMFILE)?;
        let object = self.make_of(own, self.is_memory_file(&status));
        if let Some(made) = self.files.get_mut(&key) {
            made.contents = match &object {
                Ok(object) => Contents::Object(Arc::clone(object)),
                Err(Errno::ENOENT) => Contents::Linuxs,
                Err(_) => Contents::Written,
            };
        }
        Ok(self.begin(object?))
    }

    /// An object that has the contents of a file, which loses them. `ENOENT` for one that is
    /// executed just now.
    fn make_of(&self, own: OwnedFd, is_memory: bool) -> Result<Arc<Object>, Errno> {
        let name = if is_memory { "memfd" } else { "shm" };
        let writable = match file::own_again(number(&own), g::O_RDWR) {
            Err(Errno::ETXTBSY) => return Err(Errno::ENOENT),
            writable => writable.ok().map(File::from),
        };
        let modified = writable
            .as_ref()
            .and_then(|file| file.metadata().ok()?.modified().ok());
        let from = own.try_clone().map_err(|_| Errno::EMFILE)?;
        let pager = Arc::clone(&self.pager) as Arc<dyn Pager>;
        let object = self.objects.create_sized_by(name, own, pager);
        let object = object.map_err(|_| Errno::ENOMEM)?;
        take_contents(&from, writable.as_ref(), &object)?;
        let has_bytes = file::status(number(&from))?.bytes > 0;
        if let Some(writable) = &writable
            && has_bytes
            && !is_memory
        {
            // Archivers take a file without blocks for one hole. There may be no room for one.
            let _ = file::allocate(Fd(writable.as_raw_fd()), 0, 1);
        }
        if let (Some(writable), Some(modified)) = (writable, modified) {
            // The program has not written to it, and it looks as old as it is.
            let _ = writable.set_times(FileTimes::new().set_modified(modified));
        }
        Ok(object)
    }

    fn is_memory_file(&self, status: &Status) -> bool {
        status.device == self.marks.memory_device.load(Ordering::Relaxed)
    }

    /// Notes a memory file, of which there will be an object.
    fn note_memory_file(
        &mut self,
        theirs: &OwnedFd,
        key: (u64, u64),
        only: bool,
    ) -> Result<(), Errno> {
        let byte = |mark| self.marks.byte_of(mark);
        // One that is open for writing could not be executed.
        let own = file::own_again(number(theirs), g::O_RDONLY).map_err(|_| Errno::ENOENT)?;
        if only || !marks::are_there(number(&own), byte(Mark::Made)) {
            return Err(Errno::ENOENT);
        }
        // From here on who maps it looks for an object first.
        marks::put(number(&own), byte(Mark::Object))?;
        let is_linuxs = marks::are_there(number(&own), byte(Mark::Linuxs));
        if is_linuxs || file::seals(number(&own)) & UNWRITABLE != 0 {
            if !marks::are_there(number(&own), byte(Mark::Counted)) {
                self.left += 1;
                let _ = marks::put(number(theirs), byte(Mark::Counted));
            }
            return Err(Errno::ENOENT);
        }
        let contents = Contents::Wanted;
        self.files.insert(key, MadeFile { own, contents });
        Ok(())
    }

    /// Nobody has the object of a file mapped.
    pub fn is_idle(&self, theirs: &OwnedFd) -> Result<(), Errno> {
        let status = file::status(number(theirs))?;
        let made = self.files.get(&(status.device, status.inode));
        let object = made.and_then(MadeFile::object);
        match object.is_some_and(|object| object.is_mapped()) {
            true => Err(Errno::EBUSY),
            false => Ok(()),
        }
    }

    /// The object of a segment.
    pub fn of_segment(&mut self, number: u32, bytes: u64) -> Result<Arc<Object>, Errno> {
        match self.segments.get(&number) {
            None => return Err(Errno::ENOENT),
            Some(Some(object)) => return Ok(Arc::clone(object)),
            Some(None) => {}
        }
        let object = self.new_object("segment", bytes)?;
        self.segments.insert(number, Some(Arc::clone(&object)));
        Ok(object)
    }

    /// An object without a name.
    pub fn new_object(&mut self, name: &str, bytes: u64) -> Result<Arc<Object>, Errno> {
        let pages = bytes.div_ceil(PAGE_BYTES as u64);
        let pager = Arc::clone(&self.pager) as Arc<dyn Pager>;
        let object = self.objects.create(name, pages, pager, true);
        Ok(self.begin(object.map_err(|_| Errno::ENOMEM)?))
    }

    fn begin(&mut self, object: Arc<Object>) -> Arc<Object> {
        self.made += 1;
        let weak = Arc::downgrade(&object);
        self.all.insert(u64::from(object.number().0), weak);
        object
    }

    /// An object of a cluster is used in this run.
    pub fn begin_shared(&mut self, object: &Arc<Object>) {
        self.begin(Arc::clone(object));
    }

    /// The object with a number.
    pub fn object(&self, number: u64) -> Result<Arc<Object>, Errno> {
        let object = self.all.get(&number).and_then(Weak::upgrade);
        object.ok_or(Errno::EINVAL)
    }

    /// The file has another size now.
    pub fn look_at_size(&mut self, theirs: &OwnedFd) -> Result<(), Errno> {
        let status = file::status(number(theirs))?;
        let key = (status.device, status.inode);
        let file = self.files.get(&key).ok_or(Errno::ENOENT)?;
        file.object().ok_or(ENODATA)?.look_at_size();
        Ok(())
    }

    /// Where a task has mapped what.
    pub fn map(
        &self,
        space: SpaceId,
        object: u64,
        at: u64,
        first: u64,
        bytes: u64,
    ) -> Result<(), Errno> {
        let object = self.object(object)?;
        let pages = PageRange::new(first, first + bytes / PAGE_BYTES as u64);
        let mapped = self.objects.map(space, &object, at as usize, pages);
        mapped.map_err(|_| Errno::EINVAL)
    }

    /// A task has ended when it was about to make something: what there is of it is removed.
    pub fn look_for(&mut self, making: Making) {
        for found in making.find() {
            let is_known = match &found.name {
                MadeName::File(device, inode) => self.files.contains_key(&(*device, *inode)),
                MadeName::Ipc(Ipc::Segment, number) => {
                    let huge = MadeName::Ipc(Ipc::HugeSegment, *number);
                    self.others.contains(&found.name) || self.others.contains(&huge)
                }
                name => self.others.contains(name),
            };
            if !is_known && found.remove() {
                self.removed += 1;
            }
        }
    }

    /// Lets go of what nobody has any more. True when something is left that may go later.
    pub fn tidy(&mut self) -> bool {
        let made = self.marks.byte_of(Mark::Made);
        self.files
            .retain(|_, file| marks::are_there(number(&file.own), made) || !is_over(file));
        self.segments.retain(|number, _| !ipc::is_gone(*number));
        self.all.retain(|_, object| object.strong_count() > 0);
        !self.files.is_empty() || !self.segments.is_empty()
    }

    /// Removes the names that are left.
    pub fn end(&mut self) -> SharedMemoryFigures {
        self.tidy();
        let of_file = |file: &MadeFile| {
            let status = file::status(number(&file.own)).ok()?;
            (!self.is_memory_file(&status)).then_some(MadeName::File(status.device, status.inode))
        };
        let files: Vec<MadeName> = self.files.values().filter_map(of_file).collect();
        let removed = names::remove(files.iter().chain(&self.others));
        self.files.clear();
        self.segments.clear();
        self.others.clear();
        self.ledger.end();
        let paged = self.objects.paged();
        SharedMemoryFigures {
            objects: self.made,
            resident_max_bytes: self.objects.charged_max_bytes(),
            paged_out_bytes: paged.taken * PAGE_BYTES as u64,
            paged_in_bytes: paged.brought * PAGE_BYTES as u64,
            faults: paged.faults,
            stall_ns: paged.stall_ns,
            stall_ns_max: paged.stall_ns_max,
            removed: self.removed + removed,
            left: self.left,
        }
    }
}

/// Nobody can get at the file any more.
fn is_over(made: &MadeFile) -> bool {
    let own = number(&made.own);
    let is_mapped = made.object().is_some_and(|object| object.is_mapped());
    let is_unlinked = file::status(own).is_ok_and(|status| status.links == 0);
    !is_mapped && is_unlinked && file::is_alone(own) == Ok(true)
}

/// What a file that was not made in this run is.
fn is_of_another_run(theirs: &OwnedFd) -> Errno {
    match marks::is_claimed(number(theirs)) {
        true => Errno::EBUSY,
        false => Errno::ENOENT,
    }
}

/// What was written to the file becomes the first contents of its object, and leaves the file where
/// that can be written to. Nobody writes to it meanwhile: tasks mark it while they do
/// (`Mark::Used`), and find the object from now on.
fn take_contents(own: &OwnedFd, writable: Option<&File>, object: &Object) -> Result<(), Errno> {
    let file = number(own);
    let size = file::status(file)?.bytes;
    let page = PAGE_BYTES as u64;
    let mut at = 0;
    while let Some(part) = file::data_from(file, at)? {
        let (mut from, end) = (part.start / page * page, part.end.next_multiple_of(page));
        while from < end {
            let count = ((end - from) / page).min(MOVED as u64) as usize;
            let mut contents = vec![[0; PAGE_BYTES]; count];
            file::pread(file, contents.as_flattened_mut(), from)?;
            let taken = object.begin_with(from / page, &contents);
            taken.map_err(|_| Errno::ENOSPC)?;
            from += count as u64 * page;
        }
        at = end;
        if at >= size {
            break;
        }
    }
    match writable {
        Some(writable) if at > 0 => file::punch(Fd(writable.as_raw_fd()), 0, at),
        _ => Ok(()),
    }
}

/// Writes the contents of an object to its file, which Linux is to execute. One that is executed
/// already has them: what is the same is not written, for Linux executes nothing that is open to be
/// written to.
pub fn give_back(object: &Object, theirs: &OwnedFd) -> Result<(), Errno> {
    const PART: usize = 256 << 10;
    // Who comes second finds it the same.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let readable = file::own_again(number(theirs), g::O_RDONLY)?;
    let size = file::status(number(theirs))?.bytes as usize;
    let (mut wanted, mut there) = (vec![0; PART.min(size)], vec![0; PART.min(size)]);
    let mut writable = None;
    let given = (0..size).step_by(PART).try_for_each(|start| {
        let bytes = PART.min(size - start);
        let (wanted, there) = (&mut wanted[..bytes], &mut there[..bytes]);
        let read = object.read(start as u64, wanted);
        read.map_err(|_| Errno::EIO)?;
        let got = file::pread(number(&readable), there, start as u64)?;
        if wanted == &there[..got] {
            return Ok(());
        }
        let to = match &mut writable {
            Some((to, _)) => to,
            none => {
                let to = File::from(file::own_to_write(number(theirs))?);
                let modified = to.metadata().and_then(|about| about.modified());
                &mut none.insert((to, modified)).0
            }
        };
        file::pwrite_all(Fd(to.as_raw_fd()), wanted, start as u64)
    });
    if let Some((file, modified)) = writable {
        if given.is_err() {
            // Linux refuses to execute zeros, and not what has its beginning only.
            let _ = file::punch(Fd(file.as_raw_fd()), 0, size as u64);
        }
        // It has the contents that it had before.
        if let Ok(modified) = modified {
            let _ = file.set_times(FileTimes::new().set_modified(modified));
        }
    }
    given
}
