use super::*;

const TABLE: &str = include_str!("../../../../docs/ROWS.md");

#[test]
fn rows_are_read_and_prose_is_not() {
    let text = "# Rows\n| row | what | state | command | test | figure |\n\
                |---|---|---|---|---|---|\n\
                | A4 | pager interface | done | `cargo xtask test \"x y\" && true` | | |\nA5 is prose\n\
                | B1 | locks | open | | | |\n";
    let rows = parse(text);
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[0].commands, ["cargo xtask test \"x y\"", "true"]);
    assert_eq!((rows[1].name.as_str(), rows[1].commands.len()), ("B1", 0));
}

#[test]
fn the_committed_table_names_every_row_once() {
    let rows = parse(TABLE);
    let mut names: Vec<_> = rows.iter().map(|r| r.name.clone()).collect();
    names.dedup();
    assert_eq!(names.len(), 11 + 6 + 14 + 6 + 11);
    assert_eq!(rows.len(), names.len());
}

#[test]
fn every_row_that_claims_something_has_a_command_and_benches_assert() {
    for row in parse(TABLE).iter().filter(|row| !row.is_open()) {
        assert!(!row.commands.is_empty(), "{}", row.name);
        let mut benches = row.commands.iter().filter(|c| c.contains("xtask bench"));
        assert!(benches.all(|c| c.ends_with(" --assert")), "{}", row.name);
    }
    for speed in ["A11", "B6", "C2", "D6", "E10", "E11"] {
        let rows = parse(TABLE);
        let row = rows.iter().find(|row| row.name == speed).unwrap();
        let has_bench = row.commands.iter().any(|c| c.contains("xtask bench"));
        assert!(has_bench, "{speed}");
    }
}

#[test]
fn files_that_the_table_names_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let places = ["crates/", "docs/", "examples/", "tools/"];
    for path in TABLE.split('`').skip(1).step_by(2) {
        if places.iter().any(|place| path.starts_with(place)) {
            assert!(root.join(path).exists(), "{path}");
        }
    }
}

fn row(state: &str, commands: &[&str]) -> Row {
    Row {
        name: "A1".into(),
        what: "operations".into(),
        state: state.into(),
        commands: commands.iter().map(|&command| command.into()).collect(),
    }
}

/// What commands of these names end with.
fn ended(command: &str) -> Ended {
    match command {
        "skips" => Ended::Passed(vec!["needs root".into(), "no etcd".into()]),
        "busy" => Ended::Busy("others used 2.0 processors".into()),
        "fails" => Ended::Failed("`fails`: exit 1".into()),
        _ => Ended::Passed(Vec::new()),
    }
}

fn told(state: &str, commands: &[&str]) -> String {
    let row = row(state, commands);
    row.line(&row.verdict(ended))
}

#[test]
fn only_what_passed_whole_is_ok() {
    assert_eq!(told("done (in process)", &["passes", "passes too"]), "ok");
    assert_eq!(
        told("in progress (one host)", &["passes"]),
        "ok as far as it goes: in progress (one host)"
    );
    assert_eq!(
        told("done", &["skips", "passes", "skips"]),
        "not shown: skipped: needs root; no etcd"
    );
    assert_eq!(
        told("in progress", &["skips"]),
        "not shown: skipped: needs root; no etcd"
    );
    assert_eq!(
        told("done", &["busy", "skips"]),
        "not shown: busy: others used 2.0 processors"
    );
    assert_eq!(told("done", &["busy", "fails"]), "failed: `fails`: exit 1");
    assert_eq!(
        told("done (somehow)", &[]),
        "missing: it is done (somehow) and has no command"
    );
    assert_eq!(told("open", &[]), "open: nothing of it is there yet");
}

#[test]
fn what_fails_ends_a_row_and_what_is_busy_does_not() {
    let mut ran = Vec::new();
    let row = row("done", &["busy", "fails", "passes"]);
    row.verdict(|command| {
        ran.push(command.to_owned());
        ended(command)
    });
    assert_eq!(ran, ["busy", "fails"]);
}

#[test]
fn the_run_fails_when_a_row_is_not_shown_and_busy_is_told_apart() {
    let busy = || Verdict::Busy("others".into());
    judge(&[Verdict::Shown, Verdict::Open]).unwrap();
    assert!(judge(&[Verdict::Shown, busy()]).unwrap_err().is::<Busy>());
    for bad in [
        Verdict::Skipped(Vec::new()),
        Verdict::Failed(String::new()),
        Verdict::Missing,
    ] {
        let why = judge(&[bad, busy(), Verdict::Shown]).unwrap_err();
        assert_eq!(why.to_string(), "2 of 3 rows are not shown");
    }
}

#[test]
fn reasons_to_skip_are_found_in_what_tests_and_benches_print() {
    let said = "ok         0.10 s  cli host::locks (skipped: needs root (or a namespace)) (skipped: no ip)\n\
                ok         0.10 s  cli host::more\n\
                skipped: UCX / ours: measured 0 times\n\
                2 tests, 0 failed, 2 reasons to skip\n\
                crate  tests  failed  skipped  seconds\n";
    assert_eq!(
        skipped(said),
        [
            "needs root (or a namespace)",
            "no ip",
            "UCX / ours: measured 0 times"
        ]
    );
}

#[test]
fn what_a_command_says_last_is_told() {
    let said =
        "FAILED 1.00 s  port x\nok 1.00 s  port y\n\n1\n2\n3\n4\nxtask: 1 of 2 tests failed\n";
    let told = last(said);
    assert!(told.starts_with("\n       FAILED 1.00 s  port x\n"));
    assert!(told.ends_with("\n       4\n       xtask: 1 of 2 tests failed"));
    assert!(!told.contains("port y"));
    assert_eq!(
        busy("Linux\nxtask: busy: others used 2.0 processors\n"),
        "others used 2.0 processors"
    );
}
