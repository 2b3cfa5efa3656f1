//! A set of semaphores.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::sysv::errno;
use crate::sysv::state::{About, NO_WAIT, Process};

/// What a semaphore counts to at most (`SEMVMX`), and what is undone of it (`SEMAEM`).
const VALUE_MAX: i32 = 32767;
/// Calls with more steps fail (`SEMOPM`).
const OPERATIONS_MAX: usize = 500;
/// It is undone when its process ends (`SEM_UNDO`).
const UNDO: u16 = 0x1000;

/// One step of `semop(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    /// Which semaphore of the set.
    pub number: u16,
    /// What is added; 0: it is to be 0.
    pub change: i16,
    /// `IPC_NOWAIT`, `SEM_UNDO`.
    pub flags: u16,
}

/// What a thread waits for: a step that could not be done where others went before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Awaited {
    pub(crate) number: u16,
    /// What the steps before it add.
    before: i32,
    change: i16,
}

impl Awaited {
    /// It waits for a value of 0.
    pub(crate) fn is_zero(&self) -> bool {
        self.change == 0
    }
}

/// Why a call is not done.
pub(crate) enum Stop {
    Fails(i32),
    Waits(Awaited),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Semaphore {
    value: i32,
    /// Who changed it last.
    by: u32,
}

/// A set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Set {
    pub(crate) about: About,
    semaphores: Vec<Semaphore>,
    /// What is added when a process ends, by semaphores.
    undo: BTreeMap<Process, BTreeMap<u16, i32>>,
    operated: i64,
}

impl Set {
    /// How many semaphores a set may have: what is said of all goes in one message.
    pub(crate) const LENGTH_MAX: u32 = 4096;

    pub(crate) fn new(about: About, length: u32) -> Self {
        Self {
            about,
            semaphores: alloc::vec![Semaphore::default(); length as usize],
            undo: BTreeMap::new(),
            operated: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.semaphores.len()
    }

    fn value(&self, number: u16) -> i32 {
        self.semaphores[usize::from(number)].value
    }

    /// The step that was waited for can be done.
    pub(crate) fn lets(&self, awaited: &Awaited) -> bool {
        let value = self.value(awaited.number) + awaited.before;
        match awaited.change {
            0 => value == 0,
            change => value + i32::from(change) >= 0,
        }
    }

    /// Does all steps, or none.
    pub(crate) fn operate(
        &mut self,
        by: Process,
        operations: &[Operation],
        time: i64,
    ) -> Result<(), Stop> {
        let fails = |errno| Err(Stop::Fails(errno));
        if operations.is_empty() {
            return fails(errno::EINVAL);
        }
        if operations.len() > OPERATIONS_MAX {
            return fails(errno::E2BIG);
        }
        if operations
            .iter()
            .any(|one| usize::from(one.number) >= self.len())
        {
            return fails(errno::EFBIG);
        }
        let mut sums: BTreeMap<u16, i32> = BTreeMap::new();
        let mut undo = self.undo.get(&by).cloned().unwrap_or_default();
        for one in operations {
            let before = sums.entry(one.number).or_default();
            let awaited = Awaited {
                number: one.number,
                before: *before,
                change: one.change,
            };
            if !self.lets(&awaited) {
                return match one.flags & NO_WAIT {
                    0 => Err(Stop::Waits(awaited)),
                    _ => fails(errno::EAGAIN),
                };
            }
            *before += i32::from(one.change);
            if self.value(one.number) + *before > VALUE_MAX {
                return fails(errno::ERANGE);
            }
            if one.flags & UNDO != 0 {
                let adds = undo.entry(one.number).or_default();
                *adds -= i32::from(one.change);
                if !(-VALUE_MAX..=VALUE_MAX).contains(adds) {
                    return fails(errno::ERANGE);
                }
            }
        }
        for (number, sum) in sums {
            let semaphore = &mut self.semaphores[usize::from(number)];
            semaphore.value += sum;
            semaphore.by = by.pid;
        }
        undo.retain(|_, adds| *adds != 0);
        match undo.is_empty() {
            true => self.undo.remove(&by),
            false => self.undo.insert(by, undo),
        };
        self.operated = time;
        Ok(())
    }

    /// A process has ended: what it wanted undone is.
    pub(crate) fn undo(&mut self, of: Process) {
        for (number, adds) in self.undo.remove(&of).unwrap_or_default() {
            let semaphore = &mut self.semaphores[usize::from(number)];
            semaphore.value = (semaphore.value + adds).clamp(0, VALUE_MAX);
            semaphore.by = of.pid;
        }
    }

    /// Processes of a host that want something undone.
    pub(crate) fn undoers(&self, host: u64) -> Vec<Process> {
        let of_host = self.undo.keys().filter(|process| process.host == host);
        of_host.copied().collect()
    }

    /// `GETVAL` and `GETPID`.
    pub(crate) fn get(&self, number: u32) -> Result<(u32, u32), i32> {
        let one = self.semaphores.get(number as usize).ok_or(errno::EINVAL)?;
        Ok((one.value as u32, one.by))
    }

    /// `SETVAL`.
    pub(crate) fn set(&mut self, number: u32, value: i64, by: Process) -> Result<(), i32> {
        let one = self.semaphores.get_mut(number as usize);
        let one = one.ok_or(errno::EINVAL)?;
        if !(0..=i64::from(VALUE_MAX)).contains(&value) {
            return Err(errno::ERANGE);
        }
        (one.value, one.by) = (value as i32, by.pid);
        for undo in self.undo.values_mut() {
            undo.remove(&(number as u16));
        }
        Ok(())
    }

    /// `GETALL`.
    pub(crate) fn all(&self) -> Vec<u8> {
        let values = self.semaphores.iter();
        values
            .flat_map(|one| (one.value as u16).to_ne_bytes())
            .collect()
    }

    /// `SETALL`.
    pub(crate) fn set_all(&mut self, bytes: &[u8], by: Process) -> Result<(), i32> {
        let values = bytes
            .chunks_exact(2)
            .map(|two| u16::from_ne_bytes([two[0], two[1]]));
        let values: Vec<i32> = values.map(i32::from).collect();
        if values.len() != self.len() {
            return Err(errno::EINVAL);
        }
        if values.iter().any(|value| *value > VALUE_MAX) {
            return Err(errno::ERANGE);
        }
        for (one, value) in self.semaphores.iter_mut().zip(values) {
            (one.value, one.by) = (value, by.pid);
        }
        self.undo.clear();
        Ok(())
    }

    /// `struct semid64_ds` of x86-64.
    pub(crate) fn stat(&self) -> Vec<u8> {
        let mut bytes = self.about.permissions();
        let words = [
            self.operated,
            0,
            self.about.changed,
            0,
            self.len() as i64,
            0,
            0,
        ];
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        bytes
    }
}
