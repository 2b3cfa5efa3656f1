//! Prefetch: recognises sequential, backward and strided runs of faults.

/// Runs that are followed at a time.
const STREAMS: usize = 16;
/// Faults that belong to no run and are remembered: two of each of four threads.
const LONELY: usize = 8;
/// A run that had none of so many faults has ended.
const LATELY: u64 = 32;
/// Longest prefetch, pages: 2 MiB.
pub(crate) const WINDOW_MAX: u64 = 512;

/// What to bring in together with a page that faulted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// The page alone: no run is known.
    Alone,
    /// This many pages upwards from the page, itself included.
    Forward(u64),
    /// This many pages downwards from the page, itself included.
    Backward(u64),
    /// `count` single pages, `stride` apart (may be negative), the page itself first.
    Strided {
        /// Distance in pages.
        stride: i64,
        /// How many.
        count: u64,
    },
}

#[derive(Clone, Copy, Default)]
struct Stream {
    /// What came in with the last fault: first page and one past the last.
    start: u64,
    end: u64,
    /// The page of the last fault.
    last: u64,
    /// Distance between faults; 1 and -1 for runs.
    step: i64,
    /// Where the next fault of a stride is expected.
    next: u64,
    /// Pages that faults of the run have brought in, all but the last one.
    run: u64,
    hits: u32,
    used_at: u64,
}

/// The runs seen lately.
#[cfg_attr(any(test, feature = "check"), derive(Clone))]
#[derive(Default)]
pub struct Streams {
    streams: [Stream; STREAMS],
    clock: u64,
    /// The last faults that began a run, in a ring: wide strides are seen in them.
    lonely: [u64; LONELY],
    oldest_lonely: usize,
    /// The stream of the last fault.
    current: usize,
}

impl Streams {
    /// Notes a fault on `page` and says what to bring in with it; [`Streams::brought`] follows.
    pub fn fault(&mut self, page: u64) -> Plan {
        self.clock += 1;
        let stream = match self.find(page) {
            Some(at) => {
                self.current = at;
                let stream = &mut self.streams[at];
                stream.goes_to(page, self.clock);
                stream
            }
            None => {
                let stride = self.stride_to(page);
                self.start(page);
                let stream = &mut self.streams[self.current];
                if let Some(stride) = stride {
                    (stream.step, stream.hits) = (stride, 2);
                }
                stream
            }
        };
        let plan = stream.plan();
        if let Plan::Strided { stride, count } = plan {
            stream.next = page.saturating_add_signed(stride * count as i64);
        }
        plan
    }

    /// The fault on `page`, which need not be the last, brings in the pages from `start` up to `end`:
    /// its run goes on beyond them. Returns how many pages the run has brought in before.
    pub fn brought(&mut self, page: u64, start: u64, end: u64) -> u64 {
        let Some(at) = self.of(page) else {
            return 0;
        };
        let stream = &mut self.streams[at];
        (stream.start, stream.end) = (start, end);
        stream.run
    }

    /// How many pages the run of the fault on `page` has brought in before it.
    pub fn run_pages(&self, page: u64) -> u64 {
        self.of(page).map_or(0, |at| self.streams[at].run)
    }

    /// The stream of the fault on `page`.
    fn of(&self, page: u64) -> Option<usize> {
        let is_of = |at: &usize| self.streams[*at].used_at != 0 && self.streams[*at].last == page;
        let current = Some(self.current).filter(is_of);
        current.or_else(|| (0..STREAMS).find(is_of))
    }

    /// Runs that go on and have brought in `long` pages.
    pub(crate) fn long_runs(&self, long: u64) -> u64 {
        let lately = self.clock.saturating_sub(LATELY);
        let goes_on = |stream: &&Stream| stream.used_at > lately && stream.run >= long;
        self.streams.iter().filter(goes_on).count() as u64
    }

