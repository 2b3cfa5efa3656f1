//! Rights of other hosts' that this one has.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::netports::packet::{Kind, Packet, Port, Ref, Stay};
use crate::netports::table::{Output, Table, Taken, UNITS_MAX, Violation, WINDOW};

/// A right to a port of another host's.
#[derive(Debug)]
pub(crate) struct Proxy {
    kind: Kind,
    /// The shell has a local port for it.
    is_local: bool,
    /// How often it came from its home, and was claimed there.
    times: u64,
    claim: Claim,
    /// Hosts that were given it and have not claimed it yet, how often.
    pins: BTreeMap<Stay, u64>,
    /// Units of messages under way.
    used: u32,
    /// Its home was asked to say when they have been taken.
    drains: bool,
}

#[derive(Debug)]
enum Claim {
    Fine,
    /// It was asked for, for these who gave it.
    Asked(Vec<Stay>),
}

impl Proxy {
    fn new(kind: Kind, times: u64, claim: Claim) -> Self {
        Self {
            kind,
            is_local: false,
            times,
            claim,
            pins: BTreeMap::new(),
            used: 0,
            drains: false,
        }
    }

    fn is_open(&self) -> bool {
        matches!(self.claim, Claim::Fine) && self.used <= WINDOW - UNITS_MAX
    }

    fn is_needed(&self) -> bool {
        self.is_local || !self.pins.is_empty() || matches!(self.claim, Claim::Asked(_))
    }
}

impl Table {
    /// Whether there is room for any message to a port of another host's.
    #[must_use]
    pub fn is_open(&self, port: Port) -> bool {
        self.proxies.get(&port).is_some_and(Proxy::is_open)
    }

    /// A message of so many units goes to a port of another host's, which [is open](Self::is_open).
    /// What to say in it of the right: a send-once right is used with it.
    ///
    /// # Panics
    /// When it is not open.
    pub fn sends(&mut self, port: Port, units: u32) -> u64 {
        let proxy = self.proxies.get_mut(&port).expect("it is open");
        match proxy.kind {
            Kind::Send => {
                assert!(proxy.is_open(), "only what is open is sent to");
                proxy.used += units;
                proxy.drains = false;
                0
            }
            Kind::Once => self.goes(port),
        }
    }

    /// A name leads to it: true when it is there to be used, else [`Output::Open`] or
    /// [`Output::Kill`] tells.
    pub fn look_up(&mut self, port: Port) -> bool {
        match self.proxies.get(&port).map(|proxy| &proxy.claim) {
            Some(Claim::Fine) => true,
            Some(Claim::Asked(_)) => false,
            None if self.is_past(port.home) => {
                self.put(Output::Kill(port));
                false
            }
            None => {
                self.asks(port, Kind::Send, Vec::new());
                false
            }
        }
    }

    /// The shell has made a local port for it, or has one.
    ///
    /// # Panics
    /// When it is not there.
    pub fn is_local(&mut self, port: Port) {
        let proxy = self.proxies.get_mut(&port);
        proxy.expect("it was taken or looked up").is_local = true;
    }

    /// Whether there is such a right.
    #[must_use]
    pub fn knows(&self, port: Port) -> bool {
        self.proxies.contains_key(&port)
    }

    /// Nobody here has it any more: the shell has destroyed its local port.
    pub fn unused(&mut self, port: Port) {
        if let Some(proxy) = self.proxies.get_mut(&port) {
            proxy.is_local = false;
            self.free_proxy(port);
        }
    }

    /// Claims it at its home, now or when that is there.
    fn asks(&mut self, port: Port, kind: Kind, givers: Vec<Stay>) {
        self.proxies
            .insert(port, Proxy::new(kind, 1, Claim::Asked(givers)));
        let number = port.number;
        self.send(port.home, Packet::Claim { number });
    }

    /// Releases what nobody needs, when all messages to it were taken: until then both sides count.
    fn free_proxy(&mut self, port: Port) {
        let Some(proxy) = self.proxies.get_mut(&port) else {
            return;
        };
        if proxy.is_needed() {
            return;
        }
        let (number, times) = (port.number, proxy.times);
        if proxy.used == 0 {
            self.proxies.remove(&port);
            self.send(port.home, Packet::Release { number, times });
        } else if !core::mem::replace(&mut proxy.drains, true) {
            self.send(port.home, Packet::Drain { number });
        }
    }

    /// A send-once right goes home, or is used. How often it came, when it is not here any more.
    fn goes(&mut self, port: Port) -> u64 {
        let Some(proxy) = self.proxies.get_mut(&port) else {
            return 0;
        };
        proxy.is_local = false;
        if proxy.is_needed() {
            return 0;
        }
        let times = proxy.times;
        self.proxies.remove(&port);
        times
    }

