//! A thousand worlds on every build.

use std::panic::catch_unwind;

use farpage_sim::{replay, run};

#[test]
fn a_thousand_seeds_break_no_law() {
    for seed in 0..1000 {
        if catch_unwind(|| run(seed, None)).is_err() {
            panic!("seed {seed} fails; replay: {}", replay(seed));
        }
    }
}
