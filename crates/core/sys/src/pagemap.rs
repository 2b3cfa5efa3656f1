//! What is really in memory: `PAGEMAP_SCAN`, or `/proc/self/pagemap` where that is missing.

use farpage_object::PAGE_BYTES;

use crate::file::{self, Fd, ioctl};
use crate::process;
use crate::raw::{Errno, Result};

#[repr(C)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

const _: () = assert!(size_of::<ScanArg>() == 96 && size_of::<Region>() == 24);

const SCAN: u32 = 3 << 30 | (size_of::<ScanArg>() as u32) << 16 | (b'f' as u32) << 8 | 16;
/// Of a file, or of shared memory.
const FILE: u64 = 1 << 2;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
/// Of a page of [`HUGE_BYTES`], or more.
const HUGE: u64 = 1 << 6;
/// Its frames follow each other.
const HUGE_BYTES: usize = 2 << 20;

/// Whose entries are read by one call.
const READ_BYTES: usize = 2 << 20;

/// Opens this process's pagemap.
///
/// # Errors
/// As `open(2)`.
pub fn open() -> Result<Fd> {
    let open = || file::open_of_process(c"/proc/self/pagemap", c"/proc/thread-self/pagemap");
    match open() {
        // It is root's while the process is not dumpable: since it has changed its user, or has said so.
        Err(Errno::EACCES) if !process::is_dumpable() => {
            process::set_dumpable(true)?;
            let opened = open();
            let _ = process::set_dumpable(false);
            opened
        }
        opened => opened,
    }
}

/// Calls `found(start, end)` for each run of pages in `start .. end` (addresses) that Linux has:
/// present (the zero page too) or swapped.
///
/// # Errors
/// As `ioctl(2)` or, on kernels without `PAGEMAP_SCAN`, `pread(2)`.
pub fn scan(
    pagemap: Fd,
    start: usize,
    end: usize,
    mut found: impl FnMut(usize, usize),
) -> Result<()> {
    let mut at = start;
    while at < end {
        let mut regions = [Region::default(); 64];
        let (count, walk_end) = match scan_once(pagemap, at, end, &mut regions) {
            Ok(progress) => progress,
            Err(Errno::ENOTTY | Errno::EINVAL) => return scan_slowly(pagemap, at, end, found),
            Err(errno) => return Err(errno),
        };
        for region in &regions[..count] {
            found(region.start as usize, region.end as usize);
        }
        at = walk_end;
    }
    Ok(())
}