    fn find(&self, page: u64) -> Option<usize> {
        let all = |wanted: &dyn Fn(&Stream) -> bool| {
            (0..STREAMS).find(|&i| self.streams[i].used_at != 0 && wanted(&self.streams[i]))
        };
        all(&|s| s.continues_at(page))
            .or_else(|| all(&|s| s.last != page && s.last.abs_diff(page) <= 64))
    }

    /// The distance at which the last of three faults, `page`, follows the two before it.
    fn stride_to(&mut self, page: u64) -> Option<i64> {
        let before = |page: u64, stride: i64| page.checked_add_signed(stride.checked_neg()?);
        let strides = self.lonely.iter().map(|last| page as i64 - *last as i64);
        let found = strides.into_iter().find(|stride| {
            let second = before(page, *stride).and_then(|last| before(last, *stride));
            *stride != 0 && second.is_some_and(|second| self.lonely.contains(&second))
        });
        self.lonely[self.oldest_lonely] = page;
        self.oldest_lonely = (self.oldest_lonely + 1) % LONELY;
        found
    }

    fn start(&mut self, page: u64) {
        let oldest = (0..STREAMS).min_by_key(|&i| self.streams[i].used_at);
        self.current = oldest.unwrap_or(0);
        self.streams[self.current] = Stream {
            start: page,
            end: page + 1,
            last: page,
            used_at: self.clock,
            ..Stream::default()
        };
    }
}

impl Stream {
    fn continues_at(&self, page: u64) -> bool {
        page == self.end || page + 1 == self.start || self.hits > 1 && page == self.next
    }

    fn goes_to(&mut self, page: u64, now: u64) {
        let step = self.step_to(page);
        (self.used_at, self.last) = (now, page);
        if step == self.step {
            self.hits = self.hits.saturating_add(1);
            self.run += self.end - self.start;
        } else {
            self.step = step;
            self.hits = u32::from(step.unsigned_abs() == 1);
            self.run = 0;
        }
    }

    fn step_to(&self, page: u64) -> i64 {
        if page == self.end || (self.last + 1..self.end).contains(&page) {
            1
        } else if page + 1 == self.start || (self.start..self.last).contains(&page) {
            -1
        } else if self.hits > 1 && page == self.next {
            self.step
        } else {
            page as i64 - self.last as i64
        }
    }

