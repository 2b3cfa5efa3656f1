//! Processes that lock parts of the same shared memory through the host kernel, and are killed.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use farpage_client::locks::{Hold, LockRefusal, SegmentLock};
use farpage_client::{Error, Host, Refusal};
use farpage_daemon::locks::FramesTold;
use farpage_sys::ipc;
use farpage_testkit::Alone;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

use crate::support::{PROGRAM, Program, run_host_with, until};

const PAGE: u64 = 4096;
const LIMIT: u64 = 4 << 20;
const NOBODY: u32 = 65534;

/// What processes do; nothing when it is run as a test.
#[test]
fn the_program() {
    let Ok(kind) = std::env::var(PROGRAM) else {
        return;
    };
    match kind.as_str() {
        "host" => run_host_with(|service| service.with_locks(LIMIT, FramesTold::default())),
        "secretive" => run_host_with(|service| {
            let nobody = FramesTold {
                nobody: true,
                ..FramesTold::default()
            };
            service.with_locks(LIMIT, nobody)
        }),
        "open" => run_host_with(|service| {
            let all = FramesTold {
                users: vec![rustix::process::geteuid().as_raw()],
                ..FramesTold::default()
            };
            service.with_locks(LIMIT, all)
        }),
        _ => {}
    }
    let host = Host::connect(&farpage_client::default_socket()).unwrap();
    let mut held: Vec<SegmentLock> = Vec::new();
    println!("> ready");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let pages = || {
            let number = |at: usize| words[at].parse::<u64>().unwrap() * PAGE;
            number(2)..number(3)
        };
        let hold = || match words[4] {
            "pinned" => Hold::Pinned,
            _ => Hold::Resident,
        };
        let locked = match words[0] {
            "file" => {
                let file = File::options().read(true).write(true).open(words[1]);
                Some(host.lock_file(file.unwrap(), pages(), hold()))
            }
            "segment" => Some(host.lock_segment(words[1].parse().unwrap(), pages(), hold())),
            "borrow" => Some(host.borrow_lock(words[1])),
            _ => None,
        };
        let answer = match (locked, words[0]) {
            (Some(Ok(lock)), _) => {
                held.push(lock);
                Ok("done".to_owned())
            }
            (Some(Err(error)), _) => Err(error),
            (None, "lend") => held[0].lend(words[1]).map(|()| "done".into()),
            (None, "drop") => {
                held.clear();
                Ok("done".into())
            }
            (None, "list") => host.locks().map(|listed| {
                let all = listed.processes.iter();
                let all: Vec<String> = all
                    .map(|one| format!("{} of {}", one.pid, one.uid))
                    .collect();
                all.join(", ")
            }),
            (None, "frames") => held[0].frames().map(|frames| format!("{frames:?}")),
            (None, other) => panic!("no such thing: {other}"),
        };
        match answer {
            Ok(said) => println!("> {said}"),
            Err(error) => println!("> {error}"),
        }
    }
    std::process::exit(0);
}

struct Up {
    folder: tempfile::TempDir,
    kernel: Program,
    host: Host,
    _alone: Alone,
}

impl Up {
    fn start(kind: &str) -> Self {
        Self::start_by(Command::new(std::env::current_exe().unwrap()), kind)
    }

    fn start_by(command: Command, kind: &str) -> Self {
        // What io_uring pins counts for its user in all processes.
        let alone = farpage_testkit::alone("locked-memory");
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("host");
        let kernel = Program::start_as(command, kind, &socket);
        let host = Host::connect(&socket).unwrap();
        Self {
            folder,
            kernel,
            host,
            _alone: alone,
        }
    }

    fn program(&self) -> Program {
        Program::start("locks::program", &self.folder.path().join("host"))
    }

