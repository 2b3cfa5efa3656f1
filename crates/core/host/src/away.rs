//! Pages that another kernel has next: their pager takes the contents from here.

use farpage_object::{Here, PAGE_BYTES, PageIndex, PageRange, PagerError};
use farpage_sys::file;

use crate::Object;
use crate::leave::ON_ITS_WAY;
use crate::object::State;
use crate::trace::What;

impl Object {
    /// Puts the contents of a page into `into`, if they are here. Who wants them as they stay locks
    /// the page first.
    ///
    /// # Errors
    /// When Linux does not give them, or a process has more mappings than Linux allows.
    pub fn contents_of(
        &self,
        page: PageIndex,
        into: &mut [u8; PAGE_BYTES],
    ) -> Result<bool, PagerError> {
        let mut state = self.lock();
        self.nothing_granted(&mut state, PageRange::one(page))?;
        match state.pages.here(page.0) {
            Some(Here::Memory) => {
                let at = page.0 * PAGE_BYTES as u64;
                match file::pread(self.memory.fd(), into, at) {
                    Ok(PAGE_BYTES) => Ok(true),
                    Ok(_) => Err(PagerError::Corrupt),
                    Err(errno) => Err(PagerError::Read(errno.0)),
                }
            }
            Some(Here::Aside) => {
                into.copy_from_slice(&self.host.copies.get(state.aside[&page.0]));
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// The pager has no copy of a page any more: it comes back to it before it goes, written to or
    /// not. False when it is not here.
    ///
    /// # Errors
    /// When a process has more mappings than Linux allows.
    pub fn make_precious(&self, page: PageIndex) -> Result<bool, PagerError> {
        let mut state = self.lock();
        self.nothing_granted(&mut state, PageRange::one(page))?;
        Ok(state.pages.make_precious(page.0))
    }

    /// Another kernel has `pages` from now on: what is here of them goes, from every mapping, and
    /// nothing of it is handed over. Waits for what is on its way to the pager; what comes from
    /// there is the pager's business.
    ///
    /// # Errors
    /// When a process has more mappings than Linux allows; then nothing has changed.
    pub fn take_away(&self, pages: PageRange) -> Result<(), PagerError> {
        let waited = loop {
            let mut state = self.lock();
            self.nothing_granted(&mut state, pages)?;
            if let Some(waited) = self.change(&mut state, |all| all.take_away(pages)) {
                self.forget(&mut state, pages);
                self.punch(pages);
                break waited;
            }
            drop(state);
            std::thread::sleep(ON_ITS_WAY);
        };
        self.tracer.note(What::Dropped, 0, pages, 0);
        self.want_all(waited);
        Ok(())
    }

    pub(crate) fn nothing_granted(
        &self,
        state: &mut State,
        pages: PageRange,
    ) -> Result<(), PagerError> {
        while let Some(block) = state.pages.granted_in(pages) {
            if !self.take_back(state, block) {
                return Err(PagerError::OutOfSpace);
            }
        }
        Ok(())
    }
}
