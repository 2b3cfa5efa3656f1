//! Random operations, beside a model of pages: what is refused, what lies where, what Linux has.
#![allow(unsafe_code)]

use std::ops::Range;

use farpage_task::{BOUNDS, Inheritance, PAGE_BYTES as PAGE, Protection, VmError};
use proptest::prelude::*;

use crate::support::{Forked, own, pages};

const PAGES: usize = 64;
/// Where all of it happens.
const START: u64 = BOUNDS.start + (1 << 40);

fn at(page: usize) -> u64 {
    START + page as u64 * PAGE
}

fn bytes(range: &Range<usize>) -> u64 {
    range.len() as u64 * PAGE
}

#[derive(Clone, Debug)]
enum Operation {
    Allocate(Range<usize>),
    Deallocate(Range<usize>),
    Protect(Range<usize>, bool, Protection),
    Inherit(Range<usize>, Inheritance),
    Write(Range<usize>, u8, bool),
    Copy(Range<usize>, usize),
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Page {
    protection: Protection,
    max_protection: Protection,
    inheritance: Inheritance,
    is_shared: bool,
    contents: u8,
}

fn range() -> impl Strategy<Value = Range<usize>> {
    (0..PAGES, 1..40usize).prop_map(|(start, count)| start..(start + count).min(PAGES))
}

fn operation() -> impl Strategy<Value = Operation> {
    let protection = prop::sample::select(vec![
        Protection::NONE,
        Protection::READ,
        Protection::DEFAULT,
        Protection::DEFAULT,
        Protection::ALL,
        Protection::ALL,
    ]);
    let inheritance = prop::sample::select(vec![
        Inheritance::Share,
        Inheritance::Copy,
        Inheritance::None,
    ]);
    prop_oneof![
        3 => range().prop_map(Operation::Allocate),
        1 => range().prop_map(Operation::Deallocate),
        2 => (range(), prop::bool::weighted(0.1), protection)
            .prop_map(|(range, max, protection)| Operation::Protect(range, max, protection)),
        2 => (range(), inheritance).prop_map(|(range, how)| Operation::Inherit(range, how)),
        4 => (range(), any::<u8>(), any::<bool>())
            .prop_map(|(range, with, mapped)| Operation::Write(range, with, mapped)),
        3 => (range(), 0..PAGES).prop_map(|(range, to)| Operation::Copy(range, to)),
    ]
}

#[derive(Clone)]
struct Model([Option<Page>; PAGES]);

impl Model {
    fn all(&self, range: &Range<usize>, holds: impl Fn(&Page) -> bool) -> bool {
        self.0[range.clone()]
            .iter()
            .all(|page| page.as_ref().is_some_and(&holds))
    }

    fn each(&mut self, range: Range<usize>, mut change: impl FnMut(&mut Page)) {
        self.0[range].iter_mut().flatten().for_each(&mut change);
    }

