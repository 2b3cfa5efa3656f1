//! `bench run`: the NumPy job that needs 3 GiB under a memory cgroup of 1.25 GiB.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use farpage_testkit::{Cgroup, Swap};
use serde_json::{Value, json};

use super::spread;
use crate::args::Args;
use crate::table::{Table, median};
use crate::world::{World, machine};
use crate::{proc, setup};

const VARIANTS: &[&str] = &["bare", "farpage", "swap file", "zram", "np.memmap"];
const PHASES: &[&str] = &[
    "fill",
    "pass 1 (write)",
    "pass 2 (read)",
    "sort of a third",
    "random reads",
    "whole job",
];

/// Sizes, all in proportion to the issue's: 3 GiB of data, 1.25 GiB of memory, a budget of 1 GiB.
struct Sizes {
    mib: u64,
    limit: u64,
    budget: u64,
    /// Of the same 1.25 GiB, what the zram device may take.
    zram: u64,
    /// A run that takes longer counts as not finishing: with a full zram device the kernel turns
    /// in circles rather than kill.
    time: Duration,
}

struct Bench<'a> {
    world: &'a World,
    farpage: Option<PathBuf>,
    dir: PathBuf,
    sizes: Sizes,
}

/// Seconds per phase, or how it ended.
type Run = Result<BTreeMap<String, f64>, String>;

/// Entry point.
pub(crate) fn bench(world: &World, mut args: Args) -> Result<()> {
    let runs: u32 = args.number("--runs", 5)?;
    let mib: u64 = args.number("--mib", 3072)?;
    let zram: u64 = args.number("--zram-mib", mib / 4)?;
    let time = Duration::from_secs(args.number("--limit-s", 900)?);
    let only = args.values("--only")?;
    let mut kinds = args.values("--data")?;
    let report = args.value("--json")?;
    args.finish()?;
    if kinds.is_empty() {
        kinds = vec!["random".into(), "compressible".into()];
    }
    let wanted = |v: &&&str| only.is_empty() || only.iter().any(|o| v.contains(o.as_str()));
    let variants: Vec<&str> = VARIANTS.iter().filter(wanted).copied().collect();
    if !world.is_root() {
        bail!("bench run makes a cgroup, a swap file and a zram device: run it as root");
    }
    setup::numpy(world)?;
    let farpage = variants
        .contains(&"farpage")
        .then(|| world.farpage())
        .transpose()?;
    let sizes = Sizes {
        mib,
        limit: (mib * 1280 / 3072) << 20,
        budget: (mib * 1024 / 3072) << 20,
        zram: zram << 20,
        time,
    };
    let bench = Bench {
        world,
        farpage,
        dir: world.scratch("bench")?,
        sizes,
    };
    println!("{}", machine());
    let mut all = Vec::new();
    for kind in &kinds {
        let mut results: Vec<Vec<Run>> = variants.iter().map(|_| Vec::new()).collect();
        for round in 0..runs {
            for (variant, results) in variants.iter().zip(&mut results) {
                let run = bench.once(variant, kind)?;
                println!("{kind} {} {variant}: {}", round + 1, told(&run));
                results.push(run);
            }
        }
        bench.print(kind, &variants, &results);
        all.extend(
            variants
                .iter()
                .zip(&results)
                .map(|(v, r)| as_json(kind, v, r)),
        );
    }
    if let Some(path) = report {
        fs::write(&path, format!("{:#}\n", Value::from(all)))
            .with_context(|| format!("cannot write {path}"))?;
    }
    Ok(())
}

