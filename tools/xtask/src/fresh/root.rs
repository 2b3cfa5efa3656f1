//! A minimal Debian in a folder of its own, and programs that run in it as on another machine.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use farpage_testkit::Guard;

use crate::fresh::settings;
use crate::world::which;
use crate::{kept, proc};

/// Debian 12.
const RELEASE: &str = "bookworm";

/// What README.md wants to be there before anything is built.
pub(crate) const BUILD_PACKAGES: &[&str] = &[
    "ca-certificates",
    "gcc",
    "git",
    "libc6-dev",
    "python3",
    "python3-venv",
];

/// Where what has been released is tried: there is nothing to build with.
pub(crate) const BARE_PACKAGES: &[&str] = &["ca-certificates"];

/// It takes two minutes where the network is quick.
const DEBOOTSTRAP_MAX: Duration = Duration::from_secs(3600);

/// The program that enters a root.
const ENTER: &str = include_str!("enter.sh");

/// Removes the folder `$1`. What runs in it is being killed at the same time.
const REMOVE: &str = r#"
for i in 1 2 3 4 5 6 7 8 9 10; do
    rm -rf --one-file-system -- "$1" 2>/dev/null && exit
    sleep 0.5
done
echo "cannot remove $1" >&2"#;

/// Who runs something there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum User {
    Root,
    Ordinary,
}

impl User {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Ordinary => "ordinary",
        }
    }

    /// The user that is called so on the command line.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn named(name: &str) -> Result<Self> {
        let found = [Self::Root, Self::Ordinary]
            .into_iter()
            .find(|user| user.name() == name);
        found.with_context(|| format!("unknown user '{name}'; there are root and ordinary"))
    }

    fn id(self) -> u32 {
        match self {
            Self::Root => 0,
            Self::Ordinary => 1000,
        }
    }

    fn home(self) -> &'static str {
        match self {
            Self::Root => "/root",
            Self::Ordinary => "/home/ordinary",
        }
    }
}

/// A file or folder of this machine that is seen in the root, and cannot be written to there.
pub(crate) struct Bind {
    pub(crate) here: PathBuf,
    pub(crate) there: String,
}

/// The root; removed when dropped, and also when this process is killed.
pub(crate) struct Root {
    /// The folder that holds all of it.
    folder: PathBuf,
    binds: Vec<Bind>,
    _guard: Option<Guard>,
}

impl Root {
    /// Unpacks a Debian with `packages`, which is made first when this month has none yet.
    ///
    /// # Errors
    /// When this machine lacks a tool or a right, or Debian's packages cannot be had.
    pub(crate) fn make(packages: &[&str], binds: Vec<Bind>, keep: bool) -> Result<Self> {
        let packed = packed(packages)?;
        let folder = unique("/var/tmp/farpage-fresh")?;
        let guard = match keep {
            true => None,
            false => Some(Guard::new(REMOVE, &[&folder.display().to_string()])?),
        };
        let root = Self {
            folder,
            binds,
            _guard: guard,
        };
        fs::write(root.folder.join("enter.sh"), ENTER)?;
        let path = root.path();
        fs::create_dir(&path)?;
        let mut tar = Command::new("tar");
        tar.arg("-xpf").arg(&packed).arg("-C").arg(&path);
        proc::output(&mut tar, "tar")?;
        settings::system(&path, RELEASE)?;
        fs::write(
            path.join("etc/apt/apt.conf.d/90fresh"),
            "APT::Get::Assume-Yes \"true\";\n", // nobody is there to say so
        )?;
        for args in [
            &["useradd", "--create-home", "--uid", "1000", "ordinary"][..],
            &["update-ca-certificates"],
        ] {
            let mut chroot = Command::new("chroot");
            chroot.arg(&path).args(args).env("PATH", SYSTEM_PATH);
            // This machine's is not there.
            chroot.env_remove("TMPDIR");
            proc::output(&mut chroot, args[0])?;
        }
        Ok(root)
    }

