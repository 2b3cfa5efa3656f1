//! The default pager: paging space for memory that has no pager of its own.
//!
//! Pages that compress lie in **segments** of 1 MiB in RAM (the compressed tier); those that do not
//! go straight to paging files; when the tier is at its limit, its oldest segments are written out
//! whole. The paging files and the limits are shared by a tree of processes through
//! [`farpage_abi::Control`]; everything else belongs to one process.
#![no_std]

extern crate alloc;

use farpage_abi::{Control, ObjectId, PageIndex, PageRange};
use farpage_pagers::{DataRequest, PageOut, Pager, PagerError, Supplied};

/// Paging space of one process.
pub struct DefaultPager {
    control: &'static Control,
}

impl DefaultPager {
    /// Paging space of the task in `slot` of `control`. Reserves addresses for the whole
    /// compressed tier, so `compressed_max_bytes` must be set before.
    ///
    /// # Errors
    /// `OutOfSpace` when its buffers cannot be had.
    pub fn new(control: &'static Control, slot: usize) -> Result<Self, PagerError> {
        let _ = slot;
        Ok(Self { control })
    }

    /// True when this pager has contents for `page`.
    pub fn contains(&self, object: ObjectId, page: PageIndex) -> bool {
        let _ = (object, page, self.control);
        todo!()
    }

    /// Moves the contents of `from` to the same number of pages from `to` (mremap); what was there
    /// is discarded.
    pub fn move_pages(&self, object: ObjectId, from: PageRange, to: PageIndex) {
        let _ = (object, from, to);
        todo!()
    }

    /// Moves some of this task's pages out of paging files that are being removed. True when some
    /// are left: call it again, now and then.
    pub fn drain(&self) -> bool {
        todo!()
    }

    /// Makes the pager whole and still, and the task in `child_slot` a holder of every paging-file
    /// segment held. Exactly one of the `after_fork` calls must follow in each process.
    pub fn before_fork(&self, child_slot: usize) {
        let _ = child_slot;
        todo!()
    }

    /// In the parent, after the fork was made (`ok`) or refused.
    pub fn after_fork_parent(&self, ok: bool, child_slot: usize) {
        let _ = (ok, child_slot);
        todo!()
    }

    /// In the child, whose slot is `slot`.
    pub fn after_fork_child(&self, slot: usize) {
        let _ = slot;
        todo!()
    }
}

impl Pager for DefaultPager {
    fn data_request(&self, request: DataRequest<'_>) -> Result<Supplied, PagerError> {
        let _ = request;
        todo!()
    }

    fn data_write(&self, object: ObjectId, pages: &[PageOut<'_>]) -> Result<(), PagerError> {
        let _ = (object, pages);
        todo!()
    }

    fn discard(&self, object: ObjectId, pages: PageRange) {
        let _ = (object, pages);
        todo!()
    }

    fn terminate(&self, object: ObjectId) {
        let _ = object;
        todo!()
    }
}
