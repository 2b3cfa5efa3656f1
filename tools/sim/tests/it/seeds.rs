//! A thousand worlds on every build.

use std::panic::catch_unwind;

use farpage_sim::{Coverage, Event, Seen, explore, outside, replay, run};

#[test]
fn a_thousand_seeds_break_no_law_and_meet_every_event() {
    let mut sum = Coverage::default();
    for seed in 0..1000 {
        match catch_unwind(|| run(seed, None)) {
            Ok(report) => sum.add(&report.coverage),
            Err(_) => panic!("seed {seed} fails; replay: {}", replay(seed)),
        }
    }
    for event in Event::ALL {
        assert!(
            sum.of(event) >= 30,
            "{event:?} happened {} times",
            sum.of(event)
        );
    }
}

#[test]
fn a_seed_always_gives_the_same_run() {
    assert_eq!(run(7, None), run(7, None));
}

#[test]
fn no_order_of_events_breaks_a_law_for_one_page() {
    for own in [false, true] {
        assert!(explore(1, own, &mut |line| println!("{line}")) > 100);
    }
}

#[test]
fn a_pager_elsewhere_that_is_late_refuses_and_dies_loses_nothing() {
    let mut sum = Seen::default();
    for seed in 0..2500 {
        let Ok(seen) = catch_unwind(|| outside(seed)) else {
            panic!("seed {seed} fails: farpage_sim::outside({seed})");
        };
        sum.taken += seen.taken;
        sum.overdue += seen.overdue;
        sum.late += seen.late;
        sum.from_kept += seen.from_kept;
        sum.returned += seen.returned;
        sum.deaths += seen.deaths;
        sum.expired += seen.expired;
        sum.unlocked += seen.unlocked;
        sum.locked += seen.locked;
        sum.cleaned += seen.cleaned;
    }
    let Seen {
        taken,
        overdue,
        late,
        from_kept,
        returned,
        deaths,
        expired,
        unlocked,
        locked,
        cleaned,
    } = sum;
    for count in [
        taken, overdue, late, from_kept, returned, deaths, expired, unlocked, locked, cleaned,
    ] {
        assert!(count >= 500, "{sum:?}");
    }
}
