//! Hosts, store, network and clocks by seed.

mod world;

use std::time::Duration;

use farpage_testkit::seeds;
use world::{SEC, World};

/// Long runs under all faults, then a healed world.
#[test]
fn nobody_acts_who_is_not_in_the_newest_view() {
    let seeds = seeds();
    let count = (seeds.end - seeds.start) as usize;
    let mut removed = 0;
    let mut without_store = 0;
    let mut left = 0;
    for seed in seeds {
        let ran = std::panic::catch_unwind(|| {
            let mut world = World::new(seed, 5);
            world.run_with_faults(120 * SEC);
            world.heal();
            world.run(60 * SEC);
            world.demand_agreement();
            world
        });
        let Ok(world) = ran else {
            panic!(
                "seed {seed}; replay: FARPAGE_SEED={seed} cargo test -p farpage-membership nobody"
            );
        };
        removed += world.removed;
        without_store += world.acted_without_store;
        left += world.left;
    }
    if count >= 100 {
        // The faults do what they are for.
        assert!(removed > count, "{removed} hosts were removed");
        assert!(left * 10 > count, "{left} hosts left for others");
        assert!(
            without_store > count,
            "{without_store} times a host went on without the store"
        );
    }
}

#[test]
fn all_go_on_while_the_store_is_dead_and_are_kept_when_it_is_back() {
    for forgetful in [false, true] {
        let mut world = World::new(1, 4);
        world.run(5 * SEC);
        world.store_dies();
        world.run(12 * SEC);
        assert_eq!(world.acting(), 4);
        world.store_back(forgetful);
        world.run(30 * SEC);
        assert_eq!(
            (world.acting(), world.removed),
            (4, 0),
            "leases forgotten: {forgetful}"
        );
    }
}

#[test]
fn without_a_store_nobody_goes_on_for_ever() {
    let mut world = World::new(2, 3);
    world.store_dies();
    world.run(world::GOING_ON.as_nanos() as u64 + 5 * SEC);
    assert_eq!(world.acting(), 0);
}

#[test]
fn without_a_store_all_stop_when_one_cannot_be_reached() {
    let mut world = World::new(3, 4);
    world.run(5 * SEC);
    world.store_dies();
    world.cut_off(2);
    world.run(8 * SEC);
    assert_eq!(world.acting(), 0);
}

#[test]
fn a_host_that_only_others_reach_is_removed_and_the_others_go_on() {
    let mut world = World::new(4, 4);
    world.run(5 * SEC);
    world.cut_from_store(1);
    world.run(20 * SEC);
    assert_eq!((world.acting(), world.removed), (3, 1));
}

#[test]
fn of_two_hosts_cut_from_each_other_one_leaves_and_the_others_go_on() {
    for seed in 0..50 {
        let mut world = World::new(seed, 4);
        world.run(5 * SEC);
        world.cut_between(1, 2);
        world.run(3 * SEC);
        assert_eq!((world.acting(), world.left), (4, 0), "not at once");
        world.run(17 * SEC);
        assert_eq!(
            (world.acting(), world.left, world.removed),
            (3, 1, 1),
            "{seed}"
        );
        world.demand_agreement();
    }
}

#[test]
fn a_host_that_only_the_store_reaches_leaves_and_no_other() {
    for seed in 0..50 {
        let mut world = World::new(seed, 5);
        world.run(5 * SEC);
        world.cut_off(0);
        world.run(20 * SEC);
        assert_eq!(
            (world.acting(), world.left, world.removed),
            (4, 1, 1),
            "{seed}"
        );
        world.demand_agreement();
    }
}

#[test]
fn hosts_that_are_apart_in_many_ways_go_on_once_enough_have_left() {
    for seed in 0..50 {
        let mut world = World::new(seed, 6);
        world.run(5 * SEC);
        for (one, other) in [(0, 1), (1, 2), (3, 4), (0, 5), (2, 4)] {
            if (seed + one + other) % 4 > 0 {
                world.cut_between(one as usize, other as usize);
            }
        }
        world.run(40 * SEC);
        world.demand_agreement();
        assert!(
            world.acting() >= 3 && world.left > 0,
            "{seed}: {}",
            world.acting()
        );
        let left = world.left;
        world.run(20 * SEC);
        assert_eq!(world.left, left, "{seed}: all reach one another");
    }
}

#[test]
fn who_joins_after_all_have_died_removes_them_when_their_time_is_over() {
    let mut world = World::new(6, 2);
    world.run(5 * SEC);
    world.kill(0);
    world.kill(1);
    world.run(5 * SEC);
    world.join();
    world.run(10 * SEC);
    assert_eq!((world.acting(), world.removed), (1, 0));
    world.run((world::GOING_ON * 2).as_nanos() as u64);
    assert_eq!((world.acting(), world.removed), (1, 2));
    assert!(world::GOING_ON > Duration::from_secs(15));
}
