//! Tests that must be alone: in their process, or on the machine.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FlockOperation, flock};

/// Runs the rest of a test in a process that runs nothing else.
///
/// For tests that count what a whole process has (descriptors, threads, bytes that are allocated), change it
/// (limits, handlers of signals, locked memory) or depend on which addresses are free. Stands first in a test:
/// the test starts itself again in a process of its own and ends as that ends, unless it was started so,
/// by `--exact` and its name.
#[macro_export]
macro_rules! in_own_process {
    () => {
        fn here() {}
        if $crate::ran_in_own_process(std::any::type_name_of_val(&here)) {
            return;
        }
    };
}

/// Whether the test around the function of this name has run in a process of its own: false in that process.
///
/// # Panics
/// If the test fails there.
#[must_use]
pub fn ran_in_own_process(here: &str) -> bool {
    let path = here.trim_end_matches("::here");
    let test = path.split_once("::").map_or(path, |(_, test)| test);
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    if has("--exact") && has(test) {
        return false;
    }
    let own = std::env::current_exe().expect("a program knows where it is");
    let mut again = Command::new(own);
    again.args(["--exact", test, "--nocapture", "--include-ignored"]);
    let done = again.output().expect("a program can be started again");
    let said = String::from_utf8_lossy(&done.stdout);
    print!("{said}");
    eprint!("{}", String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{test}: {}", done.status);
    assert!(said.contains("running 1 test"), "there is no test {test}");
    true
}

/// Something that one test of the machine may use at a time, until this is dropped.
pub struct Alone {
    file: File,
    path: PathBuf,
}

/// Waits until no other test uses `what`: a setting of Linux, what one user may lock, names that
/// all processes see. Tests of other programs wait too, whoever runs them.
///
/// # Panics
/// If no file can be made and locked in `/tmp`.
#[must_use]
pub fn alone(what: &str) -> Alone {
    // Not the folder that the environment names: each test may have been given another.
    let path = Path::new("/tmp").join(format!("farpage-test-{what}"));
    loop {
        // Another user's is opened and not made: Linux refuses the latter in this folder.
        let file = File::open(&path).or_else(|_| File::create(&path));
        let file = file.unwrap_or_else(|why| panic!("cannot make {}: {why}", path.display()));
        flock(&file, FlockOperation::LockExclusive).expect("a file can be locked");
        let is_there = |found: fs::Metadata| {
            file.metadata()
                .is_ok_and(|own| (own.dev(), own.ino()) == (found.dev(), found.ino()))
        };
        // The last user has removed it, unless it is another user's.
        if fs::metadata(&path).is_ok_and(is_there) {
            return Alone { file, path };
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        // While it is locked: nobody who comes later locks a file that is gone. Another user's stays.
        let _ = fs::remove_file(&self.path);
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}
