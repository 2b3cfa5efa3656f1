//! What is done to memory that is locked.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use farpage_sys::Errno;
use farpage_sys::linux::general as g;

use super::memory::{
    Memory, PAGE, advise, anonymous, contents, cut, move_pages, read, unmap, write,
};
use super::process::{beside_a_child, in_another};
use super::{Event, seen};

/// Memory of the cgroup in which [`Event::Pressure`] happens, and how much more than that is used there.
pub(super) const LIMIT_BYTES: u64 = 32 << 20;
const USED_BYTES: usize = 56 << 20;
/// Longest that merging takes. It is seconds; without an end a machine that merges nothing hangs.
const MERGE_MAX: Duration = Duration::from_secs(120);

/// How it went.
pub(super) enum Happened {
    Done,
    Refused(Errno),
    NotHere(String),
}

impl From<Result<(), Errno>> for Happened {
    fn from(done: Result<(), Errno>) -> Self {
        done.err().into()
    }
}

impl From<Option<Errno>> for Happened {
    fn from(refused: Option<Errno>) -> Self {
        refused.map_or(Self::Done, Self::Refused)
    }
}

/// Does it.
pub(super) fn happens(event: Event, memory: &Memory) -> Result<Happened> {
    let (all, part) = (memory.range(), memory.part());
    let offset = part.start - all.start;
    let hole = || match memory.file_number() {
        Some(file) => cut(file, offset, Some(part.len())),
        // Of a segment there is no file; in the other process it is not locked.
        None => advise(part.clone(), g::MADV_REMOVE),
    };
    Ok(match event {
        Event::Pressure => pressure()?,
        Event::Compaction => compaction()?,
        Event::Migration => migration(memory)?,
        Event::Merging => merging(memory)?,
        Event::Collapse => collapse(memory).into(),
        Event::CollapseByAnother => in_another(|| collapse(memory))?.into(),
        Event::Fork => {
            beside_a_child(|| memory.fill())?;
            Happened::Done
        }
        Event::DontNeed => advise(part, g::MADV_DONTNEED).into(),
        Event::DontNeedLocked => advise(part, g::MADV_DONTNEED_LOCKED).into(),
        Event::DontNeedLockedAndRead => match advise(part.clone(), g::MADV_DONTNEED_LOCKED) {
            Ok(()) => {
                std::hint::black_box(read(part));
                Happened::Done
            }
            Err(errno) => Happened::Refused(errno),
        },
        Event::Hole => in_another(hole)?.into(),
        Event::HoleAndRead => match in_another(hole)? {
            None => {
                std::hint::black_box(read(part));
                Happened::Done
            }
            Some(errno) => Happened::Refused(errno),
        },
        Event::Truncation => {
            let file = memory.file_number().context("it has no file")?;
            in_another(|| cut(file, offset, None))?.into()
        }
        Event::Unmapped => unmap(part).into(),
        Event::Replaced => {
            unmap(part.clone()).map_err(|errno| anyhow::anyhow!("munmap: {errno}"))?;
            write(anonymous(Some(part.start), part.len())?, |page| page as u64);
            Happened::Done
        }
    })
}

fn collapse(memory: &Memory) -> Result<(), Errno> {
    // Where it was kept from having any so far; other memory does not mind.
    let _ = advise(memory.range(), g::MADV_HUGEPAGE);
    advise(memory.range(), g::MADV_COLLAPSE)
}

/// Uses more memory than there is.
fn pressure() -> Result<Happened> {
    let more = anonymous(None, USED_BYTES)?;
    for round in 1..4 {
        write(more.clone(), |page| (page * round) as u64);
        if seen::swapped(more.start, more.end)? > 0 {
            return Ok(Happened::Done);
        }
    }
    bail!("nothing was paged out, though its cgroup has less memory")
}

/// With memory of which every other page is free.
fn compaction() -> Result<Happened> {
    let more = anonymous(None, USED_BYTES)?;
    write(more.clone(), |page| page as u64);
    for at in more.clone().step_by(2 * PAGE) {
        let _ = advise(at..at + PAGE, g::MADV_DONTNEED);
    }
    for _ in 0..2 {
        if let Err(why) = fs::write("/proc/sys/vm/compact_memory", "1") {
            return Ok(Happened::NotHere(format!(
                "/proc/sys/vm/compact_memory: {why}"
            )));
        }
    }
    let _ = unmap(more);
    Ok(Happened::Done)
}

/// The highest node that is not the first, and why there is none.
fn migration(memory: &Memory) -> Result<Happened> {
    let nodes = fs::read_to_string("/sys/devices/system/node/online").unwrap_or_default();
    let nodes = nodes.trim();
    let last = nodes
        .rsplit([',', '-'])
        .next()
        .and_then(|last| last.parse().ok());
    Ok(match last {
        Some(last) if last > 0 => move_pages(memory.range(), last).into(),
        _ => {
            let areas = fs::read_to_string("/proc/meminfo").unwrap_or_default();
            let areas = areas.lines().find(|line| line.starts_with("CmaTotal:"));
            let areas = areas.map_or("a kernel without CMA", str::trim);
            Happened::NotHere(format!("one node (node/online: {nodes}), {areas}"))
        }
    })
}

/// Has pages with the same contents merged: two of others, which tells that it has happened, and these.
fn merging(memory: &Memory) -> Result<Happened> {
    let bytes = memory.range().len();
    let (one, two) = (anonymous(None, bytes)?, anonymous(None, bytes)?);
    for range in [&one, &two] {
        // No large page, which is not merged before it is split.
        let _ = advise(range.clone(), g::MADV_NOHUGEPAGE);
        write(range.clone(), contents);
    }
    for range in [&memory.range(), &one, &two] {
        if let Err(errno) = advise(range.clone(), g::MADV_MERGEABLE) {
            return Ok(Happened::NotHere(format!("MADV_MERGEABLE: {errno}")));
        }
    }
    let began = Instant::now();
    let mut until = None;
    loop {
        let scans = fs::read_to_string("/sys/kernel/mm/ksm/full_scans")?;
        let scans: u64 = scans.trim().parse()?;
        let (first, second) = (
            seen::frames(one.start, one.end)?,
            seen::frames(two.start, two.end)?,
        );
        match until {
            // What is looked at is what scans that began since have seen.
            None if first == second => until = Some(scans + 2),
            Some(until) if scans >= until => break,
            Some(_) | None => std::thread::sleep(Duration::from_millis(5)),
        }
        if began.elapsed() > MERGE_MAX {
            bail!("KSM has merged nothing in {} s", MERGE_MAX.as_secs());
        }
    }
    let _ = (unmap(one), unmap(two));
    Ok(Happened::Done)
}
