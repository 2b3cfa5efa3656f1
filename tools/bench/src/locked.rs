//! Locking and registering memory, first and again, by one process and by several, beside the calls of
//! Linux that do it.
#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::c_void;
use std::fs::File;
use std::hint::black_box;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::Instant;

use farpage::registrations::{
    Limits, Pinning, Register, RegisterError, Registrations, RingBuffers,
};
use farpage::{Hold, lock_area};
use farpage_client::Host;
use farpage_daemon::Service;
use farpage_daemon::locks::FramesTold;
use farpage_host::Objects;
use farpage_object::PageRange;
use farpage_pinning::{Area, Areas};
use farpage_sys::{file, mem};
use rustix::io_uring::{
    IoringRegisterOp, IoringRsrcFlags, io_uring_params, io_uring_ptr, io_uring_register,
    io_uring_rsrc_register, io_uring_rsrc_update2, io_uring_setup, iovec,
};
use rustix::mm;

use crate::default_pager;
use crate::role::{Role, serves};

/// Roles that a process has.
pub const HOST: &str = "locked-host";
pub const OTHER: &str = "locked-other";

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
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("host");
    let path = socket.to_str().expect("a path");
    let mut kernel = Role::start(&[HOST, path]);
    kernel.line();
    let host = Host::connect(&socket).expect("it listens");
    for _ in 0..runs {
        for kind in [Kind::Private, Kind::Shared, Kind::Elsewhere, Kind::Huge] {
            for bytes in [PAGE, 64 << 10, 1 << 20, 16 << 20, 1 << 30] {
                let large = bytes >= HUGE && matches!(kind, Kind::Huge);
                let small = bytes <= 16 << 20 && !matches!(kind, Kind::Huge);
                if !large && !small {
                    continue;
                }
                let Some(memory) = Memory::map(kind, bytes) else {
                    println!("none {} {bytes} 0 0", kind.name());
                    continue;
                };
                let file = memory.file.as_ref();
                let by = |how| {
                    let file = file.filter(|_| matches!(kind, Kind::Elsewhere))?;
                    let (own, number) = (std::process::id(), file.as_raw_fd());
                    let mut other =
                        Role::start(&[OTHER, path, how, &format!("/proc/{own}/fd/{number}")]);
                    other.line();
                    Some(other)
                };
                let other = by("itself");
                of_memory(kind.name(), memory.at, bytes);
                drop(other);
                let other = by("host");
                if let Some(file) = file {
                    by_host(&host, kind.name(), file, bytes, other.is_some());
                }
            }
        }
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Private,
    Shared,
    /// Shared, and locked already by another process.
    Elsewhere,
    Huge,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Private => "private",
            Self::Shared => "shared",
            Self::Elsewhere => "elsewhere",
            Self::Huge => "huge",
        }
    }
}

struct Memory {
    at: usize,
    bytes: usize,
    /// Of what is shared.
    file: Option<OwnedFd>,
}

impl Memory {
    /// All pages of it are there. `None` when there are no such pages.
    fn map(kind: Kind, bytes: usize) -> Option<Self> {
        const HUGETLB: u32 = 0x40000;
        let prot = mem::PROT_READ | mem::PROT_WRITE;
        let (at, file) = match kind {
            Kind::Private => (mem::map_anonymous(bytes).ok()?, None),
            Kind::Shared | Kind::Elsewhere => {
                let file = file::memfd(c"shared", 0).ok()?;
                // SAFETY: it is new, and nobody else's.
                let owned = unsafe { OwnedFd::from_raw_fd(file.0) };
                file::set_size(file, bytes as u64).ok()?;
                (mem::map_shared(file, bytes).ok()?, Some(owned))
            }
            Kind::Huge => {
                let flags = mem::MAP_PRIVATE | mem::MAP_ANONYMOUS | HUGETLB;
                // SAFETY: a new mapping where Linux likes.
                let at = unsafe { mem::map(0, bytes, prot, flags, file::Fd(-1), 0) }.ok()?;
                (at, None)
            }
        };
        let memory = Self { at, bytes, file };
        // SAFETY: mapped above, and nobody else's.
        unsafe { mem::advise(at, bytes, mem::MADV_POPULATE_WRITE) }.ok()?;
        Some(memory)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped for this, and nobody has a reference to it.
        unsafe { mem::unmap(self.at, self.bytes) }.expect("it is mapped");
    }
}

