//! Prefetch: recognises sequential, backward and strided runs of faults.

/// Runs that are followed at a time.
const STREAMS: usize = 16;
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
    last: u64,
    /// Where the next fault is expected when the prefetched pages are used up.
    next: u64,
    step: i64,
    hits: u32,
    used_at: u64,
}

/// The runs seen lately.
#[cfg_attr(any(test, feature = "check"), derive(Clone))]
#[derive(Default)]
pub struct Streams {
    streams: [Stream; STREAMS],
    clock: u64,
}

impl Streams {
    /// Notes a fault on `page` and says what to bring in with it.
    pub fn fault(&mut self, page: u64) -> Plan {
        self.clock += 1;
        let Some(at) = self.find(page) else {
            self.start(page);
            return Plan::Alone;
        };
        let clock = self.clock;
        let stream = &mut self.streams[at];
        let step = page as i64 - stream.last as i64;
        let expected = stream.hits > 0 && page == stream.next;
        stream.used_at = clock;
        if !expected && step != stream.step {
            stream.step = step;
            stream.hits = u32::from(step.unsigned_abs() == 1);
        } else {
            stream.hits = stream.hits.saturating_add(1);
        }
        let plan = plan(stream);
        let covered = match plan {
            Plan::Alone => 1,
            Plan::Forward(count) | Plan::Backward(count) | Plan::Strided { count, .. } => count,
        };
        stream.last = page.saturating_add_signed(stream.step * (covered as i64 - 1));
        stream.next = stream.last.saturating_add_signed(stream.step);
        plan
    }

    fn find(&self, page: u64) -> Option<usize> {
        let expected = |s: &Stream| s.hits > 0 && s.next == page;
        let near = |s: &Stream| s.used_at != 0 && s.last != page && s.last.abs_diff(page) <= 64;
        (0..STREAMS)
            .find(|&i| expected(&self.streams[i]))
            .or_else(|| (0..STREAMS).find(|&i| near(&self.streams[i])))
    }

    fn start(&mut self, page: u64) {
        let clock = self.clock;
        let oldest = self.streams.iter_mut().min_by_key(|s| s.used_at);
        if let Some(slot) = oldest {
            *slot = Stream {
                last: page,
                next: page,
                step: 0,
                hits: 0,
                used_at: clock,
            };
        }
    }
}

fn plan(stream: &Stream) -> Plan {
    let grown = |first: u64| (first << stream.hits.min(9)).min(WINDOW_MAX);
    match stream.step {
        _ if stream.hits == 0 => Plan::Alone,
        1 => Plan::Forward(grown(2)),
        -1 => Plan::Backward(grown(2)),
        stride if stream.hits >= 2 => Plan::Strided {
            stride,
            count: u64::from(stream.hits).min(16),
        },
        _ => Plan::Alone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forward_run_grows_to_two_mebibytes() {
        let mut streams = Streams::default();
        let (mut page, mut windows) = (1000, 0);
        loop {
            match streams.fault(page) {
                Plan::Alone => page += 1,
                Plan::Forward(count) => {
                    page += count;
                    windows += 1;
                    if count == WINDOW_MAX {
                        break;
                    }
                }
                other => panic!("{other:?}"),
            }
            assert!(windows < 20);
        }
    }

    #[test]
    fn random_pages_stay_alone() {
        let mut streams = Streams::default();
        for i in 0..1000u64 {
            assert_eq!(
                streams.fault(i.wrapping_mul(2_654_435_761) % (1 << 30) * 100),
                Plan::Alone
            );
        }
    }

    #[test]
    fn a_stride_is_followed() {
        let mut streams = Streams::default();
        let mut page = 5000;
        for _ in 0..3 {
            assert_eq!(streams.fault(page), Plan::Alone);
            page += 7;
        }
        assert!(matches!(
            streams.fault(page),
            Plan::Strided { stride: 7, .. }
        ));
    }

    #[test]
    fn two_runs_at_a_time() {
        let mut streams = Streams::default();
        let (mut a, mut b) = (0u64, 1 << 20);
        let mut windows = 0;
        for _ in 0..20 {
            for page in [&mut a, &mut b] {
                match streams.fault(*page) {
                    Plan::Forward(count) => {
                        *page += count;
                        windows += 1;
                    }
                    Plan::Alone => *page += 1,
                    other => panic!("{other:?}"),
                }
            }
        }
        assert!(windows > 30);
    }

    #[test]
    fn backwards_is_recognised() {
        let mut streams = Streams::default();
        streams.fault(9000);
        assert!(matches!(streams.fault(8999), Plan::Backward(_)));
    }
}
