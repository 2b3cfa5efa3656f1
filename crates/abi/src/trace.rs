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
    fn pack(self) -> (u64, u64) {
        let a =
            (self.at_us & ((1 << 36) - 1)) | (self.kind as u64) << 36 | (self.task as u64) << 48;
        let b = (self.page & ((1 << 36) - 1)) | (self.pages as u64) << 48;
        (a, b)
    }

    fn unpack(a: u64, b: u64) -> Option<Self> {
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
#[repr(C)]
pub struct TraceRing {
    head: AtomicU64,
    tail: AtomicU64,
    lost: AtomicU64,
    slots: [[AtomicU64; 2]; TRACE_EVENTS],
}

impl TraceRing {
    /// Appends an event; drops it when the reader is a whole ring behind.
    pub fn push(&self, event: TraceEvent) {
        let mut at = self.head.load(Ordering::Relaxed);
        loop {
            if at - self.tail.load(Ordering::Acquire) >= TRACE_EVENTS as u64 {
                self.lost.fetch_add(1, Ordering::Relaxed);
                return;
            }
            match self
                .head
                .compare_exchange_weak(at, at + 1, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => break,
                Err(now) => at = now,
            }
        }
        let slot = &self.slots[(at % TRACE_EVENTS as u64) as usize];
        let (a, b) = event.pack();
        slot[1].store(b, Ordering::Relaxed);
        slot[0].store(a, Ordering::Release);
    }

    /// Takes the oldest event. `None` when there is none, or its writer has not finished.
    pub fn pop(&self) -> Option<TraceEvent> {
        let at = self.tail.load(Ordering::Relaxed);
        if at == self.head.load(Ordering::Relaxed) {
            return None;
        }
        let slot = &self.slots[(at % TRACE_EVENTS as u64) as usize];
        let event = TraceEvent::unpack(
            slot[0].load(Ordering::Acquire),
            slot[1].load(Ordering::Relaxed),
        )?;
        slot[0].store(0, Ordering::Relaxed);
        self.tail.store(at + 1, Ordering::Release);
        Some(event)
    }

    /// Events dropped because the ring was full.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}
