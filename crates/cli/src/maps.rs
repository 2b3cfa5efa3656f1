//! `--map PATH=URL`: files that the program finds, and where their contents come from.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use farpage::{Cache, OpenOptions, Source, open_source};
use farpage_abi::Control;
use farpage_host::{Figures, Host, Request};
use farpage_sys::file::Fd;

use crate::size::human;

/// What the cache on the disk may take.
const CACHE_BYTES: u64 = 10 << 30;

/// One `--map`, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapOption {
    /// Where the program finds the file: absolute, without `.`, `..` and doubled slashes.
    pub path: String,
    /// Where the contents come from.
    pub url: String,
}

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
        let (path, url) = text
            .split_once('=')
            .with_context(|| wrong("write PATH=URL, e.g. data.npy=/mnt/data.npy"))?;
        ensure!(!path.is_empty(), wrong("the path before '=' is empty"));
        ensure!(!url.is_empty(), wrong("there is nothing behind '='"));
        ensure!(
            !path.ends_with('/'),
            wrong("the path before '=' is a folder; name a file")
        );
        let path = lexical(&folder.join(path));
        ensure!(path != "/", wrong("the path before '=' is the root"));
        if options.iter().any(|other| other.path == path) {
            bail!(wrong("another --map has this path; leave one out"));
        }
        options.push(MapOption {
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

/// The path with the links of its folder followed, if that is another one.
fn resolved(path: &str) -> Option<String> {
    let path = Path::new(path);
    let name = path.file_name()?;
    let folder = path.parent()?.canonicalize().ok()?;
    let other = folder.join(name);
    (other != path).then(|| other.to_str().map(str::to_string))?
}

/// What a URL names, decompressed when it is packed, and kept in the cache if one is named.
fn open(url: &str) -> Result<Arc<dyn Source>> {
    let cache = match std::env::var_os("FARPAGE_CACHE") {
        Some(folder) if !folder.is_empty() => Some(Cache::open(Path::new(&folder), CACHE_BYTES)?),
        _ => None,
    };
    let options = OpenOptions {
        cache,
        ..OpenOptions::default()
    };
    Ok(open_source(url, &options)?)
}

/// The mapped files of a run.
pub struct Maps {
    host: &'static Host,
    /// What the program is to have to talk to this process; given away when it has started.
    pub socket: Option<OwnedFd>,
    /// The memory files.
    pub files: Vec<Fd>,
}

/// Opens what `--map` names and starts to answer for it. `None` without any.
///
/// # Errors
/// What cannot be opened, and why.
pub fn start(control: &'static Control, options: &[MapOption]) -> Result<Option<Maps>> {
    if options.is_empty() {
        return Ok(None);
    }
    let mut requests = Vec::new();
    for option in options {
        requests.push(Request {
            also: resolved(&option.path),
            path: option.path.clone(),
            source: open(&option.url)?,
        });
    }
    let (host, socket) = Host::start(control, requests)?;
    Ok(Some(Maps {
        host,
        socket: Some(socket),
        files: host.descriptors(),
    }))
}

impl Maps {
    /// For the summary: a line for each file.
    pub fn summary(&self) -> String {
        self.host.figures().iter().map(line).collect()
    }
}

fn line(figures: &Figures) -> String {
    format!(
        "farpage: mapped {}: {}, of which {} were read; {} in RAM at most\n",
        figures.path,
        human(figures.bytes),
        human(figures.brought_bytes),
        human(figures.resident_max_bytes)
    )
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
    fn wrong_ones_are_refused_with_what_to_write() {
        let refused = |texts: &[&str]| read(texts).unwrap_err().to_string();
        assert!(refused(&["file"]).contains("write PATH=URL"));
        assert!(refused(&["=/a"]).contains("the path before '=' is empty"));
        assert!(refused(&["a="]).contains("nothing behind '='"));
        assert!(refused(&["a/=b"]).contains("is a folder"));
        assert!(refused(&["a=b", "/home/me/./a=c"]).contains("another --map has this path"));
        let scheme = open("gopher://host/x").err().map(|error| error.to_string());
        assert!(scheme.is_some_and(|text| text.contains("no way to read")));
    }
}
