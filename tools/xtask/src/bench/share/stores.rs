//! Redis and Ray's object store, which hold objects for other processes, beside `bench share`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::net::{Net, Pages, Talker, us, within};
use crate::bench::remote;
use crate::world::{World, which};
use crate::{proc, setup};

const MIB: u32 = 1 << 20;
const MIBS: Pages = Pages {
    count: 64,
    unit: MIB,
};
const RAY: [&str; 2] = ["ray==2.60.0", "numpy==2.4.6"];

/// What is done, by whom: microseconds.
pub(super) type Figures = BTreeMap<(&'static str, &'static str), f64>;

pub(super) const OURS: &str = "Farpage";

/// What is done with 1 MiB, and who beside Farpage.
pub(super) const ROWS: [(&str, &str); 6] = [
    ("read, cold", "Redis GET"),
    ("read, warm", "Redis GET"),
    ("written, cold", "Redis SET"),
    ("written, warm", "Redis SET"),
    ("there, one number of it", "ray.get"),
    ("there, its sum", "ray.get"),
];

/// Stores, or why there is none.
pub(super) struct Stores {
    redis: Result<PathBuf>,
    python: Result<Python>,
}

/// An interpreter that has Ray, and the folder of Farpage's package.
struct Python {
    program: PathBuf,
    package: PathBuf,
}

impl Stores {
    pub(super) fn new(world: &World) -> Self {
        let redis = which("redis-check-rdb")
            .context("not measured; no redis-server; as root: apt-get install redis-tools");
        Self {
            redis,
            python: ray(world),
        }
    }

    /// Of one run; and who could not be measured, and why.
    pub(super) fn measure(
        &self,
        world: &World,
        net: &Net,
        processors: [&str; 2],
        sockets: [&Path; 2],
    ) -> Result<(Figures, Vec<String>)> {
        let mut figures = Figures::new();
        let mut missing = Vec::new();
        shared(net, processors, sockets, &mut figures)?;
        let redis = self.redis.as_ref().map_err(|e| format!("{e:#}"));
        let redis = redis.and_then(|redis| {
            let got = redis_of(redis, net, processors, &mut figures);
            got.map_err(|e| format!("{e:#}"))
        });
        missing.extend(redis.err().map(|why| format!("Redis: {why}")));
        let python = self.python.as_ref().map_err(|e| format!("{e:#}"));
        let python = python.and_then(|python| {
            let got = arrays(python, world, net, sockets[1], &mut figures);
            got.map_err(|e| format!("{e:#}"))
        });
        missing.extend(python.err().map(|why| format!("Ray: {why}")));
        Ok((figures, missing))
    }
}

/// Objects of the cluster in pages of 1 MiB, which are read and written whole.
fn shared(
    net: &Net,
    processors: [&str; 2],
    sockets: [&Path; 2],
    figures: &mut Figures,
) -> Result<()> {
    let program = |at: usize| net.program(at, sockets[at], processors[at], "mibs", MIBS);
    let (mut home, mut other) = (program(0)?, program(1)?);
    home.does("fill")?;
    for (row, _) in &ROWS[..2] {
        figures.insert((row, OURS), other.does("copy")?);
    }
    other.does("fill")?;
    for (row, _) in &ROWS[2..4] {
        figures.insert((row, OURS), home.does("fill")?);
    }
    Ok(())
}

fn redis_of(program: &Path, net: &Net, processors: [&str; 2], figures: &mut Figures) -> Result<()> {
    // Debian's redis-check-rdb is the server, by another name.
    let link = net.hosts.folder.join("redis-server");
    if !link.exists() {
        std::os::unix::fs::symlink(program, &link)?;
    }
    let address = net.hosts.address(0);
    let mut server = within(&net.hosts, 0, processors[0]);
    server.arg(&link).args(["--bind", &address, "--save", ""]);
    server.args(["--protected-mode", "no"]);
    let mut server = Talker::start(server)?;
    server.until("Ready to accept connections")?;
    let mut client = within(&net.hosts, 1, processors[1]);
    client.arg(net.bench()).arg("share-redis");
    client.args([&format!("{address}:6379"), "--count", "64"]);
    client.args(["--unit", &MIB.to_string()]);
    let said = proc::output(&mut client, "farpage-bench share-redis")?;
    let mut lines = said.lines().map(us);
    let (set, get) = (
        lines.next().context("no SET")??,
        lines.next().context("no GET")??,
    );
    for (row, who) in &ROWS[..4] {
        figures.insert((row, who), if *who == "Redis SET" { set } else { get });
    }
    Ok(())
}

/// Ray in an environment of its own: it is large.
fn ray(world: &World) -> Result<Python> {
    let folder = world.scratch("ray")?;
    let (stamp, program) = (folder.join("installed"), folder.join("venv/bin/python"));
    if std::fs::read_to_string(&stamp).unwrap_or_default() != RAY.join(" ") {
        println!("pip install {} (once)", RAY.join(" "));
        let mut make = Command::new(setup::base_python()?);
        make.args(["-m", "venv", "--clear"])
            .arg(folder.join("venv"));
        proc::output(&mut make, "python3 -m venv")?;
        let mut pip = Command::new(&program);
        pip.args(["-m", "pip", "install", "--quiet", "--only-binary", ":all:"]);
        proc::output(pip.args(RAY), "pip install ray")?;
        std::fs::write(&stamp, RAY.join(" "))?;
    }
    let package = remote::package(world)?;
    Ok(Python { program, package })
}

fn arrays(
    python: &Python,
    world: &World,
    net: &Net,
    socket: &Path,
    figures: &mut Figures,
) -> Result<()> {
    for (what, who) in [("farpage", OURS), ("ray", "ray.get")] {
        // On all processors: Ray has several processes.
        let mut warm = net.hosts.within(1);
        warm.arg(&python.program);
        warm.arg(world.root.join("tools/bench/py/warm.py"))
            .arg(what);
        warm.env("PYTHONPATH", &python.package);
        warm.env("FARPAGE_HOST", socket);
        warm.env("RAY_USAGE_STATS_ENABLED", "0");
        let said = proc::output(&mut warm, "warm.py")?;
        let mut words = said.split_whitespace();
        for (row, _) in &ROWS[4..] {
            figures.insert((row, who), us(words.next().context("no figure")?)?);
        }
    }
    Ok(())
}
