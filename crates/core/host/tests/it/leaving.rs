//! What leaves memory first, and what happens when nothing can.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use farpage_host::{Object, Objects, What};
use farpage_object::{PAGE_BYTES, PageRange};
use farpage_sys::file::Fd;
use farpage_sys::view::View;
use farpage_sys::{mem, message, socket};
use farpage_testkit::{HANGS, Thread, until};

use crate::support::{Store, mapped, pair};

const PROGRAM: &str = "FARPAGE_TEST_TOUCHES";

fn write(view: &View, page: u64) {
    view.word(page as usize * PAGE_BYTES)
        .store(page + 1, Ordering::Relaxed);
}

fn read(view: &View, page: u64) -> u64 {
    view.word(page as usize * PAGE_BYTES)
        .load(Ordering::Relaxed)
}

#[test]
fn what_others_write_back_just_then_is_waited_for() {
    let store = Store::new(0);
    let objects = Objects::start(64 << 20).unwrap();
    let (object, view) = mapped(objects, &store, 16);
    write(&view, 3);
    let all = PageRange::new(0, 16);
    let taken = AtomicBool::new(false);
    thread::scope(|scope| {
        let held = store.pages.lock().unwrap();
        scope.spawn(|| object.clean(all).unwrap());
        farpage_testkit::until("the pager is asked", || object.figures().pager.open > 0);
        let (tells, told) = channel();
        let (object, taken) = (&object, &taken);
        scope.spawn(move || {
            tells.send(Thread::current()).unwrap();
            object.clean(all).unwrap();
            assert!(taken.load(Ordering::Relaxed), "the pager does not have it");
        });
        told.recv().unwrap().until_it_waits("who cleans as well");
        taken.store(true, Ordering::Relaxed);
        drop(held);
    });
    assert_eq!(store.pages.lock().unwrap().len(), 1);
}

#[test]
fn what_is_used_all_the_time_stays_while_a_scan_goes_by() {
    const PAGES: u64 = 8192;
    const HOT: u64 = 512;
    const RAM: u64 = 2048;
    const LAPS: u64 = 3;
    let store = Store::new(HOT);
    let objects = Objects::start(RAM * PAGE_BYTES as u64).unwrap();
    let (object, view) = mapped(objects, &store, PAGES);
    (0..PAGES).for_each(|page| write(&view, page));
    store.asked_hot.store(0, Ordering::Relaxed);
    let mut used = 0;
    for _ in 0..LAPS {
        for page in HOT..PAGES {
            assert_eq!(read(&view, page), page + 1);
            if page % 64 == 0 {
                for hot in 0..HOT {
                    assert_eq!(read(&view, hot), hot + 1);
                    used += 1;
                }
            }
        }
    }
    let asked = store.asked_hot.load(Ordering::Relaxed);
    let figures = object.figures();
    println!("{used} uses of {HOT} hot pages: {asked} were asked for; {figures:?}");
    // In the order of their arrival all of them leave once for each time that the rest of memory is
    // filled.
    let in_order = LAPS * (PAGES - HOT) / (RAM - HOT) * HOT;
    assert!(asked < in_order / 2, "{asked} of {in_order} were asked for");
    assert!(figures.put_back > 0 && figures.faults.count() > 100);
    assert!(figures.faults.quantile_ns(0.99) >= figures.faults.quantile_ns(0.5));
}

/// Writes to a page of an object that it has mapped; it is told which.
#[test]
fn the_program() {
    if std::env::var(PROGRAM).is_err() {
        return;
    }
    let socket = std::io::stdin();
    let receive = || {
        let mut bytes = [0; 8];
        let (_, fd) = message::wait(socket.as_fd(), &mut bytes).unwrap();
        (u64::from_le_bytes(bytes), fd)
    };
    let (pages, file) = receive();
    let file = Fd(file.as_ref().unwrap().as_raw_fd());
    let view = View::map(file, pages as usize * PAGE_BYTES, None).unwrap();
    let own = Fd(socket.as_raw_fd());
    let address = (view.address() as u64).to_le_bytes();
    socket::send(own, &address, Some(view.userfaultfd())).unwrap();
    let (page, _) = receive();
    write(&view, page);
}