    fn plan(&self) -> Plan {
        let doubled = (2 * (self.end - self.start)).clamp(4, WINDOW_MAX);
        match self.step {
            _ if self.hits == 0 => Plan::Alone,
            1 => Plan::Forward(doubled),
            -1 => Plan::Backward(doubled),
            stride if self.hits >= 2 => Plan::Strided {
                stride,
                count: u64::from(self.hits).min(16),
            },
            _ => Plan::Alone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fault that brings in all that is planned. Returns what.
    fn fault(streams: &mut Streams, page: u64) -> (u64, u64) {
        let (start, end) = match streams.fault(page) {
            Plan::Alone | Plan::Strided { .. } => (page, page + 1),
            Plan::Forward(count) => (page, page + count),
            Plan::Backward(count) => (page + 1 - count, page + 1),
        };
        streams.brought(page, start, end);
        (start, end)
    }

    #[test]
    fn a_forward_run_grows_to_two_mebibytes() {
        let mut streams = Streams::default();
        let (mut page, mut faults) = (1000, 0);
        loop {
            let (_, end) = fault(&mut streams, page);
            faults += 1;
            assert!(faults < 20);
            if end - page == WINDOW_MAX {
                break;
            }
            page = end;
        }
    }

    #[test]
    fn a_run_knows_how_long_it_has_become() {
        let mut streams = Streams::default();
        let (mut page, mut came) = (1000, 0);
        for _ in 0..12 {
            let (start, end) = fault(&mut streams, page);
            // The first fault is no run yet.
            assert!(streams.run_pages(page).abs_diff(came) <= 1);
            (page, came) = (end, came + end - start);
        }
        fault(&mut streams, 500_000);
        assert_eq!(streams.run_pages(500_000), 0);
        assert!(streams.fault(page) == Plan::Forward(WINDOW_MAX) && came > 3 * WINDOW_MAX);
        assert!(streams.run_pages(page).abs_diff(came) <= 1);
    }

    #[test]
    fn a_run_goes_on_where_less_than_planned_was_brought_in() {
        let mut streams = Streams::default();
        let (mut page, mut came) = (1000, 0);
        for _ in 0..40 {
            let count = match streams.fault(page) {
                Plan::Forward(count) => count.min(96),
                _ => 1,
            };
            // Meanwhile somebody else has a fault.
            streams.fault(1 << 30);
            streams.brought(page, page, page + count);
            let before = streams.run_pages(page);
            assert!(came - before <= 1, "{before} pages of {came}");
            (page, came) = (page + count, came + count);
        }
        assert!(came > 32 * 96 && streams.long_runs(16 * 96) == 1);
        streams.brought(7, 7, 8);
        assert_eq!(streams.run_pages(7), 0, "nobody has faulted there");
    }

    #[test]
    fn a_run_goes_on_beyond_neighbours_that_came_along() {
        let mut streams = Streams::default();
        assert_eq!(streams.fault(1003), Plan::Alone);
        streams.brought(1003, 1000, 1008);
        assert_eq!(streams.fault(1008), Plan::Forward(16));
    }

    #[test]
    fn a_run_that_came_in_shorter_than_planned_goes_on_where_it_ends() {
        let mut streams = Streams::default();
        for page in [1000, 1001] {
            fault(&mut streams, page);
        }
        assert!(matches!(streams.fault(1003), Plan::Forward(_)));
    }

    #[test]
    fn random_pages_stay_alone() {
        let mut streams = Streams::default();
        for i in 0..1000u64 {
            let page = i.wrapping_mul(2_654_435_761) % (1 << 30) * 100;
            assert_eq!(fault(&mut streams, page), (page, page + 1));
        }
    }

    #[test]
    fn a_stride_is_followed() {
        let mut streams = Streams::default();
        let mut page = 5000;
        for _ in 0..3 {
            assert_eq!(fault(&mut streams, page), (page, page + 1));
            page += 7;
        }
        let Plan::Strided { stride: 7, count } = streams.fault(page) else {
            panic!("no stride at page {page}");
        };
        streams.brought(page, page, page + 1);
        page += 7 * count;
        assert!(matches!(
            streams.fault(page),
            Plan::Strided { stride: 7, .. }
        ));
    }

    #[test]
    fn wide_strides_are_followed_each_for_itself() {
        let mut streams = Streams::default();
        let strides = [1000i64, -333, 70, 5000];
        let mut at = [1_000_000u64, 2_300_000, 3_100_007, 4_700_000];
        let mut faults = 0;
        while faults < 400 {
            for (page, stride) in at.iter_mut().zip(strides) {
                faults += 1;
                let count = match streams.fault(*page) {
                    Plan::Alone => 1,
                    Plan::Strided {
                        stride: seen,
                        count,
                    } => {
                        assert_eq!(seen, stride);
                        count
                    }
                    other => panic!("{other:?} at page {page}"),
                };
                streams.brought(*page, *page, *page + 1);
                *page = page.saturating_add_signed(stride * count as i64);
            }
        }
        assert!(
            at[0] > 1_000_000 + 1000 * 1000,
            "{} faults to page {}",
            faults / 4,
            at[0]
        );
    }

    #[test]
    fn two_runs_at_a_time() {
        let mut streams = Streams::default();
        let (mut a, mut b) = (0u64, 1 << 20);
        for _ in 0..20 {
            for page in [&mut a, &mut b] {
                (_, *page) = fault(&mut streams, *page);
            }
        }
        assert!(a > 5000, "{a} pages in 20 faults");
    }

    #[test]
    fn backwards_is_recognised() {
        let mut streams = Streams::default();
        fault(&mut streams, 9000);
        let (start, end) = fault(&mut streams, 8999);
        assert_eq!((start, end), (8996, 9000));
        assert_eq!(streams.fault(8995), Plan::Backward(8));
    }
}
