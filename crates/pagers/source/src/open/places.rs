//! Several addresses, or some of the bytes of one, as a source.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use farpage_sys::pthread;

use super::{Address, Mode, OpenOptions, OpenSourceError, OpenedSource, open_one};
use crate::{Concat, Slice, Source, SourceError};

/// Addresses that are opened at a time, where opening waits for a server.
const AT_A_TIME: usize = 16;

/// All bytes at an address, or some of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// A path or an URL.
    pub address: String,
    /// The first byte, of what is decompressed there. `None`: the first there is.
    pub offset: Option<u64>,
    /// Number of bytes. `None`: all from there on; with an offset, and an array of a fixed
    /// shape, what that takes.
    pub size: Option<u64>,
}

/// What is opened: the bytes of a place, or those of several, one after another.
///
/// ```
/// use farpage_source::open::{Place, Places};
///
/// let one = Places::from("https://host/x.npy");
/// let two = Places(vec![
///     Place::from("a.bin"),
///     Place { offset: Some(4096), size: None, ..Place::from("https://host/b.bin") },
/// ]);
/// # assert_eq!((one.0.len(), two.0.len()), (1, 2));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places(pub Vec<Place>);

impl From<&str> for Place {
    fn from(address: &str) -> Self {
        Self {
            address: address.into(),
            offset: None,
            size: None,
        }
    }
}

impl From<&str> for Places {
    fn from(address: &str) -> Self {
        Self(vec![address.into()])
    }
}

impl From<&String> for Places {
    fn from(address: &String) -> Self {
        address.as_str().into()
    }
}

impl Place {
    fn is_whole(&self) -> bool {
        self.offset.is_none() && self.size.is_none()
    }
}

impl Places {
    /// All there is at one address, which may be made and may grow.
    pub fn as_whole(&self) -> Option<&str> {
        match self.0.as_slice() {
            [place] if place.is_whole() => Some(&place.address),
            _ => None,
        }
    }

    /// The same from everywhere: paths from the root on.
    pub fn absolute(&self) -> Self {
        let absolute = |place: &Place| Place {
            address: match Address::parse(&place.address) {
                Address::Path(path) => std::path::absolute(&path)
                    .unwrap_or(path)
                    .display()
                    .to_string(),
                Address::Url(url) => url,
            },
            ..place.clone()
        };
        Self(self.0.iter().map(absolute).collect())
    }

    /// Opens all of them, and makes one source of what is meant of each.
    pub fn open(&self, options: &OpenOptions) -> Result<OpenedSource, OpenSourceError> {
        if let Some(address) = self.as_whole() {
            let could_make = options.mode == Mode::Write;
            return open_one(address, options).map_err(|error| match could_make {
                true => or_make(error),
                false => error,
            });
        }
        self.refuse(options.mode)?;
        let each = OpenOptions {
            size: None,
            ..options.clone()
        };
        let mut parts = Vec::with_capacity(self.0.len());
        for places in self.0.chunks(AT_A_TIME) {
            parts.extend(open_at_once(places, &each)?);
        }
        let are_files = parts
            .iter()
            .all(|part| matches!(part, OpenedSource::File(_)));
        let parts = parts.into_iter().zip(&self.0);
        let parts = parts.map(|(part, place)| place.cut(part.into_source()));
        let mut parts: Vec<Arc<dyn Source>> = parts.collect::<Result<_, _>>()?;
        let source = match parts.len() {
            1 => parts.swap_remove(0),
            _ => Arc::new(Concat::new(parts)?),
        };
        if let Some(size) = options.size.filter(|size| *size > source.size()) {
            return Err(OpenSourceError::Argument {
                what: "size",
                why: format!(
                    "'{}' has {} bytes, not {size}, and parts do not grow",
                    source.name(),
                    source.size()
                ),
                remedy: "open the file that is to grow by itself",
            });
        }
        Ok(match are_files {
            true => OpenedSource::File(source),
            false => OpenedSource::Other(source),
        })
    }

    /// What cannot be done with parts.
    fn refuse(&self, mode: Mode) -> Result<(), OpenSourceError> {
        let refused = |what, why: &str, remedy| {
            let why = why.into();
            Err(OpenSourceError::Argument { what, why, remedy })
        };
        if self.0.is_empty() {
            return refused("parts", "there are none", "name at least one");
        }
        match mode {
            Mode::Read | Mode::Copy => Ok(()),
            Mode::Write => self.check_writing(),
            Mode::Create => refused(
                "mode",
                "parts are of what is there, and not made",
                "make each file by itself, and open them for writing then",
            ),
        }
    }

