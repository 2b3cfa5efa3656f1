//! Hosts with one page, messages in any order, and the laws.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use alloc::{format, string::String};

use farpage_abi::Access;

use super::check_said;
use crate::page::allows;
use crate::{Host, Message, Output, Page};

/// A request that was sent on so often does not arrive.
const HOPS_MAX: u8 = 100;

/// The page's contents: how often it had been written.
type Version = u32;

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
}

/// A message on its way: from, to, what, and the contents.
pub(super) type Flying = (Host, Host, Message, Option<Version>);

/// What happens next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    Fault(Host, Access),
    Deliver(Flying),
    LetGo(Host),
    Forget(Host),
    /// The shell does the next thing.
    Does(Host),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    members: Vec<Member>,
    flying: BTreeMap<Flying, u32>,
    written: Version,
    pub(super) sent: u32,
    pub(super) hops_max: u8,
}

impl World {
    /// Host 0 owns the page.
    pub(super) fn new(hosts: u8, migrates: bool) -> Self {
        let members = (0..hosts).map(|own| {
            let page = Page::new(Host(own), Host(0));
            Member {
                can: page.allowed(),
                page: match migrates {
                    true => page.find_migration(),
                    false => page,
                },
                contents: (own == 0).then_some(0),
                todo: VecDeque::new(),
                came: None,
            }
        });
        Self {
            members: members.collect(),
            flying: BTreeMap::new(),
            written: 0,
            sent: 0,
            hops_max: 0,
        }
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
        does.chain(held.copied().map(Action::LetGo))
            .chain(come.cloned().map(Action::Deliver))
            .collect()
    }

    /// What may happen besides.
    pub(super) fn chances(&self) -> Vec<Action> {
        let mut all = Vec::new();
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
            Action::Forget(host) => {
                self.member(host).page.forget();
                host
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
        self.check()
    }

    fn does(&mut self, host: Host, output: Output) -> Result<(), String> {
        let member = self.member(host);
        match output {
            Output::Send(to, message) => {
                if to == host {
                    return Err(format!("{host} sends itself {message:?}"));
                }
                check_said(&message, member.can)?;
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
            Output::Show { .. } | Output::Keep(_) | Output::Restore(_) | Output::Lost => {
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
                    self.written += 1;
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
        if writers > 1 || writers == 1 && any > 1 {
            return Err(format!(
                "{writers} hosts may write, {any} may read or write"
            ));
        }
        for member in &self.members {
            let is_old = member.contents != Some(self.written);
            if member.can.is_some() && is_old {
                return Err(format!("{:?} of {}", member.contents, self.written));
            }
        }
        let owners = self
            .hosts()
            .filter(|host| self.page(*host).is_owner())
            .count();
        let rests = self.due().is_empty();
        if owners > 1 || rests && owners == 0 {
            return Err(format!("{owners} owners"));
        }
        if rests && self.hosts().any(|host| self.page(host).wanted().is_some()) {
            return Err("a thread waits for nothing".into());
        }
        Ok(())
    }
}
