use super::*;

const ALL: Mapping = temporary(EVERYTHING);
const EVERYTHING: PageRange = PageRange {
    start: PageIndex(0),
    end: PageIndex(1 << 20),
};

const fn temporary(pages: PageRange) -> Mapping {
    Mapping {
        pages,
        temporary: true,
    }
}

fn page(n: u64) -> PageIndex {
    PageIndex(n)
}

/// One dirty cluster of 16 pages at page 512, resident.
fn resident() -> Pages {
    let mut pages = Pages::new();
    pages.filled(PageRange::new(512, 528), Filled::Zero);
    pages
}

fn move_all_aside(pages: &mut Pages) {
    let Some(Victim::Cluster {
        first,
        clean: 0,
        dirty: 0xffff,
    }) = pages.choose()
    else {
        panic!("a dirty cluster")
    };
    for n in bits(0xffff) {
        pages.moved_aside(page(first.0 + n));
    }
    pages.requeue(first);
}

#[test]
fn first_touch_at_a_block_start_grants_the_block() {
    let mut pages = Pages::new();
    let answer = pages.fault(page(1024), false, ALL, false);
    assert_eq!(answer, Answer::Grant(PageRange::new(1024, 1536)));
    pages.filled(PageRange::new(1024, 1536), Filled::Granted);
    assert_eq!(pages.fault(page(1030), false, ALL, false), Answer::Wake);
    assert_eq!(
        pages.choose(),
        Some(Victim::Granted(PageRange::new(1024, 1536)))
    );
    let absent = pages.ungranted(PageRange::new(1024, 1536), |p| p.0 < 1027);
    assert_eq!(absent, 509);
    let victim = Victim::Cluster {
        first: page(1024),
        clean: 0,
        dirty: 0b111,
    };
    assert_eq!(pages.choose(), Some(victim));
}

#[test]
fn a_mapping_smaller_than_a_block_is_filled_by_clusters() {
    let mut pages = Pages::new();
    let answer = pages.fault(
        page(1030),
        false,
        temporary(PageRange::new(1028, 1100)),
        false,
    );
    assert_eq!(answer, Answer::Zero(PageRange::new(1028, 1040)));
}

#[test]
fn refault_from_aside_protects_the_cluster() {
    let mut pages = resident();
    pages.filled(PageRange::new(2048, 2064), Filled::Zero);
    move_all_aside(&mut pages);
    let answer = pages.fault(page(515), false, ALL, false);
    assert_eq!(answer, Answer::Restore(PageRange::new(512, 528)));
    pages.restored(PageRange::new(512, 528));
    assert_eq!(pages.aside_pages(), 0);
    assert!(matches!(
        pages.choose(),
        Some(Victim::Cluster {
            first: PageIndex(2048),
            ..
        })
    ));
}

#[test]
fn write_during_page_out_waits_and_then_dirties() {
    let mut pages = resident();
    move_all_aside(&mut pages);
    let out = pages.page_out_begins().expect("a cluster is aside");
    assert_eq!(
        out,
        PageOuts {
            first: page(512),
            pages: 0xffff,
            spare: 0
        }
    );
    assert_eq!(
        pages.fault(page(513), false, ALL, false),
        Answer::CopyBack(page(513))
    );
    pages.copied_back(page(513));
    assert_eq!(pages.fault(page(513), true, ALL, false), Answer::Wait);
    assert_eq!(pages.paged_out(page(513)), (true, true));
    let answer = pages.fault(page(513), true, ALL, false);
    assert_eq!(answer, Answer::Unprotect(PageRange::new(513, 514)));
    pages.dirtied(PageRange::new(513, 514));
    assert_eq!(pages.state(page(513)), State::Resident);
    assert_eq!(pages.paged_out(page(514)), (false, false));
    assert_eq!(pages.state(page(514)), State::Out);
}

#[test]
fn failed_page_out_keeps_the_contents() {
    let mut pages = resident();
    move_all_aside(&mut pages);
    pages.page_out_begins().expect("a cluster is aside");
    pages.copied_back(page(512));
    assert!(pages.page_out_failed(page(512)));
    assert!(!pages.page_out_failed(page(513)));
    assert_eq!(pages.state(page(512)), State::Resident);
    assert_eq!(pages.state(page(513)), State::Aside);
    assert!(matches!(
        pages.fault(page(513), false, ALL, false),
        Answer::Restore(_)
    ));
}

