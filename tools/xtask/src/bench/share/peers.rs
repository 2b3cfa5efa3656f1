//! The peers of `bench share` whose messages are one-sided: Open MPI, OpenSHMEM, ArgoDSM. Each
//! program has a rank on each of the two hosts, which `mpirun` reaches as it does by ssh.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::net::{Net, Spinner};
use crate::proc;
use crate::world::{World, which};

/// What takes longer has failed.
const LIMIT: Duration = Duration::from_secs(120);

const UCX: &[&str] = &[
    "pml=ucx",
    "osc=ucx",
    "pml_ucx_tls=any",
    "pml_ucx_devices=any",
];

/// What the home does while the other host reads and writes its memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Home {
    /// Its program waits in its library.
    Waits,
    /// It does, and another program computes on the same processor.
    Busy,
    /// Its program computes, and calls its library every half a second.
    Computes,
}

/// Microseconds of each thing.
pub(super) type Figures = BTreeMap<(Home, String), f64>;

pub(super) struct Peer {
    pub(super) name: &'static str,
    /// Or why there is none.
    program: Result<PathBuf>,
    parameters: &'static [&'static str],
}

/// All of them, compiled.
pub(super) fn peers(world: &World, argo: Option<PathBuf>) -> Vec<Peer> {
    let argo = argo.context(
        "not measured; build github.com/etascale/argodsm with Open MPI, and with it \
         tools/bench/peers/argo.cpp; then: --argodsm PROGRAM",
    );
    let absolute = |path: PathBuf| {
        let found = path.canonicalize();
        found.with_context(|| format!("--argodsm {}", path.display()))
    };
    let peer = |name, program, parameters| Peer {
        name,
        program,
        parameters,
    };
    vec![
        // Only pt2pt goes by TCP, of what needs no UCX.
        peer(
            "Open MPI",
            compile(world, "mpicc", "rma"),
            &["pml=ob1", "osc=pt2pt"],
        ),
        peer("OpenSHMEM", compile(world, "oshcc", "shmem"), UCX),
        // It has several threads, for which Open MPI's pt2pt is not made.
        peer("ArgoDSM", argo.and_then(absolute), UCX),
    ]
}

fn compile(world: &World, compiler: &str, name: &str) -> Result<PathBuf> {
    let hint = "not measured; as root: apt-get install libopenmpi-dev openmpi-bin";
    let compiler = which(compiler).with_context(|| format!("no {compiler}; {hint}"))?;
    ensure!(which("mpirun").is_some(), "no mpirun; {hint}");
    let program = world.scratch("bench")?.join(name);
    let mut compile = Command::new(compiler);
    compile.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]);
    compile.arg(&program);
    compile.arg(world.root.join(format!("tools/bench/peers/{name}.c")));
    proc::output(&mut compile, name)?;
    Ok(program)
}

impl Peer {
    /// Of one run.
    pub(super) fn measure(
        &self,
        net: &Net,
        processors: [&str; 2],
        pages: u32,
    ) -> Result<Figures, String> {
        let program = self.program.as_ref().map_err(|e| format!("{e:#}"))?;
        let mut figures = Figures::new();
        for (home, pages) in [
            (Home::Waits, pages),
            (Home::Busy, pages / 8),
            (Home::Computes, pages),
        ] {
            let spin = (home == Home::Busy).then(|| Spinner::new(processors[0]));
            let said = spin
                .transpose()
                .and_then(|_spin| self.run(net, program, processors, pages, home))
                .map_err(|e| format!("{e:#}"))?;
            for (what, us) in said {
                figures.insert((home, what), us);
            }
        }
        Ok(figures)
    }

