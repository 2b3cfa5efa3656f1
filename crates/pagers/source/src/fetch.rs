//! Reads by threads of their own: carries out what the plan says, and answers tickets.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use farpage_object::{PAGE_BYTES, PageIndex, PageRange, Ticket};
use farpage_sys::under_way::UnderWay;

use crate::aligned::Aligned;
use crate::link::Link;
use crate::pager::{Failures, pager_error};
use crate::plan::{Answer, Plan, ReadId, Start};
use crate::{OnFailure, Options, Reach, Retry, Source, SourceError, pool};

/// Bytes that are read ahead of a near source at most: a disk needs no more to be busy.
const AHEAD_NEAR: u64 = 8 << 20;

/// All reads of one object.
pub(crate) struct Fetch {
    source: Arc<dyn Source>,
    retry: Retry,
    /// What may pass is waited for, however long it takes.
    endless: bool,
    zeros: bool,
    failures: Failures,
    closed: AtomicBool,
    /// What the link says, to be had without the lock.
    cluster_pages: AtomicU64,
    reads: AtomicU64,
    read_bytes: AtomicU64,
    began: Instant,
    /// Reads that threads are busy with. Beside the rest, which they let go of first.
    under_way: Arc<UnderWay>,
    state: Mutex<State>,
}

/// A read that a thread is busy with.
struct Read(Arc<UnderWay>);

impl Read {
    fn begin(under_way: &Arc<UnderWay>) -> Self {
        under_way.begin(1);
        Self(Arc::clone(under_way))
    }
}

impl Drop for Read {
    fn drop(&mut self) {
        self.0.end(1);
    }
}

struct State {
    plan: Plan<Ticket>,
    /// What was read and may be asked for.
    contents: HashMap<ReadId, Arc<Aligned>>,
    /// Buffers for the next reads, of no more bytes than may be read ahead.
    spare: Vec<Aligned>,
    spare_bytes_max: u64,
}

/// Somebody's ticket and where its bytes are.
struct Supply {
    ticket: Ticket,
    pages: PageRange,
    parts: Vec<(Arc<Aligned>, PageRange)>,
}

