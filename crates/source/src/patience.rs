//! Reads of a far source that are tried again as long as somebody waits.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use crate::{OnFailure, Options, Retry, Source, SourceError};

/// A pause is slept in steps, so that giving up takes effect.
const STEP: Duration = Duration::from_millis(100);

/// How long a read is tried again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    retry: Retry,
    /// At the deadline it only says so.
    endless: bool,
}

impl Patience {
    pub(crate) fn new(options: &Options) -> Self {
        Self {
            retry: Retry {
                deadline: options.deadline,
            },
            endless: options.on_failure == OnFailure::Wait,
        }
    }

    /// Reads, and again after failures that may pass.
    ///
    /// # Errors
    /// The failure that cannot pass; [`SourceError::TimedOut`] at the deadline; the last failure
    /// when `given_up` says that nobody waits any more.
    pub(crate) fn read(
        &self,
        source: &dyn Source,
        offset: u64,
        buffer: &mut [u8],
        given_up: impl Fn() -> bool,
    ) -> Result<(), SourceError> {
        let random = RandomState::new();
        let (mut began, mut attempt, mut said) = (Instant::now(), 0, false);
        loop {
            let error = match source.read_at(offset, buffer) {
                Ok(()) => return Ok(()),
                Err(error) if !error.is_transient() || given_up() => return Err(error),
                Err(error) => error,
            };
            attempt += 1;
            let (asked, jitter) = (error.retry_after(), random.hash_one(attempt) as u32);
            let elapsed = began.elapsed();
            match self.retry.next_delay(attempt, elapsed, asked, jitter) {
                Some(pause) => sleep(pause, &given_up),
                None if !self.endless => return Err(error.timed_out(self.retry.deadline)),
                None => {
                    if !std::mem::replace(&mut said, true) {
                        eprintln!("farpage: {error}; waiting until it can be reached");
                    }
                    sleep(asked.unwrap_or(STEP), &given_up);
                    (began, attempt) = (Instant::now(), 0);
                }
            }
        }
    }
}

fn sleep(pause: Duration, given_up: &impl Fn() -> bool) {
    let until = Instant::now() + pause;
    while !given_up() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(STEP));
    }
}
