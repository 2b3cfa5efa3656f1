//! This host in its cluster: what it knows, whether it may act, and the tasks that keep it so.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::clock::{Fence, Moment};
use crate::error::{ControlError, StoreError};
use crate::event::{EVENTS_MAX, Event, Events};
use crate::known::{Keys, Known};
use crate::objects;
use crate::record::{RecordError, encode_members, encode_number, encode_unheard};
use crate::rule::Rule;
use crate::store::{Store, Watch, Watched};
use crate::table::{Need, Snapshot, Txn, Write};
use crate::view::{Incarnation, Slot};

/// Between two attempts at a store that does not answer.
pub(crate) const PAUSE: Duration = Duration::from_millis(50);

/// How long to sleep when there is nothing to do.
const IDLE: Duration = Duration::from_secs(3600);

/// What all threads and tasks of a host share.
pub(crate) struct Host {
    pub(crate) me: Incarnation,
    pub(crate) slot: Slot,
    pub(crate) store: Store,
    pub(crate) keys: Keys,
    /// How the store is called in messages.
    pub(crate) endpoint: String,
    /// How long an operation tries.
    pub(crate) wait: Duration,
    /// How long leases are that this host asks for.
    pub(crate) lease: Duration,
    pub(crate) fence: Fence,
    pub(crate) events: Events,
    pub(crate) state: Mutex<State>,
    /// What is known changed, or the host is fenced.
    pub(crate) changed: Notify,
    /// Its user was told that it is fenced, and has stopped.
    pub(crate) stopped: Notify,
}

/// What changes.
pub(crate) struct State {
    pub(crate) rule: Rule,
    pub(crate) known: Known,
    pub(crate) lease: Lease,
    /// Why it may not act any more.
    pub(crate) fenced: Option<String>,
    /// Objects that this host began to make.
    pub(crate) attempts: u64,
    store_lost: bool,
    /// Why the store did not answer, since it last did.
    unanswered: Option<String>,
}

/// A lease at the store.
#[derive(Clone, Copy)]
pub(crate) struct Lease {
    pub(crate) id: i64,
    pub(crate) length: Duration,
    /// When the store was last asked with success to keep it.
    pub(crate) asked: Moment,
}

impl State {
    pub(crate) fn new(rule: Rule, known: Known, lease: Lease) -> Self {
        Self {
            rule,
            known,
            lease,
            fenced: None,
            attempts: 0,
            store_lost: false,
            unanswered: None,
        }
    }
}

