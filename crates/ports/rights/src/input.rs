//! What the shell tells a Space, and what a Space tells the shell.

use alloc::vec::Vec;

use crate::error::{Error, Violation};
use crate::export::{ExportState, Link};
use crate::frame::Frame;
use crate::message::{Descriptor, Got, LinkId, Memory, TaskId, Tick, Waiter};
use crate::settle::Work;
use crate::space::Space;
use crate::wait::Chance;

/// Something that happened outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A frame came by a Link, with its descriptors.
    Frame {
        /// The Link.
        link: LinkId,
        /// The frame.
        frame: Frame,
        /// The descriptors that came with it.
        descriptors: Vec<Descriptor>,
    },
    /// A Link is down: its peer is gone, or has closed it.
    LinkDown(LinkId),
    /// No Link to this task could be brought about.
    NotIntroduced(TaskId),
    /// Time has passed.
    Time,
}

/// Why a waiter is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Woken {
    /// Try again; pass the chance on if that comes to nothing.
    Ready(Chance),
    /// The time is up.
    TimedOut,
}

/// Something for the shell to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub enum Output {
    /// Put a frame on a Link, with these descriptors; they are the Space's no more.
    Frame {
        /// The Link.
        link: LinkId,
        /// The frame.
        frame: Frame,
        /// The descriptors that go with it.
        descriptors: Vec<Descriptor>,
    },
    /// Wake a waiter.
    Wake {
        /// Whom.
        waiter: Waiter,
        /// Why.
        why: Woken,
    },
    /// Bring about a Link to a task that a peer has spoken of, or say that there will be none.
    Introduce {
        /// Whom to meet.
        task: TaskId,
        /// Whose peer has spoken of it.
        by: LinkId,
    },
    /// The peer of a Link offers a right that was [expected](Space::expect_offer).
    Offered {
        /// The Link.
        link: LinkId,
        /// What it is known by.
        token: u64,
        /// The right.
        right: Got,
    },
    /// Close a descriptor of a message that nobody receives.
    Close(Descriptor),
    /// Memory that was lent with a message that nobody receives.
    Unused(Memory),
}

impl Space {
    /// Takes in what happened. Time-outs that are due at `now` are dealt with as well.
    ///
    /// # Errors
    /// [`Violation`] when the peer of a Link broke the protocol. The Link is down for this Space;
    /// the shell closes it. Nothing else is affected.
    pub fn handle(&mut self, now: Tick, input: Input) -> Result<(), Violation> {
        let result = match input {
            Input::Frame {
                link,
                frame,
                descriptors,
            } => self.handle_frame(link, frame, descriptors),
            Input::LinkDown(link) => {
                self.link_down(link);
                Ok(())
            }
            Input::NotIntroduced(task) => {
                self.not_introduced(task);
                Ok(())
            }
            Input::Time => Ok(()),
        };
        self.handle_time(now);
        result
    }

    /// A Link to `task` is up; the shell vouches for that identity. The `badge` is what else there
    /// is to say of the peer; it comes with each message of this Link's.
    ///
    /// # Errors
    /// [`Error::LinkUp`] when the number is in use or there is a Link to this task.
    pub fn link_up(&mut self, link: LinkId, task: TaskId, badge: u64) -> Result<(), Error> {
        let taken = self.links.contains_key(&link) || self.tasks.contains_key(&task);
        if taken || task == self.task {
            return Err(Error::LinkUp);
        }
        self.links.insert(link, Link::new(task, badge));
        self.tasks.insert(task, link);
        self.introducing.remove(&task);
        let least = (task, TaskId(0), 0);
        let asked = self
            .accepts
            .range(least..)
            .take_while(|(key, _)| key.0 == task);
        let asked: Vec<_> = asked.map(|(&key, &import)| (key, import)).collect();
        for ((_, from, nonce), import) in asked {
            let kind = self.imports[import].kind;
            self.put_frame(link, Frame::Accept { from, nonce, kind });
        }
        Ok(())
    }

    /// A Link is down. Rights to the peer's ports are dead, its own rights are given back.
    pub fn link_down(&mut self, link: LinkId) {
        let Some(table) = self.links.get_mut(&link) else {
            return;
        };
        let task = table.task;
        let imports = table.imports.take_sorted();
        let exports = table.exports.take_sorted();
        self.tasks.remove(&task);
        self.drop_frames(link);
        for import in imports.into_values() {
            self.import_dies(import);
        }
        for export in exports.into_keys() {
            if self.exports[export].state == ExportState::Leaving {
                let port = self.exports[export].port;
                self.work(Work::Forward(port));
            }
            let right = self.remove_export(export);
            self.trash(right);
        }
        self.fail_accepts(task);
        self.handovers_end(link, task);
        self.links.remove(&link);
        self.settle();
    }

    /// Frames that were not taken yet go nowhere, and neither do their descriptors.
    fn drop_frames(&mut self, down: LinkId) {
        for output in core::mem::take(&mut self.outputs) {
            match output {
                Output::Frame {
                    link, descriptors, ..
                } if link == down => {
                    self.outputs
                        .extend(descriptors.into_iter().map(Output::Close));
                }
                output => self.outputs.push_back(output),
            }
        }
    }

    /// Takes in a frame. What came by a Link that is down is dropped.
    ///
    /// # Errors
    /// As [`Self::handle`].
    pub fn handle_frame(
        &mut self,
        link: LinkId,
        frame: Frame,
        descriptors: Vec<Descriptor>,
    ) -> Result<(), Violation> {
        let Some(table) = self.links.get(&link) else {
            self.outputs
                .extend(descriptors.into_iter().map(Output::Close));
            return Ok(());
        };
        let task = table.task;
        let accepted = self.accept(link, frame, descriptors);
        if accepted.is_err() {
            self.link_down(link);
        }
        self.settle();
        accepted.map_err(|fault| Violation { link, task, fault })
    }
}
