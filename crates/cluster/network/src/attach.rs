//! What becomes of a lane: it gets a connection, loses it, and gets another.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::frame::{Greeting, Hello};
use crate::greet::{Greeter, Role, connects};
use crate::lane::{Connection, LOOK, Lane, News, Up};
use crate::line::{Broken, Line, Transport};
use crate::shared::{Shared, Watched};
use crate::tick::{BACK_OFF_MAX, YOUNG_TICKS};
use crate::tls::Tls;

/// Why a peer that was parted from is turned away: it is told, and this side has decided it.
pub(crate) const PARTED: &str = "was parted from: it has to start anew";

/// A connection that is not to be, and why.
type Refused = Box<(Tls, String)>;

impl Shared {
    /// Gives a greeted connection to its lane, which is to be visited. Who connected in vain is told
    /// why.
    pub(crate) fn attach(
        self: &Arc<Self>,
        greeter: &Greeter,
        tls: Tls,
        hello: Hello,
        rest: Vec<u8>,
    ) -> Result<Arc<Lane>, Refused> {
        let token = greeter.token;
        match &greeter.role {
            Role::Caller(lane) => {
                self.attach_to(lane, token, None, tls, hello, rest)?;
                Ok(Arc::clone(lane))
            }
            Role::Called(_) => match self.lane_for(&tls, hello) {
                Ok(lane) => {
                    self.attach_to(&lane, token, Some(hello), tls, hello, rest)?;
                    Ok(lane)
                }
                Err(why) => Err(refuse(tls, why)),
            },
        }
    }

    /// Whom a hello is for, if it may be.
    fn lane_for(&self, tls: &Tls, hello: Hello) -> Result<Arc<Lane>, String> {
        let (own, peer) = (self.incarnation, hello.from);
        if !tls.is_from(peer) {
            return Err(format!("the certificate is not that of incarnation {peer}"));
        }
        if hello.to != own {
            let meant = hello.to;
            return Err(format!("this is incarnation {own}, not {meant}"));
        }
        if !connects(peer, own) {
            return Err(format!(
                "incarnation {own} connects to {peer}, not the other way round"
            ));
        }
        if let Some(lane) = self.lane(peer, hello.priority) {
            return Ok(lane);
        }
        let peers = self.peers.read().expect("nobody panics under it");
        Err(match peers.parted.contains(&peer) {
            true => format!("incarnation {peer} {PARTED}"),
            false => format!("incarnation {peer} is not known here yet"),
        })
    }

    fn attach_to(
        self: &Arc<Self>,
        lane: &Arc<Lane>,
        token: u64,
        answer: Option<Hello>,
        mut tls: Tls,
        hello: Hello,
        rest: Vec<u8>,
    ) -> Result<(), Refused> {
        let mut guard = lane.state();
        let state = &mut *guard;
        if lane.is_parted.load(Ordering::SeqCst) {
            return Err(refuse(
                tls,
                format!("incarnation {} was parted from", lane.peer),
            ));
        }
        let is_due = match (&state.connection, answer) {
            (Connection::UnderWay(other), None) => *other == token,
            (_, None) => false,
            (_, Some(hello)) => hello.attempt > state.attempt,
        };
        if !is_due {
            return Err(refuse(tls, "there is a later connection".into()));
        }
        if let Err(violation) = state.session.handle_connected(hello.expected) {
            return Err(refuse(tls, violation.to_string()));
        }
        if answer.is_some() {
            state.attempt = hello.attempt;
            let welcome = Greeting::Welcome(Hello {
                from: self.incarnation,
                to: lane.peer,
                expected: state.session.expected(),
                ..hello
            });
            if let Err(error) = tls.write(&welcome.encode()) {
                return Err(Box::new((tls, error.to_string())));
            }
        }
        if let Connection::Up(old) = &state.connection {
            self.forget(old.token);
            state.note(false, Broken::Replaced.to_string());
        }
        self.set_watched(token, Watched::Lane(Arc::clone(lane)));
        state.connection = Connection::Up(Box::new(Up {
            token,
            line: Line::new(tls),
            epoll: Arc::clone(&self.epoll),
            first: rest,
            why: None,
            silent: 0,
            stuck: 0,
            quiet: 0,
            age: 0,
        }));
        state.note(true, "connected".into());
        Ok(())
    }

    /// A lane's connection is gone; the thread that says so holds its `incoming`.
    pub(crate) fn lost(self: &Arc<Self>, lane: &Arc<Lane>, token: u64) {
        let mut state = lane.state();
        let mut is_young = false;
        if let Connection::Up(up) = &state.connection
            && up.token == token
        {
            is_young = up.age < YOUNG_TICKS;
            self.forget(token);
            state.connection = self.next_connection(lane);
        }
        let news: Vec<News> = state.news.drain(..).collect();
        drop(state);
        news.into_iter().for_each(|news| self.tell(lane, news));
        if is_young {
            self.back_off(lane);
        } else {
            self.dial_if_due(lane);
        }
    }

    /// A connection could not be made.
    pub(crate) fn not_made(self: &Arc<Self>, lane: &Arc<Lane>, token: Option<u64>, why: &str) {
        let mut state = lane.state();
        match (&state.connection, token) {
            (Connection::UnderWay(own), Some(token)) if *own != token => return,
            (Connection::Up(_) | Connection::Theirs, Some(_)) => return,
            _ => {}
        }
        let address = state.address;
        state.connection = self.next_connection(lane);
        state.note(
            false,
            format!("cannot connect to {} at {address}: {why}", lane.peer),
        );
        drop(state);
        self.back_off(lane);
        self.visit(lane, LOOK);
    }

    /// The next attempt is later than the last was.
    fn back_off(&self, lane: &Lane) {
        let mut state = lane.state();
        state.back_off = (state.back_off * 2).clamp(1, BACK_OFF_MAX);
        let ticks = state.back_off;
        if let Connection::Waits(left) = &mut state.connection {
            *left = ticks;
        }
    }

    fn next_connection(&self, lane: &Lane) -> Connection {
        match connects(self.incarnation, lane.peer) {
            true => Connection::Waits(0),
            false => Connection::Theirs,
        }
    }

    /// Connects, when it is this side that does and it need not wait.
    pub(crate) fn dial_if_due(self: &Arc<Self>, lane: &Arc<Lane>) {
        let mut state = lane.state();
        if lane.is_parted.load(Ordering::SeqCst) {
            return;
        }
        let is_due = match &mut state.connection {
            Connection::Waits(0) => true,
            Connection::Waits(left) => {
                *left -= 1;
                false
            }
            Connection::Theirs | Connection::UnderWay(_) | Connection::Up(_) => false,
        };
        if is_due {
            // Nobody else finds it due.
            state.connection = Connection::UnderWay(0);
            drop(state);
            self.dial(lane);
        }
    }
}

fn refuse(mut tls: Tls, why: String) -> Refused {
    let _ = tls.write(&Greeting::Refused(why.clone()).encode());
    Box::new((tls, why))
}
