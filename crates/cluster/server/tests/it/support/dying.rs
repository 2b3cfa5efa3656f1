//! Three hosts that use one object, of which one dies.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use farpage_object::PAGE_BYTES;
use farpage_server::About;
use farpage_sys::view::View;
use farpage_testkit::{HANGS, until};

use super::{One, Order, dies, hosts, read, write};

/// What a host has done: the last word that it wrote to each page, and pages that it cannot have, one
/// as often as it tried.
#[derive(Default)]
pub struct Done {
    pub written: HashMap<u64, u64>,
    pub lost: Vec<u64>,
}

/// Adds to its own word of random pages, and looks at those of others, which never go back.
pub fn work(
    number: usize,
    view: &View,
    pages: u64,
    mut seed: u64,
    rounds: u64,
    done: &AtomicU64,
) -> Done {
    let mut all = Done::default();
    let mut seen: HashMap<(u64, usize), u64> = HashMap::new();
    for _ in 0..rounds {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let page = (seed >> 33) % pages;
        let word = |host: usize| page as usize * PAGE_BYTES + host * 8;
        done.fetch_add(1, Ordering::Relaxed);
        let other = (seed >> 50) as usize % 3;
        let Some(now) = read(view, word(other)) else {
            all.lost.push(page);
            continue;
        };
        let before = seen.insert((page, other), now).unwrap_or(0);
        assert!(
            now >= before,
            "page {page}: word {other} went back from {before} to {now}"
        );
        if (seed >> 45).is_multiple_of(2) {
            let next = all.written.get(&page).copied().unwrap_or(0) + 1;
            match write(view, word(number), next) {
                true => drop(all.written.insert(page, next)),
                false => all.lost.push(page),
            }
        }
    }
    all
}

/// A host that lives on: its number, what it has done, and its view.
pub type Survivor = (usize, Done, Arc<View>);

/// A host, which uses the first `near` pages only, dies when each has come to `begun` rounds, of which
/// each of the others does so many. All hosts, and the others when they are done.
pub fn one_dies(
    seed: u64,
    (victim, near): (usize, u64),
    grid: &About,
    begun: u64,
    rounds: u64,
) -> (Vec<One>, Vec<Survivor>) {
    println!("seed {seed}, host {victim} dies");
    let pages = grid.bytes / PAGE_BYTES as u64;
    let all = hosts(3, 16 << 20, Order::Any(seed));
    let views: Vec<Arc<View>> = all.iter().map(|one| Arc::new(one.map(grid).1)).collect();
    let counts = [(); 3].map(|()| Arc::new(AtomicU64::new(0)));
    let (tell, told) = channel();
    for (number, view) in views.iter().enumerate() {
        let (view, count, tell) = (Arc::clone(view), Arc::clone(&counts[number]), tell.clone());
        let seed = seed ^ (number as u64 + 1) << 40;
        let (pages, rounds) = match number == victim {
            true => (near, u64::MAX),
            false => (pages, rounds),
        };
        // One at a host that dies may wait for ever.
        thread::spawn(move || {
            let done = work(number, &view, pages, seed, rounds, &count);
            tell.send((number, done)).unwrap();
        });
    }
    until("each has begun", || {
        counts
            .iter()
            .all(|count| count.load(Ordering::Relaxed) >= begun)
    });
    dies(&all, victim as u8, 2);
    let done = (0..2).map(|_| told.recv_timeout(HANGS).expect("nobody waits for ever"));
    let done = done.map(|(number, done)| (number, done, Arc::clone(&views[number])));
    let survivors = done.collect();
    (all, survivors)
}
