//! What long runs bring in leaves first.
//!
//! A program that goes again and again through more than fits would find, if the oldest always left,
//! that nothing of what it left behind is there. So what a long run brings in waits in a queue of its
//! own, *transit*, and is replaced by what the run brings next; the rest stays, and is there when the
//! run comes to it.
//!
//! The rest may be what nobody wants. So for some of what a run brings back the oldest of the rest
//! makes room, and it stays instead: in stretches as long as what a page-in brings, so that what stays
//! away can be read in large pieces. While what made room is wanted again, stretches become fewer; when
//! it is not wanted for longer than what left transit was away, they become more.
//!
//! When no run goes on, nothing pushes out what the last one left in transit. It leaves when all
//! memory has been replaced once since it came, as it would have from one queue for all.
//!
//! Time is counted in clusters that were chosen to leave.

/// A run is long when it has brought in one in so many of the pages that there are.
const LONG: u64 = 16;
/// Transit takes one in so many, while no more than [`RUNS`] runs fill it: each reads ahead.
const PART: u64 = 16;
const RUNS: u64 = 2;
/// What comes back before so many times all clusters have left comes back soon.
const SOON: u64 = 2;
/// One in so many stretches that come back stays, and another makes room: at first, and at the most.
const EVERY: [u32; 2] = [2, 64];
/// Clusters of a stretch: one in so many of those that there are, and at most.
const STRETCH: u64 = 64;
const STRETCH_MAX: u64 = 32;
/// Stretches that made room and are watched.
const WATCHED: usize = 32;

/// Why a cluster was chosen to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// It has not been.
    Not,
    /// It was the oldest of the rest.
    Oldest,
    /// It was the oldest of transit.
    Transit,
    /// It was the oldest of the rest, and made room for what came back. Only the first of a stretch
    /// is remembered so.
    MadeRoom,
}

/// What is remembered of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// When it came, or when it was chosen to leave.
    at: u32,
    why: Why,
    /// Its place is in transit.
    pub(crate) is_transit: bool,
}

impl Mark {
    /// Nothing.
    pub(crate) const NONE: Self = Self {
        at: 0,
        why: Why::Not,
        is_transit: false,
    };
}

/// What is known of runs and of the rest.
#[derive(Clone)]
pub(crate) struct Sequences {
    /// Clusters that were chosen to leave.
    chosen: u32,
    /// One in so many stretches that come back stays.
    every: u32,
    /// Clusters that came back from transit since the last stretch that stayed.
    came_back: u32,
    /// How long what came back was away lately; 0: nothing did.
    away: u32,
    /// Clusters of the stretch that still stay when they come back.
    stay: u32,
    /// Clusters of the rest that are to make room.
    to_make_room: u32,
    /// Clusters of the present stretch that have made room.
    made_room: u32,
    /// A ring of the first of each stretch that did, and when.
    watched: [(u32, u32); WATCHED],
    oldest: usize,
    watches: usize,
}

impl Sequences {
    pub(crate) const fn new() -> Self {
        Self {
            chosen: 0,
            every: EVERY[0],
            came_back: 0,
            away: 0,
            stay: 0,
            to_make_room: 0,
            made_room: 0,
            watched: [(0, 0); WATCHED],
            oldest: 0,
            watches: 0,
        }
    }

    /// Where a cluster that comes in belongs: what is to be remembered of it. So many `clusters` are
    /// there, and the run that brings it has brought in so many pages before.
    pub(crate) fn comes(&mut self, mark: Mark, run_pages: u64, clusters: u64) -> Mark {
        let is_long = run_pages >= Self::long_pages(clusters);
        let mut is_transit = is_long;
        let away = self.chosen.wrapping_sub(mark.at);
        if u64::from(away) <= SOON * clusters {
            match mark.why {
                Why::Transit if is_long => {
                    let before = if self.away == 0 { away } else { self.away };
                    self.away = ((7 * u64::from(before) + u64::from(away)) / 8) as u32;
                    is_transit = !self.stays(stretch(clusters));
                }
                Why::MadeRoom => {
                    self.every = (self.every * 2).min(EVERY[1]);
                    is_transit = false;
                }
                Why::Not | Why::Oldest | Why::Transit => {}
            }
        }
        Mark {
            at: self.chosen,
            why: Why::Not,
            is_transit,
        }
    }

    /// True when a cluster that came back stays.
    fn stays(&mut self, stretch: u32) -> bool {
        if self.stay == 0 {
            self.came_back += 1;
            if self.came_back <= (self.every - 1) * stretch {
                return false;
            }
            (self.came_back, self.stay) = (0, stretch);
        }
        self.stay -= 1;
        self.to_make_room += 1;
        true
    }

    /// Why the next cluster leaves, if transit and the rest both have some. There are `transit`
    /// clusters in transit, of the `oldest` of which this is remembered; `long_runs` counts the long
    /// runs that go on.
    pub(crate) fn next(
        &self,
        transit: u64,
        oldest: Mark,
        clusters: u64,
        long_runs: impl FnOnce() -> u64,
    ) -> Why {
        let is_stale = u64::from(self.chosen.wrapping_sub(oldest.at)) > clusters;
        let is_full = || transit * PART * RUNS > clusters * long_runs().max(RUNS);
        if is_stale || self.to_make_room == 0 && is_full() {
            return Why::Transit;
        }
        self.rest_leaves()
    }

    /// Why the oldest of the rest leaves, if it does.
    pub(crate) fn rest_leaves(&self) -> Why {
        match self.to_make_room {
            0 => Why::Oldest,
            _ => Why::MadeRoom,
        }
    }

    /// A cluster was chosen to leave. Returns what is to be remembered of it.
    pub(crate) fn chosen(&mut self, cluster: u32, mut why: Why, clusters: u64) -> Mark {
        self.chosen = self.chosen.wrapping_add(1);
        if why == Why::MadeRoom {
            self.to_make_room = self.to_make_room.saturating_sub(1);
            let is_watched = self.made_room == 0 && self.watch(cluster);
            if !is_watched {
                why = Why::Oldest;
            }
            self.made_room = (self.made_room + 1) % stretch(clusters);
        }
        Mark {
            at: self.chosen,
            why,
            is_transit: why == Why::Transit,
        }
    }

    fn watch(&mut self, cluster: u32) -> bool {
        let has_place = self.watches < WATCHED;
        if has_place {
            self.watched[(self.oldest + self.watches) % WATCHED] = (cluster, self.chosen);
            self.watches += 1;
        }
        has_place
    }

    /// Looks whether clusters that made room have been away for too long to be wanted. `mark` says what
    /// is remembered of one.
    pub(crate) fn look(&mut self, clusters: u64, mark: impl Fn(u32) -> Mark) {
        let long = 2 * u64::from(self.away) + clusters / PART;
        while self.watches > 0 {
            let (cluster, at) = self.watched[self.oldest];
            if u64::from(self.chosen.wrapping_sub(at)) <= long {
                return;
            }
            self.oldest = (self.oldest + 1) % WATCHED;
            self.watches -= 1;
            let mark = mark(cluster);
            if (mark.at, mark.why) == (at, Why::MadeRoom) {
                self.every = (self.every / 4).max(1);
            }
        }
    }

    /// Pages in a run that make it a long one.
    pub(crate) fn long_pages(clusters: u64) -> u64 {
        clusters * crate::CLUSTER_PAGES / LONG
    }
}

/// Clusters of a stretch.
fn stretch(clusters: u64) -> u32 {
    (clusters / STRETCH).clamp(1, STRETCH_MAX) as u32
}
