//! All sets and queues, and what a call does to them.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

use crate::sysv::errno;
use crate::sysv::queue::{Queue, Wanted};
use crate::sysv::set::{Awaited, Operation, Set, Stop};

/// The first number of a set or queue.
pub const FIRST_ID: u32 = farpage_object::shm::Sysv::FIRST_ID;
/// Sets at a time, and queues: all of them are told to a host that joins.
const MANY: usize = 1024;
/// `IPC_NOWAIT`.
pub(crate) const NO_WAIT: u16 = 0o4000;
const CREATE: u32 = 0o1000;
const EXCLUSIVE: u32 = 0o2000;

const IPC_RMID: u32 = 0;
const IPC_SET: u32 = 1;
const IPC_STAT: u32 = 2;
const GETPID: u32 = 11;
const GETVAL: u32 = 12;
const GETALL: u32 = 13;
const GETNCNT: u32 = 14;
const GETZCNT: u32 = 15;
const SETVAL: u32 = 16;
const SETALL: u32 = 17;

/// A process of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Process {
    /// The stay of its host in the cluster.
    pub host: u64,
    /// Its number there.
    pub pid: u32,
}

/// A thread of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Thread {
    /// Its process.
    pub process: Process,
    /// Its number.
    pub number: u32,
}

/// A call of a thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Which.
    pub by: Thread,
    /// Its user: keys of two users are different ones.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// When, in seconds.
    pub time: i64,
    /// It waited, and was told to make the call again.
    pub is_again: bool,
    /// What it asks for.
    pub what: What,
}

/// What a call asks for. Flags and commands are those of Linux.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// `semget`.
    Set {
        /// Its key.
        key: u32,
        /// How many semaphores.
        count: u32,
        /// Flags.
        flags: u32,
    },
    /// `semop` and `semtimedop`.
    Operate {
        /// Which set.
        id: u32,
        /// What is done to it, all or nothing.
        operations: Vec<Operation>,
    },
    /// `semctl`.
    ControlSet {
        /// Which set.
        id: u32,
        /// Which semaphore.
        number: u32,
        /// What.
        command: u32,
        /// A value.
        value: i64,
        /// Values, or a structure.
        data: Vec<u8>,
    },
    /// `msgget`.
    Queue {
        /// Its key.
        key: u32,
        /// Flags.
        flags: u32,
    },
    /// `msgsnd`.
    Send {
        /// Which queue.
        id: u32,
        /// Of which type.
        kind: i64,
        /// What.
        text: Vec<u8>,
        /// Flags.
        flags: u32,
    },
    /// `msgrcv`.
    Receive {
        /// Which queue.
        id: u32,
        /// Of which type.
        kind: i64,
        /// Bytes that there is room for.
        bytes_max: u64,
        /// Flags.
        flags: u32,
    },
    /// `msgctl`.
    ControlQueue {
        /// Which queue.
        id: u32,
        /// What.
        command: u32,
        /// A structure.
        data: Vec<u8>,
    },
    /// The thread does not wait any more.
    GiveUp,
}

/// What all hosts do in the same order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// A call.
    Call(Call),
    /// A process has ended.
    Ended(Process),
    /// A host is out of the cluster.
    Gone(u64),
}

/// What a call returns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// A number, and data for the program.
    Done(u32, Vec<u8>),
    /// Why not.
    Failed(i32),
    /// The thread is to wait until it is told to make the call again.
    Waits,
}

/// Who made something, and when it was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct About {
    key: u32,
    uid: u32,
    gid: u32,
    mode: u32,
    pub(crate) changed: i64,
    /// Hosts on which it was found: it goes with the last of them.
    users: BTreeSet<u64>,
}

impl About {
    fn new(call: &Call, key: u32, flags: u32) -> Self {
        Self {
            key,
            uid: call.uid,
            gid: call.gid,
            mode: flags & 0o777,
            changed: call.time,
            users: BTreeSet::new(),
        }
    }

