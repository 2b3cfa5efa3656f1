//! Programs that lay their address space out by themselves.
//!
//! ThreadSanitizer knows of every address what it is for, and has its own memory nearly everywhere: no place is
//! left for managed memory and its shadow.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use farpage_sys::elf;
use farpage_sys::file::Fd;
use memchr::memmem;

/// What is in programs that use it: the function that starts it, by its name, or what it says, where it is linked
/// into the program.
const MARKS: [&str; 2] = ["__tsan_init\0", "FATAL: ThreadSanitizer"];

static IS_SAID: AtomicBool = AtomicBool::new(false);

/// True when the program of `process` is one of these, which is said of the first of a run.
pub fn is_own(process: u32) -> bool {
    let link = format!("/proc/{process}/exe");
    let is_one = has_marks(Path::new(&link)).unwrap_or(false);
    if is_one && !IS_SAID.swap(true, Ordering::Relaxed) {
        let path = fs::read_link(&link).unwrap_or_default();
        farpage_sys::say!(
            "farpage: warning: '{}' is built with ThreadSanitizer, which lays the address space out by \
             itself: it runs, but its memory is not managed",
            path.display()
        );
    }
    is_one
}

/// Looks through a program whose code runs before that of libraries.
fn has_marks(path: &Path) -> Option<bool> {
    let file = File::open(path).ok()?;
    if !elf::runs_before_libraries(Fd(file.as_raw_fd())) {
        return None;
    }
    let bytes = fs::read(path).ok()?;
    let has = |mark: &&str| memmem::find(&bytes, mark.as_bytes()).is_some();
    Some(MARKS.iter().any(has))
}
