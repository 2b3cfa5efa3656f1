//! Plans of real programs, and of what is none.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command as Process;

use farpage_plan::{Command, Kind, LoadError, PAGE_BYTES, Plan, PlanError, Role, plan};
use proptest::prelude::*;

/// Plans the loading of `file`; also which ranges that took.
fn planned(file: &[u8]) -> (Result<Plan, LoadError>, Vec<(u64, usize)>) {
    let mut asked = Vec::new();
    let mut read = |offset: u64, bytes: usize| {
        asked.push((offset, bytes));
        Ok::<_, ()>(file[offset as usize..][..bytes].to_vec())
    };
    let plan = plan(file.len() as u64, &mut read).map_err(|error| match error {
        PlanError::Load(error) => error,
        other => panic!("a reader that cannot fail: {other:?}"),
    });
    (plan, asked)
}

fn refused(file: &[u8]) -> String {
    planned(file).0.unwrap_err().to_string()
}

/// A program with data, zeros and thread-local storage, linked with `flags`.
fn linked(name: &str, flags: &[&str]) -> Vec<u8> {
    let folder = tempfile(name);
    let (source, program) = (folder.join("p.c"), folder.join("p"));
    let text = "#include <math.h>\nint data = 7, zeros[5000]; __thread int tls = 1;\n\
        int main(int n, char **v) { return data + zeros[n] + tls + (int)cos(n); }\n";
    fs::write(&source, text).unwrap();
    let mut cc = Process::new("cc");
    let status = cc
        .arg(&source)
        .args(flags)
        .arg("-o")
        .arg(&program)
        .arg("-lm")
        .status();
    assert!(status.unwrap().success(), "cannot link with {flags:?}");
    let bytes = fs::read(&program).unwrap();
    fs::remove_dir_all(folder).unwrap();
    bytes
}

