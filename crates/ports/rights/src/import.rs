//! The holder's side of a Link: rights to ports of peers.

use crate::frame::{ExportId, Frame};
use crate::message::{LinkId, RightKind, TaskId};
use crate::port::{Home, Letter};
use crate::right::{Right, Target};
use crate::slab::NONE;
use crate::space::Space;
use crate::wait::On;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(crate) enum ImportState {
    /// The owner has not answered yet.
    Awaited {
        owner: TaskId,
        from: TaskId,
        nonce: u64,
    },
    Live,
    /// Released; the owner may have given it anew meanwhile.
    Releasing,
    /// The port has moved and the owner was told that nothing more comes.
    Following,
    /// Another right stands for it.
    Replaced(Target),
    Dead,
}

impl ImportState {
    pub(crate) fn next(self) -> Option<Target> {
        match self {
            Self::Replaced(next) => Some(next),
            Self::Awaited { .. } | Self::Live | Self::Releasing | Self::Following | Self::Dead => {
                None
            }
        }
    }
}

/// A right to a port of a peer's.
#[cfg_attr(test, derive(Clone, Hash))]
pub(crate) struct Import {
    pub(crate) state: ImportState,
    pub(crate) kind: RightKind,
    /// Means nothing while the import is awaited, dead or replaced.
    pub(crate) link: LinkId,
    pub(crate) export: ExportId,
    /// Names, rights in messages, forwarders.
    pub(crate) references: u32,
    /// How often the right came since it was last released.
    pub(crate) received: u32,
    pub(crate) credits: u16,
    /// The receive right left by it: what is forwarded needs no credit.
    pub(crate) feeds: bool,
    /// The name that a further send right joins.
    pub(crate) name: u32,
    /// The message of a send-once right that is awaited.
    pub(crate) held: Option<alloc::boxed::Box<Letter>>,
}

impl Import {
    pub(crate) fn new(kind: RightKind, state: ImportState) -> Self {
        Self {
            state,
            kind,
            link: LinkId(u32::MAX),
            export: ExportId(0),
            references: 1,
            received: 0,
            credits: 0,
            feeds: false,
            name: NONE,
            held: None,
        }
    }
}

impl Space {
    pub(crate) fn hold(&mut self, target: Target) {
        match target {
            Target::Port(port) => self.ports[port].sends += 1,
            Target::Import(import) => self.imports[import].references += 1,
        }
    }

    pub(crate) fn is_dead(&self, target: Target) -> bool {
        self.is_dead_there(self.resolve(target))
    }

    /// The same of a target that was resolved.
    pub(crate) fn is_dead_there(&self, target: Target) -> bool {
        match target {
            Target::Port(port) => self.ports[port].home == Home::Dead,
            Target::Import(import) => self.imports[import].state == ImportState::Dead,
        }
    }

    /// A right that an entry of the peer's table stands for; one reference more.
    pub(crate) fn import(
        &mut self,
        link: LinkId,
        export: ExportId,
        kind: RightKind,
        credits: u16,
    ) -> u32 {
        if let Some(&index) = self.link(link).imports.get(&export) {
            let import = &mut self.imports[index];
            import.state = ImportState::Live;
            import.references += 1;
            import.received += 1;
            return index;
        }
        let mut import = Import::new(kind, ImportState::Live);
        import.link = link;
        import.export = export;
        import.received = 1;
        import.credits = credits;
        let index = self.imports.insert(import).index;
        self.link_mut(link).imports.insert(export, index);
        index
    }

    /// The last reference of an import is gone.
    pub(crate) fn import_unused(&mut self, index: u32) {
        let import = &mut self.imports[index];
        let (link, export, count) = (import.link, import.export, import.received);
        match import.state {
            ImportState::Live => {
                self.put_frame(link, Frame::Release { export, count });
                match self.imports[index].kind {
                    RightKind::Send => {
                        let import = &mut self.imports[index];
                        import.state = ImportState::Releasing;
                        import.received = 0;
                        self.import_event(index);
                    }
                    RightKind::SendOnce => {
                        self.link_mut(link).imports.remove(&export);
                        self.free_import(index);
                    }
                }
            }
            ImportState::Replaced(next) => {
                self.trash(Right::Send(next));
                self.free_import(index);
            }
            ImportState::Dead => self.free_import(index),
            // The answer that is on its way finds it unused.
            ImportState::Awaited { .. } | ImportState::Following => {}
            ImportState::Releasing => unreachable!("nothing refers to it"),
        }
    }

    pub(crate) fn free_import(&mut self, index: u32) {
        self.import_event(index);
        self.imports.remove(index);
    }

    /// A send-once right was used for a message: nothing is left of it.
    pub(crate) fn import_used(&mut self, index: u32) {
        let (link, export) = (self.imports[index].link, self.imports[index].export);
        self.link_mut(link).imports.remove(&export);
        self.free_import(index);
    }

    /// Whoever waits for something to happen to an import goes on.
    pub(crate) fn import_event(&mut self, index: u32) {
        self.feed(Target::Import(index));
        self.wake_all(On::Room(Target::Import(index)));
    }

    /// The port behind an import is dead. The Link's table no longer has it.
    pub(crate) fn import_dies(&mut self, index: u32) {
        let import = &mut self.imports[index];
        import.state = ImportState::Dead;
        let held = import.held.take();
        if let Some(letter) = held {
            self.destroy_letter(*letter);
            self.imports[index].references -= 1;
        }
        self.dead_names(Target::Import(index));
        self.import_event(index);
        if self.imports[index].references == 0 {
            self.free_import(index);
        }
    }
}
