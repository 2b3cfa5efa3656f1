//! A switch between hosts, to each of which it is a network card: frames take time, are lost, come twice
//! and in another order, as it is told.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use super::dice::Dice;

/// The most that a frame has: a card's `mtu`, and a header.
const FRAME_MAX: usize = 9216;
/// Frames that are on their way; what comes beyond is lost, as it is anywhere.
const ON_THEIR_WAY_MAX: usize = 1 << 14;

/// How frames go from one to another.
#[derive(Clone, Copy, Debug, Default)]
pub struct Way {
    pub is_cut: bool,
    /// Each takes so long, and up to as long again, so that they overtake one another.
    pub delay: Duration,
    /// Of a hundred, so many are lost, and half as many come twice.
    pub lost: u8,
}

/// A frame that is to arrive: when, its number, to whom.
type Late = Reverse<(Instant, u64, usize, Vec<u8>)>;

struct State {
    ways: Vec<Vec<Way>>,
    is_plugged: Vec<bool>,
    late: BinaryHeap<Late>,
    count: u64,
    dice: Dice,
    is_over: bool,
}

struct Shared {
    cards: Vec<SyncDevice>,
    state: Mutex<State>,
    comes: Condvar,
}

pub struct Switch(Arc<Shared>);

/// The card of a port; its last byte is the port.
pub fn mac(port: usize) -> String {
    format!("02:00:00:00:01:{port:02x}")
}

impl Switch {
    /// A card `e0` in each of these network namespaces, which has to be given its address (`mac`).
    pub fn new(seed: u64, spaces: &[String]) -> Self {
        let cards: Vec<SyncDevice> = spaces.iter().map(|space| card(space)).collect();
        let ports = cards.len();
        let state = State {
            ways: vec![vec![Way::default(); ports]; ports],
            is_plugged: vec![true; ports],
            late: BinaryHeap::new(),
            count: 0,
            dice: Dice::new(seed),
            is_over: false,
        };
        let shared = Arc::new(Shared {
            cards,
            state: Mutex::new(state),
            comes: Condvar::new(),
        });
        for port in 0..ports {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.listens(port));
        }
        let late = Arc::clone(&shared);
        thread::spawn(move || late.delivers());
        Self(shared)
    }

    pub fn way(&self, from: usize, to: usize, change: impl FnOnce(&mut Way)) {
        change(&mut self.0.state.lock().unwrap().ways[from][to]);
    }

    pub fn plug(&self, port: usize, is_in: bool) {
        self.0.state.lock().unwrap().is_plugged[port] = is_in;
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.0.state.lock().unwrap().is_over = true;
        self.0.comes.notify_all();
    }
}

/// A network card is made in the namespace of the thread that makes it.
fn card(space: &str) -> SyncDevice {
    let space = File::open(format!("/run/netns/{space}")).unwrap();
    let made = thread::spawn(move || {
        move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        DeviceBuilder::new()
            .name("e0")
            .layer(Layer::L2)
            .build_sync()
            .expect("a card of /dev/net/tun")
    });
    made.join().unwrap()
}

impl Shared {
    /// What a host sends, until its namespace has gone.
    fn listens(&self, from: usize) {
        let mut frame = vec![0; FRAME_MAX];
        while let Ok(length) = self.cards[from].recv(&mut frame) {
            let frame = &frame[..length];
            let for_all = frame.first().is_none_or(|byte| byte & 1 == 1);
            match (for_all, frame.get(5)) {
                (false, Some(&to)) if usize::from(to) < self.cards.len() => {
                    self.takes(from, to.into(), frame);
                }
                (true, _) => (0..self.cards.len()).for_each(|to| self.takes(from, to, frame)),
                (false, _) => {}
            }
            if self.state.lock().unwrap().is_over {
                break;
            }
        }
    }

    fn takes(&self, from: usize, to: usize, frame: &[u8]) {
        let mut state = self.state.lock().unwrap();
        let way = state.ways[from][to];
        let is_open = state.is_plugged[from] && state.is_plugged[to] && !way.is_cut;
        let chance = state.dice.below(100);
        let lost = u64::from(way.lost);
        if from == to || !is_open || chance < lost {
            return;
        }
        let copies = if chance < lost + lost / 2 { 2 } else { 1 };
        for _ in 0..copies {
            if way.delay.is_zero() {
                // Nobody hears of one that a card does not take.
                let _ = self.cards[to].send(frame);
            } else if state.late.len() < ON_THEIR_WAY_MAX {
                let more = way.delay.mul_f32(state.dice.below(1000) as f32 / 1000.0);
                let at = Instant::now() + way.delay + more;
                state.count += 1;
                let late = (at, state.count, to, frame.to_vec());
                state.late.push(Reverse(late));
                self.comes.notify_all();
            }
        }
    }

    /// What arrives later.
    fn delivers(&self) {
        let mut state = self.state.lock().unwrap();
        while !state.is_over {
            let now = Instant::now();
            let next = state.late.peek().map(|Reverse((at, ..))| *at);
            state = match next {
                Some(at) if at <= now => {
                    let Some(Reverse((_, _, to, frame))) = state.late.pop() else {
                        continue;
                    };
                    let _ = self.cards[to].send(&frame);
                    state
                }
                Some(at) => self.comes.wait_timeout(state, at - now).unwrap().0,
                None => self.comes.wait(state).unwrap(),
            };
        }
    }
}
