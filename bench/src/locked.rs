//! Locking and registering memory, first and again, beside the calls of Linux that do it.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::hint::black_box;
use std::os::fd::OwnedFd;
use std::sync::Barrier;
use std::time::Instant;

use farpage::registrations::{
    Limits, Pinning, Register, RegisterError, Registrations, RingBuffers,
};
use farpage::{Hold, lock_area};
use farpage_sys::{file, mem};
use rustix::io_uring::{
    IoringRegisterOp, IoringRsrcFlags, io_uring_params, io_uring_ptr, io_uring_register,
    io_uring_rsrc_register, io_uring_rsrc_update2, io_uring_setup, iovec,
};
use rustix::mm;

const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;

/// Costs nothing, so that what is measured is the cache.
struct Nothing;

impl Register for Nothing {
    fn register(&mut self, at: usize, _: usize) -> Result<u64, RegisterError> {
        Ok(at as u64)
    }

    fn deregister(&mut self, _: usize, _: usize, _: u64) {}
}

/// Prints lines: hit farpage regions threads ns_of_get_and_put.
pub fn hits(runs: usize) {
    for _ in 0..runs {
        for regions in [1_usize, 10_000, 100_000] {
            let memory = mem::map_anonymous(2 * regions * PAGE).expect("memory");
            let limits = Limits {
                regions: 1 << 17,
                ..Limits::default()
            };
            let cache = Registrations::new(Nothing, limits).expect("a cache");
            let at = |region: usize| memory + 2 * PAGE * region;
            for region in 0..regions {
                drop(cache.get(at(region), PAGE).expect("it is registered"));
            }
            for threads in [1, 2] {
                let ns = of_threads(threads, |seed| {
                    const COUNT: u64 = 2_000_000;
                    // Any one next, the same for everybody who is measured.
                    let mut next = seed;
                    let start = Instant::now();
                    for _ in 0..COUNT {
                        next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let region = ((next >> 32) as usize * regions) >> 32;
                        let number = cache.get_number(at(region), PAGE).expect("it is there");
                        black_box(number);
                        cache.put_number(number);
                    }
                    start.elapsed().as_nanos() as f64 / COUNT as f64
                });
                println!("hit farpage {regions} {threads} {ns:.2}");
            }
            assert_eq!(cache.sums().made, regions as u64, "all of them were hits");
            // SAFETY: mapped above.
            unsafe { mem::unmap(memory, 2 * regions * PAGE) }.expect("it is mapped");
        }
    }
}

/// The mean of what threads measure at the same time.
fn of_threads(threads: u64, measure: impl Fn(u64) -> f64 + Sync) -> f64 {
    let start = Barrier::new(threads as usize);
    let all: f64 = std::thread::scope(|scope| {
        let run = |seed| {
            let (start, measure) = (&start, &measure);
            scope.spawn(move || {
                start.wait();
                measure(seed)
            })
        };
        let running: Vec<_> = (1..=threads).map(run).collect();
        let each = running.into_iter().map(|one| one.join().expect("it ends"));
        each.sum()
    });
    all / threads as f64
}

