//! Registrations that are found again, and those whose memory goes away.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use farpage::registrations::{
    Limits, Pinning, Register, RegisterError, Registrations, RingBuffers,
};
use farpage_sys::{file, mem};
use farpage_testkit::{alone, until};
use rustix::io_uring::{io_uring_params, io_uring_setup};

use crate::LOCKED_MEMORY;
use crate::transfers::ring::Ring;

const PAGE: usize = 4096;

/// A device that knows which frames it was given.
#[derive(Clone, Default)]
struct Device {
    registered: Arc<Mutex<BTreeMap<u64, (usize, usize)>>>,
    last: Arc<AtomicU64>,
    bytes: Arc<AtomicU64>,
    most: Option<usize>,
}

impl Register for Device {
    fn register(&mut self, at: usize, bytes: usize) -> Result<u64, RegisterError> {
        let mut registered = self.registered.lock().unwrap();
        if self.most.is_some_and(|most| registered.len() >= most) {
            return Err(RegisterError::Refused {
                at: at as u64,
                asked: bytes as u64 >> 10,
                why: "it is full".into(),
                full: true,
            });
        }
        let token = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        registered.insert(token, (at, bytes));
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(token)
    }

    fn deregister(&mut self, at: usize, bytes: usize, token: u64) {
        let was = self.registered.lock().unwrap().remove(&token);
        assert_eq!(was, Some((at, bytes)));
    }
}

impl Device {
    fn count(&self) -> usize {
        self.registered.lock().unwrap().len()
    }

    /// Of all registrations there were.
    fn registered_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

fn limits(bytes: usize, regions: u32) -> Limits {
    Limits {
        bytes: bytes as u64,
        regions,
    }
}

fn cache(device: &Device) -> Registrations {
    Registrations::new(device.clone(), Limits::default()).unwrap()
}

fn map(pages: usize) -> usize {
    mem::map_anonymous(pages * PAGE).unwrap()
}

fn unmap(at: usize, pages: usize) {
    // SAFETY: mapped by `map`, and no reference to it is used.
    unsafe { mem::unmap(at, pages * PAGE) }.unwrap();
}

#[test]
fn what_is_registered_is_found_again_and_parts_of_it_too() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    let device = Device::default();
    let cache = cache(&device);
    let at = map(1000);
    let first = cache.get(at + 5, 10 * PAGE).unwrap();
    assert_eq!(first.range(), at..at + 11 * PAGE);
    let token = first.token();
    drop(first);
    for (from, bytes) in [(0, 1), (PAGE, PAGE), (11 * PAGE - 1, 1), (0, 11 * PAGE)] {
        let again = cache.get(at + from, bytes).unwrap();
        assert_eq!((again.token(), again.is_gone()), (token, false));
    }
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                (0..1000).for_each(|_| assert_eq!(cache.get(at, PAGE).unwrap().token(), token))
            });
        }
    });
    let sums = cache.sums();
    assert_eq!(
        (sums.made, sums.regions, sums.bytes),
        (1, 1, 11 * PAGE as u64)
    );
    drop(cache);
    assert_eq!(device.count(), 0);
    unmap(at, 1000);
}

#[test]
fn what_overlaps_becomes_one_region_and_the_old_one_stays_while_it_is_held() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    let device = Device::default();
    let cache = cache(&device);
    let at = map(100);
    let old = cache.get(at, 10 * PAGE).unwrap();
    let new = cache.get(at + 5 * PAGE, 10 * PAGE).unwrap();
    assert_eq!(new.range(), at..at + 15 * PAGE);
    assert!(old.is_gone() && !new.is_gone());
    assert_eq!(device.count(), 2);
    drop(old);
    assert_eq!(device.count(), 1);
    assert_eq!(cache.get(at + PAGE, 1).unwrap().token(), new.token());
    let (one, other) = ((at + 20 * PAGE, 7), (at + 21 * PAGE, PAGE));
    let all = cache.get_all(&[other, (at, 1), one]).unwrap();
    assert_eq!(all[0].token(), all[2].token());
    assert_eq!(cache.sums().regions, 2);
    drop((all, new));
    unmap(at, 100);
    until("all is gone", || device.count() == 0);
}

