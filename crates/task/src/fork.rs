//! A child of fork: what its parent had, as each part is inherited.

use std::cell::RefCell;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::{Arc, MutexGuard, Once};

use farpage_sys::area::Place;
use farpage_sys::fork::at_fork;
use farpage_sys::memory_file::{self, FIXED, WRITE};

use crate::Inheritance;
use crate::map::{Backing, Piece};
use crate::object::{FrozenFile, Object};
use crate::space::{AddressSpace, Result, State, addresses};

/// While a thread forks.
struct Forking {
    state: MutexGuard<'static, State>,
    /// Of what is shared and inherited as a copy: what the child will have.
    copies: Vec<(Range<u64>, Result<Piece>)>,
}

thread_local! {
    static FORKING: RefCell<Option<Forking>> = const { RefCell::new(None) };
}

/// From now on children of fork know what they have.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| at_fork(prepare, parent, child));
}

extern "C" fn prepare() {
    let Ok(own) = AddressSpace::own() else {
        return;
    };
    let state = own.lock();
    let copy = |(part, piece): (Range<u64>, Piece)| match &piece.backing {
        Backing::Shared(object, offset) if piece.inheritance == Inheritance::Copy => {
            let copied = copy(object, *offset, part.end - part.start, &piece);
            Some((part, copied))
        }
        Backing::Zeros | Backing::Frozen(..) | Backing::Shared(..) => None,
    };
    // Before there is a child: who shares it writes as soon as it knows of one.
    let copies = state.map.all().into_iter().filter_map(copy).collect();
    FORKING.with(|forking| *forking.borrow_mut() = Some(Forking { state, copies }));
}

fn copy(object: &Arc<Object>, offset: u64, bytes: u64, piece: &Piece) -> Result<Piece> {
    let file = memory_file::create(c"farpage-frozen", bytes as usize)?;
    object.copy_to(offset, bytes, &file)?;
    memory_file::seal(file.as_fd(), FIXED | WRITE)?;
    let backing = Backing::Frozen(Arc::new(FrozenFile::new(file)?), 0);
    Ok(Piece {
        backing,
        ..piece.clone()
    })
}

extern "C" fn parent() {
    FORKING.with(|forking| drop(forking.borrow_mut().take()));
}

extern "C" fn child() {
    let forking = FORKING.with(|forking| forking.borrow_mut().take());
    let (Ok(own), Some(mut forking)) = (AddressSpace::own(), forking) else {
        return;
    };
    for (part, piece) in forking.state.map.all() {
        if piece.inheritance == Inheritance::None {
            // Linux has left it out.
            forking.state.map.remove(&part);
        }
    }
    for (part, copied) in forking.copies {
        let laid = copied.and_then(|piece| {
            own.lay(&part, &piece, Place::Replace)?;
            Ok(piece)
        });
        match laid {
            Ok(piece) => forking.state.map.put(&part, piece),
            Err(error) => {
                // Its parent's must not change, and nothing else be read in its place.
                eprintln!(
                    "farpage: the child has no copy of {:#x}..{:#x}, and ends when it touches it: \
                     {error}",
                    part.start, part.end
                );
                let _ = own.area.unmap(&addresses(&part));
                forking.state.map.remove(&part);
            }
        }
    }
}
