//! What to read from a source, and when: requests, what will be wanted next, and who waits for
//! what. Pure: [`Plan`] is told what happened and says what to do.
//!
//! Three kinds of reads compete. What a thread waits for comes first. What it will want next is
//! read *ahead*, in large pieces, several at a time, and kept here until the kernel asks for it;
//! the reader then finds it. What somebody asked for in advance (prefetch) comes last.

use std::collections::VecDeque;

use farpage_object::{PageIndex, PageRange};

use crate::link::Link;

/// Readers that are followed at a time.
const READERS: usize = 16;
/// Pages of one read at most: 4 MiB.
const PIECE_PAGES_MAX: u64 = 1024;
/// Reads that threads wait for may be this many more than the link is wide.
const URGENT: usize = 8;

/// A read under way or done. Numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ReadId(u64);

/// What is to be read now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) id: ReadId,
    pub(crate) pages: PageRange,
}

/// Somebody's request is answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer<T> {
    pub(crate) ticket: T,
    /// The pages that are here, from the first that was asked for.
    pub(crate) pages: PageRange,
    /// The reads that have them, one after another.
    pub(crate) parts: Vec<(ReadId, PageRange)>,
}

/// A request that waits.
struct Waiting<T> {
    ticket: T,
    pages: PageRange,
    /// Pages, from the first, that somebody waits for.
    needed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Awaited,
    Ahead,
    Prefetch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Queued,
    Running,
    /// Read, and here.
    Kept,
}

struct Read<T> {
    id: ReadId,
    pages: PageRange,
    /// Its turn among those that are queued.
    class: Class,
    /// Begun for nobody yet.
    ahead: bool,
    progress: Progress,
    waiting: Vec<Waiting<T>>,
    /// Pages of it that the kernel has taken.
    taken: u64,
    /// Written to since it began: for those who wait already, and nobody else.
    stale: bool,
}

/// Somebody who goes through the source.
#[derive(Clone, Copy, Debug, Default)]
struct Reader {
    /// What it asked for last.
    last: Option<PageRange>,
    backward: bool,
    /// Requests in a row that continued the one before.
    hits: u32,
    /// Pages of them.
    came: u64,
    /// How far reading ahead has got: one past the last page, or the first when backward.
    ahead: u64,
    used_at: u64,
}

/// All reads of one source.
pub(crate) struct Plan<T> {
    /// Pages of the source.
    size: u64,
    /// Pages that may be read ahead and kept.
    ahead_max: u64,
    /// What belongs together and is wanted whole, as soon as a part of it is: in order.
    extents: Vec<PageRange>,
    link: Link,
    reads: VecDeque<Read<T>>,
    readers: [Reader; READERS],
    clock: u64,
    next_id: u64,
}

impl<T> Plan<T> {
    pub(crate) fn new(link: Link, size: u64, ahead_max: u64, mut extents: Vec<PageRange>) -> Self {
        extents.sort_unstable_by_key(|extent| extent.start);
        Self {
            size,
            ahead_max,
            extents,
            link,
            reads: VecDeque::new(),
            readers: [Reader::default(); READERS],
            clock: 0,
            next_id: 0,
        }
    }

    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    /// A thread waits for the first `needed` of `pages`. Returns an answer when they are here.
    pub(crate) fn wanted(&mut self, pages: PageRange, needed: u64, ticket: T) -> Option<Answer<T>> {
        let waiting = Waiting {
            ticket,
            pages,
            needed,
        };
        let answer = self.attach(waiting, Class::Awaited);
        self.read_ahead(pages);
        answer
    }

    /// `pages` will be wanted.
    pub(crate) fn prefetched(&mut self, pages: PageRange, ticket: T) -> Option<Answer<T>> {
        let waiting = Waiting {
            ticket,
            pages,
            needed: pages.pages(),
        };
        self.attach(waiting, Class::Prefetch)
    }

    /// A thread waits for `page`, which was asked for already.
    pub(crate) fn hasten(&mut self, page: PageIndex) {
        if let Some(at) = self.find(page) {
            self.reads[at].class = Class::Awaited;
        }
    }

