//! Answers that a server gives when it can, or another for it.

use std::marker::PhantomData;
use std::time::Duration;

use super::{Interface, Outcome, Outgoing, Wire};
use crate::{Message, Right, SendRight};

/// Owed to a caller, from any thread. Dropped, it tells the caller that there will be none.
#[derive(Debug)]
pub struct Answer<T> {
    of: Interface,
    method: u32,
    to: Option<Right>,
    kind: PhantomData<fn(T)>,
}

impl<T: Wire> Answer<T> {
    /// To whom `reply` is; for what [`interface!`](crate::interface) makes.
    #[must_use]
    pub fn new(of: &Interface, method: u32, reply: &mut Option<Right>) -> Self {
        Self {
            of: *of,
            method,
            to: reply.take(),
            kind: PhantomData,
        }
    }

    /// Answers. False when nobody waits any more, or it cannot be sent.
    pub fn give(self, answer: T) -> bool {
        let mut out = Outgoing::new(self.method);
        if answer.put(&mut out).is_err() {
            return false;
        }
        let message = out.finish(&self.of, Outcome::Fine);
        message.is_ok_and(|message| reply(self.to, message))
    }
}

/// Sends an answer. False when nobody waits any more, or it cannot be sent.
fn reply(to: Option<Right>, message: Message) -> bool {
    match to {
        Some(Right::SendOnce(right)) => right.send(message).is_ok(),
        Some(Right::Send(right)) => right.send(message, Some(Duration::ZERO)).is_ok(),
        Some(Right::Receive(_) | Right::Dead) | None => false,
    }
}

/// Passes a call on to a server, which answers the caller; without `call` it is refused. For what
/// [`interface!`](crate::interface) makes.
pub fn pass_on(of: &Interface, to: &SendRight, caller: Option<Right>, call: Option<Outgoing>) {
    match call {
        Some(call) => {
            if let Ok(message) = call.finish(of, Outcome::Fine) {
                // When the server is gone the caller hears it: its right to the answer goes, too.
                let _ = to.send(
                    Message {
                        reply: caller,
                        ..message
                    },
                    None,
                );
            }
        }
        None => {
            if let Ok(message) = Outgoing::new(0).finish(of, Outcome::Refused) {
                reply(caller, message);
            }
        }
    }
}
