//! Several processes that share one object: what memory all of them take together, beside a bare
//! memory file.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

use farpage_host::Objects;
use farpage_object::PAGE_BYTES;
use farpage_sys::file::Fd;
use farpage_sys::memory_file;

use crate::shared::{BARE, Nothing, ORDERS, Program};

const PROCESSES: usize = 8;
/// Pages of the object: 2 GiB.
pub const PAGES: u64 = (2 << 30) / PAGE_BYTES as u64;

/// Prints lines: MiB of all the processes and this one, page tables with them.
pub fn run() {
    let objects = Objects::start(2 * PAGES * PAGE_BYTES as u64).expect("a host");
    let before = taken(std::process::id());
    let bytes = PAGES as usize * PAGE_BYTES;
    {
        let bare = memory_file::create(c"bare", bytes).expect("a file");
        memory_file::seal(bare.as_fd(), memory_file::FIXED).expect("sealed");
        measure("bare", before, || {
            Program::start(Fd(bare.as_raw_fd()), PAGES, BARE).0
        });
    }
    let object = objects.create("together", PAGES, Arc::new(Nothing), true);
    let object = object.expect("an object");
    measure("farpage", before, || Program::of(objects, &object));
}

fn measure(name: &str, before: u64, start: impl Fn() -> Program) {
    let programs: Vec<Program> = (0..PROCESSES).map(|_| start()).collect();
    programs[0].touches(&ORDERS[2]);
    for program in &programs[1..] {
        program.touches(&ORDERS[0]);
    }
    // What this process had before is the bench's, and not the host kernel's.
    let own = taken(std::process::id()).saturating_sub(before);
    let theirs: u64 = programs.iter().map(|program| taken(program.pid())).sum();
    let mib = (own + theirs) as f64 / 1024.0;
    println!("together {name} {PROCESSES}_processes_MiB {PAGES} {mib:.1}");
}

/// KiB of memory that a process takes: its share of what it has mapped, of which those that share
/// count the whole together, and its page tables.
fn taken(pid: u32) -> u64 {
    let of = |file: &str, name: &str| {
        let text = fs::read_to_string(format!("/proc/{pid}/{file}")).expect("a process");
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        number.expect("a number")
    };
    of("smaps_rollup", "Pss:") + of("status", "VmPTE:")
}
