//! Hosts with one page, messages in any order, and the laws.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use alloc::{format, string::String};

use farpage_object::Access;

use super::check_said;
use crate::coherence::page::allows;
use crate::coherence::{Host, Message, Output, Page};

/// A request that was sent on so often does not arrive.
const HOPS_MAX: u8 = 100;

/// The page's contents: how often it had been written.
type Version = u32;

type Time = u16;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Member {
    page: Page,
    contents: Option<Version>,
    /// What tasks can do now: what the page allows, once its shell has come so far.
    can: Option<Access>,
    /// What the shell has yet to do. Nothing else happens to the page here until it has.
    todo: VecDeque<Output>,
    /// The contents that came with the last message.
    came: Option<Version>,
    /// It knows that nobody is to write any more.
    is_sealed: bool,
    /// When it asked for what it has, or is to have.
    asked_at: Time,
    /// What it has locked: each once.
    locks: Vec<Access>,
}

/// A message on its way: from, to, what, and the contents.
pub(super) type Flying = (Host, Host, Message, Option<Version>);

/// What happens next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    Fault(Host, Access),
    Deliver(Flying),
    LetGo(Host),
    Lock(Host, Access),
    Unlock(Host, Access),
    Forget(Host),
    /// A host hears that nobody is to write any more.
    Seal(Host),
    /// The time of a lent copy is over.
    Expire(Host),
    /// Time goes on.
    Tick,
    /// The shell does the next thing.
    Does(Host),
}

/// How hosts deal with the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Plain,
    Migrates,
    /// Migrates, and may be sealed.
    Sealed,
    /// Copies are lent for so long.
    Lent(Time),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    members: Vec<Member>,
    flying: BTreeMap<Flying, u32>,
    written: Version,
    /// The page may be sealed.
    may_seal: bool,
    may_lock: bool,
    /// So long copies are lent.
    lent_for: Option<Time>,
    now: Time,
    /// When each version was the last no more.
    superseded: Vec<Time>,
    /// How often it was written when somebody first knew for certain that nobody does any more.
    finally: Option<Version>,
    pub(super) sent: u32,
    pub(super) hops_max: u8,
}

impl World {
    /// Host 0 owns the page.
    pub(super) fn new(hosts: u8, way: Way) -> Self {
        let members = (0..hosts).map(|own| {
            let page = Page::new(Host(own), Host(0));
            Member {
                can: page.allowed(),
                page: match way {
                    Way::Plain => page,
                    Way::Migrates | Way::Sealed => page.find_migration(),
                    Way::Lent(_) => page.lend(),
                },
                contents: (own == 0).then_some(0),
                todo: VecDeque::new(),
                came: None,
                is_sealed: false,
                asked_at: 0,
                locks: Vec::new(),
            }
        });
        Self {
            members: members.collect(),
            flying: BTreeMap::new(),
            written: 0,
            may_seal: way == Way::Sealed,
            may_lock: false,
            lent_for: match way {
                Way::Lent(time) => Some(time),
                Way::Plain | Way::Migrates | Way::Sealed => None,
            },
            now: 0,
            superseded: Vec::new(),
            finally: None,
            sent: 0,
            hops_max: 0,
        }
    }

    /// Hosts lock the page.
    pub(super) fn locking(self, may_lock: bool) -> Self {
        Self { may_lock, ..self }
    }

    pub(super) fn hosts(&self) -> impl Iterator<Item = Host> + use<> {
        (0..self.members.len() as u8).map(Host)
    }

    pub(super) fn page(&self, host: Host) -> &Page {
        &self.members[usize::from(host.0)].page
    }

    fn is_busy(&self, host: Host) -> bool {
        !self.members[usize::from(host.0)].todo.is_empty()
    }

    /// True when a host has had its copy for as long as it may.
    fn is_over(&self, host: Host) -> bool {
        let member = &self.members[usize::from(host.0)];
        let over = |time| member.page.is_borrowed() && member.asked_at + time <= self.now;
        self.lent_for.is_some_and(over)
    }

    fn member(&mut self, host: Host) -> &mut Member {
        &mut self.members[usize::from(host.0)]
    }

