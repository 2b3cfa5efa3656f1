//! `farpage up --cluster`: the host kernel joins, and offers its processes what hosts share.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use farpage_control::{ControlError, Endpoint, Scheduler as Recorded};
use farpage_host::Objects;
use farpage_network::ClusterKey;
use farpage_pagers::Pager;
use farpage_services::cluster::{
    Cluster, ClusterListed, Had, HostListed, OnFigures, OnPages, PagesWanted, Scheduler,
    SharedFigures, SharedListed, Wanted,
};
use farpage_services::{Here, Refusal};
use farpage_share::{HaveError, Observer, Wish};

use super::told;
use crate::size::human;
use crate::symbols::Symbols;

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
    let address = farpage_member::address(args.address.as_deref(), url, port)
        .context("cannot tell --address")?;
    let name = args.host_name.clone();
    let name = name.unwrap_or_else(farpage_member::host_name);
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
    here: Arc<Here>,
) -> Result<Option<(Arc<Joined>, String)>> {
    let Some(Joining { share, store }) = config(args, PORT)? else {
        return Ok(None);
    };
    let address = share.listen;
    let says = Says {
        here,
        symbols: Mutex::default(),
    };
    let cluster = farpage_share::Cluster::join(share, objects, paging_space, Arc::new(says))?;
    let said = format!(
        "{} of {store}, which others reach at {address}",
        cluster.own()
    );
    let joined = Joined { cluster, store };
    Ok(Some((Arc::new(joined), said)))
}

/// Tells users what they should see, and other hosts what they ask of the processes of this one.
struct Says {
    here: Arc<Here>,
    symbols: Mutex<Symbols>,
}

impl Observer for Says {
    fn say(&self, what: &str) {
        eprintln!("farpage: {what}");
    }

    fn wake(&self, number: u64, offset: u64, _: u32) {
        self.here.wake(number, offset);
    }

    fn lives(&self, process: u64) -> bool {
        self.here.lives(process)
    }

    fn place(&self, thread: u32, instruction: u64) -> String {
        let mut symbols = self.symbols.lock().unwrap_or_else(PoisonError::into_inner);
        symbols.place(thread, instruction)
    }
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
            hold_us: wanted.hold_us,
            stale_us: wanted.stale_us,
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
            is_sealed: described.is_sealed,
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

    fn seal(&self, name: &str, uid: u32) -> Result<(), Refusal> {
        let sealed = self.cluster.seal(name, uid);
        sealed.map_err(|error| refusal(name, error))
    }

    fn host(&self) -> u8 {
        self.cluster.own().0
    }

    fn wake(&self, number: u64, offset: u64, hosts: u64) {
        self.cluster.wake_at(number, offset, hosts);
    }

    fn asks_whether(&self, host: u8, process: u64, answer: Box<dyn FnOnce(bool) + Send>) {
        self.cluster.asks_whether(host, process, answer);
    }

    fn pages(&self, name: &str, uid: u32, wanted: PagesWanted, answer: OnPages) {
        let state = self.cluster.state();
        let mut named = state.objects.iter();
        let found = named.find(|(_, (of, _))| of.as_deref() == Some(name));
        let (number, described) = match found {
            None => return answer(Err(Refusal::NotFound(name.into()))),
            Some((_, (_, described))) if uid != 0 && uid != described.uid => {
                return answer(Err(Refusal::NotYours(name.into())));
            }
            Some((number, (_, described))) => (*number, described.clone()),
        };
        let name = name.to_owned();
        match wanted {
            PagesWanted::Hottest(most) => {
                let answer = move |of| answer(Ok(told::pages(&name, &described, &state, of, None)));
                self.cluster.asks_hottest(number, most, Box::new(answer));
            }
            PagesWanted::Watched(pages) => {
                let order = pages.clone();
                let answer = move |of| {
                    let order = Some(order.as_slice());
                    answer(Ok(told::pages(&name, &described, &state, of, order)));
                };
                self.cluster.watches(number, pages, Box::new(answer));
            }
        }
    }

    fn figures(&self, uid: u32, answer: OnFigures) {
        let (state, own) = (self.cluster.state(), self.cluster.own().0);
        let answer = move |of| answer(told::figures(&state, own, uid, of));
        self.cluster.asks_figures(Box::new(answer));
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
                hold_us: described.hold_us,
                stale_us: described.stale_us,
                stays: described.stays,
                note: described.note,
            },
            is_sealed: described.is_sealed,
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
        error @ HaveError::Unsealable(_) => Refusal::Cluster(error.to_string()),
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
