//! The process that is a default pager: its threads, and how it ends.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use farpage_object::{DataRequest, ObjectId, PAGE_BYTES, PageIndex, PageOut, PagerError};
use farpage_sys::buffer::Buffer;
use farpage_sys::{Errno, thread};

use crate::manager::ask::{Answer, Ask};
use crate::manager::channel::{BELLS, Channel, PAGES, Place};
use crate::manager::{Keeper, Space};

/// Written by a default pager that wants to end.
pub(crate) const END: u8 = b'E';
/// Written by the kernel when nothing of it is needed any more.
pub(crate) const MAY_END: u8 = b'M';

/// Threads that stay at each processor: one that reads from a disk leaves others.
const THREADS: usize = 4;
/// Time between two looks at how full it is.
const LOOK: Duration = Duration::from_millis(200);

/// How a default pager came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All that it had is elsewhere.
    Replaced,
    /// The kernel is gone, and nobody wants what it has.
    KernelGone,
}

/// A default pager that is ready to be handed to a kernel.
pub struct Offer {
    channel: Arc<Channel>,
    file: OwnedFd,
    theirs: OwnedFd,
    ours: UnixStream,
}

impl Offer {
    /// Starts threads that answer for `pager` at every processor that this process may use.
    ///
    /// # Errors
    /// Without memory, threads or descriptors.
    pub fn start(pager: Arc<dyn Keeper>) -> std::io::Result<Self> {
        let failed = |errno: Errno| std::io::Error::from_raw_os_error(errno.0);
        let cpus = processors();
        let (file, channel) = Channel::create(&cpus).map_err(failed)?;
        let channel = Arc::new(channel);
        for cpu in cpus {
            for _ in 0..THREADS {
                let (channel, pager) = (Arc::clone(&channel), Arc::clone(&pager));
                // Made here: a thread that has begun never fails for want of memory.
                let buffer = Buffer::new(PAGES * PAGE_BYTES).map_err(failed)?;
                let work = move || {
                    // Where it may not go it is as good as any other.
                    let _ = thread::run_on(cpu);
                    let _all_or_nothing = EndsAll;
                    answer(&channel, cpu, pager.as_ref(), buffer);
                };
                let named = std::thread::Builder::new().name("default-pager".into());
                named.stack_size(STACK_BYTES).spawn(work)?;
            }
        }
        let (ours, theirs) = UnixStream::pair()?;
        Ok(Self {
            channel,
            file,
            theirs: theirs.into(),
            ours,
        })
    }

    /// Says now and then how full it is: `look` is given what makes that known.
    ///
    /// # Errors
    /// Without a thread.
    pub fn tell(&self, look: impl Fn(&dyn Fn(&Space)) + Send + 'static) -> std::io::Result<()> {
        let channel = Arc::clone(&self.channel);
        let tell = move |space: &Space| channel.set_space(space);
        look(&tell);
        let tell = move || {
            loop {
                std::thread::sleep(LOOK);
                look(&tell);
            }
        };
        let named = std::thread::Builder::new().name("tell".into());
        named.spawn(tell).map(drop)
    }

    /// The channel's memory file, for the kernel.
    pub fn channel(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The kernel's end of the socket by which either knows that the other lives.
    pub fn life(&self) -> BorrowedFd<'_> {
        self.theirs.as_fd()
    }

    /// What it says and hears from then on: the kernel has its end of the socket.
    pub fn is_taken(self) -> Serving {
        Serving(self.ours)
    }
}

/// A default pager that a kernel has taken.
pub struct Serving(UnixStream);

impl Serving {
    /// Asks the kernel to move all that it has elsewhere. [`Serving::wait`] then returns.
    pub fn end(&self) {
        // A kernel that is gone is seen there.
        let _ = (&self.0).write_all(&[END]);
    }

    /// Waits for the end.
    pub fn wait(&self) -> Ended {
        let mut byte = [0];
        loop {
            match (&self.0).read(&mut byte) {
                Ok(1) if byte[0] == MAY_END => return Ended::Replaced,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Ok(1) => {}
                Ok(_) | Err(_) => return Ended::KernelGone,
            }
        }
    }
}

