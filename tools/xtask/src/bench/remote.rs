//! `bench remote`: arrays behind HTTP, beside rclone, fsspec and downloading first.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::spread;
use crate::args::Args;
use crate::table::{Table, median};
use crate::world::{World, machine, which};
use crate::{proc, setup};

/// One way to read, and where its data are.
struct Way {
    name: &'static str,
    /// What `tools/bench/py/remote.py` does.
    how: &'static str,
    place: String,
    more: String,
}

/// Seconds of one run.
struct Times {
    first: f64,
    all: f64,
}

/// Ends with this value.
pub(super) struct Running(Child);

impl Running {
    /// Its process id.
    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Entry point.
pub(crate) fn bench(world: &World, mut args: Args) -> Result<()> {
    let runs: u32 = args.number("--runs", 5)?;
    let latency: u32 = args.number("--latency-ms", 5)?;
    let rate: u32 = args.number("--mb-per-s", 60)?;
    args.finish()?;
    ensure!(
        which("rclone").is_some() && which("fusermount3").is_some(),
        "rclone is a peer here; as root: apt-get install rclone fuse3"
    );
    setup::python(world)?;
    let package = package(world)?;
    let scratch = world.scratch("bench-remote")?;
    let data = scratch.join("data");
    fs::create_dir_all(&data)?;
    println!("making 1.6 GB of tensors and a 2 GiB array, if they are not there ...");
    let mut make = Command::new(world.python());
    make.arg(world.root.join("tools/bench/py/make_remote.py"))
        .arg(&data);
    proc::must(&mut make, "make_remote.py")?;
    let (_server, url) = serve(world, &data, latency, rate)?;
    let mount = Mount::new(&scratch.join("mount"), &url, "model.safetensors")?;
    println!("{}", machine());
    println!(
        "a server of {latency} ms and {rate} MB/s a connection; seconds, {runs} runs in turn:"
    );
    println!("median (least-most)");
    let run = |what: &str, ways: &[Way]| measure(world, &package, what, ways, runs);
    tensors(&url, &mount, &scratch, run)?;
    rows(&url, &scratch, run)
}

fn tensors(
    url: &str,
    mount: &Mount,
    scratch: &Path,
    run: impl Fn(&str, &[Way]) -> Result<BTreeMap<&'static str, Vec<Times>>>,
) -> Result<()> {
    let file = format!("{url}/model.safetensors");
    let way = |name, how, place: String, more: String| Way {
        name,
        how,
        place,
        more,
    };
    let copy = scratch.join("copy").display().to_string();
    let mounted = mount.folder.join("model.safetensors").display().to_string();
    let ways = [
        way("farpage", "farpage", file.clone(), String::new()),
        way("rclone mount, mmap", "mmap", mounted, String::new()),
        way(
            "fsspec, 8 MiB blocks",
            "fsspec",
            file.clone(),
            String::new(),
        ),
        way("download, mmap", "download", file, copy.clone()),
    ];
    let found = run("tensors", &ways)?;
    let _ = fs::remove_file(copy);
    println!("\n1.6 GB of tensors (safetensors), all summed in order");
    let ours = all(&found["farpage"]);
    let mut table = Table::new(["", "first tensor", "all", "times farpage"]);
    for way in &ways {
        let times = &found[way.name];
        let first: Vec<f64> = times.iter().map(|t| t.first).collect();
        table.row([
            way.name.to_owned(),
            spread(&first, 2),
            spread(&all(times), 2),
            spread(&ratios(&all(times), &ours), 2),
        ]);
    }
    table.print();
    Ok(())
}

fn rows(
    url: &str,
    scratch: &Path,
    run: impl Fn(&str, &[Way]) -> Result<BTreeMap<&'static str, Vec<Times>>>,
) -> Result<()> {
    let file = format!("{url}/rows.npy");
    let trace = scratch.join("rows.trace").display().to_string();
    let way = |name, how, more: &str| Way {
        name,
        how,
        place: file.clone(),
        more: more.to_owned(),
    };
    let ways = [
        way("farpage, cold", "farpage", &trace),
        way("farpage, replayed", "replayed", &trace),
        way("fsspec, 16 KiB blocks", "fsspec", "16384"),
        way("fsspec, 64 KiB blocks", "fsspec", "65536"),
        way("fsspec, 256 KiB blocks", "fsspec", "262144"),
    ];
    let found = run("rows", &ways)?;
    println!("\n2,000 random rows of 4 KiB of a 2 GiB array (npy)");
    let ours = all(&found["farpage, cold"]);
    let mut table = Table::new(["", "all", "times farpage, cold"]);
    for way in &ways {
        let times = all(&found[way.name]);
        table.row([
            way.name.to_owned(),
            spread(&times, 2),
            spread(&ratios(&times, &ours), 2),
        ]);
    }
    table.print();
    Ok(())
}

fn all(times: &[Times]) -> Vec<f64> {
    times.iter().map(|times| times.all).collect()
}

fn ratios(these: &[f64], ours: &[f64]) -> Vec<f64> {
    these
        .iter()
        .zip(ours)
        .map(|(this, our)| this / our)
        .collect()
}

fn measure(
    world: &World,
    package: &Path,
    what: &str,
    ways: &[Way],
    runs: u32,
) -> Result<BTreeMap<&'static str, Vec<Times>>> {
    let mut found: BTreeMap<&'static str, Vec<Times>> = BTreeMap::new();
    let mut sum = None;
    for run in 1..=runs {
        for way in ways {
            let mut python = Command::new(world.python());
            python
                .env("PYTHONPATH", package)
                .arg(world.root.join("tools/bench/py/remote.py"))
                .args([what, way.how, &way.place, &way.more]);
            let text = proc::output(&mut python, way.name)?;
            let json: serde_json::Value = serde_json::from_str(&text)?;
            let number = |key: &str| json[key].as_f64();
            let all = number("all").context("no time")?;
            let first = number("first").unwrap_or(all);
            // The same numbers, whoever read them.
            let this = number("sum").context("no sum")?;
            let other = *sum.get_or_insert(this);
            if (this - other).abs() > other.abs() * 1e-9 {
                bail!("{} read other numbers: {this}, not {other}", way.name);
            }
            eprintln!("  {run}/{runs} {what}, {}: {all:.2}", way.name);
            found
                .entry(way.name)
                .or_default()
                .push(Times { first, all });
        }
    }
    for (name, times) in &found {
        ensure!(median(&all(times)) > 0.0, "{name} took no time");
    }
    Ok(found)
}