/// Pieces that begin within a page have pages in common.
#[test]
fn pieces_one_behind_the_other_are_few_regions_and_registered_seldom() {
    const PIECES: usize = 1000;
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    let device = Device::default();
    let cache = cache(&device);
    let at = map(PIECES + 1);
    // From below, from above, and from the middle on.
    let orders: [fn(usize) -> usize; 3] = [
        |step| step,
        |step| PIECES - 1 - step,
        |step| (step + PIECES / 2) % PIECES,
    ];
    for order in orders {
        let before = device.registered_bytes();
        for piece in (0..PIECES).map(order) {
            let start = at + piece * PAGE + 100;
            let held = cache.get(start, PAGE).unwrap();
            let range = held.range();
            assert!(range.start <= start && start + PAGE <= range.end);
        }
        let registered = (device.registered_bytes() - before) / PAGE as u64;
        assert!(registered < 20 * PIECES as u64, "{registered} pages");
        let sums = cache.sums();
        assert!(sums.regions < 30, "{sums:?}");
        assert_eq!(sums.regions, device.count() as u64);
        // All of them are found.
        for piece in 0..PIECES {
            cache.get(at + piece * PAGE + 100, PAGE).unwrap();
        }
        assert_eq!(cache.sums().made, sums.made);
        cache.forget(at, (PIECES + 1) * PAGE);
        assert_eq!(device.count(), 0);
    }
    // What is in use stays as it is.
    let pieces = (0..PIECES).map(|piece| cache.get(at + piece * PAGE + 100, PAGE).unwrap());
    let held: Vec<_> = pieces.collect();
    assert!(
        held.iter()
            .all(|one| one.range().len() == 2 * PAGE && !one.is_gone())
    );
    assert_eq!(cache.sums().regions, PIECES as u64);
    drop(held);
    cache.forget(at, (PIECES + 1) * PAGE);
    // The larger neighbour stays, also while it is held; what goes away in the common page is gone of both.
    let large = cache.get(at + 100, 10 * PAGE).unwrap();
    let small = cache.get(at + 10 * PAGE + 100, PAGE).unwrap();
    assert_eq!(small.range(), at + 10 * PAGE..at + 12 * PAGE);
    assert!(!large.is_gone() && !small.is_gone());
    let token = small.token();
    drop(small);
    assert_eq!(cache.get(at + 10 * PAGE, 1).unwrap().token(), token);
    discard(at + 9 * PAGE, mem::MADV_DONTNEED);
    assert!(large.is_gone());
    let again = cache.get(at + 10 * PAGE + 100, PAGE).unwrap();
    assert_ne!(again.token(), token);
    // When the second goes the first has the page alone.
    let first = cache.get(at + 20 * PAGE, 10 * PAGE).unwrap();
    let second = cache.get(at + 29 * PAGE, 2 * PAGE).unwrap();
    let token = first.token();
    assert_ne!(second.token(), token);
    discard(at + 29 * PAGE, mem::MADV_DONTNEED);
    assert!(second.is_gone() && !first.is_gone());
    drop(second);
    until("it is let go of", || device.count() == 3);
    assert_eq!(cache.get(at + 29 * PAGE, PAGE).unwrap().token(), token);
    drop((large, again, first));
    unmap(at, PIECES + 1);
    until("all is gone", || device.count() == 0);
}

/// A device that has each page once.
struct Once(Device);

impl Register for Once {
    fn register(&mut self, at: usize, bytes: usize) -> Result<u64, RegisterError> {
        let overlaps = |(from, long): &(usize, usize)| *from < at + bytes && at < from + long;
        if self.0.registered.lock().unwrap().values().any(overlaps) {
            return Err(RegisterError::Refused {
                at: at as u64,
                asked: bytes as u64 >> 10,
                why: "it has some of it".into(),
                full: false,
            });
        }
        self.0.register(at, bytes)
    }

    fn deregister(&mut self, at: usize, bytes: usize, token: u64) {
        self.0.deregister(at, bytes, token);
    }
}

#[test]
fn a_device_that_takes_no_page_twice_has_neighbours_as_one() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    let device = Device::default();
    let cache = Registrations::new(Once(device.clone()), Limits::default()).unwrap();
    let at = map(20);
    cache.get(at + 100, 10 * PAGE).unwrap();
    let small = cache.get(at + 10 * PAGE + 100, PAGE).unwrap();
    assert_eq!(small.range(), at..at + 12 * PAGE);
    assert_eq!(device.count(), 1);
    drop(small);
    unmap(at, 20);
    until("all is gone", || device.count() == 0);
}

