//! What processes and the host kernel say to each other.

use farpage_port::interface::{Both, Fd, Garbled, Incoming, Outgoing, Wire};
use farpage_port::{SendRight, interface};
use serde::{Deserialize, Serialize};

use crate::cluster::{
    ClusterFigures, ClusterListed, Consistency, PagesTold, PagesWanted, Passes, Wanted,
};
use crate::figures::{Figures, Message, SILENT_NS};
use crate::locks::{LockAbout, LockRefusal, LockWanted, LocksListed};
use crate::ports::PortsListed;

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// An object of this name is there.
    #[error("there is a shared memory object '{0}' already; open it, or give another name")]
    Exists(String),
    /// There is no object of this name.
    #[error(
        "there is no shared memory object '{0}' on this host: one goes with the last process that \
         has it; farpage ls shows what there is, and farpage ls --hosts what a cluster shares"
    )]
    NotFound(String),
    /// It is no name.
    #[error(
        "'{0}' is no name of a shared memory object; give 1 to 200 characters without '/' and \
         control characters"
    )]
    Name(String),
    /// It is no size.
    #[error("an object of {0} bytes cannot be made; give at least 1 and at most 2^45")]
    Size(u64),
    /// Too little for it.
    #[error("an object cannot do with {0} bytes of RAM; give at least 1 MiB")]
    Ram(u64),
    /// So much may not stay in memory.
    #[error(
        "{0} more bytes cannot be wired: of {1} half of the RAM, {2} bytes, may be, and {3} are; \
         wire less, or give more RAM (ram=, farpage up --ram and --user-ram)"
    )]
    Wired(u64, String, u64, u64),
    /// So little is not twice what stays in memory.
    #[error(
        "an object of which {1} bytes are wired cannot do with {0} bytes of RAM; give at least twice \
         what is wired, or unwire some"
    )]
    RamWired(u64, u64),
    /// It has not so many bytes.
    #[error("the object has {0} bytes only; give a part of it")]
    Outside(u64),
    /// The host kernel could not.
    #[error("the host kernel could not do it: {0}")]
    Failed(String),
    /// The object belongs to another user.
    #[error("'{0}' is another user's; only its owner and root may do that")]
    NotYours(String),
    /// It would be too much.
    #[error(
        "{whose} may have {descriptors} descriptors of the host kernel's (an object takes 2, a \
         mapping 1) and {bytes} bytes in all objects, and this would be more; close some, or raise \
         the host kernel's limit on open files"
    )]
    Limit {
        /// This process, or all.
        whose: String,
        /// Descriptors at most.
        descriptors: u64,
        /// Bytes of all objects at most.
        bytes: u64,
    },
    /// Memory and paging space are full.
    #[error(
        "there is no room: paging space is full, and {resident_bytes} of {ram_bytes} bytes of RAM \
         are in use; remove objects (farpage ls, farpage rm), make room where the paging files are, or \
         start the host kernel with more --ram, --spill or --spill-limit"
    )]
    NoRoom {
        /// What pages in memory take.
        resident_bytes: u64,
        /// RAM that the host kernel may use.
        ram_bytes: u64,
    },
    /// The pager does not answer for it.
    #[error("the pager of the memory object cannot be used: {0}")]
    Pager(String),
    /// There is no cluster.
    #[error(
        "this host kernel belongs to no cluster; start it with farpage up --cluster \
         etcd://HOST:PORT/NAME, or with --cluster embedded: for this host alone"
    )]
    Alone,
    /// The object of this name is another one than was wanted.
    #[error("there is an object '{0}' in the cluster, {1}; open it as it is, or give another name")]
    Differs(String, String),
    /// The cluster has none of this name.
    #[error(
        "there is no shared memory object '{0}' in the cluster; farpage ls --hosts shows what there is"
    )]
    NotShared(String),
    /// The host that had all of it has gone.
    #[error(
        "'{0}' is over: the host that had all of it is not in the cluster any more; take its name away (farpage \
         rm --cluster '{0}') and make it anew (with its file, if it had one: that has what was flushed)"
    )]
    Over(String),
    /// It cannot be as it is wanted.
    #[error("{0}")]
    Unfit(String),
    /// It cannot be flushed.
    #[error("cannot flush '{0}': {1}")]
    Unflushed(String, String),
    /// The cluster could not.
    #[error("the cluster could not do it: {0}")]
    Cluster(String),
    /// There is a port of this name.
    #[error(
        "there is a port '{0}' in the cluster already; take another name, or check that one out"
    )]
    PortExists(String),
    /// There is no port of this name.
    #[error(
        "there is no port '{0}' in the cluster, or not any more: its name goes with it, and with its \
         host; farpage ports shows what there is"
    )]
    NoPort(String),
    /// It is no name.
    #[error(
        "'{0}' is no name of a port; give 1 to 200 characters without '/' and control characters"
    )]
    PortName(String),
    /// The port is dead.
    #[error("port '{0}' is dead: its receiver has gone or destroyed it")]
    PortDead(String),
    /// The port's receiver is on another host.
    #[error("the receiver of '{0}' is on another host; check it in there")]
    PortElsewhere(String),
    /// It has no name here.
    #[error(
        "no port of this host is checked in as '{0}'; check it out at its host (farpage ports)"
    )]
    PortNotHere(String),
    /// Another pager does.
    #[error(
        "process {1} answers for '{0}' already; end it first, or give this memory object another \
         name (a pager that dies may be replaced by one of the same user, with as many bytes)"
    )]
    Answered(String, u32),
    /// This host had to let go of them.
    #[error(
        "the pages are not kept at this host any more: it was cut off from the cluster, or has left it, and other hosts \
         may have changed them since; start the program again when the host is in the cluster"
    )]
    Unkept,
    /// Shared memory is not locked.
    #[error(transparent)]
    Lock(#[from] LockRefusal),
}