fn tempfile(name: &str) -> PathBuf {
    let folder = format!("farpage-plan-{}-{name}", std::process::id());
    let folder = std::env::temp_dir().join(folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn kinds(plan: &Plan) -> Vec<&'static str> {
    let name = |command: &Command| match command {
        Command::ReadOnly { .. } => "READ_ONLY",
        Command::Writeable { .. } => "WRITEABLE",
        Command::ZeroFill { .. } => "ZEROFILL",
        Command::Register { .. } => "REGISTER",
        Command::LoadFile { .. } => "LOADFILE",
        Command::Relocate { .. } => "RELOCATE",
        Command::EndLoad => "END_LOAD",
    };
    plan.commands.iter().map(name).collect()
}

#[test]
fn a_program_with_libraries_has_every_command() {
    let file = linked("pie", &["-O1"]);
    let (plan, asked) = planned(&file);
    let plan = plan.unwrap();
    assert_eq!(plan.kind, Kind::DynamicPie);
    for wanted in [
        "READ_ONLY",
        "WRITEABLE",
        "ZEROFILL",
        "REGISTER",
        "LOADFILE",
        "RELOCATE",
    ] {
        assert!(kinds(&plan).contains(&wanted), "{wanted}: {plan:?}");
    }
    assert_eq!(kinds(&plan).last(), Some(&"END_LOAD"));
    assert!(plan.interpreter().unwrap().contains("ld-linux"));
    assert!(plan.libraries().any(|name| name == "libc.so.6"), "{plan:?}");
    let tls = |command: &Command| matches!(command, Command::Register { tls_bytes: 4, .. });
    assert!(plan.commands.iter().any(tls), "{plan:?}");
    assert!(
        asked.iter().all(|(at, _)| at % PAGE_BYTES == 0),
        "{asked:?}"
    );
    let read: usize = asked.iter().map(|(_, bytes)| bytes).sum();
    assert!(read < file.len(), "{read} of {}", file.len());
}

#[test]
fn the_ways_to_link_are_told_apart() {
    let kind = |name: &str, flags: &[&str]| planned(&linked(name, flags)).0.unwrap().kind;
    assert_eq!(kind("fixed", &["-no-pie"]), Kind::Dynamic);
    assert_eq!(kind("static", &["-static"]), Kind::Static);
    assert_eq!(kind("static-pie", &["-static-pie"]), Kind::StaticPie);
    let library = planned(&linked("shared", &["-shared", "-fPIC"])).0.unwrap();
    assert_eq!(library.kind, Kind::Library);
    assert!(!library.kind.is_program());
}

#[test]
fn what_linux_touches_before_the_start_is_named() {
    let file = linked("touched", &["-O1"]);
    let plan = planned(&file).0.unwrap();
    assert_eq!(plan.before_start[0].start, 0);
    let data = plan.commands.iter().find_map(|command| match command {
        Command::Writeable { file, .. } => Some(file.clone()),
        _ => None,
    });
    let last = data.unwrap().end - 1;
    let covers = |range: &std::ops::Range<u64>| range.contains(&last);
    assert!(plan.before_start.iter().any(covers), "{plan:?}");
    assert!(plan.bytes_before_start() < 4 * PAGE_BYTES, "{plan:?}");
    let entry = |plan: &Plan| {
        let entry = plan.commands.iter().find_map(|command| match command {
            Command::Register { entry, .. } => Some(*entry),
            _ => None,
        });
        let entry = entry.unwrap();
        let place = |command: &Command| match command {
            Command::ReadOnly { file, address, .. } if address.contains(&entry) => {
                Some(file.start + entry - address.start)
            }
            _ => None,
        };
        plan.commands.iter().find_map(place).unwrap()
    };
    let fixed = planned(&linked("touched-static", &["-static"])).0.unwrap();
    let at = entry(&fixed);
    assert!(
        fixed.before_start.iter().any(|range| range.contains(&at)),
        "{fixed:?}"
    );
}

#[test]
fn search_paths_are_kept() {
    let file = linked("runpath", &["-Wl,-rpath,$ORIGIN/lib:/opt/lib"]);
    assert_eq!(
        planned(&file).0.unwrap().search,
        ["$ORIGIN/lib", "/opt/lib"]
    );
}

#[test]
fn what_is_no_program_of_this_machine_is_refused_with_what_to_do() {
    let good = fs::read(std::env::current_exe().unwrap()).unwrap();
    let with = |at: usize, byte: u8| {
        let mut bytes = good[..8192].to_vec();
        bytes[at] = byte;
        refused(&bytes)
    };
    assert!(refused(b"").contains("it is empty"));
    assert!(refused(b"hello, world").contains("no ELF program"));
    let script = refused(b"#! /bin/sh -e\necho");
    assert!(
        script.contains("start '/bin/sh' and give the script as its argument"),
        "{script}"
    );
    assert!(with(4, 1).contains("32-bit"));
    assert!(with(5, 2).contains("big-endian"));
    assert!(with(18, 183).contains("another machine (ELF number 183"));
    assert!(with(16, 1).contains("an object file"));
    assert!(with(16, 4).contains("a core dump"));
    assert!(with(54, 55).contains("size of a program header"));
    assert!(with(57, 255).contains("number of program headers"));
    assert!(refused(&good[..40]).contains("cut off"));
    let cut = refused(&good[..8192]);
    assert!(
        cut.contains("but only 8192 are there: it is cut off"),
        "{cut}"
    );
}

/// The first of the program headers with this type.
fn header_at(file: &[u8], kind: u32) -> usize {
    let headers = (64..).step_by(56).take(usize::from(file[56]));
    let mut found = headers.filter(|at| file[*at..*at + 4] == kind.to_le_bytes());
    found.next().unwrap()
}

#[test]
fn impossible_segments_are_refused() {
    let good = linked("impossible", &["-O1"]);
    let with = |kind: u32, field: usize, value: u64| {
        let mut file = good.clone();
        let at = header_at(&file, kind) + field;
        file[at..at + 8].copy_from_slice(&value.to_le_bytes());
        refused(&file)
    };
    const LOAD: u32 = 1;
    assert!(with(LOAD, 8, 1 << 40).contains("its segment lies at bytes"));
    assert!(with(LOAD, 16, 0x10).contains("the same place of a page"));
    assert!(with(LOAD, 40, 1).contains("more bytes in the file than in memory"));
    assert!(with(LOAD, 40, 1 << 46).contains("overlaps the one before it"));
    assert!(with(LOAD, 40, u64::MAX).contains("lies where no program can be"));
    const DYNAMIC: u32 = 2;
    assert!(with(DYNAMIC, 32, 1 << 20).contains("dynamic section is too long"));
    assert!(with(DYNAMIC, 32, 17).contains("half an entry"));
    const INTERP: u32 = 3;
    assert!(with(INTERP, 32, 1).contains("too short or too long"));
    assert!(with(INTERP, 32, 5).contains("does not end with a zero"));
    let mut nowhere = good.clone();
    nowhere[24..32].copy_from_slice(&0x99_9999u64.to_le_bytes());
    assert!(refused(&nowhere).contains("its first instruction, at 0x999999"));
}

#[test]
fn an_empty_part_asks_for_nothing() {
    // Found by fuzzing: a dynamic section of no bytes at the start of a page that is not known.
    let mut file = linked("empty-part", &["-O1"]);
    file.resize(1 << 20, 0);
    let at = header_at(&file, 2);
    file[at + 8..at + 16].copy_from_slice(&(1u64 << 19).to_le_bytes());
    file[at + 32..at + 40].fill(0);
    let (plan, asked) = planned(&file);
    assert_eq!(plan.unwrap().libraries().count(), 0);
    assert!(asked.iter().all(|(_, bytes)| *bytes > 0), "{asked:?}");
}

#[test]
fn a_failed_or_short_read_is_told() {
    let mut failing = |_: u64, _: usize| Err::<Vec<u8>, _>("the line is dead");
    let error = plan(5000, &mut failing).unwrap_err();
    assert_eq!(error.to_string(), "cannot read bytes 0..4096 of it");
    let mut short = |_: u64, _: usize| Ok::<_, &str>(vec![0; 3]);
    let error = plan(5000, &mut short).unwrap_err();
    assert_eq!(
        error.to_string(),
        "3 bytes came from byte 0 on instead of 4096"
    );
}

/// What always holds of a plan.
fn check(plan: &Plan, size: u64) {
    assert_eq!(plan.commands.last(), Some(&Command::EndLoad));
    for command in &plan.commands {
        match command {
            Command::ReadOnly { file, address, .. } | Command::Writeable { file, address, .. } => {
                assert!(file.start < file.end && file.end <= size);
                assert_eq!(file.end - file.start, address.end - address.start);
            }
            Command::Relocate { file, .. } => assert!(file.end <= size),
            Command::LoadFile { name, role } => {
                assert!(*role == Role::Library || !name.is_empty());
            }
            Command::ZeroFill { address } => assert!(address.start < address.end),
            Command::Register { .. } | Command::EndLoad => {}
        }
    }
    let mut end = 0;
    for range in &plan.before_start {
        assert!(range.start >= end && range.start < range.end && range.end <= size);
        assert_eq!(range.start % PAGE_BYTES, 0);
        end = range.end + 1;
    }
}

fn sample() -> &'static [u8] {
    static FILE: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    FILE.get_or_init(|| linked("sample", &["-O1"]))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_programs_have_a_plan_or_an_error(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), any::<bool>()), 1..8),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut file = sample().to_vec();
        let dynamic = header_at(&file, 2);
        let offset = u64::from_le_bytes(file[dynamic + 8..dynamic + 16].try_into().unwrap());
        for (at, byte, in_dynamic) in changes {
            let at = if in_dynamic { offset as usize + at.index(400) } else { at.index(64 + 56 * 13) };
            file[at] = byte;
        }
        if let Some(cut) = cut {
            file.truncate(cut.index(file.len()));
        }
        match planned(&file).0 {
            Ok(plan) => check(&plan, file.len() as u64),
            Err(error) => prop_assert!(error.to_string().len() > 10),
        }
    }
}

#[test]
fn programs_of_this_machine_have_plans_from_few_pages() {
    for folder in ["/usr/bin", "/usr/lib/x86_64-linux-gnu"] {
        for entry in fs::read_dir(folder).unwrap().take(150) {
            let path = entry.unwrap().path();
            let Ok(file) = fs::File::open(&path) else {
                continue;
            };
            let size = file.metadata().unwrap().len();
            let mut head = [0; 20];
            let is_elf =
                file.read_exact_at(&mut head, 0).is_ok() && head.starts_with(b"\x7fELF\x02");
            if !is_elf || head[18] != 62 || head[16] < 2 {
                continue;
            }
            let mut read_bytes = 0;
            let mut read = |offset: u64, bytes: usize| {
                read_bytes += bytes;
                let mut part = vec![0; bytes];
                file.read_exact_at(&mut part, offset).map(|()| part)
            };
            let plan = plan(size, &mut read);
            let plan = plan.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            check(&plan, size);
            assert!(read_bytes <= 64 << 10, "{read_bytes} of {}", path.display());
        }
    }
}
