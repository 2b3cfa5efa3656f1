//! The software bill of materials: every crate that is linked into what is released, as CycloneDX.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::source::Source;
use crate::proc;

/// The packages that programs and libraries of a release are made of. The agent is built by the
/// command's build script, so that cargo does not know it as a dependency.
const ROOTS: &[&str] = &[
    "farpage-cli",
    "farpage-capi",
    "farpage-stdio",
    "farpage-python",
    "farpage-agent",
];

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// A crate that is linked.
#[derive(Debug, Default)]
pub(crate) struct Crate {
    pub(crate) name: String,
    pub(crate) version: String,
    /// As SPDX has it.
    pub(crate) licence: String,
    /// Of the archive on crates.io; ours have none.
    checksum: Option<String>,
    repository: Option<String>,
    /// Where its source lies.
    pub(crate) folder: PathBuf,
    /// What it uses, by name and version.
    uses: BTreeSet<(String, String)>,
}

impl Crate {
    /// Whether it is a part of this repository.
    pub(crate) fn is_own(&self) -> bool {
        self.checksum.is_none()
    }

    fn purl(&self) -> String {
        purl(&self.name, &self.version)
    }
}

fn purl(name: &str, version: &str) -> String {
    // The sign + has a meaning of its own in an address.
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}

/// All that is linked into a release of `source`, in order.
pub(crate) fn linked(source: &Source) -> Result<Vec<Crate>> {
    let mut tree = Command::new("cargo");
    tree.args(["tree", "--locked", "--edges", "normal,no-proc-macro"]);
    tree.args(["--target", TARGET, "--prefix", "none", "--format", "{p}"]);
    for package in ROOTS {
        tree.args(["--package", package]);
    }
    let tree = proc::output(tree.current_dir(&source.root), "cargo tree")?;
    let mut metadata = Command::new("cargo");
    metadata.args(["metadata", "--locked", "--format-version", "1"]);
    metadata.args(["--filter-platform", TARGET]);
    let metadata = proc::output(metadata.current_dir(&source.root), "cargo metadata")?;
    let lock = fs::read_to_string(source.root.join("Cargo.lock"))?;
    crates(&tree, &serde_json::from_str(&metadata)?, &checksums(&lock))
}

/// The crates that `cargo tree` names, with what `cargo metadata` knows of them.
fn crates(
    tree: &str,
    metadata: &Value,
    checksums: &BTreeMap<(String, String), String>,
) -> Result<Vec<Crate>> {
    // `name v1.2.3 (/path) (*)`
    let named: BTreeSet<(String, String)> = tree
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
            Some((name.to_owned(), version.to_owned()))
        })
        .collect();
    let mut keys = BTreeMap::new();
    let mut found = BTreeMap::new();
    for package in list(metadata, "packages")? {
        let text = |field: &str| package[field].as_str().map(str::to_owned);
        let key = (
            text("name").context("a package has no name")?,
            text("version").context("a package has no version")?,
        );
        keys.insert(text("id").context("a package has no id")?, key.clone());
        let licence = text("license").with_context(|| format!("{} has no licence", key.0))?;
        let manifest = PathBuf::from(text("manifest_path").unwrap_or_default());
        let made = Crate {
            name: key.0.clone(),
            version: key.1.clone(),
            licence: licence.replace(" / ", "/").replace('/', " OR "),
            checksum: checksums.get(&key).cloned(),
            repository: text("repository"),
            folder: manifest.parent().map(PathBuf::from).unwrap_or_default(),
            uses: BTreeSet::new(),
        };
        if named.contains(&key) {
            found.insert(key, made);
        }
    }
    let lost: Vec<_> = named
        .iter()
        .filter(|key| !found.contains_key(key))
        .collect();
    anyhow::ensure!(lost.is_empty(), "cargo metadata does not know {lost:?}");
    for node in list(&metadata["resolve"], "nodes")? {
        let key = |id: &Value| keys.get(id.as_str()?);
        let Some(user) = key(&node["id"]).and_then(|key| found.get_mut(key)) else {
            continue;
        };
        let uses = list(node, "dependencies")?.iter().filter_map(key);
        user.uses = uses.filter(|key| named.contains(key)).cloned().collect();
    }
    Ok(found.into_values().collect())
}

fn list<'a>(of: &'a Value, field: &str) -> Result<&'a Vec<Value>> {
    of[field]
        .as_array()
        .with_context(|| format!("cargo metadata has no {field}"))
}

/// The checksums in `Cargo.lock`.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let package = |block: &str| {
        let field = |name: &str| {
            let line = block.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.strip_prefix(" = \"")?.strip_suffix('"')?.to_owned())
        };
        Some(((field("name")?, field("version")?), field("checksum")?))
    };
    lock.split("[[package]]").filter_map(package).collect()
}

