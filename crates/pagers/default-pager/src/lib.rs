//! The default pager: paging space for memory that has no pager of its own.
//!
//! Pages that compress lie in **segments** of 1 MiB in RAM (the compressed tier); those that do not
//! go straight to paging files; when the tier is at its limit, its oldest segments are written out
//! whole. The paging files and the limits are shared by a tree of processes through
//! [`farpage_object::Control`]; everything else belongs to one process.
//!
//! Locks: calls enter the gate (fork closes it); whoever makes room holds `room`, whoever starts
//! a raw segment `growing`, both across I/O; `state` is taken last and never held across I/O or
//! compression. A page-in takes `state` only, so it never waits for a page-out's I/O.
#![cfg_attr(not(feature = "manager"), no_std)]

extern crate alloc;

mod behind;
mod codec;
mod dense;
mod drain;
mod files;
mod fork;
mod gauges;
mod location;
#[cfg(feature = "manager")]
pub mod manager;
mod page_in;
mod page_out;
mod plan;
mod pool;
mod record;
mod rings;
mod room;
mod segments;
mod sizing;
mod slots;
mod table;

use farpage_object::{
    Access, Control, DataRequest, ObjectId, PAGE_BYTES, PageIndex, PageOut, PageRange, Pager,
    PagerError, SEGMENT_BYTES, Supplied,
};
use farpage_sys::arena::Arena;
use farpage_sys::futex::Mutex;
use farpage_sys::gate::Gate;

use crate::codec::Misses;
use crate::drain::Drain;
use crate::files::Files;
use crate::gauges::Gauges;
use crate::location::At;
use crate::page_in::{Demand, Giving, Reader};
use crate::page_out::{CHUNK_PAGES, Chunk, Writer};
use crate::plan::Wanted;
use crate::pool::Pool;
use crate::rings::Permission;
use crate::room::Room;
use crate::segments::{Shared, State};

/// Page-outs that compress at the same time.
const WRITERS: usize = 4;
/// Reads from paging files that need a buffer of ours at the same time.
const READERS: usize = 8;
/// Slots of the tier beyond its limit: forced for a moment, or retired and not yet cleared.
const EXTRA_SLOTS: usize = 8;
/// Pages that a discard forgets while the lock is held once.
const FORGET_PAGES: u64 = 1 << 15;

/// Paging space of one process.
pub struct DefaultPager {
    shared: Shared,
    gate: Gate,
    state: Mutex<State>,
    room: Mutex<Room>,
    growing: Mutex<()>,
    drain: Mutex<Drain>,
    writers: Pool<Writer>,
    readers: Pool<Reader>,
    misses: Misses,
}

impl DefaultPager {
    /// Paging space of the task in `slot` of `control`. Reserves addresses for twice the compressed
    /// tier (a forked child keeps its parent's beside its own), so `compressed_max_bytes` must be
    /// set before.
    ///
    /// # Errors
    /// `OutOfSpace` when its buffers cannot be had.
    pub fn new(control: &'static Control, slot: usize) -> Result<Self, PagerError> {
        Self::make(control, slot).ok_or(PagerError::OutOfSpace)
    }

    fn make(control: &'static Control, slot: usize) -> Option<Self> {
        let relaxed = core::sync::atomic::Ordering::Relaxed;
        let tier = control.compressed_max_bytes.load(relaxed);
        let tier = tier.min(control.budget_bytes.load(relaxed)) as usize;
        let slots = tier / SEGMENT_BYTES * 2 + EXTRA_SLOTS;
        let shared = Shared {
            gauges: Gauges::new(control, slot),
            files: Files::new(control),
            rings: Permission::new(control),
            arena: Arena::new(slots, SEGMENT_BYTES).ok()?,
        };
        Some(Self {
            shared,
            gate: Gate::new(),
            state: Mutex::new(State::new(slots)?),
            room: Mutex::new(Room::new(READERS)?),
            growing: Mutex::new(()),
            drain: Mutex::new(Drain::new()?),
            writers: Pool::new(WRITERS, |_| Writer::new())?,
            readers: Pool::new(READERS, Reader::new)?,
            misses: Misses::new(),
        })
    }

    /// From now on paging files are read and written by plain system calls: a filter of the
    /// program's own, installed next, may not know others.
    pub fn withdraw_rings(&self) {
        let _inside = self.gate.enter();
        self.shared.rings.withdraw();
        self.settle_behind();
    }

