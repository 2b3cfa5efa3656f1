//! Transfers of a disk to memory that is locked or registered.

use std::path::PathBuf;

use farpage_testkit::alone;

use crate::LOCKED_MEMORY;
use crate::transfers::{Mistake, Plan, Report, run};

fn done(seconds: u64, workers: usize, mistake: Option<Mistake>) -> Report {
    run(&Plan {
        // Not in memory, as /tmp may be.
        folder: PathBuf::from("/var/tmp"),
        seconds,
        seed: 20_26,
        workers,
        mistake,
        tells: |how| println!("{how}"),
    })
}

#[test]
fn transfers_are_whole_while_memory_is_moved_forked_lost_and_let_go_of() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    let report = done(5, 2, None);
    println!("{report}");
    assert!(report.wrong.is_empty(), "{report}");
    assert!(report.done.iter().all(|done| done.0 > 0), "{report}");
    assert!(report.made > 0 && report.forks > 0, "{report}");
}

/// What is done wrong in one of all the ways is told, and nothing else is.
fn is_seen(mistake: Mistake, said: &[&str]) {
    let report = done(60, 1, Some(mistake));
    let first = report.wrong.first();
    let first = first.unwrap_or_else(|| panic!("{mistake:?} is not seen"));
    assert!(said.iter().any(|said| first.contains(said)), "{first}");
}

#[test]
fn a_transfer_to_frames_that_memory_no_longer_has_is_seen() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    let said = [
        "nothing was transferred",
        "it is of generation",
        "other ones",
        "it is block",
    ];
    is_seen(Mistake::OldFrames, &said);
}

#[test]
fn a_bit_that_is_another_one_is_seen() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    is_seen(Mistake::Flipped, &["1 of 512 words are other ones"]);
}

#[test]
fn a_transfer_to_another_place_of_the_file_is_seen() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    is_seen(Mistake::Misplaced, &["it is block", "it is of generation"]);
}

#[test]
fn a_transfer_that_was_not_made_is_seen() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    is_seen(
        Mistake::Lost,
        &["nothing was transferred", "it is of generation"],
    );
}
