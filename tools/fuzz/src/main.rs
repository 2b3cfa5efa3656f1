//! Parsers of what others wrote, given anything.
//!
//! One program for all targets; `cargo xtask fuzz` builds and runs it. `FARPAGE_FUZZ` names the
//! target (`list` prints the names), `FARPAGE_FUZZ_SEEDS` a folder into which its first inputs are
//! written before libFuzzer reads it. To replay a finding: `FARPAGE_FUZZ=npy farpage-fuzz FILE`.
#![no_main]

mod targets;

use std::path::Path;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

use targets::{TARGETS, Target};

static CHOSEN: OnceLock<&'static Target> = OnceLock::new();

fuzz_target!(init: choose(), |input: &[u8]| {
    if let Some(target) = CHOSEN.get() {
        (target.run)(input);
    }
});

fn choose() {
    let name = std::env::var("FARPAGE_FUZZ").unwrap_or_default();
    if name == "list" {
        TARGETS
            .iter()
            .for_each(|target| println!("{}", target.name));
        std::process::exit(0);
    }
    let Some(target) = TARGETS.iter().find(|target| target.name == name) else {
        eprintln!("farpage-fuzz: FARPAGE_FUZZ={name} names no target; FARPAGE_FUZZ=list has them");
        std::process::exit(2);
    };
    if let Some(folder) = std::env::var_os("FARPAGE_FUZZ_SEEDS") {
        for (number, seed) in (target.seeds)().iter().enumerate() {
            let path = Path::new(&folder).join(format!("seed-{number}"));
            std::fs::write(&path, seed).expect("the folder of seeds can be written");
        }
    }
    let _ = CHOSEN.set(target);
}