/// Random pieces are got, held and given back, and random pages discarded, beside a list of what was discarded when.
#[test]
fn what_is_found_is_registered_and_was_not_discarded_since() {
    // Of 7 pages and some bytes, or of 511, which have all of what one leaf of the index has.
    const WIDTHS: [usize; 2] = [7, 511];
    const ALL: usize = 3 * WIDTHS[1] + 1;
    const LEAF: usize = 512;
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    for seed in 1..9_u64 {
        let device = Device::default();
        // Few places: some are given up for others.
        let cache = Registrations::new(device.clone(), limits(1400 * PAGE, 40)).unwrap();
        let mapped = map(ALL + LEAF);
        let at = mapped.next_multiple_of(LEAF * PAGE);
        // The last token before each page was discarded.
        let mut discarded = vec![0; ALL];
        let mut held = Vec::new();
        let mut dice = seed;
        let mut roll = |below: usize| {
            dice = dice
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (dice >> 33) as usize % below
        };
        for _ in 0..3000 {
            match roll(12) {
                0 => {
                    let (first, pages) = (roll(ALL), 1 + roll(3));
                    let pages = pages.min(ALL - first);
                    // SAFETY: no reference to it is anywhere.
                    unsafe { mem::advise(at + first * PAGE, pages * PAGE, mem::MADV_DONTNEED) }
                        .unwrap();
                    let last = device.last.load(Ordering::Relaxed);
                    discarded[first..first + pages].fill(last);
                }
                1 | 2 if !held.is_empty() => drop(held.swap_remove(roll(held.len()))),
                _ => {
                    let width = WIDTHS[roll(20) / 19];
                    let bytes = width * PAGE;
                    let from = roll(ALL / width) * bytes + 100;
                    let one = match cache.get(at + from, bytes) {
                        Ok(one) => one,
                        Err(RegisterError::Full { .. }) => {
                            held.clear();
                            continue;
                        }
                        Err(other) => panic!("seed {seed}: {other}"),
                    };
                    let (range, token) = (one.range(), one.token());
                    assert!(range.start <= at + from && at + from + bytes <= range.end);
                    assert!(!one.is_gone());
                    let known = device.registered.lock().unwrap()[&token];
                    assert_eq!(known, (range.start, range.len()));
                    let pages = (range.start - at) / PAGE..(range.end - at) / PAGE;
                    let last = discarded[pages].iter().max().unwrap();
                    assert!(token > *last, "seed {seed}: {range:x?} was discarded");
                    if held.len() < 8 {
                        held.push(one);
                    }
                }
            }
        }
        let sums = cache.sums();
        assert!(
            sums.evicted > 0 && sums.gone > 0 && sums.made < 3000,
            "{sums:?}"
        );
        drop(held);
        unmap(mapped, ALL + LEAF);
        until("all is gone", || device.count() == 0);
    }
}

/// Makes memory go away, and tells whether all of it or a part in the middle.
type Way = fn(usize);

const PAGES: usize = 8;
/// Of mremap.
const MAY_MOVE: u32 = 1;
const FIXED: u32 = 2;
/// Of mmap: over what is there.
const OVER: u32 = mem::MAP_FIXED | mem::MAP_ANONYMOUS | mem::MAP_PRIVATE;

unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
    fn _exit(status: i32) -> !;
}

