//! One process, killed at each of its steps; the next one, killed at each step of its recovery.

use super::World;
use crate::heap::memory::{Block, Heap, Kind};

const FIRST: u64 = 101;
const SECOND: u64 = 102;

/// What the victim does to blocks that are there, and which it has told of.
type Act = fn(&Heap<super::Mapped>, &[Block]);

fn small(heap: &Heap<super::Mapped>, _: &[Block]) {
    // Of a slab with room, of a free slab, and of another when it is full.
    for _ in 0..3 {
        heap.allocate(Kind::BYTES, 30_000).unwrap();
    }
    heap.allocate(Kind(3), 30_000).unwrap();
}

fn large(heap: &Heap<super::Mapped>, _: &[Block]) {
    heap.allocate(Kind::BYTES, 200_000).unwrap();
}

fn frees(heap: &Heap<super::Mapped>, blocks: &[Block]) {
    for block in blocks {
        heap.free(*block).unwrap();
    }
}

fn leaves(heap: &Heap<super::Mapped>, blocks: &[Block]) {
    small(heap, blocks);
    heap.release_current();
}

#[test]
fn whoever_is_killed_at_any_step_leaves_a_heap_that_is_whole() {
    for act in [small as Act, large, frees, leaves] {
        let mut steps = 0;
        while !killed_at(steps, None, act) {
            steps += 1;
        }
        assert!(steps > 10, "{steps}");
    }
}

#[test]
fn whoever_is_killed_while_it_recovers_another_leaves_a_heap_that_is_whole() {
    for act in [small as Act, large, frees, leaves] {
        // Not every one: they are thousands by thousands.
        for steps in (0..200).step_by(13) {
            for then in (0..3000).step_by(211) {
                killed_at(steps, Some(then), act);
            }
        }
    }
}

/// True when the act came to its end.
fn killed_at(steps: usize, then: Option<usize>, act: Act) -> bool {
    let world = World::new(1024);
    let first = world.open(100);
    // What lives on, and what the victim may free.
    let take = |bytes| first.allocate(Kind::BYTES, bytes).unwrap();
    let kept = [take(10_000), take(70_000), take(32_768)];
    let given = [take(10_000), take(150_000), take(32_768)];
    first.release_current();
    let heap = world.open(FIRST);
    let ended = world.killed_after(steps, FIRST, || act(&heap, &given));
    match ended {
        true => drop(heap),
        false => std::mem::forget(heap),
    }
    if let Some(then) = then {
        let recovered = world.killed_after(then, SECOND, || std::mem::forget(world.open(SECOND)));
        if recovered {
            world.dead.lock().unwrap().insert(SECOND);
        }
    }
    drop(first);
    let kept = kept.map(|block| block.0);
    // The victim told nobody what it has allocated.
    world.ends(&kept, given.len() + 4);
    ended
}
