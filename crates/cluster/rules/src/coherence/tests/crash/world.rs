//! The world: hosts, a control plane, messages in any order.

use alloc::vec::Vec;
use alloc::{format, string::String};
use core::hash::{Hash, Hasher};

use farpage_object::Access;

use super::flying::{Flying, What};
use super::laws::is_before;
use super::locker::Locker;
use super::member::{Effect, Member};
use crate::coherence::{Host, Hosts, Message, Receipt, View};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    Fault(Host, usize, Access),
    /// A thread writes where it may.
    Write(Host, usize),
    LetGo(Host, usize),
    /// A thread begins to lock the pages from one to before another.
    Lock(Host, Access, (usize, usize)),
    /// It has them all, and gives them back.
    Unlock(Host),
    Forget(Host, usize),
    /// Which of the messages that are on their way.
    Deliver(usize),
    /// A host hears of the next view.
    Hear(Host),
    /// The backup's word that parcels have arrived reaches their sender.
    Arrived(Host),
    Crash(Host),
    /// It comes back with nothing.
    Join(Host),
    /// The time of a lent copy is over.
    Expire(Host, usize),
    /// A lost page gets new contents.
    Reset(Host, usize),
    /// A host hears that nobody is to write a page any more.
    Seal(Host, usize),
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) members: Vec<Option<Member>>,
    /// All that there have been.
    pub(super) views: Vec<View>,
    pub(super) flying: Vec<Flying>,
    /// How often each page was written, but for what nobody has seen who lives.
    pub(super) latest: Vec<u32>,
    pub(super) lost: Vec<bool>,
    pub(super) was_lost: Vec<bool>,
    /// Some host has heard that nobody is to write it any more.
    pub(super) sealed: Vec<bool>,
    /// Who has each page, or had it on the way between them, since so many views.
    pub(super) holders: Vec<(Hosts, usize)>,
    pub(super) is_mirrored: bool,
    /// After a death all that is only on one host is mirrored at once.
    pub(super) mirrors_again: bool,
    pub(super) sent: u64,
    pub(super) hops_max: u8,
    /// Pages that were locked.
    pub(super) locked: u64,
    pub(super) losses: u32,
    pub(super) restored: u32,
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.members, self.views.last(), &self.latest, &self.lost).hash(state);
        for (hosts, since) in &self.holders {
            (hosts, self.have_lived(*hosts, *since)).hash(state);
        }
        // Their order does not matter, but for that of parcels.
        let mut flying: Vec<u64> = self.flying.iter().map(|one| self.hash_of(one)).collect();
        flying.sort_unstable();
        flying.hash(state);
    }
}

impl World {
    pub(super) fn new(hosts: u8, pages: usize, is_mirrored: bool) -> Self {
        let living = Hosts::all((0..hosts).map(Host));
        let view = View {
            generation: crate::coherence::Generation(0),
            living,
            home: Host(0),
        };
        let member = |own| Some(Member::new(Host(own), view, pages, is_mirrored));
        Self {
            members: (0..hosts).map(member).collect(),
            views: [view].into(),
            flying: Vec::new(),
            latest: alloc::vec![0; pages],
            lost: alloc::vec![false; pages],
            was_lost: alloc::vec![false; pages],
            sealed: alloc::vec![false; pages],
            holders: alloc::vec![(Hosts::of(Host(0)), 0); pages],
            is_mirrored,
            mirrors_again: false,
            sent: 0,
            hops_max: 0,
            locked: 0,
            losses: 0,
            restored: 0,
        }
    }

    fn hash_of(&self, flying: &Flying) -> u64 {
        let mut hasher = std::hash::DefaultHasher::new();
        match &flying.what {
            // Only which is earlier counts.
            What::Parcel {
                number,
                pages,
                then,
            } => {
                let before = self
                    .flying
                    .iter()
                    .filter(|one| is_before(one, flying, *number));
                (flying.from, flying.to, flying.generation).hash(&mut hasher);
                (before.count(), pages, then).hash(&mut hasher);
            }
            What::About(_) | What::Marker(_) | What::Reports(..) | What::Verdicts(..) => {
                flying.hash(&mut hasher);
            }
        }
        hasher.finish()
    }

    pub(super) fn living(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().flatten()
    }

    pub(super) fn member(&mut self, host: Host) -> &mut Member {
        self.members[usize::from(host.0)]
            .as_mut()
            .expect("it lives")
    }

    pub(super) fn view(&self) -> View {
        *self.views.last().expect("there is one")
    }

    fn has_heard_all(&self, member: &Member) -> bool {
        member.members.view() == self.view()
    }

    /// True when no death is being dealt with.
    pub(super) fn is_calm(&self) -> bool {
        let rests = |one: &Member| self.has_heard_all(one) && !one.members.is_frozen();
        let parcel = |one: &Flying| matches!(one.what, What::Parcel { then: None, .. });
        self.living().all(rests) && !self.flying.iter().any(parcel)
    }