    /// That all can be written to in parts, and no byte is in two pages, of which one would be
    /// written over the other.
    fn check_writing(&self) -> Result<(), OpenSourceError> {
        let mut files: HashMap<(u64, u64), Vec<(u64, u64)>> = HashMap::new();
        for place in &self.0 {
            let path = match Address::parse(&place.address) {
                Address::Path(path) => path,
                Address::Url(url) if crate::remote::is_object(&url)? => {
                    return Err(OpenSourceError::Argument {
                        what: "mode",
                        why: "objects in stores are replaced as a whole, and not in parts".into(),
                        remedy: "open each by itself, or all for a private copy",
                    });
                }
                // Which cannot be written to at all.
                Address::Url(_) => continue,
            };
            // Whatever its name: a file can have several. One that is missing is found out later.
            let Ok(metadata) = std::fs::metadata(path) else {
                continue;
            };
            let file = (metadata.dev(), metadata.ino());
            let start = place.offset.unwrap_or(0);
            let end = start.saturating_add(place.size.unwrap_or(u64::MAX));
            let ranges = files.entry(file).or_default();
            if ranges.iter().any(|other| other.0 < end && start < other.1) {
                return Err(OpenSourceError::Argument {
                    what: "parts",
                    why: format!("two have the same bytes of '{}'", place.address),
                    remedy: "write to each byte in one place: leave one out, or open for reading",
                });
            }
            ranges.push((start, end));
        }
        Ok(())
    }
}

impl Place {
    /// What is meant of the source that is there.
    fn cut(&self, source: Arc<dyn Source>) -> Result<Arc<dyn Source>, OpenSourceError> {
        if self.is_whole() {
            return Ok(source);
        }
        let start = self.offset.unwrap_or(0);
        let rest = source.size().checked_sub(start);
        match rest.filter(|rest| self.size.unwrap_or(0) <= *rest) {
            Some(rest) => {
                let size = self.size.unwrap_or(rest);
                Ok(Arc::new(Slice::new(source, start, size)?))
            }
            None => Err(self.outside(&*source, start)),
        }
    }

    fn outside(&self, source: &dyn Source, start: u64) -> OpenSourceError {
        let (name, bytes) = (source.name(), source.size());
        let what = match self.size {
            Some(size) => format!("bytes {start} to {} are", start.saturating_add(size)),
            None => format!("byte {start} is"),
        };
        OpenSourceError::Argument {
            what: "range",
            why: format!("{what} not inside '{name}', which has {bytes}"),
            remedy: match source.is_writable() {
                true => {
                    "give a range inside; a file grows when it is opened from its first byte on"
                }
                false => "give a range inside",
            },
        }
    }
}

/// What is missing, and could be made.
fn or_make(error: OpenSourceError) -> OpenSourceError {
    match error {
        OpenSourceError::Source(SourceError::NotFound { name, cause, .. }) => {
            let remedy = "check the name, or have it made: mode 'w+'";
            let error = SourceError::NotFound {
                name,
                cause,
                remedy,
            };
            error.into()
        }
        other => other,
    }
}

/// Opens what is there at the same time.
fn open_at_once(
    places: &[Place],
    options: &OpenOptions,
) -> Result<Vec<OpenedSource>, OpenSourceError> {
    let threads = places.iter().map(|place| {
        let waits = matches!(Address::parse(&place.address), Address::Url(_));
        let (address, options) = (place.address.clone(), options.clone());
        let open = move || open_one(&address, &options);
        // What needs no server, or finds no thread, is opened here, when its turn comes.
        let thread = waits.then(|| pthread::start_joined(c"farpage-open", open));
        (place, thread.and_then(Result::ok))
    });
    let threads: Vec<_> = threads.collect();
    let opened = threads.into_iter().map(|(place, thread)| match thread {
        Some(thread) => thread.join().unwrap_or_else(|panic| {
            // As it would be without the thread.
            std::panic::resume_unwind(panic)
        }),
        None => open_one(&place.address, options),
    });
    // All end before one that failed is told of.
    let opened: Vec<_> = opened.collect();
    opened.into_iter().collect()
}
