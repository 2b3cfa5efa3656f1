//! The simulated Linux: one address space with userfaultfd at its worst.
//!
//! Every method is one system call or one access of the program, and is atomic. Calls stop after
//! part of their work, fail with EAGAIN while an event waits, fail with EBUSY for pages that a fork
//! left shared, and leave messages behind for threads that were woken long ago.

use farpage_object::PageRange;

use crate::rng::Rng;

/// Pages of the simulated address space: 4 blocks.
pub(crate) const WINDOW: u64 = 2048;
/// Pages of a huge page.
const HUGE: u64 = 512;

/// Why a call did not do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errno {
    /// An event waits to be read, or the call was cut short before its first page.
    Again,
    /// There is a page already.
    Exist,
    /// The page is shared with another process.
    Busy,
}

/// A fault message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) thread: usize,
    pub(crate) page: u64,
    pub(crate) protection: bool,
}

/// What an access came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It happened; this was in the page (before a write).
    Value(u64),
    /// The thread sleeps until it is woken.
    Asleep,
    /// SIGSEGV: nothing is mapped there.
    Unmapped,
    /// SIGBUS: the page is poisoned.
    Poisoned,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pte {
    pub(crate) mapped: bool,
    /// Faults are reported; else Linux fills by itself.
    pub(crate) registered: bool,
    pub(crate) present: bool,
    pub(crate) protected: bool,
    /// No other process shares the frame.
    pub(crate) exclusive: bool,
    pub(crate) poisoned: bool,
    pub(crate) value: u64,
}

/// A page in the staging area; it stands at the index of the page that it was.
#[derive(Clone, Copy)]
pub(crate) struct Shadow {
    pub(crate) value: u64,
    exclusive: bool,
}

#[derive(Clone)]
pub(crate) struct Space {
    pub(crate) ptes: Vec<Pte>,
    pub(crate) aside: Vec<Option<Shadow>>,
    /// Unread fault messages.
    pub(crate) queue: Vec<Fault>,
    /// Threads asleep in a fault: (thread, page).
    pub(crate) sleepers: Vec<(usize, u64)>,
    /// An event waits to be read: userfaultfd calls fail.
    pub(crate) event: bool,
    /// Per thousand: how often a call is cut short after a page.
    pub(crate) partial: u64,
}

impl Space {
    pub(crate) fn new(partial: u64) -> Self {
        Self {
            ptes: vec![Pte::default(); WINDOW as usize],
            aside: vec![None; WINDOW as usize],
            queue: Vec::new(),
            sleepers: Vec::new(),
            event: false,
            partial,
        }
    }

    pub(crate) fn pte(&mut self, page: u64) -> &mut Pte {
        &mut self.ptes[page as usize]
    }

    /// A thread reads `page`, or writes `write` to it.
    pub(crate) fn access(
        &mut self,
        thread: usize,
        page: u64,
        write: Option<u64>,
        rng: &mut Rng,
    ) -> Seen {
        let pte = self.ptes[page as usize];
        if !pte.mapped {
            return Seen::Unmapped;
        }
        if pte.poisoned {
            return Seen::Poisoned;
        }
        if !pte.present {
            if pte.registered {
                return self.sleep(thread, page, false);
            }
            self.fill_by_itself(page, rng);
        }
        let pte = self.pte(page);
        let before = pte.value;
        if let Some(value) = write {
            if pte.protected {
                return self.sleep(thread, page, true);
            }
            pte.value = value;
            pte.exclusive = true;
        }
        Seen::Value(before)
    }

    fn sleep(&mut self, thread: usize, page: u64, protection: bool) -> Seen {
        self.queue.push(Fault {
            thread,
            page,
            protection,
        });
        self.sleepers.push((thread, page));
        Seen::Asleep
    }

    /// Linux fills an unregistered page, or the whole huge page around it.
    fn fill_by_itself(&mut self, page: u64, rng: &mut Rng) {
        let block = page / HUGE * HUGE;
        let whole = rng.chance(300);
        let pages = if whole {
            block..block + HUGE
        } else {
            page..page + 1
        };
        for page in pages {
            let pte = self.pte(page);
            if pte.mapped && !pte.registered && !pte.present {
                pte.present = true;
                pte.exclusive = true;
                pte.protected = false;
                pte.value = 0;
            }
        }
    }

