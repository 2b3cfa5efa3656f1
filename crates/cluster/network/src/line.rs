//! One connection, and the session that goes over it.

use std::ops::Range;

use crate::frame::Violation;
use crate::session::Session;

/// A connection that takes bytes and gives them, in order, until it breaks. It never waits.
pub trait Transport {
    /// Takes as much of `bytes` as it can now. None: later.
    ///
    /// # Errors
    /// It is broken.
    fn write(&mut self, bytes: &[u8]) -> Result<usize, Broken>;

    /// Adds what came to `bytes`: about so much at most, or, without a limit, up to the end.
    ///
    /// # Errors
    /// It is broken; what came before was added.
    fn read(&mut self, bytes: &mut Vec<u8>, limit: Option<usize>) -> Result<Left, Broken>;

    /// It has taken bytes that it has not passed on.
    fn is_full(&self) -> bool;
}

/// What was left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Nothing: there will be an event when something comes.
    Nothing,
    /// Perhaps something, for which there will be no event.
    Perhaps,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The peer closed it, or died.
    #[error("the peer closed the connection")]
    Ended,
    /// Linux says so.
    #[error("the connection broke: {0}")]
    System(rustix::io::Errno),
    /// TLS says so.
    #[error("{0}")]
    Tls(String),
    /// The peer sent what cannot be.
    #[error("the connection was closed because of what the peer sent: {0}")]
    Violation(#[from] Violation),
    /// Nothing came, or was taken, for too long.
    #[error("{0}")]
    Silent(&'static str),
    /// The peer connected again before this side knew that the connection had broken.
    #[error("the peer connected again")]
    Replaced,
}

/// What came.
#[derive(Default)]
pub struct Inbox {
    bytes: Vec<u8>,
    taken: usize,
    messages: Vec<Range<usize>>,
}

impl Inbox {
    /// What came behind a greeting.
    pub fn begin(&mut self, bytes: Vec<u8>) {
        self.bytes = bytes;
        self.taken = 0;
        self.messages.clear();
    }

    /// The messages, in order.
    pub fn messages(&self) -> impl Iterator<Item = &[u8]> {
        self.messages.iter().map(|at| &self.bytes[at.clone()])
    }

    fn make_room(&mut self) {
        self.messages.clear();
        if self.taken == self.bytes.len() {
            self.bytes.clear();
        } else {
            self.bytes.drain(..self.taken);
        }
        self.taken = 0;
    }
}

/// A connection after the greetings.
pub struct Line<T> {
    /// What carries it.
    pub transport: T,
    /// Something came since the last look.
    came: bool,
    /// Something was taken since the last look.
    went: bool,
}

impl<T: Transport> Line<T> {
    /// The line over a connection that was just made.
    pub fn new(transport: T) -> Self {
        Self {
            transport,
            came: true,
            went: true,
        }
    }

    /// Sends what there is to send, as far as the connection takes it; about so much at most.
    ///
    /// # Errors
    /// It is broken.
    pub fn pump_out(&mut self, session: &mut Session, limit: usize) -> Result<Left, Broken> {
        let mut sent = 0;
        while sent < limit {
            let count = self.transport.write(session.poll_output())?;
            if count == 0 {
                return Ok(Left::Nothing);
            }
            session.handle_sent(count);
            self.went = true;
            sent += count;
            if session.poll_output().is_empty() {
                return Ok(Left::Nothing);
            }
        }
        Ok(Left::Perhaps)
    }

    /// Takes what came into `inbox`; the messages that were in it are gone.
    ///
    /// # Errors
    /// It is broken; what came before is in the inbox all the same.
    pub fn pump_in(
        &mut self,
        session: &mut Session,
        inbox: &mut Inbox,
        limit: Option<usize>,
    ) -> Result<Left, Broken> {
        inbox.make_room();
        let before = inbox.bytes.len();
        let result = self.transport.read(&mut inbox.bytes, limit);
        self.came |= inbox.bytes.len() > before;
        let (taken, checked) = session.handle_input(&inbox.bytes, &mut inbox.messages);
        inbox.taken = taken;
        checked?;
        result
    }

    /// Whether anything came, and anything was taken, since this was last asked.
    pub fn take_signs(&mut self) -> (bool, bool) {
        (
            std::mem::take(&mut self.came),
            std::mem::take(&mut self.went),
        )
    }
}
