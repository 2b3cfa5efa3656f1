//! Settings that the whole machine has: changed by one process at a time, and set back.

use std::fs::{self, File};

use anyhow::{Context, Result, bail};

use crate::guard::Guard;

const HUGE_PAGES: &str = "/proc/sys/vm/nr_hugepages";

/// The right to change what the machine has one of. Whoever wants it waits until the one who has it has
/// set everything back.
pub struct Machine {
    turn: File,
}

/// A setting of Linux that is another until this is dropped.
pub struct Setting {
    _guard: Guard,
}

/// Huge pages of 2 MiB that Linux has set aside until this is dropped.
pub struct HugePages {
    _setting: Setting,
}

/// Nothing is printed: where it would go to is the file whose lock lasts until the shell has ended.
const SET_BACK: &str = r#"printf %s "$2" 2>/dev/null > "$1""#;

impl Machine {
    /// Waits for it.
    ///
    /// # Errors
    /// When its file cannot be had.
    pub fn take() -> Result<Self> {
        let path = std::env::temp_dir().join("farpage-testkit.lock");
        let turn = File::options().create(true).append(true).open(&path);
        let turn = turn.with_context(|| format!("cannot open {}", path.display()))?;
        turn.lock()
            .with_context(|| format!("cannot lock {}", path.display()))?;
        Ok(Self { turn })
    }

    /// Changes what is set by a file of `/proc/sys` or `/sys`.
    ///
    /// # Errors
    /// When there is no such file, or it may not be written.
    pub fn set(&self, path: &str, value: &str) -> Result<Setting> {
        let before = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
        let guard = Guard::with_lock(SET_BACK, &[path, before.trim()], &self.turn)?;
        fs::write(path, value).with_context(|| format!("cannot write {path}"))?;
        Ok(Setting { _guard: guard })
    }

    /// Sets huge pages aside, beside those that are already.
    ///
    /// # Errors
    /// When this may not be done, or memory is not to be had in one piece.
    pub fn huge_pages(&self, count: u64) -> Result<HugePages> {
        let read = || -> Result<u64> {
            let text = fs::read_to_string(HUGE_PAGES);
            let text = text.with_context(|| format!("cannot read {HUGE_PAGES}"))?;
            text.trim().parse().context("no number of huge pages")
        };
        let before = read()?;
        let setting = self.set(HUGE_PAGES, &(before + count).to_string())?;
        let more = read()?.saturating_sub(before);
        if more < count {
            bail!("of {count} huge pages Linux had memory for {more}");
        }
        Ok(HugePages { _setting: setting })
    }
}
