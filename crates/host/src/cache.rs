//! Which pages of a file are there, who waits for the others, and which leave first. Pure.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use farpage_abi::PageRange;
use farpage_object::{Plan, Streams};

/// Pages that leave together: they lie side by side, and came at about the same time.
pub const CLUSTER: u64 = 16;

/// What to do about a page that somebody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is there: let them go on.
    There,
    /// It is on its way; they are told when it has come.
    Coming,
    /// Bring these pages in, the wanted one among them; then call [`Cache::came`].
    Fetch(PageRange),
}

/// Sixteen pages: bit n stands for the n-th.
#[derive(Clone, Copy, Default)]
struct Cluster {
    there: u16,
    coming: u16,
    /// It has its place in the queue.
    queued: bool,
}

/// The pages of one file. `W` says who waits.
pub struct Cache<W> {
    pages: u64,
    clusters: HashMap<u64, Cluster>,
    /// Clusters in the order in which they came.
    queue: VecDeque<u64>,
    waiting: HashMap<u64, Vec<W>>,
    streams: Streams,
    resident: u64,
    resident_max: u64,
}

impl<W> Cache<W> {
    /// Of a file of `pages` pages, none of which is there.
    pub fn new(pages: u64) -> Self {
        Self {
            pages,
            clusters: HashMap::new(),
            queue: VecDeque::new(),
            waiting: HashMap::new(),
            streams: Streams::default(),
            resident: 0,
            resident_max: 0,
        }
    }

    /// Pages that are there or coming: what is charged for.
    pub fn resident(&self) -> u64 {
        self.resident
    }

    /// The most that there ever were.
    pub fn resident_max(&self) -> u64 {
        self.resident_max
    }

    /// `who` wants `page`. At most `window` pages are to be brought in with it; `alone`, at least
    /// that many are worth it.
    ///
    /// # Panics
    /// When the file has no such page, or `window` is 0.
    pub fn want(&mut self, page: u64, who: W, alone: u64, window: u64) -> Answer {
        assert!(page < self.pages && window > 0, "page {page} is wanted");
        if self.is(page, |cluster| cluster.there) {
            return Answer::There;
        }
        self.waiting.entry(page).or_default().push(who);
        if self.is(page, |cluster| cluster.coming) {
            return Answer::Coming;
        }
        let planned = self.plan(page, alone.min(window), window);
        let pages = self.absent_around(page, planned);
        self.streams.brought(pages.start.0, pages.end.0);
        self.begin(pages);
        Answer::Fetch(pages)
    }

    /// Nobody wants pages of `within` yet, but somebody will: the first that are absent, at most
    /// `most`. `None` when all are there or coming.
    pub fn want_soon(&mut self, within: Range<u64>, most: u64) -> Option<PageRange> {
        let end = within.end.min(self.pages);
        let from = (within.start..end).find(|page| self.is_absent(*page))?;
        if most == 0 {
            return None;
        }
        let range = self.absent_around(from, from..end.min(from.saturating_add(most)));
        self.begin(range);
        Some(range)
    }

    /// The first `supplied` of `pages`, which were to be fetched, are there; the others are not.
    /// Returns who waited for any of them.
    pub fn came(&mut self, pages: PageRange, supplied: u64) -> Vec<W> {
        let mut who = Vec::new();
        for page in pages.start.0..pages.end.0 {
            let came = page - pages.start.0 < supplied;
            let bit = 1 << (page % CLUSTER);
            let number = page / CLUSTER;
            let cluster = self.clusters.entry(number).or_default();
            assert!(cluster.coming & bit != 0, "page {page} was not coming");
            cluster.coming &= !bit;
            if came {
                cluster.there |= bit;
                if !std::mem::replace(&mut cluster.queued, true) {
                    self.queue.push_back(number);
                }
            } else {
                self.resident -= 1;
                self.forget_empty(number);
            }
            who.extend(self.waiting.remove(&page).unwrap_or_default());
        }
        who
    }