impl Host {
    /// The state, unless the host is fenced: nothing that comes too late makes it act again.
    pub(crate) fn state(&self) -> Result<MutexGuard<'_, State>, ControlError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.fenced.is_none() && self.fence.is_up() {
            let why = self.too_late(&state);
            self.tell_lost(&mut state);
            self.shut(&mut state, why);
        }
        match &state.fenced {
            Some(why) => Err(ControlError::Fenced(why.clone())),
            None => Ok(state),
        }
    }

    fn too_late(&self, state: &State) -> String {
        let now = Moment::now();
        let asked = now.since(state.lease.asked).as_secs_f32();
        let silent = state.rule.silent(now);
        let names = state.known.members.members.values();
        let names = names.filter(|member| silent.contains(&member.incarnation));
        let names: Vec<&str> = names.map(|member| member.name.as_str()).collect();
        let others = match names.is_empty() {
            true => String::from("nor for how long a host may go on without it"),
            false => format!("and no promise of {} holds", names.join(", ")),
        };
        format!(
            "{} has not kept its lease for {asked:.1} s, {others}",
            self.endpoint
        )
    }

    fn shut(&self, state: &mut State, why: String) {
        self.fence.close();
        state.fenced = Some(why.clone());
        self.events.push(Event::Fenced(why));
        self.changed.notify_waiters();
    }

    /// Ends this host's stay for a reason; it may have ended before.
    pub(crate) fn end(&self, why: &str) {
        if let Ok(mut state) = self.state() {
            self.shut(&mut state, String::from(why));
        }
    }

    /// Passes on what the state became.
    fn settle(&self, state: &mut State, events: Vec<Event>) {
        let room = events.into_iter().all(|event| self.events.push(event));
        let Some(others) = state.known.others() else {
            return self.shut(state, String::from("other hosts removed it from the view"));
        };
        if !room {
            let what = format!("nobody takes its events, and {EVENTS_MAX} wait");
            return self.shut(state, what);
        }
        let now = Moment::now();
        state.rule.viewed(&others, now);
        state.rule.told_unheard(&state.known.unheard, now);
        self.fence.set(state.rule.acts_until());
        self.changed.notify_waiters();
    }

    fn learn(
        &self,
        what: impl FnOnce(&mut Known) -> Result<Vec<Event>, RecordError>,
    ) -> Result<(), ControlError> {
        let mut state = self.state()?;
        match what(&mut state.known) {
            Ok(events) => self.settle(&mut state, events),
            Err(why) => self.shut(&mut state, format!("the view cannot be read: {why}")),
        }
        Ok(())
    }

    /// Takes everything, unless the watch is ahead of it.
    fn resume(&self, snapshot: Snapshot) -> Result<(), ControlError> {
        self.learn(|known| match snapshot.revision < known.revision {
            true => Ok(Vec::new()),
            false => known.resume(snapshot),
        })
    }

    /// Reads everything. What is read is never older than what was known before.
    async fn read_anew(&self) -> Result<(), StoreError> {
        let Ok(known) = self.state().map(|state| state.known.revision) else {
            return Ok(());
        };
        let snapshot = self.store.read(&self.keys.now()).await?;
        if snapshot.revision < known {
            self.end("the store lost what it had stored; was it restored from an older copy?");
        }
        let _ = self.resume(snapshot);
        Ok(())
    }

    /// Keeps the lease, and gets a new one when it is over.
    pub(crate) async fn keep(self: Arc<Self>) {
        let pause = self.lease / 5;
        while let Ok(lease) = self.state().map(|state| state.lease) {
            let sent = Moment::now();
            let done = match self.store.keep(lease.id).await {
                Ok(true) => self.kept(Lease {
                    asked: sent,
                    ..lease
                }),
                Ok(false) => match self.come_back().await {
                    Ok(()) => Ok(()),
                    Err(error) => self.lost(&error),
                },
                Err(error) => self.lost(&error),
            };
            if done.is_err() {
                return;
            }
            self.begin_to_go_on().await;
            self.tell_unheard().await;
            if self.leave_for_others().await {
                return;
            }
            let next = sent.plus(pause).since(Moment::now()).max(PAUSE);
            sleep(next).await;
        }
    }

    fn kept(&self, lease: Lease) -> Result<(), ControlError> {
        let mut state = self.state()?;
        state.lease = lease;
        state.unanswered = None;
        state.rule.kept(lease.asked, lease.length);
        if std::mem::replace(&mut state.store_lost, false) {
            state.rule.store_back(Moment::now());
            self.events.push(Event::StoreBack);
        }
        self.fence.set(state.rule.acts_until());
        self.changed.notify_waiters();
        Ok(())
    }

    /// Writes that this host counts on the promises of others, once it has them all.
    async fn begin_to_go_on(&self) {
        let could = |state: MutexGuard<'_, State>| {
            let could = state.rule.could_go_on(Moment::now());
            could.then(|| state.rule.going_on_ms())
        };
        let Ok(Some(length_ms)) = self.state().map(could) else {
            return;
        };
        let needs = vec![Need::Present(self.keys.alive(self.me))];
        let key = self.keys.goes_on(self.me);
        let writes = vec![Write::put(key, encode_number(length_ms))];
        if let Ok(true) = self.store.transact(&Txn { needs, writes }).await
            && let Ok(mut state) = self.state()
        {
            state.rule.goes_on();
            self.fence.set(state.rule.acts_until());
        }
    }

    /// Writes down of whom this host has not heard, when that is something else than is written.
    async fn tell_unheard(&self) {
        let key = self.keys.unheard(self.me);
        let txn = self.state().ok().and_then(|state| {
            let unheard = state.rule.unheard(Moment::now());
            let written = state.known.unheard.get(&self.me);
            let is_written = written.map_or(unheard.is_empty(), |written| *written == unheard);
            let write = match unheard.is_empty() {
                true => Write::Delete(key.clone()),
                false => Write::Put {
                    key,
                    value: encode_unheard(&unheard),
                    lease: Some(state.lease.id),
                },
            };
            let needs = vec![Need::Present(self.keys.alive(self.me))];
            let writes = vec![write];
            (!is_written).then_some(Txn { needs, writes })
        });
        if let Some(txn) = txn {
            // What fails is tried again.
            let _ = self.store.transact(&txn).await;
        }
    }

    /// Leaves, if this host and others have not heard of one another and it is the one that leaves.
    async fn leave_for_others(&self) -> bool {
        match self.stops_for_others() {
            Ok(None) => false,
            Ok(Some(known)) => {
                // Once it is out of the view the others write what its programs may still have.
                let _ = timeout(self.lease, self.stopped.notified()).await;
                // Else the others notice when the lease is over.
                let _ = objects::leave(self, known).await;
                true
            }
            Err(_) => true,
        }
    }

    /// It acts no more then. What it knew.
    fn stops_for_others(&self) -> Result<Option<Known>, ControlError> {
        let mut state = self.state()?;
        let Some(others) = state.rule.leaves_for(Moment::now()) else {
            return Ok(None);
        };
        let names = state.known.members.members.values();
        let names = names.filter(|member| others.contains(&member.incarnation));
        let names: Vec<&str> = names.map(|member| member.name.as_str()).collect();
        let why = format!(
            "it and {} do not reach one another; of such hosts the one leaves that reaches fewer, or has \
             come later; look at the network between them",
            names.join(", ")
        );
        let known = state.known.clone();
        self.shut(&mut state, why);
        Ok(Some(known))
    }

    fn lost(&self, error: &StoreError) -> Result<(), ControlError> {
        let mut state = self.state()?;
        state.unanswered = Some(error.to_string());
        let silent = Moment::now().since(state.lease.asked);
        if silent > state.lease.length / 2 {
            self.tell_lost(&mut state);
        }
        Ok(())
    }

    /// Tells once that the store does not answer, if that is so.
    fn tell_lost(&self, state: &mut State) {
        if !state.store_lost
            && let Some(why) = &state.unanswered
        {
            state.store_lost = true;
            self.events.push(Event::StoreLost(why.clone()));
        }
    }

    /// The lease ran out, and other hosts kept this one going: a new lease, and a view that says so.
    async fn come_back(&self) -> Result<(), StoreError> {
        let asked = Moment::now();
        let (id, length) = self.store.grant(self.lease).await?;
        let Ok(txn) = self.revival(id) else {
            return Ok(());
        };
        let done = self.store.transact(&txn).await;
        if let Ok(true) = done {
            let _ = self.kept(Lease { id, length, asked });
            return Ok(());
        }
        // Another host was faster, or an attempt without an answer was done: that lease counts
        // once it was kept, at the next turn.
        let there = self.store.get(&self.keys.alive(self.me)).await?;
        self.read_anew().await?;
        let held = there.and_then(|entry| lease_of(&entry.value));
        if held != Some(id) {
            self.store.revoke(id).await?;
        }
        if let (Some(id), Ok(mut state)) = (held, self.state()) {
            state.lease.id = id;
        }
        done.map(drop)
    }

    fn revival(&self, lease: i64) -> Result<Txn, ControlError> {
        let state = self.state()?;
        let view = self.keys.view();
        let members = encode_members(&state.known.members);
        Ok(Txn {
            needs: vec![
                Need::Unchanged(view.clone(), state.known.generation),
                Need::Absent(self.keys.alive(self.me)),
            ],
            writes: vec![
                Write::put(view, members),
                alive_write(&self.keys, self.me, lease),
            ],
        })
    }

    /// Takes changes in order; after a gap, everything.
    pub(crate) async fn watch(self: Arc<Self>) {
        while let Ok(from) = self.state().map(|state| state.known.revision + 1) {
            if let Ok(mut watch) = self.store.watch(&self.keys.now(), from).await {
                // Whatever ended it: it is resumed where it ended.
                let _ = self.follow(&mut watch).await;
            }
            sleep(PAUSE).await;
        }
    }

    async fn follow(&self, watch: &mut Watch) -> Result<(), StoreError> {
        loop {
            let learnt = match watch.next().await? {
                Watched::Changes(changes) => self.learn(|known| known.apply(&changes)),
                Watched::Missed(Some(snapshot)) => self.resume(snapshot),
                Watched::Missed(None) => return self.read_anew().await,
            };
            if learnt.is_err() {
                return Ok(());
            }
        }
    }

    /// Notices when this host's time is over, also when nobody asks.
    pub(crate) async fn guard(self: Arc<Self>) {
        while self.state().is_ok() {
            let left = self.fence.until().since(Moment::now());
            sleep(left.max(Duration::from_millis(1))).await;
        }
    }

    /// Removes hosts that are gone and what nobody uses.
    pub(crate) async fn tidy(self: Arc<Self>) {
        loop {
            let changed = self.changed.notified();
            let Ok((work, mut due)) = self.to_tidy() else {
                return;
            };
            for txn in &work {
                // Who fails was slower than another host, or tries again.
                let _ = self.store.transact(txn).await;
                due = Some(Moment::now().plus(self.lease / 5));
            }
            let left = due.map_or(IDLE, |due| due.since(Moment::now()));
            let _ = timeout(left.max(PAUSE / 10), changed).await;
        }
    }

    /// What is to be removed now, and when to look again.
    fn to_tidy(&self) -> Result<(Vec<Txn>, Option<Moment>), ControlError> {
        let mut state = self.state()?;
        let gone = state.rule.removable(Moment::now());
        let mut work = self.sweeps(&state.known);
        if !gone.is_empty() {
            work.push(self.removal(&state, &gone));
        }
        Ok((work, state.rule.next_deadline()))
    }

    fn removal(&self, state: &State, gone: &[Incarnation]) -> Txn {
        let view = self.keys.view();
        let left = state.known.members.without(gone);
        let mut needs = vec![Need::Unchanged(view.clone(), state.known.generation)];
        let mut writes = vec![Write::put(view, encode_members(&left))];
        for host in gone {
            needs.push(Need::Absent(self.keys.alive(*host)));
            writes.push(Write::Delete(self.keys.goes_on(*host)));
        }
        Txn { needs, writes }
    }

    /// What deletes what nobody uses.
    pub(crate) fn sweeps(&self, known: &Known) -> Vec<Txn> {
        let holders = known.dead_holders().into_iter().map(|key| Txn {
            needs: Vec::new(),
            writes: vec![Write::Delete(key)],
        });
        let objects = known.unheld().into_iter().map(|(id, revision, name)| Txn {
            needs: vec![
                Need::Unchanged(self.keys.object(id), revision),
                Need::NoneUnder(self.keys.holders(id)),
            ],
            writes: std::iter::once(self.keys.object(id))
                .chain(name.map(|name| self.keys.name(&name)))
                .map(Write::Delete)
                .collect(),
        });
        let ports = known.dead_ports().into_iter().map(|(key, revision)| Txn {
            needs: vec![Need::Unchanged(key.clone(), revision)],
            writes: vec![Write::Delete(key)],
        });
        holders.chain(objects).chain(ports).collect()
    }
}

/// The key that goes with a host's lease.
pub(crate) fn alive_write(keys: &Keys, me: Incarnation, lease: i64) -> Write {
    Write::Put {
        key: keys.alive(me),
        value: lease.to_string(),
        lease: Some(lease),
    }
}

pub(crate) fn lease_of(value: &[u8]) -> Option<i64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}
