//! A handler follows the thread that faults: waking a handler on another, idle processor costs ten
//! times as much as on the faulting thread's own.

use farpage_sys::thread;

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

    /// The processor of `faulting`, a thread which waits for its fault, if it is time to look.
    pub(crate) fn look(&mut self, kernel: &Kernel, faulting: u32) -> Option<u32> {
        self.until_look -= 1;
        if self.until_look > 0 {
            return None;
        }
        self.interval = (self.interval * 2).min(*LOOK_EVERY.end());
        self.until_look = self.interval;
        kernel
            .cpu_by_rseq(faulting)
            .or_else(|| thread::cpu_of(faulting))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_goes_where_the_thread_was() {
        std::thread::spawn(|| {
            let mut follower = Follower::new();
            let me = farpage_sys::process::thread_id();
            let here = thread::cpu_of(me).expect("a processor");
            follower.go_to(Some(here));
            assert_eq!(
                (follower.own_cpu, thread::cpu_of(me)),
                (Some(here), Some(here))
            );
            follower.go_to(None);
            follower.go_to(Some(u32::MAX));
            assert_eq!(follower.own_cpu, None, "no such processor");
        })
        .join()
        .expect("no panic");
    }
}
