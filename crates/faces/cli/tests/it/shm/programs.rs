//! Real programs that share memory: under `--shm`, in less RAM than they use, they say what they say
//! without, and leave nothing, also when their processes are killed.

use std::process::Command;

use crate::support;

use super::{compile_by, may_mount, most_mib, program, run, small, text};

/// What `words` print without Farpage.
fn bare(words: &[&str]) -> String {
    let got = small("exec \"$@\"", words).output().unwrap();
    assert!(got.status.success(), "{got:?}");
    text(&got.stdout)
}

/// `words` print the same with Farpage and without. Returns what Farpage says.
fn the_same(ram: &str, words: &[&str]) -> String {
    let expected = bare(words);
    let got = run(ram, words);
    let said = text(&got.stderr);
    assert_eq!(text(&got.stdout), expected, "{said}");
    said
}

/// Pages have left memory.
fn has_paged(said: &str) {
    assert!(said.contains("paged out "), "{said}");
}

/// `words` print `line` however their processes are killed, and nothing is left.
fn survives(ram: &str, words: &[&str], line: &str) {
    let got = run(ram, words);
    assert_eq!(text(&got.stdout), line, "{}", text(&got.stderr));
}

#[test]
fn nginx_limits_and_caches_in_zones_that_page_out() {
    if may_mount() {
        let said = the_same("32M", &["python3", &program("nginx.py"), "10000"]);
        has_paged(&said);
        // The zones take 20 MiB.
        assert!(said.contains("shared memory: 3 objects"), "{said}");
        assert!(most_mib(&said) > 4.0, "{said}");
    }
}

#[test]
fn nginx_goes_on_when_its_workers_are_killed_and_leaves_nothing() {
    if may_mount() {
        let words = ["python3", &program("nginx.py"), "4000", "random"];
        survives("24M", &words, "answers 204\n");
    }
}

/// `mpirun`, which otherwise refuses root and asks for as many processors as processes.
fn mpirun<'a>(ranks: &'a str, program: &'a str, mib: &'a str) -> Vec<&'a str> {
    let mut words = vec!["env", "OMPI_ALLOW_RUN_AS_ROOT=1"];
    words.extend([
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
        "mpirun",
        "--oversubscribe",
    ]);
    words.extend(["--mca", "plm", "isolated", "--mca", "btl", "vader,self"]);
    words.extend(["-np", ranks, program, mib]);
    words
}

#[test]
fn open_mpi_hands_messages_on_by_shared_memory_that_pages_out() {
    if !may_mount() {
        return;
    }
    let ring = compile_by("mpicc", "ring.c", "ring", &[]);
    for ranks in ["2", "4"] {
        has_paged(&the_same("48M", &mpirun(ranks, &ring, "12")));
    }
    // A window that is larger than /dev/shm, which Open MPI asks about first.
    let words = mpirun("4", &ring, "20");
    let bare = Command::new(words[0]).args(&words[1..]).output().unwrap();
    let got = run("48M", &words);
    assert!(bare.status.success(), "{bare:?}");
    assert_eq!(text(&got.stdout), text(&bare.stdout), "{got:?}");
    // In segments of System V, and with every byte copied twice.
    for more in [
        ["--mca", "shmem", "sysv"],
        ["--mca", "btl_vader_single_copy_mechanism", "none"],
    ] {
        let mut words = mpirun("3", &ring, "12");
        words.splice(4..4, more);
        has_paged(&the_same("48M", &words));
    }
}

#[test]
fn open_mpi_leaves_nothing_when_a_process_is_killed() {
    if !may_mount() {
        return;
    }
    let ring = compile_by("mpicc", "ring.c", "ring-killed", &[]);
    // The first of its processes, at another time in each turn: nothing waits for that time. mpirun itself now
    // and then waits for ever after its processes have ended, at a lock in memory that its library (PMIx)
    // has freed.
    let turns = "
is_dead() { ! cat /proc/$1/stat 2> /dev/null | grep -qv ') Z '; }
children() { cat /proc/$1/task/$1/children 2> /dev/null; }
are_dead() { is_dead $1 || { for child in $(children $1); do is_dead $child || return 1; done; }; }
has_some() { is_dead $1 || [ \"$(children $1)\" ]; }
for at in 2 4 6 8 9; do
    \"$@\" 2> /dev/null & of=$!
    until_so has_some $of
    sleep 0.$at
    kill -9 $(children $of | cut -d ' ' -f 1)
    until_so are_dead $of
    kill -9 $of
    wait $of
done
echo end";
    let script = [support::SHELL, turns].concat();
    let words = mpirun("4", &ring, "12");
    let words: Vec<&str> = ["sh", "-c", &script, "sh"]
        .into_iter()
        .chain(words)
        .collect();
    let got = run("48M", &words);
    let printed = text(&got.stdout);
    // It may have been through already.
    assert!(
        printed.ends_with("end\n"),
        "{printed} {}",
        text(&got.stderr)
    );
    assert!(!printed.contains("vader"), "{printed}");
}

#[test]
fn redis_saves_and_rewrites_its_log_with_less_ram_than_it_has_data() {
    if may_mount() {
        has_paged(&the_same(
            "24M",
            &["python3", &program("redis.py"), "20000"],
        ));
    }
}

#[test]
fn redis_goes_on_when_the_children_that_save_are_killed() {
    if may_mount() {
        let words = ["python3", &program("redis.py"), "12000", "random"];
        let expected = bare(&words);
        survives("24M", &words, &expected);
    }
}
