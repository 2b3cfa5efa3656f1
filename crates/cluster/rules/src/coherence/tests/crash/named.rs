//! What becomes of pages when a host dies, by name; what cannot be; what mirroring costs.

use farpage_object::Access::{self, Read, Write};

use super::world::{Action, World};
use crate::coherence::{
    Change, Contents, Epoch, Generation, Host, Hosts, Known, Marker, Members, Message, Output,
    Page, Receipt, Recovery, Report, Standing, Verdict, View,
};

impl World {
    fn does(&mut self, action: Action) {
        self.act(action).unwrap();
    }

    /// All that is left to do.
    fn settle(&mut self) {
        while let Some(due) = self.due().first() {
            self.does(*due);
        }
    }

    /// Messages that a fault costs when nothing else happens.
    fn cost(&mut self, host: u8, page: usize, access: Access) -> u64 {
        let before = self.sent;
        self.does(Action::Fault(Host(host), page, access));
        self.settle();
        self.sent - before
    }

    fn allowed(&self, host: u8, page: usize) -> Option<Access> {
        self.members[usize::from(host)].as_ref()?.pages[page].allowed()
    }

    fn written(&self, host: u8, page: usize) -> Option<u32> {
        let member = self.members[usize::from(host)].as_ref()?;
        Some(member.bytes[page]?.written)
    }
}

#[test]
fn a_mirrored_fault_costs_one_message_more_and_none_when_the_backup_asks() {
    let mut world = World::new(4, 2, true);
    assert_eq!(world.cost(2, 0, Read), 2, "nobody has written");
    assert_eq!(world.cost(0, 0, Write), 2, "one has a copy");
    assert_eq!(world.cost(2, 0, Read), 2 + 1, "host 1 is the backup");
    assert_eq!(world.cost(3, 0, Read), 2, "it was shown before");
    world.cost(0, 0, Write);
    assert_eq!(world.cost(1, 0, Read), 2, "the backup asks itself");
    assert_eq!(world.cost(3, 1, Write), 2, "nobody has written page 1");
    assert_eq!(world.cost(2, 1, Write), 2 + 1 + 1, "it asks host 0 first");
}

#[test]
fn what_a_shown_page_points_to_is_not_lost() {
    let mut world = World::new(3, 2, true);
    world.cost(0, 1, Write);
    world.cost(0, 0, Write);
    world.cost(2, 0, Read);
    // The page that was written before it has been shown to nobody.
    world.does(Action::Crash(Host(0)));
    world.settle();
    world.cost(2, 1, Read);
    assert_eq!(
        (world.written(2, 0), world.written(2, 1)),
        (Some(1), Some(1))
    );
}

#[test]
fn what_nobody_has_seen_dies_with_its_writer() {
    let mut world = World::new(3, 1, true);
    world.cost(0, 0, Write);
    world.cost(2, 0, Read);
    world.cost(0, 0, Write);
    world.does(Action::Crash(Host(0)));
    world.settle();
    world.cost(2, 0, Read);
    assert_eq!(world.written(2, 0), Some(1));
}

#[test]
fn who_touches_a_lost_page_is_told_until_it_has_new_contents() {
    let mut world = World::new(3, 1, false);
    world.cost(2, 0, Write);
    world.does(Action::Crash(Host(2)));
    world.settle();
    assert_eq!(world.cost(1, 0, Read), 2, "it asks the home, and is told");
    assert_eq!((world.allowed(1, 0), world.losses), (None, 1));
    world.cost(0, 0, Write);
    assert_eq!(world.allowed(0, 0), None);
    world.does(Action::Reset(Host(0), 0));
    world.cost(1, 0, Read);
    assert_eq!(world.written(1, 0), Some(2));
}

