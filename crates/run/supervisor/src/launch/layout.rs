//! Programs that lay their address space out by themselves.
//!
//! ThreadSanitizer and MemorySanitizer know of every address what it is for, and have their own
//! memory nearly everywhere: no place is left for managed memory and its shadow.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use farpage_sys::elf;
use farpage_sys::file::Fd;
use memchr::memmem;

/// What is in programs that use one of them: the function that starts it, by its name, or what it
/// says, where it is linked into the program.
const MARKS: [(&str, &str); 3] = [
    ("__tsan_init\0", "ThreadSanitizer"),
    ("FATAL: ThreadSanitizer", "ThreadSanitizer"),
    ("__msan_init\0", "MemorySanitizer"),
];

static IS_SAID: AtomicBool = AtomicBool::new(false);

/// True when the program of `process` is one of these, which is said of the first of a run.
pub fn is_own(process: u32) -> bool {
    let link = format!("/proc/{process}/exe");
    let Some(name) = sanitizer(Path::new(&link)) else {
        return false;
    };
    if !IS_SAID.swap(true, Ordering::Relaxed) {
        let path = fs::read_link(&link).unwrap_or_default();
        farpage_sys::say!(
            "farpage: warning: '{}' is built with {name}, which lays the address space out by itself: \
             it runs, but its memory is not managed",
            path.display()
        );
    }
    true
}

/// Looks through a program that the agent is in before any library.
fn sanitizer(path: &Path) -> Option<&'static str> {
    let file = File::open(path).ok()?;
    if !elf::is_before_libraries(Fd(file.as_raw_fd())) {
        return None;
    }
    let bytes = fs::read(path).ok()?;
    let has = |mark: &str| memmem::find(&bytes, mark.as_bytes()).is_some();
    let found = MARKS.iter().find(|(mark, _)| has(mark))?;
    Some(found.1)
}
