//! `cargo xtask install-c`: the libraries, the header and the pkg-config file, for C.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::args::Args;
use crate::proc;
use crate::world::World;

/// The version, of which the first number is that of the interface.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Installs under `--prefix`, by default `/usr/local`.
pub(crate) fn main(world: &World, mut args: Args) -> Result<()> {
    let prefix = args.value("--prefix")?;
    let checks = args.flag("--check");
    args.finish()?;
    if checks {
        return check(world);
    }
    let prefix = PathBuf::from(prefix.as_deref().unwrap_or("/usr/local"));
    let prefix = std::path::absolute(prefix)?;
    install(world, &prefix)?;
    println!("install-c: farpage {VERSION} is in {}", prefix.display());
    Ok(())
}

/// Builds the release and installs it below `prefix`.
pub(crate) fn install(world: &World, prefix: &Path) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--quiet", "--locked"]);
    cargo.args(["--package", "farpage-capi", "--package", "farpage-stdio"]);
    proc::must(cargo.current_dir(&world.root), "cargo build --release")?;
    install_from(world, &world.release_dir()?, prefix)
}

/// Installs what is in the folder `built` below `prefix`.
pub(crate) fn install_from(world: &World, built: &Path, prefix: &Path) -> Result<()> {
    let source = world.root.join("crates/faces/capi");
    let (lib, include) = (prefix.join("lib"), prefix.join("include"));
    for folder in [&lib.join("pkgconfig"), &include] {
        let made = fs::create_dir_all(folder);
        made.with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let whole = format!("libfarpage.so.{VERSION}");
    copy(&built.join("libfarpage_c.so"), &lib.join(&whole))?;
    copy(&built.join("libfarpage_c.a"), &lib.join("libfarpage.a"))?;
    link(&whole, &lib.join("libfarpage.so.0"))?;
    link("libfarpage.so.0", &lib.join("libfarpage.so"))?;
    copy(
        &source.join("include/farpage.h"),
        &include.join("farpage.h"),
    )?;
    streams(world, built, prefix)?;
    let pc = fs::read_to_string(source.join("farpage.pc.in"))?;
    let pc = pc.replace("@VERSION@", VERSION);
    let pc = pc.replace("@PREFIX@", &prefix.display().to_string());
    fs::write(lib.join("pkgconfig/farpage.pc"), pc).context("cannot write farpage.pc")
}

/// The library of streams and its header.
fn streams(world: &World, built: &Path, prefix: &Path) -> Result<()> {
    let (lib, include) = (prefix.join("lib"), prefix.join("include/farpage"));
    let made = fs::create_dir_all(&include);
    made.with_context(|| format!("cannot make {}", include.display()))?;
    let whole = format!("libfarpage-stdio.so.{VERSION}");
    copy(&built.join("libfarpage_stdio.so"), &lib.join(&whole))?;
    copy(
        &built.join("libfarpage_stdio.a"),
        &lib.join("libfarpage-stdio.a"),
    )?;
    link(&whole, &lib.join("libfarpage-stdio.so.0"))?;
    link("libfarpage-stdio.so.0", &lib.join("libfarpage-stdio.so"))?;
    let header = world
        .root
        .join("crates/faces/stdio/include/farpage/stdio.h");
    copy(&header, &include.join("stdio.h"))?;
    let pc = format!(
        "prefix={}\n\nName: farpage-stdio\nDescription: Streams that read files where they lie\n\
         Version: {VERSION}\nLibs: -L${{prefix}}/lib -lfarpage-stdio\nCflags: -I${{prefix}}/include\n",
        prefix.display()
    );
    fs::write(lib.join("pkgconfig/farpage-stdio.pc"), pc).context("cannot write farpage-stdio.pc")
}

/// In place of what is there, which programs may be using.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let _ = fs::remove_file(to);
    let copied = fs::copy(from, to);
    copied.with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

fn link(target: &str, at: &Path) -> Result<()> {
    let _ = fs::remove_file(at);
    symlink(target, at).with_context(|| format!("cannot make {}", at.display()))
}

/// Installs the build of the tests into a folder of its own, and runs an example that pkg-config says how to
/// compile.
fn check(world: &World) -> Result<()> {
    let prefix = std::env::temp_dir().join(format!("farpage-install-c-{}", std::process::id()));
    let done = check_in(world, &prefix);
    fs::remove_dir_all(&prefix)?;
    done
}

fn check_in(world: &World, prefix: &Path) -> Result<()> {
    install_from(world, &world.checked_dir()?, prefix)?;
    let lib = prefix.join("lib");
    for flags in [
        &["--cflags", "--libs"][..],
        &["--static", "--cflags", "--libs"],
    ] {
        let mut ask = Command::new("pkg-config");
        ask.args(flags).arg("farpage");
        ask.env("PKG_CONFIG_PATH", lib.join("pkgconfig"));
        let flags = proc::output(&mut ask, "pkg-config")?;
        let program = prefix.join("computed");
        let mut compile = Command::new("gcc");
        compile.arg(world.root.join("examples/c/computed.c"));
        compile
            .arg("-o")
            .arg(&program)
            .args(flags.split_whitespace());
        proc::must(&mut compile, "gcc")?;
        let mut run = Command::new(&program);
        let printed = proc::output(run.env("LD_LIBRARY_PATH", &lib), "computed")?;
        let right = printed.ends_with("1000000000 * 1000000000 = 1000000000000000000\n");
        anyhow::ensure!(right, "the installed example printed:\n{printed}");
    }
    Ok(())
}