/// The Python package with a native part built for release, in a folder for `PYTHONPATH`.
pub(super) fn package(world: &World) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo
        .current_dir(&world.root)
        .args(["build", "--release", "--quiet"]);
    cargo.args(["-p", "farpage-python", "-p", "farpage-testkit"]);
    proc::must(&mut cargo, "cargo build")?;
    let folder = world.scratch("bench-package")?;
    let package = folder.join("farpage");
    fs::create_dir_all(&package)?;
    for entry in fs::read_dir(world.root.join("crates/faces/python/farpage"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "py") {
            fs::copy(&path, package.join(path.file_name().context("a name")?))?;
        }
    }
    let native = world.release_dir()?.join("lib_farpage.so");
    fs::copy(native, package.join("_farpage.abi3.so"))?;
    Ok(folder)
}

/// Starts the server; returns its address.
pub(super) fn serve(
    world: &World,
    data: &Path,
    latency: u32,
    rate: u32,
) -> Result<(Running, String)> {
    let mut server = Command::new(world.release_dir()?.join("farpage-test-server"));
    server
        .args([
            "--latency-ms",
            &latency.to_string(),
            "--mb-per-s",
            &rate.to_string(),
        ])
        .arg(data)
        .stdout(Stdio::piped());
    let mut child = server.spawn().context("cannot start the server")?;
    let mut line = String::new();
    let output = child.stdout.take().context("no output")?;
    BufReader::new(output).read_line(&mut line)?;
    let at = line
        .find("http://")
        .context("the server names no address")?;
    let url = line[at..].split_whitespace().next().unwrap_or_default();
    Ok((Running(child), url.trim_end_matches('/').to_owned()))
}

/// A folder that rclone serves.
pub(super) struct Mount {
    pub(super) folder: PathBuf,
    _rclone: Running,
}

impl Mount {
    /// Mounts what is at `url`, where `name` is then.
    pub(super) fn new(folder: &Path, url: &str, name: &str) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let mut rclone = Command::new("rclone");
        rclone
            .args(["mount", ":http:"])
            .arg(folder)
            .args(["--http-url", url, "--read-only", "--file-perms", "0755"])
            .stdout(Stdio::null());
        let child = rclone.spawn().context("cannot start rclone")?;
        let mount = Self {
            folder: folder.to_owned(),
            _rclone: Running(child),
        };
        let began = Instant::now();
        while !folder.join(name).exists() {
            ensure!(
                began.elapsed() < Duration::from_secs(20),
                "rclone does not mount"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(mount)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let mut unmount = Command::new("fusermount3");
        // Lazily: what cannot be unmounted now goes with rclone.
        let _ = unmount.arg("-uz").arg(&self.folder).status();
    }
}
