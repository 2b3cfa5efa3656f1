//! Results that are kept by the sources: a long run can be continued, and runs add up.
//!
//! They lie in `~/.cache/farpage-xtask/results/HASH/GROUP.jsonl`, a line for each case that was run.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::harness::Ran;

/// A file of results, one JSON value in each line.
pub(crate) struct Lines {
    path: PathBuf,
    file: File,
}

impl Lines {
    pub(crate) fn open(sources: &str, group: &str) -> Result<Self> {
        Self::open_in(&folder()?.join("results").join(sources), group)
    }

    fn open_in(folder: &Path, group: &str) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let path = folder.join(format!("{group}.jsonl"));
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { path, file })
    }

    /// It is on the disk when this returns, whatever becomes of the run.
    pub(crate) fn add(&mut self, line: &Value) -> Result<()> {
        // One write: two runs at a time do not mix their lines.
        self.file.write_all(format!("{line}\n").as_bytes())?;
        Ok(())
    }

    /// A line that was cut off by a full disk is left out.
    pub(crate) fn read(&self) -> Result<Vec<Value>> {
        let text = fs::read_to_string(&self.path)?;
        let lines = text.lines().map(serde_json::from_str);
        Ok(lines.filter_map(Result::ok).collect())
    }
}

/// The results of one group of tests.
pub(crate) struct Kept(Lines);

/// What is known of one case.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Record {
    pub(crate) passed: u32,
    pub(crate) failed: u32,
    /// Of the last run.
    pub(crate) seconds: f64,
    pub(crate) last_passed: bool,
    /// Why it failed the last time that it did.
    pub(crate) why: String,
    pub(crate) skipped: Vec<String>,
}

impl Kept {
    pub(crate) fn open(sources: &str, group: &str) -> Result<Self> {
        Ok(Self(Lines::open(sources, group)?))
    }

    /// Adds a result.
    pub(crate) fn add(&mut self, ran: &Ran) -> Result<()> {
        let at = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        self.0.add(&json!({
            "case": ran.name, "seconds": ran.seconds, "passed": ran.passed(), "at": at,
            "why": ran.failure, "skipped": ran.skipped,
        }))
    }

    /// All that is known, case by case.
    pub(crate) fn records(&self) -> Result<BTreeMap<String, Record>> {
        let mut all = BTreeMap::<String, Record>::new();
        for line in self.0.read()? {
            let Some(name) = line["case"].as_str() else {
                continue;
            };
            let record = all.entry(name.to_owned()).or_default();
            record.seconds = line["seconds"].as_f64().unwrap_or(0.0);
            record.last_passed = line["passed"] == true;
            let skipped = line["skipped"].as_array().into_iter().flatten();
            record.skipped = skipped
                .filter_map(Value::as_str)
                .map(String::from)
                .collect();
            if record.last_passed {
                record.passed += 1;
            } else {
                record.failed += 1;
                record.why = line["why"].as_str().unwrap_or("").to_owned();
            }
        }
        Ok(all)
    }
}

/// How long each case took, whatever the sources were: the longest begin first.
pub(crate) struct Seconds(BTreeMap<String, f64>);

impl Seconds {
    pub(crate) fn read() -> Self {
        let text = folder().and_then(|f| Ok(fs::read_to_string(f.join("seconds.json"))?));
        let known = text.ok().and_then(|text| serde_json::from_str(&text).ok());
        Self(known.unwrap_or_default())
    }

    /// Cases that were never run come before all others.
    pub(crate) fn of(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or(f64::INFINITY)
    }

    pub(crate) fn note(&mut self, all: &[Ran]) -> Result<()> {
        let known = all.iter().map(|ran| (ran.name.clone(), ran.seconds));
        self.0.extend(known);
        let path = folder()?.join("seconds.json");
        let new = path.with_extension(format!("new-{}", std::process::id()));
        fs::write(&new, serde_json::to_string(&self.0)?)?;
        fs::rename(&new, &path).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// `~/.cache/farpage-xtask`, or where `XDG_CACHE_HOME` says.
pub(crate) fn folder() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = match (set("XDG_CACHE_HOME"), set("HOME")) {
        (Some(cache), _) => PathBuf::from(cache),
        (None, Some(home)) => PathBuf::from(home).join(".cache"),
        (None, None) => anyhow::bail!("neither HOME nor XDG_CACHE_HOME is set; set one of them"),
    };
    let folder = cache.join("farpage-xtask");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(name: &str, failure: Option<&str>) -> Ran {
        Ran {
            name: name.into(),
            seconds: 1.5,
            failure: failure.map(String::from),
            skipped: vec!["no moon".into()],
        }
    }

    #[test]
    fn results_add_up_over_runs() {
        let folder = std::env::temp_dir().join(format!("farpage-kept-{}", std::process::id()));
        let mut first = Kept(Lines::open_in(&folder, "short").unwrap());
        first.add(&ran("one", None)).unwrap();
        first.add(&ran("two", Some("why"))).unwrap();
        first.0.file.write_all(b"{\"case\": \"cut o\n").unwrap();
        let mut again = Kept(Lines::open_in(&folder, "short").unwrap());
        again.add(&ran("two", None)).unwrap();
        let records = again.records().unwrap();
        fs::remove_dir_all(folder).unwrap();
        assert_eq!(records.len(), 2);
        let two = &records["two"];
        assert_eq!((two.passed, two.failed, two.last_passed), (1, 1, true));
        assert_eq!((two.why.as_str(), two.seconds), ("why", 1.5));
        assert_eq!(records["one"].skipped, ["no moon"]);
    }
}
