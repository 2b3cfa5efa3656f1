//! Words of a cluster's memory at which threads wait (`futex(2)`). Threads of a host wait in Linux, which
//! compares the word as this host has it; who wakes some of its own host has those of others woken,
//! too. A few more may be than were meant: whoever waits at a futex looks again.

use farpage_abi::shm::{Ask, Kind, Shm};
use farpage_sys::linux::general as g;

use super::connection::{STATE, State};
use crate::trap::{self, Outcome};

const PRIVATE_OR_CLOCK: u32 = g::FUTEX_PRIVATE_FLAG | g::FUTEX_CLOCK_REALTIME;

/// A byte of an object.
#[derive(Clone, Copy)]
struct Place {
    object: u64,
    offset: u64,
}

impl Place {
    /// What the program has at `at`, if that is shared memory.
    fn of(state: &State, at: usize) -> Option<Self> {
        let mut pieces = state.pieces.iter().filter(|piece| piece.shared);
        let piece = pieces.find(|piece| (piece.start..piece.end).contains(&at))?;
        Some(Self {
            object: piece.object,
            offset: piece.first * farpage_abi::PAGE_BYTES as u64 + (at - piece.start) as u64,
        })
    }

    fn tell(self, state: &mut State, kind: Kind, count: u32) {
        let ask = Ask {
            a: self.object,
            b: self.offset,
            c: u64::from(count),
            ..Ask::new(kind)
        };
        // A process that shares its parent's memory may not: it does not wait for other hosts.
        let _ = state.ask(ask, None);
    }
}

/// # Safety
/// As the call that the program made.
pub(super) unsafe fn call(shm: &Shm, args: [usize; 6]) -> Option<Outcome> {
    let [at, operation, count, _, other, _] = args;
    if !shm.is_cluster() {
        return None;
    }
    let mut state = STATE.lock();
    let here = Place::of(&state, at)?;
    let there = || Place::of(&state, other);
    let (also, wakes) = match operation as u32 & !PRIVATE_OR_CLOCK {
        g::FUTEX_WAIT | g::FUTEX_WAIT_BITSET => {
            here.tell(&mut state, Kind::Waits, 0);
            return Some(Outcome::Reissue);
        }
        g::FUTEX_WAKE | g::FUTEX_WAKE_BITSET => (None, count as u32),
        g::FUTEX_WAKE_OP => (there(), count as u32),
        // Those of other hosts are not moved: all of them look again.
        g::FUTEX_REQUEUE | g::FUTEX_CMP_REQUEUE => (there(), u32::MAX),
        _ => return None,
    };
    if let Some(place) = also {
        place.tell(&mut state, Kind::Waits, 0);
    }
    // SAFETY: the program's own call, which does not wait.
    let done = unsafe { trap::pass(g::__NR_futex, args) };
    if done.is_ok() {
        here.tell(&mut state, Kind::Wake, wakes);
        if let Some(place) = also {
            place.tell(&mut state, Kind::Wake, u32::MAX);
        }
    }
    Some(Outcome::Done(done))
}
