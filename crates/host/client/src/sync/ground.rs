//! What calls stand on: real memory, real threads, real hosts.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use farpage_port::CallError;
use farpage_port::interface::InvokeError;
use farpage_rules::sync::{Ground, Patience, Process, Slept};
use farpage_sys::futex;

use super::{Place, SyncError};
use crate::client::Member;
use crate::{Error, sleepers};

/// A host that something is kept for comes in that time, if it is not busy.
const SHORT: Duration = Duration::from_millis(10);
/// A death that nobody tells of is found after so long.
const LONG: Duration = Duration::from_millis(500);

static INTERRUPTS: OnceLock<fn() -> bool> = OnceLock::new();

/// Whoever waits asks now and then, and after each signal, whether it is to wait any longer: when
/// `is_interrupted`, its time is over. The first that is given counts. For languages whose signal
/// handlers run when the waiting thread lets them.
pub fn interrupts(is_interrupted: fn() -> bool) {
    INTERRUPTS.get_or_init(|| is_interrupted);
}

pub(crate) fn is_interrupted() -> bool {
    INTERRUPTS
        .get()
        .is_some_and(|is_interrupted| is_interrupted())
}

/// One call of one thread.
pub(super) struct Stands<'a> {
    place: &'a Place,
    member: Arc<Member>,
    /// Words before those that are meant.
    further: u32,
    until: Option<Instant>,
    /// The page that was there a moment ago.
    touched: Option<u64>,
}

impl<'a> Stands<'a> {
    pub(super) fn new(
        place: &'a Place,
        further: u32,
        until: Option<Instant>,
    ) -> Result<Self, SyncError> {
        Ok(Self {
            place,
            member: place.shared.member()?,
            further,
            until,
            touched: None,
        })
    }

    /// A word is `to` if it was zero; what it is then.
    pub(super) fn becomes(&mut self, word: u32, to: u64) -> Result<u64, SyncError> {
        Ok(match self.exchange(word, 0, to)? {
            Ok(()) => to,
            Err(there) => there,
        })
    }

    pub(super) fn store(&mut self, word: u32, to: u64) -> Result<(), SyncError> {
        self.word(word)?.store(to, Ordering::SeqCst);
        Ok(())
    }

    /// The byte that stands for what is waited for.
    fn byte(&self) -> u64 {
        self.place.offset + u64::from(self.further) * 8
    }

    /// A word, which is brought here: what cannot be had is told, and ends no process.
    fn word(&mut self, word: u32) -> Result<&AtomicU64, SyncError> {
        let byte = self.byte() + u64::from(word) * 8;
        let shared = &self.place.shared;
        if self.touched != Some(byte / 4096) {
            shared.touch(byte).map_err(|_| SyncError::Lost {
                name: shared.name().into(),
                offset: byte,
            })?;
            self.touched = Some(byte / 4096);
        }
        Ok(&shared.words()[(byte / 8) as usize])
    }

    fn sleeper(&self) -> &AtomicU32 {
        let inode = self.place.shared.inode();
        &self.member.sleepers.u32s()[sleepers::word(inode, self.byte())]
    }
}

impl Ground for Stands<'_> {
    type Error = SyncError;

    fn host(&self) -> u8 {
        self.member.process.host()
    }

    fn seen(&mut self) -> u32 {
        self.sleeper().load(Ordering::SeqCst)
    }

    fn load(&mut self, word: u32) -> Result<u64, SyncError> {
        Ok(self.word(word)?.load(Ordering::SeqCst))
    }

    fn exchange(&mut self, word: u32, from: u64, to: u64) -> Result<Result<(), u64>, SyncError> {
        let (done, else_) = (Ordering::SeqCst, Ordering::SeqCst);
        let exchanged = self.word(word)?.compare_exchange(from, to, done, else_);
        Ok(exchanged.map(drop))
    }

    fn set(&mut self, word: u32, bits: u64) -> Result<(), SyncError> {
        self.word(word)?.fetch_or(bits, Ordering::SeqCst);
        Ok(())
    }

    fn clear(&mut self, word: u32, bits: u64) -> Result<u64, SyncError> {
        Ok(self.word(word)?.fetch_and(!bits, Ordering::SeqCst) & bits)
    }

    fn sleep(&mut self, seen: u32, patience: Patience) -> Slept {
        self.touched = None;
        let patience = match patience {
            Patience::Short => SHORT,
            Patience::Long => LONG,
        };
        let left = self.until.map(|until| until - Instant::now().min(until));
        let looks = Instant::now() + left.map_or(patience, |left| left.min(patience));
        let sleeper = self.sleeper();
        while sleeper.load(Ordering::SeqCst) == seen {
            let now = Instant::now();
            if now < looks {
                let ns = (looks - now).as_nanos() as u64;
                futex::wait(sleeper, seen, Some(ns));
                if is_interrupted() {
                    return Slept::TimedOut;
                }
                continue;
            }
            return match self.until.is_some_and(|until| until <= now) {
                true => Slept::TimedOut,
                false => Slept::Looks,
            };
        }
        Slept::Woken
    }

    fn wake(&mut self, hosts: u64) -> Result<(), SyncError> {
        let own = 1 << self.host();
        if hosts & own != 0 {
            sleepers::wake(self.sleeper());
        }
        match hosts & !own {
            0 => Ok(()),
            others => Ok(self.place.shared.wake_others(self.byte(), others)?),
        }
    }

    fn lives(&mut self, process: Process) -> Result<bool, SyncError> {
        if process == self.member.process {
            return Ok(true);
        }
        match self.place.shared.lives(process) {
            // Its host is busy, or cut off and not out of the view yet: nobody knows.
            Err(Error::Call(InvokeError::Call(CallError::TimedOut))) => Ok(true),
            told => Ok(told?),
        }
    }
}
