//! Two sides, and connections between them that are made, come late, twice, and break.

use crate::frame::{Greeting, HEADER_BYTES, Hello};
use crate::line::{Inbox, Line, Transport};
use crate::session::Session;
use crate::{Incarnation, Priority};

use super::pipe::{End, Wire, connection};
use super::rng::Rng;

/// Who sends this much without hearing of it waits.
const OWED_MAX: usize = 60_000;

/// A connection before the greetings are over.
struct Greeted {
    end: End,
    plain: Vec<u8>,
}

struct Side {
    incarnation: Incarnation,
    session: Session,
    line: Option<Line<End>>,
    inbox: Inbox,
    attempt: u64,
    /// Of its messages, the next one's content.
    says: u32,
    /// Of the peer's, the next one's content.
    hears: u32,
}

/// Side 0 connects, side 1 accepts.
pub(super) struct World {
    rng: Rng,
    sides: [Side; 2],
    wires: Vec<Wire>,
    calling: Option<Greeted>,
    /// Connections that side 1 has not taken, or not been greeted over.
    called: Vec<Greeted>,
    incarnations: u64,
    pub(super) delivered: u64,
    pub(super) attached: u64,
    pub(super) restarts: u64,
    pub(super) stale: u64,
}

impl Side {
    fn new(incarnation: u64) -> Self {
        Self {
            incarnation: Incarnation(incarnation),
            session: Session::default(),
            line: None,
            inbox: Inbox::default(),
            attempt: 0,
            says: 0,
            hears: 0,
        }
    }
}

