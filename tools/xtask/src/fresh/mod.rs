//! `cargo xtask fresh`: does what README.md says on a machine that has nothing but what it names.
//!
//! The machine is a minimal Debian in a folder, with processes, mounts, cgroups and a host name of
//! its own. Rust's toolchain is bound in, for the tests Go and Node, too. The commands are those of
//! README.md in the last commit. `RUSTUP_TOOLCHAIN=1.88.0 cargo xtask fresh` uses another Rust.

mod artefacts;
mod groups;
mod readme;
mod root;
mod settings;
mod steps;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command as Process;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use crate::args::Args;
use crate::fresh::artefacts::Artefact;
use crate::fresh::groups::Group;
use crate::fresh::readme::Command;
use crate::fresh::root::{Root, User};
use crate::fresh::steps::Step;
use crate::table::Table;
use crate::world::{World, which};
use crate::{proc, release};

/// Longest for one command. The whole build takes some ten minutes on two idle processors.
const COMMAND_MAX: Duration = Duration::from_secs(3600);

/// The same for the tests.
const TESTS_MAX: Duration = Duration::from_secs(7200);

/// Steps whose results `cargo xtask test --only fresh` keeps one by one. A user's name alone stands
/// for all that one build is enough for.
const STEPS: [&str; 5] = [
    "root",
    "ordinary",
    "artefacts",
    "root tests",
    "ordinary tests",
];

struct Options {
    users: Vec<User>,
    groups: Vec<Group>,
    /// They were asked for by name, so none may be left out.
    named: bool,
    keep: bool,
}

/// Runs the groups that are asked for, as the users that are, and prints how long each step took.
pub(crate) fn fresh(world: &World, mut args: Args) -> Result<()> {
    if args.flag("--list") {
        args.finish()?;
        STEPS.iter().for_each(|step| println!("{step}"));
        return Ok(());
    }
    let options = options(args)?;
    can_make_machines(world)?;
    let mut git = Process::new("git");
    git.args(["show", "HEAD:README.md"])
        .current_dir(&world.root);
    let readme = proc::output(&mut git, "git show HEAD:README.md")?;
    let mut plan = Vec::new();
    for group in &options.groups {
        plan.push((*group, group.commands(&readme)?));
    }
    let files = match options.groups.contains(&Group::Artefacts) {
        true => files_of_release(world, options.named)?,
        false => Vec::new(),
    };
    let mut report = Report::default();
    for user in &options.users {
        from_source(world, &options, *user, &plan, &mut report)?;
    }
    for (artefact, file) in &files {
        released(world, &options, &readme, artefact, file, &mut report)?;
    }
    report.print();
    ensure!(report.failed == 0, "steps that failed: {}", report.failed);
    Ok(())
}

fn options(mut args: Args) -> Result<Options> {
    if let Some(first) = args.value("--step")? {
        let step = std::iter::once(first).chain(std::iter::from_fn(|| args.word()));
        let step = step.collect::<Vec<_>>().join(" ");
        args.finish()?;
        return one_step(&step);
    }
    let users = match args.value("--user")?.as_deref() {
        Some("both") | None => vec![User::Root, User::Ordinary],
        Some(name) => vec![User::named(name)?],
    };
    let only = args.values("--only")?;
    let keep = args.flag("--keep");
    args.finish()?;
    let mut groups = Group::ALL.to_vec();
    if !only.is_empty() {
        let chosen: Result<Vec<Group>> = only.iter().map(|name| Group::named(name)).collect();
        let chosen = chosen?;
        groups.retain(|group| chosen.contains(group));
    }
    Ok(Options {
        users,
        groups,
        named: !only.is_empty(),
        keep,
    })
}

/// What a line of [`STEPS`] means.
fn one_step(step: &str) -> Result<Options> {
    ensure!(
        STEPS.contains(&step),
        "unknown step '{step}'; there are {}",
        STEPS.join(", ")
    );
    let (users, groups) = match step.split_once(' ') {
        None if step == "artefacts" => (Vec::new(), vec![Group::Artefacts]),
        None => (vec![User::named(step)?], Group::BUILT.to_vec()),
        Some((user, group)) => (vec![User::named(user)?], vec![Group::named(group)?]),
    };
    Ok(Options {
        users,
        groups,
        named: true,
        keep: false,
    })
}

