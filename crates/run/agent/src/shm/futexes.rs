//! Words of a cluster's memory at which threads wait (`futex(2)`). Threads of a host wait in Linux, which
//! compares the word as this host has it; who wakes some of its own host has those of others woken,
//! too. A few more may be than were meant: whoever waits at a futex looks again.
//!
//! When the page goes to another host just as Linux looks for it, Linux says `EFAULT`, as it does of any
//! shared file that loses a page then. Such a call is made again.

use farpage_object::shm::{Ask, Kind, Shm};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, process};

use super::connection::{STATE, State};
use crate::program;
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
            offset: piece.first * farpage_object::PAGE_BYTES as u64 + (at - piece.start) as u64,
        })
    }

    fn tell(self, state: &mut State, kind: Kind, c: u32, d: u32) {
        let ask = Ask {
            kind,
            a: self.object,
            b: self.offset,
            c: u64::from(c),
            d: u64::from(d),
        };
        // A process that shares its parent's memory may not: it does not wait for other hosts.
        let _ = state.ask(ask, None);
    }
}

/// # Safety
/// As the call that the program made.
pub(super) unsafe fn call(shm: &Shm, args: [usize; 6]) -> Option<Outcome> {
    let [at, operation, count, count_there, other, expected] = args;
    if !shm.is_cluster() {
        return None;
    }
    let mut state = STATE.lock();
    let here = Place::of(&state, at)?;
    let own = process::thread_id();
    let mut also = None;
    let mut wakes = count as u32;
    let mut own_args = args;
    match operation as u32 & !PRIVATE_OR_CLOCK {
        g::FUTEX_WAIT | g::FUTEX_WAIT_BITSET => {
            here.tell(&mut state, Kind::Waits, own, 0);
            drop(state);
            return Some(match program::read::<u32>(at) {
                Ok(_) => Outcome::Again,
                Err(errno) => Outcome::Done(Err(errno)),
            });
        }
        g::FUTEX_WAKE | g::FUTEX_WAKE_BITSET => {}
        g::FUTEX_WAKE_OP => also = Place::of(&state, other),
        // None is moved, at no host: all look again.
        command @ (g::FUTEX_REQUEUE | g::FUTEX_CMP_REQUEUE) => {
            if command == g::FUTEX_CMP_REQUEUE {
                match program::read::<u32>(at) {
                    Ok(word) if word == expected as u32 => {}
                    Ok(_) => return Some(Outcome::Done(Err(Errno::EAGAIN))),
                    Err(errno) => return Some(Outcome::Done(Err(errno))),
                }
            }
            wakes = i32::MAX as u32;
            own_args = [at, g::FUTEX_WAKE as usize, wakes as usize, 0, 0, 0];
        }
        _ => return None,
    }
    let done = loop {
        // SAFETY: the program's own call, or one that only wakes; it does not wait.
        let done = unsafe { trap::pass(g::__NR_futex, own_args) };
        let goes_on = done == Err(Errno::EFAULT) && also.is_none();
        if !goes_on || program::read::<u32>(at).is_err() {
            break done;
        }
    };
    if done.is_ok() {
        here.tell(&mut state, Kind::Wake, wakes, own);
        if let Some(place) = also {
            place.tell(&mut state, Kind::Wake, count_there as u32, own);
        }
    }
    Some(Outcome::Done(done))
}