impl Bench<'_> {
    fn once(&self, variant: &str, kind: &str) -> Result<Run> {
        let s = &self.sizes;
        let _ = fs::write("/proc/sys/vm/drop_caches", "3");
        let python = self.world.python();
        let limited = |limit, swap| Cgroup::new("bench", limit, swap);
        match variant {
            "bare" => self.finish(Command::new(&python), kind, &[]),
            "np.memmap" => {
                let cgroup = limited(s.limit, false)?;
                let file = self.dir.join("memmap").display().to_string();
                self.finish(cgroup.command(&python), kind, &["--memmap", &file])
            }
            "swap file" => {
                let _swap = Swap::file(&self.dir, (s.mib + 1024) << 20)?;
                let cgroup = limited(s.limit, true)?;
                self.finish(cgroup.command(&python), kind, &[])
            }
            "zram" => {
                let swap = Swap::zram((s.mib + 1024) << 20, s.zram)?;
                let cgroup = limited(s.limit.saturating_sub(s.zram), true)?;
                let run = self.finish(cgroup.command(&python), kind, &[]);
                if let Some(most) = swap.zram_most_bytes() {
                    println!("  zram took {} MiB at most", most >> 20);
                }
                run
            }
            _ => {
                let cgroup = limited(s.limit, false)?;
                let farpage = self.farpage.as_ref().context("no farpage")?;
                let mut command = cgroup.command(farpage);
                command.args(["run", "--ram", &format!("{}M", s.budget >> 20), "--spill"]);
                command.arg(&self.dir).arg("--").arg(&python);
                self.finish(command, kind, &[])
            }
        }
    }

    /// Adds the job to `command`, runs it, reads what it printed.
    fn finish(&self, mut command: Command, kind: &str, more: &[&str]) -> Result<Run> {
        let (out, err) = (self.dir.join("stdout"), self.dir.join("stderr"));
        command.arg(self.world.root.join("tools/bench/py/job.py"));
        command.arg(self.sizes.mib.to_string()).arg(kind).args(more);
        command
            .env("OMP_NUM_THREADS", "1")
            .env("OPENBLAS_NUM_THREADS", "1");
        command
            .stdout(File::create(&out)?)
            .stderr(File::create(&err)?);
        let outcome = proc::run(&mut command, self.sizes.time, false)?;
        if !outcome.status.success() {
            return Ok(Err(outcome.ending()));
        }
        let mut phases = self.read(&out, kind)?;
        phases.insert("whole job".into(), outcome.wall.as_secs_f64());
        Ok(Ok(phases))
    }

    /// The phases' seconds; fails when the result is not the one of the other variants.
    fn read(&self, out: &Path, kind: &str) -> Result<BTreeMap<String, f64>> {
        let value: Value = serde_json::from_str(&fs::read_to_string(out)?)?;
        let seconds = value["seconds"].as_object().context("no seconds")?;
        let expected = self.dir.join(format!("check-{kind}-{}", self.sizes.mib));
        let check = value["check"].to_string();
        match fs::read_to_string(&expected) {
            Ok(known) if known == check => {}
            Ok(known) => bail!("the job's result {check} is not {known}: memory was damaged"),
            Err(_) => fs::write(&expected, &check)?,
        }
        Ok(seconds
            .iter()
            .filter_map(|(k, v)| Some((k.clone(), v.as_f64()?)))
            .collect())
    }

    fn print(&self, kind: &str, variants: &[&str], results: &[Vec<Run>]) {
        let s = &self.sizes;
        println!(
            "\n{kind} data, {} MiB of it, {} MiB of memory (farpage --ram {}M; zram {} + {}): \
             seconds, median (least-most), ratio to farpage",
            s.mib,
            s.limit >> 20,
            s.budget >> 20,
            s.limit.saturating_sub(s.zram) >> 20,
            s.zram >> 20,
        );
        let seconds = |runs: &[Run], phase: &str| -> Vec<f64> {
            runs.iter()
                .flatten()
                .filter_map(|r| r.get(phase).copied())
                .collect()
        };
        let ours = variants.iter().position(|v| *v == "farpage");
        let mut table = Table::new(std::iter::once("phase").chain(variants.iter().copied()));
        for phase in PHASES {
            let base = ours.map(|i| median(&seconds(&results[i], phase)));
            let cell = |runs: &Vec<Run>| {
                let values = seconds(runs, phase);
                if values.len() < runs.len() {
                    let lost = runs.iter().find_map(|r| r.as_ref().err());
                    return format!(
                        "{} of {} ({})",
                        values.len(),
                        runs.len(),
                        lost.map_or("?", |s| s)
                    );
                }
                let ratio = base.filter(|b| *b > 0.0).map(|b| median(&values) / b);
                let ratio = ratio.map_or(String::new(), |r| format!(" {r:.2}x"));
                spread(&values, 2) + &ratio
            };
            table.row(std::iter::once((*phase).to_owned()).chain(results.iter().map(cell)));
        }
        table.print();
        println!();
    }
}

fn told(run: &Run) -> String {
    match run {
        Ok(phases) => format!("{:.1} s", phases.get("whole job").unwrap_or(&0.0)),
        Err(ending) => format!("did not finish: {ending}"),
    }
}

fn as_json(kind: &str, variant: &str, runs: &[Run]) -> Value {
    let one = |r: &Run| match r {
        Ok(phases) => json!(phases),
        Err(ending) => json!({ "ended": ending }),
    };
    json!({ "data": kind, "variant": variant, "runs": runs.iter().map(one).collect::<Vec<_>>() })
}
