//! What several files of tests use.

pub mod up;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A folder for all tests of this process, with the `farpage` command in it, that every user can
/// read. It is removed when the process has ended, however it did.
pub fn folder_of_this_process() -> PathBuf {
    let folder = tempfile::tempdir().unwrap().keep();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    farpage_test_machine::copy_program(env!("CARGO_BIN_EXE_farpage"), folder.join("farpage"))
        .unwrap();
    let mut watch = Command::new("sh");
    watch.args(["-c", "cat; rm -rf \"$0\""]).arg(&folder);
    watch.stdin(Stdio::piped()).stdout(Stdio::null());
    // Its input ends with this process.
    std::mem::forget(watch.spawn().unwrap());
    folder
}
