//! What the tasks of a tree say.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::SyncSender;

use farpage_object::maps::Word;
use farpage_object::{Control, TASKS_MAX};
use farpage_sys::{Errno, message};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Objects;
use crate::space::{Places, Task};

/// Takes the tasks' userfaultfds over as they come, and has the pages that they will want go to
/// `soon`. Returns when no task is left that could say something.
pub(crate) fn hear(
    control: &'static Control,
    objects: &Objects,
    socket: &OwnedFd,
    soon: &SyncSender<Word>,
) {
    let mut bytes = [0; Word::BYTES];
    loop {
        match message::wait(socket.as_fd(), &mut bytes) {
            Ok((Word::BYTES, with)) => match (Word::from_bytes(&bytes), with) {
                (word, Some(faults)) if word.kind == Word::FAULTS => {
                    add(control, objects, word.which as usize, faults);
                }
                (word, None) if word.kind == Word::SOON => {
                    // Nothing is lost but time when there are too many.
                    let _ = soon.try_send(word);
                }
                _ => {}
            },
            Err(Errno::EINTR) => {}
            Ok(_) | Err(_) if is_left(socket) => return,
            // A task has said something that is none of our words.
            Ok(_) | Err(_) => {}
        }
    }
}

/// True when nobody has the other end any more.
fn is_left(socket: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::empty())];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::HUP)
}

fn add(control: &'static Control, objects: &Objects, slot: usize, faults: OwnedFd) {
    if slot >= TASKS_MAX {
        return;
    }
    objects.detach_tasks(|task| task.slot == slot);
    let task = Task::in_slot(control, slot);
    if let Err(errno) = objects.answer(faults, Places::Listed(task)) {
        farpage_sys::say!("farpage: cannot answer the faults of the task in slot {slot}: {errno}");
    }
}
