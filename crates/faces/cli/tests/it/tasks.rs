//! Address spaces of tasks under `farpage run`, and what they share through a host kernel.
#![allow(unsafe_code)]

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use farpage_client::Host;
use farpage_task::{AddressSpace, Inheritance, PAGE_BYTES as PAGE, Protection, Shortage, VmError};
use farpage_testkit::until;

use crate::support::up::Up;

const ROLE: &str = "FARPAGE_TASK_ROLE";
const AT: &str = "FARPAGE_TASK_AT";

unsafe extern "C" {
    fn fork() -> i32;
    fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
    fn _exit(code: i32) -> !;
}

fn word(at: u64) -> &'static AtomicU64 {
    // SAFETY: callers name memory that is allocated; whoever else has it accesses it atomically.
    unsafe { &*(at as *const AtomicU64) }
}

fn get(at: u64) -> u64 {
    word(at).load(Ordering::SeqCst)
}

fn set(at: u64, value: u64) {
    word(at).store(value, Ordering::SeqCst);
}

fn own() -> &'static AddressSpace {
    AddressSpace::own().unwrap()
}

fn the_test_as(mut command: Command, role: &str, at: u64) -> Command {
    command.args(["--exact", "tasks::the_program", "--nocapture"]);
    command.env(ROLE, role).env(AT, at.to_string());
    command
}

fn runs_well(command: &mut Command) {
    let output = command.output().unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{}: {out}\n{err}", output.status);
}

fn in_child(act: impl FnOnce() -> bool) {
    // SAFETY: the child uses what fork makes usable, and ends.
    let child = unsafe { fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: ends the child.
        unsafe { _exit(i32::from(!act())) };
    }
    let mut status = -1;
    // SAFETY: the child is this function's.
    let waited = unsafe { waitpid(child, &mut status, 0) };
    assert_eq!((waited, status), (child, 0));
}

#[test]
fn the_program() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    match role.as_str() {
        "parent" => parent(),
        "shares much" => shares_much(),
        "races" => races(),
        "has much" => has_much(std::env::var(AT).unwrap().parse().unwrap()),
        "is refused" => is_refused(std::env::var(AT).unwrap().parse().unwrap()),
        "child" => child(std::env::var(AT).unwrap().parse().unwrap()),
        other => panic!("no role {other}"),
    }
}

fn parent() {
    // More than the budget: the agent manages what is the program's own.
    let filler: Vec<u64> = (0..16 << 20).collect();
    let at = own().vm_allocate(0, 512 * PAGE, true).unwrap();
    let [share, copy, none] = [at, at + 128 * PAGE, at + 256 * PAGE];
    for (at, value) in [(share, 1), (copy, 2), (none, 3)] {
        set(at, value);
    }
    own()
        .vm_inherit(share, 128 * PAGE, Inheritance::Share)
        .unwrap();
    own()
        .vm_inherit(none, 128 * PAGE, Inheritance::None)
        .unwrap();
    own()
        .vm_protect(share + 127 * PAGE, PAGE, true, Protection::READ)
        .unwrap();
    own().vm_copy(copy, 128 * PAGE, at + 384 * PAGE).unwrap();
    in_child(|| {
        set(share, get(share) + 10);
        set(copy, get(copy) + 10);
        let is_left_out = own().vm_regions(none, PAGE).is_err();
        is_left_out && get(share) == 11 && get(copy) == 12 && get(at + 384 * PAGE) == 2
    });
    assert_eq!((get(share), get(copy), get(none)), (11, 2, 3));
    let exe = std::env::current_exe().unwrap();
    runs_well(&mut the_test_as(Command::new(exe), "child", at));
    assert_eq!((get(share), get(share + PAGE)), (11, 99));
    assert!(
        filler
            .iter()
            .enumerate()
            .all(|(at, value)| at as u64 == *value)
    );
}

/// Executed by it.
fn child(at: u64) {
    assert_eq!(get_shared(at), 11);
    set(at + PAGE, 99);
    let told = own().vm_regions(at, 512 * PAGE).unwrap();
    assert_eq!(
        told.iter().map(|region| region.bytes).sum::<u64>(),
        128 * PAGE
    );
    assert_eq!(told[1].max_protection, Protection::READ);
    let copy = at + 128 * PAGE;
    assert_eq!(
        own().vm_regions(copy, PAGE),
        Err(VmError::NoSpace { bytes: PAGE })
    );
    assert_eq!(own().vm_allocate(copy, PAGE, false), Ok(copy));
    assert_eq!(get(copy), 0);
}

