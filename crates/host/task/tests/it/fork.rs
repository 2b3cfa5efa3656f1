//! What children of fork have of their parent's memory.

use std::sync::atomic::{AtomicBool, Ordering};

use farpage_task::{Inheritance, PAGE_BYTES as PAGE, Protection, VmError};

use crate::support;
use crate::support::{Forked, allocate, get, own, pages, set, until};

/// Ends threads also when the test fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn is_there(at: u64) -> bool {
    own().vm_read(at, PAGE).is_ok()
}

#[test]
fn what_is_shared_is_the_same_memory_at_the_same_address_from_then_on() {
    farpage_testkit::in_own_process!();
    let at = allocate(8);
    own()
        .vm_write(at, &pages(&[1, 2, 3, 4, 5, 6, 7, 8]))
        .unwrap();
    own().vm_inherit(at, 8 * PAGE, Inheritance::Share).unwrap();
    assert_eq!(
        own().vm_read(at, 8 * PAGE).unwrap().map().unwrap()[..],
        pages(&[1, 2, 3, 4, 5, 6, 7, 8])
    );
    let child = Forked::new(|| {
        assert_eq!(get(at + 7 * PAGE), 0x0808_0808_0808_0808);
        until(at, 1);
        set(at + PAGE, 2);
        let told = own().vm_regions(at, 8 * PAGE).unwrap();
        assert!(told.len() == 1 && told[0].is_shared && told[0].object.is_some());
        assert_eq!(told[0].inheritance, Inheritance::Share);
        // And so it goes on.
        Forked::new(|| set(at + 2 * PAGE, 3)).ends_well();
    });
    set(at, 1);
    child.ends_well();
    assert_eq!((get(at + PAGE), get(at + 2 * PAGE)), (2, 3));
    let told = own().vm_regions(at, 8 * PAGE).unwrap();
    Forked::new(|| assert_eq!(own().vm_regions(at, 8 * PAGE).unwrap(), told)).ends_well();
}

#[test]
fn a_copy_is_of_the_moment_of_the_fork() {
    farpage_testkit::in_own_process!();
    let (at, go) = (allocate(64), allocate(1));
    own().vm_inherit(go, PAGE, Inheritance::Share).unwrap();
    set(at, 1);
    // Also of memory that is a copy itself.
    let copy = allocate(64);
    own().vm_copy(at, 64 * PAGE, copy).unwrap();
    set(copy + PAGE, 5);
    let child = Forked::new(|| {
        until(go, 1);
        assert_eq!((get(at), get(copy), get(copy + PAGE)), (1, 1, 5));
        set(at, 3);
        set(copy, 3);
        own().vm_deallocate(at, PAGE).unwrap();
    });
    set(at, 2);
    set(copy, 2);
    set(copy + PAGE, 6);
    set(go, 1);
    child.ends_well();
    assert_eq!((get(at), get(copy), get(copy + PAGE)), (2, 2, 6));
}

#[test]
fn what_is_not_inherited_is_a_hole_until_it_is_again() {
    farpage_testkit::in_own_process!();
    let at = allocate(3);
    own().vm_write(at, &pages(&[1, 2, 3])).unwrap();
    own()
        .vm_inherit(at + PAGE, PAGE, Inheritance::None)
        .unwrap();
    let hole = || {
        assert!(is_there(at) && is_there(at + 2 * PAGE));
        let told = own().vm_regions(at + PAGE, PAGE);
        assert_eq!(told, Err(VmError::NoSpace { bytes: PAGE }));
        assert!(!is_there(at + PAGE));
        // Somebody else's place now.
        assert_eq!(own().vm_allocate(at + PAGE, PAGE, false), Ok(at + PAGE));
        assert_eq!(get(at + PAGE), 0);
    };
    Forked::new(hole).ends_well();
    const SIGSEGV: i32 = 11;
    assert_eq!(Forked::new(|| set(at + PAGE, 1)).wait() & 0x7f, SIGSEGV);
    assert_eq!(get(at + PAGE), 0x0202_0202_0202_0202);
    own().vm_inherit(at, 3 * PAGE, Inheritance::Copy).unwrap();
    Forked::new(|| assert_eq!(get(at + PAGE), 0x0202_0202_0202_0202)).ends_well();
    // Of what is shared as well.
    own().vm_inherit(at, 3 * PAGE, Inheritance::Share).unwrap();
    own()
        .vm_inherit(at + PAGE, PAGE, Inheritance::None)
        .unwrap();
    Forked::new(hole).ends_well();
    own().vm_inherit(at, 3 * PAGE, Inheritance::Share).unwrap();
    Forked::new(|| set(at + PAGE, 9)).ends_well();
    assert_eq!(get(at + PAGE), 9);
}

#[test]
fn linux_does_it_by_itself_also_where_no_handler_runs() {
    farpage_testkit::in_own_process!();
    let [share, copy, none] = [0; 3].map(|_| allocate(1));
    for at in [share, copy, none] {
        set(at, 1);
    }
    own().vm_inherit(share, PAGE, Inheritance::Share).unwrap();
    own().vm_inherit(none, PAGE, Inheritance::None).unwrap();
    Forked::raw(|| {
        set(share, get(share) + 1);
        set(copy, get(copy) + 1);
    })
    .ends_well();
    assert_eq!((get(share), get(copy)), (2, 1));
    assert_ne!(Forked::raw(|| set(none, 1)).wait(), 0);
}

