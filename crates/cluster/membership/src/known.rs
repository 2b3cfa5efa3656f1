//! What this host knows of the store: what it read once, and every change since, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::apart::Unheard;
use crate::event::Event;
use crate::record::{
    CheckedIn, Object, ObjectId, RecordError, decode_members, decode_number, decode_object,
    decode_port, decode_unheard,
};
use crate::rule::{GOING_ON_MAX, Told};
use crate::table::{Change, Snapshot};
use crate::view::{Incarnation, Members, View};

/// Where everything of a cluster is stored.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    cluster: String,
}

impl Keys {
    pub(crate) fn new(cluster: &str) -> Self {
        let cluster = String::from(cluster);
        Self { cluster }
    }

    fn of(&self, rest: &str) -> String {
        format!("{}/{rest}", self.cluster)
    }

    /// The version.
    pub(crate) fn format(&self) -> String {
        self.of("format")
    }

    /// Which key its hosts have.
    pub(crate) fn key(&self) -> String {
        self.of("key")
    }

    /// What every host watches.
    pub(crate) fn now(&self) -> String {
        self.of("now/")
    }

    /// The newest view.
    pub(crate) fn view(&self) -> String {
        self.of("now/view")
    }

    /// Goes with the host's lease.
    pub(crate) fn alive(&self, host: Incarnation) -> String {
        self.of(&format!("now/alive/{host}"))
    }

    pub(crate) fn alive_of(&self, key: &str) -> Option<Incarnation> {
        let number = key.strip_prefix(&self.of("now/alive/"))?;
        number.parse().ok().map(Incarnation)
    }

    /// The host counts on promises of the others.
    pub(crate) fn goes_on(&self, host: Incarnation) -> String {
        self.of(&format!("now/goes-on/{host}"))
    }

    pub(crate) fn goes_on_of(&self, key: &str) -> Option<Incarnation> {
        let number = key.strip_prefix(&self.of("now/goes-on/"))?;
        number.parse().ok().map(Incarnation)
    }

    /// Of whom the host has not heard; goes with its lease.
    pub(crate) fn unheard(&self, host: Incarnation) -> String {
        self.of(&format!("now/unheard/{host}"))
    }

    pub(crate) fn unheard_of(&self, key: &str) -> Option<Incarnation> {
        let number = key.strip_prefix(&self.of("now/unheard/"))?;
        number.parse().ok().map(Incarnation)
    }

    pub(crate) fn objects(&self) -> String {
        self.of("now/object/")
    }

    pub(crate) fn object(&self, id: ObjectId) -> String {
        self.of(&format!("now/object/{id}"))
    }

    pub(crate) fn object_of(&self, key: &str) -> Option<ObjectId> {
        let number = key.strip_prefix(&self.objects())?;
        number.parse().ok().map(ObjectId)
    }

    /// All holders of an object.
    pub(crate) fn holders(&self, id: ObjectId) -> String {
        self.of(&format!("now/holder/{id}/"))
    }

    pub(crate) fn holder(&self, id: ObjectId, host: Incarnation) -> String {
        self.of(&format!("now/holder/{id}/{host}"))
    }

    fn holder_of(&self, key: &str) -> Option<(ObjectId, Incarnation)> {
        let (id, host) = key.strip_prefix(&self.of("now/holder/"))?.split_once('/')?;
        Some((ObjectId(id.parse().ok()?), Incarnation(host.parse().ok()?)))
    }

    /// Which object has a name.
    pub(crate) fn name(&self, name: &str) -> String {
        self.of(&format!("name/{name}"))
    }

    /// The number of the next object.
    pub(crate) fn next_object(&self) -> String {
        self.of("next-object")
    }

    /// Where a port is found by its name.
    pub(crate) fn port(&self, name: &str) -> String {
        self.of(&format!("now/port/{name}"))
    }

    pub(crate) fn port_of<'a>(&self, key: &'a str) -> Option<&'a str> {
        let rest = key.strip_prefix(&self.cluster)?;
        rest.strip_prefix("/now/port/")
    }
}

