//! The processes of this host that wait for one another, and for those of other hosts: they sleep
//! at words of one file ([`farpage_client::sleepers`]).

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;

use farpage_client::sleepers::{self, BYTES};
use farpage_rules::sync::{Process, SERIAL_BITS};
use farpage_sys::memory_file::{self, Words};
use farpage_sys::{Errno, lock};

/// The last bits of a process's number count the processes of one stay of its host in a cluster; those
/// before them are the stay.
const COUNT_BITS: u32 = 20;

/// What other hosts want of the processes of this one.
pub struct Here {
    file: OwnedFd,
    words: Words,
    state: Mutex<State>,
}

struct State {
    /// The number of this host in its cluster; the first where it is alone.
    host: u8,
    /// Which stay it is: grows with each.
    stay: u64,
    last: u64,
    living: HashSet<u64>,
    /// The memory files of the cluster's objects that processes have.
    files: HashMap<u64, u64>,
}

impl Here {
    pub(crate) fn new() -> io::Result<Self> {
        let made = || {
            let file = memory_file::create(c"farpage-sleepers", BYTES)?;
            memory_file::seal(file.as_fd(), memory_file::FIXED)?;
            let words = Words::map(file.as_fd(), BYTES)?;
            Ok((file, words))
        };
        let (file, words) = made().map_err(|errno: Errno| io::Error::from_raw_os_error(errno.0))?;
        // Nobody had such numbers in an earlier life of this host.
        let last = RandomState::new().hash_one(std::process::id()) >> (64 - SERIAL_BITS + 1);
        let state = State {
            host: 0,
            stay: 0,
            last,
            living: HashSet::new(),
            files: HashMap::new(),
        };
        Ok(Self {
            file,
            words,
            state: Mutex::new(state),
        })
    }

    /// This host begins a stay in a cluster, under this number. Whoever has entered before is not known
    /// there, and must enter anew: what it took in an earlier stay is no longer its own.
    pub fn is_host(&self, host: u8, stay: u64) {
        let mut state = lock(&self.state);
        state.host = host;
        state.stay = stay;
        state.last = (stay << COUNT_BITS) % (1 << SERIAL_BITS);
        state.living.clear();
    }

    /// This host's number; the first where it is alone.
    pub(crate) fn host(&self) -> u8 {
        lock(&self.state).host
    }

    /// This host's stay.
    pub(crate) fn stay(&self) -> u64 {
        lock(&self.state).stay
    }

    pub(crate) fn file(&self) -> io::Result<OwnedFd> {
        self.file.try_clone()
    }

    /// A process has come.
    pub(crate) fn enters(&self) -> Process {
        let mut state = lock(&self.state);
        state.last += 1;
        let process = Process::new(state.host, state.last);
        state.living.insert(process.number());
        process
    }

    /// It has gone, for ever.
    pub(crate) fn leaves(&self, process: Process) {
        lock(&self.state).living.remove(&process.number());
    }

    pub(crate) fn has(&self, number: u64, inode: u64) {
        lock(&self.state).files.insert(number, inode);
    }

    pub(crate) fn has_no_more(&self, number: u64) {
        lock(&self.state).files.remove(&number);
    }

    /// Whether a process of this host lives.
    #[must_use]
    pub fn lives(&self, process: u64) -> bool {
        lock(&self.state).living.contains(&process)
    }

    /// All threads of this host that wait at a byte of an object of the cluster go on.
    pub fn wake(&self, number: u64, offset: u64) {
        let inode = lock(&self.state).files.get(&number).copied();
        if let Some(inode) = inode {
            sleepers::wake(&self.words.u32s()[sleepers::word(inode, offset)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn a_process_lives_from_its_coming_to_its_going() {
        let here = Here::new().unwrap();
        here.is_host(7, 0);
        let (one, two) = (here.enters(), here.enters());
        assert_eq!(one.host(), 7);
        assert!(one != two && here.lives(one.number()) && here.lives(two.number()));
        here.leaves(one);
        assert!(!here.lives(one.number()) && here.lives(two.number()));
        assert!(!here.lives(0) && !here.lives(u64::MAX));
    }

    #[test]
    fn numbers_of_one_stay_are_none_of_another() {
        let here = Here::new().unwrap();
        here.is_host(2, 5);
        let before = here.enters();
        for (host, stay) in [(2, 6), (3, 7), (2, 8)] {
            here.is_host(host, stay);
            assert!(
                !here.lives(before.number()),
                "it took its locks in the stay before"
            );
            let now = here.enters();
            assert!(now != before && now.host() == host && here.lives(now.number()));
            here.leaves(before);
            assert!(here.lives(now.number()));
        }
        // Stays that no number has room for begin anew.
        here.is_host(63, u64::MAX);
        assert_eq!(here.enters().host(), 63);
    }

    #[test]
    fn who_waits_at_a_byte_of_an_object_is_woken_there() {
        let here = Here::new().unwrap();
        here.has(3, 77);
        let at = &here.words.u32s()[sleepers::word(77, 4096)];
        here.wake(3, 4096);
        here.wake(4, 4096);
        assert_eq!(at.load(Ordering::SeqCst), 1);
        here.has_no_more(3);
        here.wake(3, 4096);
        assert_eq!(at.load(Ordering::SeqCst), 1);
    }
}
