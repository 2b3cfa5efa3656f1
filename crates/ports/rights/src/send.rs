//! Sending: everything is checked before anything moves.

use alloc::boxed::Box;

use crate::error::{Refused, SendError};
use crate::few::each;
use crate::frame::Frame;
use crate::import::ImportState;
use crate::message::{
    Disposition, Give, LinkId, MAX_DESCRIPTORS, MAX_INLINE, MAX_MEMORY, MAX_MEMORY_ELSEWHERE,
    MAX_RIGHTS, MemoryKind, Message, Sender,
};
use crate::port::{Letter, Parcel, Place};
use crate::right::{Entry, Right, Target};
use crate::space::Space;
use crate::wait::Wait;

impl Space {
    /// Sends a message: queues it at a port here, or puts a frame out.
    ///
    /// A send right needs room in the port's queue, or credit of the port's owner; a send-once
    /// right is always taken.
    ///
    /// # Errors
    /// The message with all that is in it, and why. [`SendError::WouldBlock`] says what to wait
    /// for.
    pub fn send(&mut self, message: Message) -> Result<(), Refused> {
        let checked = self.check_send(&message);
        if checked.is_ok() {
            self.dispatch(message);
            self.settle();
            return Ok(());
        }
        self.settle();
        checked.map_err(|error| Refused {
            error,
            message: Box::new(message),
        })
    }

    /// Gives the peer of a Link a right to begin with: a new Link carries none. The peer waits for
    /// it, and knows it by the `token`.
    ///
    /// # Errors
    /// [`SendError::Destination`] when there is no such Link; [`SendError::Right`] when the right
    /// cannot be given.
    pub fn offer(&mut self, link: LinkId, token: u64, give: Give) -> Result<(), SendError> {
        if !self.links.contains_key(&link) {
            return Err(SendError::Destination(crate::Error::InvalidName));
        }
        if give.how == Disposition::MoveReceive {
            return Err(SendError::Right(0, crate::Error::InvalidRight));
        }
        let checked = self.check_gives(core::iter::once(give));
        checked.map_err(|(at, error)| SendError::Right(at, error))?;
        let right = self.copy_in(give);
        let right = self.carry(right, link, false);
        self.put_frame(link, Frame::Offer { token, right });
        self.settle();
        Ok(())
    }

    /// Waits for a right to begin with, which somebody will [`offer`](Self::offer). The token
    /// should be one that nobody guesses: whoever offers first is believed. An offer that nobody
    /// waits for is dropped.
    pub fn expect_offer(&mut self, token: u64) {
        self.expected.insert(token);
    }

    /// Waits for it no more.
    pub fn forget_offer(&mut self, token: u64) {
        self.expected.remove(&token);
    }

    fn check_send(&mut self, message: &Message) -> Result<(), SendError> {
        let donated = message.memory.iter();
        let donated = donated.filter(|memory| memory.kind == MemoryKind::Donated);
        if message.bytes.len() > MAX_INLINE
            || message.rights.len() > MAX_RIGHTS
            || message.memory.len() > MAX_MEMORY
            || message.descriptors.len() + donated.count() > MAX_DESCRIPTORS
        {
            return Err(SendError::TooLarge);
        }
        let invalid = crate::Error::InvalidRight;
        if message.to.how == Disposition::MoveReceive {
            return Err(SendError::Destination(invalid));
        }
        if message
            .reply
            .is_some_and(|reply| reply.how == Disposition::MoveReceive)
        {
            return Err(SendError::Reply(invalid));
        }
        let replies = usize::from(message.reply.is_some());
        let given = message.reply.into_iter();
        let given = given.chain(message.rights.iter().copied());
        let gives = core::iter::once(message.to).chain(given.clone());
        self.check_gives(gives).map_err(|(at, error)| match at {
            0 => SendError::Destination(error),
            at if at <= replies => SendError::Reply(error),
            at => SendError::Right(at - 1 - replies, error),
        })?;
        self.check_reach(message)?;
        self.check_way(message.to, given)
    }