/// How long a host may go on; the longest that there is when that cannot be read.
pub(crate) fn going_on_of(value: &[u8]) -> Duration {
    let ms = decode_number(value).map(Duration::from_millis);
    ms.map_or(GOING_ON_MAX, |going_on| going_on.min(GOING_ON_MAX))
}

/// An object and the revision of it.
#[derive(Clone, Debug)]
pub(crate) struct KnownObject {
    pub(crate) object: Object,
    pub(crate) revision: i64,
}

impl KnownObject {
    /// It is there also when no host has it.
    fn stays(&self) -> bool {
        self.object.name.is_some() && self.object.description.stays
    }
}

/// What one host knows.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    keys: Keys,
    me: Incarnation,
    /// Everything up to here is known.
    pub(crate) revision: i64,
    pub(crate) generation: i64,
    /// Everything up to there was taken.
    whole: i64,
    pub(crate) members: Members,
    alive: BTreeSet<Incarnation>,
    going_on: BTreeMap<Incarnation, Duration>,
    pub(crate) unheard: Unheard,
    pub(crate) objects: BTreeMap<ObjectId, KnownObject>,
    holders: BTreeSet<(ObjectId, Incarnation)>,
    /// Ports by their names, each with its revision.
    ports: BTreeMap<String, (CheckedIn, i64)>,
    /// All keys there are, to see after a gap what was deleted.
    revisions: BTreeMap<String, i64>,
}

impl Known {
    pub(crate) fn new(keys: Keys, me: Incarnation) -> Self {
        Self {
            keys,
            me,
            revision: 0,
            generation: 0,
            whole: 0,
            members: Members::default(),
            alive: BTreeSet::new(),
            going_on: BTreeMap::new(),
            unheard: Unheard::new(),
            objects: BTreeMap::new(),
            holders: BTreeSet::new(),
            ports: BTreeMap::new(),
            revisions: BTreeMap::new(),
        }
    }

    /// Takes everything anew: what differs is told as if it had been watched.
    ///
    /// # Errors
    /// When the view cannot be read: nothing is safe then.
    pub(crate) fn resume(&mut self, snapshot: Snapshot) -> Result<Vec<Event>, RecordError> {
        let gone = self.revisions.keys();
        let gone = gone.filter(|key| !snapshot.entries.contains_key(*key));
        let mut changes: Vec<Change> = gone
            .map(|key| Change {
                key: key.clone(),
                revision: snapshot.revision,
                value: None,
            })
            .collect();
        for (key, entry) in snapshot.entries {
            if self.revisions.get(&key) != Some(&entry.revision) {
                let (revision, value) = (entry.revision, Some(entry.value));
                changes.push(Change {
                    key,
                    revision,
                    value,
                });
            }
        }
        changes.sort_by_key(|change| change.revision);
        let events = self.take(&changes)?;
        self.revision = self.revision.max(snapshot.revision);
        self.whole = self.whole.max(snapshot.revision);
        Ok(events)
    }

    /// Takes changes in their order. Those that a snapshot had, which was read meanwhile, were taken.
    ///
    /// # Errors
    /// As [`Known::resume`].
    pub(crate) fn apply(&mut self, changes: &[Change]) -> Result<Vec<Event>, RecordError> {
        let whole = self.whole;
        self.take(changes.iter().filter(|change| change.revision > whole))
    }

