//! A thread that transfers between its share of the file and its own memory, and compares.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::rc::Rc;
use std::sync::atomic::Ordering;

use farpage::registrations::{Limits, RegisterError, Registered, Registrations, RingBuffers};
use farpage::{Hold, LockError, Locked, lock_area};
use farpage_sys::mem;

use super::block::{self, BLOCK, Stamp};
use super::memory::{Area, Kind, Loss};
use super::ring::{Ring, Transfer};
use super::{Common, Mistake, Plan, Random, Report, SHARE};

/// Bytes of each of a worker's areas: the largest transfer, and room for others beside it.
const AREA: usize = 20 << 20;
/// The largest transfer.
const MOST: usize = 16 << 20;
const BUFFERS: u32 = 8;
const LIMITS: Limits = Limits {
    bytes: 24 << 20,
    regions: 6,
};
/// Transfers at once.
const AT_ONCE: usize = 4;
/// Locks that a worker keeps beside those of the transfer.
const KEPT: usize = 5;
/// Alignment that disks ask of memory.
const SECTOR: usize = 512;

/// How memory is held for a transfer, in the order of `KINDS`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Ring,
    Cache,
    Pinned,
    Resident,
}

/// One transfer.
#[derive(Clone, Copy)]
struct Job {
    write: bool,
    /// The first block, of this worker's.
    first: usize,
    blocks: usize,
    at: usize,
}

impl Job {
    fn bytes(self) -> usize {
        self.blocks * BLOCK
    }

    /// Addresses of its blocks, and which they are.
    fn all(self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.blocks).map(move |number| (self.at + number * BLOCK, self.first + number))
    }
}

/// What a plain transfer's memory is held by.
enum Held<'a> {
    Cache(#[expect(dead_code, reason = "it is held")] Registered<'a>),
    Area(Locked),
}

pub(super) struct Worker<'a> {
    plan: &'a Plan,
    common: &'a Common,
    pins: &'a Registrations,
    number: usize,
    random: Random,
    file: File,
    ring: Ring,
    cache: Rc<Registrations>,
    areas: Vec<Area<'a>>,
    /// With the area that each is of.
    locks: Vec<(usize, Locked)>,
    /// Where in each area its last transfers were, and of how many blocks.
    last: Vec<Vec<(usize, usize)>>,
    /// How often each block was written.
    generations: Vec<u64>,
    /// Memory that nothing is done with: what was written is read into it.
    witness: usize,
    report: Report,
}

