//! `--map PATH=URL`: files that the program finds, and where their contents come from.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use farpage_host::{Figures, Files, Object, Opening, Request};
use farpage_object::{Control, PageRange, Pager};
use farpage_source::open::{Address, OpenOptions, open_source};
use farpage_source::{
    Cache, Options, Reach, Recorder, Source, SourcePager, Traced, Traces, yet_to_be_recorded,
};
use farpage_sys::file::Fd;
use serde::{Deserialize, Serialize};

use crate::config::RunOptions;
use crate::{exec, replay};

/// What the cache on the disk may take.
const CACHE_BYTES: u64 = 10 << 30;

/// One `--map`, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapOption {
    /// The path as it was given: what traces call the file.
    pub name: String,
    /// Where the program finds the file: absolute, without `.`, `..` and doubled slashes.
    pub path: String,
    /// Where the contents come from.
    pub url: String,
}

/// The path with the links of its folder followed, if that is another one.
fn resolved(path: &str) -> Option<String> {
    let path = Path::new(path);
    let name = path.file_name()?;
    let folder = path.parent()?.canonicalize().ok()?;
    let other = folder.join(name);
    (other != path).then(|| other.to_str().map(str::to_string))?
}

/// What a URL names, decompressed when it is packed; and the cache that its bytes are kept in, if
/// one is named and they are not near anyway.
///
/// # Errors
/// Why it cannot be opened.
pub fn open(url: &str, deadline: Option<Duration>) -> Result<(Arc<dyn Source>, Option<Cache>)> {
    if let Some(shared) = exec::open_shared(url)? {
        return Ok((shared, None));
    }
    let cache = match std::env::var_os("FARPAGE_CACHE") {
        Some(folder) if !folder.is_empty() => Some(Cache::open(Path::new(&folder), CACHE_BYTES)?),
        _ => None,
    };
    let options = OpenOptions {
        cache: cache.clone(),
        deadline,
        ..OpenOptions::default()
    };
    let is_url = matches!(Address::parse(url), Address::Url(_));
    Ok((open_source(url, &options)?, cache.filter(|_| is_url)))
}

/// Files that were opened, before the program starts.
pub struct OpenedFiles {
    opening: Opening,
    /// What was asked for.
    pub options: Vec<MapOption>,
    pagers: Vec<Arc<SourcePager>>,
    /// What the files are kept in on the disk: one handle for each, with counts of its own.
    caches: Vec<Option<Cache>>,
    deadline: Option<Duration>,
}

impl OpenedFiles {
    /// Opens all of `options`, at the same time.
    fn new(
        control: &'static Control,
        options: &[MapOption],
        deadline: Option<Duration>,
    ) -> Result<Self> {
        let mut opened = Self {
            opening: Opening::new(control)?,
            options: Vec::new(),
            pagers: Vec::new(),
            caches: Vec::new(),
            deadline,
        };
        let found = at_once(options, |option| open(&option.url, deadline));
        for (option, found) in options.iter().zip(found) {
            opened.add(option.clone(), found?)?;
        }
        Ok(opened)
    }

    fn add(
        &mut self,
        option: MapOption,
        (source, cache): (Arc<dyn Source>, Option<Cache>),
    ) -> Result<()> {
        let default = Options::default();
        let options = Options {
            deadline: self.deadline.unwrap_or(default.deadline),
            ..default
        };
        let pager = Arc::new(SourcePager::new(source, &options));
        self.opening.add(Request {
            also: resolved(&option.path).or_else(|| exec::other_path(&option)),
            path: option.path.clone(),
            bytes: pager.source().size(),
            pager: Arc::clone(&pager) as Arc<dyn Pager>,
        })?;
        self.options.push(option);
        self.pagers.push(pager);
        self.caches.push(cache);
        Ok(())
    }

