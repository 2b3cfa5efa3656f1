//! `farpage up --cluster`: the host kernel joins, and offers its processes what hosts share.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use farpage_control::{ControlError, Endpoint, Scheduler as Recorded};
use farpage_host::Objects;
use farpage_network::ClusterKey;
use farpage_pagers::Pager;
use farpage_services::Refusal;
use farpage_services::cluster::{
    Cluster, ClusterListed, Had, HostListed, Scheduler, SharedFigures, SharedListed, Wanted,
};
use farpage_share::{HaveError, Wish};

use crate::size::human;

/// Where other hosts reach this one, unless it is said.
const PORT: u16 = 7661;

/// Which cluster.
#[derive(Args, Debug)]
pub struct JoinArgs {
    /// Share memory with the hosts of a cluster, whose names are kept in etcd:
    /// etcd://HOST:PORT/NAME
    ///
    /// Several servers of etcd are separated by commas. NAME is the cluster's; without, farpage.
    /// etcds:// uses TLS, etcd://USER:PASSWORD@HOST a user of etcd.
    #[arg(long, value_name = "URL", requires = "cluster_key")]
    pub cluster: Option<String>,
    /// The cluster's key, made by `farpage cluster init`, or the folder that it is in
    #[arg(
        long,
        value_name = "FILE",
        env = "FARPAGE_CLUSTER_KEY",
        requires = "cluster"
    )]
    pub cluster_key: Option<PathBuf>,
    /// Where other hosts reach this one: an address, or one with a port [default: that from which
    /// etcd is reached, port 7661]
    #[arg(long, value_name = "ADDRESS", requires = "cluster")]
    pub address: Option<String>,
    /// What this host is called in lists [default: its host name]
    #[arg(long, value_name = "NAME", requires = "cluster")]
    pub host_name: Option<String>,
    /// When it ends, hand over to the others what only this host has, for so long at most
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 30,
        requires = "cluster"
    )]
    pub hand_over: u64,
}

/// Joins, if it is asked for. Also says how it is called.
///
/// # Errors
/// When it cannot.
pub fn join(
    args: &JoinArgs,
    objects: &'static Objects,
    paging_space: Arc<dyn Pager>,
) -> Result<Option<(Arc<Joined>, String)>> {
    let (Some(url), Some(key)) = (&args.cluster, &args.cluster_key) else {
        return Ok(None);
    };
    let endpoint = Endpoint::parse(url).with_context(|| format!("cannot use --cluster {url}"))?;
    let key = ClusterKey::load(key)?;
    let address = address(args.address.as_deref(), url)?;
    let name = match &args.host_name {
        Some(name) => name.clone(),
        None => rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned(),
    };
    let told = format!("cluster {} at {endpoint}", key.name());
    let config = farpage_share::Config {
        control: farpage_control::Config::new(endpoint, address, &name),
        key,
        listen: address,
    };
    let say = Box::new(|what: &str| eprintln!("farpage: {what}"));
    let cluster = farpage_share::Cluster::join(config, objects, paging_space, say)?;
    let said = format!(
        "{} of {told}, which others reach at {address}",
        cluster.own()
    );
    let joined = Joined {
        cluster,
        store: told,
    };
    Ok(Some((Arc::new(joined), said)))
}

/// Where others reach this host.
fn address(given: Option<&str>, url: &str) -> Result<SocketAddr> {
    let Some(given) = given else {
        return Ok(SocketAddr::new(towards(url)?, PORT));
    };
    let address = given
        .parse()
        .or_else(|_| given.parse().map(|ip: IpAddr| SocketAddr::new(ip, PORT)));
    let Ok(address) = address else {
        bail!(
            "--address {given} is none; give an address of this host, such as 10.0.0.7 or 10.0.0.7:7661"
        );
    };
    if address.ip().is_unspecified() {
        bail!("--address {given} is none that other hosts can reach; give one of this host's own");
    }
    Ok(address)
}

/// The address of this host from which the first server of etcd is reached.
fn towards(url: &str) -> Result<IpAddr> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let servers = rest.split('/').next().unwrap_or_default();
    let servers = servers
        .rsplit_once('@')
        .map_or(servers, |(_, servers)| servers);
    let first = servers.split(',').next().unwrap_or_default();
    let find = || {
        let any: IpAddr = [0, 0, 0, 0].into();
        let socket = UdpSocket::bind((any, 0)).or_else(|_| UdpSocket::bind("[::]:0"))?;
        // Nothing is sent: Linux only decides on the way there.
        socket.connect(first)?;
        Ok::<_, std::io::Error>(socket.local_addr()?.ip())
    };
    find().with_context(|| {
        format!("cannot tell by which address other hosts reach this one ({first}); give --address")
    })
}

/// The cluster, as the host kernel's processes have it.
pub struct Joined {
    cluster: farpage_share::Cluster,
    store: String,
}

impl Joined {
    /// True when an object is still there when this host has left.
    pub fn outlives(&self, name: &str) -> bool {
        self.cluster.outlives(name)
    }