impl Fetch {
    pub(crate) fn new(source: Arc<dyn Source>, options: &Options, failures: Failures) -> Arc<Self> {
        let pages = source.size().div_ceil(PAGE_BYTES as u64);
        let extent = |bytes: &std::ops::Range<u64>| {
            let page = PAGE_BYTES as u64;
            PageRange::new(bytes.start / page, bytes.end.div_ceil(page))
        };
        let extents = options.extents.iter().map(extent).collect();
        let (link, ahead_bytes) = match source.reach() {
            Reach::Near => (Link::near(), options.ahead_bytes.min(AHEAD_NEAR)),
            Reach::Far => (Link::far(), options.ahead_bytes),
        };
        let ahead = (ahead_bytes / PAGE_BYTES as u64).max(2);
        Arc::new(Self {
            retry: Retry {
                deadline: options.deadline,
            },
            endless: options.on_failure == OnFailure::Wait,
            zeros: options.on_failure == OnFailure::Zero,
            failures,
            closed: AtomicBool::new(false),
            reads: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
            cluster_pages: AtomicU64::new(link.cluster_pages()),
            began: Instant::now(),
            under_way: Arc::default(),
            state: Mutex::new(State {
                plan: Plan::new(link, pages, ahead, extents),
                contents: HashMap::new(),
                spare: Vec::new(),
                spare_bytes_max: ahead_bytes,
            }),
            source,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True when somebody reads `page` already, or has.
    pub(crate) fn has(&self, page: PageIndex) -> bool {
        self.lock().plan.has(page)
    }

    /// Pages that take hardly longer than one.
    pub(crate) fn cluster_pages(&self) -> u64 {
        self.cluster_pages.load(Ordering::Relaxed)
    }

    /// A read that brought `bytes`.
    pub(crate) fn count(&self, bytes: u64) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Reads, and bytes that they brought.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (of(&self.reads), of(&self.read_bytes))
    }

    /// The ticket's pages are wanted; `ahead` when nobody waits for them yet.
    pub(crate) fn request(self: &Arc<Self>, ticket: Ticket, ahead: bool) {
        let (pages, needed) = (ticket.pages(), ticket.needed());
        let mut state = self.lock();
        let answer = if ahead {
            state.plan.prefetched(pages, ticket)
        } else {
            state.plan.wanted(pages, needed, ticket)
        };
        let supply = answer.map(|answer| state.find(answer));
        self.go_on(state);
        if let Some(supply) = supply {
            self.supply(supply);
        }
    }

    /// A thread waits for `page`, which was asked for already.
    pub(crate) fn hasten(self: &Arc<Self>, page: PageIndex) {
        let mut state = self.lock();
        state.plan.hasten(page);
        self.go_on(state);
    }

    /// `pages` are being written to, or were.
    pub(crate) fn written(&self, pages: PageRange) {
        let mut state = self.lock();
        state.plan.written(pages);
        state.forget();
    }

    /// Somebody will ask.
    pub(crate) fn open(&self) {
        self.closed.store(false, Ordering::Release);
    }

    /// Nobody will ask any more. A near source is not read when this returns; a far one may be,
    /// because its answer may never come.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let dropped = self.lock().plan.abandon();
        drop(dropped);
        if self.source.reach() == Reach::Near {
            self.under_way.wait_for_at_most(0);
        }
    }

    /// Begins what is to be read now.
    fn go_on(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let starts: Vec<Start> = std::iter::from_fn(|| state.plan.start()).collect();
        state.forget();
        let mut buffers: Vec<Aligned> = Vec::with_capacity(starts.len());
        buffers.extend((0..starts.len()).map(|_| state.spare.pop().unwrap_or_default()));
        drop(state);
        let threads = match self.source.reach() {
            Reach::Near => &pool::NEAR,
            Reach::Far => &pool::FAR,
        };
        for (start, buffer) in starts.into_iter().zip(buffers) {
            let (read, fetch) = (Read::begin(&self.under_way), Arc::clone(self));
            threads.spawn(move || {
                let _read = read;
                let fetch = fetch;
                fetch.read(start, buffer);
            });
        }
    }

    fn bytes(&self, pages: PageRange) -> (u64, usize) {
        let offset = pages.start.0 * PAGE_BYTES as u64;
        let end = (pages.end.0 * PAGE_BYTES as u64).min(self.source.size());
        (offset, end.saturating_sub(offset) as usize)
    }

    fn read(self: &Arc<Self>, start: Start, mut contents: Aligned) {
        let (offset, bytes) = self.bytes(start.pages);
        let began = Instant::now();
        let result = self.read_patiently(offset, contents.room_for(bytes));
        let (now, took) = (self.began.elapsed(), began.elapsed());
        let mut state = self.lock();
        let Err(error) = result else {
            self.count(bytes as u64);
            state.contents.insert(start.id, Arc::new(contents));
            let (now, took) = (now.as_nanos() as u64, took.as_nanos() as u64);
            let answers = state.plan.ended(start.id, now, took);
            let cluster = state.plan.link().cluster_pages();
            self.cluster_pages.store(cluster, Ordering::Relaxed);
            let supplies: Vec<Supply> = answers.into_iter().map(|a| state.find(a)).collect();
            self.go_on(state);
            supplies.into_iter().for_each(|supply| self.supply(supply));
            return;
        };
        let tickets = state.plan.failed(start.id);
        self.go_on(state);
        for ticket in tickets {
            self.fail(ticket, start.pages, &error);
        }
    }

    fn read_patiently(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        let given_up = || self.closed.load(Ordering::Acquire);
        let read = || self.source.read_at(offset, buffer);
        self.retry.run_for(read, self.endless, given_up)
    }

    /// A read for the ticket has failed. What is needed of it may be had all the same: a source
    /// that was cut is short at its end only.
    fn fail(&self, ticket: Ticket, read: PageRange, error: &SourceError) {
        let pages = ticket.pages();
        let needed = PageRange::new(pages.start.0, pages.start.0 + ticket.needed());
        let (offset, bytes) = self.bytes(needed);
        let alone = needed.pages() < read.pages() && !pager_error(error).is_of_the_object();
        if alone && !self.closed.load(Ordering::Acquire) {
            let mut buffer = vec![0; bytes];
            if self.source.read_at(offset, &mut buffer).is_ok() {
                ticket.supply(&buffer);
                return;
            }
        }
        if self.zeros {
            self.failures.zeros_supplied(error);
            ticket.supply(&vec![0; bytes.max(1)]);
            return;
        }
        self.failures.note(pages, error);
        ticket.fail(pager_error(error));
    }

    fn supply(&self, supply: Supply) {
        let (offset, bytes) = self.bytes(supply.pages);
        let of = |pages: PageRange| (pages.start.0 * PAGE_BYTES as u64) as i64 - offset as i64;
        if let [(contents, pages)] = supply.parts.as_slice() {
            let from = -of(*pages) as usize;
            supply.ticket.supply(&contents[from..from + bytes]);
        } else {
            let mut whole = Vec::with_capacity(bytes);
            for (contents, pages) in &supply.parts {
                let from = (whole.len() as i64 - of(*pages)) as usize;
                let to = contents.len().min(from + bytes - whole.len());
                whole.extend_from_slice(&contents[from..to]);
            }
            supply.ticket.supply(&whole);
        }
        let mut state = self.lock();
        supply
            .parts
            .into_iter()
            .for_each(|(contents, _)| state.recycle(contents));
    }
}

impl State {
    fn find(&self, answer: Answer<Ticket>) -> Supply {
        let part = |(id, pages)| (Arc::clone(&self.contents[&id]), pages);
        Supply {
            ticket: answer.ticket,
            pages: answer.pages,
            parts: answer.parts.into_iter().map(part).collect(),
        }
    }

    /// Lets go of what nobody may ask for any more.
    fn forget(&mut self) {
        let plan = &self.plan;
        let gone = self.contents.extract_if(|id, _| !plan.is_kept(*id));
        let gone: Vec<Arc<Aligned>> = gone.map(|(_, contents)| contents).collect();
        gone.into_iter().for_each(|contents| self.recycle(contents));
    }

    fn recycle(&mut self, contents: Arc<Aligned>) {
        let spare: usize = self.spare.iter().map(Aligned::room_bytes).sum();
        if (spare + contents.room_bytes()) as u64 <= self.spare_bytes_max
            && let Ok(buffer) = Arc::try_unwrap(contents)
        {
            self.spare.push(buffer);
        }
    }
}
