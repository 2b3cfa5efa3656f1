//! What ports and rights cost, in bytes that the allocator handed out.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use farpage_rights::{Got, LinkId, Message, Name, Output, Space, TaskId};

use crate::support::*;

struct Counting;

thread_local! {
    static BYTES: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: all is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.set(BYTES.get() + layout.size() as isize);
        // SAFETY: forwarded.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.set(BYTES.get() - layout.size() as isize);
        // SAFETY: forwarded.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MILLION: usize = 1_000_000;

#[test]
fn a_million_ports_with_a_million_rights_take_less_than_100_bytes_a_pair() {
    let before = BYTES.get();
    let mut space = Space::new(TaskId(1));
    for _ in 0..MILLION {
        let port = space.allocate_port();
        space.insert(make_send(port)).unwrap();
    }
    let each = (BYTES.get() - before) as f64 / MILLION as f64;
    println!("a port, its receive right and a send right: {each:.1} bytes");
    assert!(each <= 100.0, "{each} bytes");
}

#[test]
fn a_send_once_right_takes_less_than_100_bytes() {
    let mut space = Space::new(TaskId(1));
    let port = space.allocate_port();
    let before = BYTES.get();
    for _ in 0..MILLION {
        space.insert(make_send_once(port)).unwrap();
    }
    let each = (BYTES.get() - before) as f64 / MILLION as f64;
    println!("a send-once right: {each:.1} bytes");
    assert!(each <= 100.0, "{each} bytes");
}

/// Passes all frames from one Space to the other.
fn carry(from: &mut Space, to: &mut Space) {
    while let Some(output) = from.poll_output() {
        let Output::Frame {
            link,
            frame,
            descriptors,
        } = output
        else {
            panic!("{output:?}");
        };
        to.handle_frame(link, frame, descriptors).unwrap();
    }
}

#[test]
fn rights_to_ports_of_another_task_take_less_than_200_bytes_on_each_side() {
    let link = LinkId(1);
    let (mut owner, mut holder) = (Space::new(TaskId(1)), Space::new(TaskId(2)));
    owner.link_up(link, TaskId(2), 0).unwrap();
    holder.link_up(link, TaskId(1), 0).unwrap();
    let to = holder.allocate_port();
    owner.expect_offer(0);
    holder.offer(link, 0, make_send(to)).unwrap();
    carry(&mut holder, &mut owner);
    let Some(Output::Offered {
        right: Got::Send(sent),
        ..
    }) = owner.poll_output()
    else {
        panic!("nothing was offered");
    };
    let ports: Vec<Name> = (0..100_000).map(|_| owner.allocate_port()).collect();
    let (mut of_owner, mut of_holder) = (0, 0);
    for port in ports {
        let before = BYTES.get();
        let mut message = Message::new(copy_send(sent), 0);
        message.rights = vec![make_send(port)];
        owner.send(message).unwrap();
        let between = BYTES.get();
        carry(&mut owner, &mut holder);
        of_owner += between - before;
        holder.receive(to).unwrap();
        carry(&mut holder, &mut owner);
        of_holder += BYTES.get() - between;
    }
    let each = |bytes: isize| bytes as f64 / 1e5;
    println!("owner and holder: {:.1} bytes", each(of_owner + of_holder));
    assert!(each(of_owner + of_holder) <= 400.0);
}