    /// KiB that Linux says the host kernel has locked, or pinned.
    fn kib(&self, line: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.kernel.child.id()));
        let status = status.unwrap();
        let line = status.lines().find_map(|one| one.strip_prefix(line));
        let number = line.unwrap().split_whitespace().next().unwrap();
        number.parse().unwrap()
    }

    /// Pages of shared memory with this inode number that the host kernel has locked.
    fn locked(&self, inode: u64) -> Vec<u64> {
        let maps = fs::read_to_string(format!("/proc/{}/smaps", self.kernel.child.id()));
        let (mut pages, mut range) = (Vec::new(), 0..0);
        for line in maps.unwrap().lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words[0] == "VmFlags:" {
                if words.contains(&"lo") {
                    pages.extend(range.clone());
                }
            } else if !words[0].ends_with(':') {
                let hex = |text| u64::from_str_radix(text, 16).unwrap();
                let (from, to) = words[0].split_once('-').unwrap();
                let first = hex(words[2]) / PAGE;
                let is_it = words[4].parse() == Ok(inode);
                range = match is_it {
                    true => first..first + (hex(to) - hex(from)) / PAGE,
                    false => 0..0,
                };
            }
        }
        pages
    }
}

/// A memory file of so many pages, and where other processes find it.
fn memory(pages: u64) -> (OwnedFd, String) {
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
    let file = rustix::fs::memfd_create("grid", flags).unwrap();
    rustix::fs::ftruncate(&file, pages * PAGE).unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    (file, path)
}

/// A System V segment of this user, until this is dropped.
struct Segment(u32);

impl Segment {
    fn make(pages: u64, more: u32) -> Self {
        let key = 0x5000_0000 | std::process::id() << 4 | more;
        Self(ipc::make_segment(key, pages * PAGE).unwrap())
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        let _ = ipc::remove_segment(self.0);
    }
}

fn refused(tried: Result<SegmentLock, Error>) -> LockRefusal {
    match tried {
        Err(Error::Refused(Refusal::Lock(refusal))) => refusal,
        other => panic!("{other:?}"),
    }
}

