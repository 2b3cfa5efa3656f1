//! Who waits for a page.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use farpage_object::{PAGE_BYTES, PageRange};
use farpage_sys::linux::general as g;
use farpage_sys::process;

use crate::call::Call;
use crate::object::Object;
use crate::space::{Mapping, Places, Space};

/// Somebody who waits for a page.
pub(crate) struct Waiter {
    pub(crate) page: u64,
    pub(crate) write: bool,
    /// When it was wanted.
    pub(crate) since_ns: u64,
    pub(crate) who: Who,
}

/// Who it is.
#[derive(Clone)]
pub(crate) enum Who {
    /// A thread of a process that maps the object, at its fault.
    Thread(Thread),
    /// Somebody who reads or writes by a call.
    Call(Arc<Call>),
}

/// A thread that has faulted.
#[derive(Clone)]
pub(crate) struct Thread {
    pub(crate) space: Arc<Space>,
    /// Of the page.
    pub(crate) address: usize,
    pub(crate) mapped_by: MappedBy,
}

/// Who maps a page that is there where somebody waits for it.
#[derive(Clone)]
pub(crate) enum MappedBy {
    /// This process.
    Host(Arc<Mapping>),
    /// Linux, once the thread is woken.
    Linux {
        /// The agent reads there for its program: a failure is an error, not the end.
        reading: bool,
    },
}

impl Waiter {
    /// True of one for which something is left to do here when its page has come.
    pub(crate) fn is_served_here(&self) -> bool {
        match &self.who {
            Who::Thread(thread) => matches!(thread.mapped_by, MappedBy::Host(_)),
            Who::Call(_) => true,
        }
    }

    /// What is wanted is beyond the end of the object.
    pub(crate) fn is_beyond(&self) {
        match &self.who {
            // It gets SIGBUS, unless it is gone.
            Who::Thread(thread) => {
                let _ = thread.space.refuse(thread.address);
            }
            Who::Call(call) => call.fails("it is beyond its end"),
        }
    }

    /// The page, of `object`, cannot be had.
    pub(crate) fn fail(&self, object: &Object, why: &str) {
        match &self.who {
            Who::Thread(thread) => thread.fails(object, self.page, why),
            Who::Call(call) => {
                object.counters().failed.fetch_add(1, Relaxed);
                call.fails(why);
            }
        }
    }
}

impl Thread {
    /// Leaves what it maps of `pages` to Linux. False when that cannot be.
    pub(crate) fn is_left(&self, pages: PageRange) -> bool {
        let MappedBy::Host(mapping) = &self.mapped_by else {
            return false;
        };
        let part = mapping.part(pages);
        part.is_some_and(|(at, bytes)| self.space.leave_to_linux(at, bytes))
    }

    /// Lets it fault again.
    pub(crate) fn wake(&self) {
        self.space.wake(self.address, PAGE_BYTES);
    }

    /// What the thread waits for, of `object`, cannot be had.
    fn fails(&self, object: &Object, page: u64, why: &str) {
        if self.space.is_gone() {
            return;
        }
        object.counters().failed.fetch_add(1, Relaxed);
        let (name, offset) = (object.name(), page * PAGE_BYTES as u64);
        let (reading, task) = match (&self.mapped_by, &self.space.places) {
            (MappedBy::Linux { reading }, Places::Listed(task)) => (*reading, task),
            (MappedBy::Host(_), _) | (_, Places::Told(_)) => {
                say_failure(object, offset, why);
                self.space.tell_and_refuse(self.address, name, offset, why);
                return;
            }
        };
        if reading && !task.reads_by_hand() {
            // Before the program goes on: it may end, and the run with it.
            say_failure(object, offset, why);
            if self.space.refuse(self.address).is_ok() {
                return;
            }
        }
        let process = task.process;
        farpage_sys::say!(
            "farpage: process {process} is killed: it uses '{name}' at byte {offset}, which cannot \
             be had: {why}"
        );
        object.host().forget(&self.space);
        let can_be_killed = process <= i32::MAX as u32;
        if !can_be_killed || process::kill(process, g::SIGKILL).is_err() {
            let _ = self.space.refuse(self.address);
        }
    }
}

fn say_failure(object: &Object, offset: u64, why: &str) {
    let Some(unsaid) = object.failure() else {
        return;
    };
    let more = match unsaid {
        0 => String::new(),
        count => format!(" ({count} more pages failed since the last message)"),
    };
    let name = object.name();
    farpage_sys::say!("farpage: cannot page in '{name}' at byte {offset}: {why}{more}");
}
