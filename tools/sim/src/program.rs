//! The simulated program: threads that read, write and check, and what they must see.

use farpage_object::PageRange;

use crate::calls::{self, Call};
use crate::linux::{Seen, WINDOW};
use crate::shared::{ActorId, Core, say};

/// What the program of one process must see.
#[derive(Clone)]
pub(crate) struct Program {
    /// The last value written to each page; 0 for none.
    pub(crate) values: Vec<u64>,
    /// Pages locked into memory.
    pub(crate) wired: Vec<bool>,
    /// Wired pages that have been seen in memory since: they must stay.
    pub(crate) pinned: Vec<bool>,
    /// Pages that the pager has forbidden to write to, and has not allowed since.
    pub(crate) locked: Vec<bool>,
    /// Locked pages for which a thread was refused: it waits until the lock is lifted.
    pub(crate) refused: Vec<bool>,
    /// Reads still to be made before the program ends.
    pub(crate) checks_left: u64,
}

impl Program {
    pub(crate) fn new() -> Self {
        Self {
            values: vec![0; WINDOW as usize],
            wired: vec![false; WINDOW as usize],
            pinned: vec![false; WINDOW as usize],
            locked: vec![false; WINDOW as usize],
            refused: vec![false; WINDOW as usize],
            checks_left: 0,
        }
    }

    /// The contents of a range are gone.
    pub(crate) fn forget(&mut self, pages: PageRange) {
        for page in pages.start.0 as usize..pages.end.0 as usize {
            self.values[page] = 0;
            self.wired[page] = false;
            self.pinned[page] = false;
        }
        self.set_locked(pages, false);
    }

    /// The pager's lock on a range holds, or is gone.
    pub(crate) fn set_locked(&mut self, pages: PageRange, locked: bool) {
        for page in pages.start.0 as usize..pages.end.0 as usize {
            self.locked[page] = locked;
            self.refused[page] &= locked;
        }
    }

    pub(crate) fn wired_pages(&self) -> u64 {
        self.wired.iter().filter(|&&wired| wired).count() as u64
    }
}

/// A thread of the program.
#[derive(Debug)]
pub(crate) struct Thread {
    at: At,
    cursor: u64,
    stride: i64,
    /// Accesses left in this pattern.
    left: u64,
}

#[derive(Debug)]
enum At {
    Ready,
    Access { page: u64, write: Option<u64> },
    Asleep { page: u64, write: Option<u64> },
    Call(Call),
    Over,
}

impl Thread {
    pub(crate) fn new() -> Self {
        Self {
            at: At::Ready,
            cursor: 0,
            stride: 1,
            left: 0,
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.at, At::Over)
    }

    pub(crate) fn step(&mut self, core: &mut Core, proc: usize, actor: ActorId) {
        let at = core::mem::replace(&mut self.at, At::Over);
        // A program that ends ends all its threads, but for calls that hold something.
        if core.procs[proc].exited && !matches!(&at, At::Call(call) if call.goes_on()) {
            return;
        }
        self.at = match at {
            At::Ready => self.begin(core, proc),
            At::Access { page, write } => access(core, proc, actor, page, write),
            At::Asleep { page, write } => {
                let sleepers = &core.procs[proc].space.sleepers;
                if sleepers.iter().any(|&(thread, _)| thread == actor) {
                    At::Asleep { page, write }
                } else {
                    At::Access { page, write }
                }
            }
            At::Call(call) => match calls::step(core, proc, actor, call) {
                Some(call) => At::Call(call),
                None => At::Ready,
            },
            At::Over => At::Over,
        };
    }

    fn begin(&mut self, core: &mut Core, proc: usize) -> At {
        if core.healing {
            let process = &mut core.procs[proc];
            if process.program.checks_left == 0 || process.maps.is_empty() {
                return At::Over;
            }
            process.program.checks_left -= 1;
        } else if core.rng.chance(core.settings.calls) || core.procs[proc].maps.is_empty() {
            return calls::begin(core, proc).map_or(At::Ready, At::Call);
        }
        let Some(page) = self.next_page(core, proc) else {
            return At::Ready;
        };
        // What was never written is zero, and zeros are not paged out: fill first.
        let fresh = core.procs[proc].program.values[page as usize] == 0 && core.rng.chance(700);
        let write = !core.healing && (fresh || core.rng.chance(core.settings.writes));
        // Some write zeros: a page of zeros that was written.
        let zero = core.rng.chance(30);
        let write = write.then_some(if zero { 0 } else { core.now });
        At::Access { page, write }
    }

    /// Random, sequential, backward and strided runs; most of them in a hot part.
    fn next_page(&mut self, core: &mut Core, proc: usize) -> Option<u64> {
        let maps = &core.procs[proc].maps;
        let next = self.cursor.wrapping_add_signed(self.stride);
        if self.left > 0 && core.procs[proc].mapping(next).is_some() {
            self.left -= 1;
            self.cursor = next;
            return Some(next);
        }
        if maps.is_empty() {
            return None;
        }
        let any = maps[core.rng.below(maps.len() as u64) as usize];
        let map = if core.rng.chance(700) { maps[0] } else { any };
        let span = if core.rng.chance(850) {
            map.pages().min(core.settings.budget * 3 / 2)
        } else {
            map.pages()
        };
        self.cursor = map.start.0 + core.rng.below(span);
        if core.rng.chance(200) {
            self.cursor = map.start.0.max(self.cursor / 512 * 512);
        }
        self.stride = core.rng.pick(&[1, 1, 1, -1, 2, 7, -5, 33]);
        self.left = core.rng.pick(&[0, 0, 3, 20, 100]);
        Some(self.cursor)
    }
}

fn access(core: &mut Core, proc: usize, actor: ActorId, page: u64, write: Option<u64>) -> At {
    let process = &mut core.procs[proc];
    let there = process.space.pte(page).present;
    let seen = process.space.access(actor, page, write, &mut core.rng);
    let program = &mut process.program;
    match seen {
        Seen::Asleep => {
            let kept = there || !program.pinned[page as usize];
            assert!(kept, "page {page} is wired and left the program");
            say!(core, "p{proc} t{actor} faults on {page} write={write:?}");
            At::Asleep { page, write }
        }
        // Unmapped by another thread in the meantime: the program's own fault.
        Seen::Unmapped => At::Ready,
        Seen::Poisoned => {
            let Some(slot) = process.slots[page as usize] else {
                panic!("page {page} is lost though the pager has not failed");
            };
            assert!(
                core.store.is_damaged(slot),
                "page {page} is lost for no reason"
            );
            At::Ready
        }
        Seen::Value(value) => {
            let expected = program.values[page as usize];
            assert_eq!(
                value, expected,
                "page {page} of process {proc}: what the program sees"
            );
            if let Some(value) = write {
                let allowed = !program.locked[page as usize];
                assert!(
                    allowed,
                    "page {page} of process {proc} is written though locked"
                );
                program.values[page as usize] = value;
            }
            program.pinned[page as usize] |= program.wired[page as usize];
            say!(
                core,
                "p{proc} t{actor} sees {page} = {value}, writes {write:?}"
            );
            At::Ready
        }
    }
}
