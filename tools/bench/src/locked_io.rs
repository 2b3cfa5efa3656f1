//! Transfers to locked and registered memory, each compared, and what takes memory from them meanwhile.
#![allow(unsafe_code)]

use std::path::Path;
use std::process;

use farpage_sys::mem;

#[path = "../../../crates/faces/farpage/tests/it/transfers/mod.rs"]
mod transfers;

use transfers::{Mistake, Plan};

const PAGE: usize = 4096;
const WORKERS: usize = 4;

/// For so many seconds; ends the process with 1 if something is wrong.
pub fn run(folder: &str, seconds: u64, seed: u64, mistake: Option<&str>) {
    let mistake = mistake.map(|name| match name {
        "old-frames" => Mistake::OldFrames,
        "flipped" => Mistake::Flipped,
        "misplaced" => Mistake::Misplaced,
        "lost" => Mistake::Lost,
        other => {
            eprintln!("farpage-bench: no mistake is called '{other}'");
            process::exit(2);
        }
    });
    let report = transfers::run(&Plan {
        folder: Path::new(folder).to_owned(),
        seconds,
        seed,
        workers: WORKERS,
        mistake,
        tells: |how| println!("{how}"),
    });
    println!("\n{report}");
    process::exit(i32::from(!report.wrong.is_empty()));
}

/// Uses so much memory, all of it again and again, until it is killed.
pub fn pressure(mib: usize) -> ! {
    let bytes = mib << 20;
    let at = mem::map_anonymous(bytes).expect("memory");
    let mut next = 1_u64;
    loop {
        next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let page = ((next >> 32) as usize * (bytes / PAGE)) >> 32;
        let word = std::ptr::with_exposed_provenance_mut::<u64>(at + page * PAGE);
        // SAFETY: mapped above, and nobody else's.
        unsafe { word.write_volatile(next) };
    }
}
