//! Semaphores and message queues of System V that all hosts of a cluster have, as tasks of this run
//! call them ([`farpage_server::Cluster::sysv`]).
//!
//! A thread that is to wait sleeps at a semaphore of Linux that nobody else has, so that signals
//! find it and its time runs by Linux's clock; it is woken to make its call again. A process that
//! has called is watched: what is to be undone when it ends is, however it does.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use farpage_object::shm::{Answer, Ask, Ipc, Sysv};
use farpage_rules::sysv::{Call, Command, Operation, Process, Reply, Thread, What};
use farpage_server::{Cluster, Woken};
use farpage_sys::{Errno, ipc, lock, message, time};
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::objects::KeptObjects;

/// Semaphores of a set at which threads sleep.
const SLEEPERS: u16 = 64;
const FOR_EVER: u64 = u64::MAX;
const EIO: i32 = 5;

/// Where a thread sleeps: a semaphore of Linux.
#[derive(Clone, Copy)]
struct Bed {
    set: u32,
    number: u16,
}

/// A thread that waits, or has.
struct Sleeper {
    bed: Bed,
    /// Until when, by the clock of [`time::now_ns`].
    until: u64,
}

#[derive(Default)]
struct Sleepers {
    all: BTreeMap<Thread, Sleeper>,
    free: Vec<Bed>,
    sets: Vec<u32>,
}

/// The calls of a run.
pub struct Calls {
    kept: Weak<Mutex<KeptObjects>>,
    sleepers: Mutex<Sleepers>,
    /// Processes that are watched.
    processes: Mutex<HashMap<u32, OwnedFd>>,
    exits: OwnedFd,
}

/// A question of a task.
pub struct SysvCall<'a> {
    pub ask: Ask,
    pub data: &'a [u8],
    /// Where the answer goes.
    pub to: OwnedFd,
}

impl Calls {
    /// # Errors
    /// Without descriptors.
    pub fn new(kept: Weak<Mutex<KeptObjects>>) -> Result<Arc<Self>> {
        let exits = epoll::create(CreateFlags::CLOEXEC).context("cannot wait for processes")?;
        Ok(Arc::new(Self {
            kept,
            sleepers: Mutex::default(),
            processes: Mutex::default(),
            exits,
        }))
    }

    /// Readable when a process has ended.
    pub fn exits(&self) -> &OwnedFd {
        &self.exits
    }

    /// Says of what processes have ended: before anything is asked that comes after it.
    pub fn look_for_ended(&self, cluster: &Cluster) {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        loop {
            let mut events = Vec::with_capacity(16);
            let buffer = rustix::buffer::spare_capacity(&mut events);
            let ended = epoll::wait(&self.exits, buffer, Some(&now));
            if ended.is_err() || events.is_empty() {
                return;
            }
            for event in &events {
                self.ended(cluster, event.data.u64() as u32);
            }
        }
    }

    fn ended(&self, cluster: &Cluster, pid: u32) {
        if let Some(process) = lock(&self.processes).remove(&pid) {
            let _ = epoll::delete(&self.exits, process);
        }
        let process = Process {
            host: cluster.stay(),
            pid,
        };
        let mut sleepers = lock(&self.sleepers);
        let Sleepers { all, free, .. } = &mut *sleepers;
        all.retain(|thread, sleeper| {
            let is_gone = thread.process == process;
            if is_gone {
                free.push(sleeper.bed);
            }
            !is_gone
        });
        drop(sleepers);
        cluster.sysv(Command::Ended(process), Box::new(|_| ()));
    }

    fn watch(&self, pid: u32) {
        let mut processes = lock(&self.processes);
        if processes.contains_key(&pid) {
            return;
        }
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let opened = raw.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // One that has ended wants nothing undone: what it asked is over with the host.
        if let Some(process) = opened
            && epoll::add(
                &self.exits,
                &process,
                EventData::new_u64(u64::from(pid)),
                EventFlags::IN,
            )
            .is_ok()
        {
            processes.insert(pid, process);
        }
    }

