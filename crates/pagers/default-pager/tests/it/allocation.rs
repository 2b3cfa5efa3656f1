//! Page-out and page-in allocate nothing once the pager has seen as many pages.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use farpage_object::{PageIndex, PageOut, Pager};

use crate::support::*;

struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: all is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: forwarded.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: forwarded.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn page_out_allocates_nothing_for_records_and_little_for_raw_segments() {
    for (kind, allowed) in [(1, 0), (3, 2)] {
        let (_control, _file, pager) = with_file(4 * MIB, 64);
        let pages: Vec<_> = (0..1024).map(|page| contents(kind, page)).collect();
        let outs = |first: u64| {
            pages.iter().zip(first..).map(|(bytes, page)| PageOut {
                page: PageIndex(page),
                bytes,
            })
        };
        let outs: Vec<PageOut<'_>> = outs(0).collect();
        for _ in 0..3 {
            pager.data_write(OBJECT, &outs).unwrap();
        }
        let before = COUNT.get();
        for _ in 0..10 {
            pager.data_write(OBJECT, &outs).unwrap();
        }
        let segments = if kind == 3 { 40 } else { 0 };
        let count = COUNT.get() - before;
        assert!(
            count <= allowed * segments,
            "kind {kind}: {count} allocations"
        );
    }
}

#[test]
fn page_out_to_a_file_allocates_nothing_for_records() {
    let (control, _file, pager) = with_file(2 * MIB, 256);
    pager.drain();
    let half = |page| {
        let mut bytes = contents(3, page);
        bytes[2048..].fill(0);
        bytes
    };
    let pages: Vec<_> = (0..8192).map(half).collect();
    let outs = pages.iter().zip(0..).map(|(bytes, page)| PageOut {
        page: PageIndex(page),
        bytes,
    });
    let outs: Vec<PageOut<'_>> = outs.collect();
    for _ in 0..3 {
        pager.data_write(OBJECT, &outs).unwrap();
    }
    assert!(held(control) > 10, "segments leave");
    let before = COUNT.get();
    for _ in 0..3 {
        pager.data_write(OBJECT, &outs).unwrap();
    }
    assert_eq!(COUNT.get(), before);
}

#[test]
fn reads_from_many_places_allocate_nothing() {
    let (_control, _file, pager) = with_file(0, 64);
    for page in (0..64).step_by(2).chain((1..64).step_by(2)) {
        write(&pager, OBJECT, &[(page, contents(3, page))], true).unwrap();
    }
    let mut buffer = farpage_sys::buffer::Buffer::new(16 * 4096).unwrap();
    let mut read = |first| {
        let supplied = pager.data_request_strided(OBJECT, PageIndex(first), 1, &mut buffer);
        assert_eq!(supplied.map(|supplied| supplied.pages), Ok(16));
    };
    let before = COUNT.get();
    (0..4).for_each(|part| read(part * 16));
    assert_eq!(COUNT.get(), before);
}

#[test]
fn all_of_this_holds_without_rings() {
    again_without_rings("allocation");
}
