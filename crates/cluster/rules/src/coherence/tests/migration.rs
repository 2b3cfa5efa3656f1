//! What it costs to give a page to who reads it, when hosts read and then write: in all ways to use one.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use farpage_object::Access::{Read, Write};

use super::model::Rng;
use super::named::Few;

const HOSTS: usize = 6;
const TURNS: usize = 4000;

/// What a host does when it has its turn; `turn` counts them.
type Use = fn(few: &mut Few, rng: &mut Rng, turn: usize) -> usize;

fn any(rng: &mut Rng) -> u8 {
    rng.below(HOSTS) as u8
}

fn updates(few: &mut Few, host: u8) -> usize {
    few.cost(host, Read) + few.cost(host, Write)
}

/// Of a hundred turns `PERCENT` only read, the others read and then write.
fn reads<const PERCENT: usize>(few: &mut Few, rng: &mut Rng, _: usize) -> usize {
    let host = any(rng);
    match rng.below(100) < PERCENT {
        true => few.cost(host, Read),
        false => updates(few, host),
    }
}

/// One host writes, some of the others read.
fn produces(few: &mut Few, rng: &mut Rng, turn: usize) -> usize {
    match turn % 4 {
        0 => few.cost(0, Write),
        _ => few.cost(any(rng), Read),
    }
}

/// The same, and the writer is another each hundred turns.
fn produces_in_phases(few: &mut Few, rng: &mut Rng, turn: usize) -> usize {
    let writer = (turn / 100 % HOSTS) as u8;
    match turn % 4 {
        0 => updates(few, writer),
        _ => few.cost(any(rng), Read),
    }
}

/// Hosts that update for a while, and that read for a while.
fn changes(few: &mut Few, rng: &mut Rng, turn: usize) -> usize {
    let host = any(rng);
    match turn / 50 % 2 {
        0 => updates(few, host),
        _ => few.cost(host, Read),
    }
}

/// Two hosts: one updates, the other reads.
fn answers(few: &mut Few, _: &mut Rng, turn: usize) -> usize {
    match turn % 2 {
        0 => updates(few, 0),
        _ => few.cost(1, Read),
    }
}

const USES: [(&str, Use); 11] = [
    ("all update", reads::<0>),
    ("10% only read", reads::<10>),
    ("30% only read", reads::<30>),
    ("50% only read", reads::<50>),
    ("70% only read", reads::<70>),
    ("90% only read", reads::<90>),
    ("99% only read", reads::<99>),
    ("one writes, all read", produces),
    ("the same, in phases", produces_in_phases),
    ("all update, all read, ..", changes),
    ("one updates, one reads", answers),
];

#[test]
fn to_find_migration_saves_messages_and_costs_two_in_a_hundred_at_most() {
    let mut table = String::from("use                       plain  migrating  (messages a turn)\n");
    for (name, act) in USES {
        let [plain, finds] = [false, true].map(|finds| {
            let mut few = Few::new(HOSTS as u8);
            if finds {
                let pages = few.pages.drain(..);
                few.pages = pages
                    .map(crate::coherence::Page::find_migration)
                    .collect::<Vec<_>>();
            }
            let mut rng = Rng(7);
            let sent: usize = (0..TURNS).map(|turn| act(&mut few, &mut rng, turn)).sum();
            sent as f64 / TURNS as f64
        });
        table += &format!("{name:24}  {plain:.3}  {finds:9.3}\n");
        assert!(
            finds <= plain * 1.02,
            "{name}: {plain} without, {finds} with"
        );
    }
    std::println!("{table}");
}
