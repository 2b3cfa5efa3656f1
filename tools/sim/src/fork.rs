//! fork: the child goes on with a copy of everything. Before, all is held still until nothing is on
//! its way.

use farpage_object::PageRange;

use crate::calls::protect_again;
use crate::coverage::Event;
use crate::linux::WINDOW;
use crate::shared::{Core, Proc, say};
use crate::world;

/// Makes the child of `proc`, whose lock is held and where nothing is on its way; or holds the
/// process still and returns false.
pub(crate) fn fork(core: &mut Core, proc: usize) -> bool {
    let window = PageRange::new(0, WINDOW);
    let process = &mut core.procs[proc];
    process.frozen = process.in_flight > 0;
    if process.frozen {
        core.note(Event::ForkWaits);
        return false;
    }
    let parent = &mut core.procs[proc];
    let mut child = Proc {
        pages: parent.pages.clone(),
        space: parent.space.fork(),
        lock: None,
        maps: parent.maps.clone(),
        slots: parent.slots.clone(),
        program: parent.program.clone(),
        in_hand: Vec::new(),
        in_flight: 0,
        frozen: false,
        exited: false,
    };
    assert!(
        !child.pages.busy(window),
        "a child with transfers that nobody ends"
    );
    for slot in child.slots.iter().flatten() {
        core.store.hold(*slot);
    }
    core.note(Event::Forked);
    protect_again(&mut child, window);
    for page in 0..WINDOW {
        if child.program.wired[page as usize] {
            child.pages.wire(PageRange::new(page, page + 1), false);
        }
    }
    child.program.refused.fill(false);
    child.program.wired.fill(false);
    child.program.pinned.fill(false);
    let charged = child.charged();
    core.charge_anyway(charged);
    core.procs.push(child);
    let number = core.procs.len() - 1;
    say!(core, "p{proc} forks p{number}, which holds {charged} pages");
    world::staff(core, number);
    true
}
