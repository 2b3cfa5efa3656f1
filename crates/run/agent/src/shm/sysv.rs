//! Semaphores and message queues of System V that all hosts of a cluster have: those with a key. Those
//! without one stay Linux's, and are told by their numbers.
//!
//! The supervisor is asked, and never waits. A thread that has to wait sleeps in Linux, where signals
//! find it, until it is woken to ask again. What it wanted is done, if at all, while it asks: a sleep
//! that ends by a signal, or by its time, has changed nothing.

use alloc::vec::Vec;

use farpage_object::shm::{Answer, Ask, Kind, Sysv};
use farpage_sys::linux::general as g;
use farpage_sys::{Errno, Result, process, syscall, time};

use super::connection::STATE;
use crate::program;
use crate::trap::{Outcome, Sleep};

const SETVAL: usize = 16;
const GETALL: usize = 13;
const SETALL: usize = 17;
const IPC_SET: usize = 1;
const IPC_STAT: usize = 2;
const IPC_INFO: usize = 3;
const MSG_INFO: usize = 12;
const SEM_INFO: usize = 19;
/// What libraries add to commands.
const IPC_64: usize = 0x100;
/// Steps of a call at most, and bytes of one.
const OPERATIONS_MAX: usize = 500;
const OPERATION_BYTES: usize = 6;
const MESSAGE_MAX: usize = 8192;
/// `struct semid_ds` and `struct msqid_ds`, and where the first has how many semaphores there are.
const SET_BYTES: usize = 104;
const QUEUE_BYTES: usize = 120;
const COUNT_AT: usize = 80;
const E2BIG: Errno = Errno(7);
const FOR_EVER: u64 = u64::MAX;

/// Whether a call is about what all hosts have. What Linux is asked of itself it answers, whatever
/// number stands there.
pub(super) fn is_one(number: u32, [a, b, c, ..]: [usize; 6]) -> bool {
    match number {
        g::__NR_semget | g::__NR_msgget => a as u32 != 0,
        g::__NR_semctl if matches!(c & !IPC_64, IPC_INFO | SEM_INFO) => false,
        g::__NR_msgctl if matches!(b & !IPC_64, IPC_INFO | MSG_INFO) => false,
        _ => a as i32 >= Sysv::FIRST_ID as i32,
    }
}

/// What is asked, and what is done with the answer.
struct Question {
    ask: Ask,
    data: Vec<u8>,
    /// Where the program wants the data of the answer, and how many at most.
    to: Option<(usize, usize)>,
}

impl Question {
    fn new(call: Sysv, b: u64, c: u64, d: u64) -> Self {
        let ask = Ask {
            kind: Kind::Sysv,
            a: call as u64,
            b,
            c,
            d,
        };
        let (data, to) = (Vec::new(), None);
        Self { ask, data, to }
    }
}

/// `slept`: the call was made before, and this is how the sleep ended. `mask`: the signals that the program
/// has blocked.
pub(super) fn call(number: u32, args: [usize; 6], slept: Option<Result<()>>, mask: u64) -> Outcome {
    let asked = match slept {
        Some(Err(errno)) => return give_up(errno),
        Some(Ok(())) => question(number, args).map(|mut question| {
            question.ask.a |= Sysv::AGAIN;
            question
        }),
        None => question(number, args),
    };
    let answered = asked.and_then(|question| {
        let (answer, data) = ask(&question)?;
        Ok((question, answer, data))
    });
    match answered {
        // What came while the supervisor was asked would be handled before the sleep, and not end it.
        Ok((_, answer, _)) if answer.errno == Answer::WAITS && is_interrupted(mask) => {
            give_up(Errno::EINTR)
        }
        Ok((_, answer, data)) if answer.errno == Answer::WAITS => {
            let until = data
                .first_chunk()
                .map_or(FOR_EVER, |raw| u64::from_ne_bytes(*raw));
            // One nanosecond is in time for what comes too late.
            let left = || until.saturating_sub(time::now_ns()).max(1);
            Outcome::Sleep(Sleep::Semaphore {
                set: answer.object as u32,
                number: (answer.object >> 32) as u16,
                ns_max: (until != FOR_EVER).then(left),
            })
        }
        Ok((question, answer, data)) => Outcome::Done(finish(&question, answer, &data)),
        Err(errno) => Outcome::Done(Err(errno)),
    }
}

/// The thread does not wait any more.
fn give_up(errno: Errno) -> Outcome {
    let _ = ask(&Question::new(Sysv::GiveUp, 0, 0, 0));
    Outcome::Done(Err(errno))
}

/// A signal has come that this thread is to handle when the call is over: it would end a wait of Linux's.
fn is_interrupted(mask: u64) -> bool {
    let mut pending = 0u64;
    let at = &raw mut pending;
    // SAFETY: Linux writes eight bytes.
    let asked = unsafe { syscall!(g::__NR_rt_sigpending, at, size_of::<u64>()) };
    let come = if asked.is_ok() { pending & !mask } else { 0 };
    (1..=u64::BITS).any(|signal| come & 1 << (signal - 1) != 0 && !is_ignored(signal))
}

fn is_ignored(signal: u32) -> bool {
    const DEFAULT: usize = 0;
    const IGNORE: usize = 1;
    // `struct sigaction` of Linux: what handles it, flags, what returns, a mask.
    let mut action = [DEFAULT; 4];
    let at = action.as_mut_ptr();
    // SAFETY: only reads what is set, into a structure of that size.
    let asked = unsafe { syscall!(g::__NR_rt_sigaction, signal, 0, at, size_of::<u64>()) };
    let ignored_by_default = [g::SIGCHLD, g::SIGCONT, g::SIGURG, g::SIGWINCH];
    match action[0] {
        _ if asked.is_err() => false,
        DEFAULT => ignored_by_default.contains(&signal),
        handler => handler == IGNORE,
    }
}

