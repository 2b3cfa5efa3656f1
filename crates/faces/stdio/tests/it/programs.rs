//! C programs with glibc's streams and with the library's: they must do the same.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// How a program comes to the library.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Not at all.
    Glibc,
    Preloaded,
    /// Linked, with glibc's header.
    Linked,
    /// Linked, with the header.
    WithHeader,
}

struct Place {
    folder: TempDir,
}

impl Place {
    /// A folder with the library that was built for this test, under its name.
    fn new() -> Self {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let test = std::env::current_exe().unwrap();
        let library = test.parent().unwrap().join("libfarpage_stdio.so");
        for name in ["libfarpage-stdio.so", "libfarpage-stdio.so.0"] {
            symlink(&library, folder.path().join(name)).unwrap();
        }
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn library(&self) -> PathBuf {
        self.path("libfarpage-stdio.so.0")
    }

    fn compile(&self, name: &str, way: Way) -> PathBuf {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let program = self.path(&format!("{name}-{}", way as u32));
        let mut compile = Command::new("gcc");
        compile.args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror"]);
        compile.arg(own.join(format!("tests/programs/{name}.c")));
        compile
            .arg("-I")
            .arg(own.join("include"))
            .arg("-o")
            .arg(&program);
        if way == Way::WithHeader {
            compile.arg("-DWITH_HEADER");
        }
        if way == Way::Linked || way == Way::WithHeader {
            let folder = self.folder.path().display();
            compile.args([format!("-L{folder}"), format!("-Wl,-rpath,{folder}")]);
            compile.args(["-Wl,--no-as-needed", "-lfarpage-stdio"]);
        }
        let done = compile.output().expect("gcc: cargo xtask setup");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{name}: {said}");
        program
    }

    fn command(&self, program: &Path, way: Way) -> Command {
        let mut command = Command::new("timeout");
        command.arg("200");
        if way == Way::Preloaded {
            let library = format!("LD_PRELOAD={}", self.library().display());
            command.args(["env".to_string(), library]);
        }
        command.arg(program);
        command
    }
}

fn output(command: &mut Command) -> String {
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    let printed = String::from_utf8_lossy(&done.stdout);
    assert!(
        done.status.success(),
        "{command:?}: {} {printed} {said}",
        done.status
    );
    printed.into_owned()
}

/// Sequences of random calls: `FARPAGE_STDIO_SEQUENCES` of them.
#[test]
fn random_calls_do_the_same_as_with_glibc() {
    let place = Place::new();
    let count = std::env::var("FARPAGE_STDIO_SEQUENCES").unwrap_or("1000".to_string());
    let run = |way| {
        let program = place.compile("calls", way);
        let folder = place.path(&format!("files-{}", way as u32));
        fs::create_dir(&folder).unwrap();
        let mut command = place.command(&program, way);
        output(command.arg(&folder).args(["0", &count]))
    };
    let right = run(Way::Glibc);
    assert_eq!(right.lines().count().to_string(), count);
    for way in [Way::Preloaded, Way::Linked, Way::WithHeader] {
        let seen = run(way);
        let differs = right
            .lines()
            .zip(seen.lines())
            .find(|(one, two)| one != two);
        assert!(
            differs.is_none() && seen.len() == right.len(),
            "another result with seed and sum {differs:?}: run calls FOLDER SEED 1 -v both ways"
        );
    }
}

#[test]
fn a_file_that_is_cut_off_is_a_short_read_with_an_error() {
    let place = Place::new();
    let program = place.compile("cut", Way::WithHeader);
    let file = place.path("file");
    let (page, chunk) = (4096, 4 << 20);
    let mut points = vec![];
    for read in [3 * chunk / 4, chunk + 5 * page + 77] {
        points.extend([0, 5, read - 1, read, read + 1, read + page].map(|cut| (read, cut)));
        points.extend([8 * page, 8 * page + 100].map(|more| (read, read + more)));
    }
    for way in ["getc", "function", "100", "4096", "70000"] {
        for &(read, cut) in &points {
            let words = [way.to_string(), read.to_string(), cut.to_string()];
            let mut command = place.command(&program, Way::WithHeader);
            let printed = output(command.arg(&file).args(words));
            let mut numbers = printed
                .split_whitespace()
                .map(|word| word.parse::<i64>().unwrap());
            let at = numbers.next().unwrap();
            // What was copied before it was cut off still comes.
            let first = i64::from(read.max(cut));
            let told: Vec<i64> = numbers.collect();
            assert!(
                (first..first + 1024).contains(&at),
                "{way} {read} {cut}: {printed}"
            );
            assert_eq!(told, [1, 1], "{way} {read} {cut}");
        }
    }
}

#[test]
fn fmap_is_the_file() {
    let place = Place::new();
    for way in [Way::Linked, Way::WithHeader] {
        let program = place.compile("mapped", way);
        let mut command = place.command(&program, way);
        assert_eq!(output(command.arg(place.path("file"))), "done\n");
    }
}

/// A full disk, files of more than 2 and 4 GiB, terminals, `/proc`.
#[test]
fn at_the_edges_it_is_as_with_glibc() {
    let place = Place::new();
    let full = place.path("full");
    fs::create_dir(&full).unwrap();
    let mounted = rustix::mount::mount(
        "tmpfs",
        &full,
        "tmpfs",
        rustix::mount::MountFlags::empty(),
        c"size=1M",
    );
    let Ok(()) = mounted else {
        println!("skipped: only root may mount a file system");
        return;
    };
    let run = |way| {
        let program = place.compile("edges", way);
        let mut command = place.command(&program, way);
        let done = command.arg(full.join("file")).arg(place.path("file"));
        let done = done.output().unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        assert!(done.status.success(), "{} {said}", done.status);
        (String::from_utf8(done.stdout).unwrap(), said)
    };
    let ways = [Way::Glibc, Way::Preloaded, Way::Linked, Way::WithHeader];
    let seen = ways.map(run);
    rustix::mount::unmount(&full, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert!(seen[0].0.contains("errno 28"), "{}", seen[0].0);
    let said = seen.each_ref().map(|(_, said)| said.as_str());
    assert_eq!(said, ["", "", "", "1"], "fmap when there is no room");
    for (printed, _) in &seen[1..] {
        assert_eq!(printed, &seen[0].0);
    }
}

#[test]
fn threads_and_children_share_a_stream_as_with_glibc() {
    let place = Place::new();
    let file = place.path("text");
    fs::write(&file, text().repeat(3)).unwrap();
    let run = |way| {
        let program = place.compile("threads", way);
        output(place.command(&program, way).arg(&file))
    };
    let right = run(Way::Glibc);
    for way in [Way::Preloaded, Way::Linked, Way::WithHeader] {
        assert_eq!(run(way), right);
    }
}

/// A text of many lines, some 3 MB.
fn text() -> String {
    let line = |at: u64| {
        let number = at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        format!("{number},word {},{}.5\n", number % 97, at)
    };
    (0..120_000).map(line).collect()
}

/// Runs a shell line with and without the library.
fn both(place: &Place, line: &str) -> (Output, Output) {
    let run = |way| {
        let mut command = place.command(Path::new("sh"), way);
        command.args(["-c", line]).current_dir(place.folder.path());
        command.stdin(Stdio::null()).output().unwrap()
    };
    (run(Way::Glibc), run(Way::Preloaded))
}

#[test]
fn unmodified_programs_do_the_same() {
    let place = Place::new();
    fs::write(place.path("text"), text()).unwrap();
    let source = text().replace("word", "WORD").replace(',', " + ");
    fs::write(place.path("code.c"), format!("#define WORD 7 *\n{source}")).unwrap();
    let lines = [
        "wc text",
        "wc < text",
        "sort -n text",
        "sort -t, -k2 text | uniq -c",
        "awk -F, '{ sum += $1; count[$2]++ } END { print sum, length(count) }' text",
        "gcc -E code.c",
        "sqlite3 -cmd '.mode csv' :memory: \
         'create table t(a, b, c)' '.import text t' 'select count(*), sum(a), sum(c) from t'",
        "python3 -c 'import csv; print(sum(int(row[0]) for row in csv.reader(open(\"text\"))))'",
        "sed -n '/word 9,/p' text",
        "cut -d, -f2 text",
        "tac text | head -1000 | rev",
        "paste text text | tail -100",
        "grep -c 'word 5' text",
        "(sed -u 3q; wc -l) < text",
        "cat /proc/self/status | head -1; wc -l /proc/cpuinfo",
        "sort text > /dev/full",
    ];
    for line in lines {
        let (right, seen) = both(&place, line);
        assert_eq!(right.status, seen.status, "{line}");
        assert!(right.stdout == seen.stdout, "other output: {line}");
        assert_eq!(
            String::from_utf8_lossy(&right.stderr),
            String::from_utf8_lossy(&seen.stderr),
            "{line}"
        );
    }
}
