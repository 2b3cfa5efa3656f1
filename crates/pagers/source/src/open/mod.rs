//! From an address to a source: [`open_source`].

mod error;
mod overlay;
mod places;
mod staged;

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::{
    Cache, Compression, FileSource, OnFailure, OpenMode, Patient, Reach, Retry, Source, Trace,
    decompress, is_compressed,
};

pub use error::OpenSourceError;
pub use overlay::{Layered, Overlay};
pub use places::{Place, Places};
pub use staged::Staged;

/// One request may take so long, however short the deadline is.
const ONE_TRY_LEAST: Duration = Duration::from_secs(1);

/// Where something is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// In the file system.
    Path(PathBuf),
    /// Behind a scheme: `https://`, `s3://` and so on.
    Url(String),
}

impl Address {
    /// Understands a path, `file://` (of this host, with percent signs as in other addresses) and
    /// other addresses.
    pub fn parse(text: &str) -> Self {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Self::Path(text.into());
        };
        let letters = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        if scheme.is_empty() || !scheme.chars().all(letters) {
            return Self::Path(text.into());
        }
        match scheme.to_ascii_lowercase().as_str() {
            // What is left with a host, of which there is no file here, is refused as other schemes
            // are.
            "file" => match rest.strip_prefix("localhost").unwrap_or(rest) {
                path if path.starts_with('/') => {
                    let bytes = percent_encoding::percent_decode_str(path).collect();
                    Self::Path(OsString::from_vec(bytes).into())
                }
                _ => Self::Url(text.into()),
            },
            _ => Self::Url(text.into()),
        }
    }
}

/// What something is opened for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Reading.
    #[default]
    Read,
    /// Reading and writing, of a local file or an object in a store.
    ///
    /// An object is replaced as a whole, by a flush and when it is closed: until
    /// then what was written lies in memory and in an unnamed file, and others see the old object.
    /// What was not written is read from the old one and sent again. Somebody else's change in the
    /// meantime is [`crate::SourceError::Changed`], and is not overwritten.
    Write,
    /// As [`Mode::Write`], of something new. What a file of that name held is lost; an object must
    /// not exist, is zeros, and is there after the first flush.
    Create,
    /// Reading, and writing to a private copy: what is written is kept as long as it is open, in
    /// memory and in an unnamed file, and never reaches the source.
    Copy,
}

/// How something is opened.
#[derive(Clone, Default)]
pub struct OpenOptions {
    /// For what.
    pub mode: Mode,
    /// Bytes, of what is made ([`Mode::Create`]) or a file that grows ([`Mode::Write`]). What is to
    /// be read of a file says its [`Place`].
    pub size: Option<u64>,
    /// Bytes of it that are resident at most. `None`: it shares the default budget
    /// of the process.
    pub ram: Option<u64>,
    /// Where to keep what is fetched from far away.
    pub cache: Option<Cache>,
    /// What happens when bytes cannot be had.
    pub on_failure: OnFailure,
    /// How long a far source is tried again. `None`: 20 s when it is opened, a minute when it is
    /// read.
    pub deadline: Option<Duration>,
    /// Headers of requests to HTTP servers.
    pub headers: Vec<(String, String)>,
    /// Whether to decompress. `None`: when the name ends in `.gz`, `.zst` or `.zstd`.
    pub decompress: Option<bool>,
    /// Brings in what is recorded there, in that order, while the program already runs.
    pub replay: Option<Arc<Trace>>,
}

impl OpenOptions {
    /// How long a far source is tried again while it is opened, each request of it.
    pub fn retry(&self) -> Retry {
        remote(self).retry
    }
}

/// Opens the source at an address, or that which [`Places`] make: with what its options say of
/// it, but not mapped. (A private copy, [`Mode::Copy`], begins where it is mapped.) What is written
/// to an object in a store is there after [`Source::sync`].
///
/// # Errors
/// [`OpenSourceError::Source`]; [`OpenSourceError::Argument`] when something is to be written that is neither a local
/// file nor an object in a store, for a part that does not lie inside, and where parts would have
/// to be made or to grow.
pub fn open_source(
    places: impl Into<Places>,
    options: &OpenOptions,
) -> Result<Arc<dyn Source>, OpenSourceError> {
    places.into().open(options).map(OpenedSource::into_source)
}

/// What was opened.
pub enum OpenedSource {
    /// Local files as they are.
    File(Arc<dyn Source>),
    /// An object in a store, open for writing.
    Staged(Arc<Staged>),
    /// Anything else.
    Other(Arc<dyn Source>),
}

impl OpenedSource {
    /// Whatever it is, as a source.
    pub fn into_source(self) -> Arc<dyn Source> {
        match self {
            Self::File(source) | Self::Other(source) => source,
            Self::Staged(staged) => staged,
        }
    }

    /// What it is, whatever kind of thing.
    pub fn source(&self) -> &dyn Source {
        match self {
            Self::File(source) | Self::Other(source) => &**source,
            Self::Staged(staged) => &**staged,
        }
    }
}

/// Opens all there is at one address, and says what kind of thing it is.
fn open_one(address: &str, options: &OpenOptions) -> Result<OpenedSource, OpenSourceError> {
    let opened = open_there(address, options)?;
    // What is packed is bytes to nobody who writes numbers.
    if options.mode == Mode::Write && options.decompress != Some(false) {
        let name = opened.source().name().to_owned();
        let look = || is_compressed(opened.source());
        if is_named_compressed(address) && options.retry().run(look)?.is_some() {
            return Err(only_read(&name));
        }
    }
    Ok(opened)
}

