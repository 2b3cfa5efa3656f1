//! Two run directories, compared byte by byte.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// What differs between the outputs of two runs, as lines for a person; empty when nothing does.
pub(crate) fn differences(left: &Path, right: &Path) -> Result<Vec<String>> {
    let (a, b) = (files(left)?, files(right)?);
    let mut found = Vec::new();
    for (name, path) in &a {
        match b.get(name) {
            None => found.push(format!("{name}: missing in the second run")),
            Some(other) => found.extend(file_difference(name, path, other)?),
        }
    }
    let extra = b.keys().filter(|name| !a.contains_key(*name));
    found.extend(extra.map(|name| format!("{name}: only in the second run")));
    Ok(found)
}

/// Files under `dir` by their relative names.
fn files(dir: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    let mut todo = vec![dir.to_path_buf()];
    while let Some(at) = todo.pop() {
        for entry in fs::read_dir(&at).with_context(|| format!("no {}", at.display()))? {
            let path = entry?.path();
            let name = path.strip_prefix(dir)?.to_string_lossy().into_owned();
            if path.is_dir() && !path.is_symlink() {
                todo.push(path);
            } else {
                found.insert(name, path);
            }
        }
    }
    Ok(found)
}

fn file_difference(name: &str, left: &Path, right: &Path) -> Result<Option<String>> {
    let open = |p| File::open(p).map(|f| BufReader::with_capacity(1 << 20, f));
    let (mut a, mut b) = (open(left)?, open(right)?);
    let (mut at, mut x, mut y) = (0_u64, vec![0; 1 << 16], vec![0; 1 << 16]);
    loop {
        let (n, m) = (fill(&mut a, &mut x)?, fill(&mut b, &mut y)?);
        if let Some(i) = x[..n].iter().zip(&y[..m]).position(|(p, q)| p != q) {
            let context = |bytes: &[u8]| {
                let line_start = bytes[..i]
                    .iter()
                    .rposition(|&c| c == b'\n')
                    .map_or(0, |s| s + 1);
                let end = bytes.len().min(line_start.max(i.saturating_sub(40)) + 120);
                String::from_utf8_lossy(&bytes[line_start.max(i.saturating_sub(40))..end])
                    .lines()
                    .next()
                    .unwrap_or("")
                    .to_owned()
            };
            let (p, q) = (context(&x[..n]), context(&y[..m]));
            let at = at + i as u64;
            return Ok(Some(format!(
                "{name}: byte {at} differs:\n  - {p:?}\n  + {q:?}"
            )));
        }
        at += n.min(m) as u64;
        if n != m {
            let (longer, shorter) = if n > m {
                ("first", "second")
            } else {
                ("second", "first")
            };
            let told = format!("{name}: the {shorter} run's ends at byte {at}, the {longer}'s not");
            return Ok(Some(told));
        }
        if n == 0 {
            return Ok(None);
        }
    }
}

/// Reads until `buffer` is full or the file ends.
fn fill(from: &mut impl Read, buffer: &mut [u8]) -> Result<usize> {
    let mut have = 0;
    while have < buffer.len() {
        match from.read(&mut buffer[have..])? {
            0 => break,
            n => have += n,
        }
    }
    Ok(have)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(name: &str) -> (PathBuf, PathBuf) {
        let base = std::env::temp_dir().join(format!("compare-{name}-{}", std::process::id()));
        let (a, b) = (base.join("a"), base.join("b"));
        fs::create_dir_all(a.join("sub")).unwrap();
        fs::create_dir_all(b.join("sub")).unwrap();
        (a, b)
    }

    #[test]
    fn equal_trees_have_no_differences() {
        let (a, b) = pair("equal");
        for dir in [&a, &b] {
            fs::write(dir.join("sub/f"), vec![7; 200_000]).unwrap();
        }
        assert!(differences(&a, &b).unwrap().is_empty());
        fs::remove_dir_all(a.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_changed_byte_a_missing_file_and_a_longer_one_are_told() {
        let (a, b) = pair("changed");
        fs::write(a.join("f"), "one\ntwo\n").unwrap();
        fs::write(b.join("f"), "one\ntwa\n").unwrap();
        fs::write(a.join("gone"), "x").unwrap();
        fs::write(b.join("new"), "x").unwrap();
        fs::write(a.join("sub/long"), vec![1; 100_000]).unwrap();
        fs::write(b.join("sub/long"), vec![1; 100_001]).unwrap();
        let found = differences(&a, &b).unwrap();
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(
            found
                .iter()
                .any(|d| d.contains("byte 6 differs") && d.contains("two"))
        );
        fs::remove_dir_all(a.parent().unwrap()).unwrap();
    }
}
