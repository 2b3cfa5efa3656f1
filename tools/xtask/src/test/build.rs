//! Builds all tests once, and lists them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::harness::Case;
use crate::proc;
use crate::world::World;

/// Ends a test that hangs. The slowest takes two minutes on two processors, and may on a machine that is
/// ten times as slow.
pub(super) const LIMIT: Duration = Duration::from_secs(1200);

/// A program with tests.
struct Binary {
    package: String,
    /// What it is called in the names of tests: nothing for the integration tests of a crate.
    target: String,
    path: PathBuf,
    /// Where cargo would start it.
    folder: PathBuf,
}

/// Builds everything that tests use, all of it with the one profile of tests, and lists the tests.
pub(super) fn cases(world: &World) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    let python = world.python();
    for binary in build(world)? {
        // What other tests start is marked as ignored: by itself it would pass without having run.
        let ignored = binary.list(&["--ignored"])?;
        let mut tests = binary.list(&[])?;
        tests.retain(|test| !ignored.contains(test));
        cases.extend(tests.iter().map(|test| binary.case(test, &python)));
    }
    Ok(cases)
}

fn build(world: &World) -> Result<Vec<Binary>> {
    let mut cargo = Command::new("cargo");
    cargo.args([
        "build",
        "--workspace",
        "--locked",
        "--lib",
        "--bins",
        "--examples",
        "--tests",
    ]);
    cargo.args(["--quiet", "--message-format=json-render-diagnostics"]);
    cargo.current_dir(&world.root).stderr(Stdio::inherit());
    let out = cargo.output().context("cannot start cargo")?;
    if !out.status.success() {
        bail!("cargo build of the tests: {}", out.status);
    }
    let messages = String::from_utf8_lossy(&out.stdout);
    let binaries: Vec<Binary> = messages.lines().filter_map(binary).collect();
    if binaries.is_empty() {
        bail!("cargo built no tests");
    }
    Ok(binaries)
}

/// What a message of cargo says of a program with tests.
fn binary(message: &str) -> Option<Binary> {
    let message: Value = serde_json::from_str(message).ok()?;
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    let path = message["executable"].as_str().filter(|_| is_test)?;
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let folder = manifest.parent()?.to_owned();
    let (name, kind) = (
        message["target"]["name"].as_str()?,
        &message["target"]["kind"][0],
    );
    let target = match (name, kind.as_str()?) {
        ("it", "test") => String::new(),
        (name, "test") => format!("/{name}"),
        (_, "lib" | "rlib" | "cdylib" | "staticlib" | "proc-macro") => "/lib".into(),
        (name, kind) => format!("/{kind}-{name}"),
    };
    Some(Binary {
        package: package(message["package_id"].as_str()?)?,
        target,
        path: path.into(),
        folder,
    })
}

/// The package's name in `path+file:///folder#name@1.0` or `path+file:///folder/name#1.0`.
fn package(id: &str) -> Option<String> {
    let (place, name) = id.rsplit_once('#')?;
    let name = match name.split_once('@') {
        Some((name, _)) => name,
        None => place.rsplit('/').next()?,
    };
    Some(name.strip_prefix("farpage-").unwrap_or(name).to_owned())
}

impl Binary {
    /// Names of tests.
    fn list(&self, more: &[&str]) -> Result<Vec<String>> {
        let mut list = Command::new(&self.path);
        list.args(["--list", "--format=terse"]).args(more);
        list.current_dir(&self.folder);
        let what = format!("listing the tests of {}", self.path.display());
        let list = proc::output(&mut list, &what)?;
        let tests = list.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(tests.map(String::from).collect())
    }

    fn case(&self, test: &str, python: &Path) -> Case {
        let set = |name: &str, value: &Path| (OsString::from(name), value.as_os_str().to_owned());
        Case {
            name: format!("{}{} {test}", self.package, self.target),
            program: self.path.clone(),
            // With one thread, as on one processor, what a test prints would begin behind its name.
            args: ["--exact", "--nocapture", "--test-threads=2", test]
                .map(OsString::from)
                .into(),
            env: vec![
                set("CARGO_MANIFEST_DIR", &self.folder),
                set("CARGO", Path::new("cargo")),
                set("FARPAGE_TEST_PYTHON", python),
            ],
            folder: self.folder.clone(),
            limit: LIMIT,
        }
    }
}

/// The examples in comments, which only cargo can run: all of them are one case.
pub(super) fn doc_tests(world: &World) -> Case {
    Case {
        name: "workspace/doc examples in comments".into(),
        program: "cargo".into(),
        args: ["test", "--doc", "--workspace", "--locked", "--quiet"]
            .map(OsString::from)
            .into(),
        env: Vec::new(),
        folder: world.root.clone(),
        limit: LIMIT * 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: &str, name: &str, test: bool) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","profile":{{"test":{test}}},"executable":"/t/x-1",
            "manifest_path":"/w/crates/ports/port/Cargo.toml","target":{{"name":"{name}","kind":["{kind}"]}},
            "package_id":"path+file:///w/crates/port#farpage-port@0.1.0"}}"#
        )
    }

    #[test]
    fn tests_are_named_after_their_crate_and_program() {
        let named = |kind, name| {
            binary(&message(kind, name, true))
                .unwrap()
                .case("a::b", Path::new("python3"))
                .name
        };
        assert_eq!(named("test", "it"), "port a::b");
        assert_eq!(named("test", "loom"), "port/loom a::b");
        assert_eq!(named("lib", "farpage_port"), "port/lib a::b");
        assert_eq!(named("bin", "farpage"), "port/bin-farpage a::b");
        assert!(binary(&message("bin", "farpage", false)).is_none());
        assert!(binary("not JSON").is_none());
    }

    #[test]
    fn packages_are_read_from_both_forms_of_their_ids() {
        assert_eq!(
            package("path+file:///w/crates/object#farpage-object@0.1.0").unwrap(),
            "object"
        );
        assert_eq!(package("path+file:///w/xtask#0.1.0").unwrap(), "xtask");
    }
}
