//! Which pages were asked for, in order: recorded once, brought in ahead the next time.
//!
//! A text file: a line that names the format, two that name the source, then one line for each run
//! of pages, `first+count`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use farpage_abi::PageRange;

const MAGIC: &str = "farpage trace 1";

/// What a program asked for of one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Size of the source in bytes. It is replayed for a source of this size only.
    pub size: u64,
    /// Its version, where it has one.
    pub version: Option<String>,
    /// Runs of pages of 4096 bytes, in the order in which they were first asked for.
    pub runs: Vec<PageRange>,
}

/// Why a trace cannot be used, or not be recorded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("trace: {why}; {remedy}")]
pub struct TraceError {
    /// What is wrong.
    pub why: String,
    /// What to do.
    pub remedy: &'static str,
}

fn refused(why: String) -> TraceError {
    TraceError {
        why,
        remedy: "record it again",
    }
}

impl Trace {
    /// Reads what a [`Recorder`] wrote.
    ///
    /// # Errors
    /// When it cannot be read or is no trace.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let text = std::fs::read(path);
        let text =
            text.map_err(|error| refused(format!("cannot read {}: {error}", path.display())))?;
        Self::parse(&text).map_err(|why| refused(format!("{}: {why}", path.display())))
    }

    /// Understands the bytes of a trace file. A last line that was not written whole is left out.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
        let text = str::from_utf8(&bytes[..whole]).map_err(|_| "it is not text".to_owned())?;
        let mut lines = text.split('\n');
        if lines.next() != Some(MAGIC) {
            return Err("it is not a trace of this version".into());
        }
        let size = lines.next().and_then(|line| line.strip_prefix("size "));
        let size: Option<u64> = size.and_then(|text| text.parse().ok());
        let size = size.ok_or("it does not say of what size")?;
        let version = lines.next().and_then(|line| line.strip_prefix("version "));
        let version = version.ok_or("it does not say of which version")?;
        let version = (!version.is_empty()).then(|| version.to_owned());
        let pages = size.div_ceil(4096);
        let run = |line: &str| {
            let (first, count) = line.split_once('+')?;
            let (first, count): (u64, u64) = (first.parse().ok()?, count.parse().ok()?);
            let end = first.checked_add(count).filter(|end| *end <= pages)?;
            (count > 0).then(|| PageRange::new(first, end))
        };
        let runs = lines.map(|line| run(line).ok_or_else(|| format!("no run of pages: '{line}'")));
        Ok(Self {
            size,
            version,
            runs: runs.collect::<Result<_, _>>()?,
        })
    }
}

/// Writes a trace while it happens.
pub struct Recorder {
    state: Mutex<State>,
}

struct State {
    file: BufWriter<File>,
    /// One bit for each page: it was asked for before.
    seen: Vec<u64>,
}

impl Recorder {
    /// Makes the file at `path`, for a source of `size` bytes and this version. What was there is
    /// lost.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(path: &Path, size: u64, version: Option<&str>) -> Result<Self, TraceError> {
        let fails = |error| refused(format!("cannot write {}: {error}", path.display()));
        let mut file = BufWriter::new(File::create(path).map_err(fails)?);
        let version: String = version.unwrap_or_default().replace(['\n', '\r'], " ");
        writeln!(file, "{MAGIC}\nsize {size}\nversion {version}").map_err(fails)?;
        let words = size.div_ceil(4096).div_ceil(64);
        let seen = vec![0; words as usize];
        let state = Mutex::new(State { file, seen });
        Ok(Self { state })
    }

    /// These pages were asked for. What was before is not written again.
    pub fn note(&self, pages: PageRange) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { file, seen } = &mut *state;
        let (mut first, mut count) = (0, 0);
        for page in pages.start.0..pages.end.0 {
            let Some(word) = seen.get_mut((page / 64) as usize) else {
                break;
            };
            let bit = 1 << (page % 64);
            let new = *word & bit == 0;
            *word |= bit;
            if new && count > 0 && first + count == page {
                count += 1;
            } else if new {
                write_run(file, first, count);
                (first, count) = (page, 1);
            }
        }
        write_run(file, first, count);
    }

    /// What was recorded so far is in the file.
    pub fn flush(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // A trace only saves time: one that cannot be written whole is shorter.
        let _ = state.file.flush();
    }
}

fn write_run(file: &mut BufWriter<File>, first: u64, count: u64) {
    if count > 0 {
        let _ = writeln!(file, "{first}+{count}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_is_read_back_in_order_and_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        let recorder = Recorder::new(&path, 100 * 4096 - 1, Some("\"tag\"")).unwrap();
        for (start, end) in [(50, 60), (0, 3), (55, 65), (2, 4), (99, 100), (0, 100)] {
            recorder.note(PageRange::new(start, end));
        }
        recorder.flush();
        let trace = Trace::read(&path).unwrap();
        assert_eq!(
            (trace.size, trace.version.as_deref()),
            (100 * 4096 - 1, Some("\"tag\""))
        );
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
    fn a_line_that_was_cut_is_left_out_and_nonsense_is_refused() {
        let head = format!("{MAGIC}\nsize 8192\nversion \n");
        let parse = |rest: &str| Trace::parse(format!("{head}{rest}").as_bytes());
        assert_eq!(parse("0+1\n1+").unwrap().runs, [PageRange::new(0, 1)]);
        assert_eq!(parse("").unwrap().version, None);
        for bad in [
            "0+3\n",
            "0+0\n",
            "1\n",
            "-1+1\n",
            "18446744073709551615+2\n",
            "x\n",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        for bad in ["", "\n", "farpage trace 2\n", "farpage trace 1\nsize x\n"] {
            assert!(Trace::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
