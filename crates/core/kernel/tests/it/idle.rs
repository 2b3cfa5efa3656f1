//! A kernel that has nothing to do. In a process of its own: all threads are counted.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use farpage_sys::futex;
use farpage_testkit::{pass, sleeps, until};

use crate::support;
use crate::support::{MIB, fill, kernel, map};

#[test]
fn an_idle_kernel_sleeps_and_gives_memory_back_when_it_is_asked() {
    farpage_testkit::in_own_process!();
    let kernel = kernel(64 * MIB as u64, false);
    let bytes = 16 * MIB;
    let at = map(kernel, bytes);
    fill(at, bytes, 1);
    let control = kernel.account().control();
    // It settles: what was granted is looked at, handlers come.
    until("nothing happens for a moment", || {
        let before = sleeps();
        pass(Duration::from_millis(100));
        // This thread's own, and one of a clock.
        sleeps() <= before + 2
    });
    let (before, began) = (sleeps(), Instant::now());
    pass(Duration::from_secs(1));
    let slept = sleeps() - before;
    let seconds = began.elapsed().as_secs_f64();
    let each_second = slept as f64 / seconds;
    assert!(each_second < 10.0, "woken {slept} times in {seconds} s");
    let pressure = &control.tasks[0].pressure;
    while control.resident_bytes.load(Ordering::Relaxed) > 8 * MIB as u64 {
        let seen = control.memory_freed.load(Ordering::Acquire);
        pressure.fetch_add(1, Ordering::AcqRel);
        futex::wake(pressure, 1);
        futex::wait(&control.memory_freed, seen, Some(1_000_000_000));
    }
    support::check(at, bytes, 1);
}