/// An object, as `farpage ls` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Its name; empty when it has none, or not any more.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Bytes of it in memory.
    pub resident_bytes: u64,
    /// The user who made it.
    pub uid: u32,
    /// The process that made it.
    pub pid: u32,
    /// Processes that map it, in order, each of them once.
    pub mapped_by: Vec<u32>,
    /// It is of the cluster: other hosts have it as well.
    pub is_shared: bool,
}

/// A pager in another process, as `farpage pager ls` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagerListed {
    /// Of its object.
    pub name: String,
    /// The size of the object.
    pub bytes: u64,
    /// Its process; the last, when it is gone.
    pub pid: u32,
    /// It is there.
    pub is_up: bool,
    /// It is late with something.
    pub is_behind: bool,
    /// Requests that wait for it.
    pub waiting: u64,
    /// Nanoseconds since it was last heard of, while something waits; else 0.
    pub silent_ns: u64,
    /// Requests that it answered.
    pub answered: u64,
    /// Bytes that it has not taken, and that are kept for it.
    pub kept_bytes: u64,
    /// What was last wrong with it; empty: nothing so far.
    pub cause: String,
}

impl PagerListed {
    /// It has been silent for long though something waits.
    pub fn is_silent(&self) -> bool {
        self.silent_ns > SILENT_NS
    }
}

/// What there is to know of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectAbout {
    /// Its name.
    pub name: String,
    /// It can be written to.
    pub writable: bool,
}

/// What there is to know of an object of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfCluster {
    /// Its size.
    pub bytes: u64,
    /// What was said of its contents.
    pub note: String,
    /// Nobody writes to it any more.
    pub is_sealed: bool,
    /// When a host sees what another has written.
    pub consistency: Consistency,
}

/// How the host kernel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Its process.
    pub pid: u32,
    /// What objects may have in memory together.
    pub ram_bytes: u64,
    /// What they have.
    pub resident_bytes: u64,
    /// How many there are.
    pub objects: u64,
}

/// What came of something that may be refused.
pub struct Tried<T>(pub Result<T, Refusal>);