/// A host kernel that lives until it is killed.
pub fn host(socket: &Path) {
    let objects = Objects::start(64 << 20).expect("threads");
    let paging_space = Arc::new(default_pager::paging(0));
    let service = Service::new(objects, 64 << 20, paging_space).expect("a service");
    serves(service.with_locks(u64::MAX, FramesTold::default()), socket);
}

/// Another process that has a memory file locked until it is killed: by itself, or by the host kernel.
pub fn other(socket: &Path, how: &str, file: &str) {
    let file = File::options()
        .read(true)
        .write(true)
        .open(file)
        .expect("it is open there");
    let bytes = file.metadata().expect("it is there").len();
    let _held: Box<dyn Any> = if how == "itself" {
        let at = mem::map_shared(file::Fd(file.as_raw_fd()), bytes as usize).expect("memory");
        Box::new(lock_area(at, bytes as usize, Hold::Pinned).expect("it may be locked"))
    } else {
        let host = Host::connect(socket).expect("it listens");
        let locked = host.lock_file(&file, 0..bytes, Hold::Pinned);
        Box::new((locked.expect("it may be locked"), host))
    };
    println!("ready");
    loop {
        std::thread::park();
    }
}

/// By the host kernel, each time as the first process; or beside another one that has all of it.
fn by_host(host: &Host, memory: &str, file: &OwnedFd, bytes: usize, is_second: bool) {
    let is_there = || host.locks().expect("it answers").processes.len();
    let lock = || {
        // What was given up is let go of a moment later.
        while is_there() > usize::from(is_second) {}
        let start = Instant::now();
        let locked = host.lock_file(file, 0..bytes as u64, Hold::Pinned);
        (start.elapsed(), locked.expect("it may be locked"))
    };
    let mut times: Vec<f64> = (0..repeats(bytes))
        .map(|_| lock().0.as_nanos() as f64 / 1e3)
        .collect();
    times.sort_by(f64::total_cmp);
    println!("host {memory} {bytes} {:.3} 0", times[times.len() / 2]);
}

/// Prints lines: areas how_many ns_to_lock ns_to_give_up.
pub fn areas(runs: usize) {
    const PAGES: u64 = 1 << 24;
    const MEASURED: usize = 100_000;
    const AT_A_TIME: usize = 100;
    for _ in 0..runs {
        let mut areas = Areas::new();
        let area = |pages| Area { pages, kind: () };
        areas.lock(area(PageRange::new(0, PAGES))).expect("memory");
        let mut seed = 1_u64;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let start = (seed >> 33) % (PAGES - 64);
            area(PageRange::new(start, start + 1 + (seed >> 20) % 64))
        };
        for count in [1_000, 10_000, 100_000, 1_000_000] {
            for _ in areas.all().count()..count {
                areas.lock(next()).expect("memory");
            }
            let mut ns = [0, 0];
            for _ in 0..MEASURED / AT_A_TIME {
                let some: Vec<_> = (0..AT_A_TIME).map(|_| next()).collect();
                let start = Instant::now();
                let locked = some.into_iter().map(|one| areas.lock(one).expect("memory"));
                let locked: Vec<_> = locked.collect();
                ns[0] += start.elapsed().as_nanos();
                let is_nested = |(_, new): &(_, Vec<_>)| new.is_empty();
                assert!(locked.iter().all(is_nested), "all is locked already");
                let start = Instant::now();
                for (handle, _) in &locked {
                    areas.unlock(*handle).expect("it is locked");
                }
                ns[1] += start.elapsed().as_nanos();
            }
            let [to_lock, to_give_up] = ns.map(|ns| ns as f64 / MEASURED as f64);
            println!("areas {count} {to_lock:.1} {to_give_up:.1}");
        }
    }
}

/// So often a call of so many bytes is repeated.
fn repeats(bytes: usize) -> usize {
    (32 << 20 >> 3) / bytes.max(8 * PAGE) + 3
}

/// Each way, as often as fits into some milliseconds.
fn of_memory(memory: &str, at: usize, bytes: usize) {
    let count = repeats(bytes);
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
    let with = RingBuffers::new(&ring.0, 16).expect("its table is large enough");
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