    /// Queues what nobody reads yet of what is needed, and lets the request wait for the first of
    /// its reads that has not ended. When all have, here is the answer.
    fn attach(&mut self, waiting: Waiting<T>, class: Class) -> Option<Answer<T>> {
        let pages = waiting.pages;
        let needed = pages.start.0 + waiting.needed;
        let (mut at, mut first) = (pages.start.0, None);
        while at < needed {
            let found = self.find(PageIndex(at));
            let read = found
                .unwrap_or_else(|| self.queue_for(PageRange::new(at, pages.end.0), pages, class));
            let read = &mut self.reads[read];
            if class == Class::Awaited {
                read.class = class;
            }
            if read.progress != Progress::Kept {
                first.get_or_insert(read.id);
            }
            at = read.pages.end.0;
        }
        if let Some(read) = self.reads.iter_mut().find(|r| Some(r.id) == first) {
            read.waiting.push(waiting);
            return None;
        }
        let parts = self.holds(pages, needed);
        let end = parts.last().map_or(at, |(_, part)| part.end.0);
        let pages = PageRange::new(pages.start.0, end.min(pages.end.0));
        self.taken(pages);
        Some(Answer {
            ticket: waiting.ticket,
            pages,
            parts,
        })
    }

    /// Queues a read of `part` of a request for `whole`, as far as nobody else reads it.
    fn queue_for(&mut self, part: PageRange, whole: PageRange, class: Class) -> usize {
        let end = self.unread_until(part.start.0, part.end.0);
        let pages = PageRange::new(part.start.0, end);
        // What is not the whole answer must be kept until the rest is here.
        self.queue(pages, class, pages != whole);
        self.reads.len() - 1
    }

    /// Where the pages from `from` on that nobody reads end, at most `to`.
    fn unread_until(&self, from: u64, to: u64) -> u64 {
        let after = self
            .reads
            .iter()
            .filter(|r| !r.stale && r.pages.start.0 > from);
        after.map(|r| r.pages.start.0).fold(to, u64::min)
    }

    /// True when `page` is here, or will be.
    pub(crate) fn has(&self, page: PageIndex) -> bool {
        self.find(page).is_some()
    }

    /// The read that has or will have `page`.
    fn find(&self, page: PageIndex) -> Option<usize> {
        let has = |r: &Read<T>| !r.stale && r.pages.contains(page);
        self.reads.iter().position(has)
    }

    fn queue(&mut self, pages: PageRange, class: Class, ahead: bool) {
        let id = ReadId(self.next_id);
        self.next_id += 1;
        self.reads.push_back(Read {
            id,
            pages,
            class,
            ahead,
            progress: Progress::Queued,
            waiting: Vec::new(),
            taken: 0,
            stale: false,
        });
    }

    /// What to read next. To be asked until it says nothing, after everything that happened.
    pub(crate) fn start(&mut self) -> Option<Start> {
        let running = self.running();
        let width = self.link.width() as usize;
        let next = |class: Class| {
            let is_next = |r: &Read<T>| r.progress == Progress::Queued && r.class == class;
            self.reads.iter().position(is_next)
        };
        let at = match next(Class::Awaited) {
            Some(at) if running < width + URGENT => at,
            _ if running >= width => return None,
            Some(at) => at,
            None => next(Class::Ahead).or_else(|| next(Class::Prefetch))?,
        };
        if self.reads[at].class == Class::Prefetch {
            self.join_prefetches(at);
        }
        let read = &mut self.reads[at];
        read.progress = Progress::Running;
        Some(Start {
            id: read.id,
            pages: read.pages,
        })
    }

    fn running(&self) -> usize {
        let running = |r: &&Read<T>| r.progress == Progress::Running;
        self.reads.iter().filter(running).count()
    }

    /// Small prefetches that follow each other become one read.
    fn join_prefetches(&mut self, at: usize) {
        let most = (self.link.piece_bytes() / 4096).min(PIECE_PAGES_MAX);
        loop {
            let pages = self.reads[at].pages;
            let next = self.reads.iter().position(|r| {
                let joins = r.progress == Progress::Queued && r.class == Class::Prefetch;
                joins && !r.stale && r.pages.start == pages.end
            });
            let Some(next) = next.filter(|next| {
                *next > at && pages.pages() + self.reads[*next].pages.pages() <= most
            }) else {
                return;
            };
            let Some(joined) = self.reads.remove(next) else {
                return;
            };
            let read = &mut self.reads[at];
            read.pages = PageRange::new(pages.start.0, joined.pages.end.0);
            read.waiting.extend(joined.waiting);
        }
    }