impl<T: Wire> Wire for Tried<T> {
    fn put(self, out: &mut Outgoing) -> Result<(), PutError> {
        match self.0 {
            Ok(value) => {
                true.put(out)?;
                value.put(out)
            }
            Err(refusal) => {
                false.put(out)?;
                refusal.put(out)
            }
        }
    }

    fn take(from: &mut Incoming<'_>) -> Result<Self, Garbled> {
        Ok(Self(match bool::take(from)? {
            true => Ok(T::take(from)?),
            false => Err(Refusal::take(from)?),
        }))
    }
}

type PutError = farpage_port::interface::EncodeError;

interface! {
    /// The host kernel.
    pub trait KernelCalls, client KernelClient, "farpage.kernel" version 7 {
        /// Makes an object of so many bytes, all zeros; without a name when that is empty. A right
        /// to it, and one to its name: it lives as long as the first, or as long as the second
        /// unless its name is taken away. Without a name both are to the object.
        fn create(name: String, bytes: u64) -> Tried<Both<SendRight, SendRight>>;
        /// Finds an object by its name: its size and a right to it.
        fn open(name: String) -> Tried<Both<u64, SendRight>>;
        /// The object whose memory file this is: its size and a right to it. For children of fork,
        /// which have their parent's descriptors but not its rights.
        fn adopt(file: Fd) -> Tried<Both<u64, SendRight>>;
        /// Takes an object's name away. Who has it keeps it.
        fn unlink(name: String) -> Tried<()>;
        /// All objects that the caller may see.
        fn list() -> Vec<Listed>;
        /// How it does.
        fn status() -> Status;
        /// The same, and how all that the caller may see does.
        fn figures() -> Figures;
        /// What is said about an object, from a number on: the number of the first that is told,
        /// which is larger when some are lost. Kept while somebody asks.
        fn messages(name: String, from: u64) -> Tried<(u64, Vec<Message>)>;
        /// The object of a pager in another process: its size and a right to it. Who waits for a
        /// page of it waits so many milliseconds at most, then gets an error; `None`: until it
        /// comes. That is for who first maps it to say.
        fn map_object(object: SendRight, patience_ms: Option<u32>) => Tried<Both<u64, SendRight>>;
        /// All pagers of objects that the caller may see.
        fn pagers() -> Vec<PagerListed>;
        /// The caller is the default pager from now on: a memory file for calls, a socket that ends
        /// with it, how far it is wired, and where its paging files are.
        fn set_default_pager(calls: Fd, life: Fd, wired: String, folders: Vec<String>) -> Tried<()>;
        /// The caller is told there why it gets SIGBUS, of all that it maps after this: it waits
        /// for the answer, since what it asks of an object next may else be heard first.
        fn tell_of_failure(told: SendRight) -> ();
        /// The object of the cluster of this name, which is made when there is none and it is said
        /// how, and a right to it.
        fn shared(name: String, wanted: Option<Wanted>) => Tried<Both<OfCluster, SendRight>>;
        /// The same; who makes it has its contents from a file, with a journal.
        fn shared_with_file(
            name: String,
            wanted: Wanted,
            file: Fd,
            journal: Fd
        ) => Tried<Both<OfCluster, SendRight>>;
        /// All that any host wrote to an object of the cluster is in its file: how many bytes went there.
        fn flush_shared(name: String) => Tried<u64>;
        /// Takes the name of an object of the cluster away. Who has it keeps it.
        fn unlink_shared(name: String) => Tried<()>;
        /// Nobody writes to an object of the cluster any more.
        fn seal_shared(name: String) => Tried<()>;
        /// The cluster's hosts and objects.
        fn cluster() -> Tried<ClusterListed>;
        /// The caller may have locks: its number, by which others know it until the right is given up
        /// or it ends, and the file of the words at which threads of this host sleep.
        fn enter() -> Tried<Both<u64, Both<SendRight, Fd>>>;
        /// Pages of an object of the cluster, as all hosts tell of them.
        fn pages(name: String, wanted: PagesWanted) => Tried<PagesTold>;
        /// What all hosts of the cluster do.
        fn cluster_figures() => Tried<ClusterFigures>;
        /// A right to the network message server, which knows ports of all hosts by name.
        fn network_server() -> Tried<SendRight>;
        /// A part of the shared memory that is this file stays where it is until the right is given up.
        fn lock_file(file: Fd, wanted: LockWanted) => Tried<Both<LockAbout, SendRight>>;
        /// The same of a System V segment.
        fn lock_segment(number: u32, wanted: LockWanted) => Tried<Both<LockAbout, SendRight>>;
        /// A share of the lock that is lent by this name.
        fn borrow_lock(name: String) => Tried<Both<LockAbout, SendRight>>;
        /// All locks that the caller may see.
        fn locks() => Tried<LocksListed>;
    }
}

