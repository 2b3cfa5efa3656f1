//! The workspace as tidy sees it: packages with their floors, and parsed files.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, anyhow};
use proc_macro2::TokenStream;
use serde_json::Value;

use super::text::identifiers;
use super::types::Told;
use crate::world::World;
use crate::{proc, sources};

/// Floors, from the lowest on. The workshop comes last: it may use all of them.
const FLOORS: [&str; 9] = [
    "core", "pagers", "ports", "cluster", "host", "run", "unix", "faces", "tools",
];

/// What `crates/README.md` says of a crate.
pub(super) struct Place {
    pub(super) floor: usize,
    pub(super) is_pure: bool,
    pub(super) is_unsafe: bool,
}

/// A package of the workspace.
pub(super) struct Package {
    pub(super) name: String,
    /// Relative to the root.
    pub(super) folder: String,
    /// Packages of the workspace that it uses, not only for tests.
    pub(super) uses: Vec<String>,
    pub(super) place: Option<Place>,
}

impl Package {
    /// True for what is built for people, not for tests.
    pub(super) fn is_library(&self) -> bool {
        let floor = self.place.as_ref().map_or(0, |place| place.floor);
        FLOORS[floor] != "tools" && self.name != "farpage-cli"
    }
}

/// A file of Rust.
pub(super) struct Source {
    /// Relative to the root.
    pub(super) path: String,
    pub(super) text: String,
    pub(super) parsed: syn::File,
    pub(super) told: Told,
    /// Every identifier of the code, which comments are not part of.
    pub(super) identifiers: Vec<String>,
    /// The package, as a place in [`Tree::packages`].
    pub(super) package: usize,
}

impl Source {
    fn read(world: &World, path: String, package: usize) -> Result<Self> {
        let text = read(&world.root.join(&path))?;
        let tokens: TokenStream = text.parse().map_err(|error| anyhow!("{path}: {error}"))?;
        let parsed: syn::File =
            syn::parse2(tokens.clone()).with_context(|| format!("cannot parse {path}"))?;
        let mut names = Vec::new();
        identifiers(tokens, &mut names);
        Ok(Self {
            told: Told::of(&parsed),
            identifiers: names,
            path,
            text,
            parsed,
            package,
        })
    }

    /// True for what is part of the package, not of its tests, simulations and benches.
    pub(super) fn is_product(&self, tree: &Tree) -> bool {
        let folder = &tree.packages[self.package].folder;
        self.path.starts_with(&format!("{folder}/src/")) && !self.is_test()
    }

    pub(super) fn is_test(&self) -> bool {
        const TESTS: [&str; 4] = ["/tests/", "/sim/", "/tests.rs", "/sim.rs"];
        TESTS.iter().any(|part| self.path.contains(part))
    }
}

/// All of it.
pub(super) struct Tree {
    pub(super) packages: Vec<Package>,
    pub(super) sources: Vec<Source>,
    /// Retired words and what is said instead.
    pub(super) retired: Vec<(String, String)>,
    pub(super) phrases: Vec<String>,
}

impl Tree {
    pub(super) fn read(world: &World) -> Result<Self> {
        let readme = read(&world.root.join("crates/README.md"))?;
        let packages = packages(world, &places(&readme))?;
        let mut sources = Vec::new();
        let files = sources::files(world)?.into_iter();
        for path in files.filter(|path| path.ends_with(".rs")) {
            let within = |package: &Package| {
                path.strip_prefix(&package.folder)?
                    .strip_prefix('/')
                    .map(str::len)
            };
            let inner = packages
                .iter()
                .enumerate()
                .filter(|(_, package)| within(package).is_some());
            let Some((package, _)) = inner.max_by_key(|(_, package)| package.folder.len()) else {
                continue;
            };
            sources.push(Source::read(world, path, package)?);
        }
        let glossary = read(&world.root.join("docs/GLOSSARY.md"))?;
        Ok(Self {
            packages,
            sources,
            retired: retired(&glossary),
            phrases: phrases(&glossary),
        })
    }