    /// What the operation says, and does.
    fn apply(&mut self, operation: &Operation) -> i32 {
        const FINE: i32 = 0;
        const INVALID_ADDRESS: i32 = 1;
        const PROTECTION_FAILURE: i32 = 2;
        const NO_SPACE: i32 = 3;
        match operation.clone() {
            Operation::Allocate(range) => {
                if self.0[range.clone()].iter().any(Option::is_some) {
                    return NO_SPACE;
                }
                self.0[range].fill(Some(Page {
                    protection: Protection::DEFAULT,
                    max_protection: Protection::ALL,
                    inheritance: Inheritance::Copy,
                    is_shared: false,
                    contents: 0,
                }));
            }
            Operation::Deallocate(range) => {
                if !self.all(&range, |_| true) {
                    return INVALID_ADDRESS;
                }
                self.0[range].fill(None);
            }
            Operation::Protect(range, set_max, wanted) => {
                if !self.all(&range, |_| true) {
                    return INVALID_ADDRESS;
                }
                if !self.all(&range, |page| wanted.is_within(page.max_protection)) {
                    return PROTECTION_FAILURE;
                }
                self.each(range, |page| {
                    if set_max {
                        page.max_protection = wanted;
                        page.protection = page.protection.and(wanted);
                    } else {
                        page.protection = wanted;
                    }
                });
            }
            Operation::Inherit(range, how) => {
                if !self.all(&range, |_| true) {
                    return INVALID_ADDRESS;
                }
                self.each(range, |page| {
                    page.inheritance = how;
                    page.is_shared |= how == Inheritance::Share;
                });
            }
            Operation::Write(range, with, _) => {
                if !self.all(&range, |_| true) {
                    return INVALID_ADDRESS;
                }
                if !self.all(&range, |page| page.protection.write) {
                    return PROTECTION_FAILURE;
                }
                self.each(range, |page| page.contents = with);
            }
            Operation::Copy(from, to) => {
                let to = to..to + from.len();
                if to.end > PAGES || !self.all(&to, |_| true) || !self.all(&from, |_| true) {
                    return INVALID_ADDRESS;
                }
                if !self.all(&to, |page| page.protection.write)
                    || !self.all(&from, |page| page.protection.read)
                {
                    return PROTECTION_FAILURE;
                }
                let copied: Vec<_> = self.0[from]
                    .iter()
                    .flatten()
                    .map(|page| page.contents)
                    .collect();
                let mut copied = copied.into_iter();
                self.each(to, |page| page.contents = copied.next().expect("as many"));
            }
        }
        FINE
    }
}

fn really(operation: &Operation) -> Result<(), VmError> {
    match operation.clone() {
        Operation::Allocate(range) => own()
            .vm_allocate(at(range.start), bytes(&range), false)
            .map(drop),
        Operation::Deallocate(range) => own().vm_deallocate(at(range.start), bytes(&range)),
        Operation::Protect(range, set_max, protection) => {
            own().vm_protect(at(range.start), bytes(&range), set_max, protection)
        }
        Operation::Inherit(range, how) => own().vm_inherit(at(range.start), bytes(&range), how),
        Operation::Write(range, with, false) => {
            own().vm_write(at(range.start), &pages(&vec![with; range.len()]))
        }
        Operation::Write(range, with, true) => {
            let mut draft =
                farpage_port::link::Draft::create(c"test", bytes(&range) as usize).unwrap();
            draft.fill(with);
            let sealed = farpage_port::link::Sealed::new(draft).unwrap();
            let donated = farpage_port::Donated::from(sealed);
            own().vm_write_memory(at(range.start), &donated.into())
        }
        Operation::Copy(from, to) => own().vm_copy(at(from.start), bytes(&from), at(to)),
    }
}

/// What `vm_regions` tells, page by page.
fn told() -> [Option<Page>; PAGES] {
    let mut pages = [None; PAGES];
    let Ok(regions) = own().vm_regions(START, PAGES as u64 * PAGE) else {
        return pages;
    };
    for region in regions {
        let first = ((region.address - START) / PAGE) as usize;
        for page in &mut pages[first..first + (region.bytes / PAGE) as usize] {
            *page = Some(Page {
                protection: region.protection,
                max_protection: region.max_protection,
                inheritance: region.inheritance,
                is_shared: region.is_shared,
                contents: 0,
            });
        }
    }
    pages
}

/// What Linux tells: flags, page by page.
fn of_linux() -> [Option<String>; PAGES] {
    let mut pages = [const { None }; PAGES];
    for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let (range, rest) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let address = |hex| u64::from_str_radix(hex, 16).unwrap();
        let (start, end) = (address(start), address(end));
        if BOUNDS.contains(&start) {
            assert!(START <= start && end <= at(PAGES), "{line}");
            for page in (start - START) / PAGE..(end - START) / PAGE {
                pages[page as usize] = Some(rest[..4].to_owned());
            }
        }
    }
    pages
}

fn flags(page: &Page) -> String {
    let Protection {
        read,
        write,
        execute,
    } = page.protection;
    let flag = |is, flag| if is { flag } else { '-' };
    let shared = if page.is_shared { 's' } else { 'p' };
    [
        flag(read, 'r'),
        flag(write, 'w'),
        flag(execute, 'x'),
        shared,
    ]
    .iter()
    .collect()
}

/// Everything there is to compare.
fn compare(model: &Model, why: &str) {
    let regions = told();
    let linux = of_linux();
    for (number, page) in model.0.iter().enumerate() {
        let shown = page.map(|page| Page {
            contents: 0,
            ..page
        });
        assert_eq!(regions[number], shown, "page {number} after {why}");
        assert_eq!(
            linux[number],
            page.as_ref().map(flags),
            "page {number} after {why}"
        );
        let Some(page) = page.filter(|page| page.protection.read) else {
            continue;
        };
        let address = at(number) as *const u8;
        // SAFETY: Linux says that it is there, and may be read.
        let (first, last) = unsafe { (address.read_volatile(), address.add(4095).read_volatile()) };
        assert_eq!(
            (first, last),
            (page.contents, page.contents),
            "page {number} after {why}"
        );
    }
}

/// What a child has.
fn inherited(model: &Model) -> Model {
    let mut child = model.clone();
    for page in &mut child.0 {
        match page.as_mut().map(|page| (page.inheritance, page)) {
            Some((Inheritance::None, _)) => *page = None,
            Some((Inheritance::Copy, copy)) => copy.is_shared = false,
            Some((Inheritance::Share, _)) | None => {}
        }
    }
    child
}

/// Also what a case that failed has left.
fn clear() {
    for page in (0..PAGES).filter(|&page| told()[page].is_some()) {
        own().vm_deallocate(at(page), PAGE).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn book_keeping_and_linux_and_contents_agree(
        operations in prop::collection::vec(operation(), 1..40)
    ) {
        clear();
        let mut model = Model([None; PAGES]);
        for operation in &operations {
            let (expected, done) = (model.apply(operation), really(operation));
            let code = done.map_or_else(VmError::code, |()| 0);
            prop_assert_eq!(code, expected, "{:?}: {:?}", operation, done);
            compare(&model, &format!("{operation:?}"));
        }
        let child = inherited(&model);
        Forked::new(|| compare(&child, "a fork")).ends_well();
        compare(&model, "a child");
        clear();
        prop_assert!(of_linux().iter().all(Option::is_none));
    }
}
