//! The nine operations on the caller's own address space.
#![allow(unsafe_code)]

use std::ops::Range;

use farpage_task::{
    Argument, BOUNDS, Inheritance, PAGE_BYTES as PAGE, Protection, Region, Shortage, VmError,
};

use crate::support::{allocate, own, pages};

const WRITE_ONLY_ON_PAPER: Protection = Protection {
    read: false,
    write: true,
    execute: false,
};

/// The first byte of each page, by the processor.
fn seen(at: u64, pages: u64) -> Vec<u8> {
    let byte = |page| {
        let address = (at + page * PAGE) as *const u8;
        // SAFETY: callers name memory that they allocated and have not given back.
        unsafe { address.read_volatile() }
    };
    (0..pages).map(byte).collect()
}

fn store(at: u64, byte: u8) {
    // SAFETY: callers name memory that they allocated and may write.
    unsafe { (at as *mut u8).write_volatile(byte) };
}

fn regions(range: Range<u64>) -> Vec<Region> {
    own()
        .vm_regions(range.start, range.end - range.start)
        .unwrap()
}

fn is_invalid_address<T>(result: Result<T, VmError>) -> bool {
    matches!(result, Err(VmError::InvalidAddress { .. }))
}

fn is_protected<T>(result: Result<T, VmError>) -> bool {
    matches!(result, Err(VmError::ProtectionFailure { .. }))
}

#[test]
fn what_is_allocated_is_whole_pages_of_zeros_with_what_is_usual() {
    farpage_testkit::in_own_process!();
    let at = own().vm_allocate(12345, 3 * PAGE + 1, true).unwrap();
    assert!(at.is_multiple_of(PAGE) && BOUNDS.contains(&at));
    assert_eq!(seen(at, 4), [0, 0, 0, 0]);
    let told = regions(at..at + 4 * PAGE);
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].range(), at..at + 4 * PAGE);
    assert_eq!(told[0].protection, Protection::DEFAULT);
    assert_eq!(told[0].max_protection, Protection::ALL);
    assert_eq!(told[0].inheritance, Inheritance::Copy);
    assert!(told[0].is_allocated && !told[0].is_shared && told[0].object.is_none());
    store(at + 3 * PAGE, 9);
    assert_eq!(seen(at, 4), [0, 0, 0, 9]);
    assert_eq!(own().vm_allocate(0, 0, true), Ok(0));
}

#[test]
fn a_place_that_is_asked_for_is_had_unless_something_is_there() {
    farpage_testkit::in_own_process!();
    let at = BOUNDS.end - 64 * PAGE;
    assert_eq!(own().vm_allocate(at + 17, 2 * PAGE, false), Ok(at));
    for (start, count) in [(at, 1), (at - PAGE, 2), (at + PAGE, 4)] {
        let refused = own().vm_allocate(start, count * PAGE, false);
        assert_eq!(
            refused,
            Err(VmError::NoSpace {
                bytes: count * PAGE
            })
        );
    }
    assert_eq!(
        own().vm_allocate(at + 2 * PAGE, 1, false),
        Ok(at + 2 * PAGE)
    );
    own().vm_deallocate(at, 3 * PAGE).unwrap();
    assert_eq!(own().vm_allocate(at, PAGE, false), Ok(at));
}

#[test]
fn places_and_sizes_that_cannot_be_are_refused() {
    farpage_testkit::in_own_process!();
    let here = 0u8;
    let stack = &raw const here as u64;
    for at in [
        0,
        PAGE,
        stack,
        BOUNDS.start - PAGE,
        BOUNDS.end - PAGE,
        BOUNDS.end,
        !0,
    ] {
        let refused = own().vm_allocate(at, 2 * PAGE, false);
        assert!(is_invalid_address(refused), "{at:#x}: {refused:?}");
    }
    for bytes in [BOUNDS.end - BOUNDS.start + 1, 1 << 60, !0, !0 - PAGE] {
        let refused = own().vm_allocate(0, bytes, true);
        assert_eq!(refused, Err(VmError::NoSpace { bytes }));
        let refused = own().vm_allocate(BOUNDS.start, bytes, false);
        assert!(refused.is_err(), "{bytes}");
    }
}

