//! Rights: who holds one may use its port, and gives it up by dropping it.

use std::time::Duration;

use farpage_rights::{Disposition, Give, Name, PortStatus, Request};

use super::Node;
use super::error::{CallError, ReceiveError, Refused};
use super::message::{Message, Received};

/// A right of any kind, as it comes in a message.
#[derive(Debug)]
pub enum Right {
    /// May send any number of messages.
    Send(SendRight),
    /// May send one message.
    SendOnce(SendOnceRight),
    /// Receives what is sent to the port.
    Receive(ReceiveRight),
    /// Was to a port that is dead.
    Dead,
}

impl Right {
    /// The send right that this is.
    #[must_use]
    pub fn into_send(self) -> Option<SendRight> {
        match self {
            Self::Send(right) => Some(right),
            Self::SendOnce(_) | Self::Receive(_) | Self::Dead => None,
        }
    }

    /// The receive right that this is.
    #[must_use]
    pub fn into_receive(self) -> Option<ReceiveRight> {
        match self {
            Self::Receive(right) => Some(right),
            Self::SendOnce(_) | Self::Send(_) | Self::Dead => None,
        }
    }

    pub(super) fn node(&self) -> Option<&Node> {
        match self {
            Self::Send(right) => Some(right.node()),
            Self::SendOnce(right) => Some(right.node()),
            Self::Receive(right) => Some(right.node()),
            Self::Dead => None,
        }
    }

    /// The Space has it now.
    pub(super) fn taken(self) {
        match self {
            Self::Send(mut right) => right.0.name = NOBODY,
            Self::SendOnce(mut right) => right.0.name = NOBODY,
            Self::Receive(mut right) => right.0.name = NOBODY,
            Self::Dead => {}
        }
    }
}

macro_rules! from_right {
    ($($right:ident is $kind:ident),*) => {$(
        impl From<$right> for Right {
            fn from(right: $right) -> Self {
                Self::$kind(right)
            }
        }
    )*};
}
from_right!(SendRight is Send, SendOnceRight is SendOnce, ReceiveRight is Receive);

/// A name of nothing: what it was is another's now.
const NOBODY: Name = Name::from_bits(0);

#[derive(Debug)]
struct Held {
    node: Node,
    name: Name,
}

/// May send messages to a port; cloning it makes another one.
#[derive(Debug)]
pub struct SendRight(Held);

/// May send one message to a port, whatever the queue's limit. Dropped unused, it tells the port:
/// [`Notice::SendOnce`](super::Notice::SendOnce).
#[derive(Debug)]
pub struct SendOnceRight(Held);

/// Receives what is sent to a port. Dropping it destroys the port, with all messages queued;
/// whoever holds a right to it finds it dead.
#[derive(Debug)]
pub struct ReceiveRight(Held);

/// Receives what is sent to its members, in turn. Dropping it leaves the members as they were.
#[derive(Debug)]
pub struct PortSet(Held);

macro_rules! of_a_node {
    ($($right:ident),*) => {$(
        impl $right {
            pub(super) fn new(node: &Node, name: Name) -> Self {
                let node = node.clone();
                Self(Held { node, name })
            }

            pub(super) fn node(&self) -> &Node {
                &self.0.node
            }
        }
    )*};
}
of_a_node!(SendRight, SendOnceRight, ReceiveRight, PortSet);

impl Clone for SendRight {
    /// # Panics
    /// When there are four thousand million of it.
    fn clone(&self) -> Self {
        let mut state = self.0.node.lock();
        let more = state.space.mod_refs(self.0.name, 1);
        more.expect("a held right has a name with room for one more");
        self.0.node.pump(&mut state);
        drop(state);
        Self::new(&self.0.node, self.0.name)
    }
}

impl Drop for SendRight {
    fn drop(&mut self) {
        self.0.give_up(|space, name| space.deallocate(name));
    }
}

impl Drop for SendOnceRight {
    fn drop(&mut self) {
        self.0.give_up(|space, name| space.deallocate(name));
    }
}

impl Drop for ReceiveRight {
    fn drop(&mut self) {
        self.0.give_up(|space, name| space.destroy_receive(name));
    }
}