    /// Checks that what stands for a port of another host gets only what can go there.
    fn check_reach(&mut self, message: &Message) -> Result<(), SendError> {
        let moves = |give: &Give| give.how == Disposition::MoveReceive;
        let donated = message.memory.iter().map(|memory| memory.length);
        let bytes = donated.fold(0, u64::saturating_add);
        let can_go = message.descriptors.is_empty()
            && bytes <= MAX_MEMORY_ELSEWHERE
            && !message.rights.iter().any(moves);
        if can_go {
            return Ok(());
        }
        let target = match self.entry(message.to.name) {
            Ok(Entry::Port { target, .. } | Entry::Once(target)) => target,
            Ok(Entry::Dead { .. } | Entry::Set(_)) | Err(_) => return Ok(()),
        };
        let is_proxy = match target {
            Target::Port(port) => self.ports[port].is_proxy,
            // Of what is awaited the port is not known yet.
            Target::Import(import) => self.imports[import].export.is_proxy(),
        };
        match is_proxy {
            true => Err(SendError::Elsewhere),
            false => Ok(()),
        }
    }

    /// Checks that the destination takes the message now.
    fn check_way(&mut self, to: Give, gives: impl Iterator<Item = Give>) -> Result<(), SendError> {
        let full = Err(SendError::WouldBlock(Wait::Room(to.name)));
        let once = matches!(
            to.how,
            Disposition::MakeSendOnce | Disposition::MoveSendOnce
        );
        match self.entry(to.name).map_err(SendError::Destination)? {
            Entry::Dead { .. } => Err(SendError::Dead),
            Entry::Set(_) => Err(SendError::Destination(crate::Error::InvalidRight)),
            Entry::Port { target, .. } | Entry::Once(target) => match target {
                Target::Port(port) => {
                    let it = &self.ports[port];
                    if !once && it.local >= it.limit {
                        return full;
                    }
                    self.check_circular(port, gives)
                }
                Target::Import(import) => {
                    let it = &self.imports[import];
                    match it.state {
                        ImportState::Awaited { .. } if once => Ok(()),
                        ImportState::Live if once || it.credits > 0 => Ok(()),
                        ImportState::Live
                        | ImportState::Awaited { .. }
                        | ImportState::Following => full,
                        ImportState::Releasing | ImportState::Replaced(_) | ImportState::Dead => {
                            unreachable!("entries are refreshed")
                        }
                    }
                }
            },
        }
    }

    fn check_circular(
        &mut self,
        to: u32,
        gives: impl Iterator<Item = Give>,
    ) -> Result<(), SendError> {
        for give in gives.filter(|give| give.how == Disposition::MoveReceive) {
            let port = self.receive_port(give.name);
            if port.is_ok_and(|port| self.is_circular(to, port)) {
                return Err(SendError::Circular);
            }
        }
        Ok(())
    }

    /// Whether the receive right of `moving`, queued at `to`, would be queued at itself.
    pub(crate) fn is_circular(&self, mut to: u32, moving: u32) -> bool {
        loop {
            if to == moving {
                return true;
            }
            match self.ports.get(to).map(|port| port.place) {
                Some(Place::Queued(at)) => to = at,
                Some(Place::Named(_) | Place::Loose) | None => return false,
            }
        }
    }

    fn dispatch(&mut self, message: Message) {
        // A name that is copied from keeps its reference while the message goes.
        let copied = match (message.to.how, self.names[message.to.name.key().index]) {
            (Disposition::CopySend, Entry::Port { target, .. }) => match target {
                Target::Import(import) => Some(import),
                Target::Port(_) => None,
            },
            _ => None,
        };
        let to = match copied {
            Some(_) => Right::Dead,
            None => self.copy_in(message.to),
        };
        let parcel = Parcel {
            sender: Sender::Own,
            id: message.id,
            reply: message.reply.map(|give| self.copy_in(give)),
            bytes: message.bytes,
            rights: each(message.rights, |give| self.copy_in(give)),
            descriptors: message.descriptors,
            memory: message.memory,
        };
        if let Some(import) = copied {
            self.transmit(import, parcel, 0);
            return;
        }
        match to {
            Right::Send(Target::Port(port)) => {
                let mut letter = Letter::new(parcel, to);
                letter.local = true;
                self.enqueue(port, letter);
            }
            Right::Send(target @ Target::Import(import)) => {
                self.transmit(import, parcel, 0);
                self.trash(Right::Send(target));
            }
            Right::Once(target) => self.send_once(target, parcel, 0),
            Right::Dead | Right::Receive(_) => unreachable!("the destination was checked"),
        }
    }
}