#[test]
fn what_is_deallocated_is_gone_and_the_rest_is_not() {
    farpage_testkit::in_own_process!();
    let at = allocate(4);
    own().vm_write(at, &pages(&[1, 2, 3, 4])).unwrap();
    // The page that holds the byte.
    own().vm_deallocate(at + PAGE + 5, 1).unwrap();
    assert_eq!((seen(at, 1), seen(at + 2 * PAGE, 2)), (vec![1], vec![3, 4]));
    assert!(is_invalid_address(own().vm_read(at + PAGE, PAGE)));
    assert!(
        is_invalid_address(own().vm_deallocate(at, 4 * PAGE)),
        "a hole"
    );
    assert_eq!(seen(at, 1), [1], "refused, and nothing done");
    own().vm_deallocate(at, 0).unwrap();
    own().vm_deallocate(at + 2 * PAGE, 2 * PAGE).unwrap();
    own().vm_deallocate(at, PAGE).unwrap();
    assert!(is_invalid_address(own().vm_deallocate(at, PAGE)), "twice");
}

#[test]
fn protection_is_bounded_by_a_maximum_that_only_falls() {
    farpage_testkit::in_own_process!();
    let at = allocate(3);
    own()
        .vm_protect(at + PAGE, PAGE, false, Protection::READ)
        .unwrap();
    assert!(is_protected(own().vm_write(at, &pages(&[1, 1, 1]))));
    assert_eq!(seen(at, 3), [0, 0, 0], "refused, and nothing done");
    own().vm_write(at + 2 * PAGE, &pages(&[3])).unwrap();
    own()
        .vm_protect(at + PAGE, PAGE, false, Protection::DEFAULT)
        .unwrap();
    own().vm_write(at, &pages(&[1, 1, 1])).unwrap();

    own()
        .vm_protect(at, 2 * PAGE, true, Protection::READ)
        .unwrap();
    let told = regions(at..at + 3 * PAGE);
    assert_eq!(
        (told[0].protection, told[0].max_protection),
        (Protection::READ, Protection::READ)
    );
    assert_eq!(told[1].max_protection, Protection::ALL);
    assert!(is_protected(own().vm_write(at, &pages(&[2]))));
    for wanted in [Protection::DEFAULT, Protection::ALL, WRITE_ONLY_ON_PAPER] {
        assert!(is_protected(own().vm_protect(at, 3 * PAGE, false, wanted)));
        assert!(
            is_protected(own().vm_protect(at, 3 * PAGE, true, wanted)),
            "it only falls"
        );
    }
    assert_eq!(
        regions(at..at + 3 * PAGE),
        told,
        "refused, and nothing done"
    );
    own().vm_protect(at, PAGE, false, Protection::NONE).unwrap();
    assert!(is_protected(own().vm_read(at, PAGE)));
    own().vm_protect(at, PAGE, false, Protection::READ).unwrap();
    assert_eq!(seen(at, 3), [1, 1, 1]);
    assert!(is_invalid_address(own().vm_protect(
        at,
        4 * PAGE,
        false,
        Protection::READ
    )));
}

#[test]
fn what_is_read_is_a_copy_of_that_moment() {
    farpage_testkit::in_own_process!();
    let at = allocate(40);
    own().vm_write(at + PAGE, &pages(&[7])).unwrap();
    let read = own().vm_read(at, 40 * PAGE).unwrap();
    store(at + PAGE, 8);
    let map = read.map().unwrap();
    assert_eq!((map.len() as u64, map[PAGE as usize]), (40 * PAGE, 7));
    assert_eq!(map.iter().filter(|&&byte| byte != 0).count() as u64, PAGE);
    let not_whole = Some(VmError::InvalidArgument(Argument::NotWholePages));
    assert_eq!(own().vm_read(at + 1, PAGE).err(), not_whole);
    assert_eq!(own().vm_read(at, PAGE - 1).err(), not_whole);
    let nothing = Some(VmError::InvalidArgument(Argument::Nothing));
    assert_eq!(own().vm_read(at, 0).err(), nothing);
    assert!(is_invalid_address(own().vm_read(at, 41 * PAGE)));
    assert!(is_invalid_address(own().vm_read(!0 - PAGE + 1, PAGE)));
    let huge = own().vm_allocate(0, 1 << 40, true).unwrap();
    let refused = own().vm_read(huge, 1 << 40).err();
    assert_eq!(
        refused,
        Some(VmError::ResourceShortage(Shortage::CopiedBytes))
    );
}

