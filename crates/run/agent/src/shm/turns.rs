//! Turns at the contents of a file: several processes may read at a time, or one may write, as Linux's
//! lock of an inode has it.
//!
//! A turn is a lock on a byte of the object's memory file, which programs cannot name, by an open file
//! that the supervisor made for this call alone. So it collides with no lock of the program's, it
//! excludes processes that have the program's descriptor in common, and it ends when its holder is
//! killed. Whoever waits for a turn holds the byte before it: readers that come later wait behind a
//! writer, and cannot keep it from its turn for ever.

use farpage_sys::{Errno, marks, time};

use super::descriptors::Object;
use crate::transfer::Way;
use crate::{sandbox, signals};

/// No number of a program's (Linux has it for the same): a signal comes first, and then the call is
/// made again.
pub(crate) const SIGNAL_FIRST: Errno = Errno(513);
/// Signals of a program that waits for a turn whatever comes.
pub(crate) const HOLD_ALL: u64 = !0;

const QUEUE: u64 = 0;
const CONTENTS: u64 = 1;
/// The first pause between two looks, and the longest.
const PAUSE_NS: u64 = 20_000;
const PAUSE_NS_MAX: u64 = 1_000_000;
/// Whoever gives up for a signal begins at the end of the queue: only who has waited for so long does.
const PATIENCE_NS: u64 = 100_000_000;

/// While this lives, nobody else writes to the object by a descriptor, or sets the size of its file; where
/// it is for writing, nobody else reads by a descriptor either.
pub(super) struct Turn<'a> {
    object: &'a Object,
    is_locked: bool,
}

impl<'a> Turn<'a> {
    /// Waits for a turn.
    ///
    /// # Errors
    /// [`SIGNAL_FIRST`] when a signal that is not in `mask` has come for the program meanwhile.
    pub(super) fn wait(object: &'a Object, way: Way, mask: u64) -> Result<Self, Errno> {
        // A program's own filter may forbid to lock.
        let is_locked = !sandbox::is_on();
        if is_locked {
            let take = |byte| take(object, byte, way == Way::In, mask);
            take(QUEUE)?;
            let taken = take(CONTENTS);
            marks::release(object.memory, QUEUE);
            taken?;
        }
        Ok(Self { object, is_locked })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.is_locked {
            marks::release(self.object.memory, CONTENTS);
        }
    }
}

fn take(object: &Object, byte: u64, alone: bool, mask: u64) -> Result<(), Errno> {
    let (mut pause_ns, began) = (PAUSE_NS, time::now_ns());
    // Where Linux has no room for a lock the call is made without.
    while marks::take(object.memory, byte, alone) == Ok(false) {
        if time::now_ns() - began > PATIENCE_NS && signals::have_come(mask) {
            return Err(SIGNAL_FIRST);
        }
        time::sleep_ns(pause_ns);
        pause_ns = (2 * pause_ns).min(PAUSE_NS_MAX);
    }
    Ok(())
}
