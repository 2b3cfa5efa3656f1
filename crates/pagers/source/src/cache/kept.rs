//! A source with a cache before it.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::Shared;
use super::layout::{BLOCK, PAGE};
use super::object::Object;
use crate::{Reach, Source, SourceError, within};

/// Blocks that are fetched in one read of the inner source, at most.
const RUN_BLOCKS: u64 = (16 << 20) / BLOCK;

pub(super) struct Kept {
    cache: Arc<Shared>,
    inner: Arc<dyn Source>,
    object: Object,
    /// What is being fetched.
    flights: Mutex<Vec<Arc<Flight>>>,
}

/// Blocks on their way. Threads that need one of them wait for it here.
struct Flight {
    blocks: Range<u64>,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Clone)]
enum State {
    Fetching,
    Landed(Arc<Vec<u8>>),
    Failed(SourceError),
    /// The thread that fetched panicked.
    Abandoned,
}

/// A flight of this thread's, which ends whatever happens.
struct Own<'a> {
    kept: &'a Kept,
    flight: Arc<Flight>,
}

impl Own<'_> {
    fn end(&self, state: State) {
        *mutex(&self.flight.state) = state;
    }
}

impl Drop for Own<'_> {
    fn drop(&mut self) {
        let mut state = mutex(&self.flight.state);
        if matches!(*state, State::Fetching) {
            *state = State::Abandoned;
        }
        drop(state);
        let mut flights = mutex(&self.kept.flights);
        flights.retain(|other| !Arc::ptr_eq(other, &self.flight));
        drop(flights);
        self.flight.ended.notify_all();
    }
}

/// What to do about a block that is not there.
enum Turn<'a> {
    /// Another thread fetches it.
    Wait(Arc<Flight>),
    /// It came meanwhile.
    There,
    Fetch(Own<'a>),
}

fn mutex<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn count(what: &AtomicU64, more: usize) {
    what.fetch_add(more as u64, Ordering::Relaxed);
}

impl Kept {
    pub(super) fn new(cache: Arc<Shared>, inner: Arc<dyn Source>, object: Object) -> Self {
        let flights = Mutex::new(Vec::new());
        Self {
            cache,
            inner,
            object,
            flights,
        }
    }

    /// Fills the beginning of `buffer`, whose first byte is not there; returns how much.
    fn fetch(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, SourceError> {
        let end = offset + buffer.len() as u64;
        let missing = self.missing(offset, end);
        match self.turn(offset / PAGE, missing) {
            Turn::There => Ok(0),
            Turn::Wait(flight) => {
                let waiting = |state: &mut State| matches!(state, State::Fetching);
                let state = flight.ended.wait_while(mutex(&flight.state), waiting);
                let state = state.unwrap_or_else(PoisonError::into_inner).clone();
                match state {
                    State::Landed(bytes) => Ok(copy(&flight.blocks, &bytes, offset, buffer)),
                    State::Failed(error) => Err(error),
                    State::Fetching | State::Abandoned => Ok(0),
                }
            }
            Turn::Fetch(own) => {
                let blocks = own.flight.blocks.clone();
                let start = blocks.start * BLOCK;
                let bytes = (blocks.end * BLOCK).min(self.inner.size()) - start;
                let mut bytes = vec![0; bytes as usize];
                if let Err(error) = self.inner.read_at(start, &mut bytes) {
                    own.end(State::Failed(error.clone()));
                    return Err(error);
                }
                count(&self.cache.counts.fetched_bytes, bytes.len());
                self.keep(start / PAGE, &bytes);
                let got = copy(&blocks, &bytes, offset, buffer);
                own.end(State::Landed(Arc::new(bytes)));
                Ok(got)
            }
        }
    }

    /// The blocks from `offset` on, to `end` at most, that are not there.
    fn missing(&self, offset: u64, end: u64) -> Range<u64> {
        let first = offset / BLOCK;
        let last = end.div_ceil(BLOCK).min(first + RUN_BLOCKS);
        let pages_end = self.inner.size().div_ceil(PAGE);
        let per_block = BLOCK / PAGE;
        let whole = |block: u64| {
            let mut pages = block * per_block..((block + 1) * per_block).min(pages_end);
            pages.all(|page| self.object.has(page))
        };
        let next = (first + 1..last).find(|block| whole(*block));
        first..next.unwrap_or(last)
    }

    fn turn(&self, page: u64, missing: Range<u64>) -> Turn<'_> {
        let mut flights = mutex(&self.flights);
        let holds = |flight: &&Arc<Flight>| flight.blocks.contains(&missing.start);
        if let Some(flight) = flights.iter().find(holds) {
            return Turn::Wait(flight.clone());
        }
        if self.object.is_known(page) {
            return Turn::There;
        }
        let starts = flights.iter().map(|flight| flight.blocks.start);
        let next = starts.filter(|start| *start > missing.start).min();
        let end = next.unwrap_or(u64::MAX).min(missing.end);
        let flight = Arc::new(Flight {
            blocks: missing.start..end,
            state: Mutex::new(State::Fetching),
            ended: Condvar::new(),
        });
        flights.push(flight.clone());
        Turn::Fetch(Own { kept: self, flight })
    }

    fn keep(&self, first_page: u64, bytes: &[u8]) {
        let held = self.cache.folder.hold();
        let kept = held.map(|held| self.object.keep(&held, first_page, bytes));
        if !matches!(kept, Some(Ok(true))) {
            count(&self.cache.counts.not_kept_bytes, bytes.len());
        }
    }
}

/// Copies what `bytes`, those of `blocks`, have of `buffer`'s beginning.
fn copy(blocks: &Range<u64>, bytes: &[u8], offset: u64, buffer: &mut [u8]) -> usize {
    let rest = &bytes[(offset - blocks.start * BLOCK) as usize..];
    let got = rest.len().min(buffer.len());
    buffer[..got].copy_from_slice(&rest[..got]);
    got
}

impl Source for Kept {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn identity(&self) -> String {
        self.inner.identity()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn version(&self) -> Option<String> {
        self.inner.version()
    }

    fn reach(&self) -> Reach {
        self.inner.reach()
    }

    fn is_at_hand(&self, offset: u64, bytes: u64) -> bool {
        let end = offset.saturating_add(bytes).min(self.size());
        let mut pages = offset / PAGE..end.div_ceil(PAGE);
        pages.all(|page| self.object.has(page)) || self.inner.is_at_hand(offset, bytes)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), SourceError> {
        within(self, offset, buffer.len() as u64)?;
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            let hit = self.object.read(at, &mut buffer[done..]);
            count(&self.cache.counts.hit_bytes, hit);
            done += hit;
            if done < buffer.len() {
                done += self.fetch(at + hit as u64, &mut buffer[done..])?;
            }
        }
        Ok(())
    }
}
