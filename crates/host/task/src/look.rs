//! `vm_regions`, `vm_statistics`: what there is, also of the rest of the process.

use std::ops::Range;

use crate::map::{Backing, Piece};
use crate::space::{AddressSpace, BOUNDS, Result, addresses, errno_of};
use crate::{Inheritance, ObjectName, PAGE_BYTES, Protection, Region, Statistics, VmError};

impl AddressSpace {
    /// `vm_regions`: what lies in the range, in order: parts that are the same throughout. Also of
    /// memory that was not allocated here, for which Linux knows no maximum.
    ///
    /// # Errors
    /// [`VmError::InvalidAddress`] when the range goes beyond all addresses;
    /// [`VmError::NoSpace`] when nothing is in it.
    pub fn vm_regions(&self, address: u64, bytes: u64) -> Result<Vec<Region>> {
        let invalid = VmError::InvalidAddress { address, bytes };
        let range = address..address.checked_add(bytes).ok_or(invalid)?;
        let mut regions = others(&range)?;
        let own = self.lock().map.within(&range);
        regions.extend(own.iter().map(|(part, piece)| region(part, piece)));
        regions.sort_by_key(|region| region.address);
        if regions.is_empty() {
            return Err(VmError::NoSpace { bytes });
        }
        Ok(regions)
    }

    /// `vm_statistics`: how memory is used.
    ///
    /// # Errors
    /// [`VmError::Failure`] when Linux does not tell: `/proc` is needed.
    pub fn vm_statistics(&self) -> Result<Statistics> {
        let mut told = process_statistics()?;
        for (part, piece) in self.lock().map.all() {
            let bytes = part.end - part.start;
            told.regions += 1;
            told.allocated_bytes += bytes;
            told.allocated_resident_bytes += self.area.resident_bytes(&addresses(&part))?;
            match piece.backing {
                Backing::Zeros => {}
                Backing::Frozen(..) => told.copy_bytes += bytes,
                Backing::Shared(..) => told.shared_bytes += bytes,
            }
        }
        Ok(told)
    }
}

fn region(part: &Range<u64>, piece: &Piece) -> Region {
    let (object, offset) = match &piece.backing {
        Backing::Zeros | Backing::Frozen(..) => (None, 0),
        Backing::Shared(object, offset) => (Some(object.name()), *offset),
    };
    Region {
        address: part.start,
        bytes: part.end - part.start,
        protection: piece.protection,
        max_protection: piece.max_protection,
        inheritance: piece.inheritance,
        is_shared: object.is_some(),
        object,
        offset,
        is_allocated: true,
    }
}

/// What else is mapped in `range`.
fn others(range: &Range<u64>) -> Result<Vec<Region>> {
    if BOUNDS.start <= range.start && range.end <= BOUNDS.end {
        return Ok(Vec::new());
    }
    let all = read("/proc/self/maps")?;
    let told = all.lines().filter_map(mapping);
    Ok(told.filter_map(|region| within(region, range)).collect())
}

/// The part of a region that lies in `range`, and is not ours.
fn within(region: Region, range: &Range<u64>) -> Option<Region> {
    let all = region.range();
    let part = all.start.max(range.start)..all.end.min(range.end);
    let is_own = BOUNDS.start < part.end && part.start < BOUNDS.end;
    (part.start < part.end && !is_own).then(|| Region {
        address: part.start,
        bytes: part.end - part.start,
        offset: region.offset + (part.start - all.start),
        ..region
    })
}

/// A line of `/proc/self/maps`: `start-end rwxp offset major:minor inode path`.
fn mapping(line: &str) -> Option<Region> {
    let mut words = line.split_ascii_whitespace();
    let hex = |word: &str| u64::from_str_radix(word, 16).ok();
    let (start, end) = words.next()?.split_once('-')?;
    let (start, end) = (hex(start)?, hex(end)?);
    let flags = words.next()?.as_bytes();
    let offset = hex(words.next()?)?;
    let (major, minor) = words.next()?.split_once(':')?;
    let device = rustix::fs::makedev(hex(major)? as u32, hex(minor)? as u32);
    let inode: u64 = words.next()?.parse().ok()?;
    let protection = Protection {
        read: flags.first() == Some(&b'r'),
        write: flags.get(1) == Some(&b'w'),
        execute: flags.get(2) == Some(&b'x'),
    };
    let is_shared = flags.get(3) == Some(&b's');
    Some(Region {
        address: start,
        bytes: end - start,
        protection,
        max_protection: protection,
        inheritance: if is_shared {
            Inheritance::Share
        } else {
            Inheritance::Copy
        },
        is_shared,
        object: (inode != 0).then_some(ObjectName { device, inode }),
        offset,
        is_allocated: false,
    })
}

/// Something is mapped in all of `range`.
pub(crate) fn is_mapped(range: Range<u64>) -> bool {
    let mut at = range.start;
    for region in others(&range).unwrap_or_default() {
        if region.address != at {
            return false;
        }
        at = region.range().end;
    }
    at == range.end
}

fn process_statistics() -> Result<Statistics> {
    let number = |word: Option<&str>| word.and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    let sizes = read("/proc/self/statm")?;
    let mut sizes = sizes.split_ascii_whitespace();
    let (virtual_pages, resident_pages) = (number(sizes.next()), number(sizes.next()));
    let told = read("/proc/self/stat")?;
    // The name of the program comes before, and may hold anything.
    let rest = told.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let mut counts = rest.split_ascii_whitespace().skip(7);
    let (faults, _of_children, pageins) = (counts.next(), counts.next(), counts.next());
    let machine = read("/proc/meminfo")?;
    let mut lines = machine.lines();
    let free = lines.find_map(|line| line.strip_prefix("MemFree:"));
    let free_kib = number(free.and_then(|rest| rest.split_ascii_whitespace().next()));
    Ok(Statistics {
        page_bytes: PAGE_BYTES,
        free_pages: free_kib * 1024 / PAGE_BYTES,
        virtual_bytes: virtual_pages * PAGE_BYTES,
        resident_bytes: resident_pages * PAGE_BYTES,
        faults: number(faults),
        pageins: number(pageins),
        ..Statistics::default()
    })
}

fn read(path: &str) -> Result<String> {
    // Names of files and programs may be any bytes.
    let told = std::fs::read(path).map_err(|error| errno_of(&error))?;
    Ok(String::from_utf8_lossy(&told).into_owned())
}