fn get_shared(at: u64) -> u64 {
    own();
    get(at)
}

fn under_run(options: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_farpage"));
    command
        .args(["run", "--ram", "64M"])
        .args(options)
        .arg("--");
    command.arg(std::env::current_exe().unwrap());
    command.current_dir(folder.path());
    runs_well(&mut the_test_as(command, "parent", 0));
}

#[test]
fn children_have_what_they_inherit_at_the_same_addresses() {
    under_run(&[]);
}

#[test]
fn so_they_have_where_shared_memory_is_kept() {
    if !farpage_sys::uffd::serves_system_calls() {
        return println!("skipped: this user's userfaultfd does not serve system calls");
    }
    under_run(&["--shm"]);
}

/// 48 MiB, three times what the host kernel may have in memory.
const PAGES: u64 = 12288;

fn fill(at: u64, add: u64) {
    (0..PAGES).for_each(|page| set(at + page * PAGE, page + add));
}

fn is_filled(at: u64, add: u64) -> bool {
    (0..PAGES).all(|page| get(at + page * PAGE) == page + add)
}

/// Shares through a host kernel what does not fit into its memory.
fn shares_much() {
    let path = PathBuf::from(std::env::var("FARPAGE_HOST").unwrap());
    let host = || Host::connect(&path).unwrap();
    own().share_through(host());
    let at = own().vm_allocate(0, (PAGES + 8) * PAGE, true).unwrap();
    let rest = at + PAGES * PAGE;
    own()
        .vm_inherit(at, (PAGES + 4) * PAGE, Inheritance::Share)
        .unwrap();
    // Parts of it are inherited in other ways.
    own().vm_inherit(rest, PAGE, Inheritance::Copy).unwrap();
    own()
        .vm_inherit(rest + PAGE, PAGE, Inheritance::None)
        .unwrap();
    own()
        .vm_protect(rest + 2 * PAGE, PAGE, true, Protection::READ)
        .unwrap();
    fill(at, 1);
    set(rest, 5);
    until("what is beyond the budget has left", || {
        let listed = host().list().unwrap();
        assert_eq!((listed.len(), listed[0].bytes), (1, (PAGES + 4) * PAGE));
        listed[0].resident_bytes <= 16 << 20
    });
    for round in 1..3 {
        in_child(|| {
            let was = is_filled(at, round) && get(rest) == 5;
            set(rest, 6);
            let is_left_out = own().vm_regions(rest + PAGE, PAGE).is_err();
            let refused = own().vm_write(rest + 2 * PAGE, &[1; 4096]).is_err();
            fill(at, round + 1);
            was && is_left_out && refused && own().vm_read(rest, PAGE).is_ok()
        });
        assert!(is_filled(at, round + 1) && get(rest) == 5);
    }
    let exe = std::env::current_exe().unwrap();
    runs_well(&mut the_test_as(Command::new(exe), "has much", at));
    assert!(is_filled(at, 4));
    let read = own().vm_read(at, PAGES * PAGE).unwrap().map().unwrap();
    let firsts = read.chunks_exact(4096).map(|page| page[0]);
    assert!(
        firsts.eq((0..PAGES).map(|page| (page + 4) as u8)),
        "also what is out"
    );
    // What has contents moves into a memory file.
    set(rest + 4 * PAGE, 7);
    own()
        .vm_inherit(rest + 4 * PAGE, PAGE, Inheritance::Share)
        .unwrap();
    assert_eq!((get(rest + 4 * PAGE), host().list().unwrap().len()), (7, 1));
    // In parts; others go on with theirs, and nothing comes to its place before all is gone.
    own().vm_deallocate(at + PAGE, PAGE).unwrap();
    assert!(own().vm_read(at + PAGE, PAGE).is_err());
    let taken = own().vm_allocate(at + PAGE, PAGE, false);
    assert_eq!(taken, Err(VmError::NoSpace { bytes: PAGE }));
    assert_eq!((get(at), get(at + 2 * PAGE)), (4, 6));
    own().vm_deallocate(at, PAGE).unwrap();
    own()
        .vm_deallocate(at + 2 * PAGE, (PAGES + 2) * PAGE)
        .unwrap();
    assert_eq!(own().vm_allocate(at, PAGES * PAGE, false), Ok(at));
    assert_eq!(get(at), 0);
    until("the object is gone", || host().list().unwrap().is_empty());
}

