//! Many Links, one wait.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use super::linger::Patience;
use super::wake::Happened;
use super::{Link, wake};

/// Turns that found something without asking Linux, after which it is asked all the same: a busy
/// Link must not keep the others waiting.
const TURNS: u32 = 8;
/// Looks at busy Links in a row, after which Linux is asked all the same.
const PEEKS: u32 = 32;

/// Links that one thread waits for together.
///
/// A Link is either *asleep*, with its peer asked to wake this side, or *hot*: looked at before
/// each wait. So a wait costs what is going on, not what could.
pub struct LinkSet {
    epoll: OwnedFd,
    links: BTreeMap<u64, Member>,
    hot: Vec<u64>,
    patience: Patience,
    turns: u32,
    peeks: u32,
    /// The last peek was in vain: no need to linger again.
    has_lingered: bool,
    /// Links whose ring was full.
    full: Vec<u64>,
    /// Other descriptors that are readable.
    others: Vec<u64>,
}

/// The name of the alarm among the descriptors of a set.
pub(crate) const ALARM: u64 = (1 << 62) - 1;

/// Ends a wait from another thread of this process.
pub(crate) struct Alarm(OwnedFd);

impl Alarm {
    /// Ends the wait that is going on, or the next one.
    pub(crate) fn ring(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

struct Member {
    link: Arc<Link>,
    is_hot: bool,
}

impl LinkSet {
    /// An empty set.
    ///
    /// # Errors
    /// As `epoll_create1(2)`.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            epoll: wake::new_epoll()?,
            links: BTreeMap::new(),
            hot: Vec::new(),
            patience: Patience::default(),
            turns: 0,
            peeks: 0,
            has_lingered: false,
            full: Vec::new(),
            others: Vec::new(),
        })
    }

    /// What ends a wait from another thread; the wait names [`ALARM`].
    pub(crate) fn alarm(&self) -> Result<Alarm, Errno> {
        use rustix::event::{EventfdFlags, eventfd};
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        wake::watch_other(&self.epoll, fd.as_fd(), ALARM, true)?;
        Ok(Alarm(fd))
    }

    /// Names a descriptor in the answers of waits while it is readable.
    pub(crate) fn watch(&self, name: u64, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        wake::watch_other(&self.epoll, fd, name, false)
    }

    /// Does so no more.
    pub(crate) fn forget(&self, fd: BorrowedFd<'_>) {
        let _ = rustix::event::epoll::delete(&self.epoll, fd);
    }

    /// Names a Link, whose ring was full, in the next wait's answer when its peer has made room.
    pub(crate) fn await_room(&mut self, name: u64) {
        if !self.full.contains(&name) {
            self.full.push(name);
        }
    }

    /// Adds a Link under a name of the caller's, below 2^62.
    ///
    /// # Errors
    /// As `epoll_ctl(2)`: `EEXIST` for a Link that is there already.
    ///
    /// # Panics
    /// When the name is taken, or too large.
    pub fn insert(&mut self, name: u64, link: Arc<Link>) -> Result<(), Errno> {
        assert!(name < 1 << 62, "a name of 62 bits");
        assert!(!self.links.contains_key(&name), "the name {name} is taken");
        link.watched.watch(&self.epoll, name)?;
        let is_hot = true;
        self.links.insert(name, Member { link, is_hot });
        self.hot.push(name);
        Ok(())
    }

    /// Takes a Link out.
    pub fn remove(&mut self, name: u64) -> Option<Arc<Link>> {
        let member = self.links.remove(&name)?;
        member.link.watched.forget(&self.epoll);
        self.hot.retain(|hot| *hot != name);
        self.full.retain(|full| *full != name);
        Some(member.link)
    }

    /// Waits until there is something to receive from a Link, if only its end, at most until
    /// `deadline`; puts the names of such Links into `ready`. None of them: the time is over.
    ///
    /// A Link is named again and again until all was received, and then until it is removed if it
    /// has ended.
    ///
    /// # Errors
    /// As `epoll_wait(2)`.
    pub fn wait(&mut self, deadline: Option<Instant>, ready: &mut Vec<u64>) -> Result<(), Errno> {
        ready.clear();
        loop {
            self.collect(ready);
            if !ready.is_empty() {
                self.turns += 1;
                if self.turns.is_multiple_of(TURNS) || self.peeks >= PEEKS {
                    self.ask(Some(Instant::now()))?;
                    self.collect(ready);
                }
                return Ok(());
            }
            let no_wait = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if !no_wait && !std::mem::take(&mut self.has_lingered) && self.linger() {
                continue;
            }
            self.announce();
            if !self.hot.is_empty() || self.announce_room() {
                continue;
            }
            let start = Instant::now();
            let happened = self.ask(deadline)?;
            self.patience.has_slept(start.elapsed());
            if !happened && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                self.collect(ready);
                return Ok(());
            }
        }
    }

    /// Whether something is going on that may be looked at without asking Linux.
    pub(crate) fn is_busy(&self) -> bool {
        !self.hot.is_empty() && self.peeks < PEEKS
    }

    /// Looks at hot Links alone, and waits a little for the last. False when nothing came.
    pub(crate) fn peek(&mut self, ready: &mut Vec<u64>) -> bool {
        self.peeks += 1;
        ready.clear();
        if self.hot.len() > 1 || !self.full.is_empty() {
            self.collect(ready);
        }
        if ready.is_empty()
            && let Some(&last) = self.hot.last()
            && let Some(member) = self.links.get(&last)
        {
            ready.extend(member.link.peek(&mut self.patience).then_some(last));
        }
        self.has_lingered = ready.is_empty();
        !ready.is_empty()
    }

    /// Adds the hot Links that have something, and whatever else there is to be told. What was
    /// found before stays: it is not found again.
    fn collect(&mut self, ready: &mut Vec<u64>) {
        let links = &self.links;
        for name in &self.hot {
            let member = links.get(name);
            if !ready.contains(name) && member.is_some_and(|member| member.link.is_ready()) {
                ready.push(*name);
            }
        }
        for name in self.others.drain(..) {
            // Once each: a socket that was accepted from may have nobody else.
            if !ready.contains(&name) {
                ready.push(name);
            }
        }
        self.full.retain(|name| {
            let waits = links
                .get(name)
                .is_some_and(|member| !member.link.has_room_come());
            if !waits && !ready.contains(name) {
                ready.push(*name);
            }
            waits
        });
    }

    /// Has the peers of full Links wake this side. True when one has made room already.
    fn announce_room(&self) -> bool {
        let mut links = self.full.iter().filter_map(|name| self.links.get(name));
        links.any(|member| member.link.announce_room())
    }

    /// Waits a little for the Link that something came by last.
    fn linger(&mut self) -> bool {
        let last = self.hot.last().and_then(|name| self.links.get(name));
        last.is_some_and(|member| member.link.linger(&mut self.patience))
    }

    /// Lets hot Links fall asleep, except those by which something comes this moment.
    fn announce(&mut self) {
        let links = &mut self.links;
        self.hot.retain(|name| {
            let Some(member) = links.get_mut(name) else {
                return false;
            };
            member.is_hot = member.link.announce() || member.link.has_left().is_some();
            member.is_hot
        });
    }

    /// Asks Linux what happened, and makes those Links hot.
    fn ask(&mut self, deadline: Option<Instant>) -> Result<bool, Errno> {
        self.peeks = 0;
        let (links, hot) = (&mut self.links, &mut self.hot);
        let others = &mut self.others;
        wake::wait(&self.epoll, deadline, |name, happened| {
            if happened == Happened::Readable {
                others.push(name);
                return;
            }
            let Some(member) = links.get_mut(&name) else {
                return;
            };
            member.link.note(happened);
            if !std::mem::replace(&mut member.is_hot, true) {
                hot.push(name);
            }
        })
    }
}