impl<'a> Worker<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        number: usize,
        file: File,
        common: &'a Common,
        pins: &'a Registrations,
    ) -> Self {
        let ring = Ring::new(AT_ONCE as u32, BUFFERS).expect("io_uring");
        let with = RingBuffers::new(&ring, BUFFERS).expect("its table is large enough");
        let kinds = [Kind::Private, Kind::Huge, Kind::Shared];
        let mut new = Self {
            plan,
            common,
            pins,
            number,
            random: Random(plan.seed.wrapping_mul(1000) + number as u64),
            file,
            ring,
            cache: Rc::new(Registrations::new(with, LIMITS).expect("a cache")),
            areas: kinds
                .map(|kind| Area::new(kind, AREA, &common.layout))
                .into(),
            locks: Vec::new(),
            last: vec![Vec::new(); kinds.len()],
            generations: vec![0; SHARE / BLOCK],
            witness: mem::map_anonymous(MOST).expect("memory"),
            report: Report::default(),
        };
        new.begins();
        new
    }

    /// Writes the share, from memory that nothing is done with.
    fn begins(&mut self) {
        for first in (0..SHARE / BLOCK).step_by(MOST / BLOCK) {
            let job = Job {
                write: true,
                first,
                blocks: MOST / BLOCK,
                at: self.witness,
            };
            self.prepares(job);
            self.transfers(job).expect("the file is written");
        }
    }

    pub(super) fn works(&mut self) {
        while !self.common.stop.load(Ordering::Relaxed) {
            let area = match self.plan.mistake {
                // Its frames are its own.
                Some(Mistake::OldFrames) => 0,
                _ => self.random.below(self.areas.len()),
            };
            let way =
                *self
                    .random
                    .of(&[Way::Ring, Way::Ring, Way::Cache, Way::Pinned, Way::Resident]);
            if way == Way::Ring || self.plan.mistake.is_some() {
                let jobs = self.jobs(area, AT_ONCE);
                self.fixed(area, &jobs);
            } else {
                for job in self.jobs(area, 1) {
                    self.plain(way, area, job);
                }
            }
            if self.random.once_in(6) {
                self.loses();
            }
        }
    }

    /// Reads all of the share once more. What was done.
    pub(super) fn ends(mut self) -> Report {
        for first in (0..SHARE / BLOCK).step_by(MOST / BLOCK) {
            self.reads_again(first, MOST / BLOCK, "the file at the end");
        }
        self.locks.clear();
        let sums = self.cache.sums();
        (self.report.made, self.report.evicted) = (sums.made, sums.evicted);
        self.report.gone = sums.gone;
        // SAFETY: mapped by `new`, and not used any more.
        unsafe { mem::unmap(self.witness, MOST) }.expect("it was mapped");
        self.report
    }

    /// Up to `most` transfers that have nothing of memory or file together: half of the time of the same
    /// memory as the last ones.
    fn jobs(&mut self, area: usize, most: usize) -> Vec<Job> {
        let again = !self.last[area].is_empty() && self.random.once_in(2);
        if !again {
            let count = 1 + self.random.below(most);
            self.last[area] = (0..count).map(|number| self.place(number, count)).collect();
        }
        let places = self.last[area].iter().take(most);
        let share = SHARE / BLOCK / places.len();
        let mut job = |(number, (from, blocks)): (usize, &(usize, usize))| Job {
            write: self.random.once_in(2),
            first: number * share + self.random.below(share - blocks + 1),
            blocks: *blocks,
            at: self.areas[area].at + from,
        };
        places.enumerate().map(&mut job).collect()
    }

    /// Where in an area the transfer of that number of so many is, and of how many blocks.
    fn place(&mut self, number: usize, count: usize) -> (usize, usize) {
        let (room, share) = (AREA / count, SHARE / BLOCK / count);
        let end = (MOST.min(room - BLOCK) / BLOCK).min(share);
        // As many small ones as large ones.
        let least = 1 << self.random.below(end.ilog2() as usize + 1);
        let blocks = (least + self.random.below(least)).min(end);
        let mut sector = self.random.below((room - blocks * BLOCK) / SECTOR);
        if !self.random.once_in(4) {
            sector -= sector % (BLOCK / SECTOR);
        }
        (number * room / BLOCK * BLOCK + sector * SECTOR, blocks)
    }

    /// Transfers of registered buffers.
    fn fixed(&mut self, area: usize, jobs: &[Job]) {
        let mistake = self.plan.mistake;
        let early = mistake.is_none() && self.random.once_in(2);
        if early {
            jobs.iter().for_each(|job| self.prepares(*job));
        }
        let cache = Rc::clone(&self.cache);
        let parts: Vec<_> = jobs.iter().map(|job| (job.at, job.bytes())).collect();
        self.report.gets += parts.len() as u64;
        let held = match cache.get_all(&parts) {
            Ok(held) => held,
            Err(why) => {
                assert!(is_limit(&why), "{why}");
                self.report.refused += 1;
                if early {
                    for job in jobs {
                        self.transfers(*job).expect("a transfer");
                        self.compares(*job, "a transfer that was refused a registration");
                    }
                }
                return;
            }
        };
        let tokens: Vec<u16> = held.iter().map(|held| held.token() as u16).collect();
        if mistake == Some(Mistake::OldFrames) {
            let (from, end) = (jobs[0].at / BLOCK * BLOCK, jobs[0].at + jobs[0].bytes());
            let from = from - self.areas[area].at;
            let bytes = (end - self.areas[area].at).next_multiple_of(BLOCK) - from;
            self.areas[area].loses(Loss::Discarded, from, bytes);
        }
        if !early {
            jobs.iter().for_each(|job| self.prepares(*job));
        }
        let flipped = |job: &Job| {
            // SAFETY: the worker's own memory.
            unsafe { block::flip(job.at, 12345) };
        };
        if mistake == Some(Mistake::Flipped) {
            jobs.iter().filter(|job| job.write).for_each(flipped);
        }
        let transfer = |(job, buffer): (&Job, &u16)| Transfer {
            write: job.write,
            at: job.at,
            bytes: job.bytes(),
            offset: self.offset(match mistake {
                Some(Mistake::Misplaced) if job.first == 0 => 1,
                Some(Mistake::Misplaced) => job.first - 1,
                _ => job.first,
            }),
            buffer: *buffer,
        };
        let all: Vec<_> = jobs.iter().zip(&tokens).map(transfer).collect();
        if mistake != Some(Mistake::Lost) {
            let ended = self.ring.transfer(self.file.as_fd(), &all);
            for (job, ended) in jobs.iter().zip(ended) {
                if !ended.as_ref().is_ok_and(|bytes| *bytes == job.bytes()) {
                    self.wrong(format!(
                        "of {} bytes {ended:?} were transferred",
                        job.bytes()
                    ));
                }
            }
        }
        if mistake == Some(Mistake::Flipped) {
            jobs.iter().filter(|job| !job.write).for_each(flipped);
        }
        drop(held);
        for job in jobs {
            self.counts(Way::Ring, *job);
            self.compares(*job, "a transfer of registered buffers");
        }
    }

    /// A transfer by a call, to memory that is held.
    fn plain(&mut self, way: Way, area: usize, job: Job) {
        let early = self.random.once_in(2);
        if early {
            self.prepares(job);
        }
        let held = match way {
            Way::Ring | Way::Cache => {
                self.report.gets += 1;
                self.pins.get(job.at, job.bytes()).map(Held::Cache)
            }
            Way::Pinned => lock_area(job.at, job.bytes(), Hold::Pinned)
                .map(Held::Area)
                .map_err(RegisterError::from),
            Way::Resident => lock_area(job.at, job.bytes(), Hold::Resident)
                .map(Held::Area)
                .map_err(RegisterError::from),
        };
        let held = match held {
            Ok(held) => Some(held),
            Err(why) => {
                assert!(is_limit(&why), "{why}");
                self.report.refused += 1;
                None
            }
        };
        let frames = match &held {
            Some(Held::Area(locked)) => self.frames(locked),
            _ => None,
        };
        if !early {
            self.prepares(job);
        }
        self.transfers(job).expect("a transfer");
        self.compares(job, "a transfer to memory that is held");
        match held {
            Some(Held::Area(locked)) => {
                self.report.locked += 1;
                self.compares_frames(&locked, frames);
                self.keeps(area, locked);
                self.counts(way, job);
            }
            Some(Held::Cache(_)) => self.counts(way, job),
            None => {}
        }
    }

    /// Keeps a lock for a while, perhaps, or lets go of another.
    fn keeps(&mut self, area: usize, locked: Locked) {
        self.locks.push((area, locked));
        while self.locks.len() > KEPT || (!self.locks.is_empty() && self.random.once_in(2)) {
            let any = self.random.below(self.locks.len());
            self.locks.swap_remove(any);
        }
    }

    /// Has some pages go away, and looks whether the cache has seen it.
    fn loses(&mut self) {
        let any = self.random.below(self.areas.len());
        self.locks.retain(|(area, _)| *area != any);
        let (from, pages) = match self.random.once_in(8) {
            true => (0, AREA / BLOCK),
            false => {
                let from = self.random.below(AREA / BLOCK);
                (from, 1 + self.random.below((AREA / BLOCK - from).min(1024)))
            }
        };
        let (from, bytes) = (from * BLOCK, pages * BLOCK);
        let at = self.areas[any].at + from;
        let loss = self.areas[any].any_loss(&mut self.random);
        let cache = Rc::clone(&self.cache);
        let held = match self.random.once_in(2) {
            true => cache.get(at, bytes).ok(),
            false => None,
        };
        self.report.gets += u64::from(held.is_some());
        self.areas[any].loses(loss, from, bytes);
        if loss == Loss::Punched {
            self.cache.forget(at, bytes);
            self.pins.forget(at, bytes);
        }
        self.report.lost += 1;
        let seen = held.as_ref().is_none_or(Registered::is_gone);
        drop(held);
        if !seen {
            self.wrong(format!(
                "{bytes} bytes at {at:#x} were {loss:?}, and nobody has seen it"
            ));
        }
    }

    /// New contents for a write; none for a read.
    fn prepares(&mut self, job: Job) {
        for (at, block) in job.all() {
            if job.write {
                self.generations[block] += 1;
                // SAFETY: the worker's own memory, and whole sectors of it.
                unsafe { block::fill(at, self.stamp(block)) };
            } else {
                // SAFETY: as above.
                unsafe { block::poison(at) };
            }
        }
    }

    /// By calls of the system.
    fn transfers(&self, job: Job) -> std::io::Result<()> {
        let at = std::ptr::with_exposed_provenance_mut::<u8>(job.at);
        // SAFETY: the worker's own memory, which nobody else writes to.
        let memory = unsafe { std::slice::from_raw_parts_mut(at, job.bytes()) };
        match job.write {
            true => self.file.write_all_at(memory, self.offset(job.first)),
            false => self.file.read_exact_at(memory, self.offset(job.first)),
        }
    }

    /// What was read is as it was written; what was written is in the file.
    fn compares(&mut self, job: Job, what: &str) {
        if job.write {
            self.reads_again(job.first, job.blocks, what);
        } else {
            self.looks(job, what);
        }
    }

    fn reads_again(&mut self, first: usize, blocks: usize, what: &str) {
        let job = Job {
            write: false,
            first,
            blocks,
            at: self.witness,
        };
        self.prepares(job);
        self.transfers(job).expect("the file is read");
        self.looks(job, what);
    }

    fn looks(&mut self, job: Job, what: &str) {
        for (at, block) in job.all() {
            let stamp = self.stamp(block);
            // SAFETY: the worker's own memory.
            if let Err(why) = unsafe { block::look(at, stamp) } {
                let (block, generation) = (stamp.block, stamp.generation);
                self.wrong(format!(
                    "{what}: block {block} of generation {generation}: {why}"
                ));
                return;
            }
        }
    }

    fn frames(&self, locked: &Locked) -> Option<Vec<u64>> {
        if !self.common.frames {
            return None;
        }
        // A page that is being moved is in no frame.
        (0..1000).find_map(|_| {
            std::thread::yield_now();
            locked.frames().ok()
        })
    }

    /// Those of what is pinned stay, and all of what is locked is there.
    fn compares_frames(&mut self, locked: &Locked, before: Option<Vec<u64>>) {
        if !self.common.frames {
            return;
        }
        let after = self.frames(locked);
        let same = before == after;
        match (locked.hold(), before, after) {
            (_, None, _) | (_, _, None) => {
                self.wrong(format!(
                    "pages of {:?}, locked, are not in memory",
                    locked.range()
                ));
            }
            (Hold::Pinned, ..) => {
                self.report.compared += 1;
                if !same {
                    self.wrong(format!(
                        "frames of {:?}, pinned, are other ones",
                        locked.range()
                    ));
                }
            }
            (Hold::Resident, ..) => self.report.moved += u64::from(!same),
        }
    }

    fn counts(&mut self, way: Way, job: Job) {
        let kind = 2 * way as usize + usize::from(job.write);
        let done = &mut self.report.done[kind];
        *done = (done.0 + 1, done.1 + job.bytes() as u64);
        self.common.done[kind].fetch_add(1, Ordering::Relaxed);
        self.common
            .bytes
            .fetch_add(job.bytes() as u64, Ordering::Relaxed);
    }

    fn wrong(&mut self, what: String) {
        self.common.wrong.fetch_add(1, Ordering::Relaxed);
        self.report.wrong.push(what);
    }

    fn offset(&self, block: usize) -> u64 {
        (self.number * SHARE + block * BLOCK) as u64
    }

    fn stamp(&self, block: usize) -> Stamp {
        Stamp {
            seed: self.plan.seed,
            block: self.offset(block) / BLOCK as u64,
            generation: self.generations[block],
        }
    }
}

/// What the next time may be had, and is not the cache's mistake.
fn is_limit(why: &RegisterError) -> bool {
    matches!(
        why,
        RegisterError::Full { .. }
            | RegisterError::Lock(
                LockError::Limit { .. } | LockError::NoMemory { .. } | LockError::Full(_)
            )
    )
}