#[test]
fn memory_of_the_rest_of_the_process_can_be_looked_at_and_not_changed() {
    farpage_testkit::in_own_process!();
    let words = vec![0x5a_u8; 4 * PAGE as usize];
    let at = (words.as_ptr() as u64).next_multiple_of(PAGE);
    let told = regions(at..at + PAGE);
    assert!(!told[0].is_allocated && told[0].protection == Protection::DEFAULT);
    let read = own().vm_read(at, PAGE).unwrap();
    assert!(read.map().unwrap().iter().all(|&byte| byte == 0x5a));
    let mine = allocate(1);
    own().vm_copy(at, PAGE, mine).unwrap();
    assert_eq!(seen(mine, 1), [0x5a]);
    assert!(is_invalid_address(own().vm_copy(mine, PAGE, at)));
    assert!(is_invalid_address(own().vm_write(at, &pages(&[0]))));
    assert!(is_invalid_address(own().vm_protect(
        at,
        PAGE,
        false,
        Protection::NONE
    )));
    assert!(is_invalid_address(own().vm_deallocate(at, PAGE)));
    assert!(is_invalid_address(own().vm_inherit(
        at,
        PAGE,
        Inheritance::None
    )));
    assert!(words.iter().all(|&byte| byte == 0x5a));
    // No program has anything at its first page.
    assert!(is_invalid_address(own().vm_read(0, PAGE)));
    assert_eq!(
        own().vm_regions(0, PAGE),
        Err(VmError::NoSpace { bytes: PAGE })
    );
}

#[test]
fn small_and_large_writes_arrive() {
    farpage_testkit::in_own_process!();
    for count in [1, 15, 16, 300] {
        let at = allocate(count + 2);
        let data: Vec<u8> = (0..count).map(|page| (page % 250) as u8 + 1).collect();
        own().vm_write(at + PAGE, &pages(&data)).unwrap();
        let read = own().vm_read(at + PAGE, count * PAGE).unwrap();
        own()
            .vm_protect(at, (count + 2) * PAGE, false, Protection::DEFAULT)
            .unwrap();
        let copy = allocate(count);
        own().vm_write_memory(copy, &read.into()).unwrap();
        assert_eq!(seen(copy, count), data);
        store(copy, 77);
        assert_eq!((seen(copy, 1)[0], seen(at + PAGE, 1)[0]), (77, data[0]));
        assert_eq!(
            (seen(at, 1), seen(at + (count + 1) * PAGE, 1)),
            (vec![0], vec![0])
        );
    }
    let at = allocate(2);
    let not_whole = Err(VmError::InvalidArgument(Argument::NotWholePages));
    assert_eq!(own().vm_write(at + 8, &pages(&[1])), not_whole);
    assert_eq!(own().vm_write(at, &[1; 100]), not_whole);
    assert!(is_invalid_address(
        own().vm_write(at + PAGE, &pages(&[1, 1]))
    ));
    assert_eq!(seen(at, 2), [0, 0]);
}

#[test]
fn a_copy_and_its_source_are_each_others_equals_and_no_more() {
    farpage_testkit::in_own_process!();
    for count in [2, 64] {
        let (from, to) = (allocate(count), allocate(count));
        let data: Vec<u8> = (0..count).map(|page| (page % 250) as u8 + 1).collect();
        own().vm_write(from, &pages(&data)).unwrap();
        // Three times: of what was never copied, of what was not written since, and of what was.
        for round in 0..3 {
            if round == 2 {
                store(from + PAGE, 99);
            }
            own().vm_copy(from, count * PAGE, to).unwrap();
            assert_eq!(seen(to, count), seen(from, count), "round {round}");
            store(to, 50);
            assert_eq!(seen(from, 1), [1]);
            store(from, 60);
            assert_eq!(seen(to, 1), [50]);
            store(from, 1);
        }
        assert_eq!(seen(to + PAGE, 1), [99]);
    }
}