impl Drop for PortSet {
    fn drop(&mut self) {
        self.0.give_up(|space, name| space.destroy(name));
    }
}

impl Held {
    fn give_up(
        &self,
        how: impl Fn(&mut farpage_rights::Space, Name) -> Result<(), farpage_rights::Error>,
    ) {
        if self.name == NOBODY {
            return;
        }
        let mut state = self.node.lock();
        let given_up = how(&mut state.space, self.name);
        debug_assert_eq!(given_up, Ok(()), "a held right has a name");
        self.node.pump(&mut state);
    }

    fn make(&self, how: Disposition) -> Name {
        let mut state = self.node.lock();
        let made = state.space.insert(Give::new(self.name, how));
        self.node.pump(&mut state);
        made.expect("a receive right makes others")
    }

    fn request(&self, request: Request, to: &ReceiveRight) {
        assert!(
            self.node.is(&to.0.node),
            "the port for a notice is of the same Node"
        );
        let mut state = self.node.lock();
        let notify = Give::new(to.0.name, Disposition::MakeSendOnce);
        let old = state.space.request(self.name, request, Some(notify));
        if let Some(old) = old.expect("held rights have names of their kinds") {
            // Nobody waits for the request that this one replaces.
            let _ = state.space.deallocate(old);
        }
        self.node.pump(&mut state);
    }
}

impl SendRight {
    /// The name in this task: the same for rights to the same port, and never used again for
    /// another.
    #[must_use]
    pub fn name(&self) -> Name {
        self.0.name
    }

    /// Whether the port is known to be dead, as it is once its task has ended.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        let mut state = self.0.node.lock();
        state.look_at_peers();
        let dead = state.space.references(self.0.name);
        self.0.node.pump(&mut state);
        dead.is_ok_and(|(_, dead)| dead)
    }

    /// Sends a message; waits for room in the port's queue at most for `timeout` (zero: not at
    /// all; none: as long as the port lives).
    ///
    /// # Errors
    /// The message, and why: [`SendError`](super::SendError).
    pub fn send(&self, message: Message, timeout: Option<Duration>) -> Result<(), Refused> {
        let to = Give::new(self.0.name, Disposition::CopySend);
        self.0.node.send(to, message, timeout)
    }

    /// Sends a message and waits for the answer, both together at most for `timeout`. The message's
    /// own reply right is replaced by one to a port of the Node's.
    ///
    /// # Errors
    /// [`CallError`]. A caller whose receiver dies is told, whenever that happens.
    pub fn call(&self, message: Message, timeout: Option<Duration>) -> Result<Received, CallError> {
        self.0.node.call(self.0.name, message, timeout)
    }

    /// Asks for [`Notice::Dead`](super::Notice::Dead) at `to` when the port dies, or at once if it
    /// has. Dropping this name's last right before gives
    /// [`Notice::Deleted`](super::Notice::Deleted).
    ///
    /// # Panics
    /// When `to` is of another Node.
    pub fn notify_dead(&self, to: &ReceiveRight) {
        self.0.request(Request::DeadName, to);
    }
}

impl SendOnceRight {
    /// The name in this task.
    #[must_use]
    pub fn name(&self) -> Name {
        self.0.name
    }

    /// The name of its port's receive right, when that is in this task.
    #[must_use]
    pub fn port(&self) -> Option<Name> {
        let mut state = self.0.node.lock();
        let port = state.space.port_of_once(self.0.name);
        self.0.node.pump(&mut state);
        port.expect("a held right has a name")
    }

    /// Sends the one message, without waiting.
    ///
    /// # Errors
    /// The message, and why; the right is dropped then.
    pub fn send(self, message: Message) -> Result<(), Refused> {
        let to = Give::new(self.0.name, Disposition::MoveSendOnce);
        let node = self.0.node.clone();
        let sent = node.send(to, message, Some(Duration::ZERO));
        if sent.is_ok() {
            Right::SendOnce(self).taken();
        }
        sent
    }
}

impl ReceiveRight {
    /// The name in this task; that of its send rights here, too.
    #[must_use]
    pub fn name(&self) -> Name {
        self.0.name
    }

