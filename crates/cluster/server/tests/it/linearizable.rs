//! Histories of what threads of several hosts read and write: each is one that a single memory could
//! have had.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use farpage_object::PAGE_BYTES;
use farpage_server::About;
use farpage_sys::view::View;
use farpage_testkit::pass;
use stateright::semantics::register::{Register, RegisterOp, RegisterRet};
use stateright::semantics::{ConsistencyTester, LinearizabilityTester};

use crate::support;
use crate::support::history::{Done, FIRST};
use crate::support::{Order, about, hosts, mirrored, simple};

const HOSTS: usize = 3;
const THREADS: usize = 2;
const WORDS: usize = 2;
const ROUNDS: u64 = 200;

/// What began or ended, in the order in which it did: which thread, of which word.
#[derive(Clone, Debug)]
enum Event {
    Begins(usize, usize, RegisterOp<u64>),
    Ends(usize, usize, RegisterRet<u64>),
}

/// Reads and writes words at random. No two writes are of the same value.
fn work(thread: usize, view: &View, mut seed: u64, rounds: u64, history: &Mutex<Vec<Event>>) {
    for round in 0..rounds {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let which = (seed >> 40) as usize % WORDS;
        // Or it has done all while the unit is here.
        if (seed >> 45).is_multiple_of(2) {
            pass(Duration::from_micros((seed >> 55) % 200));
        }
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

/// All that was done to a word.
fn done_to(history: &[Event], word: usize) -> Vec<Done> {
    let mut all = vec![FIRST];
    let mut begun = HashMap::new();
    for (at, event) in history.iter().enumerate() {
        match event {
            Event::Begins(thread, of, op) if *of == word => {
                begun.insert(*thread, (at as i64, op.clone()));
            }
            Event::Ends(thread, of, ret) if *of == word => {
                let (begun, op) = begun.remove(thread).expect("it began");
                let (value, is_write) = match (op, ret) {
                    (RegisterOp::Write(value), _) => (value, true),
                    (RegisterOp::Read, RegisterRet::ReadOk(value)) => (*value, false),
                    (RegisterOp::Read, RegisterRet::WriteOk) => panic!("a read reads"),
                };
                all.push(Done {
                    begun,
                    ended: at as i64,
                    value,
                    is_write,
                });
            }
            Event::Begins(..) | Event::Ends(..) => {}
        }
    }
    all
}

/// Why the history of a word is not one of a single memory.
fn wrong(history: &[Event], word: usize) -> Option<String> {
    support::history::wrong(&done_to(history, word))
}

/// The same from a search among all orders, which takes long for a long history.
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

/// Threads of all hosts use objects that `make` makes, of so many pages in such units.
fn what_is_seen_is_one_memory(make: fn(u64, u64, u64) -> About) {
    let all = hosts(HOSTS as u8, 16 << 20, Order::Any(5));
    let seeds = std::env::var("FARPAGE_SEEDS").map_or(8, |seeds| seeds.parse().unwrap());
    for seed in 1..=seeds {
        // Both pages in one unit, or not.
        let two = make(seed, 2, 1 + seed % 2);
        let views: Vec<View> = all.iter().map(|one| one.map(&two).1).collect();
        let history = Mutex::default();
        thread::scope(|scope| {
            for thread in 0..HOSTS * THREADS {
                let (view, history) = (&views[thread / THREADS], &history);
                let seed = seed << 32 ^ thread as u64;
                scope.spawn(move || work(thread, view, seed, ROUNDS, history));
            }
        });
        let history: Vec<Event> = history.into_inner().unwrap();
        for word in 0..WORDS {
            if let Some(wrong) = wrong(&history, word) {
                let all = done_to(&history, word);
                panic!("seed {seed}, word {word}: {wrong}, of {all:#?}");
            }
        }
        // Messages of it may still be under way.
        all.iter().for_each(|one| one.server.close(seed));
        assert!(!all.iter().any(|one| one.server.is_awaited(seed)));
    }
}

#[test]
fn what_threads_of_all_hosts_see_is_one_memory() {
    what_is_seen_is_one_memory(about);
}

#[test]
fn so_it_is_with_two_replicas() {
    what_is_seen_is_one_memory(mirrored);
}

#[test]
fn so_it_is_with_the_simple_scheduler() {
    what_is_seen_is_one_memory(simple);
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
    assert!(wrong(&stale, 0).is_some());
}

/// Threads that read and write one word, of which each sees any value that was there meanwhile; or, at
/// times, any other.
fn any_history(mut seed: u64) -> Vec<Event> {
    let mut below = |end: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % end
    };
    let (mut history, mut word, mut value) = (Vec::new(), 0, 0);
    let mut under_way: Vec<Option<(RegisterOp<u64>, Option<u64>)>> = vec![None; 3];
    while history.len() < 20 || under_way.iter().any(Option::is_some) {
        let thread = below(3) as usize;
        let lies = below(12) == 0;
        match under_way[thread].take() {
            None if history.len() < 20 => {
                value += 1;
                let op = match below(2) {
                    0 => RegisterOp::Read,
                    _ => RegisterOp::Write(value),
                };
                history.push(Event::Begins(thread, 0, op.clone()));
                under_way[thread] = Some((op, None));
            }
            None => {}
            Some((op, None)) => {
                let saw = match op {
                    RegisterOp::Write(value) => {
                        word = value;
                        value
                    }
                    RegisterOp::Read if lies => below(value + 1),
                    RegisterOp::Read => word,
                };
                under_way[thread] = Some((op, Some(saw)));
            }
            Some((RegisterOp::Read, Some(saw))) => {
                history.push(Event::Ends(thread, 0, RegisterRet::ReadOk(saw)));
            }
            Some((RegisterOp::Write(_), Some(_))) => {
                history.push(Event::Ends(thread, 0, RegisterRet::WriteOk));
            }
        }
    }
    history
}

#[test]
fn both_checkers_say_the_same() {
    let mut of_none = 0;
    for seed in 0..2000 {
        let history = any_history(seed);
        let wrong = wrong(&history, 0);
        assert_eq!(
            wrong.is_none(),
            is_linearizable(&history, 0),
            "{wrong:?}: {history:#?}"
        );
        of_none += u32::from(wrong.is_some());
    }
    assert!((200..1800).contains(&of_none), "{of_none}");
}
