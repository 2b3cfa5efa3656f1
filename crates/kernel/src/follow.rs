//! A handler follows the thread that faults: waking a handler on another, idle processor costs ten
//! times as much as on the faulting thread's own.

use farpage_sys::{file, thread};
use linux::general::O_CLOEXEC;

use farpage_sys::linux;

use crate::kernel::Kernel;

/// Faults that a handler answers between two looks at the processor that the thread ran on: few
/// after it was where no watch is, more and more while it is where one is. A look takes a quarter
/// of a fault, or a whole one where it must be read from `/proc`.
const LOOK_EVERY: core::ops::RangeInclusive<u32> = 4..=64;

/// Where a handler runs, and when it looks where it should.
pub(crate) struct Follower {
    until_look: u32,
    interval: u32,
    own_cpu: Option<u32>,
}

impl Follower {
    pub(crate) const fn new() -> Self {
        Self {
            until_look: *LOOK_EVERY.start(),
            interval: *LOOK_EVERY.start(),
            own_cpu: None,
        }
    }

    /// The processor of `thread`, which waits for its fault, if it is time to look.
    pub(crate) fn look(&mut self, kernel: &Kernel, thread: u32) -> Option<u32> {
        self.until_look -= 1;
        if self.until_look > 0 {
            return None;
        }
        self.interval = (self.interval * 2).min(*LOOK_EVERY.end());
        self.until_look = self.interval;
        kernel.cpu_by_rseq(thread).or_else(|| cpu_of(thread))
    }

    /// The thread was where no watch is.
    pub(crate) fn look_again(&mut self) {
        *self = Self {
            own_cpu: self.own_cpu,
            ..Self::new()
        };
    }

    /// Goes to a processor that was looked up.
    pub(crate) fn go_to(&mut self, cpu: Option<u32>) {
        if let Some(there) = cpu
            && self.own_cpu != cpu
        {
            self.own_cpu = cpu.filter(|_| thread::run_on(there).is_ok());
        }
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
    fn a_handler_goes_where_the_thread_was() {
        std::thread::spawn(|| {
            let mut follower = Follower::new();
            let me = farpage_sys::process::thread_id();
            let here = cpu_of(me).expect("a processor");
            follower.go_to(Some(here));
            assert_eq!((follower.own_cpu, cpu_of(me)), (Some(here), Some(here)));
            follower.go_to(None);
            follower.go_to(Some(u32::MAX));
            assert_eq!(follower.own_cpu, None, "no such processor");
        })
        .join()
        .expect("no panic");
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
