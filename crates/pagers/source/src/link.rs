//! What the way to a source is like, measured: latency, bandwidth of one connection, and how many
//! connections at a time are worth while. Pure.

/// Reads that are remembered, in effect: what is older counts for little.
const MEMORY: f64 = 64.0;
/// Connections at first, and at least.
const WIDTH_FAR: (u32, u32) = (8, 4);
/// The same of a local disk: it is kept busy by one read after another.
const WIDTH_NEAR: (u32, u32) = (2, 2);
/// Connections at most.
pub(crate) const WIDTH_MAX: u32 = 32;
/// Twice as many connections must bring this much more, or they are not used.
const GAIN: f64 = 1.15;
/// Reads, for each connection, after which more are tried once again: the way may have been busy.
const REST: u32 = 32;
/// What is read at a time before anything is known, bytes.
const PIECE_FIRST: u64 = 1 << 20;
/// Bounds of what is read at a time, bytes.
const PIECE: (u64, u64) = (256 << 10, 4 << 20);

/// Estimates from the reads so far.
///
/// A read of `n` bytes takes about `latency + n / bandwidth`: a line through the reads, the newest
/// counting most.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    weight: f64,
    bytes: f64,
    ns: f64,
    bytes_squared: f64,
    bytes_ns: f64,
    width: Width,
}

/// The search for the number of connections: doubled while that brings more.
#[derive(Clone, Debug)]
struct Width {
    now: u32,
    least: u32,
    /// Bytes and begin of the measurement under way.
    since_ns: u64,
    bytes: u64,
    reads: u32,
    /// Bytes a nanosecond with half as many.
    before: f64,
    /// Reads before more connections are tried again.
    rest: u32,
}

impl Width {
    fn new((first, least): (u32, u32)) -> Self {
        Self {
            now: first,
            least,
            since_ns: 0,
            bytes: 0,
            reads: 0,
            before: 0.0,
            rest: 0,
        }
    }
}

impl Link {
    /// To a server.
    pub(crate) fn far() -> Self {
        Self::new(WIDTH_FAR)
    }

    /// To a disk, or a program on this machine.
    pub(crate) fn near() -> Self {
        Self::new(WIDTH_NEAR)
    }

    fn new(width: (u32, u32)) -> Self {
        Self {
            weight: 0.0,
            bytes: 0.0,
            ns: 0.0,
            bytes_squared: 0.0,
            bytes_ns: 0.0,
            width: Width::new(width),
        }
    }

    /// A read of `bytes` bytes took `took_ns` and ended at `now_ns`. `busy`: all connections were
    /// in use meanwhile, so that it tells what they bring together.
    pub(crate) fn read(&mut self, now_ns: u64, bytes: u64, took_ns: u64, busy: bool) {
        let keep = 1.0 - 1.0 / MEMORY;
        let (x, y) = (bytes as f64, took_ns as f64);
        for (sum, value) in [
            (&mut self.weight, 1.0),
            (&mut self.bytes, x),
            (&mut self.ns, y),
            (&mut self.bytes_squared, x * x),
            (&mut self.bytes_ns, x * y),
        ] {
            *sum = *sum * keep + value;
        }
        self.width.read(now_ns, bytes, busy);
    }

    /// Nanoseconds before the first byte, and nanoseconds a byte. `None` before anything is known.
    fn line(&self) -> Option<(f64, f64)> {
        if self.weight == 0.0 {
            return None;
        }
        let (x, y) = (self.bytes / self.weight, self.ns / self.weight);
        let spread = self.bytes_squared / self.weight - x * x;
        let together = self.bytes_ns / self.weight - x * y;
        // All of one size: half of the time is taken to be latency.
        let alike = spread < x * x * 0.01;
        let slope = if alike {
            0.5 * y / x.max(1.0)
        } else {
            together / spread
        };
        let slope = slope.clamp(0.0, y / x.max(1.0));
        Some(((y - slope * x).max(0.0), slope.max(1e-3)))
    }

    /// Bytes that pass while one waits for the first: what a wait is worth.
    fn product(&self) -> Option<f64> {
        self.line().map(|(latency, slope)| latency / slope)
    }

    /// What to read at a time when all of it is wanted, bytes: large enough that latency is a small
    /// part of it.
    pub(crate) fn piece_bytes(&self) -> u64 {
        let bytes = self
            .product()
            .map_or(PIECE_FIRST, |product| (product * 8.0) as u64);
        bytes.clamp(PIECE.0, PIECE.1).next_multiple_of(4096)
    }

