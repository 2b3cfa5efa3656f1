//! What libc and std would give: an allocator, a panic handler, memory routines.

use core::alloc::{GlobalAlloc, Layout};
use core::fmt::Write;
use core::panic::PanicInfo;

use dlmalloc::Dlmalloc;
use farpage_object::fds;
use farpage_sys::futex::Mutex;
use farpage_sys::{file, mem, process};

use crate::start;

/// Pages from Linux, outside the managed window.
struct Pages;

// SAFETY: what is handed out is fresh, mapped for as long as it is not freed, and zeroed.
unsafe impl dlmalloc::Allocator for Pages {
    fn alloc(&self, bytes: usize) -> (*mut u8, usize, u32) {
        match mem::map_anonymous(bytes) {
            Ok(at) => (at as *mut u8, bytes, 0),
            Err(_) => (core::ptr::null_mut(), 0, 0),
        }
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        core::ptr::null_mut()
    }

    fn free_part(&self, at: *mut u8, old: usize, new: usize) -> bool {
        // SAFETY: the allocator gives the tail up.
        unsafe { mem::unmap(at as usize + new, old - new) }.is_ok()
    }

    fn free(&self, at: *mut u8, bytes: usize) -> bool {
        // SAFETY: the allocator gives the mapping up.
        unsafe { mem::unmap(at as usize, bytes) }.is_ok()
    }

    fn can_release_part(&self, _: u32) -> bool {
        true
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        4096
    }
}

struct Heap(Mutex<Dlmalloc<Pages>>);

#[global_allocator]
static HEAP: Heap = Heap(Mutex::new(Dlmalloc::new_with_allocator(Pages)));

// SAFETY: forwarded to dlmalloc under a lock.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout is valid.
        unsafe { self.0.lock().malloc(layout.size(), layout.align()) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout is valid.
        unsafe { self.0.lock().calloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller got `at` from here with this layout.
        unsafe { self.0.lock().free(at, layout.size(), layout.align()) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        // SAFETY: the caller got `at` from here with this layout.
        unsafe {
            self.0
                .lock()
                .realloc(at, layout.size(), layout.align(), new)
        }
    }
}

/// Takes the heap's lock and keeps it: a copy of the heap made meanwhile is whole.
pub(crate) fn hold_heap() {
    core::mem::forget(HEAP.0.lock());
}

/// Ends [`hold_heap`], in the process itself or in its copy.
///
/// # Safety
/// Only after [`hold_heap`] on this thread or its twin.
pub(crate) unsafe fn release_heap() {
    // SAFETY: forwarded.
    unsafe { HEAP.0.reset() };
}

struct Line {
    bytes: [u8; 400],
    length: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let taken = text.len().min(self.bytes.len() - self.length);
        self.bytes[self.length..self.length + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.length += taken;
        Ok(())
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    let mut line = Line {
        bytes: [0; 400],
        length: 0,
    };
    let _ = writeln!(
        line,
        "farpage: a bug in farpage: {info}; the process is killed"
    );
    file::write_message(start::descriptor(fds::MESSAGES), &line.bytes[..line.length]);
    process::die()
}

// Named by the prebuilt `alloc`, which could unwind. Nothing here does.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    process::die()
}

/// `malloc` for the C code of the dense compressor.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc(bytes: usize) -> *mut u8 {
    // SAFETY: alignment 16 is what C expects.
    unsafe { HEAP.0.lock().malloc(bytes, 16) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn calloc(count: usize, bytes: usize) -> *mut u8 {
    // SAFETY: as for `malloc`.
    unsafe { HEAP.0.lock().calloc(count.saturating_mul(bytes), 16) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn free(at: *mut u8) {
    if !at.is_null() {
        // SAFETY: dlmalloc keeps sizes itself; the caller got `at` from `malloc` or `calloc`.
        unsafe { HEAP.0.lock().free(at, 0, 16) };
    }
}
