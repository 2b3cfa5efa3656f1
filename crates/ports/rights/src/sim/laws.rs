//! What holds after every step, seen from inside.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::world::World;
use crate::Space;
use crate::export::ExportState;
use crate::import::ImportState;
use crate::message::RightKind;
use crate::port::{Content, Home, Letter, Parcel};
use crate::right::{Entry, Right, Target};
use crate::slab::NONE;

/// References of each target: send rights (and imports of any kind), send-once rights.
#[derive(Default)]
struct Counts {
    sends: BTreeMap<Target, u32>,
    onces: BTreeMap<Target, u32>,
    receives: BTreeMap<u32, u32>,
}

impl Counts {
    fn send(&mut self, target: Target) {
        *self.sends.entry(target).or_default() += 1;
    }

    fn once(&mut self, target: Target) {
        match target {
            Target::Port(_) => *self.onces.entry(target).or_default() += 1,
            Target::Import(_) => self.send(target),
        }
    }

    fn right(&mut self, right: &Right) {
        match right {
            Right::Dead => {}
            Right::Send(target) => self.send(*target),
            Right::Once(target) => self.once(*target),
            Right::Receive(port) => *self.receives.entry(*port).or_default() += 1,
        }
    }

    fn parcel(&mut self, parcel: &Parcel) {
        parcel
            .reply
            .iter()
            .chain(&parcel.rights)
            .for_each(|right| self.right(right));
    }

    fn letter(&mut self, letter: &Letter) {
        self.right(&letter.to);
        if let Content::Parcel(parcel) = &letter.content {
            self.parcel(parcel);
        }
    }
}

impl Space {
    fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for (_, entry) in self.names.iter() {
            match *entry {
                Entry::Port {
                    target,
                    receive,
                    sends,
                } => {
                    if sends > 0 {
                        counts.send(target);
                    }
                    if receive {
                        let Target::Port(port) = target else {
                            panic!("a receive right to a port elsewhere");
                        };
                        counts.right(&Right::Receive(port));
                    }
                }
                Entry::Once(target) => counts.once(target),
                Entry::Set(_) | Entry::Dead { .. } => {}
            }
        }
        self.letters
            .iter()
            .for_each(|(_, letter)| counts.letter(letter));
        for (_, export) in self
            .exports
            .iter()
            .filter(|(_, it)| it.state != ExportState::Dead)
        {
            match export.kind {
                RightKind::Send => counts.send(Target::Port(export.port)),
                RightKind::SendOnce => counts.once(Target::Port(export.port)),
            }
        }
        for (index, import) in self.imports.iter() {
            if let Some(letter) = &import.held {
                counts.letter(letter);
                counts.send(Target::Import(index));
            }
            if let Some(next) = import.state.next() {
                counts.send(next);
            }
        }
        for (_, port) in self.ports.iter() {
            if let Home::Forward(next) = port.home {
                counts.send(next);
            }
        }
        let asked = self.no_senders.values().chain(self.port_destroyed.values());
        asked
            .chain(self.requests.values())
            .for_each(|right| counts.right(right));
        self.provided
            .values()
            .for_each(|it| counts.right(&it.right));
        counts
    }

    /// Every reference is counted, and nothing is counted that is not there.
    pub(super) fn check(&self) {
        assert!(self.work.is_empty(), "work is left behind");
        let counts = self.counts();
        let of = |map: &BTreeMap<Target, u32>, target| map.get(&target).copied().unwrap_or(0);
        for (index, port) in self.ports.iter() {
            let target = Target::Port(index);
            assert_eq!(
                port.sends,
                of(&counts.sends, target),
                "send rights to port {index}"
            );
            assert_eq!(
                port.onces,
                of(&counts.onces, target),
                "send-once rights to {index}"
            );
            let receives = counts.receives.get(&index).copied().unwrap_or(0);
            assert_eq!(
                receives,
                u32::from(port.home == Home::Here),
                "receivers of {index}"
            );
            self.check_queue(index);
            let used = port.sends + port.onces + port.queued > 0;
            assert!(port.home == Home::Here || used, "port {index} is left over");
        }
        for (index, import) in self.imports.iter() {
            let references = of(&counts.sends, Target::Import(index));
            assert_eq!(
                import.references, references,
                "references of import {index}"
            );
            let used = references > 0;
            let fine = match import.state {
                ImportState::Live | ImportState::Replaced(_) | ImportState::Dead => used,
                ImportState::Releasing => !used,
                ImportState::Awaited { .. } | ImportState::Following => true,
            };
            assert!(fine, "import {index} {:?} with {references}", import.state);
        }
        let targets = counts.sends.keys().chain(counts.onces.keys());
        for target in targets {
            let there = match *target {
                Target::Port(port) => self.ports.get(port).is_some(),
                Target::Import(import) => self.imports.get(import).is_some(),
            };
            assert!(there, "{target:?} is gone");
        }
        self.check_exports();
        self.check_links();
        self.check_waits();
    }

    fn check_queue(&self, index: u32) {
        let port = &self.ports[index];
        let mut letters = Vec::new();
        let mut at = port.head;
        while at != NONE {
            letters.push(at);
            at = self.letters[at].next;
        }
        assert_eq!(letters.len(), port.queued as usize);
        assert_eq!(letters.last().copied().unwrap_or(NONE), port.tail);
        let local = letters
            .iter()
            .filter(|&&letter| self.letters[letter].local)
            .count();
        assert_eq!(local, usize::from(port.local));
        assert!(port.home != Home::Dead || letters.is_empty());
        for letter in letters {
            let handover = matches!(self.letters[letter].content, Content::Handover(_));
            assert!(!handover || port.home != Home::Here);
        }
    }

    fn check_exports(&self) {
        let mut listed = BTreeSet::new();
        for (index, port) in self.ports.iter() {
            let mut at = port.exports;
            while at != NONE {
                assert_eq!(self.exports[at].port, index);
                assert!(listed.insert(at), "listed twice");
                at = self.exports[at].older;
            }
        }
        for (index, export) in self.exports.iter() {
            let live = export.state != ExportState::Dead;
            assert_eq!(listed.contains(&index), live, "export {index}");
            assert!(self.link(export.link).exports.contains_key(&index));
            assert!(export.count > 0);
            let key = self.exports.key(index);
            let queued = self
                .letters
                .iter()
                .filter(|(_, it)| it.from == Some(key))
                .count();
            assert_eq!(
                queued,
                usize::from(export.queued),
                "letters of export {index}"
            );
        }
    }

    fn check_links(&self) {
        let exports: usize = self.links.values().map(|link| link.exports.len()).sum();
        assert_eq!(exports, self.exports.len());
        for (id, link) in self.links.entries() {
            let provided = self.provided.keys().filter(|key| key.0 == *id).count();
            assert_eq!(provided, link.provided as usize);
            let given = self.given.keys().filter(|key| key.0 == *id).count();
            assert_eq!(given, link.unsettled as usize);
            let early = self.early.keys().filter(|key| key.2 == *id).count();
            assert_eq!(early, link.early as usize);
            for (export, &import) in link.imports.entries() {
                let import = &self.imports[import];
                assert_eq!((import.link, import.export), (*id, *export));
            }
        }
        for &import in self.accepts.values() {
            assert!(matches!(
                self.imports[import].state,
                ImportState::Awaited { .. }
            ));
        }
    }
}

