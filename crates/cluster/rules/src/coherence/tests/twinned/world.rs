//! Hosts with a few pages of which each host writes a word of its own, and the law: what is read after an
//! acquire has all that was released before.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use alloc::{format, string::String, vec};

use farpage_object::Access;

use crate::coherence::{Contents, Host, Known, Output, Recovery, Verdict, page::allows};
use crate::coherence::{TwinMessage, TwinOutput, Twinned};

/// A page: a word of each host, which counts what that has written to it.
type Words = Vec<u8>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Member {
    page: Twinned,
    contents: Option<Words>,
    twin: Option<Words>,
    /// The diff that is kept until it is confirmed.
    kept: Option<Words>,
    can: Option<Access>,
    /// Diffs that are being put in.
    applying: BTreeMap<u64, Words>,
    /// How often this host has written to it.
    written: u8,
    /// What it must see of each host.
    must: Words,
    wanted_by_release: Option<u64>,
    wanted_by_acquire: Option<u64>,
}

/// What comes with a message: a page, or of a diff the words that differ, others are 0.
pub(super) type Flying = (Host, Host, usize, TwinMessage, Option<Words>, u8);

/// A release, or an acquire, of all pages of a host that has not ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Call {
    /// What it is about of each page: what was written, or what must be seen.
    of: Vec<Words>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Way {
    Lives,
    Frozen,
    Dead,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    Fault(Host, usize, Access),
    Write(Host, usize),
    Release(Host),
    Acquire(Host),
    TakeOver(Host, usize),
    Forget(Host, usize),
    LetGo(Host, usize),
    Applied(Host, usize, u64),
    Deliver(Flying),
    Dies(Host),
    Freeze(Host),
    Resume(Host),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    hosts: u8,
    pages: usize,
    members: Vec<Vec<Member>>,
    releases: Vec<Option<Call>>,
    acquires: Vec<Option<Call>>,
    flying: BTreeMap<Flying, u8>,
    /// Of each page and host, what releases that have ended have told.
    released: Vec<Words>,
    ways: Vec<Way>,
    generations: Vec<u8>,
    generation: u8,
    verdicts: Vec<Verdict>,
    /// Its owner has died, and may not have given it to another.
    may_be_lost: Vec<bool>,
    lost: Vec<bool>,
    pub(super) sent: u32,
}

impl World {
    /// Host 0 owns all pages.
    pub(super) fn new(hosts: u8, pages: usize) -> Self {
        let zeros = vec![0; usize::from(hosts)];
        let member = |own: u8| {
            let page = Twinned::new(Host(own), Host(0));
            Member {
                can: page.allowed(),
                page,
                contents: (own == 0).then(|| zeros.clone()),
                twin: None,
                kept: None,
                applying: BTreeMap::new(),
                written: 0,
                must: zeros.clone(),
                wanted_by_release: None,
                wanted_by_acquire: None,
            }
        };
        Self {
            hosts,
            pages,
            members: (0..hosts).map(|own| vec![member(own); pages]).collect(),
            releases: vec![None; usize::from(hosts)],
            acquires: vec![None; usize::from(hosts)],
            flying: BTreeMap::new(),
            released: vec![zeros; pages],
            ways: vec![Way::Lives; usize::from(hosts)],
            generations: vec![0; usize::from(hosts)],
            generation: 0,
            verdicts: Vec::new(),
            may_be_lost: vec![false; pages],
            lost: vec![false; pages],
            sent: 0,
        }
    }

