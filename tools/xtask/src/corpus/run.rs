//! One run of one job, in a fresh directory: bare, or under `farpage run` as some user.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use farpage_testkit::Cgroup;
use serde_json::Value;

use super::compare;
use super::jobs::{Job, LIMIT_S};
use super::make::Places;
use crate::proc::{self, Outcome};
use crate::world::{NOBODY, World};

/// Who runs `farpage run`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// Whoever called.
    Current,
    /// The unprivileged user 65534; only root can become it.
    Nobody,
}

impl User {
    pub(crate) fn all(world: &World) -> Vec<Self> {
        if world.is_root() {
            vec![Self::Current, Self::Nobody]
        } else {
            vec![Self::Current]
        }
    }

    /// The words before those of a command.
    fn becomes(self) -> Vec<String> {
        match self {
            Self::Current => Vec::new(),
            Self::Nobody => {
                let id = NOBODY.to_string();
                let words = [
                    "setpriv",
                    "--reuid",
                    &id,
                    "--regid",
                    &id,
                    "--clear-groups",
                    "--inh-caps=-all",
                ];
                words.map(String::from).into()
            }
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Current => "self",
            Self::Nobody => "nobody",
        }
    }
}

/// A run under farpage.
pub(crate) struct Paged {
    pub(crate) user: User,
    pub(crate) wall_s: f64,
    /// From `--stats`; `None` when there were none.
    pub(crate) stats: Option<Stats>,
    /// Most anonymous memory at once, farpage's own included; 0 when not watched.
    pub(crate) peak_anon_bytes: u64,
    /// What is wrong with it; empty when the output is the same.
    pub(crate) problems: Vec<String>,
}

/// What `--stats` says and the corpus looks at.
pub(crate) struct Stats {
    /// Pages that left memory, compressed or to a file.
    pub(crate) paged_out_pages: u64,
    /// Most of the budget in use at once.
    pub(crate) used_bytes: u64,
    /// How userfaultfd was opened.
    pub(crate) tier: String,
}

/// Runs jobs under `.corpus/run`.
pub(crate) struct Runner {
    places: Places,
    runs: PathBuf,
    farpage: Option<PathBuf>,
    full: bool,
}

impl Runner {
    pub(crate) fn new(
        places: Places,
        world: &World,
        farpage: Option<PathBuf>,
        full: bool,
    ) -> Result<Self> {
        Ok(Self {
            places,
            runs: world.scratch("run")?,
            farpage,
            full,
        })
    }

    /// For runs of the quick corpus's size, of what is built for users.
    pub(crate) fn of(world: &World, jobs: &[&Job]) -> Result<Self> {
        Self::new(
            Places::make(world, jobs)?,
            world,
            Some(world.farpage()?),
            false,
        )
    }

    fn mib(&self, job: &Job) -> u32 {
        job.mib[usize::from(self.full)]
    }

    pub(crate) fn prepare(&self, job: &Job) -> Result<()> {
        self.places.input(job, self.mib(job))
    }

    pub(crate) fn clean(&self, job: &Job) -> Result<()> {
        Ok(fs::remove_dir_all(self.runs.join(job.name))?)
    }

    /// Runs without farpage into the directory `name`; gives peak memory and seconds.
    pub(crate) fn bare(&self, job: &Job, name: &str, watch: bool) -> Result<(u64, f64)> {
        let dir = self.fresh(job, name, User::Current)?;
        let words = self.places.command(job, self.mib(job));
        let outcome = self.execute(words_of(&words), &dir, self.limit(), watch)?;
        if !outcome.status.success() {
            bail!("bare: {}\n{}", outcome.ending(), tail(&dir.join("stderr")));
        }
        Ok((outcome.peak_anon_bytes, outcome.wall.as_secs_f64()))
    }

    /// Runs under farpage as `user` and compares with the directory `bare`.
    pub(crate) fn paged(&self, job: &Job, user: User, ram: u64, watch: bool) -> Result<Paged> {
        let name = format!("farpage-{}", user.name());
        let dir = self.fresh(job, &name, user)?;
        let (spill, stats) = (dir.join("spill"), dir.join("stats.json"));
        let mut options = vec!["--ram".into(), format!("{}M", ram >> 20)];
        options.extend(["--stats".into(), stats.display().to_string()]);
        options.extend(job.shm.then(|| "--shm".into()));
        let words = self.under_farpage(job, user, &dir, options)?;
        let outcome = self.execute(words_of(&words), &dir, self.limit(), watch)?;
        let mut problems = Vec::new();
        if !outcome.status.success() {
            problems.push(format!(
                "{}\n{}",
                outcome.ending(),
                tail(&dir.join("stderr"))
            ));
        }
        problems.extend(self.compare(job, "bare", &name)?);
        if fs::read_dir(&spill)?.next().is_some() {
            problems.push(format!("something was left in {}", spill.display()));
        }
        let wall_s = outcome.wall.as_secs_f64();
        let stats = Stats::read(&stats);
        if let Some(s) = stats
            .as_ref()
            .filter(|s| s.used_bytes > ram + slack(job.name, ram))
        {
            problems.push(format!("{} bytes used of a budget of {ram}", s.used_bytes));
        }
        let peak_anon_bytes = outcome.peak_anon_bytes;
        Ok(Paged {
            user,
            wall_s,
            stats,
            peak_anon_bytes,
            problems,
        })
    }

