//! Answers that a server gives when it can.

use std::marker::PhantomData;

use super::{Interface, Outcome, Outgoing, Wire};
use crate::Right;

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
        let Ok(message) = out.finish(&self.of, Outcome::Fine) else {
            return false;
        };
        match self.to {
            Some(Right::SendOnce(right)) => right.send(message).is_ok(),
            Some(Right::Send(right)) => {
                let sent = right.send(message, Some(std::time::Duration::ZERO));
                sent.is_ok()
            }
            Some(Right::Receive(_) | Right::Dead) | None => false,
        }
    }
}
