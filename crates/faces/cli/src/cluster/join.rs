//! Which cluster a host is to join, and how it leaves.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use farpage_membership::Endpoint;
use farpage_network::ClusterKey;

use farpage_text::size::human;

/// Where other hosts reach this one, unless it is said.
pub const PORT: u16 = 7661;
/// Where a host listens that is alone in its cluster.
const ALONE: &str = "127.0.0.1:0";

/// Which cluster.
#[derive(Args, Debug)]
pub struct JoinArgs {
    /// Share memory with the hosts of a cluster, whose names are kept in etcd:
    /// etcd://HOST:PORT/NAME
    ///
    /// Several servers of etcd are separated by commas. NAME is the cluster's, any that no other has.
    /// etcds:// uses TLS, etcd://USER:PASSWORD@HOST a user of etcd. `embedded:` is a cluster of this host
    /// alone: no etcd and no key, and its names end with it.
    #[arg(long, value_name = "URL")]
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
    /// How long the others wait for this host when it does not answer, before they go on without it:
    /// 1 to 3600. More where machines stand still for a while
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 2,
        value_parser = clap::value_parser!(u64).range(1..=3600),
        requires = "cluster"
    )]
    pub lease: u64,
}

/// How to join.
pub struct Joining {
    /// As the cluster wants it.
    pub share: farpage_server::Config,
    /// Which one, in words.
    pub store: String,
}

/// What the arguments say; others reach this host at `port`, unless they say another: 0 is any.
///
/// # Errors
/// When they cannot be.
pub fn config(args: &JoinArgs, port: u16) -> Result<Option<Joining>> {
    let Some(url) = &args.cluster else {
        return Ok(None);
    };
    let endpoint = Endpoint::parse(url).with_context(|| format!("cannot use --cluster {url}"))?;
    let is_alone = matches!(endpoint, Endpoint::Embedded(_));
    let key = match &args.cluster_key {
        Some(key) => ClusterKey::load(key)?,
        None if is_alone => ClusterKey::unshared(),
        None => bail!(
            "--cluster {endpoint} needs the cluster's key: --cluster-key FILE, which farpage cluster init makes"
        ),
    };
    // Nobody else comes there.
    let given = args.address.as_deref().or(is_alone.then_some(ALONE));
    let address = farpage_member::address(given, url, port).context("cannot tell --address")?;
    let name = args.host_name.clone();
    let name = name.unwrap_or_else(farpage_member::host_name);
    let store = format!("cluster {} at {endpoint}", key.name());
    let mut share = farpage_server::Config {
        control: farpage_membership::Config::new(endpoint, address, &name),
        key,
        listen: address,
    };
    share.control.lease = Duration::from_secs(args.lease);
    Ok(Some(Joining { share, store }))
}

/// Leaves in good order, and says what of that others do not have, as far as it `is_news`.
pub fn leave(
    cluster: &farpage_server::Cluster,
    within: Duration,
    is_news: impl Fn(&farpage_server::Left) -> bool,
) {
    let says = |bytes: u64| {
        if bytes > 0 {
            farpage_sys::say!(
                "farpage: {} that only this host has are yet to be handed over; a second signal ends it",
                human(bytes)
            );
        }
    };
    for left in cluster.leave(within, &says).into_iter().filter(is_news) {
        let (name, why) = (&left.name, left.why);
        farpage_sys::say!(
            "farpage: {} of '{name}' were not handed over ({why}): of them is lost what no other host has",
            human(left.bytes)
        );
    }
}
