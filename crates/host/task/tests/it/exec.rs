//! What programs have that are executed: the memory that is shared, at the same addresses.
#![allow(unsafe_code)]

use std::process::Command;

use farpage_task::{AddressSpace, Inheritance, PAGE_BYTES as PAGE, Protection, VmError};

use crate::support;
use crate::support::{allocate, get, own, pages, set};

const ROLE: &str = "FARPAGE_TASK_ROLE";
const AT: &str = "FARPAGE_TASK_AT";

/// Runs [`program`] of this file in a process of its own.
fn program(role: &str, at: u64) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "exec::the_program", "--nocapture"]);
    command.env(ROLE, role).env(AT, at.to_string());
    command
}

fn runs_well(command: &mut Command) {
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {told}", output.status);
}

#[test]
fn the_program() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let at: u64 = std::env::var(AT).unwrap().parse().unwrap();
    match role.as_str() {
        "has" => has(at),
        "has not" => {
            let none = Err(VmError::NoSpace { bytes: PAGE });
            assert_eq!(own().vm_regions(at, PAGE), none);
            assert_eq!(own().vm_allocate(at, PAGE, false), Ok(at));
            assert_eq!(get(at), 0);
        }
        "adds" => {
            own();
            set(at, get(at) + 1);
            if get(at) < 5 {
                runs_well(&mut program("adds", at));
            }
        }
        "is taken" => is_taken(at),
        other => panic!("no role {other}"),
    }
}

/// Eight pages, of which the fourth and fifth are another's, and the last can only be read.
fn has(at: u64) {
    let told = own().vm_regions(at, 8 * PAGE).unwrap();
    let ranges: Vec<_> = told
        .iter()
        .map(|region| (region.address - at) / PAGE)
        .collect();
    assert_eq!(ranges, [0, 5, 7]);
    assert!(
        told.iter()
            .all(|region| region.is_shared && region.is_allocated)
    );
    assert!(
        told.iter()
            .all(|region| region.inheritance == Inheritance::Share)
    );
    assert_eq!(told[0].object, told[2].object);
    assert_eq!(told[2].max_protection, Protection::READ);
    assert_eq!(
        (get(at), get(at + 7 * PAGE)),
        (0x0101_0101_0101_0101, 0x0808_0808_0808_0808)
    );
    assert!(own().vm_write(at + 7 * PAGE, &pages(&[1])).is_err());
    set(at + PAGE, 22);
}

#[test]
fn what_is_shared_is_there_at_the_same_addresses_and_what_is_not_is_not() {
    farpage_testkit::in_own_process!();
    let at = allocate(8);
    own()
        .vm_write(at, &pages(&[1, 2, 3, 4, 5, 6, 7, 8]))
        .unwrap();
    own().vm_inherit(at, 8 * PAGE, Inheritance::Share).unwrap();
    own()
        .vm_inherit(at + 3 * PAGE, PAGE, Inheritance::Copy)
        .unwrap();
    own()
        .vm_inherit(at + 4 * PAGE, PAGE, Inheritance::None)
        .unwrap();
    own()
        .vm_protect(at + 7 * PAGE, PAGE, true, Protection::READ)
        .unwrap();
    runs_well(&mut program("has", at));
    assert_eq!(get(at + PAGE), 22);
    runs_well(&mut program("has not", at + 3 * PAGE));
    runs_well(&mut program("has not", at + 4 * PAGE));
    assert_eq!(get(at + 3 * PAGE), 0x0404_0404_0404_0404);
    // By way of a program that knows nothing of it.
    let exe = std::env::current_exe().unwrap();
    let mut shell = Command::new("/bin/sh");
    let line = format!("'{}' --exact exec::the_program; exit $?", exe.display());
    runs_well(
        shell
            .args(["-c", &line])
            .env(ROLE, "has")
            .env(AT, at.to_string()),
    );
    own().vm_deallocate(at, 8 * PAGE).unwrap();
    runs_well(&mut program("has not", at));
}

#[test]
fn programs_hand_it_on_to_those_that_they_execute() {
    farpage_testkit::in_own_process!();
    let at = allocate(1);
    set(at, 1);
    own().vm_inherit(at, PAGE, Inheritance::Share).unwrap();
    runs_well(&mut program("adds", at));
    assert_eq!(get(at), 5);
}

#[test]
fn a_child_that_executes_has_what_the_child_had() {
    farpage_testkit::in_own_process!();
    let at = allocate(2);
    own().vm_inherit(at, 2 * PAGE, Inheritance::Share).unwrap();
    support::Forked::new(|| {
        own().vm_deallocate(at + PAGE, PAGE).unwrap();
        runs_well(&mut program("has not", at + PAGE));
        runs_well(&mut program("adds", at));
    })
    .ends_well();
    assert_eq!(get(at), 5);
    set(at + PAGE, 4);
    runs_well(&mut program("adds", at + PAGE));
    assert_eq!(
        get(at + PAGE),
        5,
        "what the child does is not for its parent's"
    );
}

#[test]
fn where_something_is_already_it_is_said() {
    farpage_testkit::in_own_process!();
    let at = allocate(1);
    own().vm_inherit(at, PAGE, Inheritance::Share).unwrap();
    runs_well(&mut program("is taken", at));
}

fn is_taken(at: u64) {
    unsafe extern "C" {
        fn mmap(at: usize, bytes: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> usize;
    }
    const PRIVATE_ANONYMOUS_FIXED: i32 = 0x02 | 0x20 | 0x10;
    // SAFETY: nothing is there in this program, yet.
    let mapped = unsafe { mmap(at as usize, 4096, 3, PRIVATE_ANONYMOUS_FIXED, -1, 0) };
    assert_eq!(mapped, at as usize);
    let error = AddressSpace::own().err().unwrap();
    assert_eq!((error.address, error.bytes), (at, PAGE));
    assert_eq!(AddressSpace::own().err(), Some(error), "and stays so");
    assert_eq!(get(at), 0, "what was there is");
}
