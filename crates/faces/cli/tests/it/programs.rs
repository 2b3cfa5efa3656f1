//! Programs that make it hard for an agent: how they start others, what they do with signals and
//! descriptors, what they forbid themselves. Each says itself whether the agent is there.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use crate::support;

/// Where compiled programs lie, for every user to execute.
pub(crate) fn build_dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(support::folder_of_this_process)
}

pub(crate) fn compile(source: &str, name: &str, flags: &[&str]) -> String {
    let to = build_dir().join(name);
    support::compile(source, &to, flags);
    to.display().to_string()
}

/// Users to run as: this one and, when it may choose, one without privileges.
pub(crate) fn users() -> &'static [&'static [&'static str]] {
    let root = fs::metadata("/proc/self").is_ok_and(|own| {
        use std::os::unix::fs::MetadataExt;
        own.uid() == 0
    });
    match root {
        true => &[
            &[],
            &[
                "setpriv",
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
            ],
        ],
        false => &[&[]],
    }
}

fn under_farpage(user: &[&str], ram: &str, program: &[&str]) -> Output {
    let farpage = build_dir().join("farpage").display().to_string();
    let run = [
        &farpage, "run", "--quiet", "--ram", ram, "--spill", "/tmp", "--",
    ];
    let line: Vec<&str> = [user, &run, program].concat();
    let mut command = Command::new(line[0]);
    command.args(&line[1..]).current_dir("/");
    command.output().unwrap()
}

/// Runs `program` as each user and expects the exit status `code`.
fn expect(program: &[&str], code: i32) {
    expect_within("256M", program, code);
}