fn inode(file: impl AsFd) -> u64 {
    rustix::fs::fstat(file).unwrap().st_ino
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn eight_processes_share_one_registration_and_one_charge_until_the_last_has_gone() {
    let up = Up::start("locks::host");
    let (_file, path) = memory(1024);
    let mut all: Vec<Program> = (0..8).map(|_| up.program()).collect();
    assert_eq!(all[0].does(&format!("file {path} 256 512 pinned")), "done");
    assert_eq!(all[0].does("lend ring"), "done");
    for program in &mut all[1..] {
        assert_eq!(program.does("borrow ring"), "done");
    }
    let registered = || (up.kib("VmPin:"), up.kib("VmLck:"));
    assert_eq!(registered(), (1024, 0));
    let listed = up.host.locks().unwrap();
    let mut pids: Vec<u32> = all.iter().map(|one| one.child.id()).collect();
    pids.sort_unstable();
    let lent = &listed.lent[0];
    assert_eq!((&lent.users, lent.bytes), (&pids, 1 << 20));
    assert_eq!((listed.processes.len(), listed.users.len()), (8, 1));
    assert_eq!(listed.users[0].bytes, 1 << 20);
    assert!(
        listed
            .processes
            .iter()
            .all(|one| one.pinned_bytes == 1 << 20)
    );

    let before = all[7].does("frames");
    if let Err(why) = fs::write("/proc/sys/vm/compact_memory", "1") {
        println!("skipped: compaction: {why}");
    }
    assert_eq!(all[7].does("frames"), before);
    if !before.starts_with('[') {
        println!("skipped: frames: {before}");
    }
    // The lender first.
    for gone in 1..8 {
        all.remove(0).dies();
        until("its share is given back", || {
            up.host.locks().unwrap().processes.len() == 8 - gone
        });
        assert_eq!(registered(), (1024, 0));
    }
    assert_eq!(all[0].does("frames"), before);
    all.remove(0).dies();
    until("nothing is pinned", || registered() == (0, 0));
    let listed = up.host.locks().unwrap();
    assert!(listed.processes.is_empty() && listed.lent.is_empty() && listed.users.is_empty());
    let none = refused(up.host.borrow_lock("ring")).to_string();
    assert!(
        none.starts_with("no lock of this user's is lent as 'ring'"),
        "{none}"
    );
}

/// Three processes lock overlapping thirds; each is killed in turn.
fn dies_in_turn(up: &Up, lock: &str, inode: u64, order: [usize; 3]) {
    let parts = [0..40, 30..70, 60..100];
    let mut programs: Vec<Option<Program>> = Vec::new();
    for part in &parts {
        let mut program = up.program();
        let line = format!("{lock} {} {} resident", part.start, part.end);
        assert_eq!(program.does(&line), "done");
        programs.push(Some(program));
    }
    let wanted = |programs: &[Option<Program>]| -> Vec<u64> {
        let lives = |page: &u64| {
            let mut both = parts.iter().zip(programs);
            both.any(|(part, one)| one.is_some() && part.contains(page))
        };
        (0..100).filter(lives).collect()
    };
    assert_eq!(up.locked(inode), wanted(&programs));
    assert_eq!(up.kib("VmLck:"), 400, "each page once");
    assert_eq!(up.host.locks().unwrap().users[0].bytes, 100 * PAGE);
    for dies in order {
        programs[dies].take().unwrap().dies();
        let left = wanted(&programs);
        until("what it held alone is free, and nothing else", || {
            up.locked(inode) == left
        });
        assert_eq!(up.kib("VmLck:"), left.len() as u64 * 4);
    }
    assert!(up.host.locks().unwrap().processes.is_empty());
}

#[test]
fn who_is_killed_releases_just_what_no_other_has_of_a_memory_file() {
    let up = Up::start("locks::host");
    let (file, path) = memory(200);
    for order in [[0, 1, 2], [1, 0, 2], [2, 0, 1], [1, 2, 0]] {
        dies_in_turn(&up, &format!("file {path}"), inode(&file), order);
    }
}

#[test]
fn who_is_killed_releases_just_what_no_other_has_of_a_system_v_segment() {
    let up = Up::start("locks::host");
    let segment = Segment::make(200, 1);
    for order in [[0, 1, 2], [1, 0, 2]] {
        // Linux shows its number as that of its inode.
        dies_in_turn(
            &up,
            &format!("segment {}", segment.0),
            segment.0.into(),
            order,
        );
    }
    // The host kernel keeps no segment that nobody has.
    assert_eq!(ipc::segment(segment.0).unwrap().attached, 0);
}

#[test]
fn pages_are_held_in_either_way_as_long_as_somebody_wants_that() {
    let up = Up::start("locks::host");
    let (file, _) = memory(100);
    let lock = |from, to, hold| {
        up.host
            .lock_file(&file, from * PAGE..to * PAGE - 1, hold)
            .unwrap()
    };
    let pinned = lock(0, 50, Hold::Pinned);
    let resident = lock(40, 60, Hold::Resident);
    let inner = lock(10, 20, Hold::Pinned);
    assert_eq!((up.kib("VmPin:"), up.kib("VmLck:")), (200, 80));
    assert_eq!(pinned.range(), 0..50 * PAGE);
    let listed = up.host.locks().unwrap();
    let one = &listed.processes[0];
    assert_eq!((one.areas, one.pid), (3, std::process::id()));
    assert_eq!(
        (one.pinned_bytes, one.resident_bytes),
        (50 * PAGE, 20 * PAGE)
    );
    assert_eq!(one.segment, "memfd:grid");
    assert_eq!(listed.users[0].bytes, 60 * PAGE, "each page once");
    drop(pinned);
    until("the inner part is left", || up.kib("VmPin:") == 40);
    inner.check().unwrap();
    drop((inner, resident));
    until("nothing is left", || {
        (up.kib("VmPin:"), up.kib("VmLck:")) == (0, 0)
    });
}

#[test]
fn frames_are_told_by_policy() {
    let (file, _) = memory(300);
    let up = Up::start("locks::host");
    let lock = up
        .host
        .lock_file(&file, 0..300 * PAGE, Hold::Pinned)
        .unwrap();
    match lock.frames() {
        Ok(frames) => {
            assert_eq!(frames.len(), 300);
            assert!(frames.iter().all(|frame| *frame > 0));
            let blocks = lock.blocks(u64::MAX).unwrap();
            assert_eq!(blocks.iter().map(|block| block.frames).sum::<u64>(), 300);
        }
        Err(error) => println!("skipped: {error}"),
    }
    // Two at a time would wait for each other: each is alone with what a user may lock.
    drop((lock, up));
    let up = Up::start("locks::secretive");
    let lock = up.host.lock_file(&file, 0..PAGE, Hold::Pinned).unwrap();
    let said = lock.frames().unwrap_err().to_string();
    let begins = format!("process {} of user ", std::process::id());
    assert!(said.starts_with(&begins), "{said}");
    let ends = "is not told frames of memory: the host kernel tells them to nobody; give the process \
                CAP_SYS_ADMIN, or name the user when the host kernel is started (farpage up --frames)";
    assert!(said.ends_with(ends), "{said}");
}

#[test]
fn a_host_kernel_that_may_not_read_frames_says_so() {
    let mut command = Command::new("setpriv");
    if is_root() {
        command.args(["--inh-caps=-sys_admin", "--bounding-set=-sys_admin"]);
    }
    command.arg(std::env::current_exe().unwrap());
    let up = Up::start_by(command, "locks::open");
    let (file, _) = memory(4);
    let lock = up.host.lock_file(&file, 0..PAGE, Hold::Pinned).unwrap();
    let said = lock.frames().unwrap_err().to_string();
    let wanted = "the host kernel may not read frames of memory itself; start farpage up as root, or with \
                  CAP_SYS_ADMIN";
    assert_eq!(said, wanted);
}

#[test]
fn what_cannot_be_locked_is_refused_with_why_and_what_to_do() {
    let up = Up::start("locks::host");
    let (file, path) = memory(10);
    let lock = |range, hold| refused(up.host.lock_file(&file, range, hold)).to_string();
    assert_eq!(
        lock(4096..4096, Hold::Resident),
        "a part without bytes cannot be locked; give a byte at least"
    );
    assert_eq!(
        lock(4096..11 * PAGE, Hold::Resident),
        "cannot lock 40960 bytes from byte 4096 of memfd:grid: it has 40960 bytes; lock less, or make it larger \
         first"
    );
    assert!(matches!(
        refused(up.host.lock_file(&file, 1..u64::MAX, Hold::Pinned)),
        LockRefusal::Beyond { .. }
    ));
    let read_only = File::open(&path).unwrap();
    let pinned = refused(up.host.lock_file(&read_only, 0..PAGE, Hold::Pinned)).to_string();
    assert!(
        pinned.starts_with("cannot pin memfd:grid: only what may be written can be pinned"),
        "{pinned}"
    );
    drop(
        up.host
            .lock_file(&read_only, 0..PAGE, Hold::Resident)
            .unwrap(),
    );
    let (sealed, _) = memory(10);
    rustix::fs::fcntl_add_seals(&sealed, SealFlags::WRITE).unwrap();
    let pinned = refused(up.host.lock_file(&sealed, 0..PAGE, Hold::Pinned));
    assert_eq!(pinned, LockRefusal::ReadOnly("memfd:grid".into()));

    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    let disk = tempfile::tempfile_in("/var/tmp").unwrap();
    disk.set_len(PAGE).unwrap();
    for none in [pipe.as_fd(), disk.as_fd()] {
        let refusal = refused(up.host.lock_file(none, 0..PAGE, Hold::Resident));
        assert_eq!(refusal, LockRefusal::NoMemory);
    }
    let own = up.host.create("own", 1 << 20).unwrap();
    let refusal = refused(up.host.lock_file(own.file(), 0..PAGE, Hold::Resident));
    assert_eq!(refusal, LockRefusal::Own("own".into()));
    let none = refused(up.host.lock_segment(u32::MAX >> 1, 0..PAGE, Hold::Resident));
    assert!(matches!(none, LockRefusal::NoSegment(_)), "{none}");

    let one = up.host.lock_file(&file, 0..PAGE, Hold::Resident).unwrap();
    one.lend("x").unwrap();
    let two = up.host.lock_file(&file, 0..PAGE, Hold::Resident).unwrap();
    for (lock, name, refusal) in [
        (&two, "x", LockRefusal::Lent("x".into())),
        (&two, "a/b", LockRefusal::Name("a/b".into())),
        (&one, "y", LockRefusal::LentAs("x".into())),
    ] {
        match lock.lend(name) {
            Err(Error::Refused(Refusal::Lock(why))) => assert_eq!(why, refusal),
            other => panic!("{other:?}"),
        }
    }
    drop(up.host.borrow_lock("x").unwrap());
}

#[test]
fn a_user_has_as_much_locked_as_it_may_and_is_told_what_else() {
    let up = Up::start("locks::host");
    let (file, _) = memory(2 * LIMIT / PAGE);
    let lock = |range| up.host.lock_file(&file, range, Hold::Pinned);
    let half = lock(0..LIMIT / 2).unwrap();
    let same = lock(0..LIMIT / 2).unwrap();
    let rest = lock(LIMIT / 4..LIMIT).unwrap();
    let said = refused(lock(LIMIT..LIMIT + PAGE)).to_string();
    let user = rustix::process::geteuid().as_raw();
    let wanted = format!(
        "cannot lock 4 KiB more: processes of user {user} may have 4096 KiB locked at the host kernel, of which 4096 \
         are in use; unlock some, or start it with more (farpage up --lock-limit)"
    );
    assert_eq!(said, wanted);
    drop((half, same));
    // What the third has of it stays.
    until("there is room for a quarter", || {
        lock(LIMIT..LIMIT + LIMIT / 4).is_ok()
    });
    assert!(lock(LIMIT..LIMIT * 2).is_err());
    drop(rest);
}

#[test]
fn the_limit_of_the_host_kernel_is_named_with_how_to_raise_it() {
    let mut command = Command::new("prlimit");
    command.arg("--memlock=262144");
    if is_root() {
        command.args([
            "setpriv",
            "--inh-caps=-ipc_lock",
            "--bounding-set=-ipc_lock",
        ]);
    }
    command.arg(std::env::current_exe().unwrap());
    let up = Up::start_by(command, "locks::host");
    let (file, _) = memory(500);
    let _some = up
        .host
        .lock_file(&file, 0..128 << 10, Hold::Resident)
        .unwrap();
    let lock = |hold| refused(up.host.lock_file(&file, 0..400 << 10, hold)).to_string();
    let ends =
        "start farpage up with more (ulimit -l, LimitMEMLOCK= of systemd), or with CAP_IPC_LOCK";
    for (hold, what) in [
        (
            Hold::Resident,
            "the host kernel cannot lock 272 KiB more: its own limit of locked memory (RLIMIT_MEMLOCK) is 256 KiB, \
             of which 128 are in use; ",
        ),
        (
            Hold::Pinned,
            "the host kernel cannot pin 400 KiB more: its own limit of locked memory (RLIMIT_MEMLOCK) is 256 KiB, \
             of which 0 are pinned here, and each ring takes some; ",
        ),
    ] {
        assert_eq!(lock(hold), format!("{what}{ends}"));
    }
    // Nothing of it is left.
    assert_eq!((up.kib("VmLck:"), up.kib("VmPin:")), (128, 0));
    assert_eq!(up.host.locks().unwrap().users[0].bytes, 128 << 10);
}

#[test]
fn memory_that_was_discarded_is_no_longer_what_was_locked_and_can_be_locked_anew() {
    for hold in [Hold::Resident, Hold::Pinned] {
        let up = Up::start("locks::host");
        let (file, _) = memory(100);
        let lock = |from: u64, to: u64| up.host.lock_file(&file, from * PAGE..to * PAGE, hold);
        let (first, second) = (lock(0, 40).unwrap(), lock(50, 100).unwrap());
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 10 * PAGE, PAGE).unwrap();
        rustix::fs::ftruncate(&file, 80 * PAGE).unwrap();
        for (lock, offset) in [(&first, 10 * PAGE), (&second, 80 * PAGE)] {
            let said = lock.check().unwrap_err().to_string();
            let wanted = format!(
                "memory of memfd:grid at byte {offset} was discarded or cut off by who shares it while it was locked; \
                 unlock it, and lock what is there now"
            );
            assert_eq!(said, wanted);
        }
        assert_eq!(up.host.locks().unwrap().processes[0].gone, 2);
        let again = lock(0, 80).unwrap();
        drop((first, second));
        again.check().unwrap();
        assert_eq!(up.host.locks().unwrap().users[0].bytes, 80 * PAGE);
        let line = match hold {
            Hold::Resident => "VmLck:",
            Hold::Pinned => "VmPin:",
        };
        until("all of it is held", || up.kib(line) == 320);
        drop(again);
        until("nothing is", || up.kib(line) == 0);
    }
}

