//! The tasks of the tree: noticing new ones, serving what they ask, and taking back what they held
//! when they die.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use farpage_object::{Control, Death, Inject, TASKS_MAX};
use farpage_sys::{futex, lock};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::agent::AgentImage;
use super::{cores, inject};
use crate::config::Casualty;

/// Ids above belong to processes that this one cannot watch: being forked, or in another namespace.
const PIDS_MAX: u32 = i32::MAX as u32;
/// Longest time between two looks at the slots. New tasks are not announced: a wake-up of this
/// process would cost a short one more than all else that the agent does at its start.
const STEP_NS: u64 = 50_000_000;
/// Pause when there are no descriptors left to watch with.
const RETRY: Duration = Duration::from_millis(20);

/// What watches the tasks, shared by its threads.
pub struct Tasks {
    control: &'static Control,
    image: AgentImage,
    epoll: OwnedFd,
    watched: Mutex<Vec<Option<Watched>>>,
    casualties: Mutex<Vec<Casualty>>,
    /// How the program ended that was started first, once this process has waited for it.
    ended: Mutex<Option<(u32, i32)>>,
    /// Both threads may find a process dead: one at a time takes back what it held.
    burial: Mutex<()>,
}

struct Watched {
    process: u32,
    /// Readable when the process is dead.
    pidfd: OwnedFd,
}

impl Tasks {
    /// Watches the tasks of `control`, from threads of its own, until this process ends.
    ///
    /// # Errors
    /// When the kernel has no descriptor or thread for it.
    pub fn watch(control: &'static Control, image: AgentImage) -> Result<Arc<Self>> {
        let tasks = Arc::new(Self {
            control,
            image,
            epoll: epoll::create(CreateFlags::CLOEXEC).context("cannot watch tasks")?,
            watched: Mutex::new((0..TASKS_MAX).map(|_| None).collect()),
            casualties: Mutex::new(Vec::new()),
            ended: Mutex::new(None),
            burial: Mutex::new(()),
        });
        let (notice, bury) = (Arc::clone(&tasks), Arc::clone(&tasks));
        spawn("tasks", move || notice.notice_for_ever())?;
        spawn("deaths", move || bury.bury_for_ever())?;
        Ok(tasks)
    }

    /// True until what a process held was taken back, and noted of what it died.
    pub fn is_there(&self, process: u32) -> bool {
        self.control.slot_of(process).is_some()
    }

    /// True when what becomes of a task may have to be told.
    pub fn may_be_told_of(&self) -> bool {
        cores::can_miss_memory(self.control)
    }

    /// The first program has ended with this wait status. A short one was not watched yet: looks at
    /// once.
    pub fn has_ended(&self, process: u32, status: i32) {
        *lock(&self.ended) = Some((process, status));
        self.control.inject_requests.fetch_add(1, Ordering::AcqRel);
        futex::wake(&self.control.inject_requests, 1);
    }

    /// The wait status of a dead process, if it can be learned.
    fn status_of(&self, process: u32, pidfd: Option<&OwnedFd>) -> Option<i32> {
        let own = lock(&self.ended).filter(|ended| ended.0 == process);
        own.map(|ended| ended.1)
            .or_else(|| cores::status_of(process, pidfd))
    }

    /// Tasks that Farpage ended since the last call.
    pub fn take_casualties(&self) -> Vec<Casualty> {
        std::mem::take(&mut lock(&self.casualties))
    }

    fn notice_for_ever(self: &Arc<Self>) {
        loop {
            let seen = self.control.inject_requests.load(Ordering::Acquire);
            self.notice();
            futex::wait(&self.control.inject_requests, seen, Some(STEP_NS));
        }
    }

    /// Looks at every slot once.
    fn notice(self: &Arc<Self>) {
        for (slot, task) in self.control.slots().iter().enumerate() {
            let process = task.pid.load(Ordering::Acquire);
            if process == 0 || process > PIDS_MAX {
                continue;
            }
            self.begin_to_watch(slot, process);
            if inject::answer(task, Inject::Asked, Inject::Taken) {
                self.serve(slot);
            }
        }
    }

    fn begin_to_watch(&self, slot: usize, process: u32) {
        let mut watched = lock(&self.watched);
        if watched[slot]
            .as_ref()
            .is_some_and(|seen| seen.process == process)
        {
            return;
        }
        let Some(pid) = Pid::from_raw(process as i32) else {
            return;
        };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => {
                let data = EventData::new_u64(slot as u64);
                // The entry it replaces is of a process that is dead and had left its slot itself.
                if epoll::add(&self.epoll, &pidfd, data, EventFlags::IN).is_ok() {
                    watched[slot] = Some(Watched { process, pidfd });
                }
            }
            Err(Errno::SRCH) => self.bury(slot, process, None),
            Err(_) => std::thread::sleep(RETRY),
        }
    }

    /// Maps the agent into the program that the task in `slot` is about to execute.
    fn serve(self: &Arc<Self>, slot: usize) {
        let tasks = Arc::clone(self);
        let work = move || inject::serve(tasks.control, slot, &tasks.image);
        // Traced threads are their tracer's alone: one thread each. Without one the task gives up.
        let _ = spawn("inject", work);
    }

    fn bury_for_ever(&self) {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            let buffer = rustix::buffer::spare_capacity(&mut events);
            if epoll::wait(&self.epoll, buffer, None).is_err() {
                continue;
            }
            for event in &events {
                let slot = event.data.u64() as usize;
                let gone = lock(&self.watched)[slot].take();
                if let Some(gone) = gone {
                    let _ = epoll::delete(&self.epoll, gone.pidfd.as_fd());
                    self.bury(slot, gone.process, Some(&gone.pidfd));
                }
            }
        }
    }

    /// Takes back what the dead `process` held, unless its slot is another's by now.
    fn bury(&self, slot: usize, process: u32, pidfd: Option<&OwnedFd>) {
        let _one_at_a_time = lock(&self.burial);
        let task = &self.control.tasks[slot];
        if task.pid.load(Ordering::Acquire) != process {
            return;
        }
        let cause = Death::from_raw(task.death.load(Ordering::Acquire));
        if cause != Death::Alive {
            let name = std::fs::read_to_string(format!("/proc/{process}/comm"));
            let name = name.unwrap_or_default().trim_end().to_string();
            lock(&self.casualties).push(Casualty {
                pid: process,
                name,
                cause,
            });
        }
        if cores::can_miss_memory(self.control)
            && let Some(status) = self.status_of(process, pidfd)
        {
            cores::tell(task, process, status);
        }
        self.control.reap(slot);
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let builder = std::thread::Builder::new().name(name.to_string());
    builder.spawn(work).context("cannot start a thread")?;
    Ok(())
}
