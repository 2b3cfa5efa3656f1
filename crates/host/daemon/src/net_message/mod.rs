//! The network message server: what a program of this host sends to a port of another host's goes
//! by it, as Mach's `netmsgserver` has it. To programs it is the receiver of such a port.
//!
//! Who holds what is decided by `farpage_rights::netports::Table`; here are the local ports, and
//! threads. A thread of its own takes what programs send and writes it to the network; what comes
//! of the network is sent to the real port by the thread that brings it. Neither waits for a
//! receiver: what has no room waits in a queue of its port's, and what is sent to a proxy without
//! room stays where the program has put it.

mod come;
mod names;
mod send;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Receiver, Sender as Queue, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Wake, Waker};
use std::time::Duration;

use farpage_client::Refusal;
use farpage_client::interface::{NetNameCalls, Tried};
use farpage_port::interface::Answer;
use farpage_port::{
    ConnectError, Message, Name, Node, Notice, PortSet, ReceiveRight, Received, Right, Room,
    SendError, SendOnceRight, SendRight,
};
use farpage_rights::netports::{Kind, Output, Port, Stay, Table};
use farpage_sys::{Errno, lock};

use names::Work;
pub use names::{Found, Names};

/// Sends what network servers say: to one host in order, and once.
pub trait Wire: Send + Sync {
    /// Sends a packet of these parts to the host of a stay, without waiting.
    fn send(&self, to: u64, parts: &[&[u8]]);

    /// Bytes that were sent to it and have not come there yet.
    fn owed_bytes(&self, to: u64) -> usize;
}

/// So much may be on its way to a host before senders wait.
const OWED_BYTES_MAX: usize = 8 << 20;
/// Time between two looks whether it has become less.
const LOOK: Duration = Duration::from_millis(1);
/// Whoever offers or takes the first right answers within that time.
const PATIENCE: Duration = Duration::from_secs(10);

/// The network message server of a host.
#[derive(Clone)]
pub struct NetMessages(Arc<Inner>);

struct Inner {
    node: Node,
    set: PortSet,
    /// Where programs give ports names, and find them.
    service: ReceiveRight,
    service_right: SendRight,
    /// Is told which ports have died.
    deaths: ReceiveRight,
    rooms: Queue<u64>,
    work: Queue<Work>,
    store: Arc<dyn Names>,
    /// Calls that wait for the store.
    asked: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Nothing while this host is in no cluster.
    stay: Option<InCluster>,
    /// Rights of this host's that others have, by their numbers.
    rights: HashMap<u64, Kept>,
    /// Those that are send rights.
    numbers: HashMap<Name, u64>,
    local: HashMap<Port, Local>,
    ports: HashMap<Name, Port>,
    /// Who waits for a port to be claimed.
    looked_up: HashMap<Port, Vec<LookedUp>>,
    /// What was given a name at this host, in this stay.
    names: HashMap<String, names::Named>,
    /// How often one was.
    named: u64,
    /// Hosts whose proxies wait for the network: what is owed to one is counted over all of them.
    parked: HashSet<Stay>,
}

/// A name, and who waits for a right to its port.
type LookedUp = (String, Answer<Tried<SendRight>>);

struct InCluster {
    table: Table,
    wire: Arc<dyn Wire>,
}

/// A right of this host's that others have.
enum Kept {
    Send(Real),
    Once(SendOnceRight),
}

/// A port of this host's.
struct Real {
    right: SendRight,
    /// Messages for which it had no room, with who sent them.
    waiting: VecDeque<(Stay, u32, Message)>,
    room: Option<Room>,
    /// Nobody has the right any more; it is dropped when nothing waits.
    is_over: bool,
}

/// What stands here for a port of another host's.
struct Local {
    port: ReceiveRight,
    kind: Kind,
    /// Send rights that were ever made.
    given: u32,
    in_set: bool,
}

struct Rings {
    number: u64,
    rooms: Queue<u64>,
}

impl Wake for Rings {
    fn wake(self: Arc<Self>) {
        // The thread that hears it ends with the process.
        let _ = self.rooms.send(self.number);
    }
}

/// What a thread does.
type Run = Box<dyn FnOnce() + Send>;

