//! What is found by thinking, by name.

use std::vec::Vec;

use super::world::{Action, Script, World};
use crate::sync::words::Held;
use crate::sync::{Cell, Kind, Layout, Process};

fn goes_on(world: &mut World, thread: usize) {
    while world.due().contains(&Action::Step(thread)) {
        world.act(Action::Step(thread)).unwrap();
    }
}

/// Steps of all, and time that passes, until nothing more happens.
fn ends(world: &mut World) {
    while let Some(action) = world.due().first().copied() {
        world.act(action).unwrap();
    }
    assert!(world.is_all_over());
}

#[test]
fn the_next_host_that_waits_has_its_turn() {
    let locks = Script::Locks(2);
    let mut world = World::new(Kind::Mutex, &[(0, locks), (2, locks), (1, locks)]);
    world.act(Action::Step(0)).unwrap();
    while world.holders() == [Held::Free] {
        world.act(Action::Step(0)).unwrap();
    }
    goes_on(&mut world, 1);
    goes_on(&mut world, 2);
    while !world.due().contains(&Action::Arrives(1, 1)) {
        world.act(Action::Step(0)).unwrap();
    }
    assert_eq!(world.holders(), [Held::For(1)]);
    // It would like to have it again.
    goes_on(&mut world, 0);
    assert_eq!(world.holders(), [Held::For(1)]);
    ends(&mut world);
}

#[test]
fn a_barrier_is_broken_by_a_party_that_died_before_it_came() {
    let comes = Script::Arrives(3);
    let mut world = World::new(Kind::Barrier(3), &[(0, comes), (1, comes), (2, comes)]);
    let all_have = |world: &World, times| world.passed().into_iter().all(|one| one >= times);
    while !all_have(&world, 1) {
        let due = world.due();
        world.act(due[due.len() - 1]).unwrap();
    }
    world.act(Action::Dies(2)).unwrap();
    ends(&mut world);
    let passed: Vec<u8> = world.passed();
    assert!(passed[0] < 3 && passed[1] < 3, "{passed:?}");
}

#[test]
fn words_say_what_was_written() {
    let process = Process::new(63, (1 << crate::sync::SERIAL_BITS) - 1);
    for held in [Held::Free, Held::For(0), Held::For(63), Held::By(process)] {
        for is_marked in [false, true] {
            let cell = Cell { held, is_marked };
            assert_eq!(Cell::from_word(cell.word()), cell);
        }
    }
    assert_eq!(Process::from_number(process.number()), Some(process));
    assert_eq!(Process::from_number(0), None);
    assert_eq!(Process::from_number(u64::MAX), None);
    for kind in [
        Kind::Mutex,
        Kind::Semaphore(1),
        Kind::Barrier(Layout::CELLS_MAX),
    ] {
        assert_eq!(Layout::from_word(Layout(kind).word()), Some(Layout(kind)));
    }
    for none in [
        0,
        1,
        Layout(Kind::Semaphore(1)).word() - 1,
        Layout(Kind::Barrier(Layout::CELLS_MAX)).word() + 1,
        f64::to_bits(1.5),
    ] {
        assert_eq!(Layout::from_word(none), None, "{none:#x}");
    }
}
