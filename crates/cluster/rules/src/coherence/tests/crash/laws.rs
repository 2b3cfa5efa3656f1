//! What must hold whoever dies, and what the home decides.

use alloc::vec::Vec;
use alloc::{format, string::String};

use farpage_object::Access;

use super::flying::{Flying, What};
use super::member::Member;
use super::world::World;
use crate::coherence::{Contents, Host, Known, Recovery, Verdict};

/// A request that was sent on so often does not arrive.
const HOPS_MAX: u8 = 100;

/// True when `one` is an earlier parcel on the same way as `other`, which has this number.
pub(super) fn is_before(one: &Flying, other: &Flying, number: u64) -> bool {
    let same = one.from == other.from && one.to == other.to;
    same && matches!(&one.what, What::Parcel { number: earlier, .. } if *earlier < number)
}

impl World {
    /// One writer or readers, who all see the last write; nothing that anybody saw is undone.
    pub(super) fn check(&self) -> Result<(), String> {
        for page in 0..self.latest.len() {
            self.check_page(page)?;
        }
        for member in self.living() {
            self.check_locks(member)?;
        }
        if self.hops_max > HOPS_MAX {
            return Err("a request goes round and round".into());
        }
        let rests = self.due().is_empty();
        for member in self.living().filter(|_| rests) {
            let stuck = member.pages.iter().any(|page| page.wanted().is_some());
            let stuck = stuck || member.locker.is_some();
            if stuck || member.members.is_frozen() || !member.inbox.is_empty() {
                return Err(format!("{} waits for nothing: {member:?}", member.own));
            }
        }
        Ok(())
    }

    fn check_page(&self, page: usize) -> Result<(), String> {
        let (mut writers, mut any, mut owners) = (0, 0, 0);
        for member in self.living() {
            let at = &member.pages[page];
            owners += usize::from(at.is_owner());
            if self.is_mirrored && member.knows[page] > self.latest[page] {
                let (host, knows) = (member.own, member.knows[page]);
                return Err(format!(
                    "{host} saw {knows} of page {page}, which is undone"
                ));
            }
            let Some(access) = at.allowed() else {
                continue;
            };
            if at.is_borrowed() {
                // It may be old.
                continue;
            }
            any += 1;
            writers += usize::from(access == Access::Write);
            let bytes = member.bytes[page].ok_or("allowed without contents")?;
            if bytes.written != self.latest[page] || self.lost[page] {
                let (host, latest) = (member.own, self.latest[page]);
                return Err(format!("{host} sees {} of {latest}", bytes.written));
            }
        }
        if writers > 1 || writers == 1 && any > 1 {
            return Err(format!("{writers} hosts may write, {any} read or write"));
        }
        if owners > 1 || owners == 0 && self.due().is_empty() {
            return Err(format!("{owners} owners of page {page}"));
        }
        Ok(())
    }

    /// What the home decides of all pages.
    pub(super) fn decide(&mut self, home: Host) -> Result<Vec<(usize, Verdict)>, String> {
        let reports = core::mem::take(&mut self.member(home).reports);
        let known = match self.is_mirrored {
            true => Known::Mirrored,
            false => Known::Nothing,
        };
        let mut verdicts = Vec::new();
        for page in 0..self.latest.len() {
            let mut recovery = Recovery::new(home);
            for (host, pages) in &reports {
                let added = recovery.add(*host, pages[page].1);
                added.map_err(|violation| format!("an honest host: {violation}"))?;
            }
            let verdict = recovery.verdict(known);
            self.believe(home, page, &verdict)?;
            verdicts.push((page, verdict));
        }
        Ok(verdicts)
    }

    /// The verdict is right: nothing is lost or undone that need not be.
    fn believe(&mut self, home: Host, page: usize, verdict: &Verdict) -> Result<(), String> {
        let heard = self.member(home).members.view().generation.0 as usize;
        let views = &self.views[heard..];
        if views.iter().any(|view| !view.living.has(verdict.owner)) {
            // The home has not heard that it died as well, and will decide anew.
            return Ok(());
        }
        // What survivors had, or sent each other, is there as it was last written.
        let (holders, since) = self.holders[page];
        let lived = self.have_lived(holders, since) && !self.lost[page];
        self.holds(home, page, crate::coherence::Hosts::of(verdict.owner));
        let owner = self.member(verdict.owner).clone();
        let latest = self.latest[page];
        match verdict.contents {
            Contents::Current => {
                let has = owner.bytes[page].map(|bytes| bytes.written);
                if has != Some(latest) {
                    return Err(format!("page {page} is {has:?} of {latest}"));
                }
            }
            Contents::Kept(_) | Contents::First => {
                let restored = match verdict.contents {
                    Contents::Kept(_) => owner.kept[page].ok_or("kept by nobody")?.written,
                    _ => 0,
                };
                self.nobody_has(page)?;
                if (lived || !self.is_mirrored) && restored != latest {
                    return Err(format!("{restored} of {latest}, with {holders:?}"));
                }
                self.latest[page] = restored;
                self.restored += 1;
            }
            Contents::Lost { .. } => {
                self.nobody_has(page)?;
                if self.is_mirrored || lived {
                    return Err(format!("page {page} is lost, with {holders:?}"));
                }
                self.losses += u32::from(!self.lost[page]);
                self.lost[page] = true;
                self.was_lost[page] = true;
            }
        }
        Ok(())
    }

    fn nobody_has(&self, page: usize) -> Result<(), String> {
        let has = |one: &&Member| one.bytes[page].is_some();
        match self.living().find(has) {
            Some(member) => Err(format!("{} has page {page}", member.own)),
            None => Ok(()),
        }
    }

    /// A host has the verdicts: its threads ask again, and messages of now count.
    pub(super) fn resume(
        &mut self,
        host: Host,
        by: Host,
        verdicts: &[(usize, Verdict)],
    ) -> Result<(), String> {
        for (page, verdict) in verdicts {
            let effects = self.member(host).at(*page, None, |page| {
                let resumed = page.resume(by, verdict);
                resumed.map_err(|violation| format!("an honest home: {violation}"))
            })?;
            self.follow(host, effects)?;
        }
        let member = self.member(host);
        member.members.resume();
        let is_written = member.pages.iter().any(crate::coherence::Page::is_written);
        let has_backup = member.members.view().backup_of(host).is_some();
        if let Some(mirror) = &mut member.mirror {
            mirror.resume();
            if self.mirrors_again && is_written && has_backup {
                let mut effects = Vec::new();
                self.member(host).parcel(Vec::new(), None, &mut effects)?;
                self.follow(host, effects)?;
            }
        }
        self.deliver_kept(host)
    }

    /// What may happen besides.
    pub(super) fn chances(&self, forgets: bool) -> Vec<super::world::Action> {
        use super::world::Action;
        let mut all = Vec::new();
        for member in self.living() {
            for (at, page) in member.pages.iter().enumerate() {
                let wanted = page.wanted();
                let faults: &[Access] = match page.allowed() {
                    Some(Access::Write) => &[],
                    Some(Access::Read) => &[Access::Write],
                    None => &[Access::Read, Access::Write],
                };
                // A second thread that waits for the same changes nothing.
                let new = faults.iter().filter(|access| wanted != Some(**access));
                all.extend(new.map(|access| Action::Fault(member.own, at, *access)));
                if page.allowed() == Some(Access::Write) {
                    all.push(Action::Write(member.own, at));
                }
                if page.is_borrowed() {
                    all.push(Action::Expire(member.own, at));
                }
                if forgets && page.clone().forget() {
                    all.push(Action::Forget(member.own, at));
                }
            }
        }
        all
    }
}