    /// `struct ipc64_perm` of x86-64.
    pub(crate) fn permissions(&self) -> Vec<u8> {
        let words = [self.key, self.uid, self.gid, self.uid, self.gid, self.mode];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.resize(48, 0);
        bytes
    }

    /// `IPC_SET`, of which only the mode is taken: it stays its user's.
    fn set(&mut self, data: &[u8], time: i64) -> Result<(), i32> {
        self.mode = u32::from_ne_bytes(part(data, 20)?) & 0o777;
        self.changed = time;
        Ok(())
    }
}

fn part<const N: usize>(data: &[u8], at: usize) -> Result<[u8; N], i32> {
    let part = data.get(at..at + N).and_then(|part| part.try_into().ok());
    part.ok_or(errno::EINVAL)
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Thing {
    Set(Set),
    Queue(Queue),
}

impl Thing {
    fn about(&mut self) -> &mut About {
        match self {
            Self::Set(set) => &mut set.about,
            Self::Queue(queue) => &mut queue.about,
        }
    }
}

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum For {
    Step(Awaited),
    Message(Wanted),
    Room(u64),
}

/// Everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    things: BTreeMap<u32, Thing>,
    /// Sets, by their users and keys.
    sets: BTreeMap<(u32, u32), u32>,
    /// The same of queues.
    queues: BTreeMap<(u32, u32), u32>,
    /// How many there have been.
    made: u32,
    waiting: BTreeMap<Thread, (u32, For)>,
}

/// As one may want it: a reply, or nothing changed and the thread is to wait for this.
enum Tried {
    Done(u32, Vec<u8>),
    Waits(For),
}

type Try = Result<Tried, i32>;

fn done(value: u32) -> Try {
    Ok(Tried::Done(value, Vec::new()))
}

fn data(bytes: Vec<u8>) -> Try {
    Ok(Tried::Done(0, bytes))
}

impl State {
    /// Does it. What it returns, and the threads that are to make their calls again.
    pub fn apply(&mut self, command: &Command) -> (Reply, Vec<Thread>) {
        let reply = match command {
            Command::Call(call) => return self.call(call),
            Command::Ended(process) => {
                self.waiting.retain(|thread, _| thread.process != *process);
                self.undo(*process);
                Reply::Done(0, Vec::new())
            }
            Command::Gone(host) => {
                self.gone(*host);
                Reply::Done(0, Vec::new())
            }
        };
        (reply, self.woken())
    }

    fn call(&mut self, call: &Call) -> (Reply, Vec<Thread>) {
        self.waiting.remove(&call.by);
        let reply = match self.act(call) {
            Ok(Tried::Done(value, data)) => Reply::Done(value, data),
            Ok(Tried::Waits(what)) => {
                if let Some(id) = call.what.id() {
                    self.waiting.insert(call.by, (id, what));
                }
                Reply::Waits
            }
            Err(errno::EINVAL) if call.is_again && !self.has(call) => Reply::Failed(errno::EIDRM),
            Err(errno) => Reply::Failed(errno),
        };
        (reply, self.woken())
    }

    fn has(&self, call: &Call) -> bool {
        call.what
            .id()
            .is_none_or(|id| self.things.contains_key(&id))
    }

    /// Takes those out of the waiting that need not wait.
    fn woken(&mut self) -> Vec<Thread> {
        let things = &self.things;
        let goes_on = |id: &u32, what: &For| match (things.get(id), what) {
            (Some(Thing::Set(set)), For::Step(awaited)) => set.lets(awaited),
            (Some(Thing::Queue(queue)), For::Message(wanted)) => queue.has(wanted),
            (Some(Thing::Queue(queue)), For::Room(bytes)) => queue.has_room(*bytes),
            // It was removed.
            (None | Some(Thing::Set(_) | Thing::Queue(_)), _) => true,
        };
        let mut woken = Vec::new();
        self.waiting.retain(|thread, (id, what)| {
            let goes = goes_on(id, what);
            if goes {
                woken.push(*thread);
            }
            !goes
        });
        woken
    }