    /// Wakes the threads that sleep in a range; their unread messages may stay behind.
    pub(crate) fn wake(&mut self, pages: PageRange, rng: &mut Rng) {
        let within = |page: u64| pages.start.0 <= page && page < pages.end.0;
        let stale = rng.chance(200);
        let queue = &mut self.queue;
        self.sleepers.retain(|&(thread, page)| {
            let woken = within(page);
            if woken && !stale {
                queue.retain(|m| (m.thread, m.page) != (thread, page));
            }
            !woken
        });
    }

    /// A signal arrives: the thread asks again although nobody woke it.
    pub(crate) fn wake_spuriously(&mut self, rng: &mut Rng) {
        if !self.sleepers.is_empty() {
            let at = rng.below(self.sleepers.len() as u64) as usize;
            self.sleepers.swap_remove(at);
        }
    }

    /// Does `one` for each page until it fails or is cut short; wakes those for whom it was done.
    fn each(
        &mut self,
        pages: PageRange,
        rng: &mut Rng,
        mut one: impl FnMut(&mut Self, u64) -> Result<(), Errno>,
    ) -> Result<u64, Errno> {
        let mut done = 0;
        for page in pages.iter() {
            let outcome = if self.event || (self.partial > 0 && rng.chance(self.partial)) {
                Err(Errno::Again)
            } else {
                one(self, page.0)
            };
            match outcome {
                Ok(()) => done += 1,
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        let start = pages.start.0;
        self.wake(PageRange::new(start, start + done), rng);
        Ok(done)
    }

    /// UFFDIO_ZEROPAGE.
    pub(crate) fn zero(&mut self, pages: PageRange, rng: &mut Rng) -> Result<u64, Errno> {
        self.each(pages, rng, |space, page| space.put(page, 0, false))
    }

    /// UFFDIO_COPY of `value`, write-protected if wanted.
    pub(crate) fn copy(
        &mut self,
        page: u64,
        value: u64,
        protected: bool,
        rng: &mut Rng,
    ) -> Result<u64, Errno> {
        self.each(PageRange::new(page, page + 1), rng, |space, page| {
            space.put(page, value, protected)
        })
    }

    fn put(&mut self, page: u64, value: u64, protected: bool) -> Result<(), Errno> {
        let pte = self.pte(page);
        assert!(
            pte.mapped && pte.registered,
            "UFFDIO on page {page} that is not registered"
        );
        if pte.present {
            return Err(Errno::Exist);
        }
        pte.present = true;
        pte.protected = protected;
        pte.exclusive = true;
        pte.value = value;
        Ok(())
    }

    /// UFFDIO_MOVE out of the program.
    pub(crate) fn move_aside(&mut self, pages: PageRange, rng: &mut Rng) -> Result<u64, Errno> {
        self.each(pages, rng, |space, page| {
            let pte = space.pte(page);
            assert!(pte.present, "page {page} moved aside has no contents");
            if !pte.exclusive {
                return Err(Errno::Busy);
            }
            pte.present = false;
            let value = pte.value;
            let before = space.aside[page as usize].replace(Shadow {
                value,
                exclusive: true,
            });
            assert!(before.is_none(), "page {page} moved aside over another");
            Ok(())
        })
    }

    /// UFFDIO_MOVE back into the program.
    pub(crate) fn move_back(&mut self, pages: PageRange, rng: &mut Rng) -> Result<u64, Errno> {
        self.each(pages, rng, |space, page| {
            let Some(shadow) = space.aside[page as usize] else {
                panic!("page {page} moved back is not aside");
            };
            if !shadow.exclusive {
                return Err(Errno::Busy);
            }
            space.put(page, shadow.value, false)?;
            space.aside[page as usize] = None;
            Ok(())
        })
    }

    /// What lies aside for `page`.
    pub(crate) fn shadow(&self, page: u64) -> u64 {
        match self.aside[page as usize] {
            Some(shadow) => shadow.value,
            None => panic!("page {page} is not aside"),
        }
    }

    /// The agent copies a shared page into the staging area.
    pub(crate) fn copy_aside(&mut self, page: u64) {
        let value = self.pte(page).value;
        let before = self.aside[page as usize].replace(Shadow {
            value,
            exclusive: true,
        });
        assert!(before.is_none(), "page {page} copied aside over another");
    }

    pub(crate) fn drop_shadow(&mut self, page: u64) {
        self.aside[page as usize] = None;
    }

    /// UFFDIO_WRITEPROTECT on: touches what is there.
    pub(crate) fn protect(&mut self, pages: PageRange, rng: &mut Rng) -> Result<(), Errno> {
        if self.event || (self.partial > 0 && rng.chance(self.partial)) {
            return Err(Errno::Again);
        }
        for page in pages.iter() {
            let pte = self.pte(page.0);
            pte.protected = pte.present;
        }
        Ok(())
    }

    /// UFFDIO_WRITEPROTECT off.
    pub(crate) fn unprotect(&mut self, pages: PageRange, rng: &mut Rng) -> Result<(), Errno> {
        if self.event || (self.partial > 0 && rng.chance(self.partial)) {
            return Err(Errno::Again);
        }
        for page in pages.iter() {
            self.pte(page.0).protected = false;
        }
        self.wake(pages, rng);
        Ok(())
    }

    /// The same for one page, repeated until it works: it cannot be left half done.
    pub(crate) fn unprotect_until_done(&mut self, page: u64, rng: &mut Rng) {
        while self.unprotect(PageRange::new(page, page + 1), rng).is_err() {
            self.event = false;
        }
    }

    /// MADV_DONTNEED.
    pub(crate) fn drop_pages(&mut self, pages: PageRange) {
        for page in pages.iter() {
            let pte = self.pte(page.0);
            pte.present = false;
            pte.protected = false;
            pte.poisoned = false;
        }
    }

    /// UFFDIO_REGISTER and UNREGISTER of what is mapped; unregistering forgets protection.
    pub(crate) fn register(&mut self, pages: PageRange, registered: bool, rng: &mut Rng) {
        for page in pages.iter() {
            let pte = self.pte(page.0);
            pte.registered = registered && pte.mapped;
            pte.protected &= registered;
        }
        if !registered {
            self.wake(pages, rng);
        }
    }

    /// mmap.
    pub(crate) fn map(&mut self, pages: PageRange, registered: bool) {
        for page in pages.iter() {
            let pte = self.pte(page.0);
            assert!(!pte.mapped, "page {} mapped twice", page.0);
            *pte = Pte {
                mapped: true,
                registered,
                ..Pte::default()
            };
        }
    }

    /// munmap.
    pub(crate) fn unmap(&mut self, pages: PageRange, rng: &mut Rng) {
        for page in pages.iter() {
            *self.pte(page.0) = Pte::default();
        }
        self.wake(pages, rng);
    }

    /// mremap: protection does not travel.
    pub(crate) fn remap(&mut self, from: PageRange, to: u64, rng: &mut Rng) {
        for page in from.iter() {
            let pte = core::mem::take(self.pte(page.0));
            let target = self.pte(to + page.0 - from.start.0);
            assert!(!target.mapped, "mremap onto a mapping");
            *target = Pte {
                protected: false,
                ..pte
            };
        }
        self.wake(from, rng);
    }

    /// fork: the child's copy. Frames are shared from now on; the child has no messages, no
    /// sleepers and no protection.
    pub(crate) fn fork(&mut self) -> Self {
        for pte in &mut self.ptes {
            pte.exclusive = false;
        }
        for shadow in self.aside.iter_mut().flatten() {
            shadow.exclusive = false;
        }
        let mut child = self.clone();
        child.queue.clear();
        child.sleepers.clear();
        child.event = false;
        for pte in &mut child.ptes {
            pte.protected = false;
        }
        child
    }
}
