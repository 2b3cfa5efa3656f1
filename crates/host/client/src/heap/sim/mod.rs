//! Processes that take turns at every access to shared memory, and are killed at any of them.

mod kill;
mod turns;

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex};

use crate::heap::memory::Heap;
use crate::heap::owner::Processes;

/// Memory of a heap, and its simulated processes that are dead.
#[derive(Clone)]
pub(crate) struct World {
    memory: Arc<Memory>,
    dead: Arc<Mutex<HashSet<u64>>>,
}

pub(crate) struct Memory(Vec<AtomicU64>);

/// The memory as one process maps it.
#[derive(Clone)]
pub(crate) struct Mapped(Arc<Memory>);

impl AsRef<[AtomicU64]> for Mapped {
    fn as_ref(&self) -> &[AtomicU64] {
        &self.0.0
    }
}

/// What a simulated process dies of.
struct Killed;

/// How a simulated process is told to go on, or to die.
struct Turn {
    number: usize,
    waits: Sender<usize>,
    goes: Receiver<bool>,
}

thread_local! {
    /// Steps until this process is killed.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
    static TURN: RefCell<Option<Turn>> = const { RefCell::new(None) };
}

/// Before every access to shared memory.
pub(crate) fn step() {
    if let Some(left) = LEFT.get() {
        match left {
            0 => die(),
            _ => LEFT.set(Some(left - 1)),
        }
    }
    let dies = TURN.with_borrow(|turn| {
        turn.as_ref().is_some_and(|turn| {
            turn.waits.send(turn.number).expect("somebody counts");
            !turn.goes.recv().expect("somebody counts")
        })
    });
    if dies {
        die();
    }
}

fn die() {
    LEFT.set(None);
    TURN.take();
    std::panic::resume_unwind(Box::new(Killed));
}

/// A simulated process.
struct Simulated {
    number: u64,
    dead: Arc<Mutex<HashSet<u64>>>,
}

impl Processes for Simulated {
    fn own(&self) -> u64 {
        self.number
    }

    fn way(&self) -> u64 {
        1
    }

    fn is_dead(&self, process: u64) -> bool {
        self.dead.lock().unwrap().contains(&process)
    }

    /// There are two hosts.
    fn is_near(&self, process: u64) -> bool {
        self.number % 2 == process % 2
    }
}

impl World {
    fn new(kib: usize) -> Self {
        let memory = (0..kib * 128).map(|_| AtomicU64::new(0)).collect();
        Self {
            memory: Arc::new(Memory(memory)),
            dead: Arc::default(),
        }
    }

    fn open(&self, process: u64) -> Heap<Mapped> {
        let memory = Mapped(Arc::clone(&self.memory));
        let dead = Arc::clone(&self.dead);
        let simulated = Simulated {
            number: process,
            dead,
        };
        Heap::open_among(memory, Box::new(simulated)).expect("a heap")
    }

    /// Runs `act`, which is killed after so many steps. True when it came to its end before.
    fn killed_after(&self, steps: usize, process: u64, act: impl FnOnce()) -> bool {
        LEFT.set(Some(steps));
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        LEFT.set(None);
        match ended {
            Ok(()) => true,
            Err(cause) if cause.is::<Killed>() => {
                self.dead.lock().unwrap().insert(process);
                false
            }
            Err(cause) => std::panic::resume_unwind(cause),
        }
    }

    /// All that is allocated is `known`, or was in the hands of one of `killed`; freed, it is all
    /// free.
    fn ends(&self, known: &[u64], killed: usize) {
        let heap = self.open(u64::MAX >> 2);
        heap.check().expect("no damage");
        let blocks: Vec<_> = heap.blocks().map(|(block, _)| block).collect();
        let is_there = |offset: &u64| blocks.iter().any(|block| block.0 == *offset);
        assert!(known.iter().all(is_there), "a block is lost");
        assert!(
            blocks.len() <= known.len() + killed,
            "blocks out of nothing"
        );
        for block in blocks {
            heap.free(block).expect("allocated");
        }
        heap.check().expect("no damage");
        let usage = heap.usage();
        assert_eq!(usage.free_bytes, usage.bytes, "slabs are lost");
        assert_eq!(usage.processes, 1);
    }
}
