//! Two looks at the hosts of a cluster made into figures a second: what each sends to which, and
//! what of each object it owns.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farpage_client::cluster::{ClusterFigures, ClusterObject, HostFigures, HostFlow};
use farpage_client::{Error, Host, Refusal};
use serde::Serialize;

use farpage_text::columns::{Side, columns};
use farpage_text::size::{human, human_count};

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// Looks that nobody wants to see, before there are no more.
const UNSEEN_MAX: u32 = 5;
/// Hosts to which messages are shown side by side, as text.
pub const SIDE_BY_SIDE: usize = 8;

/// The hosts of a cluster, and what they have in common.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ClusterReading {
    /// Time to the look before, in seconds; 0 when there was none: then nothing is said a second.
    pub seconds: f64,
    /// Hosts.
    pub hosts: Vec<HostRow>,
    /// What they have in common.
    pub objects: Vec<ObjectRow>,
}

/// A host.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HostRow {
    /// Its number.
    pub number: u8,
    /// What it calls itself.
    pub name: String,
    /// It is the one that was asked.
    pub is_own: bool,
    /// It told what it counted.
    pub has_told: bool,
    /// What it owns of all objects.
    pub owned_bytes: u64,
    /// To each other host of the cluster, in the order of the hosts.
    pub flows: Vec<FlowRow>,
}

/// Messages from one host to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FlowRow {
    /// To which.
    pub to: u8,
    /// So far.
    pub messages: u64,
    /// So far.
    pub bytes: u64,
    /// A second.
    pub messages_per_second: f64,
    /// A second.
    pub bytes_per_second: f64,
}

/// An object of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ObjectRow {
    /// Its name; empty when that was taken away.
    pub name: String,
    /// Its number.
    pub number: u64,
    /// Its size.
    pub bytes: u64,
    /// Of a page of it.
    pub page_bytes: u64,
    /// Faults over all hosts, a second.
    pub faults_per_second: f64,
    /// Messages over all hosts, a second.
    pub messages_per_second: f64,
    /// Faults so far.
    pub faults: u64,
    /// Messages so far.
    pub messages: u64,
    /// Requests that were sent on, so far.
    pub forwarded: u64,
    /// What each host owns, by its number, in bytes.
    pub owned_bytes: Vec<(u8, u64)>,
    /// What nobody touched, or goes from one to another.
    pub rest_bytes: u64,
}

