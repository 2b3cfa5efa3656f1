//! Trying again: what may pass is tried until a deadline, with growing pauses.

use std::time::{Duration, Instant};

use crate::{Source, SourceError};

/// First and longest pause.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// A pause is slept in steps, so that giving up takes effect.
const STEP: Duration = Duration::from_millis(100);

/// How long a read is tried again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    deadline: Duration,
    /// The deadline only ends silence.
    endless: bool,
}

impl Patience {
    /// Fails at the deadline.
    pub(crate) fn until(deadline: Duration) -> Self {
        let endless = false;
        Self { deadline, endless }
    }

    /// Never fails; says so once, at `deadline`.
    pub(crate) fn endless(deadline: Duration) -> Self {
        let endless = true;
        Self { deadline, endless }
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
        let began = Instant::now();
        let mut said = false;
        for attempt in 0u32.. {
            let error = match source.read_at(offset, buffer) {
                Ok(()) => return Ok(()),
                Err(error) if !error.is_transient() || given_up() => return Err(error),
                Err(error) => error,
            };
            let pause = pause(attempt, offset);
            if began.elapsed() + pause > self.deadline {
                if !self.endless {
                    return Err(SourceError::TimedOut {
                        name: source.name().into(),
                        seconds: self.deadline.as_secs(),
                        cause: cause_of(&error),
                    });
                }
                if !said {
                    eprintln!("farpage: {error}; waiting until it can be reached");
                    said = true;
                }
            }
            let until = Instant::now() + pause;
            while Instant::now() < until && !given_up() {
                std::thread::sleep(STEP.min(until.saturating_duration_since(Instant::now())));
            }
        }
        unreachable!("it is tried for ever")
    }
}

/// Doubled each time, and somewhat different for each read, so that many do not come back at once.
fn pause(attempt: u32, offset: u64) -> Duration {
    let doubled = PAUSE.0.saturating_mul(1 << attempt.min(10)).min(PAUSE.1);
    let jitter = (offset / 4096).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
    doubled.mul_f64(0.5 + jitter as f64 / 2048.0)
}

fn cause_of(error: &SourceError) -> String {
    match error {
        SourceError::Unreachable { cause, .. } => cause.clone(),
        other => other.to_string(),
    }
}
