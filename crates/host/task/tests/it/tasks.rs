//! The nine operations on another task, by its port; tasks that are killed, and callers.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use farpage_port::{CallError, Message, Node};
use farpage_task::{
    BOUNDS, Inheritance, PAGE_BYTES as PAGE, Protection, Shortage, Task, TaskError, TaskPort,
    VmError,
};

use crate::support;
use crate::support::tasks::{Target, the_target};
use crate::support::{PATIENCE, own, pages};

#[test]
fn the_program() {
    the_target();
}

fn refusal<T: std::fmt::Debug>(result: Result<T, TaskError>) -> VmError {
    match result {
        Err(TaskError::Vm(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn all_nine_are_done_to_another_task() {
    farpage_testkit::in_own_process!();
    let target = Target::start("serve");
    let task = &target.task;
    let at = task.vm_allocate(0, 100 * PAGE, true).unwrap();
    assert!(BOUNDS.contains(&at));
    let data: Vec<u8> = (0..100).map(|page| page + 1).collect();
    // Long enough to be mapped there, and short enough not to be.
    task.vm_write(at, &pages(&data[..80])).unwrap();
    task.vm_write(at + 80 * PAGE, &pages(&data[80..])).unwrap();
    assert_eq!(target.get(at + 79 * PAGE) as u8, 80);
    target.set(at + 3 * PAGE, 3);
    let read = task.vm_read(at, 100 * PAGE).unwrap().map().unwrap();
    assert_eq!(
        (read[0], read[3 * PAGE as usize], read[99 * PAGE as usize]),
        (1, 3, 100)
    );

    let copy = task.vm_allocate(0, 100 * PAGE, true).unwrap();
    task.vm_copy(at, 100 * PAGE, copy).unwrap();
    target.set(at, 55);
    assert_eq!(
        (target.get(copy) as u8, target.get(copy + 3 * PAGE)),
        (1, 3)
    );

    task.vm_protect(at, PAGE, true, Protection::READ).unwrap();
    task.vm_inherit(at + PAGE, PAGE, Inheritance::Share)
        .unwrap();
    let told = task.vm_regions(at, 3 * PAGE).unwrap();
    assert_eq!(told[0].max_protection, Protection::READ);
    assert!(told[1].is_shared && !told[2].is_shared);
    assert_eq!(
        told.iter().map(|region| region.bytes).sum::<u64>(),
        3 * PAGE
    );

    let before = task.vm_statistics().unwrap();
    assert_eq!(
        (before.allocated_bytes, before.shared_bytes),
        (200 * PAGE, PAGE)
    );
    task.vm_deallocate(copy, 100 * PAGE).unwrap();
    assert_eq!(task.vm_statistics().unwrap().allocated_bytes, 100 * PAGE);
    target.ends_well();
}

#[test]
fn what_is_refused_there_is_refused_here_and_changes_nothing() {
    farpage_testkit::in_own_process!();
    let target = Target::start("serve");
    let task = &target.task;
    let at = task.vm_allocate(0, 4 * PAGE, true).unwrap();
    task.vm_write(at, &pages(&[1, 2, 3, 4])).unwrap();
    task.vm_protect(at + PAGE, PAGE, true, Protection::READ)
        .unwrap();
    let before = task.vm_regions(BOUNDS.start, 1 << 40).unwrap();
    let code = |error: VmError| error.code();
    assert_eq!(code(refusal(task.vm_allocate(at, PAGE, false))), 3);
    assert_eq!(code(refusal(task.vm_allocate(0, PAGE, false))), 1);
    assert_eq!(code(refusal(task.vm_copy(at, 2 * PAGE, at + 3 * PAGE))), 1);
    assert_eq!(code(refusal(task.vm_copy(at, PAGE, at + PAGE))), 2);
    assert_eq!(code(refusal(task.vm_copy(at + 1, PAGE, at))), 4);
    assert_eq!(code(refusal(task.vm_deallocate(at, 5 * PAGE))), 1);
    assert_eq!(
        code(refusal(task.vm_inherit(at, 5 * PAGE, Inheritance::Share))),
        1
    );
    assert_eq!(
        code(refusal(task.vm_protect(
            at,
            2 * PAGE,
            false,
            Protection::ALL
        ))),
        2
    );
    assert_eq!(code(refusal(task.vm_read(at, 5 * PAGE))), 1);
    assert_eq!(code(refusal(task.vm_read(at, 7))), 4);
    assert_eq!(code(refusal(task.vm_regions(at + 4 * PAGE, PAGE))), 3);
    assert_eq!(code(refusal(task.vm_write(at, &pages(&[0, 0])))), 2);
    assert_eq!(code(refusal(task.vm_write(at, &[0; 5]))), 4);
    assert_eq!(task.vm_regions(BOUNDS.start, 1 << 40).unwrap(), before);
    let bytes = task.vm_read(at, 4 * PAGE).unwrap().map().unwrap();
    assert_eq!(bytes[..], pages(&[1, 2, 3, 4]));
    target.ends_well();
}

#[test]
fn memory_goes_from_task_to_task_and_nobody_has_a_copy_of_it_between() {
    farpage_testkit::in_own_process!();
    let (one, other) = (Target::start("serve"), Target::start("serve"));
    let from = one.task.vm_allocate(0, 4 << 20, true).unwrap();
    let to = other.task.vm_allocate(0, 4 << 20, true).unwrap();
    one.set(from, 1);
    one.set(from + (2 << 20), 2);
    let bytes = one.task.vm_read(from, 4 << 20).unwrap();
    one.set(from, 9);
    other.task.vm_write_memory(to, bytes.into()).unwrap();
    assert_eq!((other.get(to), other.get(to + (2 << 20))), (1, 2));
    other.set(to, 8);
    assert_eq!((one.get(from), other.get(to)), (9, 8));
    let told = other.task.vm_statistics().unwrap();
    assert_eq!(told.copy_bytes, 4 << 20);
    one.ends_well();
    assert_eq!(
        other.get(to + (2 << 20)),
        2,
        "its first owner is not needed"
    );
    other.ends_well();
}

#[test]
fn a_task_works_on_itself_by_its_own_port_until_that_is_dropped() {
    farpage_testkit::in_own_process!();
    let node = Node::new().unwrap();
    let mut port = Some(TaskPort::offer(&node).unwrap());
    let task = Task::new(port.as_ref().unwrap().right()).with_timeout(PATIENCE);
    let at = task.vm_allocate(0, PAGE, true).unwrap();
    support::set(at, 3);
    assert_eq!(task.vm_read(at, PAGE).unwrap().map().unwrap()[0], 3);
    support::Forked::new(|| {
        assert_eq!(support::get(at), 3);
        // The port is its parent's, and stays so.
        drop(port.take());
        let node = Node::new().unwrap();
        let port = TaskPort::offer(&node).unwrap();
        let child = Task::new(port.right()).with_timeout(PATIENCE);
        child.vm_write(at, &pages(&[7])).unwrap();
        assert_eq!(support::get(at) as u8, 7);
        std::mem::forget((child, port, node));
    })
    .ends_well();
    assert_eq!(support::get(at), 3);
    assert_eq!(task.vm_read(at, PAGE).unwrap().map().unwrap()[0], 3);
    drop(port);
    let began = Instant::now();
    loop {
        match task.vm_statistics() {
            Ok(_) => assert!(began.elapsed() < PATIENCE, "it is served still"),
            Err(TaskError::Call(_)) => break,
            Err(other) => panic!("{other}"),
        }
    }
    own().vm_deallocate(at, PAGE).unwrap();
}

#[test]
fn callers_of_a_task_that_is_killed_in_the_middle_are_told() {
    farpage_testkit::in_own_process!();
    for _ in 0..10 {
        let mut target = Target::start("serve");
        let done = AtomicU64::new(0);
        let node = target.node.clone();
        std::thread::scope(|scope| {
            let calling = scope.spawn(|| {
                loop {
                    if let Err(error) = support::tasks::all(&target.task) {
                        return error;
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
            farpage_testkit::until("three are done", || done.load(Ordering::Relaxed) >= 3);
            support::tasks::kill(target.child.id());
            let error = calling.join().unwrap();
            assert!(matches!(error, TaskError::Call(_)), "{error}");
        });
        target.child.wait().unwrap();
        assert!(target.task.right().is_dead());
        // The Node goes on.
        let port = node.port();
        port.make_send()
            .send(Message::new(1), Some(PATIENCE))
            .unwrap();
    }
}

#[test]
fn a_caller_that_is_killed_in_the_middle_harms_neither_the_task_nor_others() {
    farpage_testkit::in_own_process!();
    let target = Target::start("serve");
    let task = &target.task;
    let at = task.vm_allocate(0, 64 * PAGE, true).unwrap();
    target.set(at, 42);
    let descriptors = target.descriptors();
    for _ in 0..8 {
        let mut caller = target.caller();
        caller.has_begun();
        // An honest one goes on meanwhile.
        for _ in 0..5 {
            assert_eq!(task.vm_read(at, 64 * PAGE).unwrap().map().unwrap()[0], 42);
        }
        support::tasks::kill(caller.0.id());
        caller.0.wait().unwrap();
    }
    // What they left is whole: it can be given back. What the last one asked for may come meanwhile: it makes
    // memory, or gives back what was found just now.
    let began = Instant::now();
    let is_left = || {
        let allocated = task.vm_statistics().unwrap().allocated_bytes;
        allocated > 0 || !target.maps_in_bounds().is_empty()
    };
    while is_left() {
        assert!(began.elapsed() < PATIENCE, "memory stays allocated");
        for region in task
            .vm_regions(BOUNDS.start, BOUNDS.end - BOUNDS.start)
            .unwrap()
        {
            let _ = task.vm_deallocate(region.address, region.bytes);
        }
    }
    assert!(
        target.maps_in_bounds().is_empty(),
        "{:?}",
        target.maps_in_bounds()
    );
    let began = Instant::now();
    while target.descriptors().len() > descriptors.len() {
        assert!(
            began.elapsed() < PATIENCE,
            "{:#?} were {descriptors:#?}",
            target.descriptors()
        );
        std::thread::yield_now();
    }
    target.ends_well();
}

#[test]
fn who_has_the_port_cannot_take_all_mappings_and_descriptors() {
    farpage_testkit::in_own_process!();
    let target = Target::start("serve");
    let task = &target.task;
    let at = task.vm_allocate(0, 1 << 30, true).unwrap();
    let mut refused = None;
    for page in (0..1 << 18).step_by(2) {
        let set = task.vm_protect(at + page * PAGE, PAGE, false, Protection::READ);
        if let Err(error) = set {
            refused = Some((page, error));
            break;
        }
    }
    let (page, error) = refused.expect("a limit");
    assert!(page > 1000, "{page}");
    assert_eq!(
        refusal::<()>(Err(error)),
        VmError::ResourceShortage(Shortage::Regions)
    );
    task.vm_deallocate(at, PAGE)
        .expect("what is a piece can be given back");
    task.vm_deallocate(at + (1 << 29), PAGE)
        .expect("also between others");
    let mut all = Vec::new();
    let shared = loop {
        match task.vm_allocate(0, 64 * PAGE, true) {
            Ok(at) => all.push(at),
            Err(error) => break refusal::<()>(Err(error)),
        }
        let at = all[all.len() - 1];
        if let Err(error) = task.vm_inherit(at, PAGE, Inheritance::Share) {
            break refusal::<()>(Err(error));
        }
    };
    assert_eq!(shared, VmError::ResourceShortage(Shortage::Regions));
    task.vm_deallocate(at + PAGE, (1 << 29) - PAGE).unwrap();
    let shared = loop {
        let at = task.vm_allocate(0, 64 * PAGE, true).unwrap();
        all.push(at);
        if let Err(error) = task.vm_inherit(at, PAGE, Inheritance::Share) {
            break refusal::<()>(Err(error));
        }
    };
    assert_eq!(shared, VmError::ResourceShortage(Shortage::Descriptors));
    let descriptors = target.descriptors().len();
    assert!(descriptors < 400, "{descriptors}");
    // Long copies are made byte by byte then.
    let last = all[all.len() - 1];
    target.set(all[0], 5);
    task.vm_copy(all[0], 64 * PAGE, last).unwrap();
    assert_eq!(target.get(last), 5);
    target.ends_well();
}

#[test]
fn garbage_is_answered_and_does_nothing() {
    farpage_testkit::in_own_process!();
    let target = Target::start("serve");
    let at = target.task.vm_allocate(0, 8 * PAGE, true).unwrap();
    target.set(at, 42);
    let before = target.task.vm_regions(at, 8 * PAGE).unwrap();
    let mut seed = 1u64;
    let mut random = || {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        seed >> 33
    };
    for round in 0..3000 {
        let bytes = (0..random() % 100).map(|_| random() as u8).collect();
        let mut message = Message {
            bytes,
            ..Message::new((random() % 12) as u32)
        };
        if round % 3 == 0 && message.bytes.len() >= 12 {
            // The right interface, and garbled arguments.
            message.bytes[..4].copy_from_slice(&support::tasks::interface_number());
            message.bytes[4..12].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0]);
        }
        if round % 7 == 0 {
            message.id = u32::MAX;
        }
        match target.task.right().call(message, Some(PATIENCE)) {
            Ok(_) | Err(CallError::Unanswered) => {}
            Err(error) => panic!("{error}"),
        }
    }
    target.attack_by_numbers();
    assert_eq!(target.get(at), 42);
    assert_eq!(target.task.vm_regions(at, 8 * PAGE).unwrap(), before);
    target.ends_well();
}
