//! Threads that lock several pages, one after the other, and hold them for a while.

use alloc::{format, string::String};

use farpage_object::Access;

use super::member::Member;
use super::world::World;
use crate::coherence::Host;

/// A thread that locks pages in their order. It asks for one when it has all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Locker {
    access: Access,
    next: usize,
    first: usize,
    end: usize,
}

impl Locker {
    pub(super) fn is_done(self) -> bool {
        self.next == self.end
    }

    /// What it locks a page for: copies that are lent are not locked.
    fn access(self, page: usize, is_mirrored: bool) -> Access {
        match page % 3 {
            2 if !is_mirrored => Access::Write,
            _ => self.access,
        }
    }
}

impl World {
    pub(super) fn begin(
        &mut self,
        host: Host,
        access: Access,
        (first, end): (usize, usize),
    ) -> Result<(), String> {
        self.member(host).locker = Some(Locker {
            access,
            next: first,
            first,
            end,
        });
        self.step(host, first)
    }

    /// The thread goes on if it waits for this page, and locks what it may.
    pub(super) fn step(&mut self, host: Host, page: usize) -> Result<(), String> {
        let is_mirrored = self.is_mirrored;
        let member = self.member(host);
        let Some(mut locker) = member.locker.filter(|one| one.next == page) else {
            return Ok(());
        };
        while !locker.is_done() {
            let access = locker.access(locker.next, is_mirrored);
            let at = &mut self.member(host).pages[locker.next];
            if !at.lock(access) {
                let wants = at.wanted() == Some(Access::Write) || at.wanted() == Some(access);
                let next = locker.next;
                self.member(host).locker = Some(locker);
                return match wants {
                    true => Ok(()),
                    false => self.at(host, next, |page| page.fault(access)),
                };
            }
            locker.next += 1;
            self.locked += 1;
        }
        self.member(host).locker = Some(locker);
        Ok(())
    }

    /// What it waits for cannot be had: it gives back what it has.
    pub(super) fn give_up(&mut self, host: Host, page: usize) -> Result<(), String> {
        match self.member(host).locker {
            Some(locker) if locker.next == page && !locker.is_done() => self.unlock(host),
            Some(_) | None => Ok(()),
        }
    }

    pub(super) fn unlock(&mut self, host: Host) -> Result<(), String> {
        let is_mirrored = self.is_mirrored;
        let Some(locker) = self.member(host).locker.take() else {
            return Ok(());
        };
        for page in locker.first..locker.next {
            let access = locker.access(page, is_mirrored);
            self.at(host, page, |page| page.unlock(access))?;
        }
        Ok(())
    }

    /// What a host has locked it has, and nobody else has what it has locked for writing.
    pub(super) fn check_locks(&self, member: &Member) -> Result<(), String> {
        let Some(locker) = member.locker else {
            return Ok(());
        };
        for page in locker.first..locker.next {
            let at = &member.pages[page];
            if at.allowed().is_none() || at.is_borrowed() {
                return Err(format!("page {page} was taken, which is locked: {at:?}"));
            }
            let has = |one: &&Member| {
                let other = &one.pages[page];
                one.own != member.own && other.allowed().is_some() && !other.is_borrowed()
            };
            let writes = locker.access(page, self.is_mirrored) == Access::Write;
            if writes && (!at.is_owner() || self.living().any(|one| has(&one))) {
                return Err(format!("another has page {page}, which is locked: {at:?}"));
            }
        }
        Ok(())
    }
}
