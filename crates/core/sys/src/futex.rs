//! Mutual exclusion and waiting, for threads that have no libc.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

use linux_raw_sys::general as g;

use crate::{Errno, Result, copy, syscall, time};

/// Waits while `*word == expected`, at most `timeout_ns` (`None`: no limit). Returns for any
/// reason, wake-up or not.
pub fn wait(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>) {
    let limit = timeout_ns.map(|ns| g::__kernel_timespec {
        tv_sec: (ns / 1_000_000_000) as _,
        tv_nsec: (ns % 1_000_000_000) as _,
    });
    let limit = limit
        .as_ref()
        .map_or(core::ptr::null(), core::ptr::from_ref);
    // SAFETY: `word` outlives the call; `limit` is null or a timespec on this stack.
    let _ = unsafe { syscall!(g::__NR_futex, word.as_ptr(), g::FUTEX_WAIT, expected, limit) };
}

/// Waits while each of two words is what is expected of it, at most `timeout_ns`. Returns for any
/// reason, wake-up or not.
///
/// # Errors
/// `ENOSYS` before Linux 5.16, and whatever a filter of system calls says: nothing was waited for.
pub fn wait_either(words: [(&AtomicU32, u32); 2], timeout_ns: u64) -> Result<()> {
    let waiters = words.map(|(word, expected)| g::futex_waitv {
        val: expected.into(),
        uaddr: word.as_ptr() as u64,
        flags: g::FUTEX2_SIZE_U32,
        __reserved: 0,
    });
    let until = time::now_ns().saturating_add(timeout_ns);
    let until = g::__kernel_timespec {
        tv_sec: (until / 1_000_000_000) as _,
        tv_nsec: (until % 1_000_000_000) as _,
    };
    // SAFETY: the words outlive the call; `waiters` and `until` are on this stack.
    let waited = unsafe {
        syscall!(
            g::__NR_futex_waitv,
            waiters.as_ptr(),
            waiters.len(),
            0,
            &raw const until,
            g::CLOCK_MONOTONIC
        )
    };
    match waited {
        Ok(_) | Err(Errno::EAGAIN | Errno::ETIMEDOUT | Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Wakes up to `count` waiters of `word`, in any process that maps it.
pub fn wake(word: &AtomicU32, count: u32) {
    // SAFETY: the address is only used as a key.
    let _ = unsafe { syscall!(g::__NR_futex, word.as_ptr(), g::FUTEX_WAKE, count) };
}

/// Has a word writable here, whatever has to be brought from elsewhere for that. Where a store would
/// raise a signal this fails.
///
/// # Errors
/// `EFAULT`: it cannot be had.
pub fn touch(word: &AtomicU32) -> Result<()> {
    // `*word |= 0`; whoever waited there would be woken, which is allowed to happen.
    const OR_NOTHING: u32 = g::FUTEX_OP_OR << 28;
    const TRIES: u32 = 64;
    let nobody = AtomicU32::new(0);
    for _ in 0..TRIES {
        // SAFETY: both words outlive the call; the contents of neither change.
        let touched = unsafe {
            syscall!(
                g::__NR_futex,
                nobody.as_ptr(),
                g::FUTEX_WAKE_OP,
                0,
                0,
                word.as_ptr(),
                OR_NOTHING
            )
        };
        match touched {
            Ok(_) => return Ok(()),
            // It may only have been taken away just then: reading waits until it comes again.
            Err(Errno::EFAULT) => copy::from(word.as_ptr().addr(), &mut [0; 4])?,
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::EFAULT)
}

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// A mutual exclusion that works on any thread, with or without libc.
pub struct Mutex<T> {
    word: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands out one reference at a time.
unsafe impl<T: Send> Sync for Mutex<T> {}
// SAFETY: owning the mutex is owning the value.
unsafe impl<T: Send> Send for Mutex<T> {}

impl<T> Mutex<T> {
    /// A free mutex around `value`.
    pub const fn new(value: T) -> Self {
        Self {
            word: AtomicU32::new(FREE),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits for the mutex and takes it.
    pub fn lock(&self) -> Guard<'_, T> {
        for _ in 0..64 {
            let taken =
                self.word
                    .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
            if taken.is_ok() {
                return Guard { mutex: self };
            }
            core::hint::spin_loop();
        }
        // Whoever has waited takes it as contended: others may still sleep, and only a contended
        // mutex wakes one of them when it is given back.
        while self.word.swap(CONTENDED, Ordering::Acquire) != FREE {
            wait(&self.word, CONTENDED, None);
        }
        Guard { mutex: self }
    }

    /// Takes the mutex if it is free.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.word
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| Guard { mutex: self })
    }

    /// Makes the mutex free, whoever held it.
    ///
    /// # Safety
    /// Only in a forked child, for a mutex whose holder was a thread that the child does not have
    /// and whose value is whole.
    pub unsafe fn reset(&self) {
        if self.word.swap(FREE, Ordering::Release) == CONTENDED {
            wake(&self.word, i32::MAX as u32);
        }
    }
}

/// The value of a held [`Mutex`].
pub struct Guard<'a, T> {
    mutex: &'a Mutex<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard holds the mutex.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the mutex.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        if self.mutex.word.swap(FREE, Ordering::Release) == CONTENDED {
            wake(&self.mutex.word, 1);
        }
    }
}

/// Something to wait for: a count that grows.
#[derive(Default)]
pub struct Event {
    count: AtomicU32,
    waiting: AtomicU32,
}

impl Event {
    /// An event that has not happened.
    pub const fn new() -> Self {
        Self {
            count: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
        }
    }

    /// The count now: take it before looking at what is waited for.
    pub fn seen(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// Waits until the event happens after `seen`, at most `timeout_ns`.
    pub fn wait(&self, seen: u32, timeout_ns: Option<u64>) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        wait(&self.count, seen, timeout_ns);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }

    /// The same, or until `word` is not `expected`.
    ///
    /// # Errors
    /// As [`wait_either`].
    pub fn wait_or(
        &self,
        seen: u32,
        (word, expected): (&AtomicU32, u32),
        timeout_ns: u64,
    ) -> Result<()> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let waited = wait_either([(&self.count, seen), (word, expected)], timeout_ns);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        waited
    }

    /// Lets it happen: all waiters look again.
    pub fn notify(&self) {
        self.notify_some(i32::MAX as u32);
    }

    /// Lets it happen, where one waiter is enough: one looks again.
    pub fn notify_one(&self) {
        self.notify_some(1);
    }

    fn notify_some(&self, waiters: u32) {
        self.count.fetch_add(1, Ordering::AcqRel);
        if self.waiting.load(Ordering::Acquire) != 0 {
            wake(&self.count, waiters);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::mem;

    #[test]
    fn a_mutex_excludes() {
        let count = Mutex::new(0u64);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..20_000).for_each(|_| *count.lock() += 1));
            }
        });
        assert_eq!(*count.lock(), 80_000);
    }

    #[test]
    fn a_reset_lets_the_waiters_go_on() {
        let mutex = Mutex::new(());
        core::mem::forget(mutex.lock());
        std::thread::scope(|s| {
            let waiter = s.spawn(|| drop(mutex.lock()));
            while mutex.word.load(Ordering::Relaxed) != CONTENDED {
                std::thread::yield_now();
            }
            // SAFETY: the value is whole; nobody uses the guard that was forgotten.
            unsafe { mutex.reset() };
            waiter.join().expect("no panic");
        });
    }

    #[test]
    fn a_word_is_touched_and_what_cannot_be_written_is_told() {
        let word = AtomicU32::new(7);
        assert_eq!(touch(&word), Ok(()));
        assert_eq!(word.load(Ordering::Relaxed), 7);
        let page = mem::map_anonymous(4096).unwrap();
        for access in [mem::PROT_READ, mem::PROT_NONE] {
            // SAFETY: the page is this test's own, and nobody refers to it.
            unsafe { mem::protect(page, 4096, access) }.unwrap();
            // SAFETY: of the page only the address is used, by Linux, which says what it may not do.
            let word = unsafe { &*(page as *const AtomicU32) };
            assert_eq!(touch(word), Err(Errno::EFAULT));
        }
    }

    #[test]
    fn an_event_wakes_its_waiter() {
        let event = Event::new();
        let seen = event.seen();
        std::thread::scope(|s| {
            s.spawn(|| event.wait(seen, None));
            event.notify();
        });
    }
}