/// Whether this process has pages of its own in a range of private mappings of files: copies that
/// were made when it wrote.
///
/// # Errors
/// As for [`scan`].
pub fn has_copies(pagemap: Fd, start: usize, end: usize) -> Result<bool> {
    const OF_FILE: u64 = 1 << 61;
    let mut one = [Region::default(); 64];
    let mut at = start;
    while at < end {
        match scan_for(pagemap, at, end, (FILE, FILE), &mut one) {
            Ok((0, walk_end)) => at = walk_end,
            Ok(_) => return Ok(true),
            Err(Errno::ENOTTY | Errno::EINVAL) => {
                let mut has = false;
                each_entry(pagemap, start, end, |_, entry| {
                    has |= entry >> 62 != 0 && entry & OF_FILE == 0;
                })?;
                return Ok(has);
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(false)
}

/// Whether the kernel has `PAGEMAP_SCAN`.
///
/// # Errors
/// As `ioctl(2)`: `ENOTTY` where it has not.
pub fn probe_scan(pagemap: Fd) -> Result<()> {
    scan_once(pagemap, 0, PAGE_BYTES, &mut [Region::default(); 64]).map(drop)
}

/// Number of regions found and where the walk ended.
fn scan_once(
    pagemap: Fd,
    start: usize,
    end: usize,
    regions: &mut [Region; 64],
) -> Result<(usize, usize)> {
    scan_for(pagemap, start, end, (0, 0), regions)
}

/// The same, of pages that are of all kinds of the first mask, but not of those of the second.
fn scan_for(
    pagemap: Fd,
    start: usize,
    end: usize,
    (kinds, without): (u64, u64),
    regions: &mut [Region; 64],
) -> Result<(usize, usize)> {
    let mut arg = ScanArg {
        size: size_of::<ScanArg>() as u64,
        flags: 0,
        start: start as u64,
        end: end as u64,
        walk_end: 0,
        vec: regions.as_mut_ptr() as u64,
        vec_len: regions.len() as u64,
        max_pages: 0,
        category_inverted: without,
        category_mask: kinds,
        category_anyof_mask: PRESENT | SWAPPED,
        return_mask: PRESENT,
    };
    // SAFETY: `arg` is the structure that the request expects; `vec` names `regions`.
    let count = unsafe { ioctl(pagemap, SCAN, &mut arg) }?;
    Ok((count, arg.walk_end as usize))
}

fn scan_slowly(
    pagemap: Fd,
    start: usize,
    end: usize,
    mut found: impl FnMut(usize, usize),
) -> Result<()> {
    each_entry(pagemap, start, end, |at, entry| {
        if entry >> 62 != 0 {
            found(at, at + PAGE_BYTES);
        }
    })
}

/// Pages of a range that are present and mapped by this process alone. What is empty of a large range costs
/// little.
///
/// # Errors
/// As for [`scan`] and `pread(2)`.
pub fn count_exclusive(pagemap: Fd, start: usize, end: usize) -> Result<u64> {
    const PRESENT_BIT: u64 = 1 << 63;
    const EXCLUSIVE: u64 = 1 << 56;
    let mut count = 0;
    let mut counts = |from, to| {
        each_entry(pagemap, from, to, |_, entry| {
            count += u64::from(entry & PRESENT_BIT != 0 && entry & EXCLUSIVE != 0);
        })
    };
    if end - start <= READ_BYTES {
        counts(start, end)?;
        return Ok(count);
    }
    // Of what is scattered, all that one call can read is read at once.
    let (mut read_to, mut done) = (start, Ok(()));
    scan(pagemap, start, end, |from, to| {
        let from = (from / READ_BYTES * READ_BYTES).max(read_to);
        let to = to.next_multiple_of(READ_BYTES).min(end);
        if done.is_ok() && from < to {
            done = counts(from, to);
            read_to = to;
        }
    })?;
    done.map(|()| count)
}

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this frame.
    Frame(u64),
    /// In memory; this process may not know where (`CAP_SYS_ADMIN`).
    Hidden,
    /// On swap, or on its way from one frame to another.
    Away,
    /// Nowhere that this process has mapped.
    Absent,
}

/// Calls `found` with where each page is. Of a huge page Linux is asked for the first only.
///
/// # Errors
/// As `pread(2)`.
pub fn places(pagemap: Fd, start: usize, end: usize, mut found: impl FnMut(Place)) -> Result<()> {
    let mut at = start;
    while let Some((from, to)) = next_huge(pagemap, at, end) {
        each_entry(pagemap, at, from, |_, entry| found(place(entry)))?;
        for huge in (from..to).step_by(HUGE_BYTES) {
            let mut entry = [0; 8];
            file::pread(pagemap, &mut entry, (huge / PAGE_BYTES * 8) as u64)?;
            let first = place(u64::from_ne_bytes(entry));
            for page in 0..HUGE_BYTES / PAGE_BYTES {
                found(match first {
                    Place::Frame(frame) => Place::Frame(frame + page as u64),
                    other => other,
                });
            }
        }
        at = to;
    }
    each_entry(pagemap, at, end, |_, entry| found(place(entry)))
}

/// The next huge pages of which a range has all, if there are any, and Linux can tell.
fn next_huge(pagemap: Fd, start: usize, end: usize) -> Option<(usize, usize)> {
    let mut at = start;
    // There is none in less.
    while end - at >= HUGE_BYTES {
        let mut regions = [Region::default(); 64];
        let (count, walk_end) = scan_for(pagemap, at, end, (HUGE, 0), &mut regions).ok()?;
        for region in &regions[..count] {
            let from = (region.start as usize).next_multiple_of(HUGE_BYTES);
            let to = region.end as usize / HUGE_BYTES * HUGE_BYTES;
            if from < to {
                return Some((from, to));
            }
        }
        at = walk_end;
    }
    None
}

fn place(entry: u64) -> Place {
    const SWAPPED_BIT: u64 = 1 << 62;
    const PRESENT_BIT: u64 = 1 << 63;
    const FRAME: u64 = (1 << 55) - 1;
    match entry {
        entry if entry & PRESENT_BIT != 0 => match entry & FRAME {
            0 => Place::Hidden,
            frame => Place::Frame(frame),
        },
        entry if entry & SWAPPED_BIT != 0 => Place::Away,
        _ => Place::Absent,
    }
}

fn each_entry(
    pagemap: Fd,
    start: usize,
    end: usize,
    mut visit: impl FnMut(usize, u64),
) -> Result<()> {
    let mut at = start;
    while at < end {
        let mut bytes = [0u8; READ_BYTES / PAGE_BYTES * 8];
        let pages = ((end - at) / PAGE_BYTES).min(bytes.len() / 8);
        let got = file::pread(
            pagemap,
            &mut bytes[..pages * 8],
            (at / PAGE_BYTES * 8) as u64,
        )?;
        if got == 0 {
            return Ok(());
        }
        for entry in bytes[..got].chunks_exact(8) {
            let mut word = [0; 8];
            word.copy_from_slice(entry);
            visit(at, u64::from_ne_bytes(word));
            at += PAGE_BYTES;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem;
    use std::vec::Vec;

    #[test]
    fn pages_of_huge_ones_are_where_each_is_by_itself() {
        const COLLAPSE: u32 = 25;
        let bytes = 5 * HUGE_BYTES;
        let at = mem::map_anonymous(bytes).unwrap();
        let first = at.next_multiple_of(HUGE_BYTES);
        for page in (at..at + bytes)
            .step_by(PAGE_BYTES)
            .filter(|page| *page != first - PAGE_BYTES)
        {
            // SAFETY: mapped above, for this.
            unsafe { core::ptr::with_exposed_provenance_mut::<u8>(page).write(1) };
        }
        for huge in [first, first + HUGE_BYTES, first + 3 * HUGE_BYTES] {
            // SAFETY: changes no contents.
            unsafe { mem::advise(huge, HUGE_BYTES, COLLAPSE) }.unwrap();
        }
        let map = open().unwrap();
        let (start, end) = (first - 3 * PAGE_BYTES, at + bytes - PAGE_BYTES);
        let (mut found, mut each) = (Vec::new(), Vec::new());
        places(map, start, end, |place| found.push(place)).unwrap();
        each_entry(map, start, end, |_, entry| each.push(place(entry))).unwrap();
        assert_eq!(found, each);
        assert_eq!(found[2], Place::Absent);
        assert_eq!(
            next_huge(map, start, end),
            Some((first, first + 2 * HUGE_BYTES))
        );
        file::close(map);
        // SAFETY: nobody uses it.
        unsafe { mem::unmap(at, bytes) }.unwrap();
    }
}
