//! The plan in a simulated world: readers, a server, a clock.

use std::collections::BTreeMap;

use super::*;

const MS: u64 = 1_000_000;

/// A small generator, so that a seed replays a run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// A server and a program, by one clock.
struct World {
    plan: Plan<u64>,
    now: u64,
    latency_ns: u64,
    ns_per_page: u64,
    /// Reads under way: when they end, what they are, when they began.
    under_way: BTreeMap<(u64, ReadId), (PageRange, u64)>,
    /// What kept reads hold.
    kept: BTreeMap<ReadId, PageRange>,
    /// Answers: ticket to pages.
    answered: BTreeMap<u64, PageRange>,
    reads: u64,
    read_pages: u64,
    /// How often each page was read.
    times: Vec<u8>,
    most_kept: u64,
    tickets: u64,
}

impl World {
    fn new(size: u64, ahead_max: u64, extents: Vec<PageRange>) -> Self {
        Self {
            plan: Plan::new(Link::far(), size, ahead_max, extents),
            now: 0,
            latency_ns: 5 * MS,
            ns_per_page: 4096 * 1000 / 60,
            under_way: BTreeMap::new(),
            kept: BTreeMap::new(),
            answered: BTreeMap::new(),
            reads: 0,
            read_pages: 0,
            times: vec![0; size as usize],
            most_kept: 0,
            tickets: 0,
        }
    }

    fn begin(&mut self) {
        while let Some(Start { id, pages }) = self.plan.start() {
            let took = self.latency_ns + pages.pages() * self.ns_per_page;
            self.under_way
                .insert((self.now + took, id), (pages, self.now));
            self.reads += 1;
            self.read_pages += pages.pages();
            pages
                .iter()
                .for_each(|page| self.times[page.0 as usize] += 1);
        }
    }

    fn answer(&mut self, answer: Answer<u64>) {
        let mut at = answer.pages.start;
        for (id, pages) in &answer.parts {
            assert_eq!(self.kept.get(id), Some(pages), "{id:?} is not there");
            assert!(pages.contains(at));
            at = pages.end;
        }
        assert!(at >= answer.pages.end, "{answer:?}");
        let before = self.answered.insert(answer.ticket, answer.pages);
        assert!(before.is_none(), "answered twice");
    }

    fn forget(&mut self) {
        let plan = &self.plan;
        self.kept.retain(|id, _| plan.is_kept(*id));
        let kept: u64 = self.kept.values().map(|p| p.pages()).sum();
        self.most_kept = self.most_kept.max(kept);
    }

    /// The kernel asks for `pages`, of which the first `needed` are waited for. Returns the ticket.
    fn ask_for(&mut self, pages: PageRange, needed: u64) -> u64 {
        self.tickets += 1;
        let answer = self.plan.wanted(pages, needed, self.tickets);
        self.asked(answer)
    }

    fn ask(&mut self, pages: PageRange) -> u64 {
        self.ask_for(pages, 1)
    }

    fn prefetch(&mut self, pages: PageRange) -> u64 {
        self.tickets += 1;
        let answer = self.plan.prefetched(pages, self.tickets);
        self.asked(answer)
    }

    fn asked(&mut self, answer: Option<Answer<u64>>) -> u64 {
        if let Some(answer) = answer {
            self.answer(answer);
        }
        self.forget();
        self.begin();
        self.tickets
    }

    /// The next read ends. False when none is under way.
    fn step(&mut self, succeeds: bool) -> bool {
        let Some(((at, id), (pages, began))) = self.under_way.pop_first() else {
            return false;
        };
        self.now = self.now.max(at);
        if succeeds {
            self.kept.insert(id, pages);
            let answers = self.plan.ended(id, self.now, at - began);
            for answer in answers {
                self.answer(answer);
            }
        } else {
            for ticket in self.plan.failed(id) {
                let before = self.answered.insert(ticket, PageRange::new(0, 0));
                assert!(before.is_none(), "answered twice");
            }
        }
        self.forget();
        self.begin();
        true
    }

    fn wait(&mut self, ticket: u64) -> PageRange {
        while !self.answered.contains_key(&ticket) {
            assert!(self.step(true), "ticket {ticket} is never answered");
        }
        self.answered[&ticket]
    }

