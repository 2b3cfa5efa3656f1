//! C and C++ programs, compiled against the header as a user would, and run.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use farpage_client::Host;
use farpage_daemon::Service;
use farpage_daemon::locks::FramesTold;
use farpage_host::Objects;
use farpage_object::{DataRequest, ObjectId, PageOut, Pager, PagerError, Supplied};
use farpage_testkit::Started;
use farpage_testkit::server::{Answer, Server, Speed};
use tempfile::TempDir;

/// How a program is compiled and linked.
#[derive(Clone, Copy, Debug)]
enum Way {
    C,
    Cpp,
    StaticLibrary,
}

const WAYS: [Way; 3] = [Way::C, Way::Cpp, Way::StaticLibrary];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

fn folder() -> TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

/// The libraries that were built for this test, under the names that they are installed by.
fn libraries(into: &Path) {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().unwrap();
    let library = built.join("libfarpage_c.so");
    for name in ["libfarpage.so", "libfarpage.so.0"] {
        symlink(&library, into.join(name)).unwrap();
    }
    let archive = into.join("static");
    fs::create_dir(&archive).unwrap();
    symlink(built.join("libfarpage_c.a"), archive.join("libfarpage.a")).unwrap();
}

/// The program of that source, compiled without a warning.
fn compile(source: &Path, way: Way, folder: &Path) -> PathBuf {
    compile_with(source, way, folder, &[])
}

/// The same, with libraries of others.
fn compile_with(source: &Path, way: Way, folder: &Path, libraries: &[&str]) -> PathBuf {
    let name = source.file_stem().unwrap().to_str().unwrap();
    let program = folder.join(format!("{name}-{way:?}"));
    let (compiler, language) = match way {
        Way::C | Way::StaticLibrary => ("gcc", ["-std=c11", "-xc"]),
        Way::Cpp => ("g++", ["-std=c++17", "-xc++"]),
    };
    let mut compile = Command::new(compiler);
    compile.args(["-Wall", "-Wextra", "-Werror", "-O1", "-g"]);
    compile.args(language).arg(source).args(["-x", "none"]);
    compile
        .arg("-I")
        .arg(root().join("crates/faces/capi/include"));
    compile.arg("-o").arg(&program);
    match way {
        Way::C | Way::Cpp => {
            let folder = folder.display();
            compile.args([format!("-L{folder}"), format!("-Wl,-rpath,{folder}")]);
            compile.arg("-lfarpage");
        }
        Way::StaticLibrary => {
            // The library's debugging information would be copied into each program, most of 200 MB.
            compile.args(["-Wl,-S".into(), format!("-L{}/static", folder.display())]);
            compile.args([
                "-lfarpage",
                "-lgcc_s",
                "-lutil",
                "-lrt",
                "-lpthread",
                "-lm",
                "-ldl",
            ]);
        }
    }
    compile.args(libraries);
    let done = compile.output().expect("gcc and g++: cargo xtask setup");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{way:?} of {name}: {said}");
    program
}

fn run(program: &Path, words: &[&str]) -> Output {
    let mut run = Command::new("timeout");
    run.arg("1500").arg(program).args(words).output().unwrap()
}

