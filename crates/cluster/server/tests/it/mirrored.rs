//! Objects of which nothing that anybody has seen goes with a host.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use farpage_object::PAGE_BYTES;
use farpage_server::{About, OpenError};
use farpage_sys::view::View;

use crate::support::{One, Order, die, dies, hosts, mirrored, read, write};

const SEED: &str = "FARPAGE_SEED";

/// What a host does, and when: step `k` is about this page, and writes `k` to the host's own word of
/// it, or reads the word of another.
fn step(seed: u64, number: usize, k: u64, pages: u64) -> (u64, bool) {
    let mut word = seed ^ (number as u64 + 1) << 40 ^ k << 3;
    for _ in 0..2 {
        word = (word ^ word >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    ((word >> 33) % pages, (word >> 20).is_multiple_of(2))
}

fn place(page: u64, number: usize) -> usize {
    page as usize * PAGE_BYTES + number * 8
}

/// Hosts of a test, each with a program that writes and reads at random.
struct Grid {
    seed: u64,
    pages: u64,
    all: Vec<One>,
    views: Vec<Arc<View>>,
    /// How far each host's program has come.
    steps: Vec<Arc<AtomicU64>>,
}

impl Grid {
    fn new(seed: u64, hosts_count: u8, ram_bytes: u64, about: &About) -> Self {
        let seed = seed + std::env::var(SEED).map_or(0, |more| more.parse().unwrap());
        println!("{SEED} is added to the seed, which is {seed}");
        let all = hosts(hosts_count, ram_bytes, Order::Any(seed));
        let views = all.iter().map(|one| Arc::new(one.map(about).1)).collect();
        Self {
            seed,
            pages: about.bytes / PAGE_BYTES as u64,
            steps: all.iter().map(|_| Arc::default()).collect(),
            all,
            views,
        }
    }

    /// The programs of `who` do so many steps more. Who is done says so.
    fn work(&self, who: &[usize], rounds: u64) -> Receiver<usize> {
        let (tell, told) = channel();
        for number in who.iter().copied() {
            let (view, steps) = (
                Arc::clone(&self.views[number]),
                Arc::clone(&self.steps[number]),
            );
            let (seed, pages, hosts) = (self.seed, self.pages, self.all.len());
            let tell = tell.clone();
            // One at a host that dies may wait for ever.
            thread::spawn(move || {
                let mut seen: HashMap<(u64, usize), u64> = HashMap::new();
                let first = steps.load(Ordering::SeqCst) + 1;
                for k in first..first + rounds {
                    let (page, writes) = step(seed, number, k, pages);
                    let other = k as usize % hosts;
                    let now = read(&view, place(page, other)).expect("nothing is lost");
                    let before = seen.insert((page, other), now).unwrap_or(0);
                    assert!(
                        now >= before,
                        "page {page}: word {other} went back from {before} to {now}"
                    );
                    if writes {
                        assert!(write(&view, place(page, number), k), "nothing is lost");
                    }
                    steps.store(k, Ordering::SeqCst);
                }
                tell.send(number).unwrap();
            });
        }
        told
    }

    /// How far all programs together have come.
    fn sum(&self) -> u64 {
        let of = |steps: &Arc<AtomicU64>| steps.load(Ordering::SeqCst);
        self.steps.iter().map(of).sum()
    }

    fn wait_for(&self, sum: u64) {
        farpage_testkit::until("all is counted", || self.sum() >= sum);
    }

    /// One of them dies, in the middle of `rounds`; what the others go on with is right.
    fn dies(&self, living: &[usize], victim: usize, rounds: u64, generation: u64) {
        let before = self.sum();
        let told = self.work(living, rounds);
        self.wait_for(before + rounds / 2);
        dies(&self.all, victim as u8, generation);
        let others: Vec<usize> = living
            .iter()
            .copied()
            .filter(|one| *one != victim)
            .collect();
        for _ in &others {
            // The victim may be done as well, before it dies.
            while told
                .recv_timeout(Duration::from_secs(120))
                .expect("nobody waits for ever")
                == victim
            {}
        }
        self.check(&others);
    }

    /// All survivors see the same; of those who live, the last; of those who have died, all that they
    /// wrote before anything that is still there.
    fn check(&self, living: &[usize]) {
        for number in 0..self.all.len() {
            let of = |view: &View| -> Vec<u64> {
                let words = (0..self.pages).map(|page| read(view, place(page, number)));
                words.map(|word| word.expect("nothing is lost")).collect()
            };
            let words = of(&self.views[living[0]]);
            for other in &living[1..] {
                assert_eq!(of(&self.views[*other]), words, "words of host {number}");
            }
            let last = match living.contains(&number) {
                true => self.steps[number].load(Ordering::SeqCst),
                false => words.iter().copied().max().unwrap(),
            };
            let mut wanted = vec![0; self.pages as usize];
            for k in 1..=last {
                let (page, writes) = step(self.seed, number, k, self.pages);
                if writes {
                    wanted[page as usize] = k;
                }
            }
            assert_eq!(words, wanted, "words of host {number}, of {living:?}");
        }
    }

    /// Waits until backups have all that was sent to them.
    fn settles(&self, living: &[usize], number: u64) {
        let is_settled = |one: &usize| {
            let figures = self.all[*one].server.figures(number).unwrap();
            figures.on_their_way == 0
        };
        farpage_testkit::until("all copies are settled", || living.iter().all(is_settled));
    }
}

#[test]
fn nothing_is_lost_whoever_dies() {
    for seed in 1..4 {
        for victim in 0..3 {
            let grid = Grid::new(seed, 3, 16 << 20, &mirrored(seed, 64, 1));
            grid.dies(&[0, 1, 2], victim, 800, 2);
        }
    }
}

#[test]
fn one_host_after_the_other_dies_and_nothing_is_lost() {
    for (seed, order) in [(1, [0, 1]), (2, [3, 0]), (3, [1, 2])] {
        let grid = Grid::new(seed, 4, 16 << 20, &mirrored(seed, 32, 1));
        let mut living = vec![0, 1, 2, 3];
        for (generation, victim) in (2..).zip(order) {
            grid.dies(&living, victim, 500, generation);
            living.retain(|one| *one != victim);
            grid.settles(&living, seed);
        }
        let last = living[1];
        grid.dies(&living, living[0], 200, 9);
        assert!(read(&grid.views[last], place(0, last)).is_some());
    }
}

/// A writer and its backup: what is left elsewhere is older than what others have seen.
#[test]
fn what_two_hosts_took_that_died_at_once_is_lost_and_nobody_reads_what_was_before() {
    for (one, other) in [(3, 0), (3, 1), (2, 3), (0, 1)] {
        let all = hosts(4, 16 << 20, Order::AsSent);
        let grid = mirrored(1, 8, 1);
        let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
        let reader = (0..4).find(|host| ![one, other].contains(host)).unwrap();
        let earlier = (0..4)
            .rfind(|host| ![one, other, reader].contains(host))
            .unwrap();
        for page in 0..4 {
            assert!(write(&views[usize::from(earlier)], page * PAGE_BYTES, 610));
            assert_eq!(read(&views[usize::from(one)], page * PAGE_BYTES), Some(610));
            assert!(write(&views[usize::from(one)], page * PAGE_BYTES, 611));
            assert_eq!(
                read(&views[usize::from(reader)], page * PAGE_BYTES),
                Some(611)
            );
            // Nobody has a copy of it any more, but for who writes and its backup.
            assert!(write(&views[usize::from(one)], page * PAGE_BYTES, 612));
        }
        die(&all, &[one, other], 2);
        for page in 0..4 {
            let seen = read(&views[usize::from(reader)], page * PAGE_BYTES);
            assert!(
                matches!(seen, None | Some(611 | 612)),
                "{one} and {other}: {seen:?}"
            );
        }
        // What they had nothing to do with, or was lost with one of them, is as it is documented.
        let rest = read(&views[usize::from(earlier)], 7 * PAGE_BYTES);
        assert_eq!(rest, (one != 0 && other != 0).then_some(0));
    }
}

#[test]
fn nothing_is_lost_when_pages_leave_memory_meanwhile() {
    for (seed, victim) in [(1, 0), (2, 2)] {
        let grid = Grid::new(seed, 3, 1 << 20, &mirrored(seed, 512, 1));
        grid.dies(&[0, 1, 2], victim, 3000, 2);
    }
}

#[test]
fn nothing_is_lost_of_units_of_several_pages() {
    for (seed, victim) in [(1, 1), (2, 0)] {
        let grid = Grid::new(seed, 3, 2 << 20, &mirrored(seed, 256, 16));
        grid.dies(&[0, 1, 2], victim, 600, 2);
    }
    // Longer than a message of the network.
    let grid = Grid::new(3, 2, 8 << 20, &mirrored(3, 1500, 512));
    grid.dies(&[0, 1], 0, 60, 2);
}

#[test]
fn a_fault_costs_one_message_more_at_most() {
    let all = hosts(4, 16 << 20, Order::AsSent);
    let grid = mirrored(1, 8, 1);
    let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
    let word = |host: usize, page: u64| views[host].word(page as usize * PAGE_BYTES);
    let figures = |of: fn(&farpage_server::Figures) -> u64| -> u64 {
        let of = |one: &One| of(&one.server.figures(1).unwrap());
        all.iter().map(of).sum()
    };
    let mut before = 0;
    let mut costs = || {
        let now = figures(|all| all.sent);
        now - std::mem::replace(&mut before, now)
    };
    word(0, 0).store(1, Ordering::Relaxed);
    word(0, 1).store(2, Ordering::Relaxed);
    assert_eq!(costs(), 0, "at home");
    assert_eq!(word(2, 0).load(Ordering::Relaxed), 1);
    assert_eq!(costs(), 3, "a read: by the backup");
    assert_eq!(figures(|all| all.parcels), 1);
    assert_eq!(figures(|all| all.passed), 1);
    farpage_testkit::until("nothing is on its way", || {
        figures(|all| all.on_their_way) == 0
    });
    assert_eq!(word(3, 1).load(Ordering::Relaxed), 2);
    assert_eq!(costs(), 2, "what was written before has gone along");
    word(3, 0).store(3, Ordering::Relaxed);
    assert_eq!(costs(), 4, "a write with one copy, which the backup has");
    assert_eq!(word(0, 0).load(Ordering::Relaxed), 3);
    assert_eq!(costs(), 2, "who reads is the backup");
}

#[test]
fn numbers_of_replicas_that_cannot_be_are_refused() {
    let all = hosts(1, 1 << 20, Order::AsSent);
    for replicas in [0, 3, 200] {
        let about = About {
            replicas,
            ..mirrored(1, 1, 1)
        };
        let refused = all[0].server.open(&about);
        assert!(matches!(refused, Err(OpenError::Replicas(said)) if said == replicas));
    }
    assert!(all[0].server.open(&mirrored(1, 1, 1)).is_ok());
}
