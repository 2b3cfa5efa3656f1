//! `cargo xtask wheel`: the Python package, with the `farpage` command in it; and its tests.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::args::Args;
use crate::harness::Case;
use crate::proc;
use crate::setup::{self, SYSTEM_PYTHON};
use crate::world::World;

/// The oldest glibc that the wheel runs on. What is linked by gcc needs that of this machine: Zig's
/// linker knows the symbols of each version.
const GLIBC_MINOR: u32 = 28;
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The Python packages that bring Zig and have cargo use it.
const ZIG: [&str; 2] = ["ziglang", "cargo-zigbuild"];

/// The oldest Python that the wheel is for.
const OLDEST_PYTHON: &str = "python3.11";

/// All tests of a file; each one has a limit of its own, in `crates/faces/python/tests/harness.py`.
const TESTS_MAX: Duration = Duration::from_secs(1800);

/// Builds it into `--out` (`dist` without), and tries it where nothing but NumPy is.
pub(crate) fn wheel(world: &World, mut args: Args) -> Result<()> {
    let out = args.value("--out")?.map_or("dist".into(), PathBuf::from);
    args.finish()?;
    setup::maturin(world)?;
    println!("wheel: building the command and the library; the first time that takes some minutes");
    let wheel = build(world, &out)?;
    println!("wheel: trying it in an environment with NumPy alone");
    try_it(world, &wheel)?;
    println!(
        "wheel: {}; install it with: pip install {0}",
        wheel.display()
    );
    Ok(())
}

/// The wheel, built into `out`.
fn build(world: &World, out: &Path) -> Result<PathBuf> {
    for package in ZIG {
        pip_install(&world.python(), &[&pinned(world, package)?])?;
    }
    let command = command(world)?;
    let fresh = world.scratch("wheel")?;
    fs::remove_dir_all(&fresh)?;
    let mut maturin = Command::new(world.python());
    maturin
        .args(["-m", "maturin", "build", "--release", "--zig", "--quiet"])
        .args(["--auditwheel", "repair", "--target", TARGET])
        .args(["--compatibility", &format!("manylinux_2_{GLIBC_MINOR}")])
        .arg("--out")
        .arg(&fresh)
        .env("PATH", path_with_venv(world, &At::Front)?)
        .current_dir(world.root.join("crates/faces/python"));
    proc::must(&mut maturin, "maturin")?;
    let mut built = fs::read_dir(&fresh)?.collect::<Result<Vec<_>, _>>()?;
    let built = built.pop().context("maturin made no wheel")?.path();
    let name = built.file_name().context("a wheel has a name")?;
    fs::create_dir_all(out)?;
    let wheel = out.canonicalize()?.join(name);
    fs::copy(&built, &wheel)?;
    let module = world
        .target_dir()?
        .join(TARGET)
        .join("release/lib_farpage.so");
    for part in [command, module] {
        fits_its_name(&name.to_string_lossy(), &fs::read(&part)?)
            .with_context(|| format!("{} is for newer systems", part.display()))?;
    }
    Ok(wheel)
}

/// The `farpage` command, where maturin looks for it.
fn command(world: &World) -> Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo
        .args(["zigbuild", "--release", "--quiet"])
        .args(["--package", "farpage-cli", "--target"])
        .arg(format!("{TARGET}.2.{GLIBC_MINOR}"))
        .env("PATH", path_with_venv(world, &At::Front)?)
        .current_dir(&world.root);
    proc::must(&mut cargo, "cargo zigbuild of the command")?;
    let scripts = world.root.join("crates/faces/python/data/scripts");
    fs::create_dir_all(&scripts)?;
    let command = scripts.join("farpage");
    let built = world.target_dir()?.join(TARGET).join("release/farpage");
    fs::copy(built, &command).context("no farpage was built")?;
    let mut strip = Command::new("strip");
    proc::must(strip.arg("--strip-debug").arg(&command), "strip")?;
    Ok(command)
}

/// The name says which glibc is needed at least; a part must need no newer one. maturin looks at
/// the library only. The command carries the library of streams as it is, so that what that needs is
/// found in the bytes of the command, too.
fn fits_its_name(name: &str, part: &[u8]) -> Result<()> {
    let minor = |text: &str| -> Option<u32> {
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    };
    let promised = name
        .split("manylinux_2_")
        .nth(1)
        .and_then(minor)
        .with_context(|| format!("{name} is for this machine only: its audit did not pass"))?;
    let text = String::from_utf8_lossy(part);
    let needed = text
        .split("GLIBC_2.")
        .skip(1)
        .filter_map(minor)
        .max()
        .unwrap_or(0);
    if needed > promised {
        bail!("it needs glibc 2.{needed}, and {name} says 2.{promised}");
    }
    Ok(())
}