#[test]
fn a_child_copies_what_is_shared_and_inherited_as_a_copy() {
    farpage_testkit::in_own_process!();
    let (at, go) = (allocate(4), allocate(1));
    own().vm_inherit(go, PAGE, Inheritance::Share).unwrap();
    own().vm_write(at, &pages(&[1, 2, 3, 4])).unwrap();
    own().vm_inherit(at, 4 * PAGE, Inheritance::Share).unwrap();
    let sharing = Forked::new(|| {
        until(go, 1);
        set(at, 77);
        set(go, 2);
        until(go, 3);
    });
    own()
        .vm_protect(at + 3 * PAGE, PAGE, false, Protection::NONE)
        .unwrap();
    own().vm_inherit(at, 4 * PAGE, Inheritance::Copy).unwrap();
    let copying = Forked::new(|| {
        set(at + PAGE, 99);
        let told = own().vm_regions(at, PAGE).unwrap();
        assert!(!told[0].is_shared);
        until(go, 2);
        assert_eq!(get(at), 0x0101_0101_0101_0101);
        own()
            .vm_protect(at + 3 * PAGE, PAGE, false, Protection::READ)
            .unwrap();
        assert_eq!(get(at + 3 * PAGE), 0x0404_0404_0404_0404);
    });
    set(go, 1);
    copying.ends_well();
    set(go, 3);
    sharing.ends_well();
    assert_eq!((get(at), get(at + PAGE)), (77, 0x0202_0202_0202_0202));
}

#[test]
fn nothing_that_threads_write_is_lost_when_memory_becomes_shared() {
    if !farpage_sys::uffd::serves_system_calls() {
        return println!("skipped: this user's userfaultfd does not serve system calls");
    }
    farpage_testkit::in_own_process!();
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let mut written = 0;
    for round in 0..60 {
        let count = 64;
        let at = allocate(count);
        if round % 2 == 1 {
            // A copy, and pages that were written since.
            set(at, 1);
            let copy = allocate(count);
            own().vm_copy(at, count * PAGE, copy).unwrap();
        }
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _end = End(&ends);
            // By the processor, one page after another; by Linux, in the second word.
            let stores = scope.spawn(|| {
                let mut last = vec![0; count as usize];
                for value in 1.. {
                    let page = value % count;
                    set(at + page * PAGE, value);
                    last[page as usize] = value;
                    if ends.load(Ordering::Relaxed) {
                        return last;
                    }
                }
                unreachable!()
            });
            let calls = scope.spawn(|| {
                let mut last = vec![0; count as usize];
                for value in 1u64.. {
                    let page = value % count;
                    support::read_call(&mut reader, &mut writer, at + page * PAGE + 8, value);
                    last[page as usize] = value;
                    if ends.load(Ordering::Relaxed) {
                        return last;
                    }
                }
                unreachable!()
            });
            support::until_at_least(at + PAGE, 1 + count);
            own()
                .vm_inherit(at, count * PAGE, Inheritance::Share)
                .unwrap();
            let seen = get(at + PAGE);
            support::until_at_least(at + PAGE, seen + 1);
            ends.store(true, Ordering::Relaxed);
            for (of, last) in [(0, stores.join()), (8, calls.join())] {
                for (page, last) in last.unwrap().into_iter().enumerate() {
                    let lies = get(at + page as u64 * PAGE + of);
                    if of == 8 || page > 0 {
                        assert_eq!(lies, last, "round {round}, page {page}, byte {of}");
                    }
                    written += last;
                }
            }
        });
        Forked::new(|| set(at + PAGE, 0)).ends_well();
        assert_eq!(get(at + PAGE), 0, "it is shared");
        own().vm_deallocate(at, count * PAGE).unwrap();
    }
    assert!(written > 0);
}

#[test]
fn a_long_copy_is_of_one_moment() {
    farpage_testkit::in_own_process!();
    let count = 256;
    for _ in 0..40 {
        let (at, copy) = (allocate(count), allocate(count));
        let ends = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _end = End(&ends);
            scope.spawn(|| {
                for value in 1.. {
                    for page in 0..count {
                        set(at + page * PAGE, value);
                    }
                    if ends.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
            support::until_at_least(at, 2);
            own().vm_copy(at, count * PAGE, copy).unwrap();
        });
        let first = get(copy);
        let mut values = (0..count).map(|page| get(copy + page * PAGE));
        let newer = values.by_ref().take_while(|&value| value == first).count();
        let rest: Vec<u64> = (newer as u64..count)
            .map(|page| get(copy + page * PAGE))
            .collect();
        assert!(
            rest.iter().all(|&value| value == first - 1),
            "{first}, {newer}: {rest:?}"
        );
        own().vm_deallocate(at, count * PAGE).unwrap();
        own().vm_deallocate(copy, count * PAGE).unwrap();
    }
}

#[test]
fn threads_that_allocate_do_not_disturb_a_fork() {
    farpage_testkit::in_own_process!();
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = End(&ends);
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                let at = allocate(3);
                own().vm_inherit(at, PAGE, Inheritance::Share).unwrap();
                own()
                    .vm_inherit(at + PAGE, PAGE, Inheritance::None)
                    .unwrap();
                own().vm_deallocate(at, 3 * PAGE).unwrap();
            }
        });
        for _ in 0..200 {
            Forked::new(|| {
                let at = allocate(3);
                set(at, 1);
                own().vm_deallocate(at, 3 * PAGE).unwrap();
                for region in own().vm_regions(0, 1 << 47).unwrap() {
                    assert!(
                        !region.is_allocated
                            || !region.protection.read
                            || own().vm_read(region.address, PAGE).is_ok()
                    );
                }
            })
            .ends_well();
        }
    });
}
