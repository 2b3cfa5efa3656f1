//! A child of fork: what its parent had, as each part is inherited.

use std::cell::RefCell;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::{Arc, MutexGuard};

use farpage_sys::area::Place;
use farpage_sys::fork::AtFork;
use farpage_sys::memory_file::{self, FIXED, WRITE};

use crate::map::{Backing, Piece};
use crate::object::{FrozenFile, Object};
use crate::space::{AddressSpace, Result, State, addresses, is_given};
use crate::{Inheritance, Protection};

/// While a thread forks.
struct Forking {
    state: MutexGuard<'static, State>,
    /// Of what is shared and inherited as a copy: what the child will have.
    copies: Vec<(Range<u64>, Result<Piece>)>,
}

thread_local! {
    static FORKING: RefCell<Option<Forking>> = const { RefCell::new(None) };
}

static FORKS: AtFork = AtFork::new(prepare, parent, child);

/// From now on children of fork know what they have.
pub(crate) fn watch() {
    FORKS.begin();
}

extern "C" fn prepare() {
    let Ok(own) = AddressSpace::own() else {
        return;
    };
    let state = own.lock();
    for object in objects_given(&state) {
        // Else the child cannot come for it, and says so.
        if let Some(view) = object.view() {
            let _ = view.shared.before_fork();
        }
    }
    let copy = |(part, piece): (Range<u64>, Piece)| match &piece.backing {
        Backing::Shared(object, offset) if piece.inheritance == Inheritance::Copy => {
            let copied = copy(own, object, *offset, &part, &piece);
            Some((part, copied))
        }
        Backing::Zeros | Backing::Frozen(..) | Backing::Shared(..) => None,
    };
    // Before there is a child: who shares it writes as soon as it knows of one.
    let copies = state.map.all().into_iter().filter_map(copy).collect();
    FORKING.with(|forking| *forking.borrow_mut() = Some(Forking { state, copies }));
}

/// Objects of the host kernel of which children have something.
fn objects_given(state: &State) -> Vec<Arc<Object>> {
    let mut objects: Vec<Arc<Object>> = Vec::new();
    for (_, piece) in state.map.all() {
        if let Backing::Shared(object, _) = &piece.backing
            && object.view().is_some()
            && is_given(&piece)
            && !objects.iter().any(|other| Arc::ptr_eq(object, other))
        {
            objects.push(Arc::clone(object));
        }
    }
    objects
}

fn copy(
    own: &AddressSpace,
    object: &Arc<Object>,
    offset: u64,
    part: &Range<u64>,
    piece: &Piece,
) -> Result<Piece> {
    let file = if object.view().is_some() {
        own.sealed_copy(part, piece)?
    } else {
        let bytes = part.end - part.start;
        let file = memory_file::create(c"farpage-frozen", bytes as usize)?;
        object.copy_to(offset, bytes, &file)?;
        memory_file::seal(file.as_fd(), FIXED | WRITE)?;
        file
    };
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
    FORKS.in_child();
    let forking = FORKING.with(|forking| forking.borrow_mut().take());
    let (Ok(own), Some(mut forking)) = (AddressSpace::own(), forking) else {
        return;
    };
    let state = &mut *forking.state;
    for object in objects_given(state) {
        take_up(own, state, &object);
        state.kept.push(object);
    }
    for (part, piece) in state.map.all() {
        if piece.inheritance == Inheritance::None {
            // Linux has left it out.
            state.map.remove(&part);
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
                miss(&part, &error);
                let _ = own.area.unmap(&addresses(&part));
                forking.state.map.remove(&part);
            }
        }
    }
}

/// Maps an object of the host kernel's again, which Linux has left out: what the child shares.
fn take_up(own: &AddressSpace, state: &mut State, object: &Arc<Object>) {
    let Some(view) = object.view() else { return };
    let again = view.shared.after_fork();
    if again.is_ok() {
        let _ = own
            .area
            .protect(&addresses(&view.range), Protection::NONE.access());
    }
    for (part, piece) in state.map.within(&view.range) {
        if !is_given(&piece) || piece.backing.view().is_none() {
            continue;
        }
        if let Err(error) = &again {
            miss(&part, error);
            state.map.remove(&part);
        } else {
            let _ = own
                .area
                .protect(&addresses(&part), piece.protection.access());
        }
    }
}

fn miss(part: &Range<u64>, error: &dyn std::fmt::Display) {
    farpage_sys::say!(
        "farpage: the child has not inherited {:#x}..{:#x}, and ends when it touches it: {error}",
        part.start,
        part.end
    );
}
