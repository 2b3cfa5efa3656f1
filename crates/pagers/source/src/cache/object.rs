//! One object in the cache: its file, and the sums of its pages in memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime};

use super::Shared;
use super::folder::Held;
use super::layout::{self, Header, Key, PAGE};
use crate::file::{direct_of, read_sparing};

/// Sums that are read from the file together, the first time that one of them is needed.
const GROUP: usize = 1024;
/// Sums that are read again together: those of a block.
const LINE: u64 = layout::BLOCK / PAGE;
/// How often the file's time of last use is set.
const TOUCH_S: u64 = 10;

pub(super) struct Object {
    cache: Arc<Shared>,
    file: File,
    /// The same, read past the page cache: what a program has it need not have as well.
    direct: Option<File>,
    key: Key,
    size: u64,
    data_at: u64,
    /// The sums, as far as somebody asked. 0: not there, or another process put it there since.
    sums: Box<[OnceLock<Box<[AtomicU32; GROUP]>>]>,
    opened: Instant,
    touched_s: AtomicU64,
}

impl Object {
    pub(super) fn open(
        held: &Held<'_>,
        key: Key,
        size: u64,
        cache: Arc<Shared>,
    ) -> io::Result<Self> {
        let file = held.open_object(key, size)?;
        file.set_modified(SystemTime::now())?;
        let groups = layout::pages(size).div_ceil(GROUP as u64);
        Ok(Self {
            cache,
            direct: direct_of(&file),
            file,
            key,
            size,
            data_at: layout::data_at(size),
            sums: (0..groups).map(|_| OnceLock::new()).collect(),
            opened: Instant::now(),
            touched_s: AtomicU64::new(0),
        })
    }

    fn sum(&self, page: u64) -> &AtomicU32 {
        let group = page as usize / GROUP;
        let sums = self.sums[group].get_or_init(|| {
            let mut bytes = [0; GROUP * 4];
            let from = layout::sum_at((group * GROUP) as u64);
            read_zeros(&self.file, &mut bytes, from);
            Box::new(core::array::from_fn(|i| {
                let sum = core::array::from_fn(|byte| bytes[i * 4 + byte]);
                AtomicU32::new(u32::from_le_bytes(sum))
            }))
        });
        &sums[page as usize % GROUP]
    }

    /// True when the page is there, as far as is known, or another process has put it there.
    pub(super) fn has(&self, page: u64) -> bool {
        self.sum(page).load(Ordering::Acquire) != 0 || {
            self.reload(page);
            self.sum(page).load(Ordering::Acquire) != 0
        }
    }

    /// True when the page is there, as far as this process knows.
    pub(super) fn is_known(&self, page: u64) -> bool {
        self.sum(page).load(Ordering::Acquire) != 0
    }

    /// Reads the sums of a page's block from the file again.
    fn reload(&self, page: u64) {
        let first = page / LINE * LINE;
        let last = (first + LINE).min(layout::pages(self.size));
        let mut bytes = [0; LINE as usize * 4];
        let bytes = &mut bytes[..(last - first) as usize * 4];
        read_zeros(&self.file, bytes, layout::sum_at(first));
        for (page, sum) in (first..last).zip(bytes.chunks_exact(4)) {
            let sum = u32::from_le_bytes(core::array::from_fn(|i| sum[i]));
            // Another thread may have put a page there since the file was read.
            if sum != 0 {
                self.sum(page).store(sum, Ordering::Release);
            }
        }
    }

    /// Bytes of a page: only the last has fewer.
    fn page_bytes(&self, page: u64) -> usize {
        PAGE.min(self.size - page * PAGE) as usize
    }

