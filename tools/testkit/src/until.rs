//! Waiting for what happens elsewhere.

use std::time::{Duration, Instant};

/// Only what hangs takes so long, on the busiest machine.
pub const HANGS: Duration = Duration::from_secs(120);

/// Time between two looks at what is waited for, which needs the processors more than the looks do.
const LOOK: Duration = Duration::from_millis(1);

/// Waits until `is_so`: for what cannot be waited for otherwise, such as what Linux says of a thread.
///
/// # Panics
/// After [`HANGS`], with `what`.
#[track_caller]
pub fn until(what: &str, is_so: impl FnMut() -> bool) {
    until_or(|| what.to_owned(), is_so);
}

/// The same, where `what` tells how things stand in the end.
///
/// # Panics
/// After [`HANGS`], with `what`.
#[track_caller]
pub fn until_or(what: impl Fn() -> String, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < HANGS, "waited in vain: {}", what());
        std::thread::sleep(LOOK);
    }
}

/// Lets time pass, after which something is killed, or in which something must not happen.
///
/// It is no way to wait: a test passes however long this and everything else takes.
pub fn pass(time: Duration) {
    std::thread::sleep(time);
}

/// How often all threads of this process have gone to sleep.
///
/// # Panics
/// Without `/proc`.
#[must_use]
pub fn sleeps() -> u64 {
    let threads = std::fs::read_dir("/proc/self/task").expect("/proc is mounted");
    let names = threads.flatten().map(|thread| thread.file_name());
    let numbers = names.filter_map(|name| name.to_str()?.parse().ok());
    numbers.map(|number| Thread(number).sleeps()).sum()
}

/// A thread of this process, as others see it.
#[derive(Clone, Copy, Debug)]
pub struct Thread(i32);

impl Thread {
    /// The one that calls.
    #[must_use]
    pub fn current() -> Self {
        Self(rustix::thread::gettid().as_raw_nonzero().get())
    }

    fn file(self, name: &str) -> String {
        // A thread that has ended has none.
        std::fs::read_to_string(format!("/proc/self/task/{}/{name}", self.0)).unwrap_or_default()
    }

    /// How often it has gone to sleep.
    #[must_use]
    pub fn sleeps(self) -> u64 {
        let status = self.file("status");
        let mut lines = status.lines();
        let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.map_or(0, |count| count.trim().parse().expect("a number"))
    }

    /// Whether it waits for anything.
    fn waits(self) -> bool {
        let stat = self.file("stat");
        // The name before it may have any byte in it.
        let state = stat.rsplit_once(") ").map_or("", |(_, after)| after);
        state.starts_with(['S', 'D'])
    }

    /// Waits until it waits, for whatever it is.
    ///
    /// # Panics
    /// After [`HANGS`], with `what`.
    #[track_caller]
    pub fn until_it_waits(self, what: &str) {
        until(what, || self.waits());
    }

    /// Waits until it waits for the contents of a page: not in a call of the system.
    ///
    /// # Panics
    /// After [`HANGS`], with `what`.
    #[track_caller]
    pub fn until_it_faults(self, what: &str) {
        until(what, || {
            self.waits() && self.file("syscall").starts_with("-1 ")
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::Thread;

    #[test]
    fn a_thread_that_waits_is_seen_to_and_one_that_runs_is_not() {
        let (tells, told) = mpsc::channel();
        let (ends, end) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                tells.send(Thread::current()).unwrap();
                assert!(end.recv().is_err());
            });
            let other = told.recv().unwrap();
            other.until_it_waits("the other thread");
            assert!(!Thread::current().waits());
            assert!(!other.file("syscall").starts_with("-1 "), "it is in a call");
            drop(ends);
        });
    }
}
