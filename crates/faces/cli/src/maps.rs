//! `--map PATH=URL`: what it says, and what is said of the file at the end.

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use farpage_supervisor::maps::{MapJson, MapOption};
use farpage_text::size::{counted, human};

/// Reads `--map` options; a relative path is seen from `folder`.
///
/// # Errors
/// The first that is wrong, and what to write instead.
pub fn options(texts: &[OsString], folder: &Path) -> Result<Vec<MapOption>> {
    let mut options: Vec<MapOption> = Vec::new();
    for text in texts {
        let shown = text.to_string_lossy();
        let wrong = |why: &str| format!("cannot read --map '{shown}': {why}");
        let text = text.to_str().with_context(|| wrong("it is not UTF-8"))?;
        let (name, url) = text
            .split_once('=')
            .with_context(|| wrong("write PATH=URL, e.g. data.npy=https://host/data.npy"))?;
        ensure!(!name.is_empty(), wrong("the path before '=' is empty"));
        ensure!(!url.is_empty(), wrong("there is nothing behind '='"));
        ensure!(
            !name.ends_with('/'),
            wrong("the path before '=' is a folder; name a file")
        );
        let path = lexical(&folder.join(name));
        ensure!(path != "/", wrong("the path before '=' is the root"));
        if options.iter().any(|other| other.path == path) {
            bail!(wrong("another --map has this path; leave one out"));
        }
        options.push(MapOption {
            name: name.to_string(),
            path,
            url: url.to_string(),
        });
    }
    Ok(options)
}

/// The same path without `.`, `..` and doubled slashes, by its names alone.
fn lexical(path: &Path) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(parts.pop()),
            Component::Normal(name) => parts.push(name.to_str().unwrap_or_default()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    format!("/{}", parts.join("/"))
}

/// A line of the summary.
pub fn line(map: &MapJson) -> String {
    let mut line = format!(
        "farpage: mapped {}: {}; read {} in {}",
        map.path,
        human(map.bytes),
        human(map.read_bytes),
        counted(map.reads, "request")
    );
    match map.cache_hit_bytes {
        Some(bytes) if bytes > 0 => line += &format!(", {} of it from the cache", human(bytes)),
        _ => {}
    }
    if map.ahead_bytes > 0 {
        line += &format!(", {} ahead of need", human(map.ahead_bytes));
    }
    line += &format!(
        "; {}, {} in RAM at most and {} at the end",
        counted(map.page_ins, "page-in"),
        human(map.resident_max_bytes),
        human(map.resident_bytes)
    );
    if map.failures > 0 {
        line += &format!("; {} failed", counted(map.failures, "request"));
    }
    line + "\n"
}

/// The folder that relative paths are seen from.
///
/// # Errors
/// When it is gone.
pub fn folder() -> Result<PathBuf> {
    std::env::current_dir().context("cannot run: the current folder is gone; change to another")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(texts: &[&str]) -> Result<Vec<(String, String)>> {
        let texts: Vec<OsString> = texts.iter().map(Into::into).collect();
        let read = options(&texts, Path::new("/home/me"))?;
        Ok(read.into_iter().map(|o| (o.path, o.url)).collect())
    }

    #[test]
    fn paths_and_addresses_are_read() {
        let read = read(&["a.npy=/mnt/a", "/x//y/../b=http://host/b?c=d"]).unwrap();
        let pair = |path: &str, url: &str| (path.to_string(), url.to_string());
        let want = [
            pair("/home/me/a.npy", "/mnt/a"),
            pair("/x/b", "http://host/b?c=d"),
        ];
        assert_eq!(read, want);
    }

    #[test]
    fn a_file_is_accounted_for_in_a_line() {
        let plain = MapJson {
            path: "/x/model.bin".to_string(),
            source: "https://host/model.bin".to_string(),
            bytes: 3 << 29,
            resident_bytes: 150 << 20,
            resident_max_bytes: 180 << 20,
            page_ins: 123,
            paged_in_bytes: 212 << 20,
            ahead_bytes: 0,
            reads: 97,
            read_bytes: 212 << 20,
            cache_hit_bytes: None,
            failures: 0,
        };
        let head = "farpage: mapped /x/model.bin: 1.50 GiB; read 212 MiB in 97 requests";
        let tail = "123 page-ins, 180 MiB in RAM at most and 150 MiB at the end";
        assert_eq!(line(&plain), format!("{head}; {tail}\n"));
        let all = MapJson {
            ahead_bytes: 40 << 20,
            cache_hit_bytes: Some(100 << 20),
            failures: 3,
            ..plain
        };
        let parts = "100 MiB of it from the cache, 40.0 MiB ahead of need";
        let want = format!("{head}, {parts}; {tail}; 3 requests failed\n");
        assert_eq!(line(&all), want);
    }

    #[test]
    fn wrong_ones_are_refused_with_what_to_write() {
        let refused = |texts: &[&str]| read(texts).unwrap_err().to_string();
        assert!(refused(&["file"]).contains("write PATH=URL"));
        assert!(refused(&["=/a"]).contains("the path before '=' is empty"));
        assert!(refused(&["a="]).contains("nothing behind '='"));
        assert!(refused(&["a/=b"]).contains("is a folder"));
        assert!(refused(&["a=b", "/home/me/./a=c"]).contains("another --map has this path"));
    }
}
