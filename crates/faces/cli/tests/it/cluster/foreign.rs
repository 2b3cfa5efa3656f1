//! A host of the other byte order, where Linux has no userfaultfd: a C program for a big-endian machine,
//! run by an emulator, beside one for this machine that maps the same memory.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use farpage_testkit::Started;

use super::support::Net;

/// A big-endian machine of 64 bits.
const FOREIGN: &str = "s390x-unknown-linux-gnu";
const GCC: &str = "s390x-linux-gnu-gcc";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// The library for C as an archive: of this machine, built for this test.
fn native_library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.with_file_name("libfarpage_c.a")
}

/// Of the foreign machine.
fn foreign_library() -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .current_dir(root())
        .args(["rustc", "--package", "farpage-capi", "--lib"])
        .args(["--crate-type", "staticlib", "--message-format", "json"])
        .args(["--profile", "foreign", "--target", FOREIGN])
        .stderr(Stdio::inherit());
    let built = cargo.output().unwrap();
    assert!(built.status.success(), "cargo for {FOREIGN}");
    let said = String::from_utf8(built.stdout).unwrap();
    let mut paths = said
        .split('"')
        .filter(|part| part.ends_with("libfarpage_c.a"));
    PathBuf::from(paths.next_back().expect("cargo says what it has made"))
}

/// A C program of `programs`, for either machine.
pub fn compile(net: &Net, program: &str, is_foreign: bool) -> PathBuf {
    let (gcc, library) = match is_foreign {
        true => (GCC, foreign_library()),
        false => ("gcc", native_library()),
    };
    let to = net.folder.path().join(format!("{program}-{gcc}"));
    let mut cc = Command::new(gcc);
    cc.args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-static"]);
    cc.arg("-I").arg(root().join("crates/faces/capi/include"));
    let source = format!("crates/faces/cli/tests/programs/{program}.c");
    cc.arg(root().join(source));
    cc.arg(library).arg("-o").arg(&to);
    // What the archive's parts name of libc that a static program has only in part.
    cc.args(["-Wl,--no-warnings", "-lpthread", "-lm", "-ldl"]);
    let done = cc
        .output()
        .expect("gcc for both machines: cargo xtask setup");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{gcc}: {said}");
    to
}

/// What a program says that ends well.
pub fn said(output: Output) -> String {
    let out = String::from_utf8(output.stdout).unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {out}{told}", output.status);
    out
}

#[test]
fn a_big_endian_program_without_faults_and_a_native_one_that_faults_share_records() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let (native, foreign) = (
        compile(&net, "records", false),
        compile(&net, "records", true),
    );
    let kernel = net.host();
    let other = net.bare_host();
    let native = |what: &str| {
        let mut command = net.at(0, &native);
        command
            .args([what, "0"])
            .env("FARPAGE_HOST", &kernel.socket)
            .env("KEPT", net.folder.path().join("kept"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Started::new(&mut command)
    };
    let foreign = |what: &str| {
        let mut command = net.at(other, Path::new("qemu-s390x"));
        command
            .arg(&foreign)
            .args([what, "1", "etcd://10.79.0.1:2379/test"]);
        command.arg(net.key());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Started::new(&mut command)
    };
    let ends = |child: Started| said(child.output());
    assert_eq!(ends(native("fill")), "done\n");
    assert_eq!(ends(foreign("check")), "done\n");
    let listed = kernel.says(&["ls", "--hosts"]);
    assert!(!listed.contains("by itself"), "it has left: {listed}");
    assert_eq!(ends(foreign("fill")), "done\n");
    assert_eq!(ends(native("check")), "done\n");
    let both = [native("add"), foreign("add")];
    for one in both {
        assert_eq!(ends(one), "done\n");
    }
    assert_eq!(ends(native("sums")), "600 600\ndone\n");
    assert_eq!(ends(foreign("sums")), "600 600\ndone\n");
    assert_eq!(ends(native("allocate")), "done\n");
    let halved = ends(foreign("halve"));
    assert!(
        halved.contains("a heap is only for programs that map it"),
        "{halved}"
    );
    assert_eq!(ends(native("free")), "0 wrong\ndone\n");
    assert_eq!(ends(native("refused")), "packed records\ndone\n");
    assert_eq!(ends(native("keep")), "done\n");
}

#[test]
fn numbers_that_a_foreign_host_cannot_have_are_refused_there() {
    let Some(mut net) = Net::new() else {
        return;
    };
    let foreign = compile(&net, "records", true);
    let _kernel = net.host();
    let other = net.bare_host();
    let mut command = net.at(other, Path::new("qemu-s390x"));
    command
        .arg(foreign)
        .args(["refused", "1", "etcd://10.79.0.1:2379/test"]);
    let said = said(command.arg(net.key()).output().unwrap());
    assert!(
        said.contains("'packed': numbers of 8 bytes lie at byte 1"),
        "{said}"
    );
}