    /// A send right to the port.
    #[must_use]
    pub fn make_send(&self) -> SendRight {
        SendRight::new(&self.0.node, self.0.make(Disposition::MakeSend))
    }

    /// A send-once right to the port.
    #[must_use]
    pub fn make_send_once(&self) -> SendOnceRight {
        SendOnceRight::new(&self.0.node, self.0.make(Disposition::MakeSendOnce))
    }

    /// Waits for the next message at most for `timeout` (zero: not at all; none: for ever).
    ///
    /// # Errors
    /// [`ReceiveError::TimedOut`]; [`ReceiveError::InSet`] for the member of a set.
    pub fn receive(&self, timeout: Option<Duration>) -> Result<Received, ReceiveError> {
        self.0.node.receive(self.0.name, timeout)
    }

    /// Says how many messages each sending task may have queued here, 5 at first: who sends more
    /// waits.
    pub fn set_limit(&self, limit: u16) {
        let mut state = self.0.node.lock();
        let set = state.space.set_limit(self.0.name, limit);
        self.0.node.pump(&mut state);
        set.expect("a held right has a name");
    }

    /// What there is to know about the port.
    #[must_use]
    pub fn status(&self) -> PortStatus {
        let mut state = self.0.node.lock();
        let status = state.space.status(self.0.name);
        self.0.node.pump(&mut state);
        status.expect("a held right has a name")
    }

    /// Asks for [`Notice::NoSenders`](super::Notice::NoSenders) at `to` when nobody holds a send
    /// right any more; at once if that is so and at least `sync` send rights were made. Moving the
    /// receive right away cancels it.
    ///
    /// # Panics
    /// When `to` is of another Node.
    pub fn notify_no_senders(&self, sync: u32, to: &Self) {
        self.0.request(Request::NoSenders { sync }, to);
    }

    /// Asks for [`Notice::Destroyed`](super::Notice::Destroyed) at `to`, with this receive right
    /// and its queue, instead of their destruction when it is dropped.
    ///
    /// # Panics
    /// When `to` is of another Node.
    pub fn notify_destroyed(&self, to: &Self) {
        self.0.request(Request::PortDestroyed, to);
    }
}

impl PortSet {
    pub(super) fn name(&self) -> Name {
        self.0.name
    }

    /// Takes a port into the set, out of any other.
    ///
    /// # Panics
    /// When it is of another Node.
    pub fn insert(&self, port: &ReceiveRight) {
        self.change(port, true);
    }

    /// Takes a port out of the set.
    ///
    /// # Panics
    /// When it is of another Node.
    pub fn remove(&self, port: &ReceiveRight) {
        self.change(port, false);
    }

    fn change(&self, port: &ReceiveRight, is_member: bool) {
        assert!(self.0.node.is(&port.0.node), "a set has ports of its Node");
        let mut state = self.0.node.lock();
        let set = is_member.then_some(self.0.name);
        let moved = state.space.move_member(port.0.name, set);
        self.0.node.pump(&mut state);
        moved.expect("held rights have names");
    }

    /// Waits for the next message to any member, as [`ReceiveRight::receive`] does;
    /// [`Received::port`] says which.
    ///
    /// # Errors
    /// [`ReceiveError::TimedOut`].
    pub fn receive(&self, timeout: Option<Duration>) -> Result<Received, ReceiveError> {
        self.0.node.receive(self.0.name, timeout)
    }
}

impl Received {
    /// Answers the message. False when nobody waits for an answer, or not any more.
    ///
    /// # Errors
    /// The message, when it exceeds a limit or a port's queue is full; the reply right is dropped
    /// then, which the caller is told.
    pub fn answer(&mut self, message: Message) -> Result<bool, Refused> {
        let sent = match self.reply.take() {
            Some(Right::SendOnce(right)) => right.send(message),
            Some(Right::Send(right)) => right.send(message, Some(Duration::ZERO)),
            Some(Right::Receive(_) | Right::Dead) | None => return Ok(false),
        };
        match sent {
            Err(refused) if refused.error == super::SendError::Dead => Ok(false),
            other => other.map(|()| true),
        }
    }
}
