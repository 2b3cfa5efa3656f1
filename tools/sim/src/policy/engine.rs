//! Runs a trace: memory of so many pages, clusters as the unit of replacement, pages as the unit of
//! page-in, with the prefetch of `object::Streams`.

use std::collections::VecDeque;

use farpage_object::{CLUSTER_PAGES, NEIGHBOURS, Near, PageIndex, PageRange, Plan, Streams};

use super::kinds::{Policy, policy};
use super::{Kind, Trace};

const GROUP: usize = NEIGHBOURS as usize;

/// What things cost, microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Costs {
    /// A fault on a page that lies aside.
    pub refault: f64,
    /// A page asked from the pager: the first of a run.
    pub page_in: f64,
    /// The others.
    pub page_in_more: f64,
    /// A dirty page handed to the pager.
    pub page_out: f64,
    /// First write to a page that came in clean.
    pub unprotect: f64,
}

impl Costs {
    /// Paging to a compressed tier.
    pub const COMPRESSED: Self = Self {
        refault: 3.0,
        page_in: 10.0,
        page_in_more: 4.0,
        page_out: 5.0,
        unprotect: 2.5,
    };
    /// Paging to a disk.
    pub const DISK: Self = Self {
        page_in: 80.0,
        ..Self::COMPRESSED
    };
}

/// How a trace is run.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The policy.
    pub kind: Kind,
    /// Pages of memory.
    pub memory: usize,
    /// Pages that may lie aside.
    pub aside: usize,
    /// Clean pages are moved aside too, instead of being dropped at once.
    pub clean_aside: bool,
    /// A page asked for alone brings those beside it, as from a disk in `object`.
    pub neighbours: bool,
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Requests to the pager.
    pub requests: u64,
    /// Pages brought in.
    pub paged_in: u64,
    /// Pages handed to the pager.
    pub paged_out: u64,
    /// Faults on pages aside.
    pub refaults: u64,
    /// First writes to clean pages.
    pub unprotected: u64,
}