    /// What must happen sooner or later.
    pub(super) fn due(&self) -> Vec<Action> {
        let (busy, free): (Vec<Host>, Vec<Host>) =
            self.hosts().partition(|host| self.is_busy(*host));
        let held = free.iter().filter(|host| self.page(**host).is_held());
        let come = self.flying.keys().filter(|(_, to, ..)| free.contains(to));
        let does = busy.iter().copied().map(Action::Does);
        let expire = free.iter().copied().filter(|host| self.is_over(*host));
        let expire = expire.map(Action::Expire);
        let locked = free.iter().flat_map(|host| {
            let locks = self.members[usize::from(host.0)].locks.iter();
            locks.map(|access| Action::Unlock(*host, *access))
        });
        does.chain(expire)
            .chain(locked)
            .chain(held.copied().map(Action::LetGo))
            .chain(come.cloned().map(Action::Deliver))
            .collect()
    }

    /// What may happen besides.
    pub(super) fn chances(&self) -> Vec<Action> {
        let mut all = Vec::new();
        if self.lent_for.is_some() && !self.hosts().any(|host| self.is_over(host)) {
            all.push(Action::Tick);
        }
        for host in self.hosts().filter(|host| !self.is_busy(*host)) {
            let page = self.page(host);
            let can = [Access::Read, Access::Write].into_iter();
            let faults = can.filter(|access| match page.allowed() {
                Some(Access::Write) => false,
                Some(Access::Read) => *access == Access::Write,
                None => true,
            });
            // A second thread that waits for the same changes nothing.
            let new = faults.filter(|access| page.wanted() != Some(*access));
            all.extend(new.map(|access| Action::Fault(host, access)));
            if page.clone().forget() {
                all.push(Action::Forget(host));
            }
            if self.may_lock {
                let locks = &self.members[usize::from(host.0)].locks;
                let new = [Access::Read, Access::Write]
                    .into_iter()
                    .filter(|access| !locks.contains(access) && page.clone().lock(*access));
                all.extend(new.map(|access| Action::Lock(host, access)));
            }
            if self.may_seal && !self.members[usize::from(host.0)].is_sealed {
                all.push(Action::Seal(host));
            }
        }
        all
    }

    /// Does it, and says which law is broken then.
    pub(super) fn act(&mut self, action: Action) -> Result<(), String> {
        let host = match action {
            Action::Fault(host, access) => {
                self.member(host).page.fault(access);
                host
            }
            Action::LetGo(host) => {
                self.member(host).page.let_go();
                host
            }
            Action::Lock(host, access) => {
                let member = self.member(host);
                assert!(member.page.lock(access), "it was asked");
                member.locks.push(access);
                host
            }
            Action::Unlock(host, access) => {
                let member = self.member(host);
                member.page.unlock(access);
                member.locks.retain(|one| *one != access);
                host
            }
            Action::Forget(host) => {
                self.member(host).page.forget();
                host
            }
            Action::Seal(host) => {
                let member = self.member(host);
                member.page.seal();
                member.is_sealed = true;
                host
            }
            Action::Expire(host) => {
                self.member(host).page.expire();
                host
            }
            Action::Tick => {
                self.now += 1;
                return self.check();
            }
            Action::Deliver(one) => {
                let left = self.flying.get_mut(&one).expect("it is on its way");
                *left -= 1;
                if *left == 0 {
                    self.flying.remove(&one);
                }
                let (from, to, message, contents) = one;
                if let Message::Request(request) = &message {
                    self.hops_max = self.hops_max.max(request.hops);
                    if request.hops > HOPS_MAX {
                        return Err(format!("{request:?} goes round and round"));
                    }
                }
                let member = self.member(to);
                let handled = member.page.handle(from, message);
                handled.map_err(|violation| format!("an honest host: {violation}"))?;
                member.came = contents;
                to
            }
            Action::Does(host) => {
                let output = self.member(host).todo.pop_front();
                self.does(host, output.expect("it is busy"))?;
                host
            }
        };
        let member = self.member(host);
        while let Some(output) = member.page.poll_output() {
            member.todo.push_back(output);
        }
        if member.todo.is_empty() {
            member.came = None;
        }
        if self.members.iter().any(|member| member.page.is_final()) {
            self.finally.get_or_insert(self.written);
        }
        self.check()
    }

