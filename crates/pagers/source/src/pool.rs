//! The threads that read ahead, for all objects of the process.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farpage_sys::of_process::OfProcess;
use farpage_sys::pthread;

/// Threads at most.
const THREADS_MAX: usize = 64;
/// After this long without work a thread ends.
const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Pool {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

/// Threads that jobs are given to. They do not survive a fork: the child makes a pool of its own.
pub(crate) struct Threads(OfProcess<Pool>);

/// For far sources: a server that does not answer holds them up.
pub(crate) static FAR: Threads = Threads(OfProcess::new());
/// For near ones.
pub(crate) static NEAR: Threads = Threads(OfProcess::new());

impl Threads {
    /// Has `job` done by one of the threads. Jobs begin in order.
    pub(crate) fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        let pool = self.0.get(Pool::default);
        let mut state = pool.lock();
        state.jobs.push_back(Box::new(job));
        if state.jobs.len() > state.idle && state.threads < THREADS_MAX {
            let made = pthread::start(c"farpage-fetch", || pool.work());
            // Without memory for one more, those that there are go on; the first must be.
            assert!(made.is_ok() || state.threads > 0, "no thread can be made");
            state.threads += usize::from(made.is_ok());
        }
        drop(state);
        pool.work.notify_one();
    }
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.lock();
                continue;
            }
            state.idle += 1;
            let waited = self.work.wait_timeout(state, IDLE);
            let (next, timed_out) = waited.unwrap_or_else(PoisonError::into_inner);
            state = next;
            state.idle -= 1;
            if timed_out.timed_out() && state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}
