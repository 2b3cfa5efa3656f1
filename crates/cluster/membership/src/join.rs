//! Joining: a slot, an incarnation and a lease in one transaction.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::clock::{Fence, Moment};
use crate::control::Config;
use crate::endpoint::Endpoint;
use crate::error::{ControlError, StoreError};
use crate::event::{Event, Events};
use crate::host::{Host, Lease, PAUSE, State, alive_write, lease_of};
use crate::known::{Keys, Known};
use crate::names;
use crate::record::{self, check_format, decode_members, encode_format, encode_members};
use crate::rule::{Rule, Times};
use crate::store::Store;
use crate::table::{Entry, Need, Snapshot, Txn, Write};
use crate::view::{Incarnation, Member, Members, Representation, Slot};

/// Joins, or says why not within the time that the configuration gives.
pub(crate) async fn join(config: Config) -> Result<Host, ControlError> {
    let attempt = (config.lease / 4).max(Duration::from_millis(400));
    let store = Store::new(&config.endpoint, attempt)?;
    let mut joining = Joining {
        keys: keys(&config.endpoint),
        store,
        lease: None,
        config,
    };
    let began = Instant::now();
    loop {
        let why = match joining.attempt().await {
            Ok(joined) => return Ok(joining.host(joined)),
            Err(Failed::For(error)) => {
                joining.give_up().await;
                return Err(error);
            }
            Err(Failed::Now(StoreError::Refused(why))) => {
                let endpoint = joining.config.endpoint.to_string();
                return Err(ControlError::Store { endpoint, why });
            }
            Err(Failed::Now(StoreError::Silent(why))) => why,
        };
        let tried = began.elapsed();
        if tried >= joining.config.wait {
            let endpoint = joining.config.endpoint.to_string();
            return Err(ControlError::Silent {
                endpoint,
                tried,
                why,
            });
        }
        sleep(PAUSE).await;
    }
}

/// Other members whose keys are there, as whoever has not joined sees them.
pub(crate) async fn look(config: &Config) -> Result<Vec<Member>, ControlError> {
    let keys = keys(&config.endpoint);
    let endpoint = || config.endpoint.to_string();
    let store = Store::new(&config.endpoint, config.wait)?;
    let read = store.read(&keys.now()).await;
    let now = read.map_err(|error| match error {
        StoreError::Silent(why) => ControlError::Silent {
            endpoint: endpoint(),
            tried: config.wait,
            why,
        },
        StoreError::Refused(why) => ControlError::Store {
            endpoint: endpoint(),
            why,
        },
    })?;
    let Some(view) = now.entries.get(&keys.view()) else {
        return Ok(Vec::new());
    };
    let members = decode_members(&view.value).map_err(|why| ControlError::Unreadable {
        key: keys.view(),
        why,
    })?;
    let others = members.members.into_values().filter(|member| {
        let is_there = now.entries.contains_key(&keys.alive(member.incarnation));
        is_there && member.address != config.address
    });
    Ok(others.collect())
}

fn keys(endpoint: &Endpoint) -> Keys {
    match endpoint {
        Endpoint::Etcd(etcd) => Keys::new(&etcd.cluster),
        Endpoint::Embedded(_) => Keys::new("host"),
    }
}

struct Joining {
    config: Config,
    store: Store,
    keys: Keys,
    lease: Option<Lease>,
}

struct Joined {
    me: Incarnation,
    slot: Slot,
    lease: Lease,
    now: Snapshot,
}

enum Failed {
    /// No use to try again.
    For(ControlError),
    Now(StoreError),
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self::Now(error)
    }
}

