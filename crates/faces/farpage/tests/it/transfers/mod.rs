//! Transfers between a file and memory that is locked or registered, while everything goes on that
//! moves memory, takes it away, or lets go of registrations: each is compared, block by block.
//!
//! `tests/it/locks_io.rs` runs it for seconds, `cargo xtask bench locked --io` for minutes.
#![allow(unsafe_code)]

mod block;
mod disturb;
mod memory;
mod report;
pub(crate) mod ring;
mod worker;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use farpage::registrations::{Limits, Pinning, Registrations};
use farpage::{Hold, lock_area};
use rustix::fs::OFlags;

use memory::Layout;
pub(crate) use report::Report;
use worker::Worker;

/// Bytes of the file that each worker has.
const SHARE: usize = 32 << 20;
/// Bytes that all keep pinned in the cache that they share.
const PINS: Limits = Limits {
    bytes: 24 << 20,
    regions: 10,
};

/// What is done.
pub(crate) struct Plan {
    /// Where the file is made.
    pub(crate) folder: PathBuf,
    /// It takes so long, and until everything was done that it is to do.
    pub(crate) seconds: u64,
    pub(crate) seed: u64,
    pub(crate) workers: usize,
    /// Something is done wrong, to see that it is seen.
    pub(crate) mistake: Option<Mistake>,
    /// Is told how it goes, every other second.
    pub(crate) tells: fn(&str),
}

/// Mistakes that a transfer could have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// The registration is used after its memory went away, as if nobody had seen that.
    OldFrames,
    /// A bit is another one.
    Flipped,
    /// It goes to another place of the file.
    Misplaced,
    /// It is not made.
    Lost,
}

/// What all threads see.
struct Common {
    stop: AtomicBool,
    done: [AtomicU64; 8],
    bytes: AtomicU64,
    wrong: AtomicU64,
    forks: AtomicU64,
    layout: Layout,
    /// Frames may be read.
    frames: bool,
}

/// Any number next, the same for the same seed.
pub(crate) struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// Less than `end`.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Once in so many times.
    fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// Has everything stop when the thread ends, also by a panic.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does what is planned.
///
/// # Panics
/// When what has to work for it does not: a file, a ring, a cache.
pub(crate) fn run(plan: &Plan) -> Report {
    let (file, told) = opened(&plan.folder).expect("a file to read and write");
    let pins = Registrations::new(Pinning::new(), PINS).expect("a cache");
    let common = Common {
        stop: AtomicBool::new(false),
        done: [const { AtomicU64::new(0) }; 8],
        bytes: AtomicU64::new(0),
        wrong: AtomicU64::new(0),
        forks: AtomicU64::new(0),
        layout: Layout::default(),
        frames: frames_are_told(),
    };
    let before = Machine::now();
    let mut report = thread::scope(|scope| {
        let begun = Instant::now();
        let workers: Vec<_> = (0..plan.workers)
            .map(|number| {
                let (common, pins) = (&common, &pins);
                let file = file.try_clone().expect("a descriptor");
                scope.spawn(move || {
                    let _stops = Stops(&common.stop);
                    let mut worker = Worker::new(plan, number, file, common, pins);
                    worker.works();
                    worker.ends()
                })
            })
            .collect();
        let forks = scope.spawn(|| disturb::forks(&common));
        let compactions = scope.spawn(|| disturb::compacts(&common));
        watches(plan, &common, begun);
        let mut report = Report::default();
        for worker in workers {
            report.adds(worker.join().expect("a worker ends well"));
        }
        for thread in [forks.thread(), compactions.thread()] {
            thread.unpark();
        }
        report.wrong.extend(forks.join().expect("it forks"));
        report.forks = common.forks.load(Ordering::Relaxed);
        match compactions.join().expect("it compacts") {
            Ok(done) => report.compactions = done,
            Err(why) => report.uncompacted = Some(why),
        }
        report
    });
    let (now, sums) = (Machine::now(), pins.sums());
    report.made += sums.made;
    report.evicted += sums.evicted;
    report.gone += sums.gone;
    report.swapped_out = now.swapped_out - before.swapped_out;
    report.swapped_in = now.swapped_in - before.swapped_in;
    report.migrated = now.migrated - before.migrated;
    report.file = told;
    report
}

/// Until the time is over and each kind of transfer was made, or something is wrong.
fn watches(plan: &Plan, common: &Common, begun: Instant) {
    let _stops = Stops(&common.stop);
    let mut told = begun;
    while !common.stop.load(Ordering::Relaxed) {
        let done = || common.done.iter().map(|done| done.load(Ordering::Relaxed));
        let all = done().all(|done| done > 0) && common.forks.load(Ordering::Relaxed) > 0;
        let wrong = common.wrong.load(Ordering::Relaxed);
        if wrong > 0
            || (begun.elapsed().as_secs() >= plan.seconds && (all || plan.mistake.is_some()))
        {
            return;
        }
        if told.elapsed() >= Duration::from_secs(2) {
            told = Instant::now();
            (plan.tells)(&format!(
                "{:>4} s: {} transfers, {:.1} GiB, {} forks, {wrong} mismatches",
                begun.elapsed().as_secs(),
                done().sum::<u64>(),
                common.bytes.load(Ordering::Relaxed) as f64 / f64::from(1 << 30),
                common.forks.load(Ordering::Relaxed),
            ));
        }
        thread::park_timeout(Duration::from_millis(50));
    }
}

/// A file without a name, past Linux's cache if the file system can, and what there is to say of it.
fn opened(folder: &Path) -> io::Result<(File, String)> {
    let named = tempfile::NamedTempFile::new_in(folder)?;
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    let direct = OFlags::DIRECT.bits() as i32;
    let (file, how) = match options.custom_flags(direct).open(named.path()) {
        Ok(file) => (file, "O_DIRECT".to_owned()),
        Err(error) if error.raw_os_error() == Some(22) => {
            let why = "through Linux's cache: the file system has no O_DIRECT";
            (options.custom_flags(0).open(named.path())?, why.to_owned())
        }
        Err(error) => return Err(error),
    };
    let device = file.metadata()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let of = mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let of = place.split(' ').nth(2)? == format!("{major}:{minor}");
        let kind: Vec<&str> = kind.split(' ').take(2).collect();
        of.then(|| kind.join(" on "))
    });
    Ok((file, format!("{}, {how}", of.unwrap_or_default())))
}

fn frames_are_told() -> bool {
    let byte = [0_u8; 1];
    let locked = lock_area(byte.as_ptr().addr(), 1, Hold::Resident);
    locked.is_ok_and(|locked| locked.frames().is_ok())
}

/// Counts of the whole machine.
struct Machine {
    swapped_out: u64,
    swapped_in: u64,
    migrated: u64,
}

impl Machine {
    fn now() -> Self {
        let all = fs::read_to_string("/proc/vmstat").unwrap_or_default();
        let of = |name: &str| {
            let line = all.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|count| count.trim().parse().ok())
                .unwrap_or(0)
        };
        Self {
            swapped_out: of("pswpout "),
            swapped_in: of("pswpin "),
            migrated: of("pgmigrate_success "),
        }
    }
}