    /// Opens the first that is there of each of `all`, at the same time; none is no failure.
    ///
    /// # Errors
    /// What is there and cannot be opened.
    pub fn add_first_found(&mut self, all: Vec<Vec<MapOption>>) -> Result<()> {
        let deadline = self.deadline;
        let first = |candidates: &Vec<MapOption>| -> Result<Option<(MapOption, _)>> {
            for candidate in candidates {
                match open(&candidate.url, deadline) {
                    Ok(found) => return Ok(Some((candidate.clone(), found))),
                    Err(error) if exec::is_missing(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(None)
        };
        for found in at_once(&all, first) {
            if let Some((option, found)) = found? {
                self.add(option, found)?;
            }
        }
        Ok(())
    }

    /// The memory object of a file.
    pub fn object(&self, number: usize) -> &Object {
        self.opening.object(number)
    }

    /// The size of a file.
    pub fn size(&self, number: usize) -> u64 {
        self.source(number).size()
    }

    /// Whether its pages come from another machine.
    pub fn is_far(&self, number: usize) -> bool {
        self.source(number).reach() == Reach::Far
    }

    fn source(&self, number: usize) -> &dyn Source {
        &**self.pagers[number].source()
    }

    /// The file is a program: these pages of it stay in memory.
    ///
    /// # Errors
    /// When they are too many for `--ram`.
    pub fn is_executable(&self, number: usize, before_start: &[PageRange]) -> Result<()> {
        Ok(self.opening.is_executable(number, before_start)?)
    }
}

/// What becomes of each of `all`, each in a thread of its own.
pub fn at_once<T: Sync, R: Send>(all: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads = all.iter().map(|each| scope.spawn(move || work(each)));
        let threads: Vec<_> = threads.collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|done| done.expect("it does not panic"))
            .collect()
    })
}

/// What became of a file of `--map`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapJson {
    /// Where the program found it.
    pub path: String,
    /// Where its contents come from; without credentials.
    pub source: String,
    /// Its size.
    pub bytes: u64,
    /// What of it was in RAM at the end.
    pub resident_bytes: u64,
    /// The most of it that was in RAM.
    pub resident_max_bytes: u64,
    /// Requests for pages that somebody waited for.
    pub page_ins: u64,
    /// What came into RAM, over all.
    pub paged_in_bytes: u64,
    /// Those of them that nobody waited for yet: `--replay`, and what programs announced.
    pub ahead_bytes: u64,
    /// Reads of the source.
    pub reads: u64,
    /// What they brought.
    pub read_bytes: u64,
    /// What of it the cache on the disk had; `None` without one.
    pub cache_hit_bytes: Option<u64>,
    /// Reads that failed for good.
    pub failures: u64,
}

/// The mapped files of a run.
pub struct MappedFiles {
    mapped: &'static Files,
    /// The memory files.
    pub files: Vec<Fd>,
    pagers: Vec<Arc<SourcePager>>,
    /// What the files are kept in on the disk: one handle for each, with counts of its own.
    caches: Vec<Option<Cache>>,
    recorder: Option<Arc<Recorder>>,
}

/// Opens what `--map` names and starts to answer for it. `None` without any. Also returns what the
/// program is to have to talk to this process.
///
/// # Errors
/// What cannot be opened, and why; what is wrong with the trace of `--replay`.
pub fn start(
    control: &'static Control,
    options: &RunOptions,
) -> Result<Option<(MappedFiles, OwnedFd)>> {
    if options.maps.is_empty() {
        return Ok(None);
    }
    // Before `--record` makes its file: it may be the same.
    let recorded = |path: &&Path| !yet_to_be_recorded(path, options.record.as_deref());
    let traces = options.replay.as_deref().filter(recorded);
    let traces = traces.map(Traces::read).transpose();
    let traces = traces.context("cannot replay")?;
    let mut opened =
        OpenedFiles::new(control, &options.maps, options.deadline).map_err(|error| {
            if options.exec.is_some() {
                exec::missing(error)
            } else {
                error
            }
        })?;
    let mut runs = Vec::new();
    if let Some(exec) = &options.exec {
        let loaded = exec::load(&mut opened, exec)?;
        // What is recorded is what the program asks for.
        if options.record.is_none() {
            runs = exec::ahead(&opened, &loaded, exec);
        }
    }
    if let Some(traces) = traces {
        runs = replayed(&traces, &opened);
    }
    let traced = traced(&opened);
    let (caches, pagers) = (opened.caches, opened.pagers);
    let (mapped, socket) = opened.opening.start()?;
    let recorder = options.record.as_deref().map(|path| {
        let recorder = Recorder::new(path, &traced).context("cannot record")?;
        Ok::<_, anyhow::Error>(Arc::new(recorder))
    });
    let recorder = recorder.transpose()?;
    if let Some(recorder) = &recorder {
        record(recorder, &pagers);
    }
    if !runs.is_empty() {
        mapped.replay(runs)?;
    }
    let files = MappedFiles {
        mapped,
        files: mapped.descriptors(),
        pagers,
        caches,
        recorder,
    };
    Ok(Some((files, socket)))
}

