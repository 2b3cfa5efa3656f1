//! Rights that one peer hands to another: Provide, Accept, and what goes wrong on the way.

use crate::error::Fault;
use crate::export::ExportState;
use crate::frame::{ExportId, Frame, WireRight};
use crate::import::{Import, ImportState};
use crate::input::Output;
use crate::message::{LinkId, RightKind, TaskId};
use crate::port::Home;
use crate::right::{Right, Target};
use crate::space::Space;

/// Most rights that one peer may have provided and not settled.
pub(crate) const MAX_PROVIDED: u32 = 65536;
/// Most rights that one peer may have introduced, and most early Accepts of one peer.
const MAX_WAITING: u32 = 65536;

/// A right that waits for a third task.
#[cfg_attr(test, derive(Clone, Hash))]
pub(crate) struct Provided {
    pub(crate) to: TaskId,
    pub(crate) kind: RightKind,
    pub(crate) right: Right,
}

impl Space {
    /// Tells the owner of a right that the peer of `to` will ask for it.
    pub(crate) fn provide(
        &mut self,
        owner: LinkId,
        export: ExportId,
        kind: RightKind,
        to: LinkId,
    ) -> WireRight {
        self.nonce += 1;
        let nonce = self.nonce;
        self.given.insert((owner, nonce), to);
        self.link_mut(owner).unsettled += 1;
        let task = self.link(owner).task;
        let to = self.link(to).task;
        self.put_frame(owner, Frame::Provide { nonce, export, to });
        WireRight::Third { task, nonce, kind }
    }

    /// A right that a peer introduces; ask its owner for it.
    pub(crate) fn introduced(
        &mut self,
        link: LinkId,
        owner: TaskId,
        nonce: u64,
        kind: RightKind,
    ) -> Right {
        if self.link(link).introduced >= MAX_WAITING {
            self.put_frame(link, Frame::Decline { owner, nonce });
            return Right::Dead;
        }
        self.link_mut(link).introduced += 1;
        let from = self.link(link).task;
        let state = ImportState::Awaited { owner, from, nonce };
        let import = self.imports.insert(Import::new(kind, state)).index;
        self.accepts.insert((owner, from, nonce), import);
        if let Some(&to) = self.tasks.get(&owner) {
            self.put_frame(to, Frame::Accept { from, nonce, kind });
        } else if self.introducing.insert(owner) {
            self.outputs.push_back(Output::Introduce {
                task: owner,
                by: link,
            });
        }
        match kind {
            RightKind::Send => Right::Send(Target::Import(import)),
            RightKind::SendOnce => Right::Once(Target::Import(import)),
        }
    }

    /// The shell could not bring about a Link to `task`: rights that were introduced are dead.
    /// Without effect when nothing waits for such a Link.
    pub fn not_introduced(&mut self, task: TaskId) {
        if !self.tasks.contains_key(&task) {
            self.introducing.remove(&task);
            self.fail_accepts(task);
            self.settle();
        }
    }

    /// Nothing more comes from `owner`.
    pub(crate) fn fail_accepts(&mut self, owner: TaskId) {
        let least = (owner, TaskId(0), 0);
        while let Some((&key, _)) = self.accepts.range(least..).next() {
            if key.0 != owner {
                return;
            }
            self.fail_accept(key);
        }
    }

    fn fail_accept(&mut self, key: (TaskId, TaskId, u64)) {
        let import = self.accept_ends(key).expect("only what is awaited fails");
        let (owner, from, nonce) = key;
        if let Some(&link) = self.tasks.get(&from) {
            self.put_frame(link, Frame::Decline { owner, nonce });
        }
        self.import_dies(import);
    }

    fn accept_ends(&mut self, key: (TaskId, TaskId, u64)) -> Option<u32> {
        let import = self.accepts.remove(&key)?;
        if let Some(&link) = self.tasks.get(&key.1) {
            let link = self.link_mut(link);
            link.introduced = link.introduced.saturating_sub(1);
        }
        Some(import)
    }