/// The document, CycloneDX 1.5.
pub(crate) fn document(linked: &[Crate], version: &str, date: &str) -> Value {
    let main = purl("farpage", version);
    let roots = linked
        .iter()
        .filter(|one| ROOTS.contains(&one.name.as_str()));
    let roots: Vec<String> = roots.map(Crate::purl).collect();
    let mut uses = vec![json!({"ref": format!("{main}#release"), "dependsOn": roots})];
    uses.extend(linked.iter().map(|one| {
        let on: Vec<String> = one
            .uses
            .iter()
            .map(|(name, version)| purl(name, version))
            .collect();
        json!({"ref": one.purl(), "dependsOn": on})
    }));
    json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": date,
            "component": {
                "type": "application",
                "bom-ref": format!("{main}#release"),
                "name": "farpage",
                "version": version,
                "licenses": [{"expression": "MIT OR Apache-2.0"}],
            },
        },
        "components": linked.iter().map(component).collect::<Vec<_>>(),
        "dependencies": uses,
    })
}

fn component(one: &Crate) -> Value {
    let mut component = json!({
        "type": "library",
        "bom-ref": one.purl(),
        "name": one.name,
        "version": one.version,
        "purl": one.purl(),
        "licenses": [{"expression": one.licence}],
    });
    if let Some(sum) = &one.checksum {
        component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
    }
    if let Some(address) = &one.repository {
        component["externalReferences"] = json!([{"type": "vcs", "url": address}]);
    }
    component
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "version = 4\n\n[[package]]\nname = \"zstd-sys\"\n\
        version = \"2.1.2+zstd.1.5.7\"\nchecksum = \"abcd\"\n\n\
        [[package]]\nname = \"farpage-cli\"\nversion = \"0.1.0\"\n\
        dependencies = [\n \"zstd-sys\",\n]\n";

    fn example() -> Vec<Crate> {
        let package = |name: &str, version: &str, licence: &str| {
            json!({"name": name, "version": version, "id": name, "license": licence,
                "manifest_path": format!("/src/{name}/Cargo.toml"), "repository": null})
        };
        let metadata = json!({
            "packages": [
                package("farpage-cli", "0.1.0", "MIT OR Apache-2.0"),
                package("zstd-sys", "2.1.2+zstd.1.5.7", "MIT/Apache-2.0"),
                package("proptest", "1.0.0", "MIT"),
            ],
            "resolve": {"nodes": [
                {"id": "farpage-cli", "dependencies": ["zstd-sys", "proptest"]},
                {"id": "zstd-sys", "dependencies": []},
            ]},
        });
        let tree = "farpage-cli v0.1.0 (/farpage/crates/faces/cli)\nzstd-sys v2.1.2+zstd.1.5.7\n\n\
                    zstd-sys v2.1.2+zstd.1.5.7 (*)\n";
        crates(tree, &metadata, &checksums(LOCK)).unwrap()
    }

    #[test]
    fn what_is_linked_is_listed_and_nothing_else() {
        let linked = example();
        let names: Vec<&str> = linked.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["farpage-cli", "zstd-sys"]);
        assert!(linked[0].is_own() && !linked[1].is_own());
        assert_eq!(linked[1].licence, "MIT OR Apache-2.0");
    }

    #[test]
    fn every_reference_of_the_document_is_to_something_in_it() {
        let bom = document(&example(), "0.1.0", "2026-01-31T12:00:00Z");
        assert_eq!(
            (&bom["bomFormat"], &bom["specVersion"]),
            (&json!("CycloneDX"), &json!("1.5"))
        );
        let mut known = vec![bom["metadata"]["component"]["bom-ref"].clone()];
        let components = bom["components"].as_array().unwrap();
        known.extend(components.iter().map(|one| one["bom-ref"].clone()));
        let unique: BTreeSet<String> = known.iter().map(Value::to_string).collect();
        assert_eq!(unique.len(), known.len());
        for entry in bom["dependencies"].as_array().unwrap() {
            assert!(known.contains(&entry["ref"]));
            let on = entry["dependsOn"].as_array().unwrap();
            assert!(on.iter().all(|one| known.contains(one)));
        }
        assert_eq!(bom["dependencies"].as_array().unwrap().len(), known.len());
        assert_eq!(
            components[1]["purl"],
            "pkg:cargo/zstd-sys@2.1.2%2Bzstd.1.5.7"
        );
        assert_eq!(components[1]["hashes"][0]["content"], "abcd");
    }

    #[test]
    fn a_crate_that_cargo_does_not_know_is_no_silent_gap() {
        let metadata = json!({"packages": [], "resolve": {"nodes": []}});
        assert!(crates("lost v1.0.0\n", &metadata, &BTreeMap::new()).is_err());
    }
}
