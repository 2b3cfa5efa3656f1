//! What a host of a mirrored object has written and shown to nobody, and what it keeps for others.
//!
//! What a host has written is shown to another only when it is on two hosts, together with all else
//! that the host wrote before: a page that others have seen may point to one that they have not.
//! So all of it goes to the host's backup in one parcel, and the backup passes on what was asked
//! for: one message more, and none where the backup itself had asked. Parcels of one host to its
//! backup arrive in order. While one is not known to have arrived, whatever else has contents goes
//! the same way behind it, also when another host would be the backup by now.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use farpage_object::PageIndex;

use crate::coherence::hosts::Host;
use crate::coherence::members::View;
use crate::coherence::message::Epoch;

/// The mirrored pages of an object at one host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mirror {
    written: BTreeSet<PageIndex>,
    kept: BTreeMap<PageIndex, Epoch>,
    /// To whom the last parcel went.
    backup: Option<Host>,
    sent: u64,
    arrived: u64,
}

impl Mirror {
    /// Nothing is written or kept.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Tasks may write a page from now on ([`crate::coherence::Page::is_written`]).
    pub fn may_write(&mut self, page: PageIndex) {
        self.written.insert(page);
    }

    /// Pages that may have been written since the last parcel: of each, [`crate::coherence::Page::mirror`] says
    /// whether it goes along. What does not is told of again.
    pub fn take_written(&mut self) -> Vec<PageIndex> {
        core::mem::take(&mut self.written).into_iter().collect()
    }

    /// How many pages [`Mirror::take_written`] would tell.
    #[must_use]
    pub fn written(&self) -> usize {
        self.written.len()
    }

    /// True when a message with contents need not go by the backup: all parcels have arrived.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.sent == self.arrived
    }

    /// A parcel of `own` goes to its backup: to whom, and the parcel's number. None when there is no
    /// other host.
    pub fn parcel(&mut self, own: Host, view: View) -> Option<(Host, u64)> {
        if self.is_settled() {
            self.backup = view.backup_of(own);
        }
        let backup = self.backup?;
        self.sent += 1;
        Some((backup, self.sent))
    }

    /// The backup has all parcels up to this one; it may say so now and then, and nobody waits.
    pub fn arrived(&mut self, parcel: u64) {
        self.arrived = self.arrived.max(parcel.min(self.sent));
    }

    /// All hosts go on after a death: what was on its way has come, or never will.
    pub fn resume(&mut self) {
        self.arrived = self.sent;
    }

    /// Contents of a page came, or are left after it was given away. True when they are to be kept,
    /// instead of older ones.
    pub fn keep(&mut self, page: PageIndex, version: Epoch) -> bool {
        let is_later = self.kept(page).is_none_or(|kept| kept < version);
        if is_later {
            self.kept.insert(page, version);
        }
        is_later
    }

    /// The version of a page that is kept here.
    #[must_use]
    pub fn kept(&self, page: PageIndex) -> Option<Epoch> {
        self.kept.get(&page).copied()
    }

    /// Of how many pages something is kept here.
    #[must_use]
    pub fn kept_pages(&self) -> usize {
        self.kept.len()
    }

    /// A later version is on two hosts, or this one is the page's again: true when what was kept
    /// of it up to this version is dropped.
    pub fn release(&mut self, page: PageIndex, version: Epoch) -> bool {
        let is_old = self.kept(page).is_some_and(|kept| kept <= version);
        if is_old {
            self.kept.remove(&page);
        }
        is_old
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coherence::hosts::Hosts;
    use crate::coherence::members::Generation;

    #[test]
    fn later_contents_take_the_place_of_older_ones() {
        let (page, mut mirror) = (PageIndex(3), Mirror::new());
        assert!(mirror.keep(page, Epoch(4)) && !mirror.keep(page, Epoch(4)));
        assert!(!mirror.keep(page, Epoch(3)) && mirror.keep(page, Epoch(5)));
        assert!(!mirror.release(page, Epoch(4)) && mirror.release(page, Epoch(5)));
        assert_eq!((mirror.kept(page), mirror.kept_pages()), (None, 0));
    }

    #[test]
    fn all_goes_by_the_backup_until_every_parcel_has_arrived() {
        let mut mirror = Mirror::new();
        assert!(mirror.is_settled());
        let view = |living: [u8; 2]| View {
            generation: Generation(1),
            living: Hosts::all(living.map(Host)),
            home: Host(0),
        };
        let one = mirror.parcel(Host(0), view([0, 2])).unwrap();
        // A host that has come would be the backup, but the first parcel is on its way.
        let two = mirror.parcel(Host(0), view([0, 1])).unwrap();
        assert_eq!((one, two), ((Host(2), 1), (Host(2), 2)));
        mirror.arrived(1);
        assert!(!mirror.is_settled());
        mirror.arrived(2);
        assert!(mirror.is_settled());
        assert_eq!(mirror.parcel(Host(0), view([0, 1])), Some((Host(1), 3)));
    }

    #[test]
    fn what_was_written_is_told_once() {
        let mut mirror = Mirror::new();
        for page in [2, 1, 2] {
            mirror.may_write(PageIndex(page));
        }
        assert_eq!(mirror.written(), 2);
        assert_eq!(mirror.take_written(), [PageIndex(1), PageIndex(2)]);
        assert!(mirror.take_written().is_empty());
    }
}
