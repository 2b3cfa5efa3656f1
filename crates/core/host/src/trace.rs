//! The messages of an object, kept while somebody looks.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use farpage_object::PageRange;
use farpage_sys::lock;

/// Messages that are kept at most; older ones are lost.
const KEPT: usize = 8192;
/// Nothing is kept any more when nobody has looked for so long.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A thread faulted, to read.
    Read,
    /// A thread faulted, to write.
    Write,
    /// The pager is asked for pages.
    Request,
    /// It supplies them.
    Supply,
    /// It has them not.
    Unavailable,
    /// Pages are handed to the pager.
    Return,
    /// It has taken them.
    Taken,
    /// It takes them not.
    Refused,
    /// New pages, of zeros.
    Zeros,
    /// Pages are set aside: they are next to leave.
    Aside,
    /// They are used, and come back.
    Back,
    /// Clean pages are dropped.
    Dropped,
    /// The pager forbids writing to pages.
    Lock,
    /// It is asked to allow it.
    Unlock,
    /// It allows it.
    Unlocked,
}

impl What {
    /// One word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Request => "request",
            Self::Supply => "supply",
            Self::Unavailable => "unavailable",
            Self::Return => "return",
            Self::Taken => "taken",
            Self::Refused => "refused",
            Self::Zeros => "zeros",
            Self::Aside => "aside",
            Self::Back => "back",
            Self::Dropped => "dropped",
            Self::Lock => "lock",
            Self::Unlock => "unlock",
            Self::Unlocked => "unlocked",
        }
    }
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When: nanoseconds since 1970.
    pub at_ns: u64,
    /// What.
    pub what: What,
    /// The thread that faulted; 0 when it is none, or not known.
    pub thread: u32,
    /// Of which pages.
    pub pages: PageRange,
    /// How long the pager took, in answers; 0 else.
    pub took_ns: u64,
    /// The instruction at which the thread waits; 0 when there is none, or this process may not know.
    pub instruction: u64,
}

/// The last messages of an object.
#[derive(Default)]
pub(crate) struct Tracer {
    on: AtomicBool,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    events: VecDeque<Event>,
    /// The number of the first of them.
    first: u64,
    looked: Option<Instant>,
}

impl Tracer {
    /// Keeps a message, if somebody looks.
    pub(crate) fn note(&self, what: What, thread: u32, pages: PageRange, took_ns: u64) {
        if self.on.load(Ordering::Relaxed) {
            self.keep(what, thread, pages, took_ns, 0);
        }
    }

    /// Keeps that a thread faulted, which still waits, if somebody looks.
    pub(crate) fn note_fault(&self, what: What, thread: u32, pages: PageRange) {
        if self.on.load(Ordering::Relaxed) {
            let instruction = instruction_of(thread).unwrap_or(0);
            self.keep(what, thread, pages, 0, instruction);
        }
    }

    fn keep(&self, what: What, thread: u32, pages: PageRange, took_ns: u64, instruction: u64) {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let at_ns = since.map_or(0, |since| since.as_nanos() as u64);
        let mut kept = lock(&self.kept);
        if kept.looked.is_none_or(|looked| looked.elapsed() > PATIENCE) {
            return self.forget(&mut kept);
        }
        if kept.events.len() == KEPT {
            kept.events.pop_front();
            kept.first += 1;
        }
        kept.events.push_back(Event {
            at_ns,
            what,
            thread,
            pages,
            took_ns,
            instruction,
        });
    }

    /// Keeps nothing, until somebody looks again.
    pub(crate) fn stop(&self) {
        self.forget(&mut lock(&self.kept));
    }

    fn forget(&self, kept: &mut Kept) {
        self.on.store(false, Ordering::Relaxed);
        kept.first += kept.events.len() as u64;
        kept.events = VecDeque::new();
    }

    /// Messages from number `from` on, `most` at most, with the number of the first; from now on
    /// they are kept.
    pub(crate) fn look(&self, from: u64, most: usize) -> (u64, Vec<Event>) {
        let mut kept = lock(&self.kept);
        kept.looked = Some(Instant::now());
        self.on.store(true, Ordering::Relaxed);
        let skipped = from.saturating_sub(kept.first) as usize;
        let events = kept.events.iter().skip(skipped).take(most);
        (
            kept.first
                .max(from.min(kept.first + kept.events.len() as u64)),
            events.copied().collect(),
        )
    }
}

/// Where a thread waits, in its program: the last word that Linux says of it.
fn instruction_of(thread: u32) -> Option<u64> {
    if thread == 0 {
        return None;
    }
    let said = std::fs::read_to_string(format!("/proc/{thread}/syscall")).ok()?;
    let last = said.split_whitespace().next_back()?;
    u64::from_str_radix(last.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(events: &[Event]) -> Vec<u64> {
        events.iter().map(|event| event.pages.start.0).collect()
    }

    #[test]
    fn messages_are_kept_while_somebody_looks_and_old_ones_are_counted() {
        let tracer = Tracer::default();
        let note = |page| tracer.note(What::Read, 7, PageRange::new(page, page + 1), 0);
        note(1);
        assert_eq!(tracer.look(0, 10), (0, Vec::new()));
        (2..5).for_each(note);
        let (first, events) = tracer.look(0, 2);
        assert_eq!((first, numbers(&events)), (0, vec![2, 3]));
        let (first, events) = tracer.look(2, 10);
        assert_eq!((first, numbers(&events)), (2, vec![4]));
        assert_eq!(tracer.look(3, 10), (3, Vec::new()));
        (0..KEPT as u64).for_each(note);
        let (first, events) = tracer.look(2, usize::MAX);
        assert_eq!((first, events.len()), (3, KEPT), "one was lost");
        tracer.stop();
        note(5);
        assert_eq!(tracer.look(0, 10), (3 + KEPT as u64, Vec::new()));
    }
}