fn ways() -> [(&'static str, Way); 7] {
    [
        ("munmap", |at| unmap(at, PAGES)),
        ("munmap of a page", |at| unmap(at + 3 * PAGE, 1)),
        ("MADV_DONTNEED", |at| discard(at, mem::MADV_DONTNEED)),
        ("MADV_FREE", |at| discard(at, mem::MADV_FREE)),
        ("a new mapping over it", |at| map_over(at + PAGE, 1)),
        ("mremap to another address", |at| {
            remap(at, PAGES, MAY_MOVE | FIXED, map(PAGES + 8));
        }),
        ("mremap to less", |at| remap(at, 1, 0, 0)),
    ]
}

fn discard(at: usize, how: u32) {
    // SAFETY: the test's memory; what it held is not used.
    unsafe { mem::advise(at + PAGE, PAGE, how) }.unwrap();
}

fn map_over(at: usize, pages: usize) {
    let prot = mem::PROT_READ | mem::PROT_WRITE;
    // SAFETY: the test's memory, or nothing; what it held is not used.
    unsafe { mem::map(at, pages * PAGE, prot, OVER, file::Fd(-1), 0) }.unwrap();
}

fn remap(at: usize, pages: usize, flags: u32, to: usize) {
    // SAFETY: the test's memory, which is not used where it was.
    unsafe { mem::remap(at, PAGES * PAGE, pages * PAGE, flags, to) }.unwrap();
}

#[test]
fn memory_that_goes_away_is_not_hit_again() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    for (name, goes) in ways() {
        let device = Device::default();
        let cache = cache(&device);
        let at = map(PAGES);
        let beside = map(PAGES);
        drop(cache.get(beside, PAGES * PAGE).unwrap());
        let held = cache.get(at, PAGES * PAGE).unwrap();
        let token = held.token();
        assert!(!held.is_gone(), "{name}");
        goes(at);
        assert!(held.is_gone(), "{name}");
        assert_eq!(device.count(), 2, "{name}: it is held");
        drop(held);
        assert_eq!(device.count(), 1, "{name}");
        // What is there now is another registration.
        map_over(at, PAGES);
        let again = cache.get(at, PAGES * PAGE).unwrap();
        assert_ne!(again.token(), token, "{name}");
        drop(again);
        assert_eq!(cache.get(beside, 1).unwrap().token(), 1, "{name}");
        // Also when nobody holds it, and nobody asks.
        unmap(at, PAGES);
        until(name, || device.count() == 1);
        unmap(beside, PAGES);
        until(name, || device.count() == 0);
    }
}

#[test]
fn shared_memory_huge_pages_and_files_are_watched_too() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    let device = Device::default();
    let cache = cache(&device);
    let memory = file::memfd(c"registered", 0).unwrap();
    file::set_size(memory, (PAGES * PAGE) as u64).unwrap();
    let path = std::env::current_exe().unwrap();
    let program = std::fs::File::open(path).unwrap();
    let program = file::Fd(std::os::fd::AsRawFd::as_raw_fd(&program));
    let prot = mem::PROT_READ | mem::PROT_WRITE;
    // SAFETY: new mappings where Linux likes.
    let maps = unsafe {
        [
            mem::map(0, PAGES * PAGE, prot, mem::MAP_SHARED, memory, 0),
            mem::map(0, PAGES * PAGE, prot, mem::MAP_PRIVATE, program, 0),
        ]
    };
    for at in maps {
        let at = at.unwrap();
        drop(cache.get(at, PAGES * PAGE).unwrap());
        drop(cache.get(at, PAGES * PAGE).unwrap());
        unmap(at, PAGES);
        until("it is gone", || device.count() == 0);
    }
    file::close(memory);
    assert_eq!(cache.sums().made, 2);
}

#[test]
fn what_was_not_used_for_longest_goes_first_and_what_is_held_stays() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    let device = Device::default();
    let cache = Registrations::new(device.clone(), limits(4 * PAGE, 100)).unwrap();
    let at = map(100);
    let page = |number: usize| cache.get(at + 2 * number * PAGE, PAGE);
    let tokens: Vec<u64> = (0..4).map(|number| page(number).unwrap().token()).collect();
    // Time passes with registrations.
    let held = page(1).unwrap();
    drop(page(4).unwrap());
    assert_eq!(page(2).unwrap().token(), tokens[2]);
    drop(page(5).unwrap());
    let registered: Vec<u64> = device.registered.lock().unwrap().keys().copied().collect();
    assert_eq!(registered, [tokens[1], tokens[2], 5, 6]);
    assert_eq!(cache.sums().evicted, 2);
    let all: Vec<_> = [2, 4, 5].map(|number| page(number).unwrap()).into();
    let why = page(6).unwrap_err().to_string();
    assert!(
        why.contains(
            "cannot register 4096 bytes more: registrations in use have 16384 bytes of 16384"
        ),
        "{why}"
    );
    drop(all);
    assert_eq!(page(6).unwrap().range().len(), PAGE);
    drop(held);
    // What a device refuses because it is full is asked again with less.
    let full = Device {
        most: Some(2),
        ..Device::default()
    };
    let cache = Registrations::new(full.clone(), limits(1 << 30, 100)).unwrap();
    for number in 0..10 {
        cache.get(at + 2 * number * PAGE, PAGE).unwrap();
    }
    assert_eq!((full.count(), cache.sums().evicted), (2, 8));
    unmap(at, 100);
}

