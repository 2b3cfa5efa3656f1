//! A thread that locks: it may take long when there is much, and others do not wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender as Queue, channel};

use farpage_client::Refusal;
use farpage_client::interface::Tried;
use farpage_client::locks::{LockAbout, LockRefusal, LockWanted, LocksListed};
use farpage_port::interface::{Answer, Both};
use farpage_port::{Name, SendRight};

use super::book::Book;
use super::caller::Caller;
use super::policy::FramesTold;
use super::segment::Memory;

/// Calls that wait at most.
const ASKED_MAX: u64 = 4096;

pub(crate) type Locked = Answer<Tried<Both<LockAbout, SendRight>>>;

/// What the thread does.
pub(crate) enum Work {
    Lock(Memory, LockWanted, Caller, (Name, SendRight), Locked),
    Borrow(String, Caller, (Name, SendRight), Locked),
    Lend(Name, String, Answer<Tried<()>>),
    Check(Name, Answer<Tried<()>>),
    Frames(Name, u64, u64, Caller, Answer<Tried<Vec<u64>>>),
    List(Caller, Answer<Tried<LocksListed>>),
    /// Nobody has the port any more.
    Release(Name),
    Options(u64, FramesTold),
}

/// The queue of the thread.
pub(crate) struct Keeper {
    work: Queue<Work>,
    asked: Arc<AtomicU64>,
}

impl Keeper {
    pub(crate) fn start() -> std::io::Result<Self> {
        let (work, waiting) = channel();
        let asked = Arc::new(AtomicU64::new(0));
        let answered = Arc::clone(&asked);
        let run = move || {
            let mut book = Book::new(0, FramesTold::default());
            for work in waiting {
                // What is given back is never refused, and so not counted.
                if !matches!(work, Work::Release(_) | Work::Options(..)) {
                    answered.fetch_sub(1, Ordering::Relaxed);
                }
                does(&mut book, work);
            }
        };
        std::thread::Builder::new()
            .name("services-locks".into())
            .spawn(run)?;
        Ok(Self { work, asked })
    }

    /// What nobody waits for.
    pub(crate) fn tell(&self, work: Work) {
        // The thread ends with this.
        let _ = self.work.send(work);
    }

    /// What somebody waits for.
    pub(crate) fn ask(&self, work: Work) {
        if self.asked.fetch_add(1, Ordering::Relaxed) >= ASKED_MAX {
            self.asked.fetch_sub(1, Ordering::Relaxed);
            return refuse(work);
        }
        self.tell(work);
    }
}

fn refuse(work: Work) {
    let busy = || Refusal::from(LockRefusal::Busy(ASKED_MAX));
    // Who asked may have gone.
    match work {
        Work::Lock(.., answer) | Work::Borrow(.., answer) => drop(answer.give(Tried(Err(busy())))),
        Work::Lend(.., answer) | Work::Check(_, answer) => drop(answer.give(Tried(Err(busy())))),
        Work::Frames(.., answer) => drop(answer.give(Tried(Err(busy())))),
        Work::List(_, answer) => drop(answer.give(Tried(Err(busy())))),
        Work::Release(_) | Work::Options(..) => {}
    }
}

fn does(book: &mut Book, work: Work) {
    let with = |right| move |about| Both(about, right);
    // Who asked may have gone; what it got then goes with its right.
    match work {
        Work::Lock(memory, wanted, caller, (port, right), answer) => {
            let locked = book.lock(&memory, wanted, caller, port);
            answer.give(Tried(locked.map(with(right)).map_err(Refusal::from)));
        }
        Work::Borrow(name, caller, (port, right), answer) => {
            let borrowed = book.borrow(&name, caller, port);
            answer.give(Tried(borrowed.map(with(right)).map_err(Refusal::from)));
        }
        Work::Lend(port, name, answer) => {
            answer.give(Tried(book.lend(port, name).map_err(Refusal::from)));
        }
        Work::Check(port, answer) => {
            answer.give(Tried(book.check(port).map_err(Refusal::from)));
        }
        Work::Frames(port, first, count, caller, answer) => {
            let frames = book.frames(port, first, count, caller);
            answer.give(Tried(frames.map_err(Refusal::from)));
        }
        Work::List(caller, answer) => {
            answer.give(Tried(Ok(book.list(caller))));
        }
        Work::Release(port) => book.release(port),
        Work::Options(limit_bytes, frames) => *book = Book::new(limit_bytes, frames),
    }
}
