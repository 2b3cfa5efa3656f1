//! Which pages were asked for, in order: recorded once, brought in ahead the next time.
//!
//! A text file: a line that names the format; two that name the source; then one line for each run
//! of pages, `first+count`. What is recorded of several sources names each of them in three lines,
//! the third for what it is called; among the runs a line `@number` then says of which source those
//! behind it are, counted from 0, where they begin.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use farpage_object::PageRange;

use crate::Source;

const MAGIC: &str = "farpage trace 1";
/// What traces of all versions begin with.
const MAGIC_OF_ALL: &str = "farpage trace ";

/// What a program asked for of one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The source. Of another one that is replayed which is there: [`Traced::change`] says so.
    pub source: Traced,
    /// Runs of pages of 4096 bytes, in the order in which they were first asked for.
    pub runs: Vec<PageRange>,
}

/// What programs asked for of several sources, or of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traces {
    /// The sources.
    pub sources: Vec<Traced>,
    /// Which of them, and a run of its pages of 4096 bytes, in the order in which they were first
    /// asked for.
    pub runs: Vec<(usize, PageRange)>,
}

/// A source of which is recorded what was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traced {
    /// What it is called; `None` when it is the only one.
    pub name: Option<String>,
    /// Its size in bytes.
    pub size: u64,
    /// Its version, where it has one.
    pub version: Option<String>,
}

/// Why a trace cannot be used, or not be recorded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}; {remedy}")]
pub struct TraceError {
    /// What is wrong.
    pub why: String,
    /// What to do.
    pub remedy: &'static str,
}

impl Trace {
    /// Reads what a [`Recorder`] wrote of one source.
    ///
    /// # Errors
    /// When it cannot be read or is no trace, or one of several sources.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        read(path, Self::parse)
    }

    /// Understands the bytes of a trace file. A last line that was not written whole is left out.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let Traces { mut sources, runs } = Traces::parse(bytes)?;
        let several = sources.len();
        let source = sources.pop().filter(|_| several == 1);
        let source = source.ok_or_else(|| format!("it is of {several} sources, not of one"))?;
        Ok(Self {
            source,
            runs: runs.into_iter().map(|(_, run)| run).collect(),
        })
    }
}

impl Traces {
    /// Reads what a [`Recorder`] wrote.
    ///
    /// # Errors
    /// When it cannot be read or is no trace.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        read(path, Self::parse)
    }

    /// Understands the bytes of a trace file. A last line that was not written whole is left out.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
        if bytes.is_empty() {
            return Err("it is empty".into());
        }
        if !bytes.starts_with(MAGIC_OF_ALL.as_bytes()) {
            return Err("it is no trace".into());
        }
        let text = str::from_utf8(&bytes[..whole]).map_err(|_| "it is not text".to_owned())?;
        let mut lines = text.split('\n').peekable();
        if lines.next() != Some(MAGIC) {
            return Err("it is a trace of another version of Farpage".into());
        }
        let mut sources: Vec<Traced> = Vec::new();
        while sources.is_empty() || lines.peek().is_some_and(|line| line.starts_with("size ")) {
            let source = Traced::parse(&mut lines)?;
            let called = |other: &Traced| source.name.is_some() && other.name == source.name;
            if sources.iter().any(called) {
                return Err("two of its sources have one name".into());
            }
            sources.push(source);
        }
        if sources.len() > 1 && sources.iter().any(|source| source.name.is_none()) {
            return Err("it does not name all of its sources".into());
        }
        let (mut runs, mut at) = (Vec::new(), 0);
        for line in lines {
            if let Some(number) = line.strip_prefix('@') {
                let number = number.parse().ok().filter(|number| *number < sources.len());
                at = number.ok_or_else(|| format!("no number of a source: '{line}'"))?;
                continue;
            }
            let run = sources[at].run(line);
            runs.push((at, run.ok_or_else(|| format!("no run of pages: '{line}'"))?));
        }
        Ok(Self { sources, runs })
    }
}