    /// Leaves in good order, and says what of that others do not have.
    pub fn leave(&self, within: Duration) {
        let says = |bytes| {
            eprintln!(
                "farpage: {} that only this host has are yet to be handed over; a second signal ends it",
                human(bytes)
            );
        };
        for left in self.cluster.leave(within, &says) {
            let (name, why) = (&left.name, left.why);
            eprintln!(
                "farpage: {} of '{name}' were not handed over ({why}): of them is lost what no other \
                 host has",
                human(left.bytes)
            );
        }
    }
}

impl Cluster for Joined {
    fn have(&self, name: &str, uid: u32, wanted: Option<Wanted>) -> Result<Had, Refusal> {
        let wish = wanted.map(|wanted| Wish {
            bytes: wanted.bytes,
            unit_bytes: wanted.unit_bytes,
            scheduler: match wanted.scheduler {
                Scheduler::Simple => Recorded::Simple,
                Scheduler::Distributed => Recorded::Distributed,
            },
            replicas: wanted.replicas,
            stays: wanted.stays,
            note: wanted.note,
        });
        let had = self.cluster.have(name, uid, wish.as_ref());
        let (number, described, object) = had.map_err(|error| refusal(name, error))?;
        Ok(Had {
            number,
            bytes: described.bytes,
            uid: described.uid,
            note: described.note,
            object,
        })
    }

    fn release(&self, number: u64) {
        if let Err(error) = self.cluster.release(number) {
            eprintln!("farpage: an object of the cluster is kept until this host leaves: {error}");
        }
    }

    fn remove(&self, name: &str, uid: u32) -> Result<(), Refusal> {
        let removed = self.cluster.remove(name, uid);
        removed.map_err(|error| refusal(name, error))
    }

    fn list(&self, uid: u32) -> ClusterListed {
        let state = self.cluster.state();
        let own = self.cluster.own();
        let hosts = state.members.values().map(|member| HostListed {
            number: member.host.0,
            name: member.name.clone(),
            address: member.address.to_string(),
            is_own: member.host == own,
            is_up: member.is_up,
            cause: member.cause.clone(),
        });
        let objects = state.objects.into_iter();
        let objects = objects.filter(|(_, (_, described))| uid == 0 || uid == described.uid);
        ClusterListed {
            store: self.store.clone(),
            trouble: match (state.fenced, state.store_lost) {
                (Some(why), _) => format!("this host is out of the cluster: {why}"),
                (None, Some(why)) => format!("the cluster's store does not answer: {why}"),
                (None, None) => String::new(),
            },
            generation: state.generation,
            hosts: hosts.collect(),
            objects: objects
                .map(|(number, one)| self.listed(number, one))
                .collect(),
        }
    }
}

impl Joined {
    fn listed(
        &self,
        number: u64,
        (name, described): (Option<String>, farpage_control::Description),
    ) -> SharedListed {
        let figures = self.cluster.figures(number).unwrap_or_default();
        SharedListed {
            name: name.unwrap_or_default(),
            number,
            wanted: Wanted {
                bytes: described.bytes,
                unit_bytes: described.page_bytes,
                scheduler: match described.scheduler {
                    Recorded::Simple => Scheduler::Simple,
                    Recorded::Distributed => Scheduler::Distributed,
                },
                replicas: described.replicas,
                stays: described.stays,
                note: described.note,
            },
            home: described.home.slot.0,
            owned: figures.owned,
            copies: figures.copies,
            figures: SharedFigures {
                read_misses: figures.read_misses,
                write_misses: figures.write_misses,
                upgrades: figures.upgrades,
                sent: figures.sent,
                forwarded: figures.forwarded,
                contents_sent: figures.contents_sent,
                given: figures.given,
                dropped: figures.dropped,
            },
        }
    }
}

fn refusal(name: &str, error: HaveError) -> Refusal {
    match error {
        HaveError::Control(ControlError::NoName(_)) => Refusal::NotFound(name.into()),
        HaveError::Control(ControlError::Name(_)) => Refusal::Name(name.into()),
        HaveError::Control(error) => Refusal::Cluster(error.to_string()),
        HaveError::Open(error) => Refusal::Cluster(error.to_string()),
        HaveError::NotYours(name) => Refusal::NotYours(name),
        HaveError::Differs {
            name,
            bytes,
            unit_bytes,
        } => {
            let there = format!("of {} in pages of {}", human(bytes), human(unit_bytes));
            Refusal::Differs(name, there)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_others_reach_a_host_is_given_or_found() {
        let given = |text| address(Some(text), "").map_err(|error| error.to_string());
        assert_eq!(given("10.0.0.7"), Ok("10.0.0.7:7661".parse().unwrap()));
        assert_eq!(given("10.0.0.7:9"), Ok("10.0.0.7:9".parse().unwrap()));
        assert_eq!(given("::1"), Ok("[::1]:7661".parse().unwrap()));
        assert!(
            given("here")
                .unwrap_err()
                .contains("--address here is none")
        );
        assert!(given("0.0.0.0").unwrap_err().contains("can reach"));
        for url in ["etcd://127.0.0.1:2379/x", "etcd://me:word@127.0.0.1:1,b:2"] {
            let found = address(None, url).unwrap();
            assert_eq!(found, "127.0.0.1:7661".parse().unwrap());
        }
        assert!(address(None, "etcd://no such host").is_err());
    }
}