    /// Pages that take hardly longer than one, a power of two.
    pub(crate) fn cluster_pages(&self) -> u64 {
        let pages = self
            .product()
            .map_or(8, |product| (product / 8.0 / 4096.0) as u64);
        let pages = pages.clamp(1, 32);
        1 << pages.ilog2()
    }

    /// Reads that are worth having under way at a time.
    pub(crate) fn width(&self) -> u32 {
        self.width.now
    }
}

impl Width {
    fn read(&mut self, now_ns: u64, bytes: u64, busy: bool) {
        if self.rest > 0 {
            self.rest -= 1;
            if self.rest == 0 {
                (self.before, self.reads) = (0.0, 0);
            }
            return;
        }
        if !busy {
            self.restart(now_ns);
            return;
        }
        self.bytes += bytes;
        self.reads += 1;
        // The first reads after a change were begun before it.
        if self.reads == self.now {
            (self.since_ns, self.bytes) = (now_ns, 0);
        }
        if self.reads < self.now * 3 {
            return;
        }
        let rate = self.bytes as f64 / now_ns.saturating_sub(self.since_ns).max(1) as f64;
        if rate < self.before * GAIN {
            self.now = (self.now / 2).max(self.least);
            self.rest = REST * self.now;
        } else if self.now == WIDTH_MAX {
            self.rest = REST * self.now;
        } else {
            self.before = rate;
            self.now *= 2;
        }
        self.restart(now_ns);
    }

    fn restart(&mut self, now_ns: u64) {
        (self.since_ns, self.bytes, self.reads) = (now_ns, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A server: so many bytes a second for a connection, and for all together.
    fn serve(link: &mut Link, latency_ns: u64, each: f64, all: f64, sizes: &[u64], reads: usize) {
        let mut now = 0;
        for i in 0..reads {
            let bytes = sizes[i % sizes.len()];
            let width = f64::from(link.width());
            let each = each.min(all / width);
            let took = latency_ns + (bytes as f64 / each * 1e9) as u64;
            now += took / u64::from(link.width());
            link.read(now, bytes, took, true);
        }
    }

    #[test]
    fn latency_and_bandwidth_are_told_apart() {
        let mut link = Link::far();
        serve(
            &mut link,
            5 * MS,
            60e6,
            1e12,
            &[8192, 1 << 20, 2 << 20],
            100,
        );
        let (latency, slope) = link.line().unwrap();
        assert!((4.5e6..5.5e6).contains(&latency), "{latency}");
        assert!((15.0..18.0).contains(&slope), "{slope} ns a byte");
        assert!(
            (2 << 20..3 << 20).contains(&link.piece_bytes()),
            "{}",
            link.piece_bytes()
        );
        assert_eq!(link.cluster_pages(), 8);
    }

    #[test]
    fn a_near_server_is_asked_for_little_and_a_far_one_for_much() {
        let mut near = Link::far();
        serve(&mut near, MS / 10, 1e9, 1e12, &[8192, 1 << 20], 100);
        assert_eq!((near.piece_bytes() >> 10, near.cluster_pages()), (784, 2));
        let mut far = Link::far();
        serve(&mut far, 100 * MS, 100e6, 1e12, &[8192, 1 << 20], 100);
        assert_eq!((far.piece_bytes(), far.cluster_pages()), (4 << 20, 32));
    }

    #[test]
    fn reads_of_one_size_give_an_estimate() {
        let mut link = Link::far();
        serve(&mut link, 5 * MS, 60e6, 1e12, &[8192], 10);
        assert!(link.cluster_pages() >= 1);
        assert!((256 << 10..=4 << 20).contains(&link.piece_bytes()));
    }

    #[test]
    fn connections_are_added_while_they_bring_more() {
        let mut link = Link::far();
        serve(&mut link, 5 * MS, 60e6, 480e6, &[2 << 20], 300);
        assert_eq!(link.width(), 8, "eight connections fill the way");
        let mut link = Link::far();
        serve(&mut link, 5 * MS, 60e6, 1e12, &[2 << 20], 1000);
        assert_eq!(link.width(), WIDTH_MAX);
        let mut link = Link::far();
        serve(&mut link, MS, 100e6, 100e6, &[2 << 20], 200);
        assert_eq!(link.width(), WIDTH_FAR.0);
    }

    #[test]
    fn while_connections_are_idle_nothing_is_concluded() {
        let mut link = Link::far();
        for i in 0..1000 {
            link.read(i * MS, 4096, MS, false);
        }
        assert_eq!(link.width(), WIDTH_FAR.0);
    }
}
