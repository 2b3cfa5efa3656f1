//! A heap in a forked child.
#![allow(unsafe_code)]

use std::sync::atomic::AtomicU64;

use farpage_client::heap::{AllocateError, FreeError, Heap, Kind};

unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn _exit(code: i32) -> !;
}

#[test]
fn a_forked_child_is_told_to_open_it_again() {
    let memory: Vec<AtomicU64> = (0..1 << 16).map(|_| AtomicU64::new(0)).collect();
    let heap = Heap::open(&memory[..]).unwrap();
    let block = heap.allocate(Kind::BYTES, 16).unwrap();
    // SAFETY: the child calls nothing but the heap, which takes no lock that the parent may hold.
    let child = unsafe { fork() };
    if child == 0 {
        let refused = heap.allocate(Kind::BYTES, 16) == Err(AllocateError::Forked)
            && heap.free(block) == Err(FreeError::Forked);
        // SAFETY: ends the child.
        unsafe { _exit(i32::from(!refused)) };
    }
    let mut status = -1;
    // SAFETY: the child is this test's own.
    let waited = unsafe { waitpid(child, &mut status, 0) };
    assert_eq!((waited, status), (child, 0));
    heap.free(block).unwrap();
    heap.check().unwrap();
}
