//! Reads that go out together: where rings can be made, where not, and where they stop working.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering;

use farpage_default_pager::DefaultPager;
use farpage_object::{Control, Pager, RINGS, fds};
use farpage_sys::file::{self, Fd};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, probe, syscall};

use crate::support::*;

const PAGES: u64 = 64;

/// A pager whose pages lie in a paging file, no two neighbours side by side.
fn scattered() -> (&'static Control, std::fs::File, DefaultPager) {
    let (control, file, pager) = with_file(0, 64);
    for page in (0..PAGES).step_by(2).chain((1..PAGES).step_by(2)) {
        write(&pager, OBJECT, &[(page, contents(3, page))], true).unwrap();
    }
    (control, file, pager)
}

/// Reads everything, sixteen pages at a time.
fn read_all(pager: &DefaultPager) {
    for first in (0..PAGES).step_by(16) {
        let (supplied, pages) = request(pager, OBJECT, first, 16).unwrap();
        assert_eq!(supplied.pages, 16, "one answer, wherever they lie");
        for (page, number) in pages.iter().zip(first..) {
            assert!(*page == contents(3, number), "page {number}");
        }
    }
}

fn ring_of(control: &Control, number: u32) -> Fd {
    Fd((control.fd_base.load(Ordering::Relaxed) + fds::RING + number) as i32)
}

fn rings_made(control: &Control) -> usize {
    let is_ring = |number: &u32| {
        let path = format!("/proc/self/fd/{}", ring_of(control, *number).0);
        let name = std::fs::read_link(path);
        name.is_ok_and(|name| name.to_string_lossy().contains("io_uring"))
    };
    (0..RINGS as u32).filter(is_ring).count()
}

/// False, with a word about it, where rings cannot be made at all.
fn possible() -> bool {
    let answer = probe::io_uring();
    if let Err(errno) = answer {
        println!("skipped: io_uring_setup says {errno}");
    }
    answer.is_ok()
}

#[test]
fn a_ring_is_made_when_it_is_needed_and_closed_with_its_pager() {
    if !possible() {
        return;
    }
    let (control, _file, pager) = scattered();
    assert_eq!(rings_made(control), 0, "nothing was read");
    request(&pager, OBJECT, 0, 1).unwrap();
    read_all(&pager);
    assert_eq!(rings_made(control), 1, "one thread needs one");
    drop(pager);
    assert_eq!(rings_made(control), 0);
}

#[test]
fn pages_in_steps_come_in_one_answer() {
    let (_control, _file, pager) = scattered();
    let (supplied, pages) = request_strided(&pager, OBJECT, 60, -5, 12).unwrap();
    assert_eq!(supplied.pages, 12);
    for (page, index) in pages.iter().zip(0..) {
        assert!(
            *page == contents(3, 60 - 5 * index),
            "page {}",
            60 - 5 * index
        );
    }
    let end = request_strided(&pager, OBJECT, 50, 10, 12).unwrap().0;
    assert_eq!(end.pages, 2, "there is no page 70");
}

#[test]
fn records_in_steps_come_in_one_answer() {
    let (control, _file, pager) = with_file(MIB, 256);
    let pages: Vec<_> = (0..20_000).map(|page| (page, contents(2, page))).collect();
    write(&pager, OBJECT, &pages, true).unwrap();
    assert!(held(control) > 20);
    let (supplied, got) = request_strided(&pager, OBJECT, 3, 600, 16).unwrap();
    assert_eq!(supplied.pages, 16);
    for (page, index) in got.iter().zip(0..) {
        assert!(*page == contents(2, 3 + 600 * index));
    }
}

#[test]
fn no_ring_is_made_where_none_may_be_used() {
    let (control, _file, pager) = scattered();
    control.io_uring.store(0, Ordering::Relaxed);
    read_all(&pager);
    assert_eq!(rings_made(control), 0);
}

#[test]
fn a_ring_is_not_used_after_permission_was_withdrawn() {
    let (control, _file, pager) = scattered();
    pager.withdraw_rings();
    read_all(&pager);
    assert_eq!(rings_made(control), 0);
}

#[test]
fn a_ring_whose_descriptor_is_gone_or_another_costs_nothing_but_time() {
    let (control, _file, pager) = scattered();
    read_all(&pager);
    file::close(ring_of(control, 0));
    read_all(&pager);
    let other = file::memfd(c"other", 0).unwrap();
    file::move_to(other, ring_of(control, 0), true).unwrap();
    read_all(&pager);
}