impl Joining {
    async fn attempt(&mut self) -> Result<Joined, Failed> {
        let format = self.store.get(&self.keys.format()).await?;
        if let Some(entry) = &format {
            readable(self.keys.format(), check_format(&entry.value))?;
        }
        let lease = match self.lease {
            None => self.grant().await?,
            Some(lease) => {
                let asked = Moment::now();
                match self.store.keep(lease.id).await? {
                    true => Lease { asked, ..lease },
                    false => self.grant().await?,
                }
            }
        };
        loop {
            let now = self.store.read(&self.keys.now()).await?;
            let view = now.entries.get(&self.keys.view()).cloned();
            let members = match &view {
                Some(entry) => readable(self.keys.view(), decode_members(&entry.value))?,
                None => Members::default(),
            };
            // Done just now, or by an attempt that was not answered.
            if let Some((me, slot)) = self.found(&members, &now, lease.id) {
                return Ok(Joined {
                    me,
                    slot,
                    lease,
                    now,
                });
            }
            let Some((_, more)) = members.with(|incarnation| self.member(incarnation)) else {
                return Err(Failed::For(ControlError::Full));
            };
            let key = self.store.get(&self.keys.key()).await?;
            let is_first = self.has_key(key.as_ref(), &members)?;
            let me = Incarnation(members.next);
            let needs = vec![
                need(self.keys.format(), format.as_ref()),
                need(self.keys.view(), view.as_ref()),
                need(self.keys.key(), key.as_ref()),
            ];
            let mut writes = vec![
                Write::put(self.keys.view(), encode_members(&more)),
                alive_write(&self.keys, me, lease.id),
            ];
            if is_first {
                writes.push(Write::put(
                    self.keys.key(),
                    record::encode_key(&self.config.key),
                ));
            }
            if format.is_none() {
                writes.push(Write::put(self.keys.format(), encode_format()));
            }
            let done = self.store.transact(&Txn { needs, writes }).await;
            if !done? && format.is_none() {
                let why = String::from("another host made the cluster just now");
                return Err(StoreError::Silent(why).into());
            }
        }
    }

    /// Refuses a host whose key is not that of the hosts that there are. True: there are none, or none
    /// has said which it is, so that it is this host's from now on.
    fn has_key(&self, stored: Option<&Entry>, members: &Members) -> Result<bool, Failed> {
        let own = &self.config.key;
        let Some(entry) = stored.filter(|_| !own.is_empty()) else {
            return Ok(!own.is_empty());
        };
        let theirs = readable(self.keys.key(), record::decode_key(&entry.value))?;
        match theirs == *own {
            true => Ok(false),
            false if members.members.is_empty() => Ok(true),
            false => Err(Failed::For(ControlError::OtherKey {
                endpoint: self.config.endpoint.to_string(),
                theirs: names::shown(&theirs),
                own: own.clone(),
            })),
        }
    }

    async fn grant(&mut self) -> Result<Lease, StoreError> {
        let asked = Moment::now();
        let (id, length) = self.store.grant(self.config.lease).await?;
        let lease = Lease { id, length, asked };
        self.lease = Some(lease);
        Ok(lease)
    }

    fn member(&self, incarnation: Incarnation) -> Member {
        Member {
            incarnation,
            address: self.config.address,
            name: self.config.name.clone(),
            page_bytes: self.config.page_bytes,
            representation: Representation::here(),
            process: self.config.process.clone(),
        }
    }

    fn found(&self, members: &Members, now: &Snapshot, lease: i64) -> Option<(Incarnation, Slot)> {
        members.members.iter().find_map(|(slot, member)| {
            let key = now.entries.get(&self.keys.alive(member.incarnation))?;
            (lease_of(&key.value) == Some(lease)).then_some((member.incarnation, *slot))
        })
    }

    async fn give_up(&self) {
        if let Some(lease) = self.lease {
            // It would run out.
            let _ = self.store.revoke(lease.id).await;
        }
    }

    fn host(self, joined: Joined) -> Host {
        let Joined {
            me,
            slot,
            lease,
            now,
        } = joined;
        let times = Times {
            lease: self.config.lease,
            going_on: self.config.going_on,
        };
        let mut rule = Rule::new(me, times, lease.asked, lease.length);
        let mut known = Known::new(self.keys.clone(), me);
        let events = Events::default();
        let told = known.resume(now).expect("its view was read just now");
        told.into_iter().for_each(|event: Event| {
            events.push(event);
        });
        let others = known.others().expect("it was found among the members");
        rule.viewed(&others, Moment::now());
        Host {
            me,
            slot,
            store: self.store,
            keys: self.keys,
            endpoint: self.config.endpoint.to_string(),
            wait: self.config.wait,
            lease: self.config.lease,
            fence: Fence::new(rule.acts_until()),
            events,
            state: std::sync::Mutex::new(State::new(rule, known, lease)),
            changed: tokio::sync::Notify::new(),
            stopped: tokio::sync::Notify::new(),
        }
    }
}

fn need(key: String, entry: Option<&Entry>) -> Need {
    match entry {
        Some(entry) => Need::Unchanged(key, entry.revision),
        None => Need::Absent(key),
    }
}

fn readable<T>(key: String, read: Result<T, record::RecordError>) -> Result<T, Failed> {
    read.map_err(|why| Failed::For(ControlError::Unreadable { key, why }))
}
