//! What `docs/limits.md` says that users are told, where no other test shows it.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::programs::{build_dir, compile, users};

fn farpage() -> String {
    build_dir().join("farpage").display().to_string()
}

fn run(words: &[&str]) -> Output {
    Command::new(words[0]).args(&words[1..]).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A program of its own in a folder that every user can read.
fn written(name: &str, bytes: &[u8], mode: u32) -> String {
    let path = build_dir().join(name);
    fs::File::create(&path).unwrap().write_all(bytes).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path.display().to_string()
}

/// Runs `program` in a shell after `ulimit`, and `farpage run` before or after that, as each user. Where it is after,
/// the limit is on farpage, too. All must say what the program says without it.
fn same_with_limits(ulimit: &str, program: &[&str]) {
    let farpage = farpage();
    let under = [
        &farpage, "run", "--quiet", "--ram", "16M", "--spill", "/tmp", "--",
    ];
    let limited = format!("{ulimit}; exec \"$@\"");
    let shell = ["bash", "-c", &limited, "bash"];
    let bare = run(&[&shell, program].concat());
    assert!(bare.status.success(), "{bare:?}");
    for user in users() {
        for line in [
            [user, &under[..], &shell, program].concat(),
            [user, &shell[..], &under, program].concat(),
        ] {
            let ran = run(&line);
            assert!(ran.status.success(), "{line:?}: {ran:?}");
            assert_eq!(said(&ran), "", "{line:?}");
            assert_eq!(ran.stdout, bare.stdout, "{line:?}");
        }
    }
}

#[test]
fn a_stack_without_a_limit_is_one() {
    let programs = [
        compile("limited.c", "limited", &[]),
        compile("limited.c", "limited-static", &["-static"]),
    ];
    for program in &programs {
        same_with_limits("ulimit -s unlimited", &[program, "stack"]);
        // Libraries from the bottom up.
        same_with_limits("ulimit -s unlimited", &["setarch", "-L", program, "stack"]);
    }
}

#[test]
fn a_limit_on_files_is_none_on_memory() {
    let program = compile("limited.c", "limited-files", &[]);
    same_with_limits("ulimit -S -f 100", &[&program, "files", "102400"]);
    let farpage = farpage();
    let inside = [
        "bash",
        "-c",
        "ulimit -f 100; exec \"$@\"",
        "bash",
        &program,
        "files",
        "102400",
    ];
    let under = [
        &farpage, "run", "--quiet", "--ram", "24M", "--spill", "/tmp", "--",
    ];
    for user in users() {
        let ran = run(&[user, &under[..], &inside].concat());
        assert!(
            ran.status.success() && ran.stderr.is_empty(),
            "as {user:?}: {ran:?}"
        );
    }
    // Who cannot raise it is told.
    let other = users().last().unwrap();
    let limited = ["bash", "-c", "ulimit -f 100; exec \"$@\"", "bash"];
    let ran = run(&[other, &limited[..], &under, &["true"]].concat());
    assert_eq!(ran.status.code(), Some(125), "{ran:?}");
    assert_eq!(
        said(&ran),
        "farpage: cannot run: files may have no more than 100 KiB here, and farpage needs 1.00 GiB; raise the \
         limit (ulimit -f), or give it to the program alone: farpage run -- bash -c 'ulimit -f 100; exec PROGRAM'\n"
    );
}

/// Runs the program of `changed.c` with little memory, as `user`: what it does is said by `words`.
fn changed(user: &[&str], program: &str, words: &[&str]) -> Output {
    let farpage = farpage();
    let under = [
        &farpage, "run", "--quiet", "--ram", "16M", "--spill", "/tmp", "--", program,
    ];
    run(&[user, &under, words].concat())
}

/// Those who can become another user, have another root and other namespaces.
fn is_root(user: &[&str]) -> bool {
    user.is_empty() && rustix::process::geteuid().is_root()
}

#[test]
fn who_changes_what_a_process_is_has_its_memory_managed_as_ever() {
    let programs = [
        compile("changed.c", "changed", &[]),
        compile("changed.c", "changed-static", &["-static"]),
    ];
    let of_all: &[&str] = &["undumpable", "no-rights", "files", "session"];
    let of_root: &[&str] = &["user", "mounts", "network", "times"];
    let check = |user: &[&str], words: &[&str]| {
        for program in &programs {
            let ran = changed(user, program, words);
            assert!(
                ran.status.success() && ran.stderr.is_empty(),
                "{words:?} as {user:?}: {ran:?}"
            );
            assert_eq!(ran.stdout, b"as it should be\n", "{words:?}");
        }
    };
    for &user in users() {
        let changes = of_all
            .iter()
            .chain(of_root.iter().filter(|_| is_root(user)));
        for change in changes {
            check(user, &["use", change, "use"]);
            check(user, &[change, "use", "child", "use"]);
            check(user, &["use", change, "child", "use"]);
        }
        check(user, &["use", "pipes", "use"]);
        check(user, &["use", "no-users", "use"]);
        check(user, &["users-and-processes", "child", "use"]);
        check(
            user,
            &["a-little", "users-and-processes", "use", "child", "use"],
        );
        if is_root(user) {
            check(user, &["root", "use"]);
            check(user, &["join-users", "child", "use"]);
            check(user, &["processes", "child", "use"]);
            check(user, &["a-little", "processes", "use", "child", "use"]);
            check(user, &["use", "processes", "use", "child", "use"]);
            for change in ["root", "no-proc", "join-mounts", "join-processes"] {
                check(user, &["use", change, "use"]);
            }
        }
    }
}

#[test]
fn who_can_make_no_threads_is_told_why() {
    let (farpage, program) = (farpage(), compile("changed.c", "changed-no-threads", &[]));
    for &user in users().iter().filter(|user| is_root(user)) {
        let words = [
            &farpage, "run", "--quiet", "--ram", "16M", "--spill", "/tmp", "--", "unshare",
            "--pid", &program, "use",
        ];
        let ran = run(&[user, &words].concat());
        assert!(!ran.status.success() && ran.stdout.is_empty(), "{ran:?}");
        let said = said(&ran);
        let (_, what) = said.split_once(" is killed: ").expect(&said);
        assert_eq!(
            what,
            "farpage can start no thread in it: its children begin another namespace of process ids, and Linux makes no \
             threads for such a process; run the program in a child of it (unshare --pid --fork)\n"
        );
    }
}

/// What Linux merged would lose the protection by which writing is noticed, and with it what is written.
#[test]
fn linux_merges_no_page_that_is_managed() {
    let program = compile("changed.c", "changed-merged", &[]);
    let farpage = farpage();
    let under = [
        &farpage, "run", "--quiet", "--ram", "16M", "--spill", "/tmp",
    ];
    for user in users() {
        for words in [&["merged", "use"], &["use", "merged"]] {
            // As in a service of systemd that has `MemoryKSM=yes`.
            let ran = run(&[
                user,
                &[&program, "all-merged"][..],
                &under,
                &["--", &program],
                words,
            ]
            .concat());
            assert!(
                ran.status.success() && ran.stderr.is_empty(),
                "{words:?} as {user:?}: {ran:?}"
            );
        }
    }
}

#[test]
fn a_child_without_proc_is_told_what_it_lacks() {
    let program = compile("changed.c", "changed-child", &[]);
    for &user in users().iter().filter(|user| is_root(user)) {
        for words in [
            ["root", "child", "use"],
            ["use", "root", "child"],
            ["no-proc", "child", "use"],
        ] {
            let ran = changed(user, &program, &words);
            let said = said(&ran);
            assert!(!ran.status.success(), "{words:?}: {ran:?}");
            let (_, what) = said.split_once("farpage: process ").unwrap_or_default();
            let (_, what) = what.split_once(' ').unwrap_or_default();
            let line = "is killed: its memory cannot be managed: it has no /proc/self/pagemap; mount /proc in the root \
                        that it has\n";
            assert!(what.starts_with(line), "{words:?}: {said}");
        }
    }
}

/// As `xz` does before it compresses.
#[test]
fn who_forbids_files_to_itself_by_landlock_has_its_memory_managed_as_ever() {
    let program = compile("changed.c", "changed-landlock", &[]);
    if !run(&[&program, "landlock"]).status.success() {
        return println!("skipped: this kernel has no Landlock");
    }
    for &user in users() {
        for words in [&["landlock", "use"][..], &["use", "landlock", "use"]] {
            let ran = changed(user, &program, words);
            assert!(ran.status.success(), "{words:?} as {user:?}: {ran:?}");
            assert_eq!(ran.stdout, b"as it should be\n", "{words:?}");
        }
        let ran = changed(user, &program, &["landlock", "child", "use"]);
        let line = "it may not open /proc/self/pagemap: EACCES (13); what forbids that (Landlock, AppArmor, SELinux) must allow it\n";
        assert!(said(&ran).contains(line), "as {user:?}: {ran:?}");
    }
}

#[test]
fn there_may_be_more_memory_than_the_machine_has() {
    let programs = [
        compile("vast.c", "vast", &[]),
        compile("vast.c", "vast-static", &["-static"]),
    ];
    let farpage = farpage();
    for &user in users() {
        for program in &programs {
            let under = [
                &farpage, "run", "--quiet", "--ram", "24M", "--spill", "/tmp", "--", program,
            ];
            let ran = run(&[user, &under].concat());
            assert!(
                ran.status.success() && ran.stdout == b"as it should be\n",
                "as {user:?}: {ran:?}"
            );
        }
    }
}

/// Linux has 65,530 mappings at most for a process.
#[test]
fn there_may_be_many_blocks() {
    let program = compile("blocks.c", "blocks", &[]);
    let farpage = farpage();
    let under = [
        &farpage, "run", "--quiet", "--ram", "64M", "--spill", "/tmp", "--", &program,
    ];
    for &user in users() {
        let ran = run(&[user, &under].concat());
        assert!(
            ran.status.success() && ran.stdout == b"as it should be\n" && ran.stderr.is_empty(),
            "as {user:?}: {ran:?}"
        );
    }
}

#[test]
fn too_few_addresses_are_told() {
    let farpage = farpage();
    let inside = "ulimit -v 400000; exec true";
    let words = [
        &farpage, "run", "--quiet", "--ram", "64M", "--", "bash", "-c", inside,
    ];
    let ran = run(&words);
    let said = said(&ran);
    assert!(
        !ran.status.success() && said.starts_with("farpage: process "),
        "{ran:?}"
    );
    assert!(
        said.ends_with(
            " is killed: farpage needs 1 GiB of addresses in each process, and the limit on them (ulimit -v) \
             leaves less: raise it\n"
        ),
        "{said}"
    );
}

#[test]
fn too_low_a_limit_on_data_is_told() {
    let (farpage, program) = (farpage(), compile("changed.c", "changed-data", &[]));
    let limited = "ulimit -d 30000; exec \"$@\"";
    let words = ["bash", "-c", limited, "bash", &program, "use"];
    let bare = run(&words);
    assert!(bare.status.success(), "{bare:?}");
    let under = [
        &farpage, "run", "--quiet", "--ram", "16M", "--spill", "/tmp", "--",
    ];
    for user in users() {
        let ran = run(&[user, &under[..], &words].concat());
        let said = said(&ran);
        assert!(!ran.status.success() && ran.stdout.is_empty(), "{ran:?}");
        let (_, what) = said.split_once(" is killed: ").expect(&said);
        assert_eq!(
            what,
            "its memory cannot be managed: the limit on data (ulimit -d) leaves no room; it counts managed memory \
             twice: raise it\n"
        );
    }
}

#[test]
fn why_a_program_is_not_executed_is_told_as_far_as_it_can_be_seen() {
    let linker = ["-Wl,--dynamic-linker=/nowhere/ld.so"];
    let plain = written("no-interpreter-named", b"echo\n", 0o755);
    let to_sh =
        format!("it has no #! line: name its interpreter, such as farpage run -- sh '{plain}'");
    let (no_format, not_found) = (
        "Exec format error (os error 8)",
        "No such file or directory (os error 2)",
    );
    for (program, why, hint) in [
        (plain, no_format, &*to_sh),
        (
            written("interpreter-gone", b"#! /nowhere/interpreter -x\n", 0o755),
            not_found,
            "its first line names '/nowhere/interpreter', which is not there",
        ),
        (
            compile("changed.c", "changed-linker", &linker),
            not_found,
            "the dynamic linker that it names is not there",
        ),
    ] {
        for user in users() {
            let words = [
                &farpage(),
                "run",
                "--quiet",
                "--ram",
                "64M",
                "--",
                &*program,
            ];
            let ran = run(&[user, &words[..]].concat());
            assert_eq!(ran.status.code(), Some(126), "{ran:?}");
            let line =
                format!("farpage: cannot run '{program}': cannot execute it: {why}; {hint}\n");
            assert_eq!(said(&ran), line);
        }
    }
}

#[test]
fn a_setuid_program_is_refused_where_it_would_get_no_privilege() {
    let program = written("set-id", &fs::read("/bin/true").unwrap(), 0o4755);
    let farpage = farpage();
    let words = [&farpage, "run", "--quiet", "--ram", "64M", "--", &*program];
    let other = users().last().unwrap();
    let ran = run(&[other, &words[..]].concat());
    assert_eq!(ran.status.code(), Some(125), "{ran:?}");
    assert_eq!(
        said(&ran),
        format!(
            "farpage: cannot run '{program}': it is a setuid program, and under farpage it would get no \
             privilege; run farpage itself with that privilege, or the program without farpage\n"
        )
    );
}

/// Ends with 7, by a call of 32-bit programs.
const OLD_PROGRAM: [u8; 96] = {
    let mut bytes = [0; 96];
    let head: &[(usize, &[u8])] = &[
        (0, b"\x7fELF\x01\x01\x01"),
        (16, &[2, 0, 3, 0, 1]),
        (24, &[0x54, 0x80, 0x04, 0x08, 52]),
        (40, &[52, 0, 32, 0, 1]),
        (52, &[1]),
        (
            60,
            &[
                0, 0x80, 0x04, 0x08, 0, 0x80, 0x04, 0x08, 96, 0, 0, 0, 96, 0, 0, 0, 5, 0, 0, 0, 0,
                0x10,
            ],
        ),
        (84, &[0xb8, 1, 0, 0, 0, 0xbb, 7, 0, 0, 0, 0xcd, 0x80]),
    ];
    let mut part = 0;
    while part < head.len() {
        let (at, from) = head[part];
        let mut byte = 0;
        while byte < from.len() {
            bytes[at + byte] = from[byte];
            byte += 1;
        }
        part += 1;
    }
    bytes
};

#[test]
fn a_32_bit_program_runs_with_a_warning_and_is_refused_where_it_would_read_zeros() {
    let program = written("old", &OLD_PROGRAM, 0o755);
    let bare = Command::new(&program).status();
    let farpage = farpage();
    let ran = run(&[&farpage, "run", "--quiet", "--ram", "64M", "--", &program]);
    assert_eq!(
        said(&ran).lines().next().unwrap_or_default(),
        format!(
            "farpage: warning: '{program}' is no 64-bit x86 program: it runs, but its memory is not managed"
        )
    );
    // A kernel need not run such programs.
    match bare {
        Ok(bare) => assert_eq!(ran.status, bare, "{ran:?}"),
        Err(_) => assert_eq!(ran.status.code(), Some(126), "{ran:?}"),
    }
    let ran = run(&[&farpage, "run", "--shm", "--", &program]);
    assert_eq!(ran.status.code(), Some(125), "{ran:?}");
    assert_eq!(
        said(&ran),
        format!(
            "farpage: cannot run '{program}' with --shm: it is no 64-bit x86 program; leave --shm out, or run \
             it without farpage\n"
        )
    );
}

#[test]
fn locking_all_memory_is_undone_with_a_warning() {
    let program = compile("all_locked.c", "all-locked", &[]);
    if !rustix::process::geteuid().is_root() {
        println!("skipped: mlockall takes root");
        return;
    }
    let ran = run(&[&farpage(), "run", "--quiet", "--ram", "16M", "--", &program]);
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(
        said(&ran),
        "farpage: warning: the program's mlockall is undone: it needs more memory than --ram allows\n"
    );
}

#[test]
fn too_low_a_limit_on_open_files_is_told() {
    let line = format!("ulimit -n 40; exec {} run --quiet true", farpage());
    let ran = run(&["sh", "-c", &line]);
    assert_eq!(ran.status.code(), Some(125), "{ran:?}");
    let said = said(&ran);
    assert!(
        said.starts_with("farpage: cannot run: the limit on open files is 40, and Farpage takes ")
            && said.ends_with(" of them; raise it (ulimit -n 1024)\n"),
        "{said}"
    );
}

#[test]
fn what_a_filter_of_its_own_takes_from_a_program_with_shared_memory_is_told() {
    let program = compile("filtered.c", "filtered", &[]);
    let ran = run(&[
        &farpage(),
        "run",
        "--quiet",
        "--ram",
        "64M",
        "--shm",
        "--",
        &program,
    ]);
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(
        said(&ran),
        "farpage: shared memory that is mapped cannot be read or written as descriptor 700 of a program \
         with a filter of its own: let the system choose the number\n\
         farpage: cannot map shared memory at a fixed address there in a program with a filter of its own; \
         let the system choose it\n"
    );
}

/// `docs/limits.md` names the test that shows a message.
#[test]
fn tests_that_the_document_names_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let document = fs::read_to_string(root.join("docs/limits.md")).unwrap();
    let named: Vec<&str> = document
        .lines()
        .filter_map(|line| line.strip_prefix("Shown by `")?.split_once('`'))
        .map(|(name, _)| name)
        .collect();
    assert!(named.len() > 10, "{named:?}");
    for name in named {
        let (file, test) = name.rsplit_once("::").unwrap();
        let path = root.join(file);
        let source = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        assert!(source.contains(&format!("fn {test}()")), "{name}");
    }
}
