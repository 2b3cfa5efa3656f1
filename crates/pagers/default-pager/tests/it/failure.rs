//! Paging files that lie, break, fill up, come and go.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use farpage_default_pager::DefaultPager;
use farpage_object::{Access, BEST_IS_NONE, PageIndex, PageRange, Pager, PagerError, SpillState};
use farpage_sys::buffer::Buffer;

use crate::support::*;

fn pages(kind: u8, range: std::ops::Range<u64>) -> Vec<(u64, Page)> {
    range.map(|page| (page, contents(kind, page))).collect()
}

/// Turns over one bit of every page in the file.
fn damage(file: &File) {
    let mut block = Buffer::new(4096).unwrap();
    let mut at = 0;
    while file.read_at(&mut block, at).unwrap() == 4096 {
        block[40] ^= 1;
        file.write_at(&block, at).unwrap();
        at += 4096;
    }
}

/// Reads everything; all pages must be as written.
fn read_all(pager: &DefaultPager, kind: u8, range: std::ops::Range<u64>) {
    let mut page = range.start;
    while page < range.end {
        let (_, got) = request(pager, OBJECT, page, range.end - page).unwrap();
        for bytes in got {
            assert!(bytes == contents(kind, page), "page {page}");
            page += 1;
        }
    }
}

#[test]
fn a_changed_raw_page_is_corrupt() {
    let (_, file, pager) = with_file(0, 16);
    write(&pager, OBJECT, &pages(3, 0..10), true).unwrap();
    damage(&file);
    for page in 0..10 {
        assert_eq!(request(&pager, OBJECT, page, 1), Err(PagerError::Corrupt));
    }
}

#[test]
fn pages_before_a_changed_one_are_supplied() {
    let (_, file, pager) = with_file(0, 16);
    write(&pager, OBJECT, &pages(3, 0..10), true).unwrap();
    let mut block = Buffer::new(4096).unwrap();
    file.read_at(&mut block, 4 * 4096).unwrap();
    block[4095] ^= 0x80;
    file.write_at(&block, 4 * 4096).unwrap();
    assert_eq!(request(&pager, OBJECT, 0, 10).unwrap().0.pages, 4);
    assert_eq!(request(&pager, OBJECT, 4, 6), Err(PagerError::Corrupt));
    assert_eq!(request(&pager, OBJECT, 5, 5).unwrap().0.pages, 5);
}

#[test]
fn a_changed_record_is_corrupt() {
    let (control, file, pager) = with_file(MIB, 64);
    write(&pager, OBJECT, &pages(2, 0..4000), true).unwrap();
    assert!(held(control) > 3, "the tier is small");
    damage(&file);
    let corrupt = (0..4000).map(|page| request(&pager, OBJECT, page, 1));
    let corrupt = corrupt
        .filter(|got| *got == Err(PagerError::Corrupt))
        .count();
    assert!(corrupt > 500, "only {corrupt} noticed");
}

#[test]
fn records_in_files_come_back_by_runs() {
    let (control, _file, pager) = with_file(MIB, 64);
    write(&pager, OBJECT, &pages(1, 0..40_000), true).unwrap();
    assert!(held(control) > 1);
    let (supplied, _) = request(&pager, OBJECT, 100, 256).unwrap();
    assert!(!supplied.precious);
    assert!(supplied.pages > 16, "{}", supplied.pages);
    assert!(pager.contains(OBJECT, PageIndex(100)), "the copy is kept");
    read_all(&pager, 1, 0..40_000);
    pager.terminate(OBJECT);
    check_empty(control, 1);
}

#[test]
fn who_waits_for_the_first_page_of_a_run_gets_a_few_at_first() {
    let (_control, _file, pager) = with_file(MIB, 64);
    write(&pager, OBJECT, &pages(1, 0..40_000), true).unwrap();
    let supplied = request_now(&pager, OBJECT, 100, 256, Access::Read).unwrap();
    assert_eq!((supplied.pages, supplied.precious), (16, false));
    pager.terminate(OBJECT);
}