impl Traced {
    /// What to say of `source`, called `name`, when it is not what was recorded any more. `None`:
    /// nothing tells it from that. A trace is only advice: what is recorded of a source that has
    /// changed since then is brought in all the same, as far as it is there.
    pub fn change(&self, name: &str, source: &dyn Source) -> Option<String> {
        let size = source.size();
        // A trace has no line ends in it.
        let version = source.version().map(|version| one_line(&version));
        let what = match (&self.version, version) {
            _ if self.size != size => format!("had {} bytes and has {size}", self.size),
            (Some(was), Some(is)) if *was != is => format!("was {was} and is {is}"),
            _ => return None,
        };
        Some(format!(
            "'{name}' has changed since its trace was recorded: it {what}; what it still has of \
             the pages is brought in; record it again"
        ))
    }

    fn parse<'a>(
        lines: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>,
    ) -> Result<Self, String> {
        let size = lines.next().and_then(|line| line.strip_prefix("size "));
        let size: Option<u64> = size.and_then(|text| text.parse().ok());
        let size = size.ok_or("it does not say of what size")?;
        let version = lines.next().and_then(|line| line.strip_prefix("version "));
        let version = version.ok_or("it does not say of which version")?;
        let name = lines.peek().and_then(|line| line.strip_prefix("name "));
        if name.is_some() {
            lines.next();
        }
        Ok(Self {
            name: name.map(str::to_owned),
            size,
            version: (!version.is_empty()).then(|| version.to_owned()),
        })
    }

    fn run(&self, line: &str) -> Option<PageRange> {
        let (first, count) = line.split_once('+')?;
        let (first, count): (u64, u64) = (first.parse().ok()?, count.parse().ok()?);
        let pages = self.size.div_ceil(4096);
        let end = first.checked_add(count).filter(|end| *end <= pages)?;
        (count > 0).then(|| PageRange::new(first, end))
    }
}

