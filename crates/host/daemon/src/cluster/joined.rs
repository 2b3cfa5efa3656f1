//! A host kernel's stays in its cluster: when one is over, it joins again by itself, as a new host.
//!
//! A host that was cut off, or stopped for too long, may not act any more in that stay: what its
//! programs have of it fails, with the reason. In the next stay it begins with nothing, and what
//! they open anew they have.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use farpage_client::Refusal;
use farpage_host::Objects;
use farpage_object::Pager;
use farpage_server::joined::join::{JoinConfig, JoinPlan, PORT, config, leave};
use farpage_server::{Cluster, JoinError, Observer, PortWire};

use super::ports::{self, Wired};
use crate::net_message::NetMessages;
use crate::service::here::Here;
use crate::symbols::Symbols;
/// Before the first attempt to join again.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Between two attempts at most.
const PAUSE_MAX: Duration = Duration::from_secs(16);
/// After a stay of that length the pauses begin anew.
const LONG: Duration = Duration::from_secs(60);
/// A host that is reached answers within that time.
const REACHED: Duration = Duration::from_secs(1);
/// Whoever uses a stay that is over is told so, and has done with it.
const MOMENT: Duration = Duration::from_millis(10);

/// The cluster, as the host kernel's processes have it: stay after stay.
pub struct Joined {
    how: JoinPlan,
    objects: &'static Objects,
    paging_space: Arc<dyn Pager>,
    here: Arc<Here>,
    net_messages: NetMessages,
    /// Is told why a stay is over.
    over: Sender<String>,
    now: Mutex<Now>,
}

/// Where this host is.
enum Now {
    /// In the cluster.
    In(Arc<Cluster>),
    /// Out of it, for this reason.
    Out(String),
    /// It has left, and does not come back.
    Left,
}

/// Joins, if it is asked for. Also says how it is called.
///
/// # Errors
/// When it cannot.
pub fn join(
    asked: &JoinConfig,
    objects: &'static Objects,
    paging_space: Arc<dyn Pager>,
    here: Arc<Here>,
) -> Result<Option<(Arc<Joined>, String)>> {
    let Some(how) = config(asked, PORT)? else {
        return Ok(None);
    };
    let (over, overs) = channel();
    let (net_messages, names) = ports::start()?;
    let joined = Joined {
        how,
        objects,
        paging_space,
        here,
        net_messages,
        over,
        now: Mutex::new(Now::Left),
    };
    let cluster = joined.begins(&[])?;
    let said = joined.called(&cluster);
    *joined.now() = Now::In(Arc::new(cluster));
    let joined = Arc::new(joined);
    names.are_of(&joined);
    let joining = Arc::clone(&joined);
    std::thread::Builder::new()
        .name("joins-again".into())
        .spawn(move || joining.joins_again(&overs))
        .context("cannot start a thread")?;
    Ok(Some((joined, said)))
}

/// Tells users what they should see, and other hosts what they ask of the processes of this one.
struct Says {
    here: Arc<Here>,
    net_messages: NetMessages,
    symbols: Mutex<Symbols>,
    over: Sender<String>,
}

impl Observer for Says {
    fn say(&self, what: &str) {
        farpage_sys::say!("farpage: {what}");
    }

    fn is_out(&self, why: &str) {
        self.say(&format!(
            "this host is out of the cluster: {why}; what it shared cannot be used here any more, which \
             programs are told by SIGBUS; it joins again by itself"
        ));
        self.net_messages.ends();
        // Without anybody who listens this process ends.
        let _ = self.over.send(why.into());
    }

    fn wake(&self, number: u64, offset: u64, _: u32) {
        self.here.wake(number, offset);
    }

    fn ports_begin(&self, own: u64, wire: PortWire) {
        self.net_messages.begins(own, Arc::new(Wired(wire)));
    }

    fn port_hosts_come(&self, stays: &[u64]) {
        self.net_messages.meets(stays);
    }

    fn port_hosts_are(&self, generation: u64, stays: &BTreeSet<u64>) {
        self.net_messages.sees(generation, stays);
    }

    fn port_packet(&self, from: u64, packet: &[u8]) {
        self.net_messages.packet(from, packet);
    }

    fn port_saw(&self, from: u64, generation: u64) {
        self.net_messages.saw(from, generation);
    }

    fn lives(&self, process: u64) -> bool {
        self.here.lives(process)
    }

    fn place(&self, thread: u32, instruction: u64) -> String {
        let mut symbols = self.symbols.lock().unwrap_or_else(PoisonError::into_inner);
        symbols.place(thread, instruction)
    }
}

impl Joined {
    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// By which programs send to ports of other hosts.
    pub fn net_messages(&self) -> &NetMessages {
        &self.net_messages
    }

    /// How the cluster is called.
    pub(super) fn store(&self) -> &str {
        &self.how.store
    }

    /// The stay that there is, or why there is none.
    pub(super) fn stay(&self) -> Result<Arc<Cluster>, String> {
        match &*self.now() {
            Now::In(cluster) => Ok(Arc::clone(cluster)),
            Now::Out(why) => Err(format!(
                "this host is out of the cluster: {why}; it joins again by itself"
            )),
            Now::Left => Err("this host has left the cluster".into()),
        }
    }

