//! A kernel that has nothing to do. In a process of its own: all threads are counted.

use std::fs;
use std::sync::atomic::Ordering;
use std::time::Duration;

use farpage_sys::futex;

use crate::support;
use crate::support::{MIB, fill, kernel, map};

/// How often threads of this process have gone to sleep.
fn sleeps() -> u64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status"));
    let all = tasks
        .map_while(Result::ok)
        .map_while(|task| status(task).ok());
    let count = |text: String| {
        let line = text
            .lines()
            .find(|line| line.starts_with("voluntary_ctxt_switches"));
        line.unwrap()
            .split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    all.map(count).sum()
}

#[test]
fn an_idle_kernel_sleeps_and_gives_memory_back_when_it_is_asked() {
    farpage_test_machine::in_own_process!();
    let kernel = kernel(64 * MIB as u64, false);
    let bytes = 16 * MIB;
    let at = map(kernel, bytes);
    fill(at, bytes, 1);
    let control = kernel.account().control();
    // It settles: what was granted is looked at, handlers come.
    std::thread::sleep(Duration::from_millis(300));
    let before = sleeps();
    std::thread::sleep(Duration::from_secs(1));
    let slept = sleeps() - before;
    assert!(slept < 10, "woken {slept} times in a second");
    let pressure = &control.tasks[0].pressure;
    while control.resident_bytes.load(Ordering::Relaxed) > 8 * MIB as u64 {
        let seen = control.memory_freed.load(Ordering::Acquire);
        pressure.fetch_add(1, Ordering::AcqRel);
        futex::wake(pressure, 1);
        futex::wait(&control.memory_freed, seen, Some(1_000_000_000));
    }
    support::check(at, bytes, 1);
}
