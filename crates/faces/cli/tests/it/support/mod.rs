//! What several files of tests use.

pub mod up;

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use farpage_testkit::Guard;

/// Compiles a C program, of `tests/programs` unless `source` is an absolute path.
pub fn compile(source: &str, to: &Path, flags: &[&str]) {
    compile_by("cc", source, to, flags);
}

/// The same, by another compiler.
///
/// Most tests are processes of their own and want one of a few programs. What is made of the sources here alone is
/// compiled once, and has one name more for each who wants it.
pub fn compile_by(compiler: &str, source: &str, to: &Path, flags: &[&str]) {
    if source.contains('/') || flags.iter().any(|flag| flag.contains('/')) {
        return compile_anew(compiler, source, to, flags);
    }
    let kept = kept(compiler, source, flags);
    if !kept.exists() {
        static NEW: AtomicU32 = AtomicU32::new(0);
        let number = NEW.fetch_add(1, Ordering::Relaxed);
        let new = kept.with_extension(format!("{}-{number}", std::process::id()));
        compile_anew(compiler, source, &new, flags);
        fs::rename(new, &kept).unwrap();
    }
    let _ = fs::remove_file(to);
    farpage_testkit::name_program(&kept, to).unwrap();
}

fn compile_anew(compiler: &str, source: &str, to: &Path, flags: &[&str]) {
    let mut cc = Command::new(compiler);
    cc.args(["-O1", "-Wall", "-Werror", "-pthread"]);
    cc.arg(sources().join(source)).args(flags).arg("-o").arg(to);
    let done = cc.status().expect("a compiler: cargo xtask setup");
    assert!(done.success(), "cannot compile {source} with {flags:?}");
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs")
}

/// Where a program is kept that is compiled from these sources, all of which may be part of it.
fn kept(compiler: &str, source: &str, flags: &[&str]) -> PathBuf {
    let all = fs::read_dir(sources())
        .unwrap()
        .map(|file| file.unwrap().path());
    let headers = all.filter(|file| file.extension().is_some_and(|end| end == "h"));
    let mut parts: Vec<PathBuf> = headers.chain([sources().join(source)]).collect();
    parts.sort();
    let mut hash = DefaultHasher::new();
    (compiler, source, flags).hash(&mut hash);
    for part in parts {
        fs::read(part).unwrap().hash(&mut hash);
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs");
    fs::create_dir_all(&folder).unwrap();
    folder.join(format!("{:016x}", hash.finish()))
}

/// Functions of programs in Python, which wait for what nothing tells them.
pub const PYTHON: &str = "
import time
def until(what, is_so):
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < 120, 'waited in vain: ' + what
        time.sleep(0.001)
";

/// Functions of scripts: `until_so COMMAND...` waits until the command succeeds, and `no_keys` does so when
/// nothing of System V is left that has a key.
pub const SHELL: &str = "
until_so() {
    over=$(($(date +%s) + 120))
    until \"$@\"; do
        [ \"$(date +%s)\" -lt $over ] || { echo \"waited in vain: $*\" >&2; return 1; }
        sleep 0.01
    done
}
no_keys() { ! ipcs | grep -q '^0x'; }
";

/// A folder for all tests of this process, with the `farpage` command in it, that every user can
/// read. It is removed when the process has ended, however it did.
pub fn folder_of_this_process() -> PathBuf {
    let folder = tempfile::tempdir().unwrap().keep();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    farpage_testkit::name_program(env!("CARGO_BIN_EXE_farpage"), folder.join("farpage")).unwrap();
    // Its input ends with this process.
    let guard = Guard::new("rm -rf \"$1\"", &[&folder.display().to_string()]);
    std::mem::forget(guard.unwrap());
    folder
}
