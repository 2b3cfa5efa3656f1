//! A cell: where one test runs, and what is left in it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use farpage_testkit::Guard;

use super::left::PREFIX;
use super::processes::{self, Mark};
use super::{Case, Ran};

/// All processes of a run and those of one cell have these in their environment.
const RUN: &str = "FARPAGE_TEST_RUN";
const CELL: &str = "FARPAGE_TEST_CELL";

/// How long the processes of a test may take to end after the test has.
const GRACE: Duration = Duration::from_secs(30);

/// A shell that runs a test and stays until what the test left behind has been looked at. It prints the exit
/// status, waits for a line, then prints what is left in the folders that are the cell's own.
const SHELL: &str = r#"
dir=$1 own=$2 shared=$3; shift 3
if [ "$own" = own ]; then
    mount -t tmpfs -o mode=1777,size=50% farpage-test /dev/shm || exit 99
    mkdir -p /run/netns && mount -t tmpfs farpage-test /run/netns || exit 99
    for name in $shared; do
        [ ! -d "/var/tmp/$name" ] ||
            { mkdir "$dir/var/$name" && mount --bind "/var/tmp/$name" "$dir/var/$name"; } || exit 99
    done
    mount --rbind "$dir/var" /var/tmp || exit 99
fi
( exec "$@" ) >"$dir/output" 2>&1 </dev/null
echo $?
read -r _
[ "$own" = own ] || exit 0
left() {
    for path in "$1"/* "$1"/.[!.]* "$1"/..?*; do
        [ -e "$path" ] || [ -L "$path" ] || continue
        case " $3 " in *" ${path##*/} "*) ;; *) echo "$2 $path" ;; esac
    done
}
left /dev/shm "the file"
left /var/tmp "the file" "$shared"
left /run/netns "the network namespace"
for kind in shm sem msg; do
    [ -r /proc/sysvipc/$kind ] || continue
    while read -r key id _; do
        [ "$key" = key ] || echo "the System V object $id ($kind, key $key)"
    done </proc/sysvipc/$kind
done
"#;

/// Makes cells. What is left of them goes away when it is dropped, and also when this process is killed.
pub(crate) struct Cells {
    name: String,
    folder: PathBuf,
    run: Mark,
    /// Whether cells have namespaces of their own.
    is_own: bool,
    /// Names in `/var/tmp` that cells have in common, with a space between two.
    shared: String,
    grace: Duration,
    next: AtomicU64,
    _guard: Guard,
}

