//! What policies are for, each on a program that shows it.

use super::*;

const PAGES: u32 = 4096;

/// A program that touches these pages in order, `write` for the first time.
fn program(pages: impl IntoIterator<Item = u32>) -> Trace {
    let mut seen = Vec::new();
    let mut first = |page: u32| {
        let at = page as usize;
        if seen.len() <= at {
            seen.resize(at + 1, false);
        }
        !std::mem::replace(&mut seen[at], true)
    };
    let accesses: Vec<(u32, bool)> = pages.into_iter().map(|page| (page, first(page))).collect();
    Trace {
        footprint: seen.iter().filter(|seen| **seen).count(),
        clusters: seen.len().div_ceil(16),
        accesses,
    }
}

fn paged_in(trace: &Trace, kind: Kind, memory: u32) -> u64 {
    let memory = memory as usize;
    let setup = Setup {
        kind,
        memory,
        aside: memory / 16,
        clean_aside: true,
        neighbours: true,
    };
    run(trace, setup).paged_in
}

/// Pages of an eighth of memory, each touched again and again, while others pass.
fn hot_beside_a_stream() -> Trace {
    let hot = |i: u32| (i * 16 + i / 32 % 16) % (PAGES / 8);
    program((0..40 * PAGES).flat_map(move |i| [hot(i), PAGES / 8 + i % (8 * PAGES)]))
}

#[test]
fn what_is_used_again_stays_while_a_stream_passes() {
    let trace = hot_beside_a_stream();
    let stream = paged_in(&trace, Kind::Min, PAGES);
    for kind in [
        Kind::SecondChance,
        Kind::S3Fifo,
        Kind::Arc,
        Kind::ClockPro,
        Kind::TwoLists,
        Kind::Generations,
        Kind::Object,
    ] {
        let came = paged_in(&trace, kind, PAGES);
        assert!(
            came < stream * 5 / 4,
            "{}: {came} pages came, where {stream} must",
            kind.name()
        );
    }
}

#[test]
fn of_more_than_fits_a_part_stays_from_pass_to_pass() {
    let passes: u32 = 20;
    let trace = program((0..passes).flat_map(|_| 0..PAGES * 3 / 2));
    let all = u64::from(passes - 1) * u64::from(PAGES) * 3 / 2;
    assert!(paged_in(&trace, Kind::SecondChance, PAGES) >= all);
    let came = paged_in(&trace, Kind::Object, PAGES);
    let must = paged_in(&trace, Kind::Min, PAGES);
    assert!(
        came < all * 5 / 8,
        "{came} of {all} came, where {must} must"
    );
}

#[test]
fn what_stays_makes_room_when_the_program_goes_on_to_something_else() {
    // It fills memory with what it never wants again, and goes through what would fit.
    let (size, passes) = (PAGES / 2, 40);
    let others = PAGES..3 * PAGES;
    let trace = program(
        (0..size)
            .chain(others)
            .chain((0..passes).flat_map(|_| 0..size)),
    );
    let came = paged_in(&trace, Kind::Object, PAGES);
    let once = u64::from(size);
    assert!(came < 5 * once, "{came} pages came, of {once}");
}

#[test]
fn what_a_long_run_left_behind_makes_room_for_what_is_in_use() {
    // It goes through twice what fits, in order, and then stays in what nearly fills memory.
    let used = PAGES * 31 / 32;
    let at_random = (0..60 * PAGES).map(|i| i.wrapping_mul(2_654_435_761) % used);
    let passes = (0..2).flat_map(|_| 0..2 * PAGES);
    let run = program(passes.clone());
    let trace = program(passes.chain(at_random));
    for kind in [Kind::SecondChance, Kind::Object] {
        let run = paged_in(&run, kind, PAGES);
        let came = paged_in(&trace, kind, PAGES) - run;
        assert!(
            came < u64::from(used) * 5 / 4,
            "{}: {came} pages came, where {used} must",
            kind.name()
        );
    }
}