#[test]
fn a_copy_that_a_survivor_has_takes_the_place_of_a_dead_owner() {
    let mut world = World::new(3, 1, false);
    world.cost(2, 0, Write);
    world.cost(1, 0, Read);
    // It asks to write again, and dies before the copy is dropped.
    world.does(Action::Fault(Host(2), 0, Write));
    world.does(Action::Crash(Host(2)));
    world.settle();
    assert_eq!((world.written(1, 0), world.losses), (Some(1), 0));
    assert_eq!(world.cost(1, 0, Write), 0, "it is the owner now");
}

fn report(standing: Standing, epoch: u64, kept: Option<u64>) -> Report {
    Report {
        standing,
        epoch: Epoch(epoch),
        owner: Host(9),
        kept: kept.map(Epoch),
    }
}

#[test]
fn without_contents_it_depends_on_what_is_known() {
    let mut recovery = Recovery::new(Host(1));
    recovery
        .add(Host(1), report(Standing::Nothing, 4, Some(2)))
        .unwrap();
    recovery
        .add(Host(3), report(Standing::Nothing, 5, Some(3)))
        .unwrap();
    let verdict = recovery.verdict(Known::Mirrored);
    assert_eq!((verdict.owner, verdict.epoch), (Host(3), Epoch(6)));
    assert_eq!(verdict.contents, Contents::Kept(Epoch(3)));
    let verdict = recovery.verdict(Known::Nothing);
    let older = Some((Host(3), Epoch(3)));
    assert_eq!(verdict.owner, Host(1));
    assert_eq!(verdict.contents, Contents::Lost { older });
    assert_eq!(
        recovery.verdict(Known::NeverWritten).contents,
        Contents::First
    );
    let nobody = Recovery::new(Host(1));
    assert_eq!(
        nobody.verdict(Known::Nothing).contents,
        Contents::Lost { older: None }
    );
    assert_eq!(nobody.verdict(Known::Mirrored).contents, Contents::First);
}

#[test]
fn reports_that_contradict_each_other_are_refused() {
    let owner = Standing::Owner {
        is_written: true,
        version: Epoch(0),
    };
    for (first, second) in [
        (owner, owner),
        (owner, Standing::Lost),
        (Standing::Copy, Standing::Lost),
        (Standing::Lost, Standing::Copy),
    ] {
        let mut recovery = Recovery::new(Host(0));
        recovery.add(Host(1), report(first, 1, None)).unwrap();
        let refused = recovery.add(Host(2), report(second, 1, None)).unwrap_err();
        assert_eq!(refused.by, Host(2));
        let twice = recovery.add(Host(1), report(Standing::Nothing, 1, None));
        assert_eq!(twice.unwrap_err().what, "two reports of one page");
    }
}

#[test]
fn a_verdict_that_does_not_fit_is_refused_and_changes_nothing() {
    let verdict = Verdict {
        owner: Host(1),
        epoch: Epoch(5),
        copies: Hosts::NONE,
        contents: Contents::Current,
        is_kept: false,
    };
    let mut owner = Page::new(Host(0), Host(0));
    let mut other = Page::new(Host(1), Host(0));
    assert!(other.resume(Host(0), &verdict).is_err(), "it is not frozen");
    owner.freeze();
    other.freeze();
    let refused = owner.resume(Host(2), &verdict).unwrap_err();
    assert_eq!(
        refused.what,
        "that a page is another's, which this host has"
    );
    let refused = other.resume(Host(2), &verdict).unwrap_err();
    assert_eq!(refused.what, "that contents are here which are not");
    assert!(owner.is_frozen() && owner.allowed() == Some(Write));
    let fits = Verdict {
        owner: Host(0),
        ..verdict
    };
    owner.resume(Host(2), &fits).unwrap();
    other.resume(Host(2), &fits).unwrap();
}