/// Prints lines: way memory bytes us_to_register us_to_give_up.
pub fn sizes(runs: usize) {
    for _ in 0..runs {
        for memory in [Memory::Private, Memory::Shared, Memory::Huge] {
            for bytes in [PAGE, 64 << 10, 1 << 20, 16 << 20, 1 << 30] {
                let large = bytes >= HUGE && matches!(memory, Memory::Huge);
                let small = bytes <= 16 << 20 && !matches!(memory, Memory::Huge);
                if !large && !small {
                    continue;
                }
                let Some(at) = memory.map(bytes) else {
                    println!("none {} {bytes} 0 0", memory.name());
                    continue;
                };
                of_memory(memory.name(), at, bytes);
                // SAFETY: mapped above.
                unsafe { mem::unmap(at, bytes) }.expect("it is mapped");
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Memory {
    Private,
    Shared,
    Huge,
}

impl Memory {
    fn name(self) -> &'static str {
        match self {
            Self::Private => "private",
            Self::Shared => "shared",
            Self::Huge => "huge",
        }
    }

    /// All pages of it are there. `None` when there are no such pages.
    fn map(self, bytes: usize) -> Option<usize> {
        const HUGETLB: u32 = 0x40000;
        let prot = mem::PROT_READ | mem::PROT_WRITE;
        let at = match self {
            Self::Private => mem::map_anonymous(bytes).ok()?,
            Self::Shared => {
                let file = file::memfd(c"shared", 0).ok()?;
                file::set_size(file, bytes as u64).ok()?;
                let at = mem::map_shared(file, bytes).ok()?;
                file::close(file);
                at
            }
            Self::Huge => {
                let flags = mem::MAP_PRIVATE | mem::MAP_ANONYMOUS | HUGETLB;
                // SAFETY: a new mapping where Linux likes.
                unsafe { mem::map(0, bytes, prot, flags, file::Fd(-1), 0) }.ok()?
            }
        };
        // SAFETY: mapped above, and nobody else's.
        unsafe { mem::advise(at, bytes, mem::MADV_POPULATE_WRITE) }.ok()?;
        Some(at)
    }
}

/// Each way, as often as fits into some milliseconds.
fn of_memory(memory: &str, at: usize, bytes: usize) {
    let count = (32 << 20 >> 3) / bytes.max(8 * PAGE) + 3;
    let pointer = std::ptr::with_exposed_provenance_mut::<c_void>(at);
    let say = |way: &str, (register, give_up): (f64, f64)| {
        println!("{way} {memory} {bytes} {register:.3} {give_up:.3}");
    };
    let mlock = || {
        // SAFETY: changes no contents.
        unsafe { mm::mlock(pointer, bytes) }.expect("it may be locked");
    };
    let munlock = |()| {
        // SAFETY: changes no contents.
        unsafe { mm::munlock(pointer, bytes) }.expect("it is locked");
    };
    say("mlock", timed(count, mlock, munlock));
    let ring = Ring::new();
    let bare = timed(
        count,
        || ring.put(pointer, bytes),
        |()| ring.put(pointer, 0),
    );
    say("io_uring", bare);
    let lock = |hold| move || lock_area(at, bytes, hold).expect("it may be locked");
    say("resident", timed(count, lock(Hold::Resident), drop));
    say("pinned", timed(count, lock(Hold::Pinned), drop));
    let held = lock(Hold::Pinned)();
    say("nested", timed(count, lock(Hold::Pinned), drop));
    drop(held);
    let forgets = |cache: Registrations, name: &str| {
        let get = || cache.get_number(at, bytes).expect("it may be registered");
        // So that the mapping is watched already, as that of a heap is.
        cache.put_number(get());
        cache.forget(at, bytes);
        let first = timed(count, get, |number| {
            cache.put_number(number);
            cache.forget(at, bytes);
        });
        say(name, first);
        cache.put_number(get());
        let hit = timed(100_000, get, |number| cache.put_number(number));
        say(&format!("{name}-hit"), hit);
    };
    let limits = Limits {
        regions: 16,
        ..Limits::default()
    };
    let with = RingBuffers::new(&ring.0, 16).expect("a descriptor");
    forgets(
        Registrations::new(with, limits).expect("a cache"),
        "ring-cache",
    );
    forgets(
        Registrations::new(Pinning::new(), limits).expect("a cache"),
        "cache",
    );
}

/// Medians, in us, of registering and of giving up; of calls too short to be timed, the mean.
fn timed<T>(
    count: usize,
    mut register: impl FnMut() -> T,
    mut give_up: impl FnMut(T),
) -> (f64, f64) {
    let us = |start: Instant| start.elapsed().as_nanos() as f64 / 1e3;
    if count >= 100_000 {
        let start = Instant::now();
        for _ in 0..count {
            give_up(black_box(register()));
        }
        return (us(start) / count as f64, 0.0);
    }
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..count {
        let start = Instant::now();
        let registered = register();
        times[0].push(us(start));
        let start = Instant::now();
        give_up(registered);
        times[1].push(us(start));
    }
    let [a, b] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    });
    (a, b)
}

/// Registered buffers as they are, without anything of ours.
struct Ring(OwnedFd);

impl Ring {
    fn new() -> Self {
        let mut parameters = io_uring_params::default();
        // SAFETY: the structure that the call reads and fills.
        let ring = unsafe { io_uring_setup(1, &mut parameters) }.expect("io_uring");
        let mut table = io_uring_rsrc_register::default();
        (table.nr, table.flags) = (32, IoringRsrcFlags::REGISTER_SPARSE);
        let (at, size) = ((&raw const table).cast(), size_of_val(&table) as u32);
        // SAFETY: the structure that this operation reads, and its size.
        unsafe { io_uring_register(&ring, IoringRegisterOp::RegisterBuffers2, at, size) }
            .expect("a table");
        Self(ring)
    }

    fn put(&self, at: *mut c_void, bytes: usize) {
        let buffer = iovec {
            iov_base: if bytes == 0 { std::ptr::null_mut() } else { at },
            iov_len: bytes,
        };
        let mut update = io_uring_rsrc_update2::default();
        (update.offset, update.nr) = (31, 1);
        update.data = io_uring_ptr::new((&raw const buffer).cast_mut().cast::<c_void>());
        let (at, size) = ((&raw const update).cast(), size_of_val(&update) as u32);
        let operation = IoringRegisterOp::RegisterBuffersUpdate;
        // SAFETY: the structure that this operation reads, and its size.
        unsafe { io_uring_register(&self.0, operation, at, size) }.expect("it may be pinned");
    }
}
