//! Locked areas: what is promised of pages and frames holds, and what cannot be is refused.
#![allow(unsafe_code)]

use std::fs;
use std::process::Command;

use farpage::registrations::{Limits, Pinning, Registrations};
use farpage::{Block, Hold, LockError, Locked, lock_area, locked_sums};
use farpage_testkit::truth::{self, Backing};
use farpage_testkit::{Machine, alone, until};
use rustix::mm::{self, MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::LOCKED_MEMORY;

const PAGE: usize = 4096;

/// Anonymous memory, private or shared.
struct Memory {
    at: usize,
    bytes: usize,
}

impl Memory {
    fn new(bytes: usize, flags: MapFlags) -> Self {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory.
        let at = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), bytes, prot, flags) };
        let at = at.unwrap() as usize;
        let memory = Self { at, bytes };
        memory.bytes().fill(7);
        memory
    }

    #[allow(clippy::mut_from_ref)]
    fn bytes(&self) -> &mut [u8] {
        // SAFETY: mapped, and one thread uses it.
        unsafe { std::slice::from_raw_parts_mut(self.at as *mut u8, self.bytes) }
    }

    fn lock(&self, pages: std::ops::Range<usize>, hold: Hold) -> Result<Locked, LockError> {
        lock_area(self.at + pages.start * PAGE, pages.len() * PAGE, hold)
    }

    /// KiB that Linux has locked of it.
    fn locked_kib(&self) -> u64 {
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let (mut inside, mut kib) = (false, 0);
        for line in maps.lines() {
            let first = line.split_whitespace().next().unwrap();
            if let Some((from, to)) = first.split_once('-')
                && let (Ok(from), Ok(to)) = (
                    usize::from_str_radix(from, 16),
                    usize::from_str_radix(to, 16),
                )
            {
                inside = from >= self.at && to <= self.at + self.bytes;
            } else if inside && first == "Locked:" {
                kib += line
                    .split_whitespace()
                    .nth(1)
                    .unwrap()
                    .parse::<u64>()
                    .unwrap();
            }
        }
        kib
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: its own, used no more.
        unsafe { mm::munmap(self.at as *mut _, self.bytes) }.unwrap();
    }
}

fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: only root may read frames and have memory compacted");
    }
    root
}

fn compact() {
    fs::write("/proc/sys/vm/compact_memory", "1").unwrap();
}

#[test]
fn areas_overlap_and_nest_and_are_given_up_in_any_order() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    let before = locked_sums();
    let memory = Memory::new(64 * PAGE, MapFlags::PRIVATE);
    for hold in [Hold::Resident, Hold::Pinned] {
        let all = memory.lock(0..40, hold).unwrap();
        let inner = memory.lock(10..20, hold).unwrap();
        let over = memory.lock(30..50, hold).unwrap();
        // An area has each page of which it has a byte.
        let bytes = lock_area(memory.at + 50 * PAGE + 4000, 200, hold).unwrap();
        let page = memory.at + 50 * PAGE;
        assert_eq!((bytes.range(), bytes.hold()), (page..page + 2 * PAGE, hold));
        assert_eq!(memory.locked_kib(), 52 * 4);
        let sums = locked_sums();
        assert_eq!(sums.areas - before.areas, 4);
        assert_eq!(sums.resident_bytes, 52 * PAGE as u64);
        let pinned = if hold == Hold::Pinned {
            52 * PAGE as u64
        } else {
            0
        };
        assert_eq!(sums.pinned_bytes, pinned);
        drop(all);
        assert_eq!(memory.locked_kib(), (10 + 20 + 2) * 4);
        drop((over, bytes));
        assert_eq!(memory.locked_kib(), 10 * 4);
        drop(inner);
        assert_eq!((memory.locked_kib(), locked_sums()), (0, before));
    }
}

