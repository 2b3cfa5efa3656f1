//! Children of fork find views where their parent has them, or are told that something else is
//! there. A process of its own: handlers of forks stay for ever.
#![cfg(feature = "std")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use farpage_sys::file::{self, Fd};
use farpage_sys::fork::AtFork;
use farpage_sys::mem;
use farpage_sys::raw::Errno;
use farpage_sys::uffd::with_device;
use farpage_sys::view::View;

const BYTES: usize = 3 << 20;
/// Where another library maps a page in children, as early as it can; nowhere when it is 0.
static TAKEN: AtomicUsize = AtomicUsize::new(0);
/// Where a handler of Farpage's mapped memory in the child.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> i32;
    fn fork() -> i32;
    fn _exit(status: i32) -> !;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
}

extern "C" fn nothing() {}

fn map(at: usize, bytes: usize) -> usize {
    let how = mem::MAP_PRIVATE | mem::MAP_ANONYMOUS;
    let fixed = if at == 0 { 0 } else { mem::MAP_FIXED_NOREPLACE };
    let access = mem::PROT_READ | mem::PROT_WRITE;
    // SAFETY: nothing existing is touched.
    unsafe { mem::map(at, bytes, access, how | fixed, Fd(-1), 0) }.unwrap()
}

extern "C" fn takes_the_place() {
    let at = TAKEN.load(Ordering::Relaxed);
    if at != 0 {
        map(at, 4096);
        // SAFETY: just mapped.
        unsafe { *(at as *mut u8) = 7 };
    }
}

static MAPS: AtFork = AtFork::new(nothing, nothing, maps_somewhere);

extern "C" fn maps_somewhere() {
    MAPS.in_child();
    MAPPED.store(map(0, BYTES), Ordering::Relaxed);
}

/// What `in_child` says in a child of fork.
fn forked(in_child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child makes system calls and ends.
    let pid = unsafe { fork() };
    if pid == 0 {
        let good = in_child();
        // SAFETY: ends the child.
        unsafe { _exit(i32::from(!good)) };
    }
    let mut status = -1;
    // SAFETY: `status` outlives the call.
    assert_eq!(unsafe { waitpid(pid, &mut status, 0) }, pid);
    status == 0
}

#[test]
fn places_of_views_are_kept_and_what_took_one_is_left_alone() {
    // Where a view was mapped before, what keeps its place at a fork was noted before what takes it.
    farpage_testkit::in_own_process!();
    // SAFETY: the function takes nothing and lives as long as the process.
    let noted = unsafe { pthread_atfork(None, None, Some(takes_the_place)) };
    assert_eq!(noted, 0);
    MAPS.begin();
    let memory = file::memfd(c"places", 0).unwrap();
    file::set_size(memory, BYTES as u64).unwrap();
    let view = with_device(|device| View::map(memory, BYTES, device)).unwrap();
    let again = || with_device(|device| view.map_again(memory, device));

    assert!(forked(|| {
        let apart = MAPPED.load(Ordering::Relaxed).abs_diff(view.address()) >= BYTES;
        apart && again().is_ok()
    }));

    let taken = view.address() + BYTES / 2;
    TAKEN.store(taken, Ordering::Relaxed);
    assert!(forked(|| {
        // SAFETY: mapped by the handler; what maps the view again leaves it.
        let there = || unsafe { *(taken as *const u8) } == 7;
        there() && again() == Err(Errno::EEXIST) && there()
    }));
}

static BEGUN: AtFork = AtFork::new(nothing, nothing, counts);
static CALLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn counts() {
    BEGUN.in_child();
    CALLED.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn a_child_of_who_was_about_to_watch_forks_can_watch_them() {
    farpage_testkit::in_own_process!();
    // A new process each time: handlers of forks stay for ever.
    for round in 0..1000 {
        assert!(forked(|| {
            let is_near = AtomicBool::new(false);
            let is_near: &'static AtomicBool = Box::leak(Box::new(is_near));
            let begins = std::thread::spawn(move || {
                is_near.store(true, Ordering::SeqCst);
                (0..round % 100 * 50).for_each(|_| std::hint::spin_loop());
                BEGUN.begin();
            });
            while !is_near.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
            let good = forked(|| {
                BEGUN.begin();
                let before = CALLED.load(Ordering::Relaxed);
                forked(|| CALLED.load(Ordering::Relaxed) == before + 1)
            });
            begins.join().unwrap();
            good
        }));
    }
}