/// A line of `tools/xtask/requirements.txt`.
fn pinned(world: &World, package: &str) -> Result<String> {
    let requirements = fs::read_to_string(world.root.join("tools/xtask/requirements.txt"))?;
    let begin = format!("{package}==");
    let line = requirements.lines().find(|line| line.starts_with(&begin));
    line.map(str::to_owned)
        .with_context(|| format!("tools/xtask/requirements.txt names no version of {package}"))
}

/// Where on the PATH a folder goes.
enum At {
    Front,
    End,
}

/// The PATH, with the programs of `.venv`.
fn path_with_venv(world: &World, at: &At) -> Result<OsString> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut all: Vec<PathBuf> = env::split_paths(&path).collect();
    let place = match at {
        At::Front => 0,
        At::End => all.len(),
    };
    all.insert(place, world.venv().join("bin"));
    env::join_paths(all).context("a folder of the PATH has a colon in its name")
}

/// The Python of the environment `name`, which lies under the target folder.
fn python_of(world: &World, name: &str) -> Result<PathBuf> {
    let base = world.target_dir()?.join("python");
    Ok(base.join(name).join("bin/python"))
}

/// A new environment `name`. That of [`TORCH`] sees the system's packages.
fn environment(world: &World, name: &str, base: &Path, options: &[&str]) -> Result<PathBuf> {
    let python = python_of(world, name)?;
    let folder = python.ancestors().nth(2).context("no folder")?;
    let mut venv = Command::new(base);
    venv.args(["-m", "venv", "--clear"])
        .args(options)
        .arg(folder);
    proc::output(&mut venv, "python3 -m venv")?;
    Ok(python)
}

fn pip_install(python: &Path, what: &[&str]) -> Result<()> {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--only-binary", ":all:"]);
    proc::output(pip.args(what), "pip install").map(drop)
}

/// In a new environment with NumPy alone it is imported, and its command works. Where the system's Python
/// is newer than the oldest, it is imported by that, too, if this machine has it.
fn try_it(world: &World, wheel: &Path) -> Result<()> {
    let base = setup::base_python()?;
    let python = environment(world, "bare", &base, &[])?;
    pip_install(&python, &[&pinned(world, "numpy")?])?;
    import(world, &python, wheel)?;
    let mut doctor = Command::new(python.with_file_name("farpage"));
    proc::must(doctor.arg("doctor"), "farpage doctor")?;
    let name = "import sys; print('python%d.%d' % sys.version_info[:2])";
    let name = proc::output(Command::new(&base).args(["-c", name]), "python3")?;
    if name.trim() == OLDEST_PYTHON {
        return Ok(());
    }
    let oldest = Path::new(OLDEST_PYTHON);
    if !has_venv(oldest) {
        println!("wheel: not tried with {OLDEST_PYTHON}, which this machine does not have");
        return Ok(());
    }
    let python = environment(world, "oldest", oldest, &[])?;
    pip_install(&python, &["numpy"])?; // the newest for that Python
    import(world, &python, wheel)
}

fn has_venv(python: &Path) -> bool {
    let mut import = Command::new(python);
    import.args(["-c", "import ensurepip, venv"]);
    import.stdout(Stdio::null()).stderr(Stdio::null());
    import.status().is_ok_and(|status| status.success())
}

fn import(world: &World, python: &Path, wheel: &Path) -> Result<()> {
    pip_install(python, &["--no-index", &wheel.to_string_lossy()])?;
    let program = "import farpage, numpy, sys; numpy.save(sys.argv[1], numpy.arange(9)); \
                   assert farpage.load(sys.argv[1]).sum() == 36; \
                   print('farpage', farpage.__version__, 'imported by Python', sys.version)";
    let file = world.scratch("wheel")?.join("nine.npy");
    let mut import = Command::new(python);
    proc::must(import.args(["-c", program]).arg(file), "import farpage")
}

/// The environments in which the package's tests find it, as if it had been installed.
const TESTS: &str = "tests";
const TORCH: &str = "torch";