/// True when what is to be replayed is recorded for the first time: `record` is the same file, and it
/// is not there, or empty.
pub fn yet_to_be_recorded(replay: &Path, record: Option<&Path>) -> bool {
    let absent = |path| match std::fs::metadata(path) {
        Ok(file) => file.is_file() && file.len() == 0,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    record == Some(replay) && absent(replay)
}

/// The file at `path`, new or a trace, without what it held. Whatever else is there stays: it may be
/// what is to be traced.
fn emptied(path: &Path) -> io::Result<File> {
    let mut how = OpenOptions::new();
    how.read(true).write(true).create(true).truncate(false);
    let mut file = how.open(path)?;
    if file.metadata()?.is_file() {
        let mut head = Vec::new();
        let most = MAGIC_OF_ALL.len() as u64;
        (&mut file).take(most).read_to_end(&mut head)?;
        if !head.is_empty() && head != MAGIC_OF_ALL.as_bytes() {
            let why = "it is there already, and is no trace";
            return Err(io::Error::other(why));
        }
        file.set_len(0)?;
        file.rewind()?;
    }
    Ok(file)
}

fn read<T>(path: &Path, parse: fn(&[u8]) -> Result<T, String>) -> Result<T, TraceError> {
    let remedy = "record it again";
    let bytes = std::fs::read(path).map_err(|error| TraceError {
        why: format!("cannot read '{}': {error}", path.display()),
        remedy,
    })?;
    parse(&bytes).map_err(|why| TraceError {
        why: format!("'{}': {why}", path.display()),
        remedy,
    })
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// Writes a trace while it happens.
pub struct Recorder {
    state: Mutex<State>,
}

struct State {
    file: BufWriter<File>,
    /// Of each source one bit for each page: it was asked for before.
    seen: Vec<Vec<u64>>,
    /// The source of the last run.
    at: usize,
    failed: Option<io::Error>,
}

impl Recorder {
    /// Makes the file at `path`, for these sources. A trace that was there is lost.
    ///
    /// # Errors
    /// When it cannot be made; when something else than a trace is there.
    pub fn new(path: &Path, sources: &[Traced]) -> Result<Self, TraceError> {
        let fails = |error| TraceError {
            why: format!("cannot write '{}': {error}", path.display()),
            remedy: "give another path",
        };
        let file = emptied(path).map_err(fails)?;
        let mut head = format!("{MAGIC}\n");
        for source in sources {
            let version = one_line(source.version.as_deref().unwrap_or_default());
            head += &format!("size {}\nversion {version}\n", source.size);
            if let Some(name) = &source.name {
                head += &format!("name {}\n", one_line(name));
            }
        }
        let mut file = BufWriter::new(file);
        file.write_all(head.as_bytes()).map_err(fails)?;
        // A process that is killed leaves a trace, if a short one.
        file.flush().map_err(fails)?;
        let words = |source: &Traced| source.size.div_ceil(4096).div_ceil(64) as usize;
        let state = State {
            file,
            seen: sources
                .iter()
                .map(|source| vec![0; words(source)])
                .collect(),
            at: 0,
            failed: None,
        };
        Ok(Self {
            state: Mutex::new(state),
        })
    }

    /// These pages of a source were asked for. What was before is not written again.
    ///
    /// # Panics
    /// When there are not so many sources.
    pub fn note(&self, source: usize, pages: PageRange) {
        let mut state = self.lock();
        let (mut first, mut count) = (0, 0);
        for page in pages.start.0..pages.end.0 {
            let Some(word) = state.seen[source].get_mut((page / 64) as usize) else {
                break;
            };
            let bit = 1 << (page % 64);
            let new = *word & bit == 0;
            *word |= bit;
            if new && count > 0 && first + count == page {
                count += 1;
            } else if new {
                state.write_run(source, first, count);
                (first, count) = (page, 1);
            }
        }
        state.write_run(source, first, count);
    }

    /// What was recorded so far is in the file, if this succeeds. What is not written whole is a
    /// shorter trace: it only saves less time.
    ///
    /// # Errors
    /// The first that there was.
    pub fn flush(&self) -> io::Result<()> {
        let mut state = self.lock();
        let flushed = state.file.flush();
        state.failed.take().map_or(flushed, Err)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn write_run(&mut self, source: usize, first: u64, count: u64) {
        if count == 0 {
            return;
        }
        let of = std::mem::replace(&mut self.at, source);
        let turn = (of != source).then(|| writeln!(self.file, "@{source}"));
        let run = writeln!(self.file, "{first}+{count}");
        if let Err(error) = turn.unwrap_or(Ok(())).and(run) {
            self.failed.get_or_insert(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(size: u64, version: Option<&str>, name: Option<&str>) -> Traced {
        Traced {
            name: name.map(str::to_owned),
            size,
            version: version.map(str::to_owned),
        }
    }

    /// A source as it is now.
    struct Now(u64, Option<String>);

    impl Source for Now {
        fn name(&self) -> &str {
            "now"
        }

        fn size(&self) -> u64 {
            self.0
        }

        fn version(&self) -> Option<String> {
            self.1.clone()
        }

        fn read_at(&self, offset: u64, _: &mut [u8]) -> Result<(), crate::SourceError> {
            panic!("byte {offset} is read")
        }
    }

    #[test]
    fn what_is_recorded_is_read_back_in_order_and_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let source = of(100 * 4096 - 1, Some("\"tag\""), None);
        let recorder = Recorder::new(&path, &[source]).unwrap();
        for (start, end) in [(50, 60), (0, 3), (55, 65), (2, 4), (99, 100), (0, 100)] {
            recorder.note(0, PageRange::new(start, end));
        }
        recorder.flush().unwrap();
        let trace = Trace::read(&path).unwrap();
        assert_eq!(trace.source, of(100 * 4096 - 1, Some("\"tag\""), None));
        let runs = [
            (50, 60),
            (0, 3),
            (60, 65),
            (3, 4),
            (99, 100),
            (4, 50),
            (65, 99),
        ];
        assert_eq!(
            trace.runs,
            runs.map(|(start, end)| PageRange::new(start, end))
        );
    }

    #[test]
    fn the_order_of_several_sources_is_kept_and_that_of_one_is_as_ever() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let sources = [of(8192, Some("a\nb"), Some("x")), of(1, None, Some("y z"))];
        let recorder = Recorder::new(&path, &sources).unwrap();
        let noted = [(0, (1, 2)), (1, (0, 1)), (0, (0, 2))];
        for (source, (start, end)) in noted {
            recorder.note(source, PageRange::new(start, end));
        }
        recorder.flush().unwrap();
        let head = "size 8192\nversion a b\nname x\nsize 1\nversion \nname y z\n";
        let text = format!("{MAGIC}\n{head}1+1\n@1\n0+1\n@0\n0+1\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        let traces = Traces::read(&path).unwrap();
        let change = |at: usize, size, version: Option<&str>| {
            let now = Now(size, version.map(str::to_owned));
            traces.sources[at].change("f", &now)
        };
        for same in [
            change(0, 8192, Some("a\nb")),
            change(0, 8192, None),
            change(1, 1, Some("new")),
        ] {
            assert_eq!(same, None);
        }
        let said = change(0, 8192, Some("c")).unwrap();
        assert!(said.contains("'f' has changed") && said.contains("it was a b and is c;"));
        let said = change(0, 8191, Some("a\nb")).unwrap();
        assert!(said.contains("it had 8192 bytes and has 8191;"), "{said}");
        let runs = [(0, (1, 2)), (1, (0, 1)), (0, (0, 1))];
        let runs = runs.map(|(source, (start, end))| (source, PageRange::new(start, end)));
        assert_eq!(traces.runs, runs);
        let refused = Trace::read(&path).unwrap_err().to_string();
        assert!(refused.contains("it is of 2 sources"), "{refused}");

        let recorder = Recorder::new(&path, &[of(8192, None, None)]).unwrap();
        recorder.note(0, PageRange::new(0, 2));
        recorder.flush().unwrap();
        let text = format!("{MAGIC}\nsize 8192\nversion \n0+2\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }

    #[test]
    fn a_line_that_was_cut_is_left_out_and_nonsense_is_refused() {
        let head = format!("{MAGIC}\nsize 8192\nversion \n");
        let parse = |rest: &str| Trace::parse(format!("{head}{rest}").as_bytes());
        assert_eq!(parse("0+1\n1+").unwrap().runs, [PageRange::new(0, 1)]);
        assert_eq!(parse("").unwrap().source, of(8192, None, None));
        assert_eq!(parse("@0\n0+1\n").unwrap().runs.len(), 1);
        for bad in [
            "0+3\n",
            "0+0\n",
            "1\n",
            "-1+1\n",
            "18446744073709551615+2\n",
            "x\n",
            "@1\n",
            "@\n",
            "0+1\nsize 8192\n",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        for bad in ["", "\n", "farpage trace 2\n", "farpage trace 1\nsize x\n"] {
            assert!(Trace::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        let two = |first: &str, second: &str| {
            let head = "size 1\nversion \n";
            let text = format!("{MAGIC}\n{head}{first}{head}{second}@1\n0+1\n");
            Traces::parse(text.as_bytes())
        };
        assert!(two("name a\n", "name b\n").is_ok());
        assert!(two("name a\n", "name a\n").is_err());
        assert!(two("", "name a\n").is_err() && two("name a\n", "").is_err());
    }

    #[test]
    fn what_is_no_trace_is_never_recorded_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        std::fs::write(&path, "numbers").unwrap();
        let record = || Recorder::new(&path, &[of(4096, None, None)]);
        let refused = record().err().unwrap().to_string();
        assert!(refused.contains("is there already, and is no trace; give another path"));
        assert_eq!(std::fs::read(&path).unwrap(), b"numbers");
        std::fs::write(&path, "").unwrap();
        record().unwrap().flush().unwrap();
        record().unwrap().flush().unwrap();
        assert!(Trace::read(&path).is_ok());
    }

    #[test]
    fn a_trace_that_cannot_be_written_says_so() {
        let source = of(4096 * 100_000, None, None);
        let folder = tempfile::tempdir().unwrap();
        let recorder = Recorder::new(&folder.path().join("trace"), &[source]).unwrap();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        recorder.lock().file = BufWriter::new(full);
        (0..50_000).for_each(|page| recorder.note(0, PageRange::new(page * 2, page * 2 + 1)));
        assert!(recorder.flush().is_err());
        for path in ["/dev/full", "/no/such/folder/trace"] {
            let refused = Recorder::new(Path::new(path), &[]);
            assert!(refused.is_err_and(|error| error.why.contains("cannot write")));
        }
    }
}
