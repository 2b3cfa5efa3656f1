//! Ports between the hosts of a cluster: the network message server, and where its names are kept.

use std::sync::{Arc, OnceLock, Weak};

use anyhow::{Context, Result};
use farpage_client::{PortListed, Refusal};
use farpage_membership::{CheckedIn, ControlError};
use farpage_server::{Cluster, PortWire};

use super::joined::Joined;
use crate::net_message::{Found, Names, NetMessages, Wire};
/// Names in the cluster's store, once this host is in it.
#[derive(Default)]
pub(super) struct Stored(OnceLock<Weak<Joined>>);

/// The server, and where it is told of the cluster.
pub(super) fn start() -> Result<(NetMessages, Arc<Stored>)> {
    let stored = Arc::new(Stored::default());
    let server = NetMessages::start(Arc::clone(&stored) as _);
    let server = server.context("cannot start the network message server")?;
    Ok((server, stored))
}

/// How packets go.
pub(super) struct Wired(pub(super) PortWire);

impl Wire for Wired {
    fn send(&self, to: u64, parts: &[&[u8]]) {
        self.0.send(to, parts);
    }

    fn owed_bytes(&self, to: u64) -> usize {
        self.0.owed_bytes(to)
    }
}

impl Stored {
    pub(super) fn are_of(&self, joined: &Arc<Joined>) {
        self.0.get_or_init(|| Arc::downgrade(joined));
    }

    fn cluster(&self) -> Result<Arc<Cluster>, Refusal> {
        let joined = self.0.get().and_then(Weak::upgrade);
        let out = || Refusal::Cluster("this host has left the cluster".into());
        joined.ok_or_else(out)?.asked()
    }
}

fn refusal(error: ControlError) -> Refusal {
    match error {
        ControlError::PortExists(name) => Refusal::PortExists(name),
        ControlError::NoPort(name) => Refusal::NoPort(name),
        ControlError::Name(name) => Refusal::PortName(name),
        error => Refusal::Cluster(error.to_string()),
    }
}

impl Names for Stored {
    fn check_in(&self, name: &str, number: u64, uid: u32) -> Result<(), Refusal> {
        let done = self.cluster()?.check_in(name, number, uid);
        done.map_err(refusal)
    }

    fn look_up(&self, name: &str) -> Result<Found, Refusal> {
        let port = self.cluster()?.look_up(name).map_err(refusal)?;
        Ok(Found {
            home: port.incarnation.0,
            number: port.number,
            uid: port.uid,
        })
    }

    fn check_out(&self, name: &str, number: u64) -> Result<(), Refusal> {
        let cluster = self.cluster()?;
        let is_it =
            |port: &CheckedIn| (port.incarnation.0, port.number) == (cluster.stay(), number);
        match cluster.look_up(name) {
            Ok(port) if is_it(&port) => cluster.check_out(name, port).map_err(refusal),
            Ok(_) | Err(ControlError::NoPort(_)) => Ok(()),
            Err(error) => Err(refusal(error)),
        }
    }

    fn list(&self) -> Result<Vec<PortListed>, Refusal> {
        let cluster = self.cluster()?;
        let listed = cluster.ports().into_iter().map(|(name, port)| {
            let stay = port.incarnation.0;
            PortListed {
                name,
                host: cluster.host_name(stay).unwrap_or_default(),
                is_own: stay == cluster.stay(),
                uid: port.uid,
            }
        });
        Ok(listed.collect())
    }

    fn lost(&self) -> Option<Refusal> {
        let why = self.cluster().ok()?.store_lost()?;
        let why = format!(
            "the cluster's store does not answer ({why}): names of ports cannot be given, found or taken away \
             until it does; try again then"
        );
        Some(Refusal::Cluster(why))
    }
}