/// Makes environments with the package, built as all tests are: no wheel is made. What was built is there.
pub(crate) fn prepare(world: &World) -> Result<()> {
    setup::python(world)?;
    let debug = world.checked_dir()?;
    let python = environment(world, TESTS, &setup::base_python()?, &["--without-pip"])?;
    // The packages of `.venv`, which are the pinned ones.
    let pth = packages(&python)?.join("pinned.pth");
    let pinned = packages(&world.python())?;
    fs::write(pth, pinned.to_string_lossy().as_bytes())?;
    let torch = environment(
        world,
        TORCH,
        Path::new(SYSTEM_PYTHON),
        &["--without-pip", "--system-site-packages"],
    )?;
    place(world, &debug, &python)?;
    place(world, &debug, &torch)
}

/// The package's tests, outside of the source tree: a case for each file of them, for which everything
/// must be prepared.
pub(crate) fn cases(world: &World) -> Result<Vec<Case>> {
    let debug = world.checked_dir()?;
    let python = python_of(world, TESTS)?;
    let torch = python_of(world, TORCH)?;
    let env = [
        ("FARPAGE_TEST_SERVER", debug.join("farpage-test-server")),
        ("FARPAGE_TORCH_PYTHON", torch),
        ("FARPAGE_COMMAND", python.with_file_name("farpage")),
        ("FARPAGE_INSTALLED", "1".into()),
        ("FARPAGE_DOCS", world.root.join("docs")),
        ("PYTHONDONTWRITEBYTECODE", "1".into()),
        // Last, for py-spy, which prints where a Python program hangs.
        ("PATH", path_with_venv(world, &At::End)?.into()),
    ];
    let case = |file: PathBuf| Case {
        name: format!(
            "python {}",
            file.file_stem().unwrap_or_default().to_string_lossy()
        ),
        program: python.clone(),
        args: [
            "-m",
            "pytest",
            "-q",
            "-rs",
            "--durations=3",
            "-p",
            "no:cacheprovider",
        ]
        .map(OsString::from)
        .into_iter()
        .chain([file.into()])
        .collect(),
        env: env
            .iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect(),
        folder: python.parent().map(Path::to_owned).unwrap_or_default(),
        limit: TESTS_MAX,
    };
    Ok(test_files(world)?.into_iter().map(case).collect())
}

fn test_files(world: &World) -> Result<Vec<PathBuf>> {
    let folder = world.root.join("crates/faces/python/tests");
    let mut files = Vec::new();
    for entry in fs::read_dir(&folder)? {
        let name = entry?.file_name();
        let text = name.to_string_lossy();
        if text.starts_with("test_") && text.ends_with(".py") {
            files.push(folder.join(name));
        }
    }
    files.sort();
    Ok(files)
}

/// Where an environment has its packages.
fn packages(python: &Path) -> Result<PathBuf> {
    let folder = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let said = proc::output(Command::new(python).args(["-c", folder]), "python")?;
    Ok(said.trim().into())
}

/// Puts the package and the command into an environment, as its wheel would.
fn place(world: &World, built: &Path, python: &Path) -> Result<()> {
    let package = packages(python)?.join("farpage");
    fs::create_dir_all(&package)?;
    for entry in fs::read_dir(world.root.join("crates/faces/python/farpage"))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), package.join(entry.file_name()))?;
        }
    }
    let module = package.join("_farpage.abi3.so");
    fs::copy(built.join("lib_farpage.so"), module).context("no extension module was built")?;
    let command = python.with_file_name("farpage");
    fs::copy(built.join("farpage"), command).context("no farpage was built")?;
    // The tests write no bytecode: every interpreter would compile the package again.
    let mut compile = Command::new(python);
    compile.args(["-m", "compileall", "-q"]).arg(package);
    proc::output(&mut compile, "python3 -m compileall").map(drop)
}

#[cfg(test)]
mod tests {
    use super::fits_its_name;

    #[test]
    fn a_part_newer_than_its_wheel_is_refused() {
        let name = "farpage-0.1.0-cp311-abi3-manylinux_2_28_x86_64.whl";
        assert!(fits_its_name(name, b"\0GLIBC_2.2.5\0GLIBC_2.28\0").is_ok());
        assert!(fits_its_name(name, b"\0GLIBC_2.29\0").is_err());
        assert!(fits_its_name("farpage-0.1.0-cp311-abi3-linux_x86_64.whl", b"").is_err());
    }
}
