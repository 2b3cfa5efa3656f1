//! Several processes that take turns in an order that the seed decides; some are killed, others come.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::{Killed, TURN, Turn, World};
use crate::heap::memory::{AllocateError, Block, Heap, Kind};

/// Blocks that somebody may use, and how long they are.
type Truth = Arc<Mutex<BTreeMap<u64, u64>>>;

struct Process {
    goes: Sender<bool>,
    thread: JoinHandle<()>,
    id: u64,
}

/// Small and good enough: the order of what happens comes from it alone.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % end
    }
}

fn allocate(heap: &Heap<super::Mapped>, truth: &Truth, random: &mut Random, is_narrow: bool) {
    let kind = Kind(random.below(2) as u16);
    let bytes = match random.below(10) {
        // Two in a slab: it is full and empty all the time.
        _ if is_narrow => 32_768,
        0 => 65_537 + random.below(140_000),
        1..3 => 16,
        _ => 8_000 + random.below(24_000),
    };
    match heap.allocate(kind, bytes) {
        Err(error) => assert_eq!(error, AllocateError::Full { bytes }),
        Ok(Block(offset)) => {
            let mut truth = truth.lock().unwrap();
            let before = truth.range(..=offset).next_back();
            assert!(
                before.is_none_or(|(at, length)| at + length <= offset),
                "given twice"
            );
            let behind = truth.range(offset..).next();
            assert!(
                behind.is_none_or(|(at, _)| offset + bytes <= *at),
                "given twice"
            );
            truth.insert(offset, bytes);
        }
    }
}

/// Whoever frees a block may be another than who allocated it.
fn free(heap: &Heap<super::Mapped>, truth: &Truth, random: &mut Random) {
    let taken = {
        let mut truth = truth.lock().unwrap();
        let count = truth.len() as u64;
        let at = (count > 0).then(|| random.below(count) as usize);
        let offset = at.and_then(|at| truth.keys().nth(at).copied());
        offset.and_then(|offset| truth.remove_entry(&offset))
    };
    if let Some((offset, _)) = taken {
        heap.free(Block(offset)).expect("allocated");
    }
}

fn live(world: &World, truth: &Truth, id: u64, seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9e37).wrapping_add(id) | 1);
    let heap = world.open(id);
    for _ in 0..16 {
        match random.below(10) {
            0..5 => allocate(&heap, truth, &mut random, seed % 2 == 1),
            _ => free(&heap, truth, &mut random),
        }
    }
}

fn start(world: &World, truth: &Truth, waits: &Sender<usize>, number: usize, seed: u64) -> Process {
    let (goes, told) = channel();
    let (world, truth, waits) = (world.clone(), Arc::clone(truth), waits.clone());
    let id = 1000 + number as u64;
    let thread = std::thread::spawn(move || {
        let turn = Turn {
            number,
            waits: waits.clone(),
            goes: told,
        };
        TURN.set(Some(turn));
        let act = || live(&world, &truth, id, seed);
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
        TURN.take();
        waits.send(usize::MAX).expect("somebody counts");
        if let Err(cause) = ended
            && !cause.is::<Killed>()
        {
            std::panic::resume_unwind(cause);
        }
    });
    Process { goes, thread, id }
}

/// One life of a heap: three processes at a time, twelve in all.
fn run(seed: u64) {
    const ALL: usize = 12;
    let world = World::new(520);
    let truth = Truth::default();
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (waits, waiting): (_, Receiver<usize>) = channel();
    let mut all: Vec<Process> = Vec::new();
    let (mut ready, mut killed): (Vec<usize>, usize) = (Vec::new(), 0);
    let mut started = 0;
    loop {
        while ready.len() < 3 && started < ALL {
            all.push(start(&world, &truth, &waits, started, seed));
            started += 1;
            ready.extend(Some(waiting.recv().unwrap()).filter(|at| *at != usize::MAX));
        }
        let Some(at) = (!ready.is_empty()).then(|| random.below(ready.len() as u64) as usize)
        else {
            break;
        };
        let number = ready.swap_remove(at);
        // Recovery would mend what the living forget.
        let dies = seed % 4 < 2 && random.below(400) == 0;
        if dies {
            killed += 1;
            world.dead.lock().unwrap().insert(all[number].id);
        }
        all[number].goes.send(!dies).unwrap();
        // It comes to its next step, or to its end.
        ready.extend(Some(waiting.recv().unwrap()).filter(|at| *at != usize::MAX));
    }
    for process in all {
        process.thread.join().expect("no claim failed");
    }
    let known: Vec<u64> = truth.lock().unwrap().keys().copied().collect();
    world.ends(&known, killed);
}

#[test]
fn processes_that_meet_and_die_anywhere_share_a_heap() {
    for seed in 0..40 {
        println!("seed {seed}");
        run(seed);
    }
}