    /// Standard output and files of two runs.
    pub(crate) fn compare(&self, job: &Job, left: &str, right: &str) -> Result<Vec<String>> {
        let dir = |name: &str| self.runs.join(job.name).join(name).join("out");
        compare::differences(&dir(left), &dir(right))
    }

    /// `DIR/out` is the working directory and holds `stdout`; beside it stand `stderr`, the home
    /// and the spill directory, which are not compared.
    fn fresh(&self, job: &Job, name: &str, user: User) -> Result<PathBuf> {
        let dir = self.runs.join(job.name).join(name);
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        for sub in ["", "out", "home", "tmp", "spill"] {
            let path = dir.join(sub);
            fs::create_dir_all(&path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
            if user == User::Nobody {
                chown(&path, Some(NOBODY), Some(NOBODY))?;
            }
        }
        Ok(dir)
    }

    /// Runs in `cgroup`, under farpage as some user, or as it is.
    pub(crate) fn within(
        &self,
        job: &Job,
        name: &str,
        paged: Option<User>,
        cgroup: &Cgroup,
        limit: Duration,
    ) -> Result<Outcome> {
        let user = paged.unwrap_or(User::Current);
        let dir = self.fresh(job, name, user)?;
        let words = match paged {
            Some(user) => self.under_farpage(job, user, &dir, vec!["--quiet".into()])?,
            None => self.places.command(job, self.mib(job)),
        };
        let mut command = cgroup.command(Path::new(&words[0]));
        command.args(&words[1..]);
        self.execute(command, &dir, limit, false)
    }

    /// The words of a job under `farpage run`, which pages to a folder in `dir`.
    fn under_farpage(
        &self,
        job: &Job,
        user: User,
        dir: &Path,
        options: Vec<String>,
    ) -> Result<Vec<String>> {
        let farpage = self.farpage.as_ref().context("no farpage")?;
        let spill = dir.join("spill").display().to_string();
        let mut words = user.becomes();
        words.extend([farpage.display().to_string(), "run".into()]);
        words.extend(["--spill".into(), spill]);
        words.extend(options);
        words.push("--".into());
        words.extend(self.places.command(job, self.mib(job)));
        Ok(words)
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(LIMIT_S[usize::from(self.full)])
    }

    fn execute(
        &self,
        mut command: Command,
        dir: &Path,
        limit: Duration,
        watch: bool,
    ) -> Result<Outcome> {
        command.current_dir(dir.join("out")).stdin(Stdio::null());
        command.stdout(File::create(dir.join("out/stdout"))?);
        command.stderr(File::create(dir.join("stderr"))?);
        command
            .env_clear()
            .env("PATH", self.places.path())
            .env("LC_ALL", "C");
        command
            .env("HOME", dir.join("home"))
            .env("TMPDIR", dir.join("tmp"));
        for one_thread in ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"] {
            command.env(one_thread, "1");
        }
        command
            .env("PYTHONHASHSEED", "0")
            .env("PYTHONDONTWRITEBYTECODE", "1");
        proc::run(&mut command, limit, watch)
    }
}

fn words_of(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

/// The last lines of a file, indented.
fn tail(path: &Path) -> String {
    let text = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(12)..];
    last.iter()
        .map(|l| format!("  | {l}"))
        .collect::<Vec<_>>()
        .join("\n")
}

impl Stats {
    fn read(path: &Path) -> Option<Self> {
        let value: Value = serde_json::from_str(&fs::read_to_string(path).ok()?).ok()?;
        let counter = |name: &str| value["counters"][name].as_u64();
        Some(Self {
            paged_out_pages: counter("page_outs_compressed")? + counter("page_outs_spilled")?,
            used_bytes: value["peaks"]["used_bytes"].as_u64()?,
            tier: value["tier"].as_str()?.to_owned(),
        })
    }
}

/// What a run may use above its budget, bytes. Pages that a fork shares are charged to the child
/// when they are found not to be shared any more, which is after they were copied: 28% above it was
/// seen on a busy machine.
fn slack(job: &str, ram: u64) -> u64 {
    let forks = ["fork", "cow", "closeall", "bigio", "torch-loader", "redis"]
        .iter()
        .any(|word| job.contains(word));
    if forks { ram / 3 } else { ram / 64 }
}