/// Its output; it must end well.
fn output(program: &Path, words: &[&str]) -> String {
    let done = run(program, words);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(
        done.status.success(),
        "{}: {} {said}",
        program.display(),
        done.status
    );
    String::from_utf8(done.stdout).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn test_program(name: &str) -> PathBuf {
    root().join("crates/faces/capi/tests/programs").join(name)
}

fn example(name: &str) -> PathBuf {
    root().join("examples/c").join(name)
}

#[test]
fn wrong_arguments_are_errors_and_no_crash() {
    let folder = folder();
    libraries(folder.path());
    let file = folder.path().join("file.txt");
    fs::write(&file, vec![b'x'; 100_000]).unwrap();
    for way in WAYS {
        output(
            &compile(&test_program("refused.c"), way, folder.path()),
            &[text(&file)],
        );
    }
}

#[test]
fn files_pagers_arrays_and_forks_work_in_c() {
    let folder = folder();
    libraries(folder.path());
    for way in WAYS {
        let own = folder.path().join(format!("{way:?}"));
        fs::create_dir(&own).unwrap();
        output(
            &compile(&test_program("whole.c"), way, folder.path()),
            &[text(&own)],
        );
    }
}

#[test]
fn the_example_of_a_pager_computes_its_pages() {
    let folder = folder();
    libraries(folder.path());
    for way in WAYS {
        let printed = output(&compile(&example("computed.c"), way, folder.path()), &[]);
        let last = printed.lines().last();
        assert_eq!(last, Some("1000000000 * 1000000000 = 1000000000000000000"));
    }
}

#[test]
fn the_example_of_a_heap_shares_lists_between_processes() {
    let folder = folder();
    libraries(folder.path());
    let all: u64 = (0..40_000).sum();
    for way in WAYS {
        let printed = output(&compile(&example("heap.c"), way, folder.path()), &[]);
        assert_eq!(
            printed,
            format!("40000 numbers, sum {all}, 0 blocks left\n")
        );
    }
}

#[test]
fn the_example_that_adds_up_reads_files_and_servers_and_reports_failures() {
    let folder = folder();
    libraries(folder.path());
    let bytes: Vec<u8> = (0..3_000_001u32).map(|n| (n % 251) as u8).collect();
    let file = folder.path().join("file");
    fs::write(&file, &bytes).unwrap();
    let sum: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
    let wanted = format!("{} bytes, sum {sum}\n", bytes.len());
    let server = Server::start(folder.path(), Speed::default()).unwrap();
    let cache = folder.path().join("kept");
    for way in WAYS {
        let program = compile(&example("sum.c"), way, folder.path());
        assert_eq!(output(&program, &[text(&file)]), wanted);
        assert_eq!(
            output(&program, &[&server.url("/file"), text(&cache)]),
            wanted
        );
        let gone = run(&program, &[&server.url("/gone")]);
        let said = String::from_utf8_lossy(&gone.stderr);
        assert_eq!(gone.status.code(), Some(1));
        assert!(said.starts_with("sum: error 2: cannot find"), "{said}");
    }
    // It can be opened, and half of it is kept; then the server has another version.
    let program = compile(&example("sum.c"), Way::C, folder.path());
    server.always("/file", Answer::Tagged("\"other\"".into()));
    let first = server.requests();
    server.rule("/file", first..first + 1, Answer::Right);
    let changed = run(
        &program,
        &[&server.url("/file"), text(&folder.path().join("new"))],
    );
    assert!(!changed.status.success());
    let said = String::from_utf8_lossy(&changed.stderr);
    assert!(said.contains("has changed since it was opened"), "{said}");
}

#[test]
fn the_example_of_arrays_lists_and_adds_them() {
    let folder = folder();
    libraries(folder.path());
    let header = br#"{"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"n":{"dtype":"I64","shape":[1],"data_offsets":[24,32]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    (1..=6).for_each(|n| file.extend((n as f32).to_le_bytes()));
    file.extend(7i64.to_le_bytes());
    let path = folder.path().join("x.safetensors");
    fs::write(&path, file).unwrap();
    for way in WAYS {
        let printed = output(
            &compile(&example("arrays.c"), way, folder.path()),
            &[text(&path)],
        );
        assert_eq!(printed, "safetensors\nw f32 [2, 3] sum 21\nn i64 [1]\n");
    }
}

/// Keeps nothing: what the program takes it needs not.
struct NoSpace;

impl Pager for NoSpace {
    fn data_request(&self, _: DataRequest<'_>) -> Result<Supplied, PagerError> {
        Err(PagerError::Unavailable)
    }

    fn data_write(&self, _: ObjectId, _: &[PageOut<'_>]) -> Result<(), PagerError> {
        Err(PagerError::OutOfSpace)
    }
}

fn line(says: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    says.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

#[test]
fn a_c_program_answers_for_memory_of_other_processes() {
    let folder = folder();
    libraries(folder.path());
    let program = compile(&test_program("served.c"), Way::C, folder.path());
    let socket = folder.path().join("host");
    let start = |name: &str| {
        let mut command = Command::new(&program);
        command.arg(name).env("FARPAGE_HOST", &socket);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = Started::new(command);
        let says = BufReader::new(child.stdout.take().unwrap());
        (child, says)
    };
    let (mut child, mut says) = start("early");
    assert!(line(&mut says).starts_with("refused 2 no host kernel listens"));
    child.wait().unwrap();
    let objects = Objects::start(64 << 20).unwrap();
    let service = Service::new(objects, 64 << 20, Arc::new(NoSpace)).unwrap();
    let _listening = service.listen(&socket).unwrap();
    std::thread::spawn(move || service.run());
    let (mut child, mut says) = start("numbers");
    assert_eq!(line(&mut says), "ready");
    let host = Host::connect(&socket).unwrap();
    let numbers = host.open("numbers").unwrap();
    let word = |offset: usize| &numbers.words()[offset / 8];
    for offset in [0, 8, 4096, 99_992, (1 << 20) - 8] {
        assert_eq!(word(offset).load(Ordering::Relaxed), offset as u64);
    }
    word(8192).store(7, Ordering::Relaxed);
    let (mut other, mut refused) = start("numbers");
    assert!(line(&mut refused).starts_with("refused 3 process"));
    other.wait().unwrap();
    drop(numbers);
    assert_eq!(line(&mut says), "written 8192 4096 7");
    writeln!(child.stdin.as_mut().unwrap(), "end").unwrap();
    assert_eq!(line(&mut says), "ended");
    assert!(child.wait().unwrap().success());
}

#[test]
fn any_bytes_of_a_file_are_mapped() {
    let folder = folder();
    libraries(folder.path());
    let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
    let file = folder.path().join("bytes");
    fs::write(&file, bytes).unwrap();
    let server = Server::start(folder.path(), Speed::default()).unwrap();
    for way in WAYS {
        let program = compile(&test_program("map_fd.c"), way, folder.path());
        output(&program, &[text(&file), &server.url("/bytes")]);
    }
}

#[test]
fn areas_are_locked_and_told() {
    let folder = folder();
    libraries(folder.path());
    for way in WAYS {
        let program = compile(&test_program("locked.c"), way, folder.path());
        assert_eq!(output(&program, &[]), "done\n");
    }
}

#[test]
fn registrations_are_found_again_until_their_memory_goes() {
    let folder = folder();
    libraries(folder.path());
    for way in WAYS {
        let program = compile(&test_program("registered.c"), way, folder.path());
        assert_eq!(output(&program, &[]), "done\n");
    }
}

#[test]
fn the_example_of_ucx_registers_each_piece_once_and_again_when_its_memory_was_unmapped() {
    let folder = folder();
    libraries(folder.path());
    for way in WAYS {
        let program = compile_with(&example("ucx.c"), way, folder.path(), &["-lucp", "-lucs"]);
        let said = output(&program, &[]);
        assert_eq!(said, "4000 puts of 64 KiB, registered 128 times\n");
    }
}

/// Without a GPU it only compiles, and says so.
#[test]
fn the_example_of_cuda_copies_from_memory_that_is_registered_once() {
    let folder = folder();
    libraries(folder.path());
    for way in WAYS {
        let program = compile_with(&example("cuda.c"), way, folder.path(), &["-ldl"]);
        let done = run(&program, &[]);
        let said = String::from_utf8_lossy(&done.stdout);
        if done.status.code() == Some(77) {
            assert!(said.starts_with("skipped: no CUDA here: "), "{said}");
            print!("{said}");
            return;
        }
        assert!(done.status.success(), "{done:?}");
        assert!(said.contains("farpage to ") && said.ends_with("registered 16 times\n"));
    }
}

#[test]
fn locks_of_c_programs_outlive_who_is_killed() {
    runs_beside_a_host_kernel("locks.c");
}

#[test]
fn shared_memory_is_locked_and_lent_through_the_host_kernel() {
    runs_beside_a_host_kernel("shared_locks.c");
}

fn runs_beside_a_host_kernel(name: &str) {
    let folder = folder();
    libraries(folder.path());
    let socket = folder.path().join("host");
    let objects = Objects::start(64 << 20).unwrap();
    let service = Service::new(objects, 64 << 20, Arc::new(NoSpace)).unwrap();
    let service = service.with_locks(1 << 20, FramesTold::default());
    let _listening = service.listen(&socket).unwrap();
    std::thread::spawn(move || service.run());
    for way in WAYS {
        let program = compile(&test_program(name), way, folder.path());
        let mut run = Command::new("timeout");
        run.arg("1500").arg(program).env("FARPAGE_HOST", &socket);
        let done = run.output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(
            done.status.success() && done.stdout == b"done\n",
            "{way:?}: {said}"
        );
    }
}
