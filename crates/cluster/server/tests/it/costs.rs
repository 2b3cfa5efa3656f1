//! The costs of the shared memory server of 1989, measured again: hosts in one process, each with its kernel
//! and its server, and messages that are counted and go no way.
//!
//! What the paper says is from Forin, Barrera, Sanzi: The Shared Memory Server (1989), table "Costs of the
//! Algorithms" and the section before it. `cargo xtask bench costs` prints all.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farpage_object::PAGE_BYTES;
use farpage_rules::coherence::Host;
use farpage_server::{About, Figures, Scheduler};
use farpage_sys::view::View;
use farpage_testkit::{pass, until};

use crate::support::{One, Order, about, hosts, simple};

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
/// "Any centralized algorithm that maintains strict memory coherence must use at least 4N remote messages."
const SIMPLE_MOST: f64 = 4.0;

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
    /// What hosts took from their own kernels, since another wanted it.
    taken: u64,
    took: Duration,
}

impl Sum {
    fn of(all: &[One], number: u64) -> Self {
        let mut sum = Self::default();
        for figures in all.iter().filter_map(|one| one.server.figures(number)) {
            sum.faults += faults(figures);
            sum.sent += figures.sent;
            sum.forwarded += figures.forwarded;
            sum.taken += figures.dropped;
        }
        sum
    }

    /// Without what was sent on.
    fn straight(&self) -> u64 {
        self.sent - self.forwarded
    }

    /// Between servers and the kernels of their own hosts: a fault that is asked for, and a page that
    /// is taken.
    fn local(&self) -> u64 {
        self.faults + self.taken
    }

    /// Of each fault.
    fn each(&self, count: u64) -> f64 {
        count as f64 / self.faults as f64
    }
}

/// Local calls for as many faults as there are hosts. Each is asked for, and its page taken once.
fn local_of_a_round(parties: usize, sum: &Sum) -> f64 {
    let (calls, most) = (sum.local(), 2 * (sum.faults + parties as u64));
    assert!(calls <= most, "{parties} hosts: {calls} calls of {most}");
    parties as f64 * sum.each(calls)
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
        until("there were enough faults", || {
            // To look takes mutexes that the hosts need.
            pass(Duration::from_millis(1));
            Sum::of(all, about.number).faults >= FAULTS * parties as u64
        });
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
    println!(
        "sent on for 100 faults, which are not among them. simple: the home is another host. local:"
    );
    println!("calls of a host's kernel and server to one another for N faults, where hosts add.");
    let columns = format!("   paper  {:<13}  {:<13}", "adds", "reads, writes");
    println!("       {:<38}{:<34}local", "simple", "distributed");
    println!("   N{columns}{columns}  2N-2  here  us a cycle");
    let mut number = 0;
    for parties in 2..=usize::from(MOST) {
        let mut line = format!("{parties:4}");
        let (mut cycle, mut local) = (0.0, 0.0);
        for (paper, most, kind) in [
            (
                PAPER_SIMPLE,
                SIMPLE_MOST,
                simple as fn(u64, u64, u64) -> About,
            ),
            (PAPER_DISTRIBUTED, PAPER_DISTRIBUTED, about),
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
                let (each, on) = (sum.each(sum.straight()), 100.0 * sum.each(sum.forwarded));
                line += &format!("  {:<13}", format!("{each:.2} ({on:.1})"));
                cycle = sum.took.as_secs_f64() * 1e6 / sum.faults as f64;
                // Hosts that did not wait just then may ask one that has no longer the page.
                let straight = sum.straight() as f64;
                let on_their_way = 2.0 * parties as f64;
                let most = match how {
                    Adds::AtOnce => most * sum.faults as f64 + on_their_way,
                    // Some who read are not known to write.
                    Adds::AfterReading => 2.0 * most * sum.faults as f64,
                };
                assert!(
                    straight <= most,
                    "{parties} hosts, {how:?}: {straight} of {most}"
                );
                if about.scheduler == Scheduler::Distributed && matches!(how, Adds::AtOnce) {
                    local = local_of_a_round(parties, &sum);
                }
            }
        }
        let paper = 2 * parties - 2;
        println!("{line}  {paper:4}  {local:4.1}  {cycle:6.0}");
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

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
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
    let units = PAGES / 8;
    let (large, small) = (about(2, PAGES, 8), about(3, units, 1));
    let views = [&large, &small].map(|of| all.iter().map(|one| one.map(of).1).collect::<Vec<_>>());
    let large = |host: usize, page: u64| views[0][host].word(page as usize * PAGE_BYTES);
    let small = |host: usize, page: u64| views[1][host].word(page as usize * PAGE_BYTES);
    (0..PAGES).for_each(|page| large(0, page).store(1, Ordering::Relaxed));
    (0..units).for_each(|page| small(0, page).store(1, Ordering::Relaxed));
    // In turn, so that what else the machine does slows down both.
    let in_turn = (0..units).map(|unit| {
        let one = each(1, |_| read(small(1, unit)));
        (one, each(1, |_| read(large(1, unit * 8))))
    });
    let (ones, eights): (Vec<f64>, Vec<f64>) = in_turn.unzip();
    let (one, eight) = (median(&ones), median(&eights));
    let what = "pages eight times Linux's: more a fault";
    line(what, "200 at most", eight - one);
    let percent = format!("{:.0}%", 100.0 * (eight - one) / one);
    println!(
        "  {:<37}  {:<14}  {percent}",
        "  of a fault on one page", "13%"
    );
    let rest = each(PAGES, |page| read(large(1, page)));
    let a_page = eights.iter().sum::<f64>() / PAGES as f64 + rest;
    line("  of them, each page of 4K in the end", "-", a_page);
    let figures = all[1].server.figures(2).unwrap();
    assert_eq!(figures.read_misses, units, "eight pages come together");
    assert_eq!(Sum::of(&all, 2).sent, units * 2);
}
