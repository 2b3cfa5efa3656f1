//! Runs a trace through the automaton that Farpage has, `object::Pages`: what its policy comes to
//! beside those that are only here.

use farpage_object::masks::bits;
use farpage_object::{
    Answer, CLUSTER_PAGES, Filled, Mapping, PageIndex, PageRange, Pages, State, Victim,
};

use super::engine::{Outcome, window};
use super::{Setup, Trace};

struct Shell {
    setup: Setup,
    pages: Pages,
    mapping: Mapping,
    outcome: Outcome,
}

/// Runs `trace`. Whether clean pages are moved aside is the automaton's own affair.
///
/// # Panics
/// When the automaton answers what makes no sense.
pub(super) fn run(trace: &Trace, setup: Setup) -> Outcome {
    let all = PageRange::new(0, trace.clusters as u64 * CLUSTER_PAGES);
    let mut shell = Shell {
        setup,
        pages: Pages::new(),
        mapping: Mapping {
            pages: all,
            temporary: true,
        },
        outcome: Outcome::default(),
    };
    for &(page, write) in &trace.accesses {
        shell.access(PageIndex(page.into()), write);
    }
    shell.outcome
}

impl Shell {
    fn access(&mut self, page: PageIndex, write: bool) {
        let there = |state| matches!(state, State::Resident | State::Clean);
        if !there(self.pages.state(page)) {
            self.fault(page);
        }
        if write && self.pages.state(page) == State::Clean {
            let answer = self.pages.fault(page, true, self.mapping, false);
            let Answer::Unprotect(pages) = answer else {
                panic!("{answer:?} to a write to a clean page");
            };
            self.pages.dirtied(pages);
            self.outcome.unprotected += 1;
        }
    }

    fn fault(&mut self, page: PageIndex) {
        match self.pages.fault(page, false, self.mapping, false) {
            // New pages come alone, as in the engine of the other policies.
            Answer::Zero(_) | Answer::Grant(_) => {
                self.room(1);
                self.pages.filled(PageRange::one(page), Filled::Zero);
            }
            Answer::Restore(pages) | Answer::RestoreProtected(pages) => {
                self.pages.restored(pages);
                self.outcome.refaults += 1;
            }
            Answer::PageIn { pages, also } => {
                let alone = pages.pages() == 1 && also.is_none();
                let pages = match alone && self.setup.neighbours {
                    true => self.pages.neighbourhood(page, self.mapping.pages),
                    false => pages,
                };
                self.page_in(page, pages);
            }
            answer => panic!("{answer:?} to a fault on page {page:?}"),
        }
    }

    fn page_in(&mut self, page: PageIndex, pages: PageRange) {
        let window = window(self.setup.memory) as u64;
        let start = pages.start.0.max((page.0 + 1).saturating_sub(window));
        let pages = PageRange::new(start, pages.end.0.min(page.0 + window));
        // What makes room may take none of these: they are out.
        self.room(pages.pages());
        self.pages.page_in_begins(pages, Some(page));
        let _ = self.pages.paged_in(pages, true);
        self.outcome.requests += 1;
        self.outcome.paged_in += pages.pages();
    }

    fn room(&mut self, pages: u64) {
        while self.pages.charged_pages() + pages > self.setup.memory as u64 {
            let chosen = self.pages.choose();
            let any = chosen.is_some();
            match chosen {
                Some(Victim::Cluster {
                    first,
                    clean,
                    dirty,
                }) => self.move_aside(first, clean, dirty),
                Some(Victim::Granted(_)) => panic!("nothing was granted"),
                None => {}
            }
            let target = if any { self.setup.aside as u64 } else { 0 };
            while self.pages.aside_pages() > target {
                self.page_out();
            }
        }
    }

    fn move_aside(&mut self, first: PageIndex, clean: u16, dirty: u16) {
        let chance = self.pages.gives_chance(first, clean);
        for page in pages_of(first, clean) {
            match chance {
                true => self.pages.moved_aside(page),
                false => self.pages.dropped(page),
            }
        }
        pages_of(first, dirty).for_each(|page| self.pages.moved_aside(page));
        self.pages.requeue(first);
    }

    fn page_out(&mut self) {
        let Some(leaving) = self.pages.page_out_begins() else {
            panic!("nothing can leave");
        };
        for page in pages_of(leaving.first, leaving.pages) {
            self.pages.paged_out(page);
            self.outcome.paged_out += 1;
        }
    }
}

fn pages_of(first: PageIndex, mask: u16) -> impl Iterator<Item = PageIndex> {
    bits(mask).map(move |bit| PageIndex(first.0 + bit))
}
