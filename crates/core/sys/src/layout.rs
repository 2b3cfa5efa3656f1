//! Where Linux puts a program that is executed: as a rule its libraries lie high, above the managed window.
//!
//! Below the stack Linux leaves as much room as the stack may take. Where that is not limited it takes most of the
//! addresses, and the libraries lie in the window; with the layout of old (`setarch -L`) they do, too. So who
//! executes a program limits its stack meanwhile, and the agent takes the limit away again as it starts: before
//! the C library, which makes stacks of threads as large.

use linux_raw_sys::general as g;

use crate::limits::{self, Limit, Resource};
use crate::syscall;

/// Room for a stack that leaves the libraries above the window.
const ROOM_MAX: u64 = 1 << 40;
/// The limit meanwhile. It is one that nobody else sets.
const MARK: u64 = ROOM_MAX + 0xFA6E_0000;
const ADDR_COMPAT_LAYOUT: usize = 0x0020_0000;
/// Asks for the personality.
const WHICH: usize = 0xffff_ffff;

/// How the next program would have been laid out. It will be again when this is dropped: when it was not executed.
#[must_use]
pub struct Before {
    stack: Option<Limit>,
    personality: Option<usize>,
}

/// True when the next program would have its libraries in the window because of the room for its stack.
pub fn has_too_much_room() -> bool {
    wide_stack().is_some()
}

fn wide_stack() -> Option<Limit> {
    let limit = limits::get(Resource::Stack).ok();
    limit.filter(|limit| limit.now > ROOM_MAX)
}

/// From now on programs are laid out as usual.
pub fn prepare() -> Before {
    let stack = wide_stack();
    if let Some(limit) = stack {
        let _ = limits::set(Resource::Stack, Limit { now: MARK, ..limit });
    }
    let personality = personality(WHICH).filter(|now| now & ADDR_COMPAT_LAYOUT != 0);
    if let Some(now) = personality {
        self::personality(now & !ADDR_COMPAT_LAYOUT);
    }
    Before { stack, personality }
}

impl Drop for Before {
    fn drop(&mut self) {
        if let Some(limit) = self.stack {
            let _ = limits::set(Resource::Stack, limit);
        }
        if let Some(before) = self.personality {
            personality(before);
        }
    }
}

/// In a program that was executed so: its stack is limited as it was.
pub fn settle() {
    if let Some(limit) = wide_stack()
        && limit.now == MARK
    {
        let now = limit.most;
        let _ = limits::set(Resource::Stack, Limit { now, ..limit });
    }
}

fn personality(to: usize) -> Option<usize> {
    // SAFETY: takes no pointer.
    unsafe { syscall!(g::__NR_personality, to) }.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_not_needed_is_left_alone_and_the_mark_is_one_of_whole_pages() {
        assert!(MARK > ROOM_MAX && MARK.is_multiple_of(4096));
        let before = limits::get(Resource::Stack).unwrap();
        drop(prepare());
        settle();
        assert_eq!(limits::get(Resource::Stack), Ok(before));
    }
}