#[test]
fn pinned_frames_stay_where_they_are_whatever_linux_does() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    if !is_root() {
        return;
    }
    for flags in [MapFlags::PRIVATE, MapFlags::SHARED] {
        let memory = Memory::new(2048 * PAGE, flags);
        // Given up in part: what is left stays pinned throughout.
        let first = memory.lock(0..1024, Hold::Pinned).unwrap();
        let locked = memory.lock(512..2048, Hold::Pinned).unwrap();
        let frames = locked.frames().unwrap();
        drop(first);
        for round in 0..3 {
            compact();
            write_beside_a_child(&mut memory.bytes()[700 * PAGE..], round);
            assert_eq!(locked.frames().unwrap(), frames, "{flags:?}");
            let at = locked.range().start as *mut _;
            // SAFETY: refused.
            let refused = unsafe { mm::madvise(at, PAGE, mm::Advice::LinuxDontNeed) };
            assert_eq!(refused, Err(rustix::io::Errno::INVAL));
        }
        let blocks = locked.blocks(u64::MAX).unwrap();
        let all: u64 = blocks.iter().map(|block| block.frames).sum();
        assert_eq!((all, blocks[0].first), (1536, frames[0]));
        assert!(locked.blocks(1).unwrap().len() == 1536);
    }
    // Pages that only stay in memory go to other frames.
    let memory = Memory::new(64 * PAGE, MapFlags::PRIVATE);
    let locked = memory.lock(0..64, Hold::Resident).unwrap();
    let frames = locked.frames().unwrap();
    write_beside_a_child(memory.bytes(), 1);
    let moved = locked.frames().unwrap();
    assert!(frames.iter().zip(&moved).all(|(old, new)| old != new));
}

/// Writes while a child of fork has the same pages.
fn write_beside_a_child(bytes: &mut [u8], value: u8) {
    let (mut reader, writer) = std::io::pipe().unwrap();
    // SAFETY: the child reads and ends.
    match unsafe { fork() } {
        0 => {
            drop(writer);
            let _ = std::io::Read::read(&mut reader, &mut [0]);
            // SAFETY: ends the child.
            unsafe { end(0) }
        }
        child => {
            bytes.fill(value);
            drop(writer);
            wait(child);
        }
    }
}

#[test]
fn resident_pages_are_there_also_where_farpage_answers_for_them() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    let file = tempfile::NamedTempFile::new().unwrap();
    let bytes: Vec<u8> = (0..32 << 20).map(|at: usize| (at / PAGE) as u8).collect();
    fs::write(file.path(), &bytes).unwrap();
    let options = farpage::OpenOptions {
        ram: Some(16 << 20),
        ..farpage::OpenOptions::default()
    };
    let path = file.path().to_str().unwrap();
    let memory = farpage::Memory::open(farpage::Places::from(path), &options).unwrap();
    let at = memory.as_ptr() as usize;
    let locked = lock_area(at, 1 << 20, Hold::Resident).unwrap();
    let there = |at: usize| {
        let mut entry = [0; 8];
        let map = fs::File::open("/proc/self/pagemap").unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&map, &mut entry, (at / PAGE * 8) as u64)
            .unwrap();
        u64::from_ne_bytes(entry) >> 63 == 1
    };
    for _ in 0..2 {
        for page in 0..bytes.len() / PAGE {
            // SAFETY: mapped.
            let byte = unsafe { ((at + page * PAGE) as *const u8).read_volatile() };
            assert_eq!(byte, page as u8);
        }
        assert!(locked.range().step_by(PAGE).all(there));
    }
    let absent = (at..at + bytes.len())
        .step_by(PAGE)
        .filter(|at| !there(*at));
    assert!(absent.count() > 2048, "the others left");
}

/// The address where a lock is not what it was.
fn stale_at(locked: &Locked) -> Option<usize> {
    match locked.check() {
        Ok(()) => None,
        Err(LockError::Stale { at, .. }) => Some(at as usize),
        Err(why) => panic!("{why}"),
    }
}

