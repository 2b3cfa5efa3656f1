//! `bench share`: faults on memory that another host has, beside a bare round trip of the same
//! bytes and a bare fault, and beside what else hosts share memory by. Hosts are network
//! namespaces; each has its host kernel and a program.

mod net;
mod peers;
mod stores;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use self::net::{Net, Pages, Spinner};
use self::peers::{Home, Peer};
use self::stores::{OURS, Stores};
use super::bounds::{Asserts, Bound};
use super::{fault, spread};
use crate::args::Args;
use crate::proc;
use crate::table::{Table, median};
use crate::world::{World, machine};

/// Times a round trip of the same bytes and a bare fault.
const TO_REACH: f64 = 1.2;
/// Times that a peer is to take: ArgoDSM; whoever reads what is there already.
const ARGO_TO_REACH: f64 = 5.0;
const WARM_TO_REACH: f64 = 10.0;

/// Times a bare round trip of the same bytes and a bare fault. What docs/ROWS.md says of row E11.
pub(super) const BOUNDS: [Bound; 4] = [
    Bound::at_most("two processors: read miss", 2.1, 25),
    Bound::at_most("two processors: write miss", 2.1, 25),
    Bound::at_most("one processor: read miss", 2.8, 25),
    Bound::at_most("one processor: write miss", 3.8, 25),
];

const PAGE: u32 = 4096;
const LARGE: u32 = 65536;

/// Where everything of the two hosts runs: on which processor.
const PLACES: [(&str, [&str; 2]); 2] = [
    ("one processor", ["0", "0"]),
    ("two processors", ["0", "1"]),
];

/// What is done by which of two hosts, one after the other, and what that is.
const STEPS: [(usize, &str, &str); 4] = [
    (0, "write", "at home, nobody else has it"),
    (1, "read", "read miss"),
    (1, "write", "upgrade"),
    (0, "write", "write miss"),
];

const PEERS: &str = "\
Open MPI: MPI_Get, MPI_Put and flush, MPI_Fetch_and_op (osc pt2pt over TCP).
OpenSHMEM: getmem, putmem and quiet, fetch_add (UCX over TCP).
ArgoDSM: a read, a write, atomic::fetch_add (UCX over TCP); what it sends later is not in it.
All three poll, a processor for each host. The first two have no copies: they put either way.
read: the first time. read again: the home has written since (only ArgoDSM has copies).
hot spot: both hosts at once, the mean of both; a host of Farpage increments many times in turn.
busy: another program computes on the home's processor. computes: the home's own program does,
and calls its library every 500 ms (for Farpage the same as busy).";

/// What peers do, as they call it and as what it is here.
const BESIDE: [(&str, Home, &str, &str); 10] = [
    ("4 KiB read", Home::Waits, "read", "read miss"),
    (
        "64 KiB read",
        Home::Waits,
        "read-64K",
        "read miss of 64 KiB",
    ),
    ("4 KiB read again", Home::Waits, "read-again", "read miss"),
    ("4 KiB written", Home::Waits, "write", "write miss"),
    ("written, was read", Home::Waits, "upgrade", "upgrade"),
    ("hot spot", Home::Waits, "add", "hot spot: one increment"),
    ("4 KiB read, busy", Home::Busy, "read", "read miss, busy"),
    (
        "written, was read, busy",
        Home::Busy,
        "upgrade",
        "upgrade, busy",
    ),
    (
        "4 KiB read, computes",
        Home::Computes,
        "read",
        "read miss, busy",
    ),
    (
        "written, was read, computes",
        Home::Computes,
        "upgrade",
        "upgrade, busy",
    ),
];

/// Entry point.
pub(crate) fn bench(world: &World, mut args: Args) -> Result<()> {
    let runs: u32 = args.number("--runs", 5)?;
    let pages: u32 = args.number("--pages", 2048)?;
    let argo = args.value("--argodsm")?.map(PathBuf::from);
    let is_bare = args.flag("--bare");
    let mut asserts = Asserts::wanted(&mut args, runs)?;
    args.finish()?;
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--quiet", "-p", "farpage-bench"]);
    proc::must(cargo.current_dir(&world.root), "cargo build --release")?;
    let fault = fault::compile(world, "fault")?;
    let bench = Bench {
        world,
        fault,
        pages,
        beside: (!is_bare).then(|| (peers::peers(world, argo), Stores::new(world))),
    };
    asserts.begin()?;
    println!("{}, load {}", machine(), load());
    println!("{runs} runs of {pages} pages: median (least-most) of the runs' medians, in us.");
    println!(
        "bare: 64 bytes there and 4096 back over TCP between the same hosts, and one page fault"
    );
    println!("by a minimal handler. busy: the other host's processor computes meanwhile.");
    let mut table = Table::new(["", "what", "us", "bare TCP", "bare fault", "ratio"]);
    let mut worst: f64 = 0.0;
    let mut measured = Vec::new();
    let mut ratios = BTreeMap::<String, Vec<f64>>::new();
    for (place, processors) in PLACES {
        measured.clear();
        for run in 0..runs {
            match bench.one(processors, run) {
                Ok(run) => measured.push(run),
                // On a busy machine a host may be too late to stay in the cluster.
                Err(why) => println!("{place}: a run that failed is not counted: {why:#}"),
            }
        }
        ensure!(!measured.is_empty(), "{place}: no run came to its end");
        worst = worst.max(rows(&mut table, place, &measured));
        for run in &measured {
            for (at, (what, _)) in run.ours.iter().enumerate() {
                let of = ratios.entry(format!("{place}: {what}")).or_default();
                of.push(run.times_bare(at));
            }
        }
    }
    table.print();
    println!(
        "\na miss takes {worst:.2} times the sum at worst; to reach {TO_REACH}: {}",
        reached(worst <= TO_REACH)
    );
    if let Some((peers, _)) = &bench.beside {
        beside(peers, &measured);
        objects(&measured);
    }
    println!("\nload at the end: {}", load());
    asserts.end(&BOUNDS, |what| {
        ratios.get(what).cloned().unwrap_or_default()
    })
}

