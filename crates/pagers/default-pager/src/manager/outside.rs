//! A default pager in another process, as the kernel has it.

use std::collections::BTreeSet;
use std::fmt;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use farpage_object::{
    DataRequest, ObjectId, PAGE_BYTES, PageIndex, PageOut, PageRange, Pager, PagerError, Supplied,
};
use farpage_sys::{Errno, thread};
use rustix::net::SendFlags;

use crate::manager::ask::{Answer, Ask};
use crate::manager::channel::{Channel, PAGES, PLACES, Place};
use crate::manager::serve::{END, MAY_END};
use crate::manager::{Keeper, Space};

/// Time between two looks whether the process is there, for who waits.
const LOOK: Duration = Duration::from_secs(1);
/// When no answer came for so long, that is said.
const LATE: Duration = Duration::from_secs(10);

/// Why a process is not taken for a default pager.
#[derive(Debug)]
pub enum NotTaken {
    /// What it handed over is no channel.
    Channel(Errno),
    /// There was no thread to watch it.
    Thread(std::io::Error),
}

impl fmt::Display for NotTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Channel(errno) => write!(
                f,
                "what it shares with the kernel is not as it must be ({errno}); use the same version \
                 of farpage for both"
            ),
            Self::Thread(error) => write!(f, "cannot start a thread ({error})"),
        }
    }
}

impl std::error::Error for NotTaken {}

/// What a default pager says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// How far it is wired, in words.
    pub wired: String,
    /// Where its paging files are, in the order of [`Space::files`].
    pub folders: Vec<String>,
}

/// A default pager in another process.
pub struct Outside {
    pid: u32,
    about: About,
    channel: Channel,
    /// It ends with the process.
    life: UnixStream,
    /// Bits of places that nobody calls from.
    free: Mutex<u64>,
    freed: Condvar,
    /// Those of which it was given pages, until they end.
    objects: Mutex<BTreeSet<u32>>,
    is_dead: AtomicBool,
    wants_to_end: AtomicBool,
    is_late: AtomicBool,
}

/// What becomes of a default pager that its process does not tell by answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// It wants to end, and another to have its pages.
    WantsToEnd,
    /// Its process is gone.
    Died,
}

impl Outside {
    /// A default pager in process `pid`, by the channel and the socket that it handed over.
    ///
    /// # Errors
    /// As [`NotTaken`].
    pub fn new(
        pid: u32,
        about: About,
        channel: &OwnedFd,
        life: OwnedFd,
    ) -> Result<Arc<Self>, NotTaken> {
        let channel = Channel::map(channel.as_fd()).map_err(NotTaken::Channel)?;
        // Anything else might never be read from.
        let is_socket = rustix::net::sockopt::socket_type(&life);
        is_socket.map_err(|errno| NotTaken::Channel(Errno(errno.raw_os_error())))?;
        Ok(Arc::new(Self {
            pid,
            about,
            channel,
            life: UnixStream::from(life),
            free: Mutex::new(u64::MAX),
            freed: Condvar::new(),
            objects: Mutex::default(),
            is_dead: AtomicBool::new(false),
            wants_to_end: AtomicBool::new(false),
            is_late: AtomicBool::new(false),
        }))
    }

