//! The costs of the shared memory server of 1989, measured again: hosts in one process, each with its kernel
//! and its server, and messages that are counted and go no way.
//!
//! What the paper says is from Forin, Barrera, Sanzi: The Shared Memory Server (1989), table "Costs of the
//! Algorithms" and the section before it. `cargo xtask bench costs` prints all.

mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farpage_abi::PAGE_BYTES;
use farpage_coherence::Host;
use farpage_share::{About, Figures};
use farpage_sys::view::View;
use support::{One, Order, about, hosts, simple};

/// Hosts that take part at most.
const MOST: u8 = 16;
/// The home of all memory, which takes no part.
const HOME: Host = Host(MOST);
/// Faults of each host that takes part.
const FAULTS: u64 = 40;
/// A host keeps the page so long. Within that all others ask for it, also on a machine of few processors.
const HOLD: Duration = Duration::from_millis(1);

/// "Centralized Hotspot Case Message Cost", and "5N messages" for N faults.
const PAPER_SIMPLE: f64 = 5.0;
/// "Distributed Hotspot Case Message Cost: 2.0 remote msg/fault".
const PAPER_DISTRIBUTED: f64 = 2.0;

/// How a program adds to a word.
#[derive(Clone, Copy, Debug)]
enum Adds {
    /// By one instruction, which writes.
    AtOnce,
    /// It reads the word, and then writes it.
    AfterReading,
}

fn add(word: &AtomicU64, how: Adds) {
    match how {
        Adds::AtOnce => {
            word.fetch_add(1, Ordering::Relaxed);
        }
        Adds::AfterReading => {
            let read = word.load(Ordering::Relaxed);
            word.store(read + 1, Ordering::Relaxed);
        }
    }
}

fn faults(figures: Figures) -> u64 {
    figures.read_misses + figures.write_misses + figures.upgrades
}

/// What came of it, over all hosts.
#[derive(Default)]
struct Sum {
    faults: u64,
    sent: u64,
    forwarded: u64,
    took: Duration,
}

impl Sum {
    fn of(all: &[One], number: u64) -> Self {
        let mut sum = Self::default();
        for figures in all.iter().filter_map(|one| one.server.figures(number)) {
            sum.faults += faults(figures);
            sum.sent += figures.sent;
            sum.forwarded += figures.forwarded;
        }
        sum
    }

    fn messages_each(&self) -> f64 {
        self.sent as f64 / self.faults as f64
    }
}

/// The first `parties` hosts always add to one word, until there were enough faults.
fn hot_spot(all: &[One], about: &About, parties: usize, how: Adds) -> Sum {
    all[usize::from(HOME.0)].server.open(about).unwrap();
    let views: Vec<View> = all[..parties].iter().map(|one| one.map(about).1).collect();
    let is_over = AtomicBool::new(false);
    let began = Instant::now();
    thread::scope(|scope| {
        for view in &views {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    add(view.word(0), how);
                }
            });
        }
        while Sum::of(all, about.number).faults < FAULTS * parties as u64 {
            thread::sleep(Duration::from_millis(1));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    Sum {
        took: began.elapsed(),
        ..Sum::of(all, about.number)
    }
}

