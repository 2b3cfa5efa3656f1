//! Sessions over connections that break anywhere, by seed.

mod liar;
mod pipe;
mod rng;
mod world;

use farpage_testkit::seeds;
use world::World;

const STEPS: usize = 1500;

/// Runs one seed: faults, then none until everything has come.
fn run(seed: u64) -> World {
    let mut world = World::new(seed);
    (0..STEPS).for_each(|_| world.step());
    world.heal();
    world
}

#[test]
fn messages_come_once_and_in_order_whatever_connections_do() {
    let (mut messages, mut connections, mut restarts, mut stale) = (0, 0, 0, 0);
    let seeds = seeds();
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let ran = std::panic::catch_unwind(|| run(seed));
        let Ok(world) = ran else {
            panic!("seed {seed}; replay: FARPAGE_SEED={seed} cargo test -p farpage-network once");
        };
        messages += world.delivered;
        connections += world.attached;
        restarts += world.restarts;
        stale += world.stale;
    }
    println!("{messages} messages, {connections} connections, {restarts} restarts, {stale} stale");
    if count >= 100 {
        // What the seeds are there for happens.
        assert!(
            messages > count * 50 && connections > count * 10,
            "{messages} {connections}"
        );
        assert!(restarts > count && stale > count, "{restarts} {stale}");
    }
}
