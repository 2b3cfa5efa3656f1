//! What programs of hosts do with locks, semaphores and barriers, at bytes of what they share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use farpage_client::Shared;
use farpage_client::sync::{Barrier, Mutex, Semaphore, SyncError};

/// What comes of it; `None` of what is no such thing.
pub fn act(words: &[&str], shared: &Shared) -> Option<String> {
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    let lock = || Mutex::at(shared, number(1));
    let places = || Semaphore::at(shared, number(1), number(2) as u32);
    let done = match words[0] {
        "take" => lock().and_then(|lock| Ok(format!("{:?}", lock.acquire(None)?))),
        "try" => lock().and_then(|lock| {
            let acquired = lock.acquire(Some(Duration::from_millis(number(2))))?;
            Ok(format!("{acquired:?}"))
        }),
        "give" => lock().and_then(|lock| lock.release()).map(said),
        "right" => lock().and_then(|lock| lock.is_right_again()).map(said),
        "counts" => lock()
            .and_then(|lock| counts(&lock, &shared.words()[number(2) as usize / 8], number(3))),
        "place" => places().and_then(|places| Ok(places.acquire(None)?.to_string())),
        "unplace" => places().and_then(|places| places.release()).map(said),
        "arrives" => arrives(shared, number(1), number(2) as u32, number(3)),
        _ => return None,
    };
    Some(done.unwrap_or_else(|error| error.to_string()))
}

fn said((): ()) -> String {
    "done".into()
}

/// Adds one so many times, not atomically; how many microseconds that took.
fn counts(lock: &Mutex, word: &AtomicU64, times: u64) -> Result<String, SyncError> {
    let began = Instant::now();
    for _ in 0..times {
        let guard = lock.lock()?;
        let before = word.load(Ordering::Relaxed);
        word.store(before + 1, Ordering::Relaxed);
        drop(guard);
    }
    Ok(began.elapsed().as_micros().to_string())
}

fn arrives(shared: &Shared, at: u64, parties: u32, times: u64) -> Result<String, SyncError> {
    let barrier = Barrier::at(shared, at, parties)?;
    for _ in 0..times {
        barrier.wait(None)?;
    }
    Ok("done".into())
}
