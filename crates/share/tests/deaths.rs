//! Hosts that die while others go on.

mod support;

use farpage_abi::PAGE_BYTES;
use support::dying::one_dies;
use support::{about, read};

const PAGES: u64 = 64;

/// What survivors do not have is lost to all; the rest is as they wrote it.
fn others_go_on(seed: u64, victim: usize) {
    let (_all, survivors) = one_dies(seed, victim, &about(seed, PAGES, 1), 600, 1500);
    let mut lost = 0;
    for page in 0..PAGES {
        for (number, done, _) in &survivors {
            let other = survivors.iter().find(|(other, ..)| other != number);
            let (.., view) = other.unwrap();
            let word = page as usize * PAGE_BYTES + number * 8;
            let wanted = done.written.get(&page).copied().unwrap_or(0);
            match read(view, word) {
                Some(read) => assert_eq!(read, wanted, "page {page}: word {number}"),
                None => lost += 1,
            }
        }
    }
    println!("{} of {PAGES} pages are lost", lost / 2);
    assert!(
        lost / 2 < PAGES,
        "some were nowhere near the host that died"
    );
}

#[test]
fn what_others_have_outlives_a_host_and_nobody_waits_for_ever() {
    (1..5).for_each(|seed| others_go_on(seed, 2));
}

#[test]
fn the_home_may_die() {
    (1..4).for_each(|seed| others_go_on(seed, 0));
}