    fn run(
        &self,
        net: &Net,
        program: &Path,
        processors: [&str; 2],
        pages: u32,
        home: Home,
    ) -> Result<BTreeMap<String, f64>> {
        let folder = &net.hosts.folder;
        let (out, err) = (folder.join("peer.out"), folder.join("peer.err"));
        let mut mpirun = mpirun(net, self.parameters)?;
        for (at, processor) in processors.iter().enumerate() {
            mpirun.args((at > 0).then_some(":"));
            mpirun.args(["-np", "1", "--host", &net.hosts.address(at)]);
            mpirun.args(["taskset", "-c", processor, "env"]);
            // Over TCP; a page at a time.
            mpirun.args(["UCX_TLS=tcp,self", "UCX_NET_DEVICES=e0"]);
            mpirun.args(["ARGO_LOAD_SIZE=1", "ARGO_PRINT_STATISTICS=0"]);
            mpirun.arg(program).arg(pages.to_string());
            mpirun.arg(match home {
                Home::Waits | Home::Busy => "waits",
                Home::Computes => "computes",
            });
        }
        mpirun
            .stdout(File::create(&out)?)
            .stderr(File::create(&err)?);
        let outcome = proc::run(&mut mpirun, LIMIT, false)?;
        if !outcome.status.success() {
            let told = fs::read_to_string(&err)?;
            let lines = told.lines().filter(|line| !line.trim().is_empty());
            let last: Vec<&str> = lines.take(8).collect();
            bail!("{}: {}", outcome.ending(), last.join("\n    "));
        }
        read(&fs::read_to_string(&out)?)
    }
}

/// `what median ...`, in nanoseconds; what both ranks say is the mean of the two.
fn read(said: &str) -> Result<BTreeMap<String, f64>> {
    let mut all: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for line in said.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [what, median, _] = words[..] else {
            continue; // ArgoDSM says when it ends
        };
        if let Ok(ns) = median.parse::<f64>() {
            all.entry(what.to_owned()).or_default().push(ns / 1000.0);
        }
    }
    ensure!(!all.is_empty(), "no figures: {said}");
    let mean = |(what, us): (String, Vec<f64>)| (what, us.iter().sum::<f64>() / us.len() as f64);
    Ok(all.into_iter().map(mean).collect())
}

fn mpirun(net: &Net, parameters: &[&str]) -> Result<Command> {
    let mut mpirun = net.hosts.beside();
    mpirun.arg("mpirun");
    for (name, value) in [
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("PMIX_MCA_gds", "hash"),
    ] {
        mpirun.env(name, value);
    }
    mpirun.args(["--bind-to", "none", "--mca", "plm", "rsh"]);
    mpirun.args(["--mca", "plm_rsh_agent"]).arg(agent(net)?);
    mpirun.args(["--mca", "orte_tmpdir_base"]);
    mpirun.arg(&net.hosts.folder);
    // It copies what it knows of the processors to an address that it takes to be free.
    mpirun.args(["--mca", "rtc", "^hwloc", "--mca", "btl", "tcp,self"]);
    for parameter in parameters {
        let (name, value) = parameter.split_once('=').context("a parameter")?;
        mpirun.args(["--mca", name, value]);
    }
    Ok(mpirun)
}

/// A script that does what ssh does: `ADDRESS COMMAND...` on a host, which has a name and a
/// /dev/shm of its own.
fn agent(net: &Net) -> Result<PathBuf> {
    let path = net.hosts.folder.join("agent");
    let mut text = "#!/bin/sh\naddress=$1; shift\ncase $address in\n".to_owned();
    for at in 0..2 {
        let within = net.hosts.within(at);
        let words = std::iter::once(within.get_program()).chain(within.get_args());
        let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
        let address = net.hosts.address(at);
        text += &format!("{address}) name=host{at} within='{}' ;;\n", words.join(" "));
    }
    text += "esac\nown='mount -t tmpfs tmpfs /dev/shm && hostname \"$0\" && exec sh -c \"$*\"'\n";
    text += "exec $within unshare --uts --ipc --mount sh -c \"$own\" $name \"$@\"\n";
    fs::write(&path, text)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}
