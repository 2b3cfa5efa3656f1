//! The tasks that have mapped files in their memory, and their userfaultfds.

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use farpage_abi::maps::Word;
use farpage_abi::{Control, TASKS_MAX};
use farpage_sys::file::Fd;
use farpage_sys::socket;
use farpage_sys::uffd::Uffd;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// What the socket is called among the tasks.
const SOCKET: u64 = u64::MAX;
const ONCE: EventFlags = EventFlags::IN.union(EventFlags::ONESHOT);

/// One task's faults.
pub struct Task {
    pub slot: usize,
    /// As the control block has it.
    pub process: u32,
    faults: OwnedFd,
}

impl Task {
    pub fn uffd(&self) -> Uffd {
        Uffd(Fd(self.faults.as_raw_fd()))
    }
}

/// What there is to do next.
pub enum Next {
    /// This task may have faults. Others are looked at again after [`Tasks::listen_again`].
    Faults(Arc<Task>),
    /// A task says something.
    Word(Word),
    /// Nothing after all.
    Nothing,
}

/// All of them.
pub struct Tasks {
    control: &'static Control,
    socket: OwnedFd,
    epoll: OwnedFd,
    all: Mutex<HashMap<usize, Arc<Task>>>,
}

impl Tasks {
    pub fn new(control: &'static Control, socket: OwnedFd) -> rustix::io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &socket, EventData::new_u64(SOCKET), ONCE)?;
        Ok(Self {
            control,
            socket,
            epoll,
            all: Mutex::default(),
        })
    }

    /// Waits for something to do.
    pub fn next(&self) -> Next {
        let mut event = [MaybeUninit::uninit()];
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut event, None) else {
            return Next::Nothing;
        };
        match events.first().map(|event| event.data.u64()) {
            Some(SOCKET) => {
                let word = self.receive();
                let _ = epoll::modify(&self.epoll, &self.socket, EventData::new_u64(SOCKET), ONCE);
                word.map_or(Next::Nothing, Next::Word)
            }
            Some(slot) => {
                let task = self.lock().get(&(slot as usize)).cloned();
                task.map_or(Next::Nothing, Next::Faults)
            }
            None => Next::Nothing,
        }
    }

    /// The next fault of the task may be another thread's to answer.
    pub fn listen_again(&self, task: &Task) {
        let data = EventData::new_u64(task.slot as u64);
        // It may have been forgotten meanwhile.
        let _ = epoll::modify(&self.epoll, &task.faults, data, ONCE);
    }

    /// True while this is what the task in its slot uses.
    pub fn is_current(&self, task: &Task) -> bool {
        let all = self.lock();
        all.get(&task.slot)
            .is_some_and(|other| std::ptr::eq(&**other, task))
    }

    /// Forgets tasks that are gone.
    pub fn sweep(&self) {
        let mut all = self.lock();
        all.retain(|slot, task| {
            let process = self.control.tasks[*slot].pid.load(Ordering::Acquire);
            process == task.process || epoll::delete(&self.epoll, &task.faults).is_err()
        });
    }

    /// Forgets a task.
    pub fn forget(&self, task: &Task) {
        let mut all = self.lock();
        if all
            .get(&task.slot)
            .is_some_and(|other| std::ptr::eq(&**other, task))
        {
            all.remove(&task.slot);
            let _ = epoll::delete(&self.epoll, &task.faults);
        }
    }

    fn receive(&self) -> Option<Word> {
        let mut bytes = [0; Word::BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut with = RecvAncillaryBuffer::new(&mut space);
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let got = recvmsg(&self.socket, &mut pieces, &mut with, flags).ok()?;
        let fd = with.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let word = (got.bytes == Word::BYTES).then(|| Word::from_bytes(&bytes))?;
        match fd {
            Some(faults) if word.kind == Word::FAULTS => {
                self.add(word.which as usize, faults);
                None
            }
            _ => Some(word),
        }
    }

    fn add(&self, slot: usize, faults: OwnedFd) {
        if slot >= TASKS_MAX || socket::do_not_wait(Fd(faults.as_raw_fd())).is_err() {
            return;
        }
        let process = self.control.tasks[slot].pid.load(Ordering::Acquire);
        let task = Arc::new(Task {
            slot,
            process,
            faults,
        });
        let mut all = self.lock();
        if let Some(before) = all.insert(slot, Arc::clone(&task)) {
            let _ = epoll::delete(&self.epoll, &before.faults);
        }
        let data = EventData::new_u64(slot as u64);
        if let Err(error) = epoll::add(&self.epoll, &task.faults, data, ONCE) {
            eprintln!("farpage: cannot answer the faults of process {process}: {error}");
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<usize, Arc<Task>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