    fn undo(&mut self, process: Process) {
        for thing in self.things.values_mut() {
            if let Thing::Set(set) = thing {
                set.undo(process);
            }
        }
    }

    fn gone(&mut self, host: u64) {
        self.waiting.retain(|thread, _| thread.process.host != host);
        let mut unused = Vec::new();
        for (id, thing) in &mut self.things {
            if let Thing::Set(set) = thing {
                for process in set.undoers(host) {
                    set.undo(process);
                }
            }
            let users = &mut thing.about().users;
            if users.remove(&host) && users.is_empty() {
                unused.push(*id);
            }
        }
        unused.into_iter().for_each(|id| self.remove(id));
    }

    fn remove(&mut self, id: u32) {
        self.things.remove(&id);
        self.sets.retain(|_, of| *of != id);
        self.queues.retain(|_, of| *of != id);
    }

    fn act(&mut self, call: &Call) -> Try {
        let by = call.by.process;
        let stamp = (by.pid, call.time);
        match &call.what {
            What::Set { key, count, flags } => self.find_set(call, *key, *count, *flags),
            What::Queue { key, flags } => self.find_queue(call, *key, *flags),
            What::Operate { id, operations } => {
                match self.set(*id, call.uid)?.operate(by, operations, call.time) {
                    Ok(()) => done(0),
                    Err(Stop::Fails(errno)) => Err(errno),
                    Err(Stop::Waits(awaited)) => Ok(Tried::Waits(For::Step(awaited))),
                }
            }
            What::ControlSet { .. } => self.control_set(call),
            What::Send {
                id,
                kind,
                text,
                flags,
            } => match self
                .queue(*id, call.uid)?
                .send(*kind, text, *flags, stamp)?
            {
                true => done(0),
                false => Ok(Tried::Waits(For::Room(text.len() as u64))),
            },
            What::Receive {
                id,
                kind,
                bytes_max,
                flags,
            } => {
                let wanted = Wanted {
                    kind: *kind,
                    flags: *flags,
                };
                let queue = self.queue(*id, call.uid)?;
                match queue.receive(&wanted, *bytes_max, stamp)? {
                    Some((kind, text)) => {
                        let length = text.len() as u32;
                        let mut data = kind.to_ne_bytes().to_vec();
                        data.extend(text);
                        Ok(Tried::Done(length, data))
                    }
                    None => Ok(Tried::Waits(For::Message(wanted))),
                }
            }
            What::ControlQueue { id, command, data } => {
                self.control_queue(call, *id, *command, data)
            }
            What::GiveUp => done(0),
        }
    }

    fn set(&mut self, id: u32, uid: u32) -> Result<&mut Set, i32> {
        match self.things.get_mut(&id) {
            Some(Thing::Set(set)) if set.about.uid == uid => Ok(set),
            Some(Thing::Set(_) | Thing::Queue(_)) | None => Err(errno::EINVAL),
        }
    }

    fn queue(&mut self, id: u32, uid: u32) -> Result<&mut Queue, i32> {
        match self.things.get_mut(&id) {
            Some(Thing::Queue(queue)) if queue.about.uid == uid => Ok(queue),
            Some(Thing::Set(_) | Thing::Queue(_)) | None => Err(errno::EINVAL),
        }
    }

    /// What is there is used by the host from now on.
    fn uses(&mut self, call: &Call, id: u32, flags: u32) -> Try {
        if flags & (CREATE | EXCLUSIVE) == CREATE | EXCLUSIVE {
            return Err(errno::EEXIST);
        }
        if let Some(thing) = self.things.get_mut(&id) {
            thing.about().users.insert(call.by.process.host);
        }
        done(id)
    }

    fn add(&mut self, call: &Call, mut thing: Thing) -> u32 {
        thing.about().users.insert(call.by.process.host);
        let id = FIRST_ID + self.made % FIRST_ID;
        self.made = self.made.wrapping_add(1);
        self.things.insert(id, thing);
        id
    }