/// A thread that fails ends the process: who waits for its answer would wait for ever.
struct EndsAll;

impl Drop for EndsAll {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// Enough for compressing and decompressing, which have their buffers elsewhere.
const STACK_BYTES: usize = 256 << 10;

/// Processors that this process may use.
fn processors() -> Vec<u32> {
    let allowed = rustix::thread::sched_getaffinity(None);
    let is_allowed = |cpu: &u32| {
        allowed
            .as_ref()
            .is_ok_and(|allowed| allowed.is_set(*cpu as usize))
    };
    let cpus: Vec<u32> = (0..BELLS as u32).filter(is_allowed).collect();
    match cpus.is_empty() {
        true => vec![0],
        false => cpus,
    }
}

/// Answers calls that come from a processor, for ever.
fn answer(channel: &Channel, cpu: u32, pager: &dyn Keeper, mut buffer: Buffer) {
    let bell = channel.bell(cpu);
    loop {
        let Some(number) = bell.answer() else {
            continue;
        };
        let place = channel.place(number);
        // Rung without anything being asked: a kernel does not.
        if let Some(asked) = place.asked() {
            let answer = match Ask::of(asked) {
                Some(ask) => act(ask, pager, &place, &mut buffer),
                None => Answer::Failed(PagerError::Violation),
            };
            place.answer(answer.numbers());
        }
    }
}

fn act(ask: Ask, pager: &dyn Keeper, place: &Place<'_>, buffer: &mut [u8]) -> Answer {
    match ask {
        Ask::Request {
            object,
            pages,
            needed,
            access,
        } => {
            let into = &mut buffer[..pages.bytes() as usize];
            let request = DataRequest::new(object, pages, needed, access, into);
            let supplied = pager.data_request(request);
            if let Ok(supplied) = supplied {
                place.put(0, &buffer[..supplied.pages as usize * PAGE_BYTES]);
            }
            supplied.into()
        }
        Ask::Write { object, count } => write(object, count as usize, pager, place, buffer),
        Ask::Discard { object, pages } => {
            pager.discard(object, pages);
            Answer::Done
        }
        Ask::Terminate { object } => {
            pager.terminate(object);
            Answer::Done
        }
        Ask::SomeKept { cursor } => match pager.some_kept(cursor) {
            Ok(Some((object, pages, cursor))) => Answer::Kept(object, pages, cursor),
            Ok(None) => Answer::Done,
            Err(error) => Answer::Failed(error),
        },
        Ask::Copy { object, pages } => {
            let copied = pager.copy(object, pages, &mut buffer[..pages.bytes() as usize]);
            match copied {
                Ok(pages) => {
                    place.put(0, &buffer[..pages as usize * PAGE_BYTES]);
                    let precious = false;
                    Answer::Supplied { pages, precious }
                }
                Err(error) => Answer::Failed(error),
            }
        }
    }
}

/// Has the pager take pages. They are copied first: what is compressed must not change meanwhile.
fn write(
    object: ObjectId,
    count: usize,
    pager: &dyn Keeper,
    place: &Place<'_>,
    buffer: &mut [u8],
) -> Answer {
    const END: u64 = 1 << 41;
    let contents = &mut buffer[..count * PAGE_BYTES];
    place.take(contents);
    let nothing = PageOut {
        page: PageIndex(0),
        bytes: &[0; PAGE_BYTES],
    };
    let mut out = [nothing; PAGES];
    let (contents, _) = contents.as_chunks::<PAGE_BYTES>();
    for (index, (out, bytes)) in out.iter_mut().zip(contents).enumerate() {
        let page = place.page(index);
        if page >= END {
            return Answer::Failed(PagerError::Violation);
        }
        *out = PageOut {
            page: PageIndex(page),
            bytes,
        };
    }
    match pager.data_write(object, &out[..count]) {
        Ok(()) => Answer::Done,
        Err(error) => Answer::Failed(error),
    }
}
