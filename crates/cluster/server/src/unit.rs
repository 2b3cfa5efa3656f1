//! Where the contents of a unit are at this host.

use farpage_host::Object;
use farpage_object::{
    Access, DataRequest, ObjectId, PAGE_BYTES, PageIndex, PageOut, PageRange, Pager, PagerError,
    errno,
};

use crate::backing::Backing;

/// The first number, in paging space, of what no task is to see.
const KEPT_FIRST: u32 = 1 << 31;

/// The places of one object's pages: the kernel's memory, and what it does not keep there.
pub(crate) struct Places<'a> {
    pub(crate) kernel: &'a Object,
    pub(crate) paging_space: &'a dyn Pager,
    /// Its number in the paging space.
    pub(crate) number: ObjectId,
    /// Its file, at the home of a durable object.
    pub(crate) backing: Option<&'a Backing>,
}

impl Places<'_> {
    /// The contents of a page. False when they are not at this host.
    pub(crate) fn page(
        &self,
        page: PageIndex,
        into: &mut [u8; PAGE_BYTES],
    ) -> Result<bool, PagerError> {
        // In this order: what the kernel hands over is in paging space before the kernel lets go.
        Ok(self.kernel.contents_of(page, into)? || self.paged_out(page, into)?)
    }

    /// The contents of a page that the kernel has not.
    pub(crate) fn paged_out(
        &self,
        page: PageIndex,
        into: &mut [u8; PAGE_BYTES],
    ) -> Result<bool, PagerError> {
        paged_out(self.paging_space, self.number, page, into)
    }

    /// The contents of a page that neither the kernel nor paging space has: those of its file, or zeros
    /// if `is_new`. False when it is not at this host.
    pub(crate) fn at_rest(
        &self,
        page: PageIndex,
        into: &mut [u8; PAGE_BYTES],
        is_new: bool,
    ) -> Result<bool, PagerError> {
        if let Some(backing) = self.backing {
            return backing
                .page(page, into)
                .map_err(|error| PagerError::Read(error.raw_os_error().unwrap_or(errno::EIO)));
        }
        into.fill(0);
        Ok(is_new)
    }

    /// As [`Places::paged_out`], for the kernel: paging space may give them away.
    pub(crate) fn take_out(
        &self,
        page: PageIndex,
        into: &mut [u8; PAGE_BYTES],
    ) -> Result<Option<Taken>, PagerError> {
        take_out(self.paging_space, self.number, page, into)
    }

    /// The contents of all of `pages`, as [`Places::at_rest`] where nobody else has them. `None` when some
    /// are not at this host.
    pub(crate) fn all(
        &self,
        pages: PageRange,
        is_new: bool,
    ) -> Result<Option<Box<[u8]>>, PagerError> {
        let mut bytes = vec![0; pages.bytes() as usize].into_boxed_slice();
        let (parts, _) = bytes.as_chunks_mut();
        for (page, into) in pages.iter().zip(parts) {
            if !self.page(page, into)? && !self.at_rest(page, into, is_new)? {
                return Ok(None);
            }
        }
        Ok(Some(bytes))
    }

    /// The contents of all of `pages`; of those that are nowhere, those of a twin.
    pub(crate) fn all_or(
        &self,
        pages: PageRange,
        twin: Box<[u8]>,
    ) -> Result<Box<[u8]>, PagerError> {
        let mut bytes = twin;
        let (parts, _) = bytes.as_chunks_mut();
        for (page, into) in pages.iter().zip(parts) {
            let mut found = [0; PAGE_BYTES];
            if self.page(page, &mut found)? {
                *into = found;
            }
        }
        Ok(bytes)
    }

    /// The kernel was given `bytes`, the only contents of `pages`. What it could not take goes to
    /// paging space.
    pub(crate) fn were_given(&self, pages: PageRange, bytes: &[u8]) -> Result<(), PagerError> {
        let (parts, _) = bytes.as_chunks();
        for (page, bytes) in pages.iter().zip(parts) {
            // Written to and handed over by now, perhaps.
            let is_somewhere = self.kernel.make_precious(page)?
                || self.paged_out(page, &mut [0; PAGE_BYTES])?
                || self.kernel.make_precious(page)?;
            if !is_somewhere {
                let out = [PageOut { page, bytes }];
                self.paging_space.data_write(self.number, &out)?;
            }
        }
        Ok(())
    }

    /// Has paging space keep those of `pages` that the kernel has not, of which the contents are
    /// `bytes`. Nobody may write to them meanwhile.
    pub(crate) fn keep(&self, pages: PageRange, bytes: &[u8]) -> Result<(), PagerError> {
        let (parts, _) = bytes.as_chunks();
        let mut out = Vec::new();
        for (page, bytes) in pages.iter().zip(parts) {
            if !self.kernel.make_precious(page)? {
                out.push(PageOut { page, bytes });
            }
        }
        match out.is_empty() {
            true => Ok(()),
            false => self.paging_space.data_write(self.number, &out),
        }
    }

    /// Nothing of `pages` is at this host any more.
    pub(crate) fn forget(&self, pages: PageRange) -> Result<(), PagerError> {
        self.kernel.take_away(pages)?;
        self.paging_space.discard(self.number, pages);
        Ok(())
    }
}

