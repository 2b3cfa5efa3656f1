//! Two looks at the host kernel made into figures a second: what `stats`, `top`, the page and the
//! metrics show.

use farpage_client::{Figures, ObjectFigures, PagerFigures, times};
use farpage_default_pager::manager::paging::PagingSpace;
use farpage_object::Times;
use farpage_text::size::{human, human_count};
use serde::Serialize;

use crate::hosts::ClusterReading;

/// How the host kernel and what it shares do.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HostReading {
    /// When: milliseconds since 1970.
    pub at_ms: u64,
    /// Time to the look before, in seconds; 0 when there was none: then nothing is said a second.
    pub seconds: f64,
    /// The host kernel's process.
    pub pid: u32,
    /// RAM that it may use.
    pub ram_bytes: u64,
    /// What pages in memory take of it.
    pub resident_bytes: u64,
    /// What compressed pages take of it.
    pub compressed_bytes: u64,
    /// Of the pages in memory, what nobody else has.
    pub dirty_bytes: u64,
    /// Of them, what stays.
    pub wired_bytes: u64,
    /// All objects, those of other users included.
    pub objects_all: u64,
    /// Faults.
    pub faults: FaultRates,
    /// Nanoseconds since there is no room. `None`: there is.
    pub no_room_ns: Option<u64>,
    /// New pages that were refused since then.
    pub refused: u64,
    /// Where pages go.
    pub paging_space: Option<PagingSpace>,
    /// Who keeps pages, in words. `None`: the host kernel itself, and all is well.
    pub default_pager: Option<String>,
    /// Of this user; of all users for root.
    pub objects: Vec<Row>,
    /// Their pagers.
    pub pagers: Vec<PagerRow>,
    /// The hosts of its cluster. `None`: it is in none.
    pub cluster: Option<ClusterReading>,
}

/// How fast something is done.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FaultRates {
    /// Over all.
    pub count: u64,
    /// A second, since the look before.
    pub per_second: f64,
    /// Half took no longer, in microseconds: since the look before, or over all when there was
    /// none. `None`: there were none.
    pub p50_us: Option<f64>,
    /// 99 of 100 took no longer.
    pub p99_us: Option<f64>,
}

/// An object.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// What does not change.
    #[serde(flatten)]
    pub object: ObjectFigures,
    /// Its faults.
    pub faulted: FaultRates,
    /// Bytes that came from its pager, a second.
    pub in_per_second: f64,
    /// Bytes that its pager took, a second.
    pub out_per_second: f64,
}

/// A pager.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PagerRow {
    /// What does not change.
    #[serde(flatten)]
    pub pager: PagerFigures,
    /// Its answers.
    pub answers: FaultRates,
    /// `well`, or what is wrong.
    pub health: String,
}

impl HostReading {
    /// Of a look, and the one before.
    pub fn new(before: Option<&Figures>, now: &Figures) -> Self {
        let before = before.filter(|before| before.pid == now.pid);
        let ns = before.map_or(0, |before| now.at_ns.saturating_sub(before.at_ns));
        let seconds = ns as f64 / 1e9;
        let mut since = Times::default();
        let rows = now.objects.iter().map(|object| {
            let same = |other: &&ObjectFigures| other.number == object.number;
            let old = before.and_then(|before| before.objects.iter().find(same));
            let had = old.map(|old| times(&old.faults)).unwrap_or_default();
            since = since.and(&times(&object.faults).since(&had));
            Row::new(old, object, seconds)
        });
        let rows = rows.collect();
        let pagers = now.pagers.iter().map(|pager| {
            let same = |other: &&PagerFigures| other.name == pager.name;
            let old = before.and_then(|before| before.pagers.iter().find(same));
            PagerRow::new(old, pager, seconds)
        });
        let all = now
            .objects
            .iter()
            .map(|object| times(&object.faults).count());
        let sum = |of: fn(&ObjectFigures) -> u64| now.objects.iter().map(of).sum();
        let space = now.paging_space.as_ref();
        Self {
            at_ms: now.at_ns / 1_000_000,
            seconds,
            pid: now.pid,
            ram_bytes: now.ram_bytes,
            resident_bytes: now.resident_bytes,
            // What a process of its own has is none of the host kernel's.
            compressed_bytes: space
                .filter(|space| space.process.is_none())
                .map_or(0, |space| space.compressed_bytes),
            dirty_bytes: sum(|object| object.dirty_bytes),
            wired_bytes: sum(|object| object.wired_bytes),
            objects_all: now.objects_all,
            faults: FaultRates::of(all.sum(), &since, seconds),
            no_room_ns: now.no_room.map(|(since_ns, _)| since_ns),
            refused: now.no_room.map_or(0, |(_, refused)| refused),
            paging_space: now.paging_space.clone(),
            default_pager: space.and_then(default_pager),
            objects: rows,
            pagers: pagers.collect(),
            cluster: None,
        }
    }

