//! What programs of a cluster's hosts do with memory of release consistency.

use std::sync::atomic::Ordering;
use std::time::Instant;

use farpage_client::sync::{Barrier, Mutex};
use farpage_client::{Host, Shared};

/// Words of a page.
const WORDS: usize = 512;

/// Does it, and says what came of it. `None` of what is nothing of this.
pub fn act(words: &[&str], host: &Host, memory: &Shared) -> Option<String> {
    let number = |at: usize| words[at].parse::<u64>().unwrap();
    Some(match words[0] {
        // Own number, parties, pages, rounds.
        "rounds" => rounds(host, memory, [1, 2, 3, 4].map(number)),
        // Pages, times.
        "locked" => locked(host, memory, number(1), number(2)),
        "release" => memory
            .release()
            .map_or_else(|error| error.to_string(), |()| "done".into()),
        "acquire" => memory
            .acquire()
            .map_or_else(|error| error.to_string(), |()| "done".into()),
        "lock-in-it" => match Mutex::at(memory, 0) {
            Ok(_) => "there is a lock".into(),
            Err(error) => error.to_string(),
        },
        "heap-in-it" => match memory.heap() {
            Ok(_) => "there is a heap".into(),
            Err(error) => error.to_string(),
        },
        _ => return None,
    })
}

/// In each round adds to words of its own on all pages, and then finds what all parties have added. The
/// microseconds of a round.
fn rounds(host: &Host, memory: &Shared, [own, parties, pages, rounds]: [u64; 4]) -> String {
    let meet = Barrier::named(host, "rounds", parties as u32, 1).unwrap();
    let word = |page: u64, at: u64| &memory.words()[page as usize * WORDS + at as usize];
    meet.wait(None).unwrap();
    let began = Instant::now();
    for round in 1..=rounds {
        for page in 0..pages {
            for at in (own..128).step_by(parties as usize) {
                word(page, at).fetch_add(1, Ordering::Relaxed);
            }
        }
        meet.wait(None).unwrap();
        for page in 0..pages {
            for at in 0..128 {
                let is = word(page, at).load(Ordering::Relaxed);
                if is != round {
                    return format!("round {round}: page {page} has {is} in word {at}");
                }
            }
        }
        meet.wait(None).unwrap();
    }
    let us = began.elapsed().as_micros() / u128::from(rounds);
    format!("exact, {us} us a round")
}

/// Adds to one word of each page under a lock.
fn locked(host: &Host, memory: &Shared, pages: u64, times: u64) -> String {
    let lock = Mutex::named(host, "counts", 1).unwrap();
    for _ in 0..times {
        let held = lock.lock().unwrap();
        for page in 0..pages {
            let word = &memory.words()[page as usize * WORDS + 200];
            word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        drop(held);
    }
    "done".into()
}
