//! Threads of a process that has libc, begun without a lock of Rust's standard library.
//!
//! Each thread of `std::thread` that begins or ends holds, for a moment, a lock over what the
//! library keeps of all threads. Where that happens just when another thread forks, the child finds
//! the lock held for ever, and none of its own `std` threads comes to its first line. libc makes
//! its own locks usable in a child, so what a child of fork cannot do without is begun here.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::{CStr, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::thread::Result as Ended;

use crate::linux::general as g;
use crate::raw::{Errno, Result};
use crate::syscall;

/// Bytes of stack, as threads of `std` have.
const STACK_BYTES: usize = 2 << 20;

/// What a thread begins with.
struct Begin {
    name: &'static CStr,
    body: Box<dyn FnOnce() + Send>,
}

/// A thread that was started. It goes on when this is dropped.
#[derive(Debug)]
#[must_use = "a thread whose end nobody waits for is made by `start`"]
pub struct Thread<T> {
    id: libc::pthread_t,
    result: Arc<Mutex<Option<Ended<T>>>>,
    is_joined: bool,
}

/// Starts a thread that runs `body`, and ends by itself. Debuggers and `top -H` show the first 15 bytes of
/// its `name`. It inherits the signal mask.
///
/// # Errors
/// As `pthread_create(3)`: `EAGAIN` when there are too many, or no memory for its stack.
pub fn start(name: &'static CStr, body: impl FnOnce() + Send + 'static) -> Result<()> {
    start_joined(name, body).map(drop)
}

/// As [`start`], for one whose result is waited for.
///
/// # Errors
/// As [`start`].
pub fn start_joined<T: Send + 'static>(
    name: &'static CStr,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<Thread<T>> {
    let result = Arc::new(Mutex::new(None));
    let into = Arc::clone(&result);
    let body = Box::new(move || {
        let ended = catch_unwind(AssertUnwindSafe(body));
        *into.lock().unwrap_or_else(PoisonError::into_inner) = Some(ended);
    });
    let id = create(Box::new(Begin { name, body }))?;
    Ok(Thread {
        id,
        result,
        is_joined: false,
    })
}

/// Runs `body` on `count` threads, and waits until all have returned. Fewer do it where Linux makes no more.
///
/// # Errors
/// As [`start`], when there is not even one.
pub fn several<T: Send + 'static>(
    name: &'static CStr,
    count: usize,
    body: impl Fn() -> T + Sync,
) -> Result<Vec<Ended<T>>> {
    let body: &(dyn Fn() -> T + Sync) = &body;
    // SAFETY: no thread that has it is left when this returns: all that were started are joined, and nothing before
    // that unwinds.
    let body: &'static (dyn Fn() -> T + Sync) = unsafe { core::mem::transmute(body) };
    let mut threads = Vec::with_capacity(count);
    let mut refused = None;
    while threads.len() < count && refused.is_none() {
        match start_joined(name, body) {
            Ok(thread) => threads.push(thread),
            Err(errno) => refused = Some(errno),
        }
    }
    match refused.filter(|_| threads.is_empty()) {
        Some(errno) => Err(errno),
        None => Ok(threads.into_iter().map(Thread::join).collect()),
    }
}

fn create(begin: Box<Begin>) -> Result<libc::pthread_t> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let at = attributes.as_mut_ptr();
    // SAFETY: `at` is valid for writes, and is initialised before it is used.
    let made = unsafe {
        libc::pthread_attr_init(at);
        // Refused below what libc needs at least, which this is not.
        libc::pthread_attr_setstacksize(at, STACK_BYTES);
        at
    };
    let begin = Box::into_raw(begin);
    let mut id = 0;
    // SAFETY: the attributes are initialised; `main` takes what `begin` is, and only one thread gets it.
    let mut failed = unsafe { libc::pthread_create(&raw mut id, made, main, begin.cast()) };
    if failed == libc::EINVAL {
        // Thread-local storage lies on the stack, too: that of this program has no room there.
        // SAFETY: as above.
        failed =
            unsafe { libc::pthread_create(&raw mut id, core::ptr::null(), main, begin.cast()) };
    }
    // SAFETY: it was initialised above.
    unsafe { libc::pthread_attr_destroy(made) };
    if failed != 0 {
        // SAFETY: no thread has it.
        drop(unsafe { Box::from_raw(begin) });
        return Err(Errno(failed));
    }
    Ok(id)
}

extern "C" fn main(begin: *mut c_void) -> *mut c_void {
    const PR_SET_NAME: usize = 15;
    // SAFETY: `create` made it for this thread alone.
    let begin = unsafe { Box::from_raw(begin.cast::<Begin>()) };
    // SAFETY: the name ends with a zero byte.
    let _ = unsafe { syscall!(g::__NR_prctl, PR_SET_NAME, begin.name.as_ptr()) };
    (begin.body)();
    null_mut()
}

impl<T> Thread<T> {
    /// Whether what it runs has returned.
    pub fn is_finished(&self) -> bool {
        let result = self.result.lock();
        result.unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// What it panicked with.
    pub fn join(mut self) -> Ended<T> {
        self.is_joined = true;
        // SAFETY: it is joined here alone, and is not detached.
        unsafe { libc::pthread_join(self.id, null_mut()) };
        let result = self.result.lock();
        let result = result.unwrap_or_else(PoisonError::into_inner).take();
        result.expect("a thread that has ended leaves its result")
    }
}

impl<T> Drop for Thread<T> {
    fn drop(&mut self) {
        if !self.is_joined {
            // SAFETY: nobody joins it any more.
            unsafe { libc::pthread_detach(self.id) };
        }
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;

    use super::*;
    use crate::file;

    #[test]
    fn runs_under_its_name_and_gives_its_result() {
        let thread = start_joined(c"farpage-a-long-name", || {
            let mut name = [0; 32];
            let comm = file::open(c"/proc/thread-self/comm", g::O_CLOEXEC, 0).unwrap();
            let got = file::read(comm, &mut name).unwrap();
            file::close(comm);
            name[..got].to_vec()
        });
        assert_eq!(thread.unwrap().join().unwrap(), b"farpage-a-long-\n");
    }

    #[test]
    fn a_panic_is_its_end_alone() {
        let thread = start_joined(c"panics", || {
            std::panic::resume_unwind(Box::new(7));
        });
        let ended = thread.unwrap().join();
        assert_eq!(ended.unwrap_err().downcast_ref(), Some(&7));
    }

    #[test]
    fn several_do_what_one_would_with_what_is_borrowed() {
        let next = core::sync::atomic::AtomicUsize::new(0);
        let numbers = || {
            let own = core::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
            own.take_while(|number| *number < 1000).collect::<Vec<_>>()
        };
        let ended = several(c"several", 4, numbers).unwrap();
        assert_eq!(ended.len(), 4);
        let mut all: Vec<usize> = ended.into_iter().flat_map(Ended::unwrap).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..1000));
    }

    #[test]
    fn one_that_nobody_joins_runs_to_its_end() {
        let (tell, told) = std::sync::mpsc::channel();
        start(c"alone", move || tell.send(3).unwrap()).unwrap();
        assert_eq!(told.recv(), Ok(3));
    }
}