#[test]
fn what_cannot_be_registered_is_refused_and_leaves_nothing() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    let device = Device::default();
    let small = Registrations::new(device.clone(), limits(PAGE, 1)).unwrap();
    let at = map(4);
    let said = |bytes: usize, at: usize| small.get(at, bytes).unwrap_err().to_string();
    assert_eq!(
        said(2 * PAGE, at),
        "cannot register 8192 bytes in whole pages: this cache has 4096 bytes at most; register less at once, or make \
         it larger"
    );
    let first = small.get(at, PAGE).unwrap();
    assert_eq!(
        said(PAGE, at + PAGE),
        "cannot register 4096 bytes more: registrations in use have 4096 bytes of 4096, and 1 of the 1 regions, of this \
         cache; give some back, or make it larger"
    );
    drop(first);
    assert!(said(0, at).contains("an area without pages"));
    assert!(said(usize::MAX, at).contains("beyond all addresses"));
    assert!(said(PAGE, 1 << 50).contains("beyond all addresses"));
    // Other tests may be given what is unmapped; nobody is given this.
    let nothing = 1 << 20;
    assert!(
        said(PAGE, nothing).contains("nothing is mapped there"),
        "{}",
        said(PAGE, nothing)
    );
    assert_eq!((small.sums().made, device.count()), (1, 1));
    let large = cache(&device);
    unmap(at + PAGE, 1);
    let why = large.get(at, 4 * PAGE).unwrap_err().to_string();
    let hole = format!(
        "cannot lock the memory at {:#x}: nothing is mapped there",
        at + PAGE
    );
    assert!(why.starts_with(&hole), "{why}");
    assert_eq!(device.count(), 1);
    unmap(at, 4);
    let at = map(4);
    let pins = Registrations::new(Pinning::new(), Limits::default()).unwrap();
    let why = pins.get(nothing, PAGE).unwrap_err().to_string();
    assert!(why.contains("nothing is mapped there"), "{why}");
    let before = pinned_pages();
    drop(pins.get(at, 4 * PAGE).unwrap());
    assert_eq!(pinned_pages(), before + 4);
    unmap(at, 4);
    until("unpinned", || pinned_pages() == before);
}

#[test]
fn a_ring_has_one_cache_and_a_table_that_is_large_enough() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    let ring = Ring::new(1, 4).unwrap();
    let said = |fd: BorrowedFd<'_>, buffers| RingBuffers::new(fd, buffers).unwrap_err().to_string();
    for (buffers, why) in [
        (0, "none is of no use"),
        (5, "its table of buffers is smaller"),
    ] {
        let what = format!("cannot use {buffers} buffers of this ring: {why}");
        let said = said(ring.as_fd(), buffers);
        assert!(said.starts_with(&what), "{said}");
    }
    // SAFETY: the structure that the call reads and fills.
    let none = unsafe { io_uring_setup(1, &mut io_uring_params::default()) }.unwrap();
    assert!(said(none.as_fd(), 1).contains("it has no table of buffers"));
    let file = tempfile::tempfile().unwrap();
    assert!(said(file.as_fd(), 1).contains("it is no io_uring"));

    let one = RingBuffers::new(&ring, 4).unwrap();
    let again = ring.as_fd().try_clone_to_owned().unwrap();
    assert!(said(again.as_fd(), 4).contains("another cache has them already"));
    let other = Ring::new(1, 4).unwrap();
    drop(RingBuffers::new(&other, 4).unwrap());
    let cache = Registrations::new(one, limits(PAGE, 4)).unwrap();
    let at = map(1);
    drop(cache.get(at, PAGE).unwrap());
    drop(cache);
    drop(RingBuffers::new(&ring, 4).unwrap());
    unmap(at, 1);
}