#[test]
fn discard_forgets_everything() {
    let mut pages = resident();
    pages.filled(PageRange::new(1024, 1536), Filled::Granted);
    move_all_aside(&mut pages);
    let held = pages.discard(PageRange::new(0, 4096));
    assert_eq!(
        held,
        Discarded {
            charged: 16 + 512,
            aside: true,
            with_pager: false
        }
    );
    assert_eq!(pages.choose(), None);
    assert_eq!(pages.page_out_begins(), None);
    assert_eq!(pages.aside_pages(), 0);
}

#[test]
fn half_a_granted_block_can_go() {
    let mut pages = Pages::new();
    pages.filled(PageRange::new(1024, 1536), Filled::Granted);
    pages.discard(PageRange::new(1024, 1100));
    assert_eq!(
        pages.choose(),
        Some(Victim::Granted(PageRange::new(1100, 1536)))
    );
}

#[test]
fn wired_pages_stay() {
    let mut pages = resident();
    pages.wire(PageRange::new(512, 528), true);
    assert_eq!(pages.choose(), None);
    pages.wire(PageRange::new(512, 528), false);
    assert!(pages.choose().is_some());
}

#[test]
fn out_pages_are_asked_for_in_runs() {
    let mut pages = resident();
    move_all_aside(&mut pages);
    let out = pages.page_out_begins().expect("a cluster is aside");
    for n in bits(out.pages) {
        pages.paged_out(page(512 + n));
    }
    let alone = Answer::PageIn {
        pages: PageRange::new(512, 513),
        also: None,
    };
    assert_eq!(pages.fault(page(512), false, ALL, false), alone);
    pages.page_in_begins(PageRange::new(512, 513), Some(page(512)));
    assert_eq!(pages.fault(page(512), false, ALL, false), Answer::Wait);
    assert!(!pages.paged_in(PageRange::new(512, 513), true));
    let run = Answer::PageIn {
        pages: PageRange::new(513, 517),
        also: None,
    };
    assert_eq!(pages.fault(page(513), false, ALL, false), run);
}

#[test]
fn a_pager_is_asked_for_the_touched_page_where_nothing_was_touched() {
    let mut pages = Pages::new();
    let own = Mapping {
        temporary: false,
        ..ALL
    };
    for at in [527, 512, 5000] {
        let alone = Answer::PageIn {
            pages: PageRange::one(page(at)),
            also: None,
        };
        assert_eq!(pages.fault(page(at), false, own, false), alone);
        assert!(pages.is_with_pager(page(at), false) && !pages.is_with_pager(page(at), true));
        pages.page_in_begins(PageRange::one(page(at)), Some(page(at)));
        assert!(!pages.is_with_pager(page(at), false), "it is on its way");
        assert!(!pages.paged_in(PageRange::one(page(at)), true));
    }
    let run = Answer::PageIn {
        pages: PageRange::new(513, 517),
        also: None,
    };
    assert_eq!(pages.fault(page(513), false, own, false), run);
    let beside = pages.neighbourhood(page(530), EVERYTHING);
    assert_eq!(beside, PageRange::new(530, 532));
}

#[test]
fn a_page_from_far_brings_the_next_and_later_those_beside_it() {
    let mut pages = Pages::new();
    let all = PageRange::new(512, 528);
    pages.page_in_begins(all, None);
    assert!(!pages.page_in_ends(all));
    for at in [513, 521, 525] {
        let pair = pages.neighbourhood(page(at), EVERYTHING);
        assert_eq!(
            pair,
            PageRange::new(at, at + 2),
            "few of its cluster are here"
        );
        pages.page_in_begins(pair, Some(page(at)));
        assert!(!pages.paged_in(pair, true));
    }
    let beside = pages.neighbourhood(page(517), EVERYTHING);
    assert_eq!(
        beside,
        PageRange::new(515, 520),
        "what is out of 512 to 520"
    );
    let end = PageRange::new(527, 528);
    assert_eq!(pages.neighbourhood(page(527), end), end);
}