    fn does(&mut self, host: Host, output: Output) -> Result<(), String> {
        let (is_final, now) = (self.finally.is_some(), self.now);
        let member = self.member(host);
        match output {
            Output::Send(to, message) => {
                if to == host {
                    return Err(format!("{host} sends itself {message:?}"));
                }
                check_said(&message, member.can)?;
                if let Message::Request(request) = &message
                    && request.by == host
                {
                    member.asked_at = now;
                }
                let contents = match message.has_contents() {
                    true => Some(member.contents.ok_or("sends what it has not")?),
                    false => None,
                };
                *self
                    .flying
                    .entry((host, to, message, contents))
                    .or_default() += 1;
                self.sent += 1;
            }
            Output::Take => {
                member.contents = Some(member.came.take().ok_or("takes nothing")?);
            }
            Output::Allow(access) => {
                member.can = access;
                if access.is_none() {
                    member.contents = None;
                }
            }
            Output::Withdraw => member.can = None,
            Output::Sealed if is_final => {}
            Output::Show { .. }
            | Output::Keep(_)
            | Output::Restore(_)
            | Output::Lost
            | Output::Sealed => {
                return Err(format!("{output:?} although nobody died"));
            }
            // The thread runs: it reads what was written last, or writes.
            Output::Answer(access) => {
                if !allows(member.can, access) {
                    return Err(format!(
                        "{:?} although {:?} was answered",
                        member.can, access
                    ));
                }
                self.check()?;
                if access == Access::Write {
                    if self.members[usize::from(host.0)].is_sealed {
                        return Err("writes what it knows to be sealed".into());
                    }
                    self.written += 1;
                    self.superseded.push(now);
                    let written = Some(self.written);
                    self.member(host).contents = written;
                }
            }
        }
        Ok(())
    }

    /// One writer or readers, who all see the last write; one owner at most.
    fn check(&self) -> Result<(), String> {
        let may = |access: fn(Option<Access>) -> bool| {
            self.members
                .iter()
                .filter(|member| access(member.can))
                .count()
        };
        let writers = may(|allowed| allowed == Some(Access::Write));
        let any = may(|allowed| allowed.is_some());
        if writers > 1 || writers == 1 && any > 1 && self.lent_for.is_none() {
            return Err(format!(
                "{writers} hosts may write, {any} may read or write"
            ));
        }
        for member in &self.members {
            if member.can.is_some() && self.is_too_old(member) {
                return Err(format!("{:?} of {}", member.contents, self.written));
            }
        }
        self.check_locks()?;
        if self.finally.is_some_and(|finally| finally != self.written) {
            return Err("written after it was final".into());
        }
        let owners = self
            .hosts()
            .filter(|host| self.page(*host).is_owner())
            .count();
        let rests = self.due().is_empty();
        if owners > 1 || rests && owners == 0 {
            return Err(format!("{owners} owners"));
        }
        let knows = |member: &Member| member.is_sealed;
        if rests && self.members.iter().all(knows) && self.finally.is_none() {
            return Err("all know that it is sealed, and it is not".into());
        }
        if rests && self.hosts().any(|host| self.page(host).wanted().is_some()) {
            return Err("a thread waits for nothing".into());
        }
        Ok(())
    }

    /// What a host has locked it has, and nobody else has what it has locked for writing.
    fn check_locks(&self) -> Result<(), String> {
        for member in self.members.iter().filter(|one| !one.locks.is_empty()) {
            let writes = member.locks.contains(&Access::Write);
            let others = self.members.iter().filter(|one| one.can.is_some()).count() - 1;
            let others = if self.lent_for.is_some() { 0 } else { others };
            let page = &member.page;
            if member.can.is_none() || page.allowed().is_none() {
                return Err(format!("a page was taken that is locked: {page:?}"));
            }
            if writes && (!page.is_owner() || others > 0 || self.finally.is_some()) {
                return Err(format!("{others} others have what is locked: {page:?}"));
            }
        }
        Ok(())
    }

    /// True when a host has other contents than the last, and not those of a time since it asked for a copy
    /// that is lent.
    fn is_too_old(&self, member: &Member) -> bool {
        match member.contents {
            Some(version) if version == self.written => false,
            Some(version) if self.lent_for.is_some() && !member.page.is_owner() => {
                self.superseded[version as usize] < member.asked_at
            }
            Some(_) | None => true,
        }
    }
}