impl NetMessages {
    /// A server in no cluster yet, whose names are kept by `names`.
    ///
    /// # Errors
    /// [`ConnectError::Failed`] without descriptors or threads.
    pub fn start(names: Arc<dyn Names>) -> Result<Self, ConnectError> {
        let node = Node::new()?;
        let (service, deaths, set) = (node.port(), node.port(), node.port_set());
        set.insert(&service);
        set.insert(&deaths);
        let service_right = service.make_send();
        let (rooms, has_room) = channel();
        let (work, waiting) = channel();
        let inner = Arc::new(Inner {
            node,
            set,
            service,
            service_right,
            deaths,
            rooms,
            work,
            store: names,
            asked: AtomicUsize::new(0),
            state: Mutex::default(),
        });
        let threads: [(&str, Run); 3] = [
            ("net-messages", {
                let inner = Arc::clone(&inner);
                Box::new(move || inner.run())
            }),
            ("net-room", {
                let inner = Arc::clone(&inner);
                Box::new(move || inner.goes_on(&has_room))
            }),
            ("net-names", {
                let inner = Arc::clone(&inner);
                Box::new(move || inner.names(&waiting))
            }),
        ];
        for (name, run) in threads {
            let thread = std::thread::Builder::new().name(name.into());
            thread.spawn(run).map_err(|error| ConnectError::Failed {
                doing: "start a thread",
                errno: Errno(error.raw_os_error().unwrap_or(0)),
            })?;
        }
        Ok(Self(inner))
    }

    /// Gives another Node of this process a right to it.
    pub(crate) fn introduce(&self, to: &Node) -> Result<SendRight, ConnectError> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let flags = SocketFlags::CLOEXEC;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (ours, theirs) = pair.map_err(|errno| ConnectError::Failed {
            doing: "make a pair of sockets",
            errno: Errno(errno.raw_os_error()),
        })?;
        self.0.node.offer_over(ours, &self.0.service_right)?;
        to.connect_over(theirs, Some(PATIENCE))
    }

    /// A stay of this host in the cluster begins.
    pub fn begins(&self, own: u64, wire: Arc<dyn Wire>) {
        let mut state = lock(&self.0.state);
        state.ends("another stay of this host has begun");
        let table = Table::new(Stay(own));
        state.stay = Some(InCluster { table, wire });
    }

    /// It is over: what of other hosts programs have is dead.
    pub fn ends(&self) {
        lock(&self.0.state).ends("this host is out of the cluster");
    }

    /// Hosts are about to be heard.
    pub fn meets(&self, stays: &[u64]) {
        self.0.with_table(|table| {
            stays.iter().for_each(|stay| table.meets(Stay(*stay)));
        });
    }

    /// These are the others of the newest view.
    pub fn sees(&self, generation: u64, stays: &BTreeSet<u64>) {
        let others = stays.iter().map(|stay| Stay(*stay)).collect();
        self.0.with_table(|table| table.sees(generation, &others));
    }

    /// A host has handled all that came to it from hosts that are not in a view any more.
    pub fn saw(&self, from: u64, generation: u64) {
        self.0.with_table(|table| table.saw(Stay(from), generation));
    }

    /// What another host's server says.
    pub fn packet(&self, from: u64, packet: &[u8]) {
        let mut state = lock(&self.0.state);
        if let Err(violation) = self.0.came(&mut state, Stay(from), packet)
            && let Some(stay) = &mut state.stay
        {
            farpage_sys::say!(
                "farpage: a host of the cluster broke the protocol of ports: {violation}; ports between \
                 it and this host are dead until it joins anew"
            );
            stay.table.expel(Stay(from));
        }
        self.0.drain(&mut state);
    }
}

impl State {
    fn ends(&mut self, why: &str) {
        self.stay = None;
        self.rights.clear();
        self.numbers.clear();
        self.local.clear();
        self.ports.clear();
        self.names.clear();
        self.parked.clear();
        for (_, answer) in self.looked_up.drain().flat_map(|(_, waiting)| waiting) {
            answer.give(Tried(Err(Refusal::Cluster(why.into()))));
        }
    }
}

impl Inner {
    fn with_table(&self, act: impl FnOnce(&mut Table)) {
        let mut state = lock(&self.state);
        if let Some(stay) = &mut state.stay {
            act(&mut stay.table);
        }
        self.drain(&mut state);
    }

    /// Takes what programs send, for ever.
    fn run(&self) {
        let mut parked = false;
        while let Ok(received) = self.set.receive(parked.then_some(LOOK)).map_or_else(
            |error| match error {
                farpage_port::ReceiveError::TimedOut => Ok(None),
                error => Err(error),
            },
            |received| Ok(Some(received)),
        ) {
            if let Some(received) = received {
                self.takes(received);
            }
            let mut state = lock(&self.state);
            self.unpark(&mut state);
            parked = !state.parked.is_empty();
        }
    }

