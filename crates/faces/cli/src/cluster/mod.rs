//! Hosts that have memory in common: `farpage cluster`, `farpage create`, and which cluster a host joins.

pub mod join;
pub mod objects;
pub mod pages;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use farpage_network::ClusterKey;

/// Make what the hosts of a cluster need
#[derive(Args, Debug)]
pub struct ClusterArgs {
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Subcommand, Debug)]
enum ClusterCommand {
    /// Make the key of a new cluster
    ///
    /// Who has it can read and write all that the cluster shares: copy DIR/cluster.key to each host,
    /// where only its user may read it, and start the host kernels with --cluster-key.
    Init {
        /// A folder, which is made when it is not there
        dir: PathBuf,
    },
}

/// Does it.
///
/// # Errors
/// When there is a key already, or it cannot be written.
pub fn main(args: &ClusterArgs) -> Result<()> {
    match &args.command {
        ClusterCommand::Init { dir } => init(dir),
    }
}

fn init(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make '{}'", dir.display()))?;
    let key = ClusterKey::create(dir)?;
    let path = dir.join("cluster.key");
    outln!(
        "the key of cluster {} is {}\ncopy it to each host, then:\n  \
         farpage up --cluster etcd://HOST:2379/NAME --cluster-key {}",
        key.name(),
        path.display(),
        path.display()
    );
    Ok(())
}
