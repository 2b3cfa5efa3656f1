//! Which tests belong to which group: those that take long or need much are not in the short run.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::harness::Case;
use crate::proc;
use crate::setup::{self, Part};
use crate::world::{World, own_program};

/// The parts of `cargo xtask test --all` beside the short run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// Tests that take long each, `tools/xtask/long.txt`.
    Long,
    /// Parsers given anything.
    Fuzz,
    /// Real programs, bare and under `farpage run`.
    Corpus,
    /// Every system call, with its pointers to pages in every state.
    Calls,
    /// Hosts and processes that are killed again and again, stopped and cut off.
    Chaos,
    /// A machine of the other byte order, emulated.
    S390x,
    /// What needs programs of others that are not quickly installed.
    Peers,
    /// The README on a new machine.
    Fresh,
    /// The command behind each row of `docs/ROWS.md`.
    Rows,
}

/// Tests of the workspace that are in a group: what their names begin with.
const MOVED: &[(&str, Group)] = &[
    ("cli calls::whole::", Group::Calls),
    ("cli chaos::whatever_fails", Group::Chaos),
    ("farpage kv::a_store_killed_at_a_thousand", Group::Chaos),
    ("cli cluster::foreign::", Group::S390x),
    ("cli cluster::release::programs_in_c", Group::S390x),
    ("cli cluster::mpi::", Group::Peers),
    ("cli shm::programs::open_mpi", Group::Peers),
    ("cli shm::memory_files::pytorch", Group::Peers),
    ("capi programs::the_example_of_ucx", Group::Peers),
    ("source remote::s3::", Group::Peers),
    ("source remote::azure::", Group::Peers),
    ("farpage store::", Group::Peers),
    ("python test_stores", Group::Peers),
    ("python test_pytorch", Group::Peers),
];

/// Those of [`Group::Long`], a name a line.
const LONG: &str = include_str!("../../long.txt");

fn long() -> impl Iterator<Item = &'static str> {
    LONG.lines().filter(|line| !line.starts_with('#'))
}

impl Group {
    pub(crate) const ALL: [Self; 9] = [
        Self::Long,
        Self::Fuzz,
        Self::Corpus,
        Self::Calls,
        Self::Chaos,
        Self::S390x,
        Self::Peers,
        Self::Fresh,
        Self::Rows,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Long => "long",
            Self::Fuzz => "fuzz",
            Self::Corpus => "corpus",
            Self::Calls => "calls",
            Self::Chaos => "chaos",
            Self::S390x => "s390x",
            Self::Peers => "peers",
            Self::Fresh => "fresh",
            Self::Rows => "rows",
        }
    }

    pub(crate) fn parse(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|group| group.name() == name);
        found.with_context(|| {
            let all = Self::ALL.map(Self::name).join(", ");
            format!("'{name}' is not a group of tests; the groups are {all}")
        })
    }

    /// What it needs to be installed.
    pub(super) fn needs(self) -> &'static [Part] {
        match self {
            Self::Fuzz => &[Part::Fuzz],
            Self::Corpus => &[Part::Corpus],
            Self::Long | Self::Calls => setup::SHORT,
            Self::Chaos => &[Part::Chaos],
            Self::S390x => &[Part::S390x],
            Self::Peers => &[Part::Peers],
            Self::Fresh => &[Part::Fresh],
            Self::Rows => setup::ALL,
        }
    }

    /// Whether its cases use the whole machine, and run one after the other.
    pub(super) fn is_alone(self) -> bool {
        match self {
            Self::Corpus | Self::Calls | Self::Chaos | Self::Fresh | Self::Rows => true,
            Self::Long | Self::Fuzz | Self::S390x | Self::Peers => false,
        }
    }

    /// Ends one case of the group that hangs.
    fn limit(self) -> Duration {
        let minutes = match self {
            Self::Long | Self::Chaos | Self::S390x | Self::Peers => 20,
            Self::Fuzz => 10,
            Self::Corpus | Self::Calls => 60,
            Self::Fresh | Self::Rows => 120,
        };
        Duration::from_secs(minutes * 60)
    }

    /// Its cases. `tests` are all tests of the workspace.
    pub(crate) fn cases(self, world: &World, tests: &[Case]) -> Result<Vec<Case>> {
        let mut cases = match self {
            Self::Long | Self::Calls | Self::Chaos | Self::S390x | Self::Peers => {
                let own = tests.iter().filter(|case| of(&case.name) == Some(self));
                own.cloned().collect()
            }
            Self::Fuzz => each(
                world,
                self,
                &["fuzz", "--list"],
                &["fuzz", "--seconds", "60"],
            )?,
            Self::Corpus => each(
                world,
                self,
                &["corpus", "--names"],
                &["corpus", "--exactly"],
            )?,
            Self::Fresh => each(world, self, &["fresh", "--list"], &["fresh", "--step"])?,
            Self::Rows => each(world, self, &["rows", "--list"], &["rows"])?,
        };
        cases.iter_mut().for_each(|case| case.limit = self.limit());
        Ok(cases)
    }
}

/// A case for each line that the command `list` of xtask prints: `command` with the line's words.
fn each(world: &World, group: Group, list: &[&str], command: &[&str]) -> Result<Vec<Case>> {
    let program = own_program();
    let lines = proc::output(Command::new(&program).args(list), &list.join(" "))?;
    let case = |line: &str| Case {
        name: format!("{} {line}", group.name()),
        program: program.clone(),
        args: command
            .iter()
            .copied()
            .chain(line.split_whitespace())
            .map(OsString::from)
            .collect(),
        env: Vec::new(),
        folder: world.root.clone(),
        limit: Duration::ZERO,
    };
    Ok(lines.lines().map(case).collect())
}

/// The group that a test of the workspace is in, unless it is in the short run.
pub(crate) fn of(name: &str) -> Option<Group> {
    let found = MOVED.iter().find(|(prefix, _)| name.starts_with(prefix));
    let is_long = || long().any(|one| one == name).then_some(Group::Long);
    found.map(|(_, group)| *group).or_else(is_long)
}

/// Fails when a line of the tables is about no test: the test was renamed, and would be in no group.
pub(crate) fn check(tests: &[Case]) -> Result<()> {
    if let Some(name) = long().find(|name| !tests.iter().any(|case| case.name == *name)) {
        bail!("no test is named '{name}', which is a line of tools/xtask/long.txt");
    }
    let is_used = |prefix: &str| tests.iter().any(|case| case.name.starts_with(prefix));
    if let Some((prefix, _)) = MOVED.iter().find(|(prefix, _)| !is_used(prefix)) {
        bail!(
            "no test's name begins with '{prefix}', which {} names",
            Path::new(file!()).display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_known_by_name() {
        for group in Group::ALL {
            assert_eq!(Group::parse(group.name()).unwrap(), group);
        }
        let refused = Group::parse("fast").unwrap_err().to_string();
        assert!(refused.contains("the groups are long, fuzz"), "{refused}");
    }

    #[test]
    fn a_test_that_no_line_names_is_in_the_short_run() {
        assert_eq!(of("port attacks::a_liar"), None);
        assert_eq!(of("source remote::http::a_range"), None);
        assert_eq!(of("source remote::s3::an_object"), Some(Group::Peers));
        let (long, begin) = (long().next().unwrap(), 5);
        assert_eq!(of(long), Some(Group::Long));
        assert_eq!(of(&long[..long.len() - begin]), None);
    }
}
