//! Several tasks, their Links, and everything that can happen to them: by seed, and in every order.
//!
//! A Link carries frames in order until it is cut; then each side notices in its own time, and what
//! was not delivered by then is lost. Tasks crash. The laws ([`laws`]) hold after every step; when
//! the world comes to rest, counts are exact, every right works, and nothing is left over.

mod explore;
mod finale;
mod hostile;
mod laws;
mod rng;
mod truth;
mod world;

use std::println;

use rng::Rng;
use world::{Setup, World};

/// One random world. Panics when a law is broken.
fn run(seed: u64) -> World {
    let mut rng = Rng::new(seed);
    let mut world = World::new(&Setup::random(&mut rng));
    for _ in 0..300 + rng.below(600) {
        world.random_step(&mut rng);
        world.check();
    }
    world.finale(&mut rng);
    world
}

#[test]
fn a_thousand_seeds_break_no_law_and_meet_everything() {
    let mut met = [0u32; 32];
    for seed in 0..1000 {
        let world = std::panic::catch_unwind(|| run(seed));
        let world = world.unwrap_or_else(|_| panic!("seed {seed} breaks a law"));
        for (sum, one) in met.iter_mut().zip(world.met) {
            *sum += one;
        }
    }
    println!("frames and events met: {met:?}");
    let rare = met[..world::EVENTS].iter().position(|&count| count < 5);
    assert_eq!(rare, None, "an event that is hardly ever met: {met:?}");
}

/// `RIGHTS_SEEDS=FROM-TO`: many more than on every build.
#[test]
fn seeds_that_were_asked_for_break_no_law() {
    let Ok(seeds) = std::env::var("RIGHTS_SEEDS") else {
        return;
    };
    let (from, to) = seeds.split_once('-').expect("FROM-TO");
    for seed in from.parse().unwrap()..to.parse().unwrap() {
        let world = std::panic::catch_unwind(|| run(seed));
        assert!(world.is_ok(), "seed {seed} breaks a law");
    }
}

#[test]
fn a_seed_always_gives_the_same_run() {
    assert_eq!(run(7).met, run(7).met);
}