    /// What must happen sooner or later.
    pub(super) fn due(&self) -> Vec<Action> {
        let mut due = Vec::new();
        for member in self.living() {
            let held = (0..member.pages.len()).filter(|page| member.pages[*page].is_held());
            due.extend(held.map(|page| Action::LetGo(member.own, page)));
            if member.locker.is_some_and(Locker::is_done) {
                due.push(Action::Unlock(member.own));
            }
            if !self.has_heard_all(member) {
                due.push(Action::Hear(member.own));
            }
            if member.arrived.is_some() {
                due.push(Action::Arrived(member.own));
            }
        }
        let first = |at: &usize| {
            let one = &self.flying[*at];
            match one.what {
                What::Parcel { number, .. } => !self
                    .flying
                    .iter()
                    .any(|other| is_before(other, one, number)),
                What::About(_) | What::Marker(_) | What::Reports(..) | What::Verdicts(..) => {
                    // The same message twice is one choice.
                    !self.flying[..*at].contains(one)
                }
            }
        };
        due.extend((0..self.flying.len()).filter(first).map(Action::Deliver));
        due
    }

    /// Does it, and says which law is broken then.
    pub(super) fn act(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Fault(host, page, access) => self.at(host, page, |page| page.fault(access))?,
            Action::Write(host, page) => self.write(host, page),
            Action::LetGo(host, page) => self.at(host, page, crate::coherence::Page::let_go)?,
            Action::Lock(host, access, pages) => self.begin(host, access, pages)?,
            Action::Unlock(host) => self.unlock(host)?,
            Action::Forget(host, page) => self.at(host, page, |page| {
                page.forget();
            })?,
            Action::Expire(host, page) => self.at(host, page, crate::coherence::Page::expire)?,
            Action::Reset(host, page) => self.reset(host, page)?,
            Action::Seal(host, page) => {
                self.sealed[page] = true;
                self.at(host, page, crate::coherence::Page::seal)?;
            }
            Action::Deliver(at) => {
                let flying = self.flying.remove(at);
                self.deliver(flying)?;
            }
            Action::Hear(host) => self.hear(host)?,
            Action::Arrived(host) => {
                let member = self.member(host);
                let arrived = member.arrived.take().expect("some have");
                let mirror = member.mirror.as_mut().expect("it is mirrored");
                mirror.arrived(arrived);
            }
            Action::Crash(host) => {
                self.members[usize::from(host.0)] = None;
                self.flying.retain(|one| one.to != host);
                let living = self.view().living.less(Hosts::of(host));
                self.views.push(self.view().next(living));
            }
            Action::Join(host) => {
                let mut living = self.view().living;
                living.add(host);
                let view = self.view().next(living);
                self.views.push(view);
                let new = Member::new(host, view, self.latest.len(), self.is_mirrored);
                self.members[usize::from(host.0)] = Some(new);
            }
        }
        self.check()
    }

    pub(super) fn at(
        &mut self,
        host: Host,
        page: usize,
        act: impl FnOnce(&mut crate::coherence::Page),
    ) -> Result<(), String> {
        let effects = self.member(host).at(page, None, |page| {
            act(page);
            Ok(())
        })?;
        self.follow(host, effects)
    }

    fn reset(&mut self, host: Host, page: usize) -> Result<(), String> {
        self.latest[page] += 1;
        self.lost[page] = false;
        let latest = self.latest[page];
        let member = self.member(host);
        member.knows[page] = latest;
        let past = member.knows;
        member.bytes[page] = Some(super::flying::Bytes {
            written: latest,
            past,
        });
        self.at(host, page, |page| assert!(page.reset()))
    }

    pub(super) fn follow(&mut self, host: Host, effects: Vec<Effect>) -> Result<(), String> {
        for effect in effects {
            match effect {
                Effect::Send(to, what) => self.send(host, to, what),
                Effect::Answered(page, access) => {
                    self.check()?;
                    if access == Access::Write {
                        self.write(host, page);
                    }
                    self.step(host, page)?;
                }
                // It may have new contents since the answer was sent.
                Effect::Lost(page) if !self.was_lost[page] => {
                    return Err(format!("page {page} was never lost"));
                }
                Effect::Lost(page) => self.give_up(host, page)?,
                Effect::Sealed(page) if self.sealed[page] => self.give_up(host, page)?,
                Effect::Sealed(page) => return Err(format!("page {page} is not sealed")),
            }
        }
        Ok(())
    }

    fn write(&mut self, host: Host, page: usize) {
        self.latest[page] += 1;
        let written = self.latest[page];
        let member = self.member(host);
        member.knows[page] = written;
        let past = member.knows;
        member.bytes[page] = Some(super::flying::Bytes { written, past });
    }

    /// True when none of these hosts has died since so many views.
    pub(super) fn have_lived(&self, hosts: Hosts, since: usize) -> bool {
        let mut views = self.views[since..].iter();
        views.all(|view| view.living.has_all(hosts))
    }

    /// As `by` sees it: it may not have heard who died.
    pub(super) fn holds(&mut self, by: Host, page: usize, hosts: Hosts) {
        let since = self.member(by).members.view().generation;
        self.holders[page] = (hosts, since.0 as usize);
    }

    fn send(&mut self, from: Host, to: Host, what: What) {
        let about = match &what {
            What::About(about) => Some(about),
            What::Parcel { then, .. } => then.as_ref(),
            What::Marker(_) | What::Reports(..) | What::Verdicts(..) => None,
        };
        if let Some(about) = about
            && let Message::Own { .. } = about.message
        {
            let (page, on_the_way) = (about.page, [about.origin, from, to, about.to]);
            self.holds(from, page, Hosts::all(on_the_way));
        }
        let member = self.member(from);
        let generation = match &what {
            What::About(about) => {
                if let Message::Request(request) = &about.message {
                    let hops = request.hops;
                    self.hops_max = self.hops_max.max(hops);
                }
                self.sent += 1;
                self.member(from).members.send(to)
            }
            What::Parcel { .. } => {
                self.sent += 1;
                self.member(from).members.send(to)
            }
            What::Marker(_) | What::Reports(..) | What::Verdicts(..) => {
                Some(member.members.view().generation)
            }
        };
        // What goes to the dead is lost.
        if let Some(generation) = generation
            && self.members[usize::from(to.0)].is_some()
        {
            self.flying.push(Flying {
                from,
                to,
                generation,
                what,
            });
        }
    }

    fn deliver(&mut self, flying: Flying) -> Result<(), String> {
        let (host, from) = (flying.to, flying.from);
        let member = self.member(host);
        match &flying.what {
            What::About(_) | What::Parcel { .. } => match member.receipt(&flying) {
                Receipt::Refuse => return Ok(()),
                Receipt::Keep => {
                    member.inbox.push(flying);
                    return Ok(());
                }
                Receipt::Take => {
                    let number = match &flying.what {
                        What::Parcel { number, .. } => Some(*number),
                        What::About(_)
                        | What::Marker(_)
                        | What::Reports(..)
                        | What::Verdicts(..) => None,
                    };
                    let taken = match &flying.what {
                        What::About(about) => Some(about),
                        What::Parcel { then, .. } => then.as_ref(),
                        What::Marker(_) | What::Reports(..) | What::Verdicts(..) => None,
                    };
                    let taken = taken.filter(|about| {
                        about.to == host && matches!(about.message, Message::Own { .. })
                    });
                    let page = taken.map(|about| about.page);
                    let effects = member.take(flying)?;
                    if let Some(page) = page {
                        self.holds(host, page, Hosts::of(host));
                    }
                    if let Some(sender) = &mut self.members[usize::from(from.0)] {
                        sender.arrived = number.or(sender.arrived);
                    }
                    self.follow(host, effects)?;
                }
            },
            What::Marker(marker) => {
                let marked = member.members.marked(from, marker.0);
                marked.map_err(|violation| format!("{violation}"))?;
            }
            What::Reports(fence, reports) => match *fence == member.members.fence() {
                true => {
                    member.reports.insert(from, reports.clone());
                }
                false if *fence > member.members.fence() => member.inbox.push(flying),
                false => {}
            },
            What::Verdicts(fence, verdicts) => {
                if *fence == member.members.fence() && member.members.is_frozen() {
                    let verdicts = verdicts.clone();
                    self.resume(host, from, &verdicts)?;
                }
            }
        }
        self.recover(host)
    }

    fn hear(&mut self, host: Host) -> Result<(), String> {
        let heard = self.member(host).members.view().generation.0 as usize;
        let view = self.views[heard + 1];
        let effects = self.member(host).hear(view)?;
        self.follow(host, effects)?;
        self.deliver_kept(host)?;
        self.recover(host)
    }

    pub(super) fn deliver_kept(&mut self, host: Host) -> Result<(), String> {
        for flying in core::mem::take(&mut self.member(host).inbox) {
            self.deliver(flying)?;
        }
        Ok(())
    }

    /// A host reports when all of before has come, and the home decides when all have reported.
    fn recover(&mut self, host: Host) -> Result<(), String> {
        let member = self.member(host);
        if !member.members.is_frozen() || !member.members.is_drained() {
            return Ok(());
        }
        let (view, fence) = (member.members.view(), member.members.fence());
        if !member.reported {
            let reports = member.report();
            match view.home == host {
                true => {
                    member.reports.insert(host, reports);
                }
                false => self.send(host, view.home, What::Reports(fence, reports)),
            }
        }
        // Who has come since has nothing to report.
        let asked = self.views[fence.0 as usize].living;
        let reported = self.member(host).reports.len();
        if view.home != host || reported < asked.count() as usize {
            return Ok(());
        }
        let verdicts = self.decide(host)?;
        for other in asked.less(Hosts::of(host)).iter() {
            self.send(host, other, What::Verdicts(fence, verdicts.clone()));
        }
        self.resume(host, host, &verdicts)
    }
}
