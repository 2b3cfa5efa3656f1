//! Many Links, one wait.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use super::linger::Patience;
use super::{Link, wake};

/// Turns that found something without asking Linux, after which it is asked all the same: a busy
/// Link must not keep the others waiting.
const TURNS: u32 = 8;

/// Links that one thread waits for together.
///
/// A Link is either *asleep*, with its peer asked to wake this side, or *hot*: looked at before
/// each wait. So a wait costs what is going on, not what could.
pub struct LinkSet {
    epoll: OwnedFd,
    links: HashMap<u64, Member>,
    hot: Vec<u64>,
    patience: Patience,
    turns: u32,
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
            links: HashMap::new(),
            hot: Vec::new(),
            patience: Patience::default(),
            turns: 0,
        })
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
                if self.turns.is_multiple_of(TURNS) {
                    self.ask(Some(Instant::now()))?;
                    self.collect(ready);
                }
                return Ok(());
            }
            if self.linger() {
                continue;
            }
            self.announce();
            if !self.hot.is_empty() {
                continue;
            }
            let happened = self.ask(deadline)?;
            if !happened && deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                self.collect(ready);
                return Ok(());
            }
        }
    }

    /// The hot Links that have something.
    fn collect(&mut self, ready: &mut Vec<u64>) {
        let links = &self.links;
        let has = |name: &&u64| links.get(name).is_some_and(|member| member.link.is_ready());
        ready.clear();
        ready.extend(self.hot.iter().filter(has));
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
        let (links, hot) = (&mut self.links, &mut self.hot);
        wake::wait(&self.epoll, deadline, |name, happened| {
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
