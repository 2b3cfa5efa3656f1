//! Page-out and page-in allocate nothing once the pager has seen as many pages.
#![allow(unsafe_code)]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use farpage_abi::PageIndex;
use farpage_pagers::{PageOut, Pager};
use support::*;

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
