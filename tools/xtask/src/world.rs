//! Where things are: the tree, the state that is kept between calls, and the binaries under test.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::proc;

/// User and group of `nobody`.
pub(crate) const NOBODY: u32 = 65534;

/// Where state is kept when the repository is where only root can reach it.
const SHARED: &str = "/var/tmp/farpage-xtask";

/// The paths that every command starts from.
pub(crate) struct World {
    /// The repository.
    pub(crate) root: PathBuf,
    /// Where `.venv` and `.corpus` lie: the repository, or a place that `nobody` can reach.
    state: PathBuf,
    /// Effective user.
    pub(crate) uid: u32,
}

impl World {
    pub(crate) fn find() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let root = root
            .canonicalize()
            .context("the repository moved since xtask was built")?;
        let uid = fs::metadata("/proc/self")
            .context("cannot read /proc")?
            .uid();
        let state = if uid != 0 || open_to_all(&root) {
            root.clone()
        } else {
            PathBuf::from(SHARED)
        };
        fs::create_dir_all(state.join(".corpus"))?;
        Ok(Self { root, state, uid })
    }

    pub(crate) fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Inputs, built programs and run directories; made when missing, open to all users.
    pub(crate) fn scratch(&self, name: &str) -> Result<PathBuf> {
        let dir = self.state.join(".corpus").join(name);
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(dir)
    }

    pub(crate) fn venv(&self) -> PathBuf {
        self.state.join(".venv")
    }

    /// Python with NumPy and the rest of `tools/xtask/requirements.txt`.
    pub(crate) fn python(&self) -> PathBuf {
        self.venv().join("bin/python")
    }

    /// The folder of all builds.
    pub(crate) fn target_dir(&self) -> Result<PathBuf> {
        let exe = std::env::current_exe()?; // TARGET/debug/xtask
        let target = exe.parent().and_then(Path::parent);
        Ok(target.context("no target folder")?.to_owned())
    }

    /// Where this build's release binaries are.
    pub(crate) fn release_dir(&self) -> Result<PathBuf> {
        Ok(self.target_dir()?.join("release"))
    }

    /// Where the programs that tests use are: what a release does, with checks.
    pub(crate) fn checked_dir(&self) -> Result<PathBuf> {
        Ok(self.target_dir()?.join("debug"))
    }

    /// What runs of tests have in common in `/var/tmp`.
    pub(crate) fn shared_folder(&self) -> PathBuf {
        PathBuf::from(SHARED)
    }

    /// Builds the release binaries of the workspace.
    pub(crate) fn build_release(&self) -> Result<()> {
        let mut cargo = Command::new("cargo");
        cargo
            .args(["build", "--release", "--workspace", "--quiet"])
            .current_dir(&self.root);
        proc::must(&mut cargo, "cargo build --release")
    }

    /// The `farpage` to test: `$FARPAGE`, or the release build, placed where all users reach it.
    pub(crate) fn farpage(&self) -> Result<PathBuf> {
        if let Some(path) = std::env::var_os("FARPAGE") {
            let path = PathBuf::from(path);
            return path
                .canonicalize()
                .with_context(|| format!("FARPAGE={}", path.display()));
        }
        self.build_release()?;
        let release = self.release_dir()?;
        if !release.join("farpage").exists() {
            bail!("the build made no {}", release.join("farpage").display());
        }
        let bin = self.scratch("farpage")?;
        for entry in fs::read_dir(&release)? {
            let entry = entry?;
            let name = entry.file_name();
            let text = name.to_string_lossy();
            let wanted = text == "farpage" || (text.contains("farpage") && text.ends_with(".so"));
            if wanted && entry.file_type()?.is_file() {
                let to = bin.join(&name);
                let _ = fs::remove_file(&to); // it may be in use
                fs::copy(entry.path(), &to)?;
                fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
            }
        }
        Ok(bin.join("farpage"))
    }
}

/// This program, also when a build replaces its file while it runs.
pub(crate) fn own_program() -> PathBuf {
    PathBuf::from(format!("/proc/{}/exe", std::process::id()))
}

/// Whether every folder on the way to `path` lets any user through.
fn open_to_all(path: &Path) -> bool {
    let through = |p: &Path| fs::metadata(p).is_ok_and(|m| m.mode() & 0o001 != 0);
    path.ancestors().all(through)
}

/// The first program called `name` on the PATH.
pub(crate) fn which(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let more = ["/usr/local/go/bin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(more)
        .map(|d| d.join(name))
        .find(|p| p.is_file())
}

/// Kernel release and processor, for the head of every printed figure.
pub(crate) fn machine() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|l| l.strip_prefix("model name")?.split(": ").nth(1));
    let cores = info.lines().filter(|l| l.starts_with("processor")).count();
    format!(
        "Linux {} on {} x {}",
        release.trim(),
        cores,
        model.unwrap_or("unknown").trim()
    )
}