    pub(crate) fn give_proxy(&mut self, to: Stay, port: Port) -> Ref {
        let Some(proxy) = self.proxies.get_mut(&port) else {
            return Ref::Dead;
        };
        let kind = proxy.kind;
        if port.home == to {
            let released = match kind {
                Kind::Send => 0,
                Kind::Once => self.goes(port),
            };
            let number = port.number;
            return Ref::Yours { number, released };
        }
        *proxy.pins.entry(to).or_default() += 1;
        if kind == Kind::Once {
            proxy.is_local = false;
        }
        Ref::Third { port, kind }
    }

    pub(crate) fn take_theirs(&mut self, port: Port, kind: Kind) -> Result<Taken, Violation> {
        let proxy = self.proxies.entry(port);
        let proxy = proxy.or_insert_with(|| Proxy::new(kind, 0, Claim::Fine));
        proxy.times += 1;
        self.taken_as(port, kind)
    }

    pub(crate) fn take_third(
        &mut self,
        from: Stay,
        port: Port,
        kind: Kind,
    ) -> Result<Taken, Violation> {
        let is_past = self.is_past(port.home);
        match self.proxies.get_mut(&port).map(|proxy| &mut proxy.claim) {
            Some(Claim::Fine) => self.send(from, Packet::Unpin { port }),
            Some(Claim::Asked(givers)) => givers.push(from),
            None if is_past => {
                self.send(from, Packet::Unpin { port });
                return Ok(Taken::Dead);
            }
            None => self.asks(port, kind, Vec::from([from])),
        }
        self.taken_as(port, kind)
    }

    fn taken_as(&mut self, port: Port, kind: Kind) -> Result<Taken, Violation> {
        let proxy = self.proxies.get_mut(&port).expect("entered before");
        // A send-once right is in one place.
        if proxy.kind != kind || (kind == Kind::Once && proxy.is_local) {
            return Err(Violation::Contradiction);
        }
        proxy.is_local = true;
        Ok(Taken::Proxy(port, kind))
    }

    pub(crate) fn claimed_came(&mut self, port: Port) -> Result<(), Violation> {
        let proxy = self.proxies.get_mut(&port);
        let proxy = proxy.ok_or(Violation::Contradiction)?;
        match core::mem::replace(&mut proxy.claim, Claim::Fine) {
            Claim::Asked(givers) => self.unpin(port, &givers),
            Claim::Fine => return Err(Violation::Contradiction),
        }
        self.put(Output::Open(port));
        Ok(())
    }

    /// A shell that has taken [`Output::Open`], and has nobody here for it, says so.
    pub fn settle(&mut self, port: Port) {
        self.free_proxy(port);
    }

    fn unpin(&mut self, port: Port, givers: &[Stay]) {
        for giver in givers {
            self.send(*giver, Packet::Unpin { port });
        }
    }

    pub(crate) fn gone_came(&mut self, port: Port) {
        // Its release may have crossed this.
        let Some(proxy) = self.proxies.remove(&port) else {
            return;
        };
        if let Claim::Asked(givers) = &proxy.claim {
            self.unpin(port, givers);
        }
        let (number, times) = (port.number, proxy.times);
        self.send(port.home, Packet::Release { number, times });
        self.put(Output::Kill(port));
    }

    /// Of a port that died meanwhile nothing is known any more.
    pub(crate) fn unpin_came(&mut self, from: Stay, port: Port) {
        let Some(proxy) = self.proxies.get_mut(&port) else {
            return;
        };
        if let Some(times) = proxy.pins.get_mut(&from) {
            *times -= 1;
            if *times == 0 {
                proxy.pins.remove(&from);
            }
            self.free_proxy(port);
        }
    }

    pub(crate) fn credit_came(&mut self, port: Port, units: u32) -> Result<(), Violation> {
        let proxy = self.proxies.get_mut(&port);
        let Some(proxy) = proxy else {
            // The port died, and this crossed the news.
            return Ok(());
        };
        let was_open = proxy.is_open();
        let left = proxy.used.checked_sub(units);
        proxy.used = left.ok_or(Violation::Count)?;
        if !was_open && proxy.is_open() {
            self.put(Output::Open(port));
        }
        self.free_proxy(port);
        Ok(())
    }

    /// A host is gone: its ports are dead, and nobody there claims anything any more.
    pub(crate) fn forget(&mut self, stay: Stay) {
        let dead: Vec<Port> = self.proxies.keys().copied().collect();
        for port in dead {
            if port.home == stay {
                if let Some(proxy) = self.proxies.remove(&port)
                    && let Claim::Asked(givers) = proxy.claim
                {
                    self.unpin(port, &givers);
                }
                self.put(Output::Kill(port));
            } else if let Some(proxy) = self.proxies.get_mut(&port) {
                if let Claim::Asked(givers) = &mut proxy.claim {
                    givers.retain(|giver| *giver != stay);
                }
                if proxy.pins.remove(&stay).is_some() {
                    self.free_proxy(port);
                }
            }
        }
    }
}