fn finish(question: &Question, answer: Answer, data: &[u8]) -> Result<usize> {
    if answer.errno != 0 {
        return Err(Errno(answer.errno as i32));
    }
    if let Some((at, most)) = question.to {
        copy(Way::Out, at, &mut data[..data.len().min(most)].to_vec())?;
    }
    Ok(answer.object as usize)
}

fn ask(question: &Question) -> Result<(Answer, Vec<u8>)> {
    let who = [process::id(), process::thread_id()];
    let mut data: Vec<u8> = who.iter().flat_map(|id| id.to_ne_bytes()).collect();
    data.extend_from_slice(&question.data);
    STATE.lock().ask_with_data(question.ask, &data)
}

fn question(number: u32, args: [usize; 6]) -> Result<Question> {
    let [a, b, c, d, e, _] = args;
    let id = u64::from(a as u32);
    Ok(match number {
        g::__NR_semget => {
            let count = u64::try_from(b as i32).map_err(|_| Errno::EINVAL)?;
            Question::new(Sysv::Set, id, count, u64::from(c as u32))
        }
        g::__NR_msgget => Question::new(Sysv::Queue, id, 0, u64::from(b as u32)),
        g::__NR_semop => operate(id, b, c, 0)?,
        g::__NR_semtimedop => operate(id, b, c, d)?,
        g::__NR_semctl => control_set(id, b, c & !IPC_64, d)?,
        g::__NR_msgsnd => {
            if c > MESSAGE_MAX {
                return Err(Errno::EINVAL);
            }
            let kind = program::read::<u64>(b)?;
            let mut question = Question::new(Sysv::Send, id, kind, u64::from(d as u32));
            question.data.resize(c, 0);
            copy(Way::In, b + size_of::<u64>(), &mut question.data)?;
            question
        }
        g::__NR_msgrcv => {
            if c > isize::MAX as usize {
                return Err(Errno::EINVAL);
            }
            let flags = u64::from(e as u32) << 32;
            let mut question = Question::new(Sysv::Receive, id | flags, d as u64, c as u64);
            question.to = Some((b, usize::MAX));
            question
        }
        _ => {
            let command = b & !IPC_64;
            let mut question = Question::new(Sysv::ControlQueue, id, command as u64, 0);
            question.structure(command, c, QUEUE_BYTES)?;
            question
        }
    })
}

impl Question {
    /// The structure at `at` that the command sets or asks for, if it does.
    fn structure(&mut self, command: usize, at: usize, bytes: usize) -> Result<()> {
        match command {
            IPC_STAT => self.to = Some((at, bytes)),
            IPC_SET => {
                self.data.resize(bytes, 0);
                copy(Way::In, at, &mut self.data)?;
            }
            _ => {}
        }
        Ok(())
    }
}

fn operate(id: u64, at: usize, count: usize, timeout: usize) -> Result<Question> {
    if count > OPERATIONS_MAX {
        return Err(E2BIG);
    }
    let for_ns = match timeout {
        0 => FOR_EVER,
        at => {
            let [s, ns] = program::read::<[i64; 2]>(at)?;
            if s < 0 || !(0..1_000_000_000).contains(&ns) {
                return Err(Errno::EINVAL);
            }
            (s as u64)
                .saturating_mul(1_000_000_000)
                .saturating_add(ns as u64)
        }
    };
    let mut question = Question::new(Sysv::Operate, id, for_ns, 0);
    question.data.resize(count * OPERATION_BYTES, 0);
    copy(Way::In, at, &mut question.data)?;
    Ok(question)
}

fn control_set(id: u64, number: usize, command: usize, argument: usize) -> Result<Question> {
    let number = u64::from(number as u32) << 32;
    let value = match command {
        SETVAL => argument as i32 as u64,
        _ => 0,
    };
    let mut question = Question::new(Sysv::ControlSet, id | number, command as u64, value);
    question.structure(command, argument, SET_BYTES)?;
    match command {
        GETALL => question.to = Some((argument, usize::MAX)),
        SETALL => {
            let stat = Question::new(Sysv::ControlSet, id, IPC_STAT as u64, 0);
            let (answer, about) = ask(&stat)?;
            let count = about.get(COUNT_AT..).and_then(|rest| rest.first_chunk());
            match (answer.errno, count) {
                (0, Some(count)) => {
                    let count = u64::from_ne_bytes(*count) as usize;
                    question.data.resize(count * size_of::<u16>(), 0);
                    copy(Way::In, argument, &mut question.data)?;
                }
                (errno, _) => return Err(Errno(errno as i32)),
            }
        }
        _ => {}
    }
    Ok(question)
}

/// Which way bytes go.
#[derive(Clone, Copy)]
enum Way {
    In,
    Out,
}

/// Copies all of `bytes` from where the program has them, or there.
///
/// # Errors
/// `EFAULT`.
fn copy(way: Way, at: usize, bytes: &mut [u8]) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let (ours, theirs) = (
        [bytes.as_mut_ptr().expose_provenance(), bytes.len()],
        [at, bytes.len()],
    );
    let number = match way {
        Way::In => g::__NR_process_vm_readv,
        Way::Out => g::__NR_process_vm_writev,
    };
    let own = process::id();
    // SAFETY: Linux checks the program's pointer; the other is a slice that nobody else has.
    let copied = unsafe { syscall!(number, own, ours.as_ptr(), 1, theirs.as_ptr(), 1, 0) };
    match copied {
        Ok(count) if count == bytes.len() => Ok(()),
        Ok(_) | Err(_) => Err(Errno::EFAULT),
    }
}
