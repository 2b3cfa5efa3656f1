//! Locks that a pager sets: nobody writes to a page before it is unlocked.

use farpage_object::{PageRange, PagerError};

use crate::Object;
use crate::leave::protect;
use crate::trace::What;
use crate::waiter::Waiter;

impl Object {
    /// Nobody writes to those of `pages` that are in memory, or on their way there, before their pager
    /// has unlocked them (`pager_data_lock`). It is asked when somebody wants to
    /// ([`Pager::data_unlock`](farpage_object::Pager::data_unlock)), and says with contents that it
    /// supplies whether those are locked.
    ///
    /// # Errors
    /// [`PagerError::OutOfSpace`] when a process has more mappings than Linux allows: nothing is
    /// locked then.
    pub fn lock_pages(&self, pages: PageRange) -> Result<(), PagerError> {
        let mut state = self.lock();
        self.nothing_granted(&mut state, pages)?;
        let locked = state.pages.lock(pages);
        locked.writable.iter().for_each(|run| protect(&state, *run));
        drop(state);
        self.tracer.note(What::Lock, 0, pages, 0);
        self.want_all(locked.waited);
        Ok(())
    }

    /// Everybody may write to `pages` again, and who waited for that goes on.
    pub fn unlock_pages(&self, pages: PageRange) {
        let waited = self.unlocked(pages);
        self.want_all(waited);
    }

    /// The same; returns who waited.
    pub(crate) fn unlocked(&self, pages: PageRange) -> Vec<Waiter> {
        let waited = self.lock().pages.unlock(pages);
        self.tracer.note(What::Unlocked, 0, pages, 0);
        waited
    }

    /// The pager has not said in time whether somebody may write to a page: who waits gets an error,
    /// which says `why`.
    pub fn unlock_fails(&self, page: PageRange, why: &str) {
        let waited = self.lock().pages.ask_again(page);
        // What is mapped cannot be made to fail.
        let _ = self.flush(page);
        waited.iter().for_each(|waiter| waiter.fail(self, why));
    }
}
