//! Pages that are locked at hosts, by name.

use farpage_object::Access::{Read, Write};

use super::named::Few;
use crate::coherence::Page;

impl Few {
    fn locks(&mut self, host: u8, access: farpage_object::Access) {
        self.faults(host, access);
        self.settle();
        self.at(host, |page| assert!(page.lock(access)));
    }

    fn unlocks(&mut self, host: u8, access: farpage_object::Access) {
        self.at(host, |page| page.unlock(access));
        self.settle();
    }

    fn allowed(&self, host: u8) -> Option<farpage_object::Access> {
        self.pages[usize::from(host)].allowed()
    }
}

#[test]
fn a_writer_waits_for_a_copy_that_is_locked() {
    let mut few = Few::new(3);
    few.locks(1, Read);
    few.faults(2, Write);
    few.settle();
    assert_eq!((few.allowed(1), few.allowed(2)), (Some(Read), None));
    assert!(few.pages[1].is_awaited() && !few.pages[1].is_held());
    assert!(!few.pages[1].forget(), "it is locked");
    few.unlocks(1, Read);
    assert_eq!((few.allowed(1), few.allowed(2)), (None, Some(Write)));
}

#[test]
fn an_owner_that_locked_to_read_lets_others_read_and_nobody_write() {
    let mut few = Few::new(3);
    few.locks(0, Read);
    few.faults(1, Write);
    few.faults(2, Read);
    few.settle();
    assert_eq!((few.allowed(1), few.allowed(2)), (None, Some(Read)));
    few.unlocks(0, Read);
    assert_eq!((few.allowed(1), few.allowed(2)), (Some(Write), None));
}

#[test]
fn what_is_locked_to_write_nobody_else_has_until_the_last_lock_is_given_back() {
    let mut few = Few::new(3);
    few.locks(1, Write);
    few.at(1, |page| assert!(page.lock(Read) && page.lock(Write)));
    few.faults(2, Read);
    few.faults(0, Write);
    few.settle();
    few.unlocks(1, Write);
    assert_eq!((few.allowed(0), few.allowed(2)), (None, None));
    few.unlocks(1, Write);
    assert_eq!((few.allowed(0), few.allowed(2)), (None, Some(Read)));
    few.unlocks(1, Read);
    assert_eq!((few.allowed(0), few.allowed(2)), (Some(Write), None));
}

#[test]
fn a_lock_costs_no_message_and_is_of_what_the_host_may_do() {
    let mut few = Few::new(2);
    few.at(1, |page| assert!(!page.lock(Read), "it has nothing"));
    few.locks(1, Read);
    let sent = few.sent;
    few.at(1, |page| assert!(page.lock(Read) && !page.lock(Write)));
    few.unlocks(1, Read);
    few.unlocks(1, Read);
    assert_eq!(few.sent, sent);
}

#[test]
fn a_lock_to_read_is_not_exchanged_for_one_to_write() {
    let mut few = Few::new(2);
    few.at(0, |page| {
        assert!(page.lock(Read) && !page.lock(Write));
        page.unlock(Read);
        assert!(page.lock(Write));
    });
}

#[test]
fn a_copy_that_is_lent_is_not_locked() {
    let mut few = Few::new(2);
    for page in &mut few.pages {
        *page = page.clone().lend();
    }
    few.cost(1, Read);
    few.at(1, |page| assert!(!page.lock(Read)));
    few.locks(1, Write);
    few.at(1, Page::expire);
    assert_eq!(few.allowed(1), Some(Write));
}

#[test]
fn a_page_is_sealed_when_it_is_no_longer_locked_to_write() {
    let mut few = Few::new(2);
    few.locks(0, Write);
    few.at(0, Page::seal);
    few.faults(1, Read);
    few.settle();
    assert!(!few.pages[0].is_final() && few.allowed(1).is_none());
    few.unlocks(0, Write);
    assert!(few.pages[0].is_final() && few.pages[1].is_final());
}

#[test]
fn a_copy_of_what_is_locked_to_write_is_made_and_it_is_written_on() {
    let mut page = Page::mirrored(crate::coherence::Host(0), crate::coherence::Host(0));
    page.fault(Write);
    assert!(page.lock(Write) && page.mirror().is_some());
    assert_eq!(page.allowed(), Some(Read));
    page.fault(Write);
    assert_eq!(page.allowed(), Some(Write));
    assert_eq!(page.locked(), Some(Write));
}
