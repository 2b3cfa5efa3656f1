//! What the files of a release are called, and where they lie.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The files of one release.
#[derive(Debug)]
pub(crate) struct Artefacts {
    /// Where they lie.
    pub(crate) folder: PathBuf,
    /// Command, manual pages, completions and the library for C, for any Linux.
    pub(crate) tar: PathBuf,
    /// The same for Debian, with the units for systemd.
    pub(crate) deb: PathBuf,
    /// What the programs in the others have been stripped of.
    pub(crate) symbols: PathBuf,
    /// What is linked into them.
    pub(crate) sbom: PathBuf,
    /// `SHA256SUMS`.
    pub(crate) sums: PathBuf,
    version: String,
}

/// The files of release `version` in `folder`, whether they have been made or not.
pub(crate) fn artefacts(folder: &Path, version: &str) -> Artefacts {
    let at = |name: String| folder.join(name);
    Artefacts {
        folder: folder.to_owned(),
        tar: at(format!("farpage-{version}-x86_64-linux.tar.gz")),
        deb: at(format!("farpage_{version}_amd64.deb")),
        symbols: at(format!("farpage-{version}-debug.tar.gz")),
        sbom: at(format!("farpage-{version}.cdx.json")),
        sums: at("SHA256SUMS".to_owned()),
        version: version.to_owned(),
    }
}

impl Artefacts {
    /// The Python package. Its name also says which Python and which C library it needs, which its
    /// build finds out.
    ///
    /// # Errors
    /// When the folder has no wheel of this version.
    pub(crate) fn wheel(&self) -> Result<PathBuf> {
        let start = format!("farpage-{}-", self.version);
        let is_it = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(&start) && name.ends_with(".whl")
        };
        let found = listed(&self.folder)?.into_iter().find(is_it);
        found.with_context(|| {
            let folder = self.folder.display();
            format!(
                "no wheel of farpage {} in {folder}; make it with: cargo xtask release",
                self.version
            )
        })
    }

    /// All that has a checksum.
    pub(crate) fn files(&self) -> Result<Vec<PathBuf>> {
        let named = [&self.tar, &self.deb, &self.symbols, &self.sbom];
        let mut files = vec![self.wheel()?];
        files.extend(named.map(PathBuf::clone));
        Ok(files)
    }

    /// The folder that the tar file unpacks to.
    pub(crate) fn tree_name(&self) -> String {
        format!("farpage-{}-x86_64-linux", self.version)
    }

    /// The folder that the symbols unpack to.
    pub(crate) fn symbols_name(&self) -> String {
        format!("farpage-{}-debug", self.version)
    }

    /// Makes the folder, and removes what an earlier run has left of this version.
    pub(crate) fn empty(&self) -> Result<()> {
        fs::create_dir_all(&self.folder)
            .with_context(|| format!("cannot make {}", self.folder.display()))?;
        while let Ok(wheel) = self.wheel() {
            fs::remove_file(wheel)?;
        }
        for file in [&self.tar, &self.deb, &self.symbols, &self.sbom, &self.sums] {
            if file.exists() {
                fs::remove_file(file)?;
            }
        }
        Ok(())
    }
}

/// The files in `folder`, in order.
pub(crate) fn listed(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("no {}", folder.display()))?;
    let paths = entries.map(|entry| Ok(entry?.path()));
    let mut paths = paths.collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_by_version_and_machine() {
        let made = artefacts(Path::new("/out"), "1.2.3");
        assert_eq!(made.deb, Path::new("/out/farpage_1.2.3_amd64.deb"));
        assert_eq!(
            made.tar,
            Path::new("/out/farpage-1.2.3-x86_64-linux.tar.gz")
        );
        assert!(made.tar.ends_with(made.tree_name() + ".tar.gz"));
        assert!(made.symbols.ends_with(made.symbols_name() + ".tar.gz"));
    }

    #[test]
    fn the_wheel_of_another_version_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        fs::write(folder.join("farpage-1.2.30-cp310-abi3-any.whl"), "").unwrap();
        let made = artefacts(folder, "1.2.3");
        let none = made.wheel().unwrap_err().to_string();
        assert!(none.contains("cargo xtask release"), "{none}");
        fs::write(folder.join("farpage-1.2.3-cp310-abi3-any.whl"), "").unwrap();
        assert!(
            made.wheel()
                .unwrap()
                .ends_with("farpage-1.2.3-cp310-abi3-any.whl")
        );
        made.empty().unwrap();
        assert!(made.wheel().is_err());
        assert_eq!(listed(folder).unwrap().len(), 1);
    }
}
