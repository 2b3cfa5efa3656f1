//! Every system call that takes pointers, with each of them on a page in each state: paged out, set aside, brought
//! back by a read, never touched, made read-only or forbidden by the program, and in memory. What a call does must be
//! the same as without Farpage: the program `calls.c` says it as text, a line for each call, pointer, state and place.

use std::process::Command;

use crate::programs::{build_dir, compile, users};

/// What the program prints where the page could not be brought to the state.
const NOT_REACHED: &str = "not reached";
/// Of so many lines one may say that: what is set aside does not stay there, least of all on a busy machine.
const ONE_NOT_REACHED_IN: usize = 2;
/// Rows that differ, as docs/limits.md says: a debugger does not see what another process has paged out, `/proc/PID/mem`
/// does not look past what the program has forbidden itself, and in the user-mode-only tier there is neither
/// `io_uring_setup` nor `io_setup`, and `clone` of a process that shares memory is not looked at.
const PEEKED: &str = "ptrace_peek_there ";
const MEMORY_FILE: &str = "memory_file_";
const REFUSED: [&str; 2] = ["io_", "clone_sharing_memory "];

/// The lines that the program prints as `user`, with what comes before its command.
fn lines(user: &[&str], before: &[&str], program: &[&str]) -> Vec<String> {
    let line = [user, before, program].concat();
    let mut command = Command::new(line[0]);
    let output = command.args(&line[1..]).current_dir("/").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{line:?}: {}\n{said}",
        output.status
    );
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(str::to_owned).collect()
}

/// Every line that differs, with what it is without Farpage.
fn differences(bare: &[String], managed: &[String]) -> Vec<String> {
    assert_eq!(
        bare.len(),
        managed.len(),
        "not as many lines as without Farpage"
    );
    let both = bare.iter().zip(managed);
    let differing =
        both.filter(|(bare, managed)| bare != managed && !managed.ends_with(NOT_REACHED));
    differing
        .map(|(bare, managed)| {
            let result = bare
                .split_once(" -> ")
                .map_or(&**bare, |(_, result)| result);
            format!("{managed} (without Farpage: {result})")
        })
        .collect()
}

/// Tries the calls as each user, with further options of `farpage run` and words for the program.
fn try_calls(name: &str, options: &[&str], words: &[&str]) {
    let program = compile("calls.c", name, &[]);
    let program = [&[&*program][..], words].concat();
    let farpage = build_dir().join("farpage").display().to_string();
    let run = ["run", "--quiet", "--ram", "16M", "--spill", "/tmp"];
    let before = [&[&*farpage][..], &run, options, &["--"]].concat();
    for user in users() {
        let is_full = user.is_empty() && rustix::process::geteuid().is_root();
        let is_known = |line: &String| {
            let may_not = line.contains(" read-only ") || line.contains(" forbidden ");
            line.starts_with(PEEKED)
                || may_not && line.starts_with(MEMORY_FILE)
                || !is_full && REFUSED.iter().any(|row| line.starts_with(row))
        };
        let mut bare = lines(user, &[], &program);
        let mut managed = lines(user, &before, &program);
        bare.retain(|line| !is_known(line));
        managed.retain(|line| !is_known(line));
        let missed = managed.iter().filter(|line| line.ends_with(NOT_REACHED));
        let missed = missed.count();
        assert!(
            missed * ONE_NOT_REACHED_IN < managed.len(),
            "as {user:?}: {missed} of {} states were not reached",
            managed.len(),
        );
        let differences = differences(&bare, &managed);
        assert!(
            differences.is_empty(),
            "as {user:?}, {} of {} lines differ:\n{}",
            differences.len(),
            managed.len(),
            differences.join("\n"),
        );
    }
}

#[test]
fn each_call_has_a_row_or_a_reason() {
    let program = compile("calls.c", "calls-table", &[]);
    let output = Command::new(program).arg("-table").output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

/// Rows of each way in which calls were once wrong: in the short run, where all rows would take too long.
const ONCE_WRONG: [&str; 25] = [
    "msgsnd_end",
    "msgrcv_end",
    "semctl_all_of_many",
    "getsockopt_filter",
    "setsockopt_filter",
    "mq_notify_thread",
    "ioctl_interfaces",
    "rt_sigaction",
    "rt_sigprocmask",
    "sigaltstack",
    "modify_ldt_write",
    "lsm_list_modules",
    "add_key_long",
    "keyctl_read_long",
    "flistxattr_long",
    "setxattrat",
    "futex_waitv",
    "ppoll_without_mask",
    "vmsplice_read",
    "mseal",
    "thread_end_robust_list",
    "clone_copying_memory",
    "writev",
    "ptrace_peek",
    "get_mempolicy_of",
];

#[test]
fn calls_that_were_wrong_do_the_same_whatever_pages_their_pointers_name() {
    let words = [&ONCE_WRONG[..], &["-out", "-protected"]].concat();
    try_calls("calls-wrong", DISK, &words);
}

/// Pages that leave go to the disk, and come back as copies.
const DISK: &[&str] = &["--compressed", "0"];

macro_rules! states {
    ($($test:ident: $options:expr, $state:literal;)*) => {$(
        #[test]
        fn $test() {
            try_calls(stringify!($test), $options, &[$state]);
        }
    )*};
}

/// All rows, a state at a time: `cargo xtask test --only calls`.
mod whole {
    use super::{DISK, try_calls};

    states! {
        pages_in_memory: DISK, "-resident";
        pages_on_the_disk: DISK, "-out";
        pages_set_aside: DISK, "-aside";
        pages_brought_back_by_a_read: DISK, "-protected";
        pages_never_touched: DISK, "-zero";
        pages_that_may_only_be_read: DISK, "-read-only";
        pages_that_are_forbidden: DISK, "-forbidden";
        pages_in_the_compressed_tier: &[], "-out";
    }
}
