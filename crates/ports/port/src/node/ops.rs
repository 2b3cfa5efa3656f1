//! Sending, receiving and calling by name, with waiting.

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use farpage_rights::{self as rights, Disposition, Give, Name, Wait, Waiter, Woken};

use super::Node;
use super::error::{CallError, ReceiveError, Refused, SendError};
use super::message::{Message, Notice, Received};
use super::right::{Right, SendRight};
use super::state::State;

type Guard<'a> = MutexGuard<'a, State>;

/// How long an operation may wait.
#[derive(Clone, Copy)]
enum Patience {
    /// Not at all; `true` once Linux was asked whether something has come.
    None(bool),
    For(Duration),
    Until(Instant),
    Ever,
}

impl Patience {
    fn new(timeout: Option<Duration>) -> Self {
        match timeout {
            None => Self::Ever,
            Some(Duration::ZERO) => Self::None(false),
            Some(timeout) => Self::For(timeout),
        }
    }

    /// The end of the wait, which begins now if it has not.
    fn until(&mut self) -> Option<Instant> {
        if let Self::For(timeout) = *self {
            // So far away that nobody will see it: for ever.
            let until = Instant::now().checked_add(timeout);
            *self = until.map_or(Self::Ever, Self::Until);
        }
        match *self {
            Self::Until(until) => Some(until),
            Self::None(_) => Some(Instant::now()),
            Self::For(_) | Self::Ever => None,
        }
    }
}

/// Why a wait ended.
enum Waited {
    /// Try again; if that fails, somebody else may want the chance.
    Again(Option<rights::Chance>),
    TimedOut,
}