/// Each region's registration is checked while it is held: it is there, and of the memory that is there.
#[test]
fn threads_that_hit_and_threads_that_unmap() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    let device = Device::default();
    let cache = Registrations::new(device.clone(), limits(64 * PAGE, 24)).unwrap();
    let stop = AtomicBool::new(false);
    let pieces: Vec<Mutex<usize>> = (0..32).map(|_| Mutex::new(map(4))).collect();
    let hits = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..3_usize {
            let (stop, cache, device, pieces, hits) = (&stop, &cache, &device, &pieces, &hits);
            scope.spawn(move || {
                let mut seed = thread as u64 + 1;
                while !stop.load(Ordering::Relaxed) {
                    seed = seed
                        .wrapping_mul(6364136223846793005)
                        .wrapping_add(1442695040888963407);
                    let piece = &pieces[(seed >> 33) as usize % pieces.len()];
                    // It is not unmapped meanwhile; only the cache and its evictions are in question.
                    let mut at = piece.lock().unwrap();
                    if (seed >> 20).is_multiple_of(16) {
                        unmap(*at, 4);
                        *at = map(4);
                        continue;
                    }
                    let Ok(held) = cache.get(*at, 4 * PAGE) else {
                        continue;
                    };
                    let of = device
                        .registered
                        .lock()
                        .unwrap()
                        .get(&held.token())
                        .copied();
                    let of = of.expect("it is registered while it is held");
                    assert!(of.0 <= *at && of.0 + of.1 >= *at + 4 * PAGE);
                    hits.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        until("many are hit, some evicted and some gone", || {
            let sums = cache.sums();
            hits.load(Ordering::Relaxed) > sums.made + 20_000 && sums.evicted > 0 && sums.gone > 0
        });
        stop.store(true, Ordering::Relaxed);
    });
    for piece in pieces {
        unmap(*piece.lock().unwrap(), 4);
    }
    until("all is gone", || device.count() == 0);
}

#[test]
fn a_child_of_fork_has_nothing_registered_and_its_parent_all() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    let device = Device::default();
    let cache = cache(&device);
    let at = map(4);
    let held = cache.get(at, PAGE).unwrap();
    // SAFETY: takes nothing.
    let child = unsafe { fork() };
    if child == 0 {
        let why = cache.get(at, PAGE).unwrap_err().to_string();
        let is_gone = held.is_gone();
        let own = Registrations::new(Device::default(), Limits::default()).unwrap();
        let made = own.get(at, PAGE).map(|held| held.range().len());
        unmap(at, 4);
        let right =
            why.contains("registrations are not inherited") && is_gone && made.unwrap() == PAGE;
        // SAFETY: nothing is left to be done here.
        unsafe { _exit(i32::from(!right)) };
    }
    let mut status = -1;
    // SAFETY: `status` is what the call writes.
    assert_eq!(unsafe { waitpid(child, &raw mut status, 0) }, child);
    assert_eq!((status, held.is_gone()), (0, false));
    assert_eq!(cache.get(at, PAGE).unwrap().token(), 1);
    unmap(at, 4);
}

/// Pages of this process that are pinned, also frames that it has no more.
fn pinned_pages() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"));
    let kib = line.unwrap().trim().strip_suffix(" kB").unwrap();
    kib.trim().parse::<usize>().unwrap() * 1024 / PAGE
}

#[test]
fn memory_that_came_where_registered_memory_went_is_pinned_though_the_old_frames_are_held() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    let cache = Registrations::new(Pinning::new(), limits(1 << 30, 16)).unwrap();
    let at = map(PAGES);
    let before = pinned_pages();
    let old = cache.get(at, PAGES * PAGE).unwrap();
    assert_eq!(pinned_pages(), before + PAGES);
    // SAFETY: the test's memory; what it held is not used.
    unsafe { mem::advise(at, PAGES * PAGE, mem::MADV_DONTNEED) }.unwrap();
    let new = cache.get(at, PAGES * PAGE).unwrap();
    assert!(old.is_gone() && !new.is_gone());
    assert_eq!(pinned_pages(), before + 2 * PAGES);
    // An area that is locked is not content with what a registration has, either.
    let locked = farpage::lock_area(at, PAGES * PAGE, farpage::Hold::Pinned).unwrap();
    assert_eq!(pinned_pages(), before + 3 * PAGES);
    drop((old, new));
    cache.forget(at, PAGES * PAGE);
    assert_eq!(pinned_pages(), before + PAGES);
    drop(locked);
    assert_eq!(pinned_pages(), before);
    unmap(at, PAGES);
}

/// Linux gives addresses to one thread while another still unmaps what was there.
#[test]
fn memory_that_is_there_is_registered_whatever_goes_away_beside_it() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    let cache = Registrations::new(Pinning::new(), limits(1 << 30, 1 << 10)).unwrap();
    let before = pinned_pages();
    thread::scope(|scope| {
        for thread in 0..4_usize {
            let cache = &cache;
            scope.spawn(move || {
                for round in 0..1500_usize {
                    let pages = 40 + (round * 7 + thread * 13) % 16;
                    let at = map(pages);
                    cache
                        .get(at + 16, pages * PAGE - 16)
                        .expect("it is mapped all the time");
                    unmap(at, pages);
                }
            });
        }
    });
    until("all of it is let go of", || pinned_pages() == before);
}
