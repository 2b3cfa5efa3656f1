//! `cargo xtask wheel`: the Python package, with the `farpage` command in it; and its tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::args::Args;
use crate::proc;
use crate::setup::{self, SYSTEM_PYTHON};
use crate::world::World;

/// What the linker of the oldest system may lack is refused by maturin's own audit: it names the
/// oldest glibc that the wheel runs on in its file name.
const MATURIN: &[&str] = &[
    "-m",
    "maturin",
    "build",
    "--release",
    "--auditwheel",
    "repair",
];

/// They take some two minutes.
const TESTS_MAX: Duration = Duration::from_secs(900);

/// Builds it into `--out` (`dist` without), and tries it where nothing but NumPy is. `--test`: runs
/// its tests instead.
pub(crate) fn wheel(world: &World, mut args: Args) -> Result<()> {
    let out = args.value("--out")?.map_or("dist".into(), PathBuf::from);
    let tests = args.flag("--test");
    args.finish()?;
    if tests {
        setup::python(world)?;
        return test(world);
    }
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
    let mut cargo = Command::new("cargo");
    cargo
        .args(["build", "--release", "--quiet", "--package", "farpage-cli"])
        .current_dir(&world.root);
    proc::must(&mut cargo, "cargo build of the command")?;
    let crate_dir = world.root.join("crates/python");
    let scripts = crate_dir.join("data/scripts");
    fs::create_dir_all(&scripts)?;
    let command = scripts.join("farpage");
    fs::copy(world.release_dir()?.join("farpage"), &command).context("no farpage was built")?;
    let mut strip = Command::new("strip");
    proc::must(strip.arg("--strip-debug").arg(&command), "strip")?;
    let fresh = world.scratch("wheel")?;
    fs::remove_dir_all(&fresh)?;
    let mut maturin = Command::new(world.python());
    maturin.args(MATURIN).arg("--out").arg(&fresh);
    maturin.arg("--quiet").current_dir(&crate_dir);
    maturin.env("PATH", path_with(&world.venv().join("bin"))?);
    proc::must(&mut maturin, "maturin")?;
    let mut built = fs::read_dir(&fresh)?.collect::<Result<Vec<_>, _>>()?;
    let built = built.pop().context("maturin made no wheel")?.path();
    let name = built.file_name().context("a wheel has a name")?;
    fs::create_dir_all(out)?;
    let wheel = out.canonicalize()?.join(name);
    fs::copy(&built, &wheel)?;
    fits_its_name(&name.to_string_lossy(), &fs::read(&command)?)?;
    Ok(wheel)
}

/// The name says which glibc is needed at least. maturin looks at the library only, so the command
/// is looked at here.
fn fits_its_name(name: &str, command: &[u8]) -> Result<()> {
    let minor = |text: &str| -> Option<u32> {
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok()
    };
    let promised = name
        .split("manylinux_2_")
        .nth(1)
        .and_then(minor)
        .with_context(|| format!("{name} is for this machine only: its audit did not pass"))?;
    let text = String::from_utf8_lossy(command);
    let needed = text
        .split("GLIBC_2.")
        .skip(1)
        .filter_map(minor)
        .max()
        .unwrap_or(0);
    if needed > promised {
        bail!("the command needs glibc 2.{needed}, and {name} says 2.{promised}");
    }
    Ok(())
}

fn path_with(first: &Path) -> Result<std::ffi::OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(first.to_owned()).chain(std::env::split_paths(&path));
    std::env::join_paths(all).context("a folder of the PATH has a colon in its name")
}

/// A new environment `name` under the target folder; `system`: it sees the system's packages.
fn environment(world: &World, name: &str, system: bool) -> Result<PathBuf> {
    let base = world.release_dir()?.with_file_name("python").join(name);
    let python = if system {
        SYSTEM_PYTHON.into()
    } else {
        setup::base_python()?
    };
    let mut venv = Command::new(python);
    venv.args(["-m", "venv", "--clear"]).arg(&base);
    if system {
        venv.arg("--system-site-packages");
    }
    proc::output(&mut venv, "python3 -m venv")?;
    Ok(base.join("bin/python"))
}