#[test]
fn a_copy_over_itself_is_of_what_was_there_before() {
    farpage_testkit::in_own_process!();
    for count in [8, 64] {
        let at = allocate(count + 3);
        let data: Vec<u8> = (0..count + 3).map(|page| (page % 250) as u8 + 1).collect();
        own().vm_write(at, &pages(&data)).unwrap();
        own().vm_copy(at, count * PAGE, at + 3 * PAGE).unwrap();
        assert_eq!(seen(at + 3 * PAGE, count), data[..count as usize]);
        assert_eq!(seen(at, 3), data[..3]);
        own().vm_copy(at, count * PAGE, at).unwrap();
        own().vm_copy(at + 3 * PAGE, count * PAGE, at).unwrap();
        assert_eq!(seen(at, count), data[..count as usize]);
    }
}

#[test]
fn copies_keep_what_the_destination_is_protected_for_and_inherited_as() {
    farpage_testkit::in_own_process!();
    let (from, to) = (allocate(64), allocate(64));
    own().vm_write(from, &pages(&[5; 64])).unwrap();
    own().vm_inherit(to, 64 * PAGE, Inheritance::None).unwrap();
    own()
        .vm_protect(to, 64 * PAGE, true, Protection::DEFAULT)
        .unwrap();
    let told = regions(to..to + 64 * PAGE);
    own().vm_copy(from, 64 * PAGE, to).unwrap();
    assert_eq!(regions(to..to + 64 * PAGE), told);
    own()
        .vm_protect(to + PAGE, PAGE, false, Protection::READ)
        .unwrap();
    assert!(is_protected(own().vm_copy(from, 64 * PAGE, to)));
    own()
        .vm_protect(from, PAGE, false, Protection::NONE)
        .unwrap();
    assert!(is_protected(own().vm_copy(from, PAGE, to)));
    let not_whole = Err(VmError::InvalidArgument(Argument::NotWholePages));
    for (source, bytes, destination) in [(from + 1, PAGE, to), (from, 9, to), (from, PAGE, to + 1)]
    {
        assert_eq!(own().vm_copy(source, bytes, destination), not_whole);
    }
    own().vm_copy(from, 0, to).unwrap();
}

#[test]
fn statistics_count_what_is_there() {
    farpage_testkit::in_own_process!();
    let before = own().vm_statistics().unwrap();
    let at = own().vm_allocate(0, 1 << 30, true).unwrap();
    own().vm_write(at, &pages(&[1, 2, 3])).unwrap();
    let after = own().vm_statistics().unwrap();
    assert_eq!(after.page_bytes, PAGE);
    assert!(after.allocated_bytes >= before.allocated_bytes.min(1 << 30));
    assert!(after.allocated_resident_bytes >= 3 * PAGE);
    assert!(after.allocated_bytes >= 1 << 30 && after.virtual_bytes >= 1 << 30);
    assert!(after.regions > 0 && after.free_pages > 0);
    assert!(after.faults > before.faults, "three pages were new");
    own().vm_deallocate(at, 1 << 30).unwrap();
}

#[test]
fn errors_have_machs_numbers_and_names() {
    farpage_testkit::in_own_process!();
    let at = allocate(1);
    own().vm_protect(at, PAGE, true, Protection::READ).unwrap();
    for (error, code, name) in [
        (
            own().vm_deallocate(8, 8).unwrap_err(),
            1,
            "KERN_INVALID_ADDRESS",
        ),
        (
            own().vm_write(at, &pages(&[1])).unwrap_err(),
            2,
            "KERN_PROTECTION_FAILURE",
        ),
        (
            own().vm_allocate(at, 1, false).unwrap_err(),
            3,
            "KERN_NO_SPACE",
        ),
        (own().vm_read(1, 1).unwrap_err(), 4, "KERN_INVALID_ARGUMENT"),
    ] {
        assert_eq!(error.code(), code);
        assert!(error.to_string().starts_with(name), "{error}");
    }
}