impl World {
    /// What holds at any moment.
    pub(super) fn check(&self) {
        let mut receivers = BTreeMap::new();
        for (at, task) in self.tasks.iter().enumerate() {
            let Some(task) = task else { continue };
            task.space.check();
            for (&name, &port) in &task.names {
                if let Entry::Port { receive: true, .. } = task.space.names[name.key().index] {
                    let other = receivers.insert(port, at);
                    assert_eq!(other, None, "two receivers of port {port}");
                }
            }
        }
    }

    /// What holds when nothing is on its way: both sides of every Link agree.
    pub(super) fn check_rest(&self) {
        for wire in self.wires.iter() {
            let (link, wire) = wire;
            for end in 0..2 {
                let owner = &self.task(wire.ends[end]).space;
                let holder = &self.task(wire.ends[1 - end]).space;
                let imports = &holder.link(*link).imports;
                assert_eq!(
                    owner.link(*link).exports.len(),
                    imports.len(),
                    "exports and imports"
                );
                for &index in owner.link(*link).exports.keys() {
                    let export = &owner.exports[index];
                    assert_eq!(export.state, ExportState::Live);
                    let id = owner.export_id(index);
                    let import = &holder.imports[imports.get(&id).copied().expect("imported")];
                    assert_eq!(import.state, ImportState::Live);
                    assert_eq!(import.received, export.count, "how often it was given");
                    assert_eq!(import.credits, export.credits, "credits");
                    assert_eq!(import.kind, export.kind);
                }
            }
        }
        for task in self.tasks.iter().flatten() {
            let space = &task.space;
            let waiting =
                space.provided.len() + space.given.len() + space.early.len() + space.accepts.len();
            assert_eq!(waiting, 0, "handovers that never end");
            let held = space
                .imports
                .iter()
                .filter(|(_, import)| import.held.is_some());
            assert_eq!(held.count(), 0, "messages that are never sent");
        }
    }
}