fn pip_install(python: &Path, what: &[&str]) -> Result<()> {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--only-binary", ":all:"]);
    proc::output(pip.args(what), "pip install").map(drop)
}

/// In a new environment with NumPy alone it is imported, and its command works.
fn try_it(world: &World, wheel: &Path) -> Result<()> {
    let python = environment(world, "bare", false)?;
    let requirements = fs::read_to_string(world.root.join("xtask/requirements.txt"))?;
    let numpy = requirements.lines().find(|line| line.starts_with("numpy"));
    pip_install(&python, &[numpy.context("NumPy is not pinned")?])?;
    pip_install(&python, &["--no-index", &wheel.to_string_lossy()])?;
    let program = "import farpage, numpy; numpy.save('/tmp/farpage-wheel.npy', numpy.arange(9)); \
                   assert farpage.load('/tmp/farpage-wheel.npy').sum() == 36; \
                   print('farpage', farpage.__version__, 'imported')";
    let program = program.replace("/tmp/", &format!("{}/", world.scratch("wheel")?.display()));
    proc::must(
        Command::new(&python).args(["-c", &program]),
        "import farpage",
    )?;
    let mut doctor = Command::new(python.with_file_name("farpage"));
    proc::must(doctor.arg("doctor"), "farpage doctor")
}

/// The wheel's tests, outside of the source tree. A test that is skipped is a failure.
pub(crate) fn test(world: &World) -> Result<()> {
    let wheel = build(world, &world.release_dir()?.with_file_name("python"))?;
    let wheel = wheel.to_string_lossy();
    let python = environment(world, "tests", false)?;
    // The packages of `.venv`, which are the pinned ones.
    let folder = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let purelib = |python: &Path| proc::output(Command::new(python).args(["-c", folder]), "python");
    let pth = Path::new(purelib(&python)?.trim()).join("pinned.pth");
    fs::write(pth, purelib(&world.python())?)?;
    pip_install(&python, &["--no-index", "--no-deps", &wheel])?;
    let torch = environment(world, "torch", true)?;
    pip_install(&torch, &["--no-index", "--no-deps", &wheel])?;
    let mut server = Command::new("cargo");
    server.args([
        "build",
        "--release",
        "--quiet",
        "--package",
        "farpage-test-server",
    ]);
    proc::must(
        server.current_dir(&world.root),
        "cargo build of the test server",
    )?;
    let mut pytest = Command::new(&python);
    pytest
        .args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"])
        // A test that waits for so long is named, and where it waits.
        .args(["-o", "faulthandler_timeout=240"])
        .arg(world.root.join("crates/python/tests"))
        .env(
            "FARPAGE_TEST_SERVER",
            world.release_dir()?.join("farpage-test-server"),
        )
        .env("FARPAGE_TORCH_PYTHON", &torch)
        .env("FARPAGE_COMMAND", python.with_file_name("farpage"))
        .env("FARPAGE_INSTALLED", "1")
        .env("FARPAGE_DOCS", world.root.join("docs"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(python.parent().context("python lies in a folder")?)
        .stdin(Stdio::null());
    let outcome = proc::run(&mut pytest, TESTS_MAX, false)?;
    if !outcome.status.success() {
        bail!("pytest: {}", outcome.ending());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::fits_its_name;

    #[test]
    fn a_command_newer_than_its_wheel_is_refused() {
        let name = "farpage-0.1.0-cp311-abi3-manylinux_2_34_x86_64.whl";
        assert!(fits_its_name(name, b"\0GLIBC_2.2.5\0GLIBC_2.34\0").is_ok());
        assert!(fits_its_name(name, b"\0GLIBC_2.35\0").is_err());
        assert!(fits_its_name("farpage-0.1.0-cp311-abi3-linux_x86_64.whl", b"").is_err());
    }
}