/// As [`expect`], with a budget of its own.
pub(crate) fn expect_within(ram: &str, program: &[&str], code: i32) {
    for user in users() {
        let output = under_farpage(user, ram, program);
        assert!(
            output.status.code() == Some(code),
            "{program:?} as {user:?}: {}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert_eq!(complaints, "", "{program:?} as {user:?}");
    }
}

#[test]
fn memory_in_the_low_2_gib_leaves_and_comes_back() {
    expect_within("16M", &[&compile("low.c", "low", &[])], 0);
    expect_within("16M", &[&compile("low.c", "low-static", &["-static"])], 0);
}

#[test]
fn memory_that_is_many_small_mappings_leaves_and_comes_back() {
    let linked = compile("small.c", "small", &[]);
    let fixed = compile("small.c", "small-static", &["-static"]);
    for program in [linked, fixed] {
        expect_within("40M", &[&program, "60", "128"], 0);
    }
}

#[test]
fn processes_that_share_the_memory_have_stacks_in_it() {
    expect_within("32M", &[&compile("sharer.c", "sharer", &[])], 0);
    expect_within(
        "32M",
        &[&compile("sharer.c", "sharer-static", &["-static"])],
        0,
    );
}

#[test]
fn forked_children_have_copies_and_agents() {
    expect(&[&compile("fork.c", "fork", &[])], 0);
    expect(&[&compile("fork.c", "fork-static", &["-static"])], 0);
}

#[test]
fn spawned_programs_get_the_agent_and_leave_nothing() {
    let target = compile("target.c", "spawn-target", &[]);
    let fixed = compile("target.c", "spawn-target-static", &["-static"]);
    let spawn = compile("spawn.c", "spawn", &[]);
    expect(&[&spawn, &target], 0);
    expect(&[&spawn, &fixed], 0);
    expect(
        &[&compile("spawn.c", "spawn-static", &["-static"]), &target],
        0,
    );
}

#[test]
fn every_way_to_execute_leads_to_the_agent() {
    let target = compile("target.c", "target", &[]);
    let fixed = compile("target.c", "target-static", &["-static"]);
    let pie = compile("target.c", "target-static-pie", &["-static-pie"]);
    let old = compile("target.c", "target-no-pie", &["-no-pie"]);
    let programs = [&target, &fixed, &pie, &old];
    for from in programs {
        expect(&[from, "active"], 3);
        for to in programs {
            for way in [
                "exec",
                "thread-exec",
                "fexec",
                "blocked-exec",
                "failing-exec",
            ] {
                expect(&[from, way, to], 3);
            }
        }
    }
}

fn write_script(name: &str, text: &str) -> PathBuf {
    let (script, source) = (
        build_dir().join(name),
        build_dir().join(format!("{name}.source")),
    );
    fs::write(&source, text).unwrap();
    fs::set_permissions(&source, fs::Permissions::from_mode(0o755)).unwrap();
    farpage_testkit::copy_program(&source, &script).unwrap();
    script
}

#[test]
fn scripts_lead_to_the_agent() {
    let fixed = compile("target.c", "script-target-static", &["-static"]);
    let script = write_script("script", "#!/bin/sh\nexec env -i \"$1\" active\n");
    let name = script.display().to_string();
    expect(&[&name, &fixed], 3);
    write_script("direct", &format!("#!{fixed} exec {fixed}\n"));
    expect(&["/bin/sh", "-c", &format!("{name} {fixed}; exit $?")], 3);
}

#[test]
fn signals_are_the_programs_but_for_ours() {
    expect(&[&compile("signals.c", "signals", &[])], 0);
    expect(&[&compile("signals.c", "signals-static", &["-static"])], 0);
}

#[test]
fn programs_that_close_everything_keep_the_agent() {
    let target = compile("target.c", "descriptors-target", &[]);
    let fixed = compile("target.c", "descriptors-target-static", &["-static"]);
    let program = compile("descriptors.c", "descriptors", &[]);
    expect(&[&program, &target], 3);
    expect(&[&program, &fixed], 3);
    for target in [target, fixed] {
        for limit in ["-n 100", "-Sn 100"] {
            let limited = format!("ulimit {limit}; exec {program} {target}");
            expect(&["/bin/sh", "-c", &limited], 3);
        }
    }
}

#[test]
fn sandboxed_programs_keep_their_sandbox() {
    expect(&[&compile("sandbox.c", "sandbox", &[])], 0);
    expect(&[&compile("sandbox.c", "sandbox-static", &["-static"])], 0);
}

#[test]
fn children_get_what_they_should_and_are_waited_for() {
    for program in [
        compile("inherit.c", "inherit", &[]),
        compile("inherit.c", "inherit-static", &["-static"]),
    ] {
        expect_within("256M", &[&program, "4"], 0);
        expect_within("16M", &[&program, "20"], 0);
    }
}

/// The agent of a debug build ends its process when its account and its page table disagree.
#[test]
fn accounts_stay_right_whatever_children_do() {
    expect_within("16M", &[&compile("forks.c", "forks", &[])], 0);
}

#[test]
fn accounts_of_static_programs_stay_right_whatever_children_do() {
    let program = compile("forks.c", "forks-static", &["-static"]);
    expect_within("16M", &[&program], 0);
}

#[test]
fn memory_of_sandboxed_programs_is_managed_by_threads_outside() {
    for program in [
        compile("pressed.c", "pressed", &[]),
        compile("pressed.c", "pressed-static", &["-static"]),
    ] {
        expect_within("24M", &[&program], 0);
        expect_within("24M", &[&program, "managed"], 0);
    }
}

#[test]
fn static_programs_after_the_end_are_refused_with_the_reason() {
    let fixed = compile("target.c", "late-target-static", &["-static"]);
    let alive = "grep -qs 'State:.[^Z]' /proc/$PPID/status";
    let script = format!("(while {alive}; do :; done; {fixed} active; echo $?) &");
    let run = under_farpage(&[], "256M", &["/bin/sh", "-c", &script]);
    assert_eq!(String::from_utf8_lossy(&run.stdout), "126\n");
    let said = String::from_utf8_lossy(&run.stderr);
    assert!(
        said.contains("farpage has to come into it from outside, and farpage run"),
        "{said}"
    );
    assert!(said.contains("has ended or does not answer"), "{said}");
}

#[test]
fn locked_memory_stays_while_it_is_locked() {
    for program in [
        compile("locked.c", "locked", &[]),
        compile("locked.c", "locked-static", &["-static"]),
    ] {
        expect_within("24M", &[&program], 0);
    }
}

#[test]
fn what_is_paged_out_when_a_call_names_it_is_there_for_linux() {
    for program in [
        compile("away.c", "away", &[]),
        compile("away.c", "away-static", &["-static"]),
    ] {
        expect_within("16M", &[&program], 0);
    }
}

#[test]
fn signals_find_their_stack_where_it_was_paged_out() {
    for program in [
        compile("interrupted.c", "interrupted", &[]),
        compile("interrupted.c", "interrupted-static", &["-static"]),
    ] {
        expect_within("16M", &[&program], 0);
    }
}

#[test]
fn words_that_linux_changes_with_the_address_space_locked_are_there() {
    for program in [
        compile("reached.c", "reached", &[]),
        compile("reached.c", "reached-static", &["-static"]),
    ] {
        expect_within("24M", &[&program], 0);
    }
}

#[test]
fn calls_that_wait_find_memory_that_became_managed_meanwhile() {
    for program in [
        compile("waits.c", "waits", &[]),
        compile("waits.c", "waits-static", &["-static"]),
    ] {
        expect_within("24M", &[&program], 0);
    }
}

/// The length of the core in `place`, where Linux writes cores there.
fn take_core(place: &Path) -> Option<u64> {
    let files = fs::read_dir(place).unwrap().map(|file| file.unwrap());
    let mut cores = files.filter(|file| file.file_name().to_string_lossy().starts_with("core"));
    let core = cores.next()?;
    let bytes = core.metadata().unwrap().len();
    fs::remove_file(core.path()).unwrap();
    Some(bytes)
}

#[test]
fn a_core_is_no_larger_than_without_and_what_is_missing_is_said() {
    let program = compile("core.c", "core", &[]);
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).unwrap();
    let farpage = build_dir().join("farpage").display().to_string();
    let run = |words: &[&str]| {
        let line = format!("ulimit -c unlimited; exec {}", words.join(" "));
        let mut command = Command::new("sh");
        command.args(["-c", &line]).current_dir(&place);
        command.output().unwrap()
    };
    let bare = run(&[&program]);
    assert_eq!(
        bare.status.signal(),
        Some(rustix::process::Signal::ABORT.as_raw())
    );
    let bare_bytes = take_core(place.path());
    for &user in users() {
        for child in [&[][..], &["child"]] {
            let far = ["--quiet", "--ram", "16M", "--spill", "/tmp", "--", &program];
            let ran = run(&[user, &[&farpage, "run"], &far[..], child].concat());
            let ended = match child {
                [] => bare.status.into_raw(),
                _ => 0,
            };
            // Farpage ends as its program did, and leaves no core.
            assert_eq!(ran.status.into_raw() & 0x7f, ended & 0x7f, "{ran:?}");
            let said = String::from_utf8_lossy(&ran.stderr);
            let is_said = said.contains(" is not whole: ") && said.lines().count() == 1;
            assert_eq!(is_said, bare.status.core_dumped(), "as {user:?}: {ran:?}");
            if let Some(bare) = bare_bytes {
                let far = take_core(place.path()).expect("a core");
                assert!(
                    far < bare + (16 << 20),
                    "{far} bytes, {bare} without, as {user:?}"
                );
            }
        }
    }
}