#[test]
fn several_threads_have_rings_of_their_own() {
    let (_control, _file, pager) = scattered();
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| (0..20).for_each(|_| read_all(&pager)));
        }
    });
}

#[test]
fn segments_are_written_behind_and_nothing_is_lost_when_the_writes_are_in_doubt() {
    if !possible() {
        return;
    }
    let (control, _file, pager) = with_file(2 * MIB, 256);
    let ring = ring_of(control, RINGS as u32 - 1);
    let number = |part: u64| part * 64..(part + 1) * 64;
    for part in 0..200 {
        let pages: Vec<_> = number(part).map(|page| (page, contents(2, page))).collect();
        write(&pager, OBJECT, &pages, true).unwrap();
        match part {
            60 => {
                assert_eq!(
                    rings_made(control),
                    0,
                    "only the page-out thread writes behind"
                );
                pager.drain();
            }
            100 => assert_eq!(rings_made(control), 1),
            130 => file::close(ring),
            160 => pager.withdraw_rings(),
            _ => {}
        }
    }
    let mut page = 0;
    while page < 200 * 64 {
        let (_, got) = request(&pager, OBJECT, page, 64).unwrap();
        for bytes in got {
            assert!(bytes == contents(2, page), "page {page}");
            page += 1;
        }
    }
    pager.terminate(OBJECT);
    check_empty(control, 1);
}

/// Makes system calls `refused` fail in this thread.
fn refuse(refused: [u32; 2]) {
    let instruction = |code: u16, jt: u8, jf: u8, k: u32| {
        u64::from(code) | u64::from(jt) << 16 | u64::from(jf) << 24 | u64::from(k) << 32
    };
    let (equal, answer) = (0x15, 0x06);
    let code = [
        instruction(0x20, 0, 0, 0),
        instruction(equal, 2, 0, refused[0]),
        instruction(equal, 1, 0, refused[1]),
        instruction(answer, 0, 0, 0x7fff_0000),
        instruction(answer, 0, 0, 0x0005_0000 | Errno::EPERM.0 as u32),
    ];
    let filter = [code.len(), code.as_ptr() as usize];
    let (no_new_privileges, set_filter) = (38, 1);
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_prctl, no_new_privileges, 1, 0, 0, 0) }.unwrap();
    // SAFETY: `filter` is a `sock_fprog`; it and its code live for the call.
    unsafe { syscall!(g::__NR_seccomp, set_filter, 0, filter.as_ptr()) }.unwrap();
}

#[test]
fn a_filter_that_refuses_rings_is_not_noticed() {
    let (control, _file, pager) = scattered();
    let refused = std::thread::spawn(move || {
        refuse([g::__NR_io_uring_setup, g::__NR_io_uring_enter]);
        assert_eq!(probe::io_uring(), Err(Errno::EPERM));
        read_all(&pager);
    });
    refused.join().unwrap();
    assert_eq!(rings_made(control), 0);
}

#[test]
fn a_filter_that_comes_after_the_ring_is_not_noticed() {
    let (_control, _file, pager) = scattered();
    read_all(&pager);
    let refused = std::thread::spawn(move || {
        refuse([g::__NR_io_uring_setup, g::__NR_io_uring_enter]);
        read_all(&pager);
    });
    refused.join().unwrap();
}

#[test]
fn a_forked_child_makes_rings_of_its_own() {
    unsafe extern "C" {
        fn fork() -> i32;
        fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
        fn _exit(code: i32) -> !;
    }
    let (control, _file, pager) = scattered();
    read_all(&pager);
    let before = rings_made(control);
    pager.before_fork(1);
    // SAFETY: the child only uses the pager, and leaves.
    let child = unsafe { fork() };
    if child == 0 {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pager.after_fork_child(1);
            assert_eq!(rings_made(control), 0, "the parent's is let go of");
            (0..20).for_each(|_| read_all(&pager));
            assert_eq!(rings_made(control), before);
        }));
        // SAFETY: takes no pointer.
        unsafe { _exit(i32::from(result.is_err())) }
    }
    pager.after_fork_parent(child > 0, 1);
    (0..20).for_each(|_| read_all(&pager));
    let mut status = 0;
    // SAFETY: `status` is valid for a write.
    assert_eq!(unsafe { waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child found something wrong");
    read_all(&pager);
    assert_eq!(rings_made(control), before);
}
