//! Connections that are being made: TCP, TLS, then a greeting from each side. Nothing is believed
//! before, time is limited, and so is the number of strangers.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::Incarnation;
use crate::attach::PARTED;
use crate::frame::{Greeting, Hello, Violation};
use crate::lane::{Connection, LOOK, Lane};
use crate::line::{Broken, Left, Transport};
use crate::shared::{Shared, Watched, lock};
use crate::tick::{CALLED_TICKS, CALLER_TICKS, ENDING_TICKS};
use crate::tls::Tls;

/// So many connections that others made may be without a greeting; more are closed at once.
const CALLED_MAX: usize = 64;
/// So much of a greeting and of what follows it is read at a time.
const READ_BYTES: usize = 16 << 10;

/// A connection that is being made.
pub(crate) struct Greeter {
    pub(crate) token: u64,
    pub(crate) role: Role,
    state: Mutex<State>,
}

pub(crate) enum Role {
    /// This side connected, for a lane.
    Caller(Arc<Lane>),
    /// Somebody connected from there.
    Called(SocketAddr),
}

struct State {
    phase: Phase,
    /// Decrypted, not looked at.
    plain: Vec<u8>,
    ticks_left: u32,
}

enum Phase {
    /// TCP does not say yet that somebody answers.
    Connecting(Tls),
    /// TLS, then greetings.
    Greeting { tls: Tls, is_hello_sent: bool },
    /// The peer is to read why, before the connection is closed.
    Ending(Tls),
    /// The connection is somebody else's, or closed.
    Over,
}

/// How far a greeting came.
enum Came {
    /// More is needed.
    NotYet,
    /// Both sides know each other; behind the greeting there was this.
    Greeted(Hello, Vec<u8>),
}

impl Greeter {
    fn new(token: u64, role: Role, phase: Phase) -> Self {
        let ticks_left = match role {
            Role::Caller(_) => CALLER_TICKS,
            Role::Called(_) => CALLED_TICKS,
        };
        let state = State {
            phase,
            plain: Vec::new(),
            ticks_left,
        };
        let state = Mutex::new(state);
        Self { token, role, state }
    }
}

impl Shared {
    /// Takes the connections that others made.
    pub(crate) fn accept(self: &Arc<Self>) {
        while let Ok((socket, address)) = self.listener.accept() {
            let token = self.next_token();
            let watched = self.watched.read().expect("nobody panics under it");
            let is_called = |what: &&Watched| match what {
                Watched::Greeter(greeter) => matches!(greeter.role, Role::Called(_)),
                Watched::Lane(_) => false,
            };
            let called = watched.values().filter(is_called).count();
            drop(watched);
            if called >= CALLED_MAX {
                self.tell_refused(address, "too many connections are being made at once");
                continue;
            }
            let _ = socket.set_nonblocking(true);
            let Ok(tls) = Tls::server(socket, &self.identity) else {
                continue;
            };
            let phase = Phase::Greeting {
                tls,
                is_hello_sent: true,
            };
            self.begin(Arc::new(Greeter::new(token, Role::Called(address), phase)));
        }
    }

    /// Connects, for a lane that has no connection.
    pub(crate) fn dial(self: &Arc<Self>, lane: &Arc<Lane>) {
        let token = self.next_token();
        let mut state = lane.state();
        let address = state.address;
        let tls = connect(address).map_err(Broken::System);
        match tls.and_then(|socket| Tls::client(socket, &self.identity, lane.peer)) {
            Ok(tls) => {
                state.connection = Connection::UnderWay(token);
                drop(state);
                let role = Role::Caller(Arc::clone(lane));
                self.begin(Arc::new(Greeter::new(token, role, Phase::Connecting(tls))));
            }
            Err(error) => {
                drop(state);
                self.not_made(lane, None, &error.to_string());
            }
        }
    }

    fn begin(self: &Arc<Self>, greeter: Arc<Greeter>) {
        self.set_watched(greeter.token, Watched::Greeter(Arc::clone(&greeter)));
        let state = lock(&greeter.state);
        let watched = match &state.phase {
            Phase::Connecting(tls) | Phase::Greeting { tls, .. } | Phase::Ending(tls) => {
                self.watch(tls, greeter.token)
            }
            Phase::Over => Ok(()),
        };
        drop(state);
        match watched {
            Ok(()) => self.greet(&greeter),
            Err(errno) => self.fail(&greeter, &Broken::System(errno).to_string()),
        }
    }

    /// Something happened to a connection that is being made.
    pub(crate) fn greet(self: &Arc<Self>, greeter: &Arc<Greeter>) {
        let mut state = lock(&greeter.state);
        let result = match state.advance(self, &greeter.role) {
            Ok(Came::NotYet) => Ok(None),
            Ok(Came::Greeted(hello, rest)) => {
                let Phase::Greeting { tls, .. } = state.take_phase() else {
                    return;
                };
                match self.attach(greeter, tls, hello, rest) {
                    Ok(lane) => Ok(Some(lane)),
                    Err(refused) => {
                        let (tls, why) = *refused;
                        state.phase = Phase::Ending(tls);
                        Err(why)
                    }
                }
            }
            Err(broken) => Err(broken.to_string()),
        };
        let is_over = matches!(state.phase, Phase::Over);
        drop(state);
        match (result, is_over) {
            (Ok(None), false) => {}
            (Ok(Some(lane)), _) => self.visit(&lane, LOOK),
            // It may have become a lane's while its event was on the way.
            (Ok(None), true) => match self.watched(greeter.token) {
                Some(Watched::Lane(lane)) => self.visit(&lane, LOOK),
                Some(Watched::Greeter(_)) => self.forget(greeter.token),
                None => {}
            },
            (Err(why), _) => self.fail(greeter, &why),
        }
    }

