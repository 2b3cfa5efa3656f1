//! Shared memory of the programs of a tree (`farpage run --shm`): what its processes say to the
//! supervisor about it.
//!
//! Linux keeps the names: files of the file system at `/dev/shm`, segments of System V. The
//! supervisor keeps the pages, in memory objects. A task asks for the object of a name over a
//! connection of its own, maps the object's memory file, and says where.

use core::sync::atomic::{AtomicU64, Ordering};

/// What the filter and the agent must know.
#[repr(C)]
pub struct Shm {
    /// Device number of the file system at `/dev/shm`; 0 in a tree without `--shm`.
    pub device: AtomicU64,
    /// That of the file system of memory files.
    pub memory_device: AtomicU64,
    /// The byte of the first [`Mark`] of this tree.
    pub marks: AtomicU64,
    /// 1 where other hosts of a cluster have the same names, and the same pages behind them.
    pub cluster: AtomicU64,
}

/// What is known of a memory file (`memfd_create`) by the file itself: the supervisor need not be
/// told of each that is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// It was made in this tree. Lasts as long as what was opened when it was made.
    Made = 0,
    /// Linux has its pages: it is mapped as it is.
    Linuxs = 1,
    /// The supervisor has its pages, in an object. Put by the supervisor.
    Object = 2,
    /// That it stays Linux's is counted.
    Counted = 3,
    /// Linux's pages are read or written just now: they become no object's meanwhile. Put on files at
    /// `/dev/shm`, too.
    Used = 4,
}

/// Bytes from here on, which no file has, are locked by Farpage: programs' locks of whole files end here.
pub const LOCKED_FROM: u64 = 0x7fff_fa6e_0000_0000;

impl Shm {
    /// True in a tree whose shared memory is kept by the supervisor.
    pub fn is_on(&self) -> bool {
        self.device.load(Ordering::Relaxed) != 0
    }

    /// True in a tree whose shared memory other hosts have, too.
    pub fn is_cluster(&self) -> bool {
        self.cluster.load(Ordering::Relaxed) != 0
    }

    /// The byte by which a mark is put on a file.
    pub fn byte_of(&self, mark: Mark) -> u64 {
        self.marks.load(Ordering::Relaxed) + mark as u64
    }

    /// Sets where the marks are of the tree whose supervisor is process `pid`.
    pub fn set_marks(&self, pid: u32) {
        const FIRST: u64 = LOCKED_FROM + (1 << 32);
        self.marks
            .store(FIRST + (u64::from(pid) << 3), Ordering::Relaxed);
    }
}