/// The contents of a page in paging space, which keeps them.
fn paged_out(
    space: &dyn Pager,
    number: ObjectId,
    page: PageIndex,
    into: &mut [u8; PAGE_BYTES],
) -> Result<bool, PagerError> {
    let found = take_out(space, number, page, into)?;
    if found == Some(Taken::Away) {
        let bytes = &*into;
        space.data_write(number, &[PageOut { page, bytes }])?;
    }
    Ok(found.is_some())
}

/// What became of a page that was read from paging space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It is there still.
    Copied,
    /// Not any more: paging space gives away what it had in memory.
    Away,
}

fn take_out(
    space: &dyn Pager,
    number: ObjectId,
    page: PageIndex,
    into: &mut [u8; PAGE_BYTES],
) -> Result<Option<Taken>, PagerError> {
    let pages = PageRange::one(page);
    let request = DataRequest::new(number, pages, 1, Access::Read, into);
    match space.data_request(request) {
        Ok(supplied) if supplied.pages == 1 && supplied.precious => Ok(Some(Taken::Away)),
        Ok(supplied) if supplied.pages == 1 => Ok(Some(Taken::Copied)),
        Ok(_) => Err(PagerError::Violation),
        Err(PagerError::Unavailable) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Contents of units that no task of this host is to see: in paging space, under a number of their own.
/// A mirrored object keeps them for the day when another host dies; the home of one with the simple
/// scheduler has there what nobody may write.
pub(crate) struct Kept<'a> {
    pub(crate) paging_space: &'a dyn Pager,
    pub(crate) number: ObjectId,
}

impl Kept<'_> {
    /// Under which number an object's are: kernels count theirs from 0, and never come so far.
    pub(crate) fn number_of(object: ObjectId) -> ObjectId {
        assert!(object.0 < KEPT_FIRST, "too many objects");
        ObjectId(KEPT_FIRST + object.0)
    }

    /// Takes the place of what was kept of `pages`.
    pub(crate) fn put(&self, pages: PageRange, bytes: &[u8]) -> Result<(), PagerError> {
        let (parts, _) = bytes.as_chunks();
        let out = pages.iter().zip(parts);
        let out: Vec<PageOut<'_>> = out.map(|(page, bytes)| PageOut { page, bytes }).collect();
        self.paging_space.data_write(self.number, &out)
    }

    /// What is kept of `pages`: all of them, but for such as never were if `is_new`, which are zeros.
    pub(crate) fn get(&self, pages: PageRange, is_new: bool) -> Result<Box<[u8]>, PagerError> {
        let mut bytes = vec![0; pages.bytes() as usize].into_boxed_slice();
        let (parts, _) = bytes.as_chunks_mut();
        for (page, into) in pages.iter().zip(parts) {
            if !paged_out(self.paging_space, self.number, page, into)? && !is_new {
                return Err(PagerError::Corrupt);
            }
        }
        Ok(bytes)
    }

    /// Nothing of `pages` is kept any more.
    pub(crate) fn forget(&self, pages: PageRange) {
        self.paging_space.discard(self.number, pages);
    }
}