    /// Ends it. The peer is given time to read what TLS, or a greeting, has to say about it.
    fn fail(self: &Arc<Self>, greeter: &Arc<Greeter>, why: &str) {
        let mut state = lock(&greeter.state);
        match state.take_phase() {
            Phase::Connecting(_) | Phase::Over => self.forget(greeter.token),
            Phase::Greeting { mut tls, .. } | Phase::Ending(mut tls) => {
                tls.shut_output();
                if tls.discard_input() {
                    state.phase = Phase::Ending(tls);
                    state.ticks_left = ENDING_TICKS;
                } else {
                    self.forget(greeter.token);
                }
            }
        }
        drop(state);
        match &greeter.role {
            Role::Caller(lane) => self.not_made(lane, Some(greeter.token), why),
            Role::Called(_) if why.ends_with(PARTED) => {}
            // It has gone of itself.
            Role::Called(_) if why == Broken::Ended.to_string() => {}
            Role::Called(address) => self.tell_refused(*address, why),
        }
    }

    /// A tick has passed.
    pub(crate) fn tick_greeter(self: &Arc<Self>, greeter: &Arc<Greeter>) {
        let mut state = lock(&greeter.state);
        state.ticks_left = state.ticks_left.saturating_sub(1);
        if state.ticks_left > 0 {
            return;
        }
        if let Phase::Ending(_) = state.phase {
            state.phase = Phase::Over;
            self.forget(greeter.token);
            return;
        }
        let why = match &state.phase {
            Phase::Connecting(_) => "nobody answers at that address",
            Phase::Greeting { .. } | Phase::Ending(_) | Phase::Over => {
                "it did not say in time who it is"
            }
        };
        drop(state);
        self.fail(greeter, why);
    }
}

impl State {
    fn take_phase(&mut self) -> Phase {
        std::mem::replace(&mut self.phase, Phase::Over)
    }

    fn advance(&mut self, shared: &Shared, role: &Role) -> Result<Came, Broken> {
        if let Phase::Connecting(tls) = &self.phase {
            let outcome = rustix::net::sockopt::socket_error(tls);
            outcome.and_then(|it| it).map_err(Broken::System)?;
            if rustix::net::getpeername(tls).is_err() {
                return Ok(Came::NotYet);
            }
            let Phase::Connecting(mut tls) = self.take_phase() else {
                return Ok(Came::NotYet);
            };
            let begun = tls.shake_hands();
            self.phase = Phase::Greeting {
                tls,
                is_hello_sent: false,
            };
            begun?;
        }
        match &mut self.phase {
            Phase::Greeting { tls, is_hello_sent } => {
                let plain = &mut self.plain;
                advance_greeting(tls, is_hello_sent, plain, shared, role)
            }
            Phase::Ending(tls) => {
                if !tls.discard_input() {
                    self.phase = Phase::Over;
                }
                Ok(Came::NotYet)
            }
            Phase::Connecting(_) | Phase::Over => Ok(Came::NotYet),
        }
    }
}

/// Reads until there is a greeting, or nothing more.
fn advance_greeting(
    tls: &mut Tls,
    is_hello_sent: &mut bool,
    plain: &mut Vec<u8>,
    shared: &Shared,
    role: &Role,
) -> Result<Came, Broken> {
    loop {
        let left = tls.read(plain, Some(READ_BYTES));
        if let (Role::Caller(lane), false, false) = (role, *is_hello_sent, tls.is_handshaking()) {
            *is_hello_sent = true;
            let mut state = lane.state();
            state.attempt += 1;
            let hello = Hello {
                from: shared.incarnation,
                to: lane.peer,
                priority: lane.priority,
                attempt: state.attempt,
                expected: state.session.expected(),
            };
            drop(state);
            tls.write(&Greeting::Hello(hello).encode())?;
        }
        if let Some((greeting, length)) = Greeting::decode(plain)? {
            let rest = plain.split_off(length);
            return match (greeting, role) {
                (Greeting::Refused(why), Role::Caller(_)) => {
                    Err(Broken::Tls(format!("it says: {why}")))
                }
                (Greeting::Welcome(hello), Role::Caller(lane)) => {
                    let is_right = hello.from == lane.peer
                        && hello.to == shared.incarnation
                        && hello.priority == lane.priority;
                    is_right
                        .then_some(Came::Greeted(hello, rest))
                        .ok_or(Broken::Violation(Violation::Greeting))
                }
                // Who connected waits to be welcomed.
                (Greeting::Hello(hello), Role::Called(_)) if rest.is_empty() => {
                    Ok(Came::Greeted(hello, rest))
                }
                (Greeting::Hello(_), Role::Called(_) | Role::Caller(_))
                | (Greeting::Refused(_) | Greeting::Welcome(_), Role::Called(_)) => {
                    Err(Broken::Violation(Violation::Greeting))
                }
            };
        }
        match left? {
            Left::Nothing => return Ok(Came::NotYet),
            Left::Perhaps => {}
        }
    }
}

fn connect(address: SocketAddr) -> Result<TcpStream, Errno> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(socket.as_fd(), &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket.into()),
        Err(errno) => Err(errno),
    }
}

/// Whether `one` connects to `other`, rather than the other way round.
pub(crate) fn connects(one: Incarnation, other: Incarnation) -> bool {
    one < other
}
