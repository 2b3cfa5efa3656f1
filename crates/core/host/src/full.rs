//! What happens when nothing more can leave memory.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use farpage_object::{GRANT_PAGES, ObjectId};
use farpage_sys::lock;

use crate::Objects;
use crate::room::Room;
use crate::waiter::Waiter;

/// Who wants a new page waits so long for room, unless something else is said.
const PATIENCE: Duration = Duration::from_secs(1);
/// It is said after so long: paging space that is full for a moment is no matter.
const TOLD_AFTER: Duration = Duration::from_millis(200);
/// Time between two looks when somebody waits, and when nobody does.
const LOOKS: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(200)];

/// Whether pagers take pages. While one does not, and memory is full, there are no new pages: who
/// touches one waits, and gets SIGBUS when that lasts too long, as in a file system that is full. Pages
/// that exist come all the same.
#[derive(Default)]
pub(crate) struct Full {
    is: AtomicBool,
    since: Mutex<Option<Since>>,
    /// And since when each waits.
    waiting: Mutex<Vec<(ObjectId, Waiter, Instant)>>,
    /// How long each may; `None`: [`PATIENCE`].
    patience: OnceLock<Duration>,
}

#[derive(Clone, Copy)]
struct Since {
    at: Instant,
    told: bool,
    refused: u64,
}

/// Memory and paging space are full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// Nanoseconds since a pager first took no pages.
    pub since_ns: u64,
    /// New pages that were refused since then.
    pub refused: u64,
}

impl Objects {
    /// A pager of temporary objects takes no pages.
    pub(crate) fn pager_is_full(&self) {
        let mut since = lock(&self.full.since);
        if since.is_none() {
            *since = Some(Since {
                at: Instant::now(),
                told: false,
                refused: 0,
            });
            self.full.is.store(true, Ordering::Release);
            drop(since);
            self.press();
        }
    }

    /// A pager has taken pages, or so many have gone that it need not.
    pub(crate) fn pager_has_room(&self) {
        if !self.is_full() {
            return;
        }
        let Some(since) = lock(&self.full.since).take() else {
            return;
        };
        self.full.is.store(false, Ordering::Release);
        self.objects().iter().for_each(|object| object.forgive());
        if since.told {
            let refused = since.refused;
            farpage_sys::say!(
                "farpage: there is room again; {refused} new pages were refused meanwhile"
            );
        }
        self.press();
    }

    /// Says that it is full, once.
    fn tell(&self) {
        let mut since = lock(&self.full.since);
        let Some(since) = since.as_mut() else {
            return;
        };
        if since.told || since.at.elapsed() < TOLD_AFTER {
            return;
        }
        since.told = true;
        let what_to_do = match self.room {
            Room::Own(_) => "remove objects (farpage ls, farpage rm), or make room",
            Room::Tree(_) => "add paging space (farpage spill add), or make room",
        };
        let what_happens = match self.patience() {
            Duration::MAX => "wait for room".to_string(),
            PATIENCE => "get SIGBUS".to_string(),
            most => format!("wait for room, and get SIGBUS after {} s", most.as_secs()),
        };
        farpage_sys::say!(
            "farpage: paging space is full, and {} MiB of {} MiB for pages in memory are in use: \
             new shared memory is refused, and programs that touch new pages of it {what_happens}; \
             {what_to_do} where the paging files are",
            self.resident_bytes() >> 20,
            self.room.bytes() >> 20
        );
    }

    /// Who touches a new page while there is no room waits for so long, and gets SIGBUS then. To be said
    /// before there are objects; a second without it.
    pub fn set_patience(&self, patience: Duration) {
        // The first word counts.
        let _ = self.full.patience.set(patience);
    }

    fn patience(&self) -> Duration {
        self.full.patience.get().copied().unwrap_or(PATIENCE)
    }

    /// Somebody wants a new page, for which there is no room.
    pub(crate) fn has_wait(&self, object: ObjectId, waiter: Waiter) {
        lock(&self.full.waiting).push((object, waiter, Instant::now()));
        self.press();
    }

    /// Answers who waits for room, if there is some, or has waited enough.
    pub(crate) fn answer_waiting(&self) {
        let (is_full, patience) = (self.is_full(), self.patience());
        let mut waiting = lock(&self.full.waiting);
        let ripe = waiting.extract_if(.., |(_, _, since)| !is_full || since.elapsed() >= patience);
        let ripe: Vec<_> = ripe.map(|(object, waiter, _)| (object, waiter)).collect();
        drop(waiting);
        self.tell();
        for (object, waiter) in ripe {
            let Some(object) = self.object(object) else {
                continue;
            };
            if !is_full {
                object.want(waiter);
            } else if object.refuse(waiter)
                && let Some(since) = lock(&self.full.since).as_mut()
            {
                since.refused += 1;
            }
        }
    }

    /// How long to wait for somebody who asks for room.
    pub(crate) fn until_next_look(&self) -> Duration {
        match (self.is_full(), lock(&self.full.waiting).is_empty()) {
            (true, false) => LOOKS[0],
            (true, true) => LOOKS[1],
            (false, _) => Duration::MAX,
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.full.is.load(Ordering::Acquire)
    }

    /// True when objects may have new pages: memory has an eighth, or so many as come at a time.
    pub(crate) fn takes_new(&self) -> bool {
        !self.is_full() || self.has_room(GRANT_PAGES.min(self.room.pages() / 8))
    }

    /// True when there is room for so many new pages. Tries to make some.
    pub fn has_room(&self, pages: u64) -> bool {
        let fits = || self.room.has(pages, self);
        if !self.is_full() || fits() {
            return true;
        }
        while !fits() && self.evict(pages) > 0 {}
        !self.is_full() || fits()
    }

    /// Since when there is no room. `None`: there is.
    pub fn no_room(&self) -> Option<NoRoom> {
        let since = (*lock(&self.full.since))?;
        Some(NoRoom {
            since_ns: since.at.elapsed().as_nanos() as u64,
            refused: since.refused,
        })
    }

    /// Looks whether it is still so: what can leave does; room for an eighth is room.
    pub(crate) fn try_again(&self) {
        if self.room.has(self.room.pages() / 8, self) {
            self.pager_has_room();
        } else {
            self.evict(1);
        }
    }
}