/// What the host kernel says of its cluster; `None` when it is in none.
///
/// # Errors
/// When it does not answer.
pub fn look(host: &Host) -> Result<Option<ClusterFigures>, Error> {
    match host.cluster_figures() {
        Ok(figures) => Ok(Some(figures)),
        Err(Error::Refused(Refusal::Alone)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A thread that looks at the cluster all the time: hosts that die keep others waiting, and nobody
/// else.
pub struct Looks(Arc<Mutex<Last>>);

#[derive(Default)]
struct Last {
    reading: Option<ClusterReading>,
    /// Looks since somebody wanted to know.
    unseen: u32,
}

impl Looks {
    /// At that of the host kernel that listens there. It ends when nobody has this any more.
    ///
    /// # Errors
    /// Without threads.
    pub fn start(socket: PathBuf) -> std::io::Result<Self> {
        let last = Arc::new(Mutex::new(Last::default()));
        let of = Arc::downgrade(&last);
        let look_on = move || {
            let (mut host, mut before): (Option<Host>, Option<ClusterFigures>) = (None, None);
            while let Some(last) = of.upgrade() {
                if !wanted(&last) {
                    before = None;
                } else {
                    host = host.or_else(|| Host::connect(&socket).ok());
                    match host.as_ref().map(look) {
                        Some(Ok(Some(now))) => {
                            let reading = ClusterReading::new(before.as_ref(), &now);
                            lock(&last).reading = Some(reading);
                            before = Some(now);
                        }
                        // It joins before it answers, and stays.
                        Some(Ok(None)) => return,
                        Some(Err(_)) | None => host = None,
                    }
                }
                drop(last);
                std::thread::sleep(EVERY);
            }
        };
        std::thread::Builder::new()
            .name("cluster-looks".into())
            .spawn(look_on)?;
        Ok(Self(last))
    }

    /// What was last seen. `None`: it is in no cluster, or nothing is known yet, or nobody has
    /// asked for long.
    pub fn last(&self) -> Option<ClusterReading> {
        let mut last = lock(&self.0);
        last.unseen = 0;
        last.reading.clone()
    }
}

/// Somebody wants to know: all hosts have to look.
fn wanted(last: &Mutex<Last>) -> bool {
    let mut last = lock(last);
    last.unseen = last.unseen.saturating_add(1);
    let is_wanted = last.unseen <= UNSEEN_MAX;
    if !is_wanted {
        last.reading = None;
    }
    is_wanted
}

fn lock(last: &Mutex<Last>) -> MutexGuard<'_, Last> {
    last.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ClusterReading {
    /// Of a look, and the one before.
    pub fn new(before: Option<&ClusterFigures>, now: &ClusterFigures) -> Self {
        let ns = before.map_or(0, |before| now.at_ns.saturating_sub(before.at_ns));
        let seconds = ns as f64 / 1e9;
        let hosts = now.hosts.iter().map(|host| {
            let same =
                |other: &&HostFigures| (other.number, &other.name) == (host.number, &host.name);
            let old = before.and_then(|before| before.hosts.iter().find(same));
            let old = old.filter(|old| old.has_told);
            let owned = now.objects.iter().map(|object| owned(object, host.number));
            HostRow {
                number: host.number,
                name: host.name.clone(),
                is_own: host.is_own,
                has_told: host.has_told,
                owned_bytes: owned.sum(),
                flows: flows(now, host, old, seconds),
            }
        });
        let objects = now.objects.iter().map(|object| {
            let same = |other: &&ClusterObject| other.number == object.number;
            let old = before.and_then(|before| before.objects.iter().find(same));
            object_row(old, object, seconds)
        });
        Self {
            seconds,
            hosts: hosts.collect(),
            objects: objects.collect(),
        }
    }
}

/// What a host owns of an object, in bytes.
fn owned(object: &ClusterObject, host: u8) -> u64 {
    let all = object.owned.iter().filter(|(other, _)| *other == host);
    all.map(|(_, pages)| pages * object.page_bytes).sum()
}

fn flows(
    now: &ClusterFigures,
    host: &HostFigures,
    old: Option<&HostFigures>,
    seconds: f64,
) -> Vec<FlowRow> {
    let others = now.hosts.iter().filter(|other| other.number != host.number);
    let flow = |of: &HostFigures, to: u8| -> HostFlow {
        let found = of.flows.iter().find(|flow| flow.to == to);
        found.copied().unwrap_or_default()
    };
    let row = |other: &HostFigures| {
        let is = flow(host, other.number);
        // Of one that is first heard of it is not known since when.
        let was = old.map_or(is, |old| flow(old, other.number));
        FlowRow {
            to: other.number,
            messages: is.messages,
            bytes: is.bytes,
            messages_per_second: per_second(was.messages, is.messages, seconds),
            bytes_per_second: per_second(was.bytes, is.bytes, seconds),
        }
    };
    others.map(row).collect()
}

fn faults(object: &ClusterObject) -> u64 {
    object.read_misses + object.write_misses + object.upgrades
}

fn object_row(old: Option<&ClusterObject>, now: &ClusterObject, seconds: f64) -> ObjectRow {
    let old = old.unwrap_or(now);
    let owned_bytes: Vec<(u8, u64)> = now
        .owned
        .iter()
        .map(|(host, pages)| (*host, pages * now.page_bytes))
        .collect();
    let all: u64 = owned_bytes.iter().map(|(_, bytes)| bytes).sum();
    ObjectRow {
        name: now.name.clone(),
        number: now.number,
        bytes: now.bytes,
        page_bytes: now.page_bytes,
        faults_per_second: per_second(faults(old), faults(now), seconds),
        messages_per_second: per_second(old.sent, now.sent, seconds),
        faults: faults(now),
        messages: now.sent,
        forwarded: now.forwarded,
        rest_bytes: now.bytes.saturating_sub(all),
        owned_bytes,
    }
}

fn per_second(was: u64, is: u64, seconds: f64) -> f64 {
    match seconds > 0.0 {
        true => is.saturating_sub(was) as f64 / seconds,
        false => 0.0,
    }
}

/// Hosts as rows: what each is called, what it owns, and what it sends to each a second.
pub fn host_cells(reading: &ClusterReading) -> Vec<Vec<String>> {
    let cell = |flow: &FlowRow| match flow.messages {
        0 => "-".to_owned(),
        _ => format!(
            "{}, {}",
            human_count(flow.messages_per_second as u64),
            human(flow.bytes_per_second as u64)
        ),
    };
    let row = |host: &HostRow| {
        let name = match (host.is_own, host.has_told) {
            (true, _) => format!("{} (this)", host.name),
            (false, true) => host.name.clone(),
            (false, false) => format!("{} (silent)", host.name),
        };
        let to = reading.hosts.iter().take(SIDE_BY_SIDE).map(|other| {
            let flow = host.flows.iter().find(|flow| flow.to == other.number);
            flow.map_or_else(String::new, cell)
        });
        [name, human(host.owned_bytes)]
            .into_iter()
            .chain(to)
            .collect()
    };
    reading.hosts.iter().map(row).collect()
}

/// What the columns of [`host_cells`] are called.
pub fn host_head(reading: &ClusterReading) -> Vec<String> {
    let to = reading.hosts.iter().take(SIDE_BY_SIDE);
    let to = to.map(|host| format!("TO {}", host.name));
    ["HOST".to_owned(), "OWNS".into()]
        .into_iter()
        .chain(to)
        .collect()
}

/// An object as a row: its name, size and page, faults and messages a second, and who owns how
/// much.
pub fn object_cells(reading: &ClusterReading, object: &ObjectRow) -> [String; 6] {
    let share = |bytes: u64| 100.0 * bytes as f64 / object.bytes.max(1) as f64;
    let name = |number: u8| {
        let found = reading.hosts.iter().find(|host| host.number == number);
        found.map_or_else(|| format!("host {number}"), |host| host.name.clone())
    };
    let owned = object.owned_bytes.iter().filter(|(_, bytes)| *bytes > 0);
    let owned = owned.map(|(host, bytes)| format!("{} {:.0}%", name(*host), share(*bytes)));
    let owned: Vec<String> = owned.collect();
    [
        if object.name.is_empty() {
            "-".into()
        } else {
            object.name.clone()
        },
        human(object.bytes),
        human(object.page_bytes),
        human_count(object.faults_per_second as u64),
        human_count(object.messages_per_second as u64),
        match owned.is_empty() {
            true => "untouched".into(),
            false => owned.join(", "),
        },
    ]
}

/// What the columns of [`object_cells`] are called.
pub const OBJECT_HEAD: [&str; 6] = [
    "OF THE CLUSTER",
    "SIZE",
    "PAGE",
    "FAULTS/S",
    "MESSAGES/S",
    "OWNED BY",
];

/// A reading as lines of text.
pub fn text(reading: &ClusterReading) -> String {
    let (left, right) = (Side::Left, Side::Right);
    let objects = reading.objects.iter().map(|one| object_cells(reading, one));
    let sides = [left, right, right, right, right, left];
    let mut text = columns(sides, OBJECT_HEAD, objects).join("\n") + "\n\n";
    text += "messages and bytes a second\n";
    // Columns are as many as there are hosts.
    let all: Vec<Vec<String>> = std::iter::once(host_head(reading))
        .chain(host_cells(reading))
        .collect();
    let width = |at: usize| all.iter().map(|row| row[at].chars().count()).max();
    for row in &all {
        let cells = row.iter().enumerate().map(|(at, cell)| {
            let width = width(at).unwrap_or(0);
            match at {
                0 => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            }
        });
        let line: Vec<String> = cells.collect();
        text += line.join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::cluster_figures as figures;

    #[test]
    fn what_flows_a_second_is_told_for_each_pair_and_object() {
        let reading = ClusterReading::new(Some(&figures(1)), &figures(3));
        let flow = reading.hosts[0].flows[0];
        assert_eq!((flow.to, flow.messages_per_second), (1, 200.0));
        assert_eq!(flow.bytes_per_second, 200.0 * 4096.0);
        let expected = "\
OF THE CLUSTER      SIZE      PAGE  FAULTS/S  MESSAGES/S  OWNED BY
grid            1.00 MiB  4.00 KiB       150         300  a 25%, b 50%

messages and bytes a second
HOST         OWNS          TO a          TO b
a (this)  256 KiB                200, 800 KiB
b         512 KiB  100, 400 KiB
";
        assert_eq!(text(&reading), expected);
    }

    #[test]
    fn of_a_first_look_nothing_is_said_a_second() {
        let reading = ClusterReading::new(None, &figures(3));
        assert_eq!(reading.hosts[1].flows[0].messages_per_second, 0.0);
        assert_eq!(reading.objects[0].messages, 1800);
        assert_eq!(reading.objects[0].rest_bytes, 256 << 10);
        let mut silent = figures(3);
        silent.hosts[1].has_told = false;
        let reading = ClusterReading::new(Some(&silent), &figures(4));
        assert_eq!(
            reading.hosts[1].flows[0].messages_per_second, 0.0,
            "it is not known since when"
        );
    }
}