#[test]
fn a_clusters_last_page_brings_the_next_one() {
    let mut pages = Pages::new();
    let all = PageRange::new(512, 528);
    pages.page_in_begins(all, None);
    assert!(!pages.page_in_ends(all));
    let cluster = |at, origin| pages.cluster(page(at), all, origin, 4);
    assert_eq!(cluster(517, 512), PageRange::new(516, 520));
    assert_eq!(cluster(519, 512), PageRange::new(516, 521));
    assert_eq!(
        cluster(519, 511),
        PageRange::new(519, 523),
        "from its origin"
    );
    assert_eq!(cluster(527, 512), PageRange::new(524, 528), "the end");
}

/// What `choose` gives until it gives nothing; granted runs are taken back with all pages there.
fn drain(pages: &mut Pages) -> alloc::vec::Vec<Victim> {
    let mut victims = alloc::vec::Vec::new();
    while let Some(victim) = pages.choose() {
        if let Victim::Granted(run) = victim {
            pages.ungranted(run, |_| true);
        }
        victims.push(victim);
        assert!(victims.len() < 1000, "chosen for ever");
    }
    victims
}

#[test]
fn both_granted_runs_of_a_block_leave() {
    let mut pages = Pages::new();
    pages.filled(PageRange::new(1024, 1536), Filled::Granted);
    pages.discard(PageRange::new(1100, 1200));
    let victims = drain(&mut pages);
    assert!(victims.contains(&Victim::Granted(PageRange::new(1024, 1100))));
    assert!(victims.contains(&Victim::Granted(PageRange::new(1200, 1536))));
}

#[test]
fn a_granted_run_leaves_when_its_first_cluster_holds_something_else() {
    let mut pages = Pages::new();
    pages.filled(PageRange::new(1024, 1536), Filled::Granted);
    pages.discard(PageRange::new(1024, 1030));
    pages.filled(PageRange::new(1024, 1030), Filled::Zero);
    pages.discard(PageRange::new(1030, 1040));
    let victims = drain(&mut pages);
    assert!(victims.contains(&Victim::Granted(PageRange::new(1040, 1536))));
}

#[test]
fn resident_pages_leave_after_their_aside_neighbours_are_discarded() {
    let mut pages = resident();
    assert!(pages.choose().is_some());
    for n in 512..520 {
        pages.moved_aside(page(n));
    }
    pages.requeue(page(512));
    pages.discard(PageRange::new(512, 520));
    pages.check();
    assert!(matches!(
        pages.choose(),
        Some(Victim::Cluster { dirty: 0xff00, .. })
    ));
}

#[test]
fn renamed_pages_leave_though_a_granted_run_precedes_them() {
    let mut pages = Pages::new();
    pages.filled(PageRange::new(1024, 1536), Filled::Granted);
    pages.discard(PageRange::new(1100, 1200));
    pages.filled(PageRange::new(1100, 1200), Filled::Zero);
    pages.rename(PageRange::new(1024, 1536), page(4096));
    pages.check();
    let masks = drain(&mut pages).into_iter().map(|victim| match victim {
        Victim::Cluster { dirty, .. } => dirty.count_ones(),
        Victim::Granted(_) => 0,
    });
    assert_eq!(masks.sum::<u32>(), 512);
}

#[test]
fn granted_pages_renamed_beside_aside_ones_leave() {
    let mut pages = Pages::new();
    pages.filled(PageRange::new(512, 520), Filled::Zero);
    assert!(pages.choose().is_some());
    for n in 512..520 {
        pages.moved_aside(page(n));
    }
    pages.requeue(page(512));
    pages.adopt(PageRange::new(2048, 2056));
    pages.rename(PageRange::new(2048, 2056), page(520));
    let out = pages.page_out_begins().expect("a cluster is aside");
    assert_eq!(out.pages, 0x00ff);
    pages.check();
    assert_eq!(
        pages.choose(),
        Some(Victim::Granted(PageRange::new(520, 528)))
    );
}

#[test]
fn ungranting_leaves_aside_neighbours_in_their_queue() {
    let mut pages = Pages::new();
    pages.filled(PageRange::new(512, 520), Filled::Zero);
    assert!(pages.choose().is_some());
    pages.adopt(PageRange::new(520, 544));
    for n in 512..520 {
        pages.moved_aside(page(n));
    }
    pages.requeue(page(512));
    pages.ungranted(PageRange::new(520, 544), |_| true);
    pages.check();
    assert!(pages.page_out_begins().is_some());
}