impl Node {
    /// Waits for what may have changed.
    fn wait<'a>(
        &'a self,
        mut state: Guard<'a>,
        what: Wait,
        patience: &mut Patience,
        has_peeked: bool,
    ) -> (Guard<'a>, Waited) {
        if let Patience::None(was_asked) = patience {
            if std::mem::replace(was_asked, true) {
                return (state, Waited::TimedOut);
            }
            return (self.inner().glance(state), Waited::Again(None));
        }
        if !has_peeked {
            let came;
            (state, came) = self.inner().peek(state);
            if came {
                return (state, Waited::Again(None));
            }
        }
        let until = patience.until();
        let waiter = state.thread();
        if state.space.wait(what, waiter, None).is_err() {
            // The name is another's by now: trying again says so.
            state.waiters.remove(&waiter);
            return (state, Waited::Again(None));
        }
        self.pump(&mut state);
        let (mut state, woken) = self.inner().block(state, waiter, until);
        match woken {
            Some(Woken::Ready(chance)) => (state, Waited::Again(Some(chance))),
            Some(Woken::TimedOut) => (state, Waited::Again(None)),
            None => {
                state.space.cancel(waiter);
                (state, Waited::TimedOut)
            }
        }
    }

    pub(super) fn receive(
        &self,
        name: Name,
        timeout: Option<Duration>,
    ) -> Result<Received, ReceiveError> {
        let mut patience = Patience::new(timeout);
        let state = self.lock();
        let (mut state, received) = self.receive_in(state, name, &mut patience, false);
        let received = received.map(|received| state.open(self, received));
        self.pump(&mut state);
        received
    }

    fn receive_in<'a>(
        &'a self,
        mut state: Guard<'a>,
        name: Name,
        patience: &mut Patience,
        mut has_peeked: bool,
    ) -> (Guard<'a>, Result<rights::Received, ReceiveError>) {
        let mut chance = None;
        loop {
            let error = match state.space.receive(name) {
                Ok(received) => return (state, Ok(received)),
                Err(rights::ReceiveError::WouldBlock) => None,
                Err(rights::ReceiveError::Name(_)) => Some(ReceiveError::InSet),
            };
            if let Some(error) = error {
                if let Some(chance) = chance {
                    state.space.pass_on(chance);
                }
                return (state, Err(error));
            }
            let waited;
            (state, waited) = self.wait(state, Wait::Message(name), patience, has_peeked);
            has_peeked = false;
            match waited {
                Waited::Again(woken) => chance = woken,
                Waited::TimedOut => return (state, Err(ReceiveError::TimedOut)),
            }
        }
    }

    pub(super) fn send(
        &self,
        to: Give,
        mut message: Message,
        timeout: Option<Duration>,
    ) -> Result<(), Refused> {
        let mut patience = Patience::new(timeout);
        let state = self.lock();
        let (mut state, sent) = self.send_in(state, to, None, &mut message, &mut patience);
        self.pump(&mut state);
        drop(state);
        match sent {
            Ok(()) => {
                let rights = message.reply.into_iter().chain(message.rights);
                rights.for_each(Right::taken);
                Ok(())
            }
            Err(error) => Err(Refused {
                error,
                message: Box::new(message),
            }),
        }
    }

    fn send_in<'a>(
        &'a self,
        mut state: Guard<'a>,
        to: Give,
        reply: Option<Give>,
        message: &mut Message,
        patience: &mut Patience,
    ) -> (Guard<'a>, Result<(), SendError>) {
        if let Err(error) = self.check(&mut state, message) {
            return (state, Err(error));
        }
        let mut packed = state.pack(to, message);
        packed.reply = reply.or(packed.reply);
        let mut chance = None;
        loop {
            let refused = match state.space.send(packed) {
                Ok(()) => return (state, Ok(())),
                Err(refused) => refused,
            };
            packed = *refused.message;
            let error = match refused.error {
                rights::SendError::WouldBlock(what) => {
                    let waited;
                    (state, waited) = self.wait(state, what, patience, false);
                    match waited {
                        Waited::Again(woken) => {
                            chance = woken;
                            continue;
                        }
                        Waited::TimedOut => SendError::TimedOut,
                    }
                }
                rights::SendError::Dead => SendError::Dead,
                rights::SendError::TooLarge => SendError::TooLarge,
                rights::SendError::Circular => SendError::Circular,
                rights::SendError::Elsewhere => SendError::Elsewhere,
                rights::SendError::Reply(_) => SendError::Reply,
                rights::SendError::Destination(_) | rights::SendError::Right(..) => {
                    unreachable!("held rights have names of their kinds: {}", refused.error)
                }
            };
            if let Some(chance) = chance {
                state.space.pass_on(chance);
            }
            state.unpack(self, packed, message);
            return (state, Err(error));
        }
    }

    /// Sees that the rights are this Node's, and puts names under those that are dead.
    fn check(&self, state: &mut State, message: &mut Message) -> Result<(), SendError> {
        if !message.is_of(self) {
            return Err(SendError::Foreign);
        }
        if matches!(message.reply, Some(Right::Receive(_))) {
            return Err(SendError::Reply);
        }
        let rights = message.reply.iter_mut().chain(&mut message.rights);
        for right in rights.filter(|right| matches!(right, Right::Dead)) {
            let port = state.space.allocate_port();
            let name = state
                .space
                .insert(Give::new(port, Disposition::MakeSend))
                .expect("a new port");
            state.space.destroy_receive(port).expect("a new port");
            *right = Right::Send(SendRight::new(self, name));
        }
        Ok(())
    }

    pub(super) fn call(
        &self,
        to: Name,
        mut message: Message,
        timeout: Option<Duration>,
    ) -> Result<Received, CallError> {
        let mut patience = Patience::new(timeout);
        let mut state = self.lock();
        let port = state.replies.pop();
        let port = port.unwrap_or_else(|| state.space.allocate_port());
        let replaced = message.reply.take();
        let to = Give::new(to, Disposition::CopySend);
        let reply = Some(Give::new(port, Disposition::MakeSendOnce));
        let (mut state, sent) = self.send_in(state, to, reply, &mut message, &mut patience);
        if let Err(error) = sent {
            state.replies.push(port);
            self.pump(&mut state);
            drop(state);
            drop((message, replaced));
            return Err(error.into());
        }
        self.pump(&mut state);
        let mut state = state;
        let mut has_peeked = false;
        if !matches!(patience, Patience::None(_)) {
            // The answer is hardly here yet.
            let came;
            (state, came) = self.inner().peek(state);
            has_peeked = !came;
        }
        let (mut state, received) = self.receive_in(state, port, &mut patience, has_peeked);
        let received = match received {
            Ok(received) => {
                state.replies.push(port);
                Ok(state.open(self, received))
            }
            Err(_) => {
                // An answer that comes late finds nobody.
                let _ = state.space.destroy_receive(port);
                Err(CallError::TimedOut)
            }
        };
        self.pump(&mut state);
        drop(state);
        let rights = std::mem::take(&mut message.rights).into_iter();
        rights.for_each(Right::taken);
        drop(replaced);
        let received = received?;
        match received.notice() {
            Some(Notice::SendOnce) => Err(CallError::Unanswered),
            _ => Ok(received),
        }
    }

    /// Forgets a waiter that is no thread; passes on what it was woken for.
    pub(super) fn forget(&self, state: &mut State, waiter: Waiter) {
        state.space.cancel(waiter);
        if let Some(slot) = state.waiters.remove(&waiter)
            && let Some(Woken::Ready(chance)) = slot.woken
        {
            state.space.pass_on(chance);
        }
    }
}
