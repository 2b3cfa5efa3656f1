//! Ports that are found by name: each operation is one transaction.
//!
//! A name lives as long as its host is in the view. What a host leaves behind is no name any more, and
//! is swept, or taken by who wants the name.

use crate::error::ControlError;
use crate::host::Host;
use crate::objects::{Attempt, Result, Tried, commit, insist, readable};
use crate::record::{CheckedIn, decode_port, encode_port};
use crate::table::{Entry, Need, Txn, Write};

type Found = Option<(CheckedIn, Entry)>;

/// What is stored under a name.
async fn stored(host: &Host, name: &str) -> std::result::Result<Found, Attempt> {
    let key = host.keys.port(name);
    let Some(entry) = host.store.get(&key).await? else {
        return Ok(None);
    };
    let port = readable(key, decode_port(&entry.value))?;
    Ok(Some((port, entry)))
}

impl Host {
    /// A port is there while its host is in the view, which may be newer than what is known here: hosts that
    /// come have larger numbers.
    fn has_left(&self, port: &CheckedIn) -> Result<bool> {
        let state = self.state()?;
        let members = state.known.members.members.values();
        let newest = members.map(|member| member.incarnation).max();
        let is_past = newest.is_some_and(|newest| port.incarnation < newest);
        Ok(is_past && !state.known.is_member(port.incarnation))
    }
}

/// Gives a port of this host's a name.
pub(crate) async fn check_in(host: &Host, name: String, number: u64, uid: u32) -> Result<()> {
    let port = CheckedIn {
        incarnation: host.me,
        number,
        uid,
    };
    insist(host, async |maybe_done| {
        let key = host.keys.port(&name);
        let vacant = match stored(host, &name).await? {
            None => Need::Absent(key.clone()),
            Some((there, _)) if maybe_done && there == port => return Ok(Tried::Done(())),
            Some((there, entry)) if host.has_left(&there)? => {
                Need::Unchanged(key.clone(), entry.revision)
            }
            Some(_) => return Err(ControlError::PortExists(name.clone()).into()),
        };
        let needs = vec![host.here(), vacant];
        let writes = vec![Write::put(key, encode_port(&port))];
        commit(host, Txn { needs, writes }, ()).await
    })
    .await
}

/// The port of a name.
pub(crate) async fn look_up(host: &Host, name: String) -> Result<CheckedIn> {
    insist(host, async |_| match stored(host, &name).await? {
        Some((port, _)) if !host.has_left(&port)? => Ok(Tried::Done(port)),
        Some(_) | None => Err(ControlError::NoPort(name.clone()).into()),
    })
    .await
}

/// Takes a port's name away, if it is still that port's.
pub(crate) async fn check_out(host: &Host, name: String, port: CheckedIn) -> Result<()> {
    insist(host, async |_| {
        let Some((there, entry)) = stored(host, &name).await? else {
            return Ok(Tried::Done(()));
        };
        if there != port {
            return Ok(Tried::Done(()));
        }
        let key = host.keys.port(&name);
        let needs = vec![host.here(), Need::Unchanged(key.clone(), entry.revision)];
        let writes = vec![Write::Delete(key)];
        commit(host, Txn { needs, writes }, ()).await
    })
    .await
}
