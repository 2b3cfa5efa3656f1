//! Which sources there are, as one number: results of tests belong to it.

use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::proc;
use crate::world::World;

/// Every file that git tracks or would add and that is there, relative to the root and in order.
pub(crate) fn files(world: &World) -> Result<Vec<String>> {
    let mut list = Command::new("git");
    list.args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]);
    let list = proc::output(list.current_dir(&world.root), "git ls-files")?;
    let names = list.split('\0').filter(|name| !name.is_empty());
    let mut files: Vec<String> = names
        .filter(|name| world.root.join(name).is_file())
        .map(str::to_owned)
        .collect();
    files.sort_unstable();
    files.dedup();
    Ok(files)
}

/// The hash of all these files, with what they contain now. Documents that no test reads are left out, so
/// that a corrected sentence does not make results old.
pub(crate) fn hash(world: &World) -> Result<String> {
    let mut files = files(world)?;
    files.retain(|name| counts(name));
    let contents = git_hash(world, &["--stdin-paths"], &(files.join("\n") + "\n"))?;
    let both = files.iter().zip(contents.lines());
    let whole: String = both
        .map(|(name, hash)| format!("{hash} {name}\n"))
        .collect();
    let hash = git_hash(world, &["--stdin"], &whole)?;
    let hash = hash
        .trim()
        .get(..16)
        .context("git hash-object printed no hash")?;
    Ok(hash.to_owned())
}

/// Whether a file can change what a test does.
fn counts(name: &str) -> bool {
    const DOCUMENTS: &[&str] = &[
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "docs/ROWS.md",
    ];
    !DOCUMENTS.contains(&name) && !name.starts_with(".github/")
}

fn git_hash(world: &World, args: &[&str], input: &str) -> Result<String> {
    let mut git = Command::new("git");
    git.arg("hash-object").args(args).current_dir(&world.root);
    git.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = git.spawn().context("cannot start git")?;
    let mut to = child.stdin.take().context("no input")?;
    let input = input.to_owned();
    // git answers while it reads: whoever writes all first would wait for ever.
    let writes = std::thread::spawn(move || to.write_all(input.as_bytes()));
    let out = child.wait_with_output()?;
    let written = writes
        .join()
        .map_err(|_| anyhow::anyhow!("the writer panicked"))?;
    if !out.status.success() {
        bail!("git hash-object failed: {}", out.status);
    }
    written.context("git hash-object did not read its input")?;
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_sources_have_the_same_hash() {
        let world = World::find().unwrap();
        let first = hash(&world).unwrap();
        assert_eq!(first.len(), 16);
        assert_eq!(hash(&world).unwrap(), first);
    }

    #[test]
    fn documents_that_no_test_reads_do_not_count() {
        assert!(counts("README.md") && counts("crates/ports/port/src/lib.rs"));
        assert!(!counts("CHANGELOG.md") && !counts(".github/workflows/ci.yml"));
    }
}