fn can_make_machines(world: &World) -> Result<()> {
    if !world.is_root() {
        bail!("`cargo xtask fresh` makes mounts and namespaces, so it takes root");
    }
    let tools = ["unshare", "pivot_root", "chroot", "awk", "tar", "git"];
    let missing: Vec<_> = tools.iter().filter(|tool| which(tool).is_none()).collect();
    ensure!(missing.is_empty(), "not on the PATH: {missing:?}");
    Ok(())
}

/// All that is built: each user has a machine of its own, and builds from nothing.
fn from_source(
    world: &World,
    options: &Options,
    user: User,
    plan: &[(Group, Vec<Command>)],
    report: &mut Report,
) -> Result<()> {
    let tests = options.groups.contains(&Group::Tests);
    if plan.iter().all(|(group, _)| *group == Group::Artefacts) {
        return Ok(());
    }
    let mut binds = vec![root::rust()?];
    if tests {
        binds.extend(root::go_and_node()?);
    }
    println!(
        "fresh: a machine for {}, with {}",
        user.name(),
        root::rust_version()?
    );
    let machine = Root::make(root::BUILD_PACKAGES, binds, options.keep)?;
    machine.furnish(user)?;
    root::bundle(&world.root, &machine)?;
    if tests {
        root::link_npm(&machine)?;
    }
    let mut shell = Shell::new(world, &machine, report);
    let clone = "git clone --quiet /srv/farpage.bundle farpage";
    if !shell.run("source", user, "", &[Command::spoken(clone)], COMMAND_MAX)? {
        return Ok(());
    }
    for (group, commands) in plan {
        let limit = match group {
            Group::Artefacts => continue,
            Group::Tests => TESTS_MAX,
            Group::Install | Group::Demo | Group::Wheel | Group::C => COMMAND_MAX,
        };
        if *group == Group::Tests && user == User::Ordinary {
            packages(&mut shell)?;
        }
        shell.run(group.name(), user, "cd farpage || exit", commands, limit)?;
    }
    kept(options, &machine);
    Ok(())
}

/// An ordinary user cannot install Debian's packages: root does so, with those that set-up names.
fn packages(shell: &mut Shell) -> Result<()> {
    let setup = Command::spoken(
        "cargo xtask setup 2>&1 | tee ~/setup.txt; grep -q 'apt-get install' ~/setup.txt",
    );
    let ran = shell.run(
        "packages",
        User::Ordinary,
        "cd farpage || exit",
        &[setup],
        COMMAND_MAX,
    )?;
    ensure!(
        ran,
        "`cargo xtask setup` names no packages for root to install"
    );
    let install = "list=$(sed -n 's/.*apt-get install //p' /home/ordinary/setup.txt | tail -n 1); \
                   apt-get -qq update && apt-get -qq install -y --no-install-recommends $list";
    shell.run(
        "packages",
        User::Root,
        "",
        &[Command::spoken(install)],
        COMMAND_MAX,
    )?;
    Ok(())
}

/// What `cargo xtask release` has made. Unless it is asked for by name, it need not be there.
fn files_of_release(world: &World, named: bool) -> Result<Vec<(&'static Artefact, PathBuf)>> {
    if !named && !release::folder(world).exists() {
        println!("fresh: no release is tried, for none was made: cargo xtask release");
        return Ok(Vec::new());
    }
    let all = artefacts::ARTEFACTS.iter();
    all.map(|artefact| Ok((artefact, artefact.file(world)?)))
        .collect()
}

/// Installs and tries one file of a release on a machine of its own.
fn released(
    world: &World,
    options: &Options,
    readme: &str,
    artefact: &Artefact,
    file: &Path,
    report: &mut Report,
) -> Result<()> {
    println!("fresh: a machine for {}", file.display());
    let commands = artefact.commands(readme)?;
    let binds = vec![artefacts::bind(file)?];
    let machine = Root::make(artefact.packages, binds, options.keep)?;
    let mut shell = Shell::new(world, &machine, report);
    shell.run(artefact.kind, User::Root, "", &commands, COMMAND_MAX)?;
    kept(options, &machine);
    Ok(())
}

