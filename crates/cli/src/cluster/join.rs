//! `farpage up --cluster`: the host kernel joins, and offers its processes what hosts share.

use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
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
use farpage_share::{HaveError, Observer, Wish};

use crate::size::human;

/// Where other hosts reach this one, unless it is said.
const PORT: u16 = 7661;

/// Which cluster.
#[derive(Args, Debug)]
pub struct JoinArgs {
    /// Share memory with the hosts of a cluster, whose names are kept in etcd:
    /// etcd://HOST:PORT/NAME
    ///
    /// Several servers of etcd are separated by commas. NAME is the cluster's, any that no other has.
    /// etcds:// uses TLS, etcd://USER:PASSWORD@HOST a user of etcd.
    #[arg(long, value_name = "URL", requires = "cluster_key")]
    pub cluster: Option<String>,
    /// The cluster's key, made by `farpage cluster init`, or the folder that it is in
    #[arg(long, value_name = "FILE", env = "FARPAGE_CLUSTER_KEY")]
    pub cluster_key: Option<PathBuf>,
    /// Where other hosts reach this one: an address, or one with a port [default: that from which
    /// etcd is reached, port 7661; any free port for `farpage run`]
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

/// How to join.
pub struct Joining {
    /// As the cluster wants it.
    pub share: farpage_share::Config,
    /// Which one, in words.
    pub store: String,
}

/// What the arguments say; others reach this host at `port`, unless they say another: 0 is any.
///
/// # Errors
/// When they cannot be.
pub fn config(args: &JoinArgs, port: u16) -> Result<Option<Joining>> {
    let (Some(url), Some(key)) = (&args.cluster, &args.cluster_key) else {
        return Ok(None);
    };
    let endpoint = Endpoint::parse(url).with_context(|| format!("cannot use --cluster {url}"))?;
    let key = ClusterKey::load(key)?;
    let address = address(args.address.as_deref(), url, port)?;
    let name = match &args.host_name {
        Some(name) => name.clone(),
        None => rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned(),
    };
    let store = format!("cluster {} at {endpoint}", key.name());
    let share = farpage_share::Config {
        control: farpage_control::Config::new(endpoint, address, &name),
        key,
        listen: address,
    };
    Ok(Some(Joining { share, store }))
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
    let Some(Joining { share, store }) = config(args, PORT)? else {
        return Ok(None);
    };
    let address = share.listen;
    let cluster = farpage_share::Cluster::join(share, objects, paging_space, Arc::new(Says))?;
    let said = format!(
        "{} of {store}, which others reach at {address}",
        cluster.own()
    );
    let joined = Joined { cluster, store };
    Ok(Some((Arc::new(joined), said)))
}

/// Tells users what they should see, and is told nothing else.
struct Says;

impl Observer for Says {
    fn say(&self, what: &str) {
        eprintln!("farpage: {what}");
    }
}

/// Where others reach this host.
fn address(given: Option<&str>, url: &str, port: u16) -> Result<SocketAddr> {
    let address = match given {
        None => Ok(SocketAddr::new(towards(url)?, port)),
        Some(given) => given
            .parse()
            .or_else(|_| given.parse().map(|ip: IpAddr| SocketAddr::new(ip, port))),
    };
    let given = given.unwrap_or_default();
    let Ok(mut address) = address else {
        bail!(
            "--address {given} is none; give an address of this host, such as 10.0.0.7 or 10.0.0.7:7661"
        );
    };
    if address.ip().is_unspecified() {
        bail!("--address {given} is none that other hosts can reach; give one of this host's own");
    }
    if address.port() == 0 {
        let probe = TcpListener::bind(address).and_then(|listener| listener.local_addr());
        let free = probe.with_context(|| format!("cannot listen at {}", address.ip()))?;
        address.set_port(free.port());
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

    /// As [`leave`].
    pub fn leave(&self, within: Duration) {
        leave(&self.cluster, within, |_| true);
    }
}

/// Leaves in good order, and says what of that others do not have, as far as it `is_news`.
pub fn leave(
    cluster: &farpage_share::Cluster,
    within: Duration,
    is_news: impl Fn(&farpage_share::Left) -> bool,
) {
    let says = |bytes: u64| {
        if bytes > 0 {
            eprintln!(
                "farpage: {} that only this host has are yet to be handed over; a second signal ends it",
                human(bytes)
            );
        }
    };
    for left in cluster.leave(within, &says).into_iter().filter(is_news) {
        let (name, why) = (&left.name, left.why);
        eprintln!(
            "farpage: {} of '{name}' were not handed over ({why}): of them is lost what no other host has",
            human(left.bytes)
        );
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
        let given = |text| address(Some(text), "", PORT).map_err(|error| error.to_string());
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
            let found = address(None, url, PORT).unwrap();
            assert_eq!(found, "127.0.0.1:7661".parse().unwrap());
            assert_ne!(address(None, url, 0).unwrap().port(), 0);
        }
        assert!(address(None, "etcd://no such host", PORT).is_err());
    }
}