    /// Fills `buffer` with the bytes from `offset` on as far as they are there; returns how many.
    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        self.touch();
        let mut done = 0;
        while done < buffer.len() {
            let (at, rest) = (offset + done as u64, &mut buffer[done..]);
            let page = at / PAGE;
            let whole = at.is_multiple_of(PAGE) && rest.len() >= self.page_bytes(page);
            let got = if whole {
                self.read_pages(page, rest)
            } else {
                self.read_part(page, (at % PAGE) as usize, rest)
            };
            done += got;
            if got == 0 {
                break;
            }
        }
        done
    }

    /// Reads whole pages from `page` on that are there; returns their bytes.
    fn read_pages(&self, page: u64, buffer: &mut [u8]) -> usize {
        let (mut next, mut bytes) = (page, 0);
        while bytes < buffer.len()
            && buffer.len() - bytes >= self.page_bytes(next)
            && self.has(next)
        {
            bytes += self.page_bytes(next);
            next += 1;
        }
        let buffer = &mut buffer[..bytes];
        let at = self.data_at + page * PAGE;
        let got = read_sparing(&self.file, self.direct.as_ref(), at, buffer).unwrap_or(0);
        let mut good = 0;
        for (page, bytes) in (page..).zip(buffer[..got].chunks(PAGE as usize)) {
            let sum = self.sum(page).load(Ordering::Relaxed);
            if bytes.len() < self.page_bytes(page) || layout::sum(page, bytes) != sum {
                break;
            }
            good += bytes.len();
        }
        if good < bytes {
            self.lost(page + good as u64 / PAGE);
        }
        good
    }

    /// Reads a part of a page, which must be read whole to be checked.
    fn read_part(&self, page: u64, from: usize, buffer: &mut [u8]) -> usize {
        let mut space = [0; PAGE as usize];
        let whole = &mut space[..self.page_bytes(page)];
        if self.read_pages(page, whole) == 0 {
            return 0;
        }
        let bytes = buffer.len().min(whole.len() - from);
        buffer[..bytes].copy_from_slice(&whole[from..from + bytes]);
        bytes
    }

    /// A page is not what its sum says: it was damaged, or all was thrown out.
    fn lost(&self, page: u64) {
        let held = self.cache.folder.hold();
        let mut sum = [0; 4];
        read_zeros(&self.file, &mut sum, layout::sum_at(page));
        if sum != [0; 4] {
            self.cache
                .counts
                .damaged_pages
                .fetch_add(1, Ordering::Relaxed);
            // Where this fails, the next reader notices as well.
            let _ = held.map(|held| self.forget(&held, page));
            self.sum(page).store(0, Ordering::Release);
            return;
        }
        let known = self.sums.iter().filter_map(OnceLock::get);
        for sum in known.flat_map(|group| group.iter()) {
            sum.store(0, Ordering::Release);
        }
    }

    /// Marks a page as not there.
    fn forget(&self, held: &Held<'_>, page: u64) -> io::Result<()> {
        let mut header = held.header(&self.file, self.key, self.size)?;
        header.kept = header.kept.saturating_sub(PAGE);
        self.file.write_all_at(&[0; 4], layout::sum_at(page))?;
        self.file.write_all_at(&header.encode(), 0)?;
        held.give_back(PAGE)
    }

    /// Keeps whole pages from `first` on. False when there is no room for them.
    pub(super) fn keep(&self, held: &Held<'_>, first: u64, bytes: &[u8]) -> io::Result<bool> {
        let mut header = held.header(&self.file, self.key, self.size)?;
        let pages = bytes.len().div_ceil(PAGE as usize);
        let mut sums = vec![0; pages * 4];
        read_zeros(&self.file, &mut sums, layout::sum_at(first));
        let absent = sums.chunks_exact(4).filter(|sum| **sum == [0; 4]).count();
        let more = absent as u64 * PAGE;
        if more > 0 && !held.make_room(more, self.key)? {
            return Ok(false);
        }
        let all = (first..).zip(bytes.chunks(PAGE as usize));
        for (sum, (page, bytes)) in sums.chunks_exact_mut(4).zip(all) {
            sum.copy_from_slice(&layout::sum(page, bytes).to_le_bytes());
        }
        header.kept += more;
        header.writing = (first, pages as u64);
        if let Err(error) = self.write(header, first, bytes, &sums) {
            held.recover(&self.file, header)?;
            return Err(error);
        }
        for (page, sum) in (first..).zip(sums.chunks_exact(4)) {
            let sum = u32::from_le_bytes(core::array::from_fn(|i| sum[i]));
            self.sum(page).store(sum, Ordering::Release);
        }
        Ok(true)
    }

    /// The sums after the pages: whoever finds them finds the pages.
    fn write(&self, mut header: Header, first: u64, bytes: &[u8], sums: &[u8]) -> io::Result<()> {
        self.file.write_all_at(&header.encode(), 0)?;
        let at = self.data_at + first * PAGE;
        self.file.write_all_at(bytes, at)?;
        self.file.write_all_at(sums, layout::sum_at(first))?;
        header.writing = (0, 0);
        self.file.write_all_at(&header.encode(), 0)
    }

    /// Marks the file as used, once in a while.
    fn touch(&self) {
        let now = self.opened.elapsed().as_secs();
        let last = self.touched_s.load(Ordering::Relaxed);
        let order = Ordering::Relaxed;
        if now >= last + TOUCH_S
            && (self.touched_s)
                .compare_exchange(last, now, order, order)
                .is_ok()
        {
            // Where it fails, the file may be thrown out early.
            let _ = self.file.set_modified(SystemTime::now());
        }
    }
}

/// Reads as much as there is; what cannot be read counts as not there.
fn read_some(file: &File, buffer: &mut [u8], offset: u64) -> usize {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(got) => done += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    done
}

/// Reads sums. Beyond the end, and where reading fails, they are 0.
pub(super) fn read_zeros(file: &File, buffer: &mut [u8], offset: u64) {
    let got = read_some(file, buffer, offset);
    buffer[got..].fill(0);
}

/// The pages that a file has, as ranges of bytes.
pub(super) fn resident(file: &File, size: u64) -> Vec<std::ops::Range<u64>> {
    let mut ranges: Vec<std::ops::Range<u64>> = Vec::new();
    let pages = layout::pages(size);
    let mut sums = vec![0; GROUP * 4 * 16];
    let at_once = (GROUP * 16) as u64;
    for first in (0..pages).step_by(at_once as usize) {
        let here = at_once.min(pages - first);
        let sums = &mut sums[..here as usize * 4];
        read_zeros(file, sums, layout::sum_at(first));
        for (page, sum) in (first..).zip(sums.chunks_exact(4)) {
            if sum == [0; 4] {
                continue;
            }
            let (start, end) = (page * PAGE, (page * PAGE + PAGE).min(size));
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => ranges.push(start..end),
            }
        }
    }
    ranges
}
