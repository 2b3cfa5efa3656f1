//! The compressed tier grows as far as it pays.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};

use farpage_default_pager::DefaultPager;
use support::*;

const MIB: u64 = 1 << 20;

/// Hands over 160 MiB of pages where the budget is 64 MiB. Returns what the tier takes then, bytes,
/// and how pages shrank.
fn tier_after(kind: u8, base: u64, max: u64) -> (u64, f64) {
    let control = control(max);
    control.budget_bytes.store(64 * MIB, Ordering::Relaxed);
    control.compressed_base_bytes.store(base, Ordering::Relaxed);
    let file = unlinked(&std::env::temp_dir());
    let _file = add_file(control, 0, file, 1024);
    let pager = DefaultPager::new(control, 0).expect("a pager");
    for first in (0..160 * 256).step_by(256) {
        let pages: Vec<_> = (first..first + 256)
            .map(|page| (page, contents(kind, page)))
            .collect();
        write(&pager, OBJECT, &pages, true).expect("written");
    }
    let counters = &control.tasks[0].counters;
    let bytes = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let ratio =
        bytes(&counters.compress_in_bytes) as f64 / bytes(&counters.compress_out_bytes) as f64;
    (bytes(&counters.compressed_bytes), ratio)
}

#[test]
fn it_stays_at_its_base_where_pages_hardly_shrink() {
    let (to, ratio) = tier_after(2, 12 * MIB, 20 * MIB);
    assert!(ratio < 2.2, "pages shrink to one {ratio}th");
    assert_eq!(to, 12 * MIB);
}

#[test]
fn it_grows_with_the_ratio() {
    let (to, ratio) = tier_after(2, 2 * MIB, 20 * MIB);
    let pays = 64.0 * (ratio - 1.0) / (ratio + 1.0);
    let tier = to as f64 / MIB as f64;
    assert!((tier - pays).abs() <= 2.0, "{tier} MiB where {pays} pay");
    assert!(tier > 2.0, "{tier} MiB");
}

#[test]
fn it_never_passes_its_maximum() {
    let (to, _) = tier_after(1, 2 * MIB, 5 * MIB);
    assert_eq!(to, 5 * MIB);
}
