//! Objects: names, holders; each operation is one transaction.
//!
//! Every write demands that this host's key is there: what was removed from the view writes no
//! more. Holders count while their host is in the view, whatever becomes of its lease, so that
//! nothing is lost when the store was away.

use std::time::Instant;

use tokio::time::sleep;

use crate::error::{ControlError, StoreError};
use crate::host::{Host, PAUSE};
use crate::known::Known;
use crate::record::{
    self, Description, Object, ObjectId, RecordError, encode_members, encode_number, encode_object,
};
use crate::table::{Need, Txn, Write};

/// One attempt at an operation.
pub(crate) enum Tried<T> {
    Done(T),
    /// Something changed meanwhile.
    Again,
}

impl From<StoreError> for Attempt {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<ControlError> for Attempt {
    fn from(error: ControlError) -> Self {
        Self::For(error)
    }
}

/// Why an attempt failed.
pub(crate) enum Attempt {
    Store(StoreError),
    /// No use to try again.
    For(ControlError),
}

pub(crate) type Result<T> = std::result::Result<T, ControlError>;
pub(crate) type Try<T> = std::result::Result<Tried<T>, Attempt>;

/// Tries while the store is silent, for as long as the host was told to; the attempt is told
/// whether one before it may have been done.
pub(crate) async fn insist<T>(
    host: &Host,
    mut attempt: impl AsyncFnMut(bool) -> Try<T>,
) -> Result<T> {
    let began = Instant::now();
    let endpoint = || host.endpoint.clone();
    let mut maybe_done = false;
    loop {
        drop(host.state()?);
        let why = match attempt(maybe_done).await {
            Ok(Tried::Done(done)) => return Ok(done),
            Ok(Tried::Again) => String::from("other hosts were faster each time"),
            Err(Attempt::For(error)) => return Err(error),
            Err(Attempt::Store(StoreError::Refused(why))) => {
                let endpoint = endpoint();
                return Err(ControlError::Store { endpoint, why });
            }
            Err(Attempt::Store(StoreError::Silent(why))) => {
                maybe_done = true;
                sleep(PAUSE).await;
                why
            }
        };
        let tried = began.elapsed();
        if tried >= host.wait {
            let endpoint = endpoint();
            return Err(ControlError::Silent {
                endpoint,
                tried,
                why,
            });
        }
    }
}

/// What an attempt ends with: it is done if all that it needs is so.
pub(crate) async fn commit<T>(host: &Host, txn: Txn, done: T) -> Try<T> {
    match host.store.transact(&txn).await? {
        true => Ok(Tried::Done(done)),
        false => Ok(Tried::Again),
    }
}

impl Host {
    async fn object_at(&self, id: ObjectId) -> std::result::Result<Option<(Object, i64)>, Attempt> {
        let key = self.keys.object(id);
        let Some(entry) = self.store.get(&key).await? else {
            return Ok(None);
        };
        let object = readable(key, record::decode_object(&entry.value))?;
        Ok(Some((object, entry.revision)))
    }

    pub(crate) fn here(&self) -> Need {
        Need::Present(self.keys.alive(self.me))
    }

    /// Tells what this host may have done wrong when a need of a transaction was not met.
    async fn absent(&self, id: ObjectId) -> std::result::Result<(), Attempt> {
        match self.store.get(&self.keys.object(id)).await? {
            Some(_) => Ok(()),
            None => Err(ControlError::NoObject(id).into()),
        }
    }