/// What a task asks. Numbers that a kind does not need are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Kind {
    /// The descriptor is the other end of a new connection: the only thing that is said over the
    /// socket that all tasks have, and not answered.
    Connect = 1,
    /// The descriptor is this task's userfaultfd.
    Space = 2,
    /// The file of the descriptor was made by this task. `a` is 1 for a message queue of POSIX.
    Made = 3,
    /// The object of the file of the descriptor is wanted. Answered with its number and its memory
    /// file; `ENOENT` where the file's pages are Linux's. When `a` is 1 only if there is one already,
    /// `ENODATA` when there is none yet; the memory file is then opened for this task alone, whose locks
    /// on it are its own. A memory file gets one that way, too, if it was made in this
    /// tree, is not mapped, and may be written to. `EALREADY` while there is to be one, but the
    /// file's pages are still used ([`Mark::Used`]): the task asks again.
    File = 4,
    /// The object of System V segment `a`, of `b` bytes. Answered as [`Kind::File`].
    Segment = 5,
    /// A new object of `b` bytes without a name. Answered as [`Kind::File`].
    New = 6,
    /// Pages from `c` on of object `a` are mapped at address `b`, `d` bytes.
    Map = 7,
    /// `d` bytes at address `b` will be unmapped.
    Unmap = 8,
    /// The file of the descriptor has another size now: `b` bytes.
    Size = 9,
    /// `d` bytes from `b` on, whole pages, of object `a` are zeros from now on.
    Zero = 10,
    /// This task is about to fork; the descriptor is the other end of the child's connection.
    Fork = 11,
    /// This task has mapped what its parent had.
    Forked = 12,
    /// Number `b` of System V was made by this task: `a` is an [`Ipc`].
    Ipc = 13,
    /// The memory file of object `a` again.
    Object = 14,
    /// This task is about to make something that outlives it; when it ends before it says what
    /// became of that, it is looked for. `a` is 0 for a file, whose name follows the question, in the
    /// folder of the descriptor; 1 for a message queue of POSIX with that name; 2 for an [`Ipc`] `b`
    /// with key `c` by process `d`; 3 for nothing: it was not made.
    Making = 15,
    /// `EBUSY` when somebody has mapped the object of the file of the descriptor.
    Idle = 16,
    /// How many bytes there is room for. Answered in the place of an object's number.
    Room = 17,
    /// Names were removed. Answered when no host has them any more.
    Removed = 18,
    /// The file of the descriptor is to have the name at the path that follows the question, too.
    /// Answered when all hosts show it under that name; `EEXIST` when it is another's, `ENOENT` when
    /// the file is no host's but this one's.
    Link = 19,
    /// Thread `c` is about to wait at byte `b` of object `a` (`futex(2)`).
    Waits = 20,
    /// At most `c` threads at all other hosts that wait at byte `b` of object `a` are to go on. Thread `d`
    /// asks, and does not wait.
    Wake = 21,
    /// A call of System V that concerns all hosts of a cluster. The low byte of `a` is a [`Sysv`], and
    /// with bit 8 the thread has waited and makes it again. Who calls, process and thread, follows
    /// the question in 4 bytes each, and then data. Answered with a number and data; with
    /// [`Answer::WAITS`] when the thread is to wait.
    Sysv = 22,
    /// The file of the descriptor is about to be executed. Answered when Linux has the contents that its
    /// object has.
    Execute = 23,
}

/// A call of System V, and where its arguments are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Sysv {
    /// `semget`: `b` the key, `c` how many, `d` flags.
    Set = 1,
    /// `semtimedop`: `b` the set, `c` for how many nanoseconds, or all ones; the data are its steps.
    Operate = 2,
    /// `semctl`: `b` the set, and the semaphore in its upper half; `c` the command, `d` a value.
    ControlSet = 3,
    /// `msgget`: `b` the key, `d` flags.
    Queue = 4,
    /// `msgsnd`: `b` the queue, `c` the type, `d` flags; the data are the text.
    Send = 5,
    /// `msgrcv`: `b` the queue, and flags in its upper half; `c` the type, `d` for how many bytes. The
    /// type is answered before the text.
    Receive = 6,
    /// `msgctl`: `b` the queue, `c` the command.
    ControlQueue = 7,
    /// The thread does not wait any more.
    GiveUp = 8,
}

/// What System V has by numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u64)]
pub enum Ipc {
    /// A segment of shared memory.
    Segment = 1,
    /// One of huge pages, which Linux keeps.
    HugeSegment = 2,
    /// A set of semaphores.
    Semaphores = 3,
    /// A message queue.
    Messages = 4,
}

impl Kind {
    /// The kind whose number is `raw`.
    pub const fn from_raw(raw: u64) -> Option<Self> {
        Some(match raw {
            1 => Self::Connect,
            2 => Self::Space,
            3 => Self::Made,
            4 => Self::File,
            5 => Self::Segment,
            6 => Self::New,
            7 => Self::Map,
            8 => Self::Unmap,
            9 => Self::Size,
            10 => Self::Zero,
            11 => Self::Fork,
            12 => Self::Forked,
            13 => Self::Ipc,
            14 => Self::Object,
            15 => Self::Making,
            16 => Self::Idle,
            17 => Self::Room,
            18 => Self::Removed,
            19 => Self::Link,
            20 => Self::Waits,
            21 => Self::Wake,
            22 => Self::Sysv,
            23 => Self::Execute,
            _ => return None,
        })
    }
}