    /// The same, for who asks for something of it.
    pub(super) fn asked(&self) -> Result<Arc<Cluster>, Refusal> {
        self.stay().map_err(Refusal::Cluster)
    }

    /// True when an object is still there when this host has left.
    pub fn outlives(&self, name: &str) -> bool {
        self.stay().is_ok_and(|cluster| cluster.outlives(name))
    }

    /// As [`leave`]; it does not join again.
    pub fn leave(&self, within: Duration) {
        let before = std::mem::replace(&mut *self.now(), Now::Left);
        if let Now::In(cluster) = before {
            leave(&cluster, within, |_| true);
        }
    }

    fn called(&self, cluster: &Cluster) -> String {
        let (store, address) = (&self.how.store, self.how.share.listen);
        format!(
            "{} of {store}, which others reach at {address}",
            cluster.own()
        )
    }

    /// Begins a stay. Nobody waits for those before, which are known here to be over.
    fn begins(&self, before: &[u64]) -> Result<Cluster, JoinError> {
        let says = Says {
            here: Arc::clone(&self.here),
            net_messages: self.net_messages.clone(),
            symbols: Mutex::default(),
            over: self.over.clone(),
        };
        let paging_space = Arc::clone(&self.paging_space);
        let how = self.how.share.clone();
        let cluster = Cluster::join(how, self.objects, paging_space, Arc::new(says))?;
        for stay in before {
            cluster.vouch_over(*stay);
        }
        self.here.is_host(cluster.own().0, cluster.stay());
        Ok(cluster)
    }

    /// Joins after each stay that is over, until this host leaves.
    fn joins_again(&self, overs: &Receiver<String>) {
        let (mut began, mut pauses) = (Instant::now(), Pauses::default());
        let mut before = Vec::new();
        for why in overs {
            let Some(stay) = self.ended(why) else {
                return;
            };
            before.push(stay);
            pauses.lasted(began.elapsed());
            if !self.tries(&before, &mut pauses) {
                return;
            }
            began = Instant::now();
        }
    }

    /// A stay is over; which. What it listened at is free when this returns.
    fn ended(&self, why: String) -> Option<u64> {
        let cluster = {
            let mut now = self.now();
            let Now::In(cluster) = &*now else {
                return None;
            };
            let cluster = Arc::clone(cluster);
            *now = Now::Out(why);
            cluster
        };
        while Arc::strong_count(&cluster) > 1 {
            sleep(MOMENT);
        }
        Some(cluster.stay())
    }

    /// Tries until this host is in the cluster again; false when it is to leave instead. What is
    /// wrong is said once.
    fn tries(&self, before: &[u64], pauses: &mut Pauses) -> bool {
        let mut said = String::new();
        loop {
            sleep(pauses.next());
            if let Now::Left = &*self.now() {
                return false;
            }
            let what = match self.attempt(before) {
                Ok(cluster) => return self.is_in(cluster),
                Err(what) => what,
            };
            if what != said {
                farpage_sys::say!("farpage: {what}; this host tries again by itself");
                said = what;
            }
        }
    }

    /// Joins, if this host reaches all that are there.
    fn attempt(&self, before: &[u64]) -> Result<Cluster, String> {
        let unreached = Cluster::unreached(&self.how.share, REACHED);
        let unreached = unreached.map_err(|error| error.to_string())?;
        if !unreached.is_empty() {
            let whom = unreached.join(", ");
            return Err(format!(
                "cannot join the cluster: this host does not reach {whom}"
            ));
        }
        self.begins(before).map_err(|error| error.to_string())
    }

    /// This host is in the cluster again, unless it was told to leave meanwhile.
    fn is_in(&self, cluster: Cluster) -> bool {
        let called = self.called(&cluster);
        let mut now = self.now();
        if let Now::Left = &*now {
            drop(now);
            cluster.leave(Duration::ZERO, &|_| ());
            return false;
        }
        *now = Now::In(Arc::new(cluster));
        drop(now);
        farpage_sys::say!(
            "farpage: this host is in the cluster again, as {called}; programs have what they open anew"
        );
        true
    }
}

/// How long to wait before each attempt: twice as long each time, so that a host that cannot stay
/// does not keep the others and the store busy.
struct Pauses {
    next: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self { next: PAUSE_MIN }
    }
}

impl Pauses {
    fn lasted(&mut self, stay: Duration) {
        if stay >= LONG {
            *self = Self::default();
        }
    }

    fn next(&mut self) -> Duration {
        let pause = self.next;
        self.next = (pause * 2).min(PAUSE_MAX);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_a_stay_was_long() {
        let mut pauses = Pauses::default();
        let mut seconds = |stay| {
            pauses.lasted(Duration::from_secs(stay));
            pauses.next().as_secs()
        };
        let flapping: Vec<u64> = (0..6).map(|_| seconds(59)).collect();
        assert_eq!(flapping, [1, 2, 4, 8, 16, 16]);
        assert_eq!((seconds(60), seconds(0)), (1, 2));
    }
}