    pub(crate) fn drop_lease(&self) {
        let state = self.state.lock();
        let state = state.unwrap_or_else(std::sync::PoisonError::into_inner);
        self.store.drop_lease(state.lease.id);
    }
}

pub(crate) fn readable<T>(key: String, read: std::result::Result<T, RecordError>) -> Result<T> {
    read.map_err(|why| ControlError::Unreadable { key, why })
}

pub(crate) async fn make(
    host: &Host,
    name: Option<String>,
    description: Description,
) -> Result<ObjectId> {
    let attempt = {
        let mut state = host.state()?;
        state.attempts += 1;
        state.attempts
    };
    let object = Object {
        name: name.clone(),
        description,
        made_by: host.me,
        attempt,
    };
    // Numbers that an attempt without an answer may have taken.
    let mut tried = Vec::new();
    insist(host, async |maybe_done| {
        for id in tried.iter().filter(|_| maybe_done) {
            if host
                .object_at(*id)
                .await?
                .is_some_and(|(there, _)| there == object)
            {
                return Ok(Tried::Done(*id));
            }
        }
        if let Some(name) = &name
            && let Some(entry) = host.store.get(&host.keys.name(name)).await?
        {
            let read = record::decode_number(&entry.value);
            let id = ObjectId(readable(host.keys.name(name), read)?);
            return Err(ControlError::Exists(id).into());
        }
        let next = host.store.get(&host.keys.next_object()).await?;
        let id = match &next {
            Some(entry) => readable(host.keys.next_object(), record::decode_number(&entry.value))?,
            None => 1,
        };
        let Some(after) = id.checked_add(1) else {
            let why = RecordError::Wrong(String::from("there are no numbers left"));
            let key = host.keys.next_object();
            return Err(ControlError::Unreadable { key, why }.into());
        };
        let id = ObjectId(id);
        let mut needs = vec![host.here()];
        needs.push(match next {
            Some(entry) => Need::Unchanged(host.keys.next_object(), entry.revision),
            None => Need::Absent(host.keys.next_object()),
        });
        let mut writes = vec![
            Write::put(host.keys.next_object(), encode_number(after)),
            Write::put(host.keys.holder(id, host.me), String::from("true")),
            Write::put(host.keys.object(id), encode_object(&object)),
        ];
        if let Some(name) = &name {
            needs.push(Need::Absent(host.keys.name(name)));
            writes.push(Write::put(host.keys.name(name), encode_number(id.0)));
        }
        tried.push(id);
        match host.store.transact(&Txn { needs, writes }).await? {
            true => Ok(Tried::Done(id)),
            false => {
                tried.pop();
                Ok(Tried::Again)
            }
        }
    })
    .await
}

/// The object of a name, and the revision of it.
async fn named(host: &Host, name: &str) -> std::result::Result<(ObjectId, Object, i64), Attempt> {
    let nothing = || ControlError::NoName(String::from(name));
    let key = host.keys.name(name);
    let entry = host.store.get(&key).await?.ok_or_else(nothing)?;
    let id = ObjectId(readable(key, record::decode_number(&entry.value))?);
    // It may lose its name and be removed in between.
    let (object, revision) = host.object_at(id).await?.ok_or_else(nothing)?;
    Ok((id, object, revision))
}

pub(crate) async fn find(host: &Host, name: &str) -> Result<(ObjectId, Object)> {
    insist(host, async |_| {
        let (id, object, _) = named(host, name).await?;
        Ok(Tried::Done((id, object)))
    })
    .await
}

pub(crate) async fn list(host: &Host) -> Result<Vec<(ObjectId, Object)>> {
    insist(host, async |_| {
        let all = host.store.read(&host.keys.objects()).await?;
        let read = all.entries.iter().filter_map(|(key, entry)| {
            let object = record::decode_object(&entry.value).ok()?;
            Some((host.keys.object_of(key)?, object))
        });
        let mut objects: Vec<_> = read.collect();
        objects.sort_by_key(|(id, _)| *id);
        Ok(Tried::Done(objects))
    })
    .await
}

pub(crate) async fn remove(host: &Host, name: &str) -> Result<ObjectId> {
    let mut removing = None;
    insist(host, async |maybe_done| {
        let (id, object, revision) = match (named(host, name).await, removing) {
            (Err(Attempt::For(ControlError::NoName(_))), Some(id)) if maybe_done => {
                return Ok(Tried::Done(id));
            }
            (named, _) => named?,
        };
        removing = Some(id);
        let unnamed = Object {
            name: None,
            ..object
        };
        let needs = vec![
            host.here(),
            Need::Unchanged(host.keys.object(id), revision),
            Need::Present(host.keys.name(name)),
        ];
        let writes = vec![
            Write::Delete(host.keys.name(name)),
            Write::put(host.keys.object(id), encode_object(&unnamed)),
        ];
        commit(host, Txn { needs, writes }, id).await
    })
    .await
}

/// Where in the order of the store an object was last changed, or is known to be gone.
pub(crate) async fn revision_of(host: &Host, id: ObjectId) -> Result<i64> {
    insist(host, async |_| {
        let key = host.keys.object(id);
        if let Some(entry) = host.store.get(&key).await? {
            return Ok(Tried::Done(entry.revision));
        }
        let state = host.state()?;
        match state.known.objects.contains_key(&id) {
            // The watch has yet to tell.
            true => Ok(Tried::Again),
            false => Ok(Tried::Done(state.known.revision)),
        }
    })
    .await
}

/// Gives an object another name.
pub(crate) async fn rename(host: &Host, id: ObjectId, to: String) -> Result<()> {
    insist(host, async |_| {
        let gone = || ControlError::NoObject(id);
        let (object, revision) = host.object_at(id).await?.ok_or_else(gone)?;
        let before = object.name.clone().ok_or_else(gone)?;
        if before == to {
            return Ok(Tried::Done(()));
        }
        let key = host.keys.name(&to);
        if let Some(entry) = host.store.get(&key).await? {
            let other = readable(key, record::decode_number(&entry.value))?;
            return Err(ControlError::Exists(ObjectId(other)).into());
        }
        let renamed = Object {
            name: Some(to.clone()),
            ..object
        };
        let needs = vec![
            host.here(),
            Need::Unchanged(host.keys.object(id), revision),
            Need::Absent(key.clone()),
        ];
        let writes = vec![
            Write::Delete(host.keys.name(&before)),
            Write::put(key, encode_number(id.0)),
            Write::put(host.keys.object(id), encode_object(&renamed)),
        ];
        commit(host, Txn { needs, writes }, ()).await
    })
    .await
}

/// Says something else of an object's contents.
/// Changes what an object is.
pub(crate) async fn describe(
    host: &Host,
    id: ObjectId,
    change: impl Fn(&mut Description),
) -> Result<()> {
    insist(host, async |_| {
        let gone = || ControlError::NoObject(id);
        let (mut object, revision) = host.object_at(id).await?.ok_or_else(gone)?;
        change(&mut object.description);
        let wrong = object.description.check();
        wrong.map_err(ControlError::Description)?;
        let needs = vec![host.here(), Need::Unchanged(host.keys.object(id), revision)];
        let writes = vec![Write::put(host.keys.object(id), encode_object(&object))];
        commit(host, Txn { needs, writes }, ()).await
    })
    .await
}

pub(crate) async fn hold(host: &Host, id: ObjectId) -> Result<()> {
    insist(host, async |_| {
        let needs = vec![host.here(), Need::Present(host.keys.object(id))];
        let holder = host.keys.holder(id, host.me);
        let writes = vec![Write::put(holder, String::from("true"))];
        if host.store.transact(&Txn { needs, writes }).await? {
            return Ok(Tried::Done(()));
        }
        host.absent(id).await?;
        Ok(Tried::Again)
    })
    .await
}

pub(crate) async fn release(host: &Host, id: ObjectId) -> Result<()> {
    insist(host, async |_| {
        let needs = vec![host.here()];
        let writes = vec![Write::Delete(host.keys.holder(id, host.me))];
        commit(host, Txn { needs, writes }, ()).await
    })
    .await
}

/// Takes this host out of the view; it does not act any more. The last to leave takes along what
/// nobody names.
pub(crate) async fn leave(host: &Host, known: Known) -> Result<()> {
    let silent = |error: StoreError| match error {
        StoreError::Silent(why) | StoreError::Refused(why) => ControlError::Silent {
            endpoint: host.endpoint.clone(),
            tried: host.wait,
            why,
        },
    };
    let began = Instant::now();
    let lease = host.state.lock().map_or(0, |state| state.lease.id);
    loop {
        let left = leave_once(host, known.clone(), lease).await;
        match left {
            Ok(true) => return Ok(()),
            Ok(false) if began.elapsed() < host.wait => {}
            Err(_) if began.elapsed() < host.wait => sleep(PAUSE).await,
            Ok(false) => return Err(silent(StoreError::Silent("hosts came and went".into()))),
            Err(error) => return Err(silent(error)),
        }
    }
}

async fn leave_once(
    host: &Host,
    mut known: Known,
    lease: i64,
) -> std::result::Result<bool, StoreError> {
    let now = host.store.read(&host.keys.now()).await?;
    let unreadable = |why: RecordError| StoreError::Refused(why.to_string());
    known.resume(now).map_err(unreadable)?;
    if known.others().is_some() {
        let view = host.keys.view();
        let needs = vec![Need::Unchanged(view.clone(), known.generation)];
        let members = known.members.without(&[host.me]);
        let writes = vec![
            Write::put(view, encode_members(&members)),
            Write::Delete(host.keys.alive(host.me)),
            Write::Delete(host.keys.goes_on(host.me)),
        ];
        if !host.store.transact(&Txn { needs, writes }).await? {
            return Ok(false);
        }
        let now = host.store.read(&host.keys.now()).await?;
        known.resume(now).map_err(unreadable)?;
    }
    // Twice: what nobody holds is seen only when the holders are gone.
    for _ in 0..2 {
        for txn in host.sweeps(&known) {
            host.store.transact(&txn).await?;
        }
        let now = host.store.read(&host.keys.now()).await?;
        known.resume(now).map_err(unreadable)?;
    }
    let _ = host.store.revoke(lease).await;
    Ok(true)
}