/// Of one place; gives how many times the sum a miss takes.
fn rows(table: &mut Table, place: &str, measured: &[Run]) -> f64 {
    let mut worst: f64 = 0.0;
    let fault: Vec<f64> = measured.iter().map(|run| run.fault).collect();
    for (at, (what, _)) in measured[0].ours.iter().enumerate() {
        let us: Vec<f64> = measured.iter().map(|run| run.ours[at].1).collect();
        let ratios: Vec<f64> = measured.iter().map(|run| run.times_bare(at)).collect();
        let tcp: Vec<f64> = measured.iter().map(|run| run.tcp_of(at)).collect();
        if what.contains("miss") {
            worst = worst.max(median(&ratios));
        }
        table.row([
            place.to_owned(),
            what.clone(),
            spread(&us, decimals(&us)),
            spread(&tcp, 1),
            spread(&fault, 1),
            spread(&ratios, 2),
        ]);
    }
    worst
}

/// The peers with one-sided messages, with two processors.
fn beside(peers: &[Peer], measured: &[Run]) {
    println!("\n{PEERS}");
    let mut table = Table::new(["", "who", "us", "times Farpage"]);
    let mut least = f64::INFINITY;
    for (label, home, what, ours) in BESIDE {
        let us: Vec<f64> = measured.iter().map(|run| run.of(ours)).collect();
        table.row([label, "Farpage", &spread(&us, decimals(&us))].map(str::to_owned));
        for (at, peer) in peers.iter().enumerate() {
            let figures = measured.iter().filter_map(|run| {
                let figures = run.peers.get(at)?.as_ref().ok()?;
                let of = |what: &str| figures.get(&(home, what.to_owned())).copied();
                let us = of(what).or_else(|| (what == "upgrade").then(|| of("write"))?)?;
                Some((us, us / run.of(ours)))
            });
            let (us, ratios): (Vec<f64>, Vec<f64>) = figures.unzip();
            if us.is_empty() {
                continue;
            }
            if peer.name == "ArgoDSM" {
                least = least.min(median(&ratios));
            }
            table.row([
                label.to_owned(),
                peer.name.to_owned(),
                spread(&us, decimals(&us)),
                spread(&ratios, 2),
            ]);
        }
    }
    table.print();
    for (at, peer) in peers.iter().enumerate() {
        let failed = |run: &Run| run.peers.get(at)?.as_ref().err().cloned();
        let failed: Vec<String> = measured.iter().filter_map(failed).collect();
        if let Some(why) = failed.first() {
            let (some, all) = (failed.len(), measured.len());
            println!("{}, {some} of {all} runs: {why}", peer.name);
        }
    }
    if least.is_finite() {
        let reached = reached(least >= ARGO_TO_REACH);
        println!(
            "ArgoDSM takes {least:.2} times as long at least; to reach {ARGO_TO_REACH}: {reached}"
        );
    }
}

/// Redis and Ray, with two processors.
fn objects(measured: &[Run]) {
    println!(
        "\nRedis: a value of 1 MiB, from the other host. ray.get: an array that is local already."
    );
    let mut table = Table::new(["1 MiB", "who", "us", "times Farpage"]);
    let mut warm = Vec::new();
    for (row, who) in stores::ROWS {
        let of = |run: &Run, who| run.objects.get(&(row, who)).copied();
        let ours: Vec<f64> = measured.iter().filter_map(|run| of(run, OURS)).collect();
        table.row([row, OURS, &spread(&ours, 2)].map(str::to_owned));
        let theirs = measured.iter().filter_map(|run| {
            let us = of(run, who)?;
            Some((us, us / of(run, OURS)?))
        });
        let (us, ratios): (Vec<f64>, Vec<f64>) = theirs.unzip();
        if us.is_empty() {
            continue;
        }
        table.row([row, who, &spread(&us, 2), &spread(&ratios, 2)].map(str::to_owned));
        if row.starts_with("there") || row.ends_with("warm") {
            let times = median(&ratios);
            let reached = reached(times >= WARM_TO_REACH);
            warm.push(format!("{row}, {who} {times:.1}: {reached}"));
        }
    }
    table.print();
    let mut missing: Vec<&String> = measured.iter().flat_map(|run| &run.missing).collect();
    missing.dedup();
    missing.iter().for_each(|why| println!("{why}"));
    println!(
        "times Farpage, to reach {WARM_TO_REACH}: {}",
        warm.join("; ")
    );
}