    /// True when this pager has contents for `page`; also for a page that the kernel has too, when
    /// it was supplied from a paging file and not discarded since.
    pub fn contains(&self, object: ObjectId, page: PageIndex) -> bool {
        let _inside = self.gate.enter();
        let location = self.state.lock().table.get(object, page.0);
        location != location::Location::NOWHERE
    }

    /// A run of pages that this pager has, found from place `cursor` on, and where to go on. `None`:
    /// there is none from there on. Pages that come meanwhile may lie before.
    pub fn some_kept(&self, cursor: usize) -> Option<(ObjectId, PageRange, usize)> {
        let _inside = self.gate.enter();
        let mut found: Option<(ObjectId, PageRange)> = None;
        let state = self.state.lock();
        let next = state.table.scan(cursor, |object, page, _| {
            let (of, run) = found.get_or_insert((object, PageRange::new(page, page)));
            let follows = *of == object && run.end.0 == page;
            if follows {
                run.end.0 += 1;
            }
            follows
        });
        let (object, run) = found?;
        Some((object, run, next.unwrap_or(usize::MAX)))
    }

    /// Copies the first of `pages` into `buffer`, and keeps them. Returns how many.
    ///
    /// # Errors
    /// Why the first page cannot be had.
    pub fn copy(
        &self,
        object: ObjectId,
        pages: PageRange,
        buffer: &mut [u8],
    ) -> Result<u64, PagerError> {
        let _inside = self.gate.enter();
        let request = DataRequest::new(object, pages, 1, Access::Read, buffer);
        self.copy_out(request).map(|pages| pages as u64)
    }
}

impl Pager for DefaultPager {
    /// Pages from the compressed tier are given away (`precious`), and so are those that are asked
    /// for to be written; other pages from paging files are copies (`clean`): unchanged, they may be
    /// dropped again. A page that was changed is worth a
    /// `discard`, which frees its old place at once; the next `data_write` does so anyway.
    fn data_request(&self, request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        let _inside = self.gate.enter();
        self.request(request)
    }

    fn data_request_strided(
        &self,
        object: ObjectId,
        first: PageIndex,
        stride: i64,
        buffer: &mut [u8],
    ) -> Result<Supplied, PagerError> {
        let _inside = self.gate.enter();
        let wanted = Wanted {
            object,
            first: first.0,
            stride,
            pages: buffer.len() / PAGE_BYTES,
        };
        self.supply(wanted, Giving::Memory, Demand::None, buffer)
    }

    fn is_at_hand(&self, object: ObjectId, page: PageIndex) -> bool {
        let _inside = self.gate.enter();
        let state = self.state.lock();
        match state.table.get(object, page.0).at() {
            At::Zero => true,
            At::Packed { segment, .. } => state.segments[segment as usize].place.is_none(),
            At::Raw { .. } | At::Nowhere => false,
        }
    }

    /// On an error some of the pages may have been taken: writing them again does no harm. A
    /// `discard` or `data_request` of the same pages must wait until this returns.
    fn data_write(&self, object: ObjectId, pages: &[PageOut<'_>]) -> Result<(), PagerError> {
        let _inside = self.gate.enter();
        pages.chunks(CHUNK_PAGES).try_for_each(|pages| {
            self.write_out(Chunk {
                object,
                pages,
                expect: None,
            })
        })
    }

    fn discard(&self, object: ObjectId, pages: PageRange) {
        let _inside = self.gate.enter();
        if pages.pages() / FORGET_PAGES > 1 << 10 {
            self.state.lock().forget(&self.shared, object, pages);
        } else {
            let mut from = pages.start.0;
            while from < pages.end.0 {
                let to = (from + FORGET_PAGES).min(pages.end.0);
                let part = PageRange::new(from, to);
                self.state.lock().forget(&self.shared, object, part);
                from = to;
            }
        }
        self.look_behind();
        self.tidy();
    }

    fn terminate(&self, object: ObjectId) {
        self.settle_behind();
        self.discard(object, PageRange::new(0, 1 << 41));
    }
}

impl Drop for DefaultPager {
    /// Gives back what is held in the control block.
    fn drop(&mut self) {
        self.settle_behind();
        self.state.lock().forget_all(&self.shared);
        self.tidy();
    }
}