/// A thread that touches memory for the first time just when it becomes an object.
fn races() {
    let path = PathBuf::from(std::env::var("FARPAGE_HOST").unwrap());
    own().share_through(Host::connect(&path).unwrap());
    let (go, mut objects) = (AtomicU64::new(0), 0);
    for round in 1..=400 {
        let at = own().vm_allocate(0, 16 * PAGE, true).unwrap();
        std::thread::scope(|scope| {
            let go = &go;
            scope.spawn(move || {
                while go.load(Ordering::Acquire) != round {
                    std::hint::spin_loop();
                }
                // Earlier and later.
                (0..round * 40).for_each(|_| std::hint::spin_loop());
                (0..16).for_each(|page| set(at + page * PAGE, round));
            });
            go.store(round, Ordering::Release);
            own().vm_inherit(at, 16 * PAGE, Inheritance::Share).unwrap();
        });
        assert!(
            (0..16).all(|page| get(at + page * PAGE) == round),
            "round {round}"
        );
        objects += Host::connect(&path).unwrap().list().unwrap().len();
        if round % 20 == 0 {
            in_child(|| (0..16).all(|page| get(at + page * PAGE) == round));
        }
        own().vm_deallocate(at, 16 * PAGE).unwrap();
    }
    assert!(objects > 0, "none was an object");
}

#[test]
fn nothing_is_lost_that_is_written_just_when_an_object_is_made() {
    let up = Up::start(&[]);
    let exe = Command::new(std::env::current_exe().unwrap());
    runs_well(the_test_as(exe, "races", 0).env("FARPAGE_HOST", up.socket()));
}

/// Executed by it.
fn has_much(at: u64) {
    own();
    assert!(is_filled(at, 3));
    fill(at, 4);
    let rest = at + PAGES * PAGE;
    let told = own().vm_regions(rest, 8 * PAGE).unwrap();
    assert_eq!(told[0].address, rest + 2 * PAGE);
    assert_eq!(told[0].max_protection, Protection::READ);
    in_child(|| is_filled(at, 4));
}

#[test]
fn what_is_shared_through_the_host_kernel_need_not_fit_into_memory() {
    let up = Up::start(&[]);
    let exe = Command::new(std::env::current_exe().unwrap());
    runs_well(the_test_as(exe, "shares much", 0).env("FARPAGE_HOST", up.socket()));
}

#[test]
fn without_room_at_the_host_kernel_nothing_changes() {
    let up = Up::start(&[]);
    let exe = Command::new(std::env::current_exe().unwrap());
    let mut command = the_test_as(exe, "is refused", up.child.id().into());
    runs_well(command.env("FARPAGE_HOST", up.socket()));
}

/// Kills the host kernel before it asks it for memory.
fn is_refused(host: u64) {
    let path = PathBuf::from(std::env::var("FARPAGE_HOST").unwrap());
    own().share_through(Host::connect(&path).unwrap());
    let at = own().vm_allocate(0, 4 * PAGE, true).unwrap();
    let killed = Command::new("kill")
        .args(["-9", &host.to_string()])
        .status();
    assert!(killed.unwrap().success());
    until("nobody listens", || Host::connect(&path).is_err());
    let refused = own().vm_inherit(at, 4 * PAGE, Inheritance::Share);
    assert_eq!(
        refused,
        Err(VmError::ResourceShortage(Shortage::HostKernel))
    );
    let told = own().vm_regions(at, 4 * PAGE).unwrap();
    assert!(!told[0].is_shared && told[0].inheritance == Inheritance::Copy);
    set(at, 3);
    own().vm_inherit(at, 4 * PAGE, Inheritance::Share).unwrap();
    in_child(|| get(at) == 3);
}
