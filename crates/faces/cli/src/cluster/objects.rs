//! `farpage create`, and what `farpage ls --hosts` shows.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use farpage_client::cluster::{ClusterListed, Consistency, Scheduler, Wanted};
use farpage_text::columns::{Side, columns};
use farpage_text::size::{Size, human};
use farpage_text::time::micros;

use crate::host::WhichHost;

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
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = unit_bytes)]
    pub page_size: u64,
    /// On how many hosts each modified page is: with 2, one that dies loses nothing
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub replicas: u8,
    /// How long a page stays with threads that were let in to it, before another host has it: 0 to
    /// 100ms, such as 20us [default: 100us]
    ///
    /// More lets a host do more before the next one has the page; who waits for it waits longer.
    #[arg(long, value_name = "TIME")]
    pub hold: Option<String>,
    /// What hosts read may be so old, such as 10ms: copies are kept so long, and who writes does not wait
    /// for them [default: it is what was written last]
    #[arg(long, value_name = "TIME")]
    pub stale: Option<String>,
    /// Keep what is flushed (farpage flush) in this file of this host, from which it has its contents
    ///
    /// A new file is zeros. Beside it lies FILE.journal, so that what was flushed is there all or not at
    /// all. The memory ends with this host kernel; the file stays.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// When a host sees what another has written
    ///
    /// With release several hosts write to different parts of a page at a time, and send what each changed
    /// when they give a lock back or come to a barrier; others see it when they have taken a lock or
    /// passed a barrier. For the distributed scheduler and 1 replica.
    #[arg(long, value_name = "WHICH", default_value = "strict")]
    pub consistency: WhichConsistency,
    #[command(flatten)]
    pub which: WhichHost,
}

/// When.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum WhichConsistency {
    /// At once: one host at a time may write to a page
    Strict,
    /// After locks and barriers: several hosts may write to different parts of a page
    Release,
}

/// Who decides.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum WhichScheduler {
    /// The host that wrote to a page last
    Distributed,
    /// The host on which the memory was made; when it has gone, so has the memory
    Simple,
}

/// The value of --page-size.
pub fn unit_bytes(given: &str) -> Result<u64> {
    let bytes = Size::parse("--page-size", given)?.of(0);
    if !bytes.is_power_of_two() || !UNITS.contains(&bytes) {
        bail!("--page-size {given} cannot be; give a power of two from 4K to 2M");
    }
    Ok(bytes)
}

/// Makes it.
///
/// # Errors
/// When the host kernel is in no cluster, or there is such an object.
pub fn create(args: &CreateArgs) -> Result<()> {
    let bytes = Size::parse("SIZE", &args.size)?.of(0);
    if bytes == 0 {
        bail!("SIZE {} is nothing; give bytes, or 512M", args.size);
    }
    let wanted = Wanted {
        bytes,
        unit_bytes: args.page_size,
        scheduler: match args.scheduler {
            WhichScheduler::Distributed => Scheduler::Distributed,
            WhichScheduler::Simple => Scheduler::Simple,
        },
        replicas: args.replicas,
        hold_us: micros_of("--hold", args.hold.as_deref())?,
        stale_us: micros_of("--stale", args.stale.as_deref())?,
        consistency: match args.consistency {
            WhichConsistency::Strict => Consistency::Strict,
            WhichConsistency::Release => Consistency::Release,
        },
        stays: true,
        note: String::new(),
    };
    args.which.ask(|host| {
        let listed = host.cluster()?;
        let there = listed.objects.iter().find(|one| one.name == args.name);
        if let Some(over) = there.filter(|one| one.is_over()) {
            return Err(farpage_client::Refusal::Over(over.name.clone()).into());
        }
        if there.is_some() {
            return Err(farpage_client::Refusal::Exists(args.name.clone()).into());
        }
        match &args.file {
            Some(file) => host.shared_with_file(&args.name, wanted, file).map(drop),
            None => host.shared(&args.name, Some(wanted)).map(drop),
        }
    })
}

/// Put what all hosts wrote to memory of the cluster into its file
///
/// When it returns, that outlives the hosts and the machine: all that was written before it began. It is for
/// memory that was made with a file (farpage create --file).
#[derive(Args, Debug)]
pub struct FlushArgs {
    /// What it is called
    pub name: String,
    #[command(flatten)]
    pub which: WhichHost,
}

/// Flushes it.
///
/// # Errors
/// When the host kernel is in no cluster, or there is no such memory, or none that has a file, or a page
/// of it is lost.
pub fn flush(args: &FlushArgs) -> Result<()> {
    let (began, bytes) = (
        Instant::now(),
        args.which.ask(|host| host.flush_shared(&args.name))?,
    );
    outln!(
        "flushed {} in {:.2} s",
        human(bytes),
        began.elapsed().as_secs_f64()
    );
    Ok(())
}

fn micros_of(option: &str, text: Option<&str>) -> Result<Option<u32>> {
    text.map(|text| micros(option, text)).transpose()
}

/// Let nobody write to memory of the cluster any more: its contents are final
///
/// Hosts that have pages of it give them to others. Who writes to it gets SIGBUS; who opens it from then
/// on may only read. It cannot be undone.
#[derive(Args, Debug)]
pub struct SealArgs {
    /// What it is called
    pub name: String,
    #[command(flatten)]
    pub which: WhichHost,
}

/// Seals it.
///
/// # Errors
/// When the host kernel is in no cluster, or there is no such memory, or none that can be sealed.
pub fn seal(args: &SealArgs) -> Result<()> {
    args.which.ask(|host| host.seal_shared(&args.name))
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
            match (one.is_sealed, one.is_durable, one.wanted.consistency) {
                (true, ..) => "sealed".to_owned(),
                (false, true, _) => "durable".to_owned(),
                (false, false, Consistency::Release) => "release".to_owned(),
                (false, false, Consistency::Strict) => one.wanted.scheduler.to_string(),
            },
            one.wanted.replicas.to_string(),
            one.home.map_or("gone".into(), |home| home.to_string()),
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
    for over in listed.objects.iter().filter(|one| one.is_over()) {
        text += &format!(
            "'{0}' is over: the host that had all of it has gone; farpage rm --cluster '{0}' takes its name away\n",
            over.name
        );
    }
    let goes_on = match listed.goes_on {
        true => ", not needed for what is shared already",
        false => "",
    };
    text += &format!("{}, view {}{goes_on}\n", listed.store, listed.generation);
    if !listed.trouble.is_empty() {
        text += &format!("{}\n", listed.trouble);
    }
    text
}