impl Sysv {
    /// Sets and queues of a cluster have numbers from here on; Linux gives its own from 0 on.
    pub const FIRST_ID: u32 = 0x4000_0000;
    /// In the first word of the question: the thread has waited.
    pub const AGAIN: u64 = 1 << 8;

    /// That whose number is `raw`.
    pub const fn from_raw(raw: u64) -> Option<Self> {
        Some(match raw {
            1 => Self::Set,
            2 => Self::Operate,
            3 => Self::ControlSet,
            4 => Self::Queue,
            5 => Self::Send,
            6 => Self::Receive,
            7 => Self::ControlQueue,
            8 => Self::GiveUp,
            _ => return None,
        })
    }
}

impl Ipc {
    /// That whose number is `raw`.
    pub const fn from_raw(raw: u64) -> Option<Self> {
        Some(match raw {
            1 => Self::Segment,
            2 => Self::HugeSegment,
            3 => Self::Semaphores,
            4 => Self::Messages,
            _ => return None,
        })
    }
}

/// A question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// What is asked.
    pub kind: Kind,
    /// See [`Kind`].
    pub a: u64,
    /// See [`Kind`].
    pub b: u64,
    /// See [`Kind`].
    pub c: u64,
    /// See [`Kind`].
    pub d: u64,
}

/// An answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// 0, or why not.
    pub errno: u64,
    /// The number of an object, or of bytes.
    pub object: u64,
}

impl Ask {
    /// Bytes.
    pub const BYTES: usize = 40;
    /// Bytes of a name behind it at most.
    pub const NAME_MAX: usize = 256;
    /// Bytes of data behind it at most: who calls, and the longest message.
    pub const DATA_MAX: usize = 8 + 8192;

    /// One without numbers.
    pub const fn new(kind: Kind) -> Self {
        Self {
            kind,
            a: 0,
            b: 0,
            c: 0,
            d: 0,
        }
    }

    /// As it is sent.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put(
            &mut bytes,
            &[self.kind as u64, self.a, self.b, self.c, self.d],
        );
        bytes
    }

    /// As it was sent; `None` when it is no question.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        Some(Self {
            kind: Kind::from_raw(word(bytes, 0))?,
            a: word(bytes, 1),
            b: word(bytes, 2),
            c: word(bytes, 3),
            d: word(bytes, 4),
        })
    }
}

impl Answer {
    /// Bytes.
    pub const BYTES: usize = 16;
    /// Bytes of data behind it at most: a type, and the longest message.
    pub const DATA_MAX: usize = 8 + 8192;
    /// No number of Linux: the thread is to wait in Linux until semaphore `object >> 32` of Linux's set
    /// `object as u32` is not 0, or until the time that follows in 8 bytes (nanoseconds of
    /// `CLOCK_MONOTONIC`, or all ones), and to make its call again.
    pub const WAITS: u64 = 4096;

    /// As it is sent.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        put(&mut bytes, &[self.errno, self.object]);
        bytes
    }

    /// As it was sent.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        Self {
            errno: word(bytes, 0),
            object: word(bytes, 1),
        }
    }
}

fn put(bytes: &mut [u8], words: &[u64]) {
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[8 * at..8 * at + 8]);
    u64::from_ne_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers_arrive_as_they_were_sent() {
        let ask = Ask {
            kind: Kind::Map,
            a: 7,
            b: 1 << 40,
            c: 3,
            d: 4096,
        };
        assert_eq!(Ask::from_bytes(&ask.to_bytes()), Some(ask));
        assert_eq!(Ask::from_bytes(&[0xff; Ask::BYTES]), None);
        for raw in 0..25 {
            assert!(Kind::from_raw(raw).is_none_or(|kind| kind as u64 == raw));
            assert!(Ipc::from_raw(raw).is_none_or(|ipc| ipc as u64 == raw));
            assert!(Sysv::from_raw(raw).is_none_or(|call| call as u64 == raw));
        }
        let answer = Answer {
            errno: 2,
            object: 9,
        };
        assert_eq!(Answer::from_bytes(&answer.to_bytes()), answer);
    }
}