#[test]
fn a_lock_tells_from_where_on_it_is_not_what_was_locked() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    if !is_root() {
        return;
    }
    for hold in [Hold::Resident, Hold::Pinned] {
        for flags in [MapFlags::PRIVATE, MapFlags::SHARED] {
            let memory = Memory::new(64 * PAGE, flags);
            let at = |page: usize| (memory.at + page * PAGE) as *mut std::ffi::c_void;
            let all = memory.lock(0..64, hold).unwrap();
            let some = memory.lock(0..20, hold).unwrap();
            assert_eq!((stale_at(&all), stale_at(&some)), (None, None));
            let unlocked = at(50);
            // SAFETY: changes no contents.
            unsafe { mm::munlock(unlocked, PAGE) }.unwrap();
            assert_eq!(stale_at(&all), Some(unlocked as usize));
            let dropped = at(40);
            // SAFETY: nobody uses it.
            unsafe { mm::madvise(dropped, PAGE, mm::Advice::LinuxDontneedLocked) }.unwrap();
            assert_eq!(stale_at(&all), Some(dropped as usize));
            let why = all.frames().unwrap_err().to_string();
            assert!(
                why.contains("it was discarded, or taken away by who shares it"),
                "{why}"
            );
            // SAFETY: nobody uses it.
            unsafe { mm::munmap(at(30), PAGE) }.unwrap();
            assert_eq!(stale_at(&all), Some(at(30) as usize));
            assert_eq!(stale_at(&some), None, "its pages are there");
            let why = all.check().unwrap_err().to_string();
            assert!(why.contains("nothing is mapped there any more"), "{why}");
            assert!(why.contains("lock what is there now"), "{why}");
            // What is given back is all that is left, also behind the hole.
            drop(all);
            assert_eq!(memory.locked_kib(), 20 * 4);
            assert_eq!(stale_at(&some), None);
            drop(some);
            assert_eq!(memory.locked_kib(), 0);
            let again = memory.lock(0..30, hold).unwrap();
            assert_eq!(stale_at(&again), None, "what is there now is locked");
        }
    }
    assert_eq!(locked_sums(), farpage::LockedSums::default());
}

#[test]
fn what_is_locked_by_the_parent_is_not_in_a_child_of_fork() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    let memory = Memory::new(8 * PAGE, MapFlags::PRIVATE);
    let locked = memory.lock(0..8, Hold::Resident).unwrap();
    let is_told = || matches!(locked.check(), Err(LockError::Stale { .. }));
    assert!(holds_in_a_child(is_told));
    locked.check().unwrap();
}

#[test]
fn a_huge_page_is_512_frames_that_follow_each_other() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    if !is_root() {
        return;
    }
    let machine = Machine::take().unwrap();
    let huge = match machine.huge_pages(2) {
        Ok(huge) => huge,
        Err(why) => return println!("skipped: {why:#}"),
    };
    for backing in [Backing::Huge, Backing::HugeMemfd] {
        for hold in [Hold::Resident, Hold::Pinned] {
            let memory = truth::Memory::new(backing).unwrap();
            let range = memory.range();
            let locked = lock_area(range.start + 5000, 1_000_000, hold).unwrap();
            assert_eq!(locked.frames().unwrap().len(), locked.range().len() / PAGE);
            let locked = lock_area(range.start, range.len(), hold).unwrap();
            let frames = locked.frames().unwrap();
            let first = frames[0];
            assert_eq!(first % 512, 0);
            assert_eq!(frames, (first..first + 512).collect::<Vec<u64>>());
            let block = Block { first, frames: 512 };
            assert_eq!(locked.blocks(u64::MAX).unwrap(), [block]);
            let halves = locked.blocks(256).unwrap();
            assert_eq!((halves.len(), halves[1].first), (2, first + 256));
            locked.check().unwrap();
            drop(locked);
            // SAFETY: nobody uses it.
            unsafe { mm::munmap(range.start as *mut _, range.len()) }.unwrap();
        }
    }
    drop(huge);
}

