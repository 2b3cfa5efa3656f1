//! Bytes of a file as they are at one moment, whoever writes to the file afterwards.
//!
//! What nobody can change is read where it lies. Of another file a lease is held: before somebody
//! may write to it the bytes are copied to an unnamed file, and are read there from then on.

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, PoisonError, Weak, mpsc};

use farpage_source::{Source, SourceError};
use farpage_sys::file::{self, Fd};
use farpage_sys::{Errno, fork, lease, process};

/// Bytes that are copied at a time.
const STEP: usize = 1 << 20;

/// Some bytes of a file, which stay as they are.
pub(crate) struct Snapshot {
    name: String,
    size: u64,
    file: OwnedFd,
    /// Where its bytes begin in `file`.
    from: u64,
    is_leased: bool,
    /// What came of it when the lease had to be given up: all bytes, or why not.
    moved: OnceLock<Result<File, String>>,
}

/// All that are leased, and who is told when a lease is to be given up.
#[derive(Default)]
struct Leases {
    all: Vec<Weak<Snapshot>>,
    /// The thread that waits for it, once there is one.
    guardian: Option<u32>,
}

static LEASES: Mutex<Leases> = Mutex::new(Leases {
    all: Vec::new(),
    guardian: None,
});

fn leases() -> MutexGuard<'static, Leases> {
    LEASES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Snapshot {
    /// Of a file that nobody can change.
    pub(crate) fn of_unchanging(
        file: OwnedFd,
        name: String,
        (from, size): (u64, u64),
    ) -> Arc<Self> {
        Arc::new(Self {
            name,
            size,
            file,
            from,
            is_leased: false,
            moved: OnceLock::new(),
        })
    }

    /// Of a file on which a lease can be had.
    ///
    /// # Errors
    /// As [`lease::take`].
    pub(crate) fn leased(
        file: BorrowedFd<'_>,
        name: String,
        (from, size): (u64, u64),
    ) -> Result<Arc<Self>, Errno> {
        static WATCH: Once = Once::new();
        WATCH.call_once(|| fork::at_fork(before_fork, in_parent, in_child));
        // Held until it is listed: the guardian looks for those that are disturbed.
        let mut leases = leases();
        let guardian = leases.guardian()?;
        let snapshot = Arc::new(Self {
            name,
            size,
            file: lease::take(file, guardian)?,
            from,
            is_leased: true,
            moved: OnceLock::new(),
        });
        leases.all.retain(|other| other.strong_count() > 0);
        leases.all.push(Arc::downgrade(&snapshot));
        Ok(snapshot)
    }

    /// The size of the file now.
    pub(crate) fn file_bytes(&self) -> Result<u64, Errno> {
        file::status(self.fd()).map(|status| status.bytes)
    }

    fn fd(&self) -> Fd {
        Fd(self.file.as_raw_fd())
    }

    /// Copies all of it, then lets the others have the file. Under the lock of [`LEASES`], so that
    /// it is done once.
    fn move_away(&self) {
        if self.moved.get().is_some() {
            return;
        }
        let read = |offset: u64, part: &mut [u8]| {
            read_whole(self.fd(), &self.name, self.from + offset, part)
        };
        let copied = copied(self.size, read);
        // Until then whoever reads waits for what is said last.
        let was_held = lease::give_up(&self.file);
        let moved = match copied {
            Ok(_) if !was_held => Err("others waited to write for longer than Linux lets them \
                                       (fs.lease-break-time)"
                .to_owned()),
            Ok(copy) => Ok(copy),
            Err(error) => Err(error.to_string()),
        };
        if let Err(why) = &moved {
            farpage_sys::say!("farpage: no copy of '{}' could be kept: {why}", self.name);
        }
        let _ = self.moved.set(moved);
    }

    fn is_disturbed(&self) -> bool {
        self.moved.get().is_none() && !lease::is_undisturbed(&self.file)
    }
}

/// An unnamed file with `bytes` bytes that `read` reads; parts that are all zeros are holes.
pub(crate) fn copied(
    bytes: u64,
    read: impl Fn(u64, &mut [u8]) -> Result<(), SourceError>,
) -> Result<File, SourceError> {
    let fails = |offset: u64| {
        move |error: std::io::Error| SourceError::Io {
            name: std::env::temp_dir().display().to_string(),
            what: "keep a copy in",
            offset,
            cause: error.to_string(),
            remedy: "name a folder with room for it: TMPDIR",
        }
    };
    let copy = tempfile::tempfile().map_err(fails(0))?;
    copy.set_len(bytes).map_err(fails(bytes))?;
    let mut buffer = vec![0; STEP.min(bytes as usize)];
    let mut done = 0;
    while done < bytes {
        let part = (bytes - done).min(STEP as u64) as usize;
        let part = &mut buffer[..part];
        read(done, part)?;
        if part.iter().any(|byte| *byte != 0) {
            copy.write_all_at(part, done).map_err(fails(done))?;
        }
        done += part.len() as u64;
    }
    Ok(copy)
}

