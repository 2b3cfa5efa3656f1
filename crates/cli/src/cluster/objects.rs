//! `farpage create`, and what `farpage ls --hosts` shows.

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use farpage_services::cluster::{ClusterListed, Scheduler, Wanted};

use crate::columns::{Side, columns};
use crate::host::WhichHost;
use crate::size::{Size, human};

/// What a unit may have.
const UNITS: std::ops::RangeInclusive<u64> = 4096..=2 << 20;

/// Make memory that all hosts of the cluster have in common
///
/// It is zeros, and stays until its name is taken away (farpage rm --cluster) and no process of any
/// host has it.
#[derive(Args, Debug)]
pub struct CreateArgs {
    /// What it is called in the whole cluster
    pub name: String,
    /// How large it is
    pub size: String,
    /// Who decides which host may read or write a page
    #[arg(long, value_name = "WHICH", default_value = "distributed")]
    pub scheduler: WhichScheduler,
    /// What goes from host to host together: a power of two, 4K to 2M
    ///
    /// Little where hosts write to neighbouring places, much where one reads what another wrote.
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    pub page_size: String,
    /// On how many hosts each modified page is: with 2, one that dies loses nothing
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub replicas: u8,
    #[command(flatten)]
    pub which: WhichHost,
}

/// Who decides.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum WhichScheduler {
    /// The host that wrote to a page last
    Distributed,
    /// The host on which the memory was made; when it has gone, so has the memory
    Simple,
}

/// Makes it.
///
/// # Errors
/// When the host kernel is in no cluster, or there is such an object.
pub fn create(args: &CreateArgs) -> Result<()> {
    let bytes = Size::parse("SIZE", &args.size)?.of(0);
    let unit_bytes = Size::parse("--page-size", &args.page_size)?.of(0);
    if !unit_bytes.is_power_of_two() || !UNITS.contains(&unit_bytes) {
        let given = &args.page_size;
        bail!("--page-size {given} cannot be; give a power of two from 4K to 2M");
    }
    if bytes == 0 {
        bail!("SIZE {} is nothing; give bytes, or 512M", args.size);
    }
    let wanted = Wanted {
        bytes,
        unit_bytes,
        scheduler: match args.scheduler {
            WhichScheduler::Distributed => Scheduler::Distributed,
            WhichScheduler::Simple => Scheduler::Simple,
        },
        replicas: args.replicas,
        stays: true,
        note: String::new(),
    };
    args.which.ask(|host| {
        let is_there = |listed: &ClusterListed| listed.objects.iter().any(|o| o.name == args.name);
        if is_there(&host.cluster()?) {
            return Err(farpage_services::Refusal::Exists(args.name.clone()).into());
        }
        host.shared(&args.name, Some(wanted)).map(drop)
    })
}

/// The hosts and objects of a cluster, as tables.
#[must_use]
pub fn tables(listed: &ClusterListed) -> String {
    let (left, right) = (Side::Left, Side::Right);
    let hosts = listed.hosts.iter().map(|host| {
        let state = match (host.is_own, host.is_up, host.cause.as_str()) {
            (true, _, _) => "this host".to_owned(),
            (false, true, "") => "up".to_owned(),
            (false, true, cause) => format!("up ({cause})"),
            (false, false, "") => "not connected yet".to_owned(),
            (false, false, cause) => format!("not connected: {cause}"),
        };
        [
            host.number.to_string(),
            host.name.clone(),
            host.address.clone(),
            state,
        ]
    });
    let head = ["HOST", "NAME", "ADDRESS", "STATE"];
    let mut text = columns([right, left, left, left], head, hosts).join("\n") + "\n\n";
    let objects = listed.objects.iter().map(|one| {
        [
            if one.name.is_empty() {
                "-".into()
            } else {
                one.name.clone()
            },
            human(one.wanted.bytes),
            human(one.wanted.unit_bytes),
            one.wanted.scheduler.to_string(),
            one.wanted.replicas.to_string(),
            one.home.to_string(),
            one.owned.to_string(),
            one.copies.to_string(),
            (one.figures.read_misses + one.figures.write_misses + one.figures.upgrades).to_string(),
            one.figures.sent.to_string(),
        ]
    });
    let head = [
        "NAME",
        "SIZE",
        "PAGE",
        "SCHEDULER",
        "REPLICAS",
        "HOME",
        "OWNED",
        "COPIES",
        "FAULTS",
        "SENT",
    ];
    let sides = [
        left, right, right, left, right, right, right, right, right, right,
    ];
    text += &match listed.objects.is_empty() {
        true => "the cluster shares nothing\n".to_owned(),
        false => columns(sides, head, objects).join("\n") + "\n",
    };
    text += &format!("{}, view {}\n", listed.store, listed.generation);
    if !listed.trouble.is_empty() {
        text += &format!("{}\n", listed.trouble);
    }
    text
}
