//! What several files of tests use.

pub mod up;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use farpage_test_machine::Guard;

/// Compiles a C program, of `tests/programs` unless `source` is an absolute path.
pub fn compile(source: &str, to: &Path, flags: &[&str]) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Werror", "-pthread"]);
    cc.arg(sources.join(source)).args(flags).arg("-o").arg(to);
    let done = cc.status().expect("cc: cargo xtask setup");
    assert!(done.success(), "cannot compile {source} with {flags:?}");
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
    farpage_test_machine::copy_program(env!("CARGO_BIN_EXE_farpage"), folder.join("farpage"))
        .unwrap();
    // Its input ends with this process.
    let guard = Guard::new("rm -rf \"$1\"", &[&folder.display().to_string()]);
    std::mem::forget(guard.unwrap());
    folder
}