#[test]
fn a_process_is_a_file_whatever_of_its_memory_is_paged_out() {
    for program in [
        compile("memory_file.c", "memory-file", &[]),
        compile("memory_file.c", "memory-file-static", &["-static"]),
    ] {
        expect_within("16M", &[&program], 0);
    }
}

#[test]
fn any_number_of_threads_may_wait_for_what_goes_to_memory_of_theirs() {
    let program = compile("waiters.c", "waiters", &[]);
    expect_within("24M", &[&program], 0);
}

#[test]
fn twenty_thousand_mappings_take_at_most_twice_as_many_of_linux() {
    let program = compile("mappings.c", "mappings", &[]);
    let bare = Command::new(&program).output().unwrap();
    assert!(bare.status.success(), "{bare:?}");
    let bare: u64 = String::from_utf8_lossy(&bare.stdout)
        .trim()
        .parse()
        .unwrap();
    expect_within("32M", &[&program, &(2 * bare).to_string()], 0);
}

#[test]
fn files_are_moved_past_the_page_cache_from_and_into_memory_that_is_paged_out() {
    let folder = build_dir().join("direct-files");
    fs::create_dir_all(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    let folder = folder.display().to_string();
    let program = compile("direct.c", "direct", &[]);
    let ran = |user: &[&str], more: &[&str]| {
        let words = [&[&*program, &*folder], more].concat();
        under_farpage(user, "40M", &words)
    };
    let bare = Command::new(&program).args([&*folder, "rings"]).status();
    let has_rings = bare.unwrap().success() && farpage_sys::uffd::serves_system_calls();
    for (number, user) in users().iter().enumerate() {
        // An ordinary user's programs have no rings.
        let more: &[&str] = if has_rings && number == 0 {
            &["rings"]
        } else {
            &[]
        };
        let ran = ran(user, more);
        assert!(ran.status.success(), "as {user:?}: {ran:?}");
    }
}

#[test]
fn memory_is_what_calls_of_all_kinds_make_of_it() {
    let program = compile("remapped.c", "remapped", &[]);
    for word in [
        "advice",
        "unreadable",
        "onto",
        "half",
        "protection",
        "key",
        "heap",
        "thread",
        "limits",
        "devices",
        "robust",
    ] {
        expect_within("16M", &[&program, word], 0);
    }
}

/// Whoever traces a program with all its threads stops none that bring pages in.
#[test]
fn a_tracer_inside_sees_what_a_program_does_whatever_is_paged_out() {
    let program = compile("remapped.c", "remapped-traced", &[]);
    for (number, user) in users().iter().enumerate() {
        let strace = ["strace", "-f", "-e", "trace=openat", &*program, "path"];
        let ran = under_farpage(user, "16M", &strace);
        assert!(ran.status.success(), "as {user:?}: {ran:?}");
        let said = String::from_utf8_lossy(&ran.stderr);
        // Linux lets no other process have what an ordinary user's has paged out.
        let seen = said.matches("\"/nowhere/at/all\"").count();
        assert!(number > 0 || seen == 2, "as {user:?}: {said}");
    }
}

#[test]
fn a_debugger_inside_attaches_to_another_process() {
    let program = compile("remapped.c", "remapped-attached", &[]);
    for user in users() {
        let ran = under_farpage(user, "16M", &[&program, "attach"]);
        assert!(ran.status.success(), "as {user:?}: {ran:?}");
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(said.contains("$1 = 42\n"), "as {user:?}: {ran:?}");
    }
}

#[test]
fn the_dynamic_linker_is_heard() {
    let folder = build_dir();
    let library = folder.join("libfarpage-gone.so").display().to_string();
    support::compile("remapped.c", Path::new(&library), &["-shared", "-fPIC"]);
    let linked = ["-Wl,--no-as-needed", &*library];
    let program = compile("remapped.c", "remapped-linked", &linked);
    fs::remove_file(&library).unwrap();
    let has_one = compile("remapped.c", "remapped-preloaded", &[]);
    let bare = |words: &[&str]| Command::new(words[0]).args(&words[1..]).output().unwrap();
    for words in [
        &[&*program][..],
        &["env", "LD_PRELOAD=/nowhere/at/all.so", &has_one],
        &["env", "LD_SHOW_AUXV=1", &has_one],
        &["env", "LD_DEBUG=libs", &has_one],
    ] {
        let bare = bare(words);
        for user in users() {
            let ran = under_farpage(user, "64M", words);
            assert_eq!(
                ran.status.code(),
                bare.status.code(),
                "{words:?} as {user:?}: {ran:?}"
            );
            let lines = |output: &[u8]| {
                let text = String::from_utf8_lossy(output).into_owned();
                text.lines()
                    .filter(|line| line.contains("/nowhere/") || line.contains("-gone.so"))
                    .count()
            };
            assert_eq!(
                lines(&ran.stderr),
                lines(&bare.stderr),
                "{words:?} as {user:?}: {ran:?}"
            );
        }
    }
}

#[test]
fn a_debugger_inside_is_told_at_once_how_it_goes() {
    let program = compile("traced.c", "traced", &[]);
    for user in users() {
        let ran = under_farpage(user, "256M", &[&program]);
        assert!(ran.status.success(), "as {user:?}: {ran:?}");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert_eq!(
            said,
            "farpage: a debugger cannot start a program inside of farpage run: start the program by \
             farpage run, and let the debugger attach to it from outside (gdb -p PID)\n"
        );
    }
}

#[test]
fn a_run_inside_of_a_run_is_within_its_budget_or_says_what_does_not_go() {
    let farpage = build_dir().join("farpage").display().to_string();
    let says = ["sh", "-c", "echo $0 $1; exit 7", "one", "two words"];
    for user in users() {
        let line = [&[&*farpage, "run", "--ram", "64M", "--"], &says[..]].concat();
        let ran = under_farpage(user, "256M", &line);
        assert_eq!(ran.status.code(), Some(7), "as {user:?}: {ran:?}");
        assert_eq!(ran.stdout, b"one two words\n");
        assert_eq!(
            String::from_utf8_lossy(&ran.stderr),
            "farpage: this is inside of another farpage run: the program runs within its budget, and --ram, \
             --compressed, --spill and --when-full are those of that one\n"
        );
        let quiet = [&[&*farpage, "run", "-q", "--"], &says[..]].concat();
        let ran = under_farpage(user, "256M", &quiet);
        assert_eq!((ran.status.code(), ran.stderr), (Some(7), Vec::new()));
        let ran = under_farpage(user, "256M", &[&farpage, "run", "--shm", "true"]);
        assert_eq!(ran.status.code(), Some(125));
        assert_eq!(
            String::from_utf8_lossy(&ran.stderr),
            "farpage: cannot have --shm here: this is inside of another farpage run, to which all its \
             programs belong; give it to that one\n"
        );
    }
}

/// The summary of a sanitizer, if it has found something.
fn found(output: &Output) -> Option<String> {
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().find(|line| line.starts_with("SUMMARY: "));
    line.map(str::to_owned)
}

#[test]
fn sanitizers_have_their_places_and_find_what_they_find_without() {
    for (name, flags) in [
        ("address", &["-fsanitize=address"][..]),
        ("address-inside", &["-fsanitize=address", "-static-libasan"]),
        ("leak", &["-fsanitize=leak"]),
        ("undefined", &["-fsanitize=undefined"]),
    ] {
        let program = compile("leaks.c", name, flags);
        for words in [&[&*program][..], &[&program, "lose"]] {
            let bare = Command::new(words[0]).args(&words[1..]).output().unwrap();
            for user in users() {
                let ran = under_farpage(user, "32M", words);
                assert_eq!(ran.status, bare.status, "{words:?} as {user:?}: {ran:?}");
                assert_eq!(ran.stdout, bare.stdout, "{words:?} as {user:?}");
                assert_eq!(found(&ran), found(&bare), "{words:?} as {user:?}");
            }
        }
    }
}

#[test]
fn a_sanitizer_that_leaves_no_place_is_said_and_its_program_runs() {
    for (source, name, flags, sanitizer) in [
        ("leaks.c", "thread", &["-fsanitize=thread"][..], "Thread"),
        (
            "leaks.c",
            "thread-inside",
            &["-fsanitize=thread", "-static-libtsan"],
            "Thread",
        ),
        ("addresses.c", "addresses", &["-rdynamic"], "Memory"),
    ] {
        let program = compile(source, name, flags);
        let bare = Command::new(&program).output().unwrap();
        assert!(bare.status.success(), "{bare:?}");
        for user in users() {
            let ran = under_farpage(user, "32M", &[&program]);
            assert!(ran.status.success(), "{program} as {user:?}: {ran:?}");
            assert_eq!(ran.stdout, bare.stdout, "{program} as {user:?}");
            assert_eq!(
                String::from_utf8_lossy(&ran.stderr),
                format!(
                    "farpage: warning: '{program}' is built with {sanitizer}Sanitizer, which lays \
                     the address space out by itself: it runs, but its memory is not managed\n"
                )
            );
        }
    }
}

/// Devices of AF_XDP take root.
fn pins(what: &str, mib: &str) -> Option<Output> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: memory is pinned for a device of root's");
        return None;
    }
    let program = compile("reached.c", what, &[]);
    Some(under_farpage(&[], "32M", &[&program, what, mib]))
}

#[test]
fn what_a_device_has_pinned_stays_until_the_device_gives_it_back() {
    let Some(ran) = pins("pinned", "8") else {
        return;
    };
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(String::from_utf8_lossy(&ran.stderr), "");
}

#[test]
fn more_than_half_of_the_budget_is_not_pinned() {
    let Some(ran) = pins("too-much", "20") else {
        return;
    };
    assert!(ran.status.success(), "{ran:?}");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(
        said,
        "farpage: cannot pin 20 MiB of memory for a device: that is more than half of the memory \
         that the program may use (32 MiB); give it at least 40 MiB (--ram)\n"
    );
}
