//! What is tried on a fresh machine, and which commands of README.md it is made of.

use anyhow::{Result, bail};

use crate::fresh::readme::{self, Command};

/// A part of README.md whose commands are run together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Group {
    Install,
    Demo,
    Wheel,
    C,
    Tests,
    /// Not from README.md: what `cargo xtask release` has made.
    Artefacts,
}

impl Group {
    pub(crate) const ALL: [Self; 6] = [
        Self::Install,
        Self::Demo,
        Self::Wheel,
        Self::C,
        Self::Tests,
        Self::Artefacts,
    ];

    /// What one build is enough for.
    pub(crate) const BUILT: [Self; 4] = [Self::Install, Self::Demo, Self::Wheel, Self::C];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Install => "install",
            Self::Demo => "demo",
            Self::Wheel => "wheel",
            Self::C => "c",
            Self::Tests => "tests",
            Self::Artefacts => "artefacts",
        }
    }

    /// The group called `name`.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn named(name: &str) -> Result<Self> {
        match Self::ALL.into_iter().find(|group| group.name() == name) {
            Some(group) => Ok(group),
            None => bail!(
                "unknown group '{name}'; there are {}",
                Self::ALL.map(Self::name).join(", ")
            ),
        }
    }

    /// The heading in README.md, and what the commands have in them.
    fn place(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Install => Some(("Installing", "")),
            Self::Wheel => Some(("The Python package", "")),
            Self::C => Some(("The C library", "")),
            Self::Demo => Some(("Two commands on a fresh machine", "cargo xtask demo")),
            Self::Tests => Some(("Two commands on a fresh machine", "cargo xtask test")),
            Self::Artefacts => None,
        }
    }

    /// Its commands.
    ///
    /// # Errors
    /// When README.md has none.
    pub(crate) fn commands(self, readme: &str) -> Result<Vec<Command>> {
        let Some((heading, part)) = self.place() else {
            return Ok(Vec::new());
        };
        let mut commands = readme::commands(readme, heading)?;
        commands.retain(|command| command.text.contains(part));
        if commands.is_empty() {
            bail!("README.md has no '{part}' below the heading '{heading}'");
        }
        Ok(commands)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn tree(file: &str) -> String {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        fs::read_to_string(root.join(file)).unwrap()
    }

    fn texts(group: Group) -> Vec<String> {
        let commands = group.commands(&tree("README.md")).unwrap();
        commands.into_iter().map(|command| command.text).collect()
    }

    #[test]
    fn readme_has_every_group() {
        let has = |group, part: &str| texts(group).iter().any(|text| text.contains(part));
        assert!(has(Group::Install, "cargo install --locked"));
        assert!(has(Group::Install, "farpage doctor"));
        assert!(has(Group::Install, "farpage run --ram"));
        assert!(has(Group::Wheel, "cargo xtask wheel"));
        assert!(has(Group::Wheel, "pip install"));
        assert!(has(Group::Wheel, "import farpage"));
        assert!(has(Group::C, "cargo xtask install-c"));
        assert!(has(Group::C, "examples/c/sum.c"));
    }

    #[test]
    fn each_of_the_two_commands_belongs_to_one_group() {
        let both = readme::commands(&tree("README.md"), "Two commands on a fresh machine");
        let claimed = texts(Group::Demo).len() + texts(Group::Tests).len();
        assert_eq!(both.unwrap().len(), claimed);
        assert_eq!(claimed, 2);
    }

    #[test]
    fn readme_names_the_rust_that_cargo_toml_wants() {
        let manifest = tree("Cargo.toml");
        let version = manifest
            .lines()
            .find_map(|line| line.strip_prefix("rust-version = \""))
            .and_then(|rest| rest.split('"').next())
            .unwrap();
        assert!(tree("README.md").contains(&format!("Rust {version} or newer")));
    }

    #[test]
    fn readme_names_the_packages_of_the_fresh_machine() {
        let packages = crate::fresh::root::BUILD_PACKAGES.join(" ");
        assert!(tree("README.md").contains(&packages), "{packages}");
    }

    #[test]
    fn a_group_has_its_name() {
        assert!(
            Group::ALL
                .iter()
                .all(|g| Group::named(g.name()).unwrap() == *g)
        );
        let error = Group::named("all").unwrap_err().to_string();
        assert!(error.contains("install, demo, wheel, c, tests, artefacts"));
    }
}