#[test]
fn a_frozen_page_takes_nothing_but_the_ownership_and_answers_nobody() {
    let mut page = Page::new(Host(1), Host(0));
    page.fault(Write);
    assert!(matches!(page.poll_output(), Some(Output::Send(..))));
    page.freeze();
    for message in [
        Message::Dropped { epoch: Epoch(1) },
        Message::Copy { epoch: Epoch(0) },
        Message::Lost { epoch: Epoch(0) },
    ] {
        page.handle(Host(0), message).unwrap();
    }
    let own = Message::Own {
        epoch: Epoch(1),
        copies: Hosts::of(Host(2)),
        contents: true,
        waiting: [].into(),
        migrates: false,
        is_sealed: false,
    };
    page.handle(Host(0), own.clone()).unwrap();
    assert!(page.handle(Host(0), own).is_err(), "it has the page");
    assert_eq!(page.poll_output(), Some(Output::Take));
    assert_eq!(page.poll_output(), None);
    assert!(matches!(page.report().standing, Standing::Owner { .. }));
}

fn view(generation: u64, living: &[u8]) -> View {
    let living = Hosts::all(living.iter().copied().map(Host));
    View {
        generation: Generation(generation),
        living,
        home: Host(0),
    }
}

#[test]
fn what_was_sent_before_a_death_comes_before_the_reports() {
    let (mut one, mut two) = (
        Members::new(Host(0), view(1, &[0, 1, 2])),
        Members::new(Host(1), view(1, &[0, 1, 2])),
    );
    let stamps = [two.send(Host(0)), two.send(Host(0))].map(|stamp| stamp.unwrap());
    let died = Change::Died {
        marks_to: Hosts::of(Host(0)),
    };
    assert_eq!(two.change(view(2, &[0, 1])), died);
    // The marker overtakes both messages, and the view.
    one.marked(Host(1), two.marker(Host(0)).unwrap()).unwrap();
    assert_eq!(one.receive(Host(1), stamps[0]), Receipt::Take);
    one.change(view(2, &[0, 1]));
    assert!(one.is_frozen() && !one.is_drained());
    assert_eq!(one.receive(Host(1), stamps[1]), Receipt::Take);
    assert!(one.is_drained());
    let later = two.send(Host(0)).unwrap();
    assert_eq!(one.receive(Host(1), later), Receipt::Keep);
    one.resume();
    assert_eq!(one.receive(Host(1), later), Receipt::Take);
}

#[test]
fn the_dead_are_not_heard_nor_what_they_said_before_they_came_back() {
    let mut one = Members::new(Host(0), view(1, &[0, 1, 2]));
    assert_eq!(
        one.receive(Host(2), Generation(3)),
        Receipt::Keep,
        "of later"
    );
    one.change(view(2, &[0, 1]));
    assert_eq!(one.receive(Host(2), Generation(1)), Receipt::Refuse);
    assert_eq!((one.send(Host(2)), one.marker(Host(2))), (None, None));
    assert_eq!(one.change(view(3, &[0, 1, 2])), Change::Joined);
    assert_eq!(one.receive(Host(2), Generation(1)), Receipt::Refuse);
    let marker = Marker {
        generation: Generation(2),
        sent: 0,
    };
    assert!(one.marked(Host(1), marker).is_ok() && one.marked(Host(64), marker).is_err());
    assert!(
        one.is_drained(),
        "who came after the death has nothing to send of before"
    );
    one.resume();
    assert_eq!(one.receive(Host(2), Generation(3)), Receipt::Take);
    assert_eq!(one.change(view(4, &[1, 2])), Change::Fenced);
}

#[test]
fn the_home_stays_while_it_lives() {
    let first = view(1, &[0, 1, 2]);
    let second = first.next(view(0, &[1, 2]).living);
    assert_eq!((second.generation, second.home), (Generation(2), Host(1)));
    let third = second.next(view(0, &[0, 1, 2]).living);
    assert_eq!(third.home, Host(1));
    assert_eq!(third.backup_of(Host(2)), Some(Host(0)));
    assert_eq!(view(1, &[2]).backup_of(Host(2)), None);
}
