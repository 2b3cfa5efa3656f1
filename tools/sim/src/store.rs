//! The simulated pager: numbered slots with reference counts, slow and unreliable.

use crate::rng::Rng;

/// Names a page with the pager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(usize);

#[derive(Clone, Copy, Debug)]
struct Kept {
    value: u64,
    holders: u32,
    /// Reads fail from now on.
    damaged: bool,
}

/// How often what goes wrong, per thousand.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Troubles {
    pub(crate) write_fails: u64,
    pub(crate) damages: u64,
    pub(crate) slow: u64,
}

pub(crate) struct Store {
    slots: Vec<Option<Kept>>,
    free: Vec<usize>,
    pub(crate) capacity: usize,
    pub(crate) troubles: Troubles,
}

impl Store {
    pub(crate) fn new(capacity: usize, troubles: Troubles) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            capacity,
            troubles,
        }
    }

    /// Steps that the next transfer takes.
    pub(crate) fn delay(&self, rng: &mut Rng) -> u64 {
        if rng.chance(self.troubles.slow) {
            rng.below(30)
        } else {
            rng.below(3)
        }
    }

    /// Takes a page, or does not (error or no room).
    pub(crate) fn write(&mut self, value: u64, rng: &mut Rng) -> Option<Slot> {
        if self.used() >= self.capacity || rng.chance(self.troubles.write_fails) {
            return None;
        }
        Some(self.keep(value, rng))
    }

    /// What an object holds from the start; there is room for all of it.
    pub(crate) fn own(&mut self, value: u64, rng: &mut Rng) -> Slot {
        self.capacity = self.capacity.saturating_add(1);
        self.keep(value, rng)
    }

    fn keep(&mut self, value: u64, rng: &mut Rng) -> Slot {
        let kept = Some(Kept {
            value,
            holders: 1,
            damaged: rng.chance(self.troubles.damages),
        });
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                self.slots.push(None);
                self.slots.len() - 1
            }
        };
        self.slots[at] = kept;
        Slot(at)
    }

    fn kept(&mut self, slot: Slot) -> &mut Kept {
        match &mut self.slots[slot.0] {
            Some(kept) => kept,
            None => panic!("{slot:?} was freed"),
        }
    }

    /// The contents; `None` is a read error, and will stay one.
    pub(crate) fn read(&mut self, slot: Slot) -> Option<u64> {
        let kept = self.kept(slot);
        (!kept.damaged).then_some(kept.value)
    }

    pub(crate) fn is_damaged(&mut self, slot: Slot) -> bool {
        self.kept(slot).damaged
    }

    pub(crate) fn hold(&mut self, slot: Slot) {
        self.kept(slot).holders += 1;
    }

    pub(crate) fn release(&mut self, slot: Slot) {
        let kept = self.kept(slot);
        kept.holders -= 1;
        if kept.holders == 0 {
            self.slots[slot.0] = None;
            self.free.push(slot.0);
        }
    }

    /// Slots in use.
    pub(crate) fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn holders(&self) -> u64 {
        self.slots
            .iter()
            .flatten()
            .map(|k| u64::from(k.holders))
            .sum()
    }
}