/// Kills what has the variable `$1`, or other mounts than this shell and `$2` in the path of one, but for what has the
/// variable `$4`; then removes the folder `$3`.
const CLEAN: &str = r#"
own=$(readlink /proc/self/ns/mnt)
has() {
    tr '\0' '\n' 2>/dev/null <$p/environ | grep -qxF "$1"
}
is_mounted() {
    of=$(readlink $p/ns/mnt) && [ "$of" != "$own" ] && grep -qsF "$1" $p/mountinfo
}
for i in 1 2 3; do
    for p in /proc/[0-9]*; do
        { has "$1" || { is_mounted "$2" && ! has "$4"; }; } 2>/dev/null && kill -KILL ${p#/proc/} 2>/dev/null
    done
    rm -rf "$3" 2>/dev/null && exit
    sleep 1
done"#;

impl Cells {
    /// What is in `/var/tmp` of these folders, or around them, is there in cells, too.
    pub(crate) fn new(shared: &[&Path]) -> Result<Self> {
        static CELLS: AtomicU64 = AtomicU64::new(0);
        let number = CELLS.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(format!("{PREFIX}{name}"));
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let mut probe = Command::new("unshare");
        probe
            .args(["--mount", "--ipc", "true"])
            .stderr(Stdio::null());
        let run = Mark {
            variable: format!("{RUN}={name}"),
            mounted: format!("/{PREFIX}{name}/"),
        };
        let removed = folder.display().to_string();
        let clean = [&run.variable, &run.mounted, &removed, processes::GUARD];
        Ok(Self {
            _guard: Guard::new(CLEAN, &clean)?,
            is_own: probe.status().is_ok_and(|status| status.success()),
            shared: names_in_var_tmp(shared),
            grace: GRACE,
            next: AtomicU64::new(0),
            name,
            folder,
            run,
        })
    }

    /// Runs a case to its end, or to its limit.
    pub(crate) fn run(&self, case: &Case) -> Ran {
        let began = Instant::now();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let folder = self.folder.join(number.to_string());
        let mark = Mark {
            variable: format!("{CELL}={}-{number}", self.name),
            mounted: format!("/{PREFIX}{}/{number}/var ", self.name),
        };
        let failure = self
            .try_run(case, &folder, &mark)
            .unwrap_or_else(|why| Some(format!("it could not be run: {why:#}")));
        let seconds = began.elapsed().as_secs_f64();
        let printed = fs::read(folder.join("output")).unwrap_or_default();
        let printed = String::from_utf8_lossy(&printed);
        let skipped = printed.lines().filter_map(|l| l.strip_prefix("skipped: "));
        let ran = Ran {
            name: case.name.clone(),
            seconds,
            skipped: skipped.map(String::from).collect(),
            failure: failure.map(|why| format!("{why}\n{}", last_lines(&printed, 200))),
        };
        let _ = fs::remove_dir_all(&folder);
        ran
    }

    /// `Some` says why it failed.
    fn try_run(&self, case: &Case, folder: &Path, mark: &Mark) -> Result<Option<String>> {
        let mut shell = self.start(case, folder, mark)?;
        let mut input = shell.stdin.take().context("no input")?;
        let said = lines_of(&mut shell)?;
        let ended = said.recv_timeout(case.limit);
        let Ok(status) = ended else {
            let stacks = processes::tell(&processes::marked(mark));
            let gone = processes::kill(mark);
            let _ = shell.wait();
            let seconds = case.limit.as_secs();
            let not_gone = if gone {
                ""
            } else {
                "; some of its processes cannot be killed"
            };
            return Ok(Some(format!(
                "it had not ended after {seconds} s{not_gone}. Its processes then:\n{stacks}"
            )));
        };
        let processes = processes::wait_for_ends(mark, shell.id(), self.grace);
        let name = |pid: &u32| format!("the process {pid} ({})", processes::command_line(*pid));
        let mut left: Vec<String> = processes.iter().map(name).collect();
        let _ = input.write_all(b"\n");
        left.extend(said);
        processes::kill(mark);
        let _ = shell.wait();
        Ok(match (status.as_str(), left.as_slice()) {
            ("0", []) => None,
            ("0", left) => Some(format!("it passed, and left behind {}", left.join(", "))),
            ("99", _) => Some("its own folders could not be mounted".into()),
            (status, _) => Some(format!("it ended with exit status {status}")),
        })
    }

    fn start(&self, case: &Case, folder: &Path, mark: &Mark) -> Result<Child> {
        for name in ["tmp", "var", "cache"] {
            let made = folder.join(name);
            fs::create_dir_all(&made)?;
            fs::set_permissions(&made, fs::Permissions::from_mode(0o1777))?;
        }
        File::create(folder.join("output"))?;
        let mut command = Command::new(if self.is_own { "unshare" } else { "/bin/sh" });
        if self.is_own {
            command.args(["--mount", "--ipc", "--propagation", "private", "/bin/sh"]);
        }
        command.args(["-c", SHELL, "sh"]).arg(folder);
        command
            .arg(if self.is_own { "own" } else { "shared" })
            .arg(&self.shared);
        command.arg(&case.program).args(&case.args);
        command
            .current_dir(&case.folder)
            .envs(case.env.iter().cloned());
        command.env("TMPDIR", folder.join("tmp"));
        command.env("XDG_CACHE_HOME", folder.join("cache"));
        for mark in [mark, &self.run] {
            let mark = mark.variable.split_once('=');
            let (name, value) = mark.context("a mark has a value")?;
            command.env(name, value);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start a shell for {}", case.program.display()))
    }
}

fn names_in_var_tmp(folders: &[&Path]) -> String {
    let below = folders
        .iter()
        .filter_map(|folder| folder.strip_prefix("/var/tmp").ok());
    let names = below.filter_map(|rest| rest.components().next());
    let mut names: Vec<_> = names
        .map(|name| name.as_os_str().to_string_lossy())
        .collect();
    names.sort();
    names.dedup();
    names.join(" ")
}

/// The lines that a shell prints, read by a thread.
fn lines_of(shell: &mut Child) -> Result<Receiver<String>> {
    let printed = BufReader::new(shell.stdout.take().context("no output")?);
    let (line, lines) = mpsc::channel();
    thread::spawn(move || {
        for read in printed.take(1 << 20).lines().map_while(Result::ok) {
            if line.send(read).is_err() {
                break;
            }
        }
    });
    Ok(lines)
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(script: &str) -> Case {
        Case::of_shell("a case", script)
    }

    fn run(script: &str) -> Ran {
        Cells::new(&[]).unwrap().run(&case(script))
    }

    #[test]
    fn what_passes_passes_and_its_skips_are_heard() {
        let ran = run("echo skipped: no moon; echo more; test -d \"$TMPDIR\"");
        assert_eq!(ran.failure, None);
        assert_eq!(ran.skipped, ["no moon"]);
    }

    #[test]
    fn a_process_that_overwrites_its_environment_is_found_as_well() {
        let mut cells = Cells::new(&[]).unwrap();
        if !cells.is_own {
            return println!("skipped: this user cannot have namespaces of its own");
        }
        cells.grace = Duration::from_millis(100);
        let ran = cells.run(&case("setsid env -i sleep 1000 & :"));
        let failure = ran.failure.unwrap();
        assert!(
            failure.contains("left behind the process") && failure.contains("sleep 1000"),
            "{failure}"
        );
        assert!(processes::marked(&cells.run).is_empty());
    }

    #[test]
    fn who_cleans_up_after_a_test_outlives_it() {
        let cells = Cells::new(&[]).unwrap();
        let id = cells.folder.join("id");
        let guard = "env -i FARPAGE_TEST_GUARD=1 setsid sh -c 'echo $$ >$0; exec sleep 1000'";
        let ran = cells.run(&case(&format!(
            "{guard} {0} & until [ -s {0} ]; do sleep 0.01; done",
            id.display()
        )));
        assert_eq!(ran.failure, None);
        let id: i32 = fs::read_to_string(&id).unwrap().trim().parse().unwrap();
        let guard = rustix::process::Pid::from_raw(id).unwrap();
        let killed = rustix::process::kill_process(guard, rustix::process::Signal::KILL);
        assert_eq!(killed, Ok(()));
    }

    #[test]
    fn a_run_that_is_killed_leaves_nobody() {
        let cells = Cells::new(&[]).unwrap();
        if !cells.is_own {
            return println!("skipped: this user cannot have namespaces of its own");
        }
        let mut shell = Command::new("unshare");
        shell.args(["--mount", "--propagation", "private", "/bin/sh", "-c"]);
        shell.arg("mkdir $0/1 && mount --bind $0/1 /var/tmp && echo && exec env -i sleep 1000");
        shell.arg(&cells.folder).stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let is_mounted = lines_of(&mut shell).unwrap().recv().is_ok();
        let folder = cells.folder.clone();
        drop(cells);
        assert!(is_mounted && !shell.wait().unwrap().success() && !folder.exists());
    }

    #[test]
    fn what_fails_is_told_with_what_it_printed() {
        let failure = run("echo because >&2; exit 3").failure.unwrap();
        assert!(
            failure.contains("exit status 3") && failure.contains("because"),
            "{failure}"
        );
    }

    #[test]
    fn what_hangs_is_killed_with_its_descendants_and_their_stacks_are_told() {
        let cells = Cells::new(&[]).unwrap();
        let script = "trap '' TERM INT; setsid sleep 1000 & wait";
        let short = Case {
            limit: Duration::from_secs(20),
            ..case(script)
        };
        let failure = cells.run(&short).failure.unwrap();
        assert!(failure.contains("had not ended"), "{failure}");
        assert!(
            failure.contains("sleep 1000") && failure.contains("system call"),
            "{failure}"
        );
        assert!(processes::marked(&cells.run).is_empty());
    }

    #[test]
    fn a_repository_in_var_tmp_is_there_in_cells_too() {
        let folders = [
            "/var/tmp/clone/crates",
            "/home/clone",
            "/var/tmp/clone",
            "/var/tmp/kept",
        ];
        assert_eq!(names_in_var_tmp(&folders.map(Path::new)), "clone kept");
        let own = Path::new("/var/tmp").join(format!("farpage-cell-{}", std::process::id()));
        fs::create_dir(&own).unwrap();
        let cells = Cells::new(&[&own]).unwrap();
        let ran = cells.run(&case(&format!("test -d {}", own.display())));
        fs::remove_dir(&own).unwrap();
        assert_eq!(ran.failure, None);
    }

    #[test]
    fn files_that_are_left_behind_are_a_failure() {
        let cells = Cells::new(&[]).unwrap();
        if !cells.is_own {
            return println!("skipped: this user cannot have namespaces of its own");
        }
        let ran = cells.run(&case("touch /dev/shm/one /var/tmp/two"));
        let failure = ran.failure.unwrap();
        assert!(
            failure.contains("/dev/shm/one, the file /var/tmp/two"),
            "{failure}"
        );
        assert!(!Path::new("/dev/shm/one").exists() && !Path::new("/var/tmp/two").exists());
    }
}
