//! The trace ring: what happened to which page and when, for `farpage run --trace`.

use core::sync::atomic::{AtomicU64, Ordering};

/// Events that the ring holds before the reader must have taken them.
pub const TRACE_EVENTS: usize = 1 << 16;

/// What happened to a run of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TraceKind {
    /// A missing page that had no contents: filled with zeros.
    ZeroFill = 1,
    /// Pages fetched from the compressed tier or a paging file.
    PageIn = 2,
    /// Pages taken out of the program.
    PageOut = 3,
    /// A first write to a page whose copy in the paging file was still good.
    WriteFault = 4,
    /// A page asked for again while it was set aside: given back without any copy.
    Refault = 5,
}

/// One entry: when, what, where, how many pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceEvent {
    /// Microseconds since the start of the run (`CLOCK_MONOTONIC`), below 2^36 (19 hours).
    pub at_us: u64,
    /// What happened.
    pub kind: TraceKind,
    /// Virtual page number, below 2^36.
    pub page: u64,
    /// Number of pages, 1 to 65535 (larger runs are recorded as 65535).
    pub pages: u16,
    /// Task slot, see `Control::tasks`.
    pub task: u16,
}

impl TraceEvent {
    /// The two words of an entry. Both carry the round of the ring that it belongs to.
    fn pack(self, round: u64) -> (u64, u64) {
        let a = (self.at_us & ((1 << 36) - 1))
            | (self.kind as u64) << 36
            | (round & 0xf) << 44
            | (self.task as u64) << 48;
        let b = (self.page & ((1 << 36) - 1)) | (round & 0xfff) << 36 | (self.pages as u64) << 48;
        (a, b)
    }

    /// `None`: the entry of `round` is not there, or not all of it.
    fn unpack(a: u64, b: u64, round: u64) -> Option<Self> {
        if a >> 44 & 0xf != round & 0xf || b >> 36 & 0xfff != round & 0xfff {
            return None;
        }
        let kind = match (a >> 36) & 0xff {
            1 => TraceKind::ZeroFill,
            2 => TraceKind::PageIn,
            3 => TraceKind::PageOut,
            4 => TraceKind::WriteFault,
            5 => TraceKind::Refault,
            _ => return None,
        };
        Some(Self {
            at_us: a & ((1 << 36) - 1),
            kind,
            page: b & ((1 << 36) - 1),
            pages: (b >> 48) as u16,
            task: (a >> 48) as u16,
        })
    }
}

/// Many writers, one reader, fixed size; what does not fit is counted in `lost` and dropped.
///
/// A writer may die, or sleep for long, between claiming an entry and filling it. The reader passes
/// an entry that is still empty when it comes for the second time, and counts it as lost. A writer
/// that is late then spoils at most one entry of a later round, which is lost as well.
#[repr(C)]
pub struct TraceRing {
    head: AtomicU64,
    tail: AtomicU64,
    lost: AtomicU64,
    /// One more than the entry that the reader last found empty.
    awaited: AtomicU64,
    slots: [[AtomicU64; 2]; TRACE_EVENTS],
}

impl TraceRing {
    /// Appends an event; drops it when the reader is a whole ring behind.
    pub fn push(&self, event: TraceEvent) {
        if let Some(at) = self.claim() {
            let slot = &self.slots[(at % TRACE_EVENTS as u64) as usize];
            let (a, b) = event.pack(at / TRACE_EVENTS as u64);
            slot[1].store(b, Ordering::Relaxed);
            slot[0].store(a, Ordering::Release);
        }
    }

    /// The number of an entry to fill. `None`: the ring is full.
    fn claim(&self) -> Option<u64> {
        let mut at = self.head.load(Ordering::Relaxed);
        loop {
            if at - self.tail.load(Ordering::Acquire) >= TRACE_EVENTS as u64 {
                self.lost.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            let (order, failed) = (Ordering::Relaxed, Ordering::Relaxed);
            match self.head.compare_exchange_weak(at, at + 1, order, failed) {
                Ok(_) => return Some(at),
                Err(now) => at = now,
            }
        }
    }

    /// Takes the oldest event. `None` when there is none, or its writer has not finished: come again
    /// later, with some time between.
    pub fn pop(&self) -> Option<TraceEvent> {
        loop {
            let at = self.tail.load(Ordering::Relaxed);
            if at == self.head.load(Ordering::Relaxed) {
                return None;
            }
            let slot = &self.slots[(at % TRACE_EVENTS as u64) as usize];
            let a = slot[0].load(Ordering::Acquire);
            let b = slot[1].load(Ordering::Relaxed);
            let event = TraceEvent::unpack(a, b, at / TRACE_EVENTS as u64);
            if event.is_none() && self.awaited.swap(at + 1, Ordering::Relaxed) != at + 1 {
                return None;
            }
            slot[0].store(0, Ordering::Relaxed);
            self.tail.store(at + 1, Ordering::Release);
            match event {
                None => self.lost.fetch_add(1, Ordering::Relaxed),
                event => return event,
            };
        }
    }

    /// Events dropped because the ring was full, or never finished.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    fn ring() -> std::boxed::Box<TraceRing> {
        let zeros: std::vec::Vec<[AtomicU64; 2]> =
            (0..TRACE_EVENTS).map(|_| Default::default()).collect();
        let slots: std::boxed::Box<[[AtomicU64; 2]; TRACE_EVENTS]> =
            zeros.try_into().expect("TRACE_EVENTS of them");
        std::boxed::Box::new(TraceRing {
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            awaited: AtomicU64::new(0),
            slots: *slots,
        })
    }

    fn event(page: u64) -> TraceEvent {
        TraceEvent {
            at_us: page * 3,
            kind: TraceKind::PageOut,
            page,
            pages: 7,
            task: 4095,
        }
    }

    #[test]
    fn events_come_out_as_they_went_in() {
        let ring = ring();
        let rounds = 20 * TRACE_EVENTS as u64;
        for page in 0..rounds {
            ring.push(event(page));
            assert_eq!(ring.pop(), Some(event(page)));
        }
        assert_eq!((ring.pop(), ring.lost()), (None, 0));
    }

    #[test]
    fn a_full_ring_drops_and_counts() {
        let ring = ring();
        (0..TRACE_EVENTS as u64 + 5).for_each(|page| ring.push(event(page)));
        assert_eq!((ring.pop(), ring.lost()), (Some(event(0)), 5));
    }

    #[test]
    fn a_writer_that_died_is_passed() {
        let ring = ring();
        ring.push(event(1));
        ring.claim().expect("an entry");
        ring.push(event(3));
        assert_eq!(ring.pop(), Some(event(1)));
        assert_eq!(ring.pop(), None, "it may only be slow");
        assert_eq!((ring.pop(), ring.lost()), (Some(event(3)), 1));
        assert_eq!((ring.pop(), ring.lost()), (None, 1));
    }

    #[test]
    fn a_writer_that_is_late_is_not_taken_for_another() {
        let ring = ring();
        let late = ring.claim().expect("an entry");
        assert_eq!((ring.pop(), ring.pop()), (None, None));
        assert_eq!(ring.lost(), 1);
        let (a, b) = event(9).pack(late / TRACE_EVENTS as u64);
        ring.slots[0][1].store(b, Ordering::Relaxed);
        ring.slots[0][0].store(a, Ordering::Relaxed);
        for page in 1..TRACE_EVENTS as u64 {
            ring.push(event(page));
            assert_eq!(ring.pop(), Some(event(page)));
        }
        ring.claim().expect("the same entry");
        assert_eq!((ring.pop(), ring.pop(), ring.lost()), (None, None, 2));
    }
}