fn decimals(us: &[f64]) -> usize {
    if median(us) < 1.0 { 3 } else { 1 }
}

fn reached(is_so: bool) -> &'static str {
    if is_so { "yes" } else { "NO" }
}

/// What ran or wanted to run beside, of the last minute.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// Microseconds of one run.
struct Run {
    tcp: f64,
    tcp_large: f64,
    fault: f64,
    ours: Vec<(String, f64)>,
    /// With two processors.
    peers: Vec<Result<peers::Figures, String>>,
    objects: stores::Figures,
    missing: Vec<String>,
}

impl Run {
    /// A round trip of as many bytes.
    fn tcp_of(&self, at: usize) -> f64 {
        if self.ours[at].0.contains("64 KiB") {
            self.tcp_large
        } else {
            self.tcp
        }
    }

    fn times_bare(&self, at: usize) -> f64 {
        self.ours[at].1 / (self.tcp_of(at) + self.fault)
    }

    fn of(&self, what: &str) -> f64 {
        let found = self.ours.iter().find(|(name, _)| name == what);
        found.map_or(f64::NAN, |(_, us)| *us)
    }
}

struct Bench<'a> {
    world: &'a World,
    fault: PathBuf,
    pages: u32,
    /// What else is measured.
    beside: Option<(Vec<Peer>, Stores)>,
}

impl Bench<'_> {
    fn one(&self, processors: [&str; 2], run: u32) -> Result<Run> {
        let small = Pages {
            count: self.pages,
            unit: PAGE,
        };
        let large = Pages {
            count: self.pages / 16,
            unit: LARGE,
        };
        let mut bare = Command::new("taskset");
        bare.args(["-c", processors[1]]).arg(&self.fault).args([
            "follow",
            "1",
            "0",
            &self.pages.to_string(),
            "1",
        ]);
        let bare = proc::output(&mut bare, "fault")?;
        let p50 = bare.split_whitespace().nth(4).context("no figure")?;
        let net = Net::new(self.world)?;
        let tcp = net.round_trip(processors, small)?;
        let tcp_large = net.round_trip(processors, large)?;
        let kernels = [net.kernel(0, processors[0])?, net.kernel(1, processors[1])?];
        let sockets = [&*kernels[0].1, &*kernels[1].1];
        let mut ours = Vec::new();
        for is_busy in [false, true] {
            let name = format!("run-{run}-{is_busy}");
            let program = |at: usize| net.program(at, sockets[at], processors[at], &name, small);
            let mut hosts = [program(0)?, program(1)?];
            for (host, what, called) in STEPS {
                let spin = is_busy
                    .then(|| Spinner::new(processors[1 - host]))
                    .transpose()?;
                let us = hosts[host].does(what)?;
                drop(spin);
                let busy = if is_busy { ", busy" } else { "" };
                ours.push((format!("{called}{busy}"), us));
            }
            if !is_busy {
                ours.extend(both(&mut hosts)?);
            }
        }
        let program = |at: usize| net.program(at, sockets[at], processors[at], "large", large);
        ours.push((
            "read miss of 64 KiB".into(),
            large_miss(program(0)?, program(1)?)?,
        ));
        let mut peers = Vec::new();
        let (mut objects, mut missing) = (BTreeMap::new(), Vec::new());
        if let (Some((all, stores)), [one, two]) = (&self.beside, processors)
            && one != two
        {
            let measured = stores.measure(self.world, &net, processors, sockets)?;
            (objects, missing) = measured;
            drop(kernels);
            let peer = |peer: &Peer| peer.measure(&net, processors, self.pages);
            peers = all.iter().map(peer).collect();
        }
        Ok(Run {
            tcp,
            tcp_large,
            fault: p50.parse::<f64>()? / 1000.0,
            ours,
            peers,
            objects,
            missing,
        })
    }
}

fn large_miss(mut home: net::Talker, mut other: net::Talker) -> Result<f64> {
    home.does("write")?;
    other.does("read")
}

/// What both hosts do at once, and locks.
fn both([one, two]: &mut [net::Talker; 2]) -> Result<Vec<(String, f64)>> {
    one.tell("add 20000000")?;
    two.tell("add 20000000")?;
    let hot = (one.answer()? + two.answer()?) / 2.0;
    one.tell("turns 20000")?;
    let alone = one.answer()?;
    one.tell("turns 1000")?;
    two.tell("turns 1000")?;
    let turns = (one.answer()? + two.answer()?) / 2.0;
    Ok(vec![
        ("hot spot: one increment".into(), hot),
        ("a lock, taken and given back, alone".into(), alone),
        ("a lock in turn with the other host".into(), turns),
    ])
}
