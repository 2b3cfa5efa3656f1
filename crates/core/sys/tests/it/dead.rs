//! Who answers for a view may die at any moment.
#![cfg(feature = "std")]

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use farpage_sys::uffd::{Uffd, with_device};
use farpage_sys::view::View;
use farpage_sys::{copy, file};

const PAGE: usize = 4096;

#[test]
fn a_thread_that_was_let_in_and_not_woken_goes_on_when_nobody_answers_any_more() {
    let memory = file::memfd(c"dead", 0).unwrap();
    file::set_size(memory, PAGE as u64).unwrap();
    let view = with_device(|device| View::map(memory, PAGE, device)).unwrap();
    let (says, said) = channel();
    let at = view.address();
    thread::spawn(move || says.send(copy::from(at, &mut [0])));
    let uffd = Uffd(view.userfaultfd());
    let fault = loop {
        if let [fault] = uffd.faults::<1>().unwrap().as_slice() {
            break fault.address;
        }
        thread::yield_now();
    };
    file::allocate(memory, 0, PAGE as u64).unwrap();
    assert_eq!(uffd.map_in(fault & !(PAGE - 1), PAGE, false).bytes, PAGE);
    // Who let it in is dead before it wakes it.
    view.fail();
    let read = said.recv_timeout(Duration::from_secs(120));
    assert_eq!(read.expect("it does not wait for ever"), Ok(()));
}
