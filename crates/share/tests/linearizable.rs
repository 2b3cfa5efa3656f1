//! Histories of what threads of several hosts read and write: each is one that a single memory could
//! have had.

mod support;

use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::thread;

use farpage_abi::PAGE_BYTES;
use farpage_sys::view::View;
use stateright::semantics::register::{Register, RegisterOp, RegisterRet};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester};
use support::{Order, about, hosts};

const HOSTS: usize = 3;
const THREADS: usize = 2;
const WORDS: usize = 2;

/// What began or ended, in the order in which it did: which thread, of which word.
#[derive(Clone, Debug)]
enum Event {
    Begins(usize, usize, RegisterOp<u64>),
    Ends(usize, usize, RegisterRet<u64>),
}

impl Event {
    fn word(&self) -> usize {
        match self {
            Self::Begins(_, word, _) | Self::Ends(_, word, _) => *word,
        }
    }
}

/// Reads and writes words at random. No two writes are of the same value.
fn work(thread: usize, view: &View, mut seed: u64, rounds: u64, history: &Mutex<Vec<Event>>) {
    for round in 0..rounds {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let which = (seed >> 40) as usize % WORDS;
        // In pages of their own, and then in one.
        let at = (which % 2) * PAGE_BYTES + which / 2 * 8;
        let word = view.word(at);
        let say = |event| history.lock().unwrap().push(event);
        if (seed >> 50).is_multiple_of(2) {
            let value = 1 + round * (HOSTS * THREADS) as u64 + thread as u64;
            say(Event::Begins(thread, which, RegisterOp::Write(value)));
            word.store(value, Ordering::SeqCst);
            say(Event::Ends(thread, which, RegisterRet::WriteOk));
        } else {
            say(Event::Begins(thread, which, RegisterOp::Read));
            let value = word.load(Ordering::SeqCst);
            say(Event::Ends(thread, which, RegisterRet::ReadOk(value)));
        }
    }
}

/// True when the history of a word is one of a single register.
fn is_linearizable(history: &[Event], word: usize) -> bool {
    let mut tester = LinearizabilityTester::new(Register(0));
    for event in history {
        let took = match event {
            Event::Begins(thread, of, op) if *of == word => tester.on_invoke(*thread, op.clone()),
            Event::Ends(thread, of, ret) if *of == word => tester.on_return(*thread, ret.clone()),
            Event::Begins(..) | Event::Ends(..) => continue,
        };
        took.expect("a thread does one thing at a time");
    }
    tester.is_consistent()
}

#[test]
fn what_threads_of_all_hosts_see_is_one_memory() {
    let all = hosts(HOSTS as u8, 16 << 20, Order::Any(5));
    let seeds = std::env::var("FARPAGE_SEEDS").map_or(8, |seeds| seeds.parse().unwrap());
    for seed in 1..=seeds {
        let two = about(seed, 2, 1);
        let views: Vec<View> = all.iter().map(|one| one.map(&two).1).collect();
        let history = Mutex::default();
        thread::scope(|scope| {
            for thread in 0..HOSTS * THREADS {
                let (view, history) = (&views[thread / THREADS], &history);
                let seed = seed << 32 ^ thread as u64;
                scope.spawn(move || work(thread, view, seed, 12, history));
            }
        });
        let history: Vec<Event> = history.into_inner().unwrap();
        for word in 0..WORDS {
            let of = history.iter().filter(|event| event.word() == word);
            let of: Vec<&Event> = of.collect();
            let is_one = is_linearizable(&history, word);
            assert!(is_one, "seed {seed}, word {word}: {of:#?}");
        }
        all.iter().for_each(|one| one.server.close(seed));
    }
}

#[test]
fn a_history_that_no_memory_has_is_seen() {
    let stale = [
        Event::Begins(0, 0, RegisterOp::Write(1)),
        Event::Ends(0, 0, RegisterRet::WriteOk),
        Event::Begins(1, 0, RegisterOp::Read),
        Event::Ends(1, 0, RegisterRet::ReadOk(0)),
    ];
    assert!(!is_linearizable(&stale, 0));
}