    /// The same, with the hosts of its cluster.
    pub fn with(self, cluster: Option<ClusterReading>) -> Self {
        Self { cluster, ..self }
    }
}

/// Who keeps pages, unless it is the host kernel itself and all is well.
fn default_pager(space: &PagingSpace) -> Option<String> {
    let mut said = Vec::new();
    if let Some(process) = &space.process {
        said.push(format!("process {}, {}", process.pid, process.wired));
        let (now, most) = (space.compressed_bytes, space.compressed_max_bytes);
        said.push(format!("compressed {} of {}", human(now), human(most)));
        if process.is_late {
            said.push("does not answer".into());
        }
    }
    if space.is_moving {
        said.push("pages still move to it".into());
    }
    if let Some(pid) = space.died.last() {
        said.push(format!("process {pid} died, and what it had is lost"));
    }
    if space.unreadable_pages > 0 {
        let pages = human_count(space.unreadable_pages);
        said.push(format!("{pages} pages could not be read, and are lost"));
    }
    (!said.is_empty()).then(|| said.join("; "))
}

impl FaultRates {
    fn new(before: Option<Times>, now: &Times, seconds: f64) -> Self {
        let since = before.map_or_else(|| now.clone(), |before| now.since(&before));
        Self::of(now.count(), &since, seconds)
    }

    fn of(count: u64, since: &Times, seconds: f64) -> Self {
        let us = |part| Some(since.quantile_ns(part)? as f64 / 1e3);
        Self {
            count,
            per_second: per_second(since.count(), seconds),
            p50_us: us(0.5),
            p99_us: us(0.99),
        }
    }
}

impl Row {
    fn new(before: Option<&ObjectFigures>, now: &ObjectFigures, seconds: f64) -> Self {
        let grown = |of: fn(&ObjectFigures) -> u64| {
            per_second(of(now).saturating_sub(before.map_or(0, of)), seconds)
        };
        let faults = before.map(|before| times(&before.faults));
        let faults = faults.or((seconds > 0.0).then(Times::default));
        Self {
            object: now.clone(),
            faulted: FaultRates::new(faults, &times(&now.faults), seconds),
            in_per_second: grown(|object| object.paged_in_bytes),
            out_per_second: grown(|object| object.paged_out_bytes),
        }
    }
}

impl PagerRow {
    fn new(before: Option<&PagerFigures>, now: &PagerFigures, seconds: f64) -> Self {
        let answers = before.map(|before| times(&before.times));
        let failed = now.errors > before.map_or(0, |before| before.errors);
        let health = match &now.last_error {
            _ if now.is_silent() => {
                let seconds = now.silent_ns as f64 / 1e9;
                format!("silent for {seconds:.0} s, {} open", now.open)
            }
            Some(error) if failed => format!("fails: {error}"),
            Some(_) | None => "well".into(),
        };
        Self {
            pager: now.clone(),
            answers: FaultRates::new(answers, &times(&now.times), seconds),
            health,
        }
    }
}

fn per_second(count: u64, seconds: f64) -> f64 {
    match seconds > 0.0 {
        true => count as f64 / seconds,
        false => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::figures;

    #[test]
    fn a_second_look_says_what_happens_a_second() {
        let first = HostReading::new(None, &figures(1));
        assert_eq!((first.seconds, first.faults.per_second), (0.0, 0.0));
        assert_eq!(first.faults.count, 1001);
        let second = HostReading::new(Some(&figures(1)), &figures(3));
        assert_eq!((second.seconds, second.objects.len()), (4.0, 2));
        let grid = &second.objects[1];
        assert_eq!(grid.faulted.per_second, 500.0);
        assert_eq!(
            (grid.in_per_second, grid.out_per_second),
            (2_097_152.0, 1_048_576.0)
        );
        assert!(grid.faulted.p50_us < Some(20.0) && grid.faulted.p99_us < Some(20.0));
        let quiet = HostReading::new(
            Some(&figures(3)),
            &Figures {
                at_ns: 9,
                ..figures(3)
            },
        );
        assert_eq!((quiet.faults.p50_us, quiet.faults.per_second), (None, 0.0));
        assert_eq!(second.pagers[0].health, "well");
    }

    #[test]
    fn another_host_kernel_is_not_compared() {
        let other = Figures {
            pid: 99,
            ..figures(5)
        };
        assert_eq!(HostReading::new(Some(&other), &figures(1)).seconds, 0.0);
    }

    #[test]
    fn a_pager_that_is_silent_or_fails_is_not_well() {
        let mut now = figures(2);
        now.pagers[0].open = 3;
        now.pagers[0].silent_ns = 4_000_000_000;
        let health = |now: &Figures| {
            HostReading::new(Some(&figures(1)), now).pagers[0]
                .health
                .clone()
        };
        assert_eq!(health(&now), "silent for 4 s, 3 open");
        now.pagers[0].silent_ns = 0;
        now.pagers[0].errors = 1;
        now.pagers[0].last_error = Some("no room".into());
        assert_eq!(health(&now), "fails: no room");
    }
}
