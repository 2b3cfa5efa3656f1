//! Sessions over connections that break anywhere, by seed.

mod liar;
mod pipe;
mod rng;
mod world;

use world::World;

const SEEDS: u64 = 1000;
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
    let chosen = std::env::var("FARPAGE_NETWORK_SEED").ok();
    let chosen: Option<u64> = chosen.and_then(|seed| seed.parse().ok());
    let seeds = chosen.map_or(0..SEEDS, |seed| seed..seed + 1);
    for seed in seeds {
        let ran = std::panic::catch_unwind(|| run(seed));
        let Ok(world) = ran else {
            panic!(
                "seed {seed}; replay: FARPAGE_NETWORK_SEED={seed} cargo test -p farpage-network"
            );
        };
        messages += world.delivered;
        connections += world.attached;
        restarts += world.restarts;
        stale += world.stale;
    }
    println!("{messages} messages, {connections} connections, {restarts} restarts, {stale} stale");
    if chosen.is_none() {
        // What the seeds are there for happens.
        assert!(
            messages > SEEDS * 50 && connections > SEEDS * 10,
            "{messages} {connections}"
        );
        assert!(restarts > SEEDS && stale > SEEDS, "{restarts} {stale}");
    }
}