    fn find_set(&mut self, call: &Call, key: u32, count: u32, flags: u32) -> Try {
        let named = (call.uid, key);
        if let Some(id) = self.sets.get(&named).copied() {
            return match count as usize <= self.set(id, call.uid)?.len() {
                true => self.uses(call, id, flags),
                false => Err(errno::EINVAL),
            };
        }
        if flags & CREATE == 0 {
            return Err(errno::ENOENT);
        }
        if !(1..=Set::LENGTH_MAX).contains(&count) {
            return Err(errno::EINVAL);
        }
        if self.sets.len() >= MANY {
            return Err(errno::ENOSPC);
        }
        let set = Set::new(About::new(call, key, flags), count);
        let id = self.add(call, Thing::Set(set));
        self.sets.insert(named, id);
        done(id)
    }

    fn find_queue(&mut self, call: &Call, key: u32, flags: u32) -> Try {
        let named = (call.uid, key);
        if let Some(id) = self.queues.get(&named).copied() {
            return self.uses(call, id, flags);
        }
        if flags & CREATE == 0 {
            return Err(errno::ENOENT);
        }
        if self.queues.len() >= MANY {
            return Err(errno::ENOSPC);
        }
        let queue = Queue::new(About::new(call, key, flags));
        let id = self.add(call, Thing::Queue(queue));
        self.queues.insert(named, id);
        done(id)
    }

    fn control_set(&mut self, call: &Call) -> Try {
        let What::ControlSet {
            id,
            number,
            command,
            value,
            data: given,
        } = &call.what
        else {
            return Err(errno::EINVAL);
        };
        let (id, by) = (*id, call.by.process);
        let set = self.set(id, call.uid)?;
        match *command {
            IPC_RMID => {
                self.remove(id);
                return done(0);
            }
            IPC_STAT => return data(set.stat()),
            IPC_SET => {
                set.about.set(given, call.time)?;
                return done(0);
            }
            GETVAL => return done(set.get(*number)?.0),
            GETPID => return done(set.get(*number)?.1),
            GETALL => return data(set.all()),
            GETNCNT | GETZCNT => {
                set.get(*number)?;
                return done(self.count(id, *number, *command == GETZCNT));
            }
            SETVAL => set.set(*number, *value, by)?,
            SETALL => set.set_all(given, by)?,
            _ => return Err(errno::EINVAL),
        }
        set.about.changed = call.time;
        done(0)
    }

    /// How many threads wait at a semaphore.
    fn count(&self, id: u32, number: u32, is_zero: bool) -> u32 {
        let waits = |(of, what): &&(u32, For)| match what {
            For::Step(awaited) => {
                *of == id && u32::from(awaited.number) == number && awaited.is_zero() == is_zero
            }
            For::Message(_) | For::Room(_) => false,
        };
        self.waiting.values().filter(waits).count() as u32
    }

    fn control_queue(&mut self, call: &Call, id: u32, command: u32, given: &[u8]) -> Try {
        let queue = self.queue(id, call.uid)?;
        match command {
            IPC_RMID => self.remove(id),
            IPC_STAT => return data(queue.stat()),
            IPC_SET => {
                queue.set_bytes_max(u64::from_ne_bytes(part(given, 88)?))?;
                queue.about.set(given, call.time)?;
            }
            _ => return Err(errno::EINVAL),
        }
        done(0)
    }
}

impl What {
    /// The set or queue that is meant, if it is one that there is already.
    fn id(&self) -> Option<u32> {
        match self {
            Self::Operate { id, .. }
            | Self::ControlSet { id, .. }
            | Self::Send { id, .. }
            | Self::Receive { id, .. }
            | Self::ControlQueue { id, .. } => Some(*id),
            Self::Set { .. } | Self::Queue { .. } | Self::GiveUp => None,
        }
    }
}

#[cfg(test)]
mod tests;
