//! Trying again what may succeed later.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::thread;
use std::time::{Duration, Instant};

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::{Reach, Source, SourceError};

/// The first pause, before jitter.
const FIRST: Duration = Duration::from_millis(50);
/// No pause is longer, unless the server asks for it.
const LONGEST: Duration = Duration::from_secs(5);
/// A pause is slept in steps, so that giving up takes effect.
const STEP: Duration = Duration::from_millis(100);

/// How long something transient is tried again, with pauses that double from 50 ms to 5 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// From the first try on.
    pub deadline: Duration,
}

impl Retry {
    /// How long to wait before the next try, after `attempt` tries (at least 1) in `elapsed` time.
    /// `None` when the time is up. `retry_after`: what the server asked for; the pause is no
    /// shorter. `jitter`: a random number; it takes away up to half of the pause, so that clients
    /// that failed together do not come back together.
    pub fn next_delay(
        self,
        attempt: u32,
        elapsed: Duration,
        retry_after: Option<Duration>,
        jitter: u32,
    ) -> Option<Duration> {
        let left = self.deadline.checked_sub(elapsed).filter(|l| *l >= FIRST)?;
        let doubled = FIRST.saturating_mul(1 << attempt.saturating_sub(1).min(20));
        let share = 1.0 - f64::from(jitter) / f64::from(u32::MAX) / 2.0;
        let pause = doubled.min(LONGEST).mul_f64(share).min(left);
        match retry_after {
            Some(asked) if asked > left => None,
            Some(asked) => Some(pause.max(asked)),
            None => Some(pause),
        }
    }

    /// Calls `act` until it succeeds, fails for good, or the time is up.
    ///
    /// # Errors
    /// The error of the last try; [`SourceError::TimedOut`] instead of
    /// [`SourceError::Unreachable`].
    pub fn run<T>(self, act: impl FnMut() -> Result<T, SourceError>) -> Result<T, SourceError> {
        self.run_for(act, false, || false)
    }

    /// The same, as long as somebody waits: after `given_up` the last failure is the answer. When it
    /// is `endless`, what may pass is tried for ever, and that is said once, when the time is up.
    pub(crate) fn run_for<T>(
        self,
        mut act: impl FnMut() -> Result<T, SourceError>,
        endless: bool,
        given_up: impl Fn() -> bool,
    ) -> Result<T, SourceError> {
        let random = RandomState::new();
        let (mut start, mut attempt, mut said) = (Instant::now(), 0, false);
        loop {
            let error = match act() {
                Err(error) if error.is_transient() && !given_up() => error,
                done => return done,
            };
            attempt += 1;
            let jitter = random.hash_one(attempt) as u32;
            let asked = error.retry_after();
            match self.next_delay(attempt, start.elapsed(), asked, jitter) {
                Some(pause) => sleep(pause, &given_up),
                None if !endless => return Err(error.timed_out(self.deadline)),
                None => {
                    if !std::mem::replace(&mut said, true) {
                        farpage_sys::say!("farpage: {error}; waiting until it can be reached");
                    }
                    sleep(asked.unwrap_or(STEP), &given_up);
                    (start, attempt) = (Instant::now(), 0);
                }
            }
        }
    }
}

/// A source whose reads are tried again, for who reads it where it lies.
pub struct Patient {
    /// What is read.
    pub source: Arc<dyn Source>,
    /// For how long.
    pub retry: Retry,
}

impl Source for Patient {
    fn name(&self) -> &str {
        self.source.name()
    }

    fn identity(&self) -> String {
        self.source.identity()
    }

    fn size(&self) -> u64 {
        self.source.size()
    }

    fn version(&self) -> Option<String> {
        self.source.version()
    }

    fn reach(&self) -> Reach {
        self.source.reach()
    }

    fn is_at_hand(&self, offset: u64, bytes: u64) -> bool {
        self.source.is_at_hand(offset, bytes)
    }

    fn is_in_memory(&self, offset: u64, bytes: u64) -> bool {
        self.source.is_in_memory(offset, bytes)
    }

    fn file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        self.source.file()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        self.retry.run(|| self.source.read_at(offset, buffer))
    }
}

fn sleep(pause: Duration, given_up: &impl Fn() -> bool) {
    let until = Instant::now() + pause;
    while !given_up() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::sleep(left.min(STEP));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: Retry = Retry {
        deadline: Duration::from_secs(10),
    };

    fn unreachable(retry_after: Option<Duration>) -> SourceError {
        SourceError::Unreachable {
            name: "far".into(),
            cause: "it is down".into(),
            retry_after,
        }
    }

    #[test]
    fn pauses_double_from_50_ms_to_5_s() {
        let minute = Retry {
            deadline: Duration::from_secs(60),
        };
        let pause = |attempt| minute.next_delay(attempt, Duration::ZERO, None, 0);
        let ms = Duration::from_millis;
        assert_eq!(pause(1), Some(ms(50)));
        assert_eq!(pause(2), Some(ms(100)));
        assert_eq!(pause(7), Some(ms(3200)));
        assert_eq!(pause(8), Some(ms(5000)));
        assert_eq!(pause(u32::MAX), Some(ms(5000)));
    }

    #[test]
    fn jitter_takes_away_half_at_most() {
        let pause = |jitter| TEN.next_delay(1, Duration::ZERO, None, jitter);
        assert_eq!(pause(u32::MAX), Some(FIRST / 2));
        assert!(pause(u32::MAX / 2) < Some(FIRST) && pause(u32::MAX / 2) > Some(FIRST / 2));
    }

    #[test]
    fn the_last_pause_ends_at_the_deadline_and_no_other_follows() {
        let seconds = Duration::from_secs;
        assert_eq!(TEN.next_delay(9, seconds(8), None, 0), Some(seconds(2)));
        assert_eq!(TEN.next_delay(9, seconds(10), None, 0), None);
        assert_eq!(TEN.next_delay(9, seconds(11), None, 0), None);
    }

    #[test]
    fn what_the_server_asks_for_is_waited_or_given_up_at_once() {
        let asked = |s| TEN.next_delay(1, Duration::from_secs(4), Some(Duration::from_secs(s)), 0);
        assert_eq!(asked(6), Some(Duration::from_secs(6)));
        assert_eq!(asked(7), None);
        assert_eq!(asked(0), Some(FIRST));
    }

    #[test]
    fn a_transient_failure_is_tried_again_and_another_is_not() {
        let mut calls = 0;
        let done = TEN.run(|| {
            calls += 1;
            if calls < 3 {
                Err(unreachable(None))
            } else {
                Ok(7)
            }
        });
        assert_eq!((done, calls), (Ok(7), 3));
        let refused = SourceError::ReadOnly { name: "far".into() };
        let mut calls = 0;
        let failed: Result<(), _> = TEN.run(|| {
            calls += 1;
            Err(refused.clone())
        });
        assert_eq!((failed, calls), (Err(refused), 1));
    }

    #[test]
    fn when_the_time_is_up_the_last_cause_is_told() {
        let asked = Some(Duration::from_secs(60));
        let failed: Result<(), _> = TEN.run(|| Err(unreachable(asked)));
        let timed_out = SourceError::TimedOut {
            name: "far".into(),
            seconds: 10,
            cause: "it is down".into(),
            remedy: "check the address, the network and the server, or allow more time",
        };
        assert_eq!(failed, Err(timed_out));
    }
}