    fn living(&self) -> impl Iterator<Item = Host> + use<'_> {
        (0..self.hosts)
            .map(Host)
            .filter(|host| self.way(*host) != Way::Dead)
    }

    fn way(&self, host: Host) -> Way {
        self.ways[usize::from(host.0)]
    }

    fn at(&self, host: Host, page: usize) -> &Member {
        &self.members[usize::from(host.0)][page]
    }

    fn member(&mut self, host: Host, page: usize) -> &mut Member {
        &mut self.members[usize::from(host.0)][page]
    }

    fn places(&self) -> Vec<(Host, usize)> {
        let pages = self.pages;
        self.living()
            .flat_map(|host| (0..pages).map(move |page| (host, page)))
            .collect()
    }

    /// True when a message may come to its receiver now.
    fn may_come(&self, (from, to, .., generation): &Flying) -> bool {
        let now = self.generations[usize::from(to.0)];
        match self.way(*to) {
            Way::Lives => *generation <= now,
            // Of the dead nothing counts any more.
            Way::Frozen => *generation < now && self.way(*from) != Way::Dead,
            Way::Dead => false,
        }
    }

    /// What must happen sooner or later.
    pub(super) fn due(&self) -> Vec<Action> {
        let mut all = Vec::new();
        for (host, page) in self.places() {
            let member = self.at(host, page);
            if member.page.is_held() && self.way(host) == Way::Lives {
                all.push(Action::LetGo(host, page));
            }
            let applying = member.applying.keys();
            all.extend(applying.map(|apply| Action::Applied(host, page, *apply)));
        }
        let come = self.flying.keys().filter(|one| self.may_come(one));
        all.extend(come.cloned().map(Action::Deliver));
        let generation = self.generation;
        let behind = |host: &Host| self.generations[usize::from(host.0)] < generation;
        let behind: Vec<Host> = self.living().filter(behind).collect();
        let is_drained = !self.flying.keys().any(|(from, to, .., of)| {
            *of < generation && self.way(*from) != Way::Dead && self.way(*to) != Way::Dead
        });
        if behind.is_empty() && (is_drained || !self.verdicts.is_empty()) {
            let frozen = self.living().filter(|host| self.way(*host) == Way::Frozen);
            all.extend(frozen.map(Action::Resume));
        }
        all.extend(behind.into_iter().map(Action::Freeze));
        all
    }

    /// What may happen besides.
    pub(super) fn chances(&self) -> Vec<Action> {
        let mut all = Vec::new();
        for (host, page) in self.places() {
            let member = self.at(host, page);
            let faults = [Access::Read, Access::Write].into_iter().filter(|access| {
                !allows(member.can, *access) && member.page.wanted() != Some(*access)
            });
            all.extend(faults.map(|access| Action::Fault(host, page, access)));
            if member.can == Some(Access::Write) {
                all.push(Action::Write(host, page));
            }
            if self.way(host) == Way::Lives && member.page.clone().forget() {
                all.push(Action::Forget(host, page));
            }
            if !member.page.is_owner() && self.way(host) == Way::Lives {
                all.push(Action::TakeOver(host, page));
            }
        }
        for host in self.living() {
            if self.releases[usize::from(host.0)].is_none() {
                all.push(Action::Release(host));
            }
            if self.acquires[usize::from(host.0)].is_none() {
                all.push(Action::Acquire(host));
            }
        }
        all
    }

    /// True when nobody comes to terms with a death any more.
    pub(super) fn is_calm(&self) -> bool {
        let is_calm = |host: &Host| {
            self.way(*host) == Way::Lives
                && self.generations[usize::from(host.0)] == self.generation
        };
        self.living().all(|host| is_calm(&host))
    }

    pub(super) fn lives(&self, host: Host) -> bool {
        host.0 < self.hosts && self.way(host) != Way::Dead
    }

    pub(super) fn count(&self) -> usize {
        self.living().count()
    }

    /// Does it, and says which law is broken then.
    pub(super) fn act(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Fault(host, page, access) => self.does(host, page, |one| one.fault(access))?,
            Action::Write(host, page) => self.writes(host, page),
            Action::LetGo(host, page) => self.does(host, page, Twinned::let_go)?,
            Action::Forget(host, page) => self.does(host, page, |one| {
                one.forget();
            })?,
            Action::TakeOver(host, page) => self.does(host, page, Twinned::take_over)?,
            Action::Applied(host, page, apply) => {
                let member = self.member(host, page);
                let diff = member.applying.remove(&apply).expect("it is being put in");
                let Some(contents) = &mut member.contents else {
                    return Err("a diff for a page that has gone".into());
                };
                for (word, changed) in contents.iter_mut().zip(diff) {
                    *word = if changed == 0 { *word } else { changed };
                }
                self.does(host, page, |one| one.applied(apply))?;
            }
            Action::Release(host) => {
                let written = self.members[usize::from(host.0)].iter();
                let of = written.map(|member| vec![member.written]).collect();
                self.releases[usize::from(host.0)] = Some(Call { of });
                for page in 0..self.pages {
                    let number = self.member(host, page).page.release();
                    self.member(host, page).wanted_by_release = number;
                    self.does(host, page, |_| {})?;
                }
            }
            Action::Acquire(host) => {
                let of = self.released.clone();
                self.acquires[usize::from(host.0)] = Some(Call { of });
                for page in 0..self.pages {
                    let number = self.member(host, page).page.acquire();
                    self.member(host, page).wanted_by_acquire = number;
                    self.does(host, page, |_| {})?;
                }
            }
            Action::Deliver(one) => self.deliver(one)?,
            Action::Dies(host) => self.dies(host),
            Action::Freeze(host) => self.freeze(host)?,
            Action::Resume(host) => self.resume(host)?,
        }
        self.ends_calls();
        self.check()
    }

    fn writes(&mut self, host: Host, page: usize) {
        let member = self.member(host, page);
        if member.can == Some(Access::Write) {
            member.written += 1;
            let contents = member.contents.as_mut().expect("who may write has it");
            contents[usize::from(host.0)] = member.written;
        }
    }

    fn does(
        &mut self,
        host: Host,
        page: usize,
        act: impl FnOnce(&mut Twinned),
    ) -> Result<(), String> {
        act(&mut self.member(host, page).page);
        self.drain(host, page, None)
    }

    fn deliver(&mut self, one: Flying) -> Result<(), String> {
        let left = self.flying.get_mut(&one).expect("it is on its way");
        *left -= 1;
        if *left == 0 {
            self.flying.remove(&one);
        }
        let (from, to, page, message, came, _) = one;
        let handled = self.member(to, page).page.handle(from, message);
        handled.map_err(|violation| format!("{violation}: {message:?}"))?;
        self.drain(to, page, came)
    }

    fn drain(&mut self, host: Host, page: usize, mut came: Option<Words>) -> Result<(), String> {
        let word = usize::from(host.0);
        while let Some(output) = self.member(host, page).page.poll_output() {
            match output {
                TwinOutput::As(output) => self.does_as(host, page, output, &mut came)?,
                TwinOutput::Send(to, message) => {
                    let contents = message
                        .has_contents()
                        .then(|| self.at(host, page).contents.clone());
                    let Some(contents) = contents.map_or(Some(None), |some| some.map(Some)) else {
                        return Err(format!("{message:?} without contents"));
                    };
                    self.send(host, to, page, message, contents);
                }
                TwinOutput::Twin => {
                    let member = self.member(host, page);
                    if member.can == Some(Access::Write) || member.contents.is_none() {
                        return Err("a twin of what is written to, or is nowhere".into());
                    }
                    member.twin = member.contents.clone();
                }
                TwinOutput::Diff { to, number } => {
                    let member = self.member(host, page);
                    if member.can == Some(Access::Write) {
                        return Err("a diff of what is written to".into());
                    }
                    let (Some(twin), Some(contents)) = (member.twin.take(), &member.contents)
                    else {
                        return Err("a diff without a twin".into());
                    };
                    let both = twin.iter().zip(contents);
                    let diff: Words = both
                        .map(|(was, is)| if was == is { 0 } else { *is })
                        .collect();
                    if diff
                        .iter()
                        .enumerate()
                        .any(|(at, one)| *one != 0 && at != word)
                    {
                        return Err(format!("{diff:?} of others"));
                    }
                    if diff[word] == 0 {
                        member.page.unchanged();
                        continue;
                    }
                    member.kept = Some(diff.clone());
                    self.send(host, to, page, TwinMessage::Diff { number }, Some(diff));
                }
                TwinOutput::Again { to, number } => {
                    let diff = self.at(host, page).kept.clone();
                    let diff = diff.ok_or("nothing is kept")?;
                    self.send(host, to, page, TwinMessage::Diff { number }, Some(diff));
                }
                TwinOutput::Apply(apply) => {
                    let diff = came.take().ok_or("no diff came")?;
                    self.member(host, page).applying.insert(apply, diff);
                }
                TwinOutput::DiffLost if self.lost[page] => {
                    self.member(host, page).twin = None;
                }
                TwinOutput::DiffLost => return Err("a diff is lost, the page is not".into()),
            }
        }
        Ok(())
    }

    fn does_as(
        &mut self,
        host: Host,
        page: usize,
        output: Output,
        came: &mut Option<Words>,
    ) -> Result<(), String> {
        let is_lost = self.lost[page];
        let member = self.member(host, page);
        match output {
            Output::Take => member.contents = Some(came.take().ok_or("nothing came")?),
            Output::Allow(access) => {
                member.can = access;
                if access.is_none() {
                    (member.contents, member.twin) = (None, None);
                }
                if access.is_some() && member.contents.is_none() {
                    return Err("access to nothing".into());
                }
            }
            Output::Withdraw if member.can != Some(Access::Write) => member.can = None,
            Output::Answer(access) => {
                if !allows(member.can, access) {
                    return Err(format!("{:?}, and {access:?} is answered", member.can));
                }
                self.check()?;
                if access == Access::Write {
                    self.writes(host, page);
                }
            }
            Output::Lost if is_lost => {}
            other => return Err(format!("{other:?}")),
        }
        Ok(())
    }

    fn send(
        &mut self,
        from: Host,
        to: Host,
        page: usize,
        message: TwinMessage,
        contents: Option<Words>,
    ) {
        self.sent += 1;
        // Who leaves gives it to one that has died just then.
        let is_own = matches!(message, TwinMessage::Own { .. });
        self.may_be_lost[page] |= is_own && self.way(to) == Way::Dead;
        let generation = self.generations[usize::from(from.0)];
        if self.way(to) != Way::Dead || generation < self.generation {
            let one = (from, to, page, message, contents, generation);
            *self.flying.entry(one).or_default() += 1;
        }
    }

    fn dies(&mut self, host: Host) {
        self.generation += 1;
        self.ways[usize::from(host.0)] = Way::Dead;
        self.verdicts.clear();
        self.releases[usize::from(host.0)] = None;
        self.acquires[usize::from(host.0)] = None;
        self.flying.retain(|(_, to, ..), _| *to != host);
        for page in 0..self.pages {
            let owns = |one: Host| self.at(one, page).page.has_to_give();
            let comes = |(from, _, of, message, ..): &Flying| {
                *of == page && *from != host && matches!(message, TwinMessage::Own { .. })
            };
            let survives = self.living().any(owns) || self.flying.keys().any(comes);
            self.may_be_lost[page] |= !survives;
        }
    }

    fn freeze(&mut self, host: Host) -> Result<(), String> {
        for page in 0..self.pages {
            self.does(host, page, Twinned::give_up_copy)?;
            self.member(host, page).page.freeze();
        }
        self.ways[usize::from(host.0)] = Way::Frozen;
        self.generations[usize::from(host.0)] = self.generation;
        let ways = &self.ways;
        // What the dead had sent and has not come does not.
        self.flying
            .retain(|(from, to, ..), _| *to != host || ways[usize::from(from.0)] != Way::Dead);
        Ok(())
    }

    fn resume(&mut self, host: Host) -> Result<(), String> {
        let home = self.living().next().expect("somebody lives");
        if self.verdicts.is_empty() {
            for page in 0..self.pages {
                let mut recovery = Recovery::new(home);
                for other in self.living() {
                    let added = recovery.add(other, self.at(other, page).page.report());
                    added.map_err(|violation| format!("{violation}"))?;
                }
                let verdict = recovery.verdict(Known::Nothing);
                let is_lost = matches!(verdict.contents, Contents::Lost { .. });
                if is_lost && !self.may_be_lost[page] || !is_lost && self.lost[page] {
                    return Err(format!(
                        "page {page}: {verdict:?}, and lost: {:?}",
                        self.lost
                    ));
                }
                self.lost[page] = is_lost;
                self.may_be_lost[page] = is_lost;
                self.verdicts.push(verdict);
            }
        }
        self.ways[usize::from(host.0)] = Way::Lives;
        for page in 0..self.pages {
            let verdict = self.verdicts[page];
            let resumed = self.member(host, page).page.resume(home, &verdict);
            resumed.map_err(|violation| format!("{violation}"))?;
            self.drain(host, page, None)?;
        }
        Ok(())
    }

    fn ends_calls(&mut self) {
        for host in (0..self.hosts).map(Host) {
            let at = usize::from(host.0);
            let pages = self.members[at].iter();
            let has_released = pages.clone().all(|one| {
                one.wanted_by_release
                    .is_none_or(|number| one.page.has_released(number))
            });
            let has_acquired = pages.clone().all(|one| {
                one.wanted_by_acquire
                    .is_none_or(|number| one.page.has_acquired(number))
            });
            if has_released && let Some(call) = self.releases[at].take() {
                for (page, words) in call.of.iter().enumerate() {
                    let released = &mut self.released[page][at];
                    *released = (*released).max(words[0]);
                }
            }
            if has_acquired && let Some(call) = self.acquires[at].take() {
                for (page, words) in call.of.iter().enumerate() {
                    let must = &mut self.members[at][page].must;
                    must.iter_mut()
                        .zip(words)
                        .for_each(|(must, one)| *must = (*must).max(*one));
                }
            }
        }
    }

    /// Whoever may read has all that it must see, and what it wrote itself; and at rest nobody waits.
    fn check(&self) -> Result<(), String> {
        for (host, page) in self.places() {
            let member = self.at(host, page);
            let Some(contents) = &member.contents else {
                continue;
            };
            if member.can.is_none() || self.lost[page] {
                continue;
            }
            let own = contents[usize::from(host.0)];
            if own != member.written {
                return Err(format!(
                    "{host} has {own} of its {} in page {page}",
                    member.written
                ));
            }
            if contents
                .iter()
                .zip(&member.must)
                .any(|(is, must)| is < must)
            {
                let must = &member.must;
                return Err(format!(
                    "{host} sees {contents:?} of {must:?} in page {page}"
                ));
            }
        }
        Ok(())
    }

    /// At rest nobody waits, and each page has one owner.
    pub(super) fn check_rest(&self) -> Result<(), String> {
        for (host, page) in self.places() {
            if self.at(host, page).page.wanted().is_some() {
                return Err(format!("a thread of {host} waits for nothing"));
            }
        }
        if self
            .releases
            .iter()
            .chain(&self.acquires)
            .any(Option::is_some)
        {
            return Err("a release or an acquire does not end".into());
        }
        for page in 0..self.pages {
            let owns = |host: &Host| self.at(*host, page).page.is_owner();
            let owners = self.living().filter(owns).count();
            if owners != 1 {
                return Err(format!("page {page} has {owners} owners"));
            }
        }
        Ok(())
    }
}
