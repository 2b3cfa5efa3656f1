//! The statistics of a run as JSON: what `--stats` writes and `farpage plot` reads.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Seek, Write};
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};

use farpage_supervisor::heat::HeatJson;
use farpage_supervisor::maps::MapJson;
use farpage_supervisor::sampler::{Peaks, Sample, Series};
use farpage_supervisor::shm;

/// Version of the file's layout.
pub const FORMAT: u32 = 1;

/// The whole file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// [`FORMAT`].
    pub format: u32,
    /// Version of Farpage.
    pub farpage: String,
    /// The program and its arguments.
    pub program: Vec<String>,
    /// How it ended.
    pub exit: Exit,
    /// From start to end, seconds.
    pub wall_s: f64,
    /// Processor time that Farpage took beside the program, seconds.
    #[serde(default)]
    pub supervisor_cpu_s: f64,
    /// Release of the kernel.
    pub kernel: String,
    /// How userfaultfd was opened: `device`, `syscall` or `user-mode-only`.
    pub tier: String,
    /// What the run was allowed.
    pub settings: Settings,
    /// The highest values of any sample.
    pub peaks: Peaks,
    /// Every counter, summed over all tasks.
    pub counters: BTreeMap<String, u64>,
    /// Bytes into the compressor for one that came out.
    pub compression_ratio: Option<f64>,
    /// Time that faults took, as a share of `wall_s` (1.0: one thread all the time).
    pub stalled_share: f64,
    /// How often programs waited because paging space was full.
    #[serde(default)]
    pub full_times: u64,
    /// For how long, in all, seconds.
    #[serde(default)]
    pub full_s: f64,
    /// Tasks that Farpage had to end.
    pub casualties: Vec<CasualtyJson>,
    /// The files of `--map`.
    #[serde(default)]
    pub maps: Vec<MapJson>,
    /// Shared memory of the programs, with `--shm`.
    #[serde(default)]
    pub shm: Option<shm::SharedMemoryFigures>,
    /// What memory of several hosts has cost, with `--cluster`.
    #[serde(default)]
    pub cluster: Option<shm::Cost>,
    /// What happened when, with `--trace`.
    pub trace: Option<Trace>,
}

/// How the program ended: one of the two is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Its exit status.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

/// What the run was allowed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// `--ram`.
    pub ram_bytes: u64,
    /// `--compressed`.
    pub compressed_max_bytes: u64,
    /// Mappings below this size were left alone.
    pub threshold_bytes: u64,
    /// `--spill`, and what was added later.
    pub spill_dirs: Vec<String>,
    /// `--spill-limit`.
    pub spill_limit_bytes: Option<u64>,
}

/// A task that Farpage had to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CasualtyJson {
    /// Process id.
    pub pid: u32,
    /// Name of the process.
    pub name: String,
    /// `OutOfSpace`, `Corrupt`, `ReadError`, `WriteError` or `Internal`.
    pub cause: String,
}

/// What happened when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// Samples at even distances.
    pub series: SeriesJson,
    /// Which memory, when.
    pub heat: HeatJson,
}

/// A time series by columns, all of the same length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeriesJson {
    /// Distance of samples, milliseconds.
    pub step_ms: u64,
    /// Time of each sample, milliseconds since the start.
    pub at_ms: Vec<u64>,
    /// Memory mapped.
    pub demand_bytes: Vec<u64>,
    /// Memory in RAM.
    pub resident_bytes: Vec<u64>,
    /// RAM taken by the compressed tier.
    pub compressed_bytes: Vec<u64>,
    /// Memory that the compressed tier stands for.
    pub compressed_from_bytes: Vec<u64>,
    /// Memory in paging files only.
    pub spilled_bytes: Vec<u64>,
    /// Faults since the start.
    pub faults: Vec<u64>,
    /// Pages brought in since the start.
    pub page_ins: Vec<u64>,
    /// Pages taken out since the start.
    pub page_outs: Vec<u64>,
    /// Time that faults took since the start, microseconds.
    pub stall_us: Vec<u64>,
}

impl SeriesJson {
    /// The columns of `series`.
    pub fn new(series: &Series) -> Self {
        let column = |value: fn(&Sample) -> u64| series.samples().iter().map(value).collect();
        Self {
            step_ms: series.step_ns() / 1_000_000,
            at_ms: column(|sample| sample.at_ns / 1_000_000),
            demand_bytes: column(|sample| sample.demand_bytes),
            resident_bytes: column(|sample| sample.resident_bytes),
            compressed_bytes: column(|sample| sample.compressed_bytes),
            compressed_from_bytes: column(|sample| sample.compressed_from_bytes),
            spilled_bytes: column(|sample| sample.spilled_bytes),
            faults: column(|sample| sample.faults),
            page_ins: column(|sample| sample.page_ins),
            page_outs: column(|sample| sample.page_outs),
            stall_us: column(|sample| sample.stall_ns / 1000),
        }
    }
}

/// A statistics file, opened before the program starts so that a bad path is refused in time.
pub struct Output {
    file: File,
    shown: String,
}

impl Output {
    /// Opens `path` for writing. What is in it stays until [`Output::write`].
    ///
    /// # Errors
    /// When it can't be written.
    pub fn open(path: &Path) -> Result<Self> {
        let shown = path.display().to_string();
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(|error| {
                anyhow!(
                    "cannot write statistics to '{shown}': {error}; give another path with --stats"
                )
            })?;
        Ok(Self { file, shown })
    }

    /// Writes `stats` in place of what was there.
    ///
    /// # Errors
    /// When the disk is full or fails.
    pub fn write(mut self, stats: &Stats) -> Result<()> {
        let mut text = serde_json::to_vec(stats)?;
        text.push(b'\n');
        let mut write = || {
            if self.file.metadata()?.is_file() {
                self.file.set_len(0)?;
                self.file.rewind()?;
            }
            self.file.write_all(&text)
        };
        write().with_context(|| format!("cannot write statistics to '{}'", self.shown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_file_is_replaced_and_a_bad_path_refused() {
        let path = std::env::temp_dir().join(format!("farpage-stats-{}", std::process::id()));
        std::fs::write(&path, "x".repeat(100_000)).unwrap();
        let stats = Stats {
            format: FORMAT,
            farpage: "0".to_string(),
            program: vec!["true".to_string()],
            exit: Exit {
                code: Some(0),
                signal: None,
            },
            wall_s: 1.5,
            supervisor_cpu_s: 0.25,
            kernel: "6.18".to_string(),
            tier: "device".to_string(),
            settings: Settings {
                ram_bytes: 1,
                compressed_max_bytes: 0,
                threshold_bytes: 0,
                spill_dirs: Vec::new(),
                spill_limit_bytes: None,
            },
            peaks: Peaks::default(),
            counters: BTreeMap::new(),
            compression_ratio: None,
            stalled_share: 0.0,
            full_times: 0,
            full_s: 0.0,
            casualties: Vec::new(),
            maps: Vec::new(),
            shm: None,
            cluster: None,
            trace: None,
        };
        Output::open(&path).unwrap().write(&stats).unwrap();
        let back: Stats = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(back, stats);
        std::fs::remove_file(path).unwrap();
        assert!(Output::open(Path::new("/no/such/dir/stats")).is_err());
        let full = Path::new("/dev/full");
        assert!(Output::open(full).unwrap().write(&stats).is_err());
    }
}