    /// Tells what becomes of it, until it is dead. `tell` waits for no pager: the death of this one
    /// would not be seen meanwhile.
    pub(crate) fn watch(
        self: &Arc<Self>,
        tell: impl Fn(News) + Send + 'static,
    ) -> Result<(), NotTaken> {
        let outside = Arc::clone(self);
        let watch = move || {
            let mut byte = [0];
            loop {
                match (&outside.life).read(&mut byte) {
                    Ok(1) if byte[0] == END => {
                        outside.wants_to_end.store(true, Ordering::Release);
                        tell(News::WantsToEnd);
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Ok(_) | Err(_) => break,
                }
            }
            outside.dies();
            tell(News::Died);
        };
        let named = std::thread::Builder::new().name("default-pager".into());
        named.spawn(watch).map(drop).map_err(NotTaken::Thread)
    }

    fn dies(&self) {
        self.is_dead.store(true, Ordering::Release);
        (0..PLACES).for_each(|number| self.channel.place(number).wake());
        self.freed.notify_all();
    }

    /// Nothing of it is needed any more.
    pub(crate) fn may_end(&self) {
        // It may be gone.
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let _ = rustix::net::send(&self.life, &[MAY_END], flags);
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// What it says of itself.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// It owes an answer for seconds.
    pub fn is_late(&self) -> bool {
        self.is_late.load(Ordering::Relaxed)
    }

    /// How full it is, as it said last.
    pub fn space(&self) -> Space {
        self.channel.space()
    }

    /// It asked for its end, or is dead.
    pub(crate) fn ends(&self) -> bool {
        self.is_dead() || self.wants_to_end.load(Ordering::Acquire)
    }

    /// It was given pages of objects that have not ended.
    pub(crate) fn may_have_pages(&self) -> bool {
        !self.objects().is_empty()
    }

    fn objects(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::Acquire)
    }

    fn free(&self) -> MutexGuard<'_, u64> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the first place that is free: what was used of the channel's memory is used again.
    fn take_place(&self) -> Result<usize, PagerError> {
        let mut free = self.free();
        loop {
            if self.is_dead() {
                return Err(PagerError::Dead);
            }
            if *free != 0 {
                let number = free.trailing_zeros() as usize;
                *free &= *free - 1;
                return Ok(number);
            }
            let waited = self.freed.wait_timeout(free, LOOK);
            free = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn give_place(&self, number: usize) {
        *self.free() |= 1 << number;
        self.freed.notify_one();
    }

    /// Asks for something, with what `prepare` puts into the place, and looks at the answer there.
    fn call<T>(
        &self,
        ask: Ask,
        prepare: impl FnOnce(&Place<'_>),
        look: impl FnOnce(&Place<'_>, Answer) -> Result<T, PagerError>,
    ) -> Result<T, PagerError> {
        let number = self.take_place()?;
        let place = self.channel.place(number);
        prepare(&place);
        place.ask(ask.numbers());
        let cpu = thread::current_cpu();
        self.channel.staffed_bell(cpu).ring(number);
        let seen = match self.wait(&place) {
            // Its place is never used again.
            Err(PagerError::Dead) => return Err(PagerError::Dead),
            Err(error) => Err(error),
            Ok(answer) => look(&place, Answer::of(answer)),
        };
        self.give_place(number);
        seen
    }

    /// Waits for an answer.
    fn wait(&self, place: &Place<'_>) -> Result<[u64; crate::manager::ask::NUMBERS], PagerError> {
        let mut since = None;
        loop {
            if let Some(answer) = place.answered()? {
                if since.is_some() {
                    self.is_late.store(false, Ordering::Relaxed);
                }
                return Ok(answer);
            }
            if self.is_dead() {
                return Err(PagerError::Dead);
            }
            place.wait(LOOK.as_nanos() as u64);
            let since = *since.get_or_insert_with(Instant::now);
            if since.elapsed() >= LATE && !self.is_late.swap(true, Ordering::Relaxed) {
                farpage_sys::say!(
                    "farpage: the default pager (process {}) has not answered for {} s; who needs its \
                     pages waits (kill it to go on without what it has)",
                    self.pid,
                    LATE.as_secs()
                );
            }
        }
    }

    fn tell(&self, ask: Ask) {
        // Nothing is lost that somebody wants.
        let _ = self.call(ask, |_| {}, |_, _| Ok(()));
    }

    fn supply(&self, ask: Ask, buffer: &mut [u8]) -> Result<Supplied, PagerError> {
        self.call(
            ask,
            |_| {},
            |place, answer| match answer {
                Answer::Supplied { pages, precious } => {
                    let most = (buffer.len() / PAGE_BYTES) as u64;
                    if !(1..=most).contains(&pages) {
                        return Err(PagerError::Violation);
                    }
                    place.take(&mut buffer[..pages as usize * PAGE_BYTES]);
                    Ok(Supplied {
                        precious,
                        ..Supplied::clean(pages)
                    })
                }
                Answer::Failed(error) => Err(error),
                Answer::Done | Answer::Kept(..) => Err(PagerError::Violation),
            },
        )
    }
}

/// The first of `pages` that a place has room for.
fn first_of(pages: PageRange) -> PageRange {
    let count = pages.pages().min(PAGES as u64);
    PageRange::new(pages.start.0, pages.start.0 + count)
}

impl Pager for Outside {
    fn data_request(&self, mut request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        let pages = first_of(request.pages());
        let ask = Ask::Request {
            object: request.object(),
            pages,
            needed: request.needed().min(pages.pages()),
            access: request.access(),
        };
        let bytes = pages.bytes() as usize;
        self.supply(ask, &mut request.buffer()[..bytes])
    }

    fn data_write(&self, object: ObjectId, pages: &[PageOut<'_>]) -> Result<(), PagerError> {
        self.objects().insert(object.0);
        pages.chunks(PAGES).try_for_each(|pages| {
            let count = pages.len() as u64;
            let prepare = |place: &Place<'_>| {
                for (index, out) in pages.iter().enumerate() {
                    let PageIndex(page) = out.page;
                    place.set_page(index, page);
                    place.put(index, out.bytes);
                }
            };
            let look = |_: &Place<'_>, answer| match answer {
                Answer::Done => Ok(()),
                Answer::Failed(error) => Err(error),
                Answer::Supplied { .. } | Answer::Kept(..) => Err(PagerError::Violation),
            };
            self.call(Ask::Write { object, count }, prepare, look)
        })
    }

    fn discard(&self, object: ObjectId, pages: PageRange) {
        if !pages.is_empty() {
            self.tell(Ask::Discard { object, pages });
        }
    }

    fn terminate(&self, object: ObjectId) {
        self.tell(Ask::Terminate { object });
        self.objects().remove(&object.0);
    }
}

impl Keeper for Outside {
    fn some_kept(&self, cursor: u64) -> Result<Option<(ObjectId, PageRange, u64)>, PagerError> {
        self.call(
            Ask::SomeKept { cursor },
            |_| {},
            |_, answer| match answer {
                Answer::Kept(object, pages, cursor) => Ok(Some((object, pages, cursor))),
                Answer::Done => Ok(None),
                Answer::Failed(error) => Err(error),
                Answer::Supplied { .. } => Err(PagerError::Violation),
            },
        )
    }

    fn copy(
        &self,
        object: ObjectId,
        pages: PageRange,
        buffer: &mut [u8],
    ) -> Result<u64, PagerError> {
        let pages = first_of(pages);
        let ask = Ask::Copy { object, pages };
        let supplied = self.supply(ask, &mut buffer[..pages.bytes() as usize])?;
        Ok(supplied.pages)
    }
}