    pub(crate) fn provide_came(
        &mut self,
        link: LinkId,
        nonce: u64,
        export: ExportId,
        to: TaskId,
    ) -> Result<(), Fault> {
        let index = self.held_export(link, export)?;
        if nonce <= self.link(link).last_nonce {
            return Err(Fault::Replay);
        }
        if to == self.task || to == self.link(link).task {
            return Err(Fault::NotThird);
        }
        if self.link(link).provided >= MAX_PROVIDED {
            return Err(Fault::TooMuch);
        }
        let kind = self.exports[index].kind;
        let right = self.use_export(index);
        let table = self.link_mut(link);
        table.last_nonce = nonce;
        table.provided += 1;
        self.provided
            .insert((link, nonce), Provided { to, kind, right });
        let asking = self.tasks.get(&to).copied();
        let early = asking.map(|asking| (link, nonce, asking));
        let early = early.and_then(|key| Some((key.2, self.early.remove(&key)?)));
        // Whoever else asked for this number is not meant.
        self.refuse_early(link, nonce);
        if let Some((asking, kind)) = early {
            self.link_mut(asking).early -= 1;
            self.answer_accept(asking, link, nonce, kind);
        }
        Ok(())
    }

    /// One more right of what an entry stands for; a send-once entry is consumed.
    pub(crate) fn use_export(&mut self, index: u32) -> Right {
        let export = &self.exports[index];
        match export.kind {
            RightKind::SendOnce => self.remove_export(index),
            RightKind::Send if export.state == ExportState::Dead => Right::Dead,
            RightKind::Send => {
                let target = Target::Port(export.port);
                self.hold(target);
                Right::Send(target)
            }
        }
    }

    fn refuse_early(&mut self, link: LinkId, nonce: u64) {
        let from = self.link(link).task;
        let least = (link, nonce, LinkId(0));
        while let Some((&key, _)) = self.early.range(least..).next() {
            if (key.0, key.1) != (link, nonce) {
                return;
            }
            self.early.remove(&key);
            self.link_mut(key.2).early -= 1;
            self.put_frame(key.2, Frame::Refused { from, nonce });
        }
    }

    pub(crate) fn withdraw_came(&mut self, link: LinkId, nonce: u64) -> Result<(), Fault> {
        if nonce > self.link(link).last_nonce {
            return Err(Fault::NotGiven);
        }
        if let Some(provided) = self.provided.remove(&(link, nonce)) {
            self.link_mut(link).provided -= 1;
            self.trash(provided.right);
        }
        Ok(())
    }

    pub(crate) fn settled_came(&mut self, link: LinkId, nonce: u64) -> Result<(), Fault> {
        if nonce > self.nonce {
            return Err(Fault::NotGiven);
        }
        if self.given.remove(&(link, nonce)).is_some() {
            self.unsettled_less(link);
        }
        Ok(())
    }

    fn unsettled_less(&mut self, owner: LinkId) {
        let link = self.link_mut(owner);
        link.unsettled -= 1;
        if link.unsettled + 1 == MAX_PROVIDED {
            let imports = link.imports.sorted().into_iter().copied();
            for import in imports.collect::<alloc::vec::Vec<u32>>() {
                self.feed(Target::Import(import));
            }
        }
    }

    /// `task` does not want, or cannot get, what was given to it.
    pub(crate) fn decline_came(
        &mut self,
        link: LinkId,
        owner: TaskId,
        nonce: u64,
    ) -> Result<(), Fault> {
        if nonce > self.nonce {
            return Err(Fault::NotGiven);
        }
        let Some(&owner) = self.tasks.get(&owner) else {
            return Ok(());
        };
        if self.given.get(&(owner, nonce)) == Some(&link) {
            self.withdraw(owner, nonce);
        }
        Ok(())
    }

    fn withdraw(&mut self, owner: LinkId, nonce: u64) {
        self.given.remove(&(owner, nonce));
        self.put_frame(owner, Frame::Withdraw { nonce });
        self.unsettled_less(owner);
    }

    pub(crate) fn accept_came(
        &mut self,
        link: LinkId,
        from: TaskId,
        nonce: u64,
        kind: RightKind,
    ) -> Result<(), Fault> {
        let Some(&provider) = self.tasks.get(&from) else {
            self.put_frame(link, Frame::Refused { from, nonce });
            return Ok(());
        };
        if provider == link {
            return Err(Fault::NotThird);
        }
        if nonce <= self.link(provider).last_nonce {
            self.answer_accept(link, provider, nonce, kind);
            return Ok(());
        }
        let key = (provider, nonce, link);
        if self.early.contains_key(&key) {
            return Err(Fault::Replay);
        }
        if self.link(link).early >= MAX_WAITING {
            self.put_frame(link, Frame::Refused { from, nonce });
            return Ok(());
        }
        self.link_mut(link).early += 1;
        self.early.insert(key, kind);
        Ok(())
    }