interface! {
    /// A lock of shared memory.
    pub trait LockedCalls, client LockedClient, "farpage.locked" version 1 {
        /// Others of the same user may borrow it by this name.
        fn lend(name: String) => Tried<()>;
        /// Whether it still is what was locked.
        fn check() => Tried<()>;
        /// The frames of so many of its pages from its first on, some of them at least.
        fn frames(first: u64, pages: u64) => Tried<Vec<u64>>;
    }
}

interface! {
    /// The network message server: ports of all hosts of the cluster, by name.
    pub trait NetNameCalls, client NetNameClient, "farpage.netname" version 1 {
        /// Gives a port of this host's a name, until it is checked out or dead, or its host is out of
        /// the cluster.
        fn check_in(name: String, port: SendRight) => Tried<()>;
        /// A right to the port of a name.
        fn look_up(name: String) => Tried<SendRight>;
        /// Takes its name away from a port of this host's.
        fn check_out(name: String) => Tried<()>;
        /// All ports that have names and that the caller may use.
        fn list() => Tried<PortsListed>;
    }
}

interface! {
    /// A process that maps objects.
    pub trait FailuresCalls, client FailuresClient, "farpage.failures" version 1 {
        /// The page at a byte of an object cannot be had, which somebody of the process waits for.
        fn cannot_be_had(object: String, byte: u64, why: String) -> ();
    }
}

interface! {
    /// Pages of an object that stay in memory, and are locked at this host as soon as they are there.
    pub trait PagesCalls, client PagesClient, "farpage.pages" version 1 {
        /// Whether they are; or, who waits is answered when they are. One waits at a time.
        fn are_here(waits: bool) => Tried<bool>;
    }
}

interface! {
    /// An object.
    pub trait MemoryCalls, client MemoryClient, "farpage.memory" version 6 {
        /// Its memory file, to be mapped whole.
        fn file() -> Tried<Fd>;
        /// It is mapped at `address`, and registered with the userfaultfd for all faults: until
        /// the right is given up.
        fn map(faults: Fd, address: u64) -> Tried<SendRight>;
        /// The caller will fork, and its child adopt the object: it stays for some seconds, also
        /// when the caller ends before that.
        fn forks() -> ();
        /// What there is to know of it.
        fn about() -> Tried<ObjectAbout>;
        /// It has no more than so many bytes in memory from now on. For its owner and root.
        fn set_ram(bytes: u64) -> Tried<()>;
        /// So many pages from the first stay in memory once they are there, until the right is given
        /// up.
        fn wire(first: u64, pages: u64) -> Tried<SendRight>;
        /// As `wire`, and other hosts do not change them meanwhile, nor, when they are locked to write, read
        /// them. The right is to `Pages`, which says when they are here.
        fn lock(first: u64, pages: u64, to_write: bool) -> Tried<SendRight>;
        /// Threads of these other hosts, one bit each, that wait at a byte of it are to go on.
        fn wake(offset: u64, hosts: u64) -> ();
        /// Whether a process lives that took something in it, by its number.
        fn lives(process: u64) => bool;
        /// This host releases or acquires it, if it is of the cluster and has release consistency.
        fn passes(what: Passes) => Tried<()>;
    }
}
