//! A control block, paging files and page contents for tests.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use farpage_default_pager::DefaultPager;
use farpage_object::{
    Access, Control, DataRequest, ObjectId, PAGE_BYTES, PageIndex, PageOut, PageRange, Pager,
    PagerError, SpillState, Supplied, fds,
};
use farpage_sys::buffer::Buffer;
use farpage_sys::{file, mem};

pub type Page = [u8; PAGE_BYTES];
pub const OBJECT: ObjectId = ObjectId(1);
pub const MIB: u64 = 1 << 20;

/// A control block of a tree of one supervisor, this process, with a tier of `tier` bytes.
/// Rings may be used unless [`again_without_rings`] runs the tests.
pub fn control(tier: u64) -> &'static Control {
    static BASE: AtomicU32 = AtomicU32::new(512);
    let bytes = size_of::<Control>();
    let fd = file::memfd(c"control", 0).unwrap();
    file::set_size(fd, bytes as u64).unwrap();
    let at = mem::map_shared(fd, bytes).unwrap();
    file::close(fd);
    // SAFETY: zero bytes are a valid control block; it stays mapped for good.
    let control: &'static Control = unsafe { &*(at as *const Control) };
    many_descriptors();
    let rings = std::env::var_os(WITHOUT_RINGS).is_none();
    control.io_uring.store(rings.into(), Ordering::Relaxed);
    let base = BASE.fetch_add(fds::COUNT, Ordering::Relaxed);
    control.fd_base.store(base, Ordering::Relaxed);
    control
        .supervisor_pid
        .store(std::process::id(), Ordering::Relaxed);
    control.budget_bytes.store(1 << 40, Ordering::Relaxed);
    control.compressed_max_bytes.store(tier, Ordering::Relaxed);
    control
}

const WITHOUT_RINGS: &str = "FARPAGE_TEST_WITHOUT_RINGS";

/// Runs all tests of a file once more, where no ring may be used.
pub fn again_without_rings(file: &str) {
    if std::env::var_os(WITHOUT_RINGS).is_some() {
        return;
    }
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    let output = again
        .arg(format!("{file}::"))
        .env(WITHOUT_RINGS, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let is_well = output.status.success() && !text.contains("running 0 tests");
    assert!(is_well, "without rings:\n{text}");
}

/// Raises the limit on descriptors: each control block has numbers of its own.
fn many_descriptors() {
    let mut limit = [0u64; 2];
    let (own, kind, at) = (
        0,
        farpage_sys::linux::general::RLIMIT_NOFILE,
        &raw mut limit,
    );
    let nr = farpage_sys::linux::general::__NR_prlimit64;
    // SAFETY: `limit` has the 16 bytes that the call fills.
    unsafe { farpage_sys::syscall!(nr, own, kind, 0, at) }.unwrap();
    limit[0] = limit[1];
    let at = &raw const limit;
    // SAFETY: `limit` has the 16 bytes that the call reads.
    unsafe { farpage_sys::syscall!(nr, own, kind, at, 0) }.unwrap();
}

/// Makes `opened` paging file `index`, of at most `limit` segments.
pub fn add_file(control: &Control, index: usize, opened: File, limit: u32) -> File {
    let number = control.fd_base.load(Ordering::Relaxed) + fds::SPILL + index as u32;
    let kept = opened.try_clone().unwrap();
    file::move_to(
        file::Fd(opened.into_raw_fd()),
        file::Fd(number as i32),
        true,
    )
    .unwrap();
    let spill = &control.spill[index];
    spill
        .supervisor_fd
        .store(kept.as_raw_fd() as u32, Ordering::Relaxed);
    spill.limit_segments.store(limit, Ordering::Relaxed);
    spill
        .state
        .store(SpillState::Active as u32, Ordering::Release);
    kept
}

/// An unlinked file in `directory`, opened for direct I/O where that is possible.
pub fn unlinked(directory: &Path) -> File {
    const O_DIRECT: i32 = 0x4000;
    static NAME: AtomicU32 = AtomicU32::new(0);
    let number = NAME.fetch_add(1, Ordering::Relaxed);
    let path = directory.join(format!("farpage-test-{}-{number}", std::process::id()));
    let open = |flags| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(flags)
            .open(&path)
    };
    let file = open(O_DIRECT).or_else(|_| open(0)).unwrap();
    std::fs::remove_file(&path).unwrap();
    file
}

/// The usual: one paging file of at most `limit` segments in the temporary directory.
pub fn with_file(tier: u64, limit: u32) -> (&'static Control, File, DefaultPager) {
    let control = control(tier);
    let kept = add_file(control, 0, unlinked(&std::env::temp_dir()), limit);
    (control, kept, DefaultPager::new(control, 0).unwrap())
}