#[test]
fn secret_memory_is_refused_and_the_message_says_why() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    let memory = match truth::Memory::new(Backing::Secret) {
        Ok(memory) => memory,
        Err(why) => return println!("skipped: {why:#}"),
    };
    for hold in [Hold::Resident, Hold::Pinned] {
        let why = lock_area(memory.range().start, PAGE, hold)
            .unwrap_err()
            .to_string();
        assert!(why.contains("it is secret memory (memfd_secret)"), "{why}");
        assert!(why.contains("Linux lets nobody lock or pin"), "{why}");
    }
    assert_eq!(locked_sums(), farpage::LockedSums::default());
}

#[test]
fn what_cannot_be_locked_is_refused_and_nothing_of_it_is_locked() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    let says = |locked: Result<Locked, LockError>, what: &str| {
        let why = locked.unwrap_err().to_string();
        assert!(why.contains(what), "{why}");
    };
    let memory = Memory::new(64 * PAGE, MapFlags::PRIVATE);
    says(
        lock_area(memory.at, 0, Hold::Resident),
        "give a byte at least",
    );
    says(
        lock_area(usize::MAX - 5, 10, Hold::Pinned),
        "they end beyond all addresses",
    );
    // The first lock maps what tells a forked child from its parent: not where the hole is.
    drop(memory.lock(0..64, Hold::Resident).unwrap());
    let hole = (memory.at + 40 * PAGE) as *mut _;
    // SAFETY: nobody uses it.
    unsafe { mm::munmap(hole, PAGE) }.unwrap();
    for hold in [Hold::Resident, Hold::Pinned] {
        let inner = memory.lock(10..12, hold).unwrap();
        let why = memory.lock(0..64, hold).unwrap_err();
        let says_hole = format!("cannot lock the memory at {hole:?}: nothing is mapped there");
        assert!(why.to_string().contains(&says_hole), "{why}");
        assert_eq!(memory.locked_kib(), 8, "what was locked stays so");
        drop(inner);
    }
    // SAFETY: nobody uses it.
    unsafe { mm::mprotect(memory.at as *mut _, PAGE, mm::MprotectFlags::READ) }.unwrap();
    drop(memory.lock(0..2, Hold::Resident).unwrap());
    says(memory.lock(0..2, Hold::Pinned), "it may not be written");
    // SAFETY: as above.
    unsafe { mm::mprotect(memory.at as *mut _, PAGE, mm::MprotectFlags::empty()) }.unwrap();
    says(memory.lock(0..2, Hold::Resident), "(PROT_NONE)");
    assert_eq!(memory.locked_kib(), 0);
    let file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    file.as_file().set_len(PAGE as u64).unwrap();
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: new memory.
    let shared = unsafe { mm::mmap(std::ptr::null_mut(), PAGE, prot, MapFlags::SHARED, &file, 0) };
    let shared = shared.unwrap() as usize;
    drop(lock_area(shared, PAGE, Hold::Resident).unwrap());
    if let Err(why) = lock_area(shared, PAGE, Hold::Pinned) {
        assert!(
            why.to_string().contains("no shared mapping of a file"),
            "{why}"
        );
    }
    assert_eq!(locked_sums(), farpage::LockedSums::default());
}