    /// A read has ended well, after `took_ns`. Its contents are needed for the answers, and then as
    /// long as [`Plan::is_kept`] says.
    pub(crate) fn ended(&mut self, id: ReadId, now_ns: u64, took_ns: u64) -> Vec<Answer<T>> {
        let busy = self.running() >= self.link.width() as usize;
        let Some(at) = self.reads.iter().position(|r| r.id == id) else {
            return Vec::new();
        };
        let read = &mut self.reads[at];
        self.link.read(now_ns, read.pages.bytes(), took_ns, busy);
        read.progress = Progress::Kept;
        let (stale, class) = (std::mem::take(&mut read.stale), read.class);
        let waiting = std::mem::take(&mut read.waiting);
        let answers = waiting.into_iter().filter_map(|w| self.attach(w, class));
        let answers = answers.collect();
        if let Some(at) = self
            .reads
            .iter()
            .position(|r| r.id == id && (stale || !r.ahead))
        {
            self.reads.remove(at);
        }
        answers
    }

    /// A read has failed. Returns the requests that fail with it.
    pub(crate) fn failed(&mut self, id: ReadId) -> Vec<T> {
        let Some(at) = self.reads.iter().position(|r| r.id == id) else {
            return Vec::new();
        };
        let read = self.reads.remove(at);
        let waiting = read.map(|read| read.waiting).unwrap_or_default();
        waiting.into_iter().map(|waiting| waiting.ticket).collect()
    }

    /// The reads that hold `pages` up to `needed`, in order. What lies beyond in another read would
    /// have to be put together with it first: asking once more is quicker.
    fn holds(&self, pages: PageRange, needed: u64) -> Vec<(ReadId, PageRange)> {
        let mut found = Vec::new();
        let mut at = pages.start;
        while at.0 < needed {
            let here = |r: &&Read<T>| r.progress == Progress::Kept && r.pages.contains(at);
            let Some(read) = self.reads.iter().find(here) else {
                break;
            };
            found.push((read.id, read.pages));
            at = read.pages.end;
        }
        found
    }

    /// The kernel has taken `pages`. What is taken whole will not be asked for again soon.
    fn taken(&mut self, pages: PageRange) {
        self.reads.retain_mut(|r| {
            if r.progress != Progress::Kept {
                return true;
            }
            r.taken += r.pages.intersect(pages).pages();
            r.taken < r.pages.pages() || !r.ahead
        });
    }

    /// `pages` were written to: what was read of them before is out of date.
    pub(crate) fn written(&mut self, pages: PageRange) {
        let touched = |r: &Read<T>| !r.pages.intersect(pages).is_empty();
        self.reads
            .retain(|r| !(touched(r) && r.progress == Progress::Kept));
        for read in self.reads.iter_mut().filter(|r| touched(r)) {
            read.stale = read.progress == Progress::Running;
        }
    }

    /// Nobody will ask any more: returns the requests that wait for what has not been begun.
    pub(crate) fn abandon(&mut self) -> Vec<T> {
        let mut tickets = Vec::new();
        self.reads.retain_mut(|r| {
            tickets.extend(r.waiting.drain(..).map(|waiting| waiting.ticket));
            r.progress == Progress::Running
        });
        tickets
    }

    /// True while the contents of the read may be asked for.
    pub(crate) fn is_kept(&self, id: ReadId) -> bool {
        let mut reads = self.reads.iter();
        reads.any(|r| r.id == id && r.progress == Progress::Kept)
    }

    fn read_ahead(&mut self, pages: PageRange) {
        self.clock += 1;
        let at = self.reader_of(pages);
        let reader = &mut self.readers[at];
        reader.used_at = self.clock;
        reader.last = Some(pages);
        reader.came += pages.pages();
        let (hits, backward) = (reader.hits, reader.backward);
        // Twice of what the reader has had, so that a short run costs little.
        let depth = (2 * reader.came).min(self.ahead_max);
        let run = if hits > 0 { depth } else { 0 };
        let extent = self.extent_of(pages.start);
        if backward {
            self.ahead_backward(at, pages.start.0, pages.start.0.saturating_sub(run));
        } else {
            let whole = extent.map_or(0, |extent| extent.end.0.min(pages.end.0 + self.ahead_max));
            let end = whole.max(pages.end.0 + run).min(self.size);
            self.ahead_forward(at, pages.end.0, end);
        }
    }