#[test]
fn a_fault_of_a_hot_spot_costs_as_many_messages_as_in_the_paper_and_what_is_sent_on() {
    let all = hosts(MOST + 1, 16 << 20, Order::AsSent);
    println!(
        "Messages for each fault where N hosts always add to one word; in brackets, requests that were"
    );
    println!("sent on for 100 faults. simple: the home is another host.");
    println!("         simple                            distributed");
    println!(
        "   N   paper  adds         reads, writes   paper  adds         reads, writes   us a cycle"
    );
    let mut number = 0;
    for parties in 2..=usize::from(MOST) {
        let mut line = format!("{parties:4}");
        let mut cycle = 0.0;
        for (paper, kind) in [
            (PAPER_SIMPLE, simple as fn(u64, u64, u64) -> About),
            (PAPER_DISTRIBUTED, about),
        ] {
            line += &format!("   {paper:5.1}");
            for how in [Adds::AtOnce, Adds::AfterReading] {
                number += 1;
                let about = About {
                    home: HOME,
                    stay: HOME.0.into(),
                    hold: HOLD,
                    ..kind(number, 1, 1)
                };
                let sum = hot_spot(&all, &about, parties, how);
                let each = sum.messages_each();
                let on = 100.0 * sum.forwarded as f64 / sum.faults as f64;
                line += &format!("  {:<13}", format!("{each:.2} ({on:.1})"));
                cycle = sum.took.as_secs_f64() * 1e6 / sum.faults as f64;
                // Hosts that did not wait just then may ask one that has no longer the page.
                let straight = (sum.sent - sum.forwarded) as f64;
                let most = match how {
                    Adds::AtOnce => paper * sum.faults as f64 + 2.0 * parties as f64,
                    // Some who read are not known to write.
                    Adds::AfterReading => 2.0 * paper * sum.faults as f64,
                };
                assert!(
                    straight <= most,
                    "{parties} hosts, {how:?}: {straight} of {most}"
                );
            }
        }
        println!("{line}  {cycle:6.0}");
    }
}

fn read(word: &AtomicU64) {
    std::hint::black_box(word.load(Ordering::Relaxed));
}

/// Microseconds for each of so many.
fn each(count: u64, act: impl Fn(u64)) -> f64 {
    let began = Instant::now();
    (0..count).for_each(act);
    began.elapsed().as_secs_f64() * 1e6 / count as f64
}

#[test]
fn pages_of_eight_go_by_as_many_messages_as_one() {
    const PAGES: u64 = 1024;
    let all = hosts(2, 64 << 20, Order::AsSent);
    println!("Single faults, two hosts in one process, us:");
    println!("  what                                 paper (IBM RT)  here");
    let grid = about(1, PAGES, 1);
    let views: Vec<View> = all.iter().map(|one| one.map(&grid).1).collect();
    let word = |host: usize, page: u64| views[host].word(page as usize * PAGE_BYTES);
    let zeros = each(PAGES, |page| word(0, page).store(1, Ordering::Relaxed));
    let reads = each(PAGES, |page| read(word(1, page)));
    let protected = each(PAGES, |page| word(1, page).store(2, Ordering::Relaxed));
    let line = |what: &str, paper: &str, us: f64| println!("  {what:<37}  {paper:<14}  {us:.1}");
    line("zero-fill", "1500", zeros);
    line(
        "protection, where another had a copy",
        "1100 (nobody)",
        protected,
    );
    line("a page that another host has", "-", reads);
    let figures = all[1].server.figures(1).unwrap();
    assert_eq!(
        (figures.read_misses, figures.upgrades),
        (PAGES, PAGES),
        "one fault a page"
    );
    assert_eq!(Sum::of(&all, 1).sent, PAGES * 4);
    let large = about(2, PAGES, 8);
    let views: Vec<View> = all.iter().map(|one| one.map(&large).1).collect();
    let word = |host: usize, page: u64| views[host].word(page as usize * PAGE_BYTES);
    (0..PAGES).for_each(|page| word(0, page).store(1, Ordering::Relaxed));
    let units = PAGES / 8;
    let together = each(units, |unit| read(word(1, unit * 8)));
    line(
        "pages eight times Linux's: more a fault",
        "200 at most",
        together - reads,
    );
    let rest = each(PAGES, |page| read(word(1, page)));
    let a_page = (together * units as f64 + rest * PAGES as f64) / PAGES as f64;
    line("  of them, each page of 4K in the end", "-", a_page);
    let figures = all[1].server.figures(2).unwrap();
    assert_eq!(figures.read_misses, units, "eight pages come together");
    assert_eq!(Sum::of(&all, 2).sent, units * 2);
}