    fn takes(&self, received: Received) {
        if received.port == self.service.name() {
            // It is no notice.
            let _ = (&mut &*self).dispatch(received);
            return;
        }
        let mut state = lock(&self.state);
        if received.port == self.deaths.name() {
            if let Some(Notice::Dead(name)) = received.notice() {
                self.is_dead(&mut state, name);
            }
        } else if let Some(port) = state.ports.get(&received.port).copied() {
            match received.notice() {
                Some(Notice::NoSenders(given)) => state.nobody_sends(port, given),
                Some(_) => state.is_unused(port),
                None => self.forward(&mut state, port, received),
            }
        }
        self.drain(&mut state);
    }

    /// Does what the table asks for.
    fn drain(&self, state: &mut State) {
        while let Some(stay) = &mut state.stay
            && let Some(output) = stay.table.poll_output()
        {
            match output {
                Output::Send(to, packet) => stay.wire.send(to.0, &[&packet.encode()]),
                Output::Drop(number) => state.drops(number),
                Output::Kill(port) => {
                    state.forget(port);
                    for (name, answer) in state.looked_up.remove(&port).into_iter().flatten() {
                        answer.give(Tried(Err(Refusal::NoPort(name))));
                    }
                }
                Output::Open(port) => self.opens(state, port),
            }
        }
    }

    /// There is room for messages to a port, and it may be used.
    fn opens(&self, state: &mut State, port: Port) {
        for (_, answer) in state.looked_up.remove(&port).into_iter().flatten() {
            let right = self.local_send(state, port);
            answer.give(Tried(Ok(right)));
        }
        if let Some(stay) = &mut state.stay {
            stay.table.settle(port);
        }
        self.listen(state, port);
    }

    /// Takes what programs send to a proxy, if there is room.
    fn listen(&self, state: &mut State, port: Port) {
        let is_open = state.stay.as_ref();
        let is_open = is_open.is_some_and(|stay| stay.table.is_open(port));
        let is_parked = state.parked.contains(&port.home);
        if let Some(local) = state.local.get_mut(&port)
            && !local.in_set
            && is_open
            && !is_parked
        {
            self.set.insert(&local.port);
            local.in_set = true;
        }
    }

    fn unpark(&self, state: &mut State) {
        if state.parked.is_empty() {
            return;
        }
        let Some(stay) = &state.stay else {
            return;
        };
        let is_free = |home: &Stay| stay.wire.owed_bytes(home.0) < OWED_BYTES_MAX / 2;
        let free: HashSet<Stay> = state.parked.extract_if(is_free).collect();
        let of_free = |port: &&Port| free.contains(&port.home);
        let ports: Vec<Port> = state.local.keys().filter(of_free).copied().collect();
        ports.into_iter().for_each(|port| self.listen(state, port));
    }

    /// Takes nothing that programs send to a host, until there is room on the way.
    fn park(&self, state: &mut State, home: Stay) {
        if state.parked.insert(home) {
            let its = state.local.iter_mut().filter(|(port, _)| port.home == home);
            for (_, local) in its.filter(|(_, local)| local.in_set) {
                self.set.remove(&local.port);
                local.in_set = false;
            }
        }
    }

    /// A send right to a port of another host's.
    fn local_send(&self, state: &mut State, port: Port) -> SendRight {
        let ports = &mut state.ports;
        let local = state.local.entry(port).or_insert_with(|| {
            let own = self.node.proxy_port();
            ports.insert(own.name(), port);
            Local {
                port: own,
                kind: Kind::Send,
                given: 0,
                in_set: false,
            }
        });
        let right = local.port.make_send();
        local.given += 1;
        if local.given == 1 {
            local.port.notify_no_senders(1, &local.port);
        }
        if let Some(stay) = &mut state.stay {
            stay.table.is_local(port);
        }
        self.listen(state, port);
        right
    }

    /// The send-once right to a port of another host's.
    fn local_once(&self, state: &mut State, port: Port) -> SendOnceRight {
        let own = self.node.proxy_port();
        let right = own.make_send_once();
        state.ports.insert(own.name(), port);
        let local = Local {
            port: own,
            kind: Kind::Once,
            given: 1,
            in_set: false,
        };
        state.local.insert(port, local);
        self.listen(state, port);
        right
    }