#[test]
fn what_the_program_has_locked_itself_stays_locked() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    let memory = Memory::new(64 * PAGE, MapFlags::PRIVATE);
    let at = |page: usize| (memory.at + page * PAGE) as *mut _;
    // SAFETY: changes no contents.
    unsafe { mm::mlock(at(10), 10 * PAGE) }.unwrap();
    for hold in [Hold::Resident, Hold::Pinned] {
        let one = memory.lock(0..15, hold).unwrap();
        let two = memory.lock(12..30, hold).unwrap();
        assert_eq!(memory.locked_kib(), 30 * 4);
        drop(one);
        assert_eq!(memory.locked_kib(), 20 * 4);
        drop(two);
        assert_eq!(memory.locked_kib(), 10 * 4);
    }
    // SAFETY: nobody uses it.
    unsafe { mm::munmap(at(40), PAGE) }.unwrap();
    memory.lock(0..64, Hold::Resident).unwrap_err();
    assert_eq!(memory.locked_kib(), 10 * 4);
    // Given up meanwhile, it is Farpage's alone the next time.
    // SAFETY: changes no contents.
    unsafe { mm::munlock(at(10), 10 * PAGE) }.unwrap();
    drop(memory.lock(0..30, Hold::Resident).unwrap());
    assert_eq!(memory.locked_kib(), 0);
}

#[test]
fn what_is_mapped_behind_the_end_of_its_file_is_refused_where_it_begins() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    let file = rustix::fs::memfd_create("short", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, 5 * PAGE as u64).unwrap();
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    let (none, bytes) = (std::ptr::null_mut(), 64 * PAGE);
    // SAFETY: new memory.
    let at = unsafe { mm::mmap(none, bytes, prot, MapFlags::SHARED, &file, 0) }.unwrap();
    for hold in [Hold::Resident, Hold::Pinned] {
        let why = lock_area(at as usize, bytes, hold).unwrap_err().to_string();
        let end = format!(
            "cannot lock the memory at {:#x}: to read there is a bus error (SIGBUS): its file ends before",
            at as usize + 5 * PAGE
        );
        assert!(why.starts_with(&end), "{why}");
        drop(lock_area(at as usize, 5 * PAGE, hold).unwrap());
    }
    let pins = Registrations::new(Pinning::new(), Limits::default()).unwrap();
    let why = pins.get(at as usize, bytes).unwrap_err().to_string();
    assert!(why.contains("its file ends before"), "{why}");
    drop(pins);
    // SAFETY: nobody uses it.
    unsafe { mm::munmap(at, bytes) }.unwrap();
}

/// Run in a process of its own, with 8 KiB of locked memory allowed and no privilege to have more.
#[test]
#[ignore = "is started by the last but one"]
fn in_a_limit_that_has_no_ring() {
    let memory = Memory::new(PAGE, MapFlags::PRIVATE);
    let why = memory.lock(0..1, Hold::Pinned).unwrap_err().to_string();
    println!("{why}");
    assert!(
        why.starts_with(
            "cannot pin 4 KiB more: the limit of locked memory (RLIMIT_MEMLOCK) of this user is 8 KiB, of which 0 are \
             pinned here, and each ring takes some; raise it by 'ulimit -l'"
        ),
        "{why}"
    );
    let pins = Registrations::new(Pinning::new(), Limits::default()).unwrap();
    let same = pins.get(memory.at, PAGE).unwrap_err().to_string();
    assert_eq!(same, why);
    assert_eq!(locked_sums(), farpage::LockedSums::default());
}