    fn take<'a>(
        &mut self,
        changes: impl IntoIterator<Item = &'a Change>,
    ) -> Result<Vec<Event>, RecordError> {
        let mut events = Vec::new();
        for change in changes {
            self.revision = self.revision.max(change.revision);
            match &change.value {
                Some(_) => self.revisions.insert(change.key.clone(), change.revision),
                None => self.revisions.remove(&change.key),
            };
            if change.key == self.keys.view() {
                events.push(self.apply_view(change)?);
            } else if let Some(host) = self.keys.alive_of(&change.key) {
                events.extend(self.apply_alive(host, change.value.is_some()));
            } else if let Some(host) = self.keys.goes_on_of(&change.key) {
                match &change.value {
                    Some(value) => self.going_on.insert(host, going_on_of(value)),
                    None => self.going_on.remove(&host),
                };
            } else if let Some(host) = self.keys.unheard_of(&change.key) {
                // What cannot be read is of no weight.
                let of = change.value.as_ref();
                match of.and_then(|value| decode_unheard(value).ok()) {
                    Some(of) => self.unheard.insert(host, of),
                    None => self.unheard.remove(&host),
                };
            } else if let Some(id) = self.keys.object_of(&change.key) {
                events.extend(self.apply_object(id, change));
            } else if let Some(name) = self.keys.port_of(&change.key) {
                // What cannot be read is said where somebody looks for it.
                let value = change.value.as_ref();
                match value.and_then(|value| decode_port(value).ok()) {
                    Some(port) => {
                        let known = (port, change.revision);
                        self.ports.insert(String::from(name), known);
                    }
                    None => drop(self.ports.remove(name)),
                }
            } else if let Some(holder) = self.keys.holder_of(&change.key) {
                match change.value {
                    Some(_) => self.holders.insert(holder),
                    None => self.holders.remove(&holder),
                };
            }
        }
        Ok(events)
    }

    fn apply_view(&mut self, change: &Change) -> Result<Event, RecordError> {
        let gone = || RecordError::Wrong(String::from("the view was deleted by hand"));
        self.members = decode_members(change.value.as_ref().ok_or_else(gone)?)?;
        self.generation = change.revision;
        Ok(Event::View(self.view()))
    }

    fn apply_alive(&mut self, host: Incarnation, there: bool) -> Option<Event> {
        if there {
            self.alive.insert(host);
            return None;
        }
        self.alive.remove(&host);
        let (slot, _) = self.view().member(host)?;
        (host != self.me).then_some(Event::AtRisk {
            slot,
            incarnation: host,
        })
    }

    fn apply_object(&mut self, id: ObjectId, change: &Change) -> Option<Event> {
        let Some(value) = &change.value else {
            return self.objects.remove(&id).map(|_| Event::Removed(id));
        };
        let revision = change.revision;
        match decode_object(value) {
            Ok(object) => {
                let known = KnownObject {
                    object: object.clone(),
                    revision,
                };
                Some(match self.objects.insert(id, known) {
                    Some(_) => Event::Changed(id, object),
                    None => Event::Made(id, object),
                })
            }
            Err(why) => Some(Event::Unreadable {
                key: change.key.clone(),
                why,
            }),
        }
    }

    pub(crate) fn view(&self) -> View {
        View {
            generation: self.generation.unsigned_abs(),
            members: self.members.members.clone(),
        }
    }

    /// The other members, and what the store says of them; `None` when this host is no member.
    pub(crate) fn others(&self) -> Option<BTreeMap<Incarnation, Told>> {
        let numbers = self.members.members.values().map(|m| m.incarnation);
        let told = |host: Incarnation| Told {
            alive: self.alive.contains(&host),
            goes_on: self.going_on.get(&host).copied(),
        };
        let mut all: BTreeMap<_, _> = numbers.map(|host| (host, told(host))).collect();
        all.remove(&self.me)?;
        Some(all)
    }

    /// Holder keys of hosts that left the view for ever.
    pub(crate) fn dead_holders(&self) -> Vec<String> {
        let members = self.members.members.values();
        let there: BTreeSet<Incarnation> = members.map(|member| member.incarnation).collect();
        let dead = self
            .holders
            .iter()
            .filter(|(_, host)| !there.contains(host));
        dead.map(|(id, host)| self.keys.holder(*id, *host))
            .collect()
    }

    /// True of a host of the view.
    pub(crate) fn is_member(&self, host: Incarnation) -> bool {
        let mut members = self.members.members.values();
        members.any(|member| member.incarnation == host)
    }

    /// Ports by their names, of hosts that are there.
    pub(crate) fn ports(&self) -> impl Iterator<Item = (&str, &CheckedIn)> {
        let ports = self.ports.iter().map(|(name, (port, _))| (&**name, port));
        ports.filter(|(_, port)| self.is_member(port.incarnation))
    }

    /// Names of ports of hosts that left the view for ever, with their revisions.
    pub(crate) fn dead_ports(&self) -> Vec<(String, i64)> {
        let dead = self.ports.iter();
        let dead = dead.filter(|(_, (port, _))| !self.is_member(port.incarnation));
        dead.map(|(name, (_, revision))| (self.keys.port(name), *revision))
            .collect()
    }

    /// True when an object is still there when this host has gone: it stays, or another has it.
    pub(crate) fn outlives_me(&self, id: ObjectId) -> bool {
        let is_others = |(of, by): &(ObjectId, Incarnation)| *of == id && *by != self.me;
        let known = self.objects.get(&id);
        known.is_some_and(|known| known.stays() || self.holders.iter().any(is_others))
    }

    /// Objects that nobody holds and that do not stay, with their names.
    pub(crate) fn unheld(&self) -> Vec<(ObjectId, i64, Option<String>)> {
        let held = |id: ObjectId| {
            let (first, last) = (Incarnation(0), Incarnation(u64::MAX));
            self.holders
                .range((id, first)..=(id, last))
                .next()
                .is_some()
        };
        let unheld = self.objects.iter();
        let unheld = unheld.filter(|(id, known)| !known.stays() && !held(**id));
        let unheld = unheld.map(|(id, known)| (*id, known.revision, known.object.name.clone()));
        unheld.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::encode_members;
    use crate::table::{Table, Txn, Write};

    fn write(table: &mut Table, writes: Vec<Write>) -> Vec<Change> {
        let needs = Vec::new();
        table.transact(Txn { needs, writes }).expect("no needs")
    }

    #[test]
    fn after_a_gap_the_difference_is_told() {
        let keys = Keys::new("c");
        let mut table = Table::default();
        let (mut known, members) = (Known::new(keys.clone(), Incarnation(0)), Members::default());
        let put = |key: String| Write::put(key, String::from("0"));
        let view = Write::put(keys.view(), encode_members(&members));
        write(&mut table, vec![view, put(keys.alive(Incarnation(3)))]);
        let events = known.resume(table.read("c/now/")).expect("it is ours");
        assert!(matches!(&events[..], [Event::View(view)] if view.generation == 1));
        assert!(known.alive.contains(&Incarnation(3)));
        let holder = keys.holder(ObjectId(1), Incarnation(9));
        write(&mut table, vec![put(holder.clone())]);
        write(&mut table, vec![Write::Delete(keys.alive(Incarnation(3)))]);
        assert_eq!(known.resume(table.read("c/now/")), Ok(vec![]));
        assert_eq!((known.revision, known.alive.len()), (3, 0));
        assert_eq!(known.dead_holders(), [holder]);
    }

    #[test]
    fn what_was_read_meanwhile_is_not_told_again_when_its_notice_comes() {
        let keys = Keys::new("c");
        let mut table = Table::default();
        let (mut known, members) = (Known::new(keys.clone(), Incarnation(0)), Members::default());
        let view = || Write::put(keys.view(), encode_members(&members));
        let noticed = write(&mut table, vec![view()]);
        let read = known.resume(table.read("c/now/"));
        assert_eq!(read.expect("it is ours").len(), 1);
        assert_eq!(known.apply(&noticed), Ok(vec![]));
        let later = write(&mut table, vec![view()]);
        let events = known.apply(&later).expect("it is ours");
        assert!(matches!(&events[..], [Event::View(view)] if view.generation == 2));
    }

    #[test]
    fn an_object_that_cannot_be_read_is_told_and_a_view_is_an_error() {
        let keys = Keys::new("c");
        let mut known = Known::new(keys.clone(), Incarnation(0));
        let change = |key: String| Change {
            key,
            revision: 4,
            value: Some(b"{".to_vec()),
        };
        let events = known.apply(&[change(keys.object(ObjectId(1)))]);
        assert!(matches!(
            &events.expect("told")[..],
            [Event::Unreadable { .. }]
        ));
        assert!(known.apply(&[change(keys.view())]).is_err());
    }
}