/// How another process ends that writes to a page.
fn writes_elsewhere(objects: &Objects, object: &Arc<Object>, page: u64) -> Option<i32> {
    let (own, its) = pair();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["leaving::the_program", "--exact", "--nocapture"]);
    command.env(PROGRAM, "1").stdin(Stdio::from(its));
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let pages = object.pages();
    let socket = Fd(own.as_raw_fd());
    socket::send(socket, &pages.to_le_bytes(), Some(object.descriptor())).unwrap();
    let mut bytes = [0; 8];
    let (_, faults) = message::wait(own.as_fd(), &mut bytes).unwrap();
    let space = objects.attach(faults.unwrap()).unwrap();
    let address = u64::from_le_bytes(bytes) as usize;
    let all = PageRange::new(0, pages);
    objects.map(space, object, address, all).unwrap();
    socket::send(socket, &page.to_le_bytes(), None).unwrap();
    let status = child.wait().unwrap();
    objects.detach(space);
    status.signal()
}

#[test]
fn an_object_that_nobody_uses_gives_way_to_one_that_is_used() {
    const RAM: u64 = 1024;
    let store = Store::new(0);
    let objects = Objects::start(RAM * PAGE_BYTES as u64).unwrap();
    let (idle, old) = mapped(objects, &store, RAM);
    let (_, used) = mapped(objects, &store, 4 * RAM);
    (0..RAM * 3 / 4).for_each(|page| write(&old, page));
    farpage_testkit::until("what nobody uses has left", || {
        (0..4 * RAM).for_each(|page| write(&used, page));
        idle.resident() <= RAM / 16
    });
    (0..RAM * 3 / 4).for_each(|page| assert_eq!(read(&old, page), page + 1));
}

#[test]
fn new_pages_are_refused_while_nothing_can_leave_and_there_are_some_when_it_can() {
    const RAM: u64 = 1024;
    let store = Store::new(0);
    let objects = Objects::start(RAM * PAGE_BYTES as u64).unwrap();
    let (object, view) = mapped(objects, &store, 4 * RAM);
    // A third of it has left before.
    let written = RAM + RAM / 3;
    (0..written).for_each(|page| write(&view, page));
    farpage_testkit::until("a third has left", || {
        objects.resident_bytes() <= RAM * PAGE_BYTES as u64
    });
    assert_eq!((objects.no_room(), objects.has_room(RAM)), (None, true));
    store.is_full.store(true, Ordering::Relaxed);
    // What there is comes and is written to, and is more than fits.
    (0..written).for_each(|page| write(&view, page));
    farpage_testkit::until("there is no room", || objects.no_room().is_some());
    assert!(!objects.has_room(1));
    let new = 3 * RAM;
    assert_eq!(writes_elsewhere(objects, &object, new), Some(7), "SIGBUS");
    assert_eq!(writes_elsewhere(objects, &object, 3), None, "it exists");
    assert_eq!(objects.no_room().unwrap().refused, 1);
    (0..written).for_each(|page| assert_eq!(read(&view, page), page + 1));
    assert!(objects.resident_bytes() <= (written + 16) * PAGE_BYTES as u64);
    store.is_full.store(false, Ordering::Relaxed);
    farpage_testkit::until("there is room again", || objects.no_room().is_none());
    assert_eq!(writes_elsewhere(objects, &object, new), None);
    (0..written).for_each(|page| assert_eq!(read(&view, page), page + 1));
    assert!(objects.has_room(1));
}

#[test]
fn an_object_that_cannot_keep_to_what_it_may_have_is_tried_now_and_then() {
    const MOST: u64 = 256 * PAGE_BYTES as u64;
    let store = Store::new(0);
    let objects = Objects::start(64 << 20).unwrap();
    let (object, view) = mapped(objects, &store, 1024);
    store.is_full.store(true, Ordering::Relaxed);
    (0..1024).for_each(|page| write(&view, page));
    object.set_most(MOST).unwrap();
    let began = Instant::now();
    farpage_testkit::pass(Duration::from_secs(1));
    // It may have a page or two that are needed all the same, while there is room.
    (0..1024).for_each(|page| assert_eq!(read(&view, page), page + 1));
    let refused = object.figures().pager.errors;
    let seconds = began.elapsed().as_secs_f64();
    let most = 1 + (200.0 * seconds) as u64;
    assert!(refused < most, "{refused} tries in {seconds} s");
    until("it is tried", || object.figures().pager.errors > 0);
    store.is_full.store(false, Ordering::Relaxed);
    farpage_testkit::until("it keeps to what it may have", || {
        object.resident() * PAGE_BYTES as u64 <= MOST
    });
    (0..1024).for_each(|page| assert_eq!(read(&view, page), page + 1));
}