#[test]
fn a_segment_of_another_user_is_refused_unless_its_mode_allows_it() {
    if !is_root() {
        println!("skipped: only root can be another user");
        return;
    }
    let up = Up::start("locks::host");
    let open = |path: &std::path::Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    open(up.folder.path(), 0o755);
    open(&up.folder.path().join("host"), 0o666);
    let copy = up.folder.path().join("program");
    farpage_testkit::copy_program(std::env::current_exe().unwrap(), &copy).unwrap();
    open(&copy, 0o755);
    let mut command = Command::new(&copy);
    command.uid(NOBODY).gid(NOBODY).current_dir("/");
    let mut other = Program::start_as(command, "locks::program", &up.folder.path().join("host"));
    let segment = Segment::make(10, 2);
    let number = segment.0;
    assert_eq!(
        other.does(&format!("segment {number} 0 1 resident")),
        format!(
            "user 65534 may not read System V segment {number}: it is user 0's, with mode 0600; its owner may allow \
             it (shmctl IPC_SET)"
        )
    );
    let own = up.host.lock_segment(number, 0..PAGE, Hold::Pinned).unwrap();
    own.lend("roots").unwrap();
    let said = other.does("borrow roots");
    assert!(
        said.starts_with("no lock of this user's is lent as 'roots'"),
        "{said}"
    );
    // What it may open it may lock, but not know where it lies.
    let shared = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    shared.as_file().set_len(PAGE).unwrap();
    open(shared.path(), 0o666);
    let path = shared.path().display();
    assert_eq!(other.does(&format!("file {path} 0 1 pinned")), "done");
    let said = other.does("frames");
    let wanted = "of user 65534 is not told frames of memory: the host kernel tells them to processes with \
                  CAP_SYS_ADMIN; ";
    assert!(said.contains(wanted), "{said}");
    let listed = up.host.locks().unwrap();
    let users: Vec<u32> = listed.users.iter().map(|one| one.uid).collect();
    assert_eq!(users, [0, NOBODY]);
    let own = format!("{} of {NOBODY}", other.child.id());
    assert_eq!(other.does("list"), own);
}

#[test]
fn when_the_host_kernel_is_killed_locks_fail_and_nobody_waits() {
    let up = Up::start("locks::host");
    let (file, _) = memory(10);
    let lock = up.host.lock_file(&file, 0..PAGE, Hold::Pinned).unwrap();
    let Up {
        folder,
        kernel,
        host,
        ..
    } = up;
    kernel.dies();
    let error = lock.check().unwrap_err();
    assert!(matches!(error, Error::Unlocked), "{error}");
    assert!(matches!(lock.frames(), Err(Error::Unlocked)));
    let error = host.lock_file(&file, 0..PAGE, Hold::Resident).unwrap_err();
    assert!(
        matches!(error, Error::Absent(_) | Error::Call(_)),
        "{error}"
    );
    drop((lock, folder));
}
