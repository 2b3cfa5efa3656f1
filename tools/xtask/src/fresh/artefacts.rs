//! What `cargo xtask release` has made, installed as README.md says where there is nothing to build
//! with.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::fresh::readme::{self, Command};
use crate::fresh::root::{BARE_PACKAGES, BUILD_PACKAGES, Bind};
use crate::release::{self, VERSION};
use crate::world::World;

/// Where README.md says how to install them.
const HEADING: &str = "From a release";

/// One artefact and how it is tried.
pub(crate) struct Artefact {
    pub(crate) kind: &'static str,
    /// What README.md's command for it has in it.
    part: &'static str,
    pub(crate) packages: &'static [&'static str],
    before: &'static [&'static str],
    after: &'static [&'static str],
}

/// A program of Perl, which every Debian has, takes 256 MiB where 64 are allowed.
const RUN: &str = "said=$(farpage run --quiet --ram 64M -- \
                   perl -e 'my $a = \"x\" x (256 << 20); print length $a'); \
                   [ \"$said\" = 268435456 ]";

pub(crate) static ARTEFACTS: [Artefact; 3] = [
    Artefact {
        kind: "wheel",
        part: ".whl",
        packages: BUILD_PACKAGES,
        before: &["python3 -m venv ~/tried && . ~/tried/bin/activate"],
        after: &[
            "python3 -c 'import farpage, numpy; numpy.save(\"x.npy\", numpy.arange(9)); \
             assert farpage.load(\"x.npy\").sum() == 36'",
            "farpage doctor",
            RUN,
        ],
    },
    Artefact {
        kind: "tar",
        part: ".tar.gz",
        packages: BARE_PACKAGES,
        before: &["! command -v cc rustc"],
        after: &[
            "PATH=$(echo $PWD/farpage-*/bin):$PATH; farpage --version",
            "ls farpage-*/share/man/man1/farpage-run.1*",
            RUN,
        ],
    },
    Artefact {
        kind: "deb",
        part: ".deb",
        packages: BARE_PACKAGES,
        before: &["! command -v cc rustc", "apt-get -qq update"],
        after: &[
            "farpage --version",
            "farpage doctor",
            "dpkg --listfiles farpage | grep man1/farpage-run.1",
            RUN,
            "apt-get -qq purge farpage",
            "test ! -e /usr/bin/farpage",
        ],
    },
];

impl Artefact {
    /// Its file, where a release of this version has been made.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn file(&self, world: &World) -> Result<PathBuf> {
        let made = release::artefacts(&release::folder(world), VERSION);
        let file = match self.part {
            ".whl" => made.wheel()?,
            ".tar.gz" => made.tar,
            _ => made.deb,
        };
        ensure!(
            file.exists(),
            "{} is missing; make it with: cargo xtask release",
            file.display()
        );
        Ok(file)
    }

    /// README.md's command, for this version and for root, who needs no `sudo`; and checks.
    ///
    /// # Errors
    /// When README.md has none.
    pub(crate) fn commands(&self, readme: &str) -> Result<Vec<Command>> {
        let mut shown = readme::commands(readme, HEADING)?;
        shown.retain(|command| command.text.contains(self.part));
        ensure!(
            !shown.is_empty(),
            "README.md has no command with '{}' below the heading '{HEADING}'",
            self.part
        );
        for command in &mut shown {
            command.text = command.text.replace("VERSION", VERSION);
            command.text = command.text.replace("sudo ", "");
        }
        let spoken = |text: &&str| Command::spoken(text);
        let mut commands: Vec<Command> = self.before.iter().map(spoken).collect();
        commands.extend(shown);
        commands.extend(self.after.iter().map(spoken));
        Ok(commands)
    }
}

/// Lets the root see `file` in root's home, under its own name: pip reads what is in it.
///
/// # Errors
/// When it has no name.
pub(crate) fn bind(file: &Path) -> Result<Bind> {
    let name = file.file_name().context("a file has a name")?;
    Ok(Bind {
        here: file.to_owned(),
        there: format!("/root/{}", name.to_string_lossy()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readme_says_how_to_install_each_of_them() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
        for artefact in &ARTEFACTS {
            let commands = artefact.commands(&readme).unwrap();
            let shown: Vec<_> = commands.iter().filter(|command| command.line > 0).collect();
            assert_eq!(shown.len(), 1, "{}", artefact.kind);
            assert!(shown[0].text.contains(VERSION));
            assert!(!shown[0].text.contains("sudo"));
        }
    }
}
