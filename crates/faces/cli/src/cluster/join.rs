//! Which cluster a host is to join.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use farpage_server::joined::join::JoinConfig;

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

impl JoinArgs {
    /// The same without the command line.
    pub fn config(&self) -> JoinConfig {
        JoinConfig {
            cluster: self.cluster.clone(),
            cluster_key: self.cluster_key.clone(),
            address: self.address.clone(),
            host_name: self.host_name.clone(),
            hand_over: Duration::from_secs(self.hand_over),
            lease: Duration::from_secs(self.lease),
        }
    }
}
