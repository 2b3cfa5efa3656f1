//! Objects with release consistency: what they need at a host besides their cells.

use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use farpage_object::PagerError;
use farpage_sys::lock;

/// What such an object needs at a host.
#[derive(Default)]
pub(crate) struct State {
    /// Units of which this host has a copy, or has asked for one, or has yet to hear that a diff has
    /// come: all that a release or an acquire may be about.
    pub(crate) here: Mutex<BTreeSet<u64>>,
    /// Bytes of twins that are in memory.
    pub(crate) bytes: AtomicU64,
}

/// What such a unit needs at a host that does not own it, or has something to put in it.
#[derive(Default)]
pub(crate) struct Twins {
    /// What it was before threads here wrote to it.
    pub(crate) twin: Option<Twin>,
    /// The last diff, until the owner has it.
    pub(crate) diff: Option<Box<[u8]>>,
    /// Diffs of others that are being put in, and how often that was tried.
    pub(crate) applying: HashMap<u64, (Runs, u32)>,
    /// Who waits, and for what.
    pub(crate) waiting: Vec<(Waits, Call)>,
}

/// A twin is in memory, or in paging space where no task sees it.
pub(crate) enum Twin {
    Here(Box<[u8]>),
    Kept,
}

/// Bytes, and where they go.
pub(crate) type Runs = Vec<(usize, Box<[u8]>)>;

/// What somebody waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Waits {
    Released(u64),
    Acquired(u64),
}

/// A release or an acquire of an object, as one of the units has it that it is about: it has ended when
/// none has it any more.
#[derive(Clone)]
pub(crate) struct Call(std::sync::Arc<Ends>);

/// Is told how a release or an acquire has ended, perhaps with locks held: it must not use the object.
pub(crate) type OnEnd = Box<dyn FnOnce(Result<(), PagerError>) + Send>;

struct Ends {
    failed: Mutex<Option<PagerError>>,
    on_end: Mutex<Option<OnEnd>>,
}

impl Call {
    pub(crate) fn new(on_end: OnEnd) -> Self {
        Self(std::sync::Arc::new(Ends {
            failed: Mutex::default(),
            on_end: Mutex::new(Some(on_end)),
        }))
    }

    /// It has not done what it should.
    pub(crate) fn fails(&self, error: PagerError) {
        *lock(&self.0.failed) = Some(error);
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        let failed = lock(&self.failed).take();
        if let Some(on_end) = lock(&self.on_end).take() {
            on_end(failed.map_or(Ok(()), Err));
        }
    }
}