/// Contents that depend on `seed`: `kind` 0 zeros, 1 compresses well, 2 a little, 3 not at all.
pub fn contents(kind: u8, seed: u64) -> Page {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut page = [0; PAGE_BYTES];
    for (index, word) in page.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = match kind {
            0 => 0u64,
            1 => seed.wrapping_add(index as u64 / 40),
            2 if index % 2 == 0 => index as u64,
            _ => random(),
        }
        .to_le_bytes();
    }
    page
}

/// Hands pages to the pager, from aligned memory or not.
pub fn write(
    pager: &DefaultPager,
    object: ObjectId,
    pages: &[(u64, Page)],
    aligned: bool,
) -> Result<(), PagerError> {
    let mut buffer = Buffer::new((pages.len() + 1) * PAGE_BYTES).unwrap();
    let shift = if aligned { 0 } else { 8 };
    let bytes = &mut buffer[shift..shift + pages.len() * PAGE_BYTES];
    for (place, (_, page)) in bytes.chunks_exact_mut(PAGE_BYTES).zip(pages) {
        place.copy_from_slice(page);
    }
    let outs: Vec<_> = (bytes.as_chunks().0.iter())
        .zip(pages)
        .map(|(bytes, (page, _))| PageOut {
            page: PageIndex(*page),
            bytes,
        })
        .collect();
    pager.data_write(object, &outs)
}

/// One request for `count` pages from `first`.
pub fn request(
    pager: &DefaultPager,
    object: ObjectId,
    first: u64,
    count: u64,
) -> Result<(Supplied, Vec<Page>), PagerError> {
    request_at(pager, object, first, count, true)
}

/// As [`request`], into memory that is aligned or not.
pub fn request_at(
    pager: &DefaultPager,
    object: ObjectId,
    first: u64,
    count: u64,
    aligned: bool,
) -> Result<(Supplied, Vec<Page>), PagerError> {
    let range = PageRange::new(first, first + count);
    let mut buffer = Buffer::new(range.bytes() as usize + PAGE_BYTES).unwrap();
    let shift = if aligned { 0 } else { 24 };
    let bytes = &mut buffer[shift..shift + range.bytes() as usize];
    let request = DataRequest::new(object, range, 1, Access::Read, bytes);
    let supplied = pager.data_request(request.ahead_of_need())?;
    let pages = bytes.as_chunks().0[..supplied.pages as usize].to_vec();
    Ok((supplied, pages))
}

/// As [`request`], by a thread that waits for the first page, and will write to it or not.
pub fn request_now(
    pager: &DefaultPager,
    object: ObjectId,
    first: u64,
    count: u64,
    access: Access,
) -> Result<Supplied, PagerError> {
    let range = PageRange::new(first, first + count);
    let mut buffer = Buffer::new(range.bytes() as usize).unwrap();
    pager.data_request(DataRequest::new(object, range, 1, access, &mut buffer))
}

/// One request for as many pages as `count`, `stride` apart.
pub fn request_strided(
    pager: &DefaultPager,
    object: ObjectId,
    first: u64,
    stride: i64,
    count: usize,
) -> Result<(Supplied, Vec<Page>), PagerError> {
    let mut buffer = Buffer::new(count * PAGE_BYTES).unwrap();
    let first = PageIndex(first);
    let supplied = pager.data_request_strided(object, first, stride, &mut buffer)?;
    let pages = buffer.as_chunks().0[..supplied.pages as usize].to_vec();
    Ok((supplied, pages))
}

/// Segments that somebody holds.
pub fn held(control: &Control) -> u32 {
    let lines = control.spill.iter().zip(&control.segments);
    lines
        .map(|(file, lines)| {
            let allocated = file.allocated_segments.load(Ordering::Relaxed) as usize;
            let held =
                |line: &&farpage_object::SegmentLine| line.claim.load(Ordering::Relaxed) % 2 == 1;
            lines[..allocated].iter().filter(held).count() as u32
        })
        .sum()
}

/// Checks that each paging file counts as many segments as are held.
pub fn check_counts(control: &Control) {
    let used = control.spill.iter();
    let used: u32 = used
        .map(|file| file.used_segments.load(Ordering::Relaxed))
        .sum();
    assert_eq!(used, held(control), "used segments and held segments");
}

/// Checks that nothing is charged to anybody any more.
pub fn check_empty(control: &Control, slots: usize) {
    check_counts(control);
    assert_eq!(held(control), 0, "segments still held");
    assert_eq!(control.compressed_bytes.load(Ordering::Relaxed), 0, "tier");
    for slot in &control.tasks[..slots] {
        let counters = &slot.counters;
        assert_eq!(counters.compressed_bytes.load(Ordering::Relaxed), 0);
        assert_eq!(counters.compressed_from_bytes.load(Ordering::Relaxed), 0);
        assert_eq!(counters.spilled_bytes.load(Ordering::Relaxed), 0);
    }
}