    /// Where `/` of the root is.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join("root")
    }

    /// Where all of it is.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Copies settings and downloads of this machine's user into the home of `user`.
    pub(crate) fn furnish(&self, user: User) -> Result<()> {
        let home = self.path().join(user.home().trim_start_matches('/'));
        settings::home(&home, user.id())
    }

    /// A command that runs `script` there as `user`, in a namespace of processes that ends with it.
    /// The cgroups that it makes lie below `cgroup`.
    pub(crate) fn command(&self, user: User, cgroup: &str, script: &str) -> Command {
        let binds: String = self
            .binds
            .iter()
            .map(|bind| format!("{}\t{}\n", bind.here.display(), bind.there))
            .collect();
        let mut command = Command::new("sh");
        command.arg(self.folder.join("enter.sh")).arg("outside");
        command.arg(self.path()).args([cgroup, &binds]);
        command.args(["/usr/bin/setpriv", "--init-groups"]);
        command.arg(format!("--reuid={}", user.id()));
        command.arg(format!("--regid={}", user.id()));
        command.arg("/usr/bin/env");
        command.arg(format!("PATH={}", self.search_path()));
        command.args(["/bin/bash", "-c", script]);
        // Not as arguments: any user can read those of every process.
        command.env_clear().envs(settings::variables(&self.path()));
        command.env("PATH", SYSTEM_PATH).env("LANG", "C.UTF-8");
        command
            .env("TERM", "dumb")
            .env("DEBIAN_FRONTEND", "noninteractive");
        command.env("USER", user.name()).env("HOME", user.home());
        command
    }

    /// Folders of programs that are bound in come first.
    fn search_path(&self) -> String {
        let bound = self
            .binds
            .iter()
            .filter_map(|bind| match bind.there.as_str() {
                "/opt/rust" => Some("/opt/rust/bin:"),
                "/usr/local/go" => Some("/usr/local/go/bin:"),
                "/opt/node/bin/node" => Some("/opt/node/bin:"),
                _ => None,
            });
        bound.collect::<String>() + SYSTEM_PATH
    }
}

const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A Debian with `packages` as a tar file, which is made when this month has none yet.
fn packed(packages: &[&str]) -> Result<PathBuf> {
    let cache = kept::folder()?;
    let month = proc::output(Command::new("date").arg("+%Y-%m"), "date")?;
    let packed = cache.join(packed_name(packages, month.trim()));
    if packed.exists() {
        return Ok(packed);
    }
    if which("debootstrap").is_none() {
        bail!("debootstrap is missing, which makes the fresh machine: apt-get install debootstrap");
    }
    println!(
        "fresh: debootstrap {RELEASE} with {}; kept until next month",
        packages.join(" ")
    );
    forget_older(&cache, month.trim());
    let folder = unique("/var/tmp/farpage-debootstrap")?;
    let _guard = Guard::new(REMOVE, &[&folder.display().to_string()])?;
    let root = folder.join("root");
    debootstrap(packages, &folder, &root)?;
    let tar_file = folder.join("root.tar");
    let mut tar = Command::new("tar");
    tar.args([
        "--exclude=./var/cache/apt/archives/*.deb",
        "--exclude=./dev/*",
    ]);
    tar.arg("-C").arg(&root).arg("-cf").arg(&tar_file).arg(".");
    proc::output(&mut tar, "tar")?;
    // In one step, so that nobody unpacks half of it.
    let half = packed.with_extension(format!("{}", std::process::id()));
    fs::copy(&tar_file, &half)?;
    fs::rename(&half, &packed)?;
    Ok(packed)
}

/// Runs debootstrap with mounts and processes of its own: none is left when it is killed.
fn debootstrap(packages: &[&str], folder: &Path, root: &Path) -> Result<()> {
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--propagation", "private", "--pid", "--fork"]);
    unshare.args(["--kill-child", "--mount-proc"]);
    unshare.args(["debootstrap", "--variant=minbase"]);
    unshare.arg(format!("--include={}", packages.join(",")));
    unshare.arg(RELEASE).arg(root);
    let log = folder.join("debootstrap.log");
    let file = fs::File::create(&log)?;
    unshare.stderr(file.try_clone()?).stdout(file);
    let outcome = proc::run(&mut unshare, DEBOOTSTRAP_MAX, false)?;
    if !outcome.status.success() {
        let said = fs::read_to_string(&log).unwrap_or_default();
        bail!("debootstrap: {}\n{said}", outcome.ending());
    }
    Ok(())
}

