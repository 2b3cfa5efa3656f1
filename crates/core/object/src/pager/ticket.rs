//! Answers that come later.

use core::mem::ManuallyDrop;

use crate::{Access, ObjectId, PAGE_BYTES, PageRange};

use crate::pager::{PagerError, Supplied};

/// Takes the answers that tickets bring. Kernels implement it, and tests of pagers.
pub trait Later: Sync {
    /// `bytes` are the contents of request `id`, from its first page. False when nobody waits for
    /// them any more.
    fn supply(&self, id: u64, bytes: &[u8], supplied: Supplied) -> bool;

    /// Request `id` cannot be answered. False when nobody waits for it any more.
    fn fail(&self, id: u64, error: PagerError) -> bool;
}

/// A request that its pager answers later, from any thread. Made by
/// [`DataRequest::later`](crate::pager::DataRequest::later).
///
/// It takes the place of a waiting thread: a few dozen bytes here, as many in the kernel. Dropping
/// it fails the request with [`PagerError::Dead`], so a thread that waits never hangs because its
/// ticket was lost.
pub struct Ticket {
    kernel: &'static dyn Later,
    id: u64,
    object: ObjectId,
    access: Access,
    needed: u32,
    pages: PageRange,
}

impl Ticket {
    pub(crate) fn new(
        kernel: &'static dyn Later,
        id: u64,
        object: ObjectId,
        access: Access,
        needed: u64,
        pages: PageRange,
    ) -> Self {
        Self {
            kernel,
            id,
            object,
            access,
            needed: needed as u32,
            pages,
        }
    }

    /// The object.
    pub fn object(&self) -> ObjectId {
        self.object
    }

    /// The pages that may be supplied, in order from the first.
    pub fn pages(&self) -> PageRange {
        self.pages
    }

    /// How many of them, from the first, a thread waits for; at least 1.
    pub fn needed(&self) -> u64 {
        u64::from(self.needed)
    }

    /// What the waiting thread wants to do.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Supplies the pages whose contents are `bytes`, from the first; the pager keeps its copy. A
    /// last part of a page is filled up with zeros. Pages that are not supplied are asked for again
    /// when they are wanted. They go from `bytes` into the program without another copy.
    ///
    /// Returns false when the object has been unmapped meanwhile: the contents went nowhere.
    ///
    /// # Panics
    /// When `bytes` is empty or longer than the pages asked for.
    pub fn supply(self, bytes: &[u8]) -> bool {
        self.supply_as(bytes, Supplied::clean(0))
    }

    /// As [`Ticket::supply`], and `how` says whether the pages are precious or locked; its number
    /// of pages is not looked at.
    ///
    /// # Panics
    /// As [`Ticket::supply`].
    pub fn supply_as(self, bytes: &[u8], how: Supplied) -> bool {
        assert!(!bytes.is_empty(), "nothing supplied");
        assert!(
            bytes.len() as u64 <= self.pages.bytes(),
            "more supplied than asked for"
        );
        let pages = bytes.len().div_ceil(PAGE_BYTES) as u64;
        let ticket = ManuallyDrop::new(self);
        ticket
            .kernel
            .supply(ticket.id, bytes, Supplied { pages, ..how })
    }

    /// The first page cannot be had: the thread that waits gets an error, never zeros.
    ///
    /// Returns false when the object has been unmapped meanwhile.
    pub fn fail(self, error: PagerError) -> bool {
        let ticket = ManuallyDrop::new(self);
        ticket.kernel.fail(ticket.id, error)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.kernel.fail(self.id, PagerError::Dead);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::sync::Mutex;
    use std::vec::Vec;

    use crate::PageIndex;

    use super::*;
    use crate::pager::DataRequest;

    #[derive(Default)]
    struct Kernel(Mutex<Vec<(u64, Result<Supplied, PagerError>)>>);

    impl Later for Kernel {
        fn supply(&self, id: u64, _: &[u8], supplied: Supplied) -> bool {
            self.0.lock().unwrap().push((id, Ok(supplied)));
            true
        }

        fn fail(&self, id: u64, error: PagerError) -> bool {
            self.0.lock().unwrap().push((id, Err(error)));
            true
        }
    }

    fn ticket(kernel: &'static Kernel, id: u64) -> Ticket {
        let mut buffer = [0; 2 * PAGE_BYTES];
        let pages = PageRange::new(7, 9);
        let make = || id;
        let request = DataRequest::new(ObjectId(3), pages, 1, Access::Read, &mut buffer);
        let mut kept = None;
        let supplied = request
            .or_later(kernel, &make)
            .later(|ticket| kept = Some(ticket));
        assert_eq!(supplied.pages, 0);
        kept.expect("a ticket")
    }

    #[test]
    fn every_ticket_is_answered_once() {
        let kernel: &'static Kernel = std::boxed::Box::leak(std::boxed::Box::default());
        let first = ticket(kernel, 1);
        assert_eq!((first.object(), first.needed()), (ObjectId(3), 1));
        assert_eq!(first.pages().start, PageIndex(7));
        assert!(first.supply(&[1; PAGE_BYTES + 1]));
        assert!(ticket(kernel, 2).fail(PagerError::Unavailable));
        drop(ticket(kernel, 3));
        let too_long = std::panic::catch_unwind(|| {
            ticket(kernel, 4).supply(&[0; 2 * PAGE_BYTES + 1]);
        });
        assert!(too_long.is_err());
        let want = [
            (1, Ok(Supplied::clean(2))),
            (2, Err(PagerError::Unavailable)),
            (3, Err(PagerError::Dead)),
            (4, Err(PagerError::Dead)),
        ];
        assert_eq!(*kernel.0.lock().unwrap(), want);
    }
}