/// Reads all of `buffer` at `offset` of a file.
pub(crate) fn read_whole(
    fd: Fd,
    name: &str,
    offset: u64,
    buffer: &mut [u8],
) -> Result<(), SourceError> {
    let (name, bytes) = (name.to_owned(), buffer.len() as u64);
    match file::pread(fd, buffer, offset) {
        Ok(got) if got as u64 == bytes => Ok(()),
        Ok(got) => Err(SourceError::Short {
            name,
            offset,
            bytes,
            end: offset + got as u64,
        }),
        Err(errno) => Err(SourceError::Io {
            name,
            what: "read",
            offset,
            cause: std::io::Error::from_raw_os_error(errno.0).to_string(),
            remedy: "check the disk under it",
        }),
    }
}

impl Source for Snapshot {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn is_in_memory(&self, offset: u64, bytes: u64) -> bool {
        let moved = self.moved.get().and_then(|moved| moved.as_ref().ok());
        let (fd, at) = match moved {
            Some(copy) => (Fd(copy.as_raw_fd()), offset),
            None => (self.fd(), self.from + offset),
        };
        let pages = (at + bytes).div_ceil(4096) - at / 4096;
        file::cached_pages(fd, at, bytes) == Ok(pages)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        farpage_source::within(self, offset, buffer.len() as u64)?;
        if self.moved.get().is_none() {
            let read = read_whole(self.fd(), &self.name, self.from + offset, buffer);
            // After reading: what came is then known to be as it was.
            if !self.is_leased || lease::is_undisturbed(&self.file) {
                return read;
            }
        }
        match self.moved.wait() {
            Ok(copy) => read_whole(Fd(copy.as_raw_fd()), &self.name, offset, buffer),
            Err(why) => Err(SourceError::Changed {
                name: self.name.clone(),
                was: "as it was mapped".into(),
                is: format!("written to, and no copy could be kept ({why})"),
                remedy: "map it again",
            }),
        }
    }
}

impl Leases {
    /// The thread that moves snapshots away; begins it when there is none.
    fn guardian(&mut self) -> Result<u32, Errno> {
        if let Some(thread) = self.guardian {
            return Ok(thread);
        }
        let (tell, told) = mpsc::channel();
        let body = move || {
            let ready = lease::Told::new();
            let _ = tell.send(ready.as_ref().map(|_| process::thread_id()).map_err(|e| *e));
            let Ok(ready) = ready else { return };
            while ready.wait().is_ok() {
                leases().move_disturbed();
            }
        };
        let named = std::thread::Builder::new().name("farpage-leases".into());
        named.spawn(body).map_err(|_| Errno::EAGAIN)?;
        let thread = told.recv().map_err(|_| Errno::EAGAIN)??;
        self.guardian = Some(thread);
        Ok(thread)
    }

    fn leased(&self) -> impl Iterator<Item = Arc<Snapshot>> {
        let all = self.all.iter().filter_map(Weak::upgrade);
        all.filter(|snapshot| snapshot.moved.get().is_none())
    }

    fn move_disturbed(&self) {
        for snapshot in self.leased().filter(|snapshot| snapshot.is_disturbed()) {
            snapshot.move_away();
        }
    }
}

/// What is held over a fork: leases of the child's own. What the parent gives up is given up for
/// all who have its descriptor.
struct Held {
    leases: MutexGuard<'static, Leases>,
    own: Vec<(Arc<Snapshot>, OwnedFd)>,
}

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

extern "C" fn before_fork() {
    let leases = leases();
    let own = leases.leased().filter_map(|snapshot| {
        // Not this thread, which the signal would end: the guardian looks in vain.
        let told = leases.guardian.ok_or(Errno::ESRCH);
        match told.and_then(|told| lease::take(snapshot.file.as_fd(), told)) {
            Ok(own) => Some((snapshot, own)),
            Err(_) => {
                // Somebody waits to write to it.
                snapshot.move_away();
                None
            }
        }
    });
    let own = own.collect();
    HELD.with(|place| *place.borrow_mut() = Some(Held { leases, own }));
}

extern "C" fn in_parent() {
    drop(HELD.with(|place| place.borrow_mut().take()));
}

extern "C" fn in_child() {
    let Some(Held { mut leases, own }) = HELD.with(|place| place.borrow_mut().take()) else {
        return;
    };
    leases.guardian = None;
    for (snapshot, own) in own {
        // The number names the child's own lease from now on.
        let kept = file::keep(Fd(own.as_raw_fd()), snapshot.fd());
        let guardian = kept.and_then(|()| leases.guardian());
        let told = guardian.and_then(|guardian| lease::tell(&snapshot.file, guardian));
        if told.is_err() || snapshot.is_disturbed() {
            snapshot.move_away();
        }
    }
}