/// Says where a machine is that is not removed.
fn kept(options: &Options, machine: &Root) {
    if options.keep {
        println!("fresh: kept in {}", machine.folder().display());
    }
}

/// Runs commands on one machine and takes note of how they end.
struct Shell<'a> {
    world: &'a World,
    machine: &'a Root,
    report: &'a mut Report,
    runs: u32,
}

impl<'a> Shell<'a> {
    fn new(world: &'a World, machine: &'a Root, report: &'a mut Report) -> Self {
        Self {
            world,
            machine,
            report,
            runs: 0,
        }
    }

    /// Whether all `commands` ended well.
    fn run(
        &mut self,
        group: &str,
        user: User,
        before: &str,
        commands: &[Command],
        limit: Duration,
    ) -> Result<bool> {
        self.runs += 1;
        let folder = self.machine.folder().file_name().unwrap_or_default();
        let cgroup = format!("{}-{}", folder.to_string_lossy(), self.runs);
        let script = steps::script(before, commands);
        let mut process = self.machine.command(user, &cgroup, &script);
        let log = self
            .world
            .scratch("fresh")?
            .join(format!("{group}-{}.log", user.name()));
        let mut file = File::create(&log)?;
        let say = |command: &Command| {
            println!("fresh: {} {group}: {}", user.name(), shown(command));
        };
        let done = steps::run(&mut process, &cgroup, commands, limit, &mut file, say)?;
        let well = done.iter().all(|step| step.failure.is_none());
        for step in done {
            self.report.take(group, user, step, &log);
        }
        Ok(well)
    }
}

/// A command in one line, with its place in README.md.
fn shown(command: &Command) -> String {
    let first = command.text.lines().next().unwrap_or("");
    let short: String = first.chars().take(60).collect();
    let more = if short.len() < command.text.len() {
        " ..."
    } else {
        ""
    };
    match command.line {
        0 => format!("{short}{more}"),
        line => format!("README.md:{line}: {short}{more}"),
    }
}

/// The closing table.
#[derive(Default)]
struct Report {
    rows: Vec<[String; 4]>,
    failed: usize,
}

impl Report {
    fn take(&mut self, group: &str, user: User, step: Step, log: &Path) {
        let seconds = format!("{:.1} s", step.wall.as_secs_f64());
        let result = match &step.failure {
            None => "ok".to_owned(),
            Some((why, tail)) => {
                self.failed += 1;
                eprintln!("fresh: this failed as {}: {why}", user.name());
                eprintln!("    {}", shown(&step.command));
                eprintln!(
                    "The end of what it printed; all of it is in {}:",
                    log.display()
                );
                tail.iter().for_each(|line| eprintln!("    {line}"));
                format!("FAILED: {why}")
            }
        };
        let step = format!("{group}: {}", shown(&step.command));
        self.rows
            .push([step, user.name().to_owned(), seconds, result]);
    }

    fn print(&self) {
        println!();
        let mut table = Table::new(["step", "user", "time", "result"]);
        self.rows.iter().for_each(|row| table.row(row.clone()));
        table.print();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Result<Options> {
        options(Args::new(line.split_whitespace().map(String::from)))
    }

    #[test]
    fn without_options_all_is_run_as_both_users() {
        let all = asked("").unwrap();
        assert_eq!(all.users, [User::Root, User::Ordinary]);
        assert_eq!(all.groups, Group::ALL);
        let some = asked("--only c --user root --only install").unwrap();
        assert_eq!(some.users, [User::Root]);
        assert_eq!(some.groups, [Group::Install, Group::C]);
        assert!(asked("--user nobody").is_err() && asked("--only all").is_err());
    }

    #[test]
    fn the_steps_together_are_all_groups_as_both_users() {
        let steps: Vec<Options> = STEPS.iter().map(|step| one_step(step).unwrap()).collect();
        for user in [User::Root, User::Ordinary] {
            for group in Group::ALL {
                let runs = steps.iter().filter(|step| {
                    let alone = group == Group::Artefacts && step.users.is_empty();
                    step.groups.contains(&group) && (alone || step.users.contains(&user))
                });
                assert_eq!(runs.count(), 1, "{user:?} {group:?}");
            }
        }
        assert_eq!(asked("--step root tests").unwrap().groups, [Group::Tests]);
        assert!(asked("--step root artefacts").is_err());
    }
}
