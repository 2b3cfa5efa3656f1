//! Paging files: their descriptors, their segments, their growth.
//!
//! Disk space is taken by the writes themselves. Taking it ahead with `fallocate` makes the first
//! write to it several times slower (ext4, O_DIRECT, medians of 7, GB/s in writes of 64 KiB, 256
//! KiB and 1 MiB: 0.06, 0.30, 0.85; without 0.55, 1.29, 1.87; with `KEEP_SIZE` as without while the
//! file grows in order, half of it elsewhere), and a full disk is noticed just as well by the
//! write.

use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, Ordering};

use farpage_object::{
    Control, PagerError, SEGMENT_BYTES, SEGMENTS_MAX, SPILL_FILES_MAX, SpillState, fds,
};
use farpage_sys::file::{self, Fd};
use farpage_sys::{Errno, Result, limits, linux::general as g, time};

/// Segments by which a file grows: 64 MiB.
const GROWTH: u32 = 64;

/// One segment of one paging file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) file: usize,
    pub(crate) index: u32,
}

impl Place {
    /// Byte offset of the segment in its file.
    pub(crate) fn offset(self) -> u64 {
        u64::from(self.index) * SEGMENT_BYTES as u64
    }
}

/// The tree's paging files, seen from one task.
pub(crate) struct Files {
    control: &'static Control,
    /// A bit for each file whose descriptor is known to be open here.
    opened: AtomicU32,
    /// A bit for each file that failed to write: the others are tried first.
    suspect: AtomicU32,
    turn: AtomicU32,
}

impl Files {
    pub(crate) fn new(control: &'static Control) -> Self {
        Self {
            control,
            opened: AtomicU32::new(0),
            suspect: AtomicU32::new(0),
            turn: AtomicU32::new(0),
        }
    }

    /// True when some file takes new segments.
    pub(crate) fn any(&self) -> bool {
        (0..SPILL_FILES_MAX).any(|file| self.state(file) == SpillState::Active)
    }

    /// True when some file besides those of `avoid` takes new segments.
    pub(crate) fn others(&self, avoid: u32) -> bool {
        (0..SPILL_FILES_MAX)
            .any(|file| avoid >> file & 1 == 0 && self.state(file) == SpillState::Active)
    }

    /// True when writing to a file failed.
    pub(crate) fn is_suspect(&self, file: usize) -> bool {
        self.suspect.load(Ordering::Relaxed) >> file & 1 == 1
    }

    pub(crate) fn is_draining(&self, file: usize) -> bool {
        self.state(file) == SpillState::Draining
    }

    pub(crate) fn any_draining(&self) -> bool {
        (0..SPILL_FILES_MAX).any(|file| self.is_draining(file))
    }

    fn state(&self, file: usize) -> SpillState {
        self.control.spill[file].state()
    }

    /// The descriptor of a file, opened through the supervisor's if it is new here.
    pub(crate) fn fd(&self, file: usize) -> Result<Fd> {
        let base = self.control.fd_base.load(Ordering::Relaxed);
        let fd = Fd((base + fds::SPILL) as i32 + file as i32);
        if self.opened.load(Ordering::Acquire) >> file & 1 == 1 {
            return Ok(fd);
        }
        // A number that nothing has come to yet is taken by another name of the agent's library.
        let agent = Fd((base + fds::AGENT) as i32);
        if !file::is_open(fd) || file::is_same(fd, agent) {
            let pid = self.control.supervisor_pid.load(Ordering::Relaxed);
            let theirs = self.control.spill[file]
                .supervisor_fd
                .load(Ordering::Relaxed);
            let mut text = [0; 40];
            let path = descriptor_path(&mut text, pid, theirs);
            let here = file::open(path, g::O_RDWR | g::O_DIRECT, 0)
                .or_else(|_| file::open(path, g::O_RDWR, 0))?;
            file::move_to(here, fd, false)?;
        }
        self.opened.fetch_or(1 << file, Ordering::Release);
        Ok(fd)
    }