#[test]
fn a_page_that_is_asked_for_to_be_written_is_given_away() {
    let (control, _file, pager) = with_file(0, 64);
    write(&pager, OBJECT, &pages(1, 0..400), true).unwrap();
    let kept = request_now(&pager, OBJECT, 100, 1, Access::Read).unwrap();
    assert!(!kept.precious && pager.contains(OBJECT, PageIndex(100)));
    let given = request_now(&pager, OBJECT, 100, 1, Access::Write).unwrap();
    assert!(given.precious && !pager.contains(OBJECT, PageIndex(100)));
    read_all(&pager, 1, 101..400);
    pager.terminate(OBJECT);
    check_empty(control, 1);
}

#[test]
fn a_tier_that_did_not_prove_itself_is_given_up_and_tried_again() {
    let (control, _file, pager) = with_file(8 * MIB, 512);
    write(&pager, OBJECT, &pages(1, 0..2000), true).unwrap();
    let tier = || control.compressed_bytes.load(Ordering::Relaxed);
    assert!(tier() > 0);
    control
        .compressed_best_bytes
        .store(BEST_IS_NONE, Ordering::Relaxed);
    let mut next = 2000;
    let mut write_until = |done: &dyn Fn() -> bool, most: u64| {
        while !done() {
            write(&pager, OBJECT, &pages(1, next..next + 256), true).unwrap();
            next += 256;
            assert!(next < most, "{next} pages, tier {}", tier());
        }
    };
    write_until(&|| tier() == 0, 10_000);
    write_until(&|| tier() > 0, 50_000);
    read_all(&pager, 1, 0..2000);
    pager.terminate(OBJECT);
    check_empty(control, 1);
}