    /// Files that are part of what is built for people.
    pub(super) fn product(&self) -> impl Iterator<Item = &Source> {
        self.sources
            .iter()
            .filter(|source| source.is_product(self) && self.packages[source.package].is_library())
    }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Crates by name, from headings that are floors and lines such as "- `farpage-object` (pure): page states".
fn places(readme: &str) -> BTreeMap<String, Place> {
    let mut floor = None;
    let mut places = BTreeMap::new();
    for line in readme.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            let name = heading.split_whitespace().next().unwrap_or_default();
            floor = FLOORS
                .iter()
                .position(|known| *known == name.trim_end_matches(':'));
        }
        let Some((name, rest)) = line
            .strip_prefix("- `")
            .and_then(|line| line.split_once('`'))
        else {
            continue;
        };
        let marks = rest.split(':').next().unwrap_or_default();
        if let Some(floor) = floor {
            let place = Place {
                floor,
                is_pure: marks.contains("pure"),
                is_unsafe: marks.contains("unsafe"),
            };
            places.insert(name.to_owned(), place);
        }
    }
    places
}

fn packages(world: &World, places: &BTreeMap<String, Place>) -> Result<Vec<Package>> {
    let mut cargo = Command::new("cargo");
    cargo.args(["metadata", "--no-deps", "--format-version=1", "--locked"]);
    let told = proc::output(cargo.current_dir(&world.root), "cargo metadata")?;
    let told: Value = serde_json::from_str(&told).context("cargo metadata printed no JSON")?;
    let root = world.root.to_string_lossy().into_owned();
    let listed = told["packages"]
        .as_array()
        .context("cargo metadata lists no packages")?;
    let mut packages = Vec::new();
    for package in listed {
        let name = package["name"]
            .as_str()
            .context("a package has no name")?
            .to_owned();
        let manifest = package["manifest_path"]
            .as_str()
            .context("a package has no manifest")?;
        let folder = manifest.trim_start_matches(&root).trim_start_matches('/');
        let folder = folder.trim_end_matches("/Cargo.toml").to_owned();
        let uses = package["dependencies"].as_array().into_iter().flatten();
        let uses = uses
            .filter(|used| used["kind"].as_str() != Some("dev") && used["path"].is_string())
            .filter_map(|used| used["name"].as_str().map(str::to_owned))
            .collect();
        let place = places.get(&name).map(|place| Place { ..*place });
        packages.push(Package {
            name,
            folder,
            uses,
            place,
        });
    }
    Ok(packages)
}

/// Rows of the table below a heading of the glossary.
fn rows<'a>(glossary: &'a str, heading: &'a str) -> impl Iterator<Item = Vec<&'a str>> {
    let below = glossary
        .lines()
        .skip_while(move |line| *line != heading)
        .skip(1);
    let section = below.take_while(|line| !line.starts_with("## "));
    let rows = section.filter(|line| line.starts_with('|')).skip(2);
    rows.map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
}

fn retired(glossary: &str) -> Vec<(String, String)> {
    let rows = rows(glossary, "## Retired");
    rows.filter_map(|row| {
        Some((
            row.first()?.trim_matches('`').to_owned(),
            (*row.get(1)?).to_owned(),
        ))
    })
    .collect()
}

fn phrases(glossary: &str) -> Vec<String> {
    let rows = rows(glossary, "## Phrases");
    rows.filter_map(|row| Some(row.first()?.to_lowercase()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floors_are_read_from_headings_and_lines() {
        let places =
            places("# Crates\n## core: pages\n- `a` (pure): states\n## faces\n- `b` (unsafe): C\n");
        assert!(places["a"].is_pure && places["a"].floor == 0);
        assert!(places["b"].is_unsafe && places["b"].floor == 7);
    }

    #[test]
    fn the_glossary_has_tables() {
        let text = "## Retired\n\n| word | instead |\n|---|---|\n| `wire` | encoding |\n\n## Phrases\n\n| phrase |\n|---|\n| So it goes |\n";
        assert_eq!(retired(text), [("wire".to_owned(), "encoding".to_owned())]);
        assert_eq!(phrases(text), ["so it goes"]);
    }
}
