//! The laws.

use farpage_object::{PageIndex, PageRange, State};

use crate::linux::WINDOW;
use crate::shared::{Core, Proc};
use crate::store::Store;

/// Checks everything that holds while no lock is held.
pub(crate) fn all(core: &mut Core) {
    if core.procs.iter().any(|process| process.lock.is_some()) {
        return;
    }
    let mut charged = 0;
    let mut slots = 0;
    for (number, process) in core.procs.iter_mut().enumerate() {
        process.pages.check();
        charged += process.charged();
        slots += process.slots.iter().flatten().count() as u64;
        let mut aside = 0;
        for page in 0..WINDOW {
            let own = page >= core.settings.own_from;
            check_page(process, number, page, own, &mut core.store);
            check_lock(process, number, page);
            aside += u64::from(process.state(page).is_aside());
        }
        assert_eq!(
            aside,
            process.pages.aside_pages(),
            "aside in process {number}"
        );
        check_sleepers(process, number);
        let busy = process.pages.busy(PageRange::new(0, WINDOW));
        assert!(
            process.in_flight > 0 || !busy,
            "process {number} has transfers that nobody ends"
        );
    }
    assert_eq!(
        charged, core.budget.charged,
        "what is charged and what the states say"
    );
    let in_flight = core.store.holders() - slots;
    assert!(
        in_flight <= core.procs.len() as u64 * (core.settings.pageouts + 1),
        "{in_flight} pages leak in the pager"
    );
}

/// One page: it is in one place that counts, and there it is what the program last wrote.
fn check_page(process: &mut Proc, number: usize, page: u64, own: bool, store: &mut Store) {
    let state = process.pages.state(PageIndex(page));
    let pte = process.space.ptes[page as usize];
    let aside = process.space.aside[page as usize].map(|shadow| shadow.value);
    let value = process.program.values[page as usize];
    let (mut kept, mut damaged) = (None, false);
    if let Some(slot) = process.slots[page as usize] {
        damaged = store.is_damaged(slot);
        kept = store.read(slot);
    }
    let with_pager = process.slots[page as usize].is_some();
    let mapped = pte.present.then_some((pte.protected, pte.value));
    let there = Some((false, value));
    let guarded = Some((true, value));
    let as_locked = Some((process.pages.is_locked(PageIndex(page)), value));
    let nothing_else = aside.is_none() && !with_pager;
    let fine = match state {
        State::Absent if own && pte.mapped => {
            let same = kept == Some(value) || damaged;
            mapped.is_none() && aside.is_none() && with_pager && same
        }
        State::Absent => mapped.is_none() && nothing_else && value == 0,
        State::Granted if own => false,
        State::Granted => (mapped.is_none() && value == 0 || mapped == there) && nothing_else,
        State::Resident => mapped == as_locked && nothing_else,
        State::Clean => {
            let same = kept == Some(value) || damaged;
            mapped == guarded && aside.is_none() && with_pager && same
        }
        State::Spare => {
            let same = kept == Some(value) || damaged;
            mapped.is_none() && aside == Some(value) && with_pager && same
        }
        State::Aside | State::PagingOut => mapped.is_none() && aside == Some(value) && !with_pager,
        State::PagingOutMapped => mapped == guarded && aside == Some(value) && !with_pager,
        State::PagingIn if pte.present => {
            // Put there, and not told yet. What is not protected is the pager's no longer.
            let same = kept == Some(value) || damaged || !pte.protected;
            (mapped == guarded || mapped == there) && with_pager && same
        }
        State::PagingIn | State::Out | State::Failed => {
            let same = kept == Some(value) || damaged;
            mapped.is_none() && aside.is_none() && with_pager && same
        }
    };
    let registered = pte.registered == (pte.mapped && state != State::Granted);
    let poisoned = !pte.poisoned || state == State::Failed && damaged;
    assert!(
        fine && registered && poisoned,
        "page {page} of process {number} is {state:?}; mapped {mapped:?}, aside {aside:?}, \
         pager {kept:?} (damaged {damaged}); {pte:?}; the program wrote {value}"
    );
}

/// What the pager has locked is locked; what it has not is so only until its answer is told.
fn check_lock(process: &Proc, number: usize, page: u64) {
    let known = process.pages.is_locked(PageIndex(page));
    let locked = process.program.locked[page as usize];
    let answered = process.pages.asked(PageIndex(page));
    assert!(
        known == locked || known && answered,
        "page {page} of process {number}: locked {locked}, known as {known}"
    );
}

/// Every thread that sleeps has a message on its way, or waits for the end of a transfer, or for
/// its pager to lift a lock.
fn check_sleepers(process: &Proc, number: usize) {
    for &(thread, page) in &process.space.sleepers {
        let queued = process.space.queue.iter().any(|m| m.page == page);
        let in_hand = process.in_hand.contains(&page);
        let awaited = process.pages.awaited(PageIndex(page));
        let refused = process.program.refused[page as usize];
        assert!(
            queued || in_hand || awaited || refused,
            "thread {thread} of process {number} sleeps for ever on page {page}, which is {:?}",
            process.state(page)
        );
    }
}