#[test]
fn where_a_file_takes_segments_packing_them_stays_within_the_budget() {
    let (control, _file, pager) = with_file(8 * MIB, 512);
    write(&pager, OBJECT, &pages(1, 0..8_000), true).unwrap();
    let tier = || control.compressed_bytes.load(Ordering::Relaxed);
    let budget = tier();
    assert!(budget >= 2 * MIB, "{budget} bytes");
    // Kernels hold all that the tier does not.
    control.budget_bytes.store(budget, Ordering::Relaxed);
    let (done, most) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                most.fetch_max(tier(), Ordering::Relaxed);
            }
        });
        // Three of four pages of what was written before leave a hole each time.
        for round in 0..20 {
            let some = pages(1, 0..8_000).into_iter().skip(round % 4).step_by(4);
            let some: Vec<_> = some.collect();
            for part in some.chunks(256) {
                write(&pager, OBJECT, part, true).unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    let most = most.load(Ordering::Relaxed);
    assert!(most <= budget, "{most} bytes of {budget}");
    read_all(&pager, 1, 0..8_000);
    pager.terminate(OBJECT);
    check_empty(control, 1);
}

#[test]
fn without_a_file_the_tier_is_all() {
    let control = control(2 * MIB);
    let pager = DefaultPager::new(control, 0).unwrap();
    let mut taken = 0;
    let error = loop {
        match write(&pager, OBJECT, &pages(3, taken..taken + 32), true) {
            Ok(()) => taken += 32,
            Err(error) => break error,
        }
    };
    assert_eq!(error, PagerError::OutOfSpace);
    assert!((448..512).contains(&taken), "{taken} pages of 512");
    assert!(control.compressed_bytes.load(Ordering::Relaxed) <= 2 * MIB);
    read_all(&pager, 3, 0..taken);
    pager.terminate(OBJECT);
    check_empty(control, 1);
}

#[cfg(feature = "zstd")]
#[test]
fn a_full_tier_without_a_file_is_compressed_once_more() {
    let fill = |kind| {
        let control = control(4 * MIB);
        let pager = DefaultPager::new(control, 0).unwrap();
        let mut taken = 0;
        while write(&pager, OBJECT, &pages(kind, taken..taken + 32), true).is_ok() {
            taken += 32;
        }
        let counters = &control.tasks[0].counters;
        let (ins, outs) = (&counters.compress_in_bytes, &counters.compress_out_bytes);
        let ratio = ins.load(Ordering::Relaxed) as f64 / outs.load(Ordering::Relaxed) as f64;
        read_all(&pager, kind, 0..taken);
        (taken * 4096) as f64 / (4 * MIB) as f64 / ratio
    };
    let won = fill(1);
    assert!(won > 1.2, "{won:.2} times as many pages as lz4 alone");
}

#[test]
fn a_file_at_its_limit_is_full() {
    let (control, _file, pager) = with_file(0, 2);
    write(&pager, OBJECT, &pages(3, 0..512), true).unwrap();
    let more = write(&pager, OBJECT, &pages(3, 512..513), true);
    assert_eq!(more, Err(PagerError::OutOfSpace));
    check_counts(control);
    pager.discard(OBJECT, PageRange::new(0, 256));
    write(&pager, OBJECT, &pages(3, 512..768), true).unwrap();
    read_all(&pager, 3, 256..768);
}

#[test]
fn dead_slots_are_used_again_when_space_is_short() {
    let (control, _file, pager) = with_file(0, 2);
    write(&pager, OBJECT, &pages(3, 0..512), true).unwrap();
    for page in (0..512).step_by(2) {
        pager.discard(OBJECT, PageRange::new(page, page + 1));
    }
    write(&pager, OBJECT, &pages(3, 1000..1256), true).unwrap();
    let more = write(&pager, OBJECT, &pages(3, 2000..2001), true);
    assert_eq!(more, Err(PagerError::OutOfSpace));
    read_all(&pager, 3, 1000..1256);
    for page in (1..512).step_by(2) {
        read_all(&pager, 3, page..page + 1);
    }
    pager.terminate(OBJECT);
    check_empty(control, 1);
}

#[test]
fn dead_slots_of_shared_segments_stay() {
    let (control, _file, pager) = with_file(0, 1);
    write(&pager, OBJECT, &pages(3, 0..256), true).unwrap();
    pager.before_fork(1);
    pager.after_fork_parent(true, 1);
    pager.discard(OBJECT, PageRange::new(0, 100));
    let more = write(&pager, OBJECT, &pages(3, 300..301), true);
    assert_eq!(more, Err(PagerError::OutOfSpace), "the child may need them");
    control.reap(1);
    write(&pager, OBJECT, &pages(3, 300..301), true).unwrap();
}

#[test]
fn broken_files_give_an_error() {
    let broken: [(&str, File); 3] = [
        ("directory", File::open("/").unwrap()),
        (
            "pipe",
            File::from(std::os::fd::OwnedFd::from(std::io::pipe().unwrap().1)),
        ),
        ("null for reading only", File::open("/dev/null").unwrap()),
    ];
    for (name, file) in broken {
        let control = control(0);
        let _kept = add_file(control, 0, file, 16);
        let pager = DefaultPager::new(control, 0).unwrap();
        let wrote = write(&pager, OBJECT, &pages(3, 0..8), true);
        assert!(
            matches!(wrote, Err(PagerError::Write(_))),
            "{name}: {wrote:?}"
        );
        assert!(!pager.contains(OBJECT, PageIndex(0)), "{name}");
        check_empty(control, 1);
    }
}

#[test]
fn a_device_that_is_full_is_out_of_space() {
    let control = control(0);
    let file = File::options()
        .read(true)
        .write(true)
        .open("/dev/full")
        .unwrap();
    let _kept = add_file(control, 0, file, 16);
    let pager = DefaultPager::new(control, 0).unwrap();
    let wrote = write(&pager, OBJECT, &pages(3, 0..8), true);
    assert_eq!(wrote, Err(PagerError::OutOfSpace));
    check_empty(control, 1);
}

#[test]
fn a_broken_file_is_replaced_by_a_good_one() {
    for tier in [0, MIB] {
        let control = control(tier);
        let _kept = [
            add_file(control, 0, File::open("/").unwrap(), 16),
            add_file(control, 1, unlinked(&std::env::temp_dir()), 256),
        ];
        let pager = DefaultPager::new(control, 0).unwrap();
        write(&pager, OBJECT, &pages(2, 0..4000), true).unwrap();
        assert_eq!(control.spill[0].used_segments.load(Ordering::Relaxed), 0);
        read_all(&pager, 2, 0..4000);
        pager.terminate(OBJECT);
        check_empty(control, 1);
    }
}

#[test]
fn a_read_that_fails_is_an_error() {
    let (control, _file, pager) = with_file(0, 16);
    write(&pager, OBJECT, &pages(3, 0..8), true).unwrap();
    let number = control.fd_base.load(Ordering::Relaxed) + farpage_object::fds::SPILL;
    let directory = std::os::fd::IntoRawFd::into_raw_fd(File::open("/").unwrap());
    let fd = |number| farpage_sys::file::Fd(number);
    farpage_sys::file::move_to(fd(directory), fd(number as i32), true).unwrap();
    let read = request(&pager, OBJECT, 0, 8);
    assert!(matches!(read, Err(PagerError::Read(_))), "{read:?}");
}

#[test]
fn pages_before_one_that_cannot_be_read_are_supplied() {
    let (control, _file, pager) = with_file(0, 1);
    write(&pager, OBJECT, &pages(3, 0..256), true).unwrap();
    let _second = add_file(control, 1, unlinked(&std::env::temp_dir()), 1);
    write(&pager, OBJECT, &pages(3, 256..512), true).unwrap();
    let number = control.fd_base.load(Ordering::Relaxed) + farpage_object::fds::SPILL + 1;
    let directory = std::os::fd::IntoRawFd::into_raw_fd(File::open("/").unwrap());
    let fd = |number| farpage_sys::file::Fd(number);
    farpage_sys::file::move_to(fd(directory), fd(number as i32), true).unwrap();
    let (supplied, got) = request(&pager, OBJECT, 250, 12).unwrap();
    assert_eq!(supplied.pages, 6);
    assert!(got[5] == contents(3, 255));
    let read = request(&pager, OBJECT, 256, 6);
    assert!(matches!(read, Err(PagerError::Read(_))), "{read:?}");
}

#[test]
fn pages_before_a_changed_one_elsewhere_are_supplied() {
    let (_, file, pager) = with_file(0, 16);
    for page in [0, 2, 4, 1, 3, 5] {
        write(&pager, OBJECT, &pages(3, page..page + 1), true).unwrap();
    }
    let mut block = Buffer::new(4096).unwrap();
    let slot_of_page_3 = 4 * 4096;
    file.read_at(&mut block, slot_of_page_3).unwrap();
    block[100] ^= 1;
    file.write_at(&block, slot_of_page_3).unwrap();
    assert_eq!(request(&pager, OBJECT, 0, 6).unwrap().0.pages, 3);
    assert_eq!(request(&pager, OBJECT, 3, 3), Err(PagerError::Corrupt));
    assert_eq!(request(&pager, OBJECT, 4, 2).unwrap().0.pages, 2);
}

#[test]
fn segments_that_a_full_file_does_not_take_stay_in_the_tier() {
    let (control, file, pager) = with_file(4 * MIB, 256);
    pager.drain();
    let mut taken = 0;
    let fill = |taken: &mut u64, until: u64| {
        while *taken < until {
            write(&pager, OBJECT, &pages(2, *taken..*taken + 64), true)?;
            *taken += 64;
        }
        Ok(())
    };
    fill(&mut taken, 4096).unwrap();
    let before = held(control);
    assert!(before > 4, "segments leave");
    let number = control.fd_base.load(Ordering::Relaxed) + farpage_object::fds::SPILL;
    let put = |file: &File| {
        let from = std::os::fd::IntoRawFd::into_raw_fd(file.try_clone().unwrap());
        let fd = |number| farpage_sys::file::Fd(number);
        farpage_sys::file::move_to(fd(from), fd(number as i32), true).unwrap();
    };
    let mut options = File::options();
    put(&options.read(true).write(true).open("/dev/full").unwrap());
    assert_eq!(fill(&mut taken, 1 << 20), Err(PagerError::OutOfSpace));
    put(&file);
    read_all(&pager, 2, 0..taken);
    pager.terminate(OBJECT);
    check_empty(control, 1);
}

#[test]
fn a_file_added_while_running_is_opened() {
    let (control, _first, pager) = with_file(0, 1);
    write(&pager, OBJECT, &pages(3, 0..256), true).unwrap();
    let kept = add_file(control, 1, unlinked(&std::env::temp_dir()), 4);
    let number = control.fd_base.load(Ordering::Relaxed) + farpage_object::fds::SPILL + 1;
    farpage_sys::file::close(farpage_sys::file::Fd(number as i32));
    write(&pager, OBJECT, &pages(3, 256..512), true).unwrap();
    assert!(kept.metadata().unwrap().len() >= MIB);
    read_all(&pager, 3, 0..512);
}

#[test]
fn pages_leave_a_file_that_is_removed() {
    let (control, file, pager) = with_file(MIB, 256);
    write(&pager, OBJECT, &pages(3, 0..600), true).unwrap();
    write(&pager, OBJECT, &pages(2, 600..3000), true).unwrap();
    let _second = add_file(control, 1, unlinked(&std::env::temp_dir()), 256);
    let state = &control.spill[0].state;
    state.store(SpillState::Draining as u32, Ordering::Release);
    let calls = (0..1000).take_while(|_| pager.drain()).count();
    assert!(calls < 1000, "it comes to an end");
    assert_eq!(control.spill[0].used_segments.load(Ordering::Relaxed), 0);
    let blocks = std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
    let allocated = u64::from(control.spill[0].allocated_segments.load(Ordering::Relaxed));
    assert!(blocks * 512 < allocated * MIB, "its disk space goes back");
    read_all(&pager, 3, 0..600);
    read_all(&pager, 2, 600..3000);
    pager.terminate(OBJECT);
    check_empty(control, 1);
}

#[test]
fn a_full_disk_is_out_of_space_and_loses_nothing() {
    unsafe extern "C" {
        fn mount(
            from: *const i8,
            to: *const i8,
            kind: *const i8,
            flags: u64,
            how: *const i8,
        ) -> i32;
        fn umount2(path: *const i8, flags: i32) -> i32;
    }
    let directory = std::env::temp_dir().join(format!("farpage-full-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = std::ffi::CString::new(directory.to_str().unwrap()).unwrap();
    let (kind, how) = (c"tmpfs".as_ptr(), c"size=5m".as_ptr());
    // SAFETY: all strings are alive.
    if unsafe { mount(kind, path.as_ptr(), kind, 0, how) } != 0 {
        println!("skipped: mounting needs root");
        return;
    }
    let control = control(0);
    let kept = add_file(control, 0, unlinked(&directory), 1 << 20);
    let pager = DefaultPager::new(control, 0).unwrap();
    let mut taken = 0;
    let error = loop {
        match write(&pager, OBJECT, &pages(3, taken..taken + 64), true) {
            Ok(()) => taken += 64,
            Err(error) => break error,
        }
    };
    assert_eq!(error, PagerError::OutOfSpace);
    assert!(taken >= 4 * 256, "{taken}");
    read_all(&pager, 3, 0..taken);
    for page in (0..taken).step_by(2) {
        pager.discard(OBJECT, PageRange::new(page, page + 1));
    }
    write(&pager, OBJECT, &pages(3, 5000..5256), true).unwrap();
    read_all(&pager, 3, 5000..5256);
    read_all(&pager, 3, 1..2);
    pager.terminate(OBJECT);
    check_empty(control, 1);
    drop((pager, kept));
    let number = control.fd_base.load(Ordering::Relaxed) + farpage_object::fds::SPILL;
    farpage_sys::file::close(farpage_sys::file::Fd(number as i32));
    // SAFETY: the string is alive.
    unsafe { umount2(path.as_ptr(), 2) };
    let _ = std::fs::remove_dir(&directory);
}

#[test]
fn a_refused_fork_leaves_nothing() {
    let (control, _file, pager) = with_file(0, 16);
    write(&pager, OBJECT, &pages(3, 0..600), true).unwrap();
    pager.before_fork(3);
    pager.after_fork_parent(false, 3);
    pager.terminate(OBJECT);
    check_empty(control, 4);
}

#[test]
fn dropping_the_pager_gives_everything_back() {
    let (control, _file, pager) = with_file(2 * MIB, 64);
    write(&pager, OBJECT, &pages(2, 0..3000), true).unwrap();
    drop(pager);
    check_empty(control, 1);
}

#[test]
fn all_of_this_holds_without_rings() {
    again_without_rings("failure");
}