/// Run in a process of its own, with 1 MiB of locked memory allowed and no privilege to have more.
#[test]
#[ignore = "is started by the next one"]
fn in_a_small_limit() {
    let memory = Memory::new(1024 * PAGE, MapFlags::PRIVATE);
    let limit = getrlimit(Resource::Nofile);
    let mut none = limit;
    none.current = Some(0);
    setrlimit(Resource::Nofile, none).unwrap();
    // Rings of processes that have ended count for a while.
    until("it lacks nothing but descriptors", || {
        let why = memory.lock(0..1, Hold::Pinned).unwrap_err().to_string();
        why.contains("as many descriptors as it may have")
    });
    setrlimit(Resource::Nofile, limit).unwrap();
    let some = memory.lock(0..128, Hold::Resident).unwrap();
    let why = memory
        .lock(64..512, Hold::Resident)
        .unwrap_err()
        .to_string();
    println!("{why}");
    assert!(why.contains("cannot lock 1536 KiB more"), "{why}");
    assert!(
        why.contains("of this process is 1024 KiB, of which 512 are in use"),
        "{why}"
    );
    assert_eq!(memory.locked_kib(), 512);
    // A nested one needs nothing more.
    drop(memory.lock(0..128, Hold::Resident).unwrap());
    drop(some);
    let why = memory.lock(0..300, Hold::Pinned).unwrap_err().to_string();
    assert!(why.contains("cannot lock 1200 KiB more"), "{why}");
    let pinned = memory.lock(0..200, Hold::Pinned).unwrap();
    let why = memory.lock(0..256, Hold::Pinned).unwrap_err().to_string();
    println!("{why}");
    assert_eq!(memory.locked_kib(), 800, "{why}");
    let no_frames = LockError::NoFrames.to_string();
    assert_eq!(pinned.frames().unwrap_err().to_string(), no_frames);
    // All else is well, and of the frames it cannot be told.
    assert_eq!(pinned.check().unwrap_err().to_string(), no_frames);
    let hole = (memory.at + 150 * PAGE) as *mut _;
    // SAFETY: nobody uses it.
    unsafe { mm::munmap(hole, PAGE) }.unwrap();
    assert_eq!(stale_at(&pinned), Some(hole as usize));
}

#[test]
fn the_limit_is_told_with_its_value_and_how_to_raise_it() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    if !is_root() {
        return;
    }
    for (test, bytes) in [
        ("locks::in_a_small_limit", 1 << 20),
        ("locks::in_a_limit_that_has_no_ring", 8192),
    ] {
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", "-ipc_lock,-sys_admin", "prlimit"]);
        command.arg(format!("--memlock={bytes}"));
        command.arg(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--ignored", "--nocapture"]);
        let done = command.output().unwrap();
        let said = String::from_utf8_lossy(&done.stdout);
        assert!(
            done.status.success(),
            "{said} {}",
            String::from_utf8_lossy(&done.stderr)
        );
        assert!(said.contains("1 passed"), "{said}");
        assert!(said.contains("raise it by 'ulimit -l'"), "{said}");
    }
}

#[test]
fn a_child_of_fork_has_nothing_locked_and_changes_nothing() {
    farpage_testkit::in_own_process!();
    let _alone = alone(LOCKED_MEMORY);
    let memory = Memory::new(8 * PAGE, MapFlags::PRIVATE);
    let locked = memory.lock(0..8, Hold::Pinned).unwrap();
    let mut locked = Some(locked);
    assert!(holds_in_a_child(|| {
        let nothing = locked_sums() == farpage::LockedSums::default();
        let own = memory.lock(2..4, Hold::Pinned);
        let one = own.is_ok() && locked_sums().pinned_bytes == 2 * PAGE as u64;
        drop((locked.take(), own));
        let none = locked_sums() == farpage::LockedSums::default();
        nothing && one && none
    }));
    assert_eq!(memory.locked_kib(), 32);
    assert_eq!(locked_sums().pinned_bytes, 8 * PAGE as u64);
    drop(locked);
    assert_eq!(memory.locked_kib(), 0);
}

/// In a child of fork, which then ends. What is asked uses nothing that other threads may have locked.
fn holds_in_a_child(holds: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child does what is said above.
    match unsafe { fork() } {
        0 => {
            let holds = holds();
            // SAFETY: ends the child.
            unsafe { end(i32::from(!holds)) }
        }
        child => wait(child) == 0,
    }
}

unsafe extern "C" {
    fn fork() -> i32;
    #[link_name = "_exit"]
    fn end(code: i32) -> !;
    fn waitpid(process: i32, status: *mut i32, options: i32) -> i32;
}

/// How it ended.
fn wait(process: i32) -> i32 {
    let mut status = 0;
    // SAFETY: a child of this process, and a place of its own.
    assert_eq!(unsafe { waitpid(process, &mut status, 0) }, process);
    status
}
