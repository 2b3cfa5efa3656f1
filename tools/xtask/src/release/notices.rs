//! The licences of what is linked: most want their text and copyright to go along with programs.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::Result;

use super::names::listed;
use super::sbom::Crate;

/// How names of files with licences begin.
const STARTS: &[&str] = &[
    "LICENSE",
    "LICENCE",
    "COPYING",
    "COPYRIGHT",
    "NOTICE",
    "UNLICENSE",
];

/// One text with all licences of others, each once, below the crates that it is of.
pub(crate) fn collect(linked: &[Crate]) -> Result<String> {
    let mut of: BTreeMap<String, Vec<&Crate>> = BTreeMap::new();
    let mut text = String::from(
        "Farpage's programs contain the crates below. They are used by their licences, whose\n\
         texts follow.\n\n",
    );
    for one in linked.iter().filter(|one| !one.is_own()) {
        writeln!(text, "{} {}: {}", one.name, one.version, one.licence)?;
        for licence in texts(&one.folder)? {
            of.entry(licence).or_default().push(one);
        }
    }
    for (licence, crates) in of {
        let names: Vec<String> = crates
            .iter()
            .map(|one| format!("{} {}", one.name, one.version))
            .collect();
        write!(
            text,
            "\n{}\n{}\n\n{licence}",
            "=".repeat(80),
            names.join(", ")
        )?;
    }
    Ok(text)
}

/// The licences in a crate's own folder.
fn texts(folder: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for path in listed(folder)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.to_ascii_uppercase();
        if path.is_file() && STARTS.iter().any(|start| name.starts_with(start)) {
            let text = String::from_utf8_lossy(&fs::read(&path)?).replace("\r\n", "\n");
            found.push(format!("{}\n", text.trim_end()));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_licence_is_found_whatever_its_name_ends_with() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        fs::write(folder.join("LICENSE-MIT"), "one\r\n\r\n").unwrap();
        fs::write(folder.join("license.md"), "two").unwrap();
        fs::write(folder.join("lib.rs"), "three").unwrap();
        assert_eq!(texts(folder).unwrap(), ["one\n", "two\n"]);
    }
}