    /// A program that goes through `pages` as the kernel asks: windows that double.
    fn walk(&mut self, pages: PageRange, window_max: u64) {
        let (mut at, mut window) = (pages.start.0, 2);
        while at < pages.end.0 {
            let ask = PageRange::new(at, pages.end.0.min(at + window));
            let ticket = self.ask(ask);
            at = self.wait(ticket).end.0;
            self.now += 100_000;
            window = (window * 2).min(window_max);
        }
    }
}

#[test]
fn a_sequential_reader_gets_what_many_connections_bring() {
    let size = 64 << 10; // 256 MiB
    let mut world = World::new(size, 16 << 10, Vec::new());
    world.walk(PageRange::new(0, size), 512);
    let one_connection = size * world.ns_per_page;
    assert!(world.now * 8 < one_connection, "{} ms", world.now / MS);
    assert_eq!(world.read_pages, size, "every page is read once");
    assert!(world.most_kept <= 16 << 10);
}

#[test]
fn a_short_scan_has_little_read_for_nothing() {
    for pages in [16, 100, 1000, 10_000] {
        let mut world = World::new(1 << 20, 16 << 10, Vec::new());
        world.walk(PageRange::new(0, pages), 512);
        while world.step(true) {}
        let read = world.read_pages;
        assert!(read <= 3 * pages + 1024, "{read} pages read for {pages}");
    }
}

#[test]
fn a_backward_reader_does_too() {
    let size = 64 << 10;
    let mut world = World::new(size, 16 << 10, Vec::new());
    let (mut end, mut window) = (size, 2);
    while end > 0 {
        let ask = PageRange::new(end.saturating_sub(window), end);
        // What the thread touched is the last of them.
        let ticket = world.ask_for(ask, ask.pages());
        assert_eq!(world.wait(ticket), ask);
        end = ask.start.0;
        window = (window * 2).min(512);
    }
    assert_eq!(world.read_pages, size, "every page is read once");
    let one_connection = size * world.ns_per_page;
    assert!(world.now * 8 < one_connection, "{} ms", world.now / MS);
}

#[test]
fn random_readers_read_nothing_ahead() {
    let mut world = World::new(1 << 20, 16 << 10, Vec::new());
    let mut random = Random(7);
    for _ in 0..500 {
        let at = random.below(1 << 16) * 16;
        let ticket = world.ask(PageRange::new(at, at + 8));
        world.wait(ticket);
    }
    assert_eq!(world.read_pages, 500 * 8);
}

#[test]
fn the_first_touch_of_an_extent_brings_it_whole() {
    let extent = PageRange::new(1000, 9000);
    let mut world = World::new(1 << 20, 16 << 10, vec![extent]);
    let ticket = world.ask(PageRange::new(1000, 1008));
    world.wait(ticket);
    while world.step(true) {}
    assert_eq!(world.read_pages, 8000);
    world.walk(PageRange::new(1008, 9000), 512);
    assert!(
        world.times.iter().all(|times| *times <= 1),
        "all of it was here"
    );
}

#[test]
fn an_answer_ends_with_a_read_where_no_more_is_needed() {
    for (needed, came) in [(1, 64), (64, 64), (65, 128)] {
        let mut world = World::new(1 << 20, 16 << 10, vec![PageRange::new(0, 4096)]);
        world.plan.queue(PageRange::new(0, 64), Class::Ahead, true);
        world
            .plan
            .queue(PageRange::new(64, 200), Class::Ahead, true);
        world.begin();
        while world.step(true) {}
        let ticket = world.ask_for(PageRange::new(0, 128), needed);
        assert_eq!(
            world.wait(ticket),
            PageRange::new(0, came),
            "{needed} needed"
        );
    }
}

#[test]
fn what_a_thread_waits_for_overtakes_prefetches() {
    let mut world = World::new(1 << 20, 16 << 10, Vec::new());
    for i in 0..100 {
        world.prefetch(PageRange::new(i * 512, (i + 1) * 512));
    }
    let begun = world.now;
    let ticket = world.ask(PageRange::new(1 << 19, (1 << 19) + 1));
    world.wait(ticket);
    assert!(world.now - begun <= world.latency_ns + world.ns_per_page);
}

