//! Waiting without a thread: futures for any executor, and descriptors for any poll.

use std::future::Future;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use farpage_rights::{Disposition, Give, Name, Wait, Waiter};
use rustix::event::{EventfdFlags, eventfd};

use super::Node;
use super::error::{CallError, ReceiveError, Refused, SendError};
use super::message::{Message, Notice, Received};
use super::right::{PortSet, ReceiveRight, Right, SendRight};
use super::state::How;

/// The next message of a port or a set, as a future.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Receiving<'a> {
    node: &'a Node,
    name: Name,
    waiter: Option<Waiter>,
}

impl<'a> Receiving<'a> {
    fn new(node: &'a Node, name: Name) -> Self {
        let waiter = None;
        Self { node, name, waiter }
    }
}

/// A message that is sent when there is room, as a future.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Sending<'a> {
    node: &'a Node,
    to: Name,
    message: Option<Message>,
    waiter: Option<Waiter>,
}

impl Node {
    /// Whether a waiter is to go on waiting, to be woken by `context` from now on. What it was
    /// woken for, it has used when this says no.
    fn still_waits(&self, waiter: &mut Option<Waiter>, context: &Context<'_>) -> bool {
        let Some(number) = *waiter else { return false };
        let mut state = self.lock();
        let Some(slot) = state.waiters.get_mut(&number) else {
            return false;
        };
        if slot.woken.is_none() {
            slot.how = How::Task(context.waker().clone());
            return true;
        }
        state.waiters.remove(&number);
        *waiter = None;
        false
    }

    /// Has `how` woken for `what`.
    fn register(&self, what: Wait, how: How) -> Waiter {
        let mut state = self.lock();
        let waiter = state.waiter(how);
        if state.space.wait(what, waiter, None).is_err() {
            state.wake(waiter, farpage_rights::Woken::TimedOut);
        }
        self.pump(&mut state);
        waiter
    }

    fn unregister(&self, waiter: Option<Waiter>) {
        if let Some(waiter) = waiter {
            let mut state = self.lock();
            self.forget(&mut state, waiter);
            self.pump(&mut state);
        }
    }
}

impl Future for Receiving<'_> {
    type Output = Result<Received, ReceiveError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let it = &mut *self;
        if it.node.still_waits(&mut it.waiter, context) {
            return Poll::Pending;
        }
        match it.node.receive(it.name, Some(Duration::ZERO)) {
            Err(ReceiveError::TimedOut) => {
                let how = How::Task(context.waker().clone());
                it.waiter = Some(it.node.register(Wait::Message(it.name), how));
                Poll::Pending
            }
            received => Poll::Ready(received),
        }
    }
}

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        self.node.unregister(self.waiter.take());
    }
}

impl Future for Sending<'_> {
    type Output = Result<(), Refused>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let it = &mut *self;
        if it.node.still_waits(&mut it.waiter, context) {
            return Poll::Pending;
        }
        let message = it.message.take().expect("polled after it was ready");
        let to = Give::new(it.to, Disposition::CopySend);
        match it.node.send(to, message, Some(Duration::ZERO)) {
            Err(refused) if refused.error == SendError::TimedOut => {
                it.message = Some(*refused.message);
                let how = How::Task(context.waker().clone());
                it.waiter = Some(it.node.register(Wait::Room(it.to), how));
                Poll::Pending
            }
            sent => Poll::Ready(sent),
        }
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.node.unregister(self.waiter.take());
    }
}

impl SendRight {
    /// As [`SendRight::send`], without a thread that waits.
    pub fn send_async(&self, message: Message) -> Sending<'_> {
        Sending {
            node: self.node(),
            to: self.name(),
            message: Some(message),
            waiter: None,
        }
    }

    /// As [`SendRight::call`], without a thread that waits. Dropping the future gives the answer
    /// up.
    ///
    /// # Errors
    /// As for [`SendRight::call`].
    pub async fn call_async(&self, mut message: Message) -> Result<Received, CallError> {
        let port = self.node().port();
        message.reply = Some(Right::SendOnce(port.make_send_once()));
        let sent = self.send_async(message).await;
        sent.map_err(|refused| refused.error)?;
        match port.receive_async().await {
            Ok(received) if received.notice() == Some(Notice::SendOnce) => {
                Err(CallError::Unanswered)
            }
            received => received.map_err(|_| CallError::TimedOut),
        }
    }
}

/// Has somebody woken, once, when there may be room in a port's queue, or the port is dead.
#[derive(Debug)]
pub struct Room {
    node: Node,
    waiter: Option<Waiter>,
}

impl SendRight {
    /// Has `waker` woken when there may be room for a message: at once when there is. It is called
    /// under the Node's lock, and must not use the Node.
    pub fn wake_on_room(&self, waker: std::task::Waker) -> Room {
        let node = self.node().clone();
        let waiter = node.register(Wait::Room(self.name()), How::Task(waker));
        let waiter = Some(waiter);
        Room { node, waiter }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.node.unregister(self.waiter.take());
    }
}

impl ReceiveRight {
    /// As [`ReceiveRight::receive`], without a thread that waits.
    pub fn receive_async(&self) -> Receiving<'_> {
        Receiving::new(self.node(), self.name())
    }

    /// A descriptor that says when there is something to receive.
    ///
    /// # Errors
    /// As `eventfd(2)`.
    pub fn readiness(&self) -> std::io::Result<Readiness> {
        Readiness::new(self.node(), self.name())
    }
}

impl PortSet {
    /// As [`PortSet::receive`], without a thread that waits.
    pub fn receive_async(&self) -> Receiving<'_> {
        Receiving::new(self.node(), self.name())
    }

    /// A descriptor that says when there is something to receive.
    ///
    /// # Errors
    /// As `eventfd(2)`.
    pub fn readiness(&self) -> std::io::Result<Readiness> {
        Readiness::new(self.node(), self.name())
    }
}

/// Becomes readable when there may be something to receive, after [`Readiness::prepare`]: for an
/// event loop that knows descriptors only.
#[derive(Debug)]
pub struct Readiness {
    node: Node,
    name: Name,
    fd: Arc<OwnedFd>,
    waiter: Option<Waiter>,
}

impl Readiness {
    fn new(node: &Node, name: Name) -> std::io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            node: node.clone(),
            name,
            fd: Arc::new(fd),
            waiter: None,
        })
    }

    /// Makes the descriptor unreadable until there is something to receive. False when there is
    /// already: receive, with a time-out of zero, until nothing comes.
    pub fn prepare(&mut self) -> bool {
        self.node.unregister(self.waiter.take());
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.fd, &mut count);
        let how = How::Descriptor(Arc::clone(&self.fd));
        let waiter = self.node.register(Wait::Message(self.name), how);
        self.waiter = Some(waiter);
        let state = self.node.lock();
        let slot = state.waiters.get(&waiter);
        slot.is_some_and(|slot| slot.woken.is_none())
    }
}

impl AsFd for Readiness {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Readiness {
    fn drop(&mut self) {
        self.node.unregister(self.waiter.take());
    }
}
