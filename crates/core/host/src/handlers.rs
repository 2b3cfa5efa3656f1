//! The threads that answer faults.
//!
//! Waking a handler on another, idle processor takes ten times as long as on that of the thread
//! that faults. So there are handlers on each processor where threads fault, made when the first
//! does, and a space is watched by those of the processors where its threads were seen last: two,
//! because Linux moves a thread that was just woken away from the handler, to a processor that is
//! idle, and back. More than two would be woken at every fault for nothing.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use farpage_sys::{Errno, lock, thread};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::Error;
use crate::objects::{Objects, spawn};
use crate::space::Space;

/// Handlers on each processor: sources that are near hold one while they read.
const HANDLERS: usize = 4;
/// Faults of a space between two looks at the processor of the thread: few after it was where no
/// handler watches, more and more while it is where one does. A look takes as long as a fault.
const LOOK_EVERY: std::ops::RangeInclusive<u32> = 4..=64;
/// Whoever takes one of these has drained it, so that the next fault is an event of its own; and it
/// wakes one handler of those on a processor.
const EACH: EventFlags = EventFlags::IN.union(EventFlags::ET);

/// All handlers.
pub(crate) struct Handlers {
    /// Of spaces whose threads were not seen anywhere yet.
    anywhere: OwnedFd,
    /// By processor: what its handlers wait on.
    at: Mutex<HashMap<u32, Arc<OwnedFd>>>,
    host: std::sync::OnceLock<&'static Objects>,
}

/// Who watches a space.
pub(crate) struct Watch {
    until_look: u32,
    interval: u32,
    /// The processors whose handlers watch it; where its threads were seen last comes first.
    cpus: [Option<u32>; 2],
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            until_look: *LOOK_EVERY.start(),
            interval: *LOOK_EVERY.start(),
            cpus: [None; 2],
        }
    }
}

impl Watch {
    /// Counts a fault. True when it is time to look where the thread is.
    pub(crate) fn counts(&mut self) -> bool {
        self.until_look -= 1;
        if self.until_look > 0 {
            return false;
        }
        self.interval = (self.interval * 2).min(*LOOK_EVERY.end());
        self.until_look = self.interval;
        true
    }

    /// The thread was at `cpu`. True when nobody watches there.
    fn seen_at(&mut self, cpu: u32) -> bool {
        let at = self.cpus.iter().position(|other| *other == Some(cpu));
        if at == Some(1) {
            self.cpus.swap(0, 1);
        }
        at.is_none()
    }

    /// Handlers of `cpu` watch from now on. Returns the processor whose handlers do no more.
    fn moves_to(&mut self, cpu: u32) -> Option<u32> {
        let [first, second] = self.cpus;
        *self = Self {
            cpus: [Some(cpu), first],
            ..Self::default()
        };
        second
    }
}

impl Handlers {
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self {
            anywhere: wait_point()?,
            at: Mutex::default(),
            host: std::sync::OnceLock::new(),
        })
    }

    /// Starts those of spaces that were not seen anywhere.
    pub(crate) fn start(&'static self, host: &'static Objects) -> Result<(), Error> {
        self.host.get_or_init(|| host);
        for _ in 0..HANDLERS {
            spawn("objects", move || work(host, &self.anywhere))?;
        }
        Ok(())
    }

    /// Watches a space.
    pub(crate) fn begin(&self, space: &Space) -> Result<(), Errno> {
        watch(&self.anywhere, space)
    }

    /// Watches it no more.
    pub(crate) fn end(&self, space: &Space) {
        let watched = lock(&space.watch);
        if watched.cpus[0].is_none() {
            leave(&self.anywhere, space);
        }
        for cpu in watched.cpus.into_iter().flatten() {
            self.leave_at(cpu, space);
        }
    }

    /// A thread of the space has faulted on `cpu`.
    pub(crate) fn is_needed_at(&self, cpu: u32, space: &Space) {
        let mut watched = lock(&space.watch);
        if !watched.seen_at(cpu) || space.is_gone() {
            return;
        }
        let Some(there) = self.at(cpu) else {
            return;
        };
        // First there: a fault that waits is told to who begins to watch.
        if watch(&there, space).is_err() {
            return;
        }
        if watched.cpus[0].is_none() {
            leave(&self.anywhere, space);
        }
        if let Some(cpu) = watched.moves_to(cpu) {
            self.leave_at(cpu, space);
        }
    }

    fn leave_at(&self, cpu: u32, space: &Space) {
        if let Some(at) = lock(&self.at).get(&cpu) {
            leave(at, space);
        }
    }

    /// Where the handlers of a processor wait; starts them when they are needed first.
    fn at(&self, cpu: u32) -> Option<Arc<OwnedFd>> {
        let mut all = lock(&self.at);
        if let Some(at) = all.get(&cpu) {
            return Some(Arc::clone(at));
        }
        let at = Arc::new(wait_point().ok()?);
        let host = *self.host.get()?;
        let mut started = 0;
        for _ in 0..HANDLERS {
            let at = Arc::clone(&at);
            let work = move || {
                // Where it may not go it is as good as any other.
                let _ = thread::run_on(cpu);
                work(host, &at);
            };
            started += usize::from(spawn("objects", work).is_ok());
        }
        (started > 0).then(|| all.entry(cpu).or_insert(at).clone())
    }
}

fn wait_point() -> Result<OwnedFd, Error> {
    epoll::create(CreateFlags::CLOEXEC).map_err(|errno| Error::Start(errno.into()))
}

fn watch(at: &OwnedFd, space: &Space) -> Result<(), Errno> {
    let data = EventData::new_u64(space.number);
    epoll::add(at, space, data, EACH).map_err(|errno| Errno(errno.raw_os_error()))
}

fn leave(at: &OwnedFd, space: &Space) {
    // Not there when it has just ended.
    let _ = epoll::delete(at, space);
}

/// Answers what comes, for ever.
fn work(host: &'static Objects, at: &OwnedFd) {
    loop {
        let mut event = [MaybeUninit::uninit()];
        let Ok((events, _)) = epoll::wait(at, &mut event, None) else {
            continue;
        };
        let number = events.first().map(|event| event.data.u64());
        if let Some(space) = number.and_then(|number| host.space(number)) {
            host.serve_all(&space);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_that_moves_looks_again_soon_and_one_that_stays_ever_less() {
        let mut watch = Watch::default();
        let looks = |watch: &mut Watch, faults: u32| (0..faults).filter(|_| watch.counts()).count();
        assert_eq!(looks(&mut watch, 4), 1);
        assert!(watch.seen_at(3));
        assert_eq!(watch.moves_to(3), None);
        assert!(!watch.seen_at(3));
        assert_eq!(looks(&mut watch, 1000), 18);
        assert_eq!(watch.moves_to(5), None);
        assert_eq!(looks(&mut watch, 4), 1);
    }

    #[test]
    fn handlers_watch_where_threads_were_seen_on_the_last_two_processors() {
        let mut watch = Watch::default();
        assert_eq!((watch.moves_to(3), watch.moves_to(5)), (None, None));
        assert!(!watch.seen_at(3) && !watch.seen_at(5) && !watch.seen_at(3));
        assert!(watch.seen_at(7));
        assert_eq!(watch.moves_to(7), Some(5));
        assert!(!watch.seen_at(3) && watch.seen_at(5));
    }
}