#[test]
fn a_lost_page_is_still_with_the_pager_when_it_is_discarded() {
    let mut pages = Pages::new();
    pages.page_in_begins(PageRange::new(512, 513), None);
    pages.page_in_failed(page(512));
    assert_eq!(pages.fault(page(512), false, ALL, false), Answer::Fail);
    assert!(pages.discard(PageRange::new(512, 513)).with_pager);
}

#[test]
fn a_thread_is_woken_when_its_page_is_not_supplied() {
    let mut pages = Pages::new();
    pages.page_in_begins(PageRange::new(512, 520), Some(page(519)));
    assert!(!pages.paged_in(PageRange::new(512, 516), true));
    assert!(pages.page_in_ends(PageRange::new(516, 520)));
}

#[test]
fn pages_of_several_clusters_are_restored_at_once() {
    let mut pages = Pages::new();
    pages.filled(PageRange::new(512, 544), Filled::Zero);
    for _ in 0..2 {
        move_all_aside(&mut pages);
    }
    pages.restored(PageRange::new(512, 544));
    pages.check();
    assert_eq!(drain(&mut pages).len(), 2);
}

#[test]
fn a_granted_block_that_could_not_be_taken_back_is_chosen_again() {
    let mut pages = Pages::new();
    pages.adopt(PageRange::new(512, 520));
    assert!(pages.choose().is_some());
    pages.requeue(page(512));
    assert!(pages.choose().is_some());
}

#[test]
fn a_thread_that_writes_before_paged_in_is_told_is_woken() {
    let mut pages = Pages::new();
    pages.page_in_begins(PageRange::new(512, 520), Some(page(512)));
    assert_eq!(pages.fault(page(514), true, ALL, false), Answer::Wait);
    assert!(pages.paged_in(PageRange::new(512, 520), true));
    assert!(!pages.page_in_ends(PageRange::new(520, 520)));
}

#[test]
fn a_locked_page_asks_its_pager_before_it_is_written() {
    let mut pages = Pages::new();
    pages.page_in_begins(PageRange::new(600, 604), Some(page(600)));
    assert!(!pages.paged_in(PageRange::new(600, 604), true));
    pages.lock_writes(PageRange::new(602, 603), true);
    let run = Answer::Unprotect(PageRange::new(601, 602));
    pages.fault(page(600), true, ALL, false);
    assert_eq!(pages.fault(page(601), true, ALL, false), run);
    assert_eq!(
        pages.fault(page(602), true, ALL, false),
        Answer::Unlock(page(602))
    );
    pages.unlock_begins(page(602));
    assert!(!pages.unlock_ends(page(602), true));
    assert!(matches!(
        pages.fault(page(602), true, ALL, false),
        Answer::Unprotect(_)
    ));
}

#[test]
fn a_cleaned_page_stays_and_is_clean() {
    let mut pages = resident();
    pages.clean_begins(page(515));
    assert_eq!(pages.fault(page(515), true, ALL, false), Answer::Wait);
    assert_eq!(pages.paged_out(page(515)), (true, true));
    assert_eq!(pages.state(page(515)), State::Clean);
}

/// Page 512 in the program, dirty and locked.
fn locked() -> Pages {
    let mut pages = resident();
    pages.lock_writes(PageRange::new(512, 513), true);
    pages
}

#[test]
fn a_locked_page_comes_back_from_aside_alone_and_protected() {
    let mut pages = locked();
    move_all_aside(&mut pages);
    let answer = pages.fault(page(512), false, ALL, false);
    assert_eq!(answer, Answer::RestoreProtected(PageRange::one(page(512))));
    let answer = pages.fault(page(513), false, ALL, false);
    assert_eq!(answer, Answer::Restore(PageRange::new(513, 528)));
    pages.restored(PageRange::new(512, 513));
    assert_eq!(
        pages.fault(page(512), true, ALL, false),
        Answer::Unlock(page(512))
    );
    let mut protected = pages.protected_runs(EVERYTHING);
    assert_eq!(protected.next(), Some(PageRange::new(512, 513)));
    assert_eq!(protected.next(), None);
}

