//! A handler follows the thread that faults: waking a handler on another, idle processor costs ten
//! times as much as on the faulting thread's own.

use farpage_sys::{file, thread};
use linux::general::O_CLOEXEC;

use farpage_sys::linux;

/// Faults of one thread between two looks at the processor it runs on: few after it has moved, more
/// and more while it stays. A look takes as long as a fault, and the next fault waits for it.
const LOOK_EVERY: core::ops::RangeInclusive<u64> = 16..=64;
/// The same where it can be read from the thread's own memory. At every fault is too often: handler
/// and thread then chase each other (thousand faults a second: 31 to 38, at every fourth 41 to 94).
const READ_EVERY: u64 = 4;
/// Faults that the last change of thread must lie back before the handler follows.
const ALONE_AFTER: u64 = 8;

/// Which thread faults and where it runs.
pub(crate) struct Follower {
    thread: u32,
    faults: u64,
    cpu: Option<u32>,
    /// The fault after which to look where it runs.
    look_at: u64,
    interval: u64,
}

impl Follower {
    pub(crate) const fn new() -> Self {
        Self {
            thread: 0,
            faults: 0,
            cpu: None,
            look_at: ALONE_AFTER,
            interval: *LOOK_EVERY.start(),
        }
    }

    /// True when it is time to read where `thread` runs, while it waits for its fault.
    pub(crate) fn wants_to_read(&self, thread: u32) -> bool {
        self.thread == thread && self.alone() && self.faults.is_multiple_of(READ_EVERY)
    }

    /// Notes a fault of `thread`; called after it was answered. `cpu`: where it ran, if that was
    /// read.
    pub(crate) fn note(&mut self, thread: u32, cpu: Option<u32>, own_cpu: &mut Option<u32>) {
        if thread != self.thread {
            *self = Self::new();
            self.thread = thread;
            return;
        }
        self.faults += 1;
        if cpu.is_some() {
            self.cpu = cpu;
            self.look_at = self.faults + 2 * READ_EVERY;
        } else if self.faults == self.look_at {
            self.look();
        }
        if self.faults >= ALONE_AFTER && self.cpu.is_some() && *own_cpu != self.cpu {
            let moved = self.cpu.is_some_and(|cpu| thread::run_on(cpu).is_ok());
            *own_cpu = if moved { self.cpu } else { None };
        }
    }

    fn look(&mut self) {
        let cpu = cpu_of(self.thread);
        self.interval = match cpu == self.cpu {
            true => (self.interval * 2).min(*LOOK_EVERY.end()),
            false => *LOOK_EVERY.start(),
        };
        self.look_at = self.faults + self.interval;
        self.cpu = cpu;
    }

    /// True when one thread alone faults lately.
    pub(crate) fn alone(&self) -> bool {
        self.faults >= ALONE_AFTER
    }
}

/// The processor that a thread of this process runs on, or ran on last.
fn cpu_of(thread: u32) -> Option<u32> {
    let mut path = *b"/proc/self/task/0000000000/stat\0";
    let digits = &mut path[16..26];
    let mut rest = thread;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    let zeros = path[16..25]
        .iter()
        .take_while(|&&digit| digit == b'0')
        .count();
    path.copy_within(16 + zeros.., 16);
    let path = core::ffi::CStr::from_bytes_until_nul(&path).ok()?;
    let fd = file::open(path, O_CLOEXEC, 0).ok()?;
    let mut text = [0; 512];
    let got = file::read(fd, &mut text);
    file::close(fd);
    field_39(&text[..got.ok()?])
}

/// Field 39 of `/proc/PID/stat`; the second is in parentheses and may hold anything.
fn field_39(stat: &[u8]) -> Option<u32> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let mut fields = stat[name_end + 1..]
        .split(|&byte| byte == b' ')
        .filter(|f| !f.is_empty());
    core::str::from_utf8(fields.nth(36)?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_stays_is_looked_at_less_and_less() {
        let mut follower = Follower::new();
        let thread = farpage_sys::process::thread_id();
        let mut looks = 0;
        for _ in 0..10_000 {
            let before = follower.look_at;
            follower.note(thread, None, &mut None);
            looks += u32::from(follower.look_at != before);
        }
        // It may have been moved meanwhile, but not every time.
        assert!((10_000 / 64..800).contains(&looks), "{looks} looks");
    }

    #[test]
    fn finds_the_processor_of_this_thread() {
        let cpu = cpu_of(farpage_sys::process::thread_id());
        assert!(cpu.is_some_and(|cpu| cpu < 4096), "{cpu:?}");
    }

    #[test]
    fn field_39_skips_a_strange_name() {
        let mut stat = alloc::string::String::from("1 (a) b c) S");
        for field in 4..=52 {
            stat.push_str(&alloc::format!(" {field}"));
        }
        assert_eq!(field_39(stat.as_bytes()), Some(39));
    }
}
