//! What this process has mapped, as Linux lists it.

use std::vec::Vec;
use std::{fs, io};

use farpage_object::{PAGE_BYTES, PageIndex, PageRange};

/// A part of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    pub(super) pages: PageRange,
    pub(super) is_readable: bool,
    pub(super) is_writable: bool,
    /// Of `memfd_secret`.
    pub(super) is_secret: bool,
}

/// What is mapped of `pages`, in order.
///
/// # Errors
/// When the list cannot be read.
pub(super) fn mapped(pages: PageRange) -> io::Result<Vec<Mapped>> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let all = maps.lines().filter_map(of_line);
    let within = all.map(|one| Mapped {
        pages: one.pages.intersect(pages),
        ..one
    });
    Ok(within.filter(|one| !one.pages.is_empty()).collect())
}

/// Who keeps in memory what is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// Nobody.
    No,
    /// Linux: it is locked, or huge pages, which it never pages out.
    Pages,
    /// Whose memory it is: a device's, say. `mlock` leaves it as it is.
    Apart,
}

/// Who keeps what is mapped at a page.
///
/// # Errors
/// When the list cannot be read.
pub(super) fn kept(page: u64) -> io::Result<Kept> {
    let maps = fs::read_to_string("/proc/self/smaps")?;
    let mut lines = maps.lines();
    let here = |line: &str| of_line(line).is_some_and(|one| one.pages.contains(PageIndex(page)));
    if !lines.any(here) {
        return Ok(Kept::No);
    }
    let flags = lines.find_map(|line| line.strip_prefix("VmFlags:"));
    let flags: Vec<&str> = flags.unwrap_or_default().split_whitespace().collect();
    let has = |any: &[&str]| flags.iter().any(|flag| any.contains(flag));
    Ok(match (has(&["lo", "ht"]), has(&["io", "pf", "de", "mm"])) {
        (true, _) => Kept::Pages,
        (false, true) => Kept::Apart,
        (false, false) => Kept::No,
    })
}

/// A line of the list that begins a mapping.
fn of_line(line: &str) -> Option<Mapped> {
    let mut words = line.split_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let page = |address| Some(u64::from_str_radix(address, 16).ok()? / PAGE_BYTES as u64);
    let allowed = words.next()?;
    Some(Mapped {
        pages: PageRange::new(page(from)?, page(to)?),
        is_readable: allowed.starts_with('r'),
        is_writable: allowed.starts_with("rw"),
        is_secret: words.nth(3) == Some("/secretmem"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_begin_a_mapping_are_read_and_no_others() {
        let line =
            "7f82d000-7f82f000 rw-s 00000000 00:0e 60984                      /secretmem (deleted)";
        let found = of_line(line).unwrap();
        assert_eq!(found.pages, PageRange::new(0x7f82d, 0x7f82f));
        assert!(found.is_readable && found.is_writable && found.is_secret);
        let line = "7f82d000-7f82f000 ---p 00000000 00:00 0 ";
        let found = of_line(line).unwrap();
        assert!(!found.is_readable && !found.is_writable && !found.is_secret);
        assert_eq!(of_line("Locked:                0 kB"), None);
        assert_eq!(of_line("VmFlags: rd wr sh mr mw me ms lo sd"), None);
    }

    #[test]
    fn what_is_asked_for_is_told_in_order_and_holes_are_left_out() {
        let here = core::ptr::from_ref(&PAGE_BYTES).addr() as u64 / PAGE_BYTES as u64;
        let found = mapped(PageRange::new(here, here + 1)).unwrap();
        assert_eq!(found.len(), 1);
        assert!(found[0].is_readable && !found[0].is_secret);
        assert_eq!(mapped(PageRange::new(0, 1)).unwrap(), []);
        assert_eq!(
            (kept(here).unwrap(), kept(0).unwrap()),
            (Kept::No, Kept::No)
        );
    }
}