#[test]
fn nothing_happens_to_a_page_whose_pager_is_asked() {
    let mut pages = locked();
    pages.unlock_begins(page(512));
    assert!(pages.busy(PageRange::new(512, 513)));
    assert_eq!(pages.fault(page(512), true, ALL, false), Answer::Wait);
    assert_eq!(pages.fault(page(512), false, ALL, false), Answer::Wake);
    let victim = Victim::Cluster {
        first: page(512),
        clean: 0,
        dirty: 0xfffe,
    };
    assert_eq!(pages.choose(), Some(victim));
    pages.requeue(page(512));
    assert!(pages.unlock_ends(page(512), true));
    assert!(!pages.busy(EVERYTHING) && !pages.is_locked(page(512)));
    move_all_aside(&mut pages);
}

#[test]
fn a_refused_writer_is_asked_about_again_and_the_lock_stays() {
    let mut pages = locked();
    pages.unlock_begins(page(512));
    assert!(!pages.unlock_ends(page(512), false));
    assert_eq!(
        pages.fault(page(512), true, ALL, false),
        Answer::Unlock(page(512))
    );
    pages.lock_writes(EVERYTHING, false);
    assert_eq!(pages.fault(page(512), true, ALL, false), Answer::Wake);
}

#[test]
fn a_page_keeps_its_lock_while_it_is_with_its_pager() {
    let mut pages = locked();
    move_all_aside(&mut pages);
    pages.page_out_begins().expect("a cluster is aside");
    for n in 512..528 {
        pages.paged_out(page(n));
    }
    let alone = Answer::PageIn {
        pages: PageRange::new(512, 513),
        also: None,
    };
    assert_eq!(pages.fault(page(512), true, ALL, false), alone);
    pages.page_in_begins(PageRange::new(512, 513), Some(page(512)));
    assert!(!pages.paged_in(PageRange::new(512, 513), false));
    assert_eq!(
        pages.fault(page(512), true, ALL, false),
        Answer::Unlock(page(512))
    );
}

/// The same cluster, clean, and moved aside but for its first page.
fn spare() -> Pages {
    let mut pages = resident();
    move_all_aside(&mut pages);
    pages.page_out_begins().expect("a cluster is aside");
    for n in 512..528 {
        pages.paged_out(page(n));
    }
    let all = PageRange::new(512, 528);
    pages.page_in_begins(all, None);
    assert!(!pages.paged_in(all, true));
    let victim = Victim::Cluster {
        first: page(512),
        clean: 0xffff,
        dirty: 0,
    };
    assert_eq!(pages.choose(), Some(victim));
    assert!(pages.gives_chance(page(512), 0xffff));
    pages.dropped(page(512));
    for n in 513..528 {
        pages.moved_aside(page(n));
    }
    pages.requeue(page(512));
    pages.check();
    pages
}

#[test]
fn a_clean_page_that_lies_aside_comes_back_clean() {
    let mut pages = spare();
    assert_eq!(pages.aside_pages(), 15);
    let back = PageRange::new(513, 528);
    let answer = pages.fault(page(520), true, ALL, false);
    assert_eq!(answer, Answer::RestoreProtected(back));
    pages.restored(back);
    pages.check();
    assert_eq!(pages.state(page(520)), State::Clean);
    let answer = pages.fault(page(520), true, ALL, false);
    assert_eq!(answer, Answer::Unprotect(PageRange::one(page(520))));
}

#[test]
fn a_clean_page_that_lies_aside_leaves_without_being_written() {
    let mut pages = spare();
    let outs = PageOuts {
        first: page(512),
        pages: 0,
        spare: 0xfffe,
    };
    assert_eq!(pages.page_out_begins(), Some(outs));
    pages.check();
    assert_eq!(pages.state(page(520)), State::Out);
    assert_eq!(pages.charged_pages(), 0);
}

#[test]
fn discarding_a_clean_page_that_lies_aside_frees_it_at_both_places() {
    let mut pages = spare();
    let held = Discarded {
        charged: 15,
        aside: true,
        with_pager: true,
    };
    assert_eq!(pages.discard(PageRange::new(512, 528)), held);
    assert_eq!(pages.aside_pages(), 0);
}
