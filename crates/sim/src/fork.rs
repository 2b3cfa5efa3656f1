//! fork: the child goes on with a copy of everything, without the transfers that were under way.

use farpage_abi::{PageIndex, PageRange};
use farpage_object::State;

use crate::calls::protect_clean;
use crate::coverage::Event;
use crate::linux::WINDOW;
use crate::shared::{Core, Proc, say};
use crate::world;

/// Makes the child of `proc`, whose lock is held.
pub(crate) fn fork(core: &mut Core, proc: usize) {
    let parent = &mut core.procs[proc];
    let mut child = Proc {
        pages: parent.pages.clone(),
        space: parent.space.fork(),
        lock: None,
        maps: parent.maps.clone(),
        slots: parent.slots.clone(),
        program: parent.program.clone(),
        in_hand: Vec::new(),
    };
    for slot in child.slots.iter().flatten() {
        core.store.hold(*slot);
    }
    let window = PageRange::new(0, WINDOW);
    core.note(Event::Forked);
    if child.pages.busy(window) {
        core.note(Event::ForkedBusy);
    }
    end_transfers(&mut child);
    protect_clean(&mut child, window);
    for page in 0..WINDOW {
        if child.program.wired[page as usize] {
            child.pages.wire(PageRange::new(page, page + 1), false);
        }
    }
    child.program.wired.fill(false);
    child.program.pinned.fill(false);
    let charged = child.charged();
    core.charge_anyway(charged);
    core.procs.push(child);
    let number = core.procs.len() - 1;
    say!(core, "p{proc} forks p{number}, which holds {charged} pages");
    world::staff(core, number);
}

/// In the child nobody ends the parent's transfers.
fn end_transfers(child: &mut Proc) {
    for page in (0..WINDOW).map(PageIndex) {
        match child.pages.state(page) {
            State::PagingOut => {
                child.pages.page_out_failed(page);
            }
            State::PagingOutMapped => {
                child.pages.page_out_failed(page);
                child.space.drop_shadow(page.0);
            }
            State::PagingIn => {
                let _nobody = child.pages.page_in_ends(PageRange::one(page));
            }
            State::Absent
            | State::Granted
            | State::Resident
            | State::Clean
            | State::Aside
            | State::Out
            | State::Failed => {}
        }
    }
}