/// A message that tells which it is.
fn message(number: u32) -> Vec<u8> {
    let length = match number % 19 {
        0 => 9000,
        1..4 => 4096,
        other => 4 + other as usize,
    };
    let mut bytes = vec![number as u8; length];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            sides: [Side::new(1), Side::new(2)],
            wires: Vec::new(),
            calling: None,
            called: Vec::new(),
            incarnations: 2,
            delivered: 0,
            attached: 0,
            restarts: 0,
            stale: 0,
        }
    }

    pub(super) fn step(&mut self) {
        let side = self.rng.below(2);
        match self.rng.below(1000) {
            0..200 => self.say(side),
            200..600 => self.pump(side),
            600..700 => self.tick(side),
            700..800 => self.call(),
            800..900 => self.greet(),
            900..908 => self.cut(),
            // It gives up on a connection that is being made, which comes late all the same.
            908..997 => self.calling = None,
            _ => self.restart(side),
        }
    }

    /// Without faults everything comes, and nothing is kept.
    pub(super) fn heal(&mut self) {
        for _ in 0..2000 {
            self.call();
            self.greet();
            for side in [0, 1] {
                self.pump(side);
                self.tick(side);
            }
            let [a, b] = &self.sides;
            let all = a.says == b.hears && b.says == a.hears;
            if all && a.session.owed_bytes() == 0 && b.session.owed_bytes() == 0 {
                return;
            }
        }
        panic!("not everything came");
    }

    fn say(&mut self, side: usize) {
        let it = &mut self.sides[side];
        if it.session.owed_bytes() < OWED_MAX {
            let bytes = message(it.says);
            let (one, other) = bytes.split_at(2);
            it.session.push(&[one, other]);
            it.says += 1;
        }
    }

    fn pump(&mut self, side: usize) {
        let limit = [None, Some(1 + self.rng.below(3000))][self.rng.below(2)];
        let it = &mut self.sides[side];
        let Some(line) = &mut it.line else {
            return;
        };
        let result = line.pump_in(&mut it.session, &mut it.inbox, limit);
        for bytes in it.inbox.messages() {
            assert_eq!(bytes, message(it.hears), "side {side}");
            it.hears += 1;
            self.delivered += 1;
        }
        if it.session.is_owed_word() {
            it.session.push_bare();
        }
        let result = result.and_then(|_| line.pump_out(&mut it.session, 50_000));
        // What is kept is what was said and not heard of, and a few words.
        let most = OWED_MAX + 9000 + 500 * HEADER_BYTES;
        assert!(
            it.session.owed_bytes() <= most,
            "{}",
            it.session.owed_bytes()
        );
        if let Err(error) = result {
            assert_eq!(error.to_string(), "the peer closed the connection");
            it.line = None;
        }
    }

    fn tick(&mut self, side: usize) {
        let it = &mut self.sides[side];
        if it.line.is_some() && it.session.is_untold() {
            it.session.push_bare();
        }
    }

    fn hello(&mut self, side: usize) -> Hello {
        let [from, to] = [side, 1 - side].map(|side| self.sides[side].incarnation);
        let it = &mut self.sides[side];
        Hello {
            from,
            to,
            priority: Priority::Urgent,
            attempt: it.attempt,
            expected: it.session.expected(),
        }
    }

    fn call(&mut self) {
        if self.sides[0].line.is_some() || self.calling.is_some() {
            return;
        }
        let ([mut end, other], wire) = connection();
        self.sides[0].attempt += 1;
        let hello = Greeting::Hello(self.hello(0)).encode();
        assert_eq!(end.write(&hello).unwrap(), hello.len());
        let plain = Vec::new;
        self.calling = Some(Greeted {
            end,
            plain: plain(),
        });
        self.called.push(Greeted {
            end: other,
            plain: plain(),
        });
        self.wires.push(wire);
    }

    fn greet(&mut self) {
        if !self.called.is_empty() {
            let at = self.rng.below(self.called.len());
            let mut called = self.called.swap_remove(at);
            let read = called.end.read(&mut called.plain, None);
            match Greeting::decode(&called.plain).unwrap() {
                Some((Greeting::Hello(hello), _)) => self.welcome(called, hello),
                Some(other) => panic!("{other:?}"),
                None if read.is_ok() => self.called.push(called),
                None => {}
            }
        }
        if let Some(mut calling) = self.calling.take() {
            let read = calling.end.read(&mut calling.plain, None);
            match Greeting::decode(&calling.plain).unwrap() {
                Some((Greeting::Welcome(hello), length)) => {
                    let rest = calling.plain.split_off(length);
                    self.attach(0, calling.end, rest, hello.expected);
                }
                Some(_) => {}
                None if read.is_ok() => self.calling = Some(calling),
                None => {}
            }
        }
    }

    fn welcome(&mut self, mut called: Greeted, hello: Hello) {
        let [peer, own] = &self.sides;
        // Of another incarnation, or of an earlier attempt: the connection ends.
        let is_meant = hello.to == own.incarnation && hello.from == peer.incarnation;
        if !is_meant || hello.attempt <= own.attempt {
            self.stale += 1;
            return;
        }
        self.sides[1].attempt = hello.attempt;
        let welcome = Greeting::Welcome(self.hello(1)).encode();
        if called.end.write(&welcome).is_ok() {
            self.attach(1, called.end, Vec::new(), hello.expected);
        }
    }

    fn attach(&mut self, side: usize, end: End, rest: Vec<u8>, expected: u64) {
        let it = &mut self.sides[side];
        it.session.handle_connected(expected).expect("nobody lies");
        it.inbox.begin(rest);
        it.line = Some(Line::new(end));
        self.attached += 1;
    }

    fn cut(&mut self) {
        if !self.wires.is_empty() {
            let at = self.rng.below(self.wires.len());
            let wire = self.wires.swap_remove(at);
            wire.cut(|most| self.rng.below(most));
        }
    }

    /// A side starts anew; the other one parts from what it was, and meets what it is.
    fn restart(&mut self, side: usize) {
        self.incarnations += 1;
        self.restarts += 1;
        let other = self.sides[1 - side].incarnation.0;
        self.sides[side] = Side::new(self.incarnations);
        self.sides[1 - side] = Side::new(other);
        self.calling = None;
        // Those of the side that is dead end; the other's come late.
        if side == 1 {
            self.called.clear();
        }
    }
}
