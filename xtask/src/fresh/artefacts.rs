//! What `cargo xtask release` has made, installed and tried where there is nothing to build with.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::fresh::readme::Command;
use crate::fresh::root::{BARE_PACKAGES, BUILD_PACKAGES, Bind};

/// One artefact and how it is tried.
pub(crate) struct Artefact {
    pub(crate) kind: &'static str,
    /// What its file's name ends with.
    pub(crate) ending: &'static str,
    pub(crate) packages: &'static [&'static str],
    commands: &'static [&'static str],
}

/// A program of Perl, which every Debian has, takes 256 MiB where 64 are allowed.
const RUN: &str = "said=$(farpage run --quiet --ram 64M -- \
                   perl -e 'my $a = \"x\" x (256 << 20); print length $a'); [ \"$said\" = 268435456 ]";

pub(crate) const ARTEFACTS: [Artefact; 3] = [
    Artefact {
        kind: "wheel",
        ending: ".whl",
        packages: BUILD_PACKAGES,
        commands: &[
            "python3 -m venv ~/tried && . ~/tried/bin/activate",
            "pip install --quiet /srv/dist/*.whl",
            "python3 -c 'import farpage, numpy; numpy.save(\"x.npy\", numpy.arange(9)); \
             assert farpage.load(\"x.npy\").sum() == 36'",
            "farpage doctor",
            RUN,
        ],
    },
    Artefact {
        kind: "tar",
        ending: ".tar.gz",
        packages: BARE_PACKAGES,
        commands: &[
            "mkdir ~/tried && tar -xzf /srv/dist/*.tar.gz -C ~/tried",
            "command=$(find ~/tried -type f -name farpage -perm -u+x | head -n 1); [ -n \"$command\" ]",
            "PATH=${command%/*}:$PATH",
            "farpage --version",
            "farpage doctor",
            RUN,
        ],
    },
    Artefact {
        kind: "deb",
        ending: ".deb",
        packages: BARE_PACKAGES,
        commands: &[
            "apt-get -qq update",
            "apt-get -qq install -y --no-install-recommends /srv/dist/*.deb",
            "farpage --version",
            "farpage doctor",
            RUN,
            "apt-get -qq purge -y \"$(dpkg-deb -f /srv/dist/*.deb Package)\"",
            "! command -v farpage",
        ],
    },
];

impl Artefact {
    /// How it is tried.
    pub(crate) fn commands(&self) -> Vec<Command> {
        let command = |text: &&str| Command {
            line: 0,
            text: (*text).to_owned(),
        };
        self.commands.iter().map(command).collect()
    }

    /// Its file in `dist`; `None` when there is none.
    ///
    /// # Errors
    /// When there are several.
    pub(crate) fn find(&self, dist: &Path) -> Result<Option<PathBuf>> {
        let files = fs::read_dir(dist).into_iter().flatten().flatten();
        let mut found: Vec<PathBuf> = files
            .map(|entry| entry.path())
            .filter(|path| self.is_its_name(&path.to_string_lossy()))
            .collect();
        let first = found.pop();
        ensure!(
            found.is_empty(),
            "{} has several files that end with {}; remove all but one",
            dist.display(),
            self.ending
        );
        Ok(first)
    }

    /// Symbols for a debugger have a file of their own.
    fn is_its_name(&self, name: &str) -> bool {
        name.ends_with(self.ending) && !name.contains("symbols") && !name.contains("debug")
    }
}

/// Lets the root see `file`, under its own name: pip reads what is in it.
///
/// # Errors
/// When it has no name.
pub(crate) fn bind(file: &Path) -> Result<Bind> {
    let name = file.file_name().context("a file has a name")?;
    Ok(Bind {
        here: file.to_owned(),
        there: format!("/srv/dist/{}", name.to_string_lossy()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_not_taken_for_the_command() {
        let tar = &ARTEFACTS[1];
        assert!(tar.is_its_name("farpage-0.1.0-x86_64-linux.tar.gz"));
        assert!(!tar.is_its_name("farpage-0.1.0-symbols.tar.gz"));
        assert!(!tar.is_its_name("farpage_0.1.0_amd64.deb"));
    }
}
