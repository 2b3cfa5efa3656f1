//! A pager that can tell what it has, so that it can be replaced.

use farpage_object::{ObjectId, PageRange, Pager, PagerError};

use crate::DefaultPager;

/// A pager of temporary memory whose pages can be moved to another.
pub trait Keeper: Pager {
    /// A run of pages that it has, found from place `cursor` on, and where to go on. `None`: there is
    /// none from there on; what came meanwhile may lie before.
    ///
    /// # Errors
    /// [`PagerError::Dead`].
    fn some_kept(&self, cursor: u64) -> Result<Option<(ObjectId, PageRange, u64)>, PagerError>;

    /// Copies the first of `pages` into `buffer`, and keeps them. Returns how many.
    ///
    /// # Errors
    /// Why the first page cannot be had.
    fn copy(
        &self,
        object: ObjectId,
        pages: PageRange,
        buffer: &mut [u8],
    ) -> Result<u64, PagerError>;
}

impl Keeper for DefaultPager {
    fn some_kept(&self, cursor: u64) -> Result<Option<(ObjectId, PageRange, u64)>, PagerError> {
        let found = self.some_kept(cursor as usize);
        Ok(found.map(|(object, pages, cursor)| (object, pages, cursor as u64)))
    }

    fn copy(
        &self,
        object: ObjectId,
        pages: PageRange,
        buffer: &mut [u8],
    ) -> Result<u64, PagerError> {
        self.copy(object, pages, buffer)
    }
}