/// The runs of `traces` that should be brought in. Says what is left out.
fn replayed(traces: &Traces, opened: &OpenedFiles) -> Vec<(usize, PageRange)> {
    let options = opened.options.iter().enumerate();
    let maps: Vec<_> = options
        .map(|(number, option)| replay::ReplayedMap {
            name: &option.name,
            source: opened.source(number),
        })
        .collect();
    let (runs, messages) = replay::plan(traces, &maps);
    for message in messages {
        farpage_sys::say!("farpage: {message}");
    }
    runs
}

/// What `--record` says of the files. The only one needs no name.
fn traced(opened: &OpenedFiles) -> Vec<Traced> {
    let named = opened.options.len() > 1;
    let of = |(number, option): (usize, &MapOption)| Traced {
        name: named.then(|| option.name.clone()),
        size: opened.size(number),
        version: opened.source(number).version(),
    };
    opened.options.iter().enumerate().map(of).collect()
}

/// Has what is asked for recorded from now on: each file's pages under its number.
fn record(recorder: &Arc<Recorder>, pagers: &[Arc<SourcePager>]) {
    for (number, pager) in pagers.iter().enumerate() {
        let noted = Arc::clone(recorder);
        pager.watch_requests(move |pages| noted.note(number, pages));
    }
}

impl MappedFiles {
    /// The trace of `--record` is in its file; otherwise says why not.
    pub fn end_record(&self) {
        let Some(recorder) = &self.recorder else {
            return;
        };
        if let Err(error) = recorder.flush() {
            farpage_sys::say!(
                "farpage: warning: the trace of --record is not whole: {error}; make room there, \
                 or give another path"
            );
        }
    }

    /// What became of each file.
    pub fn figures(&self) -> Vec<MapJson> {
        let figures = self.mapped.figures().into_iter();
        let of = figures.zip(&self.pagers).zip(&self.caches);
        of.map(|((figures, pager), cache)| json(figures, pager, cache.as_ref()))
            .collect()
    }
}

fn json(figures: Figures, pager: &SourcePager, cache: Option<&Cache>) -> MapJson {
    let (source, counts) = (pager.source(), pager.counts());
    let usage = cache.and_then(|cache| cache.usage().ok());
    MapJson {
        path: figures.path,
        source: source.name().to_owned(),
        bytes: source.size(),
        resident_bytes: figures.resident_bytes,
        resident_max_bytes: figures.resident_max_bytes,
        page_ins: figures.page_ins,
        paged_in_bytes: figures.brought_bytes,
        ahead_bytes: figures.ahead_bytes,
        reads: counts.reads,
        read_bytes: counts.read_bytes,
        cache_hit_bytes: usage.map(|usage| usage.hit_bytes),
        failures: counts.failures,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_nobody_can_read_is_refused() {
        let scheme = open("gopher://host/x", None)
            .err()
            .map(|error| error.to_string());
        assert!(scheme.is_some_and(|text| text.contains("no way to read")));
    }
}