fn only_read(name: &str) -> OpenSourceError {
    OpenSourceError::Argument {
        what: "mode",
        why: format!("'{name}' is compressed, and what is compressed is only read"),
        remedy: "open it for reading or for a private copy; or, without decompressing, the bytes \
                 as they lie there",
    }
}

fn open_there(address: &str, options: &OpenOptions) -> Result<OpenedSource, OpenSourceError> {
    let writes = matches!(options.mode, Mode::Write | Mode::Create);
    let makes = options.mode == Mode::Create && options.decompress.is_none();
    if writes && options.decompress == Some(true) || makes && is_named_compressed(address) {
        return Err(only_read(address));
    }
    let place = Address::parse(address);
    let is_file = matches!(place, Address::Path(_));
    let source = match place {
        Address::Path(path) => open_file(&path, options)?,
        Address::Url(url) if writes => return open_staged(&url, options),
        Address::Url(url) => open_far(&url, options)?,
    };
    let (source, packed) = decompressed(source, address, options)?;
    Ok(match is_file && !packed {
        true => OpenedSource::File(source),
        false => OpenedSource::Other(source),
    })
}

fn open_staged(url: &str, options: &OpenOptions) -> Result<OpenedSource, OpenSourceError> {
    if !crate::remote::is_object(url)? {
        return Err(OpenSourceError::Argument {
            what: "mode",
            why: "only local files and objects in stores can be written to in place".into(),
            remedy: "open it for a private copy, or write to a local file and upload that",
        });
    }
    let staged = Staged::open(url, &remote(options), options)?;
    Ok(OpenedSource::Staged(Arc::new(staged)))
}

fn open_file(path: &Path, options: &OpenOptions) -> Result<Arc<dyn Source>, OpenSourceError> {
    let mode = match options.mode {
        Mode::Read | Mode::Copy => OpenMode::Read,
        Mode::Write => OpenMode::Write,
        Mode::Create => OpenMode::Create,
    };
    Ok(Arc::new(FileSource::open(path, mode, options.size)?))
}

fn open_far(url: &str, options: &OpenOptions) -> Result<Arc<dyn Source>, OpenSourceError> {
    let source = crate::remote::open(url, &remote(options))?;
    Ok(match &options.cache {
        Some(cache) if source.reach() == Reach::Far => cache.keep(source),
        Some(_) | None => source,
    })
}

/// How servers are talked to.
fn remote(options: &OpenOptions) -> crate::remote::Options {
    let default = crate::remote::Options::default();
    // Whoever waits for less long does not wait for one silent server for longer.
    let deadline = options.deadline.map(|deadline| deadline.max(ONE_TRY_LEAST));
    let at_most = |time: Duration| deadline.map_or(time, |deadline| time.min(deadline));
    crate::remote::Options {
        headers: options.headers.clone(),
        connect_timeout: at_most(default.connect_timeout),
        silence_timeout: at_most(default.silence_timeout),
        retry: Retry {
            deadline: deadline.unwrap_or(default.retry.deadline),
        },
        ..default
    }
}

fn is_named_compressed(address: &str) -> bool {
    let ends = [".gz", ".zst", ".zstd"];
    let has_end = |name: &[u8]| ends.iter().any(|end| name.ends_with(end.as_bytes()));
    match Address::parse(address) {
        Address::Path(path) => has_end(path.as_os_str().as_bytes()),
        // What follows the name of a file is no part of it.
        Address::Url(url) => has_end(url.split(['?', '#']).next().unwrap_or(&url).as_bytes()),
    }
}

fn decompressed(
    source: Arc<dyn Source>,
    address: &str,
    options: &OpenOptions,
) -> Result<(Arc<dyn Source>, bool), OpenSourceError> {
    let reads = matches!(options.mode, Mode::Read | Mode::Copy);
    let named = || is_named_compressed(address);
    if !reads || !options.decompress.unwrap_or_else(named) {
        return Ok((source, false));
    }
    let retry = options.retry();
    let found: Option<Compression> = retry.run(|| is_compressed(&*source))?;
    if found.is_none() && options.decompress.is_none() {
        return Ok((source, false));
    }
    let folder = options.cache.as_ref().map(Cache::folder);
    let source = Arc::new(Patient { source, retry });
    Ok((decompress(source, folder, &mut |_, _| ())?, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_paths_are_told_apart() {
        let path = |text: &str| Address::Path(text.into());
        let url = |text: &str| Address::Url(text.into());
        for (text, wanted) in [
            ("a/b.npy", path("a/b.npy")),
            ("file:///a/b", path("/a/b")),
            ("FILE://localhost/a", path("/a")),
            ("file:///a%20b%2F100%.npy", path("/a b/100%.npy")),
            ("file://host/a", url("file://host/a")),
            ("file://localhostile/a", url("file://localhostile/a")),
            ("https://host/x?y=z", url("https://host/x?y=z")),
            ("s3://bucket/key", url("s3://bucket/key")),
            ("strange name://x", path("strange name://x")),
            ("://x", path("://x")),
        ] {
            assert_eq!(Address::parse(text), wanted, "{text}");
        }
    }

    #[test]
    fn names_say_what_is_compressed() {
        for name in [
            "a.gz",
            "run#1.npy.gz",
            "what?.zst",
            "file:///a%2Egz",
            "s3://b/a.gz?x#y",
        ] {
            assert!(is_named_compressed(name), "{name}");
        }
        for name in [
            "a",
            "x.gz#old",
            "a.zst?b",
            "http://h/a?b.gz",
            "file:///a.gz%23",
        ] {
            assert!(!is_named_compressed(name), "{name}");
        }
    }
}