#[test]
fn what_stays_is_counted_by_what_cannot_leave() {
    let store = Store::new(0);
    let objects = Objects::start(8 << 20).unwrap();
    let (object, view) = mapped(objects, &store, 4096);
    // One page of each sixteen: all of them would stay.
    let pieces = (0..256).map(|piece| PageRange::new(piece * 16 + 5, piece * 16 + 6));
    let (stay, may_not): (Vec<_>, Vec<_>) = pieces.partition(|piece| object.wire(*piece).is_ok());
    assert_eq!((stay.len(), may_not.len()), (64, 192), "4 MiB of 8 stay");
    object.wire(stay[0]).expect("it stays already");
    assert_eq!(object.set_most(7 << 20), Err(4 << 20));
    (0..4096).for_each(|page| write(&view, page));
    (0..4096).for_each(|page| assert_eq!(read(&view, page), page + 1));
    until("what may not stay leaves", || {
        objects.resident_bytes() <= 9 << 20
    });
    let share = Arc::new(farpage_host::Share::new(8 << 20));
    let pager = Arc::clone(&store) as Arc<dyn farpage_object::Pager>;
    let other = objects.create("other", 4096, pager, true).unwrap();
    other.belongs_to(share);
    assert_eq!(other.wire(may_not[0]).unwrap_err().of, "all objects");
    object.unwire(stay[0]);
    stay.iter().for_each(|piece| object.unwire(*piece));
    let most = other.set_most(1 << 20);
    most.expect("nothing of it stays");
    other.wire(PageRange::new(0, 128)).unwrap();
    assert_eq!(
        other.wire(PageRange::new(128, 129)).unwrap_err().of,
        "the object"
    );
    drop(other);
    object
        .wire(PageRange::new(0, 1024))
        .expect("what stayed of the other is gone");
}

#[test]
fn messages_of_an_object_are_told_to_who_looks() {
    let store = Store::new(0);
    let objects = Objects::start(1 << 20).unwrap();
    let (object, view) = mapped(objects, &store, 64);
    assert_eq!(object.trace(0, 100), (0, Vec::new()));
    write(&view, 20);
    while object.resident() > 0 {
        object.evict(64);
    }
    assert_eq!(read(&view, 20), 21);
    let (first, events) = object.trace(0, 100);
    let what: Vec<What> = events.iter().map(|event| event.what).collect();
    let wanted = [
        What::Write,
        What::Zeros,
        What::Aside,
        What::Return,
        What::Taken,
        What::Read,
        What::Request,
        What::Supply,
    ];
    for what_ in wanted {
        assert!(what.contains(&what_), "{what_:?} in {what:?}");
    }
    assert_eq!(first, 0);
    let fault = events
        .iter()
        .find(|event| event.what == What::Write)
        .unwrap();
    assert_eq!(fault.pages, PageRange::new(20, 21));
    assert_eq!(fault.thread, farpage_sys::process::thread_id());
}

#[test]
fn pages_that_a_program_has_linux_unmap_are_as_they_were() {
    const PAGES: u64 = 64;
    let objects = Objects::start(64 << 20).unwrap();
    let (_object, view) = mapped(objects, &Store::new(0), PAGES);
    (0..PAGES).for_each(|page| write(&view, page));
    // SAFETY: nobody has a reference to what is there; the memory is shared.
    unsafe { mem::advise(view.address(), view.bytes() / 2, mem::MADV_DONTNEED) }.unwrap();
    let (tells, told) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let all: Vec<u64> = (0..PAGES).map(|page| read(&view, page)).collect();
        write(&view, 1);
        tells.send((all, read(&view, 1)))
    });
    let (all, written) = told.recv_timeout(HANGS).unwrap();
    assert_eq!(all, (1..=PAGES).collect::<Vec<u64>>());
    assert_eq!(written, 2);
}
