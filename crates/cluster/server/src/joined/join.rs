//! JoinPlan a cluster as it was asked for, and leaving it in good order.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use farpage_membership::Endpoint;
use farpage_network::ClusterKey;
use farpage_text::size::human;

use crate::joined::{address, host_name};

/// Where other hosts reach this one, unless it is said.
pub const PORT: u16 = 7661;
/// Where a host listens that is alone in its cluster.
const ALONE: &str = "127.0.0.1:0";

/// Which cluster a host is to join, and how.
#[derive(Clone, Debug)]
pub struct JoinConfig {
    /// Where the cluster's names are kept. `None`: this host joins none.
    pub cluster: Option<String>,
    /// The file that has the cluster's key, or its folder.
    pub cluster_key: Option<PathBuf>,
    /// Where other hosts reach this one.
    pub address: Option<String>,
    /// What this host is called in lists.
    pub host_name: Option<String>,
    /// For how long at most it hands over what only it has, when it leaves.
    pub hand_over: Duration,
    /// How long the others wait for it when it does not answer.
    pub lease: Duration,
}

/// How to join.
pub struct JoinPlan {
    /// As the cluster wants it.
    pub share: crate::Config,
    /// Which one, in words.
    pub store: String,
}

/// What was asked for; others reach this host at `port`, unless they say another: 0 is any.
///
/// # Errors
/// When they cannot be.
pub fn config(asked: &JoinConfig, port: u16) -> Result<Option<JoinPlan>> {
    let Some(url) = &asked.cluster else {
        return Ok(None);
    };
    let endpoint = Endpoint::parse(url).with_context(|| format!("cannot use --cluster {url}"))?;
    let is_alone = matches!(endpoint, Endpoint::Embedded(_));
    let key = match &asked.cluster_key {
        Some(key) => ClusterKey::load(key)?,
        None if is_alone => ClusterKey::unshared(),
        None => bail!(
            "--cluster {endpoint} needs the cluster's key: --cluster-key FILE, which \
             farpage cluster init makes"
        ),
    };
    // Nobody else comes there.
    let given = asked.address.as_deref().or(is_alone.then_some(ALONE));
    let address = address(given, url, port).context("cannot tell --address")?;
    let name = asked.host_name.clone();
    let name = name.unwrap_or_else(host_name);
    let store = format!("cluster {} at {endpoint}", key.name());
    let mut share = crate::Config {
        control: farpage_membership::Config::new(endpoint, address, &name),
        key,
        listen: address,
    };
    share.control.lease = asked.lease;
    Ok(Some(JoinPlan { share, store }))
}

/// Leaves in good order, and says what of that others do not have, as far as it `is_news`.
pub fn leave(cluster: &crate::Cluster, within: Duration, is_news: impl Fn(&crate::Left) -> bool) {
    let says = |bytes: u64| {
        if bytes > 0 {
            farpage_sys::say!(
                "farpage: {} that only this host has are yet to be handed over; \
                 a second signal ends it",
                human(bytes)
            );
        }
    };
    for left in cluster.leave(within, &says).into_iter().filter(is_news) {
        let (name, why) = (&left.name, left.why);
        farpage_sys::say!(
            "farpage: could not hand over {} of '{name}' ({why}); \
             pages that no other host holds are lost",
            human(left.bytes)
        );
    }
}