    /// The oldest pages, which are gone after this: a run within a cluster. Clusters of which
    /// somebody holds pages stay. `None` when there is nothing that could go.
    pub fn evict(&mut self, is_held: impl Fn(PageRange) -> bool) -> Option<PageRange> {
        for _ in 0..self.queue.len() {
            let number = self.queue.pop_front()?;
            let cluster = self.clusters.get_mut(&number)?;
            let all = PageRange::new(number * CLUSTER, (number + 1) * CLUSTER);
            if cluster.coming != 0 || is_held(all) {
                // Some of it is on its way, or in use: it is young.
                self.queue.push_back(number);
                continue;
            }
            let first = cluster.there.trailing_zeros();
            let count = (cluster.there >> first).trailing_ones();
            cluster.there &= !(((1u32 << count) - 1) as u16) << first;
            if cluster.there == 0 {
                self.clusters.remove(&number);
            } else {
                self.queue.push_front(number);
            }
            self.resident -= u64::from(count);
            let start = number * CLUSTER + u64::from(first);
            return Some(PageRange::new(start, start + u64::from(count)));
        }
        None
    }

    fn is(&self, page: u64, which: impl Fn(&Cluster) -> u16) -> bool {
        let cluster = self.clusters.get(&(page / CLUSTER));
        cluster.is_some_and(|cluster| which(cluster) >> (page % CLUSTER) & 1 != 0)
    }

    fn is_absent(&self, page: u64) -> bool {
        !self.is(page, |cluster| cluster.there | cluster.coming)
    }

    fn plan(&mut self, page: u64, alone: u64, window: u64) -> Range<u64> {
        let planned = match self.streams.fault(page) {
            Plan::Forward(count) => page..page.saturating_add(count.max(alone).min(window)),
            Plan::Backward(count) => {
                (page + 1).saturating_sub(count.max(alone).min(window))..page + 1
            }
            Plan::Alone | Plan::Strided { .. } => {
                let start = page / alone * alone;
                start..start.saturating_add(alone)
            }
        };
        planned.start..planned.end.min(self.pages)
    }

    /// The run of absent pages around `page` inside `within`.
    fn absent_around(&self, page: u64, within: Range<u64>) -> PageRange {
        let mut end = page + 1;
        while end < within.end && self.is_absent(end) {
            end += 1;
        }
        let mut start = page;
        while start > within.start && self.is_absent(start - 1) {
            start -= 1;
        }
        PageRange::new(start, end)
    }

    fn begin(&mut self, pages: PageRange) {
        for page in pages.start.0..pages.end.0 {
            let cluster = self.clusters.entry(page / CLUSTER).or_default();
            cluster.coming |= 1 << (page % CLUSTER);
        }
        self.resident += pages.pages();
        self.resident_max = self.resident_max.max(self.resident);
    }

