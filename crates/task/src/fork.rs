//! A child of fork: what its parent had, as each part is inherited.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::{MutexGuard, Once};

use farpage_sys::fork::at_fork;

use crate::Inheritance;
use crate::map::{Backing, Piece};
use crate::space::{AddressSpace, State, addresses, is_given};

thread_local! {
    /// While this thread forks.
    static HELD: RefCell<Option<MutexGuard<'static, State>>> = const { RefCell::new(None) };
}

/// From now on children of fork know what they have.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| at_fork(prepare, parent, child));
}

extern "C" fn prepare() {
    if let Ok(own) = AddressSpace::own() {
        HELD.with(|held| *held.borrow_mut() = Some(own.lock()));
    }
}

extern "C" fn parent() {
    HELD.with(|held| drop(held.borrow_mut().take()));
}

extern "C" fn child() {
    let (Ok(own), Some(mut state)) = (
        AddressSpace::own(),
        HELD.with(|held| held.borrow_mut().take()),
    ) else {
        return;
    };
    for (part, piece) in state.map.all() {
        let is_shared = matches!(piece.backing, Backing::Shared(..));
        match piece.inheritance {
            // Linux has left it out.
            Inheritance::None => state.map.remove(&part),
            Inheritance::Copy if is_shared => become_own(own, &mut state, &part, &piece),
            Inheritance::Copy | Inheritance::Share => {}
        }
    }
}

/// What was shared by who made this task, and what it has a copy of.
fn become_own(own: &AddressSpace, state: &mut State, part: &Range<u64>, piece: &Piece) {
    debug_assert!(!is_given(piece));
    match own.freeze(part, piece) {
        Ok(frozen) => state.map.put(part, frozen),
        Err(error) => {
            // Its parent's must not change, and nothing else be read in its place.
            eprintln!(
                "farpage: the child has no copy of {:#x}..{:#x}, and ends when it is touched: \
                 {error}",
                part.start, part.end
            );
            let _ = own.area.unmap(&addresses(part));
            state.map.remove(part);
        }
    }
}