    /// Asks for it; the answer comes from whoever learns it. False: the question is none.
    pub fn ask(self: &Arc<Self>, cluster: Option<&Cluster>, asked: SysvCall<'_>) -> bool {
        let SysvCall { ask, data, to } = asked;
        let (Some((pid, rest)), Some(kind)) =
            (data.split_first_chunk(), Sysv::from_raw(ask.a & 0xff))
        else {
            return false;
        };
        let Some((number, data)) = rest.split_first_chunk() else {
            return false;
        };
        let [pid, number] = [*pid, *number].map(u32::from_ne_bytes);
        let Some(cluster) = cluster else {
            return says(&to, EIO as u64, 0, &[]);
        };
        self.watch(pid);
        let process = Process {
            host: cluster.stay(),
            pid,
        };
        let by = Thread { process, number };
        let is_again = ask.a & Sysv::AGAIN != 0;
        let call = Call {
            by,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            time: since_1970(),
            is_again,
            what: what(kind, ask, data),
        };
        let until = match (kind, ask.c) {
            (Sysv::Operate, for_ns) if for_ns != FOR_EVER => time::now_ns().saturating_add(for_ns),
            _ => FOR_EVER,
        };
        let calls = Arc::clone(self);
        let answer = move |reply| {
            match reply {
                Reply::Done(value, data) => says(&to, 0, u64::from(value), &data),
                Reply::Failed(errno) => says(&to, errno as u64, 0, &[]),
                Reply::Waits => match calls.put_to_bed(by, until, is_again) {
                    Ok(Sleeper { bed, until }) => {
                        let bed = u64::from(bed.set) | u64::from(bed.number) << 32;
                        says(&to, Answer::WAITS, bed, &until.to_ne_bytes())
                    }
                    Err(Errno(errno)) => says(&to, errno as u64, 0, &[]),
                },
            };
        };
        cluster.sysv(Command::Call(call), Box::new(answer));
        true
    }

    /// Where a thread is to sleep, and until when: one that was woken before its time, until then.
    fn put_to_bed(&self, thread: Thread, until: u64, is_again: bool) -> Result<Sleeper, Errno> {
        let mut sleepers = lock(&self.sleepers);
        let (bed, until) = match sleepers.all.get(&thread) {
            Some(before) if is_again => (before.bed, before.until),
            Some(before) => (before.bed, until),
            None => (sleepers.bed(&self.kept)?, until),
        };
        ipc::set_semaphore(bed.set, u32::from(bed.number), 0)?;
        sleepers.all.insert(thread, Sleeper { bed, until });
        Ok(Sleeper { bed, until })
    }

    /// Has a thread make its call again, or all that sleep.
    pub fn wake(&self, woken: Woken) {
        let sleepers = lock(&self.sleepers);
        let all = sleepers.all.iter();
        for (_, Sleeper { bed, .. }) in
            all.filter(|(thread, _)| woken.is_none_or(|one| one == **thread))
        {
            // It fails when the run has ended, and its tasks with it.
            let _ = ipc::set_semaphore(bed.set, u32::from(bed.number), 1);
        }
    }

    /// Nobody sleeps here any more.
    pub fn end(&self) {
        for set in std::mem::take(&mut *lock(&self.sleepers)).sets {
            let _ = ipc::remove_semaphores(set);
        }
    }
}

impl Sleepers {
    fn bed(&mut self, kept: &Weak<Mutex<KeptObjects>>) -> Result<Bed, Errno> {
        if self.free.is_empty() {
            let set = ipc::make_semaphores(u32::from(SLEEPERS))?;
            if let Some(kept) = kept.upgrade() {
                lock(&kept).made_ipc(Ipc::Semaphores, set);
            }
            self.sets.push(set);
            self.free
                .extend((0..SLEEPERS).map(|number| Bed { set, number }));
        }
        self.free.pop().ok_or(Errno::EAGAIN)
    }
}

fn says(to: &OwnedFd, errno: u64, value: u64, data: &[u8]) -> bool {
    let answer = Answer {
        errno,
        object: value,
    };
    let mut bytes = answer.to_bytes().to_vec();
    bytes.extend_from_slice(data);
    message::send(to.as_fd(), &bytes, &[], false).is_ok()
}

fn since_1970() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or(Duration::ZERO).as_secs() as i64
}

/// What a question means, by the table of [`Sysv`].
fn what(kind: Sysv, ask: Ask, data: &[u8]) -> What {
    let (id, upper, c) = (ask.b as u32, (ask.b >> 32) as u32, ask.c);
    let data = data.to_vec();
    match kind {
        Sysv::Set => What::Set {
            key: id,
            count: c as u32,
            flags: ask.d as u32,
        },
        Sysv::Operate => {
            let word = |six: &[u8], at: usize| u16::from_ne_bytes([six[at], six[at + 1]]);
            let operation = |six: &[u8]| Operation {
                number: word(six, 0),
                change: word(six, 2) as i16,
                flags: word(six, 4),
            };
            let operations = data.chunks_exact(6).map(operation).collect();
            What::Operate { id, operations }
        }
        Sysv::ControlSet => What::ControlSet {
            id,
            number: upper,
            command: c as u32,
            value: ask.d as i64,
            data,
        },
        Sysv::Queue => What::Queue {
            key: id,
            flags: ask.d as u32,
        },
        Sysv::Send => What::Send {
            id,
            kind: c as i64,
            text: data,
            flags: ask.d as u32,
        },
        Sysv::Receive => What::Receive {
            id,
            kind: c as i64,
            bytes_max: ask.d,
            flags: upper,
        },
        Sysv::ControlQueue => What::ControlQueue {
            id,
            command: c as u32,
            data,
        },
        Sysv::GiveUp => What::GiveUp,
    }
}