    fn forget_empty(&mut self, number: u64) {
        let empty = |cluster: &Cluster| cluster.there | cluster.coming == 0 && !cluster.queued;
        if self.clusters.get(&number).is_some_and(empty) {
            self.clusters.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashSet, VecDeque};

    use farpage_abi::PageIndex;

    use super::*;

    const PAGES: u64 = 200;

    /// What must hold after every step, kept by plain means.
    #[derive(Default)]
    struct Model {
        there: HashSet<u64>,
        coming: VecDeque<PageRange>,
        waiting: Vec<(u64, u32)>,
    }

    fn step(seed: &mut u64, below: u64) -> u64 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*seed >> 33) % below
    }

    impl Model {
        fn want(&mut self, cache: &mut Cache<u32>, page: u64, who: u32) {
            let coming = self
                .coming
                .iter()
                .any(|pages| pages.contains(PageIndex(page)));
            match cache.want(page, who, 4, 32) {
                Answer::There => return assert!(self.there.contains(&page), "page {page}"),
                Answer::Coming => assert!(coming, "page {page}"),
                Answer::Fetch(pages) => {
                    assert!(!coming && pages.contains(PageIndex(page)));
                    self.begin(pages);
                }
            }
            self.waiting.push((page, who));
        }

        fn begin(&mut self, pages: PageRange) {
            assert!(pages.pages() <= 32 && pages.end.0 <= PAGES);
            for page in pages.start.0..pages.end.0 {
                assert!(!self.there.contains(&page), "page {page} is there");
                assert!(!self.coming.iter().any(|p| p.contains(PageIndex(page))));
            }
            self.coming.push_back(pages);
        }

        fn came(&mut self, cache: &mut Cache<u32>, which: usize, seed: &mut u64) {
            let Some(pages) = self.coming.remove(which % self.coming.len().max(1)) else {
                return;
            };
            let supplied = step(seed, pages.pages() + 1);
            let mut told = cache.came(pages, supplied);
            let first = pages.start.0;
            self.there.extend(first..first + supplied);
            let concerned = |&(page, _): &(u64, u32)| pages.contains(PageIndex(page));
            let mut wanted: Vec<u32> = self
                .waiting
                .iter()
                .filter(|w| concerned(w))
                .map(|w| w.1)
                .collect();
            self.waiting.retain(|w| !concerned(w));
            told.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(told, wanted, "each who waits is told once");
        }

        fn evict(&mut self, cache: &mut Cache<u32>) {
            let Some(pages) = cache.evict(|_| false) else {
                let busy = |page: &u64| {
                    let cluster = page / CLUSTER;
                    let of = |p: &PageRange| {
                        (p.start.0 / CLUSTER..=(p.end.0 - 1) / CLUSTER).contains(&cluster)
                    };
                    self.coming.iter().any(of)
                };
                assert!(self.there.iter().all(busy), "something could have gone");
                return;
            };
            for page in pages.start.0..pages.end.0 {
                assert!(self.there.remove(&page), "page {page} was not there");
            }
        }
    }

    #[test]
    fn whatever_happens_pages_are_in_one_state_and_nobody_is_forgotten() {
        for start in 0..300 {
            let mut seed = start;
            let (mut cache, mut model) = (Cache::new(PAGES), Model::default());
            for who in 0..400 {
                match step(&mut seed, 8) {
                    0..=2 => model.want(&mut cache, step(&mut seed, PAGES), who),
                    3 => {
                        let from = step(&mut seed, PAGES + 5);
                        let (pages, most) = (step(&mut seed, 20), step(&mut seed, 20));
                        if let Some(pages) = cache.want_soon(from..from + pages, most) {
                            assert!(from <= pages.start.0 && pages.pages() <= most);
                            model.begin(pages);
                        }
                    }
                    4 | 5 => {
                        let which = step(&mut seed, 100) as usize;
                        model.came(&mut cache, which, &mut seed);
                    }
                    _ => model.evict(&mut cache),
                }
                let coming: u64 = model.coming.iter().map(|pages| pages.pages()).sum();
                assert_eq!(
                    cache.resident(),
                    model.there.len() as u64 + coming,
                    "seed {start}"
                );
            }
            while !model.coming.is_empty() {
                model.came(&mut cache, 0, &mut seed);
            }
            assert!(model.waiting.is_empty(), "seed {start}");
            while !model.there.is_empty() {
                model.evict(&mut cache);
            }
            assert_eq!(
                (cache.resident(), cache.clusters.len()),
                (0, 0),
                "seed {start}"
            );
        }
    }

    #[test]
    fn what_came_first_leaves_first() {
        let mut cache = Cache::new(PAGES);
        for page in [100, 20, 60] {
            let Answer::Fetch(pages) = cache.want(page, (), 1, 1) else {
                panic!("it was not there");
            };
            cache.came(pages, 1);
        }
        let all_held = cache.evict(|_| true);
        assert_eq!(all_held, None);
        let held = |pages: PageRange| pages.contains(PageIndex(100));
        assert_eq!(cache.evict(held), Some(PageRange::one(PageIndex(20))));
        for page in [20, 100] {
            match cache.want(page, (), 1, 1) {
                Answer::Fetch(pages) => assert!(page == 20 && cache.came(pages, 1).len() == 1),
                answer => assert_eq!((page, answer), (100, Answer::There), "it was held"),
            }
        }
        let left: Vec<u64> = std::iter::from_fn(|| cache.evict(|_| false))
            .map(|p| p.start.0)
            .collect();
        assert_eq!(left, [60, 100, 20], "who was held is young");
    }

    #[test]
    fn a_run_is_brought_in_ever_larger_parts() {
        let mut cache = Cache::new(10_000);
        let (mut page, mut fetched) = (0, Vec::new());
        while page < 5000 {
            let Answer::Fetch(pages) = cache.want(page, (), 16, 512) else {
                panic!("page {page}");
            };
            assert_eq!(cache.came(pages, pages.pages()).len(), 1);
            fetched.push(pages.pages());
            page = pages.end.0;
        }
        assert!(fetched.len() < 20 && fetched.contains(&512), "{fetched:?}");
    }
}