impl Outcome {
    /// Milliseconds in all.
    pub fn cost_ms(&self, costs: &Costs) -> f64 {
        let more = (self.paged_in - self.requests) as f64;
        (self.requests as f64 * costs.page_in
            + more * costs.page_in_more
            + self.paged_out as f64 * costs.page_out
            + self.refaults as f64 * costs.refault
            + self.unprotected as f64 * costs.unprotect)
            / 1000.0
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Page {
    Absent,
    Resident { dirty: bool },
    Aside { dirty: bool },
    Out,
}

struct Engine {
    setup: Setup,
    pages: Vec<Page>,
    /// Resident and aside.
    used: usize,
    aside_pages: usize,
    aside: VecDeque<u32>,
    /// By cluster: it is in `aside`.
    is_aside: Vec<bool>,
    policy: Box<dyn Policy>,
    streams: Streams,
    near: Near,
    outcome: Outcome,
}

/// Runs `trace`.
pub(super) fn run(trace: &Trace, setup: Setup) -> Outcome {
    let clusters = setup.memory / CLUSTER_PAGES as usize;
    let mut engine = Engine {
        setup,
        pages: vec![Page::Absent; trace.clusters * CLUSTER_PAGES as usize],
        used: 0,
        aside_pages: 0,
        aside: VecDeque::new(),
        is_aside: vec![false; trace.clusters],
        policy: policy(setup.kind, trace.clusters, clusters),
        streams: Streams::default(),
        near: Near::new(),
        outcome: Outcome::default(),
    };
    let next = next_uses(trace);
    for (i, &(page, write)) in trace.accesses.iter().enumerate() {
        engine.access(page, write);
        engine.policy.touched(page / CLUSTER_PAGES as u32, next[i]);
    }
    engine.outcome
}

/// For each access, when its cluster is used next after being left for another.
fn next_uses(trace: &Trace) -> Vec<u64> {
    let mut seen = vec![u64::MAX; trace.clusters];
    let mut next = vec![0; trace.accesses.len()];
    for (i, &(page, _)) in trace.accesses.iter().enumerate().rev() {
        let cluster = page as usize / CLUSTER_PAGES as usize;
        next[i] = seen[cluster];
        seen[cluster] = i as u64;
    }
    next
}

/// Longest run that one page-in may bring, pages: as `kernel` has it.
pub(super) fn window(memory: usize) -> usize {
    (memory / 64).clamp(16, 512)
}

fn pages_of(cluster: u32) -> std::ops::Range<usize> {
    let first = cluster as usize * CLUSTER_PAGES as usize;
    first..first + CLUSTER_PAGES as usize
}

impl Engine {
    fn access(&mut self, page: u32, write: bool) {
        let at = page as usize;
        match self.pages[at] {
            Page::Resident { dirty } => {
                if write && !dirty {
                    self.outcome.unprotected += 1;
                    self.pages[at] = Page::Resident { dirty: true };
                }
            }
            Page::Aside { .. } => self.restore(page / CLUSTER_PAGES as u32, at, write),
            Page::Absent => {
                self.room(1);
                self.used += 1;
                self.pages[at] = Page::Resident { dirty: true };
                self.policy.came(page / CLUSTER_PAGES as u32, true);
            }
            Page::Out => self.page_in(at, write),
        }
    }

    fn restore(&mut self, cluster: u32, at: usize, write: bool) {
        self.outcome.refaults += 1;
        for page in pages_of(cluster) {
            if let Page::Aside { dirty } = self.pages[page] {
                self.aside_pages -= 1;
                self.pages[page] = Page::Resident {
                    dirty: dirty || (write && page == at),
                };
            }
        }
        self.aside.retain(|&c| c != cluster);
        self.is_aside[cluster as usize] = false;
        self.policy.returned(cluster);
    }

    fn page_in(&mut self, at: usize, write: bool) {
        self.near.faulted(PageIndex(at as u64), self.used as u64);
        let (below, above) = match self.streams.fault(at as u64) {
            Plan::Alone | Plan::Strided { .. } => (0, 1),
            Plan::Forward(count) => (0, count as usize),
            Plan::Backward(count) => (count as usize - 1, 1),
        };
        let window = window(self.setup.memory);
        let out = |page: usize| self.pages.get(page) == Some(&Page::Out);
        let mut end = at + 1;
        while end < at + above.min(window) && out(end) {
            end += 1;
        }
        let mut start = at;
        while start > at.saturating_sub(below.min(window)) && out(start - 1) {
            start -= 1;
        }
        if self.setup.neighbours && (start, end) == (at, at + 1) {
            let (below, above) = self.neighbourhood(at);
            while end < above && out(end) {
                end += 1;
            }
            while start > below && out(start - 1) {
                start -= 1;
            }
            let around = PageRange::new(start as u64, end as u64);
            let chosen = self.near.choose(PageIndex(at as u64), around);
            (start, end) = (chosen.start.0 as usize, chosen.end.0 as usize);
        }
        self.streams.brought(at as u64, start as u64, end as u64);
        self.room(end - start);
        self.outcome.requests += 1;
        for page in start..end {
            self.outcome.paged_in += 1;
            self.used += 1;
            let dirty = write && page == at;
            self.outcome.unprotected += u64::from(dirty);
            self.pages[page] = Page::Resident { dirty };
            let cluster = page as u32 / CLUSTER_PAGES as u32;
            self.policy.came(cluster, pages_of(cluster).contains(&at));
        }
    }

    /// As `object::Pages::neighbourhood`.
    fn neighbourhood(&self, at: usize) -> (usize, usize) {
        let near = |page: usize| matches!(self.pages[page], Page::Resident { .. });
        let cluster = pages_of(at as u32 / CLUSTER_PAGES as u32);
        if cluster.filter(|page| near(*page)).count() > 4 {
            (at / GROUP * GROUP, (at / GROUP + 1) * GROUP)
        } else {
            (at, at + 2)
        }
    }

    /// Makes room for `pages`.
    fn room(&mut self, pages: usize) {
        while self.used + pages > self.setup.memory {
            let full = self.aside_pages > self.setup.aside;
            if full && self.policy.moves_aside() {
                self.page_out_aside();
                continue;
            }
            let is_aside = &self.is_aside;
            match self.policy.choose(&|cluster| is_aside[cluster as usize]) {
                Some(cluster) if self.policy.moves_aside() => self.move_aside(cluster),
                Some(cluster) => self.page_out(cluster),
                None => self.page_out_aside(),
            }
        }
    }

    fn move_aside(&mut self, cluster: u32) {
        let mut any = false;
        for page in pages_of(cluster) {
            match self.pages[page] {
                Page::Resident { dirty } if dirty || self.setup.clean_aside => {
                    self.pages[page] = Page::Aside { dirty };
                    self.aside_pages += 1;
                    any = true;
                }
                Page::Resident { .. } => {
                    self.pages[page] = Page::Out;
                    self.used -= 1;
                }
                Page::Aside { .. } => any = true,
                Page::Absent | Page::Out => {}
            }
        }
        if !any {
            self.policy.left(cluster);
        } else if !self.is_aside[cluster as usize] {
            self.is_aside[cluster as usize] = true;
            self.aside.push_back(cluster);
        }
    }

    fn page_out_aside(&mut self) {
        let Some(cluster) = self.aside.pop_front() else {
            panic!("nothing can leave");
        };
        self.is_aside[cluster as usize] = false;
        for page in pages_of(cluster) {
            if let Page::Aside { dirty } = self.pages[page] {
                self.outcome.paged_out += u64::from(dirty);
                self.pages[page] = Page::Out;
                self.aside_pages -= 1;
                self.used -= 1;
            }
        }
        let resident = pages_of(cluster).any(|p| matches!(self.pages[p], Page::Resident { .. }));
        if !resident {
            self.policy.left(cluster);
        }
    }

    fn page_out(&mut self, cluster: u32) {
        for page in pages_of(cluster) {
            if let Page::Resident { dirty } = self.pages[page] {
                self.outcome.paged_out += u64::from(dirty);
                self.pages[page] = Page::Out;
                self.used -= 1;
            }
        }
        self.policy.left(cluster);
    }
}
