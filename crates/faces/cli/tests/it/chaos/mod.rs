//! Hosts that share memory, under faults by seed: real host kernels in network namespaces, a real etcd,
//! programs that read and write. `cargo xtask chaos` runs this for longer.

mod dice;
mod faults;
mod laws;
mod net;
mod program;
mod switch;
mod world;

use std::time::{Duration, Instant};

use farpage_testkit::pass;

use faults::Faults;
use world::World;

/// Without being told otherwise.
const SECONDS: u64 = 25;
const SEED: u64 = 1;
const HOSTS: u64 = 3;

/// A program of a host; nothing when it is run as a test.
#[test]
fn the_program() {
    program::run();
}

fn told(name: &str, default: u64) -> u64 {
    let text = std::env::var(format!("FARPAGE_CHAOS_{name}"));
    text.map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn whatever_fails_what_hosts_share_is_one_memory() {
    let (seconds, seed) = (told("SECONDS", SECONDS), told("SEED", SEED));
    let hosts = told("HOSTS", HOSTS) as u8;
    assert!((2..=8).contains(&hosts), "2 to 8 hosts, not {hosts}");
    let began = Instant::now();
    let Some(mut world) = World::new(seed, hosts) else {
        return;
    };
    world.until_members();
    let mut rounds = 0;
    while rounds == 0 || began.elapsed() < Duration::from_secs(seconds) {
        rounds += 1;
        round(&mut world);
        let (after, figures) = (began.elapsed().as_secs(), &world.figures);
        println!("after {after} s, round {rounds}: {} acts", figures.acts);
    }
    let left = world.ends();
    println!(
        "seed {seed}, {hosts} hosts, {rounds} rounds: {:#?}",
        world.figures
    );
    assert!(left.is_empty(), "left: {left:?}");
    assert!(world.figures.of_others > 0, "each host went alone");
    assert!(
        world.figures.damages_seen > 0,
        "no history was damaged to see whether that is seen"
    );
}

/// Objects, programs, faults; then all is mended, and looked at.
fn round(world: &mut World) {
    world.begins_round();
    let mut faults = Faults::default();
    // A few, so that it is known what one of them does, or, if it is wanted, many at once.
    let (count, pause) = match told("MANY", 0) * world.dice.below(2) {
        0 => (world.dice.between(1, 4), 2500),
        _ => (world.dice.between(5, 12), 1200),
    };
    let mut next = Instant::now() + Duration::from_millis(500);
    let mut begun = 0;
    while begun < count || Instant::now() < next {
        if begun < count && Instant::now() >= next {
            faults.begins(world);
            begun += 1;
            next = Instant::now() + Duration::from_millis(world.dice.between(100, pause));
        }
        faults.ends(world, false);
        world.tends(true);
        // Faults begin and end by the clock.
        pass(Duration::from_millis(20));
    }
    faults.ends(world, true);
    world.event("all faults have ended".into());
    world.judges();
}
