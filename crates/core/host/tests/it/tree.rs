//! Objects within the budget of a tree: what is charged for comes before memory is taken.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use farpage_host::{Object, Objects};
use farpage_object::{Control, PAGE_BYTES};
use farpage_sys::view::View;

use crate::support::{Store, mapped};

const BUDGET: u64 = 32 << 20;
/// What page-out in tasks leaves of it.
const LIMIT: u64 = BUDGET - (2 << 20);
const THREADS: u64 = 8;
/// Pages that each thread writes.
const PART: u64 = 2048;

fn word(view: &View, page: u64) -> &std::sync::atomic::AtomicU64 {
    view.word(page as usize * PAGE_BYTES)
}

/// What the memory file of an object takes.
fn bytes_there(object: &Object) -> u64 {
    let file = File::from(object.file().try_clone_to_owned().unwrap());
    file.metadata().unwrap().blocks() * 512
}

/// A tree and its objects.
fn in_tree() -> (&'static Control, &'static Objects) {
    let (fd, control) = farpage_sys::control::create().unwrap();
    farpage_sys::file::close(fd);
    control.budget_bytes.store(BUDGET, Ordering::Relaxed);
    (control, Objects::in_tree(control).unwrap())
}

/// Threads that want pages wait for their turn: a request for many is not passed for ever by those
/// for few, and memory is not taken before there is room for it.
#[test]
fn many_threads_stay_within_the_budget() {
    let (_, objects) = in_tree();
    let (object, view) = mapped(objects, &Store::new(0), THREADS * PART);
    let (view, is_over) = (&view, &AtomicBool::new(false));
    let most_there = thread::scope(|scope| {
        let writers: Vec<_> = (0..THREADS)
            .map(|number| {
                scope.spawn(move || {
                    let part = number * PART..(number + 1) * PART;
                    // In order, which asks for many pages at a time, and in steps, for few.
                    let step = if number % 2 == 0 { 1 } else { 67 };
                    let page = |i: u64| part.start + i * step % PART;
                    for turn in 1..=2 {
                        (0..PART).for_each(|i| {
                            word(view, page(i)).store(turn * page(i), Ordering::Relaxed)
                        });
                        (0..PART).for_each(|i| {
                            assert_eq!(word(view, page(i)).load(Ordering::Relaxed), turn * page(i))
                        });
                    }
                })
            })
            .collect();
        let object = &object;
        let watch = scope.spawn(move || {
            let mut most = 0;
            while !is_over.load(Ordering::Relaxed) {
                most = most.max(bytes_there(object));
            }
            most
        });
        writers.into_iter().for_each(|one| one.join().unwrap());
        is_over.store(true, Ordering::Relaxed);
        watch.join().unwrap()
    });
    let charged = objects.charged_max_bytes();
    println!("at most {charged} charged, {most_there} in the memory file, of {LIMIT}");
    assert!(charged > BUDGET / 2, "{charged}: it was full");
    // A thread that a busy machine lets run too rarely is not made to wait for ever.
    let limit = LIMIT + objects.charged_beyond_bytes();
    assert!(charged <= limit, "{charged} charged of {limit}");
    assert!(most_there <= limit, "{most_there} there of {limit}");
}

#[test]
fn a_new_page_takes_no_memory_before_it_is_charged() {
    let (control, objects) = in_tree();
    let (object, view) = mapped(objects, &Store::new(0), 64);
    // The programs have all.
    control.resident_bytes.store(BUDGET, Ordering::Relaxed);
    thread::scope(|scope| {
        let writes = scope.spawn(|| word(&view, 7).store(7, Ordering::Relaxed));
        farpage_testkit::until("a page comes", || object.resident() > 0);
        // It is on its way; its handler has let go of the lock.
        object.figures();
        let there = bytes_there(&object);
        assert!(there <= objects.charged_max_bytes(), "{there} bytes there");
        control.resident_bytes.store(0, Ordering::Relaxed);
        writes.join().unwrap();
    });
    assert!(bytes_there(&object) > 0 && objects.charged_max_bytes() > 0);
}