    /// Claims a free segment for task `slot`, in turn over the files, not in those of `avoid`.
    pub(crate) fn claim(&self, slot: usize, avoid: u32) -> core::result::Result<Place, PagerError> {
        let suspect = self.suspect.load(Ordering::Relaxed);
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) as usize;
        for not in [avoid | suspect, avoid] {
            for step in 0..SPILL_FILES_MAX {
                let file = (turn + step) % SPILL_FILES_MAX;
                if not >> file & 1 == 1 || self.state(file) != SpillState::Active {
                    continue;
                }
                if let Some(index) = self.claim_in(file, slot) {
                    return Ok(Place { file, index });
                }
            }
        }
        Err(PagerError::OutOfSpace)
    }

    fn claim_in(&self, file: usize, slot: usize) -> Option<u32> {
        let spill = &self.control.spill[file];
        loop {
            let allocated = spill.allocated_segments.load(Ordering::Acquire);
            let limit = spill
                .limit_segments
                .load(Ordering::Relaxed)
                .min(SEGMENTS_MAX as u32);
            // Counted before it is claimed: a task killed in between leaves the count too high by
            // one, never below zero.
            if spill.used_segments.fetch_add(1, Ordering::AcqRel) < allocated.min(limit)
                && let Some(index) = self.search(file, allocated.min(limit), slot)
            {
                return Some(index);
            }
            spill.used_segments.fetch_sub(1, Ordering::AcqRel);
            if !self.grow(file, allocated, limit) {
                return None;
            }
        }
    }

    fn search(&self, file: usize, segments: u32, slot: usize) -> Option<u32> {
        let spill = &self.control.spill[file];
        let from = spill.search_from.load(Ordering::Relaxed).min(segments);
        let lines = &self.control.segments[file];
        let index = (from..segments)
            .chain(0..from)
            .find(|&index| lines[index as usize].claim(slot))?;
        spill.search_from.store(index + 1, Ordering::Relaxed);
        Some(index)
    }

    /// Counts [`GROWTH`] more segments as the file's. False at its limit and when the disk is full.
    fn grow(&self, file: usize, allocated: u32, limit: u32) -> bool {
        let spill = &self.control.spill[file];
        let step = GROWTH.min(limit.saturating_sub(allocated));
        if step == 0 || self.is_full(file, allocated) {
            return false;
        }
        let _ = spill.allocated_segments.compare_exchange(
            allocated,
            allocated + step,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
        true
    }

    /// True when the disk of a file is full. Once a second it is tried whether it takes a segment more:
    /// others may have made room.
    fn is_full(&self, file: usize, allocated: u32) -> bool {
        let full = &self.control.spill[file].full;
        let (seen, now) = (full.load(Ordering::Relaxed), second());
        if seen == 0 {
            return false;
        }
        let (order, failed) = (Ordering::Relaxed, Ordering::Relaxed);
        if seen == now || full.compare_exchange(seen, now, order, failed).is_err() {
            return true;
        }
        let end = u64::from(allocated) * SEGMENT_BYTES as u64;
        let fd = self.fd(file);
        let taken = fd.and_then(|fd| file::allocate(fd, end, SEGMENT_BYTES as u64));
        match taken {
            // Where nothing can be allocated ahead only writing tells.
            Ok(()) | Err(Errno::EOPNOTSUPP) => {
                full.store(0, Ordering::Relaxed);
                false
            }
            Err(_) => true,
        }
    }

    /// Its disk took no more: the file does not grow until a segment is returned, or there is room again.
    pub(crate) fn filled(&self, file: usize) {
        let full = &self.control.spill[file].full;
        full.store(second(), Ordering::Relaxed);
    }

    /// Writing failed: other files are tried first from now on.
    pub(crate) fn failed(&self, file: usize) {
        self.suspect.fetch_or(1 << file, Ordering::Relaxed);
    }

    /// Its disk takes nothing, for another reason than that it is full. That may pass, as the other may.
    pub(crate) fn refused(&self, file: usize, errno: Errno) {
        self.failed(file);
        let error = &self.control.spill[file].write_error;
        error.store(errno.0 as u32, Ordering::Relaxed);
        self.filled(file);
    }

    /// Writes `parts`, one after another, from `offset` of a file on.
    pub(crate) fn write(&self, file: usize, parts: &[&[u8]], offset: u64) -> Result<()> {
        let fd = self.fd(file)?;
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        match limits::allows_files_of(offset + bytes as u64) {
            true => file::pwritev_all(fd, parts, offset),
            // The program's files are limited, not its memory.
            false => file::write_mapped(fd, parts, offset),
        }?;
        self.worked(file);
        Ok(())
    }

    /// Writing did not fail: what was held against the file is over.
    fn worked(&self, file: usize) {
        let spill = &self.control.spill[file];
        if spill.write_error().is_some() {
            spill.write_error.store(0, Ordering::Relaxed);
            spill.full.store(0, Ordering::Relaxed);
        }
        if self.is_suspect(file) {
            self.suspect.fetch_and(!(1 << file), Ordering::Relaxed);
        }
    }

    /// Lets go of a segment; its disk space goes back when the file is being removed.
    pub(crate) fn release(&self, place: Place, slot: usize) {
        let spill = &self.control.spill[place.file];
        if !self.control.segments[place.file][place.index as usize].remove(slot) {
            return;
        }
        if self.is_draining(place.file)
            && let Ok(fd) = self.fd(place.file)
        {
            let _ = file::punch(fd, place.offset(), SEGMENT_BYTES as u64);
        }
        spill.search_from.fetch_min(place.index, Ordering::Relaxed);
        spill.segment_returned();
    }

    /// True when nobody but task `slot` holds a segment. It stays so: only a holder can add others,
    /// when it forks.
    pub(crate) fn is_alone(&self, place: Place, slot: usize) -> bool {
        let line = &self.control.segments[place.file][place.index as usize];
        let own = slot as u16 + 1;
        line.holders
            .iter()
            .all(|holder| [0, own].contains(&holder.load(Ordering::Acquire)))
    }

    /// Makes task `slot` a holder of a segment that this task holds.
    pub(crate) fn share(&self, place: Place, slot: usize) {
        self.control.segments[place.file][place.index as usize].add(slot);
    }
}

/// The second that it is, and not 0.
fn second() -> u32 {
    (time::now_ns() / 1_000_000_000).max(1) as u32
}

/// `/proc/<pid>/fd/<fd>`.
fn descriptor_path(text: &mut [u8; 40], pid: u32, fd: u32) -> &CStr {
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        text[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    let mut digits = [0; 10];
    put(b"/proc/");
    put(decimal(&mut digits, pid));
    put(b"/fd/");
    put(decimal(&mut digits, fd));
    CStr::from_bytes_until_nul(text).unwrap_or_default()
}

fn decimal(digits: &mut [u8; 10], mut number: u32) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_spelled_out() {
        let mut text = [0; 40];
        assert_eq!(
            descriptor_path(&mut text, u32::MAX, 0),
            c"/proc/4294967295/fd/0"
        );
        let mut text = [0; 40];
        assert_eq!(descriptor_path(&mut text, 907, 1023), c"/proc/907/fd/1023");
    }
}
