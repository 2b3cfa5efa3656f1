//! Hosts of a cluster for benches: network namespaces with addresses of their own, a switch, and a real
//! etcd.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};

use crate::proc;
use crate::world::World;

/// Gone when dropped.
pub(super) struct Hosts {
    /// For what they need; new, and empty but for the cluster's key.
    pub(super) folder: PathBuf,
    pub(super) farpage: PathBuf,
    name: &'static str,
    subnet: u8,
    count: usize,
    etcd: Option<Child>,
}

impl Hosts {
    /// So many hosts, whose addresses are 10.80.`subnet`.2 and up.
    pub(super) fn new(world: &World, name: &'static str, subnet: u8, count: usize) -> Result<Self> {
        let folder = world.scratch(&format!("bench-{name}"))?;
        std::fs::remove_dir_all(&folder)?;
        std::fs::create_dir_all(&folder)?;
        let mut hosts = Self {
            folder,
            farpage: world.farpage()?,
            name,
            subnet,
            count,
            etcd: None,
        };
        hosts.remove();
        hosts.make()?;
        hosts.etcd = Some(hosts.etcd()?);
        let mut key = Command::new(&hosts.farpage);
        key.args(["cluster", "init"]).arg(hosts.key());
        proc::output(&mut key, "cluster init")?;
        Ok(hosts)
    }

    fn make(&self) -> Result<()> {
        let switch = self.space("sw");
        ip(&format!("netns add {switch}"))?;
        for step in [
            "link set lo up",
            "link add br0 type bridge",
            &format!("addr add {}/24 dev br0", self.address_of(1)),
            "link set br0 up",
        ] {
            ip(&format!("-n {switch} {step}"))?;
        }
        for at in 0..self.count {
            let host = self.space(&at.to_string());
            ip(&format!("netns add {host}"))?;
            ip(&format!(
                "link add v{at} netns {switch} type veth peer name e0 netns {host}"
            ))?;
            ip(&format!("-n {switch} link set v{at} master br0 up"))?;
            let address = self.address(at);
            ip(&format!("-n {host} addr add {address}/24 dev e0"))?;
            ip(&format!("-n {host} link set lo up"))?;
            ip(&format!("-n {host} link set e0 up"))?;
        }
        Ok(())
    }

    fn etcd(&self) -> Result<Child> {
        let url = format!("http://{}:2379", self.address_of(1));
        let mut etcd = self.within_space("sw");
        etcd.args(["etcd", "--listen-client-urls", &url]);
        etcd.args(["--advertise-client-urls", &url]);
        etcd.args(["--log-level", "error", "--unsafe-no-fsync", "--data-dir"])
            .arg(self.folder.join("etcd"));
        let etcd = etcd.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        etcd.context("cannot start etcd; cargo xtask setup installs it")
    }

    fn space(&self, of: &str) -> String {
        format!("farpage-{}-{of}", self.name)
    }

    fn address_of(&self, last: usize) -> String {
        format!("10.80.{}.{last}", self.subnet)
    }

    pub(super) fn address(&self, host: usize) -> String {
        self.address_of(host + 2)
    }

    /// What joins a program of these hosts to their cluster.
    pub(super) fn join(&self, command: &mut Command) {
        let store = format!("etcd://{}:2379/bench", self.address_of(1));
        command.args(["--cluster", &store, "--cluster-key"]);
        command.arg(self.key());
    }

    fn key(&self) -> PathBuf {
        self.folder.join("key")
    }

    /// A command where all hosts are reached at their addresses.
    pub(super) fn beside(&self) -> Command {
        self.within_space("sw")
    }

    /// A command of a host.
    pub(super) fn within(&self, host: usize) -> Command {
        self.within_space(&host.to_string())
    }

    fn within_space(&self, of: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.space(of)]);
        command
    }

    fn remove(&self) {
        let hosts = (0..self.count).map(|at| at.to_string());
        for of in hosts.chain(["sw".to_owned()]) {
            let space = self.space(&of);
            let _ = Command::new("ip").args(["netns", "del", &space]).output();
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        if let Some(etcd) = &mut self.etcd {
            let _ = etcd.kill();
            let _ = etcd.wait();
        }
        self.remove();
    }
}

fn ip(words: &str) -> Result<()> {
    let mut command = Command::new("ip");
    proc::output(command.args(words.split(' ')), "ip (this needs root)").map(drop)
}