/// The packages stand in the name: another list is another file.
fn packed_name(packages: &[&str], month: &str) -> String {
    format!("{RELEASE}-{month}-{}.tar", packages.join("-"))
}

fn forget_older(cache: &Path, month: &str) {
    for entry in fs::read_dir(cache).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(RELEASE) && !name.contains(month) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// A new folder that only this user can enter: what lies in it may hold a registry's password.
fn unique(prefix: &str) -> Result<PathBuf> {
    let (mut number, id) = (0, std::process::id());
    loop {
        let folder = PathBuf::from(format!("{prefix}-{id}-{number}"));
        match fs::DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
            made => {
                made.with_context(|| format!("cannot make {}", folder.display()))?;
                return Ok(folder);
            }
        }
    }
}

/// The Rust toolchain in use, with its cargo.
pub(crate) fn rust() -> Result<Bind> {
    let mut rustc = Command::new("rustc");
    let sysroot = proc::output(rustc.args(["--print", "sysroot"]), "rustc --print sysroot")?;
    let here = PathBuf::from(sysroot.trim());
    let cargo = here.join("bin/cargo");
    ensure!(
        cargo.exists(),
        "{} is missing: the toolchain in use has no cargo of its own; use one of rustup's",
        cargo.display()
    );
    Ok(Bind {
        here,
        there: "/opt/rust".into(),
    })
}

/// Its version.
pub(crate) fn rust_version() -> Result<String> {
    let said = proc::output(Command::new("rustc").arg("--version"), "rustc --version")?;
    Ok(said.trim().to_owned())
}

/// Go and Node, which the tests build servers with.
pub(crate) fn go_and_node() -> Result<Vec<Bind>> {
    let go = which("go").context("go is missing, which the tests need; get it from go.dev")?;
    let goroot = proc::output(Command::new(go).args(["env", "GOROOT"]), "go env GOROOT")?;
    let node = which("node").context("node is missing, which the tests need")?;
    let node = node.canonicalize()?;
    let prefix = node.parent().and_then(Path::parent);
    let modules = prefix
        .context("node lies in no prefix")?
        .join("lib/node_modules");
    ensure!(
        modules.join("npm").exists(),
        "{} has no npm, which the tests need; install Node with it",
        modules.display()
    );
    let bind = |here, there: &str| Bind {
        here,
        there: there.to_owned(),
    };
    Ok(vec![
        bind(PathBuf::from(goroot.trim()), "/usr/local/go"),
        bind(node, "/opt/node/bin/node"),
        bind(modules, "/opt/node/lib/node_modules"),
    ])
}

/// Puts npm beside node.
pub(crate) fn link_npm(root: &Root) -> Result<()> {
    let bin = root.path().join("opt/node/bin");
    fs::create_dir_all(&bin)?;
    for name in ["npm", "npx"] {
        let target = format!("../lib/node_modules/npm/bin/{name}-cli.js");
        symlink(target, bin.join(name))?;
    }
    Ok(())
}

/// The commit that is checked out, as a file that is cloned from.
pub(crate) fn bundle(repository: &Path, root: &Root) -> Result<()> {
    let bundle = root.path().join("srv/farpage.bundle");
    let mut git = Command::new("git");
    git.arg("-C").arg(repository);
    git.args(["bundle", "create", "--quiet"])
        .arg(&bundle)
        .arg("HEAD");
    proc::output(&mut git, "git bundle")?;
    fs::set_permissions(&bundle, fs::Permissions::from_mode(0o644))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_list_of_packages_or_month_is_another_file() {
        let name = packed_name(BARE_PACKAGES, "2026-11");
        assert_eq!(name, "bookworm-2026-11-ca-certificates.tar");
        assert_ne!(name, packed_name(BARE_PACKAGES, "2026-12"));
        assert_ne!(name, packed_name(BUILD_PACKAGES, "2026-11"));
        assert!(packed_name(BUILD_PACKAGES, "2026-11").len() < 255);
    }

    #[test]
    fn nothing_but_a_c_compiler_git_and_python_is_there_to_build_with() {
        let want = "ca-certificates gcc git libc6-dev python3 python3-venv";
        assert_eq!(BUILD_PACKAGES.join(" "), want);
    }
}