    fn ahead_forward(&mut self, reader: usize, start: u64, end: u64) {
        let mut from = self.readers[reader].ahead.max(start);
        while from < end && self.make_room() {
            from = self.queue_ahead(from, end.min(from + self.piece_pages()));
            self.readers[reader].ahead = from;
        }
    }

    fn ahead_backward(&mut self, reader: usize, end: u64, start: u64) {
        let mut to = self.readers[reader].ahead.min(end);
        while to > start && self.make_room() {
            let from = start.max(to.saturating_sub(self.piece_pages()));
            to = match self.find(PageIndex(to - 1)) {
                Some(at) => self.reads[at].pages.start.0,
                None => {
                    let before = self.reads.iter().filter(|r| !r.stale && r.pages.end.0 < to);
                    let from = before.map(|r| r.pages.end.0).fold(from, u64::max);
                    self.queue(PageRange::new(from, to), Class::Ahead, true);
                    from
                }
            };
            self.readers[reader].ahead = to;
        }
    }

    /// The reader that asks for `pages`; a new one if nobody went there.
    fn reader_of(&mut self, pages: PageRange) -> usize {
        let continues = |r: &Reader| {
            let last = r.last?;
            let forward = pages.start >= last.start && pages.start <= last.end && last != pages;
            let beyond =
                r.hits > 0 && !r.backward && (last.end.0..r.ahead).contains(&pages.start.0);
            let backward = pages.end == last.start;
            let behind =
                r.hits > 0 && r.backward && (r.ahead..last.start.0).contains(&pages.start.0);
            (forward || beyond || backward || behind).then_some(backward || behind)
        };
        let all = 0..READERS;
        let found = all
            .clone()
            .find_map(|i| continues(&self.readers[i]).map(|b| (i, b)));
        if let Some((at, backward)) = found {
            let reader = &mut self.readers[at];
            if reader.backward != backward {
                (reader.hits, reader.came, reader.backward) = (0, 0, backward);
                reader.ahead = if backward { pages.start.0 } else { pages.end.0 };
            }
            reader.hits += 1;
            return at;
        }
        let at = all.min_by_key(|i| self.readers[*i].used_at).unwrap_or(0);
        self.readers[at] = Reader {
            ahead: pages.end.0,
            ..Reader::default()
        };
        at
    }

    fn extent_of(&self, page: PageIndex) -> Option<PageRange> {
        let at = self.extents.partition_point(|extent| extent.start <= page);
        let extent = self.extents[..at].last()?;
        extent.contains(page).then_some(*extent)
    }

    fn piece_pages(&self) -> u64 {
        let pages = (self.link.piece_bytes() / 4096).min(PIECE_PAGES_MAX);
        pages.min(self.ahead_max / 2).max(1)
    }

    /// Queues what nobody reads yet of a run that begins at `from`; returns its end.
    fn queue_ahead(&mut self, from: u64, to: u64) -> u64 {
        if let Some(at) = self.find(PageIndex(from)) {
            return self.reads[at].pages.end.0;
        }
        let to = self.unread_until(from, to);
        self.queue(PageRange::new(from, to), Class::Ahead, true);
        to
    }

    /// Room for one more piece ahead; forgets what was read ahead for nobody. False when there is
    /// none.
    fn make_room(&mut self) -> bool {
        let piece = self.piece_pages();
        loop {
            let ahead = self.reads.iter().filter(|r| r.ahead);
            let held: u64 = ahead.map(|r| r.pages.pages()).sum();
            if held + piece <= self.ahead_max {
                return true;
            }
            // The oldest that lies on nobody's way.
            let useless = self.reads.iter().position(|r| {
                let idle = r.progress != Progress::Running && r.waiting.is_empty();
                idle && !self.is_on_the_way(r.pages)
            });
            match useless {
                Some(at) => drop(self.reads.remove(at)),
                None => return false,
            }
        }
    }

    fn is_on_the_way(&self, pages: PageRange) -> bool {
        let recent = self.clock.saturating_sub(4 * READERS as u64);
        self.readers.iter().any(|r| match r.last {
            Some(last) if r.used_at >= recent && r.backward => {
                pages.start < last.end && pages.end.0 > r.ahead
            }
            Some(last) if r.used_at >= recent => {
                pages.end > last.start && pages.start.0 < r.ahead.max(last.end.0)
            }
            Some(_) | None => false,
        })
    }
}

#[cfg(test)]
mod tests;
