//! A program's own handler of SIGBUS, and an access that raises it.

use std::os::fd::AsRawFd;

use farpage_sys::file::Fd;
use farpage_sys::mem;

unsafe extern "C" {
    fn signal(number: i32, handler: usize) -> usize;
    fn _exit(code: i32) -> !;
}

static CODE: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(0);

extern "C" fn on_sigbus(_: i32) {
    // SAFETY: ends the process.
    unsafe { _exit(CODE.load(std::sync::atomic::Ordering::Relaxed)) }
}

/// From now on SIGBUS ends the process with `code`.
pub fn exit_on_sigbus(code: i32) {
    CODE.store(code, std::sync::atomic::Ordering::Relaxed);
    // SAFETY: the handler does nothing but to end the process.
    unsafe { signal(7, on_sigbus as *const () as usize) };
}

/// Raises SIGBUS, at an address that is nobody's business but Linux's.
pub fn read_behind_the_end_of_a_file() {
    let path = std::env::temp_dir().join(format!("farpage-empty-{}", std::process::id()));
    let file = std::fs::File::create_new(&path).expect("a file");
    std::fs::remove_file(&path).expect("removed");
    let fd = Fd(file.as_raw_fd());
    // SAFETY: a fresh mapping.
    let at = unsafe { mem::map(0, 4096, mem::PROT_READ, 1, fd, 0) };
    let at = at.expect("mapped") as *const u8;
    // SAFETY: mapped; that it raises SIGBUS is what is wanted.
    println!("read {}", unsafe { at.read_volatile() });
}