#[test]
fn a_prefetch_that_a_thread_has_come_to_wait_for_overtakes_the_others() {
    let mut world = World::new(1 << 20, 16 << 10, Vec::new());
    let tickets: Vec<u64> = (0..100)
        .map(|i| world.prefetch(PageRange::new(i * 512, (i + 1) * 512)))
        .collect();
    let begun = world.now;
    world.plan.hasten(PageIndex(90 * 512 + 7));
    // Nobody reads it: nothing to hasten.
    world.plan.hasten(PageIndex(1 << 19));
    world.begin();
    world.wait(tickets[90]);
    assert!(world.now - begun <= world.latency_ns + 512 * world.ns_per_page);
    while world.step(true) {}
    assert_eq!(world.answered.len(), 100);
}

#[test]
fn small_prefetches_are_read_together() {
    let mut world = World::new(1 << 20, 16 << 10, Vec::new());
    let last = (0..256)
        .map(|i| world.prefetch(PageRange::new(i * 4, i * 4 + 4)))
        .last();
    world.wait(last.unwrap());
    while world.step(true) {}
    assert!(world.reads < 40, "{} reads", world.reads);
    assert_eq!(world.answered.len(), 256);
}

#[test]
fn what_was_written_is_not_answered_from_before() {
    let mut world = World::new(1 << 20, 16 << 10, vec![PageRange::new(0, 4096)]);
    let ticket = world.ask(PageRange::new(0, 8));
    world.wait(ticket);
    while world.step(true) {}
    let reads = world.reads;
    world.plan.written(PageRange::new(100, 101));
    world.forget();
    let ticket = world.ask(PageRange::new(100, 104));
    world.wait(ticket);
    assert!(world.reads > reads, "read again");
    // Written while it is being read ahead: those who waited before get it, nobody after.
    let mut world = World::new(1 << 20, 16 << 10, vec![PageRange::new(0, 4096)]);
    let ticket = world.ask(PageRange::new(0, 8));
    let under_way: Vec<PageRange> = world.under_way.values().map(|(pages, _)| *pages).collect();
    world.plan.written(PageRange::new(0, 4096));
    world.wait(ticket);
    while world.step(true) {}
    for pages in under_way {
        assert!(
            world
                .kept
                .values()
                .all(|kept| kept.intersect(pages).is_empty())
        );
    }
}

/// Readers of all kinds, failures and writes, by seed: every ticket is answered with pages from its
/// first on, once, and what is kept stays within bounds.
#[test]
fn everything_is_answered_whatever_happens() {
    for seed in 1..400u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let ahead_max = 64 << random.below(8);
        let extents = (0..random.below(20)).map(|i| PageRange::new(i * 3000, i * 3000 + 2000));
        let mut world = World::new(100_000, ahead_max, extents.collect());
        let mut at = [0, 30_000, 60_000, 99_000];
        for _ in 0..300 {
            let who = random.below(4) as usize;
            let pages = 1 + random.below(512);
            let range = match who {
                3 => PageRange::new(at[3] - pages.min(at[3] - 1), at[3]),
                2 => {
                    let start = random.below(99_000);
                    PageRange::new(start, start + pages)
                }
                _ => PageRange::new(at[who], (at[who] + pages).min(100_000)),
            };
            at[who] = if who == 3 {
                range.start.0.max(2)
            } else {
                range.end.0 % 99_000
            };
            match random.below(5) {
                0 => world.prefetch(range),
                _ => world.ask_for(range, 1 + random.below(range.pages())),
            };
            if random.below(10) == 0 {
                world.plan.hasten(PageIndex(random.below(100_000)));
                world.begin();
            }
            if random.below(20) == 0 {
                let start = random.below(99_000);
                world
                    .plan
                    .written(PageRange::new(start, start + 1 + random.below(64)));
                world.forget();
            }
            for _ in 0..random.below(4) {
                world.step(random.below(50) > 0);
            }
            assert!(world.most_kept <= ahead_max + 1024, "seed {seed}");
        }
        while world.step(random.below(50) > 0) {}
        assert_eq!(world.answered.len() as u64, world.tickets, "seed {seed}");
        assert!(world.plan.start().is_none());
    }
}