    /// The number may be wrong or another's: that may be the provider's fault as well as that of
    /// the one who asks, so it is refused and nobody is blamed.
    fn answer_accept(&mut self, link: LinkId, provider: LinkId, nonce: u64, kind: RightKind) {
        let from = self.link(provider).task;
        let to = self.link(link).task;
        let key = (provider, nonce);
        let meant = self.provided.get(&key);
        if !meant.is_some_and(|provided| provided.to == to && provided.kind == kind) {
            self.put_frame(link, Frame::Refused { from, nonce });
            return;
        }
        let provided = self.provided.remove(&key).expect("found above");
        self.link_mut(provider).provided -= 1;
        self.put_frame(provider, Frame::Settled { nonce });
        let (Right::Send(Target::Port(port)) | Right::Once(Target::Port(port))) = provided.right
        else {
            self.put_frame(link, Frame::Refused { from, nonce });
            return;
        };
        if self.ports[port].home == Home::Dead {
            self.trash(provided.right);
            self.put_frame(link, Frame::Refused { from, nonce });
            return;
        }
        self.put_accepted(link, (from, nonce), port, kind);
    }

    /// Answers that the right `nonce` of the task `from` is to `port`.
    pub(crate) fn put_accepted(
        &mut self,
        link: LinkId,
        (from, nonce): (TaskId, u64),
        port: u32,
        kind: RightKind,
    ) -> ExportId {
        let (export, credits) = self.export(link, port, kind);
        let accepted = Frame::Accepted {
            from,
            nonce,
            export,
            credits,
        };
        self.put_frame(link, accepted);
        export
    }

    pub(crate) fn accepted_came(
        &mut self,
        link: LinkId,
        from: TaskId,
        nonce: u64,
        (export, credits): (ExportId, u16),
    ) -> Result<(), Fault> {
        let key = (self.link(link).task, from, nonce);
        if !self.accepts.contains_key(&key) {
            return Err(Fault::NotGiven);
        }
        if self.link(link).imports.contains_key(&export) {
            return Err(Fault::Contradiction);
        }
        let index = self.accept_ends(key).expect("checked above");
        self.link_mut(link).imports.insert(export, index);
        let import = &mut self.imports[index];
        import.state = ImportState::Live;
        import.link = link;
        import.export = export;
        import.received = 1;
        import.credits = credits;
        if import.references == 0 {
            self.import_unused(index);
        } else {
            self.import_event(index);
            self.send_held(index);
        }
        Ok(())
    }

    pub(crate) fn refused_came(
        &mut self,
        link: LinkId,
        from: TaskId,
        nonce: u64,
    ) -> Result<(), Fault> {
        let key = (self.link(link).task, from, nonce);
        if !self.accepts.contains_key(&key) {
            return Err(Fault::NotGiven);
        }
        self.fail_accept(key);
        Ok(())
    }

    /// What peers have provided, or were given, ends with a Link.
    pub(crate) fn handovers_end(&mut self, link: LinkId, task: TaskId) {
        let provided = self.provided.iter();
        let ended = provided.filter(|((by, _), it)| *by == link || it.to == task);
        let ended: alloc::vec::Vec<_> = ended.map(|(&key, _)| key).collect();
        for (by, nonce) in ended {
            let provided = self.provided.remove(&(by, nonce)).expect("listed above");
            self.trash(provided.right);
            if by != link {
                self.link_mut(by).provided -= 1;
                self.put_frame(by, Frame::Settled { nonce });
            }
        }
        let early = self
            .early
            .keys()
            .filter(|key| key.0 == link || key.2 == link);
        let early: alloc::vec::Vec<_> = early.copied().collect();
        for key in early {
            self.early.remove(&key);
            if key.0 == link {
                self.link_mut(key.2).early -= 1;
                let (from, nonce) = (task, key.1);
                self.put_frame(key.2, Frame::Refused { from, nonce });
            }
        }
        let given = self.given.iter();
        let given = given.filter(|((owner, _), to)| *owner == link || **to == link);
        let given: alloc::vec::Vec<_> = given.map(|(&key, _)| key).collect();
        for (owner, nonce) in given {
            if owner == link {
                self.given.remove(&(owner, nonce));
            } else {
                self.withdraw(owner, nonce);
            }
        }
    }
}