    /// A port of this host's is dead.
    fn is_dead(&self, state: &mut State, name: Name) {
        let Some(number) = state.numbers.get(&name).copied() else {
            return;
        };
        let Some(stay) = &mut state.stay else {
            return;
        };
        if stay.table.died(number) {
            let gone = state.names.extract_if(|_, named| named.number == number);
            for (name, named) in gone {
                let _ = self.work.send(Work::Died(name, named.number));
            }
        }
    }

    /// Messages that waited for room are sent as far as there is some.
    fn goes_on(&self, rooms: &Receiver<u64>) {
        for number in rooms {
            let mut state = lock(&self.state);
            self.flush(&mut state, number);
            self.drain(&mut state);
        }
    }

    fn flush(&self, state: &mut State, number: u64) {
        let Some(Kept::Send(real)) = state.rights.get_mut(&number) else {
            return;
        };
        real.room = None;
        while let Some((from, units, message)) = real.waiting.pop_front() {
            match real.right.send(message, Some(Duration::ZERO)) {
                Err(refused) if refused.error == SendError::TimedOut => {
                    real.waiting.push_front((from, units, *refused.message));
                    let rings = Rings {
                        number,
                        rooms: self.rooms.clone(),
                    };
                    let waker = Waker::from(Arc::new(rings));
                    real.room = Some(real.right.wake_on_room(waker));
                    return;
                }
                // What a dead port does not take goes nowhere.
                Ok(()) | Err(_) => {
                    if let Some(stay) = &mut state.stay {
                        stay.table.taken(number, from, units);
                    }
                }
            }
        }
        if real.is_over {
            state.drops(number);
        }
    }
}

impl State {
    /// No other host has a right any more, or its port is dead.
    fn drops(&mut self, number: u64) {
        if let Some(Kept::Send(real)) = self.rights.get_mut(&number) {
            self.numbers.remove(&real.right.name());
            // What has come is given to it still.
            if !real.waiting.is_empty() && !real.right.is_dead() {
                real.is_over = true;
                return;
            }
        }
        self.rights.remove(&number);
    }

    fn forget(&mut self, port: Port) {
        if let Some(local) = self.local.remove(&port) {
            self.ports.remove(&local.port.name());
        }
    }

    fn is_unused(&mut self, port: Port) {
        self.forget(port);
        if let Some(stay) = &mut self.stay {
            stay.table.unused(port);
        }
    }

    /// Nobody here had a right when so many had been made.
    fn nobody_sends(&mut self, port: Port, given: u32) {
        match self.local.get(&port) {
            Some(local) if local.given != given => {
                local.port.notify_no_senders(local.given, &local.port);
            }
            Some(_) => self.is_unused(port),
            None => {}
        }
    }
}

/// A right, by what the table knows of it.
enum Known {
    Proxy(Port),
    Own(u64, Kind),
    Dead,
}

impl Inner {
    /// What a right that a program sends is; kept here when it is this host's.
    fn known(&self, state: &mut State, right: Right) -> Option<Known> {
        match right {
            Right::Dead => Some(Known::Dead),
            Right::Receive(_) => None,
            Right::Send(right) => Some(match state.ports.get(&right.name()) {
                Some(port) => Known::Proxy(*port),
                None => self.known_send(state, right),
            }),
            Right::SendOnce(right) => {
                let of = right.port().and_then(|name| state.ports.get(&name));
                if let Some(port) = of.copied() {
                    state.forget(port);
                    return Some(Known::Proxy(port));
                }
                let number = random()?;
                state.rights.insert(number, Kept::Once(right));
                Some(Known::Own(number, Kind::Once))
            }
        }
    }

    fn known_send(&self, state: &mut State, right: SendRight) -> Known {
        if right.is_dead() {
            return Known::Dead;
        }
        let name = right.name();
        if let Some(number) = state.numbers.get(&name) {
            return Known::Own(*number, Kind::Send);
        }
        let Some(number) = random() else {
            return Known::Dead;
        };
        right.notify_dead(&self.deaths);
        let real = Real {
            right,
            waiting: VecDeque::new(),
            room: None,
            is_over: false,
        };
        state.numbers.insert(name, number);
        state.rights.insert(number, Kept::Send(real));
        Known::Own(number, Kind::Send)
    }
}

/// A number that nobody guesses.
fn random() -> Option<u64> {
    let mut bytes = [0; 8];
    let flags = rustix::rand::GetRandomFlags::empty();
    let filled = rustix::rand::getrandom(&mut bytes, flags).ok()?;
    (filled == bytes.len()).then(|| u64::from_ne_bytes(bytes))
}

fn guard(inner: &Inner) -> MutexGuard<'_, State> {
    lock(&inner.state)
}
